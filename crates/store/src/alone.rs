//! Threads that nobody else waits for.
//!
//! A future that is waited for by such a thread may block it: what it asks for can be written to a socket and read from it
//! by the thread itself, without the switches to threads that work for others.

use std::cell::Cell;

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

#[cfg(test)]
mod tests {
    use super::*;

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
