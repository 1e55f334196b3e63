//! One machine: a drive that survives it, and a replica that does not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stoker_consensus::{
    Committed, Done, Driver, Entry, Group, Hard, Keep, Outgoing, Point, Settings, Start, What,
};
use stoker_format::NodeId;

use super::bugs::Bug;

/// Milliseconds of a tick.
pub const TICK_MS: u64 = 100;
/// Ticks without a leader until an election.
pub const ELECTION: usize = 12;
/// Bytes of entries that replicas keep for others: few, so that copies of everything are needed.
const WINDOW_BYTES: usize = 3_000;

/// What is applied: registers, and a sum of everything that led to them.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub point: Point,
    pub group: Group,
    /// Register -> value and the entry that set it.
    pub registers: BTreeMap<u8, (u64, u64)>,
    pub chain: u64,
}

/// What survives a crash.
#[derive(Clone, Debug)]
pub struct Disk {
    pub id: u64,
    pub table: Table,
    pub log: Vec<(Hard, Vec<Entry>)>,
    /// The group at the first start.
    pub group_first: Group,
}

/// What does not.
pub struct Running {
    /// Requests are named by their numbers.
    pub driver: Driver<usize>,
    pub table: Table,
    /// A copy of everything that arrived.
    pub staged: Option<Table>,
    /// Until when it had a lease when it gave its leadership away.
    pub lease_before: Duration,
}

pub struct Machine {
    pub node: NodeId,
    pub disk: Option<Disk>,
    pub running: Option<Running>,
    pub paused_until: u64,
    pub next_tick: u64,
    /// Machines that do not hear this one.
    pub cut: BTreeSet<usize>,
}

/// What a step of a machine did for the world around it.
#[derive(Default)]
pub struct Deeds {
    pub sent: Vec<(Outgoing, Option<Table>)>,
    /// Requests that were done, with the entry.
    pub acked: Vec<(usize, u64)>,
    /// Requests whose end is not known.
    pub unknown: Vec<usize>,
    pub read: Vec<usize>,
    /// Entries, with the sum of all up to them and what they wrote.
    pub applied: Vec<(u64, u64, u64)>,
    pub changes: u64,
    pub snapshots: u64,
    pub broken: Option<String>,
}

/// Where a step may be cut off by a crash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    Never,
    BeforeDurable,
    AfterDurable,
    AfterSent,
}

pub fn settings(seed: u64, bug: Option<Bug>) -> Settings {
    let silence = if bug == Some(Bug::VoteAtStart) { 0 } else { ELECTION };
    Settings {
        heartbeat: 2,
        election: ELECTION,
        silence,
        window_bytes: WINDOW_BYTES,
        message_bytes: 800,
        seed,
    }
}

impl Disk {
    /// What a replica starts from.
    fn start(&self, bug: Option<Bug>) -> Start {
        let mut hard = Hard::default();
        let mut entries: Vec<Entry> = Vec::new();
        for (kept, more) in &self.log {
            hard = *kept;
            for entry in more {
                let index = entry.point().index;
                let at = entries.iter().position(|old| old.point().index == index);
                match at {
                    Some(_) if bug == Some(Bug::KeepConflicts) => {}
                    Some(at) => {
                        entries.truncate(at);
                        entries.push(entry.clone());
                    }
                    None => entries.push(entry.clone()),
                }
            }
        }
        entries.retain(|entry| entry.point().index > self.table.point.index);
        let last = entries.last().map_or(self.table.point.index, |entry| entry.point().index);
        hard.commit = hard.commit.min(last);
        let group = match bug {
            Some(Bug::ForgetGroup) => self.group_first.clone(),
            _ => self.table.group.clone(),
        };
        Start { id: self.id, group, hard, applied: self.table.point, entries }
    }

    /// Brings the table on the drive up to date, and begins the log anew with what is not in it.
    pub fn checkpoint(&mut self, running: &Running, bug: Option<Bug>) {
        let before = std::mem::replace(&mut self.table, running.table.clone());
        if bug == Some(Bug::CheckpointAhead) {
            (self.table.registers, self.table.chain) = (before.registers, before.chain);
        }
        self.log = vec![running.driver.rest()];
    }
}

impl Machine {
    pub fn start(&mut self, now: u64, seed: u64, bug: Option<Bug>) -> Result<(), String> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let length = if bug == Some(Bug::LongLease) { 6 * ELECTION } else { ELECTION - 2 };
        let lease = Duration::from_millis(length as u64 * TICK_MS);
        let driver = Driver::new(disk.start(bug), settings(seed, bug), lease)?;
        let table = disk.table.clone();
        self.running = Some(Running { driver, table, staged: None, lease_before: Duration::ZERO });
        self.next_tick = now + TICK_MS;
        Ok(())
    }

    /// Does what the replica says until it has nothing more to say. Gives whether the machine crashed on the way.
    pub fn drive(&mut self, bug: Option<Bug>, crash: Crash, deeds: &mut Deeds) -> bool {
        let (Some(disk), Some(running)) = (&mut self.disk, &mut self.running) else { return false };
        let Running { driver, table, staged, .. } = running;
        let mut place = Place { disk, table, staged, bug, crash, deeds };
        let mut ends = Vec::new();
        let ran =
            driver.run(&mut place, &mut |place, message, group| place.send(message, group), &mut |done| {
                ends.push(done)
            });
        for done in ends {
            match done {
                Done::Applied(request, point) => deeds.acked.push((request, point.index)),
                Done::Unknown(request, place) if bug == Some(Bug::AnswerByIndex) => {
                    deeds.acked.push((request, place.index));
                }
                Done::Unknown(request, _) | Done::Deposed(request) => deeds.unknown.push(request),
                Done::Read(request) => deeds.read.push(request),
            }
        }
        match ran {
            Ok(()) => false,
            Err(Stop::Crashed) => true,
            Err(Stop::Broken(why)) => {
                deeds.broken = Some(why);
                true
            }
        }
    }
}

impl Running {
    /// Whether a read may be answered now.
    pub fn reads(&self, now: u64, bug: Option<Bug>) -> bool {
        let standing = self.driver.standing();
        match bug {
            Some(Bug::IgnoreLease) => standing.serves,
            Some(Bug::ServeEarly) => standing.leads,
            Some(Bug::LeaseAfterTransfer)
                if standing.serves && Duration::from_millis(now) < self.lease_before =>
            {
                true
            }
            _ => self.driver.may_read(Duration::from_millis(now)),
        }
    }
}

/// Why a machine stops.
enum Stop {
    Crashed,
    Broken(String),
}

/// The drive and the memory of a machine, where its replica keeps things.
struct Place<'m> {
    disk: &'m mut Disk,
    table: &'m mut Table,
    staged: &'m mut Option<Table>,
    bug: Option<Bug>,
    crash: Crash,
    deeds: &'m mut Deeds,
}

impl Place<'_> {
    fn send(&mut self, message: Outgoing, group: &Group) {
        if !message.is_snapshot {
            self.deeds.sent.push((message, None));
            return;
        }
        let mut copy = self.table.clone();
        copy.group = group.clone();
        if self.bug == Some(Bug::SnapshotMissesRow) {
            copy.registers.pop_last();
        }
        if self.bug == Some(Bug::SnapshotAhead) {
            copy.chain ^= 1;
        }
        self.deeds.sent.push((message.with_point(copy.point, group), Some(copy)));
    }
}

impl Keep for Place<'_> {
    type Error = Stop;

    fn keep(&mut self, hard: &Hard, entries: &[Entry]) -> Result<(), Stop> {
        if self.crash == Crash::BeforeDurable {
            return Err(Stop::Crashed);
        }
        let forgotten = self.bug == Some(Bug::ForgetVote) && entries.is_empty();
        let hard = match (forgotten, self.disk.log.last()) {
            (true, Some((kept, _))) => *kept,
            (true, None) => Hard::default(),
            (false, _) => *hard,
        };
        self.disk.log.push((hard, entries.to_vec()));
        if self.crash == Crash::AfterDurable { Err(Stop::Crashed) } else { Ok(()) }
    }

    fn install(&mut self, point: Point, hard: &Hard) -> Result<Group, Stop> {
        let Some(staged) = self.staged.take().filter(|staged| staged.point == point) else {
            return Err(Stop::Broken("a copy of everything was wanted that is not here".into()));
        };
        *self.table = staged.clone();
        let group = staged.group.clone();
        (self.disk.table, self.disk.log) = (staged, vec![(*hard, Vec::new())]);
        self.deeds.snapshots += 1;
        Ok(group)
    }

    fn apply(&mut self, committed: &[Committed], group: &Group) -> Result<(), Stop> {
        if self.crash == Crash::AfterSent {
            return Err(Stop::Crashed);
        }
        for Committed { point, what } in committed {
            let table = &mut *self.table;
            if point.index != table.point.index + 1 {
                return Err(Stop::Broken(format!("entry {} follows {}", point.index, table.point.index)));
            }
            table.point = *point;
            table.chain = mix(table.chain ^ mix(point.index ^ (point.term << 40)));
            let mut written = 0;
            match what {
                What::Data(data) => {
                    let value = u64::from_le_bytes(data[1..9].try_into().expect("nine bytes"));
                    table.registers.insert(data[0], (value, point.index));
                    table.chain = mix(table.chain ^ value);
                    written = value;
                }
                What::Change(_) => self.deeds.changes += 1,
                What::Nothing => {}
            }
            self.deeds.applied.push((point.index, table.chain, written));
        }
        self.table.group = group.clone();
        Ok(())
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
