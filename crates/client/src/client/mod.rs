//! The door, asked through a socket.
//!
//! A client keeps one connection and makes it again when it is lost. Calls that change nothing are then asked again by
//! themselves; of the others nobody knows whether they were carried through, and the caller is told so.
//!
//! Threads that may be blocked ask on connections of their own, one call at a time; see [`line`].

mod door;
mod file;
mod leases;
mod line;
mod link;
mod outlet;
mod segments;
mod spare;
mod writer;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stoker_format::ClusterId;
use stoker_store::{ErrorKind, JobLabel, Result, StoreError, is_alone};
use stoker_tls::Trust;
use tokio::sync::Mutex;

use crate::endpoint::Endpoint;
use crate::message::{Request, Response};
use crate::socket::PROTOCOL;
use link::{Link, Lost, Reply};
use spare::Spares;

/// First pause before a connection is tried again; doubles up to [`RETRY_PAUSE_MAX`].
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(800);
/// How often a call is begun before the caller hears of lost connections.
const ATTEMPTS_MAX: u32 = 5;

/// How patient a client is, and how it reads.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// A connection must be made within this time, hello included.
    pub connect_timeout: Duration,
    /// A call must be answered within this time; calls that wait for a lake or publish a file have no limit.
    pub call_timeout: Duration,
    /// A lost connection is tried again for about this long.
    pub reconnect_patience: Duration,
    /// The node must take or give bytes within this time when it is its turn.
    pub stall_timeout: Duration,
    /// Over a Unix socket, read the drives of the node where it lets us.
    pub leases: bool,
    /// Whose certificates are taken at endpoints in TLS; by default those that the system trusts.
    pub trust: Option<Trust>,
    /// The job that the connection works for. Nodes of releases that know no jobs are not told.
    pub job: Option<JobLabel>,
}

impl ClientOptions {
    /// Takes certificates of the authorities in a PEM file alone.
    pub fn trusting(self, bundle: &Path) -> io::Result<ClientOptions> {
        Ok(ClientOptions { trust: Some(Trust::open(Some(bundle), PROTOCOL)?), ..self })
    }
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(120),
            reconnect_patience: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            leases: true,
            trust: None,
            job: None,
        }
    }
}

/// A [`Store`](stoker_store::Store) in another process. Clones share the connection. Lives in a tokio runtime.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    endpoint: Endpoint,
    token: Option<String>,
    options: ClientOptions,
    link: Mutex<Option<Arc<Link>>>,
    spares: Arc<Spares>,
}

impl Client {
    /// Connects to a node. TCP needs the token that the node printed at start.
    pub async fn connect(endpoint: &Endpoint, token: Option<&str>) -> Result<Client> {
        Client::connect_with(endpoint, token, ClientOptions::default()).await
    }

    /// Connects with other options than the default.
    pub async fn connect_with(
        endpoint: &Endpoint,
        token: Option<&str>,
        options: ClientOptions,
    ) -> Result<Client> {
        let link = Link::connect(endpoint, token, &options).await?;
        Ok(Client(Arc::new(Inner {
            endpoint: endpoint.clone(),
            token: token.map(str::to_owned),
            options,
            link: Mutex::new(Some(link)),
            spares: Arc::default(),
        })))
    }

    /// Where the node is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// The cluster that the node says it belongs to; zero where clusters have no name yet.
    pub async fn cluster(&self) -> Result<ClusterId> {
        Ok(self.link().await?.cluster())
    }

    /// The live connection, made anew if there is none.
    async fn link(&self) -> Result<Arc<Link>> {
        let inner = &self.0;
        // Held while connecting: many callers wait for one attempt.
        let mut slot = inner.link.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| link.is_usable()) {
            return Ok(link.clone());
        }
        *slot = None;
        let mut pause = RETRY_PAUSE;
        let mut waited = Duration::ZERO;
        loop {
            let error = match Link::connect(&inner.endpoint, inner.token.as_deref(), &inner.options).await {
                Ok(link) => return Ok(slot.insert(link).clone()),
                Err(error) => error,
            };
            // A wrong token or another release will not get better.
            let hopeless = !matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Full);
            if hopeless || waited >= inner.options.reconnect_patience {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            waited += pause;
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    /// Asks until there is an answer; see the module's words on lost connections.
    async fn ask(&self, request: Request) -> Result<Response> {
        self.ask_reply(request).await.map(|reply| reply.response.unlinked())
    }

    async fn ask_reply(&self, request: Request) -> Result<Reply> {
        let mut attempts = Attempts::default();
        loop {
            let link = self.link().await?;
            let line = if is_alone() { link.line(&self.0).await } else { None };
            let answer = match line {
                Some(line) => link.call_on(line, &request, &self.0)?,
                None => self.within(&request, link.call(link.new_id(), &request)).await?,
            };
            match answer {
                Ok(reply) => return reply.into_result(),
                Err(lost) if lost.may_repeat(&request) => attempts.again(lost)?,
                Err(lost) => return Err(lost.outcome_unknown()),
            }
        }
    }

    /// Gives up on a call that takes longer than it may.
    async fn within<T>(
        &self,
        request: &Request,
        call: impl Future<Output = std::result::Result<T, Lost>>,
    ) -> Result<std::result::Result<T, Lost>> {
        if request.is_long() {
            return Ok(call.await);
        }
        let limit = self.0.options.call_timeout;
        tokio::time::timeout(limit, call).await.map_err(|_| self.0.too_late())
    }
}

impl Inner {
    /// A call took longer than it may.
    fn too_late(&self) -> StoreError {
        let limit = self.options.call_timeout;
        let message = format!("the node at {} gave no answer within {limit:?}", self.endpoint);
        StoreError::new(ErrorKind::Unavailable, message)
    }
}

/// Counts how often the connection was lost under one call.
#[derive(Default)]
struct Attempts(u32);

impl Attempts {
    /// Lets the caller try again, a few times.
    fn again(&mut self, lost: Lost) -> Result<()> {
        self.0 += 1;
        if self.0 >= ATTEMPTS_MAX {
            return Err(StoreError { kind: ErrorKind::Unavailable, ..lost.error });
        }
        tracing::debug!("asking again: {}", lost.error);
        Ok(())
    }
}

/// The node answered with something else than what was asked for.
fn unexpected() -> StoreError {
    let message = "the node gave an answer that does not fit the question (use the same release of Stoker on both sides)";
    StoreError::new(ErrorKind::Unavailable, message)
}
