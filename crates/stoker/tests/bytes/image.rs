//! A cell at rest: three nodes, files in the lake alone, files in rings and lake, files in rings alone; and the same cell some
//! writes earlier.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stoker_client::Client;
use stoker_store::{Finish, Store, WriteRequest};

use crate::storm::cell::{NODES, connect_to, home};
use crate::storm::{Node, State, content, key};

const MIB: usize = 1 << 20;
/// Bytes of the ring of each node: so small that files leave it.
pub const RING: &str = "128MiB";
/// Drains, and keeps what the rings have room for.
pub const DRAINED: &str = "data";
/// Drains when somebody asks, which nobody does.
pub const UNDRAINED: &str = "kept";
/// Files that push the first ones out of the rings: two copies of them are more than three rings hold.
const FILLERS: u64 = 32;
/// What their keys begin with.
pub const FILLER: &str = "fill/";

/// What each file holds, by volume and key.
pub type Files = BTreeMap<(String, String), State>;

/// The cell, before and after its last writes. Each fault strikes a copy of it.
pub struct Image {
    folder: PathBuf,
    /// What was acknowledged.
    pub files: Files,
    /// Files of the cell that its last writes changed, below its folder.
    changed: BTreeSet<PathBuf>,
}

impl Image {
    /// Writes files to a new cell and stops it, twice.
    pub fn make(folder: &Path) -> Image {
        let mut image = Image { folder: folder.to_owned(), files: Files::new(), changed: BTreeSet::new() };
        let live = image.live();
        std::fs::create_dir_all(live.join("lake")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

        let nodes = first_start(&live);
        let create = ["volume", "create", UNDRAINED, "--drain", "on-demand", "--class", "two"];
        ask(&live, 0, &create);
        ask(&live, 0, &["volume", "set", DRAINED, "--class", "two", "--drain-quiet", "1s"]);
        runtime.block_on(async {
            let clients = clients(&live).await;
            for at in 0..24 {
                image.write(&clients, DRAINED, &format!("old/{at}"), at).await;
            }
            for at in 0..FILLERS {
                image.put(&clients, DRAINED, &format!("{FILLER}{at}"), (1 << 20 | at, 8 * MIB)).await;
            }
            for at in 0..24 {
                image.write(&clients, UNDRAINED, &format!("a/{at}"), at + 100).await;
            }
        });
        ask(&live, 0, &["drain", DRAINED, "--wait"]);
        stop(nodes);
        copy(&live, &image.folder.join("before"));

        let nodes = start_again(&live);
        runtime.block_on(async {
            let clients = clients(&live).await;
            for at in 0..12 {
                image.write(&clients, UNDRAINED, &format!("a/{at}"), at + 200).await;
                image.write(&clients, UNDRAINED, &format!("b/{at}"), at + 300).await;
                image.write(&clients, DRAINED, &format!("new/{at}"), at + 400).await;
            }
        });
        ask(&live, 0, &["drain", DRAINED, "--wait"]);
        // What an orderly stop puts away, as the log of the catalog, can be struck then, too.
        nodes.into_iter().rev().for_each(Node::kill);
        copy(&live, &image.folder.join("after"));
        let is_changed = |file: &PathBuf| {
            image
                .before(file)
                .is_some_and(|old| std::fs::read(old).unwrap() != std::fs::read(live.join(file)).unwrap())
        };
        image.changed = all_files(&live).into_iter().filter(is_changed).collect();
        image
    }

    /// Whether a file was other bytes before the last writes.
    pub fn is_changed(&self, file: &Path) -> bool {
        self.changed.contains(file)
    }

    async fn write(&mut self, clients: &[Client], volume: &str, name: &str, seed: u64) {
        let len = [100, 5_000, 70_000, MIB + 7, 5 * MIB][seed as usize % 5];
        self.put(clients, volume, name, (seed, len)).await;
    }

    async fn put(&mut self, clients: &[Client], volume: &str, name: &str, (seed, len): (u64, usize)) {
        let client = &clients[seed as usize % clients.len()];
        let bytes = content(seed, len);
        // Rings are small: what is not in the lake yet holds the next ones back.
        for _ in 0..600 {
            match put(client, volume, name, &bytes).await {
                Ok(()) => {
                    self.files.insert((volume.to_owned(), name.to_owned()), Some((seed, len)));
                    return;
                }
                Err(fault) if fault.kind == stoker_store::ErrorKind::Full => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(fault) => panic!("{name}: {fault:?}"),
            }
        }
        panic!("{name}: the rings stay full");
    }

    /// A copy to hurt. It is always in the same place, since the cell keeps the path of its lake.
    pub fn copy(&self) -> PathBuf {
        let _ = std::fs::remove_dir_all(self.live());
        copy(&self.folder.join("after"), &self.live());
        self.live()
    }

    fn live(&self) -> PathBuf {
        self.folder.join("live")
    }

    /// The same file some writes earlier; none if it was not there.
    pub fn before(&self, file: &Path) -> Option<PathBuf> {
        Some(self.folder.join("before").join(file)).filter(|path| path.is_file())
    }
}

fn first_start(folder: &Path) -> Vec<Node> {
    let lake = folder.join("lake");
    let up = ["up", "--lake", lake.to_str().unwrap(), "--grace", "3s", "--size", RING, "--name", "n0"];
    let first = Node::start(&up, &home(folder, 0));
    let mut nodes = vec![first];
    for at in 1..NODES {
        let name = format!("n{at}");
        let more = ["--grace", "3s", "--size", RING, "--name", &name];
        nodes.push(Node::join(&nodes[0], &more, &home(folder, at)));
    }
    nodes
}

fn start_again(folder: &Path) -> Vec<Node> {
    std::thread::scope(|scope| {
        let start = |at: usize| {
            let name = format!("n{at}");
            move || Node::start(&["up", "--name", &name, "--grace", "3s", "--size", RING], &home(folder, at))
        };
        let starts: Vec<_> = (0..NODES).map(|at| scope.spawn(start(at))).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    })
}

/// The one that keeps the catalog goes last.
fn stop(nodes: Vec<Node>) {
    nodes.into_iter().rev().for_each(Node::stop);
}

async fn clients(folder: &Path) -> Vec<Client> {
    let mut clients = Vec::new();
    for at in 0..NODES {
        clients.push(connect_to(folder, at).await);
    }
    clients
}

fn ask(folder: &Path, at: usize, args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    let done = command.args(args).env("STOKER_DIR", home(folder, at)).output().expect("it starts");
    assert!(done.status.success(), "stoker {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

async fn put(client: &Client, volume: &str, name: &str, bytes: &[u8]) -> stoker_store::Result<()> {
    let request = WriteRequest { size: Some(bytes.len() as u64), ..WriteRequest::default() };
    let mut writer = client.create(volume, &key(name), request).await?;
    crate::storm::write(&mut writer, bytes).await?;
    writer.finish(Finish::default()).await.map(|_| ())
}

/// Rings are mostly zeros that were written once; a copy leaves them out.
fn copy(from: &Path, to: &Path) {
    let args = ["-a", "--sparse=always", "--reflink=auto"];
    let done = Command::new("cp").args(args).arg(from).arg(to).status().unwrap();
    assert!(done.success(), "cp {} {}", from.display(), to.display());
}

/// Files below a folder, in order.
pub fn all_files(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path().strip_prefix(folder).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}
