//! What POSIX says of kinds, rights, times and names, on a real mount. The users are made by `setuid` in a child.

use super::{Rig, sh};

/// What the scripts share. `as_user` runs in a child that is another user; a refusal is the number of the error.
const TOOLS: &str = r#"
import errno, os, socket, stat, sys, time
def error(call, *args, **named):
    try:
        call(*args, **named)
    except OSError as fault:
        return "EOPNOTSUPP" if fault.errno == 95 else errno.errorcode[fault.errno]
    return None
def as_user(uid, gid, call, *args, groups=()):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups(list(groups)); os.setgid(gid); os.setuid(uid)
        os.write(write, (error(call, *args) or "None").encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 100).decode()
    os.waitpid(child, 0); os.close(read)
    return None if said == "None" else said
def is_(found, expect):
    assert found == expect, (found, expect)
def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)
def put(path, text=b"", bits=0o644):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, bits); os.write(fd, text); os.close(fd); os.chmod(path, bits)
"#;

fn python(rig: &Rig, script: &str) -> bool {
    std::fs::write(rig.dir.path().join("check.py"), [TOOLS, script].concat()).unwrap();
    sh(&rig.path(""), &["python3"], "python3 ../check.py")
}

const KINDS: &str = r#"
os.umask(0)
os.mknod("disk", stat.S_IFBLK | 0o640, os.makedev(8, 1)); os.mknod("tape", stat.S_IFCHR | 0o604, os.makedev(4095, 0xfff34))
os.mkfifo("pipe", 0o600)
at = socket.socket(socket.AF_UNIX); at.bind("sock")
is_(as_user(1000, 1000, os.mknod, "no", stat.S_IFCHR | 0o600, os.makedev(1, 3)), "EACCES")
os.chmod(".", 0o777)
is_(as_user(1000, 1000, os.mknod, "no", stat.S_IFCHR | 0o600, os.makedev(1, 3)), "EPERM")
is_(as_user(1000, 1000, os.mkfifo, "theirs"), None)
os.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
# A mount is never a way to devices.
is_(error(os.open, "null", os.O_RDONLY), "EACCES")
is_(error(os.open, "pipe", os.O_WRONLY | os.O_NONBLOCK), "ENXIO")
is_(error(os.open, "sock", os.O_RDONLY), "ENXIO")
is_(error(os.truncate, "pipe", 0), "EINVAL")
is_(error(os.mkdir, "pipe/d"), "ENOTDIR")
is_(error(os.rmdir, "disk"), "ENOTDIR")
is_(error(os.listdir, "tape"), "ENOTDIR")
reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK); writer = os.open("pipe", os.O_WRONLY)
os.write(writer, b"through"); is_(os.read(reader, 100), b"through")
os.close(reader); os.close(writer)
os.link("disk", "disk2"); os.rename("tape", "tape2"); os.rename("pipe", "null")
is_(os.stat("disk").st_nlink, 2)
"#;

const KINDS_AFTER: &str = r#"
def check(path, kind, bits, device=None):
    found = os.lstat(path)
    is_((stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode), found.st_size), (kind, bits, 0))
    is_(found.st_rdev, os.makedev(*device) if device else 0)
check("disk", stat.S_IFBLK, 0o640, (8, 1)); check("disk2", stat.S_IFBLK, 0o640, (8, 1))
check("tape2", stat.S_IFCHR, 0o604, (4095, 0xfff34)); check("null", stat.S_IFIFO, 0o600); check("sock", stat.S_IFSOCK, mode("sock"))
is_(os.listxattr("disk"), [])
is_(sorted(entry.name for entry in os.scandir(".") if not entry.is_file()), ["disk", "disk2", "null", "sock", "tape2", "theirs"])
for name in os.listdir("."):
    os.unlink(name)
"#;

#[test]
fn pipes_sockets_and_devices_have_names() {
    let Some(mut rig) = Rig::new() else { return };
    if python(&rig, KINDS) {
        rig.remount();
        python(&rig, KINDS_AFTER);
    }
}

const TIMES: &str = r#"
S = 10 ** 9
def times(path):
    found = os.lstat(path)
    return found.st_atime_ns, found.st_mtime_ns
put("f"); os.mkdir("d"); os.symlink("f", "l"); os.mkfifo("p")
for path in ("f", "d", "l", "p"):
    for at in [(1, 2), (5 * S + 999999999, 7 * S), (-1, -S), (-500000000, -3 * S - 1), (2 ** 31 * S + 1, 2 ** 32 * S + 7), (2 ** 33 * S, 0)]:
        os.utime(path, ns=at, follow_symlinks=False)
        is_(times(path), at)
# Reading is not noted; a change is, and leaves the access time where it was set.
os.utime("f", ns=(S, 2 * S))
is_(open("f").read(), ""); is_(times("f"), (S, 2 * S))
put("f", b"bytes"); assert times("f")[0] == S and times("f")[1] > 2 ** 30 * S
def ctimes(*paths):
    return [os.lstat(path).st_ctime_ns for path in paths]
def unchanged(*paths):
    before = ctimes(*paths)
    return lambda: is_(ctimes(*paths), before)
def changed(call, *paths):
    before = ctimes(*paths)
    call()
    for path, old, new in zip(paths, before, ctimes(*paths)):
        assert new > old, (call, path, old, new)
check = unchanged("f", "d", ".")
for _ in range(3):
    time.sleep(0.6)
    check()
    os.close(os.open("f", os.O_WRONLY)); open("f").read(); os.listdir("d")
is_(error(os.rmdir, "f"), "ENOTDIR"); is_(error(os.link, "f", "d"), "EEXIST"); is_(error(os.rename, "f", "d"), "EISDIR")
is_(error(os.mkdir, "d"), "EEXIST"); is_(error(os.unlink, "d/no"), "ENOENT")
is_(as_user(1000, 1000, os.chmod, "f", 0), "EPERM"); is_(as_user(1000, 1000, os.truncate, "f", 0), "EACCES")
is_(as_user(1000, 1000, os.chown, "f", 1000, -1), "EPERM"); is_(as_user(1000, 1000, os.utime, "f", (1, 1)), "EPERM")
is_(as_user(1000, 1000, os.utime, "f"), "EACCES"); is_(as_user(1000, 1000, os.unlink, "f"), "EACCES")
check()
changed(lambda: os.chmod("f", 0o666), "f")
is_(as_user(1000, 1000, os.utime, "f"), None)
changed(lambda: os.link("f", "d/g"), "f", "d")
changed(lambda: os.unlink("d/g"), "f", "d")
last = ctimes("f")[0]; changed(lambda: os.rename("f", "d/f"), "d", "."); assert ctimes("d/f")[0] > last
changed(lambda: os.mkdir("d/sub"), "d"); changed(lambda: os.rmdir("d/sub"), "d")
changed(lambda: os.symlink("x", "d/l"), "d"); changed(lambda: os.mkfifo("d/p"), "d"); changed(lambda: os.unlink("d/p"), "d")
changed(lambda: os.truncate("d/f", 5), "d/f"); changed(lambda: os.close(os.open("d/f", os.O_WRONLY | os.O_TRUNC)), "d/f")
"#;

#[test]
fn times_are_kept_and_move_as_posix_says() {
    let Some(mut rig) = Rig::new() else { return };
    if python(&rig, TIMES) {
        python(&rig, "os.utime('d/f', ns=(-7, 2**33 * 10**9)); os.utime('d', ns=(3, 4))");
        rig.remount();
        python(
            &rig,
            "is_([(at.st_atime_ns, at.st_mtime_ns) for at in (os.stat('d/f'), os.stat('d'))], [(-7, 2**33 * 10**9), (3, 4)])",
        );
    }
}

const RIGHTS: &str = r#"
os.umask(0)
# Whoever makes something in a directory with the bit makes it for its group, and directories pass the bit on.
os.mkdir("team"); os.chown("team", 1000, 50); os.chmod("team", 0o2777)
def make():
    put("team/f", b"x", 0o664); os.mkdir("team/d", 0o770); os.symlink("f", "team/l"); os.mkfifo("team/p")
is_(as_user(1001, 1001, make), None)
for name in ("f", "d", "l", "p"):
    found = os.lstat("team/" + name); is_((found.st_uid, found.st_gid), (1001, 50))
is_((mode("team/f"), mode("team/d")), (0o664, 0o2770))
# Nobody but the owners takes something out of a sticky directory.
os.mkdir("tmp"); os.chmod("tmp", 0o1777)
is_(as_user(1000, 1000, put, "tmp/f"), None)
is_(as_user(1001, 1001, os.unlink, "tmp/f"), "EPERM"); is_(as_user(1001, 1001, os.rename, "tmp/f", "tmp/g"), "EPERM")
is_(as_user(1001, 1001, put, "tmp/other"), None)
is_(as_user(1001, 1001, os.rename, "tmp/other", "tmp/f"), "EPERM")
is_(as_user(1000, 1000, os.rename, "tmp/f", "tmp/g"), None); is_(as_user(1000, 1000, os.unlink, "tmp/g"), None)
# Rights that a program gives end when somebody else changes it.
def fresh():
    put("program", b"code", 0o6777); is_(mode("program"), 0o6777)
def write(flags):
    fd = os.open("program", flags); os.write(fd, b"more"); os.close(fd)
for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC):
    fresh(); is_(as_user(1000, 1000, write, flags), None); is_(mode("program"), 0o777)
fresh(); is_(as_user(1000, 1000, os.truncate, "program", 1), None); is_(mode("program"), 0o777)
fresh(); os.chown("program", 1000, 1000); is_(mode("program"), 0o777)
os.chmod("program", 0o6777); is_(as_user(1000, 1000, os.chown, "program", -1, 50, groups=[50]), None); is_(mode("program"), 0o777)
is_(as_user(1000, 1000, os.chown, "program", -1, 60, groups=[50]), "EPERM"); is_(as_user(1000, 1000, os.chown, "program", 1001, -1), "EPERM")
is_(as_user(1000, 60, os.chmod, "program", 0o2755), None); is_(mode("program"), 0o755)
is_(as_user(1001, 1001, os.chmod, "program", 0o600), "EPERM")
"#;

#[test]
fn groups_sticky_directories_and_set_id_bits() {
    let Some(rig) = Rig::new() else { return };
    python(&rig, RIGHTS);
}

const NAMES: &str = r#"
import ctypes, subprocess
long = "n" * 256
put("f"); os.mkdir("d"); os.symlink("loop", "loop"); os.symlink("f", "to-f")
for call in (os.mkdir, os.mkfifo, os.unlink, os.rmdir, os.stat, os.listdir, os.readlink, put):
    is_(error(call, long), "ENAMETOOLONG"); is_(error(call, "d/" + long), "ENAMETOOLONG")
    is_(error(call, "f/x"), "ENOTDIR"); is_(error(call, "loop/x"), "ELOOP"); is_(error(call, "none/x"), "ENOENT")
for call in (os.link, os.rename):
    is_(error(call, "f", long), "ENAMETOOLONG"); is_(error(call, long, "g"), "ENAMETOOLONG"); is_(error(call, "f", "f/x"), "ENOTDIR")
is_(error(os.symlink, "f", long), "ENAMETOOLONG"); is_(error(os.symlink, "x" * 4096, "s"), "ENAMETOOLONG"); os.symlink("x" * 4095, "s")
is_(len(os.readlink("s")), 4095)
is_(error(os.open, "loop", os.O_RDONLY), "ELOOP"); is_(error(os.open, "to-f", os.O_RDONLY | os.O_NOFOLLOW), "ELOOP")
is_(error(os.open, "d", os.O_WRONLY), "EISDIR"); is_(error(os.open, "d", os.O_CREAT | os.O_RDWR), "EISDIR")
is_(error(os.open, "f", os.O_CREAT | os.O_EXCL), "EEXIST"); is_(error(os.open, "to-f", os.O_CREAT | os.O_EXCL), "EEXIST")
is_(error(os.open, "f", os.O_DIRECTORY), "ENOTDIR"); is_(error(os.unlink, "d"), "EISDIR")
is_(error(os.rmdir, "d/."), "EINVAL"); is_(error(os.rename, "d", "d/e"), "EINVAL"); is_(error(os.link, "d", "e"), "EPERM")
put("d/g"); is_(error(os.rmdir, "d"), "ENOTEMPTY"); os.mkdir("e"); is_(error(os.rename, "e", "d"), "ENOTEMPTY")
is_(error(os.rename, "f", "d"), "EISDIR"); is_(error(os.rename, "e", "f"), "ENOTDIR")
is_(error(os.link, "f", "/proc/self/x") in ("EXDEV", "ENOENT"), True); is_(error(os.rename, "f", "../f"), "EXDEV")
fd = os.open("f", os.O_RDWR); is_(error(os.truncate, "f", -1), "EINVAL"); is_(error(os.posix_fallocate, fd, 0, 0), "EINVAL"); os.close(fd)
fd = os.open("f", os.O_RDONLY); is_(error(os.ftruncate, fd, 0), "EINVAL"); is_(error(os.posix_fallocate, fd, 0, 1), "EBADF"); os.close(fd)
# renameat2: none but the flags that it has.
libc = ctypes.CDLL(None, use_errno=True)
def renameat2(old, new, flags):
    if libc.renameat2(-100, old.encode(), -100, new.encode(), flags):
        raise OSError(ctypes.get_errno(), "renameat2")
is_(error(renameat2, "f", "to-f", 1), "EEXIST"); is_(error(renameat2, "f", "x", 1 | 2), "EINVAL"); is_(error(renameat2, "f", "x", 4), "EINVAL")
renameat2("f", "moved", 1); renameat2("moved", "to-f", 2); is_((os.path.islink("moved"), os.path.islink("to-f")), (True, False))
# A program that runs is not written to.
put("program", open("/bin/sleep", "rb").read(), 0o755)
child = subprocess.Popen(["./program", "1000"])
while os.readlink(f"/proc/{child.pid}/exe") != os.path.realpath("program"):
    pass
is_(error(os.open, "program", os.O_WRONLY), "ETXTBSY"); is_(error(os.truncate, "program", 0), "ETXTBSY")
child.kill(); child.wait()
# As deep as paths are, name by name: 4,095 bytes.
deep = ["p" * 255] * 15
for name in deep:
    os.mkdir(name); os.chdir(name)
put("q" * 255, b"deep"); os.mkfifo("r" * 255); os.rename("q" * 255, "t" * 255); os.link("t" * 255, "u" * 255)
os.mkdir("v" * 255); is_(error(os.mkdir, "v" * 255 + "/w"), "ENAMETOOLONG"); is_(error(put, "v" * 255 + "/w"), "ENAMETOOLONG")
is_(sorted(len(name) for name in os.listdir(".")), [255] * 4); is_(open("u" * 255).read(), "deep"); os.chmod("t" * 255, 0o600)
os.unlink("t" * 255); os.unlink("u" * 255); os.unlink("r" * 255); os.rmdir("v" * 255)
for name in reversed(deep):
    os.chdir(".."); os.rmdir(name)
"#;

#[test]
fn names_and_paths_get_the_errors_of_posix() {
    let Some(rig) = Rig::new() else { return };
    python(&rig, NAMES);
}

const LISTS: &str = r#"
import struct
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
U, NAMED, G, NAMED_G, MASK, O = 1, 2, 4, 8, 16, 32
def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *(entry if len(entry) == 3 else (*entry, -1))) for entry in entries)
def bits(path, name=ACCESS):
    value = os.getxattr(path, name)
    return [struct.unpack_from("<HH", value, at) for at in range(4, len(value), 8)]
RICH = acl((U, 7), (NAMED, 6, 1001), (G, 4), (NAMED_G, 5, 60), (MASK, 6), (O, 0))
"#;

const LISTS_BEFORE: &str = r#"
os.umask(0o022); os.chmod(".", 0o777)
put("f", b"bytes", 0o640); os.chown("f", 1000, 50); os.mkdir("d", 0o777); os.chmod("d", 0o777)
is_(as_user(1001, 1001, os.setxattr, "f", ACCESS, RICH), "EPERM"); is_(as_user(1000, 1000, os.setxattr, "f", ACCESS, RICH), None)
is_(mode("f"), 0o760); os.setxattr("d", DEFAULT, RICH)
put_new = lambda name, how: os.close(os.open(name, os.O_CREAT | os.O_WRONLY | how, 0o666))
put_new("d/f", 0); put_new("d/x", os.O_EXCL); os.mkdir("d/s"); os.mkfifo("d/p", 0o600)
is_([mode("d/" + name) for name in "fxsp"], [0o660, 0o660, 0o760, 0o600])
os.setxattr("d/x", ACCESS, acl((U, 6), (G, 0), (O, 4))); is_((mode("d/x"), error(os.getxattr, "d/x", ACCESS)), (0o604, "ENODATA"))
is_(error(os.setxattr, "f", DEFAULT, RICH), "EACCES"); is_(error(os.setxattr, "f", ACCESS, acl((U, 6), (O, 4))), "EINVAL")
os.setxattr("d", ACCESS, acl((U, 7), (NAMED, 7, 1001), (G, 5), (MASK, 7), (O, 0)))
"#;

const LISTS_AFTER: &str = r#"
is_(bits("f"), [(U, 7), (NAMED, 6), (G, 4), (NAMED_G, 5), (MASK, 6), (O, 0)]); is_(bits("d/s", DEFAULT), bits("f"))
def opens(path, uid, flags, groups=()):
    return as_user(uid, uid, lambda: os.close(os.open(path, flags)), groups=groups)
is_(opens("f", 1001, os.O_RDWR), None); is_(opens("f", 1002, os.O_RDONLY), "EACCES")
is_(opens("f", 1002, os.O_RDONLY, [60]), None); is_(opens("f", 1002, os.O_WRONLY, [60]), "EACCES"); is_(opens("f", 1002, os.O_WRONLY, [50]), "EACCES")
is_(as_user(1001, 1001, os.mkdir, "d/mine"), None); is_(as_user(1002, 1002, os.mkdir, "d/no"), "EACCES")
os.chmod("f", 0o700); is_(bits("f")[4], (MASK, 0)); is_(opens("f", 1001, os.O_RDONLY), "EACCES")
os.removexattr("f", ACCESS); is_((mode("f"), error(os.getxattr, "f", ACCESS)), (0o700, "ENODATA"))
"#;

#[test]
fn lists_of_who_may_use_a_file_hold() {
    let Some(mut rig) = Rig::new() else { return };
    if python(&rig, &[LISTS, LISTS_BEFORE].concat()) {
        rig.remount();
        python(&rig, &[LISTS, LISTS_AFTER].concat());
    }
}

const CALLS: &str = r#"
import ctypes, fcntl, struct
libc = ctypes.CDLL(None, use_errno=True)
def fallocate(fd, how, offset, length):
    if libc.fallocate(fd, how, ctypes.c_long(offset), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")
put("f", b"x" * 8192); os.mkdir("d")
is_(error(os.open, "d", os.O_TMPFILE | os.O_RDWR), "EOPNOTSUPP")
fd = os.open("f", os.O_RDWR)
for request in (0x80086601, 0x40086602):
    is_(error(fcntl.ioctl, fd, request, bytearray(8)), "ENOTTY")
for how in (0x08, 0x20, 0x40):
    is_(error(fallocate, fd, how, 0, 4096), "EOPNOTSUPP")
fallocate(fd, 0x01, 0, 1 << 20); is_(os.fstat(fd).st_size, 8192)
fallocate(fd, 0, 0, 1 << 20); is_(os.fstat(fd).st_size, 1 << 20)
os.posix_fallocate(fd, 0, 2 << 20); is_(os.fstat(fd).st_size, 2 << 20)
is_(error(fallocate, fd, 0, -1, 10), "EINVAL"); is_(error(fallocate, fd, 0, 0, 1 << 60), "EFBIG"); is_(error(os.ftruncate, fd, 1 << 60), "EFBIG")
is_(os.lseek(fd, 0, os.SEEK_HOLE), 8192); is_(error(os.lseek, fd, 8192, os.SEEK_DATA), "ENXIO")
os.close(fd)
for name in ("user.a", "trusted.a", "security.a"):
    os.setxattr("f", name, b"v" * 16384); is_(os.getxattr("f", name), b"v" * 16384); os.removexattr("f", name)
is_(error(os.getxattr, "f", "user.a"), "ENODATA"); is_(error(os.removexattr, "f", "user.a"), "ENODATA")
is_(error(os.setxattr, "f", "user.a", b"v" * 16385), "ENOSPC"); is_(error(os.setxattr, "f", "user.a", b"v" * 65537), "E2BIG")
is_(error(os.setxattr, "f", "user." + "n" * 251, b""), "ERANGE"); is_(error(os.setxattr, "f", "other.a", b""), "EOPNOTSUPP")
is_(error(os.setxattr, "f", "user.a", b"", os.XATTR_REPLACE), "ENODATA"); os.setxattr("f", "user.a", b"", os.XATTR_CREATE)
is_(error(os.setxattr, "f", "user.a", b"", os.XATTR_CREATE), "EEXIST"); is_(os.listxattr("f"), ["user.a"])
is_(error(os.setxattr, "f", "system.stoker.rdev", b"\0\0\0\1"), "EOPNOTSUPP")
is_(error(os.link, "d", "e"), "EPERM")
space = os.statvfs("."); is_((space.f_namemax, space.f_bsize), (255, 4096)); assert 0 < space.f_bavail <= space.f_blocks and space.f_favail > 0
found = os.stat("d"); is_((found.st_nlink, found.st_size), (2, 4096))
"#;

#[test]
fn calls_that_are_not_there_say_so() {
    let Some(rig) = Rig::new() else { return };
    python(&rig, CALLS);
}
