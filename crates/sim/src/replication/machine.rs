//! One machine: a drive that survives it, and a replica that does not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stoker_consensus::{
    Committed, Entry, Group, Hard, Lease, Outgoing, Place, Point, Replica, Settings, Start, What,
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
    pub replica: Replica,
    pub table: Table,
    pub lease: Lease,
    /// Proposals by their index: where they are, and which request they are.
    pub pending: BTreeMap<u64, (Place, usize)>,
    /// Requests to read, and the question that must be confirmed for them.
    pub reads: Vec<(usize, u64)>,
    pub staged: Option<Table>,
    /// It gave its leadership away.
    pub gave_away: bool,
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
        self.log = vec![(running.replica.hard(), running.replica.unapplied())];
    }
}

impl Machine {
    pub fn start(&mut self, now: u64, seed: u64, bug: Option<Bug>) -> Result<(), String> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let replica = Replica::new(disk.start(bug), settings(seed, bug))?;
        let length = if bug == Some(Bug::LongLease) { 6 * ELECTION } else { ELECTION - 2 };
        self.running = Some(Running {
            replica,
            table: disk.table.clone(),
            lease: Lease::new(Duration::from_millis(length as u64 * TICK_MS)),
            pending: BTreeMap::new(),
            reads: Vec::new(),
            staged: None,
            gave_away: false,
        });
        self.next_tick = now + TICK_MS;
        Ok(())
    }

    /// Does what the replica says until it has nothing more to say. Gives whether the machine crashed on the way.
    pub fn drive(&mut self, bug: Option<Bug>, crash: Crash, deeds: &mut Deeds) -> bool {
        let (Some(disk), Some(running)) = (&mut self.disk, &mut self.running) else { return false };
        while let Some(mut work) = running.replica.work() {
            let changes = deeds.changes;
            deeds.sent.extend(running.outgoing(std::mem::take(&mut work.messages), bug));
            if crash == Crash::BeforeDurable && work.hard.is_some() {
                return true;
            }
            if let Some(point) = work.snapshot {
                let Some(staged) = running.staged.take().filter(|staged| staged.point == point) else {
                    deeds.broken = Some("a copy of everything was wanted that is not here".into());
                    return true;
                };
                running.table = staged.clone();
                (disk.table, disk.log) = (staged, Vec::new());
                deeds.snapshots += 1;
            }
            if let Some(hard) = work.hard {
                let forgotten = bug == Some(Bug::ForgetVote) && work.entries.is_empty();
                let hard = match (forgotten, disk.log.last()) {
                    (true, Some((kept, _))) => *kept,
                    (true, None) => Hard::default(),
                    (false, _) => hard,
                };
                disk.log.push((hard, work.entries.clone()));
            }
            if crash == Crash::AfterDurable && work.hard.is_some() {
                return true;
            }
            for number in &work.confirmed {
                // One that gave its leadership away is not sure of it before the time is over, whatever others say.
                if !running.gave_away || bug == Some(Bug::LeaseAfterTransfer) {
                    running.lease.confirmed(*number);
                    let (done, wait): (Vec<_>, Vec<_>) =
                        running.reads.drain(..).partition(|(_, asked)| asked <= number);
                    running.reads = wait;
                    deeds.read.extend(done.into_iter().map(|(request, _)| request));
                }
            }
            let committed = std::mem::take(&mut work.committed);
            running.apply(committed, bug, deeds);
            let (messages, committed) = running.replica.done(work);
            deeds.sent.extend(running.outgoing(messages, bug));
            if crash == Crash::AfterSent {
                return true;
            }
            running.apply(committed, bug, deeds);
            if deeds.changes > changes {
                // A start must not fall back to the group before: it may be that its majority is gone.
                disk.log.push((running.replica.hard(), Vec::new()));
            }
        }
        let standing = running.replica.standing();
        if !standing.leads {
            running.lease.end();
            running.gave_away = false;
            if bug != Some(Bug::AnswerByIndex) {
                let pending = std::mem::take(&mut running.pending);
                deeds.unknown.extend(pending.into_values().map(|(_, request)| request));
            }
            deeds.unknown.extend(running.reads.drain(..).map(|(request, _)| request));
        }
        false
    }
}

impl Running {
    /// Whether a read may be answered now.
    pub fn reads(&self, now: u64, bug: Option<Bug>) -> bool {
        let standing = self.replica.standing();
        match bug {
            Some(Bug::IgnoreLease) => standing.serves,
            Some(Bug::ServeEarly) => standing.leads,
            _ => standing.serves && Duration::from_millis(now) < self.lease.until(),
        }
    }

    fn outgoing(&self, messages: Vec<Outgoing>, bug: Option<Bug>) -> Vec<(Outgoing, Option<Table>)> {
        let one = |message: Outgoing| {
            if !message.is_snapshot {
                return (message, None);
            }
            let mut copy = self.table.clone();
            if bug == Some(Bug::SnapshotMissesRow) {
                copy.registers.pop_last();
            }
            if bug == Some(Bug::SnapshotAhead) {
                copy.chain ^= 1;
            }
            (message.with_point(copy.point, &copy.group), Some(copy))
        };
        messages.into_iter().map(one).collect()
    }

    fn apply(&mut self, committed: Vec<Committed>, bug: Option<Bug>, deeds: &mut Deeds) {
        for Committed { point, what } in committed {
            let table = &mut self.table;
            if point.index != table.point.index + 1 {
                deeds.broken = Some(format!("entry {} follows {}", point.index, table.point.index));
                return;
            }
            table.point = point;
            table.chain = mix(table.chain ^ mix(point.index ^ (point.term << 40)));
            let mut written = 0;
            match &what {
                What::Data(data) => {
                    let register = data[0];
                    let value = u64::from_le_bytes(data[1..9].try_into().expect("nine bytes"));
                    table.registers.insert(register, (value, point.index));
                    table.chain = mix(table.chain ^ value);
                    written = value;
                }
                What::Change(change) => {
                    table.group.change(change);
                    deeds.changes += 1;
                }
                What::Nothing => {}
            }
            deeds.applied.push((point.index, table.chain, written));
            if let Some((place, request)) = self.pending.remove(&point.index) {
                match place == point || bug == Some(Bug::AnswerByIndex) {
                    true => deeds.acked.push((request, point.index)),
                    false => deeds.unknown.push(request),
                }
            }
            self.replica.applied(point);
        }
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
