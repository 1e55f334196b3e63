//! Jobs as the door knows them: what a job needs, how far it is, and what a scheduler asks. Plain types; what is done about them is
//! decided in the crate `jobs`.

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, Result, StoreError};
use crate::who::UserName;

/// Longest id of a job.
pub const JOB_ID_LEN_MAX: usize = 64;
/// Most mounts of a job.
pub const JOB_MOUNTS_MAX: usize = 32;
/// Longest source, target, output or reason.
pub const JOB_TEXT_LEN_MAX: usize = 1_024;
/// Most jobs that are not over, in a cluster.
pub const JOBS_MAX: usize = 20_000;
/// Most jobs of one page.
pub const JOBS_PAGE_MAX: usize = 1_000;
/// Most nodes that a call names.
pub const JOB_NODES_MAX: usize = 1_024;

/// How soon a job wants the bytes of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// On drives before the job starts.
    #[default]
    Hot,
    /// Where they are: what the lake has is read when it is asked for.
    Warm,
    /// The same; a restore from an archive is not begun for it.
    Cold,
}

/// What a job does with a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobAccess {
    /// It reads.
    #[default]
    ReadOnly,
    /// It reads and writes.
    ReadWrite,
}

/// Data that a job sees as files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobMount {
    /// Where they are: `s3://VOLUME/PREFIX`, `nfs://VOLUME/PATH` or `stoker://VOLUME/PREFIX`.
    pub source: String,
    /// Where the job sees them.
    pub target: String,
    /// How soon it wants them.
    pub tier_hint: Tier,
    /// What it does with them.
    pub access: JobAccess,
    /// Nobody asked for it: it is left out if its volume is not there.
    pub is_default: bool,
}

/// Bandwidth that a job wants; the cluster makes a policy of it when the job is staged (see [`crate::QosSpec`]).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobQos {
    /// At least so many bytes a second, over all its nodes; 0 for none.
    pub floor_bytes_per_s: u64,
    /// At most so many; 0 for any.
    pub ceiling_bytes_per_s: u64,
    /// Whether somebody waits for each of its reads.
    pub interactive: bool,
}

/// What a job needs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobSpec {
    /// Data that it sees.
    pub mounts: Vec<JobMount>,
    /// Where its results go: a directory in a volume.
    pub output: Option<String>,
    /// Nobody asked for the output: it is left out if its volume is not there.
    pub output_is_default: bool,
    /// Bytes of scratch on each of its nodes; 0 for none.
    pub scratch_per_node: u64,
    /// Whether there is a directory for checkpoints in its output.
    pub checkpoint: bool,
    /// Bandwidth.
    pub qos: JobQos,
    /// Nodes that it may run on, by name or id; none for any.
    pub nodes: Vec<String>,
    /// The cell that it runs in; none if nobody knows.
    pub cell: Option<String>,
    /// How long what is staged is kept for a job that nobody starts, milliseconds.
    pub reservation_ms: u64,
    /// How long it is kept for one that nobody ends, milliseconds.
    pub time_limit_ms: u64,
}

/// A job that somebody submits.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobSubmit {
    /// Its id in its tenant.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// The project that it belongs to; for the template `{project}`.
    pub project: Option<String>,
    /// Whose it is; none for whoever asks. Operators alone may name somebody.
    pub owner: Option<UserName>,
    /// The user that the template `{user}` stands for, where nobody is its owner.
    pub user: Option<String>,
    /// When it is expected to start, milliseconds since 1970; none if nobody knows.
    pub expected_start_ms: Option<u64>,
    /// What somebody should know of it from the beginning.
    pub notes: Vec<String>,
    /// Asked again with the same word, the answer is the job that is there.
    pub again: Option<String>,
    /// What it needs.
    pub spec: JobSpec,
}

/// Names a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobName {
    /// Its tenant; none for that of whoever asks.
    pub tenant: Option<String>,
    /// Its id.
    pub id: String,
}

impl JobName {
    /// Reads `ID` or `TENANT/ID`.
    pub fn parse(text: &str) -> Result<JobName> {
        let (tenant, id) = match text.split_once('/') {
            Some((tenant, id)) => (Some(tenant.to_owned()), id),
            None => (None, text),
        };
        check_job_id(id)?;
        Ok(JobName { tenant, id: id.to_owned() })
    }
}

/// Refuses ids that cannot stand in a path.
pub fn check_job_id(id: &str) -> Result<()> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_sound = (1..=JOB_ID_LEN_MAX).contains(&id.len())
        && id.bytes().all(|byte| plain(&byte))
        && id.as_bytes()[0].is_ascii_alphanumeric()
        && !id.contains("..");
    if is_sound {
        return Ok(());
    }
    let message = format!(
        "`{}` cannot be the id of a job: 1 to {JOB_ID_LEN_MAX} letters, digits, `-`, `_` and `.`, starting with a letter or digit",
        id.chars().take(80).collect::<String>()
    );
    Err(StoreError::new(ErrorKind::Invalid, message))
}

/// How far a job is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// It waits for its turn to be staged.
    #[default]
    Queued,
    /// Its data is on its way.
    Staging,
    /// Its data is where it will be read.
    Ready,
    /// It runs.
    Running,
    /// It is over, and its output is on its way to the lake.
    Draining,
    /// It is over.
    Done,
    /// It failed.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
}

impl JobState {
    /// All of them, in their order.
    pub const ALL: [JobState; 8] = [
        JobState::Queued,
        JobState::Staging,
        JobState::Ready,
        JobState::Running,
        JobState::Draining,
        JobState::Done,
        JobState::Failed,
        JobState::Cancelled,
    ];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            JobState::Queued => "queued",
            JobState::Staging => "staging",
            JobState::Ready => "ready",
            JobState::Running => "running",
            JobState::Draining => "draining",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }

    /// Whether nothing comes after it.
    pub fn is_over(self) -> bool {
        matches!(self, JobState::Done | JobState::Failed | JobState::Cancelled)
    }
}

/// When a job came into a state, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobStep {
    /// The state.
    pub state: JobState,
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// Why.
    pub reason: String,
}

/// How far the data of a mount is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobSource {
    /// Where it is.
    pub source: String,
    /// Where the job sees it.
    pub target: String,
    /// How soon it is wanted.
    pub tier_hint: Tier,
    /// What the job does with it.
    pub access: JobAccess,
    /// Whether it was counted.
    pub is_counted: bool,
    /// Its files.
    pub files: u64,
    /// Their bytes, each chunk once.
    pub bytes: u64,
    /// Those that are on drives where they will be read, by what the rings said last.
    pub resident_bytes: u64,
    /// Those that were brought for it, from the lake or from another cell.
    pub lake_bytes: u64,
    /// What keeps it from being staged, if something does.
    pub trouble: Option<String>,
}

/// A job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobInfo {
    /// Its tenant.
    pub tenant: String,
    /// Its id.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// The user whose it is; empty if nobody's in particular.
    pub user: String,
    /// Its project.
    pub project: Option<String>,
    /// How far it is.
    pub state: JobState,
    /// Why.
    pub reason: String,
    /// How it came there.
    pub steps: Vec<JobStep>,
    /// What it needs, without templates.
    pub spec: JobSpec,
    /// How far its data is.
    pub sources: Vec<JobSource>,
    /// When it is expected to start.
    pub expected_start_ms: Option<u64>,
    /// When what is staged will be, as far as is known.
    pub ready_ms: Option<u64>,
    /// When it fails if nobody says anything of it before.
    pub expires_ms: u64,
    /// The cell whose drives hold its data; none if it is not staged.
    pub cell: Option<String>,
    /// Nodes that it runs on.
    pub nodes: Vec<String>,
    /// Its directory for checkpoints.
    pub checkpoints: Option<String>,
    /// Whether drives hold what it wants of bandwidth: there is a policy of admission about it.
    #[serde(default)]
    pub qos_enforced: bool,
    /// What somebody should know of it.
    pub notes: Vec<String>,
}

impl JobInfo {
    /// Bytes that are to be staged, and those that are where they will be read.
    pub fn bytes(&self) -> (u64, u64) {
        let hot = self.sources.iter().filter(|source| source.tier_hint == Tier::Hot);
        hot.fold((0, 0), |(all, here), source| (all + source.bytes, here + source.resident_bytes))
    }

    /// The share of what is to be staged that is where it will be read; none if that was not counted yet.
    pub fn readiness(&self) -> Option<f64> {
        let is_open = |source: &JobSource| source.tier_hint == Tier::Hot && !source.is_counted;
        if self.sources.iter().any(is_open) {
            return None;
        }
        let (bytes, resident) = self.bytes();
        Some(if bytes == 0 { 1.0 } else { resident.min(bytes) as f64 / bytes as f64 })
    }
}

/// How a job ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobEnd {
    /// It did what it should.
    Done,
    /// It did not.
    Failed,
}

/// How ready nodes are for a job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JobReadiness {
    /// Bytes that it reads.
    pub bytes: u64,
    /// Whether all of them were counted.
    pub is_counted: bool,
    /// The share of them that the nodes that were named read without the lake: of the worst of their cells.
    pub share: f64,
    /// Each of them.
    pub nodes: Vec<NodeReadiness>,
}

/// How ready a node is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeReadiness {
    /// Its name.
    pub node: String,
    /// Its cell.
    pub cell: String,
    /// Bytes on its own drives.
    pub own_bytes: u64,
    /// Bytes on drives of its cell.
    pub cell_bytes: u64,
}

/// What a job says that is about to write a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobWindowAsk {
    /// Bytes that it will write; 0 if it does not know.
    pub bytes: u64,
    /// In so many milliseconds; 0 for now. What is announced for later is kept for it.
    pub in_ms: u64,
    /// It waits no longer, milliseconds; none for as long as anybody may.
    pub wait_ms_max: Option<u64>,
}

/// When a job may write a checkpoint. Advice: whoever writes without is not stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobWindow {
    /// Its window begins in so many milliseconds.
    pub wait_ms: u64,
    /// How long it is expected to write.
    pub length_ms: u64,
    /// More is written at that time than drives take.
    pub is_crowded: bool,
    /// By its rhythm it writes the next one in so many milliseconds.
    pub next_ms: Option<u64>,
}

/// What a scheduler asks about jobs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobOrder {
    /// Take a job.
    Submit(Box<JobSubmit>),
    /// Tell of one.
    Show(JobName),
    /// Tell of all of a tenant, or of all tenants.
    List {
        /// The tenant; none for that of whoever asks, or all for operators.
        tenant: Option<String>,
        /// Only in this state.
        state: Option<JobState>,
        /// With those that are over.
        with_over: bool,
        /// Behind this one.
        after: Option<JobName>,
        /// At most so many.
        limit: usize,
    },
    /// It is expected to start then.
    Expect {
        /// The job.
        job: JobName,
        /// When, milliseconds since 1970.
        start_ms: u64,
    },
    /// It starts, on these nodes.
    Start {
        /// The job.
        job: JobName,
        /// The nodes.
        nodes: Vec<String>,
    },
    /// It is over.
    End {
        /// The job.
        job: JobName,
        /// How.
        end: JobEnd,
        /// Why.
        reason: String,
    },
    /// It will not be.
    Cancel {
        /// The job.
        job: JobName,
        /// Why.
        reason: String,
    },
    /// How ready nodes are for it.
    Readiness {
        /// The job.
        job: JobName,
        /// The nodes; none for all.
        nodes: Vec<String>,
    },
    /// It is about to write a checkpoint, and asks when.
    Window {
        /// The job.
        job: JobName,
        /// How much, and how long it waits.
        ask: JobWindowAsk,
    },
    /// It wrote it.
    WindowEnd {
        /// The job.
        job: JobName,
        /// Bytes that it wrote; 0 if it does not know.
        bytes: u64,
    },
}

impl JobOrder {
    /// Whether it changes nothing.
    pub fn only_reads(&self) -> bool {
        matches!(self, JobOrder::Show(_) | JobOrder::List { .. } | JobOrder::Readiness { .. })
    }

    /// The job that it is about.
    pub fn job_mut(&mut self) -> Option<&mut JobName> {
        match self {
            JobOrder::Submit(_) | JobOrder::List { .. } => None,
            JobOrder::Show(job)
            | JobOrder::Expect { job, .. }
            | JobOrder::Start { job, .. }
            | JobOrder::End { job, .. }
            | JobOrder::Cancel { job, .. }
            | JobOrder::Readiness { job, .. }
            | JobOrder::Window { job, .. }
            | JobOrder::WindowEnd { job, .. } => Some(job),
        }
    }

    /// What it is called.
    pub fn word(&self) -> &'static str {
        match self {
            JobOrder::Submit(_) => "submit",
            JobOrder::Show(_) => "show",
            JobOrder::List { .. } => "list",
            JobOrder::Expect { .. } => "expect",
            JobOrder::Start { .. } => "start",
            JobOrder::End { .. } => "end",
            JobOrder::Cancel { .. } => "cancel",
            JobOrder::Readiness { .. } => "readiness",
            JobOrder::Window { .. } => "window",
            JobOrder::WindowEnd { .. } => "window-end",
        }
    }
}

/// What became of a [`JobOrder`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum JobReport {
    /// The job as it is now.
    Job(Box<JobInfo>),
    /// Jobs by tenant and id.
    Jobs {
        /// Jobs.
        jobs: Vec<JobInfo>,
        /// There are more.
        more: bool,
    },
    /// Of [`JobOrder::Readiness`].
    Readiness(JobReadiness),
    /// Of [`JobOrder::Window`] and [`JobOrder::WindowEnd`].
    Window(JobWindow),
}

impl JobReport {
    /// The job that was asked for.
    pub fn job(self) -> Result<JobInfo> {
        match self {
            JobReport::Job(job) => Ok(*job),
            _ => Err(StoreError::new(ErrorKind::Unavailable, "unexpected response type about a job")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stand_in_paths() {
        for good in ["1", "slurm-17", "a.b_c", &"x".repeat(64)] {
            assert!(check_job_id(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".", "..", "a..b", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(check_job_id(bad).is_err(), "{bad}");
        }
        let name = JobName::parse("acme/train-1").unwrap();
        assert_eq!((name.tenant.as_deref(), name.id.as_str()), (Some("acme"), "train-1"));
        assert!(JobName::parse("a/b/c").is_err());
    }
}
