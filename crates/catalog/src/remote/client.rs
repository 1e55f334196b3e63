//! A catalog that another node serves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::message::{Answer, Ask, NamedCommit, Request, Said};
use super::naming::{Name, Naming};
use super::watching::Watching;
use crate::epoch::Epoch;
use crate::error::{CatalogError, ErrorKind, Result};
use crate::kv::{self, BoxFuture, Catalog, Commit, Health, Outcome, Page, Range, Row, Watch};
use crate::wire::{self, Wire};

/// How long a client rests after a first failure, and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What a server said of itself longer ago says nothing of now.
const STALLED_RECENT: Duration = Duration::from_secs(60);

/// Settings of a remote catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteOptions {
    /// How long a call is tried again while the server cannot be reached.
    pub budget: Duration,
    /// How long one try may take. Above the time after which a server ends a poll.
    pub timeout: Duration,
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        RemoteOptions { budget: Duration::from_secs(30), timeout: Duration::from_secs(20) }
    }
}

/// A catalog that another node serves. Dropping it ends its watches.
pub struct RemoteCatalog {
    link: Arc<Link>,
    naming: Naming,
    session: tokio::sync::Mutex<Option<Session>>,
    watching: Arc<Watching>,
    watcher: AbortHandle,
    /// When it last said that it can acknowledge nothing, if it acknowledged nothing since.
    stalled: Mutex<Option<Instant>>,
    /// The highest time that was told: clocks of two servers differ, and time does not go back.
    now_ms: AtomicU64,
}

/// Where commits are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Session {
    epoch: Epoch,
    client: u128,
    id: u64,
    lasting: bool,
}

impl RemoteCatalog {
    /// A catalog behind this wire. `client` is a random number that no other client has or had.
    ///
    /// Must be called inside a runtime.
    pub fn new(way: Arc<dyn Wire>, client: u128, options: &RemoteOptions) -> RemoteCatalog {
        let watching = Arc::new(Watching::new());
        let (options, raised) = (options.clone(), watching.news());
        let link =
            Arc::new(Link { wire: way, options, seen: Mutex::default(), raises: AtomicU64::new(0), raised });
        let watcher = tokio::spawn(Arc::clone(&watching).run(Arc::clone(&link), client)).abort_handle();
        RemoteCatalog {
            link,
            naming: Naming::new(client),
            session: tokio::sync::Mutex::new(None),
            watching,
            watcher,
            stalled: Mutex::default(),
            now_ms: AtomicU64::new(0),
        }
    }

    /// The highest epoch that this client saw.
    pub fn seen(&self) -> Epoch {
        self.link.seen()
    }

    /// How often the highest epoch rose: who remembers it needs not ask for the epoch before it rises again.
    pub fn raises(&self) -> u64 {
        self.link.raises.load(Ordering::SeqCst)
    }

    /// Takes note of an epoch that this node heard of elsewhere; answers of a lower one are not believed.
    pub fn saw(&self, epoch: Epoch) {
        self.link.saw(epoch);
    }

    async fn number(&self, ask: &Ask) -> Result<u64> {
        match self.link.read(ask).await? {
            Said::Number(number) => Ok(number),
            _ => Err(confused()),
        }
    }

    async fn rows(&self, keys: &[&[u8]]) -> Result<Vec<Option<Row>>> {
        kv::keys_validate(keys)?;
        match self.link.read(&Ask::Get(keys.iter().map(|key| key.to_vec()).collect())).await? {
            Said::Rows(rows) if rows.len() == keys.len() => {
                let row = |(key, found): (&&[u8], Option<(u64, Vec<u8>)>)| {
                    found.map(|(seq, value)| Row { key: key.to_vec(), value, seq })
                };
                Ok(keys.iter().zip(rows).map(row).collect())
            }
            _ => Err(confused()),
        }
    }

    /// Sends a commit until it is known how it ended, or the budget is spent.
    async fn send(&self, commit: Commit) -> Result<Outcome> {
        let mut tries = Tries { sent: false, trouble: None };
        let ended = tokio::time::timeout(self.link.options.budget, self.send_on(commit, &mut tries)).await;
        match ended {
            Ok(ended) => ended,
            Err(_) => Err(tries.given_up()),
        }
    }

    async fn send_on(&self, commit: Commit, tries: &mut Tries) -> Result<Outcome> {
        let mut pause = PAUSE_FIRST;
        let mut name: Option<Name> = None;
        let mut named = NamedCommit { commit, ..blank() };
        loop {
            let step = self.try_once(&mut named, &mut name, tries).await;
            self.note_stalled(&step);
            match step {
                Step::Ended(ended) => return ended,
                Step::AtOnce => continue,
                Step::Later(error) => tries.trouble = Some(error),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// One try of a commit.
    async fn try_once(&self, named: &mut NamedCommit, name: &mut Option<Name>, tries: &mut Tries) -> Step {
        let session = match self.session().await {
            Ok(session) => session,
            Err(error) if error.kind == ErrorKind::Unavailable => return Step::Later(error),
            Err(error) => return Step::Ended(Err(tries.honest(error))),
        };
        if tries.sent && !(session.lasting || named.to == session.epoch && named.session == session.id) {
            return Step::Ended(Err(CatalogError::unknown(
                "the server changed before it answered; read to find out what became of the commit",
            )));
        }
        let current = match name {
            Some(current) => current,
            None => match self.naming.name().await {
                Ok(Some(made)) => name.insert(made),
                Ok(None) => return Step::Later(CatalogError::unavailable("an earlier commit hangs")),
                Err(error) => return Step::Ended(Err(error)),
            },
        };
        if current.client != session.client {
            if tries.sent {
                return Step::Ended(Err(forgotten()));
            }
            *name = None;
            return Step::AtOnce;
        }
        (named.to, named.session, named.client) = (session.epoch, session.id, session.client);
        (named.number, named.floor) = (current.number, current.floor());
        let ask = Ask::Commit(std::mem::replace(named, blank()));
        let sent_before = std::mem::replace(&mut tries.sent, true);
        let said = self.link.once(&ask).await;
        if let Ask::Commit(back) = ask {
            *named = back;
        }
        match said {
            Ok(Said::Outcome(outcome)) => Step::Ended(Ok(outcome)),
            Ok(Said::OtherEpoch | Said::SessionGone) => {
                // This try did nothing; an earlier one may have.
                tries.sent = sent_before;
                self.session_drop(session).await;
                Step::AtOnce
            }
            Ok(Said::ClientGone) => {
                self.naming.rename(session.client);
                self.session_drop(session).await;
                if sent_before {
                    return Step::Ended(Err(forgotten()));
                }
                tries.sent = false;
                *name = None;
                Step::AtOnce
            }
            Ok(Said::Failed(error)) if error.kind == ErrorKind::Unavailable => {
                tries.sent = sent_before;
                Step::Later(error)
            }
            Ok(Said::Failed(error)) if error.kind == ErrorKind::Unknown && session.lasting => {
                Step::Later(error)
            }
            // The server keeps this as what became of the name, whichever try it was.
            Ok(Said::Failed(error)) => Step::Ended(Err(error)),
            Ok(_) => Step::Later(confused()),
            Err(error) => Step::Later(error),
        }
    }

    fn note_stalled(&self, step: &Step) {
        let mut stalled = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        match step {
            Step::Later(error) if error.is_stalled() => *stalled = Some(Instant::now()),
            Step::Ended(Ok(_)) => *stalled = None,
            _ => {}
        }
    }

    /// The session in which commits are sent; opens one if there is none.
    async fn session(&self) -> Result<Session> {
        let mut session = self.session.lock().await;
        if let Some(session) = *session {
            return Ok(session);
        }
        let client = self.naming.client();
        let answer = self.link.call(&Ask::Open { client }).await?;
        match answer.said {
            Said::Opened { session: id, lasting } => {
                let opened = Session { epoch: answer.epoch, client, id, lasting };
                *session = Some(opened);
                Ok(opened)
            }
            Said::Failed(error) => Err(error),
            _ => Err(CatalogError::unavailable("unexpected response type from the server")),
        }
    }

    /// Sends no more commits in this session.
    async fn session_drop(&self, gone: Session) {
        let mut session = self.session.lock().await;
        if *session == Some(gone) {
            *session = None;
        }
    }
}

/// How a try of a commit ended.
enum Step {
    Ended(Result<Outcome>),
    /// Try again now.
    AtOnce,
    /// Try again after a pause.
    Later(CatalogError),
}

/// What is known of the tries so far.
struct Tries {
    /// Some try may have been carried out, or may be later.
    sent: bool,
    trouble: Option<CatalogError>,
}

impl Tries {
    /// The error of a commit that was refused, unless an earlier try may have done it.
    fn honest(&self, error: CatalogError) -> CatalogError {
        match self.sent {
            true => CatalogError::unknown(format!("an earlier try may have been carried out; then: {error}")),
            false => error,
        }
    }

    fn given_up(&self) -> CatalogError {
        let words = self.trouble.as_ref().map_or("the server does not answer", |error| &error.message);
        match self.sent {
            true => CatalogError::unknown(format!(
                "the commit may have been carried out; read to find out: {words}"
            )),
            false => CatalogError::unavailable(words),
        }
    }
}

fn blank() -> NamedCommit {
    NamedCommit { to: Epoch::default(), session: 0, client: 0, number: 0, floor: 0, commit: Commit::new() }
}

fn forgotten() -> CatalogError {
    CatalogError::unknown("the server forgot this client; read to find out what became of the commit")
}

fn confused() -> CatalogError {
    CatalogError::unavailable("unexpected response type from the server")
}

/// Calls over the wire, and the epochs that their answers carry.
pub(super) struct Link {
    wire: Arc<dyn Wire>,
    options: RemoteOptions,
    seen: Mutex<Epoch>,
    /// How often that rose.
    raises: AtomicU64,
    /// Told when an epoch is seen that is higher than those before.
    raised: Arc<Notify>,
}

impl Link {
    pub(super) fn seen(&self) -> Epoch {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises the highest epoch; tells whether this one is not below it.
    fn saw(&self, epoch: Epoch) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if epoch > *seen {
            *seen = epoch;
            self.raises.fetch_add(1, Ordering::SeqCst);
            self.raised.notify_one();
        }
        *seen == epoch
    }

    /// One try. Every failure of the way, and every answer that is not to be believed, is `Unavailable`.
    async fn call(&self, ask: &Ask) -> Result<Answer> {
        let request = wire::encode(&Request { seen: self.seen(), ask });
        let answer = tokio::time::timeout(self.options.timeout, self.wire.call(request)).await;
        let answer = answer.map_err(|_| CatalogError::unavailable("the server does not answer"))?;
        let answer = answer.map_err(|error| CatalogError::unavailable(error.message))?;
        let answer: Answer =
            wire::decode(&answer).map_err(|error| CatalogError::unavailable(error.message))?;
        if !self.saw(answer.epoch) {
            return Err(CatalogError::unavailable(format!(
                "an answer of epoch {}, which was replaced",
                answer.epoch
            )));
        }
        Ok(answer)
    }

    /// One try; what was said.
    pub(super) async fn once(&self, ask: &Ask) -> Result<Said> {
        self.call(ask).await.map(|answer| answer.said)
    }

    /// Tries until there is an answer or the budget is spent; only for what changes nothing.
    async fn read(&self, ask: &Ask) -> Result<Said> {
        let mut trouble = None;
        let tries = async {
            let mut pause = PAUSE_FIRST;
            loop {
                match self.once(ask).await {
                    Ok(Said::Failed(error)) if error.kind != ErrorKind::Unavailable => return Err(error),
                    Ok(Said::Failed(error)) | Err(error) => trouble = Some(error),
                    Ok(said) => return Ok(said),
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        };
        let ended = tokio::time::timeout(self.options.budget, tries).await;
        ended.unwrap_or_else(|_| {
            Err(trouble.unwrap_or_else(|| CatalogError::unavailable("the server does not answer")))
        })
    }
}

impl Catalog for RemoteCatalog {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        Box::pin(self.rows(keys))
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move {
            range.validate()?;
            match self.link.read(&Ask::Range(range)).await? {
                Said::Page(page) => Ok(page),
                _ => Err(confused()),
            }
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        Box::pin(async move {
            commit.validate()?;
            self.send(commit).await
        })
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.watching.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(self.number(&Ask::Seq))
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let now_ms = self.number(&Ask::NowMs).await?;
            Ok(self.now_ms.fetch_max(now_ms, Ordering::Relaxed).max(now_ms))
        })
    }

    fn describe(&self) -> String {
        let epoch = self.seen();
        format!("kept by node {}, epoch {}", epoch.holder(), epoch.number())
    }

    fn health(&self) -> Health {
        let stalled = *self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        match stalled.filter(|at| at.elapsed() < STALLED_RECENT) {
            Some(_) => Health::Stalled,
            None => Health::Good,
        }
    }
}

impl Drop for RemoteCatalog {
    fn drop(&mut self) {
        self.watcher.abort();
        self.watching.close();
    }
}
