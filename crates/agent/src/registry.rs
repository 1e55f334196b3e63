//! The registry door of a daemon.

use std::sync::Arc;

use stoker_access::Guard;
use stoker_registry::{Registry, RegistryOptions};
use stoker_store::{
    Condition, ErrorKind, Filler, Finish, Key, ListRequest, Store, StoreError, Subject, VolumeOptions,
    WriteRequest,
};

use super::plan::RegistryPlan;
use super::{cannot_listen, refused};
use crate::failure::Failure;
use crate::{clock, out};

/// What the door is called where somebody says by which one a call came.
const DOOR: &str = "registry";
/// The file that says that a volume is for images: the door believes what is in it.
const MARK: &str = "stoker-registry";

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
        Ok(_) => {}
        Err(fault) if fault.kind == ErrorKind::NotFound => {
            match store.volume_create(volume, VolumeOptions::default()).await {
                Err(fault) if fault.kind != ErrorKind::Conflict => return Err(refused(fault)),
                _ => {}
            }
        }
        Err(fault) => return Err(refused(fault)),
    }
    match take_volume(store, volume).await.map_err(refused)? {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "`[registry] volume`: there are files in `{volume}` that no registry door put there"
        ))
        .hint(format!(
            "name a volume that is empty or not there; if nobody else may write to this one, put an empty file `{MARK}` in it"
        ))),
    }
}

/// Marks a volume with nothing in it; false for one with something in it and no mark. Whoever made it marked it before it put anything
/// there.
async fn take_volume(store: &Arc<dyn Store>, volume: &str) -> Result<bool, StoreError> {
    let page = store.list(volume, ListRequest { limit: 1, ..ListRequest::default() }).await?;
    let mark = Key::new(MARK)?;
    if !page.entries.is_empty() {
        return match store.stat(volume, &mark).await {
            Ok(_) => Ok(true),
            Err(fault) if fault.kind == ErrorKind::NotFound && fault.subject == Subject::Key => Ok(false),
            Err(fault) => Err(fault),
        };
    }
    let request = WriteRequest { condition: Condition::absent(), size: Some(0), ..WriteRequest::default() };
    let made = match store.create(volume, &mark, request).await {
        Ok(writer) => Filler::new(writer).finish(Finish::default()).await.map(|_| ()),
        Err(fault) => Err(fault),
    };
    match made {
        // Another node was quicker.
        Err(fault) if fault.kind == ErrorKind::Conflict && fault.subject == Subject::Condition => Ok(true),
        made => made.map(|()| true),
    }
}

/// Where clients of this machine find it.
pub fn urls(registry: &Registry) -> Vec<String> {
    registry.addresses().iter().map(|address| format!("http://{}", super::s3::reachable(*address))).collect()
}

#[cfg(test)]
mod tests {
    use stoker_node::{DriveOptions, Node, NodeOptions};

    use super::*;

    #[tokio::test]
    async fn a_volume_with_files_of_others_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = NodeOptions::new(folder.path().join("node"));
        options.drives = vec![DriveOptions { path: folder.path().join("ring"), size_bytes: Some(256 << 20) }];
        options.lake = Some(format!("file://{}", folder.path().join("lake").display()));
        options.lake_options.create_root = true;
        options.memory_bytes = 256 << 20;
        let store: Arc<dyn Store> = Node::open(options).await.unwrap();
        let put = async |volume: &str| {
            let key = Key::new("a/file").unwrap();
            let writer = store.create(volume, &key, WriteRequest::default()).await.unwrap();
            Filler::new(writer).finish(Finish::default()).await.unwrap();
        };
        for volume in ["foreign", "empty"] {
            store.volume_create(volume, VolumeOptions::default()).await.unwrap();
        }
        put("foreign").await;
        for volume in ["images", "empty"] {
            assert!(make_volume(&store, volume).await.is_ok());
            put(volume).await;
            assert!(make_volume(&store, volume).await.is_ok(), "it has its mark");
        }
        let failure = make_volume(&store, "foreign").await.unwrap_err();
        assert!(failure.cause().contains("[registry] volume"), "{}", failure.cause());
    }
}
