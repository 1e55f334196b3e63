//! Numbers of the doors of a daemon, for whoever shows them.

use std::sync::Arc;

use stoker_admin::Source;
use stoker_audit::Log;
use stoker_client::Server;
use stoker_registry::Registry;

use super::audit;
use super::nfs::NfsDoor;
use super::s3::S3Door;

/// Where numbers of the doors come from.
pub fn numbers(
    door: &Server,
    s3: Option<Arc<S3Door>>,
    nfs: Option<Arc<NfsDoor>>,
    registry: Option<Arc<Registry>>,
    log: Option<&Arc<Log>>,
) -> Vec<Source> {
    let mut all: Vec<Source> = vec![Box::new(door.counters())];
    all.extend(log.map(audit::numbers));
    if let Some(s3) = s3 {
        all.push(Box::new(move || s3.counters()));
    }
    if let Some(nfs) = nfs {
        all.push(Box::new(move || nfs.counters()));
    }
    if let Some(registry) = registry {
        all.push(Box::new(move || registry.counters()));
    }
    all
}
