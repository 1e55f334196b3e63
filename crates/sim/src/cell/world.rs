//! A cluster in one thread: real nodes on simulated machines, with one catalog, one lake, one network, and somebody who
//! starts a node again whenever it ends.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_format::VolumeId;
use stoker_lake::TwinLake;
use stoker_node::{
    CatalogChoice, CellOptions, ClusterSecrets, DriveOpener, DriveOptions, GivenWorld, Health, InWorld,
    Labels, LakeOpener, Node, NodeOptions,
};
use stoker_ring::Ring;
use stoker_store::{Class, Store, VolumeOptions, VolumePolicy};
use tokio::time::Instant;

use super::catalog::SimCatalog;
use super::lake::SimLake;
use super::machine::{Death, Machine, Process, ProcessDrive, Vanish};
use super::mutations::Mutation;
use super::network::{Host, Net, Port};
use super::trace::Trace;
use crate::rng::Rng;

/// The volume that clients use.
pub const VOLUME: &str = "data";

/// Its number: it is the only one.
pub const VOLUME_ID: VolumeId = VolumeId(1);

/// Between pings.
const PING_PAUSE: Duration = Duration::from_millis(400);

/// Silent for so long: suspect.
const SUSPECT_AFTER: Duration = Duration::from_millis(1_500);

/// Silent for so long: given up.
pub const GRACE: Duration = Duration::from_secs(8);

/// Before a process that ended by itself is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Longest wait of a node that leaves for the catalog to hear of it.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Number of nodes.
    pub nodes: usize,
    /// Segments of each drive.
    pub segments: u32,
    /// What the volume wants.
    pub policy: VolumePolicy,
    /// What its users were promised, which is the same unless that is the bug that is planted.
    pub promised: VolumePolicy,
    /// The bug that is planted.
    pub mutation: Option<Mutation>,
}

/// A cluster.
pub struct Cluster {
    /// How it is made.
    pub shape: Shape,
    /// Its machines.
    pub machines: Vec<Arc<Machine>>,
    /// Machines that never come back.
    pub lost: Mutex<Vec<usize>>,
    /// What they talk over.
    pub net: Arc<Net>,
    /// Its catalog.
    pub catalog: SimCatalog,
    /// Its lake.
    pub lake: Arc<TwinLake>,
    /// The way to it.
    pub lake_way: SimLake,
    /// What happened.
    pub trace: Trace,
    /// Copies were lost for good, or may have been: as many as the class of the volume allows.
    is_loss_spent: AtomicBool,
    /// A drive rots.
    rots: AtomicBool,
    folder: Folder,
    rings: Arc<Mutex<BTreeMap<usize, Ring>>>,
}

/// Where identities are kept, in memory where that can be had; removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let base = PathBuf::from("/dev/shm");
        let base = if base.is_dir() { base } else { std::env::temp_dir() };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Folder(base.join(format!("stoker-sim-{}-{number}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Cluster {
    /// A cluster whose nodes are all open and know each other, with its volume.
    pub async fn start(shape: Shape, seed: u64) -> Arc<Cluster> {
        let (trace, mut rng) = (Trace::new(), Rng::new(seed));
        let mut fork = || Rng::new(rng.number());
        let lake = Arc::new(TwinLake::new(fork().number()));
        let mutation = shape.mutation;
        let net = Net::new(shape.nodes, trace.clone(), fork());
        let catalog = SimCatalog::new(mutation, trace.clone(), fork());
        let cluster = Arc::new(Cluster {
            machines: (0..shape.nodes)
                .map(|at| Machine::new(at, shape.segments, mutation, trace.clone(), fork()))
                .collect(),
            lost: Mutex::default(),
            net,
            lake_way: SimLake::new(lake.clone(), catalog.clone(), mutation, trace.clone(), fork()),
            catalog,
            lake,
            trace,
            is_loss_spent: AtomicBool::new(shape.promised.class == Class::One),
            rots: AtomicBool::new(false),
            folder: Folder::new(),
            rings: Arc::default(),
            shape,
        });
        for at in 0..cluster.shape.nodes {
            cluster.boot(at);
        }
        cluster.all_open().await;
        let first = cluster.net.host(0).expect("it is open");
        let create = async { first.node.volume_create(VOLUME, VolumeOptions::default()).await };
        InWorld::new(&first.world(), create).await.expect("a volume can be made in a healthy cluster");
        cluster
    }

    /// The rings of the machines that are not lost.
    pub fn rings(&self) -> Vec<(usize, Ring)> {
        let lost = self.lost.lock().unwrap();
        let rings = self.rings.lock().unwrap();
        rings.iter().filter(|(at, _)| !lost.contains(at)).map(|(at, ring)| (*at, ring.clone())).collect()
    }

    /// Lets go of every node. Nodes know the network, and the network knows them, so that neither would ever be freed.
    pub fn dismantle(&self) {
        (0..self.machines.len()).for_each(|at| {
            self.net.unplug(at);
            self.machines[at].end(Death::Kill);
        });
        self.rings.lock().unwrap().clear();
    }

    /// Waits until every node that is not lost is open and sees all others.
    pub async fn all_open(&self) {
        loop {
            let lost = self.lost.lock().unwrap().len();
            let hosts = self.net.hosts();
            let knows = |host: &Host| {
                let ids = hosts.iter().map(|other| other.node.id());
                ids.clone()
                    .all(|id| host.node.members().has_reached(id) && !host.node.members().is_suspect(id))
            };
            if hosts.len() + lost == self.shape.nodes && hosts.iter().all(knows) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn options(&self, at: usize, process: &Arc<Process>) -> NodeOptions {
        let way = self.lake_way.from(at);
        let (drive, rings) = (process.clone(), self.rings.clone());
        let open_drive = move |_: &std::path::Path, open: stoker_ring::OpenOptions| {
            drive.set_cluster(open.cluster);
            let (ring, driver) = Ring::open_twin(Arc::new(ProcessDrive(drive.clone())), open)?;
            rings.lock().unwrap().insert(at, ring.clone());
            Ok((ring, driver))
        };
        let cell = CellOptions {
            wire: Arc::new(Port { net: self.net.clone(), at }),
            name: format!("n{at}"),
            addresses: Vec::new(),
            gossip: Vec::new(),
            labels: Labels::default(),
            weight: 1,
        };
        NodeOptions {
            drives: vec![DriveOptions { path: PathBuf::from(format!("drive{at}")), size_bytes: None }],
            drive_opener: Some(DriveOpener(Arc::new(open_drive))),
            lake: Some("twin://lake".into()),
            lake_opener: Some(LakeOpener(Arc::new(move |_| way.clone().with_retries()))),
            secrets: Some(ClusterSecrets(vec![[1; 32]])),
            catalog: CatalogChoice::Given(Arc::new(self.catalog.clone())),
            volume_defaults: self.shape.policy.clone(),
            memory_bytes: 0,
            cache_bytes: Some(0),
            drain_concurrency: 2,
            lake_settle_ms: 1_500,
            cell: Some(cell),
            world: Some(GivenWorld(process.clone())),
            ..NodeOptions::new(self.folder.0.join(format!("n{at}")))
        }
    }

    /// Starts the process of a machine, if none runs and the machine is not lost.
    pub fn boot(self: &Arc<Cluster>, at: usize) {
        if self.machines[at].is_up() || self.lost.lock().unwrap().contains(&at) {
            return;
        }
        self.trace.note(format_args!("m{at} starts"));
        let process = self.machines[at].start();
        let world = GivenWorld(process.clone());
        tokio::spawn(InWorld::new(&world, self.clone().live(at, process)));
    }

    /// The process of a machine ends.
    pub fn end(&self, at: usize, death: Death) {
        self.trace.note(format_args!("m{at} ends: {death:?}"));
        self.net.unplug(at);
        self.machines[at].end(death);
    }

    /// The machine is lost for ever.
    pub fn lose(&self, at: usize) {
        self.lost.lock().unwrap().push(at);
        self.end(at, Death::Power { survive_percent: 0 });
    }

    /// Takes the one loss of copies that a class covers at a time; false if it is spent.
    pub fn take_loss(&self) -> bool {
        !self.is_loss_spent.swap(true, Ordering::Relaxed)
    }

    /// An empty drive comes in the place of the one that failed; the process ends for that.
    pub fn replace_drive(&self, at: usize) {
        if self.machines[at].is_up() {
            self.end(at, Death::Kill);
        }
        self.trace.note(format_args!("m{at} gets another drive"));
        self.machines[at].replace_drive();
    }

    /// Some of what a machine has vanishes while its process is away.
    pub fn vanish(&self, at: usize, what: Vanish, percent: u64) {
        if self.machines[at].is_up() {
            self.end(at, Death::Kill);
        }
        self.rots.store(true, Ordering::Relaxed);
        let count = self.machines[at].vanish(what, percent);
        self.trace.note(format_args!("m{at} loses {count} of its {what:?}"));
    }

    /// Flips bits on the drive of a machine.
    pub fn rot(&self, at: usize, bits: usize) {
        self.trace.note(format_args!("m{at} rots"));
        self.rots.store(true, Ordering::Relaxed);
        (0..bits).for_each(|_| self.machines[at].rot());
    }

    /// Whether a drive or the lake rots.
    pub fn rots(&self) -> bool {
        self.rots.load(Ordering::Relaxed) || self.lake_way.has_rotted()
    }

    /// A node says good-bye, finishes what it does, and stops.
    pub async fn leave(&self, at: usize) {
        let Some(host) = self.net.host(at) else { return };
        self.trace.note(format_args!("m{at} leaves"));
        let node = host.node.clone();
        let stop = async move {
            let _ = tokio::time::timeout(LEAVE_MAX, node.members().announce(true)).await;
            node.stop().await;
        };
        let died = host.process.died.notified();
        tokio::pin!(died);
        died.as_mut().enable();
        if host.process.is_alive() {
            tokio::select! {
                biased;
                () = died => return,
                _ = tokio::spawn(InWorld::new(&host.world(), stop)) => {}
            }
        }
        if host.process.is_alive() {
            self.end(at, Death::Kill);
        }
    }

    /// The life of a process.
    async fn live(self: Arc<Cluster>, at: usize, process: Arc<Process>) {
        match Node::open(self.options(at, &process)).await {
            Ok(node) => {
                self.trace.note(format_args!("m{at} is open"));
                self.net.plug(at, Host { node: node.clone(), process });
                self.look_out(at, node).await;
                self.trace.note(format_args!("m{at} was replaced"));
            }
            Err(fault) => self.trace.note(format_args!("m{at} cannot start: {fault}")),
        }
        // Outside this world, which ends here.
        tokio::spawn(async move {
            self.end(at, Death::Kill);
            tokio::time::sleep(RESTART_PAUSE).await;
            self.boot(at);
        });
        std::future::pending::<()>().await;
    }

    /// Pings the others and draws conclusions, until this boot is over.
    async fn look_out(self: &Arc<Cluster>, at: usize, node: Arc<Node>) {
        let heard: Arc<Mutex<BTreeMap<usize, Instant>>> = Arc::default();
        let mut given_up = BTreeMap::new();
        let mut looked = Instant::now();
        let lost = node.lost();
        while lost.borrow().is_none() {
            let now = Instant::now();
            // A process that was stopped blames nobody for its own silence.
            if now - looked > SUSPECT_AFTER {
                heard.lock().unwrap().clear();
            }
            looked = now;
            for other in (0..self.machines.len()).filter(|other| *other != at) {
                let Some(id) = self.net.id_of(other) else { continue };
                let last = *heard.lock().unwrap().entry(other).or_insert(now);
                let silent = now - last;
                let is_suspect = silent > SUSPECT_AFTER;
                if node.members().is_suspect(id) != is_suspect {
                    node.members().set_health(id, if is_suspect { Health::Suspect } else { Health::Alive });
                    self.trace.note(format_args!("m{at} thinks m{other} is silent: {is_suspect}"));
                }
                let is_blind = self.shape.mutation == Some(Mutation::SkipRepair);
                if silent > GRACE && !is_blind && given_up.insert(other, last) != Some(last) {
                    let (node, world) = (node.clone(), self.net.host(at).map(|host| host.world()));
                    let give_up = async move { node.members().give_up(id, GRACE).await };
                    world.map(|world| tokio::spawn(InWorld::new(&world, give_up)));
                }
                self.ping(at, other, heard.clone());
            }
            tokio::time::sleep(PING_PAUSE).await;
        }
    }

    fn ping(self: &Arc<Cluster>, at: usize, other: usize, heard: Arc<Mutex<BTreeMap<usize, Instant>>>) {
        let cluster = self.clone();
        tokio::spawn(async move {
            let is_there = cluster.net.carry(at, other).await && cluster.machines[other].answers();
            if is_there && cluster.net.carry(other, at).await {
                heard.lock().unwrap().insert(other, Instant::now());
            }
        });
    }

    /// Every fault ends; machines that are not lost run.
    pub fn heal(self: &Arc<Cluster>) {
        self.trace.note(format_args!("all faults end"));
        self.net.heal();
        self.net.set_faults(0, 0, 0);
        self.catalog.set_faults(Default::default());
        self.lake.set_faults(Default::default());
        self.lake.refuse_all(false);
        self.lake_way.heal();
        for (at, machine) in self.machines.iter().enumerate() {
            if machine.is_failing() {
                self.replace_drive(at);
            }
            machine.set_slow_ms(0);
            machine.set_full(false);
            machine.go_on();
            self.boot(at);
        }
    }
}
