//! For which user and for which job something is done, where that changes what is done: bytes that somebody writes count for them, and what a job
//! does is admitted as its work (R16).
//!
//! The decision about a call is made in front of the store and needs nobody's name behind it (D144). These are the two things that a store asks
//! for: they are said by whoever decided or by the endpoint, hold while a call runs, and are not inherited by tasks that the call starts.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use crate::who::{JobLabel, UserName};

thread_local! {
    static ASKER: RefCell<Option<Arc<UserName>>> = const { RefCell::new(None) };
    static JOB: RefCell<Option<JobLabel>> = const { RefCell::new(None) };
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

/// The job for which what runs now is done; none if nobody named one.
pub fn job() -> Option<JobLabel> {
    JOB.with_borrow(Clone::clone)
}

/// Does something for a job. Without one it is done for the job that it is done for already, if there is one.
pub async fn in_job<F: Future>(job: Option<JobLabel>, future: F) -> F::Output {
    struct Back(Option<JobLabel>);
    impl Drop for Back {
        fn drop(&mut self) {
            JOB.set(self.0.take());
        }
    }
    let Some(job) = job else { return future.await };
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _back = Back(JOB.replace(Some(job.clone())));
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

    #[test]
    fn a_job_holds_inside_and_nowhere_else() {
        let train = JobLabel::parse("train-7").unwrap();
        let inner = async { (job(), in_job(None, async { job() }).await) };
        let mut outer = pin!(in_job(Some(train.clone()), inner));
        let Poll::Ready(seen) = outer.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("nothing to wait for");
        };
        assert_eq!(seen, (Some(train.clone()), Some(train)));
        assert_eq!(job(), None);
    }
}
