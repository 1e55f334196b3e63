//! Which node carries lifecycle rules out, and when.
//!
//! Every node looks once in a while whether a pass of some volume is due, and only then tries to lead; so a cluster without rules writes nothing, and
//! one with rules writes signs of life while a pass runs. A leader works in slices, between which it shows that it lives; one that
//! is not heard begins nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_schema::lead::{Candidate, POLL_EVERY, Term};
use stoker_store::{ErrorKind, LakeMode, Result};
use tokio::time::Instant;

use super::pass::{Pass, Progress};
use crate::core::Core;
use crate::error;
use crate::volumes::Volume;

/// The loop, among those that one node leads.
const LOOP: &str = "lifecycle";

/// Longest pause between two looks.
const LOOK_MS_MAX: u64 = 60_000;

/// Passes of a volume in a day.
pub(super) const PASSES_A_DAY: u64 = 24;

/// Runs until the node closes.
pub(crate) async fn run(core: Arc<Core>) {
    if core.is_witness {
        return;
    }
    let look = Duration::from_millis((core.calendar.day_ms() / PASSES_A_DAY).clamp(10, LOOK_MS_MAX));
    let mut leader =
        Leader { core, candidate: None, passes: HashMap::new(), rests: HashMap::new(), look, turn: 0 };
    while !leader.core.closing.load(Ordering::Relaxed) {
        let pause = match leader.round().await {
            Ok(State::Idle) => look,
            Ok(State::Led) => Duration::from_millis(10),
            Ok(State::Waits) => POLL_EVERY.min(look),
            Err(fault) => {
                tracing::debug!("lifecycle rules are not carried out: {fault}");
                leader.passes.clear();
                POLL_EVERY
            }
        };
        let core = leader.core.clone();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = core.lifecycle_changed.notified() => {}
        }
    }
}

enum State {
    /// Nothing is due.
    Idle,
    /// Another node leads.
    Waits,
    /// This one does.
    Led,
}

struct Leader {
    core: Arc<Core>,
    candidate: Option<Candidate>,
    passes: HashMap<u32, Pass>,
    /// Until when volumes rest, since their passes failed.
    rests: HashMap<u32, Instant>,
    /// How long they do.
    look: Duration,
    /// Whose turn it is first, so that a large volume keeps no other one waiting.
    turn: usize,
}

impl Leader {
    async fn round(&mut self) -> Result<State> {
        let mut due = self.core.lifecycle_due().await?;
        self.passes.retain(|id, _| due.iter().any(|volume| volume.id.0 == *id));
        if due.is_empty() {
            if let Some(candidate) = self.candidate.take() {
                candidate.give_up().await.map_err(error::catalog)?;
            }
            return Ok(State::Idle);
        }
        let now = Instant::now().into_std();
        if self.candidate.is_none() {
            self.candidate = Some(self.core.candidate(LOOP, now)?);
        }
        let Some(candidate) = &mut self.candidate else { return Ok(State::Waits) };
        let Some(term) = candidate.hold(now).await.map_err(error::catalog)? else {
            self.passes.clear();
            return Ok(State::Waits);
        };
        let begun = Instant::now();
        self.rests.retain(|_, until| *until > begun);
        due.retain(|volume| !self.rests.contains_key(&volume.id.0));
        if due.is_empty() {
            return Ok(State::Waits);
        }
        self.turn = self.turn.wrapping_add(1);
        let first = self.turn % due.len();
        due.rotate_left(first);
        self.work(&due, &term).await?;
        Ok(State::Led)
    }

    /// Works until it is time to show that this node lives. What fails is of one volume, and others go on.
    async fn work(&mut self, due: &[Arc<Volume>], term: &Term) -> Result<()> {
        let until = Instant::now() + POLL_EVERY;
        for volume in due {
            match self.work_on(volume, term, until).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(fault) if fault.kind == ErrorKind::Closed => return Err(fault),
                Err(fault) => {
                    tracing::warn!(volume = volume.name, "lifecycle rules are not carried out: {fault}");
                    self.passes.remove(&volume.id.0);
                    self.rests.insert(volume.id.0, Instant::now() + self.look);
                }
            }
        }
        Ok(())
    }

    /// Works on one volume. False if the time is over.
    async fn work_on(&mut self, volume: &Arc<Volume>, term: &Term, until: Instant) -> Result<bool> {
        loop {
            let now = Instant::now();
            let closes = self.core.closing.load(Ordering::Relaxed);
            if closes || now >= until || !term.is_fresh(now.into_std()) {
                self.save(volume, term).await?;
                return Ok(false);
            }
            let mut pass = match self.passes.remove(&volume.id.0) {
                Some(pass) if pass.is_of(volume) => pass,
                _ => match self.core.lifecycle_begin(volume).await? {
                    Some(pass) => pass,
                    None => return Ok(true),
                },
            };
            if !self.core.lifecycle_step(volume, &mut pass, term).await? {
                return Ok(true);
            }
            let takes_rest = pass.takes_rest();
            self.passes.insert(volume.id.0, pass);
            if takes_rest {
                tracing::warn!(volume = volume.name, "lifecycle rules wait: deletes are not answered");
                self.rests.insert(volume.id.0, Instant::now() + self.look);
                self.save(volume, term).await?;
                return Ok(true);
            }
        }
    }

    /// Writes down how far the pass of a volume is; it ends if it is somebody else's.
    async fn save(&mut self, volume: &Volume, term: &Term) -> Result<()> {
        let Some(mut pass) = self.passes.remove(&volume.id.0) else { return Ok(()) };
        if pass.is_of(volume) && self.core.lifecycle_save(volume, &mut pass, term).await? {
            self.passes.insert(volume.id.0, pass);
        }
        Ok(())
    }
}

impl Core {
    /// Volumes whose next pass is due.
    async fn lifecycle_due(&self) -> Result<Vec<Arc<Volume>>> {
        let mut volumes = self.volumes.all().await?;
        volumes.retain(|volume| volume.lifecycle.is_some() && volume.policy.lake_mode != LakeMode::ReadOnly);
        let rows: Vec<Vec<u8>> = volumes.iter().map(|volume| Progress::key(volume.id)).collect();
        let asked: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        let found = self.catalog.get(&asked).await.map_err(error::catalog)?;
        let now_ms = self.expiry.now_ms();
        let is_due = |row: &Option<stoker_catalog::Row>| Progress::of(row.as_ref()).next_ms <= now_ms;
        Ok(volumes.into_iter().zip(&found).filter(|(_, row)| is_due(row)).map(|(volume, _)| volume).collect())
    }
}
