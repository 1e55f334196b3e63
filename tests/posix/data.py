"""Probes of bytes: offsets, holes, maps, locks."""

import ctypes
import fcntl
import hashlib
import mmap
import os
import resource
import signal
import struct

from probe import SYS_COPY_FILE_RANGE, as_user, check, cleared, fallocate, got, group, libc, outcome, put

KIB, MIB = 1 << 10, 1 << 20
KEEP, PUNCH, COLLAPSE, ZERO, INSERT, UNSHARE = 1, 2, 8, 16, 32, 64


def sum_of(path):
    return hashlib.sha256(got(path)).hexdigest()[:8]


@group
def offsets(book):
    put("f", b"0123456789")
    fd = os.open("f", os.O_RDWR)
    for at in (0, 5, 10, 11, 1 << 40, 1 << 62, -1):
        book.ask(f"pread {at}", os.pread, fd, 4, at)
    for whence, offset in ((0, -1), (1, -1), (2, -20), (0, 1 << 62), (2, 5), (9, 0), (3, 0), (3, 10), (3, -1), (4, 0), (4, 10), (4, 11)):
        book.ask(f"lseek {whence} {offset}", os.lseek, fd, offset, whence)
    book.ask("pwrite -1", os.pwrite, fd, b"x", -1)
    book.ask("pwrite beyond", os.pwrite, fd, b"x", 5000)
    book.note("then", (os.fstat(fd).st_size, sum_of("f")))
    book.ask("write nothing beyond", os.pwrite, fd, b"", 1 << 30)
    book.note("size", os.fstat(fd).st_size)
    for size in (-1, 0, 7, 1 << 20, (1 << 63) - 1):
        book.ask(f"truncate {size}", os.truncate, "f", size)
        if size < 1 << 21:
            book.note(f"truncate {size} is", (os.fstat(fd).st_size, sum_of("f")))
    os.close(fd)
    fd = os.open("f", os.O_WRONLY)
    book.ask("read of a writer", os.read, fd, 1)
    book.ask("mmap of a writer", mmap.mmap, fd, 10, mmap.MAP_SHARED, mmap.PROT_READ)
    os.close(fd)
    fd = os.open("f", os.O_RDONLY)
    book.ask("write of a reader", os.write, fd, b"x")
    book.ask("ftruncate of a reader", os.ftruncate, fd, 0)
    book.ask("fallocate of a reader", fallocate, fd, 0, 0, 10)
    book.ask("mmap to write of a reader", mmap.mmap, fd, 10, mmap.MAP_SHARED, mmap.PROT_WRITE)
    os.close(fd)
    fd = os.open("f", os.O_RDWR | os.O_APPEND)
    os.truncate("f", 3)
    book.ask("append", os.write, fd, b"end")
    book.ask("pwrite of an appender", os.pwrite, fd, b"!", 0)
    book.note("appended", (got("f"), os.lseek(fd, 0, 1)))
    os.truncate("f", 1)
    os.write(fd, b"A")
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.pwrite(fd, b"B", 0)
    book.note("not appending any more", got("f"))
    os.close(fd)
    book.ask("preadv", lambda: vectors("f"))
    book.ask("a directory", lambda: os.read(os.open(".", os.O_RDONLY), 1))
    limits(book)


def vectors(path):
    fd = os.open(path, os.O_RDWR)
    os.pwritev(fd, [b"ab", b"", b"cdef"], 2)
    one, two = bytearray(3), bytearray(10)
    count = os.preadv(fd, [one, two], 0)
    os.close(fd)
    return count, bytes(one), bytes(two)


def limits(book):
    def beyond():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        fd = os.open("limited", os.O_CREAT | os.O_RDWR, 0o666)
        found = [outcome(os.write, fd, b"x" * 900), outcome(os.write, fd, b"x" * 900), outcome(os.write, fd, b"x"), outcome(os.ftruncate, fd, 2000), outcome(fallocate, fd, 0, 0, 2000)]
        return found + [os.fstat(fd).st_size]

    os.chmod(".", 0o777)
    book.note("a limit of lengths", as_user(1000, 1000, beyond))


@group
def holes(book):
    def layout(fd):
        """Where bytes and holes are, to 64 KiB."""
        size, at, found = os.fstat(fd).st_size, 0, []
        while at < size:
            data = outcome(os.lseek, fd, at, os.SEEK_DATA)
            if isinstance(data, str):
                return found + [data]
            hole = os.lseek(fd, data, os.SEEK_HOLE)
            found.append((data, hole))
            at = hole
        return found

    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"a" * 64 * KIB, 0)
    os.pwrite(fd, b"b" * 64 * KIB, MIB)
    book.note("two pieces", layout(fd))
    os.fsync(fd)
    book.note("synced", (layout(fd), os.fstat(fd).st_blocks))
    os.ftruncate(fd, 4 * MIB)
    book.note("grown", layout(fd))
    for how, offset, length in [
        (PUNCH | KEEP, 0, 64 * KIB), (ZERO, MIB, 64 * KIB), (ZERO | KEEP, 5 * MIB, MIB), (ZERO, 4 * MIB, MIB), (0, 6 * MIB, MIB), (KEEP, 8 * MIB, MIB), (PUNCH | KEEP, 100, 1), (PUNCH | KEEP, MIB + 1, 100 * MIB),
    ]:  # fmt: skip
        book.ask(f"fallocate {how} {offset} {length}", fallocate, fd, how, offset, length)
        book.note(f"after {how} {offset}", (os.fstat(fd).st_size, sum_of("f")))
    for how, offset, length in [(0, 0, 0), (0, -1, 1), (0, 0, -1), (PUNCH, 0, 1), (PUNCH | ZERO | KEEP, 0, 1), (0, 1 << 62, 1 << 62), (256, 0, 4096), (COLLAPSE | KEEP, 0, 4096), (INSERT | KEEP, 0, 4096)]:
        book.ask(f"wrong {how} {offset} {length}", fallocate, fd, how, offset, length)
    for how in (COLLAPSE, INSERT, UNSHARE):
        book.ask(f"may lack {how}", fallocate, fd, how, 0, 4096)
    os.close(fd)
    cleared()
    # The end of a page behind the end of a file is zeros when the file grows again.
    put("f", b"x" * 5000)
    fd = os.open("f", os.O_RDWR)
    os.ftruncate(fd, 100)
    os.ftruncate(fd, 5000)
    book.note("shrunk and grown", got("f") == b"x" * 100 + bytes(4900))
    os.ftruncate(fd, 10)
    os.pwrite(fd, b"y", 4096)
    book.note("written behind", got("f") == b"x" * 10 + bytes(4086) + b"y")
    os.close(fd)
    for kind in ("d", "p"):
        {"d": os.mkdir, "p": os.mkfifo}[kind](kind)
        fd = os.open(kind, os.O_RDONLY | os.O_NONBLOCK)
        book.ask(f"seek in {kind}", os.lseek, fd, 0, os.SEEK_CUR)
        book.ask(f"fallocate of {kind}", fallocate, fd, 0, 0, 1)
        os.close(fd)


@group
def copies(book):
    put("a", bytes(range(256)) * 4096)
    put("b", b"")

    def copy(old, new, at_old, at_new, length, flags=0):
        places = [ctypes.c_longlong(at) if at is not None else None for at in (at_old, at_new)]
        pointers = [ctypes.byref(at) if at is not None else None for at in places]
        return check(libc.syscall(SYS_COPY_FILE_RANGE, old, pointers[0], new, pointers[1], ctypes.c_size_t(length), flags), "copy_file_range")

    old, new = os.open("a", os.O_RDONLY), os.open("b", os.O_RDWR)
    book.ask("copy", copy, old, new, 0, 0, 500_000)
    book.ask("copy behind", copy, old, new, 1000, 2 * MIB, 500)
    book.ask("copy past the end", copy, old, new, 10 * MIB, 0, 500)
    book.ask("copy nothing", copy, old, new, 0, 0, 0)
    book.ask("wrong flags", copy, old, new, 0, 0, 10, 1)
    book.ask("into a reader", copy, new, old, 0, 0, 10)
    both = os.open("a", os.O_RDWR)
    book.ask("onto itself", copy, both, both, 0, 100, 1000)
    book.ask("into itself", copy, both, both, 0, MIB, 1000)
    book.note("sums", (sum_of("a"), sum_of("b")))
    book.ask("sendfile", os.sendfile, new, old, 0, 100_000)
    book.ask("fadvise", os.posix_fadvise, old, 0, 0, os.POSIX_FADV_DONTNEED)
    book.ask("fadvise wrong", os.posix_fadvise, old, 0, 0, 99)
    book.ask("readahead", lambda: check(libc.readahead(old, ctypes.c_long(0), ctypes.c_size_t(100_000)), "readahead"))
    book.ask("sync_file_range", lambda: check(libc.sync_file_range(new, ctypes.c_long(0), ctypes.c_long(100), 7), "sync_file_range"))
    book.ask("syncfs", lambda: check(libc.syncfs(new), "syncfs"))
    book.ask("fdatasync", os.fdatasync, new)
    read, write = os.pipe()
    book.ask("splice", os.splice, old, write, 1000, offset_src=0)
    for fd in (old, new, both, read, write):
        os.close(fd)
    direct = outcome(os.open, "a", os.O_RDWR | getattr(os, "O_DIRECT", 0))
    if isinstance(direct, int):
        page = mmap.mmap(-1, 8192)
        page[:] = b"D" * 8192
        book.ask("direct write", os.pwritev, direct, [page], 4096)
        book.ask("direct read", os.preadv, direct, [page], 0)
        os.close(direct)
    book.note("direct is seen", sum_of("a"))


@group
def maps(book):
    put("f", b"0" * 10_000)
    fd = os.open("f", os.O_RDWR)
    shared = mmap.mmap(fd, 10_000)
    shared[5000:5004] = b"WXYZ"
    book.note("read sees a change of the map", os.pread(fd, 6, 4999))
    os.pwrite(fd, b"abcd", 9000)
    book.note("map sees a write", shared[8999:9005])
    shared.flush()
    book.note("another opener", got("f")[4999:5005])
    private = mmap.mmap(fd, 10_000, mmap.MAP_PRIVATE)
    private[0:4] = b"PPPP"
    book.note("private stays private", os.pread(fd, 4, 0))
    os.ftruncate(fd, 20_000)
    second = mmap.mmap(fd, 20_000)
    second[15_000:15_004] = b"tail"
    second.flush()
    second.close()
    book.note("behind", os.pread(fd, 6, 14_999))
    os.unlink("f")
    shared[0:2] = b"!!"
    book.note("without a name", os.pread(fd, 3, 0))
    shared.close()
    os.close(fd)
    put("g", b"1" * 8192)

    def beyond():
        fd = os.open("g", os.O_RDWR)
        room = mmap.mmap(fd, 8192)
        os.ftruncate(fd, 100)
        return room[5000]

    child = os.fork()
    if child == 0:
        beyond()
        os._exit(0)
    book.note("a page behind the end", signal.Signals(-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).name)
    # What a closed map changed is there, the times have moved, and the page behind the end is not.
    put("h", b"2" * 4096)
    fd = os.open("h", os.O_RDWR)
    room = mmap.mmap(fd, 4096)
    os.ftruncate(fd, 100)
    room[0:3], room[200:203] = b"abc", b"out"
    room.close()
    os.close(fd)
    book.note("unmapped", (got("h")[:4], os.stat("h").st_size))
    os.truncate("h", 300)
    book.note("grown", got("h")[198:206])


@group
def locks(book):
    put("f")
    one, two = os.open("f", os.O_RDWR), os.open("f", os.O_RDWR)
    tries = [(fcntl.LOCK_SH, "sh"), (fcntl.LOCK_EX, "ex")]
    for first, word in tries:
        for second, other in tries:
            fcntl.flock(one, first)
            book.ask(f"flock {word} {other}", fcntl.flock, two, second | fcntl.LOCK_NB)
            fcntl.flock(one, fcntl.LOCK_UN)
            fcntl.flock(two, fcntl.LOCK_UN)
    fcntl.flock(one, fcntl.LOCK_EX)
    copy = os.dup(one)
    os.close(one)
    book.ask("held by the copy", fcntl.flock, two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(copy)
    book.ask("free", fcntl.flock, two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(two, fcntl.LOCK_UN)
    os.close(two)

    def lock(fd, how, start, length, command=fcntl.F_SETLK):
        return struct.unpack("hhqqi", fcntl.fcntl(fd, command, struct.pack("hhqqi", how, 0, start, length, 0)))[:1]

    def elsewhere(how, start, length, command=fcntl.F_SETLK):
        def call():
            return lock(os.open("f", os.O_RDWR), how, start, length, command)
        os.chmod("f", 0o666)
        return as_user(1000, 1000, call)

    fd = os.open("f", os.O_RDWR)
    lock(fd, fcntl.F_WRLCK, 10, 10)
    for start, length in ((0, 10), (0, 11), (19, 1), (20, 5), (0, 0)):
        for how, word in ((fcntl.F_RDLCK, "r"), (fcntl.F_WRLCK, "w")):
            book.note(f"fcntl {word} {start} {length}", elsewhere(how, start, length))
            book.note(f"getlk {word} {start} {length}", elsewhere(how, start, length, fcntl.F_GETLK))
    lock(fd, fcntl.F_UNLCK, 12, 2)
    book.note("split", [elsewhere(fcntl.F_WRLCK, start, 1) for start in range(9, 21)])
    other = os.open("f", os.O_RDONLY)
    os.close(other)
    book.note("a close of any descriptor ends them", elsewhere(fcntl.F_WRLCK, 0, 0))
    reader = os.open("f", os.O_RDONLY)
    book.ask("a lock to write of a reader", lock, reader, fcntl.F_WRLCK, 0, 0)
    book.ask("a wrong range", lock, fd, fcntl.F_WRLCK, -5, 1)
    # Those of an open file, not of a process.
    own, its = os.open("f", os.O_RDWR), os.open("f", os.O_RDWR)
    book.ask("ofd", lock, own, fcntl.F_WRLCK, 0, 0, 37)
    book.ask("ofd of another", lock, its, fcntl.F_WRLCK, 0, 0, 37)
    book.ask("ofd against flock", fcntl.flock, its, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for one in (fd, reader, own, its):
        os.close(one)
    book.note("a deadlock", deadlock())
    fd = os.open("f", os.O_RDONLY)
    book.ask("lease", fcntl.fcntl, fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    os.close(fd)


def deadlock():
    """Two processes that wait for each other: one of them hears so."""
    fd = os.open("f", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)
    ready = os.pipe()
    child = os.fork()
    if child == 0:
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 1)
        os.write(ready[1], b"x")
        answer = outcome(fcntl.lockf, fd, fcntl.LOCK_EX, 1, 0)
        os._exit(1 if answer == "EDEADLK" else 0)
    os.read(ready[0], 1)
    said = outcome(fcntl.lockf, fd, fcntl.LOCK_EX, 1, 1)
    os.close(fd)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for one in ready:
        os.close(one)
    return sorted([str(said == "EDEADLK"), str(ended == 1)])


@group
def many_writers(book):
    """Appends and writes of several processes: nothing is torn."""
    put("log")
    children = []
    for worker in range(4):
        child = os.fork()
        if child == 0:
            fd = os.open("log", os.O_WRONLY | os.O_APPEND)
            for at in range(200):
                os.write(fd, b"%d-%03d\n" % (worker, at))
            os._exit(0)
        children.append(child)
    book.note("ended", [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
    lines = got("log").split(b"\n")
    book.note("lines", (len(lines), len(set(lines)), {len(line) for line in lines}))
    book.note("each in order", all([line for line in lines if line.startswith(b"%d-" % one)] == sorted(line for line in lines if line.startswith(b"%d-" % one)) for one in range(4)))
