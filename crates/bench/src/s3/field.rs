//! All sides of the comparison, and how one workload is run over them: short rounds in turn, so that a machine that
//! slows down does so for everybody.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use super::content::Content;
use super::finding::{Finding, Score};
use super::load::{Load, Until, Verb};
use super::server::{Nginx, Server, Stoker};
use super::workload::{Kind, Workload};
use crate::failure::Failure;
use crate::measure::Side;
use crate::progress::Progress;
use crate::raw::{RawFile, RawQueue};
use crate::workload::{Job, Limit, Mix, Order};

/// Hot objects of one size, at most.
const HOT_COUNT_MAX: u64 = 1024;
/// Objects are loaded over this many connections.
const LOADERS: usize = 4;
/// Times that everything hot is read before it is measured, so that every cache has seen it often enough to keep it.
const WARM_UP_PASSES: usize = 3;
/// Length of a round that is not counted.
const WARM_UP_S: f64 = 0.2;
/// Reads of the bare drive: the size and depth at which it is fastest here.
const RAW_READ: Job = Job { len: 1 << 20, depth: 16, mix: Mix::Reads, order: Order::Sequential };
/// The ring writes pieces of at most this size, so the bare drive does too.
const RAW_WRITE_MAX: usize = 4 << 20;
/// Objects that are read back after they were written, each over a connection of its own.
const READ_BACK: usize = 32;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Volume {
    /// Hot objects of one size, together.
    pub hot_bytes: u64,
    /// Cold objects together.
    pub cold_bytes: u64,
    /// Written in one round at most.
    pub put_bytes: u64,
    /// Length of a round.
    pub seconds: f64,
    /// Rounds of each side.
    pub rounds: u32,
    /// Whether the others wait until Stoker has drained what it took.
    pub waits_for_drain: bool,
}

/// All sides.
pub struct Field {
    /// Stoker.
    pub stoker: Stoker,
    /// nginx, if it is there.
    pub nginx: Option<Nginx>,
    /// Other stores.
    pub peers: Vec<Server>,
    /// The drive without anything above it, if a workload needs it.
    pub raw: Option<RawFile>,
    /// The bytes of the objects.
    pub content: Content,
    /// How much is done.
    pub volume: Volume,
    /// A folder on the drive.
    pub dir: PathBuf,
    /// Groups of hot objects that all servers have.
    pub loaded: BTreeSet<String>,
}

impl Field {
    /// Runs a workload.
    pub fn run(&mut self, workload: &'static Workload, progress: &Progress) -> Result<Finding, Failure> {
        progress.say(workload.name);
        let group = group_of(workload);
        match workload.kind {
            Kind::Cold => self.make_cold(workload, &group)?,
            // Loads of one size share their objects.
            Kind::Hot if self.loaded.insert(group.clone()) => self.make_hot(workload, &group)?,
            Kind::Hot | Kind::Put => {}
        }
        let mut lanes = self.lanes(workload, &group)?;
        let until = self.until(workload);
        let mut drained_bytes = 0;
        for round in 0..self.volume.rounds as usize {
            for turn in 0..lanes.len() {
                // Forth and back, so that nobody always comes after the same neighbour.
                let at = if round.is_multiple_of(2) { turn } else { lanes.len() - 1 - turn };
                drained_bytes += self.turn(&mut lanes[at], workload, &group, until)?;
                progress.add(1);
            }
        }
        if workload.kind == Kind::Put {
            self.clear(workload, &group, &lanes)?;
        }
        Ok(finding(workload, lanes, drained_bytes))
    }

    fn until(&self, workload: &Workload) -> Until {
        let requests = |bytes: u64| (bytes / workload.object_bytes as u64).max(1);
        match workload.kind {
            Kind::Hot => Until { seconds: self.volume.seconds, requests: u64::MAX / 2 },
            // Its share of the objects, each of which is read once.
            Kind::Cold => {
                let requests = requests(self.volume.cold_bytes) / u64::from(self.volume.rounds);
                Until { seconds: f64::INFINITY, requests: requests.max(1) }
            }
            Kind::Put => Until { seconds: self.volume.seconds, requests: requests(self.volume.put_bytes) },
        }
    }

    /// Different objects: twice what a round writes, so that what is overwritten had time to drain.
    fn count(&self, workload: &Workload) -> u64 {
        let bytes = workload.object_bytes as u64;
        match workload.kind {
            Kind::Hot => (self.volume.hot_bytes / bytes).clamp(1, HOT_COUNT_MAX),
            Kind::Cold => self.until(workload).requests * u64::from(self.volume.rounds),
            Kind::Put => 2 * self.until(workload).requests,
        }
    }

    /// The sides that a workload is run on, ready and warm.
    fn lanes(&self, workload: &Workload, group: &str) -> Result<Vec<Lane<'_>>, Failure> {
        let mut lanes = Vec::new();
        for server in self.servers(workload.kind) {
            let verb = if workload.kind == Kind::Put { Verb::Put } else { Verb::Get };
            let load = self.load(verb, server, workload, group);
            match workload.kind {
                Kind::Hot => {
                    (0..WARM_UP_PASSES).try_for_each(|_| load.pass(workload.connections).map(drop))?;
                }
                Kind::Put => {
                    let requests = self.until(workload).requests;
                    load.round(workload.connections, Until { seconds: WARM_UP_S, requests })?;
                    self.settle(server.name(), group)?;
                }
                Kind::Cold => {}
            }
            lanes.push(Lane::Server { server, load, score: Score::default() });
        }
        if let Some(raw) = self.raw.as_ref().filter(|_| workload.kind != Kind::Hot) {
            lanes.push(raw_lane(raw, workload, self.until(workload))?);
        }
        Ok(lanes)
    }

    /// The servers that take part, Stoker first.
    fn servers(&self, kind: Kind) -> impl Iterator<Item = &Server> {
        let nginx = self.nginx.as_ref().map(|nginx| &nginx.server);
        let peers = self.peers.iter().filter(move |_| kind != Kind::Cold);
        [&self.stoker.server].into_iter().chain(nginx).chain(peers)
    }

    fn load(&self, verb: Verb, server: &Server, workload: &Workload, group: &str) -> Load<'_> {
        let count = self.count(workload);
        Load::new(verb, server.target(), &self.content, group, workload.object_bytes, count)
    }

    /// Loads the objects everywhere. What is still being drained would take from the others.
    fn make_hot(&self, workload: &Workload, group: &str) -> Result<(), Failure> {
        for server in self.servers(workload.kind) {
            self.load(Verb::Put, server, workload, group).pass(LOADERS)?;
        }
        self.stoker.wait_drained()
    }

    /// Loads the objects, and has Stoker and the kernel forget them.
    fn make_cold(&mut self, workload: &Workload, group: &str) -> Result<(), Failure> {
        self.load(Verb::Put, &self.stoker.server, workload, group).pass(LOADERS)?;
        self.stoker.wait_drained()?;
        self.stoker.restart()?;
        if let Some(nginx) = &self.nginx {
            self.load(Verb::Put, &nginx.server, workload, group).pass(LOADERS)?;
            nginx.forget(group)?;
        }
        Ok(())
    }

    /// One round of one side; returns what Stoker drained in it.
    fn turn(
        &self,
        lane: &mut Lane<'_>,
        workload: &Workload,
        group: &str,
        until: Until,
    ) -> Result<u64, Failure> {
        match lane {
            Lane::Raw { queue, limit, side } => {
                side.0.push(queue.round(*limit).map_err(|e| Failure::io("the bare drive", &e))?);
                Ok(0)
            }
            Lane::Server { server, load, score } => {
                let is_draining = workload.kind == Kind::Put && server.name() == self.stoker.server.name();
                let drained = || if is_draining { self.stoker.drained_bytes() } else { Ok(0) };
                let (before, cpu_before) = (drained()?, server.cpu_seconds());
                let tally = load.round(workload.connections, until)?;
                score.note(tally, server.cpu_seconds() - cpu_before);
                let after = drained()?;
                if workload.kind == Kind::Put {
                    self.settle(server.name(), group)?;
                }
                Ok(after.saturating_sub(before))
            }
        }
    }

    /// After a round of writes: nothing of it goes on in the background while the next side is measured.
    fn settle(&self, name: &str, group: &str) -> Result<(), Failure> {
        match &self.nginx {
            _ if name == self.stoker.server.name() && self.volume.waits_for_drain => {
                self.stoker.wait_drained()
            }
            _ if name == self.stoker.server.name() => Ok(()),
            Some(nginx) if name == nginx.server.name() => nginx.remove(group),
            _ => {
                // Without this tool the rounds are a little less apart from each other; that is all.
                let _ = Command::new("sync").arg("-f").arg(&self.dir).status();
                Ok(())
            }
        }
    }

    /// Reads some of what was written back, then removes all of it, so that the next workload has the same room.
    fn clear(&self, workload: &Workload, group: &str, lanes: &[Lane<'_>]) -> Result<(), Failure> {
        let Some(Lane::Server { server, load, .. }) = lanes.first() else { return Ok(()) };
        let read_back = self.load(Verb::Get, server, workload, group);
        let requests = load.touched().min(READ_BACK as u64);
        read_back.round(requests as usize, Until { seconds: f64::INFINITY, requests })?;
        let remove = self.load(Verb::Delete, server, workload, group);
        remove.round(LOADERS, Until { seconds: f64::INFINITY, requests: load.touched() })?;
        self.stoker.wait_drained()
    }
}

/// One side while a workload runs.
#[expect(clippy::large_enum_variant, reason = "a handful of them exist at a time")]
enum Lane<'a> {
    Server { server: &'a Server, load: Load<'a>, score: Score },
    Raw { queue: RawQueue<'a>, limit: Limit, side: Side },
}

/// The bare drive doing the same: as many bytes read once, or durable writes for as long.
fn raw_lane<'a>(raw: &'a RawFile, workload: &Workload, until: Until) -> Result<Lane<'a>, Failure> {
    let (job, limit) = match workload.kind {
        Kind::Cold => (RAW_READ, Limit::Bytes(until.requests * workload.object_bytes as u64)),
        _ => {
            let (len, depth) = (workload.object_bytes.min(RAW_WRITE_MAX), workload.connections);
            (Job { len, depth, mix: Mix::Writes, order: Order::Sequential }, Limit::Seconds(until.seconds))
        }
    };
    let queue = raw.queue(&job).map_err(|e| Failure::io("the bare drive", &e))?;
    Ok(Lane::Raw { queue, limit, side: Side::default() })
}

fn group_of(workload: &Workload) -> String {
    match workload.kind {
        Kind::Hot => format!("hot-{}", workload.object_bytes),
        Kind::Cold | Kind::Put => workload.name.replace('_', "-"),
    }
}

fn finding(workload: &'static Workload, lanes: Vec<Lane<'_>>, drained_bytes: u64) -> Finding {
    let mut finding = Finding {
        workload,
        stoker: Score::default(),
        nginx: None,
        raw: None,
        peers: Vec::new(),
        drained_bytes,
    };
    for lane in lanes {
        match lane {
            Lane::Raw { side, .. } => finding.raw = Some(side),
            Lane::Server { server, score, .. } => match server.name() {
                "stoker" => finding.stoker = score,
                "nginx" => finding.nginx = Some(score),
                peer => finding.peers.push((peer, score)),
            },
        }
    }
    finding
}
