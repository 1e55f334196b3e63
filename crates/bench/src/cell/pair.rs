//! Two real nodes of one cell, each with a runtime and a ring of its own, connected over loopback. They are what `stoker
//! serve` runs, without its doors.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stoker_node::{ClusterOptions, DriveOptions, JoinAs, Labels, Member, Node, NodeOptions};
use stoker_store::{
    Class, DrainPolicy, ErrorKind, JOIN_TOKEN_TTL_MS_DEFAULT, LakeMode, Store, StoreError, VolumeOptions,
    VolumePolicy,
};
use tokio::runtime::Runtime;

use crate::failure::Failure;

/// Threads of a node, as in `stoker serve`; its ring and its pings have more.
const WORKERS: usize = 2;
/// Memory of a node. Nothing of it is a cache: what is read is read from where it lies.
const MEMORY_BYTES: u64 = 2 << 30;
/// Longer than any run, so that a node that is slow under load is not declared down.
const GRACE: Duration = Duration::from_secs(3600);
/// Looks for the other node, and the pause between them: half a minute.
const LOOKS_MAX: u32 = 3_000;
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// What is between the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Security {
    /// Nothing is encrypted.
    Plain,
    /// Mutual TLS.
    Tls,
}

impl Security {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Security::Plain => "plain",
            Security::Tls => "tls",
        }
    }
}

/// Where the nodes live.
#[derive(Clone, Debug)]
pub struct Place {
    /// A folder for both.
    pub dir: PathBuf,
    /// Size of each ring.
    pub ring_bytes: u64,
}

/// A node that runs.
pub struct Seat {
    runtime: Runtime,
    member: Arc<Member>,
}

impl Seat {
    /// Its threads.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        self.member.node()
    }

    fn start(place: &Place, name: &str, security: Security) -> Result<Seat, Failure> {
        let mut node = NodeOptions::new(place.dir.join(name));
        let ring = place.dir.join(format!("{name}-ring"));
        node.drives = vec![DriveOptions { path: ring, size_bytes: Some(place.ring_bytes) }];
        node.memory_bytes = MEMORY_BYTES;
        node.cache_bytes = Some(0);
        let options = ClusterOptions {
            node,
            name: name.to_owned(),
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            gossip: Vec::new(),
            labels: Labels::default(),
            weight: 1,
            plaintext: security == Security::Plain,
            grace: GRACE,
            promote: None,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name(format!("{name}-worker"))
            .enable_all()
            .build()
            .map_err(|e| Failure::io("runtime", &e))?;
        let member = runtime.block_on(Member::start(options))?;
        runtime.block_on(member.node().wait_prepared())?;
        Ok(Seat { runtime, member })
    }

    fn stop(self) {
        self.runtime.block_on(self.member.stop());
        drop(self.member);
        self.runtime.shutdown_timeout(Duration::from_secs(5));
    }
}

/// Both nodes. Clients work on the near one, which also keeps the catalog.
pub struct Pair {
    near: Seat,
    far: Seat,
}

impl Pair {
    /// Makes a cell of two nodes and waits until both take writes at full speed.
    pub fn make(place: Place, security: Security) -> Result<Pair, Failure> {
        let near = Seat::start(&place, "near", security)?;
        let address = near.member.addresses().first().map(SocketAddr::to_string).unwrap_or_default();
        let far_dir = place.dir.join("far");
        let make = near.member.node().members().join_token_create(JOIN_TOKEN_TTL_MS_DEFAULT, 1);
        let (token, _) = near.runtime.block_on(make)?;
        let wanted = JoinAs { name: "far".to_owned(), is_name_chosen: true, peers: None };
        near.runtime.block_on(stoker_node::join(&far_dir, &address, &token, &wanted))?;
        let far = Seat::start(&place, "far", security)?;
        let pair = Pair { near, far };
        pair.wait_for_each_other()?;
        Ok(pair)
    }

    /// The node that clients work on.
    pub fn near(&self) -> &Seat {
        &self.near
    }

    /// The other one.
    pub fn far(&self) -> &Seat {
        &self.far
    }

    /// Makes a volume that drains only when asked.
    pub fn make_volume(&self, name: &str, class: Class) -> Result<(), Failure> {
        let policy = VolumePolicy { class, drain: DrainPolicy::OnDemand, ..VolumePolicy::default() };
        self.create(name, VolumeOptions { lake: Some("none".into()), policy: Some(policy) })
    }

    /// Makes a volume of what lies in a folder.
    pub fn make_lake_volume(&self, name: &str, lake: String) -> Result<(), Failure> {
        let policy = VolumePolicy { lake_mode: LakeMode::ReadOnly, ..VolumePolicy::default() };
        self.create(name, VolumeOptions { lake: Some(lake), policy: Some(policy) })
    }

    fn create(&self, name: &str, options: VolumeOptions) -> Result<(), Failure> {
        let created = self.near.runtime.block_on(self.near.node().volume_create(name, options));
        created.map(drop).map_err(Failure::from)
    }

    /// Stops both.
    pub fn stop(self) {
        self.far.stop();
        self.near.stop();
    }

    fn wait_for_each_other(&self) -> Result<(), Failure> {
        for seat in [&self.near, &self.far] {
            seat.runtime.block_on(async {
                for _ in 0..LOOKS_MAX {
                    let nodes = seat.node().status().await?.nodes;
                    if nodes.len() == 2 && nodes.iter().all(|node| node.state == "up" && !node.suspect) {
                        return Ok(());
                    }
                    tokio::time::sleep(LOOK_PAUSE).await;
                }
                Err(StoreError::new(ErrorKind::Unavailable, "the two nodes do not find each other"))
            })?;
        }
        Ok(())
    }
}
