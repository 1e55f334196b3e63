//! Jobs as people and programs see them.

use serde_json::{Value, json};
use stoker_jobs::Place;
use stoker_store::{JobAccess, JobInfo, JobReadiness, JobSpec, Tier};

use crate::failure::Failure;
use crate::{clock, out, show, size, span};

/// Where a job sees its output.
const OUTPUT_TARGET: &str = "/output";

/// A job in a line.
pub fn line(job: &JobInfo) -> String {
    format!("{}  {}  {}", job.id, job.state.word(), job.reason)
}

/// A job in a table.
pub fn row(job: &JobInfo) -> Vec<String> {
    let id = match job.tenant.as_str() {
        stoker_store::TENANT_DEFAULT => job.id.clone(),
        tenant => format!("{tenant}/{}", job.id),
    };
    let (bytes, _) = job.bytes();
    vec![id, job.state.word().to_owned(), percent(job), size::human(bytes), job.reason.clone()]
}

fn percent(job: &JobInfo) -> String {
    job.readiness().map_or("-".to_owned(), |share| format!("{:.0}%", (share * 100.0).floor()))
}

/// All that is known of a job.
pub fn whole(job: &JobInfo) -> Result<(), Failure> {
    let (bytes, resident) = job.bytes();
    let mut rows = vec![
        ("job", format!("{}/{}", job.tenant, job.id)),
        ("state", format!("{}: {}", job.state.word(), job.reason)),
        ("data", format!("{} of {} on drives ({})", size::human(resident), size::human(bytes), percent(job))),
    ];
    for (name, value) in [("name", &job.name), ("user", &job.user)] {
        if !value.is_empty() {
            rows.push((name, value.clone()));
        }
    }
    rows.extend(job.project.clone().map(|project| ("project", project)));
    rows.extend(job.cell.clone().filter(|cell| !cell.is_empty()).map(|cell| ("cell", cell)));
    rows.extend(job.ready_ms.map(|at| ("ready at", clock::rfc3339(at))));
    rows.extend(job.expected_start_ms.map(|at| ("expected", clock::rfc3339(at))));
    if job.expires_ms > 0 {
        rows.push(("reserved", format!("until {}", clock::rfc3339(job.expires_ms))));
    }
    if !job.nodes.is_empty() {
        rows.push(("nodes", job.nodes.join(", ")));
    }
    rows.extend(job.spec.output.clone().map(|output| ("output", output)));
    rows.extend(job.checkpoints.clone().map(|checkpoints| ("checkpoints", checkpoints)));
    if job.spec.scratch_per_node > 0 {
        rows.push(("scratch", format!("{} on each node", size::human(job.spec.scratch_per_node))));
    }
    rows.extend(bandwidth(job).map(|wanted| ("bandwidth", wanted)));
    out::fields(&rows)?;
    let table: Vec<Vec<String>> = job.sources.iter().map(source_row).collect();
    if !table.is_empty() {
        out::line("")?;
        out::table(&table)?;
    }
    out::line("")?;
    let first = job.steps.first().map_or(0, |step| step.at_ms);
    let steps: Vec<Vec<String>> = job
        .steps
        .iter()
        .map(|step| {
            let since = span::human(step.at_ms.saturating_sub(first));
            vec![
                clock::rfc3339(step.at_ms),
                format!("+{since}"),
                step.state.word().to_owned(),
                step.reason.clone(),
            ]
        })
        .collect();
    out::table(&steps)?;
    job.notes.iter().try_for_each(|note| out::line(format!("note: {note}")))
}

fn source_row(source: &stoker_store::JobSource) -> Vec<String> {
    let state = match (source.tier_hint, source.is_counted) {
        (Tier::Hot, false) => "not counted yet".to_owned(),
        (Tier::Hot, true) => format!(
            "{} of {} in {}",
            size::human(source.resident_bytes),
            size::human(source.bytes),
            show::count(source.files, "file")
        ),
        (Tier::Warm | Tier::Cold, _) => "read where it is".to_owned(),
    };
    let state = source.trouble.as_ref().map_or(state.clone(), |why| format!("{state}: {why}"));
    vec![source.target.clone(), source.source.clone(), word(source.access).to_owned(), state]
}

fn word(access: JobAccess) -> &'static str {
    match access {
        JobAccess::ReadOnly => "read-only",
        JobAccess::ReadWrite => "read-write",
    }
}

/// What it wants of drives, and whether it has it.
fn bandwidth(job: &JobInfo) -> Option<String> {
    let qos = &job.spec.qos;
    let rate = |name: &str, rate: u64| (rate > 0).then(|| format!("{name} {}/s", size::human(rate)));
    let latency = qos.interactive.then(|| "interactive".to_owned());
    let all = [rate("floor", qos.floor_bytes_per_s), rate("ceiling", qos.ceiling_bytes_per_s), latency];
    let all: Vec<String> = all.into_iter().flatten().collect();
    let held = if job.qos_enforced { "held" } else { "not held" };
    (!all.is_empty()).then(|| format!("{}: {held}", all.join(", ")))
}

/// What a job script wants to know.
pub fn env(job: &JobInfo) -> Result<(), Failure> {
    // What connections say of their job, as a policy about it names it.
    let mut lines = vec![("STOKER_JOB", job.id.clone()), ("STOKER_JOB_TENANT", job.tenant.clone())];
    lines.extend(job.spec.output.clone().map(|output| ("STOKER_OUTPUT", output)));
    lines.extend(job.checkpoints.clone().map(|at| ("STOKER_CHECKPOINTS", at)));
    if job.spec.scratch_per_node > 0 {
        lines.push(("STOKER_SCRATCH_BYTES", job.spec.scratch_per_node.to_string()));
    }
    lines.iter().try_for_each(|(name, value)| out::line(format!("{name}={value}")))
}

/// Its mounts for whoever mounts them; its output is the last one.
pub fn mounts(job: &JobInfo) -> Result<(), Failure> {
    let mounts = job.spec.mounts.iter().map(|mount| {
        let access = match mount.access {
            JobAccess::ReadOnly => "ro",
            JobAccess::ReadWrite => "rw",
        };
        (mount.source.as_str(), mount.target.as_str(), access)
    });
    let output = job.spec.output.as_deref().map(|output| (output, OUTPUT_TARGET, "out"));
    for (source, target, access) in mounts.chain(output) {
        let place = Place::parse(source).map_err(Failure::new)?;
        out::line(format!("{}\t{}\t{target}\t{access}", place.volume, place.path))?;
    }
    Ok(())
}

/// A job as an object.
pub fn json(job: &JobInfo) -> Value {
    let mut value = serde_json::to_value(job).unwrap_or_default();
    let (bytes, resident) = job.bytes();
    value["readiness"] = json!(job.readiness());
    value["bytes"] = bytes.into();
    value["resident_bytes"] = resident.into();
    value
}

/// A spec as an object.
pub fn spec_json(spec: &JobSpec) -> Value {
    serde_json::to_value(spec).unwrap_or_default()
}

/// How ready nodes are, as an object.
pub fn readiness_json(found: &JobReadiness) -> Value {
    serde_json::to_value(found).unwrap_or_default()
}

/// The same for people.
pub fn readiness(found: &JobReadiness) -> Result<(), Failure> {
    if !found.is_counted {
        out::say("its data was not counted yet");
    }
    let percent = |bytes: u64| match found.bytes {
        0 => "100%".to_owned(),
        all => format!("{:.0}%", bytes as f64 / all as f64 * 100.0),
    };
    let row = |node: &stoker_store::NodeReadiness| {
        let own = format!("{} on its own drives", size::human(node.own_bytes));
        vec![node.node.clone(), node.cell.clone(), percent(node.cell_bytes), own]
    };
    let rows: Vec<Vec<String>> = found.nodes.iter().map(row).collect();
    out::table(&rows)?;
    out::line(format!("ready: {:.0}% of {}", (found.share * 100.0).floor(), size::human(found.bytes)))
}
