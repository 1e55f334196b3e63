//! The catalog of a node whose cluster keeps it: the replica here as long as that one may answer, else the way to whoever leads.
//!
//! Reads that the replica here may answer take no detour. Commits go under a name, by which whoever leads next knows what was done, unless
//! nobody else could lead. Watches are woken by the replica here, if there is one: what it has done, the leader did before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, Weak};

use stoker_catalog::engine::ReplicatedCatalog;
use stoker_catalog::kv::{Catalog, Commit, Health, Outcome, Page, Range, Row, Snapshot, Watch};
use stoker_catalog::remote::RemoteCatalog;
use stoker_catalog::{BoxFuture, CatalogError, ErrorKind, Result};

use super::CatalogHost;

/// The catalog, wherever it is.
pub(crate) struct RoutedCatalog {
    host: Weak<CatalogHost>,
    remote: Arc<RemoteCatalog>,
    /// See [`CatalogHost::news`].
    news: Arc<AtomicU64>,
    /// The replica that answered last, and what was known then: a read looks for it once for each change and not once for each row.
    here: RwLock<Option<(Known, Arc<ReplicatedCatalog>)>>,
    /// The highest time that was told: clocks of two nodes differ, and time does not go back.
    now_ms: AtomicU64,
}

/// Counts of what decides whether the replica here answers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Known {
    news: u64,
    raises: u64,
}

impl RoutedCatalog {
    pub fn new(host: &Arc<CatalogHost>, remote: Arc<RemoteCatalog>) -> RoutedCatalog {
        RoutedCatalog {
            news: host.news.clone(),
            host: Arc::downgrade(host),
            remote,
            here: RwLock::default(),
            now_ms: AtomicU64::new(0),
        }
    }

    fn replica(&self) -> Option<Arc<ReplicatedCatalog>> {
        self.host.upgrade()?.replica()
    }

    /// The replica here, if reads are answered by it. It looks for itself whether it still may, so one that was right a moment ago does no
    /// harm; one that this node knows to be of a lower epoch is never given.
    fn answering(&self) -> Option<Arc<ReplicatedCatalog>> {
        // Asked before anything is looked at: what changes meanwhile makes it an old one.
        let known = Known { news: self.news.load(Ordering::SeqCst), raises: self.remote.raises() };
        if let Some((then, replica)) = &*self.here.read().unwrap()
            && *then == known
        {
            return Some(replica.clone());
        }
        let replica = self.host.upgrade()?.replica_that_answers();
        *self.here.write().unwrap() = replica.clone().map(|replica| (known, replica));
        replica
    }

    /// The catalog here, if reads are answered by it.
    fn answers(&self) -> Option<Arc<dyn Catalog>> {
        match self.answering() {
            Some(replica) => Some(replica),
            None => self.host.upgrade()?.own_catalog(),
        }
    }

    /// The same, if nobody else could lead.
    fn alone(&self) -> Option<Arc<ReplicatedCatalog>> {
        self.replica().filter(|replica| replica.leads_alone())
    }
}

/// What the replica here says, unless it does not lead any more.
fn answered<T>(answer: Result<T>) -> Option<Result<T>> {
    match answer {
        Err(CatalogError { kind: ErrorKind::Unavailable | ErrorKind::Closed, .. }) => None,
        answer => Some(answer),
    }
}

impl Catalog for RoutedCatalog {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        Box::pin(async move {
            if let Some(here) = self.answering()
                && let Some(answer) = here.get_now(keys).and_then(answered)
            {
                return answer;
            }
            if let Some(here) = self.answers()
                && let Some(answer) = answered(here.get(keys).await)
            {
                return answer;
            }
            self.remote.get(keys).await
        })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move {
            if let Some(here) = self.answers()
                && let Some(answer) = answered(here.range(range.clone()).await)
            {
                return answer;
            }
            self.remote.range(range).await
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        Box::pin(async move {
            match self.alone() {
                Some(replica) => replica.commit(commit).await,
                None => self.remote.commit(commit).await,
            }
        })
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        match self.replica() {
            Some(replica) => replica.watch(prefix),
            None => self.remote.watch(prefix),
        }
    }

    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            if let Some(here) = self.answers()
                && let Some(answer) = answered(here.seq().await)
            {
                return answer;
            }
            self.remote.seq().await
        })
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let now_ms = match self.answers() {
                Some(here) => here.now_ms().await?,
                None => self.remote.now_ms().await?,
            };
            Ok(self.now_ms.fetch_max(now_ms, Ordering::Relaxed).max(now_ms))
        })
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>>> {
        Box::pin(async move {
            match self.answers() {
                Some(here) => here.snapshot().await,
                None => self.remote.snapshot().await,
            }
        })
    }

    fn describe(&self) -> String {
        match self.answers() {
            Some(here) => here.describe(),
            None => self.remote.describe(),
        }
    }

    fn health(&self) -> Health {
        let stalled = self.replica().filter(|replica| replica.is_stalled());
        match self.answers().or(stalled.map(|replica| replica as Arc<dyn Catalog>)) {
            Some(here) => here.health(),
            None => self.remote.health(),
        }
    }
}
