//! How long whoever asks wants to wait for what does not answer.
//!
//! A client that is told "try again" in time tries again; one that is told nothing gives up by its own clock, and calls that an
//! error. Who answers a client says here how long that client waits, and whoever asks others on its behalf keeps to it: the node
//! does so where it asks its catalog. What is started as a task of its own does not inherit it.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

thread_local! {
    static PATIENCE: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// How long the caller of what runs now waits; none if as long as it takes.
pub fn patience() -> Option<Duration> {
    PATIENCE.get()
}

/// Runs something on behalf of somebody who waits so long; none for as long as it takes.
pub async fn patiently<F: Future>(limit: Option<Duration>, future: F) -> F::Output {
    struct Back(Option<Duration>);
    impl Drop for Back {
        fn drop(&mut self) {
            PATIENCE.set(self.0);
        }
    }
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _back = Back(PATIENCE.replace(limit));
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
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let inner = async {
            let before = patience();
            let nested = patiently(seconds(1), async { patience() }).await;
            (before, nested, patience())
        };
        let mut outer = pin!(patiently(seconds(9), inner));
        let told = outer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(told, Poll::Ready((seconds(9), seconds(1), seconds(9))));
        assert_eq!(patience(), None);
    }
}
