//! Bytes are checked between drive and client. That a read shows no bytes which nobody wrote is held against the model; here is
//! what a read may say instead of showing them.

use stoker_store::{ErrorKind, StoreError};

use super::Broken;
use crate::cell::world::Cluster;

/// A read failed. Damage may be reported while a drive or the lake rots, and copies that are sound may be out of reach. Without rot there is
/// none to report.
pub fn check(cluster: &Cluster, name: &str, fault: &StoreError) -> Result<(), Broken> {
    match fault.kind {
        ErrorKind::Corrupt if !cluster.rots() => Err(Broken::new(
            "no_silent_corruption",
            format!("neither a drive nor the lake rots, and `{name}` is damaged: {fault}"),
        )),
        _ => Ok(()),
    }
}
