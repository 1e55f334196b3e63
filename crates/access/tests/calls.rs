//! One call of the store for each action. The match is exhaustive: an action without a call does not compile.

use bytes::Bytes;
use stoker_access::Action;
use stoker_store::{
    Access, AccessKey, Attributes, AttributesChange, Awaited, ChecksumKind, Condition, CopyRequest,
    EditRequest, Finish, JobAccess, JobMount, JobName, JobOrder, JobSpec, JobSubmit, Key, ListRequest,
    LockChange, LockClient, LockRequest, LockSpace, Order, PartSource, RenameMode, Resolution, Result, SetId,
    SetRequest, ShardRequest, ShardUpload, Store, Tier, UploadId, VersionDelete, VersionsRequest,
    VolumeOptions, VolumePolicy, WriteRequest,
};

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// Does it, to the file `a/b` of a volume, and says what went wrong.
pub async fn call(store: &dyn Store, action: Action, volume: &str) -> Result<()> {
    let (file, other, set) = (key("a/b"), key("a/c"), SetId(1));
    let upload = UploadId("000000000000000000000001".to_owned());
    let part = || PartSource {
        volume: volume.to_owned(),
        key: key("a/b"),
        condition: Condition::default(),
        range: None,
    };
    match action {
        Action::Volumes => store.volumes().await.map(drop),
        Action::Volume => store.volume(volume).await.map(drop),
        Action::VolumeCreate => store.volume_create(volume, VolumeOptions::default()).await.map(drop),
        Action::VolumeSet => store.volume_set(volume, VolumePolicy::default()).await.map(drop),
        Action::VolumeDelete => store.volume_delete(volume).await,
        Action::Stat => store.stat(volume, &file).await.map(drop),
        Action::Open => store.open(volume, &file).await.map(drop),
        Action::List => {
            store.list(volume, ListRequest { limit: 10, ..ListRequest::default() }).await.map(drop)
        }
        Action::Create => store.create(volume, &other, WriteRequest::default()).await.map(drop),
        Action::Edit => store.edit(volume, &file, EditRequest::default()).await.map(drop),
        Action::EditNow => {
            store.edit_now(volume, &other, EditRequest::default(), Bytes::new()).await.map(drop)
        }
        Action::Entry => store.entry(volume, &file).await.map(drop),
        Action::Directory => store.directory(volume, 1).await.map(drop),
        Action::Inodes => store.inodes(1).await.map(drop),
        Action::Lock => {
            let client = LockClient([3; 16]);
            let (space, owner, pid, start, end) = (LockSpace::Files, 1, 1, 0, u64::MAX);
            let request = LockRequest {
                inode: 7,
                client,
                space,
                owner,
                pid,
                kind: None,
                start,
                end,
                is_test: false,
                wait_ms: 0,
            };
            store.lock(volume, &file, request).await.map(drop)
        }
        Action::LocksKeep => store.locks_keep(volume, LockClient([3; 16]), Vec::new()).await.map(drop),
        Action::Link => store.link(volume, &file, &key("a/link")).await.map(drop),
        Action::Copy => {
            let request = CopyRequest {
                from_volume: volume.to_owned(),
                from: file,
                from_condition: Condition::default(),
                to_volume: volume.to_owned(),
                to: key("a/copy"),
                condition: Condition::default(),
                attributes: None,
            };
            store.copy(request).await.map(drop)
        }
        Action::Rename => store.rename(volume, &key("a/copy"), &key("a/moved"), RenameMode::Replace).await,
        Action::Delete => {
            let answers = store.delete(volume, vec![(key("a/moved"), Condition::default())]).await?;
            answers.into_iter().try_for_each(|answer| answer.map(drop))
        }
        Action::Versions => store
            .versions(volume, VersionsRequest { limit: 10, ..VersionsRequest::default() })
            .await
            .map(drop),
        Action::DeleteVersions => {
            let (condition, bypass) = (Condition::default(), true);
            let delete = VersionDelete { key: key("a/moved"), version: None, condition, bypass };
            let answers = store.delete_versions(volume, vec![delete]).await?;
            answers.into_iter().try_for_each(|answer| answer.map(drop))
        }
        Action::SetVersionLock => {
            let change = LockChange { is_held: Some(true), bypass: true, ..LockChange::default() };
            store.set_version_lock(volume, &file, change).await
        }
        Action::SetAttributes => {
            let change = AttributesChange { tags: Some(Vec::new()), ..AttributesChange::default() };
            store.set_attributes(volume, &file, change).await.map(drop)
        }
        Action::VolumeSetting => store.volume_setting(volume, "tagging").await.map(drop),
        Action::SetVolumeSetting => store.set_volume_setting(volume, "tagging", Some(b"x".to_vec())).await,
        Action::UploadCreate => {
            store.upload_create(volume, &other, Attributes::default(), None).await.map(drop)
        }
        Action::UploadCreateFull => {
            let kind = ChecksumKind::Crc64Nvme;
            store.upload_create_full(volume, &other, Attributes::default(), kind).await.map(drop)
        }
        Action::UploadPartOpen => store.upload_part_open(volume, &other, &upload, 1).await.map(drop),
        Action::PartChecksums => store.part_checksums(volume, &file).await.map(drop),
        Action::UploadPart => store.upload_part(volume, &other, &upload, 1, None).await.map(drop),
        Action::UploadPartCopy => store.upload_part_copy(volume, &other, &upload, 1, part()).await.map(drop),
        Action::UploadParts => store.upload_parts(volume, &other, &upload, 0, 10).await.map(drop),
        Action::Uploads => store.uploads(volume, b"", None, 10).await.map(drop),
        Action::UploadComplete => {
            let finish = Finish::default();
            store
                .upload_complete(volume, &other, &upload, Vec::new(), Condition::default(), finish)
                .await
                .map(drop)
        }
        Action::UploadAbort => store.upload_abort(volume, &other, &upload).await,
        Action::SetBegin => {
            let request =
                SetRequest { target: key("set/"), owner: "job".into(), shards: 1, deadline_s: None };
            store.set_begin(volume, request).await.map(drop)
        }
        Action::SetShard => {
            store.set_shard(volume, &key("set/0"), set, ShardRequest::default()).await.map(drop)
        }
        Action::SetShardComplete => {
            let finish = Finish::default();
            let shard = ShardUpload { number: 0, writer: "rank".into(), upload, parts: Vec::new(), finish };
            store.set_shard_complete(volume, &key("set/0"), set, shard).await.map(drop)
        }
        Action::SetPublish => store.set_publish(volume, set).await.map(drop),
        Action::SetAbort => store.set_abort(volume, set).await.map(drop),
        Action::SetStatus => store.set_status(volume, set).await.map(drop),
        Action::SetFind => store.set_find(volume, &key("set/")).await.map(drop),
        Action::Sets => store.sets(volume, None, 10).await.map(drop),
        Action::SetLatest => store.set_latest(volume, b"").await.map(drop),
        Action::Receipt => store.receipt(volume, &file).await.map(drop),
        Action::Wait => store.wait(volume, &file, None, Awaited::Committed).await.map(drop),
        Action::Drain => store.drain(volume, b"").await.map(drop),
        Action::Stage => store.stage(volume, &file).await.map(drop),
        Action::JobLook => {
            let job = JobName { tenant: None, id: "matrix".to_owned() };
            store.job(JobOrder::Show(job)).await.map(drop)
        }
        Action::JobChange => {
            let mount = JobMount {
                source: format!("stoker://{volume}/a"),
                target: "/in".to_owned(),
                tier_hint: Tier::Warm,
                access: JobAccess::ReadWrite,
                is_default: false,
            };
            let spec = JobSpec {
                mounts: vec![mount],
                reservation_ms: 1_000,
                time_limit_ms: 1_000,
                ..JobSpec::default()
            };
            let submit = JobSubmit { id: format!("m-{volume}"), spec, ..JobSubmit::default() };
            store.job(JobOrder::Submit(Box::new(submit))).await.map(drop)
        }
        Action::Conflicts => store.conflicts(Some(volume)).await.map(drop),
        Action::ConflictResolve => store.conflict_resolve(volume, &file, Resolution::Ours).await,
        Action::AccessKeys => store.access_keys().await.map(drop),
        Action::AccessKey => store.access_key("none").await.map(drop),
        Action::AccessKeyPut => {
            let key = AccessKey {
                access_key: "MATRIX".into(),
                secret_key: "secret".into(),
                access: Access { read_only: true, prefixes: vec!["nowhere".into()], ..Access::default() },
                created_ms: 1,
            };
            store.access_key_put(key).await
        }
        Action::AccessKeyDelete => store.access_key_delete("MATRIX").await,
        Action::Explain => store.explain(volume, &file).await.map(drop),
        Action::Status => store.status().await.map(drop),
        Action::Counters => store.counters().await.map(drop),
        Action::OperateLook => store.operate(Order::People).await.map(drop),
        Action::Operate => store.operate(Order::LevelHold { held: false }).await.map(drop),
    }
}
