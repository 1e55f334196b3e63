//! The watches of a client: one task that polls for all of them.
//!
//! A prefix that is new is armed at the server and then wakes once, because what changed between making the
//! watch and arming it was seen by nobody. After anything that may have lost a change every watch wakes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::Notify;

use super::client::Link;
use super::message::{Ask, PREFIXES_MAX, Said};
use crate::engine::watches::Watches;
use crate::error::{CatalogError, Result};
use crate::kv::{BoxFuture, Watch};

/// How long the task rests after a failure.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Watching {
    watches: Watches,
    /// A prefix may be new, or the server.
    news: Arc<Notify>,
}

impl Watching {
    pub(super) fn new() -> Watching {
        Watching { watches: Watches::new(), news: Arc::default() }
    }

    pub(super) fn watch(&self, prefix: Vec<u8>) -> Watch {
        let watch = self.watches.watch(prefix);
        self.news.notify_one();
        watch
    }

    /// Wakes the task when an epoch is seen that is new.
    pub(super) fn news(&self) -> Arc<Notify> {
        Arc::clone(&self.news)
    }

    pub(super) fn close(&self) {
        self.watches.close();
    }

    /// Polls as long as this client lives.
    pub(super) async fn run(self: Arc<Self>, link: Arc<Link>, client: u128) {
        let mut generation = 0;
        loop {
            generation += 1;
            let lost = self.generation(&link, client, generation).await;
            tracing::debug!(%lost, "the watches of a remote catalog begin anew");
            self.watches.wake_all();
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Polls until something is lost; says what.
    async fn generation(&self, link: &Arc<Link>, client: u128, generation: u64) -> CatalogError {
        let mut armed = BTreeSet::new();
        let mut armed_at = None;
        // Kept while prefixes are armed: a poll that is given up takes what it found with it.
        let mut poll: Option<BoxFuture<'static, Result<Said>>> = None;
        loop {
            if armed_at.is_some_and(|epoch| epoch != link.seen()) {
                return CatalogError::unavailable("another server took over");
            }
            let wanted = self.watches.prefixes();
            if wanted.iter().any(|prefix| !armed.contains(prefix)) {
                let armed_now = self.arm(link, client, generation, &armed, wanted).await;
                armed = match armed_now {
                    Ok(armed_now) => armed_now,
                    Err(error) => return error,
                };
                armed_at.get_or_insert(link.seen());
                continue;
            }
            if armed.is_empty() {
                self.news.notified().await;
                continue;
            }
            let polling = poll.take().unwrap_or_else(|| {
                let link = Arc::clone(link);
                Box::pin(async move { link.once(&Ask::Poll { client, generation }).await })
            });
            match select(polling, std::pin::pin!(self.news.notified())).await {
                Either::Left((Ok(Said::Changed(prefixes)), _)) => {
                    prefixes.iter().for_each(|prefix| self.watches.wake_exact(prefix));
                }
                Either::Left((Ok(Said::Failed(error)) | Err(error), _)) => return error,
                Either::Left((Ok(_), _)) => return CatalogError::unavailable("nothing is watched there"),
                Either::Right(((), polling)) => poll = Some(polling),
            }
        }
    }

    /// Has the server watch what is wanted; what it did not watch before wakes. More than a server watches
    /// fails, and then all wake again and again, which is slow and misses nothing.
    async fn arm(
        &self,
        link: &Link,
        client: u128,
        generation: u64,
        armed: &BTreeSet<Vec<u8>>,
        wanted: BTreeSet<Vec<u8>>,
    ) -> Result<BTreeSet<Vec<u8>>> {
        if wanted.len() > PREFIXES_MAX {
            return Err(CatalogError::unavailable(format!("more than {PREFIXES_MAX} prefixes are watched")));
        }
        let ask = Ask::Arm { client, generation, prefixes: wanted.iter().cloned().collect() };
        match link.once(&ask).await? {
            Said::Armed => {}
            Said::Failed(error) => return Err(error),
            _ => return Err(CatalogError::unavailable("unexpected response type from the server")),
        }
        wanted.difference(armed).for_each(|prefix| self.watches.wake_exact(prefix));
        Ok(wanted)
    }
}
