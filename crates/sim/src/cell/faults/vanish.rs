//! Copies vanish from a drive without an error, and then another machine is lost: in between, the cluster has time to notice.

use std::sync::Arc;
use std::time::Duration;

use crate::cell::client::Clients;
use crate::cell::invariants::{Broken, said_is_true};
use crate::cell::machine::Vanish;
use crate::cell::workloads;
use crate::cell::world::Cluster;
use crate::rng::Rng;

/// Of so many runs of a hundred.
const PERCENT: u64 = 40;

/// Enough for a node in a healthy cluster to find what it lacks, and to bring it back.
const NOTICED: Duration = Duration::from_secs(60);

impl Vanish {
    /// One of them.
    pub fn some(rng: &mut Rng) -> Vanish {
        match rng.below(3) {
            0 => Vanish::Headers,
            1 => Vanish::Records,
            _ => Vanish::Segments,
        }
    }
}

/// In a cluster without other faults: files that the lake does not take, copies that vanish while their node is away, and after a
/// time the loss of another machine. What was acknowledged must survive both.
pub async fn vanish_and_lose(cluster: &Arc<Cluster>, clients: &Clients, rng: &mut Rng) -> Result<(), Broken> {
    if !rng.percent(PERCENT) || !cluster.take_loss() {
        return Ok(());
    }
    cluster.lake.refuse_all(true);
    workloads::mixed(clients, rng).await?;
    let at = rng.below(cluster.machines.len());
    let other = (at + 1 + rng.below(cluster.machines.len() - 1)) % cluster.machines.len();
    if rng.percent(30) {
        // A clean stop closes the segments: the next start reads no header.
        cluster.leave(at).await;
    }
    let percent = [10, 50, 100][rng.below(3)];
    cluster.vanish(at, Vanish::some(rng), percent);
    cluster.boot(at);
    let open = tokio::time::timeout(Duration::from_secs(120), cluster.all_open()).await;
    open.map_err(|_| Broken::new("heals", "a node does not come back without some of its records"))?;
    tokio::time::sleep(NOTICED).await;
    said_is_true::check(clients).await?;
    cluster.trace.note(format_args!("m{other} is lost after m{at} had time to notice what it lacks"));
    cluster.lose(other);
    cluster.heal();
    let open = tokio::time::timeout(Duration::from_secs(120), cluster.all_open()).await;
    open.map_err(|_| Broken::new("heals", "the others do not go on without the lost one"))
}
