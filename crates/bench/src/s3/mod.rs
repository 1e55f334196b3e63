//! `stoker bench s3`: Stoker beside nginx, the bare drive and other object stores, in one run with one client.
//!
//! The client is ours and light: a thread per connection, requests signed before the clock runs, one buffer to receive
//! into. Status and length of every answer are checked, and the bytes of a share of them.

mod connection;
mod content;
mod field;
mod finding;
mod load;
mod server;
mod target;
mod workload;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::machine;
use super::raw::RawFile;
use super::scratch::Scratch;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{out, size};
pub use content::Content;
use field::{Field, Volume};
use finding::Finding;
pub use load::{Load, Verb};
use server::{Nginx, PEERS, start_peer};
pub use server::{Room, Stoker};
use workload::{Kind, OBJECT_BYTES_MAX, WORKLOADS, Workload};

/// What a peer may take on the drive, roughly, for each byte that one round writes.
const PEER_SHARE: u64 = 4;

/// Arguments of `bench s3`.
#[derive(clap::Args)]
pub struct Args {
    /// A directory on the drive; everything is made in a folder of it that is removed at the end.
    #[arg(long, value_name = "PATH", default_value = ".")]
    dir: PathBuf,
    /// Length of one round of one side.
    #[arg(long, value_name = "S", default_value_t = 1.5, value_parser = super::ring::seconds)]
    seconds: f64,
    /// Rounds of each side, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Only these, comma-separated: get_8m_cold, get_8m_c8, get_8m_c32, get_1m_c8, get_1m_c32, get_64k_c8, get_64k_c32,
    /// put_8m_c8, put_8m_c32, put_1m_c8, put_64k_c32.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// What to compare with, comma-separated: nginx, seaweedfs, garage. One that is not installed is skipped. Programs are
    /// looked for in STOKER_NGINX, STOKER_WEED and STOKER_GARAGE, then on the path.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_value = "nginx,seaweedfs,garage")]
    peers: Vec<String>,
    /// Hot objects of one size, together; they have to fit into Stoker's memory.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256MiB")]
    hot: u64,
    /// Cold objects together; each is read once, after a restart.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "5GiB")]
    cold: u64,
    /// Written in one round, at most.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "2GiB")]
    put: u64,
    /// Size of Stoker's ring.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "12GiB")]
    ring: u64,
    /// Most memory that Stoker may use.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "4GiB")]
    memory: u64,
    /// Seconds that a file has to be left alone before it drains. With 0, Stoker drains while it is written to, and the next
    /// side waits until that is done; otherwise nobody waits.
    #[arg(long, value_name = "S", default_value_t = 0)]
    drain_quiet: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn chosen(&self) -> Result<Vec<&'static Workload>, Failure> {
        if let Some(unknown) = self.only.iter().find(|name| !WORKLOADS.iter().any(|w| w.name == **name)) {
            let names = WORKLOADS.map(|workload| workload.name).join(", ");
            return Err(Failure::new(format!("there is no workload `{unknown}`")).hint(names));
        }
        if let Some(unknown) = self.peers.iter().find(|name| !PEERS.contains(&name.as_str())) {
            return Err(Failure::new(format!("there is no peer `{unknown}`")).hint(PEERS.join(", ")));
        }
        let wants = |name: &str| self.only.is_empty() || self.only.iter().any(|wanted| wanted == name);
        Ok(WORKLOADS.iter().filter(|workload| wants(workload.name)).collect())
    }

    fn volume(&self) -> Volume {
        Volume {
            hot_bytes: self.hot,
            cold_bytes: self.cold,
            put_bytes: self.put,
            seconds: self.seconds,
            rounds: self.rounds,
            waits_for_drain: self.drain_quiet == 0,
        }
    }

    /// Size of the file that the bare drive is measured with: all of it is read once in the cold rounds.
    fn raw_bytes(&self) -> u64 {
        self.cold.max(self.put).next_multiple_of(64 << 20)
    }

    /// What all sides take on the drive together, at most.
    fn space(&self, chosen: &[&Workload]) -> u64 {
        let any = |kind: Kind| chosen.iter().any(|workload| workload.kind == kind);
        let peers = self.peers.len() as u64;
        let hot = if any(Kind::Hot) { 3 * self.hot * (1 + peers) } else { 0 };
        let cold = if any(Kind::Cold) { 2 * self.cold } else { 0 };
        let put = if any(Kind::Put) { self.put * (2 + PEER_SHARE * peers) } else { 0 };
        let raw = if any(Kind::Cold) || any(Kind::Put) { self.raw_bytes() } else { 0 };
        self.ring + hot + cold + put + raw
    }
}

/// Measures Stoker over S3.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let chosen = args.chosen()?;
    let scratch = Scratch::new(&args.dir, args.space(&chosen))?;
    let mut field = start(args, &chosen, &scratch)?;
    let sides = 2 + u64::from(field.nginx.is_some()) + field.peers.len() as u64;
    let progress = Progress::over_steps(chosen.len() as u64 * sides * u64::from(args.rounds), args.json);
    let mut findings = Vec::new();
    for workload in chosen {
        findings.push(field.run(workload, &progress)?);
    }
    drop(progress);
    let machine = describe(args, &field)?;
    if args.json {
        let workloads: Vec<Value> = findings.iter().map(Finding::json).collect();
        out::json(&json!({ "bench": "s3", "workloads": workloads, "machine": machine }))?;
    } else {
        print(&findings)?;
        out::say(format!("{machine}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn start(args: &Args, chosen: &[&Workload], scratch: &Scratch) -> Result<Field, Failure> {
    let wants = |name: &str| args.peers.iter().any(|peer| peer == name);
    let nginx = if wants("nginx") { Nginx::start(&scratch.join("nginx"))? } else { None };
    let mut peers = Vec::new();
    for name in args.peers.iter().filter(|name| *name != "nginx") {
        peers.extend(start_peer(name, &scratch.join(name))?);
    }
    let raw = if chosen.iter().any(|workload| workload.kind != Kind::Hot) {
        let (path, bytes) = (scratch.join("raw"), args.raw_bytes());
        let prewrite = Progress::over_bytes(bytes, args.json);
        prewrite.say("write the bare file once");
        Some(RawFile::make(&path, bytes, &prewrite).map_err(|e| Failure::io(path.display(), &e))?)
    } else {
        None
    };
    let room = Room {
        dir: scratch.join("stoker"),
        ring_bytes: args.ring,
        memory_bytes: args.memory,
        drain_quiet_s: args.drain_quiet,
        nfs: false,
    };
    let stoker = Stoker::start(room)?;
    stoker.wait_prepared()?;
    let content = Content::new(OBJECT_BYTES_MAX);
    let (volume, dir, loaded) = (args.volume(), scratch.join(""), BTreeSet::new());
    Ok(Field { stoker, nginx, peers, raw, content, volume, dir, loaded })
}

fn describe(args: &Args, field: &Field) -> Result<Value, Failure> {
    let mut machine = machine::describe(&args.dir);
    let congestion = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    machine["tcp_congestion_control"] = congestion.trim().into();
    machine["raw_is_direct"] = field.raw.as_ref().map(RawFile::is_direct).into();
    machine["seconds"] = args.seconds.into();
    machine["rounds"] = args.rounds.into();
    machine["drain_quiet_s"] = args.drain_quiet.into();
    for (name, bytes) in [
        ("ring_bytes", args.ring),
        ("memory_bytes", args.memory),
        ("hot_bytes", args.hot),
        ("cold_bytes", args.cold),
        ("put_bytes", args.put),
    ] {
        machine[name] = bytes.into();
    }
    let status = field.stoker.status()?;
    machine["stoker_io"] = status["rings"][0]["io"].clone();
    machine["stoker_cache_bytes"] = status["cache_bytes"].clone();
    Ok(machine)
}

fn print(findings: &[Finding]) -> Result<(), Failure> {
    let mut peers: Vec<&str> = findings.iter().flat_map(|f| f.peers.iter().map(|(name, _)| *name)).collect();
    peers.sort_unstable();
    peers.dedup();
    let mut heads: Vec<String> = [
        "workload",
        "stoker MB/s",
        "nginx",
        "ratio",
        "min..max",
        "raw",
        "of raw",
        "cpu ms/op",
        "nginx cpu",
        "p50 ms",
        "p99 ms",
    ]
    .map(String::from)
    .to_vec();
    heads.extend(peers.iter().map(|name| format!("{name} MB/s")));
    heads.push("bars".into());
    let mut rows = vec![heads];
    rows.extend(findings.iter().map(|finding| {
        let mut row = finding.row();
        row.extend(peers.iter().map(|name| finding.peer_cell(name)));
        row.push(finding.verdict());
        row
    }));
    out::table(&rows)
}
