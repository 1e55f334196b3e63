//! Carries out what the loop decided, beside the loop: nothing that takes long keeps the leader from looking or from saying that it
//! lives. What could not be done yet is kept with the memory of the loop, so that the next leader goes on with it. (D71)

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stoker_reflex::{Answer, Command, Fact, Inventory, Notice, Observation, Outbox, PartId, Time};
use stoker_store::{ErrorKind, Order, Store, StoreError};
use tokio::task::{Id, JoinError, JoinSet};

use super::driver::Means;
use super::head::place_of;
use stoker_telemetry::{Change, Severity};

/// Longest wait for a node that does what it was told.
const ORDER_MAX: Duration = Duration::from_secs(60);

/// Commands that are carried out at once.
const AT_ONCE_MAX: usize = 16;

/// Notices that are sent at once.
const SENDS_MAX: usize = 8;

/// Pause before the second try; it doubles.
const PAUSE_MS: u64 = 2_000;
const PAUSE_DOUBLINGS_MAX: u32 = 5;
const PAUSE_MS_MAX: u64 = PAUSE_MS << PAUSE_DOUBLINGS_MAX;

/// What a decision about a part is carried out on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// The node, by its id.
    pub node: String,
    /// Its name, for whoever places jobs.
    pub name: String,
    /// The path of the drive; none for the node, also if the part is its only drive.
    pub drive: Option<String>,
    /// Which drive lies there; none if that is not known.
    #[serde(default)]
    pub id: Option<String>,
}

/// Something that is to be done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Task {
    command: Command,
    target: Target,
    #[serde(skip)]
    tries: u32,
    #[serde(skip)]
    due_ms: u64,
}

/// What the next leader has to know of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Backlog {
    /// In the order in which it was decided.
    tasks: Vec<Task>,
    /// What parts that are out were taken out as. Whatever drives come or go, that is what is undone.
    ordered: BTreeMap<PartId, Target>,
}

/// What is under way.
enum Doing {
    Task(Box<Task>),
    Notice(u64),
}

enum Did {
    Task(Result<(), StoreError>),
    Notice(Answer),
}

/// What carries out.
pub struct Hands {
    means: Arc<Means>,
    backlog: Backlog,
    doing: HashMap<Id, Doing>,
    running: JoinSet<Did>,
    /// Parts whose evacuation was ordered.
    emptying: BTreeSet<PartId>,
    is_changed: bool,
}

/// What is known of the cluster.
pub struct Known<'a> {
    pub inventory: &'a Inventory,
    /// Drives beside which no other one of their node takes chunks.
    pub sole: &'a BTreeSet<PartId>,
    /// Ids of drives by their places.
    pub ids: &'a BTreeMap<PartId, String>,
}

impl Hands {
    /// Goes on with what was backlog.
    pub fn new(means: Arc<Means>, backlog: Backlog) -> Hands {
        let (doing, emptying) = Default::default();
        Hands { means, backlog, doing, running: JoinSet::new(), emptying, is_changed: false }
    }

    /// Sees to it that what should be in force is, whoever ordered it.
    pub fn resume(&mut self, standing: Vec<Command>, known: &Known<'_>) {
        for command in standing {
            if !self.has(&command) {
                self.push(command, known);
            }
        }
    }

    fn has(&self, command: &Command) -> bool {
        let is_doing = |doing: &Doing| matches!(doing, Doing::Task(task) if is_same(&task.command, command));
        self.backlog.tasks.iter().any(|task| is_same(&task.command, command))
            || self.doing.values().any(is_doing)
    }

    /// What has to be kept.
    pub fn backlog(&self) -> Backlog {
        let mut backlog = self.backlog.clone();
        // What is under way may have to be done again.
        let doing = self.doing.values().filter_map(|doing| match doing {
            Doing::Task(task) => Some(Task::clone(task)),
            Doing::Notice(_) => None,
        });
        backlog.tasks.splice(0..0, doing);
        backlog
    }

    /// Whether what has to be kept changed since the last time.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// What parts that are out were taken out as.
    pub fn ordered(&self) -> &BTreeMap<PartId, Target> {
        &self.backlog.ordered
    }

    /// Takes a command that is to be carried out.
    pub fn push(&mut self, command: Command, known: &Known<'_>) {
        self.is_changed |= self.backlog.push(command, known);
    }

    /// Drops what is not wanted any more, and orders evacuations again that were dropped while they could not be. `out` is what is out
    /// by decision of the loop.
    pub fn keep_to(&mut self, standing: &[Command], out: &BTreeSet<PartId>, known: &Known<'_>) {
        self.is_changed |= self.backlog.keep_to(standing, out);
        let mut evacuating = BTreeSet::new();
        for command in standing {
            let Command::Evacuate { part } = command else { continue };
            evacuating.insert(part.clone());
            if !self.emptying.contains(part) && !self.has(command) {
                self.push(command.clone(), known);
            }
        }
        self.emptying.retain(|part| evacuating.contains(part));
    }

    /// Begins what can be begun.
    pub fn begin(&mut self, now: Time) {
        let tasks = self.doing.values().filter_map(|doing| match doing {
            Doing::Task(task) => Some(task.command.clone()),
            Doing::Notice(_) => None,
        });
        for task in self.backlog.take_due(tasks.collect(), now) {
            let (means, command, target) = (self.means.clone(), task.command.clone(), task.target.clone());
            let handle = self.running.spawn(async move { Did::Task(means.do_it(&command, &target).await) });
            self.doing.insert(handle.id(), Doing::Task(Box::new(task)));
        }
    }

    /// Chooses what is to be sent now, and notes in the outbox that somebody may have been told. To be kept before it is sent.
    pub fn choose(&self, outbox: &mut Outbox, now: Time) -> Vec<Notice> {
        let is_sending = |id: u64| {
            self.doing.values().any(|doing| matches!(doing, Doing::Notice(sending) if *sending == id))
        };
        let sending = self.doing.values().filter(|doing| matches!(doing, Doing::Notice(_))).count();
        let due = outbox.due(now).into_iter().filter(|notice| !is_sending(notice.id));
        let chosen: Vec<Notice> = due.take(SENDS_MAX.saturating_sub(sending)).collect();
        chosen.iter().for_each(|notice| outbox.begin(notice.id));
        chosen
    }

    /// Begins to send.
    pub fn send(&mut self, notices: Vec<Notice>, now: Time) {
        for notice in notices {
            let (id, means) = (notice.id, self.means.clone());
            let send = async move { Did::Notice(means.sender.send(&notice, now).await) };
            self.doing.insert(self.running.spawn(send).id(), Doing::Notice(id));
        }
    }

    /// Takes in what ended; says what the loop has to know.
    pub fn reap(&mut self, now: Time, outbox: &mut Outbox) -> Vec<Observation> {
        let mut told = Vec::new();
        while let Some(ended) = self.running.try_join_next_with_id() {
            let (id, did) = match ended {
                Ok((id, did)) => (id, Ok(did)),
                Err(fault) => (fault.id(), Err(fault)),
            };
            let Some(doing) = self.doing.remove(&id) else { continue };
            self.is_changed = true;
            match (doing, did) {
                (Doing::Notice(id), Ok(Did::Notice(answer))) => outbox.answered(id, now, answer),
                (Doing::Notice(id), other) => {
                    let why = format!("it could not be sent: {}", broken(other.err()));
                    outbox.answered(id, now, Answer::Later { why });
                }
                (Doing::Task(task), Ok(Did::Task(Ok(())))) => {
                    if let Command::Evacuate { part } = task.command {
                        self.emptying.insert(part);
                    }
                }
                (Doing::Task(task), Ok(Did::Task(Err(fault)))) => {
                    told.extend(self.failed(*task, fault, now));
                }
                (Doing::Task(task), other) => {
                    let fault = StoreError::new(ErrorKind::Unavailable, broken(other.err()));
                    told.extend(self.failed(*task, fault, now));
                }
            }
        }
        told
    }

    fn failed(&mut self, mut task: Task, fault: StoreError, now: Time) -> Option<Observation> {
        let part = part_of(&task.command)?.clone();
        task.tries = task.tries.saturating_add(1);
        let is_over = is_final(&task.command, &fault);
        let verb = verb(&task.command);
        // At the first try and then ever more seldom.
        if is_over || task.tries.is_power_of_two() {
            let end = if is_over { "it is given up" } else { "it is tried again" };
            let words = format!("{verb} could not be done, try {}, {end}: {fault}", task.tries);
            tracing::warn!(%part, "{words}");
            let kind = if is_over { "not_done" } else { "not_done_yet" };
            self.means.events.tell(Change::new(Severity::Warn, kind, &part.to_string(), words));
        }
        if is_over {
            if let Command::Evacuate { part } = &task.command {
                self.emptying.insert(part.clone());
            }
            let is_quarantine = matches!(task.command, Command::Quarantine { .. });
            let fact = Fact::Refused { why: fault.message };
            return is_quarantine.then(|| Observation::fact(part, now, fact));
        }
        self.backlog.again(task, now);
        None
    }
}

impl Backlog {
    /// Takes a command that is to be carried out; those that every node reads in the head are none. True if that is news.
    fn push(&mut self, command: Command, known: &Known<'_>) -> bool {
        let Some(part) = part_of(&command) else { return false };
        let Some(now) = target_of(part, known) else { return false };
        let target = match &command {
            Command::Quarantine { .. } => self.ordered.entry(part.clone()).or_insert(now).clone(),
            Command::Evacuate { .. } => self.ordered.get(part).cloned().unwrap_or(now),
            Command::Rejoin { .. } => self.ordered.remove(part).unwrap_or(now),
            _ => Target { drive: None, ..now },
        };
        // What was to be done and what is to be done now may contradict each other: the later one counts.
        self.tasks.retain(|old| part_of(&old.command) != Some(part) || is_beside(&old.command, &command));
        self.tasks.push(Task { command, target, tries: 0, due_ms: 0 });
        true
    }

    /// Drops what is not wanted any more; what undoes something is wanted until it is done. True if something was dropped.
    fn keep_to(&mut self, standing: &[Command], out: &BTreeSet<PartId>) -> bool {
        let is_wanted =
            |command: &Command| undoes(command) || standing.iter().any(|one| is_same(one, command));
        let before = (self.tasks.len(), self.ordered.len());
        self.tasks.retain(|task| is_wanted(&task.command));
        self.ordered.retain(|part, _| out.contains(part));
        before != (self.tasks.len(), self.ordered.len())
    }

    /// What can be begun beside what is being done. Nothing is begun about a part before what was decided about it earlier has ended.
    fn take_due(&mut self, mut busy: Vec<Command>, now: Time) -> Vec<Task> {
        let mut room = AT_ONCE_MAX.saturating_sub(busy.len());
        let (mut due, mut later) = (Vec::new(), Vec::new());
        for task in std::mem::take(&mut self.tasks) {
            let is_behind = busy.iter().any(|other| {
                part_of(other) == part_of(&task.command) && of_jobs(other) == of_jobs(&task.command)
            });
            busy.push(task.command.clone());
            // A clock that was set back must not keep it for longer than any pause.
            let is_due = task.due_ms <= now.0 || task.due_ms - now.0 > PAUSE_MS_MAX;
            match !is_behind && is_due && room > 0 {
                true => {
                    room -= 1;
                    due.push(task);
                }
                false => later.push(task),
            }
        }
        self.tasks = later;
        due
    }

    /// Takes back what failed, unless something else was decided meanwhile.
    fn again(&mut self, mut task: Task, now: Time) {
        let overtakes = |new: &Task| {
            part_of(&new.command) == part_of(&task.command) && !is_beside(&task.command, &new.command)
        };
        if !self.tasks.iter().any(overtakes) {
            let doublings = task.tries.saturating_sub(1).min(PAUSE_DOUBLINGS_MAX);
            task.due_ms = now.0.saturating_add(PAUSE_MS << doublings);
            self.tasks.insert(0, task);
        }
    }
}

fn broken(fault: Option<JoinError>) -> String {
    fault.map_or_else(|| "it ended as something else".to_owned(), |fault| fault.to_string())
}

impl Means {
    async fn do_it(&self, command: &Command, target: &Target) -> Result<(), StoreError> {
        let node = target.node.clone();
        let order = match (command, &target.drive) {
            (Command::Quarantine { .. } | Command::Evacuate { .. }, Some(drive)) => {
                Order::DriveCordon { node, drive: drive.clone(), cordoned: true }
            }
            (Command::Rejoin { .. }, Some(drive)) => {
                Order::DriveCordon { node, drive: drive.clone(), cordoned: false }
            }
            // It may be further already, if it was told before.
            (Command::Quarantine { .. }, None) if self.is_out(&node) => return Ok(()),
            (Command::Quarantine { .. }, None) => Order::Quarantine { node, force: false },
            (Command::Evacuate { .. }, None) => Order::Evacuate { node, force: false },
            (Command::Rejoin { .. }, None) => Order::Rejoin { node },
            (Command::Cordon { reason, .. }, _) => return self.cordon(&target.name, Some(reason)).await,
            (Command::Uncordon { .. }, _) => return self.cordon(&target.name, None).await,
            _ => return Ok(()),
        };
        match tokio::time::timeout(ORDER_MAX, self.node.operate(order)).await {
            Ok(done) => done.map(drop),
            Err(_) => {
                let words = format!("no answer within {} s", ORDER_MAX.as_secs());
                Err(StoreError::new(ErrorKind::Unavailable, words))
            }
        }
    }

    fn is_out(&self, node: &str) -> bool {
        let is_it = |peer: &stoker_node::PeerSeen| {
            peer.node == node && matches!(peer.duty, "quarantined" | "evacuating")
        };
        self.node.peers_seen().iter().any(is_it)
    }

    async fn cordon(&self, name: &str, reason: Option<&str>) -> Result<(), StoreError> {
        let Some(hook) = &self.hook else { return Ok(()) };
        let done = match reason {
            Some(reason) => hook.cordon(name, reason).await,
            None => hook.uncordon(name).await,
        };
        match done {
            Ok(words) => {
                let (kind, what) = match reason {
                    Some(_) => ("node_cordoned", "jobs are kept away from it"),
                    None => ("node_uncordoned", "jobs may come again"),
                };
                self.events.tell(Change::new(Severity::Info, kind, name, format!("{what}: {words}")));
                Ok(())
            }
            Err(why) => Err(StoreError::new(ErrorKind::Unavailable, why)),
        }
    }
}

/// What a decision about a part is carried out on, as things are now: the node, and the drive if another one of it takes chunks.
fn target_of(part: &PartId, known: &Known<'_>) -> Option<Target> {
    let (node, drive) = place_of(part)?;
    let place = known.inventory.nodes.iter().find(|place| place.node == node);
    let name = place.map_or_else(|| node.clone(), |place| place.name.clone());
    let id = known.ids.get(part).cloned();
    Some(Target { node, name, drive: drive.filter(|_| !known.sole.contains(part)), id })
}

fn part_of(command: &Command) -> Option<&PartId> {
    match command {
        Command::Quarantine { part, .. }
        | Command::Evacuate { part }
        | Command::Cordon { part, .. }
        | Command::Uncordon { part }
        | Command::Rejoin { part } => Some(part),
        _ => None,
    }
}

fn verb(command: &Command) -> &'static str {
    match command {
        Command::Quarantine { .. } => "quarantine",
        Command::Evacuate { .. } => "evacuation",
        Command::Cordon { .. } => "cordon",
        Command::Uncordon { .. } => "the end of the cordon",
        Command::Rejoin { .. } => "rejoin",
        _ => "command",
    }
}

/// About whoever places jobs, and not about chunks.
fn of_jobs(command: &Command) -> bool {
    matches!(command, Command::Cordon { .. } | Command::Uncordon { .. })
}

/// Ends something that was done before.
fn undoes(command: &Command) -> bool {
    matches!(command, Command::Rejoin { .. } | Command::Uncordon { .. })
}

/// The same about the same part, whatever the reason.
fn is_same(one: &Command, other: &Command) -> bool {
    part_of(one) == part_of(other) && std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// Whether an older command about a part stays beside a newer one.
fn is_beside(old: &Command, new: &Command) -> bool {
    let both_take_out = matches!(old, Command::Quarantine { .. }) && matches!(new, Command::Evacuate { .. });
    of_jobs(old) != of_jobs(new) || both_take_out
}

/// Whether trying again does not help. An evacuation that is refused may be possible a moment later: one who misses pings answers
/// again, or another node joins.
fn is_final(command: &Command, fault: &StoreError) -> bool {
    match fault.kind {
        ErrorKind::Invalid | ErrorKind::NotFound => true,
        ErrorKind::Conflict => !matches!(command, Command::Evacuate { .. }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use stoker_reflex::{NodePlace, Piece};

    use super::*;

    fn inventory(drives: &[&str]) -> Inventory {
        let piece = |name: &&str| Piece { name: (*name).to_owned(), detail: String::new() };
        let node = NodePlace {
            node: "ab".into(),
            name: "n1".into(),
            cell: String::new(),
            tor: String::new(),
            power: String::new(),
            drives: drives.iter().map(piece).collect(),
            ports: Vec::new(),
        };
        Inventory { cluster: "c".into(), nodes: vec![node], copies_needed: 1 }
    }

    /// A cluster of one node; the first drive is the only one that takes chunks if there is no other.
    struct World(Inventory, BTreeSet<PartId>, BTreeMap<PartId, String>);

    impl World {
        fn new(drives: &[&str]) -> World {
            let sole = (drives.len() == 1).then(|| PartId::drive("ab", drives[0]));
            World(inventory(drives), sole.into_iter().collect(), BTreeMap::new())
        }

        fn known(&self) -> Known<'_> {
            Known { inventory: &self.0, sole: &self.1, ids: &self.2 }
        }
    }

    fn quarantine(part: &PartId) -> Command {
        Command::Quarantine { part: part.clone(), reason: "slow".into() }
    }

    fn evacuate(part: &PartId) -> Command {
        Command::Evacuate { part: part.clone() }
    }

    fn rejoin(part: &PartId) -> Command {
        Command::Rejoin { part: part.clone() }
    }

    /// What would be begun, with what it is carried out on, and what is begun when that has ended.
    fn due(backlog: &mut Backlog) -> Vec<(String, Option<String>)> {
        let tasks = backlog.take_due(Vec::new(), Time(u64::MAX));
        tasks.into_iter().map(|task| (verb(&task.command).to_owned(), task.target.drive)).collect()
    }

    fn words(verb: &str, drive: Option<&str>) -> (String, Option<String>) {
        (verb.to_owned(), drive.map(str::to_owned))
    }

    #[test]
    fn what_was_ordered_is_what_is_undone() {
        let part = PartId::drive("ab", "/d0");
        let (one, two) = (World::new(&["/d0"]), World::new(&["/d0", "/d1"]));
        // It was the only drive: the node was taken out. Meanwhile it has another one.
        let mut backlog = Backlog::default();
        backlog.push(quarantine(&part), &one.known());
        backlog.push(evacuate(&part), &two.known());
        assert_eq!(due(&mut backlog), [words("quarantine", None)]);
        assert_eq!(due(&mut backlog), [words("evacuation", None)]);
        // Through the memory of the next leader.
        let text = serde_json::to_string(&backlog).unwrap();
        let mut backlog: Backlog = serde_json::from_str(&text).unwrap();
        backlog.push(rejoin(&part), &two.known());
        assert_eq!(due(&mut backlog), [words("rejoin", None)]);
        // And the other way round.
        backlog.push(quarantine(&part), &two.known());
        backlog.push(rejoin(&part), &one.known());
        assert_eq!(due(&mut backlog), [words("rejoin", Some("/d0"))]);
    }

    #[test]
    fn what_undoes_is_never_dropped() {
        let part = PartId::drive("ab", "/d0");
        let world = World::new(&["/d0", "/d1"]);
        let known = world.known();
        let out = BTreeSet::from([part.clone()]);
        let mut backlog = Backlog::default();
        backlog.push(quarantine(&part), &known);
        backlog.push(evacuate(&part), &known);
        assert!(!backlog.keep_to(&[quarantine(&part), evacuate(&part)], &out));
        assert!(backlog.keep_to(&[quarantine(&part)], &out), "nothing is left to evacuate");
        backlog.push(rejoin(&part), &known);
        backlog.push(Command::Uncordon { part: PartId::node("ab") }, &known);
        assert!(!backlog.keep_to(&[], &BTreeSet::new()));
        let text = serde_json::to_string(&backlog).unwrap();
        let mut backlog: Backlog = serde_json::from_str(&text).unwrap();
        for tries in 1..300 {
            let mut tasks = backlog.take_due(Vec::new(), Time(u64::MAX));
            assert_eq!(tasks.len(), 2, "{tries}");
            for task in &mut tasks {
                task.tries = tries;
            }
            tasks.into_iter().for_each(|task| backlog.again(task, Time(tries.into())));
            assert_eq!(backlog.take_due(Vec::new(), Time(tries.into())), [], "not at once");
        }
    }

    #[test]
    fn one_thing_at_a_time_is_done_to_a_part_and_the_last_word_counts() {
        let part = PartId::node("ab");
        let world = World::new(&["/d0"]);
        let known = world.known();
        let mut backlog = Backlog::default();
        backlog.push(quarantine(&part), &known);
        let [running] = backlog.take_due(Vec::new(), Time(0)).try_into().unwrap();
        backlog.push(evacuate(&part), &known);
        backlog.push(Command::Cordon { part: part.clone(), reason: "slow".into() }, &known);
        // Jobs are another matter.
        let busy = vec![running.command.clone()];
        let begun = backlog.take_due(busy.clone(), Time(0));
        assert_eq!(begun.iter().map(|task| verb(&task.command)).collect::<Vec<_>>(), ["cordon"]);
        // It is put back before it was taken out: that it could not be is no matter any more.
        backlog.push(rejoin(&part), &known);
        assert_eq!(backlog.take_due(busy, Time(0)), []);
        backlog.again(running, Time(0));
        assert_eq!(due(&mut backlog), [words("rejoin", None)]);
        assert_eq!(due(&mut backlog), []);
    }

    #[test]
    fn an_evacuation_that_is_refused_is_tried_again() {
        let part = PartId::node("ab");
        let fault = |kind: ErrorKind| StoreError::new(kind, "no");
        assert!(!is_final(&evacuate(&part), &fault(ErrorKind::Conflict)));
        assert!(is_final(&evacuate(&part), &fault(ErrorKind::NotFound)));
        assert!(is_final(&quarantine(&part), &fault(ErrorKind::Conflict)));
        assert!(!is_final(&quarantine(&part), &fault(ErrorKind::Unavailable)));
    }
}
