//! `stoker bench posix`: a FUSE mount and an NFS export beside a plain directory on the same drive, in one run.
//!
//! Every side is asked for the same by the same code, in alternating rounds. What is read is on no side in memory: the page
//! cache is dropped before each round that reads, and for NFS, whose server has a cache of its own, the node is restarted.

mod cold;
mod finding;
mod libnfs;
mod load;
mod mounts;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::machine;
use super::s3::{Room, Stoker};
use super::scratch::Scratch;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{out, size};
use cold::Cold;
use finding::{Finding, Score};
use libnfs::Library;
use load::Load;
use mounts::{Caches, Mounted};
use workload::{Door, WORKLOADS, Work, Workload};

/// Memory of the node.
const MEMORY_BYTES: u64 = 2 << 30;

/// Arguments of `bench posix`.
#[derive(clap::Args)]
pub struct Args {
    /// A directory on the drive; everything is made in a folder of it that is removed at the end.
    #[arg(long, value_name = "PATH", default_value = ".")]
    dir: PathBuf,
    /// Size of the file that is read, and of those that are written.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1GiB")]
    size: u64,
    /// Small files in the directory that is listed.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    files: u64,
    /// Length of one round of what has no end of its own.
    #[arg(long, value_name = "S", default_value_t = 1.5, value_parser = super::ring::seconds)]
    seconds: f64,
    /// Rounds of each side, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Only these, comma-separated: fuse_seq_read_direct, fuse_seq_read_buffered, fuse_seq_write_fsync, fuse_rand_read_4k,
    /// fuse_create_fsync, fuse_create_fsync_1, fuse_stat, fuse_stat_cached, fuse_readdir, nfs_seq_read, nfs_seq_write.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Size of Stoker's ring.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "8GiB")]
    ring: u64,
    /// Leave JuiceFS out. It is measured beside Stoker if `juicefs` is on the path or named by JUICEFS.
    #[arg(long)]
    alone: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn chosen(&self) -> Result<Vec<&'static Workload>, Failure> {
        if self.size < 16 << 20 || self.size * 4 > self.ring {
            return Err(Failure::new("--size is at least 16MiB and at most a quarter of --ring"));
        }
        super::chosen(&WORKLOADS, &self.only, |workload| workload.name)
    }
}

/// Everything that takes part.
struct Field {
    /// Unmounted before the servers behind them go.
    fuse: Option<Mounted>,
    bare: Option<Mounted>,
    juice: Option<Mounted>,
    juice_bare: Option<Mounted>,
    plain: PathBuf,
    stoker: Stoker,
    nfs: Option<Library>,
    load: Load,
    rounds: u32,
    cold: Cold,
}

/// Measures a mount and an export.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let chosen = args.chosen()?;
    let needs_fuse = chosen.iter().any(|workload| workload.door == Door::Fuse);
    if needs_fuse {
        mounts::check()?;
    }
    // Stoker's ring, the plain directory and JuiceFS's, each with a file to read and one that is written.
    let scratch = Scratch::new(&args.dir, args.ring + 5 * args.size + (64 << 20))?;
    let mut field = start(args, &chosen, &scratch)?;
    let progress = Progress::over_steps(chosen.len() as u64 * u64::from(args.rounds), args.json);
    let mut findings = Vec::new();
    for workload in chosen {
        progress.say(workload.name);
        if let Some(finding) = field.run(workload, &progress)? {
            findings.push(finding);
        }
    }
    drop(progress);
    let machine = describe(args, &field);
    field.stop()?;
    if args.json {
        let workloads: Vec<Value> = findings.iter().map(Finding::json).collect();
        out::json(&json!({ "bench": "posix", "workloads": workloads, "machine": machine }))?;
    } else {
        finding::print(&findings)?;
        out::say(format!("{machine}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn start(args: &Args, chosen: &[&Workload], scratch: &Scratch) -> Result<Field, Failure> {
    let has = |door: Door| chosen.iter().any(|workload| workload.door == door);
    let wants_bare = chosen.iter().any(|workload| workload.work == Work::Stat { cached: false });
    let nfs = if has(Door::Nfs) { Library::open() } else { None };
    let room = Room {
        dir: scratch.join("stoker"),
        ring_bytes: args.ring,
        memory_bytes: MEMORY_BYTES,
        drain_quiet_s: 3600,
        nfs: nfs.is_some(),
    };
    let stoker = Stoker::start(room)?;
    stoker.keep_here()?;
    stoker.wait_prepared()?;
    let plain = scratch.join("plain");
    std::fs::create_dir(&plain).map_err(|e| Failure::io(plain.display(), &e))?;
    // What NFS shows is written through the mount.
    let fuse = Mounted::stoker(&stoker, &scratch.join("mount"), Caches::On)?;
    let bare = match wants_bare {
        true => Some(Mounted::stoker(&stoker, &scratch.join("mount-bare"), Caches::Off)?),
        false => None,
    };
    let (mut juice, mut juice_bare) = (None, None);
    if !args.alone && has(Door::Fuse) {
        juice = Mounted::juicefs(scratch, "juice", Caches::On)?;
        if wants_bare && juice.is_some() {
            juice_bare = Mounted::juicefs(scratch, "juice-bare", Caches::Off)?;
        }
    }
    let load = Load { size: args.size, files: args.files, seconds: args.seconds };
    let prepare = Progress::over_steps(3, args.json);
    prepare.say("write what is read");
    let dirs = [Some(&plain), Some(fuse.path()), juice.as_ref().map(Mounted::path)];
    for dir in dirs.into_iter().flatten() {
        load.prepare(dir)?;
        prepare.add(1);
    }
    Ok(Field {
        fuse: Some(fuse),
        bare,
        juice,
        juice_bare,
        plain,
        stoker,
        nfs,
        load,
        rounds: args.rounds,
        cold: Cold::default(),
    })
}

impl Field {
    /// Runs one workload on every side; none if it cannot be run here.
    fn run(&mut self, workload: &'static Workload, progress: &Progress) -> Result<Option<Finding>, Failure> {
        if workload.door == Door::Nfs && self.nfs.is_none() {
            out::say(format!("skipped: {}: this machine has no libnfs", workload.name));
            return Ok(None);
        }
        let mut finding = Finding::new(workload);
        for round in 0..self.rounds {
            for side in 0..2 {
                // Forth and back, so that what drifts does so for both.
                if (side == 0) == round.is_multiple_of(2) {
                    self.cold.before(&self.plain, workload.work)?;
                    let plain = self.load.run(&self.plain, workload.work)?;
                    finding.plain.note(plain, 0.0);
                    self.load.clean(&self.plain, workload.work)?;
                } else {
                    self.stoker_round(workload, &mut finding.stoker)?;
                }
            }
            self.juice_round(workload, &mut finding.juicefs)?;
            progress.add(1);
        }
        Ok(Some(finding))
    }

    fn stoker_round(&mut self, workload: &Workload, score: &mut Score) -> Result<(), Failure> {
        if workload.door == Door::Nfs {
            return self.nfs_round(workload, score);
        }
        let mount = match workload.work {
            Work::Stat { cached: false } => self.bare.as_ref(),
            _ => self.fuse.as_ref(),
        };
        let mount = mount.ok_or_else(|| Failure::new("the mount is gone"))?;
        self.cold.before(mount.path(), workload.work)?;
        let before = self.stoker.server.cpu_seconds() + mount.cpu_seconds();
        let round = self.load.run(mount.path(), workload.work)?;
        let after = self.stoker.server.cpu_seconds() + mount.cpu_seconds();
        score.note(round, after - before);
        self.load.clean(mount.path(), workload.work)
    }

    fn nfs_round(&mut self, workload: &Workload, score: &mut Score) -> Result<(), Failure> {
        // Nobody uses the mounts any more, and the node is about to be restarted.
        for mount in [self.bare.take(), self.fuse.take()].into_iter().flatten() {
            mount.stop()?;
        }
        if workload.work.reads() {
            self.stoker.restart()?;
        }
        self.cold.before(&self.plain, workload.work)?;
        let lacking = || Failure::new("the node has no NFS door");
        let address = self.stoker.nfs().ok_or_else(lacking)?;
        let library = self.nfs.as_ref().ok_or_else(lacking)?;
        let mut client = library.mount(address, self.stoker.volume())?;
        let before = self.stoker.server.cpu_seconds();
        let round = match workload.work.reads() {
            true => client.read(load::LARGE, self.load.size)?,
            false => client.write(load::FRESH, self.load.size)?,
        };
        score.note(round, self.stoker.server.cpu_seconds() - before);
        if !workload.work.reads() {
            client.remove(load::FRESH)?;
        }
        Ok(())
    }

    fn juice_round(&mut self, workload: &Workload, score: &mut Score) -> Result<(), Failure> {
        if workload.door == Door::Nfs {
            return Ok(());
        }
        let mount = match workload.work {
            Work::Stat { cached: false } => self.juice_bare.as_ref(),
            _ => self.juice.as_ref(),
        };
        let Some(mount) = mount else { return Ok(()) };
        self.cold.before(mount.path(), workload.work)?;
        let before = mount.cpu_seconds();
        let round = self.load.run(mount.path(), workload.work)?;
        score.note(round, mount.cpu_seconds() - before);
        self.load.clean(mount.path(), workload.work)
    }

    /// Unmounts everything and stops the node in order.
    fn stop(self) -> Result<(), Failure> {
        for mount in [self.bare, self.fuse, self.juice_bare, self.juice].into_iter().flatten() {
            mount.stop()?;
        }
        self.stoker.stop()
    }
}

fn describe(args: &Args, field: &Field) -> Value {
    let mut machine = machine::describe(&args.dir);
    machine["page_cache"] = field.cold.words().into();
    machine["nfs_client"] = if field.nfs.is_some() { "libnfs" } else { "none" }.into();
    machine["juicefs"] = field.juice.is_some().into();
    machine["load_average"] = machine::load_average().into();
    machine["seconds"] = args.seconds.into();
    machine["rounds"] = args.rounds.into();
    machine["files"] = args.files.into();
    machine["size_bytes"] = args.size.into();
    machine["ring_bytes"] = args.ring.into();
    machine
}
