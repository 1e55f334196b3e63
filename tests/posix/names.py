"""Probes of names: open, make, link, rename, remove, over all kinds of things that may be in the way."""

import os
import socket
import stat

from probe import (
    AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_FOLLOW, EXCHANGE, NOREPLACE, WHITEOUT, cleared, fallocate, got, group, kind, linkat, mode, opened, outcome, put,
    renameat2, tree, utimensat,
)  # fmt: skip

O_TMPFILE = 0o20200000


def sock(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


def fixture():
    """One of everything."""
    put("f", b"bytes")
    os.link("f", "twin")
    os.mkdir("d")
    os.mkdir("full")
    put("full/x", b"x")
    os.symlink("f", "tofile")
    os.symlink("d", "todir")
    os.symlink("nothing", "dangling")
    os.symlink("loop", "loop")
    os.mkfifo("fifo")
    sock("sock")


THINGS = ["none", "f", "twin", "d", "full", "tofile", "todir", "dangling", "loop", "fifo", "sock"]


def each(book, label, things, ask):
    """Asks with each of these in turn; what changed something gets everything anew."""
    cleared()
    fixture()
    before = tree()
    for thing in things:
        answer = outcome(ask, thing)
        after = tree()
        change = "" if after == before else " -> " + " ".join(sorted(set(after.split()) ^ set(before.split())))
        book.note(f"{label} {shown(thing)}", f"{answer}{change}")
        if change:
            cleared()
            fixture()


def shown(thing):
    text = thing if isinstance(thing, str) else " ".join(map(str, thing)) if isinstance(thing, tuple) else repr(thing)
    return text if len(text) < 60 else f"{text[:8]}..{len(text)}"


@group
def opening(book):
    ways = {"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR, "none": 3}
    more = {
        "": 0, "creat": os.O_CREAT, "excl": os.O_CREAT | os.O_EXCL, "trunc": os.O_TRUNC, "creat-trunc": os.O_CREAT | os.O_TRUNC, "dir": os.O_DIRECTORY,
        "nofollow": os.O_NOFOLLOW, "path": os.O_PATH, "append": os.O_APPEND, "creat-nofollow": os.O_CREAT | os.O_NOFOLLOW, "path-nofollow": os.O_PATH | os.O_NOFOLLOW,
        "creat-dir": os.O_CREAT | os.O_DIRECTORY, "sync": os.O_SYNC, "noatime": os.O_NOATIME, "excl-nofollow": os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW,
    }  # fmt: skip
    for way, access in ways.items():
        for word, flags in more.items():
            # Those of a pipe wait for the other end otherwise.
            each(book, f"{way}+{word}", THINGS, lambda thing: opened(thing, access | flags | os.O_NONBLOCK))
    for name in ["", ".", "..", "f/", "d/", "none/", "tofile/", "todir/", "dangling/", "d/.", "f/.", "f/..", "none/x", "f/x", "d/../f"]:
        for word, flags in {"r": os.O_RDONLY, "creat": os.O_CREAT | os.O_RDWR, "excl": os.O_CREAT | os.O_EXCL | os.O_RDWR, "dir": os.O_DIRECTORY}.items():
            each(book, f"slash {word}", [name], lambda thing: opened(thing, flags))
    # The rights of a new file do not bind whoever makes it.
    fd = os.open("sealed", os.O_CREAT | os.O_RDWR, 0)
    book.ask("write to one that is sealed", os.write, fd, b"x")
    os.close(fd)
    book.note("its mode", mode("sealed"))
    for bits in (0o7777, 0o4755, 0o1644, 0o2711):
        old = os.umask(0o022)
        opened(f"bits{bits:o}", os.O_CREAT | os.O_WRONLY, bits)
        os.mkdir(f"dir{bits:o}", bits)
        os.mknod(f"node{bits:o}", stat.S_IFREG | bits)
        os.umask(old)
        book.note(f"bits {bits:o}", [mode(f"bits{bits:o}"), mode(f"dir{bits:o}"), mode(f"node{bits:o}")])


@group
def paths(book):
    """Every call with every odd name."""
    calls = {
        "mkdir": os.mkdir, "rmdir": os.rmdir, "unlink": os.unlink, "mkfifo": os.mkfifo, "mknod": lambda name: os.mknod(name, stat.S_IFREG | 0o600),
        "symlink": lambda name: os.symlink("t", name), "link-to": lambda name: os.link("f", name), "link-of": lambda name: os.link(name, "new", follow_symlinks=False),
        "rename-to": lambda name: os.rename("f", name), "rename-of": lambda name: os.rename(name, "new"), "rename-dir-to": lambda name: os.rename("d", name),
        "creat": lambda name: opened(name, os.O_CREAT | os.O_WRONLY | os.O_NONBLOCK), "stat": lambda name: os.stat(name) and None, "lstat": lambda name: os.lstat(name) and None,
        "chmod": lambda name: os.chmod(name, 0o600), "chown": lambda name: os.chown(name, 0, 0), "lchown": lambda name: os.lchown(name, 0, 0), "utime": os.utime,
        "truncate": lambda name: os.truncate(name, 1), "readlink": os.readlink, "listdir": lambda name: sorted(os.listdir(name)) if name not in (".", "..", "d/..") else None,
        "access": lambda name: os.access(name, os.F_OK), "setxattr": lambda name: os.setxattr(name, "user.a", b"1"), "getxattr": lambda name: os.getxattr(name, "user.none"),
        "statvfs": lambda name: os.statvfs(name) and None, "bind": sock,
    }  # fmt: skip
    names = [
        "", ".", "..", "f/", "f/.", "f/x", "d/", "d/.", "d/..", "full/", "none", "none/", "none/x", "loop", "loop/", "loop/x", "dangling", "dangling/", "todir", "todir/",
        "tofile", "tofile/", "n" * 255, "n" * 256, "d/" + "n" * 256, "n" * 256 + "/x", "./" * 2000 + "f", "./" * 2046 + "f", "./" * 2047 + "f", "./" * 2048, "x" * 4096,
        b"\xff\xfe", b"\xff\xfe/", "new\nline", " ", "...", "-", "\\", "a" * 100 + "\u00fc" * 77, "COM1", "*",
    ]  # fmt: skip
    for word, call in calls.items():
        each(book, word, [name for name in names if word != "bind" or len(name) < 100], call)


@group
def renaming(book):
    flags = {"": 0, "noreplace": NOREPLACE, "exchange": EXCHANGE, "both": NOREPLACE | EXCHANGE, "whiteout-exchange": WHITEOUT | EXCHANGE, "wrong": 64}
    for word, flag in flags.items():
        targets = [*THINGS, "d/in", "full/x", "d/in/deeper", "f/in"] if flag in (0, NOREPLACE, EXCHANGE) else ["none", "f", "d"]
        for source in [*THINGS, "full/x", ".", ".."] if flag in (0, EXCHANGE) else ["none", "f", "twin", "d", "full"]:
            each(book, f"{word} {source}", targets, lambda target: renameat2(source, target, flag))
    cleared()
    # A tree, with a file open in it, moves and is reachable.
    os.makedirs("a/b/c")
    put("a/b/c/f", b"deep")
    held = os.open("a/b/c/f", os.O_RDWR)
    os.rename("a", "z")
    book.ask("after", got, "z/b/c/f")
    os.write(held, b"DEEP+")
    os.close(held)
    book.ask("after a write", got, "z/b/c/f")
    book.ask("old", os.stat, "a/b")
    book.ask("into itself", os.rename, "z", "z/b/c/d")
    book.ask("onto its parent", os.rename, "z/b/c", "z/b")
    os.mkdir("y")
    os.mkdir("y/b")
    book.ask("onto an empty one", os.rename, "z/b", "y/b")
    book.note("tree", tree())
    before = os.stat("y/b").st_ino
    os.rename("y/b", "y/B")
    book.note("number stays", os.stat("y/B").st_ino == before)
    book.note("its ..", os.stat("y/B/..").st_ino == os.stat("y").st_ino)
    os.rename("y/B", "B")
    book.note("its .. moved", os.stat("B/..").st_ino == os.stat(".").st_ino)


@group
def linking(book):
    for word, flag in {"": 0, "follow": AT_SYMLINK_FOLLOW, "wrong": 4}.items():
        for source in THINGS if flag != 4 else ["f"]:
            each(book, f"{word} {source}", [*THINGS, "d/new"], lambda target: linkat(AT_FDCWD, source, target, flag))
    cleared()
    put("f", b"1")
    fd = os.open("f", os.O_RDWR)
    book.ask("by descriptor", linkat, fd, "", "g", AT_EMPTY_PATH)
    book.ask("by /proc", linkat, AT_FDCWD, f"/proc/self/fd/{fd}", "h", AT_SYMLINK_FOLLOW)
    book.note("tree", tree())
    for name in ("f", "g", "h"):
        os.unlink(name)
    book.note("links left", os.fstat(fd).st_nlink)
    book.ask("of one without a name", linkat, fd, "", "again", AT_EMPTY_PATH)
    book.ask("of one without a name by /proc", linkat, AT_FDCWD, f"/proc/self/fd/{fd}", "again", AT_SYMLINK_FOLLOW)
    os.close(fd)
    put("f", b"1")
    for at in range(50):
        os.link("f", f"l{at}")
    book.note("fifty", os.stat("l7").st_nlink)
    os.chmod("l7", 0o600)
    os.truncate("l9", 7)
    book.note("all the same", {(one.st_ino, one.st_mode, one.st_size) for one in map(os.stat, os.listdir("."))} == {(os.stat("f").st_ino, os.stat("f").st_mode, 7)})
    for at in range(50):
        os.unlink(f"l{at}")
    book.note("one", os.stat("f").st_nlink)


@group
def tmpfile(book):
    book.ask("O_TMPFILE", opened, ".", O_TMPFILE | os.O_RDWR, 0o600)
    fd = outcome(os.open, ".", O_TMPFILE | os.O_RDWR, 0o640)
    if isinstance(fd, str):
        return
    os.write(fd, b"bytes")
    book.note("unseen", (os.listdir("."), os.fstat(fd).st_nlink, oct(os.fstat(fd).st_mode)))
    book.ask("named", linkat, AT_FDCWD, f"/proc/self/fd/{fd}", "named", AT_SYMLINK_FOLLOW)
    book.note("tree", tree())
    os.close(fd)
    book.ask("bytes", got, "named")
    fd = os.open(".", O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o640)
    book.ask("one that stays unnamed", linkat, AT_FDCWD, f"/proc/self/fd/{fd}", "no", AT_SYMLINK_FOLLOW)
    os.close(fd)


@group
def removing(book):
    for word, call in {"unlink": os.unlink, "rmdir": os.rmdir}.items():
        each(book, word, [*THINGS, ".", "..", "d/", "full/..", "full/.", "f/", "tofile/", "todir/", "full/x"], call)
    cleared()
    put("f", b"0123456789", 0o640)
    fd, second = os.open("f", os.O_RDWR), os.open("f", os.O_RDONLY)
    os.unlink("f")
    book.note("links", os.fstat(fd).st_nlink)
    book.ask("read", os.read, second, 100)
    book.ask("write", os.pwrite, fd, b"abc", 8)
    book.ask("read again", os.pread, second, 100, 0)
    book.ask("truncate", os.ftruncate, fd, 4)
    book.note("size", os.fstat(second).st_size)
    book.ask("chmod", os.fchmod, fd, 0o604)
    book.ask("chown", os.fchown, fd, 5, 6)
    book.ask("utime", os.utime, fd, ns=(7, 8))
    found = os.fstat(second)
    book.note("properties", (oct(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns))
    book.ask("setxattr", os.setxattr, fd, "user.a", b"1")
    book.ask("getxattr", os.getxattr, second, "user.a")
    book.ask("fallocate", fallocate, fd, 0, 0, 8192)
    book.ask("reopened", opened, f"/proc/self/fd/{fd}", os.O_RDWR)
    book.ask("fsync", os.fsync, fd)
    put("f", b"another")
    book.note("the other one", (got("f"), os.fstat(fd).st_size, os.stat("f").st_ino != os.fstat(fd).st_ino))
    os.close(fd)
    book.note("last reader", len(os.pread(second, 10000, 0)))
    os.close(second)
    put("g", b"old")
    fd = os.open("g", os.O_RDWR)
    os.rename("f", "g")
    book.note("replaced", (os.read(fd, 10), os.fstat(fd).st_nlink, got("g")))
    os.close(fd)


@group
def nowhere(book):
    """In a directory that is gone."""
    os.mkdir("gone")
    put("kept")
    here = os.open("gone", os.O_RDONLY | os.O_DIRECTORY)
    back = os.getcwd()
    os.chdir("gone")
    os.rmdir("../gone")
    try:
        book.note("links", os.fstat(here).st_nlink)
        book.ask("stat .", lambda: os.stat(".") and None)
        book.ask("getcwd", os.getcwd)
        book.ask("list", lambda: os.listdir("."))
        book.ask("creat", opened, "f", os.O_CREAT | os.O_WRONLY)
        book.ask("excl", opened, "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        book.ask("mkdir", os.mkdir, "d")
        book.ask("symlink", os.symlink, "x", "l")
        book.ask("mkfifo", os.mkfifo, "p")
        book.ask("link", os.link, back + "/kept", "l")
        book.ask("lookup", os.stat, "f")
        book.ask("unlink", os.unlink, "f")
        book.ask("stat ..", lambda: os.stat("..") and None)
        book.ask("chmod .", os.chmod, ".", 0o700)
        book.ask("utime .", utimensat, ".", None)
        book.ask("rename out", os.rename, "f", back + "/x")
    finally:
        os.chdir(back)
        os.close(here)
    book.note("its name", kind("gone"))
