//! `stoker bench`: what a drive and a database can do bare, and what is left of it through Stoker.
//!
//! Comparisons with a raw limit or a peer in the same run. It must not be linked by the agent.

mod catalog;
mod cell;
mod commit;
mod device;
mod ec;
mod interference;
mod keys;
mod leave;
mod posix;
mod qos;
mod read;
mod recovery;
mod report;
mod ring;
mod s3;

use std::process::ExitCode;

use clap::Subcommand;

use stoker_probe::{machine, measure, process, raw, scratch, subject, workload};
use stoker_terminal::{clock, failure, out, progress, rng, size, sys};

use failure::Failure;

/// The verbs of `stoker bench`.
#[derive(Subcommand)]
pub enum Verb {
    /// Measure a drive without the ring: O_DIRECT reads and durable writes through io_uring.
    Device(device::Args),
    /// Measure the ring against the same drive without it, in alternating rounds.
    Ring(ring::Args),
    /// Measure commits to two nodes against the bare drive and a bare connection to it, in alternating rounds.
    Commit(commit::Args),
    /// Measure reads from a drive here, from another node and from the lake against the same without Stoker.
    Read(read::Args),
    /// Measure Stoker over S3 beside nginx, the bare drive and other object stores, in one run.
    S3(s3::Args),
    /// Measure a FUSE mount and an NFS export beside a plain directory on the same drive, in one run.
    Posix(posix::Args),
    /// Measure a catalog on this machine and in PostgreSQL beside the bare databases, with many clients.
    Catalog(catalog::Args),
    /// Measure a node with very many small files: rate, memory, restart, listing.
    Keys(keys::Args),
    /// Measure erasure coding: parity and lost shards per core, with each kernel, beside ISA-L.
    Ec(ec::Args),
    /// Measure two jobs on one node, one with a floor and a bound on its latency, beside each of them alone.
    Qos(qos::Args),
    /// Measure how much a training loop on cores of its own is slowed by a busy node on the others.
    Interference(interference::Args),
    /// Write into a ring and wait to be killed; `bench ring` measures the recovery.
    #[command(hide = true)]
    Leave(leave::Args),
}

/// Runs a verb.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Device(args) => device::run(args),
        Verb::Ring(args) => ring::run(args),
        Verb::Commit(args) => commit::run(args),
        Verb::Read(args) => read::run(args),
        Verb::S3(args) => s3::run(args),
        Verb::Posix(args) => posix::run(args),
        Verb::Catalog(args) => catalog::run(args),
        Verb::Keys(args) => keys::run(args),
        Verb::Ec(args) => ec::run(args),
        Verb::Qos(args) => qos::run(args),
        Verb::Interference(args) => interference::run(args),
        Verb::Leave(args) => leave::run(args),
    }
}

/// The workloads that were asked for by name; all of them if none was.
fn chosen<W>(
    all: &'static [W],
    wanted: &[String],
    name: fn(&W) -> &'static str,
) -> Result<Vec<&'static W>, Failure> {
    if let Some(unknown) = wanted.iter().find(|wanted| !all.iter().any(|one| name(one) == **wanted)) {
        let names: Vec<&str> = all.iter().map(name).collect();
        return Err(Failure::new(format!("there is no workload `{unknown}`")).hint(names.join(", ")));
    }
    let wants = |one: &&W| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name(one));
    Ok(all.iter().filter(wants).collect())
}
