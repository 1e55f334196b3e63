//! The simulated lake: the same trait, in memory, with faults from a seed.
//!
//! It knows no time and waits for nothing: the same calls in the same order with the same seed have the same
//! answers, so that a simulation can be replayed. [`store`] holds the objects, [`faults`] says what can go wrong.

mod faults;
mod store;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

use crate::Lake;
use crate::error::{LakeError, Result};
use crate::key::{KEY_BYTES_MAX, check_key};
use crate::rng::Rng;
use crate::types::{Attributes, BoxFuture, Capabilities, ListPage, ObjectInfo, PartTag, PutOptions};

pub use faults::{FaultCounts, Faults};
use store::Store;
pub use store::TwinObject;

/// A late effect comes at most this many calls after the call that it belongs to.
const LATE_CALLS_MAX: u64 = 20;

/// A lake in memory that fails as told.
pub struct TwinLake {
    state: Mutex<State>,
}

type Effect = Box<dyn FnOnce(&mut Store) + Send>;

struct State {
    store: Store,
    rng: Rng,
    faults: Faults,
    counts: FaultCounts,
    is_refusing: bool,
    is_hanging: bool,
    calls: u64,
    /// Effects of calls that have failed already, with the call at which they come.
    late: Vec<(u64, Effect)>,
}

/// What happens to a call.
enum Fate {
    Works,
    /// It has its effect, but the answer is lost.
    Unanswered,
    /// It fails and has its effect later.
    Late,
}

impl TwinLake {
    /// An empty lake that works. The seed chooses the faults that are asked for later.
    pub fn new(seed: u64) -> TwinLake {
        TwinLake::with_capabilities(
            seed,
            Capabilities {
                part_bytes_min: 1,
                part_bytes_max: 5 << 30,
                parts_max: 10_000,
                put_bytes_max: 5 << 30,
                conditional_put: true,
                conditional_complete: true,
                checksums: true,
                copy_bytes_max: 5 << 30,
                key_bytes_max: KEY_BYTES_MAX,
                meta_bytes_max: usize::MAX,
            },
        )
    }

    /// An empty lake with these limits.
    pub fn with_capabilities(seed: u64, capabilities: Capabilities) -> TwinLake {
        TwinLake {
            state: Mutex::new(State {
                store: Store::new(capabilities),
                rng: Rng::new(seed),
                faults: Faults::default(),
                counts: FaultCounts::default(),
                is_refusing: false,
                is_hanging: false,
                calls: 0,
                late: Vec::new(),
            }),
        }
    }

    /// Every call fails from now on, or no longer does so.
    pub fn refuse_all(&self, is_refusing: bool) {
        self.state().is_refusing = is_refusing;
    }

    /// No call is answered from now on, or calls are answered again. Calls that hang stay so.
    pub fn hang_all(&self, is_hanging: bool) {
        self.state().is_hanging = is_hanging;
    }

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Every fault but silent rot and foreign writers, together in this share of all calls.
    pub fn fault_rate(&self, rate: f64) {
        self.set_faults(Faults::evenly(rate));
    }

    /// Faults that were played so far.
    pub fn fault_counts(&self) -> FaultCounts {
        self.state().counts
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Everything that the lake holds.
    pub fn objects(&self) -> BTreeMap<Vec<u8>, TwinObject> {
        self.state().store.objects.clone()
    }

    /// Uploads that are neither completed nor aborted: key and id.
    pub fn uploads(&self) -> Vec<(Vec<u8>, String)> {
        self.state().store.uploads.iter().map(|(id, upload)| (upload.key.clone(), id.clone())).collect()
    }

    /// Lets every late effect come now.
    pub fn settle(&self) {
        let mut state = self.state();
        for (_, effect) in std::mem::take(&mut state.late) {
            effect(&mut state.store);
        }
    }

    /// Somebody else writes an object; no fault, no condition. Gives its etag.
    pub fn foreign_put(&self, key: &[u8], body: impl Into<Bytes>) -> String {
        let answer = self.state().store.put(key, &[body.into()], &PutOptions::default());
        answer.expect("a put without a condition works")
    }

    /// Flips a bit of an object; it looks as before otherwise.
    pub fn rot(&self, key: &[u8], at: usize) {
        let mut state = self.state();
        if let Some(object) = state.store.objects.get_mut(key)
            && at < object.body.len()
        {
            let mut body = object.body.to_vec();
            body[at] ^= 1;
            object.body = body.into();
        }
    }

    /// Somebody else deletes an object.
    pub fn foreign_delete(&self, key: &[u8]) {
        self.state().store.objects.remove(key);
    }

    async fn hang(&self) {
        let is_hanging = self.state().is_hanging;
        if is_hanging {
            std::future::pending::<()>().await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that changes nothing.
    async fn read<T>(&self, key: &[u8], work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        self.hang().await;
        let mut state = self.state();
        state.begin(key)?;
        work(&mut state)
    }

    /// A call that changes something, perhaps after its answer.
    async fn write<T>(
        &self,
        key: &[u8],
        work: impl FnOnce(&mut Store) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.hang().await;
        let mut state = self.state();
        state.begin(key)?;
        if state.roll(|faults| faults.bad_digest) {
            state.counts.bad_digest += 1;
            return Err(LakeError::corrupt(
                "simulated: the bytes were damaged on their way; send them again",
            ));
        }
        match state.fate() {
            Fate::Works => work(&mut state.store),
            Fate::Unanswered => {
                let _ = work(&mut state.store);
                Err(LakeError::unavailable("simulated: the connection broke before the answer"))
            }
            Fate::Late => {
                let due = state.calls + 1 + state.rng.below(LATE_CALLS_MAX);
                state.late.push((due, Box::new(move |store| drop(work(store)))));
                Err(LakeError::unavailable("simulated: no answer in time"))
            }
        }
    }
}

impl State {
    /// What happens before any effect of a call.
    fn begin(&mut self, key: &[u8]) -> Result<()> {
        self.calls += 1;
        let now = self.calls;
        for (at, effect) in std::mem::take(&mut self.late) {
            if at <= now {
                effect(&mut self.store);
            } else {
                self.late.push((at, effect));
            }
        }
        if self.is_refusing {
            return Err(LakeError::unavailable("simulated: the lake is down"));
        }
        if self.roll(|faults| faults.foreign) {
            self.foreign(key);
        }
        if self.roll(|faults| faults.busy) {
            self.counts.busy += 1;
            return Err(LakeError::busy("simulated: 503 SlowDown"));
        }
        if self.roll(|faults| faults.reset_before) {
            self.counts.reset_before += 1;
            return Err(LakeError::unavailable("simulated: the connection was refused"));
        }
        Ok(())
    }

    fn fate(&mut self) -> Fate {
        if self.roll(|faults| faults.reset_after) {
            self.counts.reset_after += 1;
            Fate::Unanswered
        } else if self.roll(|faults| faults.late) {
            self.counts.late += 1;
            Fate::Late
        } else {
            Fate::Works
        }
    }

    /// Somebody else changes the object that the call is about.
    fn foreign(&mut self, key: &[u8]) {
        self.counts.foreign += 1;
        if self.rng.chance(0.5) {
            let body = Bytes::from(format!("foreign {}", self.calls));
            let answer = self.store.put(key, &[body], &PutOptions::default());
            answer.expect("a put without a condition works");
        } else {
            self.store.objects.remove(key);
        }
    }

    fn roll(&mut self, rate: impl Fn(&Faults) -> f64) -> bool {
        let rate = rate(&self.faults);
        rate > 0.0 && self.rng.chance(rate)
    }
}

impl Lake for TwinLake {
    fn head<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<ObjectInfo>>> {
        Box::pin(async move { self.read(check_key(key)?, |state| Ok(state.store.head(key))).await })
    }

    fn get<'a>(
        &'a self,
        key: &'a [u8],
        range: Range<u64>,
        if_match: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            self.read(check_key(key)?, |state| {
                let bytes = state.store.get(key, range, if_match)?;
                if state.roll(|faults| faults.short_body) {
                    state.counts.short_body += 1;
                    return Err(LakeError::unavailable("simulated: the body ended early"));
                }
                if !bytes.is_empty() && state.roll(|faults| faults.rot) {
                    state.counts.rot += 1;
                    let mut rotten = BytesMut::from(bytes.as_ref());
                    let at = state.rng.below(rotten.len() as u64) as usize;
                    rotten[at] ^= 1 << state.rng.below(8);
                    return Ok(rotten.freeze());
                }
                Ok(bytes)
            })
            .await
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a [u8],
        body: Vec<Bytes>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            self.check(key, &options.attributes)?;
            let own = key.to_vec();
            self.write(key, move |store| store.put(&own, &body, &options)).await
        })
    }

    fn upload_begin<'a>(&'a self, key: &'a [u8], attributes: Attributes) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            self.check(key, &attributes)?;
            let own = key.to_vec();
            self.write(key, move |store| Ok(store.upload_begin(&own, attributes))).await
        })
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        number: u32,
        body: Vec<Bytes>,
    ) -> BoxFuture<'a, Result<PartTag>> {
        Box::pin(async move {
            let (own, upload) = (check_key(key)?.to_vec(), upload.to_owned());
            self.write(key, move |store| store.upload_part(&own, &upload, number, &body)).await
        })
    }

    fn upload_parts<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<Vec<PartTag>>> {
        Box::pin(
            async move { self.read(check_key(key)?, |state| state.store.upload_parts(key, upload)).await },
        )
    }

    fn upload_complete<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        parts: Vec<PartTag>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let (own, upload) = (check_key(key)?.to_vec(), upload.to_owned());
            self.write(key, move |store| store.upload_complete(&own, &upload, &parts, &options)).await
        })
    }

    fn upload_abort<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let upload = upload.to_owned();
            self.write(check_key(key)?, move |store| {
                store.upload_abort(&upload);
                Ok(())
            })
            .await
        })
    }

    fn copy<'a>(
        &'a self,
        from: &'a [u8],
        if_match: &'a str,
        to: &'a [u8],
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let (from, own, if_match) =
                (check_key(from)?.to_vec(), check_key(to)?.to_vec(), if_match.to_owned());
            self.write(to, move |store| store.copy(&from, &if_match, &own, &options)).await
        })
    }

    fn delete<'a>(&'a self, key: &'a [u8], if_match: Option<&'a str>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (own, if_match) = (check_key(key)?.to_vec(), if_match.map(str::to_owned));
            self.write(key, move |store| store.delete(&own, if_match.as_deref())).await
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> BoxFuture<'a, Result<ListPage>> {
        Box::pin(async move {
            if limit == 0 {
                return Err(LakeError::invalid("a listing of nothing; ask for at least one entry"));
            }
            self.read(prefix, |state| Ok(state.store.list(prefix, after, delimiter, limit))).await
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.state().store.capabilities
    }

    fn describe(&self) -> String {
        "twin://memory".to_owned()
    }
}
