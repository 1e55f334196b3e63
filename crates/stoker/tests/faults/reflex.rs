//! A drive of a cell of real nodes gets slow while clients work: reads leave it, it is taken out only when that lasts, those who repair are told
//! once, and it is back once the gate passed it. No client sees an error.

#![expect(clippy::disallowed_methods, reason = "figures for people are times of this machine")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use stoker_store::{Counter, Store};

use crate::cell::PROGRAM;
use crate::drives::{Drive, Kind};
use crate::storm::cell::{NODES, connect_in};
use crate::storm::{LOCAL, Node, content, put, read};

/// Operations a second of the drive that is slow.
const SLOW_OPS_PER_S: u64 = 20;

/// Sizes of files; each is written once and read often.
const SIZES: [usize; 3] = [20_000, 1 << 20, 1 << 20];

/// Files that are written before anything happens: several times what nodes keep in memory, so that reads come from drives.
const FILES: u64 = 600;

const RING_MIB: u64 = 384;

/// The node whose drive gets slow.
const VICTIM: usize = 1;

/// Periods of a second, and thresholds far above what three nodes on one machine do to each other.
const SLO: &str = r#"
[slo]
period_s = 1
stale_s = 20
mitigate_periods = 2
quarantine_periods = 8
recover_periods = 6
settle_s = 2
baseline_factor = 25.0
[slo.quarantine]
rack_pause_s = 0
[slo.anomaly]
enabled = false
[slo.objectives]
drive_read_p99 = { samples_min = 3, target = 0.8 }
drive_write_p99 = { samples_min = 3, target = 0.8 }
drain_lag = { enabled = false }
[[slo.target]]
name = "spare parts"
format = "webhook"
"#;

/// Whoever repairs: keeps what it is sent.
struct Desk {
    url: String,
    orders: Arc<Mutex<Vec<Value>>>,
}

impl Desk {
    fn open() -> Desk {
        let listener = TcpListener::bind(LOCAL).unwrap();
        let url = format!("http://{}/orders", listener.local_addr().unwrap());
        let orders: Arc<Mutex<Vec<Value>>> = Arc::default();
        let into = orders.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Some(order) = taken(stream) {
                    into.lock().unwrap().push(order);
                }
            }
        });
        Desk { url, orders }
    }

    fn of(&self, status: &str) -> Vec<Value> {
        let orders = self.orders.lock().unwrap();
        orders.iter().filter(|order| order["work_order"]["status"] == status).cloned().collect()
    }
}

/// Reads one request and says that it was taken; each is asked to be the last of its connection.
fn taken(mut stream: TcpStream) -> Option<Value> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let len = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            })?;
            if body.len() >= len {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    .ok()?;
                return serde_json::from_str(body).ok();
            }
        }
        let len = stream.read(&mut piece).ok().filter(|len| *len > 0)?;
        bytes.extend_from_slice(&piece[..len]);
    }
}

/// Clients of all nodes. Every operation goes well, and every byte is right.
struct Clients {
    runtime: tokio::runtime::Runtime,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    /// Reads and writes since the last look, microseconds.
    reads: Arc<Mutex<Vec<u64>>>,
    writes: Arc<Mutex<Vec<u64>>>,
    tasks: Vec<tokio::task::JoinHandle<u64>>,
}

impl Clients {
    fn start(homes: &[PathBuf]) -> Clients {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let [reads, writes]: [Arc<Mutex<Vec<u64>>>; 2] = Default::default();
        runtime.block_on(async {
            for seed in 0..FILES {
                let client = connect_in(&homes[seed as usize % NODES]).await;
                put(&client, &name(seed), &bytes(seed)).await.unwrap();
            }
        });
        let tasks = (0..NODES as u64).map(|at| {
            let (home, stop, done) = (homes[at as usize].clone(), stop.clone(), done.clone());
            let (reads, writes) = (reads.clone(), writes.clone());
            runtime.spawn(async move {
                let client = connect_in(&home).await;
                let mut written = 0;
                for turn in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return written;
                    }
                    let seed = (turn * 7 + at * 13) % FILES;
                    let begun = Instant::now();
                    let found = read(&client, &name(seed)).await.unwrap();
                    reads.lock().unwrap().push(begun.elapsed().as_micros() as u64);
                    assert!(found.as_deref() == Some(&bytes(seed)[..]), "{}", name(seed));
                    if turn % 4 == 3 {
                        // Over and over the same few, so that small rings do not fill.
                        let seed = 1_000 * (at + 1) + turn / 4 % 8;
                        let begun = Instant::now();
                        put(&client, &name(seed), &bytes(seed)).await.unwrap();
                        writes.lock().unwrap().push(begun.elapsed().as_micros() as u64);
                        written += 1;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                unreachable!()
            })
        });
        let tasks = tasks.collect();
        Clients { runtime, stop, done, reads, writes, tasks }
    }

    /// The longest of a hundred reads and writes since the last look, and how many there were.
    fn look(&self) -> String {
        let one = |times: &Mutex<Vec<u64>>| {
            let mut times = std::mem::take(&mut *times.lock().unwrap());
            times.sort_unstable();
            let at = (times.len() * 99).div_ceil(100).max(1) - 1;
            format!("{:.1} ms of {}", times.get(at).copied().unwrap_or_default() as f64 / 1e3, times.len())
        };
        format!("P99 of reads {}, of writes {}", one(&self.reads), one(&self.writes))
    }

    fn check(&self) {
        assert!(!self.tasks.iter().any(|task| task.is_finished()), "a client met an error");
    }

    /// How reads of a node spread over its own drives and others since the last look, from its metrics: what each answered, and its
    /// weight, which is the mean time of a read lately.
    fn weights(&self, home: &Path, before: &mut BTreeMap<String, f64>) -> String {
        let counters = self.runtime.block_on(async { connect_in(home).await.counters().await.unwrap() });
        let label = |counter: &Counter, name: &str| {
            let found = counter.labels.iter().find(|(label, _)| label == name);
            found.map_or_else(String::new, |(_, value)| value.clone())
        };
        let of = |name: &'static str| counters.iter().filter(move |counter| counter.name == name);
        let mut words = Vec::new();
        for reads in of("source_reads_total") {
            let source = format!("{} {}", label(reads, "kind"), label(reads, "source"));
            let answered = reads.value - before.insert(source.clone(), reads.value).unwrap_or_default();
            let means = of("source_read_mean_seconds").filter(|mean| {
                label(mean, "kind") == label(reads, "kind") && label(mean, "source") == label(reads, "source")
            });
            let means: Vec<String> = means.map(|mean| format!("{:.1}", mean.value * 1e3)).collect();
            words.push(format!("{source}: {answered} ({} ms)", means.join(", ")));
        }
        words.join("; ")
    }

    /// Waits until so many more operations went well.
    fn after(&self, count: u64) {
        let until = self.done.load(Ordering::Relaxed) + count;
        while self.done.load(Ordering::Relaxed) < until {
            self.check();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn finish(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let written = self.tasks.into_iter().map(|task| self.runtime.block_on(task).unwrap()).sum();
        (self.done.load(Ordering::Relaxed), written)
    }
}

fn name(seed: u64) -> String {
    format!("f/{seed}")
}

fn bytes(seed: u64) -> Vec<u8> {
    content(seed + 1, SIZES[seed as usize % SIZES.len()])
}

/// Three nodes with two drives each, by configuration files.
struct Nodes {
    homes: Vec<PathBuf>,
    drives: Vec<Vec<Drive>>,
    nodes: Vec<Node>,
}

impl Nodes {
    fn start(dir: &Path, desk: &Desk) -> Result<Nodes, String> {
        let homes: Vec<PathBuf> = (0..NODES).map(|at| dir.join(format!("node-{at}"))).collect();
        let mut drives = Vec::new();
        for at in 0..NODES {
            let make = |number: usize| {
                Drive::make(&dir.join(format!("drive-{at}-{number}")), Kind::FileSystem, RING_MIB)
            };
            drives.push(vec![make(0)?, make(1)?]);
        }
        let mut all = Nodes { homes, drives, nodes: Vec::new() };
        std::fs::create_dir(dir.join("lake")).map_err(|fault| fault.to_string())?;
        // They find each other as anybody's do; from then on they are services with a configuration.
        let lake = dir.join("lake");
        let first = all.begin(0, &["up", "--lake", lake.to_str().unwrap()]);
        let peers = first.ready["peers"].as_str().unwrap().to_owned();
        let token_file = dir.join("join-token");
        let mut begun = vec![first];
        for at in 1..NODES {
            std::fs::write(&token_file, begun[0].join_token()).map_err(|fault| fault.to_string())?;
            begun.push(all.begin(at, &["join", &peers, "--token-file", token_file.to_str().unwrap()]));
        }
        for (at, node) in begun.into_iter().enumerate() {
            node.stop();
            let node = all.serve(dir, at, desk);
            all.nodes.push(node);
        }
        Ok(all)
    }

    fn begin(&self, at: usize, verb: &[&str]) -> Node {
        let (name, size) = (format!("n{at}"), format!("{RING_MIB}MiB"));
        let drives: Vec<String> =
            self.drives[at].iter().flat_map(|drive| ["--drive".to_owned(), drive.path()]).collect();
        let drives: Vec<&str> = drives.iter().map(String::as_str).collect();
        Node::start(&[verb, &["--name", &name, "--size", &size], &drives[..]].concat(), &self.homes[at])
    }

    fn serve(&self, dir: &Path, at: usize, desk: &Desk) -> Node {
        let mut words = format!(
            "[node]\ndir = {:?}\nmemory = \"256MiB\"\n[s3]\nlisten = []\n[admin]\nlisten = {LOCAL:?}\n[peers]\nname = \"n{at}\"\nlisten = [{LOCAL:?}]\n\
             [lake]\nurl = \"file://{}\"\n",
            self.homes[at],
            dir.join("lake").display(),
        );
        for drive in &self.drives[at] {
            words += &format!("[[drive]]\npath = {:?}\nsize = \"{RING_MIB}MiB\"\n", drive.path());
        }
        words += &format!("{SLO}url = {:?}\n", desk.url);
        let config = dir.join(format!("n{at}.toml"));
        std::fs::write(&config, words).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--json", "--config"]).arg(&config);
        Node::run(command, &self.homes[at])
    }

    fn ask(&self, at: usize, args: &[&str]) -> String {
        let done = Command::new(PROGRAM).args(args).env("STOKER_DIR", &self.homes[at]).output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "stoker {args:?}: {text}{}", String::from_utf8_lossy(&done.stderr));
        text
    }

    /// The state of the drive that gets slow, as the loop has it; none if it is healthy.
    fn state(&self) -> Option<String> {
        let path = self.drives[VICTIM][0].path();
        let head: Value = serde_json::from_str(&self.ask(0, &["slo", "--json"])).unwrap();
        let parts = head["shown"]["parts"].as_array()?;
        let is_it = |part: &&Value| {
            let name = part["part"].as_str().unwrap_or_default();
            name.starts_with("drive/") && name.contains(&path)
        };
        Some(parts.iter().find(is_it)?["state"].as_str()?.to_owned())
    }

    /// The state of the drive, as its node has it.
    fn standing(&self) -> String {
        let path = self.drives[VICTIM][0].path();
        let words = self.ask(0, &["drive", "ls", &format!("n{VICTIM}"), "--json"]);
        let drives = words.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let found =
            drives.into_iter().find(|drive| drive["path"].as_str().is_some_and(|at| at.contains(&path)));
        found.map_or_else(String::new, |drive| drive["state"].as_str().unwrap_or_default().to_owned())
    }

    /// Steps of the loop about the drive, as the node that led wrote them down.
    fn steps(&self) -> Vec<String> {
        let path = self.drives[VICTIM][0].path();
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        for home in &self.homes {
            let text = std::fs::read_to_string(home.join("events.jsonl")).unwrap_or_default();
            for event in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
                let about = event["about"].as_str().unwrap();
                if event["kind"] == "part_moved" && about.contains("drive/") && about.contains(&path) {
                    all.insert(event["id"].to_string(), event["words"].as_str().unwrap().to_owned());
                }
            }
        }
        all.into_values().collect()
    }
}

/// Waits for something while clients work.
fn until(clients: &Clients, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        clients.check();
        assert!(begun.elapsed() < Duration::from_secs(180), "never: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
    eprintln!("{what} after {:.1} s", begun.elapsed().as_secs_f64());
    begun.elapsed()
}

#[test]
fn a_slow_drive_is_left_taken_out_repaired_and_back() {
    if !stoker_testing::is_asked(&["STOKER_FULL", "STOKER_REFLEX"]) {
        return;
    }
    let dir = tempfile::TempDir::new().unwrap();
    let desk = Desk::open();
    let cell = match Nodes::start(dir.path(), &desk) {
        Ok(cell) => cell,
        Err(why) => return stoker_testing::skipped(format_args!("drives that can be throttled: {why}")),
    };
    for at in 0..NODES {
        cell.ask(at, &["gate", "--quick", "--record", "--steps", "device"]);
    }
    let clients = Clients::start(&cell.homes);
    until(&clients, "somebody leads", || cell.ask(0, &["slo", "--json"]).contains("\"acts\""));
    clients.after(300);
    clients.look();
    clients.after(600);
    eprintln!("usual: {}", clients.look());
    assert_eq!(cell.state(), None);
    assert_eq!(desk.of("opened").len(), 0);

    let mut before = BTreeMap::new();
    clients.weights(&cell.homes[VICTIM], &mut before);
    clients.after(300);
    eprintln!("usual reads of n{VICTIM}: {}", clients.weights(&cell.homes[VICTIM], &mut before));
    let throttle = match cell.drives[VICTIM][0].throttle(cell.nodes[VICTIM].pid(), SLOW_OPS_PER_S) {
        Ok(throttle) => throttle,
        Err(why) => return stoker_testing::skipped(format_args!("throttles: {why}")),
    };
    eprintln!("a drive of n{VICTIM} does {SLOW_OPS_PER_S} operations a second now");
    for second in 1..=6 {
        std::thread::sleep(Duration::from_secs(1));
        eprintln!("  second {second}: {}, {:?}", clients.look(), cell.state());
        eprintln!("    reads of n{VICTIM}: {}", clients.weights(&cell.homes[VICTIM], &mut before));
    }
    until(&clients, "less is asked of it", || {
        matches!(cell.state().as_deref(), Some("degraded" | "quarantined" | "repair"))
    });
    clients.look();
    let is_out = || matches!(cell.state().as_deref(), Some("quarantined" | "repair"));
    until(&clients, "it is taken out", is_out);
    eprintln!("until then: {}", clients.look());
    until(&clients, "it is cordoned", || cell.standing() == "cordoned");
    until(&clients, "a work order is there", || desk.of("opened").len() == 1);
    until(&clients, "it is empty", || cell.state().as_deref() == Some("repair"));
    clients.look();
    clients.after(300);
    eprintln!("while it is out: {}", clients.look());
    let order = desk.of("opened").remove(0)["work_order"].clone();
    eprintln!("{}", serde_json::to_string_pretty(&order).unwrap());
    assert!(order["part"].as_str().unwrap().contains(&cell.drives[VICTIM][0].path()), "{order}");
    assert_eq!(order["location"]["node_name"], format!("n{VICTIM}"));
    assert!(!order["evidence"].as_array().unwrap().is_empty(), "{order}");

    drop(throttle);
    eprintln!("the drive is as fast as ever");
    until(&clients, "it is well", || cell.state().is_none());
    until(&clients, "it takes chunks", || cell.standing() == "live");
    until(&clients, "the work order is closed", || desk.of("closed").len() == 1);
    assert_eq!(desk.of("opened").len(), 1, "one work order");
    let steps = cell.steps();
    steps.iter().for_each(|step| eprintln!("{step}"));
    let at = |from: &str| steps.iter().position(|step| step.starts_with(from));
    let order =
        ["healthy -> degraded", "degraded -> quarantined", "quarantined -> repair", "verifying -> healthy"];
    let order: Vec<Option<usize>> = order.into_iter().map(at).collect();
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{order:?} {steps:?}");
    let (done, written) = clients.finish();
    eprintln!("{done} operations of clients, {written} writes among them: no error, no wrong byte");
}
