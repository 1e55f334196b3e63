//! A lake whose way there can be replaced while it is used: keys that were renewed, an endpoint that moved.
//!
//! It stands below [`RetryLake`](crate::RetryLake), so that what is known of keys and of the lake's health stays, and whoever holds the lake
//! asks by the new way from the next request on. The objects must be the same ones; nothing here checks that.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;

use crate::Lake;
use crate::error::Result;
use crate::options::LakeOptions;
use crate::retry::{Limits, RetryLake, RuntimeTimer};
use crate::types::{Attributes, BoxFuture, Capabilities, ListPage, ObjectInfo, PartTag, PutOptions};

/// Replaces the way to a lake that [`open_switched`](crate::open_switched) opened.
#[derive(Clone)]
pub struct Switch {
    inner: Arc<SwitchLake>,
    limits: Arc<Limits>,
}

impl Switch {
    pub(crate) fn around(lake: Arc<dyn Lake>, options: &LakeOptions) -> (Arc<dyn Lake>, Switch) {
        let inner = Arc::new(SwitchLake(RwLock::new(lake)));
        let retry = RetryLake::new(inner.clone(), options.retry, Arc::new(RuntimeTimer::new()));
        let limits = retry.limits();
        (Arc::new(retry), Switch { inner, limits })
    }

    /// Asks by a new way from now on. If it cannot be opened the old one stays.
    pub async fn reopen(&self, url: &str, options: &LakeOptions) -> Result<()> {
        let lake = crate::open_once(url, options).await?;
        self.limits.set(&options.retry);
        *self.inner.0.write().unwrap_or_else(PoisonError::into_inner) = lake;
        Ok(())
    }
}

struct SwitchLake(RwLock<Arc<dyn Lake>>);

impl SwitchLake {
    fn now(&self) -> Arc<dyn Lake> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Lake for SwitchLake {
    fn head<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<ObjectInfo>>> {
        let lake = self.now();
        Box::pin(async move { lake.head(key).await })
    }

    fn get<'a>(
        &'a self,
        key: &'a [u8],
        range: Range<u64>,
        if_match: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Bytes>> {
        let lake = self.now();
        Box::pin(async move { lake.get(key, range, if_match).await })
    }

    fn put<'a>(
        &'a self,
        key: &'a [u8],
        body: Vec<Bytes>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        let lake = self.now();
        Box::pin(async move { lake.put(key, body, options).await })
    }

    fn upload_begin<'a>(&'a self, key: &'a [u8], attributes: Attributes) -> BoxFuture<'a, Result<String>> {
        let lake = self.now();
        Box::pin(async move { lake.upload_begin(key, attributes).await })
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        number: u32,
        body: Vec<Bytes>,
    ) -> BoxFuture<'a, Result<PartTag>> {
        let lake = self.now();
        Box::pin(async move { lake.upload_part(key, upload, number, body).await })
    }

    fn upload_parts<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<Vec<PartTag>>> {
        let lake = self.now();
        Box::pin(async move { lake.upload_parts(key, upload).await })
    }

    fn upload_complete<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        parts: Vec<PartTag>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        let lake = self.now();
        Box::pin(async move { lake.upload_complete(key, upload, parts, options).await })
    }

    fn upload_abort<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<()>> {
        let lake = self.now();
        Box::pin(async move { lake.upload_abort(key, upload).await })
    }

    fn copy<'a>(
        &'a self,
        from: &'a [u8],
        if_match: &'a str,
        to: &'a [u8],
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        let lake = self.now();
        Box::pin(async move { lake.copy(from, if_match, to, options).await })
    }

    fn delete<'a>(&'a self, key: &'a [u8], if_match: Option<&'a str>) -> BoxFuture<'a, Result<()>> {
        let lake = self.now();
        Box::pin(async move { lake.delete(key, if_match).await })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> BoxFuture<'a, Result<ListPage>> {
        let lake = self.now();
        Box::pin(async move { lake.list(prefix, after, delimiter, limit).await })
    }

    fn capabilities(&self) -> Capabilities {
        self.now().capabilities()
    }

    fn check(&self, key: &[u8], attributes: &Attributes) -> Result<()> {
        self.now().check(key, attributes)
    }

    fn describe(&self) -> String {
        self.now().describe()
    }
}
