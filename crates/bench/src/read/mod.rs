//! `stoker bench read`: 1 MiB at a time from a drive here, from another node and from the lake, against the same without
//! Stoker. Nothing is in memory before: the nodes have no cache, and pages of the lake's files are dropped.

mod client;
mod data;
mod lake;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};
use stoker_store::{Class, File};

use self::client::{Anywhere, Whole};
use self::lake::LakeFolder;
use super::cell::{self, Pair, Place, Security, Until};
use super::measure::{Round, Side};
use super::raw::{RawFile, TcpLeg};
use super::report::{self, Finding};
use super::scratch::Scratch;
use super::workload::{Bars, CHUNK, Job, Limit, Mix, Order};
use super::{machine, ring};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{out, size};

/// What one operation reads, and how many are under way.
const READ: Job = Job { len: 1 << 20, depth: 16, mix: Mix::Reads, order: Order::Random };
/// Each side warms up for this long at most before a workload is measured.
const WARM_UP_S: f64 = 0.2;
const SIZE_MIN: u64 = 512 << 20;
/// `--quick` takes these.
const QUICK: (f64, u32, u64) = (0.2, 2, 1 << 30);

/// Volumes: on a drive of the near node, on one of the far node, in the lake.
const HERE: &str = "here";
const THERE: &str = "there";
const COLD: &str = "cold";

/// Where the bytes are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Drive,
    Peer,
    Lake,
}

struct Workload {
    name: &'static str,
    from: From,
    security: Security,
    bars: Bars,
}

const NONE: Bars = Bars { ratio_min: None, p50_max: None, p99_max: None };

const fn workload(name: &'static str, from: From, security: Security, bars: Bars) -> Workload {
    Workload { name, from, security, bars }
}

const WORKLOADS: [Workload; 4] = [
    workload("read_local_1m", From::Drive, Security::Plain, NONE),
    workload("read_cell_1m", From::Peer, Security::Plain, Bars { ratio_min: Some(0.8), ..NONE }),
    workload("read_lake_1m", From::Lake, Security::Plain, NONE),
    workload("read_cell_1m_tls", From::Peer, Security::Tls, NONE),
];

/// Arguments of `bench read`.
#[derive(clap::Args)]
pub struct Args {
    /// A directory on the drive; two nodes, a lake and a file are made in it and removed at the end.
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// Size of each of the two rings, of the lake, and of the file that the bare drive is measured with.
    #[arg(long, value_parser = size::parse, default_value = "2GiB")]
    size: u64,
    /// Length of one round of one side. Rounds of the lake end when each byte of their share was read once.
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = ring::seconds)]
    seconds: f64,
    /// Rounds of each side, alternating.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=64))]
    rounds: u32,
    /// Only these, comma-separated: read_local_1m, read_cell_1m, read_lake_1m, read_cell_1m_tls.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    workloads: Vec<String>,
    /// A short run with small files: a first impression, not a figure.
    #[arg(long, conflicts_with_all = ["size", "seconds", "rounds"])]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Measures reads.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let chosen = super::chosen(&WORKLOADS, &args.workloads, |workload| workload.name)?;
    let (seconds, rounds, bytes) = if args.quick { QUICK } else { (args.seconds, args.rounds, args.size) };
    if bytes < SIZE_MIN {
        return Err(Failure::new("the rings are too small to measure")
            .hint(format!("choose --size {} or more", size::human(SIZE_MIN))));
    }
    let bytes = bytes / CHUNK as u64 * CHUNK as u64;
    let scratch = Scratch::new(&args.dir, 6 * bytes + (512 << 20))?;
    let mut bench = Bench::make(&scratch, &chosen, bytes, seconds, rounds, args.json)?;
    let progress = Progress::over_steps(2 * chosen.len() as u64 * u64::from(rounds), args.json);
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
        out::json(&json!({ "bench": "read", "workloads": workloads, "machine": machine }))?;
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
    raw: RawFile,
    raw_path: PathBuf,
    lake: Option<LakeFolder>,
    bytes: u64,
    seconds: f64,
    rounds: u32,
    /// Something is read from the near node's drive.
    is_local: bool,
}

impl Bench {
    fn make(
        scratch: &Scratch,
        chosen: &[&Workload],
        bytes: u64,
        seconds: f64,
        rounds: u32,
        quiet: bool,
    ) -> Result<Bench, Failure> {
        let wants = |from: From| chosen.iter().any(|workload| workload.from == from);
        let setup = Progress::over_bytes(bytes, quiet);
        setup.say("write a file once");
        let raw_path = scratch.join("raw");
        let raw = RawFile::make(&raw_path, bytes, &setup).map_err(|e| Failure::io(raw_path.display(), &e))?;
        let lake = match wants(From::Lake) {
            true => {
                setup.say("write the lake");
                Some(LakeFolder::make(scratch.join("lake"), bytes, rounds + 1)?)
            }
            false => None,
        };
        setup.say("make two nodes");
        let dir = scratch.join("");
        let mut bench = Bench {
            pair: None,
            security: Security::Plain,
            dir,
            raw,
            raw_path,
            lake,
            bytes,
            seconds,
            rounds,
            is_local: wants(From::Drive),
        };
        bench.start(Security::Plain)?;
        Ok(bench)
    }

    /// Makes two nodes and writes what is to be read: a part of each ring, so that nothing is moved meanwhile.
    fn start(&mut self, security: Security) -> Result<(), Failure> {
        let place = Place { dir: self.dir.join(security.as_str()), ring_bytes: self.bytes };
        let pair = Pair::make(place, security)?;
        let is_local = self.is_local && security == Security::Plain;
        for (volume, seat, is_wanted) in [(HERE, pair.near(), is_local), (THERE, pair.far(), true)] {
            if is_wanted {
                pair.make_volume(volume, Class::One)?;
                data::write(seat, volume, self.bytes * 3 / 8)?;
            }
        }
        if let Some(lake) = &self.lake {
            pair.make_lake_volume(COLD, lake.url())?;
        }
        (self.pair, self.security) = (Some(pair), security);
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

    fn measure(&mut self, workload: &Workload, progress: &Progress) -> Result<Finding, Failure> {
        if self.security != workload.security {
            if let Some(pair) = self.pair.take() {
                pair.stop();
            }
            self.start(workload.security)?;
        }
        let failed = |e: std::io::Error| Failure::io("the bare drive", &e);
        let [raw, ours] = match workload.from {
            From::Drive => {
                let mut queue = self.raw.queue(&READ).map_err(failed)?;
                self.alternate(HERE, progress, |limit| queue.round(limit).map_err(failed))?
            }
            From::Peer => {
                let mut leg = TcpLeg::start(&self.raw_path, self.bytes, READ).map_err(failed)?;
                self.alternate(THERE, progress, |limit| leg.round(limit).map_err(failed))?
            }
            From::Lake => self.share_by_share(progress)?,
        };
        Ok(Finding::new(workload.name, workload.bars, raw, ours))
    }

    /// Alternates rounds of the bare side and of Stoker, as a, b, b, a, over files that stay where they are.
    fn alternate(
        &self,
        volume: &str,
        progress: &Progress,
        mut raw: impl FnMut(Limit) -> Result<Round, Failure>,
    ) -> Result<[Side; 2], Failure> {
        let files = Arc::new(data::open(self.pair().near(), volume)?);
        let warm_up = self.seconds.min(WARM_UP_S);
        raw(Limit::Seconds(warm_up))?;
        // CRC tables of chunks are in memory from then on, as they are of all that is read often.
        data::touch(self.pair().near(), &files)?;
        self.anywhere(&files, warm_up)?;
        let (mut raw_side, mut our_side) = (Side::default(), Side::default());
        for round in 0..self.rounds {
            for turn in 0..2 {
                if (round + turn) % 2 == 0 {
                    raw_side.0.push(raw(Limit::Seconds(self.seconds))?);
                } else {
                    our_side.0.push(self.anywhere(&files, self.seconds)?);
                }
                progress.add(1);
            }
        }
        Ok([raw_side, our_side])
    }

    fn anywhere(&self, files: &Arc<Vec<Box<dyn File>>>, seconds: f64) -> Result<Round, Failure> {
        let clients = (0..READ.depth).map(|slot| Anywhere::new(files.clone(), slot)).collect();
        let until = Until { seconds, bytes: u64::MAX };
        Ok(cell::round(self.pair().near().runtime(), clients, READ.len, until)?.1)
    }

    /// Rounds over shares of the lake, each read once by either side, so that nothing is kept anywhere.
    fn share_by_share(&self, progress: &Progress) -> Result<[Side; 2], Failure> {
        let lake = self.lake.as_ref().expect("made for this workload");
        let near = self.pair().near();
        let (mut raw_side, mut our_side) = (Side::default(), Side::default());
        for round in 0..=self.rounds {
            let share = lake.share(round);
            for turn in 0..2 {
                lake.forget_pages(&share)?;
                let is_raw = (round + turn) % 2 == 0;
                let measured = match is_raw {
                    true => lake.read_bare(&share, &READ)?,
                    false => {
                        let files = Arc::new(share.clone().collect::<Vec<_>>());
                        let clients = Whole::clients(near.node(), COLD, files, READ.depth);
                        let until = Until { seconds: f64::MAX, bytes: u64::MAX };
                        cell::round(near.runtime(), clients, READ.len, until)?.1
                    }
                };
                // The first share warms up.
                if round > 0 {
                    if is_raw { &mut raw_side } else { &mut our_side }.0.push(measured);
                    progress.add(1);
                }
            }
        }
        Ok([raw_side, our_side])
    }
}
