//! What is asked of jobs, as transactions on their rows. Any node answers.

use std::collections::HashMap;
use std::sync::Arc;

use stoker_catalog::kv::{Commit, Outcome, Range, prefix_end};
use stoker_format::NodeId;
use stoker_jobs::{Event, Job, Place, Values, check_spec, expand, human_bytes};
use stoker_schema::rows::{Drain, keys};
use stoker_store::{
    Attributes, BoxFuture, Condition, DrainState, ErrorKind, Finish, JOB_NODES_MAX, JOB_TEXT_LEN_MAX,
    JOBS_MAX, JOBS_PAGE_MAX, JobAccess, JobEnd, JobInfo, JobName, JobOrder, JobReadiness, JobReport,
    JobSource, JobSpec, JobState, JobSubmit, Key, ListEntry, ListRequest, NodeReadiness, Result, StoreError,
    Subject, TENANT_DEFAULT, Tier, WriteRequest,
};

use super::driver::source_id;
use super::rows::{Known, encode, tenant_of};
use crate::cell::JobAsk;
use crate::core::Core;
use crate::{clock, error};

/// Tries before a change that others keep getting in the way of is given up.
const TRIES_MAX: usize = 20;

fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Invalid, message)
}

pub(super) fn no_job(name: &JobName) -> StoreError {
    StoreError::new(ErrorKind::NotFound, format!("there is no job `{}`; `stoker job ls` lists them", name.id))
}

fn contended() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "the job is contended; retry")
}

impl Core {
    /// Carries out what a scheduler asks.
    pub(crate) async fn carry_out_job(self: &Arc<Core>, order: JobOrder) -> Result<JobReport> {
        match order {
            JobOrder::Submit(submit) => self.job_submit(*submit).await.map(of),
            JobOrder::Show(name) => {
                let known = self.job_known(&name).await?.ok_or_else(|| no_job(&name))?;
                Ok(of(known.job.info))
            }
            JobOrder::List { tenant, state, with_over, after, limit } => {
                self.job_list(tenant.as_deref(), state, with_over, after.as_ref(), limit).await
            }
            JobOrder::Expect { job, start_ms } => {
                let change = |job: &mut Job, now_ms| {
                    if job.info.state.is_over() {
                        return job.apply(Event::Start, "", now_ms).map(drop);
                    }
                    job.info.expected_start_ms = Some(start_ms);
                    job.heard(now_ms);
                    Ok(())
                };
                self.job_change(&job, change).await.map(of)
            }
            JobOrder::Start { job, nodes } => self.job_start(&job, nodes).await.map(of),
            JobOrder::End { job, end, reason } => {
                let reason = if reason.is_empty() { word_of(end).to_owned() } else { reason };
                let change = |job: &mut Job, now_ms| job.apply(Event::End(end), &reason, now_ms).map(drop);
                self.job_change(&job, change).await.map(of)
            }
            JobOrder::Cancel { job, reason } => {
                let reason = if reason.is_empty() { "somebody cancelled it".to_owned() } else { reason };
                let change = |job: &mut Job, now_ms| job.apply(Event::Cancel, &reason, now_ms).map(drop);
                self.job_change(&job, change).await.map(of)
            }
            JobOrder::Window { job, ask } => self.job_window(&job, ask).await.map(JobReport::Window),
            JobOrder::WindowEnd { job, bytes } => {
                self.job_window_end(&job, bytes).await.map(JobReport::Window)
            }
            JobOrder::Readiness { job, nodes } => {
                let known = self.job_known(&job).await?.ok_or_else(|| no_job(&job))?;
                self.job_readiness(&known.job.info, &nodes).await.map(JobReport::Readiness)
            }
        }
    }

    async fn job_submit(self: &Arc<Core>, submit: JobSubmit) -> Result<JobInfo> {
        self.check_no_witness()?;
        stoker_store::check_job_id(&submit.id)?;
        let texts =
            [Some(&submit.name), submit.project.as_ref(), submit.user.as_ref(), submit.again.as_ref()];
        if texts
            .into_iter()
            .flatten()
            .any(|text| text.len() > JOB_TEXT_LEN_MAX || text.contains(char::is_control))
        {
            return Err(invalid(format!(
                "names have at most {JOB_TEXT_LEN_MAX} bytes, and no control characters"
            )));
        }
        let (tenant, user) = match &submit.owner {
            Some(owner) => (owner.tenant.clone(), owner.user.clone()),
            None => (TENANT_DEFAULT.to_owned(), submit.user.clone().unwrap_or_default()),
        };
        let name = JobName { tenant: Some(tenant.clone()), id: submit.id.clone() };
        // Whoever asks again hears of the job although its source may be gone by now. Others hear of their sources first.
        if submit.again.is_some()
            && let Some(known) = self.job_known(&name).await?
        {
            return again(known, &submit);
        }
        let values = Values {
            user: user.clone(),
            tenant: tenant.clone(),
            project: submit.project.clone(),
            allocation_id: submit.id.clone(),
        };
        let (mut spec, more) = expand(&submit.spec, &values).map_err(invalid)?;
        check_spec(&spec).map_err(invalid)?;
        let mut notes = submit.notes.clone();
        notes.extend(more);
        notes.truncate(64);
        self.find_places(&mut spec, &mut notes).await?;
        self.check_scratch(&spec).await?;
        self.check_nodes(&spec)?;
        let source = |mount: &stoker_store::JobMount| JobSource {
            source: mount.source.clone(),
            target: mount.target.clone(),
            tier_hint: mount.tier_hint,
            access: mount.access,
            is_counted: false,
            files: 0,
            bytes: 0,
            resident_bytes: 0,
            lake_bytes: 0,
            trouble: None,
        };
        let checkpoints =
            spec.output.as_deref().filter(|_| spec.checkpoint).map(|output| below(output, "checkpoints"));
        let sources = spec.mounts.iter().map(source).collect();
        let info = JobInfo {
            tenant,
            id: submit.id.clone(),
            name: submit.name.clone(),
            user,
            project: submit.project.clone(),
            state: JobState::Queued,
            reason: String::new(),
            steps: Vec::new(),
            sources,
            spec,
            expected_start_ms: submit.expected_start_ms,
            ready_ms: None,
            expires_ms: 0,
            cell: None,
            nodes: Vec::new(),
            checkpoints,
            qos_enforced: false,
            notes,
        };
        let mut job = Job::new(info, submit.again.clone(), clock::now_ms());
        if job.wants_bandwidth() {
            let note = self.check_bandwidth(&job).await?;
            job.info.notes.extend(note);
        }
        let key = keys::job_active(&job.info.tenant, &job.info.id);
        let over = keys::job_over(&job.info.tenant, &job.info.id);
        let end = prefix_end(keys::JOBS_ACTIVE).expect("it has an end");
        // The id of a job that is over is free: a scheduler starts a job of its own again.
        let commit = Commit::new()
            .absent(key.clone())
            .at_most(keys::JOBS_ACTIVE.to_vec(), end, JOBS_MAX - 1)
            .delete(over)
            .put(key, encode(&job)?);
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                Ok(job.info)
            }
            Outcome::Failed { check: 1 } => {
                let message = format!(
                    "there are {JOBS_MAX} jobs that are not over, and no more are taken; try again later"
                );
                Err(StoreError::new(ErrorKind::Full, message))
            }
            Outcome::Failed { .. } => {
                let known = self.job_known(&name).await?.ok_or_else(contended)?;
                again(known, &submit)
            }
        }
    }

    /// Refuses places that are not there, and leaves those out that nobody asked for.
    async fn find_places(self: &Arc<Core>, spec: &mut JobSpec, notes: &mut Vec<String>) -> Result<()> {
        let mut mounts = Vec::new();
        for mount in std::mem::take(&mut spec.mounts) {
            let found = self.find_place(&mount.source, mount.access == JobAccess::ReadOnly).await;
            match found {
                Ok(place) => {
                    let source = place.in_volume(&place.volume);
                    mounts.push(stoker_store::JobMount { source, ..mount });
                }
                Err(fault) if mount.is_default && fault.kind == ErrorKind::NotFound => {
                    notes.push(format!("{} is not mounted: {}", mount.target, fault.message));
                }
                Err(fault) => return Err(fault),
            }
        }
        spec.mounts = mounts;
        let Some(output) = spec.output.take() else { return Ok(()) };
        match self.find_place(&output, false).await {
            Ok(place) if place.path.is_empty() => {
                Err(invalid("the output is a directory in a volume, not the volume"))
            }
            Ok(place) => {
                self.check_writable(&*self.volumes.get(&place.volume).await?)?;
                spec.output = Some(place.in_volume(&place.volume));
                Ok(())
            }
            Err(fault) if spec.output_is_default && fault.kind == ErrorKind::NotFound => {
                notes.push(format!("there is no output directory: {}", fault.message));
                Ok(())
            }
            Err(fault) => Err(fault),
        }
    }

    async fn find_place(self: &Arc<Core>, source: &str, must_be_there: bool) -> Result<Place> {
        let place = Place::parse(source).map_err(invalid)?;
        let gone = || StoreError::new(ErrorKind::NotFound, format!("`{source}` is not there"));
        let volume = match self.volumes.get(&place.volume).await {
            Ok(volume) => volume,
            Err(fault) if fault.kind == ErrorKind::NotFound => {
                let message = format!("`{source}` is not there: there is no volume `{}`", place.volume);
                return Err(StoreError::about(ErrorKind::NotFound, Subject::Volume, message));
            }
            Err(fault) => return Err(fault),
        };
        if must_be_there && !self.has_place(&volume, &place).await? {
            return Err(gone());
        }
        Ok(place)
    }

    /// Refuses more scratch than any node has.
    async fn check_scratch(self: &Arc<Core>, spec: &JobSpec) -> Result<()> {
        if spec.scratch_per_node == 0 {
            return Ok(());
        }
        let drives = self.drives_view(None).await?;
        let mut by_node: HashMap<&str, u64> = HashMap::new();
        for drive in &drives {
            let is_one = spec.nodes.is_empty()
                || spec.nodes.iter().any(|node| *node == drive.node || *node == drive.name);
            if is_one {
                *by_node.entry(&drive.node).or_default() += drive.bytes;
            }
        }
        let most = by_node.values().copied().max().unwrap_or(0);
        if spec.scratch_per_node > most {
            let message = format!(
                "no node has {} for scratch: the drives of the largest have {}",
                human_bytes(spec.scratch_per_node),
                human_bytes(most)
            );
            return Err(StoreError::about(ErrorKind::Full, Subject::Size, message));
        }
        Ok(())
    }

    fn check_nodes(&self, spec: &JobSpec) -> Result<()> {
        if !self.cell.is_joined() {
            return Ok(());
        }
        let view = self.cell.view();
        for node in &spec.nodes {
            self.cell.named(node)?;
        }
        match &spec.cell {
            Some(cell) if !view.nodes().any(|node| view.cell_of(node) == cell) => Err(StoreError::about(
                ErrorKind::NotFound,
                Subject::Node,
                format!("the cluster has no cell `{cell}`"),
            )),
            _ => Ok(()),
        }
    }

    /// The cell that a job is staged in: the one that it names, that of its nodes, or the one with the most room.
    pub(super) fn job_cell(&self, spec: &JobSpec, room: &HashMap<NodeId, u64>) -> String {
        if let Some(cell) = &spec.cell {
            return cell.clone();
        }
        let view = self.cell.view();
        if let Some(node) = spec.nodes.iter().find_map(|node| self.cell.named(node).ok()) {
            return view.cell_of(node).to_owned();
        }
        let mut cells: HashMap<&str, u64> = HashMap::new();
        for node in view.nodes().filter(|node| view.takes_writes(*node)) {
            *cells.entry(view.cell_of(node)).or_default() += room.get(&node).copied().unwrap_or(1);
        }
        let most = cells.iter().max_by_key(|(cell, room)| (**room, std::cmp::Reverse(**cell)));
        most.map(|(cell, _)| (*cell).to_owned()).unwrap_or_else(|| view.cell_of(self.node).to_owned())
    }

    async fn job_change(
        self: &Arc<Core>,
        name: &JobName,
        change: impl Fn(&mut Job, u64) -> std::result::Result<(), String>,
    ) -> Result<JobInfo> {
        for _ in 0..TRIES_MAX {
            let mut known = self.job_known(name).await?.ok_or_else(|| no_job(name))?;
            let before = known.job.clone();
            change(&mut known.job, clock::now_ms())
                .map_err(|why| StoreError::new(ErrorKind::Conflict, why))?;
            if known.job == before || before.info.state.is_over() {
                return Ok(before.info);
            }
            if self.job_write(&mut known, None).await?.is_some() {
                return Ok(known.job.info);
            }
        }
        Err(contended())
    }

    async fn job_start(self: &Arc<Core>, name: &JobName, nodes: Vec<String>) -> Result<JobInfo> {
        if nodes.len() > JOB_NODES_MAX || nodes.iter().any(|node| node.is_empty() || node.len() > 256) {
            return Err(invalid(format!(
                "a job runs on at most {JOB_NODES_MAX} nodes, each named with 1 to 256 bytes"
            )));
        }
        let known = self.job_known(name).await?.ok_or_else(|| no_job(name))?;
        if !known.job.info.state.is_over() {
            for directory in known.job.info.spec.output.iter().chain(&known.job.info.checkpoints) {
                self.make_directory(directory).await?;
            }
        }
        let change = |job: &mut Job, now_ms| {
            let reason = match job.info.state {
                JobState::Ready => "started with its data on drives".to_owned(),
                _ if !job.wants_data() => "started".to_owned(),
                _ if job.wants_bandwidth() && !job.info.qos_enforced => {
                    "started before its bandwidth was promised".to_owned()
                }
                _ => {
                    let (bytes, resident) = job.info.bytes();
                    format!("started with {} of {} on drives", human_bytes(resident), human_bytes(bytes))
                }
            };
            job.apply(Event::Start, &reason, now_ms)?;
            if !nodes.is_empty() {
                job.info.nodes.clone_from(&nodes);
            }
            Ok(())
        };
        self.job_change(name, change).await
    }

    /// Makes a directory, if it is not there.
    async fn make_directory(self: &Arc<Core>, place: &str) -> Result<()> {
        let place = Place::parse(place).map_err(invalid)?;
        let volume = self.volumes.get(&place.volume).await?;
        let key = Key::new(place.directory().into_bytes())?;
        let request = WriteRequest {
            size: Some(0),
            attributes: Attributes::default(),
            condition: Condition { if_none_match: Some(vec!["*".to_owned()]), ..Condition::default() },
            ..WriteRequest::default()
        };
        let made = async {
            let writer = self.begin_write(volume, &key, request).await?;
            stoker_store::Writer::finish(Box::new(writer), Finish::default()).await
        };
        match made.await {
            Ok(_) => Ok(()),
            Err(fault) if fault.kind == ErrorKind::Conflict => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Whether everything below an output is in the lake, after it was told to go there.
    pub(super) async fn job_output_drained(self: &Arc<Core>, output: Option<&str>) -> Result<bool> {
        let Some(output) = output else { return Ok(true) };
        let place = Place::parse(output).map_err(invalid)?;
        let volume = match self.volumes.get(&place.volume).await {
            Ok(volume) => volume,
            // It was deleted: nothing of it will ever be in a lake.
            Err(fault) if fault.kind == ErrorKind::NotFound => return Ok(true),
            Err(fault) => return Err(fault),
        };
        if Core::drain_of(&volume) == Drain::Never {
            return Ok(true);
        }
        let prefix = place.directory().into_bytes();
        self.drain_prefix(&volume, &prefix).await?;
        let mut after = None;
        loop {
            let request = ListRequest { prefix: prefix.clone(), delimiter: None, after, limit: 1_000 };
            let page = self.list_page(&volume, request).await?;
            let waits = |entry: &ListEntry| match entry {
                ListEntry::File(info) => info.drain == DrainState::Dirty,
                ListEntry::Prefix(_) => false,
            };
            if page.entries.iter().any(waits) {
                return Ok(false);
            }
            after = page.entries.last().and_then(ListEntry::key).map(|key| key.as_bytes().to_vec());
            if !page.more || after.is_none() {
                return Ok(true);
            }
        }
    }

    async fn job_list(
        &self,
        tenant: Option<&str>,
        state: Option<JobState>,
        with_over: bool,
        after: Option<&JobName>,
        limit: usize,
    ) -> Result<JobReport> {
        let limit = limit.clamp(1, JOBS_PAGE_MAX);
        let tables: &[&[u8]] = match with_over || state.is_some_and(JobState::is_over) {
            true => &[keys::JOBS_ACTIVE, keys::JOBS_OVER],
            false => &[keys::JOBS_ACTIVE],
        };
        let (mut jobs, mut more) = (Vec::new(), false);
        for table in tables {
            let prefix = match tenant {
                Some(tenant) => [table, tenant.as_bytes(), b"/"].concat(),
                None => table.to_vec(),
            };
            let mut range = Range::prefix(&prefix, limit + 1);
            if let Some(after) = after {
                let behind = [table, tenant_of(after).as_bytes(), b"/", after.id.as_bytes()].concat();
                range = range.after(&behind);
            }
            let mut found = 0;
            'table: loop {
                let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
                for row in &page.rows {
                    let info = match Known::of(row) {
                        Ok(known) => known.job.info,
                        // One that cannot be read must not hide the others.
                        Err(fault) => {
                            tracing::warn!("{fault}");
                            continue;
                        }
                    };
                    if state.is_none_or(|state| state == info.state) {
                        found += 1;
                        jobs.push(info);
                    }
                    if found > limit {
                        break 'table;
                    }
                }
                match page.rows.last() {
                    Some(last) if page.more => range = range.after(&last.key),
                    _ => break,
                }
            }
        }
        jobs.sort_by(|a: &JobInfo, b: &JobInfo| (&a.tenant, &a.id).cmp(&(&b.tenant, &b.id)));
        jobs.dedup_by(|a, b| (&a.tenant, &a.id) == (&b.tenant, &b.id));
        more |= jobs.len() > limit;
        jobs.truncate(limit);
        Ok(JobReport::Jobs { jobs, more })
    }

    /// What the rings say now of what is held for a job: of these nodes, or of all.
    async fn job_readiness(self: &Arc<Core>, info: &JobInfo, nodes: &[String]) -> Result<JobReadiness> {
        let view = self.cell.view();
        let all: Vec<NodeId> = match self.cell.is_joined() {
            true => view.nodes().filter(|node| !view.is_witness(*node)).collect(),
            false => vec![self.node],
        };
        let named: Vec<NodeId> = match nodes {
            [] => all.clone(),
            nodes if nodes.len() <= JOB_NODES_MAX && self.cell.is_joined() => {
                nodes.iter().map(|node| self.cell.named(node)).collect::<Result<_>>()?
            }
            nodes if nodes.len() <= JOB_NODES_MAX => vec![self.node],
            _ => return Err(invalid(format!("at most {JOB_NODES_MAX} nodes are named"))),
        };
        let hot: Vec<&JobSource> =
            info.sources.iter().filter(|source| source.tier_hint == Tier::Hot).collect();
        let cell = info.cell.clone().unwrap_or_default();
        let mut sources = Vec::new();
        for source in &hot {
            let place = Place::parse(&source.source).map_err(invalid)?;
            if let Ok(volume) = self.volumes.get(&place.volume).await {
                sources.push(source_id(volume.id.0, &place, &cell));
            }
        }
        let mut asked: Vec<BoxFuture<'static, (NodeId, u64)>> = Vec::new();
        for node in all.iter().copied().filter(|node| !self.cell.is_suspect(*node)) {
            let (core, ask) = (self.clone(), JobAsk::Count { sources: sources.clone() });
            asked.push(Box::pin(async move {
                let held = core.job_at(node, ask).await;
                (node, held.map_or(0, |holds| holds.bytes.iter().sum::<u64>()))
            }));
        }
        let own: HashMap<NodeId, u64> = futures_util::future::join_all(asked).await.into_iter().collect();
        let of_cell = |cell: &str| -> u64 {
            own.iter().filter(|(node, _)| view.cell_of(**node) == cell).map(|(_, bytes)| *bytes).sum()
        };
        let (bytes, _) = info.bytes();
        let name = |node: NodeId| if self.cell.is_joined() { view.name(node) } else { node.to_string() };
        let nodes: Vec<NodeReadiness> = named
            .iter()
            .map(|node| {
                let cell = view.cell_of(*node);
                let own_bytes = own.get(node).copied().unwrap_or(0).min(bytes);
                let cell_bytes = of_cell(cell).min(bytes);
                NodeReadiness { node: name(*node), cell: cell.to_owned(), own_bytes, cell_bytes }
            })
            .collect();
        let least = nodes.iter().map(|node| node.cell_bytes).min().unwrap_or(0);
        let is_counted = hot.iter().all(|source| source.is_counted);
        let share = match (is_counted, bytes) {
            (false, _) => 0.0,
            (true, 0) => 1.0,
            (true, bytes) => least as f64 / bytes as f64,
        };
        Ok(JobReadiness { bytes, is_counted, share, nodes })
    }
}

fn of(info: JobInfo) -> JobReport {
    JobReport::Job(Box::new(info))
}

fn word_of(end: JobEnd) -> &'static str {
    match end {
        JobEnd::Done => "it is done",
        JobEnd::Failed => "it failed",
    }
}

fn below(place: &str, name: &str) -> String {
    format!("{}/{name}", place.trim_end_matches('/'))
}

/// A job of this id is there: the same one, if it was submitted by the same word.
fn again(known: Known, submit: &JobSubmit) -> Result<JobInfo> {
    if submit.again.is_some() && known.job.again == submit.again {
        return Ok(known.job.info);
    }
    let info = &known.job.info;
    let message = format!("there is a job `{}` already: it is {}", info.id, info.state.word());
    Err(StoreError::new(ErrorKind::Conflict, message))
}
