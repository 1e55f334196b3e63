//! A door whose answers can be held: a test decides what happens while a call is under way.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use stoker_format::VersionId;
use stoker_store::{
    AccessKey, Attributes, AttributesChange, Awaited, BoxFuture, Buf, ChecksumKind, Condition, Conflict,
    CopyRequest, Counter, EditRequest, Entry, ErrorKind, Explanation, File, FileInfo, Finish, Key, ListPage,
    ListRequest, NodeStatus, Order, PartChoice, PartSource, PartsPage, Receipt, RenameMode, Report,
    Resolution, Result, SetId, SetInfo, SetRequest, SetStatus, SetsPage, ShardRequest, ShardUpload, Store,
    StoreError, UploadId, UploadInfo, UploadsPage, VolumeInfo, VolumeOptions, VolumePolicy, WriteRequest,
    Writer,
};
use tokio::sync::{Notify, oneshot};

/// Calls that can be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Edit,
    /// The end of an edit.
    Finish,
    Entry,
    List,
    Open,
    Rename,
    Link,
}

/// Whether a call is held before it is carried out, or its answer after that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    Before,
    After,
}

struct Hold {
    call: Call,
    when: When,
    reached: oneshot::Sender<()>,
    go: oneshot::Receiver<()>,
}

/// A call that is or will be held.
pub struct Held {
    reached: oneshot::Receiver<()>,
    go: oneshot::Sender<()>,
}

impl Held {
    /// Waits until the call has come.
    pub async fn reached(&mut self) {
        (&mut self.reached).await.unwrap();
    }

    /// Whether the call has come.
    pub fn is_reached(&mut self) -> bool {
        self.reached.try_recv().is_ok()
    }

    /// Lets it go on.
    pub fn go(self) {
        let _ = self.go.send(());
    }
}

pub struct Gate {
    inner: Arc<dyn Store>,
    holds: Mutex<Vec<Hold>>,
    refusals: Mutex<Vec<(Call, StoreError)>>,
    losses: Arc<Mutex<Vec<Call>>>,
    refused: Notify,
}

impl Gate {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Gate> {
        Arc::new(Gate {
            inner,
            holds: Mutex::default(),
            refusals: Mutex::default(),
            losses: Arc::default(),
            refused: Notify::new(),
        })
    }

    /// Holds the next call of a kind.
    pub fn hold(&self, call: Call, when: When) -> Held {
        let ((reached, is_reached), (go, may_go)) = (oneshot::channel(), oneshot::channel());
        self.holds.lock().unwrap().push(Hold { call, when, reached, go: may_go });
        Held { reached: is_reached, go }
    }

    /// Answers every call of a kind like this from now on.
    pub fn refuse(&self, call: Call, fault: StoreError) {
        self.refusals.lock().unwrap().push((call, fault));
    }

    /// Refuses nothing any more.
    pub fn allow(&self) {
        self.refusals.lock().unwrap().clear();
    }

    /// Waits until a call was refused after this was asked for.
    pub async fn has_refused(&self) {
        self.refused.notified().await;
    }

    /// The next call of a kind is carried out, and its answer lost.
    pub fn lose(&self, call: Call) {
        self.losses.lock().unwrap().push(call);
    }

    async fn stop(&self, call: Call, when: When) {
        let hold = {
            let mut holds = self.holds.lock().unwrap();
            let at = holds.iter().position(|hold| (hold.call, hold.when) == (call, when));
            at.map(|at| holds.remove(at))
        };
        if let Some(hold) = hold {
            let _ = hold.reached.send(());
            let _ = hold.go.await;
        }
    }

    async fn through<T>(&self, call: Call, answer: BoxFuture<'_, Result<T>>) -> Result<T> {
        self.stop(call, When::Before).await;
        let refusal = self.refusals.lock().unwrap().iter().find(|(refused, _)| *refused == call).cloned();
        if let Some((_, fault)) = refusal {
            self.refused.notify_waiters();
            return Err(fault);
        }
        let answer = answer.await;
        self.stop(call, When::After).await;
        unless_lost(&self.losses, call, answer)
    }

    /// Whether no answer is to be lost any more.
    pub fn has_lost_all(&self) -> bool {
        self.losses.lock().unwrap().is_empty()
    }
}

fn unless_lost<T>(losses: &Mutex<Vec<Call>>, call: Call, answer: Result<T>) -> Result<T> {
    let mut losses = losses.lock().unwrap();
    if let Some(at) = losses.iter().position(|lost| *lost == call) {
        losses.remove(at);
        return Err(StoreError::new(ErrorKind::Unavailable, "the answer is lost"));
    }
    answer
}

/// A writer whose last answer can be lost.
struct Gated {
    inner: Box<dyn Writer>,
    losses: Arc<Mutex<Vec<Call>>>,
}

impl Writer for Gated {
    fn buffer(&mut self) -> BoxFuture<'_, Result<Buf>> {
        self.inner.buffer()
    }

    fn write(&mut self, buf: Buf) -> BoxFuture<'_, Result<()>> {
        self.inner.write(buf)
    }

    fn crc64(&self) -> u64 {
        self.inner.crc64()
    }

    fn finish(self: Box<Self>, finish: Finish) -> BoxFuture<'static, Result<Receipt>> {
        Box::pin(async move { unless_lost(&self.losses, Call::Finish, self.inner.finish(finish).await) })
    }

    fn finish_on(self: Box<Self>, base: VersionId, finish: Finish) -> BoxFuture<'static, Result<Receipt>> {
        Box::pin(
            async move { unless_lost(&self.losses, Call::Finish, self.inner.finish_on(base, finish).await) },
        )
    }
}

macro_rules! pass {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        fn $name<'a>(&'a self, $($arg: $type),*) -> BoxFuture<'a, Result<$out>> {
            self.inner.$name($($arg),*)
        }
    )*};
}

macro_rules! gate {
    ($($call:ident: $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        fn $name<'a>(&'a self, $($arg: $type),*) -> BoxFuture<'a, Result<$out>> {
            Box::pin(self.through(Call::$call, self.inner.$name($($arg),*)))
        }
    )*};
}

impl Store for Gate {
    fn edit<'a>(
        &'a self,
        volume: &'a str,
        key: &'a Key,
        request: EditRequest,
    ) -> BoxFuture<'a, Result<Box<dyn Writer>>> {
        Box::pin(async move {
            let inner = self.through(Call::Edit, self.inner.edit(volume, key, request)).await?;
            Ok(Box::new(Gated { inner, losses: self.losses.clone() }) as Box<dyn Writer>)
        })
    }

    gate! {
        Edit: edit_now(volume: &'a str, key: &'a Key, request: EditRequest, bytes: Bytes) -> Receipt;
        Entry: entry(volume: &'a str, key: &'a Key) -> Entry;
        List: list(volume: &'a str, request: ListRequest) -> ListPage;
        Open: open(volume: &'a str, key: &'a Key) -> Box<dyn File>;
        Link: link(volume: &'a str, from: &'a Key, to: &'a Key) -> FileInfo;
        Rename: rename(volume: &'a str, from: &'a Key, to: &'a Key, mode: RenameMode) -> ();
    }

    pass! {
        volumes() -> Vec<VolumeInfo>;
        volume(name: &'a str) -> VolumeInfo;
        volume_create(name: &'a str, options: VolumeOptions) -> VolumeInfo;
        volume_set(name: &'a str, policy: VolumePolicy) -> VolumeInfo;
        volume_delete(name: &'a str) -> ();
        stat(volume: &'a str, key: &'a Key) -> FileInfo;
        create(volume: &'a str, key: &'a Key, request: WriteRequest) -> Box<dyn Writer>;
        directory(volume: &'a str, inode: u64) -> Vec<u8>;
        inodes(count: u32) -> u64;
        copy(request: CopyRequest) -> Receipt;
        delete(volume: &'a str, keys: Vec<(Key, Condition)>) -> Vec<Result<bool>>;
        set_attributes(volume: &'a str, key: &'a Key, change: AttributesChange) -> FileInfo;
        upload_create(
            volume: &'a str, key: &'a Key, attributes: Attributes, checksum: Option<ChecksumKind>
        ) -> UploadInfo;
        upload_part(
            volume: &'a str, key: &'a Key, upload: &'a UploadId, number: u32, size: Option<u64>
        ) -> Box<dyn Writer>;
        upload_part_copy(
            volume: &'a str, key: &'a Key, upload: &'a UploadId, number: u32, source: PartSource
        ) -> Receipt;
        upload_parts(
            volume: &'a str, key: &'a Key, upload: &'a UploadId, after: u32, limit: usize
        ) -> PartsPage;
        uploads(
            volume: &'a str, prefix: &'a [u8], after: Option<(Vec<u8>, Option<UploadId>)>, limit: usize
        ) -> UploadsPage;
        upload_complete(
            volume: &'a str, key: &'a Key, upload: &'a UploadId, parts: Vec<PartChoice>, condition: Condition,
            finish: Finish
        ) -> Receipt;
        upload_abort(volume: &'a str, key: &'a Key, upload: &'a UploadId) -> ();
        set_begin(volume: &'a str, request: SetRequest) -> SetInfo;
        set_shard(volume: &'a str, key: &'a Key, set: SetId, request: ShardRequest) -> Box<dyn Writer>;
        set_shard_complete(volume: &'a str, key: &'a Key, set: SetId, shard: ShardUpload) -> Receipt;
        set_publish(volume: &'a str, set: SetId) -> SetInfo;
        set_abort(volume: &'a str, set: SetId) -> SetInfo;
        set_status(volume: &'a str, set: SetId) -> SetStatus;
        set_find(volume: &'a str, path: &'a Key) -> Option<SetInfo>;
        sets(volume: &'a str, after: Option<SetId>, limit: usize) -> SetsPage;
        set_latest(volume: &'a str, prefix: &'a [u8]) -> Option<SetInfo>;
        receipt(volume: &'a str, key: &'a Key) -> Receipt;
        wait(volume: &'a str, key: &'a Key, version: Option<VersionId>, awaited: Awaited) -> Receipt;
        drain(volume: &'a str, prefix: &'a [u8]) -> u64;
        stage(volume: &'a str, key: &'a Key) -> u64;
        conflicts(volume: Option<&'a str>) -> Vec<Conflict>;
        conflict_resolve(volume: &'a str, key: &'a Key, resolution: Resolution) -> ();
        access_keys() -> Vec<AccessKey>;
        access_key(access_key: &'a str) -> Option<AccessKey>;
        access_key_put(key: AccessKey) -> ();
        access_key_delete(access_key: &'a str) -> ();
        explain(volume: &'a str, key: &'a Key) -> Explanation;
        status() -> NodeStatus;
        counters() -> Vec<Counter>;
        operate(order: Order) -> Report;
    }
}
