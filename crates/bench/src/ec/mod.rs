//! `stoker bench ec`: how fast a core makes parity and lost shards, with each kernel of this machine, beside ISA-L.

mod isal;
mod work;

use std::process::ExitCode;

use serde_json::{Value, json};
use stoker_ec::{Kernel, Scheme};

use self::work::{Job, Side, Stripes};
use super::machine;
use super::measure::{median, range};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{out, size};

/// Least share of ISA-L's rate, for the kernel that a node would choose.
const ISAL_BAR: f64 = 0.95;

/// Arguments of `bench ec`.
#[derive(clap::Args)]
pub struct Args {
    /// Schemes, as data and parity shards.
    #[arg(long, value_name = "K+M", value_delimiter = ',', default_value = "8+2,14+4")]
    schemes: Vec<Scheme>,
    /// Size of a chunk, which all data shards of a stripe hold together.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "4MiB")]
    chunk: u64,
    /// Stripes in memory, in turn: one stays in the cache of most processors, many come from memory.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    stripes: u16,
    /// Length of one round of one kernel, in seconds of a core.
    #[arg(long, value_name = "S", default_value_t = 0.1, value_parser = super::ring::seconds)]
    seconds_per_round: f64,
    /// Rounds of each kernel, in turn with those of the others.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A kernel's rates in one job, or ISA-L's.
struct Row {
    scheme: Scheme,
    job: Job,
    name: &'static str,
    side: Side,
    rates: Vec<f64>,
    /// Of neighbouring rounds, if ISA-L is there.
    ratios: Vec<f64>,
    is_judged: bool,
}

/// Measures the codec.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let chunk = usize::try_from(args.chunk).ok().filter(|&chunk| chunk > 0);
    let chunk =
        chunk.ok_or_else(|| Failure::new("a chunk has at least a byte").hint("choose --chunk 4MiB"))?;
    let library = isal::Library::open();
    let mut rows = Vec::new();
    let jobs: Vec<(Scheme, Job)> = args
        .schemes
        .iter()
        .flat_map(|&scheme| Job::all(scheme).into_iter().map(move |job| (scheme, job)))
        .collect();
    let progress = Progress::over_steps(jobs.len() as u64 * u64::from(args.rounds), args.json);
    for (scheme, job) in jobs {
        progress.say(format!("{scheme} {}", job.name()));
        let mut stripes = Stripes::new(scheme, chunk, usize::from(args.stripes))?;
        let mut measured = sides(scheme, job, library)?;
        for row in &measured {
            if !stripes.check(&row.side, job)? {
                return Err(Failure::new(format!("{} makes other bytes of {scheme}", row.name)));
            }
        }
        for _ in 0..args.rounds {
            for row in &mut measured {
                row.rates.push(stripes.rate(&row.side, job, args.seconds_per_round)?);
            }
            progress.add(1);
        }
        compare(&mut measured);
        rows.append(&mut measured);
    }
    drop(progress);
    if args.json {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        let mut machine = machine::describe(".".as_ref());
        machine["chunk_bytes"] = args.chunk.into();
        machine["stripes"] = args.stripes.into();
        machine["isal"] = library.is_some().into();
        out::json(&json!({ "bench": "ec", "workloads": rows, "machine": machine }))?;
    } else {
        print(&rows)?;
        out::say(format!("{} stripes of {}, one core", args.stripes, size::human(args.chunk)));
        if library.is_none() {
            out::say("ISA-L is not installed: nothing to compare with (Debian: libisal2)");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// ISA-L, if it is there, and all kernels of this machine, the best first.
fn sides(scheme: Scheme, job: Job, library: Option<isal::Library>) -> Result<Vec<Row>, Failure> {
    let row = |name, side, is_judged| Row {
        scheme,
        job,
        name,
        side,
        rates: Vec::new(),
        ratios: Vec::new(),
        is_judged,
    };
    let mut rows = Vec::new();
    if let Some(library) = library {
        rows.push(row("isal", Side::isal(scheme, job, library)?, false));
    }
    for kernel in Kernel::available() {
        rows.push(row(kernel.name(), Side::ours(scheme, job, kernel)?, kernel == Kernel::best()));
    }
    Ok(rows)
}

/// Rounds beside those of ISA-L, which is the first row if it is there.
fn compare(rows: &mut [Row]) {
    let Some((peer, ours)) = rows.split_first_mut().filter(|(first, _)| matches!(first.side, Side::Isal(_)))
    else {
        return;
    };
    for row in ours {
        row.ratios = row.rates.iter().zip(&peer.rates).map(|(ours, peer)| ours / peer).collect();
    }
}

impl Row {
    /// In GB for each second of a core.
    fn gb_s(&self) -> f64 {
        median(self.rates.iter().copied()) / 1e9
    }

    fn ratio(&self) -> Option<f64> {
        (!self.ratios.is_empty()).then(|| median(self.ratios.iter().copied()))
    }

    fn verdict(&self) -> String {
        match self.ratio().filter(|_| self.is_judged) {
            None => "-".into(),
            Some(ratio) if ratio >= ISAL_BAR => "ok".into(),
            Some(ratio) => format!("below: ratio {ratio:.3} < {ISAL_BAR}"),
        }
    }

    fn json(&self) -> Value {
        let (min, max) = range(self.rates.iter().map(|rate| rate / 1e9));
        let bar = (self.is_judged && self.ratio().is_some()).then_some(ISAL_BAR);
        json!({
            "name": format!("{} {}", self.scheme, self.job.name()),
            "scheme": self.scheme.to_string(),
            "job": self.job.name(),
            "kernel": self.name,
            "core_gb_s": rounded(self.gb_s()),
            "core_gb_s_min": rounded(min),
            "core_gb_s_max": rounded(max),
            "ratio": self.ratio().map(rounded),
            "bar_ratio_min": bar,
            "passed": bar.map(|bar| self.ratio().is_some_and(|ratio| ratio >= bar)),
        })
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn print(rows: &[Row]) -> Result<(), Failure> {
    let heads = ["scheme", "job", "kernel", "GB/s per core", "of ISA-L", "verdict"];
    let mut table = vec![heads.map(String::from).to_vec()];
    table.extend(rows.iter().map(|row| {
        vec![
            row.scheme.to_string(),
            row.job.name(),
            row.name.to_owned(),
            format!("{:.2}", row.gb_s()),
            row.ratio().map_or("-".into(), |ratio| format!("{ratio:.3}")),
            row.verdict(),
        ]
    }));
    out::table(&table)
}
