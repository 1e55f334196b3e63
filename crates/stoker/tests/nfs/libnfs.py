"""A real NFS client, libnfs, through ctypes. Ends with 3 if it is not installed."""

import ctypes
import ctypes.util
import os
import sys

port = int(sys.argv[1])
name = ctypes.util.find_library("nfs")
if not name:
    print("this machine has no libnfs")
    sys.exit(3)
lib = ctypes.CDLL(name)


class Stat(ctypes.Structure):
    names = "dev ino mode nlink uid gid rdev size blksize blocks atime mtime ctime atime_ns mtime_ns ctime_ns used"
    _fields_ = [(name, ctypes.c_uint64) for name in names.split()]


class Entry(ctypes.Structure):
    pass


Entry._fields_ = [("next", ctypes.POINTER(Entry)), ("name", ctypes.c_char_p), ("inode", ctypes.c_uint64)]
lib.nfs_init_context.restype = ctypes.c_void_p
lib.nfs_get_error.restype = ctypes.c_char_p
lib.nfs_parse_url_dir.restype = ctypes.c_void_p
lib.nfs_readdir.restype = ctypes.POINTER(Entry)

nfs = ctypes.c_void_p(lib.nfs_init_context())
url = f"nfs://127.0.0.1/data?version=3&nfsport={port}&mountport={port}"
assert lib.nfs_parse_url_dir(nfs, url.encode()), lib.nfs_get_error(nfs)
lib.nfs_set_uid(nfs, 0)


def do(call, *args):
    done = getattr(lib, call)(nfs, *args)
    assert done >= 0, f"{call}{args}: {done} {lib.nfs_get_error(nfs)}"
    return done


def fails(errno, call, *args):
    done = getattr(lib, call)(nfs, *args)
    assert done == -errno, f"{call}{args}: {done} and not {-errno}"


def u64(value):
    return ctypes.c_uint64(value)


def write(path, data, step=1 << 20):
    file = ctypes.c_void_p()
    do("nfs_creat", path, 0o640, ctypes.byref(file))
    for offset in range(0, len(data), step):
        part = data[offset : offset + step]
        assert do("nfs_pwrite", file, u64(offset), u64(len(part)), part) == len(part)
    do("nfs_fsync", file)
    do("nfs_close", file)


def read(path, step=1 << 20):
    file, data = ctypes.c_void_p(), b""
    do("nfs_open", path, os.O_RDONLY, ctypes.byref(file))
    room = ctypes.create_string_buffer(step)
    while count := do("nfs_pread", file, u64(len(data)), u64(step), room):
        data += room.raw[:count]
    do("nfs_close", file)
    return data


def stat(path):
    found = Stat()
    do("nfs_lstat64", path, ctypes.byref(found))
    return found


do("nfs_mount", b"127.0.0.1", b"/data")
do("nfs_mkdir", b"/real")
data = bytes(os.urandom(1 << 20)) * 9 + b"end"
write(b"/real/large", data)
assert read(b"/real/large") == data
assert read(b"/real/large", 100_001) == data
found = stat(b"/real/large")
assert (found.size, found.mode & 0o7777) == (len(data), 0o640)

# In the middle, behind the end, and shorter.
file = ctypes.c_void_p()
do("nfs_open", b"/real/large", os.O_RDWR, ctypes.byref(file))
do("nfs_pwrite", file, u64(5_000_000), u64(6), b"middle")
do("nfs_pwrite", file, u64(len(data) + 1000), u64(4), b"last")
do("nfs_fsync", file)
do("nfs_close", file)
data = data[:5_000_000] + b"middle" + data[5_000_006:] + b"\0" * 1000 + b"last"
assert read(b"/real/large") == data
do("nfs_truncate", b"/real/large", u64(4_999_999))
assert read(b"/real/large") == data[:4_999_999]

for at in range(200):
    write(f"/real/small {at}".encode(), b"%d" % at)
listing, names = ctypes.c_void_p(), set()
do("nfs_opendir", b"/real", ctypes.byref(listing))
while entry := lib.nfs_readdir(nfs, listing):
    names.add(entry.contents.name)
lib.nfs_closedir(nfs, listing)
assert names == {b".", b"..", b"large"} | {b"small %d" % at for at in range(200)}

do("nfs_symlink", b"large", b"/real/link")
room = ctypes.create_string_buffer(100)
do("nfs_readlink", b"/real/link", room, 100)
assert room.value == b"large" and stat(b"/real/link").mode & 0o170000 == 0o120000
do("nfs_link", b"/real/small 9", b"/real/linked")
fails(17, "nfs_link", b"/real/small 9", b"/real/linked")
assert stat(b"/real/linked").nlink == 2 and stat(b"/real/linked").ino == stat(b"/real/small 9").ino
do("nfs_open", b"/real/linked", os.O_WRONLY, ctypes.byref(file))
assert do("nfs_pwrite", file, u64(0), u64(3), b"new") == 3
do("nfs_close", file)
assert read(b"/real/small 9") == b"new"
do("nfs_unlink", b"/real/linked")
assert stat(b"/real/small 9").nlink == 1
do("nfs_rename", b"/real/small 7", b"/real/small 8")
assert read(b"/real/small 8") == b"7"
fails(2, "nfs_unlink", b"/real/small 7")
fails(39, "nfs_rmdir", b"/real")
fails(17, "nfs_mkdir", b"/real")
fails(20, "nfs_unlink", b"/real/large/x")
do("nfs_chmod", b"/real/large", 0o600)
lib.nfs_set_uid(nfs, 1000)
lib.nfs_set_gid(nfs, 1000)
fails(13, "nfs_open", b"/real/large", os.O_RDONLY, ctypes.byref(file))
lib.nfs_set_uid(nfs, 0)
lib.nfs_set_gid(nfs, 0)
for at in range(200):
    if at != 7:
        do("nfs_unlink", b"/real/small %d" % at)
for path in (b"/real/link", b"/real/large"):
    do("nfs_unlink", path)
do("nfs_rmdir", b"/real")
lib.nfs_destroy_context(nfs)
