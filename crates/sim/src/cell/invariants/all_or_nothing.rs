//! A checkpoint set is visible whole or not at all, with the bytes of its shards; in the lake, too, once all is at rest.

use stoker_store::{ErrorKind, Store};

use super::Broken;
use crate::cell::client::{Clients, key};
use crate::cell::workloads::sets::SHARDS;
use crate::cell::world::VOLUME;

/// Reads every set through a node of a cluster at rest.
pub async fn check(clients: &Clients) -> Result<(), Broken> {
    let broken = |how: String| Broken::new("all_or_nothing", how);
    let sets = clients.sets().clone();
    let Some(host) = clients.some_host() else { return Ok(()) };
    for set in sets {
        let mut seen = 0;
        for number in 0..SHARDS {
            let (node, name) = (host.node.clone(), key(&set.shard(number)));
            let read = clients.on(&host, async move {
                let file = node.open(VOLUME, &name).await?;
                let mut bytes = Vec::new();
                loop {
                    let piece = file.read(bytes.len() as u64, 1 << 20).await?;
                    if piece.is_empty() {
                        return Ok(bytes);
                    }
                    bytes.extend_from_slice(&piece);
                }
            });
            let in_lake = clients.cluster.lake.objects().remove(set.shard(number).as_bytes());
            match read.await {
                Ok(bytes) if bytes != set.content(number) => {
                    return Err(broken(format!("`{}` has other bytes", set.shard(number))));
                }
                Ok(bytes) if in_lake.as_ref().is_none_or(|object| object.body != bytes) => {
                    return Err(broken(format!("`{}` is not in the lake", set.shard(number))));
                }
                Ok(_) => seen += 1,
                Err(fault) if fault.kind == ErrorKind::NotFound => {}
                Err(fault) => return Err(broken(format!("`{}`: {fault}", set.shard(number)))),
            }
        }
        let is_whole = seen == SHARDS || (seen == 0 && !set.is_published);
        if !is_whole {
            return Err(broken(format!("{seen} of {SHARDS} shards of `{}` are visible", set.target)));
        }
    }
    Ok(())
}
