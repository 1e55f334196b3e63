//! A lake whose requests are admitted. What is held is one request, as long as it takes with all its retries.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use stoker_lake::{
    Attributes, BoxFuture, Capabilities, Lake, LakeError, LakeErrorKind, LakeStats, ListPage, ObjectInfo,
    PartTag, PutOptions, Result, Silence,
};
use stoker_qos::Cost;
use stoker_qos_driver::{Permit, Resource};

use super::{GATES_MAX, gate, tag};

/// Schedulers of lakes, by their URLs: volumes of one lake share one.
pub(crate) struct LakeGates {
    by_url: Mutex<BTreeMap<String, Resource>>,
    others: Resource,
}

impl Default for LakeGates {
    fn default() -> LakeGates {
        LakeGates { by_url: Mutex::default(), others: gate() }
    }
}

impl LakeGates {
    /// The scheduler of a lake.
    pub fn of(&self, url: &str) -> Resource {
        let mut by_url = self.by_url.lock().unwrap();
        if by_url.len() >= GATES_MAX && !by_url.contains_key(url) {
            return self.others.clone();
        }
        by_url.entry(url.to_owned()).or_insert_with(gate).clone()
    }

    pub fn all(&self) -> Vec<Resource> {
        self.by_url.lock().unwrap().values().cloned().chain([self.others.clone()]).collect()
    }
}

/// A lake behind its scheduler.
pub(crate) struct AdmittedLake {
    pub lake: Arc<dyn Lake>,
    pub gate: Resource,
}

fn sum(body: &[Bytes]) -> u64 {
    body.iter().map(|part| part.len() as u64).sum()
}

impl AdmittedLake {
    async fn admit(&self, cost: Cost) -> Result<Permit> {
        self.gate.acquire(tag(), cost).await.map_err(|refused| {
            LakeError::new(
                LakeErrorKind::Unavailable,
                format!("this node has more to ask the lake than it can queue: {refused}"),
            )
        })
    }
}

/// One request, admitted at this cost.
macro_rules! admitted {
    ($me:ident, $cost:expr, $call:expr) => {{
        let cost = $cost;
        Box::pin(async move {
            let _permit = $me.admit(cost).await?;
            $call.await
        })
    }};
}

impl Lake for AdmittedLake {
    fn head<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<ObjectInfo>>> {
        admitted!(self, Cost::bytes(0), self.lake.head(key))
    }

    fn get<'a>(
        &'a self,
        key: &'a [u8],
        range: Range<u64>,
        if_match: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Bytes>> {
        admitted!(
            self,
            cost(range.end.saturating_sub(range.start), false),
            self.lake.get(key, range, if_match)
        )
    }

    fn put<'a>(
        &'a self,
        key: &'a [u8],
        body: Vec<Bytes>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        admitted!(self, cost(sum(&body), true), self.lake.put(key, body, options))
    }

    fn upload_begin<'a>(&'a self, key: &'a [u8], attributes: Attributes) -> BoxFuture<'a, Result<String>> {
        admitted!(self, Cost::bytes(0), self.lake.upload_begin(key, attributes))
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        number: u32,
        body: Vec<Bytes>,
    ) -> BoxFuture<'a, Result<PartTag>> {
        admitted!(self, cost(sum(&body), true), self.lake.upload_part(key, upload, number, body))
    }

    fn upload_parts<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<Vec<PartTag>>> {
        admitted!(self, Cost::bytes(0), self.lake.upload_parts(key, upload))
    }

    fn upload_complete<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        parts: Vec<PartTag>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        admitted!(self, Cost::bytes(0), self.lake.upload_complete(key, upload, parts, options))
    }

    fn upload_abort<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<()>> {
        admitted!(self, Cost::bytes(0), self.lake.upload_abort(key, upload))
    }

    fn copy<'a>(
        &'a self,
        from: &'a [u8],
        if_match: &'a str,
        to: &'a [u8],
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        admitted!(self, Cost::bytes(0), self.lake.copy(from, if_match, to, options))
    }

    fn delete<'a>(&'a self, key: &'a [u8], if_match: Option<&'a str>) -> BoxFuture<'a, Result<()>> {
        admitted!(self, Cost::bytes(0), self.lake.delete(key, if_match))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> BoxFuture<'a, Result<ListPage>> {
        admitted!(self, Cost::bytes(0), self.lake.list(prefix, after, delimiter, limit))
    }

    fn capabilities(&self) -> Capabilities {
        self.lake.capabilities()
    }

    fn check(&self, key: &[u8], attributes: &Attributes) -> Result<()> {
        self.lake.check(key, attributes)
    }

    fn is_doubted(&self, key: &[u8]) -> bool {
        self.lake.is_doubted(key)
    }

    fn end_doubt(&self, key: &[u8]) {
        self.lake.end_doubt(key);
    }

    fn describe(&self) -> String {
        self.lake.describe()
    }

    fn stats(&self) -> Option<LakeStats> {
        self.lake.stats()
    }

    fn silence(&self) -> Option<Silence> {
        self.lake.silence()
    }
}

/// A body that is longer than a request of a scheduler may be counts as the longest.
fn cost(bytes: u64, is_write: bool) -> Cost {
    Cost { is_write, ..Cost::bytes(bytes.min(stoker_qos::COST_BYTES_MAX)) }
}
