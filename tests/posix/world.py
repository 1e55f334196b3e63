"""Probes of directories, of what the kernel tells of changes, of programs that are run, and of other calls that take a path."""

import ctypes
import fcntl
import os
import select
import signal
import socket
import stat
import struct
import subprocess

from probe import (
    SYS_FCHMODAT2, SYS_OPENAT2, AT_FDCWD, as_user, check, cleared, fallocate, got, group, kind, libc, mode, opened, outcome, put, raw, renameat2, tree,
)  # fmt: skip

libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long


class Directory:
    """opendir and its kin, with places."""

    def __init__(self, path):
        self.at = ctypes.c_void_p(libc.opendir(raw(path)))

    def read(self):
        entry = libc.readdir(self.at)
        if not entry:
            return None
        head = ctypes.string_at(entry, 19)
        return ctypes.string_at(entry + 19), head[18], struct.unpack_from("Q", head)[0]

    def names(self):
        found = []
        while entry := self.read():
            found.append(entry[0])
        return found

    def close(self):
        libc.closedir(self.at)


@group
def directories(book):
    os.mkdir("d")
    book.note("links of an empty one", os.stat("d").st_nlink)
    os.makedirs("d/one/deep")
    os.makedirs("d/two")
    put("d/file")
    book.note("links", (os.stat("d").st_nlink, os.stat("d/one").st_nlink))
    os.rmdir("d/two")
    book.note("links after rmdir", os.stat("d").st_nlink)
    os.rename("d/one", "moved")
    book.note("links after rename", (os.stat("d").st_nlink, os.stat("moved").st_nlink))
    cleared()
    names = [b"n%04d" % at for at in range(2500)] + [b"\xff", b"\xe2\x98\x83", b"new\nline", b" ", b"n" * 255, b".hidden", b"..."]
    os.mkdir("big")
    for name in names:
        opened(b"big/" + name, os.O_CREAT | os.O_WRONLY)
    os.mkdir("big/dir")
    os.symlink("x", "big/link")
    os.mkfifo("big/fifo")
    listing = Directory("big")
    seen = {}
    while entry := listing.read():
        book.note("twice", entry[0]) if entry[0] in seen else None
        seen[entry[0]] = entry[1:]
    listing.close()
    book.note("all", set(seen) == {*names, b"dir", b"link", b"fifo", b".", b".."})
    book.note("types", [seen[name][0] for name in (b"dir", b"link", b"fifo", b".", b"..", b"n0001")])
    book.note("numbers", all(os.lstat(b"big/" + name).st_ino == found[1] for name, found in seen.items() if name != b".."))
    book.note("number of ..", os.stat("big/..").st_ino == os.stat(".").st_ino == seen[b".."][1])
    places(book, set(seen))
    book.ask("list a file", os.listdir, "big/n0001")
    # Entries that go and come while somebody reads: those that stay are seen once.
    listing = Directory("big")
    first = [listing.read()[0] for _ in range(100)]
    for at in range(0, 2500, 2):
        os.unlink(b"big/n%04d" % at)
        opened(b"big/m%04d" % at, os.O_CREAT | os.O_WRONLY)
    rest = listing.names()
    listing.close()
    stay = {b"n%04d" % at for at in range(1, 2500, 2)}
    book.note("those that stay", (stay <= set(first + rest), len([name for name in first + rest if name in stay]) == len(stay)))
    for name in os.listdir(b"big"):
        (os.rmdir if name == b"dir" else os.unlink)(b"big/" + name)
    book.ask("empty in the end", os.rmdir, "big")


def places(book, names):
    listing = Directory("big")
    seen, marks = [], []
    while True:
        marks.append(libc.telldir(listing.at))
        entry = listing.read()
        if not entry:
            break
        seen.append(entry[0])
    for at in (0, 1, 2, 3, 1000, 1001, 2400, len(seen) - 1):
        libc.seekdir(listing.at, ctypes.c_long(marks[at]))
        found = listing.read()
        book.note(f"place {at}", found is not None and found[0] == seen[at])
    libc.seekdir(listing.at, ctypes.c_long(marks[-1]))
    book.note("the end", listing.read())
    opened("big/late", os.O_CREAT | os.O_WRONLY)
    libc.rewinddir(listing.at)
    book.note("from the front", set(listing.names()) == names | {b"late"})
    os.unlink("big/late")
    listing.close()


EVENTS = {
    1: "access", 2: "modify", 4: "attrib", 8: "close-write", 16: "close", 32: "open", 64: "from", 128: "to", 256: "create", 512: "delete", 1024: "delete-self", 2048: "move-self",
    1 << 15: "ignored", 1 << 13: "unmount", 1 << 14: "overflow",
}  # fmt: skip


@group
def inotify(book):
    """What the kernel tells of changes that were made through it."""
    os.mkdir("d")
    os.mkdir("e")
    put("d/f", b"x")
    put("d/g", b"x")
    fd = libc.inotify_init1(os.O_NONBLOCK)
    watches = {check(libc.inotify_add_watch(fd, raw(path), 0xFFF), path): path for path in ("d", "e", "d/f")}

    def told():
        words = []
        while select.select([fd], [], [], 0)[0]:
            data, at = os.read(fd, 1 << 16), 0
            while at < len(data):
                watch, mask, _, length = struct.unpack_from("iIII", data, at)
                name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
                words.append(f"{watches[watch]}/{name}:" + "+".join(word for bit, word in EVENTS.items() if mask & bit) + ("/dir" if mask >> 30 & 1 else ""))
                at += 16 + length
        return words

    calls = {
        "creat": lambda: opened("d/new", os.O_CREAT | os.O_WRONLY), "write": lambda: put("d/new", b"bytes"), "read": lambda: got("d/f"), "list": lambda: os.listdir("d"), "mkdir": lambda: os.mkdir("d/sub"),
        "rmdir": lambda: os.rmdir("d/sub"), "link": lambda: os.link("d/f", "d/h"), "symlink": lambda: os.symlink("f", "d/l"), "rename": lambda: os.rename("d/new", "e/new"), "rename in place": lambda: os.rename("d/h", "d/i"),
        "rename over": lambda: os.rename("e/new", "d/g"), "exchange": lambda: renameat2("d/f", "d/g", 2), "chmod": lambda: os.chmod("d/g", 0o600), "truncate": lambda: os.truncate("d/g", 3), "utime": lambda: os.utime("d/g"),
        "setxattr": lambda: os.setxattr("d/g", "user.a", b"1"), "unlink": lambda: os.unlink("d/i"), "unlink the last": lambda: os.unlink("d/g"), "remove a directory": lambda: os.rmdir("e"),
    }  # fmt: skip
    for word, call in calls.items():
        said = outcome(call)
        book.note(word, f"{'ok' if said != 'ok' and not isinstance(said, str) else said} {told()}")
    os.close(fd)


@group
def programs(book):
    put("script", b"#!/bin/sh\necho ran $1\n", 0o755)
    put("binary", got("/bin/sleep"), 0o755)
    put("nothing", b"", 0o755)
    put("garbage", b"\0\1\2\3", 0o755)
    put("plain", b"#!/bin/sh\n", 0o644)
    put("lost", b"#!/no/such/thing\n", 0o755)

    def ran(path):
        done = subprocess.run([path, "here"], capture_output=True, text=True)
        return done.returncode, done.stdout

    for path in ("./script", "./nothing", "./garbage", "./plain", "./lost", "./none", "."):
        book.ask(f"run {path}", ran, path)
    child = subprocess.Popen(["./binary", "1000"])
    while os.readlink(f"/proc/{child.pid}/exe") != os.path.realpath("binary"):
        pass
    for word, call in {
        "write": lambda: opened("binary", os.O_WRONLY), "rdwr": lambda: opened("binary", os.O_RDWR), "trunc": lambda: opened("binary", os.O_RDONLY | os.O_TRUNC), "truncate": lambda: os.truncate("binary", 0),
        "read": lambda: opened("binary", os.O_RDONLY), "rename": lambda: os.rename("binary", "moved"), "unlink": lambda: os.unlink("moved"),
    }.items():  # fmt: skip
        book.ask(f"while it runs: {word}", call)
    book.note("it runs on", child.poll())
    child.send_signal(signal.SIGTERM)
    child.wait()
    fd = os.open("script", os.O_WRONLY)
    book.ask("run what is written to", ran, "./script")
    os.close(fd)


@group
def special(book):
    os.mkfifo("p")
    read = os.open("p", os.O_RDONLY | os.O_NONBLOCK)
    write = os.open("p", os.O_WRONLY)
    os.write(write, b"through")
    book.ask("pipe", os.read, read, 100)
    os.close(write)
    book.ask("its end", os.read, read, 100)
    os.close(read)
    book.ask("nobody reads", os.open, "p", os.O_WRONLY | os.O_NONBLOCK)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("s")
        book.ask("not listening", client.connect, "s")
        server.listen()
        book.ask("connect", client.connect, "s")
        book.ask("taken", socket.socket(socket.AF_UNIX).bind, "s")
        os.rename("s", "t")
        with socket.socket(socket.AF_UNIX) as again:
            book.ask("under its new name", again.connect, "t")
            book.ask("under its old name", again.connect, "s")
    book.ask("nobody listens", socket.socket(socket.AF_UNIX).connect, "t")
    for word, bits, number in (("block", stat.S_IFBLK, os.makedev(8, 1)), ("char", stat.S_IFCHR, os.makedev(4095, 0xFFFFF)), ("whiteout", stat.S_IFCHR, 0)):
        os.mknod(word, bits | 0o640, number)
        found = os.lstat(word)
        book.note(word, (kind(word), oct(found.st_mode), os.major(found.st_rdev), os.minor(found.st_rdev), found.st_size))
    book.ask("mknod of a directory", os.mknod, "x", stat.S_IFDIR | 0o700)
    book.ask("mknod of a link", os.mknod, "x", stat.S_IFLNK | 0o700)
    book.ask("mknod of a socket", os.mknod, "x", stat.S_IFSOCK | 0o700)
    book.ask("mknod of nothing", os.mknod, "y", 0o700)
    book.ask("mknod of what nobody knows", os.mknod, "z", 0o050700)
    book.note("tree", tree())
    os.chmod(".", 0o777)
    book.note("by a user", [as_user(1000, 1000, os.mknod, f"u{at:o}", at | 0o600, 259) for at in (stat.S_IFBLK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFREG)])


@group
def others(book):
    """Calls that take a path or a descriptor in another way."""
    put("f", b"bytes", 0o640)
    os.mkdir("d")
    os.symlink("f", "l")
    space = os.statvfs("f")
    book.note("statvfs", (space.f_namemax, space.f_bavail <= space.f_bfree <= space.f_blocks, space.f_favail <= space.f_ffree <= space.f_files, space.f_bsize >= 512, space.f_blocks > 0, space.f_files > 0))
    book.note("pathconf", [os.pathconf("f", name) for name in ("PC_NAME_MAX", "PC_PATH_MAX", "PC_PIPE_BUF", "PC_NO_TRUNC")])
    path = os.open("f", os.O_PATH)
    book.ask("read of a path", os.read, path, 1)
    book.ask("fchmod of a path", os.fchmod, path, 0o600)
    book.note("fstat of a path", os.fstat(path).st_size)
    book.ask("open by /proc", opened, f"/proc/self/fd/{path}", os.O_RDWR)
    os.close(path)
    link = os.open("l", os.O_PATH | os.O_NOFOLLOW)
    book.note("a link by its path", (stat.S_ISLNK(os.fstat(link).st_mode), outcome(os.readlink, "", dir_fd=link)))
    os.close(link)
    for name, flags in (("f", 0), ("l", 0), ("l", 0x100), ("none", 0)):
        book.ask(f"fchmodat2 {name} {flags}", lambda: check(libc.syscall(SYS_FCHMODAT2, AT_FDCWD, raw(name), 0o604, flags), "fchmodat2"))
    book.note("modes", (mode("f"), mode("l")))
    for word, name, resolve in (("no links", "l", 4), ("beneath", "../x", 8), ("in root", "/f", 16), ("no mounts", "f", 1), ("wrong", "f", 1 << 20)):
        how = struct.pack("QQQ", 0, 0, resolve)
        book.ask(f"openat2 {word}", lambda: os.close(check(libc.syscall(SYS_OPENAT2, AT_FDCWD, raw(name), how, 24), "openat2")))
    here = os.open("d", os.O_RDONLY)
    book.ask("fchdir", os.fchdir, here)
    os.chdir("..")
    book.ask("fchmod of a directory", os.fchmod, here, 0o711)
    book.ask("fsync of a directory", os.fsync, here)
    book.ask("ftruncate of a directory", os.ftruncate, here, 0)
    book.ask("write to a directory", os.write, here, b"x")
    book.ask("fallocate of a directory", fallocate, here, 0, 0, 1)
    book.ask("flock of a directory", fcntl.flock, here, fcntl.LOCK_EX | fcntl.LOCK_NB)
    book.note("unlinkat", (outcome(os.unlink, "none", dir_fd=here), outcome(os.rmdir, "d")))
    book.ask("creat in what is gone", os.open, "x", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here)
    os.close(here)
    for length in (0, 1, 255, 256, 1000, 4095, 4096):
        book.ask(f"symlink of {length}", os.symlink, "t" * length, f"s{length}")
    book.note("lengths", [(len(os.readlink(name)), os.lstat(name).st_size) for name in sorted(os.listdir(".")) if name[0] == "s"])
    os.symlink(b"\xff\xfe /../x", "odd")
    book.ask("odd target", os.readlink, b"odd")
    for count in (39, 40, 41):
        for at in range(count):
            os.symlink(f"c{at + 1}", f"c{at}")
        put(f"c{count}", b"end")
        book.ask(f"{count} links", lambda: got("c0"))
        for at in range(count + 1):
            os.unlink(f"c{at}")
    deep = "p" * 255
    # As deep as a path may be from the top of a volume.
    for at in range(14):
        os.mkdir(deep)
        os.chdir(deep)
    book.note("deep", (outcome(opened, "f", os.O_CREAT | os.O_WRONLY), outcome(os.listdir, "."), outcome(os.stat, "/".join([deep] * 17))))
    for _ in range(14):
        if os.path.exists("f"):
            os.unlink("f")
        os.chdir("..")
        os.rmdir(deep)
    book.note("tree", len(os.listdir(".")))
