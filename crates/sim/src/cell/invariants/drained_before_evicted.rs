//! At rest every file is a plain object of the lake under its own key, with its bytes, and the lake holds nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Broken;
use crate::cell::client::Clients;
use crate::cell::model::words;

/// Seconds after which nobody can still be asked whether it reads a copy.
const COPIES_GO_S: u32 = 120;

/// Compares the lake with what clients know, once that is certain.
pub async fn check(clients: &Clients) -> Result<(), Broken> {
    let broken = |how: String| Broken::new("drained_before_evicted", how);
    let mut objects: BTreeMap<Vec<u8>, _> = clients.cluster.lake.objects();
    let names = clients.model().keys();
    for name in names {
        let content = clients.model().possible(&name).pop().flatten();
        let found = objects.remove(name.as_bytes()).map(|object| object.body.to_vec());
        if content.as_deref() != found.as_ref() {
            let (want, have) = (words(&content), words(&found.map(std::sync::Arc::new)));
            return Err(broken(format!("the lake has {have} under `{name}`, the cluster {want}")));
        }
    }
    // Those of sets are checked with the sets. Copies for open reads have a tombstone from before their first byte, and go when nodes
    // next ask each other who still reads them.
    let mut left = None;
    for _ in 0..COPIES_GO_S {
        left = clients.cluster.lake.objects().into_keys().find(|key| key.starts_with(b".stoker-open/"));
        if left.is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let others =
        objects.into_keys().find(|key| !key.starts_with(b"set") && !key.starts_with(b".stoker-open/"));
    match others.or(left) {
        Some(key) => Err(broken(format!("the lake has `{}`, which nobody wrote", key.escape_ascii()))),
        None => Ok(()),
    }
}
