//! Several nodes in one process, with one catalog and one lake.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_catalog::engine::Memory;
use stoker_catalog::kv::{Catalog, Range};
use stoker_format::NodeId;
use stoker_lake::{Lake, TwinLake};
use stoker_node::{
    Body, CatalogChoice, CellOptions, ClusterSecrets, GivenWorld, Health, InWorld, Labels, LakeOpener, Node,
    NodeOptions, Wire,
};
use stoker_store::{BoxFuture, Buf, ErrorKind, Result, Store, StoreError, VolumeOptions, VolumePolicy};

use super::Home;

/// Carries messages between nodes of this process, unless it is told not to.
#[derive(Default)]
pub struct Net {
    nodes: Mutex<HashMap<NodeId, Arc<Node>>>,
    /// What is around a node, if it is not this machine.
    worlds: Mutex<HashMap<NodeId, GivenWorld>>,
    cut: Mutex<HashSet<NodeId>>,
    /// Nodes that take questions and do not answer for now.
    stalled: tokio::sync::watch::Sender<HashSet<NodeId>>,
    /// A node whose next read from a peer is not answered, whoever it asks.
    unlucky: Mutex<Option<NodeId>>,
}

struct Port {
    net: Arc<Net>,
    own: Arc<Mutex<Option<NodeId>>>,
}

impl Wire for Port {
    fn call(
        &self,
        to: NodeId,
        head: Vec<u8>,
        body: Body,
        _: usize,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<(Vec<u8>, Body)>> {
        Box::pin(async move {
            let gone = || StoreError::new(ErrorKind::Unavailable, "no answer");
            let own = self.own.lock().unwrap().ok_or_else(gone)?;
            let node = self.net.nodes.lock().unwrap().get(&to).cloned().ok_or_else(gone)?;
            let is_cut = |node: &NodeId| self.net.cut.lock().unwrap().contains(node);
            if is_cut(&to) || is_cut(&own) {
                return Err(gone());
            }
            // The second byte of a message says what it is.
            let is_read = head.get(1) == Some(&1);
            if is_read && self.net.unlucky.lock().unwrap().take_if(|node| *node == own).is_some() {
                tokio::time::sleep(deadline).await;
                return Err(gone());
            }
            let mut stalled = self.net.stalled.subscribe();
            let goes_on = stalled.wait_for(|stalled| !stalled.contains(&to));
            if !matches!(tokio::time::timeout(deadline, goes_on).await, Ok(Ok(_))) {
                return Err(gone());
            }
            let aligned = |body: Body| match body {
                Body::Shared(summed) => Body::Aligned(Buf::copy_of(&summed.bytes)),
                other => other,
            };
            let world = self.net.worlds.lock().unwrap().get(&to).cloned();
            let served = node.serve_peer(own, &head, aligned(body));
            let (head, body) = match world {
                Some(world) => InWorld::new(&world, served).await,
                None => served.await,
            };
            if is_cut(&to) || is_cut(&own) {
                return Err(gone());
            }
            Ok((head, aligned(body)))
        })
    }

    fn latency_us(&self, _: NodeId) -> u64 {
        100
    }

    fn set_peers(&self, _: &[(NodeId, Vec<String>)]) {}
}

/// A few nodes with one catalog and one lake.
pub struct Cluster {
    homes: Vec<Home>,
    net: Arc<Net>,
    pub catalog: Arc<Memory>,
    /// What nodes are given as their catalog.
    pub given: Arc<dyn Catalog>,
    pub lake: Arc<TwinLake>,
    /// The cell of each node; all are in one without it.
    cells: Vec<String>,
    pub nodes: Vec<Option<Arc<Node>>>,
    /// The world of each node; this machine without it.
    pub worlds: Vec<GivenWorld>,
}

/// The net has the nodes, and they have the net: neither would ever go.
impl Drop for Cluster {
    fn drop(&mut self) {
        self.net.nodes.lock().unwrap().clear();
    }
}

impl Cluster {
    pub async fn new(count: usize, policy: VolumePolicy) -> Cluster {
        Cluster::in_cells(&vec![""; count], policy).await
    }

    /// A node for each name of a cell.
    pub async fn in_cells(cells: &[&str], policy: VolumePolicy) -> Cluster {
        Cluster::with_drives(cells, 1, policy).await
    }

    /// The same, each with so many drives.
    pub async fn with_drives(cells: &[&str], drives: usize, policy: VolumePolicy) -> Cluster {
        let ring_bytes = Home::new(policy.clone()).ring_bytes;
        Cluster::with_rings(cells, (drives, ring_bytes), policy).await
    }

    /// The same, with rings of that size.
    pub async fn with_rings(
        cells: &[&str],
        (drives, ring_bytes): (usize, u64),
        policy: VolumePolicy,
    ) -> Cluster {
        let homes = cells.iter().map(|_| Home { drives, ring_bytes, ..Home::new(policy.clone()) }).collect();
        let mut cluster = Cluster::of(homes, cells);
        cluster.start_all().await;
        cluster
    }

    /// Nodes in these homes, none of which runs yet.
    pub fn of(homes: Vec<Home>, cells: &[&str]) -> Cluster {
        let (catalog, count) = (Arc::new(Memory::with_running_clock()), homes.len());
        Cluster {
            homes,
            net: Arc::default(),
            given: catalog.clone(),
            catalog,
            lake: Arc::new(TwinLake::new(1)),
            cells: cells.iter().map(|cell| (*cell).to_owned()).collect(),
            nodes: (0..count).map(|_| None).collect(),
            worlds: Vec::new(),
        }
    }

    /// Starts all of them and makes the volume `data`.
    pub async fn start_all(&mut self) {
        for at in 0..self.nodes.len() {
            self.start(at).await;
        }
        self.know_each_other().await;
        self.node(0).volume_create("data", VolumeOptions::default()).await.unwrap();
    }

    /// Waits until all that run know of each other. Before, they commit like a node that is alone.
    pub async fn know_each_other(&self) {
        for node in self.nodes.iter().flatten() {
            let is_met =
                async || self.nodes.iter().flatten().all(|other| node.members().has_reached(other.id()));
            self.until("all nodes are met", is_met).await;
        }
    }

    fn options(&self, at: usize) -> (NodeOptions, Arc<Mutex<Option<NodeId>>>) {
        let (lake, own) = (self.lake.clone(), Arc::new(Mutex::new(None)));
        let port = Port { net: self.net.clone(), own: own.clone() };
        let cell = CellOptions {
            wire: Arc::new(port),
            name: format!("n{at}"),
            addresses: Vec::new(),
            gossip: Vec::new(),
            labels: Labels {
                cell: self.cells.get(at).cloned().unwrap_or_default(),
                tor: format!("tor-{}", at % 2),
                power: "a".into(),
            },
            weight: 1,
        };
        let options = NodeOptions {
            lake: Some("twin://lake".into()),
            lake_opener: Some(LakeOpener(Arc::new(move |_| lake.clone() as Arc<dyn Lake>))),
            secrets: Some(ClusterSecrets(vec![[1; 32]])),
            catalog: CatalogChoice::Given(self.given.clone()),
            lake_settle_ms: 500,
            cell: Some(cell),
            world: self.worlds.get(at).cloned(),
            ..self.homes[at].options()
        };
        (options, own)
    }

    pub async fn start(&mut self, at: usize) {
        self.start_on(at, &tokio::runtime::Handle::current()).await;
    }

    /// Starts a node on another runtime, so that it can be killed: without that nothing of it runs on.
    pub async fn start_on(&mut self, at: usize, runtime: &tokio::runtime::Handle) {
        let (options, own) = self.options(at);
        self.start_by(at, runtime, options, own).await;
    }

    /// Starts a node whose drives are gone for good.
    pub async fn start_with_new_drives(&mut self, at: usize) {
        let (options, own) = self.options(at);
        let new_drives = options.drives.iter().map(|drive| drive.path.clone()).collect();
        let options = NodeOptions { new_drives, ..options };
        self.start_by(at, &tokio::runtime::Handle::current(), options, own).await;
    }

    async fn start_by(
        &mut self,
        at: usize,
        runtime: &tokio::runtime::Handle,
        options: NodeOptions,
        own: Arc<Mutex<Option<NodeId>>>,
    ) {
        let world = options.world.clone();
        let opened = match world.clone() {
            Some(world) => runtime.spawn(InWorld::new(&world, Node::open(options))),
            None => runtime.spawn(Node::open(options)),
        };
        let node = opened.await.unwrap().unwrap();
        *own.lock().unwrap() = Some(node.id());
        self.net.worlds.lock().unwrap().extend(world.map(|world| (node.id(), world)));
        self.net.cut.lock().unwrap().remove(&node.id());
        self.net.nodes.lock().unwrap().insert(node.id(), node.clone());
        for other in self.nodes.iter().flatten() {
            other.members().set_health(node.id(), Health::Alive);
        }
        self.nodes[at] = Some(node);
    }

    /// A new node joins that nobody reaches.
    pub async fn join_unreached(&mut self, policy: VolumePolicy) -> usize {
        let at = self.homes.len();
        self.homes.push(Home::new(policy));
        self.nodes.push(None);
        let (options, own) = self.options(at);
        let node = Node::open(options).await.unwrap();
        *own.lock().unwrap() = Some(node.id());
        self.nodes[at] = Some(node);
        at
    }

    /// Nodes that were not reached are.
    pub fn plug_in(&self, at: usize) {
        let node = self.node(at);
        self.net.nodes.lock().unwrap().insert(node.id(), node.clone());
    }

    /// A new node wants to join by a name, and is refused.
    pub async fn join_as(&mut self, name: &str) -> StoreError {
        let at = self.homes.len();
        self.homes.push(Home::new(VolumePolicy::default()));
        self.nodes.push(None);
        let (mut options, _) = self.options(at);
        options.cell.as_mut().expect("it has one").name = name.to_owned();
        match Node::open(options).await {
            Ok(_) => panic!("it starts"),
            Err(refused) => refused,
        }
    }

    /// Starts a node that is expected to be refused.
    pub async fn start_refused(&self, at: usize) -> StoreError {
        let (options, _) = self.options(at);
        match Node::open(options).await {
            Ok(_) => panic!("it starts"),
            Err(refused) => refused,
        }
    }

    pub fn node(&self, at: usize) -> &Arc<Node> {
        self.nodes[at].as_ref().expect("it runs")
    }

    /// A node stops answering; the others suspect it.
    pub fn lose(&mut self, at: usize) -> Arc<Node> {
        let node = self.nodes[at].take().expect("it runs");
        self.net.cut.lock().unwrap().insert(node.id());
        self.net.nodes.lock().unwrap().remove(&node.id());
        for other in self.nodes.iter().flatten() {
            other.members().set_health(node.id(), Health::Suspect);
        }
        node
    }

    /// A node that was lost answers again; nobody declared it down.
    pub fn heal(&mut self, at: usize, node: Arc<Node>) {
        self.net.cut.lock().unwrap().remove(&node.id());
        self.net.nodes.lock().unwrap().insert(node.id(), node.clone());
        for other in self.nodes.iter().flatten() {
            other.members().set_health(node.id(), Health::Alive);
            node.members().set_health(other.id(), Health::Alive);
        }
        self.nodes[at] = Some(node);
    }

    /// A node that goes on but answers nobody until it is released. Nobody suspects it.
    pub fn stall(&self, at: usize) {
        let id = self.node(at).id();
        self.net.stalled.send_modify(|stalled| {
            stalled.insert(id);
        });
    }

    /// The next read of this node from a peer is not answered.
    pub fn stall_next_read(&self, at: usize) {
        *self.net.unlucky.lock().unwrap() = Some(self.node(at).id());
    }

    /// All nodes answer again.
    pub fn release(&self) {
        self.net.stalled.send_modify(HashSet::clear);
    }

    /// Where the drives of a node are.
    pub fn folder(&self, at: usize) -> &std::path::Path {
        self.homes[at].dir.path()
    }

    pub async fn rows(&self, table: &[u8]) -> usize {
        self.catalog.range(Range::prefix(table, 100_000)).await.unwrap().rows.len()
    }

    /// Waits until something holds.
    pub async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        for _ in 0..3_000 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never: {what}");
    }

    pub async fn stop(mut self) {
        for node in std::mem::take(&mut self.nodes).into_iter().flatten() {
            node.stop().await;
        }
    }
}

/// Nodes that hold what a receipt is about.
pub fn nodes_of(receipt: &stoker_store::Receipt) -> HashSet<String> {
    receipt.holders.iter().map(|holder| holder.node.clone()).collect()
}
