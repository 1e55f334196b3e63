//! What is around a replica: it keeps what must be durable, does what is committed, and knows who waits for what. The same in a node and in
//! the simulation; what differs is [where](Keep) things are kept.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::group::{Change, Group};
use crate::lease::Lease;
use crate::message::Envelope;
use crate::replica::{Committed, Entry, Hard, Outgoing, Point, Replica, Settings, Standing, Start, What};

/// Where a replica keeps its log, and what its entries are done on.
pub trait Keep {
    /// Why something could not be kept; the replica is not used any more then.
    type Error;

    /// Makes this durable; entries take the place of those from the first one on.
    fn keep(&mut self, hard: &Hard, entries: &[Entry]) -> Result<(), Self::Error>;

    /// Puts the copy of everything at `point`, which was sent before, into the place of what is here, durable; gives its group. Nothing of the
    /// log before is needed any more.
    fn install(&mut self, point: Point, hard: &Hard) -> Result<Group, Self::Error>;

    /// Does entries, in this order; `group` is the one after them. They need not be durable: they are in the log.
    fn apply(&mut self, committed: &[Committed], group: &Group) -> Result<(), Self::Error>;
}

/// How something ended that somebody waits for.
#[derive(Debug, PartialEq, Eq)]
pub enum Done<T> {
    /// What was proposed is done, as this entry.
    Applied(T, Point),
    /// What was proposed at this place may be done, or may be later, or never.
    Unknown(T, Point),
    /// A read sees all that was acknowledged before it began, from what is applied here now.
    Read(T),
    /// A read cannot be answered here.
    Deposed(T),
}

/// A replica with all that is around it. `T` names who waits.
pub struct Driver<T> {
    replica: Replica,
    group: Group,
    lease: Lease,
    /// Proposals by their index.
    pending: BTreeMap<u64, (Point, T)>,
    /// Reads, and the question that must be confirmed for them.
    reads: Vec<(u64, T)>,
    /// It has another one take over, since so many ticks: it is sure of nothing any more, whatever a majority says.
    gave_away: Option<usize>,
    /// The last term in which it led and had done all that was committed before.
    served_term: u64,
    /// The entry that changed the group last.
    changed_at: u64,
    /// The question that shows, once it is confirmed, that the other one of two did that change, too.
    pair_shown_by: Option<u64>,
    /// Both of two that vote know of each other alone.
    is_pair: bool,
    /// Counts what may have changed the group.
    group_version: u64,
}

impl<T> Driver<T> {
    /// Takes up a log. A lease lasts for `lease`, which must be shorter than the least time without a leader that begins an election.
    pub fn new(start: Start, settings: Settings, lease: Duration) -> Result<Driver<T>, String> {
        let group = start.group.clone();
        let replica = Replica::new(start, settings)?;
        let lease = Lease::new(lease);
        Ok(Driver {
            replica,
            group,
            lease,
            pending: BTreeMap::new(),
            reads: Vec::new(),
            gave_away: None,
            served_term: 0,
            changed_at: 0,
            pair_shown_by: None,
            is_pair: false,
            group_version: 0,
        })
    }

    /// Time goes on.
    pub fn tick(&mut self, now: Duration) {
        self.replica.tick();
        if let Some(ticks) = &mut self.gave_away {
            *ticks += 1;
            // Whoever was to take over did not, and may still do so in this term: it is sure of something again in another one.
            if *ticks > self.replica.election_ticks() {
                self.replica.step_down();
            }
        }
        if self.replica.standing().leads {
            let number = self.lease.ask(now);
            let other = self.group.voters().into_iter().find(|id| *id != self.id());
            let has_change =
                other.and_then(|id| self.progress(id)).is_some_and(|(has, _)| has >= self.changed_at);
            if has_change && self.pair_shown_by.is_none() {
                // With this question it hears that the change is committed, and before it hears the next one it has done it.
                self.pair_shown_by = Some(number + 1);
            }
            self.replica.ask(number);
        }
    }

    /// Takes a message. One of another group is not heeded. True if that group took the place of this one: then this replica is what is left
    /// of a group that was begun anew.
    pub fn step(&mut self, envelope: Envelope) -> bool {
        let is_replaced = envelope.former.contains(&self.group.id);
        if self.group.members.is_empty() && (self.group.id == 0 || is_replaced) {
            // Whoever is new to a group learns it from a copy of everything, and answers until then to whoever wrote first.
            self.group.id = envelope.group;
            self.group_version += 1;
        }
        if envelope.group != self.group.id {
            return is_replaced;
        }
        self.replica.step(envelope);
        false
    }

    /// Writes an entry. Gives `who` back if this replica does not lead; otherwise it is told how it ended.
    pub fn propose(&mut self, data: Vec<u8>, who: T) -> Result<Point, T> {
        match self.replica.propose(data) {
            Some(place) => {
                self.pending.insert(place.index, (place, who));
                Ok(place)
            }
            None => Err(who),
        }
    }

    /// Whether reads may be answered now from what is applied. To be asked after they were read.
    pub fn may_read(&self, now: Duration) -> bool {
        now < self.reads_until()
    }

    /// Until when reads may be answered from what is applied, as far as is known; zero if not at all.
    pub fn reads_until(&self) -> Duration {
        let standing = self.replica.standing();
        let served = standing.term == self.served_term && self.gave_away.is_none();
        if self.replica.is_changing() {
            // The others may know already of a voter that this replica does not count.
            return if standing.serves { self.lease.until() } else { Duration::ZERO };
        }
        // Asked with every commit: no list is made of them.
        let mut voters = self.group.members.iter().filter(|(_, member)| member.votes).map(|(id, _)| *id);
        match (voters.next(), voters.next(), voters.next()) {
            (Some(own), None, None) if own == self.id() && standing.serves => Duration::MAX,
            // Of two that vote nobody else leads without this one's vote, which would have raised its term: it answers as long as it
            // would, also when the other one is lost.
            (Some(_), Some(_), None) if served && self.is_pair && self.group.votes(self.id()) => {
                Duration::MAX
            }
            _ if standing.serves => self.lease.until(),
            _ => Duration::ZERO,
        }
    }

    /// A read begins for which there is no lease; it is told when it may be answered.
    pub fn read(&mut self, now: Duration, who: T) {
        let number = self.lease.ask(now);
        self.replica.ask(number);
        self.reads.push((number, who));
    }

    /// Writes a change of the group, if that makes sense, this replica leads, and no other change is under way.
    pub fn change(&mut self, change: &Change) -> bool {
        self.group.allows(change) && self.replica.change(change).is_some()
    }

    /// Has another replica take over, and answers no reads any more.
    pub fn give_away(&mut self, to: u64) {
        // Said again it has no longer to do it.
        self.gave_away.get_or_insert(0);
        self.lease.end();
        self.replica.transfer(to);
    }

    /// Nothing reaches another replica now.
    pub fn unreachable(&mut self, id: u64) {
        self.replica.unreachable(id);
    }

    /// A message could not be sent.
    pub fn unsent(&mut self, message: &Outgoing) {
        match message.is_snapshot {
            true => self.replica.snapshot_sent(message.to, false),
            false => self.replica.unreachable(message.to),
        }
    }

    /// A copy of everything arrived, or did not.
    pub fn copied(&mut self, to: u64, is_there: bool) {
        self.replica.snapshot_sent(to, is_there);
    }

    /// Does what there is to do. Messages go to `send`, in the order in which they may leave; ends go to `tell`.
    pub fn run<K: Keep>(
        &mut self,
        keep: &mut K,
        send: &mut impl FnMut(&mut K, Outgoing, &Group),
        tell: &mut impl FnMut(Done<T>),
    ) -> Result<(), K::Error> {
        while let Some(mut work) = self.replica.work() {
            // A leader's entries are on their way to others while it makes them durable itself.
            std::mem::take(&mut work.messages)
                .into_iter()
                .for_each(|message| send(keep, message, &self.group));
            if let Some(point) = work.snapshot {
                self.group = keep.install(point, &self.replica.hard())?;
                self.group_version += 1;
            }
            if let Some(hard) = work.hard {
                keep.keep(&hard, &work.entries)?;
            }
            self.confirmed(&work.confirmed, tell);
            let committed = std::mem::take(&mut work.committed);
            self.apply(keep, &committed, tell)?;
            let (messages, committed) = self.replica.done(work);
            messages.into_iter().for_each(|message| send(keep, message, &self.group));
            self.apply(keep, &committed, tell)?;
        }
        let standing = self.replica.standing();
        if standing.serves {
            self.served_term = standing.term;
        }
        if !standing.leads {
            self.lease.end();
            self.gave_away = None;
            let pending = std::mem::take(&mut self.pending);
            pending.into_values().for_each(|(place, who)| tell(Done::Unknown(who, place)));
            self.reads.drain(..).for_each(|(_, who)| tell(Done::Deposed(who)));
        }
        Ok(())
    }

    fn confirmed(&mut self, numbers: &[u64], tell: &mut impl FnMut(Done<T>)) {
        for number in numbers.iter().filter(|_| self.gave_away.is_none()) {
            self.lease.confirmed(*number);
            self.is_pair |= self.pair_shown_by.is_some_and(|shown| *number >= shown);
            let (answered, wait) =
                std::mem::take(&mut self.reads).into_iter().partition(|(asked, _)| asked <= number);
            self.reads = wait;
            let answered: Vec<(u64, T)> = answered;
            answered.into_iter().for_each(|(_, who)| tell(Done::Read(who)));
        }
    }

    fn apply<K: Keep>(
        &mut self,
        keep: &mut K,
        committed: &[Committed],
        tell: &mut impl FnMut(Done<T>),
    ) -> Result<(), K::Error> {
        let Some(last) = committed.last().map(|entry| entry.point) else { return Ok(()) };
        let mut is_changed = false;
        for entry in committed {
            if let What::Change(change) = &entry.what {
                self.group.change(change);
                (self.changed_at, self.pair_shown_by, self.is_pair) = (entry.point.index, None, false);
                is_changed = true;
                self.group_version += 1;
            }
        }
        keep.apply(committed, &self.group)?;
        self.replica.applied(last);
        if is_changed {
            // A start must not fall back to the group before: it may be that its majority is gone.
            keep.keep(&self.replica.hard(), &[])?;
        }
        for entry in committed {
            if let Some((place, who)) = self.pending.remove(&entry.point.index) {
                match place == entry.point {
                    true => tell(Done::Applied(who, place)),
                    false => tell(Done::Unknown(who, place)),
                }
            }
        }
        Ok(())
    }

    /// Nothing is kept or done any more: whoever waits is given back, and will not be told.
    pub fn abandon(&mut self) -> Vec<T> {
        let pending = std::mem::take(&mut self.pending).into_values().map(|(_, who)| who);
        let reads = std::mem::take(&mut self.reads).into_iter().map(|(_, who)| who);
        pending.chain(reads).collect()
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.replica.id()
    }

    /// The group, as far as its entries are done here.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Rises whenever the group may be another one than before.
    pub fn group_version(&self) -> u64 {
        self.group_version
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        self.replica.standing()
    }

    /// Whether it was taken out of the group.
    pub fn is_removed(&self) -> bool {
        self.replica.is_removed()
    }

    /// Up to where another replica is known to have the log, and whether it was heard of lately.
    pub fn progress(&self, id: u64) -> Option<(u64, bool)> {
        self.replica.progress(id)
    }

    /// What a new log has to begin with: what must be durable besides what is applied.
    pub fn rest(&self) -> (Hard, Vec<Entry>) {
        (self.replica.hard(), self.replica.unapplied())
    }
}
