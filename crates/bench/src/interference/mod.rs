//! `stoker bench interference`: a training loop on cores of its own, alone and beside a node that serves, commits or drains
//! as fast as it can on the other ones. What is left of the loop's speed is what they share without being asked: memory,
//! caches, the kernel.

mod load;
mod training;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stoker_client::{Client, Endpoint};
use stoker_store::{
    Class, DrainPolicy, File, Filler, Finish, Key, Store, StoreError, VolumeOptions, VolumePolicy,
    WriteRequest,
};
use tokio::runtime::Runtime;

use self::load::{READ, Serve, Write};
use self::training::{Steps, Training};
use super::cell::{self, Until};
use super::measure::{Round, median, range};
use super::s3::{Room, Stoker};
use super::scratch::Scratch;
use super::workload::CHUNK;
use super::{machine, ring};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::rng::Rng;
use crate::{out, size, sys};

/// Step time beside Stoker, at most so many times that of alone.
const RATIO_MAX: f64 = 1.05;
/// Requests of clients under way at the same time.
const DEPTH: u64 = 8;
const MEMORY_BYTES: u64 = 1 << 30;
const SIZE_MIN: u64 = 1 << 30;
/// Bytes of a file that is read.
const FILE: u64 = 64 << 20;
/// Volumes: what is read and committed stays here, what is drained has a lake.
const KEPT: &str = "kept";
const DRAINED: &str = "drained";
/// `--quick` takes these.
const QUICK: (f64, u32) = (0.3, 3);

/// What the node is busy with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Serve,
    Commit,
    Drain,
}

struct Workload {
    name: &'static str,
    kind: Kind,
}

const WORKLOADS: [Workload; 3] = [
    Workload { name: "interference_serve", kind: Kind::Serve },
    Workload { name: "interference_commit", kind: Kind::Commit },
    Workload { name: "interference_drain", kind: Kind::Drain },
];

/// Arguments of `bench interference`.
#[derive(clap::Args)]
pub struct Args {
    /// A directory on the drive; a node with its lake is made in it and removed at the end.
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// Size of the node's ring.
    #[arg(long, value_parser = size::parse, default_value = "4GiB")]
    size: u64,
    /// Length of one round of one side.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = ring::seconds)]
    seconds: f64,
    /// Rounds of each side, alternating.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=64))]
    rounds: u32,
    /// Cores for the node and its clients; the others train. By default half of them.
    #[arg(long, value_name = "N")]
    cores: Option<std::num::NonZeroUsize>,
    /// Only these, comma-separated: interference_serve, interference_commit, interference_drain.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    workloads: Vec<String>,
    /// A short run: a first impression, not a figure.
    #[arg(long, conflicts_with_all = ["seconds", "rounds"])]
    quick: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Cores of either side.
#[derive(Debug, PartialEq, Eq)]
struct Split {
    training: Vec<usize>,
    stoker: Vec<usize>,
}

impl Split {
    /// The last ones for the node, as `stoker up` takes them.
    fn of(allowed: &[usize], wanted: Option<usize>) -> Result<Split, Failure> {
        let count = wanted.unwrap_or(allowed.len() / 2);
        if count == 0 || count >= allowed.len() {
            let cause = format!("{count} of {} cores for the node leave nobody to compare", allowed.len());
            return Err(
                Failure::new(cause).hint("this takes two cores at least; choose --cores below their number")
            );
        }
        let (training, stoker) = allowed.split_at(allowed.len() - count);
        Ok(Split { training: training.to_vec(), stoker: stoker.to_vec() })
    }
}

/// Measures what a node does to a training loop.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let chosen = super::chosen(&WORKLOADS, &args.workloads, |workload| workload.name)?;
    if args.size < SIZE_MIN {
        return Err(Failure::new("the ring is too small to measure")
            .hint(format!("choose --size {} or more", size::human(SIZE_MIN))));
    }
    let (seconds, rounds) = if args.quick { QUICK } else { (args.seconds, args.rounds) };
    let allowed = sys::cores_allowed().map_err(|e| Failure::io("the cores of this process", &e))?;
    let split = Split::of(&allowed, args.cores.map(std::num::NonZeroUsize::get))?;
    let scratch = Scratch::new(&args.dir, 2 * args.size + (512 << 20))?;
    // This thread, the node that it starts and the clients; only what trains goes to the other cores.
    sys::keep_to_cores(&split.stoker).map_err(|e| Failure::io("keeping to some cores", &e))?;
    let training = Training::start(&split.training)?;
    let setup = Progress::over_steps(2, args.json);
    setup.say("make a node");
    let bench = Bench::make(&scratch, args.size, split.stoker.len())?;
    drop(setup);
    let progress = Progress::over_steps(2 * chosen.len() as u64 * u64::from(rounds), args.json);
    let mut findings = Vec::new();
    for workload in chosen {
        progress.say(workload.name);
        findings.push(bench.measure(workload, &training, seconds, rounds, &progress)?);
    }
    drop(progress);
    bench.stoker.stop()?;
    let mut machine = machine::describe(&args.dir);
    machine["cores_training"] = json!(split.training);
    machine["cores_stoker"] = json!(split.stoker);
    machine["cores_shared"] = shares_core(&split).into();
    machine["size_bytes"] = args.size.into();
    machine["seconds"] = seconds.into();
    machine["rounds"] = rounds.into();
    if args.json {
        let workloads: Vec<Value> = findings.iter().map(Finding::json).collect();
        out::json(&json!({ "bench": "interference", "workloads": workloads, "machine": machine }))?;
    } else {
        print(&findings)?;
        out::say(format!("{machine}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a hardware thread that trains shares its core with one of the node: then keeping to cores cannot help.
fn shares_core(split: &Split) -> bool {
    let siblings = |core: &usize| {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        std::fs::read_to_string(path).unwrap_or_else(|_| core.to_string())
    };
    let stoker: Vec<String> = split.stoker.iter().map(siblings).collect();
    split.training.iter().any(|core| stoker.contains(&siblings(core)))
}

struct Bench {
    stoker: Stoker,
    runtime: Runtime,
    node: Arc<Client>,
    files: Arc<Vec<Box<dyn File>>>,
    ring_bytes: u64,
}

impl Bench {
    fn make(scratch: &Scratch, ring_bytes: u64, cores: usize) -> Result<Bench, Failure> {
        let room = Room {
            dir: scratch.join("stoker"),
            ring_bytes,
            memory_bytes: MEMORY_BYTES,
            drain_quiet_s: 3600,
            nfs: false,
        };
        let stoker = Stoker::start(room)?;
        stoker.wait_prepared()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cores.min(4))
            .enable_all()
            .build()
            .map_err(|e| Failure::io("runtime", &e))?;
        let socket = Endpoint::Unix(stoker.socket().to_owned());
        let (node, files) = runtime.block_on(async {
            let node = Client::connect(&socket, None).await?;
            for (volume, lake) in [(KEPT, Some("none".to_owned())), (DRAINED, None)] {
                let policy = VolumePolicy {
                    class: Class::One,
                    drain: DrainPolicy::OnDemand,
                    ..VolumePolicy::default()
                };
                node.volume_create(volume, VolumeOptions { lake, policy: Some(policy) }).await?;
            }
            // A quarter of the ring: what is written meanwhile must not push it out.
            let mut files = Vec::new();
            for number in 0..(ring_bytes / 4 / FILE).max(1) {
                files.push(write_file(&node, number).await?);
            }
            Ok::<_, StoreError>((node, files))
        })?;
        Ok(Bench { stoker, runtime, node: node.into(), files: files.into(), ring_bytes })
    }

    /// Alternates rounds alone and beside the load, as a, b, b, a, so that drift cancels out.
    fn measure(
        &self,
        workload: &Workload,
        training: &Training,
        seconds: f64,
        rounds: u32,
        progress: &Progress,
    ) -> Result<Finding, Failure> {
        let mut finding = Finding::new(workload.name);
        self.load(workload.kind, seconds.min(0.3))?;
        for round in 0..rounds {
            for turn in 0..2 {
                if (round + turn) % 2 == 0 {
                    let idle = || {
                        std::thread::sleep(Duration::from_secs_f64(seconds));
                        Ok(())
                    };
                    finding.alone.push(training.during(idle)?.0);
                } else {
                    let cpu_s = self.stoker.server.cpu_seconds();
                    let (steps, moved) = training.during(|| self.load(workload.kind, seconds))?;
                    finding.beside.push(steps);
                    finding.node_cpu_s += self.stoker.server.cpu_seconds() - cpu_s;
                    finding.bytes += moved.bytes;
                    finding.seconds += moved.seconds;
                }
                progress.add(1);
            }
        }
        Ok(finding)
    }

    fn load(&self, kind: Kind, seconds: f64) -> Result<Round, Failure> {
        // What is not deleted yet must fit, with room to reclaim.
        let until = Until { seconds, bytes: self.ring_bytes / 4 };
        let write = |volume: &str, slot: u64| Write::new(self.node.clone(), volume, slot);
        match kind {
            Kind::Serve => {
                let until = Until { seconds, bytes: u64::MAX };
                let clients = (0..DEPTH).map(|slot| Serve::new(self.files.clone(), slot)).collect();
                Ok(cell::round(&self.runtime, clients, READ, until)?.1)
            }
            Kind::Commit => {
                let clients = (0..DEPTH).map(|slot| write(KEPT, slot)).collect();
                Ok(cell::round(&self.runtime, clients, CHUNK, until)?.1)
            }
            Kind::Drain => {
                let clients = (0..DEPTH).map(|slot| write(DRAINED, slot).drained()).collect();
                Ok(cell::round(&self.runtime, clients, CHUNK, until)?.1)
            }
        }
    }
}

async fn write_file(node: &Client, number: u64) -> Result<Box<dyn File>, StoreError> {
    let key = Key::new(format!("read/{number}"))?;
    let request = WriteRequest { size: Some(FILE), ..WriteRequest::default() };
    let mut filler = Filler::new(node.create(KEPT, &key, request).await?);
    let mut bytes = vec![0; CHUNK];
    Rng::new(number).fill(&mut bytes);
    for _ in 0..FILE / CHUNK as u64 {
        filler.put(&bytes).await?;
    }
    filler.finish(Finish::default()).await?;
    node.open(KEPT, &key).await
}

/// Both sides of one workload.
struct Finding {
    name: &'static str,
    alone: Vec<Steps>,
    beside: Vec<Steps>,
    node_cpu_s: f64,
    bytes: u64,
    seconds: f64,
}

impl Finding {
    fn new(name: &'static str) -> Finding {
        Finding { name, alone: Vec::new(), beside: Vec::new(), node_cpu_s: 0.0, bytes: 0, seconds: 0.0 }
    }

    /// Of neighbouring rounds: what drifts, drifts for both.
    fn ratios(&self) -> impl Iterator<Item = f64> + '_ {
        let middle = |steps: &Steps| median(steps.iter().copied());
        self.alone.iter().zip(&self.beside).map(move |(alone, beside)| middle(beside) / middle(alone))
    }

    fn ratio(&self) -> f64 {
        median(self.ratios())
    }

    fn step_ms(rounds: &[Steps]) -> f64 {
        median(rounds.iter().flatten().copied()) * 1e3
    }

    fn mb_s(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / 1e6 / self.seconds } else { 0.0 }
    }

    /// Cores that the node takes for each GB/s, whatever its clients take.
    fn cores_per_gb_s(&self) -> f64 {
        if self.bytes > 0 { self.node_cpu_s / (self.bytes as f64 / 1e9) } else { 0.0 }
    }

    fn json(&self) -> Value {
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        let (min, max) = range(self.ratios());
        json!({
            "name": self.name,
            "ratio": rounded(self.ratio()),
            "ratio_min": rounded(min),
            "ratio_max": rounded(max),
            "bar": RATIO_MAX,
            "met": self.ratio() <= RATIO_MAX,
            "alone_step_ms": rounded(Finding::step_ms(&self.alone)),
            "beside_step_ms": rounded(Finding::step_ms(&self.beside)),
            "load_mb_s": rounded(self.mb_s()),
            "node_cores": rounded(if self.seconds > 0.0 { self.node_cpu_s / self.seconds } else { 0.0 }),
            "cores_per_gb_s": rounded(self.cores_per_gb_s()),
        })
    }

    fn row(&self) -> Vec<String> {
        let (min, max) = range(self.ratios());
        let verdict = match self.ratio() <= RATIO_MAX {
            true => "ok".to_owned(),
            false => format!("above: {:.3} > {RATIO_MAX}", self.ratio()),
        };
        vec![
            self.name.to_owned(),
            format!("{:.3}", Finding::step_ms(&self.alone)),
            format!("{:.3}", Finding::step_ms(&self.beside)),
            format!("{:.3}", self.ratio()),
            format!("{min:.3}..{max:.3}"),
            format!("{:.0}", self.mb_s()),
            format!("{:.2}", self.cores_per_gb_s()),
            verdict,
        ]
    }
}

fn print(findings: &[Finding]) -> Result<(), Failure> {
    let heads =
        ["workload", "alone ms", "beside ms", "ratio", "min..max", "load MB/s", "cores per GB/s", "bar"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(findings.iter().map(Finding::row));
    out::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_split_and_both_sides_get_some() {
        let check = |allowed: &[usize], wanted, training: &[usize], stoker: &[usize]| {
            let expect = Split { training: training.to_vec(), stoker: stoker.to_vec() };
            assert_eq!(Split::of(allowed, wanted).unwrap(), expect);
        };
        check(&[0, 1], None, &[0], &[1]);
        check(&[2, 3, 6], None, &[2, 3], &[6]);
        check(&[0, 1, 2, 3], Some(1), &[0, 1, 2], &[3]);
        for (allowed, wanted) in [(&[0][..], None), (&[0, 1], Some(2)), (&[], None)] {
            assert!(Split::of(allowed, wanted).is_err());
        }
    }

    #[test]
    fn ratios_are_of_neighbours() {
        let mut finding = Finding::new("interference_serve");
        finding.alone = vec![vec![1.0, 1.0, 9.0], vec![2.0], vec![4.0]];
        finding.beside = vec![vec![1.1], vec![2.0, 2.0], vec![4.4]];
        (finding.bytes, finding.seconds, finding.node_cpu_s) = (2_000_000_000, 4.0, 3.0);
        let json = finding.json();
        assert_eq!((json["ratio"].as_f64(), json["ratio_min"].as_f64()), (Some(1.1), Some(1.0)));
        assert_eq!((json["met"].as_bool(), json["load_mb_s"].as_f64()), (Some(false), Some(500.0)));
        assert_eq!((json["cores_per_gb_s"].as_f64(), json["node_cores"].as_f64()), (Some(1.5), Some(0.75)));
    }
}
