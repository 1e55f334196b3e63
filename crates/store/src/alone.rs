//! Threads that nobody else waits for.
//!
//! A future that is waited for by such a thread may block it: what it asks for can be written to a socket and read from it
//! by the thread itself, without the switches to threads that work for others.

use std::cell::Cell;
use std::sync::Mutex;

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread may be blocked.
pub fn is_alone() -> bool {
    ALONE.get()
}

/// Calls something that may block this thread.
pub fn alone<T>(call: impl FnOnce() -> T) -> T {
    /// What was said before holds again, also after a panic.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _before = Before(ALONE.replace(true));
    call()
}

/// Bytes of a thread's stack.
const STACK_LEN: usize = 256 << 10;

/// Does all of the work by several threads that may be blocked, this one among them. If there are no more threads to be had, it
/// takes longer.
pub fn alone_many<T, W>(threads: usize, work: W, each: impl Fn(T) + Sync)
where
    W: IntoIterator<Item = T, IntoIter: Send>,
{
    let work = Mutex::new(work.into_iter());
    // Nobody panics with it locked.
    let next = || work.lock().unwrap().next();
    let do_some = || alone(|| std::iter::from_fn(next).for_each(&each));
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let thread = std::thread::Builder::new().name("stoker-alone".to_owned()).stack_size(STACK_LEN);
            if thread.spawn_scoped(scope, do_some).is_err() {
                break;
            }
        }
        do_some();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_work_is_done_once_by_threads_that_may_be_blocked() {
        for threads in [0, 1, 8] {
            let mut done = [0; 100];
            alone_many(threads, done.iter_mut().enumerate(), |(at, done)| {
                assert!(is_alone());
                *done += at;
            });
            assert!(done.iter().enumerate().all(|(at, done)| at == *done) && !is_alone());
        }
        alone_many(8, Vec::<u8>::new(), |_| unreachable!());
    }

    #[test]
    fn it_holds_for_one_thread_and_one_call() {
        assert!(!is_alone());
        alone(|| {
            alone(|| assert!(is_alone()));
            assert!(is_alone());
            assert!(!std::thread::spawn(is_alone).join().unwrap());
        });
        assert!(!is_alone());
        assert!(std::panic::catch_unwind(|| alone(|| panic!("of the test"))).is_err());
        assert!(!is_alone());
    }
}
