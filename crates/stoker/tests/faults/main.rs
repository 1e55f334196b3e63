//! Real nodes, each in a network of its own where the machine allows it, meet what happens to real ones while writers and readers
//! run: nothing acknowledged is lost, no byte is wrong, and clients that go on with another node see nothing of it.
//!
//! `STOKER_FAULTS=200 cargo test -p stoker --test faults -- --nocapture` asks for more faults than the usual number, and
//! `STOKER_SEED` for other ones. Without the right to make networks only processes are hurt.

mod net;
#[path = "../storm/mod.rs"]
mod storm;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use net::Net;
use stoker_store::Store;
use storm::cell::{Load, NODES, connect_to, home, keeps_catalog, promote};
use storm::*;

const GRACE: Duration = Duration::from_secs(10);
/// Long for a client, and no death.
const PAUSE_SHORT: Duration = Duration::from_secs(5);
const CUT_SHORT: Duration = Duration::from_secs(3);
const PROGRAM: &str = env!("CARGO_BIN_EXE_stoker");

/// What happens to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// SIGKILL; it comes back.
    Kill,
    /// SIGSTOP for a while, below the grace period.
    PauseShort,
    /// The same until the others declared it down.
    PauseLong,
    /// Its cable is pulled for a while.
    Cut,
    /// The same until the others declared it down.
    CutLong,
    /// It hears one other node, which does not hear it.
    OneWay,
    /// Its cable carries little.
    Slow,
    /// Its cable loses packets.
    Lossy,
    /// The lake does not answer for a while.
    LakePause,
    /// The lake dies and comes back.
    LakeKill,
}

const OF_PROCESSES: &[Fault] =
    &[Fault::Kill, Fault::PauseShort, Fault::PauseLong, Fault::LakePause, Fault::LakeKill];
const OF_CABLES: &[Fault] = &[Fault::Cut, Fault::CutLong, Fault::OneWay, Fault::Slow, Fault::Lossy];

struct Cell<'d> {
    dir: &'d Path,
    net: Option<Net>,
    nodes: Vec<Option<Node>>,
    ids: Vec<String>,
    lake: Option<Node>,
    lake_s3: String,
}

impl<'d> Cell<'d> {
    /// Three nodes, with a node outside as their lake.
    fn start(dir: &'d Path, net: Option<Net>) -> Cell<'d> {
        let lake_s3 = net.as_ref().map_or(LOCAL.to_owned(), |net| format!("{}:0", net.outside()));
        let mut cell = Cell { dir, net, nodes: Vec::new(), ids: Vec::new(), lake: None, lake_s3 };
        cell.start_lake();
        let first = cell.node(0, &["up", "--lake", "s3://data/cell"]);
        let text = |name: &str| first.ready[name].as_str().unwrap().to_owned();
        let (peers, token) = (text("peers"), text("join_token"));
        cell.ids.push(text("id"));
        cell.nodes.push(Some(first));
        for at in 1..NODES {
            let node = cell.node(at, &["join", &peers, "--token", &token]);
            cell.ids.push(node.ready["id"].as_str().unwrap().to_owned());
            cell.nodes.push(Some(node));
        }
        cell
    }

    fn start_lake(&mut self) {
        let lake =
            Node::start_by(Command::new(PROGRAM), &["up"], [LOCAL, &self.lake_s3], &self.dir.join("lake"));
        // It comes back where it was.
        self.lake_s3 = lake.ready["s3"].as_str().unwrap().trim_start_matches("http://").to_owned();
        self.lake = Some(lake);
    }

    fn node(&self, at: usize, verb: &[&str]) -> Node {
        let (mut command, peers) = match &self.net {
            Some(net) => (net.command(at, PROGRAM), format!("{}:0", net.address(at))),
            None => (Command::new(PROGRAM), LOCAL.to_owned()),
        };
        let lake = &self.lake.as_ref().unwrap().ready;
        let names = [("AWS_ACCESS_KEY_ID", "access_key"), ("AWS_SECRET_ACCESS_KEY", "secret_key")];
        for (name, field) in names.into_iter().chain([("AWS_ENDPOINT_URL", "s3"), ("AWS_REGION", "region")]) {
            command.env(name, lake[field].as_str().unwrap());
        }
        let grace = format!("{}s", GRACE.as_secs());
        let verb = [verb, &["--grace", &grace]].concat();
        Node::start_by(command, &verb, [&peers, LOCAL], &home(self.dir, at))
    }

    /// What the others decided about a node, as one of them sees it.
    async fn state(&self, of: usize, seen_by: usize) -> String {
        let status = connect_to(self.dir, seen_by).await.status().await;
        let nodes = status.map(|status| status.nodes).unwrap_or_default();
        let found = nodes.into_iter().find(|node| node.node == self.ids[of]);
        found.map_or_else(|| "unknown".into(), |node| node.state)
    }

    async fn until(&self, of: usize, seen_by: usize, state: &str) {
        for _ in 0..900 {
            if self.state(of, seen_by).await == state {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("node {of} is never {state}, as node {seen_by} sees it");
    }

    /// How often a node found out that the others had gone on without it.
    fn verdicts(&self, at: usize) -> usize {
        let words = std::fs::read_to_string(home(self.dir, at).with_extension("log")).unwrap_or_default();
        words.matches("declared it down").count()
    }

    /// Hurts a node or the lake while the load runs, and mends it again.
    fn meet(&mut self, fault: Fault, victim: usize, load: &Load) {
        let other = (victim + 1) % NODES;
        let kept = load.runtime.block_on(keeps_catalog(self.dir, victim));
        let pause = |span: Duration| std::thread::sleep(span);
        // Whoever keeps the catalog is missed by all: nobody can be declared down before another one has it.
        let until_down = |cell: &Cell| {
            if kept {
                load.runtime.block_on(promote(cell.dir, other));
            }
            load.runtime.block_on(cell.until(victim, other, "down"));
            load.after(10);
        };
        let cables = || self.net.as_ref().expect("there are cables");
        match fault {
            Fault::Kill => {
                self.nodes[victim].take().unwrap().kill();
                if !kept {
                    load.after(10);
                }
                self.nodes[victim] = Some(self.node(victim, &["up"]));
            }
            Fault::PauseShort => {
                let before = self.verdicts(victim);
                self.nodes[victim].as_ref().unwrap().signal("STOP");
                pause(PAUSE_SHORT);
                self.nodes[victim].as_ref().unwrap().signal("CONT");
                load.after(10);
                assert_eq!(self.verdicts(victim), before, "a pause of {PAUSE_SHORT:?} is no death");
            }
            Fault::PauseLong => {
                self.nodes[victim].as_ref().unwrap().signal("STOP");
                until_down(self);
                self.nodes[victim].as_ref().unwrap().signal("CONT");
            }
            Fault::Cut => {
                cables().cut(victim);
                pause(CUT_SHORT);
                cables().mend(victim);
            }
            Fault::CutLong => {
                cables().cut(victim);
                until_down(self);
                cables().mend(victim);
            }
            Fault::OneWay => {
                cables().cut_one_way(victim, other);
                pause(CUT_SHORT);
                cables().mend_one_way(victim, other);
            }
            Fault::Slow => {
                cables().slow(victim, "20mbit");
                load.after(20);
                cables().mend_slow(victim);
            }
            Fault::Lossy => {
                if cables().lose(victim) {
                    load.after(20);
                    cables().mend_lose(victim);
                }
            }
            Fault::LakePause => {
                self.lake.as_ref().unwrap().signal("STOP");
                load.after(30);
                self.lake.as_ref().unwrap().signal("CONT");
            }
            Fault::LakeKill => {
                self.lake.take().unwrap().kill();
                load.after(30);
                self.start_lake();
            }
        }
        // The next one finds a whole cell.
        load.runtime.block_on(self.until(victim, other, "up"));
        load.after(10);
    }
}

#[test]
fn a_cell_meets_faults_and_nothing_is_lost() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let full = std::env::var_os("STOKER_FULL").is_some();
    let count = number("STOKER_FAULTS").unwrap_or(if full { 60 } else { 4 });
    let seed = number("STOKER_SEED").unwrap_or(1);
    let dir = tempfile::TempDir::new().unwrap();
    let net = Net::make(NODES).map_err(|why| eprintln!("only processes are hurt: {why}")).ok();
    let mut faults = OF_PROCESSES.to_vec();
    if net.is_some() {
        faults.extend(OF_CABLES);
    }
    let mut cell = Cell::start(dir.path(), net);
    let load = Load::start(dir.path(), 4, Duration::from_millis(50));
    load.after(20);
    let mut dice = Dice::new(seed);
    for at in 0..count {
        // Each kind once before any comes again.
        let fault = faults[(at + seed) as usize % faults.len()];
        let victim = dice.below(NODES as u64) as usize;
        eprintln!("{at}: {fault:?} of node {victim}");
        cell.meet(fault, victim, &load);
    }
    let acks = load.finish();
    eprintln!("{count} faults, {acks} acknowledged operations");
}
