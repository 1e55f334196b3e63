//! kill -9 of a real node in a storm of writes, uploads, copies, overwrites, renames and deletes. Whatever was
//! acknowledged is there afterwards; whatever was under way happened whole or not at all; nothing comes back.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_client::{Client, Endpoint};
use stoker_store::{
    Attributes, Condition, CopyRequest, ErrorKind, Finish, Key, PartChoice, RenameMode, Store, WriteRequest,
};

const WORKERS: u64 = 6;
const MIB: usize = 1 << 20;

struct Node {
    child: Child,
}

impl Node {
    fn up(dir: &Path) -> Node {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
        command.args(["up", "--json", "--size", "1GiB", "--memory", "512MiB", "--s3", "127.0.0.1:0"]);
        command
            .args(["--admin", "127.0.0.1:0", "--dir"])
            .arg(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with('{'), "not ready: {line}");
        Node { child }
    }

    fn kill(mut self) {
        // SIGKILL: no handler runs, nothing is flushed.
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

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// Content that names itself: a seed and a length give the bytes.
fn content(seed: u64, len: usize) -> Vec<u8> {
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
type State = Option<(u64, usize)>;

/// What is known of each key: the acknowledged state, and what an operation under way may have made of it.
#[derive(Default)]
struct Model {
    acked: BTreeMap<String, State>,
    pending: BTreeMap<String, Vec<State>>,
}

impl Model {
    fn begin(&mut self, key: &str, next: State) {
        self.pending.entry(key.to_owned()).or_default().push(next);
    }

    fn done(&mut self, key: &str, next: State) {
        self.acked.insert(key.to_owned(), next);
        self.pending.remove(key);
    }

    fn get(&self, key: &str) -> State {
        self.acked.get(key).copied().flatten()
    }
}

async fn write(writer: &mut Box<dyn stoker_store::Writer>, bytes: &[u8]) -> stoker_store::Result<()> {
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

async fn put(store: &Client, name: &str, bytes: &[u8]) -> stoker_store::Result<()> {
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

/// One worker on keys of its own, until the node dies.
async fn work(store: Client, worker: u64, round: u64, model: Arc<Mutex<Model>>, acks: Arc<AtomicU64>) {
    let mut state = (round << 8 | worker).wrapping_mul(6_364_136_223_846_793_005) | 1;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for step in 0u64.. {
        let name = |at: u64| format!("w{worker}/d{}/k{}", at % 2, at % 4);
        let (a, b) = (name(random(8)), name(random(8)));
        let seed = round << 40 | worker << 32 | step;
        let from = model.lock().unwrap().get(&a);
        let done = match random(10) {
            0..=4 => {
                let len = [0, 100, 5_000, 70_000, 3 * MIB][random(5) as usize];
                let next = Some((seed, len));
                model.lock().unwrap().begin(&a, next);
                let done = put(&store, &a, &content(seed, len)).await;
                done.map(|()| vec![(a, next)])
            }
            5 => {
                let next = Some((seed, 6 * MIB + 11));
                model.lock().unwrap().begin(&a, next);
                let done = upload(&store, &a, &content(seed, 6 * MIB + 11)).await;
                done.map(|()| vec![(a, next)])
            }
            6 if from.is_some() && a != b => {
                model.lock().unwrap().begin(&b, from);
                let request = CopyRequest {
                    from_volume: "data".into(),
                    from: key(&a),
                    from_condition: Condition::default(),
                    to_volume: "data".into(),
                    to: key(&b),
                    condition: Condition::default(),
                    attributes: None,
                };
                store.copy(request).await.map(|_| vec![(b, from)])
            }
            7 if from.is_some() && a != b => {
                {
                    let mut model = model.lock().unwrap();
                    model.begin(&a, None);
                    model.begin(&b, from);
                }
                let done = store.rename("data", &key(&a), &key(&b), RenameMode::Replace).await;
                done.map(|()| vec![(a, None), (b, from)])
            }
            _ => {
                model.lock().unwrap().begin(&a, None);
                let done = store.delete("data", vec![(key(&a), Condition::default())]).await;
                done.and_then(|mut each| each.remove(0)).map(|_| vec![(a, None)])
            }
        };
        match done {
            Ok(states) => {
                acks.fetch_add(1, Ordering::Relaxed);
                let mut model = model.lock().unwrap();
                states.into_iter().for_each(|(key, state)| model.done(&key, state));
            }
            Err(fault) => {
                let dying = matches!(fault.kind, ErrorKind::Unavailable | ErrorKind::Closed);
                assert!(dying, "an operation failed although the node lived: {fault:?}");
                return;
            }
        }
    }
}

async fn read(store: &Client, name: &str) -> Option<Vec<u8>> {
    let file = match store.open("data", &key(name)).await {
        Ok(file) => file,
        Err(fault) => {
            assert_eq!(fault.kind, ErrorKind::NotFound, "{name}: {fault:?}");
            return None;
        }
    };
    let mut bytes = Vec::new();
    loop {
        let piece =
            file.read(bytes.len() as u64, 4 << 20).await.unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
        if piece.is_empty() {
            return Some(bytes);
        }
        bytes.extend_from_slice(&piece);
    }
}

/// Every key holds what was acknowledged, or what was under way, whole.
async fn verify(store: &Client, model: &mut Model) {
    let keys: Vec<String> = model.acked.keys().chain(model.pending.keys()).cloned().collect();
    for name in keys {
        let found = read(store, &name).await;
        let mut allowed = vec![model.get(&name)];
        allowed.extend(model.pending.get(&name).into_iter().flatten().copied());
        let now = allowed.iter().find(|state| state.map(|(seed, len)| content(seed, len)) == found);
        let Some(now) = now.copied() else {
            panic!("{name} holds {:?} bytes, which is none of {allowed:?}", found.map(|bytes| bytes.len()));
        };
        model.done(&name, now);
    }
}

/// How often the node is killed: STOKER_KILLS, or by how long a run may take.
fn kills() -> u64 {
    match std::env::var("STOKER_KILLS") {
        Ok(number) => number.parse().expect("STOKER_KILLS is a number"),
        Err(_) if std::env::var_os("STOKER_FULL").is_some() => 100,
        Err(_) => 5,
    }
}

#[test]
fn kill_minus_nine_in_a_storm_loses_nothing() {
    let rounds = kills();
    let dir = tempfile::TempDir::new().unwrap();
    let home = dir.path().join("node");
    let model = Arc::new(Mutex::new(Model::default()));
    let mut total = 0;
    for round in 1..=rounds {
        let node = Node::up(&home);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = Endpoint::Unix(home.join("stoker.sock"));
            let store = Client::connect(&endpoint, None).await.unwrap();
            let mut known = std::mem::take(&mut *model.lock().unwrap());
            verify(&store, &mut known).await;
            *model.lock().unwrap() = known;
            let acks = Arc::new(AtomicU64::new(0));
            let mut tasks = Vec::new();
            for worker in 0..WORKERS {
                let store = Client::connect(&endpoint, None).await.unwrap();
                tasks.push(tokio::spawn(work(store, worker, round, model.clone(), acks.clone())));
            }
            // A random number of acknowledgements later, whatever is under way then.
            let stop_at = 20 + round * 7_919 % 180;
            while acks.load(Ordering::Relaxed) < stop_at && tasks.iter().any(|task| !task.is_finished()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            node.kill();
            for task in tasks {
                task.await.unwrap();
            }
            total += acks.load(Ordering::Relaxed);
        });
    }
    let node = Node::up(&home);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::Unix(home.join("stoker.sock"));
        let store = Client::connect(&endpoint, None).await.unwrap();
        let mut model = std::mem::take(&mut *model.lock().unwrap());
        verify(&store, &mut model).await;
        // And nothing else is there.
        let request = stoker_store::ListRequest { limit: 1_000, ..Default::default() };
        let listed: Vec<String> = store
            .list("data", request)
            .await
            .unwrap()
            .entries
            .iter()
            .filter_map(|e| e.key().map(Key::to_string))
            .collect();
        let expect: Vec<String> =
            model.acked.iter().filter(|(_, state)| state.is_some()).map(|(name, _)| name.clone()).collect();
        assert_eq!(listed, expect);
    });
    node.kill();
    eprintln!("{rounds} kills, {total} acknowledged operations");
}
