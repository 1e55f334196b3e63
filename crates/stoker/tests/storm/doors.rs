//! Workers of a storm that come by a mount, with each write durable when it returns, and by NFS, from node to node.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::cell::{NODES, connect, find_out, home};
use super::*;

/// Bytes of each file of theirs: one request, so that a write is there whole or not at all.
const LEN: usize = 32 << 10;

/// Files of each worker.
const FILES: u64 = 6;

/// Ways to open a file so that a write is durable when it returns.
const WAYS: [i32; 5] = [
    libc::O_SYNC,
    libc::O_DSYNC,
    libc::O_SYNC | libc::O_TRUNC,
    libc::O_DSYNC | libc::O_APPEND | libc::O_TRUNC,
    libc::O_DSYNC | libc::O_EXCL,
];

/// What all workers of a storm share.
#[derive(Clone)]
pub struct Shared {
    pub dir: PathBuf,
    pub model: Arc<Mutex<Model>>,
    pub acks: Arc<AtomicU64>,
    pub stop: Arc<AtomicBool>,
    pub pause: Duration,
}

impl Shared {
    /// A worker's first file: its folder is there from then on.
    async fn make_folder(&self, worker: u64, dice: &mut Dice) {
        find_out(&self.dir, dice, worker, &[], &self.model).await;
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Says that a worker does not work, and waits for the end in its place.
    async fn skip(&self, who: &str, error: &std::io::Error) {
        stoker_testing::skipped(format_args!("{who}: python3 cannot be started: {error}"));
        while !self.is_over() {
            tokio::time::sleep(self.pause).await;
        }
    }
}

/// A mount of the volume through one node. It goes when this is dropped.
struct Mounted {
    at: PathBuf,
    child: Child,
}

impl Mounted {
    /// None if that node does not answer now.
    fn make(dir: &Path, node: usize, at: &Path) -> Option<Mounted> {
        std::fs::create_dir_all(at).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
        command.env("STOKER_DIR", home(dir, node)).args(["mount", "-f", "data"]).arg(at);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mounted = Mounted { at: at.to_owned(), child };
        line.starts_with("mounted data on").then_some(mounted)
    }
}

impl Drop for Mounted {
    /// Killed: no handler runs, nothing is flushed.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.at).stderr(Stdio::null()).status();
    }
}

/// Writes files with O_SYNC and its like through a mount whose process is killed again and again, right after a write.
pub async fn write_durably(shared: Shared, worker: u64) {
    let mut dice = Dice::new(worker);
    shared.make_folder(worker, &mut dice).await;
    let mut hand = match Script::start("tests/storm/durable.py", &[]) {
        Ok(hand) => hand,
        Err(error) => return shared.skip("writers of durable files", &error).await,
    };
    let source = shared.dir.join(format!("durable-{worker}"));
    let place = shared.dir.join(format!("mount-{worker}"));
    let mut mounted: Option<Mounted> = None;
    for at in 0u64.. {
        if shared.is_over() {
            return;
        }
        tokio::time::sleep(shared.pause).await;
        let there = match mounted.take() {
            Some(there) => there,
            None => {
                let (dir, node, place) =
                    (shared.dir.clone(), dice.below(NODES as u64) as usize, place.clone());
                match blocking(move || Mounted::make(&dir, node, &place)).await {
                    Some(there) => there,
                    None => continue,
                }
            }
        };
        let name = format!("w{worker}/sync{}", dice.below(FILES));
        let next = Some((worker << 32 | at, LEN));
        let mut way = WAYS[dice.below(WAYS.len() as u64) as usize];
        let path = there.at.join(&name);
        {
            let mut model = shared.model.lock().unwrap();
            let is_there = model.get(&name).is_some();
            // Only a file that is not there can be made by this open.
            if is_there {
                way &= !libc::O_EXCL;
            }
            if !is_there || way & libc::O_TRUNC != 0 {
                model.begin(&name, Some((0, 0)));
            }
            model.begin(&name, next);
        }
        std::fs::write(&source, content(worker << 32 | at, LEN)).unwrap();
        let line = format!("write {way} {} {}", source.display(), path.display());
        let (back, is_done) = blocking(move || {
            let is_done = hand.ask(&line);
            (hand, is_done)
        })
        .await;
        hand = back;
        match is_done {
            true => {
                shared.model.lock().unwrap().done(&name, next);
                shared.acks.fetch_add(1, Ordering::Relaxed);
                let is_killed = dice.below(4) == 0;
                (hand, mounted) = blocking(move || {
                    // Killed first: closing the file must not be what makes it durable.
                    let kept = (!is_killed).then_some(there);
                    hand.ask("close");
                    (hand, kept)
                })
                .await;
            }
            false => {
                blocking(move || drop(there)).await;
                find_out(&shared.dir, &mut dice, worker, &[name], &shared.model).await;
            }
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// A script that answers by lines.
struct Script {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Script {
    fn start(path: &str, args: &[String]) -> std::io::Result<Script> {
        let mut command = Command::new("python3");
        command.args(["-B", path]).args(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Ok(Script { child, to, from })
    }

    /// True when it says that it did so.
    fn ask(&mut self, line: &str) -> bool {
        let sent = writeln!(self.to, "{line}");
        let mut answer = String::new();
        sent.is_ok() && self.from.read_line(&mut answer).is_ok() && answer.trim() == "done"
    }
}

/// Writes files by NFS: unstable at one node, again and committed at another one, then newer bytes. Nodes that die are left, the write
/// is repeated with the others until it is acknowledged.
pub async fn write_by_nfs(shared: Shared, worker: u64, addresses: Vec<String>) {
    let mut dice = Dice::new(worker);
    shared.make_folder(worker, &mut dice).await;
    let args: Vec<String> = [format!("w{worker}")].into_iter().chain(addresses).collect();
    let mut mover = match Script::start("tests/nfs/storm.py", &args) {
        Ok(mover) => mover,
        Err(error) => return shared.skip("clients that move", &error).await,
    };
    let [old, new] = ["old", "new"].map(|which| shared.dir.join(format!("nfs-{worker}-{which}")));
    for at in 0u64.. {
        if shared.is_over() {
            return;
        }
        tokio::time::sleep(shared.pause).await;
        let name = format!("nfs{}", dice.below(FILES));
        let key = format!("w{worker}/{name}");
        let seeds = [worker << 32 | at << 1, worker << 32 | at << 1 | 1];
        std::fs::write(&old, content(seeds[0], LEN)).unwrap();
        std::fs::write(&new, content(seeds[1], LEN)).unwrap();
        let states = [(0, 0), (seeds[0], LEN), (seeds[1], LEN)].map(Some);
        states.into_iter().for_each(|state| shared.model.lock().unwrap().begin(&key, state));
        let (old, new) = (old.clone(), new.clone());
        let (back, done) = blocking(move || {
            let done = mover.ask(&format!("{name} {} {}", old.display(), new.display()));
            (mover, done)
        })
        .await;
        mover = back;
        assert!(done, "{key} cannot be written by NFS through any node");
        shared.model.lock().unwrap().done(&key, states[2]);
        shared.acks.fetch_add(1, Ordering::Relaxed);
        let (_, client) = connect(&shared.dir, &mut dice).await;
        match read(&client, &key).await {
            Ok(found) => {
                let is_right = shared.model.lock().unwrap().is_right(&key, found.as_deref());
                assert!(is_right, "{key} is not what was written last");
            }
            Err(fault) => assert!(is_passing(&fault), "{key}: {fault:?}"),
        }
    }
}
