//! What is acknowledged is on as many nodes as the class says, or the receipt says otherwise.

use stoker_store::{Receipt, VolumePolicy, WhenAlone};

use super::Broken;

/// Looks at the receipt of a write that was just acknowledged.
pub fn check(promised: &VolumePolicy, name: &str, receipt: &Receipt) -> Result<(), Broken> {
    let mut nodes: Vec<&str> = receipt.holders.iter().map(|holder| holder.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let copies = promised.class.copies();
    // With too few nodes the lake has it, and the receipt says how many nodes do.
    let is_said = promised.when_alone == WhenAlone::Lake && (receipt.copies as usize) < copies;
    if nodes.len() >= copies || is_said {
        return Ok(());
    }
    let how = format!("`{name}` was acknowledged with {} of {copies} copies", nodes.len());
    Err(Broken::new("no_quiet_degradation", how))
}
