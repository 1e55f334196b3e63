//! Where a replica keeps things: entries and vote in the log, what is done in front of the table ([`recent`](super::recent)) and in it, which
//! goes to its file once in a while.
//!
//! The table's file is always right by itself: rows, the point up to which they go, the group there, and the log that continues it, are
//! written in one transaction. Entries that it has are skipped in the log.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, Durability, ReadTransaction, ReadableDatabase, WriteTransaction};
use stoker_consensus::{Committed, Entry, Group, Hard, Keep, Log, LogError, Point, Start, What};
use stoker_format::{ClusterId, NodeId};

use super::batch::{Batch, Work, run_all, run_light};
use super::meta::{self, Meta};
use super::recent::Fresh;
use super::request::{Order, Request};
use super::state::{Shared, Staged, View};
use crate::engine::embedded::file::{self, Opened, damaged};
use crate::engine::embedded::space::Space;
use crate::engine::embedded::storage::Storage;
use crate::engine::embedded::table::Draft;
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
    /// What is read now: the table, and what was done since it was written.
    view: Arc<View>,
    /// Something was done in front of the table since [`settle_idle`](Disk::settle_idle) looked.
    is_busy: bool,
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
        let view = Arc::new(guarded(|| View::open(&database, seq))?);
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
            view,
            is_busy: false,
            staged: None,
            written: Vec::new(),
            proposed: BTreeMap::new(),
            done: Vec::new(),
        };
        // A log that was in use is read and not written any more.
        disk.checkpoint(0)?;
        disk.show();
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
            self.view.recent.write(&mut Draft::open(&transaction)?)?;
            file::seq_set(&transaction, self.seq)?;
            self.meta.log = Some(id);
            self.meta.save(&transaction)?;
            meta::point_set(&transaction, self.point)?;
            transaction.commit().map_err(file::failed)?;
            self.view_open()
        })?;
        self.log.switch();
        Ok(())
    }

    /// Has reads see this table.
    fn show(&self) {
        self.shared.show(&self.storage, Arc::clone(&self.view));
    }

    /// Has reads see the table as it is now, which has everything.
    fn view_open(&mut self) -> Result<()> {
        self.view = Arc::new(View::open(&self.database, self.seq)?);
        self.shared.view_set(Arc::clone(&self.view));
        Ok(())
    }

    /// Whether the table has everything that is done.
    pub(super) fn is_settled(&self) -> bool {
        self.view.recent.is_empty()
    }

    /// Brings the table up to date, if nothing was done for a while: a read finds a row sooner there.
    pub(super) fn settle_idle(&mut self) -> Result<()> {
        match std::mem::take(&mut self.is_busy) {
            true => Ok(()),
            false => self.settle(),
        }
    }

    /// Brings the table up to date, in memory: its file follows with the next checkpoint.
    pub(super) fn settle(&mut self) -> Result<()> {
        if self.is_settled() {
            return Ok(());
        }
        let group = self.meta.group.clone();
        guarded(|| self.apply_to_table(Vec::new(), &group))
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
        self.meta.group = group.begun_anew(meta::draw(), self.meta.id, node);
        self.meta.waits_for_others = false;
        self.hard = Hard { term: self.hard.term.max(self.point.term) + 1, vote: 0, commit: self.point.index };
        self.checkpoint(0)
    }

    /// The last commit.
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// The table with everything that is done.
    pub(super) fn snapshot(&mut self) -> Result<ReadTransaction> {
        self.settle()?;
        self.database.begin_read().map_err(file::failed)
    }

    fn begin(&self) -> Result<WriteTransaction> {
        let mut transaction = self.database.begin_write().map_err(file::failed)?;
        transaction
            .set_durability(Durability::None)
            .map_err(|error| CatalogError::unavailable(error.to_string()))?;
        Ok(transaction)
    }

    /// What an entry asks for.
    fn asked(&mut self, entry: &Committed) -> Result<Asked> {
        let What::Data(data) = &entry.what else { return Ok(Asked::Nothing) };
        let index = entry.point.index;
        // At one place there is one entry: if it is the one that was proposed here, it says what was proposed.
        if self.proposed.get(&index).is_some_and(|(place, _)| *place == entry.point)
            && let Some((_, group)) = self.proposed.remove(&index)
        {
            return Ok(Asked::Proposed(group));
        }
        let batch = Batch::decode(data).map_err(|error| damaged(format!("an entry of the log: {error}")))?;
        Ok(Asked::Read(batch))
    }

    /// An entry is done, and nothing behind it.
    fn did(&mut self, point: Point, asked: Asked, answers: Vec<Answer>) -> Result<()> {
        if point.index != self.point.index + 1 {
            return Err(damaged(format!("entry {} follows entry {}", point.index, self.point.index)));
        }
        self.point = point;
        let is_done = |answer: &Answer| matches!(answer, Ok(Some(Outcome::Done { .. })));
        match asked {
            Asked::Proposed(mut group) => {
                for (request, answer) in group.iter_mut().zip(&answers) {
                    if let (Order::Commit(commit, _), true) = (&mut request.work, is_done(answer)) {
                        self.written.append(&mut commit.writes);
                    }
                }
                self.done.push((group, answers));
            }
            Asked::Read(batch) => {
                for (work, answer) in batch.works.into_iter().zip(&answers) {
                    if let (Work::Commit(commit, _), true) = (work, is_done(answer)) {
                        self.written.append(&mut commit.into_owned().writes);
                    }
                }
            }
            Asked::Nothing => {}
        }
        Ok(())
    }

    /// Does entries in front of the table.
    fn apply_in_front(&mut self, asked: Vec<(Point, Asked)>) -> Result<()> {
        let view = Arc::clone(&self.view);
        let mut fresh = Fresh::over(&*view);
        for (point, asked) in asked {
            let answers = run_light(asked.works().into_iter(), &mut fresh, &mut self.seq)?;
            self.did(point, asked, answers)?;
        }
        if fresh.is_empty() && self.seq == view.seq {
            return Ok(());
        }
        self.is_busy = true;
        self.view = Arc::new(view.with(fresh, self.seq));
        match self.view.recent.is_much() {
            true => self.settle(),
            false => {
                self.shared.view_set(Arc::clone(&self.view));
                Ok(())
            }
        }
    }

    /// Does entries on the table, in one transaction with what was done in front of it.
    fn apply_to_table(&mut self, asked: Vec<(Point, Asked)>, group: &Group) -> Result<()> {
        let transaction = self.begin()?;
        self.view.recent.write(&mut Draft::open(&transaction)?)?;
        for (point, asked) in asked {
            let answers = run_all(asked.works().into_iter(), &transaction, &mut self.seq)?;
            self.did(point, asked, answers)?;
        }
        file::seq_set(&transaction, self.seq)?;
        meta::point_set(&transaction, self.point)?;
        if *group != self.meta.group {
            self.meta.group = group.clone();
            self.meta.waits_for_others &= group.voters().len() < 2;
            self.meta.save(&transaction)?;
        }
        transaction.commit().map_err(file::failed)?;
        self.view_open()
    }
}

/// What an entry asks for.
enum Asked {
    Proposed(Vec<Request>),
    Read(Batch<'static>),
    Nothing,
}

impl Asked {
    fn works(&self) -> Vec<Work<'_>> {
        match self {
            Asked::Proposed(group) => group.iter().map(Request::as_work).collect(),
            Asked::Read(batch) => batch.works.iter().map(Work::lent).collect(),
            Asked::Nothing => Vec::new(),
        }
    }

    /// Whether it can be done in front of the table.
    fn is_light(&self) -> bool {
        self.works().iter().all(Work::is_light)
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
        self.view = Arc::new(guarded(|| View::open(&self.database, self.seq))?);
        self.show();
        self.shared.watches.wake_all();
        Ok(group)
    }

    fn apply(&mut self, committed: &[Committed], group: &Group) -> Result<()> {
        let Some(last) = committed.last() else { return Ok(()) };
        let last = last.point;
        // Whoever is told of it reads it: the view is set before this returns.
        guarded(|| {
            let mut asked = Vec::with_capacity(committed.len());
            for entry in committed {
                asked.push((entry.point, self.asked(entry)?));
            }
            match *group == self.meta.group && asked.iter().all(|(_, asked)| asked.is_light()) {
                true => self.apply_in_front(asked),
                false => self.apply_to_table(asked, group),
            }
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
