//! Thin wrappers around the system calls that the standard library does not offer.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tokio::io::unix::AsyncFd;

use crate::buffer::Buf;

fn check(rc: i64) -> io::Result<usize> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc as usize) }
}

/// Opens a file with O_DIRECT, or without where the file system refuses it (tmpfs); says which.
pub fn open_direct(path: &Path, write: bool, exclusive_device: bool) -> io::Result<(File, bool)> {
    let mut options = File::options();
    options.read(true).write(write);
    let extra = if exclusive_device { libc::O_EXCL } else { 0 };
    match options.custom_flags(libc::O_DIRECT | libc::O_CLOEXEC | extra).open(path) {
        Ok(file) => Ok((file, true)),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            Ok((options.custom_flags(libc::O_CLOEXEC | extra).open(path)?, false))
        }
        Err(e) => Err(e),
    }
}

/// Takes the exclusive advisory lock of an open file; false if another process holds it.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: flock on a descriptor that `file` keeps open.
    match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } as i64) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Reserves space for a file so that a full device shows now and not in the middle of a write.
pub fn allocate(file: &File, len: u64) -> io::Result<()> {
    // SAFETY: fallocate on a descriptor that `file` keeps open.
    let rc = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) };
    match check(rc as i64) {
        Ok(_) => Ok(()),
        // Not every file system can; the zero-writing that follows then finds out.
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => file.set_len(len),
        Err(e) => Err(e),
    }
}

/// Makes everything that was written to a file's file system durable.
pub fn sync_file_system(file: &File) -> io::Result<()> {
    // SAFETY: a call on a descriptor that `file` keeps open.
    check(unsafe { libc::syncfs(file.as_raw_fd()) } as i64).map(drop)
}

/// Size and logical block size of a block device.
pub fn device_geometry(file: &File) -> io::Result<(u64, u32)> {
    const BLKGETSIZE64: u64 = 0x8008_1272;
    const BLKSSZGET: u64 = 0x1268;
    let (mut size, mut logical) = (0u64, 0i32);
    // SAFETY: both ioctls write one integer of the given type through the pointer.
    unsafe {
        check(libc::ioctl(file.as_raw_fd(), BLKGETSIZE64 as _, &mut size) as i64)?;
        check(libc::ioctl(file.as_raw_fd(), BLKSSZGET as _, &mut logical) as i64)?;
    }
    Ok((size, logical as u32))
}

/// One positional vectored write, durable on return if `dsync`.
pub fn write_at(fd: RawFd, parts: &[libc::iovec], offset: u64, dsync: bool) -> io::Result<usize> {
    let flags = if dsync { libc::RWF_DSYNC } else { 0 };
    // SAFETY: the caller's buffers behind `parts` stay alive and unaliased for the duration of the call.
    let rc = unsafe { libc::pwritev2(fd, parts.as_ptr(), parts.len() as i32, offset as libc::off_t, flags) };
    check(rc as i64)
}

/// One positional read into raw memory.
///
/// # Safety
/// `ptr` is valid for writes of `len` bytes for the duration of the call.
pub unsafe fn read_at(fd: RawFd, ptr: *mut u8, len: usize, offset: u64) -> io::Result<usize> {
    let part = libc::iovec { iov_base: ptr.cast(), iov_len: len };
    // SAFETY: the caller guarantees the memory behind `part`.
    check(unsafe { libc::preadv2(fd, &part, 1, offset as libc::off_t, 0) } as i64)
}

/// Fills a buffer from a file; the end of the file is an error.
pub fn read_exact(file: &File, offset: u64, buf: &mut Buf) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        // SAFETY: `done..len` lies inside the buffer, which is borrowed exclusively for the call.
        let n = unsafe {
            read_at(file.as_raw_fd(), buf.io_ptr(0).add(done), buf.len() - done, offset + done as u64)?
        };
        if n == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        done += n;
    }
    Ok(())
}

/// Writes a whole buffer to a file.
pub fn write_all(file: &File, offset: u64, buf: &Buf) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        // SAFETY: `done..len` lies inside the buffer.
        let base = unsafe { buf.io_ptr(0).add(done) };
        let part = libc::iovec { iov_base: base.cast(), iov_len: buf.len() - done };
        match write_at(file.as_raw_fd(), &[part], offset + done as u64, false)? {
            0 => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            n => done += n,
        }
    }
    Ok(())
}

/// Makes an eventfd for waking a driver.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a fresh descriptor that OwnedFd takes over.
    unsafe {
        let fd = check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as i64)?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Signals an eventfd.
pub fn eventfd_signal(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: writes the eight bytes of a local integer.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Clears an eventfd.
pub fn eventfd_clear(fd: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: reads eight bytes into a local integer.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
}

/// Watches a descriptor with the runtime of the caller.
pub fn async_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: OwnedFd keeps its descriptor open and does not change it until it is dropped with the AsyncFd.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// Waits until the descriptor is readable or the time is over.
pub fn wait_readable(fd: &OwnedFd, timeout_ms: i32) {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd on the stack.
    unsafe { libc::poll(&mut poll, 1, timeout_ms) };
}

/// Pins the calling thread to one core, by its absolute number.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: a zeroed cpu_set_t is valid, and `core` is below CPU_SETSIZE.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) as i64)?;
    }
    Ok(())
}

/// Bytes from the kernel's random source.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0u8; N];
    // SAFETY: fills a local array; requests up to 256 bytes are never cut short once the source is ready.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    assert_eq!(got, N as isize, "the kernel's random source failed");
    bytes
}

/// A random integer from the kernel.
pub fn random_u64() -> u64 {
    u64::from_le_bytes(random_bytes())
}

/// Free and total bytes of the file system that holds `path`.
pub fn disk_space(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a zeroed statvfs is valid for the call to fill, the path is NUL-terminated.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        check(libc::statvfs(path.as_ptr(), &mut stat) as i64)?;
        Ok((stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize))
    }
}
