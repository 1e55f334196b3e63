//! What is acknowledged is on as many nodes as the class says, or the receipt says otherwise.

use stoker_store::Receipt;

use super::Broken;

/// Copies that the class of the volume stands for.
const COPIES: usize = 2;

/// Looks at the receipt of a write that was just acknowledged.
pub fn check(name: &str, receipt: &Receipt) -> Result<(), Broken> {
    let mut nodes: Vec<&str> = receipt.holders.iter().map(|holder| holder.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.len() >= COPIES {
        return Ok(());
    }
    let how = format!("`{name}` was acknowledged with {} of {COPIES} copies", nodes.len());
    Err(Broken::new("no_quiet_degradation", how))
}
