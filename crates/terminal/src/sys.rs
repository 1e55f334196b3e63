//! Thin wrappers around the system calls that the standard library does not offer.

pub mod interfaces;
pub mod terminal;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// User and system time that all threads of this process have used, in seconds.
pub fn cpu_seconds() -> f64 {
    // SAFETY: a zeroed rusage is valid for the call to fill.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Keeps what the C library holds of memory that was given back near to what is in use. By default every thread has a
/// store of its own that large buffers go into and do not leave: with many threads that is several times what is in use.
#[cfg(target_env = "gnu")]
pub fn bound_spare_memory() {
    const STORES_MAX: libc::c_int = 4;
    // Buffers of this size and more, as blocks that are read ahead, go back to the kernel at once.
    const LARGE: libc::c_int = 1_000_000;
    const SPARE_MAX: libc::c_int = 32 << 20;
    // SAFETY: sets three numbers of the allocator, which it may be told at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, STORES_MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, SPARE_MAX);
    }
}

/// Other C libraries have no such stores.
#[cfg(not(target_env = "gnu"))]
pub fn bound_spare_memory() {}

/// Has the kernel ask a child to stop (SIGTERM) when the thread that starts it is gone, however it went. The child gets
/// signals that we hold back for ourselves.
pub fn stop_with_parent(command: &mut Command) {
    let arrange = || {
        // SAFETY: these calls may be made between fork and exec; they touch only the local set.
        let done = unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
                | libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes async-signal-safe calls only and allocates nothing.
    unsafe { command.pre_exec(arrange) };
}

/// Asks a child of ours that was not waited for yet to stop (SIGTERM).
pub fn terminate(child: u32) {
    // SAFETY: kill touches no memory; the number cannot be another process's before the child was waited for.
    unsafe { libc::kill(child as libc::pid_t, libc::SIGTERM) };
}

/// Kills (SIGKILL) a child of ours that was not waited for yet.
pub fn kill(child: u32) {
    // SAFETY: kill touches no memory; the number cannot be another process's before the child was waited for.
    unsafe { libc::kill(child as libc::pid_t, libc::SIGKILL) };
}

/// Waits until a child of ours has ended, and leaves its number to it: it still has to be waited for.
pub fn wait_until_ended(child: u32) -> io::Result<()> {
    loop {
        // SAFETY: a zeroed siginfo is valid for the call to fill.
        let result = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, child, &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        match result {
            0 => return Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// Kills (SIGKILL) a child of ours that was not waited for yet and leads a process group, with all of the group.
pub fn kill_group(child: u32) {
    // SAFETY: kill touches no memory; the number cannot be another group's before the child was waited for.
    unsafe { libc::kill(-(child as libc::pid_t), libc::SIGKILL) };
}

/// The user and group that this process acts as.
pub fn user() -> (u32, u32) {
    // SAFETY: both calls only return numbers.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// When something is unmounted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// If nobody uses it; an error otherwise.
    WhenUnused,
    /// The name goes now, the rest when nobody uses it any more.
    Now,
}

/// Unmounts what is on a directory.
pub fn unmount(directory: &Path, when: Unmount) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let flags = if when == Unmount::Now { libc::MNT_DETACH } else { 0 };
    // SAFETY: the path is a string with an end that lives until the call is over.
    match unsafe { libc::umount2(path.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel drop what it holds of a file in memory.
pub fn forget_pages(file: &File) -> io::Result<()> {
    // SAFETY: the advice is about a descriptor that `file` keeps open, and touches no memory of ours.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The signals that ask a process to stop, held back so that [`StopSignals::wait`] receives them.
pub struct StopSignals(libc::sigset_t);

impl StopSignals {
    /// Holds SIGINT, SIGTERM and SIGHUP back, in this thread and all that it starts later.
    pub fn hold() -> StopSignals {
        // SAFETY: sigemptyset makes the zeroed set valid, the other calls work on that local set.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            StopSignals(set)
        }
    }

    /// Waits for one of them; returns its number.
    pub fn wait(&self) -> i32 {
        let mut signal = 0;
        // SAFETY: the set was made by `hold`, the result goes to a local integer.
        while unsafe { libc::sigwait(&self.0, &mut signal) } != 0 {}
        signal
    }

    /// What people call a signal of these.
    pub fn name(signal: i32) -> &'static str {
        match signal {
            libc::SIGINT => "SIGINT",
            libc::SIGTERM => "SIGTERM",
            _ => "SIGHUP",
        }
    }
}

/// The cores that this thread may run on.
pub fn cores_allowed() -> io::Result<Vec<usize>> {
    // SAFETY: a zeroed cpu_set_t is a valid empty set for the call to fill, and its size is given.
    let (result, set) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set), set)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: CPU_ISSET reads a set that was filled, and the numbers are below its size.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect())
}

/// Keeps this thread, and all that it starts later, to these cores.
pub fn keep_to_cores(cores: &[usize]) -> io::Result<()> {
    // SAFETY: a zeroed cpu_set_t is a valid empty set; CPU_SET ignores numbers beyond it; the call only reads it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for core in cores.iter().filter(|core| **core < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(*core, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether something keeps the clock of this machine right, as the kernel knows it.
pub fn clock_is_synchronised() -> io::Result<bool> {
    // SAFETY: a zeroed timex asks for nothing to be changed, and is valid for the call to fill.
    let (state, status) = unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&mut timex), timex.status)
    };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(state != libc::TIME_ERROR && status & libc::STA_UNSYNC == 0)
}

/// The name of this machine.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "node".into(),
        name => name.into(),
    }
}
