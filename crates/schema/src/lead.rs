//! One node leads a loop: a lease in the catalog, which no clock decides (D68, D235).
//!
//! **The problem.** Some loops must run once in a cluster, not once on each node: the break-fix loop, a tiering planner, the staging of jobs. They
//! must go on when their node dies, and two nodes must never both have an effect.
//!
//! **The parts.** The leader writes a row of the catalog every few seconds. A row that stays the same for [`LEASE`], as the one who looks
//! counts it ([`Lease`]), is that of a leader who is gone: whoever replaces it first, by compare and swap, leads. So no two clocks are compared.
//! [`Candidate`] is all of that for a loop; the break-fix loop writes its orders into the same row that shows that it lives, so it has its own
//! row (a note, [`crate::notes`]) and uses [`Lease`] alone.
//!
//! **What can go wrong.** A leader that was replaced does not know it at once. What it changes in the catalog must fail then: every commit that
//! it makes for the loop has the check of its term ([`Term::check`]), which holds exactly until somebody else leads. What it does elsewhere (an
//! object in a lake, a message to a node) it begins only while its term is fresh ([`Term::is_fresh`]), and it must do no harm twice: an operation
//! that began in time may end late. What the loop has to do, it keeps in rows of its own, which the next leader goes on from.
//!
//! ```ignore
//! let mut candidate = Candidate::new(catalog, "tiers", who, node_name, vec![session_check])?;
//! loop {
//!     if let Ok(Some(term)) = candidate.hold(now()).await {
//!         round(&term).await; // Commits hold `term.check()`.
//!     }
//!     pause(POLL_EVERY).await;
//! }
//! ```
//! A round that may take longer than [`LEASE`] runs beside `hold`, which has to be called all the while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stoker_catalog::kv::{Catalog, Check, Commit, Outcome, Row};
use stoker_catalog::{CatalogError, Result};

use crate::rows::{RowValue, keys};

/// Pause between two looks at who leads, and between two signs of life of the leader.
pub const POLL_EVERY: Duration = Duration::from_secs(2);

/// A row that stays the same for so long is that of a leader who is gone.
pub const LEASE: Duration = Duration::from_secs(20);

/// A leader that was not heard by the catalog for so long begins nothing any more. Others wait for twice as long.
pub const FRESH: Duration = Duration::from_secs(10);

/// Longest name of a loop, of who leads and of its node.
const NAME_LEN_MAX: usize = 100;

/// What one that would lead knows of the row in which the leader shows that it lives. Decides by what it saw and when, and by no other clock.
#[derive(Clone, Debug)]
pub struct Lease {
    seq: Option<u64>,
    since: Instant,
}

impl Lease {
    /// Of one that saw nothing yet: it waits before it takes the place of a leader that it cannot know to be dead.
    pub fn new(now: Instant) -> Lease {
        Lease { seq: None, since: now }
    }

    /// The row was last written by this commit; none if there is no row.
    pub fn saw(&mut self, seq: Option<u64>, now: Instant) {
        if self.seq != seq {
            *self = Lease { seq, since: now };
        }
    }

    /// Nobody leads, as far as this one saw: there never was a leader, or it is gone.
    pub fn is_free(&self, now: Instant) -> bool {
        self.seq.is_none() || now.saturating_duration_since(self.since) >= LEASE
    }
}

/// Who leads a loop. Changes only when that changes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeadRow {
    /// A name that no other process has; none if the last one gave it up.
    pub leader: String,
    /// Its node, for people.
    pub node: String,
    /// Counts leaders.
    pub term: u64,
}

impl RowValue for LeadRow {
    const TABLE: &'static str = "leaders";
}

/// The time during which one process leads a loop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Term {
    /// Counts leaders of the loop; a later one is higher.
    pub number: u64,
    key: Vec<u8>,
    seq: u64,
    heard: Instant,
}

impl Term {
    /// Holds until somebody else leads. To be in each commit of the loop.
    pub fn check(&self) -> Check {
        Check::Seq(self.key.clone(), self.seq)
    }

    /// Nobody else can lead yet, so what is done outside the catalog may begin.
    pub fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) < FRESH
    }
}

/// One process that leads a loop when nobody else does.
pub struct Candidate {
    catalog: Arc<dyn Catalog>,
    key: Vec<u8>,
    beat_key: Vec<u8>,
    who: String,
    node: String,
    /// What must hold for it to lead at all, such as its node's session.
    guards: Vec<Check>,
    lease: Lease,
    term: Option<Term>,
}

/// The rows of a loop: who leads, and the sign that it lives.
struct Rows {
    lead: Option<Row>,
    beat: Option<Row>,
}

impl Candidate {
    /// Nothing is asked yet. `who` is a name that no other process has, not even a later one of the same node; `node` is for people.
    pub fn new(
        catalog: Arc<dyn Catalog>,
        name: &str,
        who: &str,
        node: &str,
        guards: Vec<Check>,
        now: Instant,
    ) -> Result<Candidate> {
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        if name.is_empty() || name.len() > NAME_LEN_MAX || !name.bytes().all(is_name) {
            return Err(CatalogError::invalid(format!("`{}` is no name of a loop", name.escape_debug())));
        }
        if who.is_empty() || who.len() > NAME_LEN_MAX {
            return Err(CatalogError::invalid("a leader has a name of 1 to 100 bytes"));
        }
        Ok(Candidate {
            catalog,
            key: keys::lead(name),
            beat_key: keys::lead_beat(name),
            who: who.to_owned(),
            node: node.chars().take(NAME_LEN_MAX).collect(),
            guards,
            lease: Lease::new(now),
            term: None,
        })
    }

    /// Shows that it lives if it leads, and leads if nobody does. To be called every [`POLL_EVERY`]. None if another one leads; an error
    /// says nothing about who does, so nothing new is begun then.
    pub async fn hold(&mut self, now: Instant) -> Result<Option<Term>> {
        let rows = self.rows().await?;
        let lead = rows.lead.as_ref().map(LeadRow::of).transpose()?;
        self.lease.saw(rows.beat.as_ref().map(|row| row.seq), now);
        let is_mine = lead.as_ref().is_some_and(|lead| lead.leader == self.who);
        let is_given_up = lead.as_ref().is_some_and(|lead| lead.leader.is_empty());
        let done = match (&rows.lead, lead) {
            (Some(row), Some(lead)) if is_mine => self.beat(row, &rows.beat, lead.term, now).await?,
            (_, lead) if is_given_up || self.lease.is_free(now) => {
                self.take_over(&rows, lead.map_or(0, |lead| lead.term), now).await?
            }
            _ => None,
        };
        self.term = done.clone();
        Ok(done)
    }

    /// The term of the last [`Self::hold`] that was heard; none if this one did not lead then.
    pub fn term(&self) -> Option<&Term> {
        self.term.as_ref()
    }

    /// Who leads, for people; none if nobody does.
    pub async fn leader(&self) -> Result<Option<LeadRow>> {
        let lead = self.rows().await?.lead.as_ref().map(LeadRow::of).transpose()?;
        Ok(lead.filter(|lead| !lead.leader.is_empty()))
    }

    /// Lets another one lead at once, as when a node stops. What the term allowed is over before this is called.
    pub async fn give_up(self) -> Result<()> {
        let Some(row) = self.rows().await?.lead else { return Ok(()) };
        let lead = LeadRow::of(&row)?;
        if lead.leader != self.who {
            return Ok(());
        }
        let over = LeadRow { leader: String::new(), ..lead };
        let change = Commit::new().seq(self.key.clone(), row.seq).put(self.key.clone(), over.encode());
        // Another one that leads already is as good.
        let (Outcome::Done { .. } | Outcome::Failed { .. }) = self.catalog.commit(change).await?;
        Ok(())
    }

    async fn rows(&self) -> Result<Rows> {
        let mut rows = self.catalog.get(&[&self.key, &self.beat_key]).await?.into_iter();
        Ok(Rows { lead: rows.next().flatten(), beat: rows.next().flatten() })
    }

    /// A sign of life. None if another one leads by now.
    async fn beat(&self, lead: &Row, beat: &Option<Row>, number: u64, now: Instant) -> Result<Option<Term>> {
        let change = self.guarded().seq(self.key.clone(), lead.seq);
        let change = change.put(self.beat_key.clone(), next_beat(beat));
        let is_done = matches!(self.catalog.commit(change).await?, Outcome::Done { .. });
        let term = || Term { number, key: self.key.clone(), seq: lead.seq, heard: now };
        Ok(is_done.then(term))
    }

    async fn take_over(&self, rows: &Rows, number: u64, now: Instant) -> Result<Option<Term>> {
        let number = number + 1;
        let lead = LeadRow { leader: self.who.clone(), node: self.node.clone(), term: number };
        let change = self
            .guarded()
            .unchanged(self.key.clone(), rows.lead.as_ref())
            // The one that led may have been heard just now.
            .unchanged(self.beat_key.clone(), rows.beat.as_ref())
            .put(self.key.clone(), lead.encode())
            .put(self.beat_key.clone(), next_beat(&rows.beat));
        Ok(match self.catalog.commit(change).await? {
            Outcome::Done { seq } => Some(Term { number, key: self.key.clone(), seq, heard: now }),
            Outcome::Failed { .. } => None,
        })
    }

    fn guarded(&self) -> Commit {
        self.guards.iter().cloned().fold(Commit::new(), Commit::check)
    }
}

/// Another value than before; only that it changes says something.
fn next_beat(before: &Option<Row>) -> Vec<u8> {
    let before =
        before.as_ref().and_then(|row| Some(u64::from_be_bytes(row.value.as_slice().try_into().ok()?)));
    before.unwrap_or(0).wrapping_add(1).to_be_bytes().to_vec()
}
