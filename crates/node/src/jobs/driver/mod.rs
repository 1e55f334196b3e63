//! The leader: takes rows and measurements to the plan, and has done what it says.
//!
//! A turn reads what changed, ends what is over, asks the plan, begins counting and bringing as far as there is room for it, renews what is
//! held, and writes what became of jobs. Counting and bringing are tasks of their own, which tell when they are done.

mod bandwidth;
mod source;
mod verdict;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use stoker_format::NodeId;
use stoker_jobs::{Event, Limits, Place, SourceNeed, Verdict, Want, plan};
use stoker_schema::lead::Term;
use stoker_schema::rows::keys;
use stoker_store::{BoxFuture, JobState, Result, Tier};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::held::SourceId;
use super::rows::Known;
use super::survey::{Brought, Target, Walked};
use crate::cell::{JobAsk, JobHolds};
use crate::clock;
use crate::core::Core;
use bandwidth::Bandwidth;
use source::Source;

/// Pause between two turns if nothing happens.
const TURN_EVERY: Duration = Duration::from_millis(500);
/// How often rows are read although nothing told of a change.
const READ_EVERY: Duration = Duration::from_secs(10);
/// How often what is held is renewed and measured.
const KEEP_EVERY: Duration = Duration::from_secs(4);
/// A lease: several renewals may fail, or the leader change.
const LEASE_MS: u64 = 120_000;
/// How often a source is counted again while jobs wait for it, and while they run. More seldom if that takes long.
const WALK_EVERY: Duration = Duration::from_secs(30);
const WALK_EVERY_RUNNING: Duration = Duration::from_secs(120);
const WALK_SHARE: u32 = 20;
/// Sources that are counted, and pieces that are brought, at the same time.
const WALKS_MAX: usize = 4;
const BRINGS_MAX: usize = 4;
/// Bytes that are under way at the same time.
const BYTES_MAX: u64 = 1 << 30;
/// Jobs whose output is looked at at the same time, and how often each is.
const DRAINS_MAX: usize = 8;
const DRAIN_EVERY: Duration = Duration::from_secs(2);
/// How often figures of a job are written that is where it was.
const FIGURES_EVERY: Duration = Duration::from_secs(1);
/// Rows that are written in one turn.
const WRITES_MAX: usize = 256;
/// How often jobs that were over long ago are forgotten, and after how long.
const FORGET_EVERY: Duration = Duration::from_secs(600);
const REMEMBERED_MS: u64 = 7 * 86_400_000;

/// What a task tells.
enum Told {
    Walked { source: SourceId, round: Option<u64>, took: Duration, walked: Result<Walked> },
    Brought { source: SourceId, round: u64, piece: u32, took: Duration, brought: Result<Brought> },
    Kept { source: SourceId, bytes: u64, room: Vec<(NodeId, u64)> },
    Drained { key: Vec<u8>, took: Duration, is_drained: bool },
}

/// The leader.
pub(super) struct Driver {
    core: Arc<Core>,
    jobs: BTreeMap<Vec<u8>, Known>,
    /// When figures of a job were written last.
    figures_at: HashMap<Vec<u8>, Instant>,
    /// Jobs of which something is known that their rows do not say yet.
    unwritten: HashSet<Vec<u8>>,
    sources: HashMap<SourceId, Source>,
    room: HashMap<NodeId, u64>,
    room_at: Option<Instant>,
    round: u64,
    rate: f64,
    read_at: Option<Instant>,
    is_changed: bool,
    draining: HashMap<Vec<u8>, Instant>,
    forget_at: Instant,
    bandwidth: Bandwidth,
    told: mpsc::UnboundedReceiver<Told>,
    tell: mpsc::UnboundedSender<Told>,
    waiting: Vec<Told>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Driver {
    pub fn new(core: Arc<Core>) -> Driver {
        let (tell, told) = mpsc::unbounded_channel();
        Driver {
            core,
            jobs: BTreeMap::new(),
            figures_at: HashMap::new(),
            unwritten: HashSet::new(),
            sources: HashMap::new(),
            room: HashMap::new(),
            room_at: None,
            // Those of a later leader are higher, and if a clock went back, the next count is late at worst.
            round: clock::now_ms(),
            rate: 0.0,
            read_at: None,
            is_changed: true,
            draining: HashMap::new(),
            forget_at: Instant::now() + FORGET_EVERY,
            bandwidth: Bandwidth::default(),
            told,
            tell,
            waiting: Vec::new(),
            tasks: Vec::new(),
        }
    }

    pub fn rows_changed(&mut self) {
        self.is_changed = true;
    }

    /// Whether there are jobs that are not over, as far as is known.
    pub fn has_jobs(&self) -> bool {
        self.is_changed || self.read_at.is_none() || !self.jobs.is_empty()
    }

    /// Waits until a task tells something.
    pub async fn news(&mut self) {
        if let Some(told) = self.told.recv().await {
            self.waiting.push(told);
        }
    }

    /// Nothing is left to do: what is held is let go at once.
    pub async fn end(&mut self) {
        let all: Vec<SourceId> = self.sources.drain().map(|(source, _)| source).collect();
        self.release(all).await;
    }

    /// What is written is written only if this node still leads.
    pub async fn turn(&mut self, term: &Term) -> Result<Duration> {
        self.listen();
        self.tasks.retain(|task| !task.is_finished());
        if self.is_changed || self.read_at.is_none_or(|at| at.elapsed() >= READ_EVERY) {
            self.read_rows().await?;
        }
        let now_ms = clock::now_ms();
        let mut changed: HashSet<Vec<u8>> = HashSet::new();
        for (key, known) in &mut self.jobs {
            if known.job.expire(now_ms) {
                changed.insert(key.clone());
            }
        }
        if self.room_at.is_none_or(|at| at.elapsed() >= KEEP_EVERY) {
            self.ask_room().await;
        }
        self.find_sources(&mut changed).await;
        self.promise_bandwidth(term).await?;
        let dropped = self.follow_plan(now_ms, &mut changed);
        self.release(dropped).await;
        self.keep();
        self.drain_outputs();
        self.write(changed, now_ms, term).await?;
        if Instant::now() >= self.forget_at {
            self.forget_at = Instant::now() + FORGET_EVERY;
            self.forget_old(now_ms, term).await?;
        }
        Ok(TURN_EVERY)
    }

    async fn read_rows(&mut self) -> Result<()> {
        self.is_changed = false;
        let mut found: BTreeMap<Vec<u8>, Known> = BTreeMap::new();
        self.core
            .each(keys::JOBS_ACTIVE.to_vec(), |row| {
                match Known::of(row) {
                    Ok(known) => {
                        found.insert(row.key.clone(), known);
                    }
                    // One that cannot be read must not stop the others.
                    Err(fault) => tracing::warn!("{fault}"),
                }
                Ok(())
            })
            .await?;
        for (key, known) in &mut found {
            // What this leader knows and has not written yet.
            if let Some(own) = self.jobs.get(key).filter(|own| own.seq == known.seq) {
                known.job = own.job.clone();
            }
        }
        self.jobs = found;
        self.figures_at.retain(|key, _| self.jobs.contains_key(key));
        self.unwritten.retain(|key| self.jobs.contains_key(key));
        self.draining.retain(|key, _| self.jobs.contains_key(key));
        self.bandwidth.forget(|key| !self.jobs.contains_key(key));
        self.read_at = Some(Instant::now());
        Ok(())
    }

    /// Knows the sources that jobs want, and lets go of others.
    async fn find_sources(&mut self, changed: &mut HashSet<Vec<u8>>) {
        let mut wanted: HashSet<SourceId> = HashSet::new();
        for (key, known) in &mut self.jobs {
            if !known.job.holds_data() || !known.job.wants_data() {
                continue;
            }
            if known.job.info.cell.is_none() {
                known.job.info.cell = Some(self.core.job_cell(&known.job.info.spec, &self.room));
                changed.insert(key.clone());
            }
            let cell = known.job.info.cell.clone().unwrap_or_default();
            for source in known.job.info.sources.iter_mut().filter(|source| source.tier_hint == Tier::Hot) {
                let Ok(place) = Place::parse(&source.source) else { continue };
                let volume = match self.core.volumes.get(&place.volume).await {
                    Ok(volume) => volume,
                    Err(fault) => {
                        let is_news = source.trouble.as_ref() != Some(&fault.message);
                        source.trouble = Some(fault.message);
                        if is_news {
                            changed.insert(key.clone());
                        }
                        continue;
                    }
                };
                let id = source_id(volume.id.0, &place, &cell);
                wanted.insert(id);
                self.sources.entry(id).or_insert_with(|| {
                    Source::new(Target { id, volume, place, cell: cell.clone(), lease_ms: LEASE_MS })
                });
            }
        }
        let gone: Vec<SourceId> = self.sources.keys().filter(|id| !wanted.contains(*id)).copied().collect();
        if !gone.is_empty() {
            gone.iter().for_each(|id| drop(self.sources.remove(id)));
            self.release(gone).await;
        }
    }

    async fn release(&self, sources: Vec<SourceId>) {
        if sources.is_empty() {
            return;
        }
        let mut asked: Vec<BoxFuture<'static, ()>> = Vec::new();
        for node in self.nodes() {
            let (core, sources) = (self.core.clone(), sources.clone());
            asked.push(Box::pin(async move {
                if let Err(fault) = core.job_at(node, JobAsk::Release { sources }).await {
                    // Its lease ends by itself.
                    tracing::debug!(%node, "what was staged is not let go at once: {fault}");
                }
            }));
        }
        futures_util::future::join_all(asked).await;
    }

    /// How much nodes hold for jobs at most. Before that is known nothing is staged.
    async fn ask_room(&mut self) {
        let mut asked: Vec<BoxFuture<'static, (NodeId, Result<JobHolds>)>> = Vec::new();
        for node in self.nodes() {
            let core = self.core.clone();
            let ask = JobAsk::Count { sources: Vec::new() };
            asked.push(Box::pin(async move { (node, core.job_at(node, ask).await) }));
        }
        self.room.clear();
        for (node, answered) in futures_util::future::join_all(asked).await {
            match answered {
                Ok(holds) => drop(self.room.insert(node, holds.room_bytes)),
                Err(fault) => tracing::debug!(%node, "not known what it holds for jobs: {fault}"),
            }
        }
        self.room_at = Some(Instant::now());
    }

    /// Nodes that may hold something.
    fn nodes(&self) -> Vec<NodeId> {
        let view = self.core.cell.view();
        let others = self.core.cell.others();
        let holds = |node: &NodeId| !view.is_witness(*node) && !self.core.cell.is_suspect(*node);
        others.into_iter().filter(holds).chain([self.core.node]).collect()
    }

    /// Says what is done next, begins it, and says what that means for jobs. Gives sources that have to make room for others.
    fn follow_plan(&mut self, now_ms: u64, changed: &mut HashSet<Vec<u8>>) -> Vec<SourceId> {
        let mut by_cell: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
        for (key, known) in &self.jobs {
            if known.job.holds_data() {
                by_cell.entry(known.job.info.cell.clone().unwrap_or_default()).or_default().push(key.clone());
            }
        }
        let mut dropped = Vec::new();
        for (cell, jobs) in by_cell {
            dropped.extend(self.follow_plan_of(&cell, &jobs, now_ms, changed));
        }
        dropped
    }

    fn follow_plan_of(
        &mut self,
        cell: &str,
        jobs: &[Vec<u8>],
        now_ms: u64,
        changed: &mut HashSet<Vec<u8>>,
    ) -> Vec<SourceId> {
        let ids: Vec<SourceId> =
            self.sources.iter().filter(|(_, source)| source.target.cell == cell).map(|(id, _)| *id).collect();
        let numbers: HashMap<SourceId, u32> = ids.iter().copied().zip(0..).collect();
        let sources: Vec<SourceNeed> = ids.iter().map(|id| self.sources[id].need()).collect();
        let mut wants = Vec::with_capacity(jobs.len());
        for key in jobs {
            let known = &self.jobs[key];
            let info = &known.job.info;
            wants.push(Want {
                start_ms: info.expected_start_ms,
                since_ms: info.steps.first().map_or(0, |step| step.at_ms),
                is_admitted: matches!(info.state, JobState::Ready | JobState::Running),
                sources: self.sources_of(known).filter_map(|id| numbers.get(&id).copied()).collect(),
            });
        }
        let limits = Limits {
            now_ms,
            room_bytes: self.room_of(cell),
            rate_bytes_per_s: self.rate as u64,
            pieces_max: BRINGS_MAX * 4,
            bytes_max: BYTES_MAX,
        };
        let plan = plan(&wants, &sources, &limits);
        for source in &plan.count {
            self.begin_walk(ids[*source as usize]);
        }
        let admits = |verdict: &Verdict| matches!(verdict, Verdict::Ready | Verdict::Staging(_));
        let admitted = wants.iter().zip(&plan.verdicts).filter(|(_, verdict)| admits(verdict));
        let admitted: HashSet<u32> = admitted.flat_map(|(want, _)| want.sources.iter().copied()).collect();
        let mut dropped = Vec::new();
        for (id, number) in ids.iter().zip(0..) {
            let source = self.sources.get_mut(id).expect("numbered above");
            let was_admitted = std::mem::replace(&mut source.is_admitted, admitted.contains(&number));
            if was_admitted && !source.is_admitted && source.walked.is_some() {
                // Others need the room more; what is there is held again when its turn comes.
                source
                    .walked
                    .iter_mut()
                    .flat_map(|walked| &mut walked.pieces)
                    .for_each(|piece| piece.is_held = false);
                dropped.push(*id);
            }
        }
        let is_running =
            wants.iter().zip(jobs).all(|(_, key)| self.jobs[key].job.info.state == JobState::Running);
        for id in &ids {
            let source = &self.sources[id];
            let pause = if is_running { WALK_EVERY_RUNNING - WALK_EVERY } else { Duration::ZERO };
            if source.is_admitted && source.walked.is_some() && Instant::now() >= source.walk_at + pause {
                self.begin_walk(*id);
            }
        }
        for (source, piece) in &plan.bring {
            self.begin_bring(ids[*source as usize], *piece);
        }
        for (key, verdict) in jobs.iter().zip(plan.verdicts) {
            if self.tell_job(key, verdict, now_ms) {
                changed.insert(key.clone());
            }
        }
        dropped
    }

    fn sources_of<'k>(&'k self, known: &'k Known) -> impl Iterator<Item = SourceId> + 'k {
        let cell = known.job.info.cell.clone().unwrap_or_default();
        let hot = known.job.info.sources.iter().filter(|source| source.tier_hint == Tier::Hot);
        hot.filter_map(move |source| {
            let place = Place::parse(&source.source).ok()?;
            let volume = self.core.volumes.known().into_iter().find(|volume| volume.name == place.volume)?;
            Some(source_id(volume.id.0, &place, &cell))
        })
    }

    /// Bytes that the nodes of a cell hold for jobs at most.
    fn room_of(&self, cell: &str) -> u64 {
        let view = self.core.cell.view();
        let of = |node: &NodeId| !self.core.cell.is_joined() || view.cell_of(*node) == cell;
        self.room.iter().filter(|(node, _)| of(node)).map(|(_, room)| *room).sum()
    }

    fn begin_walk(&mut self, id: SourceId) {
        let walking = self.sources.values().filter(|source| source.is_walking).count();
        let Some(source) = self.sources.get_mut(&id) else { return };
        if source.is_walking
            || !source.bringing.is_empty()
            || walking >= WALKS_MAX
            || Instant::now() < source.retry_at
        {
            return;
        }
        source.is_walking = true;
        self.round += 1;
        let round = source.is_admitted.then_some(self.round);
        let (core, tell, target) = (self.core.clone(), self.tell.clone(), source.target.clone());
        self.tasks.push(self.core.tasks.spawn(async move {
            let begun = Instant::now();
            let walked = core.walk_source(&target, round).await;
            let _ = tell.send(Told::Walked { source: target.id, round, took: begun.elapsed(), walked });
        }));
    }

    fn begin_bring(&mut self, id: SourceId, piece: u32) {
        let bringing: usize = self.sources.values().map(|source| source.bringing.len()).sum();
        let Some(source) = self.sources.get_mut(&id) else { return };
        let Some(what) = source.walked.as_ref().and_then(|walked| walked.pieces.get(piece as usize)).cloned()
        else {
            return;
        };
        let is_free =
            !source.is_walking && !source.bringing.contains(&piece) && Instant::now() >= source.retry_at;
        if !is_free || bringing >= BRINGS_MAX {
            return;
        }
        source.bringing.insert(piece);
        if source.round == 0 {
            self.round += 1;
            source.round = self.round;
        }
        let (core, tell, target, round) =
            (self.core.clone(), self.tell.clone(), source.target.clone(), source.round);
        self.tasks.push(self.core.tasks.spawn(async move {
            let begun = Instant::now();
            let brought = core.bring_piece(&target, round, &what).await;
            let told = Told::Brought { source: target.id, round, piece, took: begun.elapsed(), brought };
            let _ = tell.send(told);
        }));
    }

    /// Renews what is held, and measures it.
    fn keep(&mut self) {
        let nodes = self.nodes();
        for source in self.sources.values_mut() {
            let is_due = source.kept_at.is_none_or(|at| at.elapsed() >= KEEP_EVERY);
            if !source.is_admitted || source.is_keeping || !is_due || source.is_walking {
                continue;
            }
            source.is_keeping = true;
            let (core, tell, nodes) = (self.core.clone(), self.tell.clone(), nodes.clone());
            let (id, since_round, cell) = (source.target.id, source.round, source.target.cell.clone());
            self.tasks.push(self.core.tasks.spawn(async move {
                let mut asked: Vec<BoxFuture<'static, (NodeId, Result<JobHolds>)>> = Vec::new();
                for node in nodes {
                    let core = core.clone();
                    let ask = JobAsk::Keep { source: id, since_round, lease_ms: LEASE_MS };
                    asked.push(Box::pin(async move { (node, core.job_at(node, ask).await) }));
                }
                let (mut bytes, mut room) = (0, Vec::new());
                for (node, answered) in futures_util::future::join_all(asked).await {
                    match answered {
                        Ok(holds) => {
                            bytes += holds.bytes.iter().sum::<u64>();
                            room.push((node, holds.room_bytes));
                        }
                        Err(fault) => {
                            tracing::debug!(%node, %cell, "not known what is staged there: {fault}")
                        }
                    }
                }
                let _ = tell.send(Told::Kept { source: id, bytes, room });
            }));
        }
    }

    fn listen(&mut self) {
        while let Ok(told) = self.told.try_recv() {
            self.waiting.push(told);
        }
        for told in std::mem::take(&mut self.waiting) {
            self.hear(told);
        }
    }

    fn hear(&mut self, told: Told) {
        match told {
            Told::Walked { source, round, took, walked } => {
                let Some(source) = self.sources.get_mut(&source) else { return };
                source.is_walking = false;
                match walked {
                    Ok(walked) => {
                        source.failures = 0;
                        source.trouble.clone_from(&walked.trouble);
                        source.walk_at = Instant::now() + WALK_EVERY.max(took * WALK_SHARE);
                        source.resident = walked.resident;
                        source.round = round.unwrap_or(0);
                        source.walked = Some(walked);
                        source.kept_at = None;
                    }
                    Err(fault) => source.failed(fault.message),
                }
            }
            Told::Brought { source, round, piece, took, brought } => {
                let Some(source) = self.sources.get_mut(&source) else { return };
                source.bringing.remove(&piece);
                if source.round != round {
                    return;
                }
                match brought {
                    Ok(brought) => {
                        if let Some(piece) =
                            source.walked.as_mut().and_then(|walked| walked.pieces.get_mut(piece as usize))
                        {
                            source.resident += piece.missing.saturating_sub(brought.missing);
                            (piece.missing, piece.is_held) = (brought.missing, brought.missing == 0);
                        }
                        source.lake_bytes += brought.lake_bytes;
                        if brought.lake_bytes > 0 {
                            let rate = brought.lake_bytes as f64 / took.as_secs_f64().max(0.001);
                            self.rate = if self.rate == 0.0 { rate } else { self.rate * 0.7 + rate * 0.3 };
                        }
                        match brought.trouble {
                            Some(why) if brought.missing > 0 => source.failed(why),
                            _ => (source.failures, source.trouble) = (0, None),
                        }
                        source.kept_at = None;
                    }
                    Err(fault) => source.failed(fault.message),
                }
            }
            Told::Kept { source, bytes, room } => {
                self.room.extend(room);
                let Some(source) = self.sources.get_mut(&source) else { return };
                source.is_keeping = false;
                source.kept_at = Some(Instant::now());
                if source.is_held() && !source.is_walking && source.bringing.is_empty() {
                    source.resident = bytes;
                    if bytes < source.bytes() {
                        // Something left the drives: which it was is found out by counting again.
                        source.walk_at = Instant::now();
                    }
                }
            }
            Told::Drained { key, took, is_drained } => {
                let pause = DRAIN_EVERY.max(took * WALK_SHARE);
                self.draining.insert(key.clone(), Instant::now() + pause);
                let now_ms = clock::now_ms();
                if let Some(known) = self.jobs.get_mut(&key).filter(|_| is_drained)
                    && known.job.apply(Event::Drained, "its output is in the lake", now_ms).unwrap_or(false)
                {
                    // Written in this turn.
                    self.figures_at.remove(&key);
                }
            }
        }
    }

    /// Has outputs drained, and looks whether they are.
    fn drain_outputs(&mut self) {
        let now = Instant::now();
        let waiting: Vec<Vec<u8>> = self
            .jobs
            .iter()
            .filter(|(_, known)| known.job.info.state == JobState::Draining)
            .filter(|(key, _)| self.draining.get(*key).is_none_or(|at| now >= *at))
            .map(|(key, _)| key.clone())
            .take(DRAINS_MAX)
            .collect();
        for key in waiting {
            // Until it tells.
            self.draining.insert(key.clone(), now + Duration::from_secs(3600));
            let output = self.jobs[&key].job.info.spec.output.clone();
            let (core, tell) = (self.core.clone(), self.tell.clone());
            self.tasks.push(self.core.tasks.spawn(async move {
                let begun = Instant::now();
                let is_drained = match core.job_output_drained(output.as_deref()).await {
                    Ok(is_drained) => is_drained,
                    Err(fault) => {
                        tracing::debug!("the output of a job is not drained: {fault}");
                        false
                    }
                };
                let _ = tell.send(Told::Drained { key, took: begun.elapsed(), is_drained });
            }));
        }
    }

    /// Writes what changed; what somebody else changed meanwhile is read again.
    async fn write(&mut self, changed: HashSet<Vec<u8>>, now_ms: u64, term: &Term) -> Result<()> {
        // What could not be written before is tried again.
        self.unwritten.extend(changed.iter().cloned());
        let over = self.jobs.iter().filter(|(_, known)| known.job.info.state.is_over());
        let over: Vec<Vec<u8>> = over.map(|(key, _)| key.clone()).collect();
        let is_due = |key: &&Vec<u8>| {
            let is_late = || self.figures_at.get(*key).is_none_or(|at| at.elapsed() >= FIGURES_EVERY);
            !over.contains(key) && (changed.contains(*key) || is_late())
        };
        let rest: Vec<Vec<u8>> = self.unwritten.iter().filter(is_due).cloned().collect();
        for key in over.iter().chain(&rest).take(WRITES_MAX) {
            let Some(known) = self.jobs.get_mut(key) else { continue };
            match self.core.job_write(known, Some(term)).await? {
                Some(seq) => known.seq = seq,
                None => self.is_changed = true,
            }
            self.figures_at.insert(key.clone(), Instant::now());
            self.unwritten.remove(key);
            let info = &known.job.info;
            tracing::debug!(
                job = info.id,
                tenant = info.tenant,
                state = info.state.word(),
                now_ms,
                "{}",
                info.reason
            );
            if info.state.is_over() {
                self.jobs.remove(key);
            }
        }
        Ok(())
    }

    async fn forget_old(&self, now_ms: u64, term: &Term) -> Result<()> {
        let mut old = Vec::new();
        self.core
            .each(keys::JOBS_OVER.to_vec(), |row| {
                let ended =
                    Known::of(row).map(|known| known.job.info.steps.last().map_or(0, |step| step.at_ms));
                if ended.is_ok_and(|at_ms| at_ms.saturating_add(REMEMBERED_MS) < now_ms) {
                    old.push((row.key.clone(), row.seq));
                }
                Ok(())
            })
            .await?;
        for part in old.chunks(1_000) {
            let mut commit = stoker_catalog::kv::Commit::new().check(term.check());
            for (key, seq) in part {
                commit = commit.seq(key.clone(), *seq).delete(key.clone());
            }
            let _ = self.core.catalog.commit(commit).await.map_err(crate::error::catalog)?;
        }
        Ok(())
    }
}

/// Tells sources apart; nobody can make two that are the same.
pub(super) fn source_id(volume: u32, place: &Place, cell: &str) -> SourceId {
    let text = format!("{volume}\0{}\0{cell}", place.path);
    let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    sum.as_ref()[..16].try_into().expect("a sum is longer")
}
