//! What a primary adds to the writer: its commits are numbered in epochs, kept in the tail, handed to the
//! standbys, and confirmed by them before anybody sees them.

use std::sync::Arc;
use std::time::Duration;

use redb::{ReadTransaction, WriteTransaction};
use stoker_format::NodeId;

use super::lineage::{Lineage, Position, Role};
use super::standby::{Batch, Members, Peers, StandbyStatus, TAIL_BYTES, Verdict, WhenAlone};
use super::tail::{Entries, Tail};

use crate::epoch::Epoch;
use crate::error::{CatalogError, Result};

/// Settings of a catalog that serves other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrimaryOptions {
    /// The node that it runs on.
    pub node: NodeId,
    /// How many standbys must have a commit before it is acknowledged. As long as nobody was ever in sync,
    /// none is waited for.
    pub needed: usize,
    /// What happens when fewer answer.
    pub when_alone: WhenAlone,
    /// A standby that does not confirm within this time is in sync no longer.
    pub ack_timeout: Duration,
    /// Most bytes of past commits that are kept for standbys that are behind.
    pub tail_bytes: usize,
    /// The highest epoch that any node saw. A catalog below it was replaced and does not open.
    pub seen: Epoch,
}

impl PrimaryOptions {
    /// The defaults: one standby is needed, and without one nothing is acknowledged.
    pub fn new(node: NodeId) -> PrimaryOptions {
        PrimaryOptions {
            node,
            needed: 1,
            when_alone: WhenAlone::Refuse,
            ack_timeout: Duration::from_secs(5),
            tail_bytes: TAIL_BYTES,
            seen: Epoch::default(),
        }
    }
}

/// How it stands with a primary and its standbys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replication {
    /// The epoch in which it serves.
    pub epoch: Epoch,
    /// Commits are acknowledged although they are on this node alone.
    pub alone: bool,
    /// No commit is acknowledged, because too few standbys answer.
    pub stalled: bool,
    /// Every standby that is attached or known.
    pub standbys: Vec<StandbyStatus>,
}

/// How waiting for the standbys ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirmed {
    Yes,
    /// Nobody is left to confirm; it may come later.
    Stalled,
    Fenced(Epoch),
    Closed,
}

/// The writer's part of a primary.
pub(super) struct Primary {
    pub(super) lineage: Lineage,
    tail: Tail,
    pub(super) peers: Arc<Peers>,
    options: PrimaryOptions,
    /// Somebody follows, or did: what the transaction under way does is kept and sent.
    followed: bool,
}

impl Primary {
    /// Takes up a file; what has changed is to be written with [`begin`](Primary::begin).
    pub(super) fn load(snapshot: &ReadTransaction, seq: u64, options: &PrimaryOptions) -> Result<Primary> {
        let lineage = Lineage::load(snapshot)?;
        lineage.rules()?;
        if options.seen > lineage.epoch() {
            return Err(CatalogError::foreign(format!(
                "this catalog is of epoch {} and was replaced by epoch {}; let it follow that one as a standby",
                lineage.epoch(),
                options.seen
            )));
        }
        let tail = Tail::load(snapshot, seq, options.tail_bytes)?;
        let peers = Arc::new(Peers::new(seq, lineage.members.clone()));
        Ok(Primary { lineage, tail, peers, options: options.clone(), followed: true })
    }

    /// Begins a new epoch behind commit `seq`.
    pub(super) fn begin(&mut self, transaction: &WriteTransaction, seq: u64) -> Result<()> {
        let epoch = match self.lineage.epoch() {
            none if none.is_none() => Epoch::first(self.options.node),
            epoch => epoch.restarted(),
        };
        self.lineage.role = Role::Primary;
        self.lineage.begin(epoch, seq);
        self.lineage.save(transaction)
    }

    /// Begins a transaction. A catalog that nobody follows keeps no past and costs no more than one of a node alone; whoever
    /// comes later begins with a snapshot.
    pub(super) fn transaction(&mut self) {
        self.followed = self.lineage.members.known().next().is_some() || self.peers.is_followed();
    }

    /// Notes a change of the members, in the transaction under way.
    pub(super) fn members_set(
        &mut self,
        transaction: &WriteTransaction,
        seq: u64,
        members: Members,
    ) -> Result<()> {
        self.peers.members_set(members.clone());
        self.lineage.members = members;
        self.lineage.members_at = Position { epoch: self.lineage.epoch(), seq };
        self.lineage.save(transaction)
    }

    /// The members after all that could join have joined; `None` if nobody can.
    pub(super) fn joined(&self) -> Option<Members> {
        let members = self.lineage.members.joined(self.peers.joinable());
        Some(members).filter(|members| *members != self.lineage.members)
    }

    /// Hands what the transaction has done to the tail and to the standbys; it is not durable here yet.
    pub(super) fn publish(
        &mut self,
        transaction: &WriteTransaction,
        seq_before: u64,
        entries: &Entries,
    ) -> Result<()> {
        let entries = match self.followed {
            true => {
                self.tail.append(transaction, entries)?;
                entries.clone()
            }
            false => {
                self.tail.skip();
                Entries::new()
            }
        };
        let (after, epoch) = (self.lineage.position(seq_before), self.lineage.epoch());
        self.peers.publish(Batch { after, epoch, entries });
        Ok(())
    }

    /// Waits until every standby in sync has everything up to `seq`. Gives members to record if those in sync
    /// must change first.
    pub(super) fn wait(&self, seq: u64, late: bool) -> std::result::Result<Confirmed, Members> {
        let (needed, when_alone) = (self.options.needed, self.options.when_alone);
        let members = &self.lineage.members;
        let verdict =
            |late: bool| members.verdict(needed, when_alone, late, |node| self.peers.has(node, seq));
        let mut late = late;
        loop {
            if let Some(by) = self.peers.fenced() {
                return Ok(Confirmed::Fenced(by));
            }
            if self.peers.closed() {
                return Ok(Confirmed::Closed);
            }
            match verdict(late) {
                Verdict::Enough => return Ok(Confirmed::Yes),
                Verdict::Change(members) => return Err(members),
                Verdict::Stalled => return Ok(Confirmed::Stalled),
                Verdict::Wait => {
                    late = self.peers.wait_while(self.options.ack_timeout, |view| {
                        members.verdict(needed, when_alone, false, |node| view.has(node, seq))
                            == Verdict::Wait
                    });
                }
            }
        }
    }

    /// Whether everything up to `seq` is confirmed without waiting.
    pub(super) fn ready(&self, seq: u64) -> bool {
        let (needed, when_alone) = (self.options.needed, self.options.when_alone);
        let verdict =
            self.lineage.members.verdict(needed, when_alone, false, |node| self.peers.has(node, seq));
        verdict == Verdict::Enough
    }

    /// Rests until something moves at the standbys, for a while.
    pub(super) fn rest(&self, seq: u64, timeout: Duration) {
        let (needed, when_alone) = (self.options.needed, self.options.when_alone);
        let members = &self.lineage.members;
        self.peers.wait_while(timeout, |view| {
            members.verdict(needed, when_alone, true, |node| view.has(node, seq)) == Verdict::Stalled
        });
    }

    /// Whether commits would be acknowledged with fewer standbys than needed.
    pub(super) fn alone(&self) -> bool {
        let members = &self.lineage.members;
        members.in_sync().count() < members.required(self.options.needed)
    }

    /// Records that another epoch rules.
    pub(super) fn fenced(&mut self, transaction: &WriteTransaction, by: Epoch) -> Result<()> {
        self.lineage.promised = self.lineage.promised.max(by);
        self.lineage.save(transaction)
    }
}

/// Fails if a file must not be used by one node alone; gives the epoch in which it goes on.
pub(super) fn alone_check(snapshot: &ReadTransaction) -> Result<Epoch> {
    let lineage = Lineage::load(snapshot)?;
    match lineage.role {
        Role::Alone => Ok(lineage.epoch()),
        Role::Primary if lineage.members.known().next().is_none() => {
            lineage.rules().map(|()| lineage.epoch())
        }
        Role::Primary => Err(CatalogError::foreign(
            "this catalog has standbys, which would miss its commits; serve it as a primary, or detach them",
        )),
        Role::Standby | Role::Replica => Err(standby_refused()),
    }
}

/// Fails if a file must not be a primary's.
pub(super) fn primary_check(snapshot: &ReadTransaction) -> Result<()> {
    match Lineage::load(snapshot)?.role {
        Role::Alone | Role::Primary => Ok(()),
        Role::Standby | Role::Replica => Err(standby_refused()),
    }
}

fn standby_refused() -> CatalogError {
    CatalogError::foreign("this file follows another catalog; promote it first")
}
