//! One replica of a group: what it decides. The driver around it does what it says.

use std::ops::Range;

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{
    ConfChange, ConfChangeType, ConfState, Entry as RaftEntry, EntryType, HardState, Message, MessageType,
};
use raft::{Config, RawNode, Ready, SnapshotStatus, StateRole};
use stoker_format::NodeId;

use crate::group::{Change, Group};
use crate::message::Envelope;
use crate::window::Window;

/// What a candidate says that was asked by the leader itself to take over.
const TRANSFER: &[u8] = b"CampaignTransfer";

/// A place in a log: an entry and the term in which it was written. Of two logs with the same place one begins like the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Point {
    /// The entry.
    pub index: u64,
    /// The term.
    pub term: u64,
}

/// What must be durable of a replica besides its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hard {
    /// The highest term that it knows.
    pub term: u64,
    /// For whom it voted in it.
    pub vote: u64,
    /// Up to where it knows that entries are committed; may be behind.
    pub commit: u64,
}

/// An entry as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry(pub(crate) RaftEntry);

impl Entry {
    /// Where it is.
    pub fn point(&self) -> Point {
        Point { index: self.0.index, term: self.0.term }
    }

    pub(crate) fn of(point: Point, is_change: bool, data: Vec<u8>) -> Entry {
        Entry(RaftEntry {
            entry_type: if is_change { EntryType::EntryConfChange } else { EntryType::EntryNormal },
            term: point.term,
            index: point.index,
            data: data.into(),
            ..RaftEntry::default()
        })
    }

    /// What it says, whether it is committed or not.
    pub fn read(&self) -> Committed {
        let what = match self.0.entry_type {
            EntryType::EntryNormal if self.0.data.is_empty() => What::Nothing,
            EntryType::EntryNormal => What::Data(self.0.data.clone()),
            _ => change_of(&self.0.data).map_or(What::Nothing, What::Change),
        };
        Committed { point: self.point(), what }
    }

    pub(crate) fn is_change(&self) -> bool {
        self.0.entry_type != EntryType::EntryNormal
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.0.data
    }
}

/// An entry that is committed, to be done now.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed {
    /// Where it is.
    pub point: Point,
    /// What it says.
    pub what: What,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// What somebody proposed.
    Data(Bytes),
    /// The group changes.
    Change(Change),
    /// The first entry of a leader, or a change that came to nothing.
    Nothing,
}

/// Where a proposal is in the log, if it gets there.
pub type Place = Point;

/// A message on its way out.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// For whom.
    pub to: u64,
    /// It says that a copy of everything is needed, which the driver sends before.
    pub is_snapshot: bool,
    message: Message,
}

impl Outgoing {
    /// As it travels.
    pub fn envelope(self, group: &Group) -> Envelope {
        Envelope { group: group.id, former: group.former.clone(), message: self.message }
    }

    /// The same for a copy that is of another point of the log than the one that was asked for.
    #[must_use]
    pub fn with_point(mut self, point: Point, group: &Group) -> Outgoing {
        let metadata = self.message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (point.index, point.term);
        *metadata.mut_conf_state() = conf_of(group);
        self
    }
}

/// What is to be done, in this order: send `messages`; keep `hard` and `entries`, and flush them; put the `snapshot` into its place; do what is
/// `committed`; then say so with [`Replica::done`].
#[derive(Debug)]
pub struct Work {
    /// May leave before anything is durable.
    pub messages: Vec<Outgoing>,
    /// To be made durable, if there is anything.
    pub hard: Option<Hard>,
    /// The same; they take the place of those from the first one on.
    pub entries: Vec<Entry>,
    /// A copy of everything that was sent before takes the place of what is here.
    pub snapshot: Option<Point>,
    /// To be done.
    pub committed: Vec<Committed>,
    /// Questions that a majority answered.
    pub confirmed: Vec<u64>,
    ready: Ready,
}

/// How a replica stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The term.
    pub term: u64,
    /// Who leads, as far as it knows.
    pub leader: Option<u64>,
    /// Whether it leads, and has done everything that was committed before it did.
    pub serves: bool,
    /// Whether it leads.
    pub leads: bool,
    /// Up to where entries are known to be committed.
    pub commit: u64,
    /// The last entry.
    pub last: u64,
}

/// What a replica begins with.
#[derive(Debug, Clone)]
pub struct Start {
    /// Its number.
    pub id: u64,
    /// The group at `applied`.
    pub group: Group,
    /// What was durable.
    pub hard: Hard,
    /// Up to where entries are done.
    pub applied: Point,
    /// The entries behind that.
    pub entries: Vec<Entry>,
}

/// Settings of a replica, in ticks.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Between two signs of life of a leader.
    pub heartbeat: usize,
    /// Without one, an election begins after so many; at most twice as many.
    pub election: usize,
    /// A replica that was started votes for nobody for so long.
    pub silence: usize,
    /// Bytes of entries that are kept for those that are behind.
    pub window_bytes: usize,
    /// Most bytes of entries in one message.
    pub message_bytes: u64,
    /// What chance begins with.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            heartbeat: 1,
            election: 12,
            silence: 12,
            window_bytes: 64 << 20,
            message_bytes: 4 << 20,
            seed: 0,
        }
    }
}

/// One replica of a group.
pub struct Replica {
    raw: RawNode<Window>,
    settings: Settings,
    ticks: usize,
    chance: u64,
    /// For which a timeout was drawn.
    drawn: (u64, StateRole, u64),
    timeout: usize,
    /// It is in the group no longer, and has nothing more to say.
    removed: bool,
}

impl Replica {
    /// Takes up a log. Fails if what is given does not fit together.
    pub fn new(start: Start, settings: Settings) -> Result<Replica, String> {
        let Start { id, group, hard, applied, entries } = start;
        let follows = entries.iter().zip(applied.index + 1..).all(|(entry, index)| entry.0.index == index);
        if id == 0 || !follows {
            return Err("entries that do not follow what was done".into());
        }
        let last = applied.index + entries.len() as u64;
        if hard.commit > last {
            return Err(format!(
                "entries up to {} were committed, and {last} is the last one here",
                hard.commit
            ));
        }
        // A term is durable before anything is written in it.
        let term = entries.last().map_or(applied.term, |entry| entry.0.term).max(hard.term);
        let vote = if term == hard.term { hard.vote } else { 0 };
        let mut state = HardState::default();
        (state.term, state.vote, state.commit) = (term, vote, hard.commit.max(applied.index));
        let entries = entries.into_iter().map(|Entry(entry)| entry).collect();
        let window = Window::new(state, conf_of(&group), applied, entries);
        let config = Config {
            id,
            election_tick: settings.election,
            heartbeat_tick: settings.heartbeat,
            applied: applied.index,
            max_size_per_msg: settings.message_bytes,
            max_inflight_msgs: 64,
            check_quorum: true,
            pre_vote: true,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, window, &logger).map_err(|fault| fault.to_string())?;
        let chance = settings.seed ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let drawn = (0, StateRole::Leader, 0);
        let mut replica = Replica { raw, settings, ticks: 0, chance, drawn, timeout: 0, removed: false };
        replica.settle();
        if group.is_alone(id) {
            // Nobody else could be asked.
            replica.raw.campaign().map_err(|fault| fault.to_string())?;
            replica.settle();
        }
        Ok(replica)
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.raw.raft.id
    }

    /// Time goes on.
    pub fn tick(&mut self) {
        if self.removed {
            return;
        }
        self.ticks = self.ticks.saturating_add(1);
        self.raw.tick();
        self.settle();
    }

    /// Takes a message of another replica; one that it cannot use changes nothing.
    pub fn step(&mut self, envelope: Envelope) {
        use MessageType as Type;
        let message = envelope.message;
        let heeded = match message.msg_type {
            // A lease that this replica confirmed before it was started again may still be used.
            Type::MsgRequestVote | Type::MsgRequestPreVote => {
                self.ticks >= self.settings.silence || message.context == TRANSFER
            }
            Type::MsgAppend
            | Type::MsgAppendResponse
            | Type::MsgRequestVoteResponse
            | Type::MsgRequestPreVoteResponse
            | Type::MsgSnapshot
            | Type::MsgHeartbeat
            | Type::MsgHeartbeatResponse
            | Type::MsgTimeoutNow => true,
            _ => false,
        };
        if heeded && !self.removed && message.to == self.id() && message.term > 0 {
            // It says why it had no use for it; nobody needs to know.
            let _ = self.raw.step(message);
            self.settle();
        }
    }

    /// Writes an entry, if this replica leads and there is room; it is then at this place, unless another leader writes there.
    pub fn propose(&mut self, data: Vec<u8>) -> Option<Place> {
        if !self.leads() {
            return None;
        }
        self.raw.propose(Vec::new(), data).ok()?;
        Some(self.last())
    }

    /// Writes a change of the group, if this replica leads and no other change is under way.
    pub fn change(&mut self, change: &Change) -> Option<Place> {
        if !self.leads() || self.raw.raft.has_pending_conf() {
            return None;
        }
        let (kind, id, context) = match change {
            Change::Learner { id, node } => (ConfChangeType::AddLearnerNode, *id, node.0.to_vec()),
            Change::Voter { id } => (ConfChangeType::AddNode, *id, Vec::new()),
            Change::Remove { id } => (ConfChangeType::RemoveNode, *id, Vec::new()),
        };
        let mut entry = ConfChange::default();
        (entry.change_type, entry.node_id, entry.context) = (kind, id, context.into());
        self.raw.propose_conf_change(Vec::new(), entry).ok()?;
        Some(self.last())
    }

    /// Asks a majority whether this replica still leads.
    pub fn ask(&mut self, number: u64) {
        self.raw.read_index(number.to_le_bytes().to_vec());
    }

    /// Has another replica take over.
    pub fn transfer(&mut self, to: u64) {
        self.raw.transfer_leader(to);
    }

    /// Whether a change of the group is written and not done, while this replica leads.
    pub fn is_changing(&self) -> bool {
        self.raw.raft.has_pending_conf()
    }

    /// Leads no longer.
    pub fn step_down(&mut self) {
        let term = self.raw.raft.term;
        self.raw.raft.become_follower(term, 0);
        self.settle();
    }

    /// Ticks without a leader until an election begins, at least.
    pub fn election_ticks(&self) -> usize {
        self.settings.election
    }

    /// A message to this replica could not be sent.
    pub fn unreachable(&mut self, id: u64) {
        self.raw.report_unreachable(id);
    }

    /// How sending a copy of everything ended.
    pub fn snapshot_sent(&mut self, id: u64, is_sent: bool) {
        let status = if is_sent { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(id, status);
    }

    /// What is to be done, if anything.
    pub fn work(&mut self) -> Option<Work> {
        if self.removed || !self.raw.has_ready() {
            return None;
        }
        let mut ready = self.raw.ready();
        let messages = outgoing(ready.take_messages());
        let snapshot = ready.snapshot();
        let snapshot = (!snapshot.is_empty()).then(|| {
            let metadata = snapshot.get_metadata();
            Point { index: metadata.index, term: metadata.term }
        });
        let entries: Vec<Entry> = ready.take_entries().into_iter().map(Entry).collect();
        let hard = (ready.must_sync() || !entries.is_empty()).then(|| self.hard());
        let committed = ready.take_committed_entries();
        let committed = self.committed(committed);
        let number = |context: &[u8]| context.try_into().ok().map(u64::from_le_bytes);
        let reads = ready.take_read_states();
        let confirmed = reads.iter().filter_map(|read| number(&read.request_ctx)).collect();
        Some(Work { messages, hard, entries, snapshot, committed, confirmed, ready })
    }

    /// All of it is done. Gives what follows from it: messages that may leave now, and entries to be done.
    pub fn done(&mut self, work: Work) -> (Vec<Outgoing>, Vec<Committed>) {
        let Work { entries, snapshot, mut ready, .. } = work;
        if self.removed {
            return (Vec::new(), Vec::new());
        }
        if let Some(point) = snapshot {
            let conf = ready.snapshot().get_metadata().get_conf_state().clone();
            self.raw.mut_store().reset(point, conf);
        }
        let hard = self.raw.raft.hard_state();
        let window = self.raw.mut_store();
        window.append(entries.into_iter().map(|Entry(entry)| entry).collect());
        window.hard = hard;
        let mut messages = outgoing(ready.take_persisted_messages());
        let mut light = self.raw.advance_append(ready);
        if let Some(point) = snapshot {
            self.raw.advance_apply_to(point.index);
        }
        messages.extend(outgoing(light.take_messages()));
        let committed = light.take_committed_entries();
        (messages, self.committed(committed))
    }

    /// Everything up to here is done.
    pub fn applied(&mut self, point: Point) {
        if self.removed {
            return;
        }
        self.raw.advance_apply_to(point.index);
        let bytes = self.settings.window_bytes;
        self.raw.mut_store().applied(point, bytes);
    }

    /// What must be durable now.
    pub fn hard(&self) -> Hard {
        let state = self.raw.raft.hard_state();
        Hard { term: state.term, vote: state.vote, commit: state.commit }
    }

    /// Up to where entries are done.
    pub fn point(&self) -> Point {
        self.raw.store().point()
    }

    /// Entries that are kept and not done.
    pub fn unapplied(&self) -> Vec<Entry> {
        self.raw.store().unapplied().cloned().map(Entry).collect()
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        let raft = &self.raw.raft;
        Standing {
            term: raft.term,
            leader: Some(raft.leader_id).filter(|leader| *leader != 0),
            serves: self.leads() && raft.apply_to_current_term(),
            leads: self.leads(),
            commit: raft.raft_log.committed,
            last: raft.raft_log.last_index(),
        }
    }

    /// Up to where another replica is known to have the log, and whether it was heard of lately.
    pub fn progress(&self, id: u64) -> Option<(u64, bool)> {
        self.raw.raft.prs().get(id).map(|progress| (progress.matched, progress.recent_active))
    }

    fn leads(&self) -> bool {
        !self.removed && self.raw.raft.state == StateRole::Leader
    }

    /// Whether it was taken out of the group, by an entry that it did.
    pub fn is_removed(&self) -> bool {
        self.removed
    }

    fn last(&self) -> Place {
        let raft = &self.raw.raft;
        Point { index: raft.raft_log.last_index(), term: raft.term }
    }

    fn committed(&mut self, entries: Vec<RaftEntry>) -> Vec<Committed> {
        let mut all = Vec::with_capacity(entries.len());
        for entry in entries {
            if self.removed {
                break;
            }
            let point = Point { index: entry.index, term: entry.term };
            let what = match entry.entry_type {
                EntryType::EntryNormal if entry.data.is_empty() => What::Nothing,
                EntryType::EntryNormal => What::Data(entry.data),
                _ => self.changed(&entry.data).map_or(What::Nothing, What::Change),
            };
            all.push(Committed { point, what });
        }
        all
    }

    /// Changes the group as an entry says, which is the same on every replica.
    fn changed(&mut self, data: &[u8]) -> Option<Change> {
        let change = ConfChange::parse_from_bytes(data).ok()?;
        let id = change.node_id;
        if change.change_type == ConfChangeType::RemoveNode && id == self.id() {
            // The library has no answers for a leader that is none of its group.
            self.removed = true;
            return Some(Change::Remove { id });
        }
        let conf = self.raw.apply_conf_change(&change).ok()?;
        self.raw.mut_store().conf = conf;
        change_of(data)
    }

    /// Puts our chance in the place of the library's, whose numbers cannot be had again.
    fn settle(&mut self) {
        let raft = &self.raw.raft;
        let now = (raft.term, raft.state, raft.leader_id);
        if self.drawn != now {
            self.drawn = now;
            let Range { start, end } = self.settings.election..2 * self.settings.election;
            self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.chance ^ (self.chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            self.timeout = start + ((mixed ^ (mixed >> 31)) % (end - start) as u64) as usize;
        }
        let timeout = self.timeout;
        self.raw.raft.set_randomized_election_timeout(timeout);
    }
}

/// The change that an entry tells of.
fn change_of(data: &[u8]) -> Option<Change> {
    let change = ConfChange::parse_from_bytes(data).ok()?;
    let id = change.node_id;
    match change.change_type {
        ConfChangeType::AddLearnerNode => {
            let node = NodeId(change.context.as_ref().try_into().ok()?);
            Some(Change::Learner { id, node })
        }
        ConfChangeType::AddNode => Some(Change::Voter { id }),
        ConfChangeType::RemoveNode => Some(Change::Remove { id }),
    }
}

fn conf_of(group: &Group) -> ConfState {
    ConfState::from((group.voters(), group.learners()))
}

fn outgoing(messages: Vec<Message>) -> Vec<Outgoing> {
    let one = |message: Message| Outgoing {
        to: message.to,
        is_snapshot: message.msg_type == MessageType::MsgSnapshot,
        message,
    };
    messages.into_iter().map(one).collect()
}
