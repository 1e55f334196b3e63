//! The lake as nodes reach it: what was sent takes time, and arrives even if its sender dies meanwhile. Who changes what is
//! watched: nothing may be changed that nobody claims.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use stoker_lake::{
    Attributes, BoxFuture, Capabilities, Condition, Lake, LakeError, ListPage, ObjectInfo, PartTag,
    PutOptions, RetryLake, RetryOptions, Timer, TwinLake,
};

use super::catalog::SimCatalog;
use super::invariants::one_writer_per_lake_key::{Change, Witness};
use super::mutations::Mutation;
use super::trace::Trace;
use crate::rng::Rng;
use tokio::sync::watch;

type Result<T> = std::result::Result<T, LakeError>;

/// A way to the one lake of a cluster.
#[derive(Clone)]
pub struct SimLake {
    twin: Arc<TwinLake>,
    trace: Trace,
    mutation: Option<Mutation>,
    /// What was sent, for a bug that takes that for what is there.
    sent: Arc<Mutex<BTreeMap<Vec<u8>, ObjectInfo>>>,
    ways: Arc<Mutex<Ways>>,
    /// The machine that this way begins at.
    at: usize,
    /// Counts writes that had their effect, with the machine of the last one.
    written: Arc<watch::Sender<(u64, usize)>>,
    /// Sees every change.
    pub witness: Arc<Witness>,
}

/// How calls travel.
struct Ways {
    rng: Rng,
    slow_ms: usize,
    late_percent: u64,
    rot_percent: u64,
    has_rotted: bool,
}

/// A call without an answer has its effect within this time, which is less than what nodes wait for.
const LATE_MS_MAX: usize = 400;

/// Every call takes up to so long, usually.
const TRAVEL_MS: usize = 20;

impl SimLake {
    /// A way to this lake.
    pub fn new(
        twin: Arc<TwinLake>,
        catalog: SimCatalog,
        mutation: Option<Mutation>,
        trace: Trace,
        rng: Rng,
    ) -> SimLake {
        let ways = Ways { rng, slow_ms: TRAVEL_MS, late_percent: 0, rot_percent: 0, has_rotted: false };
        SimLake {
            twin,
            trace,
            mutation,
            sent: Arc::default(),
            ways: Arc::new(Mutex::new(ways)),
            at: 0,
            written: Arc::new(watch::channel((0, 0)).0),
            witness: Arc::new(Witness::new(catalog)),
        }
    }

    /// The way from a machine.
    pub fn from(&self, at: usize) -> SimLake {
        SimLake { at, ..self.clone() }
    }

    /// Waits for the next write that has its effect, and says whose it was. Nobody has its answer yet.
    pub async fn next_write(&self) -> usize {
        let mut written = self.written.subscribe();
        written.mark_unchanged();
        let _ = written.changed().await;
        written.borrow().1
    }

    /// The lake as nodes use the real ones.
    pub fn with_retries(self) -> Arc<dyn Lake> {
        let timer = LakeTimer(self.clone());
        Arc::new(RetryLake::new(Arc::new(self), RetryOptions::default(), Arc::new(timer)))
    }

    /// Every call takes up to so long.
    pub fn set_slow_ms(&self, slow_ms: usize) {
        self.ways.lock().unwrap().slow_ms = slow_ms;
    }

    /// A share of all writes gets no answer and has its effect later.
    pub fn set_late_percent(&self, late_percent: u64) {
        self.ways.lock().unwrap().late_percent = late_percent;
    }

    /// A share of all reads gives bytes of which one bit is another, from objects that look as ever.
    pub fn set_rot_percent(&self, rot_percent: u64) {
        self.ways.lock().unwrap().rot_percent = rot_percent;
    }

    /// Whether a read ever gave such bytes.
    pub fn has_rotted(&self) -> bool {
        self.ways.lock().unwrap().has_rotted
    }

    /// Calls travel as they should.
    pub fn heal(&self) {
        let mut ways = self.ways.lock().unwrap();
        (ways.slow_ms, ways.late_percent, ways.rot_percent) = (TRAVEL_MS, 0, 0);
    }

    fn rotted(&self, key: &[u8], bytes: Bytes) -> Bytes {
        let ways = &mut *self.ways.lock().unwrap();
        if bytes.is_empty() || ways.rot_percent == 0 || !ways.rng.percent(ways.rot_percent) {
            return bytes;
        }
        ways.has_rotted = true;
        self.trace.note(format_args!("lake: a bit of {} is another", key.escape_ascii()));
        let mut bytes = bytes.to_vec();
        let at = ways.rng.below(bytes.len());
        bytes[at] ^= 1 << ways.rng.below(8);
        bytes.into()
    }

    async fn travel(&self) {
        let delay_ms = {
            let ways = &mut *self.ways.lock().unwrap();
            ways.rng.below(1 + ways.slow_ms)
        };
        tokio::time::sleep(Duration::from_millis(delay_ms as u64)).await;
    }

    /// How much later than its answer a write has its effect; none: before, as it should.
    fn late(&self, what: &str) -> Option<Duration> {
        let ways = &mut *self.ways.lock().unwrap();
        let is_late = is_write(what) && ways.late_percent > 0 && ways.rng.percent(ways.late_percent);
        is_late.then(|| Duration::from_millis(ways.rng.below(LATE_MS_MAX) as u64))
    }

    fn bend(&self, options: &mut PutOptions) {
        if self.mutation == Some(Mutation::WriteBlindly) {
            options.condition = Condition::None;
        }
    }

    /// A put whose failure nobody looks at, and which a look at the lake does not disprove.
    async fn put_unconfirmed(&self, key: Vec<u8>, body: Vec<Bytes>, options: PutOptions) -> Result<String> {
        let (size, crc64) = (body.iter().map(Bytes::len).sum::<usize>() as u64, options.crc64);
        let (own, attributes) = (key.clone(), options.attributes.clone());
        let put = self.send("put", &key, |lake| Box::pin(async move { lake.put(&own, body, options).await }));
        let etag = put.await.unwrap_or_else(|_| "unconfirmed".to_owned());
        let info = ObjectInfo {
            key: key.clone(),
            size,
            etag: etag.clone(),
            modified_ms: 0,
            attributes: Some(attributes),
            crc64,
        };
        self.sent.lock().unwrap().insert(key, info);
        Ok(etag)
    }

    /// A call whose effect does not depend on whether its sender lives to see the answer.
    async fn send<T: Send + 'static>(
        &self,
        what: &'static str,
        key: &[u8],
        call: impl FnOnce(Arc<TwinLake>) -> BoxFuture<'static, Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (this, key) = (self.clone(), key.escape_ascii().to_string());
        let sent = tokio::spawn(async move {
            this.travel().await;
            if let Some(late) = this.late(what) {
                this.trace.note(format_args!("lake: {what} {key}: no answer"));
                tokio::spawn(async move {
                    tokio::time::sleep(late).await;
                    let is_done = this.carry_out(what, call).await.is_ok();
                    this.trace.note(format_args!("lake: late {what} {key}: {is_done}"));
                });
                return Err(LakeError::unavailable("simulated: no answer"));
            }
            let answer = this.carry_out(what, call).await;
            let word = if answer.is_ok() { "done" } else { "failed" };
            this.trace.note(format_args!("lake: {what} {key}: {word}"));
            this.travel().await;
            answer
        });
        sent.await.unwrap_or_else(|_| Err(LakeError::unavailable("simulated: the run is over")))
    }

    /// A call reaches the lake.
    async fn carry_out<T>(
        &self,
        what: &'static str,
        call: impl FnOnce(Arc<TwinLake>) -> BoxFuture<'static, Result<T>>,
    ) -> Result<T> {
        if !is_write(what) {
            return call(self.twin.clone()).await;
        }
        let before = self.twin.objects();
        let answer = call(self.twin.clone()).await;
        if answer.is_ok() {
            let at = self.at;
            self.written.send_modify(|written| *written = (written.0 + 1, at));
        }
        self.witness.see(&Change { at: self.at, what, before, after: self.twin.objects() }).await;
        answer
    }
}

fn is_write(what: &str) -> bool {
    matches!(what, "put" | "complete" | "copy" | "delete")
}

/// Time and chance of the retries.
struct LakeTimer(SimLake);

impl Timer for LakeTimer {
    fn now_us(&self) -> u64 {
        self.0.trace.now_ms() * 1_000
    }

    fn sleep_ms(&self, ms: u64) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(Duration::from_millis(ms)))
    }

    fn random(&self) -> u64 {
        self.0.ways.lock().unwrap().rng.number()
    }
}

impl Lake for SimLake {
    fn head<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<ObjectInfo>>> {
        let own = key.to_vec();
        if let Some(sent) = self.sent.lock().unwrap().get(key).cloned() {
            return Box::pin(async { Ok(Some(sent)) });
        }
        Box::pin(self.send("head", key, |lake| Box::pin(async move { lake.head(&own).await })))
    }

    fn get<'a>(
        &'a self,
        key: &'a [u8],
        range: Range<u64>,
        if_match: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Bytes>> {
        let (own, if_match) = (key.to_vec(), if_match.map(str::to_owned));
        Box::pin(async move {
            let got = self.send("get", key, |lake| {
                Box::pin(async move { lake.get(&own, range, if_match.as_deref()).await })
            });
            got.await.map(|bytes| self.rotted(key, bytes))
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a [u8],
        body: Vec<Bytes>,
        mut options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        let own = key.to_vec();
        self.bend(&mut options);
        if self.mutation == Some(Mutation::CleanUnconfirmed) {
            return Box::pin(self.put_unconfirmed(own, body, options));
        }
        Box::pin(self.send("put", key, |lake| Box::pin(async move { lake.put(&own, body, options).await })))
    }

    fn upload_begin<'a>(&'a self, key: &'a [u8], attributes: Attributes) -> BoxFuture<'a, Result<String>> {
        let own = key.to_vec();
        Box::pin(
            self.send("begin", key, |lake| {
                Box::pin(async move { lake.upload_begin(&own, attributes).await })
            }),
        )
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        number: u32,
        body: Vec<Bytes>,
    ) -> BoxFuture<'a, Result<PartTag>> {
        let (own, upload) = (key.to_vec(), upload.to_owned());
        Box::pin(self.send("part", key, move |lake| {
            Box::pin(async move { lake.upload_part(&own, &upload, number, body).await })
        }))
    }

    fn upload_parts<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<Vec<PartTag>>> {
        let (own, upload) = (key.to_vec(), upload.to_owned());
        Box::pin(
            self.send("parts", key, |lake| Box::pin(async move { lake.upload_parts(&own, &upload).await })),
        )
    }

    fn upload_complete<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        parts: Vec<PartTag>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        let (own, upload) = (key.to_vec(), upload.to_owned());
        Box::pin(self.send("complete", key, |lake| {
            Box::pin(async move { lake.upload_complete(&own, &upload, parts, options).await })
        }))
    }

    fn upload_abort<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<()>> {
        let (own, upload) = (key.to_vec(), upload.to_owned());
        Box::pin(
            self.send("abort", key, |lake| Box::pin(async move { lake.upload_abort(&own, &upload).await })),
        )
    }

    fn copy<'a>(
        &'a self,
        from: &'a [u8],
        if_match: &'a str,
        to: &'a [u8],
        mut options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        self.bend(&mut options);
        let (from, if_match, own) = (from.to_vec(), if_match.to_owned(), to.to_vec());
        Box::pin(self.send("copy", to, |lake| {
            Box::pin(async move { lake.copy(&from, &if_match, &own, options).await })
        }))
    }

    fn delete<'a>(&'a self, key: &'a [u8], if_match: Option<&'a str>) -> BoxFuture<'a, Result<()>> {
        let if_match = if_match.filter(|_| self.mutation != Some(Mutation::WriteBlindly));
        let (own, if_match) = (key.to_vec(), if_match.map(str::to_owned));
        Box::pin(self.send("delete", key, |lake| {
            Box::pin(async move { lake.delete(&own, if_match.as_deref()).await })
        }))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> BoxFuture<'a, Result<ListPage>> {
        let (own, after) = (prefix.to_vec(), after.map(<[u8]>::to_vec));
        Box::pin(self.send("list", prefix, move |lake| {
            Box::pin(async move { lake.list(&own, after.as_deref(), delimiter, limit).await })
        }))
    }

    fn capabilities(&self) -> Capabilities {
        self.twin.capabilities()
    }

    fn describe(&self) -> String {
        "twin://simulated".to_owned()
    }
}
