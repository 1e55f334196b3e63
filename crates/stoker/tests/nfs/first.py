"""The first half: a new node. Leaves handles and what they are of in a file, for the second half."""

import json
import sys

import s3
from wire import *

port, kept, endpoint, access, secret = int(sys.argv[1]), *sys.argv[2:6]
client = Client(port)
status, root = client.mount("/data")
assert status == OK


def expect(found, wanted):
    status = found[0] if isinstance(found, tuple) else found
    assert status == wanted, f"{found} and not {wanted}"
    return found


def refused(call):
    try:
        call()
    except Refused as words:
        return words.args[0]
    raise AssertionError("it was carried out")


def content(size, seed):
    return bytes((at * 7 + seed + at // 251) & 0xFF for at in range(size))


# What is not understood is refused, and the connection and the server go on.
for procedure in (0, 0):
    client.call(NFS, procedure), client.call(MOUNT, procedure)
assert refused(lambda: client.call(NFS, 22)) == ("accepted", 3)
assert refused(lambda: client.call(NFS, 1, version=4)) == ("accepted", 2)
assert refused(lambda: client.call(100021, 0)) == ("accepted", 1), "there is no lock manager"
assert refused(lambda: client.call(NFS, 0, rpc=3))[0] == "denied"
assert refused(lambda: client.call(NFS, 0, flavor=6))[0] == "denied", "Kerberos"
for procedure in range(1, 22):
    assert refused(lambda: client.call(NFS, procedure, b"\xff" * 8)) == ("accepted", 4), procedure
expect(client.getattr(b"no handle at all, but as long as one"), BADHANDLE)
expect(client.getattr(root[:-1] + bytes([root[-1] ^ 1])), STALE)
for garbage in (b"\xff" * 64, u32(5), b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100, u32(1 << 31 | 1 << 30)):
    other = Client(port)
    # It may be closed before all of this is done.
    try:
        other.socket.sendall(garbage)
        other.socket.shutdown(1)
        assert other.socket.recv(1) == b"", garbage
    except TimeoutError:
        raise
    except OSError:
        pass
expect(client.mount("/no-such-volume"), NOENT)
expect(client.mount("/data/no/such/directory"), NOENT)
listed = client.call(MOUNT, 5)
assert listed.u32() and listed.opaque() == b"/data"

# Files: made, written in pieces, seen at once by another connection, committed.
_, file, attr, (before, after) = expect(client.create(root, b"file", how=1), OK)
assert (attr["type"], attr["mode"], attr["size"], attr["uid"]) == (1, 0o644, 0, 65534), attr
assert after["type"] == 2
expect(client.create(root, b"file", how=1), EXIST)
bytes_ = content(3_000_000, 1)
verifiers = set()
for offset in range(0, len(bytes_), 1 << 20):
    part = bytes_[offset : offset + (1 << 20)]
    _, (before, after), committed, verifier = expect(client.write(file, offset, part), OK)
    assert committed == UNSTABLE and after["size"] == offset + len(part)
    assert before["size"] == offset, "nobody else changed it"
    verifiers.add(verifier)
other = Client(port)
assert other.read_all(file) == bytes_, "what was not committed is there for every client of this node"
_, _, verifier = expect(client.commit(file), OK)
assert verifiers == {verifier}
_, _, committed, _ = expect(client.write(file, 10, b"in the middle", FILE_SYNC), OK)
assert committed == FILE_SYNC
bytes_ = bytes_[:10] + b"in the middle" + bytes_[23:]
assert client.read_all(file) == bytes_
assert client.read(file, len(bytes_) + 5, 10) == (OK, b"", True)

# Attributes, with and without a guard.
_, found = expect(client.getattr(file), OK)
expect(client.setattr(file, sattr(mode=0o600), guard=(1, 2)), NOT_SYNC)
expect(client.setattr(file, sattr(mode=0o600, mtime=1_000_000_000), guard=found["ctime"]), OK)
_, found = client.getattr(file)
assert (found["mode"], found["mtime"]) == (0o600, (1_000_000_000, 0)), found
expect(client.setattr(file, sattr(size=5)), OK)
expect(client.setattr(file, sattr(size=9)), OK)
assert client.read_all(file) == bytes_[:5] + b"\0" * 4
expect(client.setattr(file, sattr(uid=5)), 1)

# A client that did not hear of its file may ask for it again; nobody else.
_, twice, *_ = expect(client.create(root, b"once", how=2, verifier=0x1234567890), OK)
_, again, *_ = expect(client.create(root, b"once", how=2, verifier=0x1234567890), OK)
assert twice == again
expect(client.create(root, b"once", how=2, verifier=0x999), EXIST)
expect(client.create(root, b"file", wish=sattr(size=0)), OK)
assert client.read_all(file) == b"", "made although it was there: emptied"

# Directories: entries come once, in small pieces, while others go.
_, directory, *_ = expect(client.mkdir(root, b"many"), OK)
names = {f"entry {at:03}".encode() for at in range(300)}
for name in names:
    expect(client.create(directory, name, how=1), OK)
for plus in (False, True):
    found = client.list_all(directory, 1500, plus)
    assert len(found) == 302 and {entry["name"] for entry in found} == names | {b".", b".."}
    assert len({entry["cookie"] for entry in found}) == 302
assert all(client.getattr(entry["handle"])[1]["ino"] == entry["ino"] for entry in found[:20])
expect(client.readdir(directory, count=100), TOOSMALL)
expect(client.readdir(directory, cookie=77, verifier=5), BAD_COOKIE)
seen, cookie, verifier = set(), 0, 0
while True:
    _, entries, verifier, is_end = expect(Client(port).readdir(directory, cookie, verifier, 2000), OK)
    for entry in entries:
        if entry["name"] not in (b".", b".."):
            assert entry["name"] not in seen
            seen.add(entry["name"])
            expect(client.remove(directory, entry["name"]), OK)
    if is_end:
        break
    cookie = entries[-1]["cookie"]
assert seen == names, "each one is shown although those before it are gone"
expect(client.rmdir(root, b"many"), OK)
expect(client.getattr(directory), STALE)

# Names: looked up, moved, replaced, removed.
_, deep, *_ = expect(client.mkdir(root, b"deep"), OK)
_, deeper, *_ = expect(client.mkdir(deep, b"er"), OK)
expect(client.mkdir(root, b"deep"), EXIST)
expect(client.rmdir(root, b"deep"), NOTEMPTY)
expect(client.rmdir(root, b"file"), NOTDIR)
expect(client.remove(root, b"deep"), ISDIR)
expect(client.lookup(root, b"nothing"), NOENT)
expect(client.lookup(file, b"x"), NOTDIR)
expect(client.lookup(root, b"n" * 256), NAMETOOLONG)
assert client.lookup(deeper, b"..")[1] == deep and client.lookup(root, b"..")[1] == root
assert client.mount("/data/deep/er") == (OK, deeper)
_, moved, *_ = expect(client.create(root, b"old name", how=1), OK)
expect(client.write(moved, 0, b"moves", FILE_SYNC), OK)
expect(client.rename(root, b"old name", deeper, b"new name"), OK)
expect(client.lookup(root, b"old name"), NOENT)
assert client.read_all(moved) == b"moves", "its old handle is known"
_, replaced, *_ = expect(client.create(deeper, b"replaced", how=1), OK)
expect(client.rename(deeper, b"new name", deeper, b"replaced"), OK)
expect(client.getattr(replaced), STALE)
expect(client.rename(root, b"deep", deeper, b"loop"), INVAL)
_, link, attr, _ = expect(client.symlink(root, b"link", b"deep/er/replaced"), OK)
assert attr["type"] == 5 and client.readlink(link) == (OK, b"deep/er/replaced")
expect(client.readlink(file), INVAL)
for kind, name in ((7, b"pipe"), (6, b"socket")):
    _, special, attr, _ = expect(client.mknod(root, name, kind), OK)
    assert (attr["type"], attr["mode"], attr["size"], attr["device"]) == (kind, 0o604, 0, 0), attr
    assert expect(client.getattr(special), OK)[1]["type"] == kind
    expect(client.mknod(root, name, kind), EXIST)
    expect(client.readlink(special), INVAL)
    expect(client.read(special, 0, 10), INVAL)
    expect(client.remove(root, name), OK)
# Devices are for root, which nobody is in this export.
expect(client.mknod(root, b"disk", 3, u32(8, 1)), PERM)
expect(client.mknod(root, b"tape", 4, u32(4, 1)), PERM)
expect(client.mknod(root, b"neither", 2), BADTYPE)
_, first, *_ = expect(client.create(root, b"first", how=1), OK)
expect(client.write(first, 0, b"written", UNSTABLE), OK)
expect(client.link(first, deep, b"second"), OK)
expect(client.link(first, deep, b"second"), EXIST)
expect(client.link(deep, root, b"directory"), PERM)
_, second, attr = expect(client.lookup(deep, b"second"), OK)
assert attr["nlink"] == 2 and attr["ino"] == client.getattr(first)[1]["ino"]
expect(client.write(second, 0, b"linked", FILE_SYNC), OK)
assert client.read_all(first) == b"linkedn"
expect(client.remove(root, b"first"), OK)
assert client.read_all(second) == b"linkedn" and client.getattr(second)[1]["nlink"] == 1
expect(client.remove(deep, b"second"), OK)
expect(client.getattr(second), STALE)
expect(client.read(root, 0, 10), ISDIR)

# A request that is sent again gets the answer of the first time.
expect(client.create(root, b"gone", how=1), OK)
request = client.header(NFS, 12) + opaque(root) + opaque(b"gone")
for _ in range(2):
    client.send_record(request)
    assert client.reply().u32() == OK
expect(client.remove(root, b"gone"), NOENT)

# Others may do what the mode says, and root is nobody.
user = Client(port, uid=1000, gid=1000)
expect(user.create(root, b"mine", how=1), ACCES)
expect(client.setattr(deep, sattr(mode=0o777)), OK)
_, mine, attr, _ = expect(user.create(deep, b"mine", how=1, wish=sattr(mode=0o600)), OK)
assert (attr["uid"], attr["gid"]) == (1000, 1000)
expect(user.write(mine, 0, b"secret", FILE_SYNC), OK)
expect(client.read(mine, 0, 10), ACCES)
expect(client.write(mine, 0, b"x"), ACCES)
expect(client.setattr(mine, sattr(mode=0o777)), 1)
assert client.access(mine)[1] == 0 and user.access(mine)[1] == 0x01 | 0x04 | 0x08
assert user.access(root)[1] == 0x01 | 0x02

# Who may not go into a directory does not get there by a path, a listing, or a handle that it made up.
_, private, *_ = expect(client.mkdir(root, b"private", mode=0o700), OK)
_, inner, *_ = expect(client.mkdir(private, b"inner", mode=0o777), OK)
_, hidden, attr, _ = expect(client.create(inner, b"hidden", how=1, wish=sattr(mode=0o666)), OK)
expect(user.lookup(private, b"inner"), ACCES)
expect(user.mount("/data/private/inner"), ACCES)
assert client.mount("/data/private/inner") == (OK, inner)
expect(client.setattr(private, sattr(mode=0o744)), OK)
for entry in user.list_all(private, plus=True):
    assert entry["handle"] is None and entry["attr"] is None, entry
assert all(entry["handle"] for entry in client.list_all(private, plus=True))
for made_up in (mine[:16] + hidden[16:], mine[:12] + hidden[12:], bytes([1]) + hidden[1:], inner[:2] + bytes(10) + inner[12:]):
    assert user.getattr(made_up)[0] in (STALE, BADHANDLE)
expect(client.setattr(private, sattr(mode=0o700)), OK)

# What a file system is like.
_, reply = expect(client.info(19, root), OK)
assert reply.u32() == 1 << 20
expect(client.info(18, root), OK), expect(client.info(20, root), OK)

# The same bytes by S3, in both directions.
_, shared, *_ = expect(client.create(deep, b"by nfs", how=1), OK)
data = content(2_500_000, 3)
for offset in range(0, len(data), 500_000):
    expect(client.write(shared, offset, data[offset : offset + 500_000]), OK)
expect(client.commit(shared), OK)
assert s3.request("GET", endpoint, "data/deep/by nfs", access, secret) == data
for key in ("data/deep/by-s3", "data/implied/dir/by-s3"):
    s3.request("PUT", endpoint, key, access, secret, data[::-1])
_, by_s3, _ = expect(client.lookup(deep, b"by-s3"), OK)
assert client.read_all(by_s3) == data[::-1]
_, implied, _ = expect(client.lookup(client.lookup(root, b"implied")[1], b"dir"), OK)
assert client.read_all(client.lookup(implied, b"by-s3")[1]) == data[::-1]
s3.request("PUT", endpoint, "data/deep/by-s3", access, secret, b"replaced")
expect(client.getattr(by_s3), OK)
assert client.read_all(by_s3) == b"replaced", "what S3 replaced is seen"

# A hole of a terabyte takes no space.
_, far, *_ = expect(client.create(root, b"far", how=1), OK)
expect(client.write(far, 1 << 40, b"last", FILE_SYNC), OK)
_, found = expect(client.getattr(far), OK)
assert (found["size"], found["used"]) == ((1 << 40) + 4, 512), found
assert client.read(far, 5 << 30, 1 << 16)[1] == bytes(1 << 16)
assert client.read(far, (1 << 40) - 2, 99)[1:] == (b"\0\0last", True)
expect(client.setattr(far, sattr(size=2 << 40)), OK)
expect(client.write(far, 1 << 39, b"middle"), OK)
expect(client.commit(far), OK)
_, found = expect(client.getattr(far), OK)
assert (found["size"], found["used"]) == (2 << 40, 512), found
assert client.read(far, (1 << 39) - 1, 8)[1] == b"\0middle\0"
expect(client.remove(root, b"far"), OK)

# For the second half.
long_name = b"long " + b"x" * 250
_, long_file, *_ = expect(client.create(deep, long_name, how=1), OK)
expect(client.create(deep, long_name[:-1] + b"y", how=1), OK)
expect(client.write(long_file, 0, b"long", FILE_SYNC), OK)
expect(client.rename(root, b"deep", root, b"renamed"), OK)
_, lost, *_ = expect(client.create(root, b"lost", how=1), OK)
_, _, _, verifier = expect(client.write(lost, 0, b"not committed"), OK)
_, entries, readdir_verifier, _ = expect(client.readdir(deep, count=300), OK)
with open(kept, "w") as out:
    handles = {"root": root, "deep": deep, "deeper": deeper, "implied": implied, "moved": moved}
    handles |= {"mine": mine, "long": long_file, "lost": lost, "link": link, "removed": replaced}
    handles |= {"by new name": client.lookup(deeper, b"replaced")[1]}
    handles = {name: handle.hex() for name, handle in handles.items()}
    place = [entry["name"].hex() for entry in entries], entries[-1]["cookie"], readdir_verifier
    json.dump({"handles": handles, "verifier": verifier, "place": place}, out)
