//! A backup back into its place.

use std::path::PathBuf;

use serde::Serialize;
use stoker_catalog::Row;
use stoker_schema::rows::{RestoredRow, RowValue, keys};
use stoker_store::{ErrorKind, Result, StoreError};

use super::{Target, Tell, identity, look, open_backup, origin, put_in_place, seen};
use stoker_host::clock;

/// What is to be restored, and where.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// Directory of the node.
    pub dir: PathBuf,
    /// Where its catalog is.
    pub target: Target,
    /// The backup.
    pub file: PathBuf,
    /// Replace a catalog that is not empty.
    pub force: bool,
    /// Do without what came after the backup: nodes that know of it start all the same.
    pub accept_loss: bool,
}

/// What a restore did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RestoreReport {
    /// Rows.
    pub rows: u64,
    /// When the backup was taken, milliseconds since 1970.
    pub taken_ms: u64,
    /// The last commit of the backup.
    pub seq: u64,
    /// The last commit that this node saw.
    pub seen_seq: u64,
    /// Commits go on above this.
    pub base_seq: u64,
    /// What was there before has this name now.
    pub aside: Option<PathBuf>,
}

/// Puts a backup into the place of a catalog. The whole backup is checked before anything is touched.
pub async fn restore(options: &RestoreOptions, tell: Tell<'_>) -> Result<RestoreReport> {
    let identity = identity(&options.dir)?;
    let mut reader = open_backup(&options.file, identity.cluster)?;
    while reader.next_rows().map_err(crate::error::catalog)?.is_some() {
        tell("checking the backup", reader.summary().bytes);
    }
    let (header, summary) = (*reader.header(), reader.summary());
    let present = look(&options.dir, identity.cluster, &options.target).await?;
    if let Some(present) = present.as_ref().filter(|present| !present.is_empty() && !options.force) {
        let what = match &present.damage {
            Some(damage) => format!("there is a catalog that cannot be read ({damage})"),
            None => format!(
                "there is a catalog of {} files in {} volumes, with commits up to {}; the backup has those up to {}",
                present.files, present.volumes, present.seq, header.seq
            ),
        };
        let message =
            format!("{what}: what only that catalog knows would be lost; say --force to replace it");
        return Err(StoreError::new(ErrorKind::Conflict, message));
    }
    let seen_seq = seen(&options.dir);
    let (present_seq, epoch) = present.map(|present| (present.seq, present.epoch)).unwrap_or_default();
    let origin = origin(identity, &[header.seq, seen_seq, present_seq], epoch);
    let mark = RestoredRow { from_seq: header.seq, base_seq: origin.seq, at_ms: clock::now_ms() };
    let mark = Row { key: keys::RESTORED.to_vec(), value: mark.encode(), seq: origin.seq };
    let mut mark = (!options.accept_loss).then_some(mark);
    let mut reader = open_backup(&options.file, identity.cluster)?;
    let mut done = 0;
    let next = || {
        let Some(rows) = reader.next_rows()? else { return Ok(mark.take().map(|mark| vec![mark])) };
        done += rows.len() as u64;
        tell("restoring rows", done);
        // A boot that goes on is over with this, what an earlier restore did not know counts no more, and nobody knows which
        // join tokens were used or revoked since.
        let over: [&[u8]; 3] = [b"S", keys::RESTORED, keys::JOIN_SECRET];
        let stays = |row: &Row| !over.iter().any(|prefix| row.key.starts_with(prefix));
        Ok(Some(rows.into_iter().filter(stays).collect()))
    };
    let aside = put_in_place(&options.dir, identity, &options.target, origin, next).await?;
    Ok(RestoreReport {
        rows: summary.rows,
        taken_ms: header.created_ms,
        seq: header.seq,
        seen_seq,
        base_seq: origin.seq,
        aside,
    })
}
