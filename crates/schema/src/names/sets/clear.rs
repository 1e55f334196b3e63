//! Turning the shards of an aborted set into garbage.

use std::collections::{HashSet, VecDeque};

use stoker_format::{VersionId, VolumeId};

use crate::names::accounts::Counted;
use crate::names::change::range_delete;
use crate::names::{Located, Names, Refusal, Spot, TRIES_MAX};
use crate::rows::{EntryRow, RowValue, SetWork, keys};
use stoker_catalog::Result;
use stoker_catalog::kv::{Check, Commit, Range, Row, Write};

/// Entries taken out in one commit.
const ENTRIES_MAX: usize = 256;

/// A commit that is this large takes no further entry: long layouts become long garbage rows.
const BYTES_ENOUGH: usize = 8 << 20;

/// How long late shards of an aborted set hear that it was aborted, rather than that there is none.
const REMEMBER_MS: u64 = 3_600_000;

/// A directory that is being emptied.
struct Frame {
    inode: u64,
    /// Row of its entry; none for the directory that hangs nowhere.
    entry: Option<Vec<u8>>,
    rows: VecDeque<Row>,
    /// What is to be read next; none at the end.
    range: Option<Range>,
}

impl Frame {
    fn new(volume: VolumeId, inode: u64, entry: Option<Vec<u8>>) -> Frame {
        let range = Range::prefix(&keys::entries(volume, inode), ENTRIES_MAX);
        Frame { inode, entry, rows: VecDeque::new(), range: Some(range) }
    }
}

impl Names {
    /// Clears an aborted set until nothing is left but its row. Safe to call again, and by several at once.
    pub(super) async fn set_clear(
        &self,
        volume: VolumeId,
        id: u64,
        now_ms: u64,
    ) -> std::result::Result<(), Refusal> {
        let work_key = keys::set_work(volume, id);
        let set = self.set_row(volume, id).await?;
        let mut failures = 0;
        while failures < TRIES_MAX {
            // No such work: somebody else was done first.
            let Some(work) = self.catalog.get(&[&work_key]).await?.pop().flatten() else { return Ok(()) };
            if SetWork::of(&work)? != SetWork::Clear {
                return Ok(());
            }
            let mut change = self.tree_batch(volume, id).await?;
            let done = change.writes.is_empty();
            if done {
                change.writes.push(Write::Delete(keys::directory(volume, id)));
                change.writes.push(range_delete(&keys::shards(id)));
                let until_ms = now_ms.saturating_add(REMEMBER_MS);
                change.writes.push(Write::Put(work_key.clone(), SetWork::Remember { until_ms }.encode()));
            }
            change.checks.push(Check::Seq(work_key.clone(), work.seq));
            let target = set.as_ref().map_or(&[][..], |set| &set.row.target);
            match self.attempt_counted(&[], change, Counted::at(volume, target)).await? {
                Some(_) if done => return Ok(()),
                Some(_) => failures = 0,
                None => failures += 1,
            }
        }
        Err(Refusal::Contended)
    }

    /// A change that takes a bounded number of entries out of a directory that hangs nowhere, and the directories below it
    /// that are empty then. Without writes once it is empty.
    async fn tree_batch(&self, volume: VolumeId, root: u64) -> std::result::Result<Commit, Refusal> {
        let mut change = Commit::new();
        let mut versions: HashSet<VersionId> = HashSet::new();
        let mut taken = 0;
        let mut stack = vec![Frame::new(volume, root, None)];
        while let Some(frame) = stack.last_mut() {
            // A directory whose entries are not all in this change is left for the next one.
            if taken >= ENTRIES_MAX || change.bytes() >= BYTES_ENOUGH {
                break;
            }
            let inode = frame.inode;
            match self.frame_next(frame).await? {
                Some(row) => match EntryRow::of(&row)? {
                    EntryRow::Directory(below) => stack.push(Frame::new(volume, below, Some(row.key))),
                    EntryRow::File(file) => {
                        // Two names of one version in one change would each leave the chunks to the other.
                        if !versions.insert(file.version()) {
                            break;
                        }
                        let name = keys::entry_name(&row.key).to_vec();
                        let spot = Spot { volume, parent: inode, name };
                        self.take_out(&mut change, &Located { spot, seq: row.seq, file: *file }).await?;
                        taken += 1;
                    }
                },
                None => {
                    let emptied = stack.pop().and_then(|frame| frame.entry);
                    if let Some(entry) = emptied {
                        change.writes.push(Write::Delete(entry));
                        change.writes.push(Write::Delete(keys::directory(volume, inode)));
                        taken += 1;
                    }
                }
            }
        }
        Ok(change)
    }

    async fn frame_next(&self, frame: &mut Frame) -> Result<Option<Row>> {
        while frame.rows.is_empty() {
            let Some(range) = frame.range.take() else { return Ok(None) };
            let page = self.catalog.range(range.clone()).await?;
            if let (true, Some(last)) = (page.more, page.rows.last()) {
                frame.range = Some(range.after(&last.key));
            }
            frame.rows = page.rows.into();
        }
        Ok(frame.rows.pop_front())
    }
}
