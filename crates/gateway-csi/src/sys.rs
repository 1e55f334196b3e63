//! System calls that the standard library does not wrap: mounts, and the space of a file system.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Space and files of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
}

/// Flags that a bind mount has beside its source's, and keeps when it becomes read-only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
}

impl Limits {
    fn flags(self) -> libc::c_ulong {
        let flag = |is_set: bool, flag: libc::c_ulong| if is_set { flag } else { 0 };
        flag(self.read_only, libc::MS_RDONLY)
            | flag(self.no_suid, libc::MS_NOSUID)
            | flag(self.no_dev, libc::MS_NODEV)
            | flag(self.no_exec, libc::MS_NOEXEC)
    }
}

fn text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Shows a directory at a second place.
pub fn bind(from: &Path, to: &Path, limits: Limits) -> io::Result<()> {
    let (from, to) = (text(from)?, text(to)?);
    let none = std::ptr::null();
    // SAFETY: both texts end with a NUL byte and outlive the call; the kernel takes no type and no data for a bind.
    done(unsafe { libc::mount(from.as_ptr(), to.as_ptr(), none, libc::MS_BIND, none.cast()) })?;
    if !limits.read_only {
        return Ok(());
    }
    let flags = libc::MS_REMOUNT | libc::MS_BIND | limits.flags();
    // SAFETY: as above; the source is not looked at.
    let limited = done(unsafe { libc::mount(none, to.as_ptr(), none, flags, none.cast()) });
    if limited.is_err() {
        // SAFETY: the text ends with a NUL byte and outlives the call.
        unsafe { libc::umount2(to.as_ptr(), libc::MNT_DETACH) };
    }
    limited
}

/// Takes what is on top there away; what is open can be used until it is closed.
pub fn unmount(path: &Path, is_lazy: bool) -> io::Result<()> {
    let path = text(path)?;
    let flags = if is_lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: the text ends with a NUL byte and outlives the call.
    done(unsafe { libc::umount2(path.as_ptr(), flags) })
}

/// Space and files there.
pub fn space(path: &Path) -> io::Result<Space> {
    let path = text(path)?;
    let mut found = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the text ends with a NUL byte, and the kernel writes no more than one statvfs.
    done(unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) })?;
    // SAFETY: zeroes are a statvfs, and the call has filled it.
    let found = unsafe { found.assume_init() };
    let unit = found.f_frsize;
    Ok(Space {
        total: found.f_blocks.saturating_mul(unit),
        available: found.f_bavail.saturating_mul(unit),
        files: found.f_files,
        files_free: found.f_ffree,
    })
}
