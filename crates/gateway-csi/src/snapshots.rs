//! Snapshots: copies of all files by reference, in a volume of their own that nobody writes to.
//!
//! Each file is as it was published at some moment of the call; a snapshot of files that are written meanwhile holds some before and some
//! after a change. What programs have not synced is in none.

use std::sync::Arc;

use stoker_store::{ErrorKind, Store, VolumeOptions, VolumePolicy, full_volume_name, volume_tenant};
use tonic::Status;

use crate::answer::{Answer, fault, is_missing, to_the_end};
use crate::controller::Controller;
use crate::copying;
use crate::making::{is_encrypted, is_final, make_volume};
use crate::parameters::FOREIGN;
use crate::proto::*;
use crate::record::{Place, SNAPSHOT, SnapshotRecord, handle};

impl Controller {
    pub async fn snapshot_create(
        self: Arc<Self>,
        request: CreateSnapshotRequest,
    ) -> Answer<CreateSnapshotResponse> {
        let handle = handle(SNAPSHOT, &request.name)?;
        if request.source_volume_id.is_empty() {
            return Err(Status::invalid_argument("the id of the source volume is missing"));
        }
        if let Some(name) = request.parameters.keys().find(|name| !name.starts_with(FOREIGN)) {
            return Err(Status::invalid_argument(format!(
                "the parameter {name:?} is not known: snapshots have none"
            )));
        }
        let held = self.locks.take(&handle)?;
        to_the_end(async move {
            let _held = held;
            let record = match self.records.get::<SnapshotRecord>(&handle).await? {
                Some(record) if record.name != request.name || record.source != request.source_volume_id => {
                    let message = format!("the snapshot {} is there, of another volume", request.name);
                    return Err(Status::already_exists(message));
                }
                Some(record) => record,
                None => {
                    let (_, from) = self.found(&request.source_volume_id).await?;
                    // It belongs to whom the volume belongs to.
                    let name = full_volume_name(volume_tenant(&from.volume).0, &handle);
                    match self.door.open().await?.volume(&name).await {
                        Err(error) if is_missing(&error) => {}
                        Err(error) => return Err(fault(error)),
                        Ok(_) => {
                            return Err(Status::already_exists(format!(
                                "the volume {name} is there, and this driver did not make it"
                            )));
                        }
                    }
                    let record = SnapshotRecord {
                        name: request.name,
                        place: Place { volume: name, directory: None },
                        source: request.source_volume_id,
                        size: 0,
                        created_ms: 0,
                        is_ready: false,
                    };
                    self.records.put(&handle, &record, true).await?;
                    record
                }
            };
            let record = self.snapshot_finish(&handle, record).await?;
            Ok(CreateSnapshotResponse { snapshot: Some(self.shown(&handle, &record).await?) })
        })
        .await
    }

    /// Fills what a record tells of.
    async fn snapshot_finish(&self, handle: &str, mut record: SnapshotRecord) -> Answer<SnapshotRecord> {
        if record.is_ready {
            return Ok(record);
        }
        let filled = self.snapshot_fill(&mut record).await;
        if let Err(why) = filled {
            // Asking again would not help: nothing of it stays.
            if is_final(why.code()) {
                copying::remove(&self.door.open().await?, &record.place).await?;
                self.records.remove::<SnapshotRecord>(handle).await?;
            }
            return Err(why);
        }
        record.is_ready = true;
        self.records.put(handle, &record, false).await?;
        Ok(record)
    }

    async fn snapshot_fill(&self, record: &mut SnapshotRecord) -> Answer<()> {
        let store = self.door.open().await?;
        let (_, from) = self.found(&record.source).await?;
        let source = store.volume(&from.volume).await.map_err(fault)?;
        // As durable as what it is of, in the node's own lake.
        let policy = VolumePolicy { quota_bytes: 0, lake_mode: Default::default(), ..source.policy };
        let lake = source.lake.is_none().then(|| "none".to_owned());
        let options = VolumeOptions { lake, policy: Some(policy) };
        let encrypt = is_encrypted(&store, &from.volume).await?;
        match make_volume(&store, &record.place.volume, options, encrypt).await {
            Err(error) if error.kind != ErrorKind::Conflict => return Err(fault(error)),
            _ => {}
        }
        record.size = copying::copy(&store, &from, &record.place).await?;
        record.created_ms = store.volume(&record.place.volume).await.map_err(fault)?.created_ms;
        Ok(())
    }

    pub async fn snapshot_delete(
        self: Arc<Self>,
        request: DeleteSnapshotRequest,
    ) -> Answer<DeleteSnapshotResponse> {
        let Some(handle) = self.records.handle_of(&request.snapshot_id).await? else {
            return Ok(DeleteSnapshotResponse {});
        };
        let held = self.locks.take(&handle)?;
        to_the_end(async move {
            let _held = held;
            if let Some(record) = self.records.get::<SnapshotRecord>(&handle).await? {
                copying::remove(&self.door.open().await?, &record.place).await?;
                self.records.remove::<SnapshotRecord>(&handle).await?;
            }
            Ok(DeleteSnapshotResponse {})
        })
        .await
    }

    pub async fn snapshot_get(self: Arc<Self>, request: GetSnapshotRequest) -> Answer<GetSnapshotResponse> {
        let found = self.snapshot(&request.snapshot_id).await?;
        let missing = || Status::not_found(format!("there is no snapshot {}", request.snapshot_id));
        let (handle, record) = found.ok_or_else(missing)?;
        Ok(GetSnapshotResponse { snapshot: Some(self.shown(&handle, &record).await?) })
    }

    pub async fn snapshot_list(
        self: Arc<Self>,
        request: ListSnapshotsRequest,
    ) -> Answer<ListSnapshotsResponse> {
        if !request.snapshot_id.is_empty() {
            let found = self.snapshot(&request.snapshot_id).await?;
            let found = found.filter(|(_, one)| {
                request.source_volume_id.is_empty() || one.source == request.source_volume_id
            });
            let entries = match found {
                Some((handle, record)) => {
                    vec![SnapshotEntry { snapshot: Some(self.shown(&handle, &record).await?) }]
                }
                None => Vec::new(),
            };
            return Ok(ListSnapshotsResponse { entries, next_token: String::new() });
        }
        let mut entries = Vec::new();
        let mut token = request.starting_token;
        // Pages of which nothing is of that volume are passed over: an empty page would be taken for the end by some.
        loop {
            let (found, next) = self.records.page::<SnapshotRecord>(request.max_entries, &token).await?;
            for (handle, record) in found.iter().filter(|(_, record)| record.is_ready) {
                if request.source_volume_id.is_empty() || record.source == request.source_volume_id {
                    entries.push(SnapshotEntry { snapshot: Some(self.shown(handle, record).await?) });
                }
            }
            token = next;
            if token.is_empty() || !entries.is_empty() {
                return Ok(ListSnapshotsResponse { entries, next_token: token });
            }
        }
    }

    async fn shown(&self, handle: &str, record: &SnapshotRecord) -> Answer<Snapshot> {
        let created_ms = i64::try_from(record.created_ms).unwrap_or(0);
        let nanos = (created_ms % 1000) as i32 * 1_000_000;
        Ok(Snapshot {
            size_bytes: i64::try_from(record.size).unwrap_or(i64::MAX),
            snapshot_id: self.records.id(handle).await?,
            source_volume_id: record.source.clone(),
            creation_time: Some(Timestamp { seconds: created_ms / 1000, nanos }),
            ready_to_use: record.is_ready,
        })
    }
}
