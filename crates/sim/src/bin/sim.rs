//! `sim ring|replication|cell --seeds N [--first S]`: runs seeded histories and prints the command that replays a failure.
//! `sim mutations|bugs --seeds N`: plants one bug after the other (`bugs`: those of replication) and tells which seed finds it.

#![expect(clippy::print_stdout, reason = "the result is the output")]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use stoker_sim::{replication, ring};

const USAGE: &str = "usage: sim ring|replication|cell|mutations|bugs --seeds N [--first S] [--threads T] [--all] [--only BUG]";

/// Seeds between two words of how far a long run is.
const PROGRESS_SEEDS: u64 = 1_000;

struct Seeds {
    count: u64,
    first: u64,
    threads: u64,
    /// Goes on after a failure, and names every seed that fails.
    all: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if !are_known(args.get(1..).unwrap_or_default()) {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let number = |name: &str, default: u64| {
        let at = args.iter().position(|a| a == name);
        at.map_or(Some(default), |at| args.get(at + 1)?.parse().ok())
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let seeds = (number("--seeds", 100), number("--first", 1), number("--threads", threads));
    let (Some(count), Some(first), Some(threads)) = seeds else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let seeds = Seeds { count, first, threads, all: args.iter().any(|arg| arg == "--all") };
    let only =
        args.iter().position(|arg| arg == "--only").and_then(|at| args.get(at + 1)).map(String::as_str);
    match args.first().map(String::as_str) {
        Some("ring") => run_ring(&seeds),
        Some("replication") => run_replication(&seeds),
        Some("bugs") => run_bugs(&seeds, only),
        #[cfg(feature = "cell")]
        Some("cell") => run_cell(&seeds),
        #[cfg(feature = "cell")]
        Some("mutations") => run_mutations(&seeds, only),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Whether these are options, with a value where one belongs.
fn are_known(args: &[String]) -> bool {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let is_known = match arg.as_str() {
            "--all" => true,
            "--seeds" | "--first" | "--threads" | "--only" => args.next().is_some(),
            _ => false,
        };
        if !is_known {
            return false;
        }
    }
    true
}

/// Runs every seed on some thread; none if one failed, which is told.
fn run<T: Default + Send>(
    what: &str,
    seeds: &Seeds,
    one: impl Fn(u64) -> Result<T, String> + Sync + std::panic::RefUnwindSafe,
    add: impl Fn(&mut T, &T) + Sync,
) -> Option<T> {
    let next = AtomicU64::new(seeds.first);
    let state = Mutex::new((T::default(), Vec::<(u64, String)>::new()));
    std::thread::scope(|scope| {
        for _ in 0..seeds.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let stops = !seeds.all && !state.lock().unwrap().1.is_empty();
                    if seed >= seeds.first + seeds.count || stops {
                        return;
                    }
                    let outcome = std::panic::catch_unwind(|| one(seed))
                        .unwrap_or_else(|_| Err("the code under test panicked (see above)".into()));
                    let mut state = state.lock().unwrap();
                    match outcome {
                        Ok(tally) => add(&mut state.0, &tally),
                        Err(why) => {
                            if seeds.all {
                                eprintln!("seed {seed}: {}", why.lines().last().unwrap_or_default());
                            }
                            state.1.push((seed, why));
                        }
                    }
                    // A long run says how far it is, should it be ended before its end.
                    let done = seed + 1 - seeds.first;
                    if seeds.all && done.is_multiple_of(PROGRESS_SEEDS) {
                        eprintln!("{done} seeds from {}, {} failed", seeds.first, state.1.len());
                    }
                }
            });
        }
    });
    let (tally, mut failures) = state.into_inner().unwrap();
    failures.sort();
    if failures.len() > 1 {
        let seeds: Vec<String> = failures.iter().map(|(seed, _)| seed.to_string()).collect();
        eprintln!("{} seeds fail: {}", seeds.len(), seeds.join(", "));
    }
    let (seed, why) = match failures.into_iter().next() {
        Some(first) => first,
        None => return Some(tally),
    };
    eprintln!("seed {seed}: {why}");
    eprintln!("replay: cargo xtask sim {what} --seeds 1 --first {seed}");
    None
}

fn run_ring(seeds: &Seeds) -> ExitCode {
    let Some(tally) = run("ring", seeds, ring::run_seed, ring::Tally::add) else {
        return ExitCode::FAILURE;
    };
    println!(
        "{} seeds from {}: {} crash points, {} crashes, {} I/Os, {} requests ({} refused as full), {} segments reclaimed; no promise broken",
        seeds.count,
        seeds.first,
        tally.crash_points,
        tally.crashes,
        tally.ios,
        tally.requests,
        tally.refusals,
        tally.reclaimed
    );
    ExitCode::SUCCESS
}

fn run_replication(seeds: &Seeds) -> ExitCode {
    let Some(tally) = run("replication", seeds, replication::run_seed, replication::Tally::add) else {
        return ExitCode::FAILURE;
    };
    println!(
        "{} seeds from {}: {} faults, {} leaders, {} changes of groups, {} snapshots, {} writes and {} reads answered; no promise broken (logs {:016x})",
        seeds.count,
        seeds.first,
        tally.faults,
        tally.leaders,
        tally.changes,
        tally.snapshots,
        tally.writes,
        tally.reads,
        tally.hash
    );
    ExitCode::SUCCESS
}

/// Every planted bug of replication has to be found.
fn run_bugs(seeds: &Seeds, only: Option<&str>) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = 0;
    let is_meant = |bug: &replication::bugs::Bug| only.is_none_or(|only| format!("{bug:?}") == only);
    for bug in replication::bugs::BUGS.into_iter().filter(is_meant) {
        let found = (seeds.first..seeds.first + seeds.count).find_map(|seed| {
            let outcome = std::panic::catch_unwind(|| replication::run_with(seed, bug));
            let outcome = outcome.unwrap_or_else(|_| Err("a panic".into()));
            // A seed that fails without the bug as well says nothing about the bug.
            let is_sound =
                || std::panic::catch_unwind(|| replication::run_seed(seed).is_ok()).unwrap_or(false);
            outcome.err().filter(|_| is_sound()).map(|why| (seed, why))
        });
        match found {
            Some((seed, why)) => {
                let words = if only.is_some() { &why } else { why.lines().last().unwrap_or_default() };
                println!("{bug:?}: found by seed {seed}: {words}");
            }
            None => {
                missed += 1;
                println!("{bug:?}: not found by {} seeds from {}", seeds.count, seeds.first);
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(feature = "cell")]
fn run_cell(seeds: &Seeds) -> ExitCode {
    use stoker_sim::cell;
    let Some(tally) = run("cell", seeds, cell::run_seed, cell::Tally::add) else {
        return ExitCode::FAILURE;
    };
    println!(
        "{} seeds from {}: {} faults, {} requests ({} answered), {} events in {} s of simulated time; no promise broken (traces {:016x})",
        seeds.count,
        seeds.first,
        tally.faults,
        tally.requests,
        tally.acknowledged,
        tally.events,
        tally.simulated_ms / 1_000,
        tally.hash
    );
    ExitCode::SUCCESS
}

/// Every planted bug has to be found, or the one that is named.
#[cfg(feature = "cell")]
fn run_mutations(seeds: &Seeds, only: Option<&str>) -> ExitCode {
    use stoker_sim::cell::mutations::{MUTATIONS, Mutation};
    use stoker_sim::cell::{run_mutated, run_seed};
    // Tasks of nodes may well panic with a bug in them.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = 0;
    let is_meant = |mutation: &Mutation| only.is_none_or(|only| format!("{mutation:?}") == only);
    let meant: Vec<Mutation> = MUTATIONS.into_iter().filter(is_meant).collect();
    if meant.is_empty() {
        let names: Vec<String> = MUTATIONS.iter().map(|mutation| format!("{mutation:?}")).collect();
        eprintln!("there is no such bug; there are: {}", names.join(", "));
        return ExitCode::from(2);
    }
    for mutation in meant {
        let found = (seeds.first..seeds.first + seeds.count).find_map(|seed| {
            let outcome = std::panic::catch_unwind(|| match mutation {
                Mutation::ReuseLeased => ring::run_reusing_leased(seed).map(drop),
                _ => run_mutated(seed, Some(mutation)).map(drop),
            });
            let outcome = outcome.unwrap_or_else(|_| Err("a panic".into()));
            // A seed that fails without the bug as well says nothing about the bug.
            let is_sound = || match mutation {
                Mutation::ReuseLeased => ring::run_seed(seed).is_ok(),
                _ => run_seed(seed).is_ok(),
            };
            outcome.err().filter(|_| is_sound()).map(|why| (seed, why))
        });
        match found {
            Some((seed, why)) => {
                let last = why.lines().last().unwrap_or_default();
                let last = last.strip_prefix("end of the trace above; ").unwrap_or(last);
                println!("{mutation:?}: found by seed {seed}: {last}");
            }
            None => {
                missed += 1;
                println!("{mutation:?}: not found by {} seeds from {}", seeds.count, seeds.first);
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
