//! The machines, the network between them, the clients, and what goes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stoker_consensus::{Change, Envelope, Group};
use stoker_format::NodeId;

use super::Tally;
use super::bugs::Bug;
use super::machine::{Crash, Deeds, Disk, Machine, TICK_MS, Table};
use crate::rng::Rng;

/// Milliseconds with faults, and without.
const TROUBLE_MS: u64 = 40_000;
const QUIET_MS: u64 = 25_000;
/// At the end nobody asks for anything, so that all can have everything.
const REST_MS: u64 = 3_000;
/// Registers that clients write and read, the first ones more often.
const REGISTERS: usize = 8;
const REGISTERS_OFTEN: usize = 3;
/// Least time between two losses of a drive.
const LOSS_MS: u64 = 10_000;
const STRETCH_MS: u64 = 4_000;
/// How often a leader looks at its group.
const ARRANGE_MS: u64 = 500;

/// What a client asked for.
struct Request {
    register: u8,
    /// The value of a write; none for a read.
    value: Option<u64>,
    /// The machine that it was asked of.
    at: usize,
    /// For a read: the least entry that its answer must not be behind.
    least: u64,
    open: bool,
}

/// To whom, bytes, and a copy of everything.
type Flying = (usize, Vec<u8>, Option<Table>);

pub struct World {
    rng: Rng,
    bug: Option<Bug>,
    now: u64,
    machines: Vec<Machine>,
    /// By when they arrive and in which order they were sent.
    flying: BTreeMap<(u64, u64), Flying>,
    sent: u64,
    requests: Vec<Request>,
    /// For each register the highest entry that was acknowledged or read.
    seen: BTreeMap<u8, u64>,
    /// What every entry must lead to.
    truth: BTreeMap<u64, u64>,
    /// What was written by which entry.
    values: BTreeMap<u64, u64>,
    /// Faults that have a time, and the machine that they strike.
    plans: Vec<(u64, usize, usize)>,
    leaders: BTreeMap<u64, usize>,
    /// Entries that were acknowledged, and what was to be written by them.
    acked: Vec<(u64, u64)>,
    quiet: bool,
    loss: u64,
    tally: Tally,
    last_id: u64,
    lost_at: u64,
}

fn node_of(machine: usize) -> NodeId {
    NodeId([machine as u8 + 1; 16])
}

impl World {
    pub fn new(seed: u64, bug: Option<Bug>) -> World {
        let mut rng = Rng::new(seed);
        let count = rng.between(3, 6);
        let machine = |at: usize| Machine {
            node: node_of(at),
            disk: None,
            running: None,
            paused_until: 0,
            next_tick: 0,
            cut: BTreeSet::new(),
        };
        let mut machines: Vec<Machine> = (0..count).map(machine).collect();
        let group = Group::alone(1, 1, node_of(0));
        let table = Table { group: group.clone(), ..Table::default() };
        // The library begins a log behind entry one.
        let table = Table { point: stoker_consensus::Point { index: 1, term: 1 }, ..table };
        machines[0].disk = Some(Disk { id: 1, table, log: Vec::new(), group_first: group });
        let loss = [0, 2, 10][rng.below(3)];
        World {
            rng,
            bug,
            now: 0,
            machines,
            flying: BTreeMap::new(),
            sent: 0,
            requests: Vec::new(),
            seen: BTreeMap::new(),
            truth: BTreeMap::new(),
            values: BTreeMap::new(),
            plans: Vec::new(),
            leaders: BTreeMap::new(),
            acked: Vec::new(),
            quiet: false,
            loss,
            tally: Tally::default(),
            last_id: 1,
            lost_at: 0,
        }
    }

    pub fn run(mut self) -> Result<Tally, String> {
        self.start(0)?;
        while self.now < TROUBLE_MS {
            self.step()?;
        }
        self.heal()?;
        while self.now < TROUBLE_MS + QUIET_MS {
            self.step()?;
        }
        self.check_rest().map_err(|why| format!("{}{why}", self.scene()))?;
        self.tally.leaders = self.leaders.len() as u64;
        self.tally.hash = self.truth.values().fold(0, |all, one| all ^ one);
        Ok(self.tally)
    }

    /// One millisecond.
    fn step(&mut self) -> Result<(), String> {
        self.now += 1;
        while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, bytes, copy) = entry.remove();
            self.deliver(to, &bytes, copy)?;
        }
        for at in 0..self.machines.len() {
            let machine = &mut self.machines[at];
            if machine.running.is_none() || machine.paused_until > self.now || machine.next_tick > self.now {
                continue;
            }
            machine.next_tick = self.now + TICK_MS;
            if let Some(running) = &mut machine.running {
                running.driver.tick(Duration::from_millis(self.now));
            }
            self.drive(at)?;
        }
        self.check_leases()?;
        if self.now.is_multiple_of(7) && self.now < TROUBLE_MS + QUIET_MS - REST_MS {
            self.ask()?;
        }
        if self.now.is_multiple_of(ARRANGE_MS) {
            self.arrange()?;
        }
        if !self.quiet && self.now.is_multiple_of(50) {
            self.strike()?;
        }
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.plans).into_iter().partition(|(when, ..)| *when <= now);
        self.plans = later;
        let due: Vec<(u64, usize, usize)> = due;
        let due = if self.quiet { Vec::new() } else { due };
        for (_, alone, spared) in due {
            self.alone_and_again(alone, spared)?;
        }
        Ok(())
    }

    /// At most one machine may answer reads by itself.
    fn check_leases(&self) -> Result<(), String> {
        let reads = |machine: &Machine| {
            machine.running.as_ref().is_some_and(|running| running.reads(self.now, self.bug))
        };
        let holders: Vec<usize> = (0..self.machines.len()).filter(|at| reads(&self.machines[*at])).collect();
        match holders.len() {
            0 | 1 => Ok(()),
            _ => Err(format!("machines {holders:?} answer reads at the same time")),
        }
    }

    fn start(&mut self, at: usize) -> Result<(), String> {
        let seed = self.rng.number();
        let started = self.machines[at].start(self.now, seed, self.bug);
        started.map_err(|why| format!("machine {at} does not start: {why}"))?;
        self.drive(at)
    }

    fn crash(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        if let (Some(Bug::SkipFlush), Some(disk)) = (self.bug, &mut machine.disk) {
            // What was written last was in a cache of the drive.
            if disk.log.len() > 1 {
                disk.log.pop();
            }
        }
        machine.running = None;
        machine.paused_until = 0;
        self.requests.iter_mut().filter(|request| request.at == at).for_each(|request| request.open = false);
    }

    /// Has a machine do what its replica says, and sees to what follows.
    fn drive(&mut self, at: usize) -> Result<(), String> {
        let crash = match (self.quiet, self.rng.below(4_000)) {
            (false, 0) => Crash::BeforeDurable,
            (false, 1) => Crash::AfterDurable,
            (false, 2) => Crash::AfterSent,
            _ => Crash::Never,
        };
        let mut deeds = Deeds::default();
        let bug = self.bug;
        let died = self.machines[at].drive(bug, crash, &mut deeds);
        if let Some(broken) = deeds.broken {
            return Err(format!("machine {at}: {broken}"));
        }
        for (index, chain, value) in deeds.applied {
            self.values.insert(index, value);
            let truth = *self.truth.entry(index).or_insert(chain);
            if truth != chain {
                return Err(format!("machine {at} did something else than others with entry {index}"));
            }
        }
        for (request, index) in deeds.acked {
            self.acknowledge(request, index);
        }
        deeds.unknown.into_iter().for_each(|request| self.requests[request].open = false);
        for request in deeds.read {
            self.answer(request)?;
        }
        self.tally.changes += deeds.changes;
        self.tally.snapshots += deeds.snapshots;
        if let Some(running) = &self.machines[at].running {
            let standing = running.driver.standing();
            let is_new = standing.leads && !self.leaders.contains_key(&standing.term);
            if standing.leads && *self.leaders.entry(standing.term).or_insert(at) != at {
                return Err(format!("two machines lead in term {}", standing.term));
            }
            if is_new && !self.quiet && self.rng.percent(15) {
                // It is alone before anybody heard of it, and those that voted for it start again.
                self.plans.push((self.now + 1, at, at));
            }
        }
        let group = self.group(at);
        for (message, copy) in deeds.sent {
            let to = message.to;
            let Some(machine) = self.machine_of(at, to) else { continue };
            let is_lost =
                self.machines[at].cut.contains(&machine) || (!self.quiet && self.rng.percent(self.loss));
            if is_lost {
                if let Some(running) = self.machines[at].running.as_mut() {
                    running.driver.unsent(&message);
                }
                continue;
            }
            if let Some(running) = self.machines[at].running.as_mut().filter(|_| copy.is_some()) {
                running.driver.copied(to, true);
            }
            let delay = match (self.quiet, self.rng.below(100)) {
                (false, 0..3) => self.rng.between(100, 3_000) as u64,
                _ => self.rng.between(1, 8) as u64,
            };
            let bytes = message.envelope(&group).encode();
            if !self.quiet && self.rng.percent(1) {
                self.sent += 1;
                self.flying.insert((self.now + 2 * delay, self.sent), (machine, bytes.clone(), copy.clone()));
            }
            self.sent += 1;
            self.flying.insert((self.now + delay, self.sent), (machine, bytes, copy));
        }
        if died {
            self.tally.faults += 1;
            self.crash(at);
        } else if self.rng.percent(2) {
            let machine = &mut self.machines[at];
            if let (Some(disk), Some(running)) = (&mut machine.disk, &machine.running) {
                disk.checkpoint(running, bug);
            }
        }
        Ok(())
    }

    fn group(&self, at: usize) -> Group {
        self.machines[at].running.as_ref().map(|running| running.driver.group().clone()).unwrap_or_default()
    }

    /// Where a replica is, as one machine knows it.
    fn machine_of(&self, at: usize, id: u64) -> Option<usize> {
        let running = self.machines[at].running.as_ref()?;
        let known = running.table.group.members.get(&id).map(|member| member.node);
        // A replica answers whoever wrote to it, also before it knows the group.
        let known = known.or_else(|| {
            let is = |machine: &&Machine| machine.disk.as_ref().is_some_and(|disk| disk.id == id);
            self.machines.iter().find(is).map(|machine| machine.node)
        })?;
        self.machines.iter().position(|machine| machine.node == known)
    }

    fn deliver(&mut self, to: usize, bytes: &[u8], copy: Option<Table>) -> Result<(), String> {
        let paused_until = self.machines[to].paused_until;
        if paused_until > self.now {
            self.sent += 1;
            // Whoever wakes up does not hear everything at once.
            let at = paused_until + self.rng.below(40) as u64;
            self.flying.insert((at, self.sent), (to, bytes.to_vec(), copy));
            return Ok(());
        }
        let envelope = Envelope::decode(bytes).map_err(|error| error.to_string())?;
        let Some(running) = self.machines[to].running.as_mut() else { return Ok(()) };
        if envelope.to() != running.driver.id() {
            return Ok(());
        }
        if copy.is_some() {
            running.staged = copy;
        }
        running.driver.step(envelope);
        self.drive(to)
    }

    /// A client asks somebody for something.
    fn ask(&mut self) -> Result<(), String> {
        let leads = |machine: &Machine| {
            machine.running.as_ref().is_some_and(|running| running.driver.standing().leads)
        };
        // Mostly somebody who believes to lead; there may be two of them.
        let leading: Vec<usize> = (0..self.machines.len()).filter(|at| leads(&self.machines[*at])).collect();
        let Some(at) = self.rng.pick(&leading).copied() else { return Ok(()) };
        if self.machines[at].paused_until > self.now {
            return Ok(());
        }
        let among = if self.rng.percent(85) { REGISTERS_OFTEN } else { REGISTERS };
        let register = self.rng.below(among) as u8;
        let least = self.seen.get(&register).copied().unwrap_or(0);
        let number = self.requests.len();
        // In some stretches of time nobody writes: whoever is cut off then falls behind by nothing.
        let is_read = self.rng.percent(50) || (self.now / STRETCH_MS).is_multiple_of(2);
        let value = (!is_read).then_some(number as u64 + 1);
        let mut request = Request { register, value, at, least, open: true };
        let (now, bug) = (self.now, self.bug);
        let Some(running) = self.machines[at].running.as_mut() else { return Ok(()) };
        match value {
            Some(value) => {
                let data = [&[register][..], &value.to_le_bytes(), &[0; 40]].concat();
                match running.driver.propose(data, number) {
                    Ok(place) => {
                        if bug == Some(Bug::AckOnAppend) {
                            self.requests.push(request);
                            self.acknowledge(number, place.index);
                            return self.drive(at);
                        }
                    }
                    Err(_) => request.open = false,
                }
                self.requests.push(request);
                self.drive(at)
            }
            None if running.reads(now, bug) => {
                self.requests.push(request);
                self.answer(number)
            }
            None => {
                running.driver.read(Duration::from_millis(now), number);
                self.requests.push(request);
                self.drive(at)
            }
        }
    }

    fn acknowledge(&mut self, request: usize, index: u64) {
        let Request { register, value, open, .. } = &mut self.requests[request];
        *open = false;
        let seen = self.seen.entry(*register).or_default();
        *seen = (*seen).max(index);
        self.acked.push((index, value.unwrap_or_default()));
        self.tally.writes += 1;
    }

    /// Answers a read, which must not be behind what was acknowledged or read before it began.
    fn answer(&mut self, request: usize) -> Result<(), String> {
        let Request { register, at, least, open, .. } = &mut self.requests[request];
        let (register, at, least) = (*register, *at, *least);
        if !std::mem::take(open) {
            return Ok(());
        }
        let Some(running) = self.machines[at].running.as_ref() else { return Ok(()) };
        let (_, index) = running.table.registers.get(&register).copied().unwrap_or_default();
        if index < least {
            return Err(format!(
                "machine {at} read entry {index} of register {register}, and {least} was seen before"
            ));
        }
        let seen = self.seen.entry(register).or_default();
        *seen = (*seen).max(index);
        self.tally.reads += 1;
        Ok(())
    }

    /// What a leader does for its group: whoever lost its drive goes, others come in, and vote once they have caught up.
    fn arrange(&mut self) -> Result<(), String> {
        for at in 0..self.machines.len() {
            let machine = &self.machines[at];
            let Some(running) = machine.running.as_ref().filter(|_| machine.paused_until <= self.now) else {
                continue;
            };
            let standing = running.driver.standing();
            if !standing.serves {
                continue;
            }
            let group = running.table.group.clone();
            let reaches = |other: usize| {
                !self.machines[at].cut.contains(&other) && self.machines[other].paused_until <= self.now
            };
            let own = running.driver.id();
            let lost = group.members.iter().find(|(id, member)| {
                let other = self.machines.iter().position(|machine| machine.node == member.node);
                other.is_some_and(|other| {
                    reaches(other) && self.machines[other].disk.as_ref().is_none_or(|disk| disk.id != **id)
                })
            });
            let caught_up = group.learners().into_iter().find(|id| {
                running.driver.progress(*id).is_some_and(|(matched, _)| matched + 3 >= standing.commit)
            });
            let wanted = if self.machines.len() >= 5 { 5 } else { 3 };
            let missing = (0..self.machines.len()).find(|other| {
                group.id_of(self.machines[*other].node).is_none()
                    && reaches(*other)
                    && (self.machines[*other].running.is_some() || self.machines[*other].disk.is_none())
            });
            let churned = group.voters().into_iter().find(|id| *id != own);
            let change = if let Some((id, _)) = lost {
                Some(Change::Remove { id: *id })
            } else if let Some(id) = caught_up {
                Some(Change::Voter { id })
            } else if let Some(other) = missing.filter(|_| group.members.len() < wanted) {
                self.last_id += 1;
                let (id, node) = (self.last_id, self.machines[other].node);
                self.invite(other, id)?;
                Some(Change::Learner { id, node })
            } else if !self.quiet && group.voters().len() > 3 && self.rng.percent(10) {
                churned.map(|id| Change::Remove { id })
            } else {
                None
            };
            if let (Some(change), Some(running)) = (change, self.machines[at].running.as_mut()) {
                running.driver.change(&change);
                self.drive(at)?;
            }
        }
        Ok(())
    }

    /// A machine begins a replica under a number that it is given; what it has applied before stays.
    fn invite(&mut self, other: usize, id: u64) -> Result<(), String> {
        self.crash(other);
        let keeps = self.rng.percent(50);
        let machine = &mut self.machines[other];
        let table = machine.disk.take().map(|disk| disk.table).filter(|_| keeps).unwrap_or_default();
        let group_first = table.group.clone();
        machine.disk = Some(Disk { id, table, log: Vec::new(), group_first });
        self.start(other)
    }

    /// Something goes wrong.
    fn strike(&mut self) -> Result<(), String> {
        let leads = |machine: &Machine| {
            machine.running.as_ref().is_some_and(|running| running.driver.standing().leads)
        };
        let leader = self.machines.iter().position(leads);
        let at = match leader.filter(|_| self.rng.percent(30)) {
            Some(leader) => leader,
            None => self.rng.below(self.machines.len()),
        };
        let is_running = self.machines[at].running.is_some();
        if !is_running && self.machines[at].disk.is_some() && self.rng.percent(30) {
            return self.start(at);
        }
        if self.rng.percent(85) {
            return Ok(());
        }
        self.tally.faults += 1;
        match self.rng.below(10) {
            0 | 1 if is_running => self.crash(at),
            // One does not hear the leader for a while and would like to be elected. Then the leader is alone, and the others start
            // again at once: they must not forget what they let it believe.
            8 => {
                let other = self.rng.below(self.machines.len());
                self.machines[at].cut.insert(other);
                self.machines[other].cut.insert(at);
                let when = self.now + self.rng.between(1_500, 4_000) as u64;
                self.plans.push((when, at, other));
            }
            // Everybody starts again, in the middle of an election perhaps.
            9 => {
                let delay = self.rng.between(0, 3);
                for other in 0..self.machines.len() {
                    if self.machines[other].running.is_some() && other % 3 != delay {
                        self.crash(other);
                        self.start(other)?;
                    }
                }
            }
            // A start that follows at once: what was promised before it still holds.
            2 if is_running => {
                self.crash(at);
                return self.start(at);
            }
            3 => self.machines[at].paused_until = self.now + self.rng.between(200, 6_000) as u64,
            4 | 5 => {
                let other = self.rng.below(self.machines.len());
                let both = self.rng.percent(60);
                self.machines[at].cut.insert(other);
                if both {
                    self.machines[other].cut.insert(at);
                }
                if self.rng.percent(50) {
                    self.cut_off(at);
                }
            }
            6 => self.machines.iter_mut().for_each(|machine| machine.cut.clear()),
            7 if self.rng.percent(40) => self.lose_drive(at),
            _ => {
                let to = self.machines[at].running.as_ref().and_then(|running| {
                    let voters = running.table.group.voters();
                    running
                        .driver
                        .standing()
                        .leads
                        .then(|| voters.into_iter().find(|id| *id != running.driver.id()))?
                });
                if let (Some(to), Some(running)) = (to, self.machines[at].running.as_mut()) {
                    running.lease_before = running.driver.reads_until();
                    running.driver.give_away(to);
                    self.drive(at)?;
                    if self.rng.percent(50) {
                        self.cut_off(at);
                    }
                }
            }
        }
        Ok(())
    }

    /// A machine is alone, and all others but one start again.
    fn alone_and_again(&mut self, alone: usize, spared: usize) -> Result<(), String> {
        self.cut_off(alone);
        for other in (0..self.machines.len()).filter(|other| *other != alone && *other != spared) {
            if self.machines[other].running.is_some() {
                self.crash(other);
                self.start(other)?;
            }
        }
        Ok(())
    }

    /// Nobody hears a machine, nor does it hear anybody.
    fn cut_off(&mut self, at: usize) {
        for other in 0..self.machines.len() {
            self.machines[at].cut.insert(other);
            self.machines[other].cut.insert(at);
        }
    }

    /// A drive is lost, if nothing is by that: a majority without it, whole and in touch.
    fn lose_drive(&mut self, at: usize) {
        // By the newest group that anybody knows.
        let tables =
            self.machines.iter().filter_map(|machine| machine.running.as_ref().map(|running| &running.table));
        let Some(group) = tables.max_by_key(|table| table.point).map(|table| table.group.clone()) else {
            return;
        };
        let voters = group.voters();
        let is_whole = |id: &u64| {
            self.machines.iter().any(|machine| {
                // A change counts for a replica once it has done it; before that, the majority of the group before is needed.
                let knows = machine.running.as_ref().is_some_and(|running| running.table.group == group);
                machine.disk.as_ref().is_some_and(|disk| disk.id == *id) && knows && machine.cut.is_empty()
            })
        };
        if voters.len() < 3 || !voters.iter().all(is_whole) || self.lost_at + LOSS_MS > self.now {
            return;
        }
        self.lost_at = self.now;
        let id = self.machines[at].disk.as_ref().map_or(0, |disk| disk.id);
        self.crash(at);
        self.machines[at].disk = None;
        if self.bug == Some(Bug::Amnesia) {
            let table = Table { group: group.clone(), ..Table::default() };
            self.machines[at].disk = Some(Disk { id, table, log: Vec::new(), group_first: group });
        }
    }

    fn heal(&mut self) -> Result<(), String> {
        self.quiet = true;
        for at in 0..self.machines.len() {
            self.machines[at].cut.clear();
            self.machines[at].paused_until = 0;
            if self.machines[at].running.is_none() {
                self.start(at)?;
            }
        }
        Ok(())
    }

    /// How every machine stands, for whoever looks for the reason.
    fn scene(&self) -> String {
        let one = |(at, machine): (usize, &Machine)| match (&machine.running, &machine.disk) {
            (Some(running), _) => format!(
                "machine {at}: replica {} {:?} removed {} {:?} voters {:?} learners {:?}\n",
                running.driver.id(),
                running.driver.standing(),
                running.driver.is_removed(),
                running.table.point,
                running.table.group.voters(),
                running.table.group.learners()
            ),
            (None, disk) => {
                format!("machine {at}: stopped, replica {:?}\n", disk.as_ref().map(|disk| disk.id))
            }
        };
        self.machines.iter().enumerate().map(one).collect()
    }

    /// After a quiet time somebody leads, and everybody in the group has everything.
    fn check_rest(&self) -> Result<(), String> {
        let serves = |machine: &&Machine| {
            machine.running.as_ref().is_some_and(|running| running.driver.standing().serves)
        };
        let Some(leader) = self.machines.iter().find(serves).and_then(|machine| machine.running.as_ref())
        else {
            return Err("nobody leads although nothing is wrong".into());
        };
        let last = self.acked.iter().map(|(index, _)| *index).max().unwrap_or(0);
        for id in leader.table.group.voters() {
            let has = |machine: &&Machine| machine.disk.as_ref().is_some_and(|disk| disk.id == id);
            let found = self.machines.iter().find(has).and_then(|machine| machine.running.as_ref());
            let applied = found.map_or(0, |running| running.table.point.index);
            if applied < last {
                return Err(format!("replica {id} has entries up to {applied}, and {last} was acknowledged"));
            }
        }
        match self.acked.iter().find(|(index, value)| self.values.get(index) != Some(value)) {
            Some((index, _)) => Err(format!("what was acknowledged as entry {index} is not there")),
            None => Ok(()),
        }
    }
}
