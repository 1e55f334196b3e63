//! Thin wrappers around the system calls that the standard library does not offer.

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
}
