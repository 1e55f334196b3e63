//! For which user something is done, where that changes what is done: bytes that somebody writes count for them.
//!
//! The decision about a call is made in front of the store and needs nobody's name behind it (D144). This is the one thing that a store asks
//! for: it is said by whoever decided, holds while a call runs, and is not inherited by tasks that the call starts.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use crate::who::UserName;

thread_local! {
    static ASKER: RefCell<Option<Arc<UserName>>> = const { RefCell::new(None) };
}

/// The user for whom what runs now is done; none if it is for none of them.
pub fn asker() -> Option<Arc<UserName>> {
    ASKER.with_borrow(Clone::clone)
}

/// Does something for a user.
pub async fn asked_by<F: Future>(user: Option<Arc<UserName>>, future: F) -> F::Output {
    struct Back(Option<Arc<UserName>>);
    impl Drop for Back {
        fn drop(&mut self) {
            ASKER.set(self.0.take());
        }
    }
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _back = Back(ASKER.replace(user.clone()));
        future.as_mut().poll(cx)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn it_holds_inside_and_nowhere_else() {
        let alice = Arc::new(UserName::parse("acme/alice").unwrap());
        let inner = async {
            let before = asker();
            let nobody = asked_by(None, async { asker() }).await;
            (before, nobody, asker())
        };
        let mut outer = pin!(asked_by(Some(alice.clone()), inner));
        let Poll::Ready(seen) = outer.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("nothing to wait for");
        };
        assert_eq!(seen, (Some(alice.clone()), None, Some(alice)));
        assert_eq!(asker(), None);
    }
}
