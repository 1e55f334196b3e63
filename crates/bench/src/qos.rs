//! `stoker bench qos`: two jobs on one node, one with a floor and a bound on its latency, the other as greedy as it can be. (R16)
//!
//! Everything is compared within one run: what the node does for the greedy job alone, what the other one sees alone, both together without a
//! policy and with one, and the greedy one again while the other is idle.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use stoker_client::{Client, ClientOptions, Endpoint};
use stoker_store::{
    File, Filler, Finish, JobLabel, Key, Order, QosRate, QosRequest, QosSpec, QosSubject, Report, Store,
    WriteRequest,
};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::machine;
use super::s3::{Room, Stoker};
use super::scratch::Scratch;
use crate::failure::Failure;
use crate::{clock, out, size};

/// Bytes of a file that is read, and how many of them there are: more than the node has memory for.
const FILE_BYTES: u64 = 256 << 20;

/// Memory of the node.
const MEMORY_BYTES: u64 = 512 << 20;

/// Bytes of a read of the greedy job, and of the other one.
const GREEDY_BYTES: u64 = 1 << 20;
const STEADY_BYTES: u64 = 256 << 10;

/// Reads that each has under way.
const GREEDY_READS: usize = 64;
const STEADY_READS: usize = 16;

/// The share of the drive that is promised, and what the promise is asked for.
const FLOOR: f64 = 0.6;

/// Arguments of `bench qos`.
#[derive(clap::Args)]
pub struct Args {
    /// A directory on the drive; everything is made in a folder of it that is removed at the end.
    #[arg(long, value_name = "PATH", default_value = ".")]
    dir: PathBuf,
    /// Bytes that are read from; more than the machine has memory, or its cache is what is measured.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "2GiB")]
    data: u64,
    /// Seconds of each part.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..=600))]
    seconds: u16,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What a job got in a part.
#[derive(Clone, Copy, Default)]
struct Got {
    bytes_s: f64,
    p99_ms: f64,
}

/// Measures two jobs.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let scratch = Scratch::new(&args.dir, 2 * args.data + (1 << 30))?;
    let room = Room {
        dir: scratch.join("stoker"),
        ring_bytes: args.data + (1 << 30),
        memory_bytes: MEMORY_BYTES,
        drain_quiet_s: 86_400,
        nfs: false,
    };
    let stoker = Stoker::start(room)?;
    stoker.wait_prepared()?;
    let runtime = Runtime::new().map_err(|error| Failure::io("runtime", &error))?;
    let parts = runtime.block_on(measure(args, &stoker));
    runtime.shutdown_timeout(Duration::from_secs(1));
    stoker.stop()?;
    parts?.tell(args)?;
    Ok(ExitCode::SUCCESS)
}

/// A client of a job, with what it reads.
struct Job {
    files: Vec<Arc<dyn File>>,
}

async fn connect(stoker: &Stoker, job: &str) -> Result<Client, Failure> {
    // What a client reads by itself passes no node.
    let options =
        ClientOptions { job: Some(JobLabel::parse(job)?), leases: false, ..ClientOptions::default() };
    Ok(Client::connect_with(&Endpoint::Unix(stoker.socket().into()), None, options).await?)
}

fn key(number: u64) -> Result<Key, Failure> {
    Ok(Key::new(format!("qos/{number:04}"))?)
}

async fn fill(args: &Args, client: &Client, volume: &str) -> Result<u64, Failure> {
    let count = (args.data / FILE_BYTES).max(1);
    let piece: Vec<u8> = (0..1_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for number in 0..count {
        let request = WriteRequest { size: Some(FILE_BYTES), ..WriteRequest::default() };
        let mut filler = Filler::new(client.create(volume, &key(number)?, request).await?);
        for _ in 0..FILE_BYTES / piece.len() as u64 {
            filler.put(&piece).await?;
        }
        filler.finish(Finish::default()).await?;
    }
    Ok(count)
}

impl Job {
    async fn open(client: &Client, volume: &str, count: u64) -> Result<Job, Failure> {
        let mut files: Vec<Arc<dyn File>> = Vec::new();
        for number in 0..count {
            files.push(Arc::from(client.open(volume, &key(number)?).await?));
        }
        Ok(Job { files })
    }

    /// Reads at random for so long: as fast as it goes, or at a rate.
    async fn read(
        &self,
        reads: usize,
        bytes: u64,
        rate: Option<f64>,
        time: Duration,
    ) -> Result<Got, Failure> {
        let (begun, total) = (clock::now(), Arc::new(AtomicU64::new(0)));
        let mut workers = JoinSet::new();
        for worker in 0..reads {
            let (files, total) = (self.files.clone(), total.clone());
            workers.spawn(async move {
                let mut chance = (worker as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let (mut latencies, mut asked) = (Vec::new(), 0_u64);
                let pause = rate.map(|rate| Duration::from_secs_f64(bytes as f64 * reads as f64 / rate));
                let begun = tokio::time::Instant::now();
                while begun.elapsed() < time {
                    if let Some(pause) = pause {
                        // Spread over the first pause, so that they do not come together.
                        let offset = pause.mul_f64(worker as f64 / reads as f64);
                        tokio::time::sleep_until(begun + offset + pause * asked as u32).await;
                    }
                    asked += 1;
                    chance = chance
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let file = &files[(chance >> 33) as usize % files.len()];
                    let at = (chance >> 20) % (FILE_BYTES / bytes) * bytes;
                    let since = tokio::time::Instant::now();
                    let (mut offset, end) = (at, at + bytes);
                    while offset < end {
                        offset += file.read(offset, (end - offset) as usize).await?.len() as u64;
                    }
                    latencies.push(since.elapsed());
                    total.fetch_add(bytes, Ordering::Relaxed);
                }
                Ok::<_, Failure>(latencies)
            });
        }
        let mut latencies = Vec::new();
        while let Some(joined) = workers.join_next().await {
            latencies.extend(joined.map_err(|fault| Failure::new(fault.to_string()))??);
        }
        latencies.sort_unstable();
        let p99 = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default();
        let bytes_s = total.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
        Ok(Got { bytes_s, p99_ms: p99.as_secs_f64() * 1e3 })
    }
}

/// What was measured, in the order in which it was.
struct Parts {
    all: Got,
    alone: Got,
    free: (Got, Got),
    floor: f64,
    held: (Got, Got),
    idle: Got,
}

async fn measure(args: &Args, stoker: &Stoker) -> Result<Parts, Failure> {
    let time = Duration::from_secs(u64::from(args.seconds));
    let (steady, greedy) = (connect(stoker, "steady").await?, connect(stoker, "greedy").await?);
    let volume = stoker.volume();
    let count = fill(args, &greedy, volume).await?;
    let (first, second) =
        (Job::open(&steady, volume, count).await?, Job::open(&greedy, volume, count).await?);
    let greed = || second.read(GREEDY_READS, GREEDY_BYTES, None, time);
    let all = greed().await?;
    let floor = all.bytes_s * FLOOR;
    let calm = || first.read(STEADY_READS, STEADY_BYTES, Some(floor), time);
    let alone = calm().await?;
    let (one, two) = tokio::join!(calm(), greed());
    let free = (one?, two?);
    let spec = QosSpec {
        floor: QosRate { bytes_per_s: Some(floor as u64), ops_per_s: None },
        is_interactive: true,
        ..QosSpec::default()
    };
    let subject = QosSubject { job: Some(JobLabel::parse("steady")?), ..QosSubject::default() };
    let request = QosRequest { subject, spec, export: None, request: None, is_new: false };
    let Report::QosPolicy(_) = steady.operate(Order::QosSet(Box::new(request))).await? else {
        return Err(Failure::confused());
    };
    let (one, two) = tokio::join!(calm(), greed());
    let held = (one?, two?);
    let idle = greed().await?;
    Ok(Parts { all, alone, free, floor, held, idle })
}

impl Parts {
    fn tell(&self, args: &Args) -> Result<(), Failure> {
        let rest = (self.all.bytes_s - self.held.0.bytes_s).max(1.0);
        let ratios = [
            ("floor_kept", self.held.0.bytes_s / self.floor, "at least 0.95"),
            ("p99_to_alone", self.held.0.p99_ms / self.alone.p99_ms.max(1e-3), "at most 1.5"),
            ("rest_used", self.held.1.bytes_s / rest, "at least 0.90"),
            ("idle_used", self.idle.bytes_s / self.all.bytes_s.max(1.0), "at least 0.95"),
        ];
        let got =
            |got: &Got| json!({ "bytes_s": got.bytes_s.round(), "p99_ms": (got.p99_ms * 1e3).round() / 1e3 });
        if args.json {
            let ratios: serde_json::Map<String, serde_json::Value> = ratios
                .iter()
                .map(|(name, ratio, _)| ((*name).to_owned(), json!((ratio * 1e3).round() / 1e3)))
                .collect();
            return out::json(&json!({
                "bench": "qos",
                "greedy_alone": got(&self.all),
                "steady_alone": got(&self.alone),
                "without": { "steady": got(&self.free.0), "greedy": got(&self.free.1) },
                "floor_bytes_s": self.floor.round(),
                "with": { "steady": got(&self.held.0), "greedy": got(&self.held.1) },
                "greedy_while_idle": got(&self.idle),
                "ratios": ratios,
                "machine": machine::describe(&args.dir),
            }));
        }
        let text = |got: &Got| format!("{}/s, P99 {:.2} ms", size::human(got.bytes_s as u64), got.p99_ms);
        let mut rows = vec![
            ("greedy alone", text(&self.all)),
            ("steady alone", text(&self.alone)),
            ("without a policy", format!("steady {}; greedy {}", text(&self.free.0), text(&self.free.1))),
            ("floor", format!("{}/s", size::human(self.floor as u64))),
            ("with the floor", format!("steady {}; greedy {}", text(&self.held.0), text(&self.held.1))),
            ("steady idle", text(&self.idle)),
        ];
        rows.extend(ratios.iter().map(|(name, ratio, bound)| (*name, format!("{ratio:.2} ({bound})"))));
        out::fields(&rows)
    }
}
