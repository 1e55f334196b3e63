//! The rows that name records cannot give back: volumes and access keys, in one small file of the node's directory. (D47)
//!
//! Every node has it, as new as the last change that it heard of, and the node that makes a change has it before the
//! change is acknowledged. Nothing reads it but salvage, once the catalog is gone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stoker_catalog::Row;
use stoker_catalog::backup::{Header, Kind, Writer};
use stoker_format::ClusterId;
use stoker_records::mirror::{FILE, TABLES};
use stoker_store::{ErrorKind, Result, StoreError};

use crate::core::Core;
use crate::identity::write_durable;
use crate::{clock, error};

/// Pause before the file is written again after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Rows in a block of the file.
const BLOCK_ROWS: usize = 200;

/// The file.
pub(crate) struct Kept {
    path: PathBuf,
    cluster: ClusterId,
    /// What it has, so that it is not written in vain.
    written: tokio::sync::Mutex<Option<Vec<Row>>>,
}

impl Kept {
    pub fn new(dir: &Path, cluster: ClusterId) -> Kept {
        Kept { path: dir.join(FILE), cluster, written: tokio::sync::Mutex::new(None) }
    }

    fn write(&self, seq: u64, rows: &[Row]) -> std::io::Result<()> {
        let header = Header { kind: Kind::Kept, cluster: self.cluster, seq, created_ms: clock::now_ms() };
        let mut writer = Writer::begin(Vec::new(), &header)?;
        rows.chunks(BLOCK_ROWS).try_for_each(|rows| writer.rows(rows))?;
        write_durable(&self.path, &writer.end()?.0)
    }
}

impl Core {
    /// Writes the file if something in it changed; durable when this returns.
    pub async fn keep_rows(&self) -> Result<()> {
        let mut written = self.kept.written.lock().await;
        let seq = self.catalog.seq().await.map_err(error::catalog)?;
        let mut rows = Vec::new();
        for table in TABLES {
            self.each(table.to_vec(), |row| {
                rows.push(row.clone());
                Ok(())
            })
            .await?;
        }
        if written.as_ref() == Some(&rows) {
            return Ok(());
        }
        self.kept.write(seq, &rows).map_err(|fault| {
            StoreError::new(ErrorKind::Unavailable, format!("{}: {fault}", self.kept.path.display()))
        })?;
        *written = Some(rows);
        Ok(())
    }
}

/// Keeps the file as new as the catalog.
pub(crate) async fn run(core: Arc<Core>) {
    let mut changes: Vec<_> = TABLES.iter().map(|table| core.catalog.watch(table.to_vec())).collect();
    loop {
        if let Err(fault) = core.keep_rows().await {
            tracing::warn!("volumes and access keys are not written down: {}", fault.message);
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let any = futures_util::future::select_all(changes.iter_mut().map(|watch| Box::pin(watch.changed())));
        if any.await.0.is_err() {
            return;
        }
    }
}
