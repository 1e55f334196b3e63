//! Answers for a catalog.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::message::{Answer, Ask, NamedCommit, Request, Said};
use super::polls::Polls;
use super::sessions::{Ended, Entered, Sessions};
use crate::engine::{CommitName, Embedded, Lasting, ReplicatedCatalog};
use crate::epoch::Epoch;
use crate::error::{CatalogError, ErrorKind, Result};
use crate::kv::Catalog;
use crate::wire::{self, WIRE_BYTES_MAX};

/// Most bytes of requests that are being answered; above this they wait.
const REQUESTS_BYTES_MAX: usize = 2 * WIRE_BYTES_MAX;
/// The unit in which requests are counted, so that many small ones are limited too.
const PERMIT_BYTES: usize = 1 << 10;
/// Rows of a get take no more than this; whoever wants more asks for fewer keys.
const ROWS_BYTES_MAX: usize = WIRE_BYTES_MAX / 2;

/// Called once with the epoch that replaced this server.
type Fenced = Box<dyn FnOnce(Epoch) + Send>;

/// Answers the requests of [`RemoteCatalog`](super::RemoteCatalog)s for one catalog.
pub struct CatalogServer {
    catalog: Arc<dyn Catalog>,
    /// The same catalog, if it is one that remembers names.
    lasting: Option<Arc<dyn Lasting>>,
    epoch: Epoch,
    sessions: Arc<Sessions>,
    polls: Polls,
    room: Arc<Semaphore>,
    stopped: AtomicBool,
    fenced: Mutex<Option<Fenced>>,
}

impl CatalogServer {
    /// Serves an embedded catalog. If it is a primary its epoch is taken, and it is fenced with this server;
    /// otherwise `epoch` is.
    ///
    /// `fenced` is called once if a client says that a higher epoch rules; the server then answers nothing more.
    pub fn embedded(
        catalog: Arc<Embedded>,
        epoch: Epoch,
        fenced: impl FnOnce(Epoch) + Send + 'static,
    ) -> CatalogServer {
        let epoch = catalog.epoch().unwrap_or(epoch);
        let mut server = CatalogServer::new(Arc::clone(&catalog) as Arc<dyn Catalog>, epoch, fenced);
        server.lasting = Some(catalog);
        server
    }

    /// Serves the catalog of a group whose leader this replica is, in the epoch of its term.
    pub fn leader(catalog: Arc<ReplicatedCatalog>, epoch: Epoch) -> CatalogServer {
        let mut server = CatalogServer::new(Arc::clone(&catalog) as Arc<dyn Catalog>, epoch, |_| {});
        server.lasting = Some(catalog);
        server
    }

    /// Serves any catalog, in an epoch that is different at each start.
    ///
    /// A commit whose answer is lost when this server stops is `Unknown` to its client.
    pub fn new(
        catalog: Arc<dyn Catalog>,
        epoch: Epoch,
        fenced: impl FnOnce(Epoch) + Send + 'static,
    ) -> CatalogServer {
        CatalogServer {
            polls: Polls::new(Arc::clone(&catalog)),
            catalog,
            lasting: None,
            epoch,
            sessions: Arc::default(),
            room: Arc::new(Semaphore::new(REQUESTS_BYTES_MAX / PERMIT_BYTES)),
            stopped: AtomicBool::new(false),
            fenced: Mutex::new(Some(Box::new(fenced))),
        }
    }

    /// The epoch in which this server answers.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The answer to a request, whatever bytes it has.
    pub async fn answer(&self, request: Vec<u8>) -> Vec<u8> {
        let said = self.said(request).await.unwrap_or_else(|error| Said::Failed(outward(error)));
        wire::encode(&Answer { epoch: self.epoch, said })
    }

    async fn said(&self, request: Vec<u8>) -> Result<Said> {
        if request.len() > WIRE_BYTES_MAX {
            return Err(CatalogError::invalid(format!("a request of {} bytes", request.len())));
        }
        let permits = u32::try_from(request.len() / PERMIT_BYTES + 1).expect("limited by WIRE_BYTES_MAX");
        let room = Arc::clone(&self.room).acquire_many_owned(permits).await;
        let room = room.map_err(|_| CatalogError::closed())?;
        let decoded = wire::decode::<Request<Ask>>(&request)?;
        drop(request);
        self.heard(decoded.seen);
        if self.stopped.load(Ordering::Acquire) {
            return Err(CatalogError::unavailable("this server was replaced by one of a higher epoch"));
        }
        match decoded.ask {
            Ask::Get(keys) => self.get(&keys).await,
            Ask::Range(range) => self.catalog.range(range).await.map(Said::Page),
            Ask::Seq => self.catalog.seq().await.map(Said::Number),
            Ask::NowMs => self.catalog.now_ms().await.map(Said::Number),
            Ask::Open { client } => self.open(client).await,
            Ask::Commit(commit) => self.commit(commit, room).await,
            Ask::Arm { client, generation, prefixes } => {
                self.polls.arm(client, generation, prefixes);
                Ok(Said::Armed)
            }
            Ask::Poll { client, generation } => {
                // It waits long, and it is small.
                drop(room);
                Ok(self.polls.poll(client, generation).await?.map_or(Said::Unarmed, Said::Changed))
            }
        }
    }

    /// Stops if a client saw a higher epoch.
    fn heard(&self, seen: Epoch) {
        if seen <= self.epoch {
            return;
        }
        self.stopped.store(true, Ordering::Release);
        let fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(fenced) = fenced {
            tracing::error!(%seen, own = %self.epoch, "this catalog's server was replaced and stops");
            self.lasting.iter().for_each(|catalog| catalog.fence(seen));
            fenced(seen);
        }
    }

    async fn get(&self, keys: &[Vec<u8>]) -> Result<Said> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let rows = self.catalog.get(&keys).await?;
        let bytes: usize = rows.iter().flatten().map(|row| row.value.len()).sum();
        if bytes > ROWS_BYTES_MAX {
            return Err(CatalogError::invalid(format!(
                "a get of {bytes} bytes; ask for fewer keys, the limit is {ROWS_BYTES_MAX}"
            )));
        }
        Ok(Said::Rows(rows.into_iter().map(|row| row.map(|row| (row.seq, row.value))).collect()))
    }

    async fn open(&self, client: u128) -> Result<Said> {
        if let Some(lasting) = &self.lasting {
            lasting.client_open(client).await?;
        }
        Ok(Said::Opened { session: self.sessions.open(client), lasting: self.lasting.is_some() })
    }

    async fn commit(&self, commit: NamedCommit, room: OwnedSemaphorePermit) -> Result<Said> {
        if commit.to != self.epoch {
            return Ok(Said::OtherEpoch);
        }
        let mut ended = match self.sessions.enter(&commit) {
            Entered::Gone => return Ok(Said::SessionGone),
            Entered::Refused => return Err(CatalogError::invalid("a commit that nobody waits for")),
            Entered::Wait(ended) => ended,
            Entered::Run(ends) => {
                let ended = ends.subscribe();
                self.run(commit, ends, room);
                ended
            }
        };
        let ended = ended.wait_for(Option::is_some).await;
        let ended = ended.ok().and_then(|ended| ended.clone());
        match ended.unwrap_or_else(|| Err(CatalogError::unknown("the server ended without an answer")))? {
            Some(outcome) => Ok(Said::Outcome(outcome)),
            None => Ok(Said::ClientGone),
        }
    }

    /// Runs a commit in a task of its own: it ends even if whoever sent it hangs up.
    fn run(
        &self,
        named: NamedCommit,
        ends: tokio::sync::watch::Sender<Option<Ended>>,
        room: OwnedSemaphorePermit,
    ) {
        let (catalog, lasting) = (Arc::clone(&self.catalog), self.lasting.clone());
        let sessions = Arc::clone(&self.sessions);
        tokio::spawn(async move {
            let NamedCommit { session, client, number, floor, commit, .. } = named;
            let ended: Ended = match &lasting {
                Some(lasting) => lasting.commit_once(commit, CommitName { client, number, floor }).await,
                None => catalog.commit(commit).await.map(Some),
            };
            let ended = ended.map_err(outward);
            let again = match &ended {
                Err(error) if error.kind == ErrorKind::Unavailable => true,
                // A second try finds out, where names are remembered.
                Err(error) if error.kind == ErrorKind::Unknown => lasting.is_some(),
                _ => false,
            };
            if again {
                sessions.forget(session, number);
            }
            drop(room);
            ends.send_replace(Some(ended));
        });
    }
}

/// What an error of the catalog means to another node, which can go on with the next server.
fn outward(error: CatalogError) -> CatalogError {
    match error.kind {
        ErrorKind::Closed => CatalogError::unavailable("the catalog behind this server was closed"),
        _ => error,
    }
}
