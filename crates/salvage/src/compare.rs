//! What two catalogs say differently about names.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use stoker_catalog::engine::{self, Embedded, EmbeddedOptions, Origin};
use stoker_catalog::{Catalog, Range};
use stoker_format::{ClusterId, VolumeId};
use stoker_schema::names::{Found, Names};
use stoker_schema::rows::{FileRow, RowValue, VolumeRow, keys};
use stoker_store::Result;

use super::{CATALOG, open_backup, pages, remove};
use stoker_records::error;

/// One difference.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// Volume.
    pub volume: String,
    /// Key; empty if it is about the volume.
    pub key: String,
    /// What differs, in words.
    pub what: String,
}

/// Compares what two catalogs say of volumes, files and published sets, each given as a backup or as the directory of a
/// stopped node. Works in `scratch`. Where bytes lie and how far they are on their way to the lake is not compared: it
/// changes by itself.
pub async fn compare(a: &Path, b: &Path, scratch: &Path, limit: usize) -> Result<Vec<Difference>> {
    let (a, b) = (open(a, scratch, "a").await?, open(b, scratch, "b").await?);
    let mut differences = Vec::new();
    let (ours, theirs) = (volumes(&a).await?, volumes(&b).await?);
    for (name, row) in &ours {
        match theirs.iter().find(|(other, _)| other == name) {
            None => differences.push(difference(name, b"", "only in the first")),
            Some((_, other)) => {
                if (row.lake.as_ref(), &row.policy) != (other.lake.as_ref(), &other.policy) {
                    differences.push(difference(name, b"", "another lake or policy"));
                }
                let ids = (VolumeId(row.id), VolumeId(other.id));
                files(name, ids, (&a, &b), limit, &mut differences).await?;
                sets(name, ids, (&a, &b), &mut differences).await?;
            }
        }
    }
    let only = |(name, _): &&(String, VolumeRow)| !ours.iter().any(|(other, _)| other == name);
    differences
        .extend(theirs.iter().filter(only).map(|(name, _)| difference(name, b"", "only in the second")));
    differences.truncate(limit);
    Ok(differences)
}

fn difference(volume: &str, key: &[u8], what: impl Into<String>) -> Difference {
    let key = String::from_utf8_lossy(key).into_owned();
    Difference { volume: volume.to_owned(), key, what: what.into() }
}

/// A copy that can be read like any catalog.
async fn open(of: &Path, scratch: &Path, name: &str) -> Result<Names> {
    let copy = scratch.join(format!("compare.{name}"));
    remove(&copy)?;
    let cluster = match of.is_dir() {
        true => {
            let cluster = super::identity(of)?.cluster;
            let snapshot = engine::read_file(&of.join(CATALOG), cluster).map_err(error::catalog)?;
            let origin = Origin { seq: snapshot.seq(), epoch: None };
            engine::build(&copy, cluster, origin, pages(snapshot)).map_err(error::catalog)?;
            cluster
        }
        false => {
            let cluster = backup_cluster(of)?;
            let mut reader = open_backup(of, cluster)?;
            let origin = Origin { seq: reader.header().seq, epoch: None };
            engine::build(&copy, cluster, origin, || reader.next_rows()).map_err(error::catalog)?;
            cluster
        }
    };
    let catalog = Embedded::open(&copy, cluster, &EmbeddedOptions::default()).map_err(error::catalog)?;
    Ok(Names::new(Arc::new(catalog)))
}

fn backup_cluster(path: &Path) -> Result<ClusterId> {
    let file = std::fs::File::open(path).map_err(|fault| super::broken(path, &fault))?;
    let reader = stoker_catalog::backup::Reader::begin(file).map_err(error::catalog)?;
    Ok(reader.header().cluster)
}

async fn volumes(names: &Names) -> Result<Vec<(String, VolumeRow)>> {
    let mut found = Vec::new();
    each(names.catalog(), b"V", |row| {
        let volume = VolumeRow::of(row).map_err(error::catalog)?;
        found.push((String::from_utf8_lossy(&row.key[1..]).into_owned(), volume));
        Ok(())
    })
    .await?;
    Ok(found)
}

/// Every row with a prefix.
pub(super) async fn each(
    catalog: &Arc<dyn Catalog>,
    prefix: &[u8],
    mut see: impl FnMut(&stoker_catalog::Row) -> Result<()>,
) -> Result<()> {
    let mut range = Range::prefix(prefix, 1_000);
    loop {
        let page = catalog.range(range.clone()).await.map_err(error::catalog)?;
        page.rows.iter().try_for_each(&mut see)?;
        match page.rows.last() {
            Some(last) if page.more => range = range.after(&last.key),
            _ => return Ok(()),
        }
    }
}

/// Walks both sides at the same time, so that only a page of each is in memory.
async fn files(
    volume: &str,
    ids: (VolumeId, VolumeId),
    (a, b): (&Names, &Names),
    limit: usize,
    differences: &mut Vec<Difference>,
) -> Result<()> {
    let mut ours = a.walk(ids.0, b"", None, None).await.map_err(error::catalog)?;
    let mut theirs = b.walk(ids.1, b"", None, None).await.map_err(error::catalog)?;
    let (mut left, mut right) =
        (ours.next().await.map_err(error::catalog)?, theirs.next().await.map_err(error::catalog)?);
    while differences.len() < limit {
        let order = match (&left, &right) {
            (None, None) => return Ok(()),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(left), Some(right)) => left.name().cmp(right.name()),
        };
        match (order, &left, &right) {
            (std::cmp::Ordering::Less, Some(found), _) => {
                differences.push(difference(volume, found.name(), "only in the first"));
            }
            (std::cmp::Ordering::Greater, _, Some(found)) => {
                differences.push(difference(volume, found.name(), "only in the second"));
            }
            (_, Some(Found::File { key, file, .. }), Some(Found::File { file: other, .. })) => {
                if let Some(what) = differs(file, other) {
                    differences.push(difference(volume, key, what));
                }
            }
            _ => {}
        }
        if order.is_le() {
            left = ours.next().await.map_err(error::catalog)?;
        }
        if order.is_ge() {
            right = theirs.next().await.map_err(error::catalog)?;
        }
    }
    Ok(())
}

/// What a reader would notice.
fn differs(a: &FileRow, b: &FileRow) -> Option<String> {
    if a.size != b.size {
        return Some(format!("{} bytes, and {}", a.size, b.size));
    }
    if a.etag != b.etag || a.crc64.is_some() && b.crc64.is_some() && a.crc64 != b.crc64 {
        return Some(format!("another content: etag {}, and {}", a.etag, b.etag));
    }
    let read = |file: &FileRow| stoker_records::properties::Properties::decode(&file.properties).ok();
    let (a, b) = (read(a)?, read(b)?);
    let sorted = |mut attributes: stoker_store::Attributes| {
        attributes.meta.sort();
        attributes.headers.sort();
        attributes
    };
    (sorted(a.attributes) != sorted(b.attributes)).then(|| "other properties".to_owned())
}

async fn sets(
    volume: &str,
    ids: (VolumeId, VolumeId),
    (a, b): (&Names, &Names),
    differences: &mut Vec<Difference>,
) -> Result<()> {
    let (ours, theirs) = (published(a, ids.0).await?, published(b, ids.1).await?);
    let mut only = |here: &[Vec<u8>], there: &[Vec<u8>], which: &str| {
        let missing = here.iter().filter(|target| !there.contains(target));
        differences.extend(missing.map(|target| difference(volume, target, format!("a set {which}"))));
    };
    only(&ours, &theirs, "only in the first");
    only(&theirs, &ours, "only in the second");
    let both = |one: &[Vec<u8>], other: &[Vec<u8>]| -> Vec<Vec<u8>> {
        one.iter().filter(|target| other.contains(target)).cloned().collect()
    };
    if both(&ours, &theirs) != both(&theirs, &ours) {
        differences.push(difference(volume, b"", "sets were published in another order"));
    }
    Ok(())
}

/// Targets of published sets in the order of their publishes.
async fn published(names: &Names, volume: VolumeId) -> Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    each(names.catalog(), &keys::sets(volume), |row| {
        let set = stoker_schema::rows::SetRow::of(row).map_err(error::catalog)?;
        if set.state == stoker_schema::rows::SetState::Published {
            found.push((row.seq, set.target));
        }
        Ok(())
    })
    .await?;
    found.sort();
    Ok(found.into_iter().map(|(_, target)| target).collect())
}
