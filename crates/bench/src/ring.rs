//! `stoker bench ring`: the ring against the same drive without it, in one run.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use stoker_ring::{Status, SyncMode};

use super::measure::Side;
use super::raw::RawFile;
use super::report::{self, Finding};
use super::scratch::Scratch;
use super::subject::Subject;
use super::workload::{Bars, Limit, Mix, RECOVERY, WORKLOADS, Workload};
use super::{machine, recovery};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{out, size};

/// Each side warms up for this long at most before a workload is measured.
const WARM_UP_S: f64 = 0.2;

/// Arguments of `bench ring`.
#[derive(clap::Args)]
pub struct Args {
    /// A directory on the drive; a ring and a file are made in it and removed at the end.
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// Size of the ring, and of the file that the bare drive is measured with.
    #[arg(long, value_parser = size::parse, default_value = "4GiB")]
    size: u64,
    /// Length of one round of one side.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Rounds of each side, alternating.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only these, comma-separated: append_4m, append_1m, append_64k, append_4k, append_4k_qd1, read_4m, read_1m,
    /// read_64k, read_4k, mixed_4m, recovery.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    workloads: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A length of time that a round can have.
pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, such as 0.5")?;
    if (0.01..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("expected between 0.01 and 3600 seconds".into())
    }
}

impl Args {
    fn chosen(&self) -> Result<(Vec<Workload>, bool), Failure> {
        let is_known = |name: &&String| *name == RECOVERY || WORKLOADS.iter().any(|w| w.name == **name);
        if let Some(unknown) = self.workloads.iter().find(|name| !is_known(name)) {
            let names: Vec<&str> = WORKLOADS.iter().map(|w| w.name).chain([RECOVERY]).collect();
            return Err(Failure::new(format!("there is no workload `{unknown}`")).hint(names.join(", ")));
        }
        let wants = |name: &str| self.workloads.is_empty() || self.workloads.iter().any(|n| n == name);
        Ok((WORKLOADS.into_iter().filter(|w| wants(w.name)).collect(), wants(RECOVERY)))
    }
}

/// Measures the ring.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (workloads, with_recovery) = args.chosen()?;
    if args.size < 512 << 20 {
        return Err(Failure::new("the ring is too small to measure").hint("choose --size 512MiB or more"));
    }
    let segment_size = stoker_ring::segment_size_for(args.size);
    let size = args.size / segment_size * segment_size;
    let scratch = Scratch::new(&args.dir, 2 * size + (256 << 20))?;
    let (raw_path, ring_path) = (scratch.join("raw"), scratch.join("ring"));

    let setup = Progress::over_bytes(2 * size, args.json);
    setup.say("write the file once");
    let raw = RawFile::make(&raw_path, size, &setup).map_err(|e| Failure::io(raw_path.display(), &e))?;
    setup.say("make the ring");
    let mut subject = Subject::make(&ring_path, size)?;
    // One lap, so that every append that is measured pays for reclaim.
    setup.say("fill the ring");
    subject.fill(size, &setup)?;
    drop(setup);

    let steps = 2 * (workloads.len() as u64 + u64::from(with_recovery)) * u64::from(args.rounds);
    let progress = Progress::over_steps(steps, args.json);
    let mut findings = Vec::new();
    for workload in &workloads {
        progress.say(workload.name);
        let [raw_side, ring_side] = measure(workload, &raw, &mut subject, args, &progress)?;
        findings.push(Finding::new(workload.name, workload.bars, raw_side, ring_side));
    }
    let status = subject.status()?;
    subject.close()?;
    if with_recovery {
        progress.say(RECOVERY);
        let [raw_side, ring_side] =
            recovery::measure(&ring_path, segment_size, &raw, args.rounds, &progress)?;
        findings.push(Finding::new(RECOVERY, Bars::default(), raw_side, ring_side));
    }
    drop(progress);

    let machine = describe(args, &status, raw.is_direct());
    if args.json {
        let workloads: Vec<Value> = findings.iter().map(Finding::json).collect();
        out::json(&json!({ "bench": "ring", "workloads": workloads, "machine": machine }))?;
    } else {
        report::print(&findings)?;
        out::say(format!("{machine}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Alternates rounds of the bare drive and of the ring, as a, b, b, a, so that drift cancels out.
fn measure(
    workload: &Workload,
    raw: &RawFile,
    subject: &mut Subject,
    args: &Args,
    progress: &Progress,
) -> Result<[Side; 2], Failure> {
    let failed = |e: std::io::Error| Failure::io("the bare drive", &e);
    let job = &workload.job;
    if job.mix != Mix::Writes {
        subject.make_resident(&Progress::over_steps(0, true))?;
    }
    subject.equip(job);
    let mut queue = raw.queue(job).map_err(failed)?;
    let (warm_up, limit) = (Limit::Seconds(args.seconds.min(WARM_UP_S)), Limit::Seconds(args.seconds));
    queue.round(warm_up).map_err(failed)?;
    subject.round(job, warm_up)?;
    let (mut raw_side, mut ring_side) = (Side::default(), Side::default());
    for round in 0..args.rounds {
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                raw_side.0.push(queue.round(limit).map_err(failed)?);
            } else {
                ring_side.0.push(subject.round(job, limit)?);
            }
            progress.add(1);
        }
    }
    Ok([raw_side, ring_side])
}

fn describe(args: &Args, status: &Status, raw_is_direct: bool) -> Value {
    let mut machine = machine::describe(&args.dir);
    machine["io_engine"] = status.io_engine.clone().into();
    machine["io_fallback"] = status.io_fallback.clone().into();
    machine["direct"] = (status.direct && raw_is_direct).into();
    machine["sync"] = match status.sync {
        SyncMode::Dsync => "RWF_DSYNC",
        SyncMode::Flush => "fdatasync",
    }
    .into();
    machine["size_bytes"] =
        (status.superblock.segment_size * u64::from(status.superblock.segment_count)).into();
    machine["seconds"] = args.seconds.into();
    machine["rounds"] = args.rounds.into();
    machine
}
