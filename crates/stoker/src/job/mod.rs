//! `stoker job`: jobs, whose data is there before they are.

mod tell;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use stoker_client::Client;
use stoker_jobs::{SPEC_BYTES_MAX, Spec, read_spec, spec_of_script};
use stoker_store::{
    JobEnd, JobInfo, JobName, JobOrder, JobReport, JobState, JobSubmit, Store, UserName, check_job_id,
};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::waiting::{self, Sight};
use crate::{clock, out, span};

/// Jobs asked for at once.
const PAGE: usize = 500;
/// Between two looks at a job that is waited for.
const LOOK_PAUSE: Duration = Duration::from_millis(300);
/// Longest script that is read.
const SCRIPT_BYTES_MAX: u64 = 4 << 20;

/// What to do with jobs.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Submit a job: its data is staged while it waits in the queue.
    Submit(SubmitArgs),
    /// Read a spec and say what is wrong with it; asks no node.
    Check(CheckArgs),
    /// Show a job: state, data, and how it came there.
    Show(ShowArgs),
    /// List jobs.
    Ls(LsArgs),
    /// Cancel a job; what is staged for it is let go.
    Cancel(CancelArgs),
    /// Wait until a job is ready, running or over.
    Wait(WaitArgs),
    /// Say that a job starts: its output directory is made.
    Start(StartArgs),
    /// Say that a job is over: its data is let go and its output drained.
    End(EndArgs),
    /// Show how ready nodes are for a job, by what their drives hold now.
    Readiness(ReadinessArgs),
}

/// Where a spec is.
#[derive(clap::Args)]
struct Source {
    /// File with the spec, YAML or JSON; `-` for stdin. Without one the job gets defaults.
    #[arg(value_name = "SPEC")]
    spec: Option<PathBuf>,
    /// Job script whose `#STOKER` lines are the spec.
    #[arg(long, value_name = "FILE", conflicts_with = "spec")]
    script: Option<PathBuf>,
}

/// Arguments of `job submit`.
#[derive(clap::Args)]
pub struct SubmitArgs {
    #[command(flatten)]
    source: Source,
    /// Its id; drawn if nothing is said.
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    id: Option<String>,
    /// What people call it.
    #[arg(long)]
    name: Option<String>,
    /// The project that it belongs to.
    #[arg(long)]
    project: Option<String>,
    /// Whose it is, TENANT/USER: for schedulers, which submit for others.
    #[arg(long, value_name = "TENANT/USER", value_parser = parse_owner)]
    owner: Option<UserName>,
    /// The user that `{user}` stands for, where nobody is its owner.
    #[arg(long, value_name = "NAME", conflicts_with = "owner")]
    user: Option<String>,
    /// It is expected to start so long from now, such as 10m.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    start_in: Option<Duration>,
    /// Asked again with the same word, the answer is the job that is there.
    #[arg(long, value_name = "WORD")]
    again: Option<String>,
    /// Print the job as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `job check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    source: Source,
    /// Print what was read as one object.
    #[arg(long)]
    json: bool,
}

/// Arguments of `job show`.
#[derive(clap::Args)]
pub struct ShowArgs {
    /// ID, or TENANT/ID.
    #[arg(value_name = "JOB", value_parser = parse_name)]
    job: JobName,
    /// Print what a job script wants to know, as NAME=VALUE lines.
    #[arg(long)]
    env: bool,
    /// Print its mounts, a line each: volume, path, target, and `ro`, `rw` or, for its output, `out`, with tabs between.
    #[arg(long, conflicts_with = "env")]
    mounts: bool,
    /// Print the job as one object.
    #[arg(long, conflicts_with_all = ["env", "mounts"])]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `job ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// With jobs that are over.
    #[arg(short, long)]
    all: bool,
    /// Only jobs in this state.
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    state: Option<JobState>,
    /// Only of this tenant.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Print one object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `job cancel`.
#[derive(clap::Args)]
pub struct CancelArgs {
    /// ID, or TENANT/ID.
    #[arg(value_name = "JOB", value_parser = parse_name)]
    job: JobName,
    /// Why.
    #[arg(long, default_value = "")]
    reason: String,
    /// It is fine if there is no such job, or it is over.
    #[arg(long)]
    if_there: bool,
    /// Print the job as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Until {
    /// Its data is where it will be read.
    Ready,
    /// It runs.
    Running,
    /// It is over, and its output in the lake.
    Over,
}

/// Arguments of `job wait`.
#[derive(clap::Args)]
pub struct WaitArgs {
    /// ID, or TENANT/ID.
    #[arg(value_name = "JOB", value_parser = parse_name)]
    job: JobName,
    /// Until then.
    #[arg(long, value_enum, default_value = "ready")]
    until: Until,
    /// Give up after this long, such as 30s or 5m; exit code 1.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    timeout: Option<Duration>,
    /// Print the job as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `job start`.
#[derive(clap::Args)]
pub struct StartArgs {
    /// ID, or TENANT/ID.
    #[arg(value_name = "JOB", value_parser = parse_name)]
    job: JobName,
    /// Nodes that it runs on, by name, with commas between.
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    nodes: Vec<String>,
    /// Print the job as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `job end`.
#[derive(clap::Args)]
pub struct EndArgs {
    /// ID, or TENANT/ID.
    #[arg(value_name = "JOB", value_parser = parse_name)]
    job: JobName,
    /// It did not do what it should.
    #[arg(long)]
    failed: bool,
    /// Why.
    #[arg(long, default_value = "")]
    reason: String,
    /// Print the job as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `job readiness`.
#[derive(clap::Args)]
pub struct ReadinessArgs {
    /// ID, or TENANT/ID.
    #[arg(value_name = "JOB", value_parser = parse_name)]
    job: JobName,
    /// Nodes that it may run on, by name, with commas between; all if nothing is said.
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    nodes: Vec<String>,
    /// Print it as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

fn parse_name(text: &str) -> Result<JobName, String> {
    JobName::parse(text).map_err(|fault| fault.message)
}

fn parse_id(text: &str) -> Result<String, String> {
    check_job_id(text).map(|()| text.to_owned()).map_err(|fault| fault.message)
}

fn parse_owner(text: &str) -> Result<UserName, String> {
    UserName::parse(text).map_err(|fault| fault.message)
}

fn parse_state(text: &str) -> Result<JobState, String> {
    let words = || JobState::ALL.map(JobState::word).join(", ");
    JobState::ALL.into_iter().find(|state| state.word() == text).ok_or_else(|| format!("one of {}", words()))
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Submit(args) => submit(args),
        Verb::Check(args) => check(args),
        Verb::Show(args) => connect::run(&args.target, async |client| {
            let job = ask(&client, JobOrder::Show(args.job.clone())).await?;
            match (args.env, args.mounts) {
                (true, _) => tell::env(&job),
                (_, true) => tell::mounts(&job),
                _ if args.json => out::json(&tell::json(&job)),
                _ => tell::whole(&job),
            }?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Ls(args) => connect::run(&args.target, async |client| list(&client, args).await),
        Verb::Cancel(args) => connect::run(&args.target, async |client| {
            let order = JobOrder::Cancel { job: args.job.clone(), reason: args.reason.clone() };
            match client.job(order).await {
                Err(fault)
                    if args.if_there
                        && matches!(
                            fault.kind,
                            stoker_store::ErrorKind::NotFound | stoker_store::ErrorKind::Conflict
                        ) =>
                {
                    Ok(ExitCode::SUCCESS)
                }
                report => tell(&report?.job()?, args.json),
            }
        }),
        Verb::Wait(args) => connect::run(&args.target, async |client| wait(&client, args).await),
        Verb::Start(args) => connect::run(&args.target, async |client| {
            let order = JobOrder::Start { job: args.job.clone(), nodes: args.nodes.clone() };
            tell(&ask(&client, order).await?, args.json)
        }),
        Verb::End(args) => connect::run(&args.target, async |client| {
            let end = if args.failed { JobEnd::Failed } else { JobEnd::Done };
            let order = JobOrder::End { job: args.job.clone(), end, reason: args.reason.clone() };
            tell(&ask(&client, order).await?, args.json)
        }),
        Verb::Readiness(args) => connect::run(&args.target, async |client| {
            let order = JobOrder::Readiness { job: args.job.clone(), nodes: args.nodes.clone() };
            let JobReport::Readiness(found) = client.job(order).await? else {
                return Err(Failure::confused());
            };
            if args.json { out::json(&tell::readiness_json(&found)) } else { tell::readiness(&found) }?;
            Ok(ExitCode::SUCCESS)
        }),
    }
}

async fn ask(client: &Client, order: JobOrder) -> Result<JobInfo, Failure> {
    Ok(client.job(order).await?.job()?)
}

fn tell(job: &JobInfo, json: bool) -> Result<ExitCode, Failure> {
    if json { out::json(&tell::json(job)) } else { out::line(tell::line(job)) }?;
    Ok(ExitCode::SUCCESS)
}

/// The spec that was given, and where it came from.
fn spec_of(source: &Source) -> Result<Spec, Failure> {
    let (text, name) = match (&source.spec, &source.script) {
        (_, Some(script)) => {
            let (text, name) = (read_file(script, SCRIPT_BYTES_MAX)?, script.display().to_string());
            let spec = spec_of_script(&text).map_err(|fault| Failure::new(format!("{name}: {fault}")))?;
            (spec.unwrap_or_default(), name)
        }
        (Some(path), None) if path.as_os_str() == "-" => {
            (read_limited(std::io::stdin(), "stdin", SPEC_BYTES_MAX as u64)?, "stdin".to_owned())
        }
        (Some(path), None) => (read_file(path, SPEC_BYTES_MAX as u64)?, path.display().to_string()),
        (None, None) => (String::new(), String::new()),
    };
    read_spec(&text).map_err(|fault| {
        Failure::new(format!("{name}: {fault}"))
            .hint("docs/jobs.md shows a whole spec and says what each field takes")
    })
}

fn read_file(path: &Path, bytes_max: u64) -> Result<String, Failure> {
    let file = std::fs::File::open(path).map_err(|error| Failure::io(path.display(), &error))?;
    read_limited(file, &path.display().to_string(), bytes_max)
}

fn read_limited(from: impl Read, name: &str, bytes_max: u64) -> Result<String, Failure> {
    let mut text = Vec::new();
    from.take(bytes_max + 1).read_to_end(&mut text).map_err(|error| Failure::io(name, &error))?;
    if text.len() as u64 > bytes_max {
        return Err(Failure::new(format!("{name} has more than {bytes_max} bytes")));
    }
    String::from_utf8(text).map_err(|_| Failure::new(format!("{name} is not UTF-8")))
}

fn check(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let spec = spec_of(&args.source)?;
    if args.json {
        out::json(&tell::spec_json(&spec.spec))?;
    } else {
        let mounts = spec.spec.mounts.len();
        out::line(format!("the spec is sound: {mounts} mounts, with those that everybody gets"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn submit(args: &SubmitArgs) -> Result<ExitCode, Failure> {
    let Spec { name, project, spec } = spec_of(&args.source)?;
    let expected_start_ms = args.start_in.map(|span| clock::unix_ms() + span.as_millis() as u64);
    let submit = JobSubmit {
        id: args.id.clone().unwrap_or_else(drawn_id),
        name: args.name.clone().or(name).unwrap_or_default(),
        project: args.project.clone().or(project),
        owner: args.owner.clone(),
        user: args.user.clone(),
        expected_start_ms,
        notes: Vec::new(),
        again: args.again.clone(),
        spec,
    };
    connect::run(&args.target, async |client| {
        let job = ask(&client, JobOrder::Submit(Box::new(submit))).await?;
        job.notes.iter().filter(|_| !args.json).for_each(|note| out::say(format!("note: {note}")));
        if args.json { out::json(&tell::json(&job)) } else { out::line(&job.id) }?;
        Ok(ExitCode::SUCCESS)
    })
}

/// One that nobody else drew, in this process or another.
fn drawn_id() -> String {
    format!("job-{:x}-{:x}", clock::unix_ns() / 1_000, std::process::id())
}

async fn list(client: &Client, args: &LsArgs) -> Result<ExitCode, Failure> {
    let (mut after, mut rows) = (None, Vec::new());
    loop {
        let order = JobOrder::List {
            tenant: args.tenant.clone(),
            state: args.state,
            with_over: args.all,
            after,
            limit: PAGE,
        };
        let JobReport::Jobs { jobs, more } = client.job(order).await? else {
            return Err(Failure::confused());
        };
        for job in &jobs {
            if args.json { out::json(&tell::json(job))? } else { rows.push(tell::row(job)) }
        }
        let last = jobs.last().map(|job| JobName { tenant: Some(job.tenant.clone()), id: job.id.clone() });
        match last.filter(|_| more) {
            Some(last) => after = Some(last),
            None => break,
        }
    }
    if rows.is_empty() && !args.json {
        out::say("no jobs; submit one with `stoker job submit SPEC`");
    }
    out::table(&rows)?;
    Ok(ExitCode::SUCCESS)
}

async fn wait(client: &Client, args: &WaitArgs) -> Result<ExitCode, Failure> {
    let work = async {
        loop {
            let job = ask(client, JobOrder::Show(args.job.clone())).await?;
            let is_there = match args.until {
                Until::Ready => matches!(job.state, JobState::Ready | JobState::Running),
                Until::Running => job.state == JobState::Running,
                Until::Over => job.state.is_over(),
            };
            if is_there {
                return Ok(job);
            }
            if job.state.is_over() || (job.state == JobState::Draining && args.until != Until::Over) {
                return Err(Failure::new(format!("job {} is {}: {}", job.id, job.state.word(), job.reason)));
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    };
    let look = async || {
        let job = ask(client, JobOrder::Show(args.job.clone())).await?;
        Ok(Sight { text: tell::line(&job), why: None })
    };
    let job = waiting::wait(work, args.timeout, args.json, look).await?;
    // A job that was waited for and failed is no success.
    let failed = args.until == Until::Over && job.state != JobState::Done;
    tell(&job, args.json)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
