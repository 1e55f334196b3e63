//! The door through real sockets, on a store in memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::memory::{CHUNK, Memory};
use futures_util::future::{join_all, poll_immediate};
use stoker_access::Guard;
use stoker_client::{Client, ClientOptions, Endpoint, Server, ServerOptions};
use stoker_store::*;
use tokio::time::timeout;

const TOKEN: &str = "a token";

/// Long enough for a machine that is busy; who waits longer waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

struct Rig {
    memory: Memory,
    server: Server,
    client: Client,
    _folder: tempfile::TempDir,
}

fn serve(memory: &Memory, path: PathBuf, options: ServerOptions) -> Server {
    let listen = vec![Endpoint::Unix(path), Endpoint::Tcp("127.0.0.1:0".into())];
    Server::start(Guard::new(Arc::new(memory.clone())), listen, Some(TOKEN.into()), options).unwrap()
}

async fn rig_with(memory: Memory, options: ServerOptions) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(&memory, folder.path().join("stoker.sock"), options);
    let client = Client::connect(&server.addresses()[0], None).await.unwrap();
    Rig { memory, server, client, _folder: folder }
}

async fn rig() -> Rig {
    rig_with(Memory::new(), ServerOptions::default()).await
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

async fn write_all(writer: &mut Box<dyn Writer>, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let mut buf = writer.buffer().await?;
        let part = bytes.len().min(buf.capacity());
        buf.set_len(part);
        buf.as_mut_slice().copy_from_slice(&bytes[..part]);
        writer.write(buf).await?;
        bytes = &bytes[part..];
    }
    Ok(())
}

async fn put(store: &dyn Store, name: &str, bytes: &[u8], size: Option<u64>) -> Result<Receipt> {
    let request = WriteRequest { size, ..WriteRequest::default() };
    let mut writer = store.create("data", &key(name), request).await?;
    write_all(&mut writer, bytes).await?;
    assert_eq!(writer.crc64(), stoker_format::crc64(bytes));
    writer.finish(Finish::default()).await
}

async fn get(store: &dyn Store, name: &str) -> Result<Vec<u8>> {
    let file = store.open("data", &key(name)).await?;
    read_all(&*file).await
}

async fn read_all(file: &dyn File) -> Result<Vec<u8>> {
    let mut got = Vec::new();
    loop {
        let part = file.read(got.len() as u64, usize::MAX).await?;
        if part.is_empty() {
            assert_eq!(got.len() as u64, file.info().size);
            return Ok(got);
        }
        got.extend_from_slice(&part);
    }
}

#[tokio::test]
async fn files_of_all_sizes_are_the_same_on_both_sockets() {
    let rig = rig().await;
    let tcp = Client::connect(&rig.server.addresses()[1], Some(TOKEN)).await.unwrap();
    for (number, len) in
        [0, 1, 4095, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17, (1 << 20) + 1, 9 << 20]
            .into_iter()
            .enumerate()
    {
        let bytes = bytes_of(number as u64, len);
        for (writer, reader) in [(&rig.client, &tcp), (&tcp, &rig.client)] {
            let size = (number % 2 == 0).then_some(len as u64);
            let receipt = put(writer, "file", &bytes, size).await.unwrap();
            assert_eq!(receipt.size, len as u64);
            assert!(get(reader, "file").await.unwrap() == bytes, "{len}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_share_one_connection_and_little_memory() {
    // Seven slots in the store, fewer than writers; four buffers in the server.
    let memory = Memory::with(tokio::sync::Semaphore::MAX_PERMITS, 2 << 20);
    let options = ServerOptions { buffers_max: 4, read_bytes_max: 1 << 20, ..ServerOptions::default() };
    let rig = rig_with(memory, options).await;
    let files: Vec<(String, Vec<u8>)> =
        (0..24).map(|n| (format!("f/{n}"), bytes_of(n, 100_000 + 70_000 * n as usize))).collect();
    let puts = files.iter().map(|(name, bytes)| put(&rig.client, name, bytes, None));
    for receipt in join_all(puts).await {
        receipt.unwrap();
    }
    let gets = join_all(files.iter().map(|(name, _)| get(&rig.client, name))).await;
    for (got, (name, bytes)) in gets.into_iter().zip(&files) {
        assert!(got.unwrap() == *bytes, "{name}");
    }
    rig.memory.until_live(0).await;
    assert_eq!(rig.memory.pool.in_use(), 0);
}

#[tokio::test]
async fn a_writer_that_is_not_finished_leaves_nothing() {
    let rig = rig().await;
    let mut writer = rig.client.create("data", &key("half"), WriteRequest::default()).await.unwrap();
    write_all(&mut writer, &bytes_of(1, CHUNK * 3)).await.unwrap();
    rig.memory.until_live(1).await;
    drop(writer);
    rig.memory.until_live(0).await;
    // And so does one whose connection is lost.
    let mut writer = rig.client.create("data", &key("half"), WriteRequest::default()).await.unwrap();
    write_all(&mut writer, &bytes_of(1, CHUNK * 3)).await.unwrap();
    let file = {
        put(&rig.client, "open", b"1", None).await.unwrap();
        rig.client.open("data", &key("open")).await.unwrap()
    };
    rig.memory.until_live(2).await;
    std::mem::forget(writer);
    let file_read = file.read(0, 1).await.unwrap();
    assert_eq!(&file_read[..], b"1");
    rig.server.stop(Duration::from_millis(1)).await;
    rig.memory.until_live(0).await;
    assert_eq!(rig.memory.stat("data", &key("half")).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn a_store_that_refuses_bytes_is_heard() {
    let rig = rig().await;
    let mut bytes = vec![0; CHUNK * 40];
    bytes[CHUNK * 2..][..9].copy_from_slice(b"refuse me");
    let error = put(&rig.client, "refused", &bytes, None).await.unwrap_err();
    assert_eq!((error.kind, error.subject), (ErrorKind::Full, Subject::Quota));
    rig.memory.until_live(0).await;
    // The connection lives on.
    put(&rig.client, "fine", b"bytes", None).await.unwrap();
    assert_eq!(get(&rig.client, "fine").await.unwrap(), b"bytes");
}

/// The last bytes, or those of a store that waits for room, are refused when the client has asked to publish already.
#[tokio::test]
async fn a_store_that_refuses_the_last_bytes_is_heard() {
    let rig = rig().await;
    for chunks in [0, 1, 5] {
        let mut bytes = vec![0; CHUNK * chunks];
        bytes.extend_from_slice(b"refuse me");
        let refused = timeout(PATIENCE, put(&rig.client, "refused", &bytes, None)).await;
        let error = refused.expect("the client is told").unwrap_err();
        assert_eq!((error.kind, error.subject), (ErrorKind::Full, Subject::Quota));
        rig.memory.until_live(0).await;
    }
    put(&rig.client, "fine", b"bytes", None).await.unwrap();
    // Nothing is under way any more: the node need not wait for anybody.
    rig.server.stop(PATIENCE).await;
}

#[tokio::test]
async fn a_dropped_call_is_given_up_and_a_change_is_carried_through() {
    let options = ServerOptions { requests_max: 4, ..ServerOptions::default() };
    let rig = rig_with(Memory::gated(), options).await;
    rig.memory
        .publish("data", &key("a"), "bytes".into(), Attributes::default(), &Condition::default())
        .unwrap();
    // Many more than may be under way at once, one after the other.
    for round in 1..=20 {
        let name = key("a");
        let mut wait = rig.client.wait("data", &name, None, Awaited::Drained);
        assert!(poll_immediate(&mut wait).await.is_none());
        tokio::select! {
            _ = &mut wait => panic!("the gate is shut"),
            () = rig.memory.until_begun("wait", round) => {}
        }
    }
    rig.memory.until_live(0).await;

    let copy = CopyRequest {
        from_volume: "data".into(),
        from: key("a"),
        from_condition: Condition::default(),
        to_volume: "data".into(),
        to: key("b"),
        condition: Condition::default(),
        attributes: None,
    };
    for round in 1..=10 {
        tokio::select! {
            _ = rig.client.copy(copy.clone()) => panic!("the gate is shut"),
            () = rig.memory.until_begun("copy", round) => {}
        }
    }
    rig.memory.gate.add_permits(10);
    rig.memory.until_published(11).await;
    assert_eq!(rig.client.stat("data", &key("b")).await.unwrap().size, 5);
}

#[tokio::test]
async fn reads_go_on_after_a_restart_and_changes_say_that_nobody_knows() {
    let rig = rig_with(Memory::gated(), ServerOptions::default()).await;
    let Rig { memory, server, client, _folder: folder } = rig;
    let bytes = bytes_of(3, CHUNK * 2);
    memory
        .publish("data", &key("a"), bytes.clone().into(), Attributes::default(), &Condition::default())
        .unwrap();
    memory.publish("data", &key("c"), "old".into(), Attributes::default(), &Condition::default()).unwrap();
    let file = client.open("data", &key("a")).await.unwrap();
    let replaced = client.open("data", &key("c")).await.unwrap();
    assert!(file.read(0, CHUNK).await.unwrap()[..] == bytes[..CHUNK]);
    let mut half = client.create("data", &key("half"), WriteRequest::default()).await.unwrap();
    write_all(&mut half, b"some").await.unwrap();

    let publish = tokio::spawn({
        let client = client.clone();
        async move { put(&client, "unknown", b"x", None).await }
    });
    memory.until_begun("finish", 1).await;
    drop(server);
    let error = publish.await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("outcome is unknown"), "{error}");

    memory.publish("data", &key("c"), "new".into(), Attributes::default(), &Condition::default()).unwrap();
    let server = serve(&memory, folder.path().join("stoker.sock"), ServerOptions::default());
    assert!(file.read(CHUNK as u64, CHUNK).await.unwrap()[..] == bytes[CHUNK..]);
    assert_eq!(replaced.read(0, 10).await.unwrap_err().kind, ErrorKind::Conflict);
    assert_eq!(client.stat("data", &key("a")).await.unwrap().size, bytes.len() as u64);
    let error = half.finish(Finish::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    assert_eq!(client.stat("data", &key("half")).await.unwrap_err().kind, ErrorKind::NotFound);
    server.stop(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn a_connection_works_for_its_job() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::new();
    let server = serve(&memory, folder.path().join("s"), ServerOptions::default());
    let job = JobLabel::parse("train-7").unwrap();
    let options = ClientOptions { job: Some(job.clone()), ..ClientOptions::default() };
    let client = Client::connect_with(&server.addresses()[0], None, options).await.unwrap();
    put(&client, "a", b"bytes", None).await.unwrap();
    assert_eq!(
        memory.jobs.lock().unwrap()["finish"],
        Some(job.clone()),
        "writers, which outlive their request"
    );
    // Threads that may be blocked have connections of their own, which say so too.
    let runtime = tokio::runtime::Handle::current();
    let alone = client.clone();
    tokio::task::spawn_blocking(move || {
        stoker_store::alone(|| runtime.block_on(async { alone.stat("data", &key("a")).await })).unwrap()
    })
    .await
    .unwrap();
    assert_eq!(memory.jobs.lock().unwrap()["stat"], Some(job));
    let other = Client::connect(&server.addresses()[0], None).await.unwrap();
    other.stat("data", &key("a")).await.unwrap();
    assert_eq!(memory.jobs.lock().unwrap()["stat"], None);
    server.stop(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn a_node_that_is_gone_is_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::new();
    let server = serve(&memory, folder.path().join("s"), ServerOptions::default());
    let options = ClientOptions { reconnect_patience: Duration::ZERO, ..ClientOptions::default() };
    let client = Client::connect_with(&server.addresses()[0], None, options).await.unwrap();
    server.stop(Duration::from_secs(10)).await;
    let error = client.status().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    let error = Client::connect(&Endpoint::Unix(folder.path().join("s")), None).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("cannot connect to unix:"), "{error}");
}

#[tokio::test]
async fn stopping_lets_a_publish_come_to_its_end() {
    let rig = rig_with(Memory::gated(), ServerOptions::default()).await;
    let client = rig.client.clone();
    let publish = tokio::spawn(async move { put(&client, "a", b"bytes", None).await });
    rig.memory.until_begun("finish", 1).await;
    let stop = tokio::spawn(rig.server.stop(Duration::from_secs(60)));
    rig.memory.gate.add_permits(1);
    assert_eq!(publish.await.unwrap().unwrap().size, 5);
    stop.await.unwrap();
    assert_eq!(rig.memory.stat("data", &key("a")).await.unwrap().size, 5);
}

#[tokio::test]
async fn only_the_token_opens_tcp() {
    let rig = rig().await;
    let address = &rig.server.addresses()[1];
    for token in [None, Some(""), Some("a tokem")] {
        let error = Client::connect(address, token).await.err().unwrap();
        assert_eq!(error.kind, ErrorKind::Denied, "{error}");
    }
    Client::connect(address, Some(TOKEN)).await.unwrap().status().await.unwrap();

    let open = Endpoint::Tcp("127.0.0.1:0".into());
    let refused =
        Server::start(Guard::new(Arc::new(Memory::new())), vec![open], None, ServerOptions::default());
    assert_eq!(refused.err().unwrap().kind(), std::io::ErrorKind::InvalidInput);

    let folder = tempfile::tempdir().unwrap();
    let options = ServerOptions { unix_token: true, ..ServerOptions::default() };
    let server = serve(&rig.memory, folder.path().join("s"), options);
    assert_eq!(Client::connect(&server.addresses()[0], None).await.err().unwrap().kind, ErrorKind::Denied);
    Client::connect(&server.addresses()[0], Some(TOKEN)).await.unwrap();
}

#[tokio::test]
async fn limits_answer_and_do_not_disconnect() {
    let options =
        ServerOptions { handles_max: 3, connections_max: 2, requests_max: 4, ..ServerOptions::default() };
    let rig = rig_with(Memory::new(), options).await;
    put(&rig.client, "a", b"bytes", None).await.unwrap();
    let name = key("a");
    let opened = join_all((0..3).map(|_| rig.client.open("data", &name))).await;
    let full = rig.client.open("data", &name).await.err().unwrap();
    assert_eq!(full.kind, ErrorKind::Full, "{full}");
    drop(opened);
    // Closing is on its way before the next request.
    rig.client.open("data", &name).await.unwrap();

    let stats = join_all((0..500).map(|_| rig.client.stat("data", &name))).await;
    assert!(stats.iter().all(|stat| stat.as_ref().is_ok_and(|info| info.size == 5)));

    let second = Client::connect(&rig.server.addresses()[0], None).await.unwrap();
    let third = Client::connect(&rig.server.addresses()[0], None).await.err().unwrap();
    assert_eq!(third.kind, ErrorKind::Full, "{third}");
    drop(second);
}

#[tokio::test]
async fn large_answers_come_whole_and_large_pages_in_parts() {
    let rig = rig().await;
    let counters = rig.client.counters().await.unwrap();
    assert_eq!(counters, rig.memory.counters().await.unwrap());

    let meta = vec![("note".to_owned(), "x".repeat(3000))];
    let attributes = Attributes { meta, ..Attributes::default() };
    for number in 0..1000 {
        let name = key(&format!("many/{number:04}"));
        rig.memory.publish("data", &name, "b".into(), attributes.clone(), &Condition::default()).unwrap();
    }
    let mut names = Vec::new();
    let mut request = ListRequest { prefix: b"many/".to_vec(), limit: 1000, ..ListRequest::default() };
    let mut pages = 0;
    loop {
        let page = rig.client.list("data", request.clone()).await.unwrap();
        pages += 1;
        names.extend(page.entries.iter().map(|entry| entry.name().to_vec()));
        request.after = names.last().cloned();
        if !page.more {
            break;
        }
    }
    assert!(pages > 1);
    assert_eq!(names, (0..1000).map(|n| format!("many/{n:04}").into_bytes()).collect::<Vec<_>>());

    // More than fits one request, either way of counting.
    let mut keys: Vec<(Key, Condition)> =
        names.into_iter().map(|name| (Key::new(name).unwrap(), Condition::default())).collect();
    keys.extend((0..1500).map(|n| (key(&format!("{n:01000}")), Condition::default())));
    let answers = rig.client.delete("data", keys).await.unwrap();
    let expect = |at: usize| Ok(at < 1000);
    assert!(answers.iter().enumerate().all(|(at, answer)| *answer == expect(at)) && answers.len() == 2500);
}

#[tokio::test]
async fn every_call_crosses() {
    let rig = rig().await;
    let (client, memory) = (&rig.client, &rig.memory);
    // Volumes.
    let options = VolumeOptions { lake: Some("file:lake".into()), policy: None };
    let volume = client.volume_create("more", options).await.unwrap();
    assert_eq!(volume, memory.volume("more").await.unwrap());
    let again = client.volume_create("more", VolumeOptions::default()).await.unwrap_err();
    assert_eq!((again.kind, again.subject), (ErrorKind::Conflict, Subject::Volume));
    let policy = VolumePolicy { drain: DrainPolicy::Every(7), class: Class::Two, ..VolumePolicy::default() };
    assert_eq!(client.volume_set("more", policy.clone()).await.unwrap().policy, policy);
    assert_eq!(client.volumes().await.unwrap(), memory.volumes().await.unwrap());
    client.volume_delete("more").await.unwrap();
    assert_eq!(client.volume("more").await.unwrap_err().subject, Subject::Volume);
    // Names.
    let odd = Key::new(vec![b'o', 0xff, b'/', b' ']).unwrap();
    let request = WriteRequest { condition: Condition::absent(), ..WriteRequest::default() };
    let mut writer = client.create("data", &odd, request.clone()).await.unwrap();
    write_all(&mut writer, b"abc").await.unwrap();
    let receipt = writer.finish(Finish { etag: Some("mine".into()), ..Finish::default() }).await.unwrap();
    assert_eq!(receipt.etag, "mine");
    let refused = client.create("data", &odd, request).await.err().unwrap();
    assert_eq!(refused.subject, Subject::Condition);
    assert_eq!(client.stat("data", &odd).await.unwrap(), memory.stat("data", &odd).await.unwrap());
    let change = AttributesChange { mode: Some(0o100_644), ..AttributesChange::default() };
    assert_eq!(client.set_attributes("data", &odd, change).await.unwrap().attributes.mode, Some(0o100_644));
    client.rename("data", &odd, &key("b"), RenameMode::NoReplace).await.unwrap();
    let mut writer = client.create("data", &key("a"), WriteRequest::default()).await.unwrap();
    write_all(&mut writer, b"other").await.unwrap();
    writer.finish(Finish::default()).await.unwrap();
    client.rename("data", &key("a"), &key("b"), RenameMode::Exchange { inode: None }).await.unwrap();
    assert_eq!(client.stat("data", &key("b")).await.unwrap().size, 5);
    client.rename("data", &key("b"), &key("a"), RenameMode::Exchange { inode: None }).await.unwrap();
    assert!(
        client.delete("data", vec![(key("a"), Condition::default())]).await.unwrap().pop().unwrap().unwrap()
    );
    let copy = CopyRequest {
        from_volume: "data".into(),
        from: key("b"),
        from_condition: Condition::default(),
        to_volume: "data".into(),
        to: key("c"),
        condition: Condition::default(),
        attributes: None,
    };
    assert_eq!(client.copy(copy).await.unwrap().size, 3);
    let absent = (key("none"), Condition::default());
    let unmet = (key("b"), Condition::absent());
    let deleted = client.delete("data", vec![(key("c"), Condition::default()), absent, unmet]).await.unwrap();
    assert_eq!((&deleted[0], &deleted[1]), (&Ok(true), &Ok(false)));
    assert_eq!(deleted[2].as_ref().unwrap_err().kind, ErrorKind::Conflict);
    // Uploads.
    let target = key("up");
    let upload =
        client.upload_create("data", &target, Attributes::default(), Some(ChecksumKind::Sha1)).await.unwrap();
    let id = &upload.upload;
    let mut part = client.upload_part("data", &target, id, 1, Some(4)).await.unwrap();
    write_all(&mut part, b"part").await.unwrap();
    let first = part.finish(Finish::default()).await.unwrap();
    let source = PartSource {
        volume: "data".into(),
        key: key("b"),
        condition: Condition::default(),
        range: Some((1, 3)),
    };
    let second = client.upload_part_copy("data", &target, id, 2, source).await.unwrap();
    let parts = client.upload_parts("data", &target, id, 0, 1).await.unwrap();
    assert_eq!((parts.parts.len(), parts.more, parts.upload), (1, true, upload.clone()));
    assert_eq!(client.uploads("data", b"u", None, 10).await.unwrap().uploads, std::slice::from_ref(&upload));
    let choice =
        |number, receipt: &Receipt| PartChoice { number, etag: receipt.etag.clone(), checksum: None };
    let choices = vec![choice(1, &first), choice(2, &second)];
    let done = client.upload_complete("data", &target, id, choices, Condition::default(), Finish::default());
    assert_eq!(done.await.unwrap().size, 6);
    assert_eq!(get(client, "up").await.unwrap(), b"partbc");
    assert_eq!(client.upload_abort("data", &target, id).await.unwrap_err().subject, Subject::Upload);
    // Receipts and the lake.
    let receipt = client.receipt("data", &target).await.unwrap();
    let waited = client.wait("data", &target, Some(receipt.version), Awaited::Committed).await.unwrap();
    assert_eq!(waited, receipt);
    assert_eq!(client.drain("data", b"").await.unwrap(), 2);
    assert_eq!(client.stage("data", &target).await.unwrap(), 6);
    let file = memory.stat("data", &target).await.unwrap();
    memory.state.lock().unwrap().conflicts.push(Conflict {
        volume: "data".into(),
        file,
        lake_etag_expected: None,
        lake_etag_found: Some("e".into()),
        since_ms: 5,
        refused: None,
    });
    assert_eq!(client.conflicts(Some("data")).await.unwrap().len(), 1);
    assert_eq!(client.conflicts(Some("other")).await.unwrap().len(), 0);
    client.conflict_resolve("data", &target, Resolution::KeepBoth).await.unwrap();
    assert_eq!(client.conflicts(None).await.unwrap(), []);
    // Operators.
    let access = Access { read_only: true, prefixes: vec!["data/a".into()], uid: 7, gid: 8 };
    let made = AccessKey { access_key: "AK".into(), secret_key: "secret".into(), access, created_ms: 9 };
    client.access_key_put(made.clone()).await.unwrap();
    assert_eq!(client.access_keys().await.unwrap(), std::slice::from_ref(&made));
    assert_eq!(client.access_key("AK").await.unwrap(), Some(made));
    client.access_key_delete("AK").await.unwrap();
    assert_eq!(client.access_key("AK").await.unwrap(), None);
    assert_eq!(
        client.explain("data", &target).await.unwrap(),
        memory.explain("data", &target).await.unwrap()
    );
    assert_eq!(client.status().await.unwrap(), memory.status().await.unwrap());
}
