//! Reading the chunk list of a file.

use stoker_format::{ChunkRun, VersionId};

use super::Names;
use crate::rows::{FileRow, Layout, RowValue, VersionRow, keys};
use stoker_catalog::kv::Range;
use stoker_catalog::{CatalogError, Result};

/// The one run of a simple layout; none for an empty file.
pub(super) fn simple_runs(version: VersionId, size: u64, chunk_len: u32) -> Vec<ChunkRun> {
    if size == 0 || chunk_len == 0 {
        return Vec::new();
    }
    let count = size.div_ceil(u64::from(chunk_len));
    let last_len = size - (count - 1) * u64::from(chunk_len);
    vec![ChunkRun {
        file_offset: 0,
        version,
        first_index: 0,
        count: count as u32,
        chunk_len,
        last_len: last_len as u32,
    }]
}

impl Names {
    /// The chunks of a file in order.
    pub async fn runs(&self, file: &FileRow) -> Result<Vec<ChunkRun>> {
        self.version_runs(file.version(), file.size, &file.layout).await
    }

    /// The chunks of a version in order.
    pub async fn version_runs(
        &self,
        version: VersionId,
        size: u64,
        layout: &Layout,
    ) -> Result<Vec<ChunkRun>> {
        match *layout {
            Layout::Simple { chunk_len } => Ok(simple_runs(version, size, chunk_len)),
            Layout::Rows | Layout::Sparse { .. } => {
                Ok(VersionRow::join(self.version_rows(version).await?.iter()))
            }
        }
    }

    /// The chunks of a file, and the lengths of the parts that it was uploaded in (none: in one piece).
    pub async fn runs_and_parts(&self, file: &FileRow) -> Result<(Vec<ChunkRun>, Vec<u64>)> {
        match file.layout {
            Layout::Simple { .. } => Ok((self.runs(file).await?, Vec::new())),
            Layout::Rows | Layout::Sparse { .. } => {
                let rows = self.version_rows(file.version()).await?;
                let sizes = rows.first().map(|row| row.upload_parts.as_slice()).unwrap_or_default();
                Ok((VersionRow::join(rows.iter()), part_sizes(sizes)))
            }
        }
    }

    /// The rows of a layout, all of them or an error.
    pub async fn version_rows(&self, version: VersionId) -> Result<Vec<VersionRow>> {
        let mut range = Range::prefix(&keys::version_all(version), 1 << 10);
        let mut rows = Vec::new();
        loop {
            let page = self.catalog.range(range.clone()).await?;
            for row in &page.rows {
                rows.push(VersionRow::of(row)?);
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => break,
            }
        }
        if rows.first().is_some_and(|first| usize::from(first.rows) == rows.len()) {
            return Ok(rows);
        }
        Err(CatalogError::corrupt(format!("the layout of version {version} is not complete")))
    }

    /// Lengths of the parts that a file was uploaded in; empty if in one piece.
    pub async fn upload_part_sizes(&self, file: &FileRow) -> Result<Vec<u64>> {
        if !file.layout.has_rows() {
            return Ok(Vec::new());
        }
        let row = self.catalog.get(&[&keys::version(file.version(), 0)]).await?.pop().flatten();
        let sizes =
            row.as_ref().map(VersionRow::of).transpose()?.map(|row| row.upload_parts).unwrap_or_default();
        Ok(part_sizes(&sizes))
    }
}

fn part_sizes(sizes: &[(u64, u32)]) -> Vec<u64> {
    sizes.iter().flat_map(|&(size, count)| std::iter::repeat_n(size, count as usize)).collect()
}
