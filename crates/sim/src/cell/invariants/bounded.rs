//! Memory has limits, and what was taken is given back: in a cluster at rest no ring has a buffer out, whatever was refused, cut
//! off or given up before. Buffers that are lost add up to a node that takes no writes any more.

use std::time::Duration;

use super::Broken;
use crate::cell::world::Cluster;

/// Longest time until the last answer is dropped.
const PATIENCE_S: u64 = 60;

/// Looks at the buffers of every ring.
pub async fn check(cluster: &Cluster) -> Result<(), Broken> {
    let mut left = Vec::new();
    for _ in 0..PATIENCE_S {
        left = cluster.rings().into_iter().map(|(at, ring)| (at, ring.pool().in_use())).collect();
        left.retain(|(_, bytes)| *bytes > 0);
        if left.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let words: Vec<String> = left.iter().map(|(at, bytes)| format!("{bytes} bytes on m{at}")).collect();
    Err(Broken::new("bounded", format!("at rest buffers are still out: {}", words.join(", "))))
}
