//! The one thread of a replica: it proposes commits, hears the others, keeps and does what the group decided, and answers.
//!
//! Commits that wait become one entry. While it is made durable here and elsewhere the next ones gather. Nothing is answered before
//! the entry was done here, and whatever is read here is what was done.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use stoker_consensus::{Change, Done, Driver, Envelope, Group, Outgoing, Point, Settings, Standing};
use stoker_format::NodeId;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::batch::{Batch, WORKS_MAX};
use super::disk::Disk;
use super::incoming::Head;
use super::message::Members;
use super::post::Post;
use super::request::Request;
use super::state::{ReplicaMember, ReplicaProgress, ReplicaStanding, Shared, now};
use crate::engine::embedded::file;
use crate::engine::embedded::space::Space;
use crate::epoch::Epoch;
use crate::error::{CatalogError, Result};

/// Time between two ticks, of which a leader gives a sign of life with each.
const TICK: Duration = Duration::from_millis(100);
/// Ticks without a leader after which an election begins, at least; at most twice as many.
const ELECTION: usize = 12;
/// For how long a majority that answered elects nobody else: shorter than [`ELECTION`], by what clocks may differ.
const LEASE: Duration = Duration::from_millis(1_000);
/// A replica that knew of no leader for so long says that it is stalled.
const STALLED: Duration = Duration::from_secs(4);
/// After so long without a commit, what was done in front of the table goes there.
const SETTLE: Duration = Duration::from_millis(20);
/// An entry takes no more commits once it has this many bytes.
const ENTRY_BYTES: usize = 1 << 20;
/// Replicas that are answered although they are not known.
const SENDERS_MAX: usize = 64;
/// Events that are taken before what follows from them is done.
const EVENTS_MAX: usize = 8_192;

/// What the thread hears.
pub(super) enum Event {
    Work(Request),
    /// From the replica of a node; the permit bounds what waits.
    Letter(NodeId, Envelope, OwnedSemaphorePermit),
    /// A read that needs a majority.
    Read(oneshot::Sender<Result<()>>),
    /// Letters to a replica did not arrive.
    Unreached(u64),
    /// How sending a copy of everything ended.
    Copied(u64, bool),
    /// A change of the group; answers whether it was written.
    Change(Change, oneshot::Sender<bool>),
    /// Have somebody else lead.
    GiveAway(Option<NodeId>),
    /// Go on alone.
    BeginAnew(oneshot::Sender<Result<()>>),
    Stop,
}

/// Who waits for an end.
pub(super) enum Waiter {
    /// What the [disk](Disk::proposed) has of an entry.
    Group,
    Read(Option<oneshot::Sender<Result<()>>>),
}

/// What the thread owns.
pub(super) struct Worker {
    node: NodeId,
    driver: Driver<Waiter>,
    disk: Disk,
    shared: Arc<Shared>,
    space: Arc<Space>,
    post: Post,
    /// Where letters came from, by the numbers of replicas: whoever is new to a group knows nobody else.
    senders: HashMap<u64, NodeId>,
    next_tick: Duration,
    /// When a leader was known last.
    leader_at: Duration,
    /// The term in which reads are answered here.
    answers_in: Option<u64>,
    /// The term in which it was first sure of all that was committed.
    served_in: Option<u64>,
    copies: u64,
    /// Somebody began the group anew without this replica, or its file is older than what it acknowledged.
    is_superseded: bool,
    /// What was told last of how it stands.
    told: Option<Told>,
    /// Time went on since it was told how far the others are.
    is_progress_due: bool,
}

/// What decides whether there is something new to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    term: u64,
    leader: Option<u64>,
    leads: bool,
    serves: bool,
    answers: bool,
    answers_alone: bool,
    is_stalled: bool,
    is_superseded: bool,
    base: u64,
    group_version: u64,
}

/// Settings of a replica; chance begins with what nobody else has.
pub(super) fn settings(id: u64) -> Settings {
    Settings { heartbeat: 1, election: ELECTION, silence: ELECTION, seed: id, ..Settings::default() }
}

/// A replica that goes on from what is on the drive.
pub(super) fn driver(disk: &Disk) -> Result<Driver<Waiter>> {
    let start = disk.start();
    let settings = settings(start.id);
    Driver::new(start, settings, LEASE)
        .map_err(|fault| file::damaged(format!("the log does not continue the catalog's file: {fault}")))
}

impl Worker {
    pub(super) fn new(
        node: NodeId,
        driver: Driver<Waiter>,
        disk: Disk,
        shared: Arc<Shared>,
        space: Arc<Space>,
        post: Post,
    ) -> Worker {
        let now = now();
        Worker {
            node,
            driver,
            disk,
            shared,
            space,
            post,
            senders: HashMap::new(),
            next_tick: now + TICK,
            leader_at: now,
            answers_in: None,
            served_in: None,
            copies: 0,
            is_superseded: false,
            told: None,
            is_progress_due: true,
        }
    }

    /// Does what follows from the start, and works until it is told to stop.
    pub(super) fn run(&mut self, inbox: &Receiver<Event>) {
        if let Err(error) = self.advance() {
            self.fail(&error);
        }
        while self.turn(inbox) {}
        self.shared.reads_end();
        if self.shared.sound().is_ok()
            && let Err(error) = self.disk.checkpoint(0)
        {
            tracing::warn!(%error, "the catalog's file was not brought up to date; the next start does it from the log");
        }
        self.shared.hide();
    }

    /// Waits for something to do and does it; false if it was told to stop.
    fn turn(&mut self, inbox: &Receiver<Event>) -> bool {
        let is_alone = self.driver.group().members.len() == 1 && self.answers_in.is_some();
        let first = match (is_alone, self.disk.is_settled()) {
            (true, true) => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (true, false) => inbox.recv_timeout(SETTLE),
            (false, _) => inbox.recv_timeout(self.next_tick.saturating_sub(now())),
        };
        let is_idle = is_alone && matches!(first, Err(RecvTimeoutError::Timeout));
        let (mut works, mut goes_on) = (Vec::new(), true);
        match first {
            Ok(event) => goes_on &= self.take(event, &mut works),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        for event in inbox.try_iter().take(EVENTS_MAX) {
            goes_on &= self.take(event, &mut works);
        }
        // Never two ticks for one: time that went by while a drive or a processor was busy is no silence of others.
        let now = now();
        let is_tick = now >= self.next_tick;
        if is_tick {
            self.next_tick = now + TICK;
            self.is_progress_due = true;
            if self.shared.sound().is_ok() {
                self.driver.tick(now);
            }
        }
        self.propose(works);
        if self.shared.sound().is_ok()
            && let Err(error) = self.advance().and_then(|()| self.settle(is_idle, is_tick))
        {
            self.fail(&error);
        }
        goes_on
    }

    /// Brings the table up to date when nobody commits.
    fn settle(&mut self, is_idle: bool, is_tick: bool) -> Result<()> {
        match (is_idle, is_tick) {
            (true, _) => self.disk.settle(),
            (false, true) => self.disk.settle_idle(),
            (false, false) => Ok(()),
        }
    }

    /// The replica cannot be trusted any more; nobody waits for it.
    fn fail(&mut self, error: &CatalogError) {
        self.shared.poison(error);
        for waiter in self.driver.abandon() {
            if let Waiter::Read(Some(answer)) = waiter {
                drop(answer.send(Err(error.clone())));
            }
        }
        let unknown = CatalogError::unknown(error.message.clone());
        let proposed = std::mem::take(&mut self.disk.proposed).into_values().map(|(_, group)| group);
        let done = std::mem::take(&mut self.disk.done).into_iter().map(|(group, _)| group);
        proposed.chain(done).for_each(|group| answer_all(group, &unknown));
    }

    fn take(&mut self, event: Event, works: &mut Vec<Request>) -> bool {
        if let Err(error) = self.shared.sound() {
            return refuse(event, &error);
        }
        match event {
            Event::Work(request) => works.push(request),
            Event::Letter(from, envelope, _room) => self.letter(from, envelope),
            Event::Read(answer) => match self.driver.standing().serves {
                true => self.driver.read(now(), Waiter::Read(Some(answer))),
                // Whoever asked may have given up; the same below.
                false => drop(answer.send(Err(self.elsewhere()))),
            },
            Event::Unreached(id) => self.driver.unreachable(id),
            Event::Copied(id, is_there) => self.driver.copied(id, is_there),
            Event::Change(change, answer) => drop(answer.send(self.driver.change(&change))),
            Event::GiveAway(to) => self.give_away(to),
            Event::BeginAnew(answer) => {
                let begun = self.begin_anew();
                if let Err(error) = &begun {
                    self.fail(error);
                }
                let _ = answer.send(begun);
            }
            Event::Stop => return false,
        }
        true
    }

    fn letter(&mut self, from: NodeId, envelope: Envelope) {
        // What it cannot keep it does not take; the leader goes on without it, and comes back to it.
        if envelope.to() != self.driver.id() || (envelope.is_written() && !self.disk.storage.room()) {
            return;
        }
        if envelope.believed().is_some_and(|commit| commit > self.driver.standing().last) {
            // It had them once: the file is an older one, or a copy of another. It must not vote for what it does not know.
            self.is_superseded = true;
            return;
        }
        if let Some(point) = envelope.snapshot() {
            // Taken at once: another copy may arrive meanwhile.
            self.disk.staged = self.shared.staged_take(point);
            if self.disk.staged.is_none() {
                return;
            }
        }
        let members = &self.driver.group().members;
        if members.is_empty() || members.contains_key(&envelope.from()) || self.senders.len() < SENDERS_MAX {
            self.senders.insert(envelope.from(), from);
        }
        self.is_superseded |= self.driver.step(envelope);
    }

    /// Makes entries of commits.
    fn propose(&mut self, works: Vec<Request>) {
        let mut works = works.into_iter().peekable();
        while let Some(first) = works.next() {
            let mut bytes = first.bytes;
            let mut group = vec![first];
            while group.len() < WORKS_MAX
                && let Some(next) = works.next_if(|next| bytes + next.bytes <= ENTRY_BYTES)
            {
                bytes += next.bytes;
                group.push(next);
            }
            if let Err(error) = self.permit() {
                answer_all(group, &error);
                continue;
            }
            let entry = Batch { works: group.iter().map(Request::as_work).collect() }.encode(bytes);
            match self.driver.propose(entry, Waiter::Group) {
                Ok(place) => {
                    let before = self.disk.proposed.insert(place.index, (place, group));
                    before.into_iter().for_each(|(_, group)| answer_all(group, &elsewhere_now()));
                }
                Err(_) => answer_all(group, &self.elsewhere()),
            }
        }
    }

    fn permit(&self) -> Result<()> {
        self.shared.sound()?;
        if self.disk.meta.waits_for_others {
            return Err(CatalogError::stalled());
        }
        if !self.driver.standing().serves {
            return Err(self.elsewhere());
        }
        match self.disk.storage.room() {
            true => Ok(()),
            false => Err(self.space.refusal()),
        }
    }

    /// What somebody is told who asks a replica that does not lead.
    fn elsewhere(&self) -> CatalogError {
        match self.is_stalled() {
            true => CatalogError::stalled(),
            false => CatalogError::unavailable("this node does not lead the catalog's group now"),
        }
    }

    fn is_stalled(&self) -> bool {
        self.disk.meta.waits_for_others || now().saturating_sub(self.leader_at) > STALLED
    }

    /// Does what the group decided, tells who waits, and says how it stands.
    fn advance(&mut self) -> Result<()> {
        // A change that was just written counts before anybody else hears of it.
        self.publish_reads();
        let mut ends = Vec::new();
        let Worker { driver, disk, post, senders, copies, .. } = self;
        driver.run(
            disk,
            &mut |disk, message, group| send(disk, message, group, post, senders, copies),
            &mut |done| ends.push(done),
        )?;
        self.publish_reads();
        for (group, answers) in std::mem::take(&mut self.disk.done) {
            for (request, answer) in group.into_iter().zip(answers) {
                // Whoever asked may have given up.
                let _ = request.answer.send(answer);
            }
        }
        for done in ends {
            match done {
                Done::Unknown(Waiter::Group, place) => {
                    let is_it = |(proposed, _): &(Point, Vec<Request>)| *proposed == place;
                    if self.disk.proposed.get(&place.index).is_some_and(is_it)
                        && let Some((_, group)) = self.disk.proposed.remove(&place.index)
                    {
                        answer_all(group, &elsewhere_now());
                    }
                }
                Done::Read(Waiter::Read(Some(answer))) => drop(answer.send(Ok(()))),
                Done::Deposed(Waiter::Read(Some(answer))) => drop(answer.send(Err(self.elsewhere()))),
                _ => {}
            }
        }
        if self.disk.is_checkpoint_due() {
            self.disk.checkpoint(0)?;
        }
        if self.driver.is_removed() {
            // It may be taken in again, as the same.
            self.driver = driver_again(&self.disk)?;
            self.told = None;
            self.proposed_forget();
        }
        self.publish();
        let standing = self.driver.standing();
        if standing.serves && self.served_in.replace(standing.term) != Some(standing.term) {
            // Reads begin with a lease, and need not wait for the next tick to get one.
            self.driver.read(now(), Waiter::Read(None));
            return self.advance();
        }
        Ok(())
    }

    fn publish_reads(&mut self) {
        let until = self.driver.reads_until();
        let answers_in = (until > Duration::ZERO).then(|| self.driver.standing().term);
        let begins = answers_in.is_some() && answers_in != self.answers_in;
        self.answers_in = answers_in;
        match answers_in {
            Some(_) => self.shared.reads_until(until, begins),
            None => self.shared.reads_end(),
        }
    }

    /// The driver that would have told of them is gone.
    fn proposed_forget(&mut self) {
        let proposed = std::mem::take(&mut self.disk.proposed).into_values();
        proposed.for_each(|(_, group)| answer_all(group, &elsewhere_now()));
    }

    /// Says how it stands, if that is news: this is asked with every commit.
    fn publish(&mut self) {
        let standing = self.driver.standing();
        if standing.leader.is_some() {
            self.leader_at = now();
        }
        let now = Told {
            term: standing.term,
            leader: standing.leader,
            leads: standing.leads,
            serves: standing.serves,
            answers: self.answers_in.is_some(),
            answers_alone: self.driver.reads_until() == Duration::MAX,
            is_stalled: self.is_stalled(),
            is_superseded: self.is_superseded,
            base: self.disk.meta.base,
            group_version: self.driver.group_version(),
        };
        let is_news = self.told.replace(now) != Some(now);
        if standing.leads && (is_news || std::mem::take(&mut self.is_progress_due)) {
            self.publish_progress(&standing);
        }
        if is_news {
            self.publish_standing(&standing, &now);
        }
    }

    fn publish_standing(&self, standing: &Standing, now: &Told) {
        let (group, id) = (self.driver.group(), self.driver.id());
        let leader = match standing.leader {
            Some(leader) if leader == id => Some(self.node),
            Some(leader) => group.members.get(&leader).map(|member| member.node),
            None => None,
        };
        let holder = leader.or(self.answers_in.map(|_| self.node)).filter(|_| !group.members.is_empty());
        let epoch = holder.map(|node| Epoch::of_term(now.base, group.incarnation, standing.term, node));
        let now = ReplicaStanding {
            id,
            epoch,
            leads: now.serves,
            answers: now.answers,
            answers_alone: now.answers_alone,
            is_stalled: now.is_stalled,
            is_superseded: now.is_superseded,
            base: now.base,
            members: self.members(),
            group: group.id,
            former: group.former.clone(),
            incarnation: group.incarnation,
        };
        self.shared.standing.send_if_modified(|before| {
            let is_news = *before != now;
            *before = now;
            is_news
        });
    }

    fn publish_progress(&self, standing: &Standing) {
        let progress = |member: ReplicaMember| {
            let (has, is_heard) = match member.id == self.driver.id() {
                true => (standing.last, true),
                false => self.driver.progress(member.id).unwrap_or_default(),
            };
            ReplicaProgress { member, has, is_heard }
        };
        let progress = self.members().into_iter().map(progress).collect();
        *self.shared.progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            (progress, standing.last);
    }

    fn members(&self) -> Vec<ReplicaMember> {
        let member = |(id, member): (&u64, &stoker_consensus::Member)| ReplicaMember {
            id: *id,
            node: member.node,
            votes: member.votes,
        };
        self.driver.group().members.iter().map(member).collect()
    }

    fn give_away(&mut self, to: Option<NodeId>) {
        let group = self.driver.group();
        let able = group.members.iter().filter_map(|(id, member)| {
            let (has, is_heard) = self.driver.progress(*id)?;
            let is_wanted = to.is_none_or(|node| node == member.node);
            (member.votes && is_heard && is_wanted && *id != self.driver.id()).then_some((has, *id))
        });
        if let (Some((_, id)), true) = (able.max(), self.driver.standing().leads) {
            self.shared.reads_end();
            self.answers_in = None;
            self.driver.give_away(id);
        }
    }

    fn begin_anew(&mut self) -> Result<()> {
        self.shared.reads_end();
        self.answers_in = None;
        self.disk.begin_anew(self.node)?;
        self.driver = driver(&self.disk)?;
        self.told = None;
        self.proposed_forget();
        self.advance()
    }
}

/// What somebody is told whose entry may have been lost with the lead.
fn elsewhere_now() -> CatalogError {
    CatalogError::unknown(
        "another node leads the catalog's group; read to find out what became of the commit",
    )
}

fn driver_again(disk: &Disk) -> Result<Driver<Waiter>> {
    tracing::info!("this node's replica of the catalog is not in the group any more");
    driver(disk)
}

fn send(
    disk: &mut Disk,
    message: Outgoing,
    group: &Group,
    post: &Post,
    senders: &HashMap<u64, NodeId>,
    copies: &mut u64,
) {
    let to = message.to;
    let node = group.members.get(&to).map(|member| member.node).or(senders.get(&to).copied());
    let Some(node) = node else { return };
    if !message.is_snapshot {
        // The library hears of it when it hears nothing back.
        post.send(node, to, message.envelope(group).encode());
        return;
    }
    let Ok(snapshot) = disk.snapshot() else { return };
    *copies += 1;
    let copy = disk.meta.id.rotate_left(32) ^ *copies;
    let head = Head {
        copy,
        index: disk.point.index,
        term: disk.point.term,
        seq: disk.seq(),
        base: disk.meta.base,
        members: Members::of(group),
    };
    let letter = message.with_point(disk.point, group).envelope(group).encode();
    post.copy(node, to, letter, head, snapshot);
}

fn answer_all(group: Vec<Request>, error: &CatalogError) {
    for request in group {
        let _ = request.answer.send(Err(error.clone()));
    }
}

/// Tells whoever waits that nothing is done here any more; false if it was told to stop.
fn refuse(event: Event, error: &CatalogError) -> bool {
    match event {
        Event::Work(request) => drop(request.answer.send(Err(error.clone()))),
        Event::Read(answer) => drop(answer.send(Err(error.clone()))),
        Event::BeginAnew(answer) => drop(answer.send(Err(error.clone()))),
        Event::Change(_, answer) => drop(answer.send(false)),
        Event::Letter(..) | Event::Unreached(_) | Event::Copied(..) | Event::GiveAway(_) => {}
        Event::Stop => return false,
    }
    true
}
