//! A lake that tries again, with care.
//!
//! Every request has a deadline and a pass of the [`gate`]. What failed for a passing reason is sent again after
//! a random wait, as long as the [`budget`] lasts. A write with a condition is not simply sent again when its
//! outcome is unknown: the lake is asked what it holds, so that a write which did succeed is not reported as a
//! conflict with itself.
//!
//! Two things cannot be healed here. A write whose answer was lost may take effect late, even after this call
//! has failed, or was sent again and succeeded: [`doubts`] remembers such keys for whoever owns them. And a begin
//! whose answer was lost leaves an empty upload.

mod budget;
mod doubts;
mod gate;
mod limits;
mod pulse;
#[cfg(test)]
mod tests;
mod timer;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, select};

use crate::Lake;
use crate::checksum::crc64_pieces;
use crate::error::{LakeError, LakeErrorKind, Result};
use crate::options::RetryOptions;
use crate::stats::{Counters, LakeStats, Operation};
use crate::types::{
    Attributes, BoxFuture, Capabilities, Condition, ListPage, ObjectInfo, PartTag, PutOptions, Silence,
};

use budget::Budget;
use doubts::Doubts;
use gate::Gate;
pub use limits::Limits;
use pulse::Pulse;
pub use timer::{RuntimeTimer, Timer};

/// An object up to this size is read back to see whether it is the one that was written, if the lake knows no
/// checksum.
const READ_BACK_BYTES_MAX: u64 = 64 << 20;

/// A lake around another that retries, limits and counts.
pub struct RetryLake {
    inner: Arc<dyn Lake>,
    options: RetryOptions,
    timer: Arc<dyn Timer>,
    gate: Arc<Gate>,
    budget: Budget,
    counters: Counters,
    doubts: Doubts,
    pulse: Pulse,
    limits: Arc<Limits>,
}

/// What an object must be to be the one that was written.
struct Expected {
    size: u64,
    crc64: Option<u64>,
}

impl RetryLake {
    /// Wraps a lake.
    pub fn new(inner: Arc<dyn Lake>, options: RetryOptions, timer: Arc<dyn Timer>) -> RetryLake {
        RetryLake {
            inner,
            options,
            timer,
            gate: Gate::new(options.requests_max),
            budget: Budget::new(options.budget),
            counters: Counters::default(),
            doubts: Doubts::default(),
            pulse: Pulse::default(),
            limits: Arc::new(Limits::new(&options)),
        }
    }

    /// How fast it may be asked; can be changed.
    pub(crate) fn limits(&self) -> Arc<Limits> {
        self.limits.clone()
    }

    /// One request: waits for a pass, then for the answer or the deadline.
    async fn once<T>(&self, operation: Operation, bytes: u64, call: BoxFuture<'_, Result<T>>) -> Result<T> {
        let wait_us = self.limits.take_us(self.timer.now_us(), bytes);
        if wait_us > 0 {
            self.timer.sleep_ms(wait_us.div_ceil(1_000)).await;
        }
        let pass = self.gate.pass().await;
        let start_us = self.timer.now_us();
        let bytes_ms = bytes * 1000 / self.options.bytes_per_s_min.max(1);
        let ms_max = self.options.request_ms_max + bytes_ms;
        let waiting = self.pulse.begin(&*self.timer, bytes_ms * 1000);
        let answer = match select(call, self.timer.sleep_ms(ms_max)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), _)) => Err(LakeError::unavailable(format!(
                "{} did not answer within {ms_max} ms",
                self.inner.describe()
            ))),
        };
        let latency_us = self.timer.now_us().saturating_sub(start_us);
        let kind = answer.as_ref().err().map(|error| error.kind);
        self.counters.answered(operation, latency_us, kind);
        match &answer {
            Err(error) if error.kind == LakeErrorKind::Unavailable => waiting.failed(error),
            _ => waiting.answered(),
        }
        match kind {
            Some(LakeErrorKind::Busy) => pass.busy(),
            Some(LakeErrorKind::Unavailable) => {}
            // Every other answer shows a lake that works.
            _ => {
                pass.answered();
                self.budget.refund();
            }
        }
        answer
    }

    /// A request that may be sent any number of times.
    async fn again<'a, T>(
        &'a self,
        operation: Operation,
        bytes: u64,
        call: impl Fn() -> BoxFuture<'a, Result<T>>,
    ) -> Result<T> {
        let mut tries = Tries::new(self);
        loop {
            match self.once(operation, bytes, call()).await {
                Err(error) if tries.next(&error).await => {}
                answer => return answer,
            }
        }
    }

    /// A write with a condition. After an unknown outcome the lake is asked.
    async fn conditional<'a>(
        &'a self,
        operation: Operation,
        bytes: u64,
        key: &'a [u8],
        condition: &Condition,
        expected: impl Fn() -> Result<Expected>,
        call: impl Fn() -> BoxFuture<'a, Result<String>>,
    ) -> Result<String> {
        let mut tries = Tries::new(self);
        let mut is_unknown = false;
        loop {
            let error = match self.once(operation, bytes, call()).await {
                Ok(etag) => return Ok(etag),
                Err(error) => error,
            };
            is_unknown |= error.kind == LakeErrorKind::Unavailable;
            let is_conflict = is_unknown && error.kind == LakeErrorKind::Changed;
            if !is_conflict && !tries.next(&error).await {
                return Err(error);
            }
            if is_unknown {
                let there = self.head(key).await?;
                let holds = match (condition, &there) {
                    (Condition::None, _) | (Condition::Absent, None) => true,
                    (Condition::Matches(etag), Some(info)) => *etag == info.etag,
                    _ => false,
                };
                if !holds {
                    let Some(info) = there else { return Err(changed(key)) };
                    let etag = info.etag.clone();
                    return if self.is_same(info, &expected()?).await? {
                        Ok(etag)
                    } else {
                        Err(changed(key))
                    };
                }
                // The conflict was not about this key: the source of a copy was changed.
                if is_conflict {
                    return Err(error);
                }
            }
        }
    }

    /// An object in the lake is the one that was written.
    async fn is_same(&self, info: ObjectInfo, expected: &Expected) -> Result<bool> {
        if info.size != expected.size {
            return Ok(false);
        }
        let unknown = |why: &str| {
            Err(LakeError::unavailable(format!(
                "whether `{}` was written is not known: {why}; look at the object",
                String::from_utf8_lossy(&info.key)
            )))
        };
        let Some(crc64) = expected.crc64 else { return unknown("it has no checksum to compare") };
        match info.crc64 {
            Some(other) => Ok(other == crc64),
            None if info.size > READ_BACK_BYTES_MAX => unknown("the lake keeps no checksum"),
            None => {
                let bytes = self.get(&info.key, 0..info.size, Some(&info.etag)).await?;
                Ok(stoker_format::crc64(&bytes) == crc64)
            }
        }
    }
}

/// The tries of one call.
struct Tries<'a> {
    lake: &'a RetryLake,
    count: u32,
    wait_ms: u64,
}

impl Tries<'_> {
    fn new(lake: &RetryLake) -> Tries<'_> {
        Tries { lake, count: 1, wait_ms: lake.options.wait_ms_min }
    }

    /// Waits if the call may be tried again after this error.
    async fn next(&mut self, error: &LakeError) -> bool {
        let is_passing =
            matches!(error.kind, LakeErrorKind::Busy | LakeErrorKind::Unavailable | LakeErrorKind::Corrupt);
        let options = &self.lake.options;
        if !is_passing || self.count >= options.tries_max {
            return false;
        }
        if !self.lake.budget.take() {
            self.lake.counters.refused();
            return false;
        }
        self.count += 1;
        self.lake.counters.retried();
        // Decorrelated jitter: between the least wait and three times the last one.
        let span = (3 * self.wait_ms).saturating_sub(options.wait_ms_min).max(1);
        self.wait_ms = (options.wait_ms_min + self.lake.timer.random() % span).min(options.wait_ms_max);
        tracing::debug!(error = %error, wait_ms = self.wait_ms, "trying again");
        self.lake.timer.sleep_ms(self.wait_ms).await;
        true
    }
}

impl Lake for RetryLake {
    fn head<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<ObjectInfo>>> {
        Box::pin(self.again(Operation::Head, 0, move || self.inner.head(key)))
    }

    fn get<'a>(
        &'a self,
        key: &'a [u8],
        range: Range<u64>,
        if_match: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let len = range.end.saturating_sub(range.start);
            let call = || self.inner.get(key, range.clone(), if_match);
            let bytes = self.again(Operation::Get, len, call).await?;
            assert_eq!(bytes.len() as u64, len, "a lake answered with another length");
            self.counters.read(len);
            Ok(bytes)
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a [u8],
        body: Vec<Bytes>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let len = body_len(&body);
            let call = || self.doubts.watch(key, self.inner.put(key, body.clone(), options.clone()));
            let etag = match &options.condition {
                Condition::None => self.again(Operation::Put, len, call).await?,
                condition => {
                    let expected = || {
                        let crc64 = options.crc64.unwrap_or_else(|| crc64_pieces(&body));
                        Ok(Expected { size: len, crc64: Some(crc64) })
                    };
                    self.conditional(Operation::Put, len, key, condition, expected, call).await?
                }
            };
            self.counters.written(len);
            Ok(etag)
        })
    }

    fn upload_begin<'a>(&'a self, key: &'a [u8], attributes: Attributes) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            self.again(Operation::Upload, 0, || self.inner.upload_begin(key, attributes.clone())).await
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
            let len = body_len(&body);
            let call = || self.inner.upload_part(key, upload, number, body.clone());
            let tag = self.again(Operation::Put, len, call).await?;
            self.counters.written(len);
            Ok(tag)
        })
    }

    fn upload_parts<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<Vec<PartTag>>> {
        Box::pin(self.again(Operation::Upload, 0, move || self.inner.upload_parts(key, upload)))
    }

    fn upload_complete<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        parts: Vec<PartTag>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let size: u64 = parts.iter().map(|part| part.size).sum();
            let mut tries = Tries::new(self);
            let mut is_unknown = false;
            loop {
                let call = self.inner.upload_complete(key, upload, parts.clone(), options.clone());
                let call = self.doubts.watch(key, call);
                // The lake may have to copy all parts.
                let error = match self.once(Operation::Upload, size, call).await {
                    Ok(etag) => return Ok(etag),
                    Err(error) => error,
                };
                is_unknown |= error.kind == LakeErrorKind::Unavailable;
                let is_gone =
                    is_unknown && matches!(error.kind, LakeErrorKind::NotFound | LakeErrorKind::Changed);
                if !is_gone && !tries.next(&error).await {
                    return Err(error);
                }
                if !is_unknown {
                    continue;
                }
                // An upload that is still there was not completed; one that is gone was, by us or nobody.
                match self.upload_parts(key, upload).await {
                    Ok(_) if is_gone => return Err(error),
                    Ok(_) => continue,
                    Err(other) if other.kind == LakeErrorKind::NotFound => {}
                    Err(other) => return Err(other),
                }
                let Some(info) = self.head(key).await? else {
                    return Err(LakeError::not_found(format!("the upload {upload} is gone; begin it again")));
                };
                let (etag, expected) = (info.etag.clone(), Expected { size, crc64: options.crc64 });
                return if self.is_same(info, &expected).await? { Ok(etag) } else { Err(changed(key)) };
            }
        })
    }

    fn upload_abort<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.again(Operation::Upload, 0, move || self.inner.upload_abort(key, upload)))
    }

    fn copy<'a>(
        &'a self,
        from: &'a [u8],
        if_match: &'a str,
        to: &'a [u8],
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            // The copy takes as long as the source is large.
            let source = self.head(from).await?;
            let size = source.as_ref().map_or(0, |info| info.size);
            let call = || self.doubts.watch(to, self.inner.copy(from, if_match, to, options.clone()));
            match &options.condition {
                Condition::None => self.again(Operation::Copy, size, call).await,
                condition => {
                    let expected = || match &source {
                        Some(info) if info.etag == if_match => {
                            Ok(Expected { size, crc64: options.crc64.or(info.crc64) })
                        }
                        _ => Err(changed(from)),
                    };
                    self.conditional(Operation::Copy, size, to, condition, expected, call).await
                }
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a [u8], if_match: Option<&'a str>) -> BoxFuture<'a, Result<()>> {
        let call = move || self.doubts.watch(key, self.inner.delete(key, if_match));
        Box::pin(self.again(Operation::Delete, 0, call))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> BoxFuture<'a, Result<ListPage>> {
        Box::pin(self.again(Operation::List, 0, move || self.inner.list(prefix, after, delimiter, limit)))
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn check(&self, key: &[u8], attributes: &Attributes) -> Result<()> {
        self.inner.check(key, attributes)
    }

    fn is_doubted(&self, key: &[u8]) -> bool {
        self.doubts.has(key)
    }

    fn end_doubt(&self, key: &[u8]) {
        self.doubts.end(key);
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn stats(&self) -> Option<LakeStats> {
        let (requests_now, requests_limit) = self.gate.load();
        Some(self.counters.snapshot(requests_now, requests_limit))
    }

    fn silence(&self) -> Option<Silence> {
        self.pulse.silence(self.timer.now_us())
    }
}

fn changed(key: &[u8]) -> LakeError {
    LakeError::changed(format!("`{}` was changed by somebody else", String::from_utf8_lossy(key)))
}

fn body_len(body: &[Bytes]) -> u64 {
    body.iter().map(|piece| piece.len() as u64).sum()
}
