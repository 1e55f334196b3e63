//! kill -9 of a real node in a storm: every operation that was acknowledged has its line in the audit log, and the log is sound after each kill.

mod storm;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_audit::{OK, PAGE_LEN_MAX, Query, verify};
use stoker_client::{Client, Endpoint};
use stoker_store::{Condition, RenameMode, Result, Store};
use storm::*;

/// How often an operation on a path was acknowledged, by the name that it has in the log.
type Acked = BTreeMap<(&'static str, String), usize>;

async fn step(store: &Client, name: &str, at: u64, acked: &mut Vec<(&'static str, String)>) -> Result<()> {
    let to = format!("{name}-moved");
    match at % 4 {
        0 => {
            put(store, name, &content(at, 100)).await?;
            acked.push(("Create", name.to_owned()));
            store.rename("data", &key(name), &key(&to), RenameMode::Replace).await?;
            acked.push(("Rename", name.to_owned()));
        }
        1 => {
            put(store, name, &content(at, 70_000)).await?;
            acked.push(("Create", name.to_owned()));
            let file = store.open("data", &key(name)).await?;
            file.read(0, 4096).await?;
            acked.push(("Open", name.to_owned()));
        }
        _ => {
            put(store, name, &content(at, 10)).await?;
            acked.push(("Create", name.to_owned()));
            store.delete("data", vec![(key(name), Condition::default())]).await?.remove(0)?;
            acked.push(("Delete", name.to_owned()));
        }
    }
    Ok(())
}

async fn work(store: Client, worker: u64, round: u64, acked: Arc<Mutex<Acked>>, count: Arc<AtomicU64>) {
    for at in 0u64.. {
        let name = format!("w{worker}/r{round}/k{}", at % 50);
        let mut done = Vec::new();
        let ended = step(&store, &name, at, &mut done).await;
        count.fetch_add(done.len() as u64, Ordering::Relaxed);
        for (action, name) in done {
            *acked.lock().unwrap().entry((action, format!("data/{name}"))).or_default() += 1;
        }
        match ended {
            Ok(()) => {}
            Err(fault) if is_of_death(&fault) => return,
            Err(fault) => panic!("{name}: {fault}"),
        }
    }
}

fn lines(folder: &Path) -> BTreeMap<(String, String), usize> {
    let mut found = BTreeMap::new();
    let mut query = Query { path: Some("data/".into()), limit: PAGE_LEN_MAX, ..Query::default() };
    loop {
        let page = query.run(folder).unwrap();
        for entry in page.entries.into_iter().filter(|entry| entry.event.result == OK) {
            *found.entry((entry.event.action, entry.event.path)).or_default() += 1;
        }
        match page.next {
            Some(next) => query.before = Some(next),
            None => return found,
        }
    }
}

/// Asks the admin API to write down every read of the volume.
fn set_full(node: &Node, home: &Path) {
    let admin = node.ready["admin"].as_str().unwrap().trim_start_matches("http://").to_owned();
    let token = std::fs::read_to_string(home.join("token")).unwrap();
    let body = r#"{"level":"full"}"#;
    let mut stream = std::net::TcpStream::connect(admin).unwrap();
    let request = format!(
        "POST /api/v1/volumes/data/audit HTTP/1.1\r\nHost: node\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Authorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
        token.trim(),
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn check(home: &Path, acked: &Acked) {
    let folder = home.join(stoker_agent::AUDIT_DIR);
    let found = lines(&folder);
    for ((action, path), count) in acked {
        let written = found.get(&((*action).to_owned(), path.clone())).copied().unwrap_or(0);
        assert!(written >= *count, "{action} {path}: acknowledged {count} times, and {written} lines");
    }
    let keys = stoker_agent::audit_keys(home).unwrap_or_else(|_| panic!("no keys"));
    let findings = verify(&folder, &keys).unwrap();
    assert!(findings.is_sound(), "{findings:?}");
}

#[test]
fn every_acknowledged_operation_has_its_line_after_kills() {
    let rounds = kills(20, 2);
    let dir = tempfile::TempDir::new().unwrap();
    let home = dir.path().join("node");
    let acked = Arc::new(Mutex::new(Acked::new()));
    let mut total = 0;
    for round in 1..=rounds {
        let node = Node::up(&home);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = Endpoint::Unix(home.join("stoker.sock"));
            if round == 1 {
                set_full(&node, &home);
            }
            let count = Arc::new(AtomicU64::new(0));
            let mut tasks = Vec::new();
            for worker in 0..WORKERS {
                let store = Client::connect(&endpoint, None).await.unwrap();
                tasks.push(tokio::spawn(work(store, worker, round, acked.clone(), count.clone())));
            }
            let stop_at = 40 + round * 7_919 % 180;
            while count.load(Ordering::Relaxed) < stop_at && tasks.iter().any(|task| !task.is_finished()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            node.kill();
            for task in tasks {
                task.await.unwrap();
            }
            total += count.load(Ordering::Relaxed);
        });
        // The next start takes away what the kill tore.
        let node = Node::up(&home);
        check(&home, &acked.lock().unwrap());
        node.stop();
        check(&home, &acked.lock().unwrap());
    }
    eprintln!("{rounds} kills, {total} acknowledged operations");
}
