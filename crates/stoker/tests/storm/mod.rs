//! A storm of writes, uploads, copies, overwrites, renames and deletes, and what is known of its keys.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod cell;
pub mod doors;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use stoker_client::Client;
use stoker_store::{
    Attributes, Condition, CopyRequest, ErrorKind, Finish, Key, PartChoice, RenameMode, Store, StoreError,
    WriteRequest,
};

/// Writers at the same time.
pub const WORKERS: u64 = 6;
const MIB: usize = 1 << 20;
/// A free port of this machine.
pub const LOCAL: &str = "127.0.0.1:0";

/// A real node.
pub struct Node {
    child: Child,
    /// What it said when it was ready.
    pub ready: Value,
}

impl Node {
    /// A node that is alone, or comes back.
    pub fn up(dir: &Path) -> Node {
        Node::start(&["up"], dir)
    }

    /// Any node.
    pub fn start(verb: &[&str], dir: &Path) -> Node {
        Node::start_by(Command::new(env!("CARGO_BIN_EXE_stoker")), verb, [LOCAL, LOCAL], dir)
    }

    /// A new node of the cluster of another one, by a token of its own.
    pub fn join(first: &Node, more: &[&str], dir: &Path) -> Node {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
        command.env("STOKER_JOIN_TOKEN", first.join_token());
        let peers = first.ready["peers"].as_str().unwrap();
        Node::start_by(command, &[&["join", peers], more].concat(), [LOCAL, LOCAL], dir)
    }

    /// A new token for one node.
    pub fn join_token(&self) -> String {
        let dir = self.ready["dir"].as_str().unwrap();
        let made = Command::new(env!("CARGO_BIN_EXE_stoker"))
            .args(["join-token", "create", "--dir", dir])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    }

    /// Any node, by a command that ends in the program, with addresses for other nodes and for S3.
    pub fn start_by(mut command: Command, verb: &[&str], [peers, s3]: [&str; 2], dir: &Path) -> Node {
        command
            .args(verb)
            .args(["--json", "--memory", "512MiB", "--s3", s3, "--admin", LOCAL, "--peers", peers]);
        if !verb.contains(&"--size") {
            command.args(["--size", "1GiB"]);
        }
        command.arg("--dir").arg(dir);
        Node::run(command, dir)
    }

    /// A node by its whole command, which prints one line when it is ready.
    pub fn run(mut command: Command, dir: &Path) -> Node {
        // Beside its directory, for whoever looks into a failure.
        let words =
            std::fs::File::options().create(true).append(true).open(dir.with_extension("log")).unwrap();
        command.env("STOKER_LOG", "info").stdout(Stdio::piped()).stderr(words);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|_| {
            let words = std::fs::read_to_string(dir.with_extension("log")).unwrap_or_default();
            panic!("{} is not ready: {line}\n{words}", dir.display())
        });
        Node { child, ready }
    }

    /// Asks it to stop, and waits until it did.
    pub fn stop(mut self) {
        self.signal("TERM");
        self.child.wait().unwrap();
    }

    /// Sends it a signal by its name.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    /// SIGKILL: no handler runs, nothing is flushed.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether volumes can be mounted on this machine; says why not.
pub fn can_mount() -> bool {
    let usable = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &usable {
        stoker_testing::skipped(format_args!("/dev/fuse cannot be used here: {error}"));
    }
    usable.is_ok()
}

/// Mounts a volume of a node; it is there when this returns.
pub fn mount(node: &Path, volume: &str, at: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
    command.env("STOKER_DIR", node).args(["mount", "-f", volume]).arg(at).args(args);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with(&format!("mounted {volume} on")), "{line:?}");
    child
}

/// Takes a mount away, and ends its process.
pub fn unmount(at: &Path, mut child: Child) {
    let _ = Command::new(env!("CARGO_BIN_EXE_stoker")).args(["umount", "--lazy"]).arg(at).status();
    let _ = child.kill();
    let _ = child.wait();
}

pub fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// Content that names itself: a seed and a length give the bytes.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// What a key holds: seed and length, or nothing.
pub type State = Option<(u64, usize)>;

/// What is known of each key: the acknowledged state, and what an operation under way may have made of it.
#[derive(Default)]
pub struct Model {
    pub acked: BTreeMap<String, State>,
    pub pending: BTreeMap<String, Vec<State>>,
}

impl Model {
    /// Whether a read gave what was acknowledged last, through whichever node.
    pub fn is_right(&self, key: &str, found: Option<&[u8]>) -> bool {
        found == self.get(key).map(|(seed, len)| content(seed, len)).as_deref()
    }

    pub fn begin(&mut self, key: &str, next: State) {
        self.pending.entry(key.to_owned()).or_default().push(next);
    }

    pub fn done(&mut self, key: &str, next: State) {
        self.acked.insert(key.to_owned(), next);
        self.pending.remove(key);
    }

    pub fn get(&self, key: &str) -> State {
        self.acked.get(key).copied().flatten()
    }
}

pub async fn write(writer: &mut Box<dyn stoker_store::Writer>, bytes: &[u8]) -> stoker_store::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut buf = writer.buffer().await?;
        let len = rest.len().min(buf.capacity());
        buf.set_len(len);
        buf.as_mut_slice().copy_from_slice(&rest[..len]);
        writer.write(buf).await?;
        rest = &rest[len..];
    }
    Ok(())
}

pub async fn put(store: &Client, name: &str, bytes: &[u8]) -> stoker_store::Result<()> {
    let request = WriteRequest { size: Some(bytes.len() as u64), ..WriteRequest::default() };
    let mut writer = store.create("data", &key(name), request).await?;
    write(&mut writer, bytes).await?;
    writer.finish(Finish::default()).await.map(|_| ())
}

async fn upload(store: &Client, name: &str, bytes: &[u8]) -> stoker_store::Result<()> {
    let upload = store.upload_create("data", &key(name), Attributes::default(), None).await?.upload;
    let mut parts = Vec::new();
    for (at, part) in bytes.chunks(5 * MIB).enumerate() {
        let number = at as u32 + 1;
        let mut writer =
            store.upload_part("data", &key(name), &upload, number, Some(part.len() as u64)).await?;
        write(&mut writer, part).await?;
        let etag = writer.finish(Finish::default()).await?.etag;
        parts.push(PartChoice { number, etag, checksum: None });
    }
    store
        .upload_complete("data", &key(name), &upload, parts, Condition::default(), Finish::default())
        .await
        .map(|_| ())
}

/// Numbers from a seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(6_364_136_223_846_793_005) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// One operation of a worker, on keys of its own; the keys that it touches, and how it ended.
pub async fn step(
    store: &Client,
    worker: u64,
    seed: u64,
    dice: &mut Dice,
    model: &Mutex<Model>,
) -> (Vec<String>, stoker_store::Result<()>) {
    let name = |at: u64| format!("w{worker}/d{}/k{}", at % 2, at % 4);
    let (a, b) = (name(dice.below(8)), name(dice.below(8)));
    let from = model.lock().unwrap().get(&a);
    let begin = |key: &str, next: State| model.lock().unwrap().begin(key, next);
    let (states, done) = match dice.below(10) {
        0..=4 => {
            let len = [0, 100, 5_000, 70_000, 3 * MIB][dice.below(5) as usize];
            let next = Some((seed, len));
            begin(&a, next);
            let done = put(store, &a, &content(seed, len)).await;
            (vec![(a, next)], done)
        }
        5 => {
            let next = Some((seed, 6 * MIB + 11));
            begin(&a, next);
            let done = upload(store, &a, &content(seed, 6 * MIB + 11)).await;
            (vec![(a, next)], done)
        }
        6 if from.is_some() && a != b => {
            begin(&b, from);
            let request = CopyRequest {
                from_volume: "data".into(),
                from: key(&a),
                from_condition: Condition::default(),
                to_volume: "data".into(),
                to: key(&b),
                condition: Condition::default(),
                attributes: None,
            };
            let done = store.copy(request).await.map(|_| ());
            (vec![(b, from)], done)
        }
        7 if from.is_some() && a != b => {
            begin(&a, None);
            begin(&b, from);
            let done = store.rename("data", &key(&a), &key(&b), RenameMode::Replace).await;
            (vec![(a, None), (b, from)], done)
        }
        _ => {
            begin(&a, None);
            let done = store.delete("data", vec![(key(&a), Condition::default())]).await;
            (vec![(a, None)], done.and_then(|mut each| each.remove(0)).map(|_| ()))
        }
    };
    let keys = states.iter().map(|(key, _)| key.clone()).collect();
    if done.is_ok() {
        let mut model = model.lock().unwrap();
        states.into_iter().for_each(|(key, state)| model.done(&key, state));
    }
    (keys, done)
}

/// Whether an operation failed because a node died or cannot be reached, and not because it is wrong.
pub fn is_of_death(fault: &StoreError) -> bool {
    matches!(fault.kind, ErrorKind::Unavailable | ErrorKind::Closed)
}

/// Whether an operation can be tried again, with this node or another one: it died, or its drives are full for now. Clients of S3
/// are told 503 in each of these cases, and repeat by themselves.
pub fn is_passing(fault: &StoreError) -> bool {
    is_of_death(fault) || fault.kind == ErrorKind::Full
}

/// One worker, until the node dies.
pub async fn work(store: Client, worker: u64, round: u64, model: Arc<Mutex<Model>>, acks: Arc<AtomicU64>) {
    let mut dice = Dice::new(round << 8 | worker);
    for at in 0u64.. {
        let seed = round << 40 | worker << 32 | at;
        match step(&store, worker, seed, &mut dice, &model).await.1 {
            Ok(()) => acks.fetch_add(1, Ordering::Relaxed),
            Err(fault) => {
                assert!(is_of_death(&fault), "an operation failed although the node lived: {fault:?}");
                return;
            }
        };
    }
}

/// The bytes of a file; none if there is no such file.
pub async fn read(store: &Client, name: &str) -> stoker_store::Result<Option<Vec<u8>>> {
    read_in(store, "data", name).await
}

/// The same in any volume.
pub async fn read_in(store: &Client, volume: &str, name: &str) -> stoker_store::Result<Option<Vec<u8>>> {
    let file = match store.open(volume, &key(name)).await {
        Ok(file) => file,
        Err(fault) if fault.kind == ErrorKind::NotFound => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let mut bytes = Vec::new();
    loop {
        let piece = file.read(bytes.len() as u64, 4 << 20).await?;
        if piece.is_empty() {
            return Ok(Some(bytes));
        }
        bytes.extend_from_slice(&piece);
    }
}

/// A key holds what was acknowledged, or what was under way, whole; which of them is known from now on.
pub fn settle(model: &mut Model, name: &str, found: Option<&[u8]>) {
    let mut allowed = vec![model.get(name)];
    allowed.extend(model.pending.get(name).into_iter().flatten().copied());
    let same = |state: &&State| state.map(|(seed, len)| content(seed, len)).as_deref() == found;
    let Some(now) = allowed.iter().find(same).copied() else {
        panic!("{name} holds {:?} bytes, which is none of {allowed:?}", found.map(<[u8]>::len));
    };
    model.done(name, now);
}

/// Every key holds what was acknowledged, or what was under way, whole.
pub async fn verify(store: &Client, model: &mut Model) {
    let keys: Vec<String> = model.acked.keys().chain(model.pending.keys()).cloned().collect();
    for name in keys {
        let found = read(store, &name).await.unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
        settle(model, &name, found.as_deref());
    }
}

/// And nothing else is there.
pub async fn verify_list(store: &Client, model: &Model) {
    let request = stoker_store::ListRequest { limit: 1_000, ..Default::default() };
    let entries = store.list("data", request).await.unwrap().entries;
    let listed: Vec<String> = entries.iter().filter_map(|entry| entry.key().map(Key::to_string)).collect();
    let kept = model.acked.iter().filter(|(_, state)| state.is_some());
    assert_eq!(listed, kept.map(|(name, _)| name.clone()).collect::<Vec<_>>());
}

/// The lake of a storm holds the same files under a prefix, and nothing else of ours, as soon as its deletes are done.
pub async fn verify_lake(lake: &Client, prefix: &str, model: &Model) {
    let kept = model.acked.iter().filter_map(|(name, state)| Some((format!("{prefix}{name}"), (*state)?)));
    let kept: BTreeMap<String, (u64, usize)> = kept.collect();
    let mut listed = Vec::new();
    for _ in 0..1_200 {
        let request = stoker_store::ListRequest {
            prefix: prefix.as_bytes().to_vec(),
            limit: 1_000,
            ..Default::default()
        };
        let entries = lake.list("data", request).await.unwrap().entries;
        listed = entries.iter().filter_map(|entry| entry.key().map(Key::to_string)).collect();
        if listed.iter().eq(kept.keys()) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(listed, kept.keys().cloned().collect::<Vec<_>>(), "what the lake has");
    for (name, (seed, len)) in kept {
        let found = read(lake, &name).await.unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
        assert!(found.as_deref() == Some(&content(seed, len)[..]), "{name} in the lake");
    }
}

/// How often nodes are killed: STOKER_KILLS, or by how long a run may take.
pub fn kills(full: u64, quick: u64) -> u64 {
    match std::env::var("STOKER_KILLS") {
        Ok(number) => number.parse().expect("STOKER_KILLS is a number"),
        Err(_) if std::env::var_os("STOKER_FULL").is_some() => full,
        Err(_) => quick,
    }
}
