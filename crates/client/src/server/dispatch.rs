//! From a request to the call of the door.

use stoker_format::{VersionId, crc64};
use stoker_store::{
    ErrorKind, JobReport, ListPage, PartsPage, Result, SetsPage, Store, StoreError, UploadsPage,
    VersionsPage, Writer,
};

use crate::frame::CONTROL_LEN_MAX;
use crate::message::{self, Request, Response};

/// Pages are cut to about this many bytes; the client asks for the rest as for any next page.
const PAGE_BYTES_MAX: usize = CONTROL_LEN_MAX - (64 << 10);

/// Answers a request that opens nothing.
pub(super) async fn answer(store: &dyn Store, request: Request) -> Response {
    ask(store, request).await.unwrap_or_else(Response::Error)
}

/// Begins a file, a part or a shard.
pub(super) async fn create(store: &dyn Store, request: &Request) -> Result<Box<dyn Writer>> {
    match request {
        Request::Create { volume, key, request } => store.create(volume, key, request.clone()).await,
        Request::Edit { volume, key, request } => store.edit(volume, key, request.clone()).await,
        Request::UploadPart { volume, key, upload, number, size } => {
            store.upload_part(volume, key, upload, *number, *size).await
        }
        Request::SetShard { volume, key, set, request } => {
            store.set_shard(volume, key, *set, request.clone()).await
        }
        _ => Err(misplaced()),
    }
}

fn misplaced() -> StoreError {
    StoreError::new(ErrorKind::Invalid, "this request opens something or needs something open")
}

async fn ask(store: &dyn Store, request: Request) -> Result<Response> {
    let done = |()| Response::Done;
    let receipt = |receipt| Response::Receipt(Box::new(receipt));
    Ok(match request {
        Request::Volumes => Response::Volumes(store.volumes().await?),
        Request::Volume { name } => Response::Volume(store.volume(&name).await?),
        Request::VolumeCreate { name, options } => {
            Response::Volume(store.volume_create(&name, options).await?)
        }
        Request::VolumeSet { name, policy } => Response::Volume(store.volume_set(&name, policy).await?),
        Request::VolumeDelete { name } => store.volume_delete(&name).await.map(done)?,
        Request::Stat { volume, key } => Response::File(Box::new(store.stat(&volume, &key).await?)),
        Request::EditNow { volume, key, request, bytes, crc64: sum } => {
            if crc64(&bytes) != sum {
                let message = "bytes changed between client and store: their CRC-64/NVME differ";
                return Err(StoreError::new(ErrorKind::Corrupt, message));
            }
            store.edit_now(&volume, &key, request, bytes).await.map(receipt)?
        }
        Request::Entry { volume, key } => Response::Entry(store.entry(&volume, &key).await?),
        Request::Directory { volume, inode } => Response::Path(store.directory(&volume, inode).await?),
        Request::Lock { volume, key, request } => Response::Locked(store.lock(&volume, &key, request).await?),
        Request::LocksKeep { volume, client, owners } => {
            Response::LocksLost(store.locks_keep(&volume, client, owners).await?)
        }
        Request::Inodes { count } => Response::Number(store.inodes(count).await?),
        Request::List { volume, request } => Response::Page(cut_list(store.list(&volume, request).await?)),
        Request::Copy(copy) => store.copy(copy).await.map(receipt)?,
        Request::Rename { volume, from, to, mode } => {
            store.rename(&volume, &from, &to, mode).await.map(done)?
        }
        Request::Link { volume, from, to } => {
            Response::File(Box::new(store.link(&volume, &from, &to).await?))
        }
        Request::Delete { volume, keys } => Response::Deleted(store.delete(&volume, keys).await?),
        Request::SetAttributes { volume, key, change } => {
            Response::File(Box::new(store.set_attributes(&volume, &key, change).await?))
        }
        Request::UploadCreate { volume, key, attributes, checksum } => {
            Response::Upload(store.upload_create(&volume, &key, attributes, checksum).await?)
        }
        Request::UploadPartCopy { volume, key, upload, number, source } => {
            store.upload_part_copy(&volume, &key, &upload, number, source).await.map(receipt)?
        }
        Request::UploadParts { volume, key, upload, after, limit } => {
            Response::Parts(cut_parts(store.upload_parts(&volume, &key, &upload, after, limit).await?))
        }
        Request::Uploads { volume, prefix, after, limit } => {
            Response::Uploads(cut_uploads(store.uploads(&volume, &prefix, after, limit).await?))
        }
        Request::UploadComplete { volume, key, upload, parts, condition, finish } => {
            store.upload_complete(&volume, &key, &upload, parts, condition, finish).await.map(receipt)?
        }
        Request::UploadAbort { volume, key, upload } => {
            store.upload_abort(&volume, &key, &upload).await.map(done)?
        }
        Request::Receipt { volume, key } => store.receipt(&volume, &key).await.map(receipt)?,
        Request::Wait { volume, key, version, awaited } => {
            store.wait(&volume, &key, version.map(VersionId), awaited).await.map(receipt)?
        }
        Request::Drain { volume, prefix } => Response::Number(store.drain(&volume, &prefix).await?),
        Request::Stage { volume, key } => Response::Number(store.stage(&volume, &key).await?),
        Request::Job(order) => Response::Job(Box::new(cut_jobs(store.job(order).await?))),
        Request::Conflicts { volume } => Response::Conflicts(store.conflicts(volume.as_deref()).await?),
        Request::ConflictResolve { volume, key, resolution } => {
            store.conflict_resolve(&volume, &key, resolution).await.map(done)?
        }
        Request::AccessKeys => Response::AccessKeys(store.access_keys().await?),
        Request::AccessKey { access_key } => Response::AccessKey(store.access_key(&access_key).await?),
        Request::AccessKeyPut(key) => store.access_key_put(key).await.map(done)?,
        Request::AccessKeyDelete { access_key } => store.access_key_delete(&access_key).await.map(done)?,
        Request::Explain { volume, key } => {
            Response::Explanation(Box::new(store.explain(&volume, &key).await?))
        }
        Request::Status => Response::Status(Box::new(store.status().await?)),
        Request::Counters => Response::Counters(store.counters().await?),
        Request::Operate(order) => Response::Report(Box::new(store.operate(order).await?)),
        Request::SetBegin { volume, request } => Response::Set(store.set_begin(&volume, request).await?),
        Request::SetShardComplete { volume, key, set, shard } => {
            store.set_shard_complete(&volume, &key, set, shard).await.map(receipt)?
        }
        Request::SetPublish { volume, set } => Response::Set(store.set_publish(&volume, set).await?),
        Request::SetAbort { volume, set } => Response::Set(store.set_abort(&volume, set).await?),
        Request::SetStatus { volume, set } => {
            Response::SetStatus(Box::new(store.set_status(&volume, set).await?))
        }
        Request::SetFind { volume, path } => Response::SetFound(store.set_find(&volume, &path).await?),
        Request::Sets { volume, after, limit } => {
            Response::Sets(cut_sets(store.sets(&volume, after, limit).await?))
        }
        Request::SetLatest { volume, prefix } => {
            Response::SetFound(store.set_latest(&volume, &prefix).await?)
        }
        Request::Versions { volume, request } => {
            Response::Versions(cut_versions(store.versions(&volume, request).await?))
        }
        Request::DeleteVersions { volume, deletes } => {
            Response::DeletedVersions(store.delete_versions(&volume, deletes).await?)
        }
        Request::VolumeSetting { volume, name } => {
            Response::Setting(store.volume_setting(&volume, &name).await?)
        }
        Request::SetVolumeSetting { volume, name, document } => {
            store.set_volume_setting(&volume, &name, document).await.map(done)?
        }
        Request::Open { .. }
        | Request::Read { .. }
        | Request::Lease { .. }
        | Request::Seek { .. }
        | Request::Create { .. }
        | Request::Edit { .. }
        | Request::UploadPart { .. }
        | Request::SetShard { .. }
        | Request::Finish { .. }
        | Request::FinishOn { .. }
        | Request::Hatch { .. }
        | Request::ForJob { .. } => return Err(misplaced()),
    })
}

/// How many of these fit an answer; at least one.
fn fitting<T: serde::Serialize>(items: &[T]) -> usize {
    let mut bytes = 0;
    let over = items.iter().position(|item| {
        bytes += message::encode(item).len();
        bytes > PAGE_BYTES_MAX
    });
    over.unwrap_or(items.len()).max(1).min(items.len())
}

fn cut_list(mut page: ListPage) -> ListPage {
    let fits = fitting(&page.entries);
    page.more |= fits < page.entries.len();
    page.entries.truncate(fits);
    page
}

fn cut_parts(mut page: PartsPage) -> PartsPage {
    let fits = fitting(&page.parts);
    page.more |= fits < page.parts.len();
    page.parts.truncate(fits);
    page
}

fn cut_uploads(mut page: UploadsPage) -> UploadsPage {
    let fits = fitting(&page.uploads);
    page.more |= fits < page.uploads.len();
    page.uploads.truncate(fits);
    page
}

fn cut_versions(mut page: VersionsPage) -> VersionsPage {
    let fits = fitting(&page.entries);
    page.more |= fits < page.entries.len();
    page.entries.truncate(fits);
    page
}

fn cut_jobs(mut report: JobReport) -> JobReport {
    if let JobReport::Jobs { jobs, more } = &mut report {
        let fits = fitting(jobs);
        *more |= fits < jobs.len();
        jobs.truncate(fits);
    }
    report
}

fn cut_sets(mut page: SetsPage) -> SetsPage {
    let fits = fitting(&page.sets);
    page.more |= fits < page.sets.len();
    page.sets.truncate(fits);
    page
}
