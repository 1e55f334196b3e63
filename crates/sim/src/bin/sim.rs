//! `sim ring --seeds N [--first S]`: runs seeded histories and prints the command that replays a failure.

#![expect(clippy::print_stdout, reason = "the result is the output")]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use stoker_sim::ring::{Tally, run_seed};

const USAGE: &str = "usage: sim ring --seeds N [--first S] [--threads T]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, default: u64| {
        let at = args.iter().position(|a| a == name);
        at.map_or(Some(default), |at| args.get(at + 1)?.parse().ok())
    };
    let (Some("ring"), Some(seeds), Some(first), Some(threads)) = (
        args.first().map(String::as_str),
        number("--seeds", 100),
        number("--first", 1),
        number("--threads", std::thread::available_parallelism().map_or(1, |n| n.get() as u64)),
    ) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    run_ring(seeds, first, threads)
}

fn run_ring(seeds: u64, first: u64, threads: u64) -> ExitCode {
    let next = AtomicU64::new(first);
    let state = Mutex::new((Tally::default(), None::<(u64, String)>));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds || state.lock().unwrap().1.is_some() {
                        return;
                    }
                    let outcome = std::panic::catch_unwind(|| run_seed(seed))
                        .unwrap_or_else(|_| Err("the engine panicked (see above)".into()));
                    let mut state = state.lock().unwrap();
                    match outcome {
                        Ok(tally) => state.0.add(&tally),
                        Err(why) => state.1 = Some((seed, why)),
                    }
                }
            });
        }
    });
    let (tally, failure) = state.into_inner().unwrap();
    if let Some((seed, why)) = failure {
        eprintln!("seed {seed}: {why}");
        eprintln!("replay: cargo xtask sim ring --seeds 1 --first {seed}");
        return ExitCode::FAILURE;
    }
    println!(
        "{seeds} seeds from {first}: {} crash points, {} crashes, {} I/Os, {} requests ({} refused as full), {} segments reclaimed; no promise broken",
        tally.crash_points, tally.crashes, tally.ios, tally.requests, tally.refusals, tally.reclaimed
    );
    ExitCode::SUCCESS
}
