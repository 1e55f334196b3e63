//! Where a replica keeps things: entries and vote in the log, what is done in the table, which goes to its file once in a while.
//!
//! The table's file is always right by itself: rows, the point up to which they go, the group there, and the log that continues it, are
//! written in one transaction. Entries that it has are skipped in the log.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, Durability, ReadTransaction, ReadableDatabase, WriteTransaction};
use stoker_consensus::{Committed, Entry, Group, Hard, Keep, Log, LogError, Point, Start, What};
use stoker_format::{ClusterId, NodeId};

use super::batch::{Batch, Work, run_all};
use super::meta::{self, Meta};
use super::request::{Order, Request};
use super::state::{Shared, Staged, View};
use crate::engine::embedded::file::{self, Opened, damaged};
use crate::engine::embedded::space::Space;
use crate::engine::embedded::storage::Storage;
use crate::engine::embedded::writer::Answer;
use crate::engine::embedded::{EmbeddedOptions, guarded};
use crate::epoch::Epoch;
use crate::error::{CatalogError, Result};
use crate::kv::{Outcome, Write};

/// What a replica has on its drive, and the table in memory.
pub(super) struct Disk {
    path: PathBuf,
    cluster: ClusterId,
    options: EmbeddedOptions,
    space: Arc<Space>,
    pub(super) storage: Arc<Storage>,
    pub(super) database: Arc<Database>,
    shared: Arc<Shared>,
    log: Log,
    pub(super) meta: Meta,
    pub(super) hard: Hard,
    pub(super) point: Point,
    /// Entries of the log that are not done.
    tail: VecDeque<Entry>,
    seq: u64,
    /// The copy of everything that the log is about to name.
    pub(super) staged: Option<Staged>,
    /// What was written by entries that nobody was woken for yet.
    written: Vec<Write>,
    /// What was proposed here, by the index of its entry: it is not read out of the entry again.
    pub(super) proposed: BTreeMap<u64, (Point, Vec<Request>)>,
    /// What of that was done since somebody asked, and how each of it ended.
    pub(super) done: Vec<(Vec<Request>, Vec<Answer>)>,
}

impl Disk {
    /// Opens a replica, or makes one out of a file that is none.
    pub(super) fn open(
        path: &Path,
        cluster: ClusterId,
        options: &EmbeddedOptions,
        space: &Arc<Space>,
        begin: impl FnOnce(&Opened) -> Result<Meta>,
        shared: &Arc<Shared>,
    ) -> Result<Disk> {
        let (opened, form) = file::open_table(path, cluster, options, space)?;
        let opened = match form {
            file::Form::Replicated => opened,
            file::Form::Whole => opened,
            file::Form::Logged(_) => {
                drop(opened);
                file::open(path, cluster, options, space)?
            }
        };
        let (meta, point) = guarded(|| {
            let snapshot = opened.database.begin_read().map_err(file::failed)?;
            Ok((Meta::load(&snapshot)?, meta::point(&snapshot)?))
        })?;
        let is_new = form != file::Form::Replicated;
        let meta = match meta.filter(|_| !is_new) {
            Some(meta) => meta,
            None => begin(&opened)?,
        };
        let (hard, tail) = match meta.log {
            Some(id) => {
                let replayed = Log::read(path, cluster, id).map_err(log_failed)?;
                let tail = replayed.entries.into_iter().filter(|entry| entry.point().index > point.index);
                (replayed.hard, tail.collect())
            }
            None => (Hard::default(), VecDeque::new()),
        };
        let log = Log::open(path, cluster, options.log_bytes, meta.log).map_err(log_failed)?;
        let Opened { database, storage, seq } = opened;
        let point = if is_new { start_of(&meta.group) } else { point };
        let mut disk = Disk {
            path: path.to_owned(),
            cluster,
            options: options.clone(),
            space: Arc::clone(space),
            storage,
            database: Arc::new(database),
            shared: Arc::clone(shared),
            log,
            meta,
            hard,
            point,
            tail,
            seq,
            staged: None,
            written: Vec::new(),
            proposed: BTreeMap::new(),
            done: Vec::new(),
        };
        // A log that was in use is read and not written any more.
        disk.checkpoint(0)?;
        disk.show()?;
        Ok(disk)
    }

    /// What a replica starts from, as it is now.
    pub(super) fn start(&self) -> Start {
        Start {
            id: self.meta.id,
            group: self.meta.group.clone(),
            hard: self.hard,
            applied: self.point,
            entries: self.tail.iter().cloned().collect(),
        }
    }

    /// Brings the table's file up to date and begins the log anew, with room for `more` bytes.
    pub(super) fn checkpoint(&mut self, more: u64) -> Result<()> {
        let tail: Vec<Entry> = self.tail.iter().cloned().collect();
        // What is begun must not be nearly full.
        let more = more.max(self.options.log_bytes / 8);
        let id = self.log.begin(&self.hard, &tail, more).map_err(log_failed)?;
        guarded(|| {
            let transaction = self.database.begin_write().map_err(file::failed)?;
            file::replicated_set(&transaction)?;
            self.meta.log = Some(id);
            self.meta.save(&transaction)?;
            meta::point_set(&transaction, self.point)?;
            transaction.commit().map_err(file::failed)
        })?;
        self.log.switch();
        Ok(())
    }

    /// Has reads see this table, as it is now.
    fn show(&self) -> Result<()> {
        let view = guarded(|| View::open(&self.database, self.seq))?;
        self.shared.show(&self.storage, view);
        Ok(())
    }

    /// Whether the table should go to its file.
    pub(super) fn is_checkpoint_due(&self) -> bool {
        self.log.is_nearly_full()
    }

    /// Does everything that is in the log, committed or not, and is the only one in its group from then on.
    pub(super) fn begin_anew(&mut self, node: NodeId) -> Result<()> {
        let entries: Vec<Committed> = self.tail.iter().map(Entry::read).collect();
        let mut group = self.meta.group.clone();
        for entry in &entries {
            if let What::Change(change) = &entry.what {
                group.change(change);
            }
        }
        self.apply(&entries, &group)?;
        self.meta.group = group.begun_anew(self.meta.id, node);
        self.meta.waits_for_others = false;
        self.hard = Hard { term: self.hard.term.max(self.point.term) + 1, vote: 0, commit: self.point.index };
        self.checkpoint(0)
    }

    /// The last commit.
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// The table as it is now.
    pub(super) fn snapshot(&self) -> Result<ReadTransaction> {
        self.database.begin_read().map_err(file::failed)
    }

    fn begin(&self) -> Result<WriteTransaction> {
        let mut transaction = self.database.begin_write().map_err(file::failed)?;
        transaction
            .set_durability(Durability::None)
            .map_err(|error| CatalogError::unavailable(error.to_string()))?;
        Ok(transaction)
    }

    fn entry(&mut self, transaction: &WriteTransaction, entry: &Committed) -> Result<()> {
        if entry.point.index != self.point.index + 1 {
            return Err(damaged(format!("entry {} follows entry {}", entry.point.index, self.point.index)));
        }
        if let What::Data(data) = &entry.what {
            let index = entry.point.index;
            // At one place there is one entry: if it is the one that was proposed here, it says what was proposed.
            if self.proposed.get(&index).is_some_and(|(place, _)| *place == entry.point)
                && let Some((_, mut group)) = self.proposed.remove(&index)
            {
                let answers = run_all(group.iter().map(Request::as_work), transaction, &mut self.seq)?;
                for (request, answer) in group.iter_mut().zip(&answers) {
                    if let (Order::Commit(commit, _), Ok(Some(Outcome::Done { .. }))) =
                        (&mut request.work, answer)
                    {
                        self.written.append(&mut commit.writes);
                    }
                }
                self.done.push((group, answers));
            } else {
                let batch =
                    Batch::decode(data).map_err(|error| damaged(format!("an entry of the log: {error}")))?;
                let answers = run_all(batch.works.iter().map(Work::lent), transaction, &mut self.seq)?;
                for (work, answer) in batch.works.into_iter().zip(&answers) {
                    if let (Work::Commit(commit, _), Ok(Some(Outcome::Done { .. }))) = (work, answer) {
                        self.written.append(&mut commit.into_owned().writes);
                    }
                }
            }
        }
        self.point = entry.point;
        Ok(())
    }
}

impl Keep for Disk {
    type Error = CatalogError;

    fn keep(&mut self, hard: &Hard, entries: &[Entry]) -> Result<()> {
        if !self.log.fits(entries) {
            self.checkpoint(Log::len_of(entries))?;
        }
        self.log.append(hard, entries).map_err(|error| {
            CatalogError::unknown(format!(
                "making a commit durable failed, and it may be there after a restart: the catalog's log failed: {error}"
            ))
        })?;
        self.hard = *hard;
        if let Some(first) = entries.first() {
            let first = first.point().index;
            while self.tail.back().is_some_and(|last| last.point().index >= first) {
                self.tail.pop_back();
            }
            self.tail.extend(entries.iter().cloned());
        }
        Ok(())
    }

    fn install(&mut self, point: Point, hard: &Hard) -> Result<Group> {
        let staged = self.staged.take().filter(|staged| staged.point == point);
        let Some(Staged { draft, group, base, .. }) = staged else {
            return Err(CatalogError::unavailable("a copy of everything was wanted that is not here"));
        };
        self.hard = *hard;
        self.tail.clear();
        self.point = point;
        self.meta = Meta { id: self.meta.id, group: group.clone(), base, log: None, waits_for_others: false };
        let id = self.log.begin(hard, &[], 0).map_err(log_failed)?;
        self.meta.log = Some(id);
        let staged = guarded(|| {
            let (opened, _) = file::open_table(&draft.0, self.cluster, &self.options, &self.space)?;
            let transaction = opened.database.begin_write().map_err(file::failed)?;
            file::replicated_set(&transaction)?;
            self.meta.save(&transaction)?;
            meta::point_set(&transaction, point)?;
            transaction.commit().map_err(file::failed)?;
            Ok(())
        });
        staged?;
        // The table that was here must be let go of before its name is another's.
        self.shared.hide();
        std::fs::rename(&draft.0, &self.path).map_err(|error| file::unreachable_file(&self.path, &error))?;
        file::folder_sync(&self.path)?;
        self.log.switch();
        let (opened, _) = file::open_table(&self.path, self.cluster, &self.options, &self.space)?;
        (self.storage, self.database, self.seq) = (opened.storage, Arc::new(opened.database), opened.seq);
        self.show()?;
        self.shared.watches.wake_all();
        Ok(group)
    }

    fn apply(&mut self, committed: &[Committed], group: &Group) -> Result<()> {
        let Some(last) = committed.last() else { return Ok(()) };
        let last = last.point;
        guarded(|| {
            let transaction = self.begin()?;
            for entry in committed {
                self.entry(&transaction, entry)?;
            }
            file::seq_set(&transaction, self.seq)?;
            meta::point_set(&transaction, self.point)?;
            if *group != self.meta.group {
                self.meta.group = group.clone();
                self.meta.waits_for_others &= group.voters().len() < 2;
                self.meta.save(&transaction)?;
            }
            transaction.commit().map_err(file::failed)?;
            // Before anybody is told of it.
            self.shared.view_set(View::open(&self.database, self.seq)?);
            Ok(())
        })?;
        while self.tail.front().is_some_and(|entry| entry.point().index <= last.index) {
            self.tail.pop_front();
        }
        self.shared.watches.wake(&std::mem::take(&mut self.written));
        Ok(())
    }
}

/// Does, on a table that nobody else has open, all that its log has. Gives the last commit, and the epoch in which the last entry was written.
pub(in super::super) fn replay(path: &Path, cluster: ClusterId, opened: &Opened) -> Result<(u64, Epoch)> {
    let snapshot = opened.database.begin_read().map_err(file::failed)?;
    let meta = Meta::load(&snapshot)?.ok_or_else(|| damaged("the file does not know which replica it is"))?;
    let (mut point, mut seq) = (meta::point(&snapshot)?, opened.seq);
    drop(snapshot);
    if let Some(id) = meta.log {
        let replayed = Log::read(path, cluster, id).map_err(log_failed)?;
        let mut transaction = opened.database.begin_write().map_err(file::failed)?;
        transaction
            .set_durability(Durability::None)
            .map_err(|error| CatalogError::unavailable(error.to_string()))?;
        let after = point.index;
        for entry in replayed.entries.iter().map(Entry::read).filter(|entry| entry.point.index > after) {
            if let What::Data(data) = &entry.what {
                // How its commits ended was told to whoever waited.
                let batch = Batch::decode(data)?;
                let _ = run_all(batch.works.iter().map(Work::lent), &transaction, &mut seq)?;
            }
            point = entry.point;
        }
        file::seq_set(&transaction, seq)?;
        transaction.commit().map_err(file::failed)?;
    }
    // Who led in that term is not in the log.
    Ok((seq, Epoch::of_term(meta.base, meta.group.incarnation, point.term, NodeId([0; 16]))))
}

/// Where the log of a new replica begins. That of a group begins behind entry one, as the library has it.
fn start_of(group: &Group) -> Point {
    match group.members.is_empty() {
        true => Point::default(),
        false => Point { index: 1, term: 1 },
    }
}

/// What an error of the log means.
fn log_failed(error: LogError) -> CatalogError {
    match error {
        LogError::Damaged(message) => damaged(message),
        LogError::Io(path, error) => file::unreachable_file(&path, &error),
    }
}
