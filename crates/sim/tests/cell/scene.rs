//! A healthy cluster, and short words for what stories do with it.

use std::sync::Arc;
use std::time::Duration;

use stoker_node::Node;
use stoker_sim::cell::client::{Clients, key};
use stoker_sim::cell::invariants::heals;
use stoker_sim::cell::network::Host;
use stoker_sim::cell::runtime;
use stoker_sim::cell::world::{Cluster, Shape, VOLUME};
use stoker_store::{
    Class, Condition, CopyRequest, Finish, Receipt, RenameMode, Result, Store, VolumePolicy, WriteRequest,
};

/// Seeds that each story is told with: delays differ, the end must not.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;

pub struct Scene {
    pub cluster: Arc<Cluster>,
    clients: Clients,
}

/// Drains a second after the last change.
pub fn eager() -> VolumePolicy {
    VolumePolicy { class: Class::Two, drain_quiet_s: 1, drain_lag_max_s: 20, ..VolumePolicy::default() }
}

/// Drains so late that a story is over before.
pub fn lazy() -> VolumePolicy {
    VolumePolicy { drain_quiet_s: 120, drain_lag_max_s: 120, ..eager() }
}

/// Tells a story in a cluster of so many nodes, with every seed.
pub fn play(nodes: usize, policy: &VolumePolicy, story: impl AsyncFn(&Scene)) {
    for seed in SEEDS {
        runtime().block_on(async {
            let (policy, promised) = (policy.clone(), policy.clone());
            let shape = Shape { nodes, segments: 24, policy, promised, mutation: None };
            let cluster = Cluster::start(shape, seed).await;
            let scene = Scene { clients: Clients::new(cluster.clone(), seed), cluster };
            story(&scene).await;
            scene.cluster.dismantle();
        });
    }
}

impl Scene {
    pub fn host(&self, at: usize) -> Host {
        self.cluster.net.host(at).expect("it is open")
    }

    /// Asks a node something.
    pub async fn on<T: Send + 'static, F>(&self, at: usize, ask: impl FnOnce(Arc<Node>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let host = self.host(at);
        self.clients.on(&host, ask(host.node.clone())).await
    }

    pub async fn put(&self, at: usize, name: &str, bytes: &[u8]) -> Result<Receipt> {
        self.write(at, name, bytes, false).await
    }

    pub async fn append(&self, at: usize, name: &str, bytes: &[u8]) -> Result<Receipt> {
        self.write(at, name, bytes, true).await
    }

    async fn write(&self, at: usize, name: &str, bytes: &[u8], append: bool) -> Result<Receipt> {
        let (own, bytes) = (key(name), bytes.to_vec());
        self.on(at, |node| async move {
            let request = WriteRequest { size: Some(bytes.len() as u64), append, ..WriteRequest::default() };
            let mut writer = node.create(VOLUME, &own, request).await?;
            for piece in bytes.chunks(4_096) {
                let mut buf = writer.buffer().await?;
                buf.fill(piece);
                writer.write(buf).await?;
            }
            writer.finish(Finish::default()).await
        })
        .await
    }

    pub async fn get(&self, at: usize, name: &str) -> Result<Vec<u8>> {
        let own = key(name);
        self.on(at, |node| async move {
            let file = node.open(VOLUME, &own).await?;
            let mut bytes = Vec::new();
            loop {
                let piece = file.read(bytes.len() as u64, 1 << 20).await?;
                if piece.is_empty() {
                    return Ok(bytes);
                }
                bytes.extend_from_slice(&piece);
            }
        })
        .await
    }

    pub async fn delete(&self, at: usize, name: &str) -> Result<()> {
        let keys = vec![(key(name), Condition::default())];
        let deleted = self.on(at, |node| async move { node.delete(VOLUME, keys).await }).await?;
        deleted.into_iter().try_for_each(|one| one.map(drop))
    }

    pub async fn copy(&self, at: usize, from: &str, to: &str) -> Result<Receipt> {
        let request = CopyRequest {
            from_volume: VOLUME.into(),
            from: key(from),
            from_condition: Condition::default(),
            to_volume: VOLUME.into(),
            to: key(to),
            condition: Condition::default(),
            attributes: None,
        };
        self.on(at, |node| async move { node.copy(request).await }).await
    }

    pub async fn rename(&self, at: usize, from: &str, to: &str) -> Result<()> {
        let (from, to) = (key(from), key(to));
        self.on(at, |node| async move { node.rename(VOLUME, &from, &to, RenameMode::Replace).await }).await
    }

    /// What the lake has under a key.
    pub fn in_lake(&self, name: &str) -> Option<Vec<u8>> {
        self.cluster.lake.objects().get(name.as_bytes()).map(|object| object.body.to_vec())
    }

    /// Waits, in simulated time, until something holds.
    pub async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        for _ in 0..6_000 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("never: {what}\n{}", self.cluster.trace.tail());
    }

    pub async fn until_drained(&self, name: &str, bytes: &[u8]) {
        self.until("the file is in the lake", async || self.in_lake(name).as_deref() == Some(bytes)).await;
    }

    pub async fn pause_ms(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Nothing is wrong any more, and everything comes to rest.
    pub async fn rest(&self) {
        self.cluster.heal();
        self.cluster.all_open().await;
        let healed = heals::check(&self.cluster).await;
        assert!(healed.is_ok(), "{}{}", self.cluster.trace.tail(), healed.unwrap_err());
    }
}
