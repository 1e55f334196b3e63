//! Malformed messages at every port of one real node, all at the same time: S3, NFS, other nodes, the client socket, the admin API.
//! The node neither panics nor grows beyond its limit, and somebody who behaves is served all the while.
//!
//! `STOKER_EXECUTIONS=10000000 cargo test -p stoker --test hostile -- --nocapture` asks for more than the usual number of messages,
//! `STOKER_SEED` for other ones, `STOKER_DOORS=s3,nfs` for some ports alone.

mod corpus;
mod doors;
mod mutate;
#[path = "../storm/mod.rs"]
mod storm;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use corpus::Corpus;
use doors::Door;
use mutate::Mutator;
use storm::{LOCAL, Node, content, put, read};

/// Messages of a usual run.
const USUAL: u64 = 12_000;
/// Bytes that the node may use, by its own limit, and what a process needs beside its buffers.
const MEMORY: &str = "512MiB";
const RESIDENT_KIB_MAX: u64 = (512 + 256) << 10;
/// Threads of each port.
const THREADS: u64 = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn malformed_messages_neither_break_nor_bloat_a_node() {
    let count = number("STOKER_EXECUTIONS").unwrap_or(USUAL);
    let seed = number("STOKER_SEED").unwrap_or(1);
    let folder = tempfile::TempDir::new().unwrap();
    let dir = folder.path().join("node");
    let node = start(&dir);
    let only = std::env::var("STOKER_DOORS").ok();
    let doors: Vec<Door> = Door::all(&node.ready, &dir)
        .into_iter()
        .filter(|d| only.as_ref().is_none_or(|o| o.contains(d.name)))
        .collect();
    let each = count / doors.len() as u64;

    let (over, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let sent: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        let behaved = scope.spawn(|| behave(&dir, &over, &served));
        let attacks: Vec<_> = doors
            .iter()
            .map(|door| {
                let (done, sent) = (AtomicU64::new(0), &sent);
                scope.spawn(move || {
                    let corpus = Corpus::of(door);
                    std::thread::scope(|scope| {
                        for thread in 0..THREADS {
                            let (done, corpus) = (&done, &corpus);
                            scope.spawn(move || {
                                attack(door, corpus, Mutator::new(seed, door.name, thread), done, each)
                            });
                        }
                    });
                    let words = format!("{} {}", door.name, done.load(Ordering::Relaxed));
                    sent.lock().unwrap().push(words);
                })
            })
            .collect();
        let attacked: Vec<_> = attacks.into_iter().map(|attack| attack.join()).collect();
        over.store(true, Ordering::Relaxed);
        behaved.join().unwrap();
        attacked.into_iter().for_each(|attacked| attacked.unwrap());
    });
    let kib = resident_kib_max(node.pid());
    let words = std::fs::read_to_string(dir.with_extension("log")).unwrap();
    assert!(!words.contains("panicked"), "{words}");
    assert!(kib <= RESIDENT_KIB_MAX, "{kib} KiB of {RESIDENT_KIB_MAX}");
    eprintln!(
        "messages: {}, seed {seed}; at most {} MiB; {} operations of a client that behaves",
        sent.into_inner().unwrap().join(", "),
        kib >> 10,
        served.into_inner()
    );
    node.stop();
}

fn start(dir: &Path) -> Node {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.args(["up", "--json", "--memory", MEMORY, "--size", "1GiB", "--s3", LOCAL, "--admin", LOCAL]);
    command.args(["--peers", LOCAL, "--nfs", LOCAL, "--dir"]).arg(dir);
    Node::run(command, dir)
}

/// Sends until this port had its share.
fn attack(door: &Door, corpus: &Corpus, mut mutator: Mutator, done: &AtomicU64, each: u64) {
    while done.load(Ordering::Relaxed) < each {
        let messages: Vec<Vec<u8>> =
            (0..1 + mutator.below(8)).map(|_| corpus.message(&mut mutator)).collect();
        done.fetch_add(door.send(&messages), Ordering::Relaxed);
    }
}

/// Writes and reads; every one of them goes well.
fn behave(dir: &Path, over: &AtomicBool, served: &AtomicU64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = storm::cell::connect_in(dir).await;
        for at in 0u64.. {
            if over.load(Ordering::Relaxed) {
                return;
            }
            let (name, bytes) = (format!("well/{}", at % 32), content(at, 20_000));
            // A node that is asked by too many says so to everybody; whoever tries again is served.
            let mut tries = 0;
            loop {
                let done = async {
                    put(&client, &name, &bytes).await?;
                    read(&client, &name).await
                };
                match done.await {
                    Ok(found) => break assert!(found.as_deref() == Some(&bytes[..]), "{name}"),
                    Err(fault) if storm::is_passing(&fault) && tries < 100 => {
                        tries += 1;
                        client = storm::cell::connect_in(dir).await;
                    }
                    Err(fault) => panic!("{name}: {fault:?}"),
                }
            }
            served.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// The most that the process ever had.
fn resident_kib_max(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the node lives");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux tells");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
