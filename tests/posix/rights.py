"""Probes of who may do what, of times, and of extended attributes and ACLs."""

import os
import stat
import struct
from ctypes import c_char as libc_char

from probe import (
    SYS_COPY_FILE_RANGE, as_user, check, cleared, fallocate, group, libc, mode, moved, opened, outcome, put, renameat2, stamps, tick, utimensat,
)  # fmt: skip

OMIT, NOW = (0, (1 << 30) - 2), (0, (1 << 30) - 1)
OWNER, MEMBER, OTHER = (1000, 1000), (1001, 50), (1002, 1002)
UNKNOWN = 0xFFFFFFFF


def copy(source, target):
    old, new = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY)
    done = libc.syscall(SYS_COPY_FILE_RANGE, old, None, new, None, 2, 0)
    os.close(old)
    os.close(new)
    check(done, "copy_file_range")


def write(path, flags=os.O_WRONLY):
    fd = os.open(path, flags)
    os.write(fd, b"more")
    os.close(fd)


@group
def access(book):
    """Every mode with every kind of user."""
    os.chmod(".", 0o777)
    for bits in (0o000, 0o700, 0o070, 0o007, 0o400, 0o040, 0o004, 0o200, 0o020, 0o002, 0o100, 0o010, 0o001, 0o644, 0o755):
        put("f", b"#!/bin/sh\nexit 7\n", bits)
        os.chown("f", 1000, 50)
        os.mkdir("d")
        put("d/x")
        os.chmod("d/x", 0o666)
        os.chown("d", 1000, 50)
        os.chmod("d", bits)
        for who in (OWNER, MEMBER, OTHER, (0, 0)):
            found = [as_user(*who, opened, "f", flags) for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC)]
            found += [as_user(*who, os.access, "f", one) for one in (os.R_OK, os.W_OK, os.X_OK)]
            found += [as_user(*who, run, "./f")]
            found += [as_user(*who, call, *args) for call, args in [
                (os.listdir, ("d",)), (os.stat, ("d/none",)), (opened, ("d/x", os.O_RDONLY)), (opened, ("d/new", os.O_CREAT | os.O_WRONLY)), (os.unlink, ("d/new",)),
                (os.mkdir, ("d/sub",)), (os.rmdir, ("d/sub",)), (os.rename, ("d/x", "d/y")), (os.rename, ("d/y", "d/x")), (os.link, ("d/x", "d/l")), (os.unlink, ("d/l",)), (os.chdir, ("d",)),
            ]]  # fmt: skip
            book.note(f"{bits:03o} {who}", " ".join(found))
        cleared()


def run(path):
    child = os.fork()
    if child == 0:
        try:
            os.execv(path, [path])
        except OSError as fault:
            os._exit(100 + fault.errno)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@group
def setid(book):
    """When the bits of who runs a file end."""
    os.chmod(".", 0o777)
    changes = {
        "write": write, "append": lambda path: write(path, os.O_WRONLY | os.O_APPEND), "write rw": lambda path: write(path, os.O_RDWR), "write sync": lambda path: write(path, os.O_WRONLY | os.O_SYNC),
        "truncate": lambda path: os.truncate(path, 1), "truncate to the same": lambda path: os.truncate(path, 5), "open trunc": lambda path: opened(path, os.O_WRONLY | os.O_TRUNC),
        "nothing": lambda path: opened(path, os.O_RDWR), "fallocate": lambda path: on(path, lambda fd: fallocate(fd, 0, 0, 9000)), "punch": lambda path: on(path, lambda fd: fallocate(fd, 3, 0, 2)),
        "copy": lambda path: copy("source", path), "chown owner": lambda path: os.chown(path, 1000, -1), "chown group": lambda path: os.chown(path, -1, 50), "chown none": lambda path: os.chown(path, -1, -1),
        "chmod same": lambda path: os.chmod(path, stat.S_IMODE(os.stat(path).st_mode)), "utime": os.utime, "link": lambda path: os.link(path, path + "2"), "rename": lambda path: os.rename(path, path + "3"),
        "setxattr": lambda path: os.setxattr(path, "user.a", b"1"), "pwritev": lambda path: on(path, lambda fd: os.pwritev(fd, [b"a", b"b"], 1)),
    }  # fmt: skip
    put("source", b"source")
    for word, change in changes.items():
        for bits in (0o6777, 0o4777, 0o2777, 0o2767, 0o6666):
            for who in ((0, 0), (1000, 50), (1002, 1002)):
                put("f", b"bytes")
                os.chown("f", 1000, 50)
                os.chmod("f", bits)
                said = as_user(*who, change, "f")
                name = "f3" if os.path.exists("f3") else "f"
                book.note(f"{word} {bits:o} {who[0]}", f"{said} {mode(name)}")
                for left in ("f", "f2", "f3"):
                    if os.path.exists(left):
                        os.unlink(left)


def on(path, call):
    fd = os.open(path, os.O_RDWR)
    try:
        return call(fd)
    finally:
        os.close(fd)


@group
def owners(book):
    """chmod and chown by everybody, groups of directories, sticky ones."""
    os.chmod(".", 0o777)
    for what in ("file", "dir", "link"):
        for who, groups in (((0, 0), ()), (OWNER, (50,)), (OWNER, ()), (OTHER, (50,))):
            for uid, gid in ((-1, -1), (1000, -1), (1002, -1), (-1, 50), (-1, 60), (1000, 50), (0, 0)):
                {"file": lambda: put("t"), "dir": lambda: os.mkdir("t"), "link": lambda: os.symlink("x", "t")}[what]()
                os.lchown("t", *OWNER)
                said = as_user(*who, os.lchown, "t", uid, gid, groups=groups)
                found = os.lstat("t")
                book.note(f"chown {what} {uid}:{gid} by {who[0]} {groups}", f"{said} {found.st_uid}:{found.st_gid}")
                cleared()
    for bits in (0o6755, 0o2755, 0o4755, 0o1755, 0o2644):
        for kind in (put, os.mkdir):
            for who, groups in (((0, 0), ()), (OWNER, ()), (OWNER, (50,)), (OTHER, ())):
                kind("t")
                os.chown("t", 1000, 50)
                said = as_user(*who, os.chmod, "t", bits, groups=groups)
                book.note(f"chmod {bits:o} {kind.__name__} by {who[0]} {groups}", f"{said} {mode('t')}")
                cleared()
    os.mkdir("team")
    os.chown("team", 1000, 50)
    os.chmod("team", 0o2777)

    def make():
        os.umask(0o027)
        opened("team/f", os.O_CREAT | os.O_WRONLY, 0o2775)
        opened("team/x", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o2775)
        os.mkdir("team/d", 0o777)
        os.mkfifo("team/p", 0o666)
        os.symlink("f", "team/l")
        os.mkdir("team/d/e", 0o777)
        opened("team/d/g", os.O_CREAT | os.O_WRONLY, 0o666)

    for who, groups in (((0, 0), ()), (OTHER, ()), (OTHER, (50,))):
        book.note(f"set-group by {who[0]} {groups}", as_user(*who, make, groups=groups))
        for name in ("f", "x", "d", "p", "l", "d/e", "d/g"):
            found = os.lstat(f"team/{name}")
            book.note(f"set-group {name} by {who[0]} {groups}", f"{oct(found.st_mode)} {found.st_uid}:{found.st_gid}")
        os.chdir("team")
        cleared()
        os.chdir("..")
    os.rmdir("team")
    sticky(book)


def sticky(book):
    things = {"file": lambda name: opened(name, os.O_CREAT | os.O_WRONLY, 0o666), "dir": os.mkdir}
    for owner in (1000, 1001):
        os.mkdir("tmp")
        os.chown("tmp", owner, owner)
        os.chmod("tmp", 0o1777)
        for word, make in things.items():
            for who in (1000, 1001, 1002, 0):
                make("tmp/a")
                make("tmp/b")
                os.chown("tmp/a", 1000, 1000)
                os.chown("tmp/b", 1002, 1002)
                remove = os.rmdir if word == "dir" else os.unlink
                said = [as_user(who, who, os.rename, "tmp/a", "tmp/b"), as_user(who, who, os.rename, "tmp/a", "tmp/c"), as_user(who, who, renameat2, "tmp/a", "tmp/b", 2), as_user(who, who, remove, "tmp/a")]
                book.note(f"sticky of {owner}: {word} by {who}", " ".join(said))
                os.chdir("tmp")
                cleared()
                os.chdir("..")
        os.rmdir("tmp")


@group
def times(book):
    second = 10**9
    put("f")
    os.mkdir("d")
    os.symlink("f", "l")
    for at in [0, 1, -1, -second, -second - 1, -(2**31) * second + second, 2**31 * second, 2**32 * second + 5, 2**33 * second, 253402300799 * second]:
        for path in ("f", "d", "l"):
            os.utime(path, ns=(at, at + 1), follow_symlinks=False)
            found = os.lstat(path)
            # ext4 ends in 2446, and others elsewhere.
            book.note(f"{path} {at}", (found.st_atime_ns, found.st_mtime_ns) if at < 2**33 * second else "later")
    os.utime("f", ns=(5, 6))
    forms = {"none": None, "now": (NOW, NOW), "omit": (OMIT, OMIT), "omit-a": (OMIT, (9, 9)), "omit-m": ((9, 9), OMIT), "now-a": (NOW, OMIT), "now-m": (OMIT, NOW), "set": ((1, 2), (3, 4)),
             "wrong": ((0, 10**9), (0, 0)), "negative": ((0, -5), (0, 0)), "max": ((0, 10**9 - 1), (1, 10**9 - 1))}  # fmt: skip
    for word, form in forms.items():
        for who in ((0, 0), OWNER, OTHER):
            for bits in (0o666, 0o444):
                put("t", b"", bits)
                os.chown("t", 1000, 1000)
                os.utime("t", ns=(5, 6))
                before = os.stat("t").st_ctime_ns
                tick()
                said = as_user(*who, utimensat, "t", form)
                found = os.stat("t")
                seen = ["now" if one > 10**17 else one for one in (found.st_atime_ns, found.st_mtime_ns)]
                book.note(f"{word} by {who[0]} on {bits:o}", f"{said} {seen} {found.st_ctime_ns > before}")
                os.chmod("t", 0o666)
    changes(book)


def changes(book):
    """Which times each call moves."""
    calls = {
        "write": lambda: write("f"), "write nothing": lambda: on("f", lambda fd: os.write(fd, b"")), "truncate same": lambda: os.truncate("f", 5), "truncate": lambda: os.truncate("f", 3),
        "ftruncate same": lambda: on("f", lambda fd: os.ftruncate(fd, 5)), "open trunc": lambda: opened("f", os.O_WRONLY | os.O_TRUNC), "open trunc of nothing": lambda: opened("empty", os.O_WRONLY | os.O_TRUNC),
        "chmod same": lambda: os.chmod("f", 0o644), "chmod": lambda: os.chmod("f", 0o600), "chown none": lambda: os.chown("f", -1, -1), "chown same": lambda: os.chown("f", 0, 0),
        "link": lambda: os.link("f", "d/new"), "unlink twin": lambda: os.unlink("twin"), "unlink": lambda: os.unlink("empty"), "rename": lambda: os.rename("f", "d/f"), "rename in place": lambda: os.rename("f", "g"),
        "rename over": lambda: os.rename("empty", "f"), "rename to twin": lambda: os.rename("f", "twin"), "rename dir": lambda: os.rename("e", "d/e"), "exchange": lambda: renameat2("f", "d/in", 2),
        "exchange dirs": lambda: renameat2("e", "d", 2), "setxattr": lambda: os.setxattr("f", "user.a", b"1"), "removexattr": lambda: os.removexattr("f", "user.x"), "setxattr dir": lambda: os.setxattr("d", "user.a", b"1"),
        "mkdir": lambda: os.mkdir("d/new"), "rmdir": lambda: os.rmdir("e"), "symlink": lambda: os.symlink("x", "d/new"), "mkfifo": lambda: os.mkfifo("d/new"), "creat": lambda: opened("d/new", os.O_CREAT | os.O_WRONLY),
        "creat excl": lambda: opened("d/new", os.O_CREAT | os.O_EXCL | os.O_WRONLY), "creat of what is there": lambda: opened("f", os.O_CREAT | os.O_WRONLY), "read": lambda: opened("f", os.O_RDONLY),
        "list": lambda: os.listdir("d") and None, "fallocate": lambda: on("f", lambda fd: fallocate(fd, 0, 0, 100)), "fallocate kept": lambda: on("f", lambda fd: fallocate(fd, 1, 0, 100)), "punch": lambda: on("f", lambda fd: fallocate(fd, 3, 0, 2)),
        "fsync": lambda: on("f", os.fsync), "copy": lambda: copy("twin", "full"), "utime": lambda: os.utime("f"), "utime omit": lambda: utimensat("f", (OMIT, OMIT)), "failed rename": lambda: os.rename("none", "f"),
        "failed link": lambda: os.link("f", "twin"), "failed rmdir": lambda: os.rmdir("d"), "failed mkdir": lambda: os.mkdir("d"), "chmod dir": lambda: os.chmod("d", 0o700),
        "write and unlink": lambda: (write("f"), os.unlink("f"), None)[2], "symlink chown": lambda: os.lchown("l", 5, 5),
    }  # fmt: skip
    for word, call in calls.items():
        cleared()
        put("f", b"bytes")
        os.setxattr("f", "user.x", b"1")
        os.link("f", "twin")
        put("empty")
        put("full", b"full")
        os.mkdir("d")
        os.mkdir("e")
        put("d/in")
        os.symlink("f", "l")
        watched = ["f", "twin", "empty", "full", "d", "e", "d/in", "l", "."]
        # A name may lead to another of them afterwards.
        for path in watched:
            os.utime(path, ns=(10**18, 10**18), follow_symlinks=False)
        before = stamps(*watched)
        tick()
        said = outcome(call)
        book.note(word, f"{said} {moved(before, stamps(*watched))}")


@group
def xattrs(book):
    os.chmod(".", 0o777)
    put("f")
    os.chown("f", 1000, 1000)
    os.mkdir("d")
    os.symlink("f", "l")
    os.mkfifo("p")
    names = ["user.a", "user.", "user", "trusted.a", "trusted.", "security.a", "security.", "system.a", "system.nfs4_acl", "other.a", "a", "", "user." + "n" * 250, "user." + "n" * 251, "user.\u00fc", "User.a", "user.a b"]
    for path in ("f", "d", "l", "p"):
        for name in names:
            label = f"{path} {name[:12]}{len(name)}"
            for who in ((0, 0), (1000, 1000), (1002, 1002)):
                def one(value=b"value"):
                    found = [outcome(os.setxattr, path, name, value, follow_symlinks=False), outcome(os.getxattr, path, name, follow_symlinks=False)]
                    listed = outcome(os.listxattr, path, follow_symlinks=False)
                    found.append(listed if isinstance(listed, str) else name in listed)
                    return found + [outcome(os.removexattr, path, name, follow_symlinks=False)]
                book.note(f"{label} by {who[0]}", as_user(*who, one))
    for size in (0, 1, 1000, 4000):
        book.ask(f"size {size}", os.setxattr, "f", "user.size", b"v" * size)
        book.note(f"size {size} is", len(os.getxattr("f", "user.size")))
    for flag in (os.XATTR_CREATE, os.XATTR_REPLACE, 3, 4):
        book.ask(f"flag {flag} there", os.setxattr, "f", "user.size", b"x", flag)
        book.ask(f"flag {flag} not there", os.setxattr, "f", "user.no", b"x", flag)
        outcome(os.removexattr, "f", "user.no")
    os.setxattr("f", "user.long", b"v" * 100)
    for size in (0, 1, 99, 100, 101):
        room = bytearray(max(size, 1))
        pointer = (libc_char * len(room)).from_buffer(room)
        book.ask(f"getxattr into {size}", lambda: check(libc.getxattr(b"f", b"user.long", pointer, size), "getxattr"))
        book.ask(f"listxattr into {size}", lambda: check(libc.listxattr(b"f", pointer, size), "listxattr"))
    book.ask("too long", os.setxattr, "f", "user.a", b"v" * 65537)
    fd = os.open("f", os.O_RDONLY)
    book.ask("by a descriptor that reads", os.setxattr, fd, "user.fd", b"1")
    book.note("listed", sorted(os.listxattr(fd)))
    os.close(fd)
    os.link("f", "g")
    os.rename("f", "h")
    book.note("another name", sorted(os.listxattr("g")))
    os.chmod("d", 0o1777)
    book.note("sticky directory of another", as_user(1000, 1000, os.setxattr, "d", "user.a", b"1"))


def entry(tag, bits, who=UNKNOWN):
    return struct.pack("<HHI", tag, bits, who)


def acl(*entries):
    return struct.pack("<I", 2) + b"".join(entry(*one) for one in entries)


ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
U, NAMED, G, NAMED_G, MASK, O = 1, 2, 4, 8, 16, 32


def plain(path, name=ACCESS):
    value = outcome(os.getxattr, path, name)
    return value if isinstance(value, str) else [struct.unpack_from("<HHi", value, at) for at in range(4, len(value), 8)]


@group
def acls(book):
    os.chmod(".", 0o777)
    rich = acl((U, 7), (NAMED, 6, 1001), (G, 4), (NAMED_G, 5, 60), (MASK, 6), (O, 0))
    put("f", b"bytes", 0o640)
    os.mkdir("d", 0o755)
    for path in ("f", "d"):
        os.chown(path, 1000, 50)
        book.note(f"{path} has none", (plain(path), plain(path, DEFAULT)))
        for who in (1001, 1000, 0):
            book.note(f"{path} set by {who}", as_user(who, who, os.setxattr, path, ACCESS, rich))
        book.note(f"{path} is", (plain(path), mode(path), os.listxattr(path)))
        for who, groups in ((1001, ()), (1002, (60,)), (1002, (50,)), (1002, ()), (1000, ())):
            found = [as_user(who, who, os.access, path, one, groups=groups) for one in (os.R_OK, os.W_OK, os.X_OK)]
            book.note(f"{path} for {who} {groups}", found + [as_user(who, who, opened, path, os.O_RDONLY, groups=groups)])
        os.chmod(path, 0o710)
        book.note(f"{path} after chmod", (plain(path), mode(path)))
        book.note(f"{path} small", (outcome(os.setxattr, path, ACCESS, acl((U, 6), (G, 4), (O, 2))), plain(path), mode(path)))
        os.setxattr(path, ACCESS, rich)
        book.note(f"{path} removed", (outcome(os.removexattr, path, ACCESS), plain(path), mode(path)))
        book.ask(f"{path} removed again", os.removexattr, path, ACCESS)
    bad = {
        "empty": b"", "short": b"\2\0", "version": b"\1\0\0\0" + entry(U, 6), "no owner": acl((G, 4), (O, 4)), "no mask": acl((U, 6), (NAMED, 6, 5), (G, 4), (O, 4)), "twice": acl((U, 6), (U, 6), (G, 4), (O, 4)),
        "order": acl((O, 4), (U, 6), (G, 4)), "bits": acl((U, 0xFF), (G, 4), (O, 4)), "tag": acl((U, 6), (3, 6), (G, 4), (O, 4)), "same user": acl((U, 6), (NAMED, 4, 5), (NAMED, 6, 5), (G, 4), (MASK, 7), (O, 4)), "cut": rich[:-3],
    }  # fmt: skip
    for word, value in bad.items():
        book.note(f"bad: {word}", (outcome(os.setxattr, "f", ACCESS, value), plain("f"), mode("f")))
    book.ask("default of a file", os.setxattr, "f", DEFAULT, rich)
    inherited(book, rich)


def inherited(book, rich):
    os.chmod("d", 0o777)
    book.ask("default", os.setxattr, "d", DEFAULT, rich)
    book.note("default is", (plain("d", DEFAULT), mode("d")))
    for mask in (0o022, 0o077, 0):
        old = os.umask(mask)
        opened("d/f", os.O_CREAT | os.O_WRONLY, 0o666)
        opened("d/x", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o777)
        os.mkdir("d/s", 0o777)
        os.mkfifo("d/p", 0o666)
        os.mknod("d/n", stat.S_IFREG | 0o600)
        os.symlink("f", "d/l")
        opened("plain", os.O_CREAT | os.O_WRONLY, 0o666)
        os.umask(old)
        for name in ("f", "x", "s", "p", "n"):
            book.note(f"umask {mask:o} {name}", (mode(f"d/{name}"), plain(f"d/{name}"), plain(f"d/{name}", DEFAULT)))
        book.note(f"umask {mask:o} without", (mode("plain"), plain("plain")))
        os.unlink("plain")
        os.chdir("d")
        cleared()
        os.chdir("..")
    book.note("no default", (outcome(os.removexattr, "d", DEFAULT), plain("d", DEFAULT)))
    os.setxattr("d", DEFAULT, acl((U, 7), (G, 5), (O, 1)))
    old = os.umask(0o077)
    opened("d/f", os.O_CREAT | os.O_WRONLY, 0o666)
    os.mkdir("d/s", 0o777)
    os.umask(old)
    book.note("small default", (mode("d/f"), plain("d/f"), mode("d/s"), plain("d/s"), plain("d/s", DEFAULT)))
