//! The volume that a new node begins with, so that the first command of a person works.

use std::sync::Arc;
use std::time::Duration;

use stoker_access::AUDIT_VOLUME;
use stoker_store::{ErrorKind, Store, VolumeOptions};

use super::plan::FirstVolume;
use super::refused;
use crate::failure::Failure;
use crate::out;

/// Pause between attempts while the lake does not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Makes the first volume of a node that has none. Returns the volume to begin with. If the lake does not answer, it is
/// made later, in the background: a volume is not made before anybody knows what its lake holds.
pub async fn first(store: &Arc<dyn Store>, plan: Option<&FirstVolume>) -> Result<Option<String>, Failure> {
    let volumes = store.volumes().await.map_err(refused)?;
    let volumes: Vec<_> = volumes.into_iter().filter(|volume| volume.name != AUDIT_VOLUME).collect();
    let Some(plan) = plan else { return Ok(volumes.into_iter().next().map(|volume| volume.name)) };
    if !volumes.is_empty() {
        let named = volumes.iter().find(|volume| volume.name == plan.name);
        return Ok(named.or(volumes.first()).map(|volume| volume.name.clone()));
    }
    let options = || VolumeOptions { lake: None, policy: plan.policy.clone() };
    match store.volume_create(&plan.name, options()).await {
        Ok(_) => {}
        Err(error) if error.kind == ErrorKind::Unavailable => {
            out::say(format!("volume {} is made as soon as the lake answers", plan.name));
            let (store, name, options) = (Arc::clone(store), plan.name.clone(), options());
            tokio::spawn(async move { make_later(&*store, &name, options).await });
        }
        Err(error) => return Err(refused(error)),
    }
    Ok(Some(plan.name.clone()))
}

async fn make_later(store: &dyn Store, name: &str, options: VolumeOptions) {
    loop {
        tokio::time::sleep(RETRY_PAUSE).await;
        match store.volume_create(name, options.clone()).await {
            Ok(_) => {
                tracing::info!("the lake answers; volume {name} is made");
                return;
            }
            Err(error) if error.kind == ErrorKind::Unavailable => {}
            Err(error) => {
                // Somebody else made it, or the node stops.
                if !matches!(error.kind, ErrorKind::Conflict | ErrorKind::Closed) {
                    tracing::error!("volume {name} cannot be made: {error}");
                }
                return;
            }
        }
    }
}
