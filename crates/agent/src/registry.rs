//! The registry door of a daemon.

use std::sync::Arc;

use stoker_access::Guard;
use stoker_registry::{Registry, RegistryOptions};
use stoker_store::{ErrorKind, Store, VolumeOptions};

use super::plan::RegistryPlan;
use super::{cannot_listen, refused};
use crate::failure::Failure;
use crate::{clock, out};

/// What the door is called where somebody says by which one a call came.
const DOOR: &str = "registry";

/// Listens and serves; none if it has no address.
pub async fn start(
    store: &Arc<dyn Store>,
    guard: &Guard,
    plan: &RegistryPlan,
) -> Result<Option<Registry>, Failure> {
    if plan.listen.is_empty() {
        return Ok(None);
    }
    make_volume(store, &plan.volume).await?;
    for address in plan.listen.iter().filter(|address| !address.ip().is_loopback()) {
        out::say(format!(
            "registry {address}: it gives images to everybody who reaches it, in plain HTTP; keep it on networks that you trust"
        ));
    }
    for upstream in plan.upstreams.iter().filter(|upstream| upstream.is_plain()) {
        out::say(format!(
            "registry: {} is asked in plain HTTP: what its tags are may be changed on the way",
            upstream.host()
        ));
    }
    let options = RegistryOptions {
        listen: plan.listen.clone(),
        volume: plan.volume.clone(),
        upstreams: plan.upstreams.clone(),
        bytes_max: plan.bytes_max,
        tag_age: plan.tag_age,
        now_ms: Arc::new(clock::unix_ms),
    };
    let view = guard.service(DOOR, Vec::new());
    Registry::start(view, options).await.map(Some).map_err(|error| cannot_listen(DOOR, &error))
}

/// Another node may make it at the same time.
async fn make_volume(store: &Arc<dyn Store>, volume: &str) -> Result<(), Failure> {
    match store.volume(volume).await {
        Err(fault) if fault.kind == ErrorKind::NotFound => {}
        found => return found.map(|_| ()).map_err(refused),
    }
    match store.volume_create(volume, VolumeOptions::default()).await {
        Err(fault) if fault.kind != ErrorKind::Conflict => Err(refused(fault)),
        _ => Ok(()),
    }
}

/// Where clients of this machine find it.
pub fn urls(registry: &Registry) -> Vec<String> {
    registry.addresses().iter().map(|address| format!("http://{}", super::s3::reachable(*address))).collect()
}
