//! Checkpoint sets: shards written through any nodes, published through another.

use stoker_store::{Finish, Result, SetId, SetRequest, ShardRequest, Store};

use crate::cell::client::{Clients, key};
use crate::cell::network::Host;
use crate::cell::world::VOLUME;

/// Shards of a set.
pub const SHARDS: u32 = 2;

/// A set that is not published after so long is given up.
const DEADLINE_S: u32 = 20;

/// A set that somebody began.
#[derive(Clone, Debug)]
pub struct Set {
    /// Its directory.
    pub target: String,
    /// Its bytes: each shard has them, and its number behind.
    pub bytes: Vec<u8>,
    /// Whether the publish was acknowledged.
    pub is_published: bool,
}

impl Set {
    /// The key of a shard.
    pub fn shard(&self, number: u32) -> String {
        format!("{}{number}", self.target)
    }

    /// The bytes of a shard.
    pub fn content(&self, number: u32) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.push(number as u8);
        bytes
    }
}

/// Writes a set, from its begin to its publish.
pub async fn write(clients: &Clients, host: &Host) {
    let mut set =
        Set { target: format!("set{}/", clients.sets().len()), bytes: clients.fresh(), is_published: false };
    clients.sets().push(set.clone());
    let outcome = write_all(clients, host, &set).await;
    set.is_published = outcome.is_ok();
    let word = outcome.map_or_else(|fault| fault.to_string(), |()| "published".into());
    clients.cluster.trace.note(format_args!("client: set {}: {word}", set.target));
    let mut sets = clients.sets();
    let known = sets.iter_mut().find(|known| known.target == set.target);
    known.into_iter().for_each(|known| known.is_published = set.is_published);
}

async fn write_all(clients: &Clients, host: &Host, set: &Set) -> Result<()> {
    let request = SetRequest {
        target: key(&set.target),
        owner: "sim".into(),
        shards: SHARDS,
        deadline_s: Some(DEADLINE_S),
    };
    let node = host.node.clone();
    let begun = clients.on(host, async move { node.set_begin(VOLUME, request).await });
    let id: SetId = begun.await?.set;
    for number in 0..SHARDS {
        let host = clients.some_host().unwrap_or_else(|| host.clone());
        let (node, name, bytes) = (host.node.clone(), key(&set.shard(number)), set.content(number));
        let shard = async move {
            let size = Some(bytes.len() as u64);
            let request = ShardRequest { number, size, ..ShardRequest::default() };
            let mut writer = node.set_shard(VOLUME, &name, id, request).await?;
            for piece in bytes.chunks(4_096) {
                let mut buf = writer.buffer().await?;
                buf.fill(piece);
                writer.write(buf).await?;
            }
            writer.finish(Finish::default()).await.map(drop)
        };
        clients.on(&host, shard).await?;
    }
    let host = clients.some_host().unwrap_or_else(|| host.clone());
    let node = host.node.clone();
    clients.on(&host, async move { node.set_publish(VOLUME, id).await.map(drop) }).await
}
