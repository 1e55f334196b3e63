//! The embedded catalog of a cluster: which node keeps it, who follows it, and how another one takes over. (D38)
//!
//! One node *serves* the catalog from its file; the others *follow*, some of them as standbys whose files have every
//! acknowledged commit. What a node is says its file. Who rules is one [`Epoch`], which names its holder and only rises: nodes tell
//! each other the highest one they heard of, and ask around when the catalog does not answer.
//!
//! Since level 3 the catalog is kept by a [`group`] of nodes, which elects who serves. A cluster from before goes on with one node that serves
//! and [`standbys`] that follow, one of which a person [promotes](promote), until its level has risen and the node that serves starts
//! again.

mod group;
mod message;
mod promote;
mod routed;
mod standbys;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;

use stoker_catalog::engine::{
    Beginning, CatalogFile, Embedded, EmbeddedOptions, PrimaryOptions, ReplicaStanding, ReplicatedCatalog,
    Role as FileRole, Standby, StandbyOptions, inspect, read_file,
};
use stoker_catalog::remote::{CatalogServer, RemoteCatalog, RemoteOptions};
use stoker_catalog::{Catalog, Epoch, Health};
use stoker_fabric::transport::{Call, Message, TcpTransport, Transport};
use stoker_format::NodeId;
use stoker_schema::level::{Level, LevelRow};
use stoker_schema::rows::{RowValue, keys};
use stoker_store::{ErrorKind, Result, StoreError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::message::{Answer, Ask};
use self::routed::RoutedCatalog;
use crate::book::Book;
use crate::identity::Identity;
use crate::keys::{CatalogPlace, ClusterKeys};
use crate::members::Members;
use crate::ways::{HostWire, KIND_CATALOG_HOST};
use crate::{clock, error};

/// Pages that a standby keeps in memory; it is read only when somebody is behind.
const STANDBY_CACHE_BYTES: usize = 32 << 20;

/// A standby that does not confirm for so long is waited for no longer.
const ACK_MAX: Duration = Duration::from_secs(2);

/// Longest wait for an answer of another node about the catalog.
const ASK_MAX: Duration = Duration::from_secs(2);

/// The same for somebody who looks at how the catalog is.
const STATUS_MAX: Duration = Duration::from_millis(1_200);

/// Pause between two looks around for whoever rules.
const PROBE_PAUSE: Duration = Duration::from_millis(200);

/// How often a node that waits for the catalog says so.
const WAIT_SAID: Duration = Duration::from_secs(30);

/// The level since which a group keeps the catalog.
const GROUPS_SINCE: Level = Level(3);

/// How often it is looked who should have a copy of the catalog.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// A node that was declared down keeps its place for so long. Until then it may come back with what it has.
const GONE_MAX: Duration = Duration::from_secs(600);

/// What this node does for the catalog.
enum Role {
    Serves {
        catalog: Arc<Embedded>,
        server: Arc<CatalogServer>,
    },
    Follows(Arc<Standby>),
    /// It has a replica of the catalog's group.
    Member {
        replica: Arc<ReplicatedCatalog>,
        /// While this replica may answer.
        server: Option<Arc<CatalogServer>>,
    },
    /// Its file changes hands.
    Between,
}

/// The catalog as this node sees it.
pub struct CatalogHost {
    identity: Identity,
    dir: PathBuf,
    cache_bytes: usize,
    pub(crate) transport: Arc<TcpTransport>,
    book: Arc<Book>,
    role: RwLock<Role>,
    /// Counts what may change whether this node answers for the catalog itself.
    news: Arc<AtomicU64>,
    /// The highest epoch that this node heard of.
    epoch: Mutex<Epoch>,
    /// Whoever is asked as long as there was no epoch.
    first_holder: NodeId,
    keys: Mutex<ClusterKeys>,
    /// The catalog of a node that follows.
    remote: OnceLock<Arc<RemoteCatalog>>,
    members: OnceLock<Arc<Members>>,
    /// The highest commit of which this node knew when it started.
    seq_kept: u64,
    probed_ms: AtomicU64,
    standbys: standbys::Standbys,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Why this node has to be opened again, once it has to.
    replaced: watch::Sender<Option<String>>,
    promoting: tokio::sync::Mutex<()>,
}

/// What a host is made of.
pub struct CatalogHostOptions {
    /// This node, and its cluster.
    pub identity: Identity,
    /// The directory of the node, which holds the file.
    pub dir: PathBuf,
    /// Memory for pages of the file.
    pub cache_bytes: usize,
    /// How others are reached.
    pub transport: Arc<TcpTransport>,
    /// Where others were seen.
    pub book: Arc<Book>,
    /// What the node has of its cluster.
    pub keys: ClusterKeys,
    /// The highest commit that this node saw in earlier boots.
    pub seq_kept: u64,
}

impl CatalogHost {
    /// Opens this node's file as what it is.
    pub fn open(options: CatalogHostOptions) -> Result<Arc<CatalogHost>> {
        let CatalogHostOptions { identity, dir, cache_bytes, transport, book, keys, seq_kept } = options;
        let path = dir.join("catalog.redb");
        let file = inspect(&path, identity.cluster).map_err(error::catalog)?;
        let first_holder = match &keys.catalog {
            CatalogPlace::With { node, .. } => NodeId(*node),
            _ => identity.node,
        };
        // One that was being made, and is empty, is none.
        let is_made = |file: &CatalogFile| !(file.role == FileRole::Alone && file.position.seq == 0);
        let made = file.clone().filter(is_made);
        let serves = match &made {
            Some(file) => file.role != FileRole::Standby && file.promised <= file.epoch,
            None => first_holder == identity.node,
        };
        let host = Arc::new(CatalogHost {
            identity,
            dir,
            cache_bytes,
            transport,
            book,
            role: RwLock::new(Role::Between),
            news: Arc::default(),
            epoch: Mutex::new(file.as_ref().map(|file| file.promised.max(file.epoch)).unwrap_or_default()),
            first_holder,
            keys: Mutex::new(keys),
            remote: OnceLock::new(),
            members: OnceLock::new(),
            seq_kept,
            probed_ms: AtomicU64::new(0),
            standbys: standbys::Standbys::default(),
            tasks: Mutex::default(),
            replaced: watch::Sender::new(None),
            promoting: tokio::sync::Mutex::new(()),
        });
        let is_group = match &made {
            Some(file) => file.role == FileRole::Replica || (serves && host.is_level_of_groups()?),
            // A file that is gone is not begun anew beside what others may have.
            None => serves && (host.seq_kept == 0 || host.others().is_empty()),
        };
        match (is_group, serves && made.is_some()) {
            (true, _) => drop(host.join_group(Beginning::Group)?),
            (false, true) => host.serve()?,
            (false, false) => host.follow()?,
        }
        Ok(host)
    }

    /// Whether the cluster whose catalog this node's file is may have it kept by a group (R14).
    fn is_level_of_groups(&self) -> Result<bool> {
        let rows = read_file(&self.path(), self.identity.cluster).map_err(error::catalog)?;
        // The level has a key of its own; what comes before it ends with a lower byte.
        let (last, before) = keys::LEVEL.split_last().expect("a key has bytes");
        let before = [before, &[last - 1]].concat();
        let page = futures_util::FutureExt::now_or_never(rows.page(Some(&before)));
        let page = page.transpose().map_err(error::catalog)?.unwrap_or_default();
        let row = page.rows.iter().find(|row| row.key == keys::LEVEL);
        let level = row.map(LevelRow::of).transpose().map_err(error::catalog)?.unwrap_or_default();
        Ok(level.level >= GROUPS_SINCE)
    }

    /// Has this node be something else for the catalog; gives what it was.
    fn set_role(&self, role: Role) -> Role {
        let before = std::mem::replace(&mut *self.role.write().unwrap(), role);
        self.news.fetch_add(1, Ordering::SeqCst);
        before
    }

    fn path(&self) -> PathBuf {
        self.dir.join("catalog.redb")
    }

    /// Serves this node's file.
    fn serve(self: &Arc<CatalogHost>) -> Result<()> {
        let file = EmbeddedOptions { cache_bytes: self.cache_bytes, ..EmbeddedOptions::default() };
        let options = PrimaryOptions {
            ack_timeout: ACK_MAX,
            seen: self.epoch(),
            ..PrimaryOptions::new(self.identity.node)
        };
        let catalog = Embedded::open_primary(&self.path(), self.identity.cluster, &file, &options);
        let catalog = Arc::new(catalog.map_err(error::catalog)?);
        let server = CatalogServer::embedded(catalog.clone(), Epoch::default(), |_| {});
        let mut fenced = catalog.fenced();
        let host = Arc::downgrade(self);
        self.keep(tokio::spawn(async move {
            let Ok(by) = fenced.wait_for(Option::is_some).await.map(|by| *by) else { return };
            if let (Some(host), Some(by)) = (host.upgrade(), by) {
                host.adopt(by);
            }
        }));
        let epoch = server.epoch();
        self.set_role(Role::Serves { catalog, server: Arc::new(server) });
        self.adopt(epoch);
        self.attach_known();
        self.proclaim();
        Ok(())
    }

    /// Follows whoever serves.
    fn follow(self: &Arc<CatalogHost>) -> Result<()> {
        let options = StandbyOptions {
            file: EmbeddedOptions { cache_bytes: STANDBY_CACHE_BYTES, ..EmbeddedOptions::default() },
            ..StandbyOptions::default()
        };
        let standby = Standby::open_former(&self.path(), self.identity.cluster, &options);
        self.set_role(Role::Follows(Arc::new(standby.map_err(error::catalog)?)));
        Ok(())
    }

    /// The catalog for this node: its own, as soon as a standby confirmed it, or the way to another one's.
    pub async fn catalog(self: &Arc<CatalogHost>) -> Result<Arc<dyn Catalog>> {
        if let Some(catalog) = self.own()
            && !self.until_confirmed(&catalog).await
        {
            // Another epoch rules: what is here is put aside, and this node follows.
            catalog.close().await;
            self.follow()?;
            self.replaced.send_replace(None);
        }
        let client = u128::from_le_bytes(clock::random());
        let way = Arc::new(HostWire(Arc::downgrade(self)));
        let remote = Arc::new(RemoteCatalog::new(way, client, &RemoteOptions::default()));
        remote.saw(self.epoch());
        let _ = self.remote.set(remote.clone());
        if self.own_catalog().is_none() {
            // Others may know an old place of this node; the one that serves must find the copy here.
            self.probe(&self.others()).await;
        }
        let routed: Arc<dyn Catalog> = Arc::new(RoutedCatalog::new(self, remote));
        let mut said = None::<tokio::time::Instant>;
        while let Err(fault) = routed.seq().await {
            if said.is_none_or(|said| said.elapsed() >= WAIT_SAID) {
                said = Some(tokio::time::Instant::now());
                tracing::warn!(
                    "waiting for the catalog, which node {} kept last: {}; if no majority of the nodes that keep it comes back, \
                     stop one of them and start it with --promote-catalog",
                    self.holder(),
                    fault.message
                );
            }
        }
        Ok(routed)
    }

    /// Waits until what is in this node's file may be read; false if another epoch rules.
    async fn until_confirmed(self: &Arc<CatalogHost>, catalog: &Arc<Embedded>) -> bool {
        let mut said = None::<tokio::time::Instant>;
        let mut replaced = self.replaced.subscribe();
        loop {
            if replaced.borrow_and_update().is_some() {
                return false;
            }
            if catalog.seq().await.is_ok() {
                return true;
            }
            if said.is_none_or(|said| said.elapsed() >= WAIT_SAID) {
                if said.is_some() {
                    tracing::warn!(
                        "waiting for a standby of the catalog ({}) to confirm what this node has",
                        names(&catalog.known_standbys())
                    );
                }
                said = Some(tokio::time::Instant::now());
            }
            self.probe_soon();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The node runs: what it knows is used from now on.
    pub fn set_members(self: &Arc<CatalogHost>, members: &Arc<Members>) {
        let _ = self.members.set(members.clone());
        if self.own().is_some() {
            self.care_for_standbys();
        }
        self.care_for_group();
    }

    /// Tells once that this node has to be opened again, and why.
    pub fn replaced(&self) -> watch::Receiver<Option<String>> {
        self.replaced.subscribe()
    }

    /// The highest epoch that this node heard of.
    pub fn epoch(&self) -> Epoch {
        let own = *self.epoch.lock().unwrap();
        own.max(self.remote.get().map(|remote| remote.seen()).unwrap_or_default())
    }

    /// The same, with what the standby here promised to a new primary.
    async fn epoch_promised(&self) -> Epoch {
        let promised = match self.standby() {
            // It may be busy with a drive.
            Some(standby) => tokio::task::spawn_blocking(move || standby.report()).await.ok(),
            None => None,
        };
        let promised = promised.and_then(|report| Some(report.ok()?.promised)).unwrap_or_default();
        promised.max(self.epoch())
    }

    /// The node that keeps the catalog, as far as this one knows.
    pub fn holder(&self) -> NodeId {
        // A file that was just opened says a term, and not who led in it.
        let holder = self.epoch().holder();
        if holder == NodeId([0; 16]) { self.first_holder } else { holder }
    }

    /// Where new nodes are told to find it.
    pub(crate) fn place(&self) -> CatalogPlace {
        let holder = self.holder();
        CatalogPlace::With { node: holder.0, addresses: self.addresses_of(holder) }
    }

    /// Whoever answers for the catalog, if this node does and was not replaced.
    pub fn server(&self) -> Option<Arc<CatalogServer>> {
        let server = match &*self.role.read().unwrap() {
            Role::Serves { server, .. } | Role::Member { server: Some(server), .. } => server.clone(),
            _ => return None,
        };
        (server.epoch() >= self.epoch()).then_some(server)
    }

    /// The standby here, if this node follows.
    pub fn standby(&self) -> Option<Arc<Standby>> {
        match &*self.role.read().unwrap() {
            Role::Follows(standby) => Some(standby.clone()),
            _ => None,
        }
    }

    /// The catalog, if this node has it and may answer.
    pub fn own_catalog(&self) -> Option<Arc<dyn Catalog>> {
        let replica = self.replica_that_answers();
        replica.map(|replica| replica as Arc<dyn Catalog>).or_else(|| Some(self.own()? as Arc<dyn Catalog>))
    }

    /// The replica here, if it may answer.
    fn replica_that_answers(&self) -> Option<Arc<ReplicatedCatalog>> {
        // One that knows of a higher epoch does not answer for itself either.
        let may_answer = |standing: &ReplicaStanding| {
            standing.answers && standing.epoch.is_some_and(|epoch| epoch >= self.epoch())
        };
        self.replica().filter(|replica| may_answer(&replica.standing().borrow()))
    }

    /// How the copy of the catalog on this node is, if others answer for it.
    pub fn copy_health(&self) -> Option<Health> {
        match &*self.role.read().unwrap() {
            Role::Follows(standby) => Some(standby.health()),
            Role::Member { replica, .. } => match replica.health() {
                // Told of the catalog itself.
                Health::Stalled => Some(Health::Good),
                health => Some(health),
            },
            _ => None,
        }
    }

    fn own(&self) -> Option<Arc<Embedded>> {
        match &*self.role.read().unwrap() {
            Role::Serves { catalog, .. } => Some(catalog.clone()),
            _ => None,
        }
    }

    /// The highest commit that this node saw.
    fn seq_seen(&self) -> u64 {
        let seen = self.members.get().map_or(0, |members| members.seq_seen.load(Ordering::Relaxed));
        seen.max(self.seq_kept)
    }

    /// Takes note of an epoch. A lower one than this node knows changes nothing.
    pub fn adopt(&self, epoch: Epoch) {
        {
            let mut known = self.epoch.lock().unwrap();
            if epoch <= *known {
                return;
            }
            *known = epoch;
            self.news.fetch_add(1, Ordering::SeqCst);
        }
        if let Some(remote) = self.remote.get() {
            remote.saw(epoch);
        }
        if let Some(own) = self.own().filter(|own| own.epoch().is_some_and(|own| own < epoch)) {
            own.fence(epoch);
            let why = format!("its catalog was replaced by epoch {epoch}");
            self.replaced.send_replace(Some(why));
        }
        let place = match epoch.holder() == self.identity.node {
            true => CatalogPlace::Here,
            false => self.place(),
        };
        let mut keys = self.keys.lock().unwrap();
        if keys.catalog != place {
            keys.catalog = place;
            if let Err(fault) = keys.write(&self.dir) {
                tracing::warn!("where the catalog is could not be written down: {fault}");
            }
        }
    }

    /// Looks around, unless somebody does or did a moment ago.
    pub fn probe_soon(self: &Arc<CatalogHost>) {
        let now_ms = clock::now_ms();
        let last_ms = self.probed_ms.load(Ordering::Relaxed);
        let is_due = now_ms.abs_diff(last_ms) >= PROBE_PAUSE.as_millis() as u64;
        if is_due
            && self.probed_ms.compare_exchange(last_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let host = self.clone();
            tokio::spawn(async move {
                let others = host.others();
                host.probe(&others).await;
            });
        }
    }

    /// Every other node that this one can reach.
    fn others(&self) -> Vec<NodeId> {
        let peers = self.transport.peers().into_iter().map(|peer| peer.node);
        peers.filter(|node| *node != self.identity.node).collect()
    }

    /// Asks nodes which epoch rules; gives the highest commit that any of them saw.
    async fn probe(&self, nodes: &[NodeId]) -> u64 {
        let ask = Ask::Where { addresses: self.addresses() };
        let asks = nodes.iter().map(|node| self.ask(*node, &ask));
        let mut seq_seen = self.seq_seen();
        for answer in futures_util::future::join_all(asks).await {
            if let Ok(Answer::Epoch { epoch, addresses, seq_seen: seen }) = answer {
                self.heard_of(epoch.holder(), &addresses);
                self.adopt(epoch);
                seq_seen = seq_seen.max(seen);
            }
        }
        seq_seen
    }

    /// Tells everybody that this node serves, and where.
    fn proclaim(self: &Arc<CatalogHost>) {
        let news = Ask::Rules { epoch: self.epoch(), addresses: self.addresses() };
        let host = self.clone();
        self.keep(tokio::spawn(async move {
            let others = host.others();
            let tells = others.iter().map(|node| host.ask(*node, &news));
            let told = futures_util::future::join_all(tells).await;
            let told = told.iter().filter(|answer| matches!(answer, Ok(Answer::Done))).count();
            tracing::info!(
                "{told} of {} other nodes were told that this one keeps the catalog",
                others.len()
            );
        }));
    }

    /// Where this node is.
    fn addresses(&self) -> Vec<String> {
        self.addresses_of(self.identity.node)
    }

    fn addresses_of(&self, node: NodeId) -> Vec<String> {
        let addresses = match node == self.identity.node {
            true => self.transport.addresses().to_vec(),
            false => self.book.of(node),
        };
        addresses.iter().map(SocketAddr::to_string).collect()
    }

    /// Takes note of where a node says it is; the transport proves who answers there.
    fn met(&self, node: NodeId, addresses: &[String]) {
        let addresses = parsed(addresses);
        if !addresses.is_empty() && self.book.of(node) != addresses {
            self.book.note(node, addresses.clone());
            self.transport.set_peer(node, addresses);
        }
    }

    /// Takes note of where a node was seen by another one, which may know better or worse: it is looked for there, too.
    fn heard_of(&self, node: NodeId, addresses: &[String]) {
        if node == self.identity.node {
            return;
        }
        let mut known = self.book.of(node);
        let fresh: Vec<SocketAddr> =
            parsed(addresses).into_iter().filter(|address| !known.contains(address)).collect();
        if !fresh.is_empty() && known.len() + fresh.len() <= message::ADDRESSES_MAX {
            known.splice(0..0, fresh);
            self.book.note(node, known.clone());
            self.transport.set_peer(node, known);
        }
    }

    async fn ask(&self, node: NodeId, ask: &Ask) -> Result<Answer> {
        self.ask_within(node, ask, ASK_MAX).await
    }

    async fn ask_within(&self, node: NodeId, ask: &Ask, limit: Duration) -> Result<Answer> {
        let request = Message::new(KIND_CATALOG_HOST, message::encode(ask));
        let answer = self.transport.call(node, request, Call::within(limit)).await;
        let answer = answer.map_err(|fault| {
            StoreError::new(ErrorKind::Unavailable, format!("node {node} does not answer: {fault}"))
        })?;
        message::decode(&answer.head).ok_or_else(|| {
            StoreError::new(ErrorKind::Unavailable, format!("node {node} gave an answer that cannot be read"))
        })
    }

    /// Answers another node.
    pub async fn answer(self: &Arc<CatalogHost>, from: NodeId, request: &[u8]) -> Vec<u8> {
        let answer = match message::decode::<Ask>(request) {
            Some(ask) => self.answered(from, ask).await,
            None => Answer::No("a question that cannot be read".into()),
        };
        message::encode(&answer)
    }

    async fn answered(self: &Arc<CatalogHost>, from: NodeId, ask: Ask) -> Answer {
        match ask {
            Ask::Where { addresses } => {
                self.met(from, &addresses);
                self.came_back(from);
                let epoch = self.epoch_promised().await;
                let addresses = self.addresses_of(epoch.holder());
                Answer::Epoch { epoch, addresses, seq_seen: self.seq_seen() }
            }
            Ask::Rules { epoch, addresses } => {
                self.met(from, &addresses);
                self.adopt(epoch);
                Answer::Done
            }
            Ask::MayLeave => self.may_leave(from),
            Ask::Left => match self.replica() {
                Some(replica) => self.release(&replica, from).await,
                None => self.let_go(from, true).await,
            },
            Ask::Status => match (self.own(), self.replica()) {
                (Some(catalog), _) => Answer::Status(self.status_of(&catalog).await),
                (None, Some(replica)) if replica.standing().borrow().answers => {
                    Answer::Status(self.status_of_group(&replica).await)
                }
                _ => elsewhere(),
            },
            Ask::Detach(node) => match self.replica() {
                Some(replica) if replica.standing().borrow().leads => {
                    self.detach_replica(&replica, NodeId(node)).await
                }
                Some(_) => elsewhere(),
                None => self.let_go(NodeId(node), false).await,
            },
            Ask::Host { incarnation, base } => self.host(from, incarnation, base).await,
            Ask::HandOver => match self.replica() {
                Some(replica) => {
                    replica.give_away(Some(from));
                    Answer::Done
                }
                None => elsewhere(),
            },
        }
    }

    /// Tells whoever serves that this node follows no longer, so that nobody waits for it.
    pub async fn leave(&self) {
        if let Some(replica) = self.replica() {
            return self.leave_as_replica(&replica).await;
        }
        let Some(standby) = self.standby() else { return };
        let holder = self.holder();
        // Asked first: a standby that left while nobody serves could not be promoted.
        match self.ask(holder, &Ask::MayLeave).await {
            Ok(Answer::Done) => {}
            _ => return,
        }
        if let Err(fault) = standby.leave(self.identity.node) {
            return tracing::warn!("the standby of the catalog: {fault}");
        }
        if let Err(fault) = self.ask(holder, &Ask::Left).await {
            tracing::info!("the catalog could not be told that this node leaves: {fault}");
        }
    }

    /// Ends everything and lets go of the file.
    pub async fn close(&self) {
        for task in std::mem::take(&mut *self.tasks.lock().unwrap()) {
            task.abort();
        }
        let role = self.set_role(Role::Between);
        match role {
            Role::Serves { catalog, .. } => catalog.close().await,
            Role::Follows(standby) => standby.close(),
            Role::Member { replica, .. } => replica.close().await,
            Role::Between => {}
        }
    }

    fn keep(&self, task: JoinHandle<()>) {
        let mut tasks = self.tasks.lock().unwrap();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }
}

fn parsed(addresses: &[String]) -> Vec<SocketAddr> {
    addresses.iter().take(message::ADDRESSES_MAX).filter_map(|address| address.parse().ok()).collect()
}

fn elsewhere() -> Answer {
    Answer::No("this node does not keep the catalog".into())
}

fn names(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    names.join(", ")
}
