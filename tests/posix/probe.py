"""What probes of a file system are made of: calls, and answers that two file systems can be compared by.

A group of probes runs in an empty directory of its own, as root, and says lines `label: answer`. An answer is the name of an error or
something that does not depend on the file system: no numbers of inodes, no times of the day.
"""

import ctypes
import errno
import os
import shutil
import stat
import struct
import time

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH = -100, 0x400, 0x1000
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
CLOCK_REALTIME_COARSE = 5
# System calls without a function in every libc.
SYS_RENAMEAT2, SYS_FCHMODAT2, SYS_OPENAT2, SYS_COPY_FILE_RANGE = 316, 452, 437, 326
GROUPS = {}


def group(function):
    GROUPS[function.__name__] = function
    return function


class Book:
    """What a group found."""

    def __init__(self):
        self.lines = {}

    def note(self, label, answer):
        while label in self.lines:
            label += "'"
        self.lines[label] = str(answer)

    def ask(self, label, call, *args, **named):
        answer = outcome(call, *args, **named)
        self.note(label, answer)
        return answer


def outcome(call, *args, **named):
    """The name of the error, or what the call gave, if that is of any use."""
    try:
        answer = call(*args, **named)
    except OSError as fault:
        return name_of(fault.errno)
    except ValueError as fault:
        return f"ValueError {fault}"
    return "ok" if answer is None else answer


def name_of(number):
    return "EOPNOTSUPP" if number == errno.EOPNOTSUPP else errno.errorcode.get(number, str(number))


def check(result, what):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, what)
    return result


def raw(path):
    return path if isinstance(path, bytes) else os.fsencode(path)


def renameat2(old, new, flags):
    check(libc.syscall(SYS_RENAMEAT2, AT_FDCWD, raw(old), AT_FDCWD, raw(new), flags), "renameat2")


def linkat(fd, old, new, flags):
    check(libc.linkat(fd, raw(old), AT_FDCWD, raw(new), flags), "linkat")


def fallocate(fd, how, offset, length):
    check(libc.fallocate(fd, how, ctypes.c_long(offset), ctypes.c_long(length)), "fallocate")


def utimensat(path, times, flags=0):
    packed = None if times is None else struct.pack("qqqq", *times[0], *times[1])
    check(libc.utimensat(AT_FDCWD, raw(path), packed, flags), "utimensat")


def opened(path, flags, mode=0o644):
    """Opens and closes."""
    fd = os.open(path, flags, mode)
    os.close(fd)


def put(path, data=b"", mode=0o644):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode)
    os.write(fd, data)
    os.close(fd)
    os.chmod(path, mode)


def got(path):
    with open(path, "rb") as file:
        return file.read()


def mode(path):
    return oct(stat.S_IMODE(os.lstat(path).st_mode))


def kind(path):
    found = outcome(os.lstat, path)
    if isinstance(found, str):
        return found
    names = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "sock", stat.S_IFBLK: "block", stat.S_IFCHR: "char"}
    return names[stat.S_IFMT(found.st_mode)]


def tree(at="."):
    """Names and kinds below a directory; of files their links and length."""
    lines = []
    for place, dirs, files in os.walk(at):
        for name in dirs + files:
            path = os.path.join(place, name)
            found = os.lstat(path)
            more = f"{found.st_nlink}/{found.st_size}" if stat.S_ISREG(found.st_mode) else ""
            lines.append(f"{path[2:]}={kind(path)}{more}")
    return " ".join(sorted(lines))


def cleared():
    """Whatever is in the directory goes."""
    for name in os.listdir("."):
        path = os.path.join(".", name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def as_user(uid, gid, call, *args, groups=()):
    """The outcome of a call in a child that is somebody else."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            os.setgroups(list(groups))
            os.setgid(gid)
            os.setuid(uid)
            said = str(outcome(call, *args))
        except BaseException as fault:
            said = f"{type(fault).__name__}: {fault}"
        finally:
            os.write(write, said.encode() or b"''")
            os._exit(0)
    os.close(write)
    said = b""
    while more := os.read(read, 65536):
        said += more
    os.waitpid(child, 0)
    os.close(read)
    return said.decode()


def tick():
    """The clock that stamps files has moved on: it does so some hundred times a second."""
    begun, moved = time.clock_gettime_ns(CLOCK_REALTIME_COARSE), 0
    while moved < 2:
        now = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
        moved, begun = moved + (now != begun), now


def stamps(*paths):
    found = {}
    for path in paths:
        at = outcome(os.lstat if isinstance(path, str) else os.fstat, path)
        found[path] = None if isinstance(at, str) else (at.st_mtime_ns, at.st_ctime_ns)
    return found


def moved(before, after):
    """Which times of which paths moved on: `f:mc`."""
    words = []
    for path, old in before.items():
        new = after.get(path)
        if old is None or new is None:
            words.append(f"{path}:{'gone' if new is None else 'new'}")
            continue
        marks = "".join(mark if now > was else mark.upper() if now < was else "" for mark, was, now in zip("mc", old, new))
        words.append(f"{path}:{marks or '-'}")
    return " ".join(words)
