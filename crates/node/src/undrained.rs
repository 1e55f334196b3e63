//! What rows say this node has and no lake does, in few questions: a start with a million undrained files must not ask the
//! catalog for each of them.

use std::collections::{HashMap, HashSet};

use stoker_catalog::Row;
use stoker_catalog::kv::{Range, prefix_end};
use stoker_format::{ChunkRun, VersionId};
use stoker_schema::names::{Located, Spot};
use stoker_schema::rows::{EntryRow, Layout, RowValue, VersionRow, keys};
use stoker_store::{ErrorKind, Result, StoreError};

use crate::core::Core;
use crate::error;

/// Dirty rows that are looked at together.
const PAGE: usize = 1_000;

/// Names that are looked up together.
const GET: usize = 500;

/// Rows of a range over many versions: few as long as most of them are of other versions, more where they lie together.
const SCAN_MIN: usize = 16;
const SCAN_MAX: usize = 1_000;

/// A version that this node has some of, or all.
pub(crate) struct DirtyVersion {
    pub version: VersionId,
    /// Its names. None if a seal or nothing refers to it.
    pub names: Vec<Located>,
    /// Its layout, if that is written in rows of their own.
    pub layout: Vec<VersionRow>,
}

impl DirtyVersion {
    /// Its chunks; none if nobody can tell.
    pub async fn runs(&self, core: &Core) -> Result<Vec<ChunkRun>> {
        match self.names.first().map(|located| &located.file) {
            Some(file) if matches!(file.layout, Layout::Simple { .. }) => {
                core.names.runs(file).await.map_err(error::catalog)
            }
            _ => Ok(VersionRow::join(self.layout.iter())),
        }
    }
}

/// Every version that a dirty row of this node names, once, page by page.
pub(crate) struct DirtyPages {
    range: Option<Range>,
    /// A version on several drives has a row for each.
    seen: HashSet<VersionId>,
}

impl DirtyPages {
    pub fn of(core: &Core) -> DirtyPages {
        let range = Range::prefix(&keys::dirty_of(core.node), PAGE);
        DirtyPages { range: Some(range), seen: HashSet::new() }
    }

    /// The next page, in the order of versions; none behind the last one.
    pub async fn next(&mut self, core: &Core) -> Result<Option<Vec<DirtyVersion>>> {
        let Some(range) = self.range.take() else { return Ok(None) };
        let page = core.catalog.range(range.clone()).await.map_err(error::catalog)?;
        let versions = page.rows.iter().filter_map(|row| keys::dirty_version(&row.key));
        let mut versions: Vec<VersionId> = versions.filter(|version| self.seen.insert(*version)).collect();
        versions.sort_unstable();
        self.range = page.rows.last().filter(|_| page.more).map(|last| range.after(&last.key));
        core.dirty_versions(versions).await.map(Some)
    }
}

impl Core {
    /// One version, as its rows are now.
    pub(crate) async fn dirty_version(&self, version: VersionId) -> Result<DirtyVersion> {
        let mut all = self.dirty_versions(vec![version]).await?;
        Ok(all.pop().expect("one was asked for"))
    }

    /// These versions, which are in ascending order.
    async fn dirty_versions(&self, versions: Vec<VersionId>) -> Result<Vec<DirtyVersion>> {
        let mut names = self.names_of_all(&versions).await?;
        // A layout may use chunks that were written for other versions.
        let has_rows = |version: &VersionId| {
            let named = names.get(version).and_then(|names| names.first());
            named.is_none_or(|located| located.file.layout.has_rows())
        };
        let asked: Vec<VersionId> = versions.iter().copied().filter(has_rows).collect();
        let mut layouts: HashMap<VersionId, Vec<VersionRow>> = HashMap::new();
        for row in self.rows_of(&asked, keys::version_all).await? {
            let Some(version) = version_in(&row.key) else { continue };
            layouts.entry(version).or_default().push(VersionRow::of(&row).map_err(error::catalog)?);
        }
        let mut all = Vec::with_capacity(versions.len());
        for version in versions {
            let (names, layout) =
                (names.remove(&version).unwrap_or_default(), layouts.remove(&version).unwrap_or_default());
            let is_whole = layout.first().is_none_or(|first| usize::from(first.rows) == layout.len());
            if !is_whole {
                // It went between two pages of the catalog.
                let first = [keys::version(version, 0)];
                let first = self.catalog.get(&[&first[0]]).await.map_err(error::catalog)?;
                if first.first().is_none_or(Option::is_none) {
                    all.push(DirtyVersion { version, names: Vec::new(), layout: Vec::new() });
                    continue;
                }
                let message = format!("the layout of version {version} is not complete");
                return Err(StoreError::new(ErrorKind::Corrupt, message));
            }
            all.push(DirtyVersion { version, names, layout });
        }
        Ok(all)
    }

    /// Every file whose content is one of these versions, which are in ascending order.
    async fn names_of_all(&self, versions: &[VersionId]) -> Result<HashMap<VersionId, Vec<Located>>> {
        let mut spots: Vec<(VersionId, Spot)> = Vec::new();
        for row in self.rows_of(versions, keys::references).await? {
            if let (Some(version), Some((volume, parent, name))) =
                (version_in(&row.key), keys::reference_parts(&row.key))
            {
                spots.push((version, Spot { volume, parent, name: name.to_vec() }));
            }
        }
        let mut names: HashMap<VersionId, Vec<Located>> = HashMap::new();
        for part in spots.chunks(GET) {
            let row_keys: Vec<Vec<u8>> = part.iter().map(|(_, spot)| spot.row_key()).collect();
            let row_keys: Vec<&[u8]> = row_keys.iter().map(Vec::as_slice).collect();
            let rows = self.catalog.get(&row_keys).await.map_err(error::catalog)?;
            for ((version, spot), row) in part.iter().zip(rows) {
                let Some(row) = row else { continue };
                if let EntryRow::File(file) = EntryRow::of(&row).map_err(error::catalog)?
                    && file.version() == *version
                {
                    let located = Located { spot: spot.clone(), seq: row.seq, file: *file };
                    names.entry(*version).or_default().push(located);
                }
            }
        }
        Ok(names)
    }

    /// Rows of these versions, in ascending order, of a table whose keys begin with a version. What is undrained was written
    /// lately, and versions begin with their time: mostly the rows lie together, and a range finds many of them.
    async fn rows_of(
        &self,
        versions: &[VersionId],
        prefix: impl Fn(VersionId) -> Vec<u8>,
    ) -> Result<Vec<Row>> {
        let (Some(first), Some(last)) = (versions.first(), versions.last()) else { return Ok(Vec::new()) };
        let is_wanted = |version: &VersionId| versions.binary_search(version).is_ok();
        let (mut found, mut limit) = (Vec::new(), SCAN_MIN);
        let (mut start, end) = (prefix(*first), prefix_end(&prefix(*last)));
        loop {
            let range = Range { start, end: end.clone(), limit, reverse: false };
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            let before = found.len();
            let wanted = |row: &&Row| version_in(&row.key).as_ref().is_some_and(is_wanted);
            found.extend(page.rows.iter().filter(wanted).cloned());
            let Some(at) = page.rows.last().filter(|_| page.more) else { return Ok(found) };
            let is_dense = (found.len() - before) * 2 >= page.rows.len();
            limit = if is_dense { (limit * 2).min(SCAN_MAX) } else { SCAN_MIN };
            start = match version_in(&at.key) {
                Some(version) if !is_wanted(&version) => {
                    let next = versions.partition_point(|wanted| *wanted < version);
                    let Some(next) = versions.get(next) else { return Ok(found) };
                    prefix(*next)
                }
                _ => range.after(&at.key).start,
            };
        }
    }
}

/// The version that a key begins with, behind its table.
fn version_in(key: &[u8]) -> Option<VersionId> {
    Some(VersionId(key.get(1..13)?.try_into().ok()?))
}
