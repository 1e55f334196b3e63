//! What lakes tell: their objects, and the markers of published sets.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt;
use serde::Deserialize;
use stoker_catalog::kv::Row;
use stoker_lake::{Lake, ObjectInfo};
use stoker_schema::rows::tier_keys;
use stoker_store::{ErrorKind, Result, SET_MARKER, StoreError, Subject};

use super::SalvageOptions;
use super::knowledge::VolumeFound;
use super::replay::Replayed;
use crate::Tell;
use stoker_records::error;
use stoker_records::named_lake::{self, Named};
use stoker_records::signature::Signer;
use stoker_records::wrapping::WrappingKeys;

/// Objects of one page of a listing.
const PAGE: usize = 1_000;

/// Objects asked about at the same time.
const AT_ONCE: usize = 16;

/// Sets have numbers below this; it leaves room for the numbers that come after the highest one.
const SET_ID_END: u64 = 1 << 62;

/// Largest marker that is read.
const MARKER_BYTES_MAX: u64 = 64 << 20;

/// A set that comes back.
pub(super) struct SetFound {
    pub set: u64,
    pub target: Vec<u8>,
    /// The commit that published it, or one before.
    pub seq: u64,
    pub owner: String,
    pub begun_ms: u64,
    pub published_ms: u64,
    pub expected: Option<u32>,
    /// Numbers of shards by their keys below the target, and who wrote them.
    pub shards: BTreeMap<Vec<u8>, (u32, String)>,
}

/// A marker, as far as it is read.
#[derive(Deserialize)]
struct Marker {
    set: u64,
    seq: u64,
    owner: String,
    begun_ms: u64,
    published_ms: u64,
    shards_expected: u32,
    shards: Vec<MarkerShard>,
}

#[derive(Deserialize)]
struct MarkerShard {
    shard: u32,
    key: String,
    #[serde(default)]
    writer: String,
}

/// The lake of a volume, if it has one. Rows say where a lake with a name is; its secret was wrapped by one of these of the cluster.
pub(super) async fn open(
    volume: &VolumeFound,
    options: &SalvageOptions,
    rows: &BTreeMap<Vec<u8>, Vec<u8>>,
    secrets: &[[u8; 32]],
) -> Result<Option<Arc<dyn Lake>>> {
    let Some(place) = volume.row.lake.as_ref().filter(|_| volume.whose().drains) else { return Ok(None) };
    let (url, lake_options) = match named_lake::parse(place) {
        None => (place.clone(), options.lake_options.clone()),
        Some((name, folder)) => {
            let key = tier_keys::lake(name);
            let value = rows.get(&key).ok_or_else(|| {
                let message = format!("nothing that is left tells where lake `{name}` is");
                said(volume, StoreError::about(ErrorKind::NotFound, Subject::Lake, message))
            })?;
            let row = Row { key, value: value.clone(), seq: 0 };
            let named = Named::read(&row, &WrappingKeys::of(secrets)).map_err(|fault| said(volume, fault))?;
            (named_lake::folder(&named.info.url, folder), named.options(&options.lake_options))
        }
    };
    if let Some(opener) = &options.lake_opener {
        return Ok(Some((opener.0)(&url)));
    }
    let lake =
        stoker_lake::open(&url, &lake_options).await.map_err(|fault| said(volume, error::lake(fault)))?;
    Ok(Some(lake))
}

fn said(volume: &VolumeFound, fault: StoreError) -> StoreError {
    let message = format!(
        "the lake of volume `{}`: {}; it has to answer, because it has what was drained",
        volume.name, fault.message
    );
    StoreError { message, ..fault }
}

/// Every object of a volume's lake, with its metadata. What it says in our name is taken off unless this cluster wrote it, so that
/// nobody acts upon the word of whoever can write to a bucket; `unsigned` counts those.
pub(super) async fn objects(
    volume: &VolumeFound,
    lake: Option<&dyn Lake>,
    signer: &Signer,
    unsigned: &mut u64,
    tell: Tell<'_>,
) -> Result<BTreeMap<Vec<u8>, ObjectInfo>> {
    let mut found = BTreeMap::new();
    let Some(lake) = lake else { return Ok(found) };
    let mut after = None::<Vec<u8>>;
    loop {
        let page = lake.list(b"", after.as_deref(), None, PAGE).await;
        let page = page.map_err(|fault| said(volume, error::lake(fault)))?;
        // Listings carry no metadata.
        let heads = page.objects.iter().map(|object| lake.head(&object.key));
        let mut heads = futures_util::stream::iter(heads).buffer_unordered(AT_ONCE);
        while let Some(head) = heads.next().await {
            if let Some(mut object) = head.map_err(|fault| said(volume, error::lake(fault)))? {
                *unsigned += u64::from(signer.strip(&mut object));
                found.insert(object.key.clone(), object);
            }
        }
        tell("looking at the lake", found.len() as u64);
        after = page.next.clone();
        if after.is_none() {
            return Ok(found);
        }
    }
}

/// Sets that records or markers call published, in the order of their publishes.
pub(super) async fn sets(
    volume: &VolumeFound,
    lake: Option<&dyn Lake>,
    replayed: &Replayed,
    objects: &BTreeMap<Vec<u8>, ObjectInfo>,
) -> Result<Vec<SetFound>> {
    let of_record = |set: &super::replay::PublishedSet| SetFound {
        set: set.set,
        target: set.target.clone(),
        seq: set.seq,
        owner: String::new(),
        begun_ms: 0,
        published_ms: 0,
        expected: None,
        shards: BTreeMap::new(),
    };
    let mut found: Vec<SetFound> = replayed.sets.iter().map(of_record).collect();
    let Some(lake) = lake else { return Ok(found) };
    for (key, object) in objects {
        let Some(target) = key.strip_suffix(SET_MARKER.as_bytes()) else { continue };
        if !target.ends_with(b"/") || object.size > MARKER_BYTES_MAX {
            continue;
        }
        let bytes = lake.get(key, 0..object.size, Some(&object.etag)).await;
        let bytes = bytes.map_err(|fault| said(volume, error::lake(fault)))?;
        // Anybody can write such a file.
        let Ok(marker) = serde_json::from_slice::<Marker>(&bytes) else { continue };
        if marker.set >= SET_ID_END {
            continue;
        }
        let shards =
            marker.shards.into_iter().map(|shard| (shard.key.into_bytes(), (shard.shard, shard.writer)));
        let told = SetFound {
            set: marker.set,
            target: target.to_vec(),
            seq: marker.seq,
            owner: marker.owner,
            begun_ms: marker.begun_ms,
            published_ms: marker.published_ms,
            expected: Some(marker.shards_expected),
            shards: shards.collect(),
        };
        match found.iter_mut().find(|known| known.set == told.set) {
            Some(known) => *known = told,
            None => found.push(told),
        }
    }
    found.sort_by_key(|set| (set.seq, set.set));
    Ok(found)
}
