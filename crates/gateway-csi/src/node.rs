//! Shows volumes on this machine.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stoker_store::{Class, DrainPolicy, ErrorKind, Order, Report, Store, VolumeOptions, VolumePolicy};
use tonic::Status;

use crate::answer::{Answer, blocking, fault, to_the_end};
use crate::capability::Use;
use crate::copying;
use crate::door::Door;
use crate::locks::Locks;
use crate::mounts::{Mounted, Mounts, State, What, checked, failed, is_served_by_us, state};
use crate::parameters::quantity;
use crate::proto::*;
use crate::record::{Place, Records, SCRATCH, hash};
use crate::sys;
use crate::tenants;
use crate::{NodeOptions, TenantDoor};

/// STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS, VOLUME_CONDITION, SINGLE_NODE_MULTI_WRITER.
const CAPABILITIES: &[i32] = &[1, 2, 4, 5];
const BYTES: i32 = 1;
const INODES: i32 = 2;

/// Says that a volume goes with its pod.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
const FOREIGN: &str = "csi.storage.k8s.io/";
/// How often it is looked whether mounts are alive.
const WATCH: Duration = Duration::from_secs(2);
/// What a mount may take to say that it is.
const PROBE: Duration = Duration::from_secs(10);

/// The service.
pub struct Node {
    door: Arc<Door>,
    records: Records,
    mounts: Arc<Mounts>,
    locks: Locks,
    driver: String,
    tenants: Option<TenantDoor>,
    id: String,
    volumes_max: i64,
}

impl Node {
    pub fn open(door: Arc<Door>, driver: &str, options: &NodeOptions) -> std::io::Result<Node> {
        Ok(Node {
            records: Records::new(door.clone()),
            mounts: Arc::new(Mounts::open(options)?),
            tenants: options.tenants.clone(),
            locks: Locks::default(),
            driver: driver.to_owned(),
            id: options.id.clone(),
            volumes_max: options.volumes_max,
            door,
        })
    }

    pub fn capabilities(&self, _: NodeGetCapabilitiesRequest) -> Answer<NodeGetCapabilitiesResponse> {
        let capabilities =
            CAPABILITIES.iter().map(|kind| ServiceCapability { rpc: Some(Rpc { kind: *kind }) });
        Ok(NodeGetCapabilitiesResponse { capabilities: capabilities.collect() })
    }

    /// Who this is, and where: the cluster that it reaches, the cell and rack of the node that it asks.
    pub async fn info(self: Arc<Self>, _: NodeGetInfoRequest) -> Answer<NodeGetInfoResponse> {
        let mut segments = HashMap::from([(self.key("cluster"), self.door.cluster().await?.to_owned())]);
        let store = self.door.open().await?;
        let own = store.status().await.map_err(fault)?;
        if let Report::Nodes(nodes) = store.operate(Order::Nodes).await.map_err(fault)?
            && let Some(node) = nodes.iter().find(|node| node.node == own.node)
        {
            for (name, value) in [("cell", &node.cell), ("rack", &node.tor)] {
                if is_label(value) {
                    segments.insert(self.key(name), value.clone());
                }
            }
        }
        if !own.rings.is_empty() {
            segments.insert(self.key("nvme-scratch"), "true".to_owned());
        }
        Ok(NodeGetInfoResponse {
            node_id: self.id.clone(),
            max_volumes_per_node: self.volumes_max,
            accessible_topology: Some(Topology { segments }),
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.driver)
    }

    pub async fn stage(self: Arc<Self>, request: NodeStageVolumeRequest) -> Answer<NodeStageVolumeResponse> {
        check_id(&request.volume_id)?;
        let path = checked(&request.staging_target_path, "staging target")?;
        let used = Use::of(request.volume_capability.as_ref())?;
        let token = tenants::token(&request.volume_context, &request.secrets)?;
        let place = self.place(&request.volume_id).await?;
        let held = self.locks.take(&request.volume_id)?;
        if let Some(token) = &token {
            let door = self.tenants.as_ref().ok_or_else(|| {
                Status::failed_precondition("tokens of users need --tenant-endpoint of this driver")
            })?;
            door.check(token, &place.volume).await?;
        }
        let mounted = Mounted {
            volume_id: request.volume_id,
            path,
            what: What::Staged { place, arguments: used.arguments, by_token: token.is_some() },
            read_only: used.read_only,
            single_writer: false,
            boot: String::new(),
        };
        let mounts = self.mounts.clone();
        to_the_end(blocking(move || {
            let _held = held;
            show(&mounts, &mounted, token.as_deref())?;
            Ok(NodeStageVolumeResponse {})
        }))
        .await
    }

    pub async fn unstage(
        self: Arc<Self>,
        request: NodeUnstageVolumeRequest,
    ) -> Answer<NodeUnstageVolumeResponse> {
        check_id(&request.volume_id)?;
        let path = checked(&request.staging_target_path, "staging target")?;
        let held = self.locks.take(&request.volume_id)?;
        let mounts = self.mounts.clone();
        to_the_end(blocking(move || {
            let _held = held;
            check_owner(&mounts, &path, &request.volume_id)?;
            // What is bound to it would show the machine's own disk to its pod the next time that the mount dies.
            if let Some(target) = mounts.shown_from(&path) {
                return Err(Status::failed_precondition(format!(
                    "the volume is published on {} still",
                    target.display()
                )));
            }
            mounts.clear(&path)?;
            mounts.remove(&path)?;
            Ok(NodeUnstageVolumeResponse {})
        }))
        .await
    }

    pub async fn publish(
        self: Arc<Self>,
        request: NodePublishVolumeRequest,
    ) -> Answer<NodePublishVolumeResponse> {
        check_id(&request.volume_id)?;
        let path = checked(&request.target_path, "target")?;
        let used = Use::of(request.volume_capability.as_ref())?;
        if request.volume_context.get(EPHEMERAL).is_some_and(|value| value == "true") {
            return self.publish_ephemeral(request, &path, used).await;
        }
        if request.staging_target_path.is_empty() {
            return Err(Status::failed_precondition(
                "the staging target path is missing: stage the volume first",
            ));
        }
        let staging = checked(&request.staging_target_path, "staging target")?;
        let place = self.place(&request.volume_id).await?;
        // Two targets of one volume do not wait for each other, unless there may be one only; nobody unstages it meanwhile.
        let of_path = self.locks.take(&path.display().to_string())?;
        let is_alone = used.single_writer || self.mounts.is_broken(&staging);
        let of_volume = if is_alone {
            self.locks.take(&request.volume_id)?
        } else {
            self.locks.share(&request.volume_id)?
        };
        let held = [of_path, of_volume];
        let mounted = Mounted {
            volume_id: request.volume_id,
            path,
            what: What::Published { staging: staging.clone(), directory: place.directory },
            read_only: used.read_only || request.readonly,
            single_writer: used.single_writer,
            boot: String::new(),
        };
        let mounts = self.mounts.clone();
        to_the_end(blocking(move || {
            let _held = held;
            let staged = mounts.get(&staging).filter(|staged| staged.volume_id == mounted.volume_id);
            let staged =
                staged.ok_or_else(|| Status::failed_precondition("the volume is not staged on that path"))?;
            mounts.repair(&staged)?;
            if state(&staging) == State::Nothing {
                return Err(Status::failed_precondition(
                    "somebody unmounted the staged volume: stage it again",
                ));
            }
            if mounted.single_writer && mounts.all().iter().any(|other| is_rival(other, &mounted)) {
                return Err(Status::failed_precondition(
                    "the volume has its only writer already, on another target",
                ));
            }
            show(&mounts, &mounted, None)?;
            Ok(NodePublishVolumeResponse {})
        }))
        .await
    }

    /// A volume for one pod: made now, with a hard size, and removed with it.
    async fn publish_ephemeral(
        self: Arc<Self>,
        request: NodePublishVolumeRequest,
        path: &Path,
        used: Use,
    ) -> Answer<NodePublishVolumeResponse> {
        let size = ephemeral_size(&request.volume_context)?;
        let held = self.locks.take(&request.volume_id)?;
        let place = scratch(&request.volume_id);
        let mounted = Mounted {
            volume_id: request.volume_id,
            path: path.to_owned(),
            what: What::Ephemeral { place: place.clone(), arguments: used.arguments },
            read_only: used.read_only || request.readonly,
            single_writer: false,
            boot: String::new(),
        };
        to_the_end(async move {
            let _held = held;
            let policy = VolumePolicy {
                class: Class::One,
                drain: DrainPolicy::Never,
                quota_bytes: size,
                ..VolumePolicy::default()
            };
            let options = VolumeOptions { lake: Some("none".to_owned()), policy: Some(policy) };
            match self.door.open().await?.volume_create(&place.volume, options).await {
                Err(error) if error.kind != ErrorKind::Conflict => return Err(fault(error)),
                _ => {}
            }
            let mounts = self.mounts.clone();
            blocking(move || show(&mounts, &mounted, None)).await?;
            Ok(NodePublishVolumeResponse {})
        })
        .await
    }

    pub async fn unpublish(
        self: Arc<Self>,
        request: NodeUnpublishVolumeRequest,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        check_id(&request.volume_id)?;
        let path = checked(&request.target_path, "target")?;
        let held = [self.locks.take(&path.display().to_string())?, self.locks.take(&request.volume_id)?];
        to_the_end(async move {
            let _held = held;
            let mounts = self.mounts.clone();
            let known = mounts.get(&path);
            let at = path.clone();
            let id = request.volume_id.clone();
            blocking(move || {
                check_owner(&mounts, &at, &id)?;
                mounts.clear_target(&at)
            })
            .await?;
            let scratch = match known {
                Some(Mounted { what: What::Ephemeral { place, .. }, .. }) => Some(place),
                Some(_) => None,
                // The machine was started anew since: what was scratch of this pod has to go nevertheless.
                None => Some(scratch(&request.volume_id)),
            };
            if let Some(place) = scratch {
                copying::remove(&self.door.open().await?, &place).await?;
            }
            self.mounts.remove(&path)?;
            Ok(NodeUnpublishVolumeResponse {})
        })
        .await
    }

    pub async fn stats(
        self: Arc<Self>,
        request: NodeGetVolumeStatsRequest,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        check_id(&request.volume_id)?;
        if request.volume_path.is_empty() {
            return Err(Status::invalid_argument("the volume path is missing"));
        }
        // Any other path is one that shows nothing.
        let path =
            checked(&request.volume_path, "volume").map_err(|error| Status::not_found(error.message()))?;
        let mounts = self.mounts.clone();
        blocking(move || {
            let known = mounts.get(&path).filter(|known| known.volume_id == request.volume_id);
            let missing = || Status::not_found(format!("{} does not show that volume", path.display()));
            known.ok_or_else(missing)?;
            let condition =
                |abnormal, message: &str| Some(VolumeCondition { abnormal, message: message.to_owned() });
            match state(&path) {
                State::Nothing => Err(Status::not_found(format!("nothing is mounted on {}", path.display()))),
                State::Dead => Ok(NodeGetVolumeStatsResponse {
                    usage: Vec::new(),
                    volume_condition: condition(
                        true,
                        "the process of the mount is gone; it is mounted again in a moment",
                    ),
                }),
                State::Alive => {
                    let space = sys::space(&path).map_err(|error| failed("looking at", &path, &error))?;
                    let usage = |total: u64, available: u64, unit| {
                        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
                        let used = number(total.saturating_sub(available));
                        VolumeUsage { available: number(available), total: number(total), used, unit }
                    };
                    let usage = vec![
                        usage(space.total, space.available, BYTES),
                        usage(space.files, space.files_free, INODES),
                    ];
                    Ok(NodeGetVolumeStatsResponse { usage, volume_condition: condition(false, "fine") })
                }
            }
        })
        .await
    }

    async fn place(&self, id: &str) -> Answer<Place> {
        self.records.place(id).await?.ok_or_else(|| Status::not_found(format!("there is no volume {id}")))
    }

    /// Looks for mounts whose process is gone, and makes them again. One that does not answer is waited for, and holds no other up.
    pub async fn watch(self: Arc<Self>) {
        let probes = Locks::default();
        loop {
            for mounted in self.mounts.all() {
                let name = mounted.path.display().to_string();
                let Ok(probe) = probes.take(&name) else { continue };
                let me = self.clone();
                let looked = blocking(move || {
                    let _probe = probe;
                    if me.mounts.is_broken(&mounted.path) { me.revive(&mounted) } else { Ok(()) }
                });
                match tokio::time::timeout(PROBE, looked).await {
                    Ok(Err(error)) => {
                        tracing::error!(path = %name, error = error.message(), "a mount is not back")
                    }
                    Err(_) => tracing::warn!(path = %name, "a mount does not answer"),
                    Ok(Ok(())) => {}
                }
            }
            tokio::time::sleep(WATCH).await;
        }
    }

    /// Mounts again what is still wanted. A call that is under way for it sees to that itself.
    fn revive(&self, mounted: &Mounted) -> Answer<()> {
        let path = mounted.path.display().to_string();
        let (Ok(_path), Ok(_volume)) = (self.locks.take(&path), self.locks.take(&mounted.volume_id)) else {
            return Ok(());
        };
        match self.mounts.get(&mounted.path) {
            Some(now) if now == *mounted => self.mounts.repair(mounted),
            _ => Ok(()),
        }
    }
}

/// The volume of a pod's inline scratch.
fn scratch(id: &str) -> Place {
    Place { volume: format!("{SCRATCH}{}", hash(id)), directory: None }
}

/// Makes what is wanted, or finds it made. What is there with other options is another one.
fn show(mounts: &Mounts, wanted: &Mounted, token: Option<&str>) -> Answer<()> {
    let path = &wanted.path;
    if let Some(known) = mounts.get(path) {
        if (Mounted { boot: String::new(), ..known.clone() }) != *wanted {
            let message = format!("{} shows a volume already, with other options", path.display());
            return Err(Status::already_exists(message));
        }
        match state(path) {
            State::Alive => return Ok(()),
            State::Dead => return mounts.repair(&known),
            // Written down, and then the driver died before it was mounted.
            State::Nothing => {}
        }
    } else if state(path) != State::Nothing {
        return Err(Status::failed_precondition(format!("{} is a mount that is not ours", path.display())));
    }
    std::fs::create_dir_all(path).map_err(|error| failed("making", path, &error))?;
    let is_empty = std::fs::read_dir(path).map_err(|error| failed("reading", path, &error))?.next().is_none();
    if !is_empty {
        return Err(Status::failed_precondition(format!("{} is not empty", path.display())));
    }
    if let Some(token) = token {
        mounts.put_token(path, token)?;
    }
    mounts.put(wanted)?;
    mounts.make(wanted).inspect_err(|_| {
        let _ = mounts.remove(path);
    })
}

/// Refuses to take away what is another volume's.
fn check_owner(mounts: &Mounts, path: &Path, id: &str) -> Answer<()> {
    match mounts.get(path) {
        Some(known) if known.volume_id != id => {
            Err(Status::not_found(format!("{} shows another volume than {id}", path.display())))
        }
        // The folder that tells what is mounted was lost; what serves it says whose it is.
        None if state(path) == State::Alive && !is_served_by_us(path) => {
            Err(Status::failed_precondition(format!("{} is a mount that is not ours", path.display())))
        }
        _ => Ok(()),
    }
}

fn is_rival(other: &Mounted, mounted: &Mounted) -> bool {
    other.volume_id == mounted.volume_id
        && other.path != mounted.path
        && matches!(other.what, What::Published { .. })
}

fn check_id(id: &str) -> Answer<()> {
    if id.is_empty() { Err(Status::invalid_argument("the volume id is missing")) } else { Ok(()) }
}

/// The size of an inline volume, which must be said: scratch without one would fill the drives.
fn ephemeral_size(attributes: &HashMap<String, String>) -> Answer<u64> {
    let own = attributes.iter().filter(|(name, _)| !name.starts_with(FOREIGN));
    let mut size = None;
    for (name, value) in own {
        match name.as_str() {
            "size" => size = Some(quantity(value)?),
            _ => {
                return Err(Status::invalid_argument(format!(
                    "the attribute {name:?} is not known: inline volumes have a size"
                )));
            }
        }
    }
    size.ok_or_else(|| {
        Status::invalid_argument("the attribute size is missing: inline volumes have a hard size")
    })
}

/// What Kubernetes takes as the value of a label.
fn is_label(value: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let edges = [value.bytes().next(), value.bytes().last()];
    value.len() <= 63
        && value.bytes().all(inner)
        && edges.iter().all(|edge| edge.is_some_and(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_volumes_say_their_size() {
        let read = |pairs: &[(&str, &str)]| {
            ephemeral_size(&pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
        };
        assert_eq!(read(&[("size", "1Gi"), (EPHEMERAL, "true")]).ok(), Some(1 << 30));
        for wrong in [&[][..], &[("size", "0")], &[("size", "1Gi"), ("drain", "never")]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn labels_are_those_of_kubernetes() {
        for (value, expect) in
            [("cell-1", true), ("a", true), ("", false), ("-a", false), ("a b", false), ("ä", false)]
        {
            assert_eq!(is_label(value), expect, "{value}");
        }
    }
}
