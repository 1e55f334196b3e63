//! `stoker bench commit`: a chunk on two nodes before the acknowledgement, against what the drive and a connection do bare.
//!
//! Both nodes have their ring on the same drive, so each chunk is written to it twice. Bare, that is two streams of durable
//! writes; and the way of the second copy is a connection, a receiver that has all bytes, a durable write and an answer.

mod client;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use stoker_store::Class;

use self::client::{Commit, Publish, VOLUME};
use super::cell::{self, Pair, Place, Security, Until};
use super::measure::{Round, Side};
use super::raw::{RawFile, Streams, TcpLeg};
use super::report::{self, Finding};
use super::scratch::Scratch;
use super::workload::{Bars, CHUNK, Job, Limit, Mix, Order};
use super::{machine, ring};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{out, size};

/// Each side warms up for this long at most before a workload is measured.
const WARM_UP_S: f64 = 0.2;
/// What deletes leave to do has this long: the next round is another side's.
const SETTLE: Duration = Duration::from_millis(50);
/// Smallest ring whose segments hold chunks of full length.
const SIZE_MIN: u64 = 512 << 20;
/// `--quick` takes these.
const QUICK: (f64, u32, u64) = (0.2, 2, 1 << 30);

/// What is done with a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Committed.
    Chunk,
    /// Committed and published as a file of its own.
    File,
}

struct Workload {
    name: &'static str,
    kind: Kind,
    depth: usize,
    security: Security,
    bars: Bars,
}

const fn workload(name: &'static str, kind: Kind, depth: usize, security: Security, bars: Bars) -> Workload {
    Workload { name, kind, depth, security, bars }
}

const NONE: Bars = Bars { ratio_min: None, p50_max: None, p99_max: None };

/// In the order in which they run: those with another security come last, since they have nodes of their own.
const WORKLOADS: [Workload; 6] = [
    workload("commit_4m_qd1", Kind::Chunk, 1, Security::Plain, Bars { p50_max: Some(1.3), ..NONE }),
    workload("commit_4m_qd16", Kind::Chunk, 16, Security::Plain, Bars { ratio_min: Some(0.85), ..NONE }),
    workload("publish_4m_qd1", Kind::File, 1, Security::Plain, NONE),
    workload("publish_4m_qd16", Kind::File, 16, Security::Plain, NONE),
    workload("commit_4m_qd1_tls", Kind::Chunk, 1, Security::Tls, NONE),
    workload("commit_4m_qd16_tls", Kind::Chunk, 16, Security::Tls, NONE),
];

/// Arguments of `bench commit`.
#[derive(clap::Args)]
pub struct Args {
    /// A directory on the drive; two nodes and two files are made in it and removed at the end.
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// Size of each of the two rings, and of each of the two files that the bare drive is measured with.
    #[arg(long, value_parser = size::parse, default_value = "2GiB")]
    size: u64,
    /// Length of one round of one side.
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = ring::seconds)]
    seconds: f64,
    /// Rounds of each side, alternating.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only these, comma-separated: commit_4m_qd1, commit_4m_qd16, publish_4m_qd1, publish_4m_qd16, commit_4m_qd1_tls,
    /// commit_4m_qd16_tls.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    workloads: Vec<String>,
    /// A short run with small files: a first impression, not a figure.
    #[arg(long, conflicts_with_all = ["size", "seconds", "rounds"])]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Measures commits.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let chosen = super::chosen(&WORKLOADS, &args.workloads, |workload| workload.name)?;
    let (seconds, rounds, bytes) = if args.quick { QUICK } else { (args.seconds, args.rounds, args.size) };
    if bytes < SIZE_MIN {
        return Err(Failure::new("the rings are too small to measure")
            .hint(format!("choose --size {} or more", size::human(SIZE_MIN))));
    }
    let bytes = bytes / CHUNK as u64 * CHUNK as u64;
    let scratch = Scratch::new(&args.dir, 6 * bytes + (512 << 20))?;
    let mut bench = Bench::make(&scratch, bytes, seconds, rounds, args.json)?;
    let progress = Progress::over_steps(3 * chosen.len() as u64 * u64::from(rounds), args.json);
    let mut findings = Vec::new();
    for workload in chosen {
        progress.say(workload.name);
        findings.push(bench.measure(workload, &progress)?);
    }
    drop(progress);
    bench.stop();
    let mut machine = machine::describe(&args.dir);
    machine["size_bytes"] = bytes.into();
    machine["seconds"] = seconds.into();
    machine["rounds"] = rounds.into();
    if args.json {
        let workloads: Vec<Value> = findings.iter().map(Finding::json).collect();
        out::json(&json!({ "bench": "commit", "workloads": workloads, "machine": machine }))?;
    } else {
        report::print(&findings)?;
        out::say(format!("{machine}"));
    }
    Ok(ExitCode::SUCCESS)
}

struct Bench {
    /// None only while others are made.
    pair: Option<Pair>,
    security: Security,
    dir: PathBuf,
    files: [Arc<RawFile>; 2],
    leg_path: PathBuf,
    bytes: u64,
    seconds: f64,
    rounds: u32,
}

impl Bench {
    fn make(scratch: &Scratch, bytes: u64, seconds: f64, rounds: u32, quiet: bool) -> Result<Bench, Failure> {
        let setup = Progress::over_bytes(2 * bytes, quiet);
        setup.say("write two files once");
        let make = |name: &str| {
            let path = scratch.join(name);
            RawFile::make(&path, bytes, &setup).map(Arc::new).map_err(|e| Failure::io(path.display(), &e))
        };
        let files = [make("raw-1")?, make("raw-2")?];
        setup.say("make two nodes");
        let (dir, leg_path) = (scratch.join(""), scratch.join("raw-2"));
        let mut bench =
            Bench { pair: None, security: Security::Plain, dir, files, leg_path, bytes, seconds, rounds };
        bench.start(Security::Plain)?;
        Ok(bench)
    }

    /// Makes two nodes and goes round in their rings once, so that every append that is measured pays for reclaim.
    fn start(&mut self, security: Security) -> Result<(), Failure> {
        let place = Place { dir: self.dir.join(security.as_str()), ring_bytes: self.bytes };
        let pair = Pair::make(place, security)?;
        pair.make_volume(VOLUME, Class::Two)?;
        (self.pair, self.security) = (Some(pair), security);
        for _ in 0..4 {
            self.commits(16, Until { seconds: f64::MAX, bytes: self.bytes / 4 })?;
        }
        Ok(())
    }

    fn pair(&self) -> &Pair {
        self.pair.as_ref().expect("the nodes run")
    }

    fn stop(self) {
        if let Some(pair) = self.pair {
            pair.stop();
        }
    }

    /// Other nodes, if those that run have another security.
    fn secure(&mut self, security: Security) -> Result<(), Failure> {
        if self.security != security {
            if let Some(pair) = self.pair.take() {
                pair.stop();
            }
            self.start(security)?;
        }
        Ok(())
    }

    fn commits(&self, depth: usize, until: Until) -> Result<Round, Failure> {
        let near = self.pair().near();
        let trial = Arc::new(near.runtime().block_on(near.node().chunk_trial(VOLUME))?);
        let clients = (0..depth).map(|slot| Commit::new(trial.clone(), slot)).collect();
        let (clients, round) = cell::round(near.runtime(), clients, CHUNK, until)?;
        drop(clients);
        let trial = Arc::into_inner(trial).expect("every client has ended");
        near.runtime().block_on(trial.discard())?;
        thread::sleep(SETTLE);
        Ok(round)
    }

    fn publishes(&self, depth: usize, until: Until) -> Result<Round, Failure> {
        let near = self.pair().near();
        let clients = (0..depth).map(|slot| Publish::new(near.node().clone(), slot)).collect();
        let (_, round) = cell::round(near.runtime(), clients, CHUNK, until)?;
        thread::sleep(SETTLE);
        Ok(round)
    }

    fn ours(&self, workload: &Workload, seconds: f64) -> Result<Round, Failure> {
        // What is not deleted yet must fit, with room to reclaim; published files are deleted in the background.
        match workload.kind {
            Kind::Chunk => self.commits(workload.depth, Until { seconds, bytes: self.bytes * 3 / 8 }),
            Kind::File => self.publishes(workload.depth, Until { seconds, bytes: self.bytes / 16 }),
        }
    }

    /// Alternates rounds of two bare streams, of the bare connection and of Stoker, forwards and backwards.
    fn measure(&mut self, workload: &Workload, progress: &Progress) -> Result<Finding, Failure> {
        self.secure(workload.security)?;
        let failed = |e: std::io::Error| Failure::io("the bare drive", &e);
        let job = Job { len: CHUNK, depth: workload.depth, mix: Mix::Writes, order: Order::Sequential };
        let mut streams = Streams::start(&self.files, job).map_err(failed)?;
        let mut leg = TcpLeg::start(&self.leg_path, self.bytes, job).map_err(failed)?;
        let warm_up = self.seconds.min(WARM_UP_S);
        streams.round(Limit::Seconds(warm_up)).map_err(failed)?;
        leg.round(Limit::Seconds(warm_up)).map_err(failed)?;
        self.ours(workload, warm_up)?;
        let limit = Limit::Seconds(self.seconds);
        let (mut bare, mut tcp, mut ours) = (Side::default(), Side::default(), Side::default());
        for round in 0..self.rounds {
            let turns = if round % 2 == 0 { [0, 1, 2] } else { [2, 1, 0] };
            for turn in turns {
                match turn {
                    0 => bare.0.push(streams.round(limit).map_err(failed)?),
                    1 => tcp.0.push(leg.round(limit).map_err(failed)?),
                    _ => ours.0.push(self.ours(workload, self.seconds)?),
                }
                progress.add(1);
            }
        }
        let more = [
            ("streams_mb_s", bare.mb_s()),
            ("streams_p50_us", bare.latency_us(0.5)),
            ("tcp_leg_mb_s", tcp.mb_s()),
            ("tcp_leg_p50_us", tcp.latency_us(0.5)),
            ("tcp_leg_cpu_s_per_gib", tcp.cpu_s_per_gib()),
        ];
        // One at a time, a commit cannot be faster than the slower of the two ways; many at a time, not than the drive.
        let slower = workload.depth == 1 && tcp.latency_us(0.5) > bare.latency_us(0.5);
        let raw = if slower { tcp } else { bare };
        Ok(Finding::new(workload.name, workload.bars, raw, ours).with(more))
    }
}
