//! A catalog in which something else happens right before one of its calls: every interleaving of a change with one
//! interruption, without threads and without luck.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use stoker_catalog::Result;
use stoker_catalog::kv::{BoxFuture, Catalog, Commit, Outcome, Page, Range, Row, Watch};

use crate::audit::{Audit, audit};
use crate::fixture::Fixture;

struct Between {
    inner: Arc<dyn Catalog>,
    calls: AtomicUsize,
    at: usize,
    other: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl Between {
    async fn pass(&self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) == self.at {
            let other = self.other.lock().unwrap().take();
            if let Some(other) = other {
                other.await;
            }
        }
    }
}

impl Catalog for Between {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        Box::pin(async move {
            self.pass().await;
            self.inner.get(keys).await
        })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move {
            self.pass().await;
            self.inner.range(range).await
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        Box::pin(async move {
            self.pass().await;
            self.inner.commit(commit).await
        })
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.inner.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        self.inner.seq()
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        self.inner.now_ms()
    }

    fn describe(&self) -> String {
        "between".into()
    }
}

/// Runs `first` on a catalog that `prepare` made, once for each of its calls, with `second` right before that call; then
/// `check` sees both answers. At last `second` comes behind.
pub async fn each<P, PF, A, AF, B, BF, T, U, V, C, CF>(prepare: P, first: A, second: B, check: C)
where
    P: Fn(Fixture) -> PF,
    PF: Future<Output = T>,
    T: Clone + Send + 'static,
    A: Fn(Fixture, T) -> AF,
    AF: Future<Output = U>,
    B: Fn(Fixture, T) -> BF,
    BF: Future<Output = V> + Send + 'static,
    V: Send + 'static,
    C: Fn(Fixture, T, U, V, Audit) -> CF,
    CF: Future<Output = ()>,
{
    for at in 0.. {
        let fixture = Fixture::memory();
        let ground = prepare(fixture.clone()).await;
        let said: Arc<Mutex<Option<V>>> = Arc::default();
        let (other, keep) = (second(fixture.clone(), ground.clone()), said.clone());
        let between = Arc::new(Between {
            inner: fixture.catalog.clone(),
            calls: AtomicUsize::new(0),
            at,
            other: Mutex::new(Some(Box::pin(async move {
                let answer = other.await;
                *keep.lock().unwrap() = Some(answer);
            }))),
        });
        let answer = first(fixture.through(between.clone()), ground.clone()).await;
        let left = between.other.lock().unwrap().take();
        let last = left.is_some();
        if let Some(other) = left {
            other.await;
        }
        let said = said.lock().unwrap().take().expect("the second was run");
        let audit = audit(&fixture).await;
        check(fixture, ground, answer, said, audit).await;
        if last {
            return;
        }
    }
}
