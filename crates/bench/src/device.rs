//! `stoker bench device`: what the drive can do without the ring.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::machine;
use super::measure::Side;
use super::raw::{RawFile, RawQueue};
use super::scratch::Scratch;
use super::workload::{DEVICE, Job, Limit, Mix, Order};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{out, size};

/// Arguments of `bench device`.
#[derive(clap::Args)]
pub struct Args {
    /// A directory on the drive; a file is made in it and removed at the end.
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// Size of the file.
    #[arg(long, value_parser = size::parse, default_value = "4GiB")]
    size: u64,
    /// Length of one round of one load.
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = super::ring::seconds)]
    seconds_per_round: f64,
    /// Rounds of each load, in turn with those of the others.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

struct Load {
    name: String,
    job: Job,
    side: Side,
}

fn loads() -> Vec<Load> {
    let mut loads = Vec::new();
    for (mix, verb) in [(Mix::Reads, "read"), (Mix::Writes, "write")] {
        for (order, word) in [(Order::Sequential, "seq"), (Order::Random, "rand")] {
            for (size, len, depth) in DEVICE {
                let name = format!("{word}_{verb}_{size}");
                loads.push(Load { name, job: Job { len, depth, mix, order }, side: Side::default() });
            }
        }
    }
    loads
}

/// Measures a drive.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let largest = DEVICE[0].1 as u64;
    if args.size < 16 * largest {
        return Err(Failure::new("the file is too small")
            .hint(format!("choose --size {} or more", size::human(16 * largest))));
    }
    let size = args.size / largest * largest;
    let scratch = Scratch::new(&args.dir, size + (64 << 20))?;
    let path = scratch.join("raw");
    let failed = |e: std::io::Error| Failure::io(path.display(), &e);
    let prewrite = Progress::over_bytes(size, args.json);
    prewrite.say("write the file once");
    let file = RawFile::make(&path, size, &prewrite).map_err(failed)?;
    drop(prewrite);

    let mut loads = loads();
    let progress = Progress::over_steps(loads.len() as u64 * u64::from(args.rounds), args.json);
    let mut queues = Vec::new();
    for load in &loads {
        queues.push(file.queue(&load.job).map_err(failed)?);
    }
    // Each load once per lap, so that a drive that slows down or speeds up does so for all of them.
    for _ in 0..args.rounds {
        for (load, queue) in loads.iter_mut().zip(&mut queues) {
            progress.say(load.name.clone());
            load.side.0.push(queue.round(Limit::Seconds(args.seconds_per_round)).map_err(failed)?);
            progress.add(1);
        }
    }
    drop(progress);
    let is_registered = queues.iter().all(RawQueue::is_registered);
    let mut machine = machine::describe(&args.dir);
    machine["io_engine"] = if is_registered { "io_uring, registered buffers" } else { "io_uring" }.into();
    machine["direct"] = file.is_direct().into();
    machine["sync"] = "RWF_DSYNC".into();
    machine["size_bytes"] = size.into();
    if args.json {
        let workloads: Vec<Value> = loads.iter().map(json_of).collect();
        out::json(&json!({ "bench": "device", "workloads": workloads, "machine": machine }))?;
    } else {
        print(&loads)?;
        out::say(format!("{machine}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn json_of(load: &Load) -> Value {
    let (side, (min, max)) = (&load.side, load.side.mb_s_range());
    json!({
        "name": load.name,
        "bytes": load.job.len,
        "queue_depth": load.job.depth,
        "mb_s": side.mb_s(),
        "mb_s_min": min,
        "mb_s_max": max,
        "iops": side.iops(),
        "p50_us": side.latency_us(0.5),
        "p99_us": side.latency_us(0.99),
        "cpu_s_per_gib": side.cpu_s_per_gib(),
    })
}

fn print(loads: &[Load]) -> Result<(), Failure> {
    let heads = ["load", "depth", "MB/s", "iops", "p50 us", "p99 us", "cpu s/GiB", "MB/s min..max"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(loads.iter().map(|load| {
        let (side, (min, max)) = (&load.side, load.side.mb_s_range());
        vec![
            load.name.clone(),
            load.job.depth.to_string(),
            format!("{:.1}", side.mb_s()),
            out::count(side.iops() as u64),
            format!("{:.0}", side.latency_us(0.5)),
            format!("{:.0}", side.latency_us(0.99)),
            format!("{:.2}", side.cpu_s_per_gib()),
            format!("{min:.1}..{max:.1}"),
        ]
    }));
    out::table(&rows)
}
