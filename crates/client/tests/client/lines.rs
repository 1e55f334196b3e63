//! Threads that may be blocked, and ask on connections of their own.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use crate::memory::Memory;
use stoker_access::Guard;
use stoker_client::wire::*;
use stoker_client::{Client, ClientOptions, Endpoint, Server, ServerOptions};
use stoker_format::{ClusterId, crc32c};
use stoker_store::*;
use tokio::runtime::Handle;

/// Calls like a thread that nobody else waits for.
async fn alone_with<T: Send + 'static>(
    client: &Client,
    call: impl AsyncFnOnce(Client) -> T + Send + 'static,
) -> T {
    let (client, runtime) = (client.clone(), Handle::current());
    tokio::task::spawn_blocking(move || alone(|| runtime.block_on(call(client)))).await.unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

async fn put(store: &dyn Store, name: &str) {
    let writer = store.create("data", &key(name), WriteRequest::default()).await.unwrap();
    writer.finish(Finish::default()).await.unwrap();
}

async fn many_threads(options: ServerOptions) {
    let folder = tempfile::tempdir().unwrap();
    let listen = vec![Endpoint::Unix(folder.path().join("s"))];
    let memory = Memory::new();
    let server = Server::start(Guard::new(Arc::new(memory.clone())), listen, None, options).unwrap();
    let client = Client::connect(&server.addresses()[0], None).await.unwrap();
    for number in 0..24 {
        put(&client, &format!("f{number}")).await;
    }
    let calls = (0..24).map(|number| {
        alone_with(&client, async move |client| {
            let own = key(&format!("f{number}"));
            for round in 0..50u32 {
                assert_eq!(client.stat("data", &own).await.unwrap().key, own);
                let missing = client.stat("data", &key("none")).await.unwrap_err();
                assert_eq!(missing.kind, ErrorKind::NotFound);
                let change = AttributesChange { mode: Some(round), ..AttributesChange::default() };
                let changed = client.set_attributes("data", &own, change).await.unwrap();
                assert_eq!(changed.attributes.mode, Some(round));
                let wish = ListRequest { limit: 100, ..ListRequest::default() };
                assert_eq!(client.list("data", wish).await.unwrap().entries.len(), 24);
            }
        })
    });
    futures_util::future::join_all(calls).await;
    drop(client);
    memory.until_live(0).await;
    server.stop(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_that_may_be_blocked_get_their_own_answers() {
    many_threads(ServerOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_takes_no_more_connections_is_asked_on_the_first() {
    many_threads(ServerOptions { connections_max: 2, ..ServerOptions::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_several_frames_come_whole() {
    let folder = tempfile::tempdir().unwrap();
    let listen = vec![Endpoint::Unix(folder.path().join("s"))];
    let memory = Memory::new();
    let server =
        Server::start(Guard::new(Arc::new(memory.clone())), listen, None, ServerOptions::default()).unwrap();
    let client = Client::connect(&server.addresses()[0], None).await.unwrap();
    let counters = alone_with(&client, async |client| client.counters().await.unwrap()).await;
    assert!(encode(&counters).len() > CONTROL_LEN_MAX);
    assert_eq!(counters, memory.counters().await.unwrap());
    server.stop(Duration::from_secs(10)).await;
}

fn frame(kind: Kind, id: u64, control: &[u8]) -> Vec<u8> {
    let mut header = Header {
        kind,
        flags: 0,
        id,
        control_len: control.len() as u32,
        payload_len: 0,
        deadline_ms: 0,
        payload_crc: crc32c(&[]),
        control_crc: 0,
    };
    header.control_crc = header.crc_with(control);
    [&header.encode(), control].concat()
}

fn next_request(stream: &mut UnixStream) -> Option<(u64, Request)> {
    let mut raw = [0; HEADER_LEN];
    stream.read_exact(&mut raw).ok()?;
    let header = Header::decode(&raw).unwrap();
    let mut control = vec![0; header.control_len as usize];
    stream.read_exact(&mut control).ok()?;
    Some((header.id, decode(&control).unwrap()))
}

/// Answers all requests; what they ask for does not matter.
fn answer_all(mut stream: UnixStream) {
    while let Some((id, _)) = next_request(&mut stream) {
        let _ = stream.write_all(&frame(Kind::Response, id, &encode(&Response::Done)));
    }
}

/// A node that answers its first connection, and does on the others what it is told.
async fn fake_node(
    options: ClientOptions,
    serve: impl Fn(UnixStream) + Clone + Send + 'static,
) -> (Client, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { return };
            let mut hello = [0; CLIENT_HELLO_LEN];
            stream.read_exact(&mut hello).unwrap();
            let answer = ServerHello {
                version: VERSION,
                version_min: 1,
                version_max: VERSION,
                token_wanted: false,
                nonce: [0; 32],
                cluster: ClusterId::ZERO,
            };
            stream.write_all(&answer.encode()).unwrap();
            let mut proof = [0; PROOF_LEN];
            stream.read_exact(&mut proof).unwrap();
            let verdict = Verdict { status: 0, requests_max: 8, handles_max: 8, proof };
            stream.write_all(&verdict.encode()).unwrap();
            let serve = serve.clone();
            std::thread::spawn(move || if number == 0 { answer_all(stream) } else { serve(stream) });
        }
    });
    (Client::connect_with(&Endpoint::Unix(path), None, options).await.unwrap(), folder)
}

async fn delete_volume(client: Client) -> Result<()> {
    client.volume_delete("v").await
}

async fn drain(client: Client) -> Result<u64> {
    client.drain("v", b"").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_lost_in_the_middle_of_a_call_is_told_or_made_good() {
    let lose = |mut stream: UnixStream| drop(next_request(&mut stream));
    let (client, _folder) = fake_node(ClientOptions::default(), lose).await;
    let error = alone_with(&client, delete_volume).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("outcome is unknown"), "{error}");
    // From here on everything goes over the connection that holds.
    assert!(alone_with(&client, delete_volume).await.is_ok());

    let (client, _folder) = fake_node(ClientOptions::default(), lose).await;
    // What changes nothing is asked again, on the connection that holds; that its answer does not fit is another matter.
    let error = alone_with(&client, drain).await.unwrap_err();
    assert!(error.message.contains("does not fit the question"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_no_answers_end_the_line_and_nothing_else() {
    let done = encode(&Response::Done);
    let wrong: Vec<Vec<u8>> = vec![
        b"this is no frame of any kind, but it is long enough to be taken for one".to_vec(),
        frame(Kind::Response, 77, &done),
        frame(Kind::Grant, 1, &encode(&7u64)),
        frame(Kind::Lease, 1, &done),
        frame(Kind::Response, 1, b"\xff\xff\xff"),
        {
            let mut bytes = frame(Kind::Response, 1, &done);
            bytes[HEADER_LEN - 1] ^= 1;
            bytes
        },
        frame(Kind::Response, 1, &done)[..HEADER_LEN - 3].to_vec(),
    ];
    for bytes in wrong {
        let said = bytes.clone();
        let lie = move |mut stream: UnixStream| {
            next_request(&mut stream);
            let _ = stream.write_all(&bytes);
        };
        let (client, _folder) = fake_node(ClientOptions::default(), lie).await;
        let error = alone_with(&client, delete_volume).await.unwrap_err();
        assert!(error.message.contains("outcome is unknown"), "{error} after {said:?}");
        assert!(alone_with(&client, delete_volume).await.is_ok(), "after {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_says_goodbye_still_answers_and_is_not_asked_there_again() {
    let goodbye = StoreError::new(ErrorKind::Closed, "stopping");
    let leave = move |mut stream: UnixStream| {
        let Some((id, _)) = next_request(&mut stream) else { return };
        let _ = stream.write_all(&frame(Kind::Goaway, 0, &encode(&goodbye)));
        let _ = stream.write_all(&frame(Kind::Response, id, &encode(&Response::Done)));
        assert!(next_request(&mut stream).is_none(), "asked again");
    };
    let (client, _folder) = fake_node(ClientOptions::default(), leave).await;
    for _ in 0..3 {
        alone_with(&client, delete_volume).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_takes_too_long_is_given_up() {
    let options = ClientOptions { call_timeout: Duration::from_millis(50), ..ClientOptions::default() };
    let (ended, hears) = std::sync::mpsc::channel();
    let wait = move |mut stream: UnixStream| {
        next_request(&mut stream);
        // The client goes away; nothing else ends this.
        let _ = ended.send(next_request(&mut stream).is_none());
    };
    let (client, _folder) = fake_node(options, wait).await;
    let error = alone_with(&client, delete_volume).await.unwrap_err();
    assert!(error.message.contains("no answer within"), "{error}");
    assert!(hears.recv().unwrap(), "the line is closed");
}
