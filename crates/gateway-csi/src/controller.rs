//! Makes, changes, lists and removes volumes.

use std::sync::Arc;

use stoker_client::Client;
use stoker_store::{DrainPolicy, Store, VolumeInfo, VolumePolicy};
use tonic::Status;

use crate::answer::{Answer, fault, is_missing, to_the_end};
use crate::capability::check_all;
use crate::copying;
use crate::door::Door;
use crate::locks::Locks;
use crate::parameters::{FOREIGN, Parameters, SIZE_MAX, apply, fits, size};
use crate::proto::*;
use crate::record::{Place, Records, SnapshotRecord, Source, VolumeRecord, handle};
use crate::tenants;

/// CREATE_DELETE_VOLUME, LIST_VOLUMES, GET_CAPACITY, CREATE_DELETE_SNAPSHOT, LIST_SNAPSHOTS, CLONE_VOLUME, EXPAND_VOLUME,
/// VOLUME_CONDITION, GET_VOLUME, SINGLE_NODE_MULTI_WRITER, MODIFY_VOLUME, GET_SNAPSHOT.
const CAPABILITIES: &[i32] = &[1, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14, 15];

/// The service.
pub struct Controller {
    pub(crate) door: Arc<Door>,
    pub(crate) records: Arc<Records>,
    pub(crate) locks: Locks,
    driver: String,
}

impl Controller {
    pub fn new(door: Arc<Door>, driver: &str) -> Controller {
        let records = Arc::new(Records::new(door.clone()));
        Controller { door, records, locks: Locks::default(), driver: driver.to_owned() }
    }

    pub fn capabilities(
        &self,
        _: ControllerGetCapabilitiesRequest,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        let capabilities =
            CAPABILITIES.iter().map(|kind| ServiceCapability { rpc: Some(Rpc { kind: *kind }) });
        Ok(ControllerGetCapabilitiesResponse { capabilities: capabilities.collect() })
    }

    pub async fn create(self: Arc<Self>, request: CreateVolumeRequest) -> Answer<CreateVolumeResponse> {
        let handle = handle("", &request.name)?;
        check_all(&request.volume_capabilities)?;
        let parameters = Parameters::read(&request.parameters, &request.mutable_parameters)?;
        let size = size(request.capacity_range.as_ref())?;
        let source = source(request.volume_content_source.as_ref())?;
        self.check_topology(request.accessibility_requirements.as_ref()).await?;
        let held = self.locks.take(&handle)?;
        to_the_end(async move {
            let _held = held;
            let record = match self.records.get::<VolumeRecord>(&handle).await? {
                Some(record) => {
                    let is_same = record.name == request.name
                        && record.parameters == parameters.given
                        && record.source == source
                        && fits(request.capacity_range.as_ref(), record.size)?;
                    if !is_same {
                        let message = format!("the volume {} is there with other parameters", request.name);
                        return Err(Status::already_exists(message));
                    }
                    record
                }
                None => {
                    self.check_new(&handle, &parameters, size, source.as_ref()).await?;
                    let place = match &parameters.volume {
                        None => Place { volume: parameters.full_name(&handle), directory: None },
                        Some(volume) => Place { volume: volume.clone(), directory: Some(handle.clone()) },
                    };
                    let record = VolumeRecord {
                        name: request.name,
                        place,
                        size,
                        parameters: parameters.given.clone(),
                        source,
                        retain: parameters.retain,
                        is_ready: false,
                    };
                    self.records.put(&handle, &record, true).await?;
                    record
                }
            };
            let record = self.finish(&handle, record, &parameters).await?;
            Ok(CreateVolumeResponse { volume: Some(self.volume(&handle, &record).await?) })
        })
        .await
    }

    /// A snapshot by its id.
    pub(crate) async fn snapshot(&self, id: &str) -> Answer<Option<(String, SnapshotRecord)>> {
        let Some(handle) = self.records.handle_of(id).await? else { return Ok(None) };
        let record = self.records.get::<SnapshotRecord>(&handle).await?.filter(|record| record.is_ready);
        Ok(record.map(|record| (handle, record)))
    }

    pub async fn delete(self: Arc<Self>, request: DeleteVolumeRequest) -> Answer<DeleteVolumeResponse> {
        let Some(handle) = self.records.handle_of(&request.volume_id).await? else {
            return Ok(DeleteVolumeResponse {});
        };
        let held = self.locks.take(&handle)?;
        to_the_end(async move {
            let _held = held;
            let Some(record) = self.records.get::<VolumeRecord>(&handle).await? else {
                return match self.records.place(&request.volume_id).await? {
                    None => Ok(DeleteVolumeResponse {}),
                    Some(_) => Err(Status::failed_precondition(format!(
                        "this driver did not make {handle}: give its PersistentVolume the reclaim policy Retain"
                    ))),
                };
            };
            if !record.retain {
                copying::remove(&self.door.open().await?, &record.place).await?;
            }
            self.records.remove::<VolumeRecord>(&handle).await?;
            Ok(DeleteVolumeResponse {})
        })
        .await
    }

    pub async fn validate(
        self: Arc<Self>,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        let (handle, _) = self.found(&request.volume_id).await?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("the volume capabilities are missing"));
        }
        if let Err(why) = check_all(&request.volume_capabilities) {
            return Ok(ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message: why.message().to_owned(),
            });
        }
        // Parameters that are not those of the volume are not confirmed.
        let record = self.records.get::<VolumeRecord>(&handle).await?;
        let is_other = |given: &std::collections::HashMap<String, String>| {
            given.iter().filter(|(name, _)| !name.starts_with(FOREIGN)).any(|(name, value)| {
                record.as_ref().is_some_and(|record| record.parameters.get(name) != Some(value))
            })
        };
        if is_other(&request.parameters) || is_other(&request.mutable_parameters) {
            let message = "the volume has other parameters".to_owned();
            return Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
        }
        let confirmed = Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
    }

    pub async fn list(self: Arc<Self>, request: ListVolumesRequest) -> Answer<ListVolumesResponse> {
        let (found, next_token) =
            self.records.page::<VolumeRecord>(request.max_entries, &request.starting_token).await?;
        let mut entries = Vec::new();
        for (handle, record) in found.iter().filter(|(_, record)| record.is_ready) {
            let status = self.condition(&record.place).await?;
            entries
                .push(VolumeEntry { volume: Some(self.volume(handle, record).await?), status: Some(status) });
        }
        Ok(ListVolumesResponse { entries, next_token })
    }

    pub async fn get(
        self: Arc<Self>,
        request: ControllerGetVolumeRequest,
    ) -> Answer<ControllerGetVolumeResponse> {
        let (handle, place) = self.found(&request.volume_id).await?;
        let volume = match self.records.get::<VolumeRecord>(&handle).await? {
            Some(record) => self.volume(&handle, &record).await?,
            None => Volume { volume_id: request.volume_id, ..Volume::default() },
        };
        Ok(ControllerGetVolumeResponse { volume: Some(volume), status: Some(self.condition(&place).await?) })
    }

    pub async fn capacity(self: Arc<Self>, request: GetCapacityRequest) -> Answer<GetCapacityResponse> {
        if !request.volume_capabilities.is_empty() {
            check_all(&request.volume_capabilities)?;
        }
        let parameters = Parameters::read(&request.parameters, &Default::default())?;
        let is_elsewhere = match &request.accessible_topology {
            Some(topology) => !self.is_here(topology).await?,
            None => false,
        };
        let free = if is_elsewhere { 0 } else { free(&self.door.open().await?, &parameters.policy).await? };
        let bytes = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Ok(GetCapacityResponse {
            available_capacity: bytes(free),
            maximum_volume_size: Some(Int64Value { value: bytes(free.min(SIZE_MAX)) }),
            minimum_volume_size: Some(Int64Value { value: 1 }),
        })
    }

    pub async fn expand(
        self: Arc<Self>,
        request: ControllerExpandVolumeRequest,
    ) -> Answer<ControllerExpandVolumeResponse> {
        let (handle, place) = self.found(&request.volume_id).await?;
        let range = request
            .capacity_range
            .ok_or_else(|| Status::invalid_argument("the capacity range is missing"))?;
        if let Some(capability) = request.volume_capability {
            check_all(&[capability])?;
        }
        let size = size(Some(&range))?;
        if size == 0 {
            return Err(Status::invalid_argument("the capacity range names no size"));
        }
        let held = self.locks.take(&handle)?;
        to_the_end(async move {
            let _held = held;
            let store = self.door.open().await?;
            let record = self.records.get::<VolumeRecord>(&handle).await?;
            let policy = store.volume(&place.volume).await.map_err(fault)?.policy;
            let now = match &record {
                Some(record) => record.size,
                None if place.directory.is_none() => policy.quota_bytes,
                None => 0,
            };
            // What is larger already stays: bytes may be in use.
            let size = if now == 0 && record.is_none() { size } else { size.max(now) };
            if range.limit_bytes > 0 && size > range.limit_bytes as u64 {
                return Err(Status::out_of_range(format!(
                    "the volume has {size} bytes already, more than limit_bytes"
                )));
            }
            let free = free(&store, &policy).await?;
            if place.directory.is_none() && size > now && size - now > free {
                return Err(Status::out_of_range(format!("{size} bytes are more than there are")));
            }
            if place.directory.is_none() {
                let policy = VolumePolicy { quota_bytes: size, ..policy };
                store.volume_set(&place.volume, policy).await.map_err(fault)?;
            }
            if let Some(record) = record.filter(|record| record.size != size) {
                self.records.put(&handle, &VolumeRecord { size, ..record }, false).await?;
            }
            Ok(ControllerExpandVolumeResponse { capacity_bytes: size as i64, node_expansion_required: false })
        })
        .await
    }

    pub async fn modify(
        self: Arc<Self>,
        request: ControllerModifyVolumeRequest,
    ) -> Answer<ControllerModifyVolumeResponse> {
        let (handle, place) = self.found(&request.volume_id).await?;
        if place.directory.is_some() && !request.mutable_parameters.is_empty() {
            return Err(Status::invalid_argument("a directory has the policy of its volume"));
        }
        let held = self.locks.take(&handle)?;
        to_the_end(async move {
            let _held = held;
            let store = self.door.open().await?;
            let mut policy = store.volume(&place.volume).await.map_err(fault)?.policy;
            for (name, value) in &request.mutable_parameters {
                apply(&mut policy, name, value)?;
            }
            store.volume_set(&place.volume, policy).await.map_err(fault)?;
            Ok(ControllerModifyVolumeResponse {})
        })
        .await
    }

    /// A volume that is there.
    pub(crate) async fn found(&self, id: &str) -> Answer<(String, Place)> {
        let missing = || Status::not_found(format!("there is no volume {id}"));
        let handle = self.records.handle_of(id).await?.ok_or_else(missing)?;
        let place = self.records.place(id).await?.ok_or_else(missing)?;
        Ok((handle, place))
    }

    async fn volume(&self, handle: &str, record: &VolumeRecord) -> Answer<Volume> {
        let content_source = record.source.as_ref().map(|source| match source {
            Source::Snapshot(id) => VolumeContentSource {
                snapshot: Some(SnapshotSource { snapshot_id: id.clone() }),
                volume: None,
            },
            Source::Volume(id) => {
                VolumeContentSource { volume: Some(VolumeSource { volume_id: id.clone() }), snapshot: None }
            }
        });
        Ok(Volume {
            capacity_bytes: record.size as i64,
            volume_id: self.records.id(handle).await?,
            volume_context: tenants::context(&record.place),
            content_source,
            accessible_topology: vec![self.topology().await?],
        })
    }

    /// Every node of the cluster reaches every volume.
    async fn topology(&self) -> Answer<Topology> {
        let segments = [(format!("{}/cluster", self.driver), self.door.cluster().await?.to_owned())];
        Ok(Topology { segments: segments.into() })
    }

    async fn is_here(&self, topology: &Topology) -> Answer<bool> {
        let key = format!("{}/cluster", self.driver);
        let cluster = self.door.cluster().await?;
        Ok(topology.segments.get(&key).is_none_or(|named| named == cluster))
    }

    async fn check_topology(&self, required: Option<&TopologyRequirement>) -> Answer<()> {
        let Some(required) = required.filter(|required| !required.requisite.is_empty()) else {
            return Ok(());
        };
        for topology in &required.requisite {
            if self.is_here(topology).await? {
                return Ok(());
            }
        }
        Err(Status::resource_exhausted("no volume of this cluster can be reached where it is wanted"))
    }

    /// How a volume is: abnormal where its lake refuses files, or it is gone.
    async fn condition(&self, place: &Place) -> Answer<VolumeStatus> {
        let store = self.door.open().await?;
        let (abnormal, message) = match store.volume(&place.volume).await {
            Err(error) if is_missing(&error) => (true, format!("the volume {} is gone", place.volume)),
            Err(error) => return Err(fault(error)),
            Ok(found) => match store.conflicts(Some(&place.volume)).await.map_err(fault)?.len() {
                0 => (false, full(&found).unwrap_or_else(|| "fine".to_owned())),
                count => (true, format!("{count} files wait for a person: stoker conflict ls")),
            },
        };
        let volume_condition = Some(VolumeCondition { abnormal, message });
        Ok(VolumeStatus { published_node_ids: Vec::new(), volume_condition })
    }
}

/// Says so if a volume has reached its quota.
fn full(volume: &VolumeInfo) -> Option<String> {
    let quota = volume.policy.quota_bytes;
    (quota > 0 && volume.bytes >= quota).then(|| format!("full: {} of {quota} bytes", volume.bytes))
}

/// Bytes that a new volume can have: the lake's, or what is free on the drives if nothing leaves them.
pub(crate) async fn free(store: &Client, policy: &VolumePolicy) -> Answer<u64> {
    if policy.drain != DrainPolicy::Never {
        return Ok(SIZE_MAX);
    }
    let status = store.status().await.map_err(fault)?;
    let free: u64 = status.rings.iter().map(|ring| ring.bytes.saturating_sub(ring.keep_bytes)).sum();
    let copies = policy.class.in_cluster(status.nodes.len()).copies() as u64;
    Ok(free / copies.max(1) * (status.nodes.len().max(1) as u64))
}

fn source(source: Option<&VolumeContentSource>) -> Answer<Option<Source>> {
    let Some(source) = source else { return Ok(None) };
    let id = |id: &str, what: &str| match id {
        "" => Err(Status::invalid_argument(format!("the id of the {what} is missing"))),
        id => Ok(id.to_owned()),
    };
    match (&source.snapshot, &source.volume) {
        (Some(snapshot), None) => Ok(Some(Source::Snapshot(id(&snapshot.snapshot_id, "snapshot")?))),
        (None, Some(volume)) => Ok(Some(Source::Volume(id(&volume.volume_id, "volume")?))),
        _ => Err(Status::invalid_argument("a volume is filled from one snapshot or one volume")),
    }
}
