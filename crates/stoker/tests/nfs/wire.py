"""A small NFSv3 client on bare sockets: what libnfs and kernels never send can be sent, and every field is seen."""

import os
import socket
import struct

NFS, MOUNT = 100003, 100005
OK, PERM, NOENT, IO, ACCES, EXIST, NOTDIR, ISDIR, INVAL = 0, 1, 2, 5, 13, 17, 20, 21, 22
ROFS, NAMETOOLONG, NOTEMPTY, STALE = 30, 63, 66, 70
BADHANDLE, NOT_SYNC, BAD_COOKIE, NOTSUPP, TOOSMALL, BADTYPE = 10001, 10002, 10003, 10004, 10005, 10007
UNSTABLE, FILE_SYNC = 0, 2


class Refused(Exception):
    """The call was not carried out; says how the server put it."""


def u32(*values):
    return struct.pack(f">{len(values)}I", *values)


def u64(*values):
    return struct.pack(f">{len(values)}Q", *values)


def opaque(data):
    return u32(len(data)) + data + b"\0" * (-len(data) % 4)


def sattr(mode=None, uid=None, gid=None, size=None, mtime=None):
    out = b""
    for value in (mode, uid, gid):
        out += u32(0) if value is None else u32(1, value)
    out += u32(0) if size is None else u32(1) + u64(size)
    out += u32(0)
    return out + (u32(0) if mtime is None else u32(2, mtime, 0))


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def u32(self):
        self.at += 4
        return struct.unpack_from(">I", self.data, self.at - 4)[0]

    def u64(self):
        self.at += 8
        return struct.unpack_from(">Q", self.data, self.at - 8)[0]

    def opaque(self):
        size = self.u32()
        start, self.at = self.at, self.at + size + (-size % 4)
        return self.data[start : start + size]

    def attr(self):
        names = ("type", "mode", "nlink", "uid", "gid")
        found = {name: self.u32() for name in names}
        found["size"], found["used"], found["device"], found["fsid"], found["ino"] = (self.u64() for _ in range(5))
        found["atime"], found["mtime"], found["ctime"] = ((self.u32(), self.u32()) for _ in range(3))
        return found

    def after(self):
        return self.attr() if self.u32() else None

    def wcc(self):
        before = None
        if self.u32():
            before = {"size": self.u64(), "mtime": (self.u32(), self.u32()), "ctime": (self.u32(), self.u32())}
        return before, self.after()

    def done(self):
        assert self.at == len(self.data), f"{len(self.data) - self.at} bytes behind the end of a reply"


class Client:
    """A connection. Who it says it is can be changed at any time."""

    def __init__(self, port, uid=0, gid=0, groups=(), source="127.0.0.1", host=None, timeout=60):
        # Sources are chosen on loopback alone.
        source = None if host else (source, 0)
        self.socket = socket.create_connection((host or "127.0.0.1", port), timeout=timeout, source_address=source)
        self.uid, self.gid, self.groups = uid, gid, groups
        self.xid = int.from_bytes(os.urandom(3), "big") << 8

    def reset(self):
        """Closes it at once: what was not sent yet never is."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send_record(self, data):
        self.socket.sendall(u32(len(data) | 1 << 31) + data)

    def bytes(self, size):
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        return data

    def record(self):
        mark = struct.unpack(">I", self.bytes(4))[0]
        assert mark >> 31, "replies are one fragment"
        return self.bytes(mark & 0x7FFFFFFF)

    def header(self, program, procedure, version=3, rpc=2, flavor=1, xid=None):
        if xid is None:
            self.xid += 1
            xid = self.xid
        groups = u32(len(self.groups), *self.groups)
        credentials = u32(0) + opaque(b"test") + u32(self.uid, self.gid) + groups if flavor == 1 else b""
        return u32(xid, 0, rpc, program, version, procedure, flavor) + opaque(credentials) + u32(0, 0)

    def reply(self):
        reply = Reader(self.record())
        xid, kind = reply.u32(), reply.u32()
        assert (xid, kind) == (self.xid, 1)
        if reply.u32():
            raise Refused(("denied", reply.u32(), reply.u32()))
        reply.u32(), reply.opaque()
        accepted = reply.u32()
        if accepted:
            raise Refused(("accepted", accepted))
        return reply

    def call(self, program, procedure, args=b"", **header):
        self.send_record(self.header(program, procedure, **header) + args)
        return self.reply()

    def mount(self, path):
        reply = self.call(MOUNT, 1, opaque(path.encode()))
        status = reply.u32()
        return (status, reply.opaque() if status == OK else None)

    def getattr(self, handle):
        reply = self.call(NFS, 1, opaque(handle))
        status = reply.u32()
        found = reply.attr() if status == OK else None
        reply.done()
        return status, found

    def setattr(self, handle, wish, guard=None):
        guard = u32(0) if guard is None else u32(1, *guard)
        reply = self.call(NFS, 2, opaque(handle) + wish + guard)
        status, wcc = reply.u32(), reply.wcc()
        reply.done()
        return status, wcc

    def lookup(self, handle, name):
        reply = self.call(NFS, 3, opaque(handle) + opaque(name))
        status = reply.u32()
        found = (reply.opaque(), reply.after()) if status == OK else (None, None)
        reply.after()
        reply.done()
        return status, *found

    def access(self, handle, wish=0x3F):
        reply = self.call(NFS, 4, opaque(handle) + u32(wish))
        status, _ = reply.u32(), reply.after()
        return status, reply.u32() if status == OK else None

    def readlink(self, handle):
        reply = self.call(NFS, 5, opaque(handle))
        status, _ = reply.u32(), reply.after()
        return status, reply.opaque() if status == OK else None

    def read(self, handle, offset, count):
        reply = self.call(NFS, 6, opaque(handle) + u64(offset) + u32(count))
        status, _ = reply.u32(), reply.after()
        if status:
            return status, None, None
        count, is_end = reply.u32(), reply.u32()
        data = reply.opaque()
        reply.done()
        assert count == len(data)
        return status, data, bool(is_end)

    def read_all(self, handle):
        data = b""
        while True:
            status, part, is_end = self.read(handle, len(data), 1 << 20)
            assert status == OK, status
            data += part
            if is_end:
                return data

    def write(self, handle, offset, data, stable=UNSTABLE):
        args = opaque(handle) + u64(offset) + u32(len(data), stable) + opaque(data)
        reply = self.call(NFS, 7, args)
        status, wcc = reply.u32(), reply.wcc()
        if status:
            return status, wcc, None, None
        count, committed, verifier = reply.u32(), reply.u32(), reply.u64()
        reply.done()
        assert count == len(data)
        return status, wcc, committed, verifier

    def commit(self, handle):
        reply = self.call(NFS, 21, opaque(handle) + u64(0) + u32(0))
        status, wcc = reply.u32(), reply.wcc()
        return status, wcc, reply.u64() if status == OK else None

    def made(self, reply):
        status = reply.u32()
        handle = attr = None
        if status == OK:
            assert reply.u32()
            handle, attr = reply.opaque(), reply.after()
        wcc = reply.wcc()
        reply.done()
        return status, handle, attr, wcc

    def create(self, handle, name, how=0, wish=None, verifier=None):
        what = u64(verifier) if how == 2 else wish or sattr(mode=0o644)
        return self.made(self.call(NFS, 8, opaque(handle) + opaque(name) + u32(how) + what))

    def mkdir(self, handle, name, mode=0o755):
        return self.made(self.call(NFS, 9, opaque(handle) + opaque(name) + sattr(mode=mode)))

    def symlink(self, handle, name, target):
        return self.made(self.call(NFS, 10, opaque(handle) + opaque(name) + sattr() + opaque(target)))

    def mknod(self, handle, name, kind, device=b""):
        return self.made(self.call(NFS, 11, opaque(handle) + opaque(name) + u32(kind) + sattr(mode=0o604) + device))

    def remove(self, handle, name, procedure=12, **header):
        reply = self.call(NFS, procedure, opaque(handle) + opaque(name), **header)
        status, wcc = reply.u32(), reply.wcc()
        reply.done()
        return status, wcc

    def rmdir(self, handle, name):
        return self.remove(handle, name, procedure=13)

    def rename(self, handle, name, to, to_name):
        reply = self.call(NFS, 14, opaque(handle) + opaque(name) + opaque(to) + opaque(to_name))
        status = reply.u32()
        wccs = reply.wcc(), reply.wcc()
        reply.done()
        return status, wccs

    def link(self, file, handle, name):
        return self.call(NFS, 15, opaque(file) + opaque(handle) + opaque(name)).u32()

    def readdir(self, handle, cookie=0, verifier=0, count=4096, plus=False):
        sizes = u32(count, count) if plus else u32(count)
        reply = self.call(NFS, 17 if plus else 16, opaque(handle) + u64(cookie, verifier) + sizes)
        status, _ = reply.u32(), reply.after()
        if status:
            return status, [], None, None
        verifier, entries = reply.u64(), []
        while reply.u32():
            entry = {"ino": reply.u64(), "name": reply.opaque(), "cookie": reply.u64()}
            if plus:
                entry["attr"] = reply.after()
                entry["handle"] = reply.opaque() if reply.u32() else None
            entries.append(entry)
        is_end = bool(reply.u32())
        reply.done()
        assert len(reply.data) <= count + 64
        return status, entries, verifier, is_end

    def list_all(self, handle, count=4096, plus=False):
        entries, cookie, verifier = [], 0, 0
        while True:
            status, more, verifier, is_end = self.readdir(handle, cookie, verifier, count, plus)
            assert status == OK, status
            entries += more
            if is_end:
                return entries
            cookie = more[-1]["cookie"]

    def info(self, procedure, handle):
        reply = self.call(NFS, procedure, opaque(handle))
        status, _ = reply.u32(), reply.after()
        return status, reply
