//! A node as a member of a cluster: its keys, the way to the others, pings, and the catalog wherever that is.
//!
//! A node that was never joined by another one is a cluster of one: it listens for others and serves its own catalog. The
//! first node keeps the catalog (or all of them use a PostgreSQL); who joins is handed the cluster's keys by any member.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_buffer::Pool;
use stoker_cluster::{
    Book, CatalogHost, CatalogHostOptions, CatalogPlace, CellOptions, ClusterKeys, Desk, Doorway, Labels,
    Lost, PeerWire, Pings, Renewals,
};
use stoker_fabric::transport::{
    self, Authority, Config, Credentials, JoinDesk, Security, ServiceCertificate, TcpTransport, Transport,
};
use stoker_format::NodeId;
use stoker_store::{ErrorKind, Result, StoreError, Subject};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::clock;
use crate::identity::{HighWater, Identity};
use crate::node::Node;
use crate::options::{CatalogChoice, MemoryPlan, NodeOptions};

/// Memory for chunks that arrive from peers and wait for a drive.
const INTAKE_BYTES: usize = 64 << 20;

/// Longest wait for the catalog to take note of a stop.
const ANNOUNCE_MAX: Duration = Duration::from_secs(3);

/// Longest wait for requests of peers when a node stops.
const STOP_MAX: Duration = Duration::from_secs(5);

/// How a node is a member.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The node; its catalog is used if this node is the one that keeps it.
    pub node: NodeOptions,
    /// For people.
    pub name: String,
    /// Where peers reach it, one address for each rail. A port of 0 is chosen, and kept by the caller.
    pub listen: Vec<SocketAddr>,
    /// Where its pings go; none: the same addresses and ports.
    pub gossip: Vec<SocketAddr>,
    /// Where it stands.
    pub labels: Labels,
    /// Share of the chunks that it takes; that of a witness is 0.
    pub weight: u32,
    /// Nothing between nodes is encrypted; they still prove that they belong together.
    pub plaintext: bool,
    /// How long a node may be silent before it is declared down.
    pub grace: Duration,
    /// Make this node the one that keeps the catalog, because the one that did is lost.
    pub promote: Option<Promote>,
}

/// How a node takes over the catalog at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promote {
    /// Go on although acknowledged changes may be lost.
    pub accept_loss: bool,
}

/// A node that runs as a member.
pub struct Member {
    node: Arc<Node>,
    transport: Arc<TcpTransport>,
    pings: Mutex<Option<Pings>>,
    host: Option<Arc<CatalogHost>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    gossip: Vec<SocketAddr>,
    renewals: Arc<Renewals>,
}

fn broken(what: &str, fault: &dyn std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("{what}: {fault}"))
}

/// Whether a directory is that of a node.
pub fn is_node(dir: &Path) -> bool {
    Identity::exists(dir)
}

impl Member {
    /// Starts a member in the directory of its node: the first of a new cluster, one that joined, or one that is back.
    pub async fn start(options: ClusterOptions) -> Result<Arc<Member>> {
        let dir = options.node.dir.clone();
        let identity = Identity::load(&dir)?;
        let mut keys = ClusterKeys::load_or_create(&dir, identity)?;
        if let CatalogChoice::Postgres(url) = &options.node.catalog {
            keys.catalog.configure(url);
        }
        if options.weight == 0 && matches!(keys.catalog, CatalogPlace::Postgres(_)) {
            let message = "the names of this cluster are in PostgreSQL, which needs no witness";
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        let authority = Authority::from_bytes(&keys.authority).map_err(|fault| broken("keys", &fault))?;
        let fault = |fault: transport::CredentialsError| broken("certificates", &fault);
        let now_s = clock::now_ms() / 1_000;
        let credentials = Credentials::issue(&authority, identity.node, now_s).map_err(fault)?;
        let fingerprint = authority.fingerprint();
        let renewals = Arc::new(Renewals(authority));
        keys.boot = keys.boot.saturating_add(1).max(clock::now_ms());
        keys.starts += 1;
        keys.write(&dir)?;
        let doorway = Arc::new(Doorway::default());
        let io = |fault: std::io::Error| {
            StoreError::about(ErrorKind::Unavailable, Subject::PeerAddress, format!("peers: {fault}"))
        };
        let security = match options.plaintext {
            true => Security::Plaintext { secret: keys.secret.to_vec() },
            false => Security::Tls(credentials.clone()),
        };
        let pool = Pool::new(INTAKE_BYTES).map_err(io)?;
        let lake = options.node.lake.clone();
        let desk = Arc::new(Desk::new(ClusterKeys { lake, ..keys.clone() }));
        let config = Config {
            listen: options.listen.clone(),
            join: Some(JoinDesk {
                credentials: credentials.clone(),
                issuer: renewals.clone(),
                service: desk.clone(),
            }),
            ..Config::new(identity.cluster, identity.node, keys.boot, security, pool)
        };
        let transport = TcpTransport::start(config, doorway.clone()).map_err(io)?;
        let addresses: Vec<String> = transport.addresses().iter().map(SocketAddr::to_string).collect();
        let book = Arc::new(Book::open(&dir));
        meet(&keys, &book, &transport);
        let opened = open_catalog(&options, identity, &keys, &transport, &book, &doorway).await;
        let (catalog, host) = match opened {
            Ok(opened) => opened,
            Err(fault) => {
                transport.stop(Duration::ZERO).await;
                return Err(fault);
            }
        };
        let wire = Arc::new(PeerWire::new(identity.node, transport.clone(), book));
        let gossip = match options.gossip.is_empty() {
            true => transport.addresses(),
            false => &options.gossip,
        };
        let (pings, gossip) = Pings::listen(gossip).map_err(io)?;
        let cell = CellOptions {
            wire: wire.clone(),
            name: options.name.clone(),
            addresses: addresses.clone(),
            gossip: gossip.iter().map(SocketAddr::to_string).collect(),
            labels: options.labels.clone(),
            weight: options.weight,
        };
        let node = NodeOptions { catalog, cell: Some(cell), ..options.node };
        let node = match Node::open(node).await {
            Ok(node) => node,
            Err(fault) => {
                if let Some(host) = &host {
                    host.close().await;
                }
                transport.stop(Duration::ZERO).await;
                return Err(fault);
            }
        };
        if let Some(host) = &host {
            host.set_members(node.members());
            node.set_catalog_host(host);
        }
        let _ = node.members().join_fingerprint.set(fingerprint);
        desk.set_members(node.members(), host.as_ref(), &gossip);
        doorway.open_node(node.clone());
        let pings = pings.start(&keys, identity, gossip.clone(), options.grace, node.members())?;
        let tasks = vec![
            tokio::spawn(wire.watch_latencies()),
            tokio::spawn(transport::renew_forever(credentials, renewals.clone(), |_| {})),
        ];
        Ok(Arc::new(Member {
            node,
            transport,
            pings: Mutex::new(Some(pings)),
            host,
            tasks: Mutex::new(tasks),
            gossip,
            renewals,
        }))
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Where peers reach it.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.transport.addresses()
    }

    /// Where its pings go.
    pub fn gossip(&self) -> &[SocketAddr] {
        &self.gossip
    }

    /// The certificate (DER) of the cluster's authority: what its clients trust.
    pub fn authority_certificate(&self) -> &[u8] {
        self.renewals.0.certificate()
    }

    /// Makes certificates for the ports of this node that people connect to. It outlives the member, and keeps nothing of it
    /// but the authority.
    pub fn service_issuer(&self) -> impl Fn(&[String]) -> Result<ServiceCertificate> + Send + Sync + 'static {
        let (renewals, node) = (self.renewals.clone(), self.node.id());
        move |names| {
            let made = renewals.0.issue_service(node, names, clock::now_ms() / 1_000);
            made.map_err(|fault| StoreError::new(ErrorKind::Invalid, fault.to_string()))
        }
    }

    /// Waits until this node has to be stopped and started again, and says why: its catalog was replaced, or the others went
    /// on without it.
    pub async fn lost(&self) -> Lost {
        let lost = said(self.node.lost());
        match &self.host {
            Some(host) => tokio::select! {
                why = said(host.replaced()) => Lost::Replaced(why),
                lost = lost => lost,
            },
            None => lost.await,
        }
    }

    /// Tells the others, finishes what is under way, and stops.
    pub async fn stop(&self) {
        let is_replaced = self.node.lost().borrow().is_some();
        if let Some(host) = self.host.as_ref().filter(|_| !is_replaced) {
            host.leave().await;
        }
        // A node that was removed has nothing to announce. When all nodes stop together, the catalog may be gone already; nobody is
        // left who would have to know.
        let is_removed = *self.node.lost().borrow() == Some(Lost::Removed);
        let announced =
            async { if is_removed { Ok(false) } else { self.node.members().announce(true).await } };
        let announced = tokio::time::timeout(ANNOUNCE_MAX, announced).await;
        match &announced {
            Ok(Ok(_)) => {}
            Ok(Err(fault)) => tracing::warn!("the stop of this node could not be announced: {fault}"),
            Err(_) => {
                tracing::warn!("the stop of this node could not be announced: the catalog does not answer")
            }
        }
        let pings = self.pings.lock().unwrap().take();
        if let Some(pings) = pings {
            pings.leave().await;
        }
        match announced {
            Ok(_) => self.node.stop().await,
            // What is still under way waits for the catalog as well.
            Err(_) => self.node.stop_within(ANNOUNCE_MAX).await,
        }
        if let Some(host) = &self.host {
            host.close().await;
        }
        self.transport.stop(STOP_MAX).await;
        for task in std::mem::take(&mut *self.tasks.lock().unwrap()) {
            task.abort();
        }
    }
}

/// What a channel says, once it says something.
async fn said<T: Clone>(mut news: watch::Receiver<Option<T>>) -> T {
    let said = news.wait_for(Option::is_some).await.ok().and_then(|said| said.clone());
    match said {
        Some(said) => said,
        None => std::future::pending().await,
    }
}

/// Makes known where the others are, by what was written down.
fn meet(keys: &ClusterKeys, book: &Book, transport: &TcpTransport) {
    if let CatalogPlace::With { node, addresses } = &keys.catalog {
        let node = NodeId(*node);
        if book.of(node).is_empty() {
            book.note(node, addresses.iter().filter_map(|address| address.parse().ok()).collect());
        }
    }
    for (node, addresses) in book.all() {
        transport.set_peer(node, addresses);
    }
}

/// The catalog: in a database, or with a node.
async fn open_catalog(
    options: &ClusterOptions,
    identity: Identity,
    keys: &ClusterKeys,
    transport: &Arc<TcpTransport>,
    book: &Arc<Book>,
    doorway: &Doorway,
) -> Result<(CatalogChoice, Option<Arc<CatalogHost>>)> {
    let node = &options.node;
    match (&keys.catalog, &node.catalog) {
        (CatalogPlace::Postgres(url), _) => return Ok((CatalogChoice::Postgres(url.clone()), None)),
        (CatalogPlace::Here, CatalogChoice::Embedded) | (CatalogPlace::With { .. }, _) => {}
        (CatalogPlace::Here, given) => return Ok((given.clone(), None)),
    }
    let host = CatalogHost::open(CatalogHostOptions {
        identity,
        dir: node.dir.clone(),
        cache_bytes: MemoryPlan::of(node.memory_bytes, node.drives.len()).catalog_bytes,
        transport: transport.clone(),
        book: book.clone(),
        keys: keys.clone(),
        seq_kept: HighWater::read(&node.dir)?,
    })?;
    doorway.open_host(host.clone());
    if let Some(promote) = options.promote {
        match host.promote(promote.accept_loss).await {
            Ok(_) => {}
            // Asked for twice: it is what was wanted.
            Err(fault) if fault.kind == ErrorKind::Conflict => {}
            Err(fault) => {
                host.close().await;
                return Err(fault);
            }
        }
    }
    let catalog = host.catalog().await;
    match catalog {
        Ok(catalog) => Ok((CatalogChoice::Given(catalog), Some(host))),
        Err(fault) => {
            host.close().await;
            Err(fault)
        }
    }
}
