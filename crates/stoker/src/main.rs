//! The binary `stoker`: one file per subcommand, each an adapter over the crates below.
//!
//! Data goes to stdout, words go to stderr, and only [`out`] prints. Clocks are read in [`clock`], system calls are
//! made in [`sys`] and in `bench/raw`.

mod bench;
mod clock;
mod config;
mod daemon;
mod failure;
mod log;
mod out;
mod progress;
mod ring;
mod rng;
mod serve;
mod size;
mod sys;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Failure;

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed, or bad records were found; 2 wrong usage; 128+n stopped by \
                          signal n. A closed pipe on stdout counts as done.";

/// Keeps GPUs fed: a fast, durable first tier in front of any object store.
#[derive(Parser)]
#[command(name = "stoker", version, after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start a node on this machine, without a configuration.
    Up(up::Args),
    /// Start a node by its configuration file.
    Serve(serve::Args),
    /// Make and look at the ring on one drive.
    #[command(subcommand)]
    Ring(ring::Verb),
    /// Measure a drive, bare and through the ring.
    #[command(subcommand)]
    Bench(bench::Verb),
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Up(args) => up::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Ring(verb) => ring::run(&verb),
        Verb::Bench(verb) => bench::run(&verb),
    };
    done.unwrap_or_else(|failure: Failure| failure.report())
}
