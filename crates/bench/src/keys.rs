//! `stoker bench keys`: very many small files in one node. How fast they are taken, what memory they cost, how long the
//! node takes to come back with them, and whether a page of a listing costs the same everywhere.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use stoker_client::{Client, Endpoint};
use stoker_store::{ListRequest, Store};
use tokio::runtime::Runtime;

use super::machine;
use super::measure::{Side, median};
use super::process::Memory;
use super::s3::{Content, Load, Room, Stoker, Verb};
use super::scratch::Scratch;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{clock, out, size};

/// Files of one directory. Requests are signed for one directory at a time, while no clock runs.
const DIRECTORY_FILES: u64 = 10_000;
/// As many as S3 gives at once.
const PAGE_FILES: usize = 1000;
/// What a small file takes in the lake and in the catalog, roughly.
const FILE_SPACE_BYTES: u64 = 8 << 10;
/// Parts that a long row of figures is told in.
const PARTS: usize = 10;

/// Arguments of `bench keys`.
#[derive(clap::Args)]
pub struct Args {
    /// A directory on the drive; everything is made in a folder of it that is removed at the end.
    #[arg(long, value_name = "PATH", default_value = ".")]
    dir: PathBuf,
    /// Files, in directories of 10,000.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    count: u64,
    /// Size of a file.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "100")]
    bytes: u64,
    /// Connections at once, over S3.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Size of Stoker's ring.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "8GiB")]
    ring: u64,
    /// Most memory that Stoker may use.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "2GiB")]
    memory: u64,
    /// Seconds that a file has to be left alone before it drains.
    #[arg(long, value_name = "S", default_value_t = 10)]
    drain_quiet: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What was measured.
struct Report {
    /// A round per directory.
    put: Side,
    put_memory: Memory,
    drained_files: u64,
    stop_s: f64,
    start_s: f64,
    /// One per page, in the order of the keys.
    pages: Vec<Duration>,
    list_memory: Memory,
}

/// Measures a node with many files.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let bytes = usize::try_from(args.bytes).ok().filter(|bytes| *bytes <= 1 << 20);
    let bytes =
        bytes.ok_or_else(|| Failure::new("these are no small files").hint("choose --bytes 1MiB or less"))?;
    let scratch = Scratch::new(&args.dir, args.ring + args.count * (FILE_SPACE_BYTES + args.bytes))?;
    let room = Room {
        dir: scratch.join("stoker"),
        ring_bytes: args.ring,
        memory_bytes: args.memory,
        drain_quiet_s: args.drain_quiet,
        nfs: false,
    };
    let report = measure(args, bytes, &room)?;
    if args.json {
        out::json(&report.json(args))?;
    } else {
        report.print(args)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args, bytes: usize, room: &Room) -> Result<Report, Failure> {
    let content = Content::new(bytes);
    let connections = usize::from(args.connections);
    let stoker = Stoker::start(room.clone())?;
    stoker.wait_prepared()?;
    let progress = Progress::over_steps(args.count, args.json);
    progress.say("put");
    let mut put = Side::default();
    for directory in 0..args.count.div_ceil(DIRECTORY_FILES) {
        let load = load(args, &stoker, Verb::Put, &content, directory);
        put.0.push(load.pass(connections)?.round);
        progress.add(load.count());
    }
    drop(progress);
    let (put_memory, drained_files) = (stoker.memory()?, stoker.drained_files()?);
    let begun = clock::now();
    stoker.stop()?;
    let stopped = clock::now();
    let stoker = Stoker::start(room.clone())?;
    let started = clock::now();
    let pages = list(args, &stoker)?;
    let list_memory = stoker.memory()?;
    // The bytes are there too, not only the names.
    for directory in [0, (args.count - 1) / DIRECTORY_FILES] {
        load(args, &stoker, Verb::Get, &content, directory).pass(connections)?;
    }
    let (stop_s, start_s) = ((stopped - begun).as_secs_f64(), (started - stopped).as_secs_f64());
    stoker.stop()?;
    Ok(Report { put, put_memory, drained_files, stop_s, start_s, pages, list_memory })
}

/// Requests for the files of one directory.
fn load<'c>(args: &Args, stoker: &Stoker, verb: Verb, content: &'c Content, directory: u64) -> Load<'c> {
    let count = (args.count - directory * DIRECTORY_FILES).min(DIRECTORY_FILES);
    let group = format!("keys/{directory:06}");
    Load::new(verb, stoker.server.target(), content, &group, args.bytes as usize, count)
}

/// Lists everything, page by page, and checks that it is all there, once and in order.
fn list(args: &Args, stoker: &Stoker) -> Result<Vec<Duration>, Failure> {
    let progress = Progress::over_steps(args.count, args.json);
    progress.say("list");
    let runtime = Runtime::new().map_err(|e| Failure::io("runtime", &e))?;
    runtime.block_on(async {
        let client = Client::connect(&Endpoint::Unix(stoker.socket().into()), None).await?;
        let (mut pages, mut seen, mut after) = (Vec::new(), 0, None);
        loop {
            let request = ListRequest { limit: PAGE_FILES, after: after.take(), ..ListRequest::default() };
            let begun = clock::now();
            let page = client.list(stoker.volume(), request).await?;
            pages.push(begun.elapsed());
            for entry in &page.entries {
                let expect = key(seen);
                if entry.name() != expect.as_bytes() {
                    let found = String::from_utf8_lossy(entry.name()).into_owned();
                    return Err(Failure::new(format!("the listing shows {found} instead of {expect}")));
                }
                seen += 1;
            }
            progress.add(page.entries.len() as u64);
            after = page.entries.last().map(|entry| entry.name().to_vec());
            if !page.more {
                break;
            }
        }
        if seen != args.count {
            return Err(Failure::new(format!("the listing shows {seen} files instead of {}", args.count)));
        }
        Ok(pages)
    })
}

/// The key of a file, as [`Load`] numbers them within a directory.
fn key(number: u64) -> String {
    format!("keys/{:06}/{:06}", number / DIRECTORY_FILES, number % DIRECTORY_FILES)
}

impl Report {
    fn json(&self, args: &Args) -> Value {
        let put = json!({
            "name": "put",
            "count": args.count,
            "ops_s": rounded(self.put_ops_s()),
            "parts_ops_s": self.put_parts().into_iter().map(rounded).collect::<Vec<_>>(),
            "p50_ms": rounded(self.put.latency_us(0.5) / 1e3),
            "p99_ms": rounded(self.put.latency_us(0.99) / 1e3),
            "rss_bytes": self.put_memory.resident_bytes,
            "rss_max_bytes": self.put_memory.resident_max_bytes,
            "drained_files": self.drained_files,
        });
        let restart =
            json!({ "name": "restart", "stop_s": rounded(self.stop_s), "start_s": rounded(self.start_s) });
        let list = json!({
            "name": "list",
            "pages": self.pages.len(),
            "seconds": rounded(self.pages.iter().sum::<Duration>().as_secs_f64()),
            "parts_p50_ms": self.page_parts().iter().map(|part| rounded(part.0)).collect::<Vec<_>>(),
            "parts_max_ms": self.page_parts().iter().map(|part| rounded(part.1)).collect::<Vec<_>>(),
            "rss_bytes": self.list_memory.resident_bytes,
            "rss_max_bytes": self.list_memory.resident_max_bytes,
        });
        let mut machine = machine::describe(&args.dir);
        for (name, value) in [
            ("bytes", args.bytes),
            ("connections", u64::from(args.connections)),
            ("ring_bytes", args.ring),
            ("memory_bytes", args.memory),
            ("drain_quiet_s", u64::from(args.drain_quiet)),
        ] {
            machine[name] = value.into();
        }
        json!({ "bench": "keys", "workloads": [put, restart, list], "machine": machine })
    }

    fn print(&self, args: &Args) -> Result<(), Failure> {
        let memory = |memory: &Memory| {
            let (now, max) = (size::human(memory.resident_bytes), size::human(memory.resident_max_bytes));
            format!("{now} resident, {max} at most, of {}", size::human(args.memory))
        };
        let parts = |values: Vec<f64>| values.iter().map(|v| format!("{v:.1}")).collect::<Vec<_>>().join(" ");
        let (p50, max) = self.page_parts().into_iter().unzip();
        out::fields(&[
            ("put", format!("{} files, {:.0} a second", out::count(args.count), self.put_ops_s())),
            ("  by tenths", parts(self.put_parts())),
            ("  memory", memory(&self.put_memory)),
            ("  drained", format!("{} files meanwhile", out::count(self.drained_files))),
            ("restart", format!("{:.2} s to stop, {:.2} s to start", self.stop_s, self.start_s)),
            ("list", format!("{} pages of {PAGE_FILES}", self.pages.len())),
            ("  p50 ms by tenths", parts(p50)),
            ("  max ms by tenths", parts(max)),
            ("  memory", memory(&self.list_memory)),
        ])
    }

    fn put_ops_s(&self) -> f64 {
        let ops: u64 = self.put.0.iter().map(|round| round.ops).sum();
        ops as f64 / self.put.0.iter().map(|round| round.seconds).sum::<f64>()
    }

    /// Rates from the first tenth of the files to the last.
    fn put_parts(&self) -> Vec<f64> {
        tenths(&self.put.0).map(|part| median(part.iter().map(|round| round.iops()))).collect()
    }

    /// Middle and longest time of a page in milliseconds, from the first tenth of the pages to the last.
    fn page_parts(&self) -> Vec<(f64, f64)> {
        let ms = |took: &Duration| took.as_secs_f64() * 1e3;
        tenths(&self.pages)
            .map(|part| (median(part.iter().map(ms)), part.iter().map(ms).fold(0.0, f64::max)))
            .collect()
    }
}

/// Ten parts of about the same length; fewer if there are fewer items.
fn tenths<T>(items: &[T]) -> impl Iterator<Item = &[T]> {
    items.chunks(items.len().div_ceil(PARTS).max(1))
}

/// Three decimals, so that JSON stays readable.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_told_in_ten_parts_at_most() {
        for (items, parts) in [(0, 0), (1, 1), (9, 9), (10, 10), (100, 10), (101, 10)] {
            let row = vec![0; items];
            assert_eq!(tenths(&row).count(), parts, "{items}");
            assert_eq!(tenths(&row).map(<[i32]>::len).sum::<usize>(), items);
        }
    }

    #[test]
    fn keys_are_in_the_order_of_their_numbers() {
        let keys: Vec<String> = [0, 9_999, 10_000, 123_456, 9_999_999_999].map(key).to_vec();
        assert_eq!(keys[2], "keys/000001/000000");
        assert!(keys.is_sorted(), "{keys:?}");
    }
}
