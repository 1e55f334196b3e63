//! `stoker qos`: what tenants, jobs and volumes are promised and allowed.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use stoker_store::{
    JobLabel, Order, QosInfo, QosRate, QosReport, QosRequest, QosSpec, QosSubject, Report, Store,
};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{out, size, span};

/// What to do with policies.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Promise and allow something to the work of a job, a tenant or a volume. A floor that cannot be given is refused.
    Set(SetArgs),
    /// List policies with what is given and used, and what could still be promised.
    Ls(LsArgs),
    /// Show a policy.
    Show(ShowArgs),
    /// End a policy: its work shares what there is like any other.
    Unset(UnsetArgs),
}

/// Whose work is meant.
#[derive(clap::Args)]
#[command(next_help_heading = "Whose work")]
struct Whose {
    /// Of this job, as STOKER_JOB, `stoker mount --job`, the header x-stoker-job or `stoker.connect(job=)` name it.
    #[arg(long, value_name = "JOB", value_parser = JobLabel::parse)]
    job: Option<JobLabel>,
    /// Of this tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// On this volume.
    #[arg(long, value_name = "VOLUME")]
    volume: Option<String>,
}

impl Whose {
    fn subject(&self) -> QosSubject {
        QosSubject { tenant: self.tenant.clone(), job: self.job.clone(), volume: self.volume.clone() }
    }
}

/// When it goes.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Latency {
    /// First, within its share.
    Interactive,
    /// In its turn.
    Bulk,
}

/// Arguments of `qos set`.
#[derive(clap::Args)]
pub struct SetArgs {
    #[command(flatten)]
    whose: Whose,
    /// Bytes per second that drives do for it at least, while it asks for them.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    floor: Option<u64>,
    /// Operations per second that drives do for it at least.
    #[arg(long, value_name = "COUNT")]
    floor_ops: Option<u64>,
    /// Bytes per second that its clients read and write at most.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    ceiling: Option<u64>,
    /// Operations per second that its clients make at most.
    #[arg(long, value_name = "COUNT")]
    ceiling_ops: Option<u64>,
    /// Its share of what is left, 1 to 10000, against those of others, who have 100.
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    weight: u32,
    /// When it goes.
    #[arg(long, value_name = "CLASS", value_enum, default_value_t = Latency::Bulk)]
    latency: Latency,
    /// For how long it may go faster than its ceiling after a pause.
    #[arg(long, value_name = "SPAN", default_value = "50ms", value_parser = span::parse)]
    burst: Duration,
    /// Print one object, as `qos ls --json` does.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `qos ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Print one object: policies (each with id, tenant, job, volume, prefix, floor, ceiling, weight, latency, burst_ms, given, used,
    /// waiting), capacity, free, silent.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `qos show`.
#[derive(clap::Args)]
pub struct ShowArgs {
    /// Its id, or its job.
    id: String,
    /// Print one object, as `qos ls --json` does.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `qos unset`.
#[derive(clap::Args)]
pub struct UnsetArgs {
    /// Its id, or its job.
    id: String,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Set(args) => connect::run(&args.target, async |client| {
            let request = Box::new(request(args));
            let Report::QosPolicy(info) = client.operate(Order::QosSet(request)).await? else {
                return Err(Failure::confused());
            };
            tell(&info, args.json)
        }),
        Verb::Ls(args) => connect::run(&args.target, async |client| {
            let report = report(&client).await?;
            match args.json {
                true => out::json(&report_shape(&report))?,
                false => list(&report)?,
            }
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Show(args) => connect::run(&args.target, async |client| {
            tell(&find(report(&client).await?, &args.id)?, args.json)
        }),
        Verb::Unset(args) => connect::run(&args.target, async |client| {
            let id = find(report(&client).await?, &args.id)?.id;
            match client.operate(Order::QosUnset { id }).await? {
                Report::Done => Ok(ExitCode::SUCCESS),
                _ => Err(Failure::confused()),
            }
        }),
    }
}

fn request(args: &SetArgs) -> QosRequest {
    let spec = QosSpec {
        floor: QosRate { bytes_per_s: args.floor, ops_per_s: args.floor_ops },
        ceiling: QosRate { bytes_per_s: args.ceiling, ops_per_s: args.ceiling_ops },
        weight: args.weight,
        is_interactive: matches!(args.latency, Latency::Interactive),
        burst_ms: u32::try_from(args.burst.as_millis()).unwrap_or(u32::MAX),
    };
    QosRequest { subject: args.whose.subject(), spec, export: None, request: None, is_new: false }
}

async fn report(client: &dyn Store) -> Result<QosReport, Failure> {
    match client.operate(Order::Qos).await? {
        Report::Qos(report) => Ok(*report),
        _ => Err(Failure::confused()),
    }
}

/// A policy by its id, or by a job that only one is about.
fn find(report: QosReport, text: &str) -> Result<QosInfo, Failure> {
    let is_it =
        |info: &QosInfo| info.id == text || info.subject.job.as_ref().is_some_and(|job| job.as_str() == text);
    let mut found: Vec<QosInfo> = report.policies.into_iter().filter(is_it).collect();
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (None, _) => {
            Err(Failure::new(format!("there is no policy `{text}`")).hint("`stoker qos ls` shows them"))
        }
        _ => Err(Failure::new(format!("several policies are about `{text}`")).hint("name one by its id")),
    }
}

fn rate_shape(rate: QosRate) -> Value {
    json!({ "bytes_per_s": rate.bytes_per_s, "ops_per_s": rate.ops_per_s })
}

fn shape(info: &QosInfo) -> Value {
    json!({
        "id": info.id,
        "tenant": info.subject.tenant,
        "job": info.subject.job.as_ref().map(JobLabel::as_str),
        "volume": info.subject.volume,
        "prefix": info.export,
        "floor": rate_shape(info.spec.floor),
        "ceiling": rate_shape(info.spec.ceiling),
        "weight": info.spec.weight,
        "latency": if info.spec.is_interactive { "interactive" } else { "bulk" },
        "burst_ms": info.spec.burst_ms,
        "given": rate_shape(info.given),
        "used": rate_shape(info.used),
        "waiting": info.waiting,
    })
}

fn report_shape(report: &QosReport) -> Value {
    json!({
        "policies": report.policies.iter().map(shape).collect::<Vec<_>>(),
        "capacity": rate_shape(report.capacity),
        "free": rate_shape(report.free),
        "silent": report.silent,
    })
}

/// A rate for people; a dash for none.
fn rate_text(rate: QosRate) -> String {
    let bytes = rate.bytes_per_s.map(|bytes| format!("{}/s", size::human(bytes)));
    let ops = rate.ops_per_s.map(|ops| format!("{ops} ops/s"));
    let all: Vec<String> = [bytes, ops].into_iter().flatten().collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

fn tell(info: &QosInfo, as_json: bool) -> Result<ExitCode, Failure> {
    if as_json {
        out::json(&shape(info))?;
        return Ok(ExitCode::SUCCESS);
    }
    let spec = &info.spec;
    let latency = if spec.is_interactive { "interactive" } else { "bulk" };
    let mut rows = vec![
        ("policy", info.id.clone()),
        ("whose work", info.subject.to_string()),
        ("floor", rate_text(spec.floor)),
        ("ceiling", rate_text(spec.ceiling)),
        ("weight", spec.weight.to_string()),
        ("latency", latency.to_owned()),
        ("given", rate_text(info.given)),
        ("used", rate_text(info.used)),
        ("waiting", info.waiting.to_string()),
    ];
    if let Some(prefix) = &info.export {
        rows.push(("export of", if prefix.is_empty() { "all of it".to_owned() } else { prefix.clone() }));
    }
    out::fields(&rows)?;
    Ok(ExitCode::SUCCESS)
}

fn list(report: &QosReport) -> Result<(), Failure> {
    let row = |info: &QosInfo| {
        vec![
            info.id.clone(),
            info.subject.to_string(),
            format!("floor {}", rate_text(info.spec.floor)),
            format!("given {}", rate_text(info.given)),
            format!("used {}", rate_text(info.used)),
            format!("ceiling {}", rate_text(info.spec.ceiling)),
        ]
    };
    out::table(&report.policies.iter().map(row).collect::<Vec<_>>())?;
    let capacity = match report.capacity.is_none() {
        true => "what the drives do is not known yet: nobody saw them busy".to_owned(),
        false => format!(
            "the drives do {}; {} could be promised",
            rate_text(report.capacity),
            rate_text(report.free)
        ),
    };
    let silent = match report.silent {
        0 => String::new(),
        silent => format!("; {silent} nodes do not say what they do"),
    };
    out::say(format!("{capacity}{silent}"));
    Ok(())
}
