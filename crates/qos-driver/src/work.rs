//! Which work what runs now is a part of: said once where it begins, and found where it asks for a resource.
//!
//! It holds while a future is polled. A task that it starts does not inherit it by itself; [`inherit`] makes it.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;

use stoker_qos::Tag;

thread_local! {
    static WORK: Cell<Option<Tag>> = const { Cell::new(None) };
}

/// The work that what runs now is a part of; none if nobody said.
pub fn work() -> Option<Tag> {
    WORK.get()
}

/// Does something as a part of this work.
pub async fn working<F: Future>(tag: Tag, future: F) -> F::Output {
    struct Back(Option<Tag>);
    impl Drop for Back {
        fn drop(&mut self) {
            WORK.set(self.0);
        }
    }
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _back = Back(WORK.replace(Some(tag)));
        future.as_mut().poll(cx)
    })
    .await
}

/// A future that is a part of the work which runs now, wherever it will run.
pub fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let tag = work();
    async move {
        match tag {
            Some(tag) => working(tag, future).await,
            None => future.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use stoker_qos::Class;

    use super::*;

    #[test]
    fn it_holds_inside_and_where_it_is_inherited() {
        let tag = |class| Tag::of(class);
        let outer = working(tag(Class::Drain), async {
            let nested = working(tag(Class::Repair), async { work() }).await;
            (work(), nested, inherit(async { work() }))
        });
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready((seen, nested, later)) = pin!(outer).poll(&mut context) else {
            panic!("nothing to wait for");
        };
        assert_eq!((seen, nested), (Some(tag(Class::Drain)), Some(tag(Class::Repair))));
        assert_eq!(work(), None);
        assert_eq!(pin!(later).poll(&mut context), Poll::Ready(Some(tag(Class::Drain))));
    }
}
