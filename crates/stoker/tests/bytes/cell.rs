//! A hurt cell: who starts, what can be read, and whether what is said about the rest is true.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stoker_client::{Client, Endpoint};
use stoker_store::{ErrorKind, LostFile, Order, Report, Store};

use crate::damage::{Damage, Part};
use crate::image::{DRAINED, FILLER, Files, Image, RING};
use crate::storm::cell::{NODES, home};
use crate::storm::{LOCAL, content, key, read_in};

/// Tries of something that becomes true by itself, a tenth of a second apart. A hurt cell may need a verdict and a rebuild.
const TRIES_MAX: usize = 600;

/// Tries to get names from anybody; after half of them losses are accepted.
const NAMES_TRIES: usize = 60;

/// Longest wait for an answer, and for a node that is told to keep the catalog: it looks for the others first.
const ANSWER_MAX: Duration = Duration::from_secs(4);
const PROMOTED_MAX: Duration = Duration::from_secs(20);

/// The cell with one fault in it.
pub struct Cell<'c> {
    folder: PathBuf,
    damage: &'c Damage,
    nodes: Vec<Option<Running>>,
    /// Why a node did not start.
    refusals: Vec<Option<String>>,
    runtime: tokio::runtime::Runtime,
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl<'c> Cell<'c> {
    /// Starts all nodes at the same time. One that refuses says why.
    pub fn start(folder: &Path, damage: &'c Damage) -> Cell<'c> {
        let started: Vec<Result<Running, String>> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..NODES).map(|at| scope.spawn(move || start(folder, at))).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        let (mut nodes, mut refusals) = (Vec::new(), Vec::new());
        for started in started {
            refusals.push(started.as_ref().err().cloned());
            nodes.push(started.ok());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Cell { folder: folder.to_owned(), damage, nodes, refusals, runtime }
    }

    /// Reads everything, before and after another node is lost.
    pub fn judge(mut self, image: &Image) -> Result<String, String> {
        for (at, refusal) in self.refusals.iter().enumerate() {
            let Some(why) = refusal else { continue };
            if self.damage.node != Some(at) {
                return Err(format!("node {at}, which is whole, does not start: {why}"));
            }
            // A person has to know what to do.
            if !why.contains("stoker: ") || why.contains("panicked") {
                return Err(format!("node {at} does not start and does not say why: {why}"));
            }
        }
        let refused = self.refusals.iter().flatten().map(|why| format!("refused: {}", why.trim())).next();
        self.until_names()?;
        let unread = self.read_all(&image.files)?;
        self.fits(&unread, "after the start")?;
        self.until_protected().map_err(|why| format!("{why}; {refused:?}"))?;

        self.nodes[self.damage.lost] = None;
        self.until_names()?;
        let unread = self.read_all(&image.files)?;
        self.fits(&unread, "after the loss of another node")?;
        let words = refused.unwrap_or_else(|| "all nodes started".to_owned());
        Ok(format!("{words}; {} files cannot be read and say so", unread.len()))
    }

    /// What cannot be read is allowed to be so, and is told.
    fn fits(&self, unread: &BTreeSet<(String, String)>, when: &str) -> Result<(), String> {
        if unread.is_empty() {
            return Ok(());
        }
        // What is in the lake alone and rotted there has no other copy; a read that says so is the truth.
        if self.damage.part == Part::Lake {
            return if unread.len() <= self.damage.objects() {
                Ok(())
            } else {
                Err(format!("{when}: {unread:?} of so few objects"))
            };
        }
        // Files that only one fault and one lost node stand against have a copy left, or are told as lost.
        let lost = self.lost()?;
        let is_told = |(volume, key): &&(String, String)| {
            lost.iter().any(|file| file.volume == *volume && file.key == key.as_bytes())
        };
        let hidden: Vec<_> = unread.iter().filter(|file| !is_told(file)).collect();
        if hidden.is_empty() {
            Err(format!("{when}: a single fault lost {unread:?} (told)"))
        } else {
            Err(format!("{when}: nobody tells that these are lost: {hidden:?}"))
        }
    }

    fn live(&self) -> Vec<usize> {
        (0..NODES).filter(|at| self.nodes[*at].is_some()).collect()
    }

    /// Some node answers for names; if whoever kept them is gone, another one is told to.
    fn until_names(&self) -> Result<(), String> {
        let mut said = String::new();
        // Of three that keep the catalog two are away.
        let is_minority = self.live().len() * 2 <= NODES;
        for attempt in 0..NAMES_TRIES {
            for at in self.live() {
                // A name: lists of volumes are told from memory when nobody answers for them.
                match self.ask(async { client(&self.folder, at).await?.stat(DRAINED, &key("old/0")).await }) {
                    Ok(_) if !is_minority || self.is_alone(at) => return Ok(()),
                    Ok(_) => said = format!("node {at} leads until its lease is over"),
                    Err(why) => said = why,
                }
                // Whoever kept the names may be on its way back.
                if attempt % 4 == 3 {
                    // Nothing else is left then, and a person knows it.
                    let order =
                        Order::CatalogPromote { accept_loss: is_minority || attempt > NAMES_TRIES / 2 };
                    let promoted = async { client(&self.folder, at).await?.operate(order).await };
                    if let Err(why) = self.ask_within(PROMOTED_MAX, promoted) {
                        said = why;
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        Err(format!("no node answers for names: {said}"))
    }

    /// Whether a node keeps the catalog and needs nobody else for that.
    fn is_alone(&self, at: usize) -> bool {
        let asked = self.ask(async { client(&self.folder, at).await?.operate(Order::Catalog).await });
        matches!(asked, Ok(Report::Catalog(status)) if status.standbys.is_empty() && !status.stalled)
    }

    /// An answer within a few seconds, or what came instead.
    fn ask<T>(&self, request: impl Future<Output = stoker_store::Result<T>>) -> Result<T, String> {
        self.ask_within(ANSWER_MAX, request)
    }

    fn ask_within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = stoker_store::Result<T>>,
    ) -> Result<T, String> {
        let answer = async { tokio::time::timeout(limit, request).await };
        match self.runtime.block_on(answer) {
            Ok(answer) => answer.map_err(|fault| format!("{fault:?}")),
            Err(_) => Err(format!("no answer within {limit:?}")),
        }
    }

    /// What cannot be read through any node. A wrong byte is the end.
    fn read_all(&self, files: &Files) -> Result<BTreeSet<(String, String)>, String> {
        let (mut unread, live) = (BTreeSet::new(), self.live());
        for at in live.iter().copied() {
            for (number, ((volume, name), state)) in files.iter().enumerate() {
                // Those that only take room are read once, through nodes in turn.
                if name.starts_with(FILLER) && live.get(number % NODES).is_some_and(|by| *by != at) {
                    continue;
                }
                let expected = state.map(|(seed, len)| content(seed, len));
                let found = self.runtime.block_on(read(&self.folder, at, volume, name));
                match found {
                    Ok(found) if found == expected => {}
                    Ok(None) => return Err(format!("{volume}/{name} is not there, says node {at}")),
                    Ok(Some(found)) => {
                        return Err(format!(
                            "{volume}/{name} has wrong bytes, {} of them, from node {at}",
                            found.len()
                        ));
                    }
                    Err(fault) => {
                        eprintln!("   node {at}: {volume}/{name}: {fault}");
                        unread.insert((volume.clone(), name.clone()));
                    }
                }
            }
        }
        Ok(unread)
    }

    /// Everything has its copies again, as far as the nodes know.
    fn until_protected(&self) -> Result<(), String> {
        let at = self.live()[0];
        let mut said = String::new();
        for _ in 0..TRIES_MAX {
            // First who is there, then what is left to do because of it.
            if self.is_decided(at) {
                match self.ask(async { client(&self.folder, at).await?.operate(Order::Rebuild).await }) {
                    Ok(Report::Rebuild(status))
                        if status.files_left == 0 && status.losses.is_empty() && status.trouble.is_none() =>
                    {
                        return Ok(());
                    }
                    other => said = format!("{other:?}"),
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(format!("never protected again: {said}"))
    }

    /// Nobody is waited for: a node that did not start was declared down.
    fn is_decided(&self, at: usize) -> bool {
        let status = self.ask(async { client(&self.folder, at).await?.status().await });
        status.is_ok_and(|status| {
            (0..NODES).all(|at| {
                let word = if self.nodes[at].is_none() { "down" } else { "up" };
                status.nodes.iter().any(|node| node.name == format!("n{at}") && node.state == word)
            })
        })
    }

    fn lost(&self) -> Result<Vec<LostFile>, String> {
        let mut said = String::new();
        for at in self.live() {
            match self.runtime.block_on(async { client(&self.folder, at).await?.operate(Order::Lost).await })
            {
                Ok(Report::Lost(lost)) => return Ok(lost),
                other => said = format!("{other:?}"),
            }
        }
        Err(format!("nobody tells what is lost: {said}"))
    }
}

/// A node, or what it said instead of starting.
fn start(folder: &Path, at: usize) -> Result<Running, String> {
    let dir = home(folder, at);
    let log = dir.with_extension("log");
    let words = std::fs::File::create(&log).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command
        .args([
            "up",
            "--name",
            &format!("n{at}"),
            "--json",
            "--memory",
            "512MiB",
            "--grace",
            "2s",
            "--size",
            RING,
        ])
        .args(["--s3", LOCAL, "--admin", LOCAL, "--peers", LOCAL, "--dir"])
        .arg(&dir)
        .env("STOKER_LOG", "info")
        .stdout(Stdio::piped())
        .stderr(words);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let running = Running(child);
    if serde_json::from_str::<serde_json::Value>(&line).is_ok() {
        return Ok(running);
    }
    let words = std::fs::read_to_string(&log).unwrap_or_default();
    let at = words.find("stoker: ").unwrap_or_default();
    Err(words[at..].to_owned())
}

async fn client(folder: &Path, at: usize) -> stoker_store::Result<Client> {
    Client::connect(&Endpoint::Unix(home(folder, at).join("stoker.sock")), None).await
}

/// The bytes of a file through a node; tries again for as long as the node says that it is worth it.
async fn read(folder: &Path, at: usize, volume: &str, name: &str) -> Result<Option<Vec<u8>>, String> {
    let mut said = String::new();
    for _ in 0..TRIES_MAX / 3 {
        match read_once(folder, at, volume, name).await {
            Ok(found) => return Ok(found),
            Err(fault) if matches!(fault.kind, ErrorKind::Unavailable | ErrorKind::Closed) => {
                said = format!("{fault:?}")
            }
            Err(fault) => return Err(format!("{fault:?}")),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(said)
}

async fn read_once(
    folder: &Path,
    at: usize,
    volume: &str,
    name: &str,
) -> stoker_store::Result<Option<Vec<u8>>> {
    read_in(&client(folder, at).await?, volume, name).await
}
