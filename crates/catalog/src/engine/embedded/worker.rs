//! The one thread that changes the file.
//!
//! It takes every commit that waits, runs them in order inside one transaction of the store, makes it
//! durable with one flush, wakes the watches and then answers. Meanwhile the next commits gather. On a primary
//! the standbys make the same commits durable at the same time, and the answers wait for them, too.

use std::sync::Arc;
use std::time::Duration;

use redb::WriteTransaction;
use tokio::sync::mpsc;

use super::entry::{Entry, EntryChange};
use super::execute::{opened, run, run_once};
use super::primary::{Confirmed, Primary};
use super::standby::Members;
use super::table::Draft;
use super::tail::Entries;
use super::writer::{Answer, Order, Place, Request, Serves, Work};
use super::{Shared, file, guarded};
use crate::epoch::Epoch;
use crate::error::{CatalogError, ErrorKind, Result};
use crate::kv::Outcome;

/// Most commits that share a flush.
const GROUP_COMMITS_MAX: usize = 4096;
/// A group takes no more commits once it has this many bytes.
const GROUP_BYTES: usize = 16 << 20;
/// How often a primary without standbys refuses what waits in the queue.
const STALLED_LOOK: Duration = Duration::from_millis(50);

/// What the thread owns.
pub(super) struct Worker {
    place: Place,
    shared: Arc<Shared>,
    seq: u64,
    primary: Option<Primary>,
    /// The epoch in which a catalog that is no primary goes on.
    alone: Epoch,
}

impl Worker {
    /// `seq` is the number of the last commit in the file.
    pub(super) fn new(place: Place, shared: Arc<Shared>, seq: u64, serves: Serves) -> Worker {
        let (primary, alone) = match serves {
            Serves::Alone(epoch) => (None, epoch),
            Serves::Primary(primary) => (Some(*primary), Epoch::default()),
        };
        Worker { place, shared, seq, primary, alone }
    }

    /// Works until the queue is closed and empty.
    pub(super) fn run(&mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        if self.primary.is_some() {
            // What a crash left here and not on the standbys is theirs, too, before anybody reads it.
            let confirmed = self.confirm(false);
            self.after(confirmed, &mut orders);
            self.shared.watches.wake_all();
        }
        while let Some(order) = orders.blocking_recv() {
            let mut next = Some(order);
            while let Some(order) = next.take() {
                next = self.take(order, &mut orders);
            }
        }
        // One that failed is not trusted with its own end.
        if self.shared.sound().is_ok() {
            self.place.durable.close(&self.place.database);
        }
    }

    /// Does what is asked, with every commit that waits behind it; gives an order that came between them.
    fn take(&mut self, order: Order, orders: &mut mpsc::UnboundedReceiver<Order>) -> Option<Order> {
        let mut next = None;
        match order {
            Order::Work(first) => {
                let mut bytes = first.bytes;
                let mut group = vec![first];
                while bytes < GROUP_BYTES && group.len() < GROUP_COMMITS_MAX {
                    match orders.try_recv() {
                        Ok(Order::Work(request)) => {
                            bytes += request.bytes;
                            group.push(request);
                        }
                        Ok(other) => {
                            next = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                self.answer(group, orders);
            }
            Order::Join => {
                if let Some(members) = self.primary.as_ref().and_then(Primary::joined) {
                    self.members_change(members, orders);
                }
            }
            Order::Detach(standby, answer) => {
                if let Some(primary) = &self.primary {
                    primary.peers.detach(standby);
                    let members = primary.lineage.members.without(standby);
                    if members != primary.lineage.members {
                        self.members_change(members, orders);
                    }
                }
                // Whoever asked may have given up.
                let _ = answer.send(self.shared.sound());
            }
            Order::Fence(by) => self.fenced(by),
        }
        next
    }

    /// Runs a group and tells everybody who waits for it.
    fn answer(&mut self, group: Vec<Request>, orders: &mut mpsc::UnboundedReceiver<Order>) {
        let works: Vec<&Work> = group.iter().map(|request| &request.work).collect();
        let seq_before = self.seq;
        let mut answers = match self.shared.sound().and_then(|()| self.room()) {
            Ok(()) => self.results(&works),
            Err(error) => works.iter().map(|_| Err(error.clone())).collect(),
        };
        let confirmed = if self.seq > seq_before { self.confirm(false) } else { Confirmed::Yes };
        if confirmed == Confirmed::Yes {
            self.show();
            let done = answers.iter().zip(&works).filter_map(|(answer, work)| match (answer, work) {
                (Ok(Some(Outcome::Done { .. })), Work::Commit(commit, _)) => Some(&commit.writes),
                _ => None,
            });
            self.shared.watches.wake(done.flatten());
        } else {
            answers.iter_mut().for_each(|answer| *answer = unconfirmed(answer));
        }
        for (request, answer) in group.into_iter().zip(answers) {
            // Whoever asked may have given up; the commit stays.
            let _ = request.answer.send(answer);
        }
        if confirmed != Confirmed::Yes {
            self.after(confirmed, orders);
        }
    }

    /// Fails while there is no room for a group.
    fn room(&self) -> Result<()> {
        match self.place.storage.room() {
            true => Ok(()),
            false => Err(self.place.space.refusal()),
        }
    }

    fn results(&mut self, works: &[&Work]) -> Vec<Answer> {
        match guarded(|| self.group(works)) {
            Ok(answers) => answers,
            Err(error) => {
                // Whatever went wrong, a later snapshot could tell another story than the file.
                self.shared.poison(&error);
                works.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    /// Runs changes in order inside one transaction; an error here is one of the store, not of a commit.
    fn group(&mut self, works: &[&Work]) -> Result<Vec<Answer>> {
        let transaction = self.begin()?;
        let mut seq = self.seq;
        let mut entries = Entries::new();
        let epoch = self.epoch();
        if let Some(primary) = &mut self.primary {
            primary.transaction();
            if let Some(members) = primary.joined() {
                seq += 1;
                entries.push(Entry { seq, epoch, change: EntryChange::Members(members.clone()) }.encoded());
                primary.members_set(&transaction, seq, members)?;
            }
        }
        let mut answers = Vec::with_capacity(works.len());
        {
            let mut draft = Draft::open(&transaction)?;
            let mut ledger = None;
            for work in works {
                let before = seq;
                let answer = match work {
                    Work::Commit(commit, None) => run(&mut draft, commit, &mut seq)?.map(Some),
                    Work::Commit(commit, Some(name)) => {
                        let ledger = opened(&mut ledger, &transaction)?;
                        run_once(&mut draft, ledger, commit, name, &mut seq)?
                    }
                    Work::ClientOpen(client) => {
                        seq += 1;
                        opened(&mut ledger, &transaction)?.client_open(*client, seq)?;
                        Ok(Some(Outcome::Done { seq }))
                    }
                };
                if seq > before {
                    entries.push(Entry { seq, epoch, change: entry_change(work) }.encoded());
                }
                answers.push(answer);
            }
        }
        if seq == self.seq {
            transaction.abort().map_err(file::failed)?;
            return Ok(answers);
        }
        self.finish(transaction, seq, entries)?;
        Ok(answers)
    }

    /// Makes a transaction durable, here and on its way to the standbys.
    fn finish(&mut self, transaction: WriteTransaction, seq: u64, entries: Entries) -> Result<()> {
        file::seq_set(&transaction, seq)?;
        if let Some(primary) = &mut self.primary {
            primary.publish(&transaction, self.seq, &entries)?;
        }
        self.place.durable.commit(transaction, &entries)?;
        self.seq = seq;
        if let Some(primary) = &self.primary {
            primary.peers.durable(seq);
        }
        Ok(())
    }

    fn begin(&self) -> Result<WriteTransaction> {
        self.place.database.begin_write().map_err(file::failed)
    }

    /// The epoch in which commits are written.
    fn epoch(&self) -> Epoch {
        self.primary.as_ref().map_or(self.alone, |primary| primary.lineage.epoch())
    }

    /// Waits until the standbys have everything; changes who is in sync where it must.
    fn confirm(&mut self, late: bool) -> Confirmed {
        let mut late = late;
        loop {
            let Some(primary) = &self.primary else { return Confirmed::Yes };
            if self.shared.sound().is_err() {
                return Confirmed::Closed;
            }
            match primary.wait(self.seq, late) {
                Ok(confirmed) => return confirmed,
                Err(members) => {
                    late = false;
                    if let Err(error) = guarded(|| self.members_write(members)) {
                        self.shared.poison(&error);
                    }
                }
            }
        }
    }

    fn members_write(&mut self, members: Members) -> Result<()> {
        let transaction = self.begin()?;
        let seq = self.seq + 1;
        let entry =
            Entry { seq, epoch: self.epoch(), change: EntryChange::Members(members.clone()) }.encoded();
        let Some(primary) = &mut self.primary else { return Ok(()) };
        tracing::info!("{}", members.words());
        primary.transaction();
        primary.members_set(&transaction, seq, members)?;
        self.finish(transaction, seq, vec![entry])
    }

    fn members_change(&mut self, members: Members, orders: &mut mpsc::UnboundedReceiver<Order>) {
        if self.shared.sound().is_err() {
            return;
        }
        if let Err(error) = guarded(|| self.members_write(members)) {
            self.shared.poison(&error);
            return;
        }
        let confirmed = self.confirm(false);
        self.after(confirmed, orders);
    }

    /// Goes on after the standbys were waited for: lets everybody read what is confirmed, or waits on.
    fn after(&mut self, confirmed: Confirmed, orders: &mut mpsc::UnboundedReceiver<Order>) {
        match confirmed {
            Confirmed::Yes => self.show(),
            Confirmed::Stalled => self.stalled(orders),
            Confirmed::Fenced(by) => self.fenced(by),
            Confirmed::Closed => {}
        }
    }

    /// Refuses everything until a standby confirms what is here.
    fn stalled(&mut self, orders: &mut mpsc::UnboundedReceiver<Order>) {
        tracing::error!("too few standbys of the catalog answer; nothing is acknowledged until one is back");
        self.shared.stall(true);
        let confirmed = loop {
            let confirmed = self.confirm(true);
            if confirmed != Confirmed::Stalled {
                break confirmed;
            }
            match orders.try_recv() {
                Ok(Order::Work(request)) => drop(request.answer.send(Err(CatalogError::stalled()))),
                Ok(Order::Detach(standby, answer)) => {
                    if let Some(primary) = &self.primary {
                        primary.peers.detach(standby);
                        let members = primary.lineage.members.without(standby);
                        if let Err(error) = guarded(|| self.members_write(members)) {
                            self.shared.poison(&error);
                        }
                    }
                    let _ = answer.send(self.shared.sound());
                }
                Ok(Order::Fence(by)) => break Confirmed::Fenced(by),
                Ok(Order::Join) => {}
                Err(mpsc::error::TryRecvError::Disconnected) => break Confirmed::Closed,
                Err(mpsc::error::TryRecvError::Empty) => {
                    let primary = self.primary.as_ref();
                    primary.into_iter().for_each(|primary| primary.rest(self.seq, STALLED_LOOK));
                }
            }
        };
        self.shared.stall(false);
        match confirmed {
            Confirmed::Yes => {
                tracing::info!("the standbys of the catalog are back");
                self.show();
            }
            Confirmed::Fenced(by) => self.fenced(by),
            Confirmed::Stalled | Confirmed::Closed => {}
        }
        // What was written and not acknowledged can be read now, or never will be.
        self.shared.watches.wake_all();
    }

    /// Lets everybody read what is in the file.
    fn show(&self) {
        let Some(primary) = &self.primary else { return };
        if let Err(error) = self.shared.show(&self.place.database, primary) {
            self.shared.poison(&error);
        }
    }

    /// Records that another epoch rules, and stops.
    fn fenced(&mut self, by: Epoch) {
        let Some(epoch) = self.primary.as_ref().map(|primary| primary.lineage.epoch()) else { return };
        if by <= epoch || self.shared.sound().is_err() {
            return;
        }
        let recorded = guarded(|| {
            let transaction = self.begin()?;
            if let Some(primary) = &mut self.primary {
                primary.fenced(&transaction, by)?;
            }
            self.place.durable.commit(transaction, &Entries::new())
        });
        if let Err(error) = recorded {
            tracing::error!(%error, "that this catalog was replaced could not be recorded");
        }
        self.shared.fenced(by);
    }
}

/// The answer to whoever cannot be told that a commit is done.
fn unconfirmed(answer: &Answer) -> Answer {
    match answer {
        Ok(Some(Outcome::Done { .. })) => Err(CatalogError::unknown(
            "the commit is on this node, and no standby confirmed it; read to find out what became of it",
        )),
        Err(error) if error.kind == ErrorKind::Invalid => Err(error.clone()),
        // It may have looked at rows that were never confirmed.
        _ => Err(CatalogError::stalled()),
    }
}

fn entry_change(work: &Work) -> EntryChange<'_> {
    match work {
        Work::Commit(commit, name) => EntryChange::Rows { writes: (&commit.writes).into(), name: *name },
        Work::ClientOpen(client) => EntryChange::Client(*client),
    }
}
