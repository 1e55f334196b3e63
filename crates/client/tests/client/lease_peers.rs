//! Leases and peers that are older, or that lie: no descriptor stays, and reads work as before.

use std::io::{IoSlice, PipeWriter, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::memory::Memory;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use stoker_access::Guard;
use stoker_client::wire::Place;
use stoker_client::wire::*;
use stoker_client::{Client, ClientOptions, Endpoint, Server, ServerOptions};
use stoker_format::{ClusterId, crc32c};
use stoker_store::*;

fn frame(kind: Kind, id: u64, control: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut header = Header {
        kind,
        flags: 0,
        id,
        control_len: control.len() as u32,
        payload_len: payload.len() as u32,
        deadline_ms: 0,
        payload_crc: crc32c(payload),
        control_crc: 0,
    };
    header.control_crc = header.crc_with(control);
    [&header.encode(), control, payload].concat()
}

/// The next frame; none at the end.
fn next_frame(stream: &mut UnixStream) -> Option<(Header, Vec<u8>)> {
    let mut raw = [0; HEADER_LEN];
    stream.read_exact(&mut raw).ok()?;
    let header = Header::decode(&raw).unwrap();
    let mut control = vec![0; header.control_len as usize];
    stream.read_exact(&mut control).ok()?;
    std::io::copy(&mut stream.take(u64::from(header.payload_len)), &mut std::io::sink()).ok()?;
    Some((header, control))
}

/// The next request.
fn next_request(stream: &mut UnixStream) -> Option<(u64, Request)> {
    loop {
        let (header, control) = next_frame(stream)?;
        if header.kind == Kind::Request {
            return Some((header.id, decode(&control).unwrap()));
        }
    }
}

fn respond(stream: &mut UnixStream, id: u64, response: &Response, payload: &[u8]) {
    let _ = stream.write_all(&frame(Kind::Response, id, &encode(response), payload));
}

/// Sends bytes with descriptors beside the first of them.
fn send_with(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, bytes.len());
}

/// A node of that protocol that says hello to one client and then does as it is told.
struct FakeNode {
    folder: tempfile::TempDir,
    thread: JoinHandle<()>,
}

impl FakeNode {
    fn start(version: u16, serve: impl FnOnce(UnixStream) + Send + 'static) -> FakeNode {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = [0; CLIENT_HELLO_LEN];
            stream.read_exact(&mut hello).unwrap();
            assert!(ClientHello::decode(&hello).unwrap().version >= version);
            let answer = ServerHello {
                version,
                version_min: 1,
                version_max: version,
                token_wanted: false,
                nonce: [0; 32],
                cluster: ClusterId::ZERO,
            };
            stream.write_all(&answer.encode()).unwrap();
            let mut proof = [0; PROOF_LEN];
            stream.read_exact(&mut proof).unwrap();
            let verdict = Verdict { status: 0, requests_max: 8, handles_max: 8, proof };
            stream.write_all(&verdict.encode()).unwrap();
            serve(stream);
        });
        FakeNode { folder, thread }
    }

    async fn client(&self) -> Client {
        let options = ClientOptions { reconnect_patience: Duration::ZERO, ..ClientOptions::default() };
        let endpoint = Endpoint::Unix(self.folder.path().join("s"));
        Client::connect_with(&endpoint, None, options).await.unwrap()
    }

    /// Waits until it is done: its client is gone.
    async fn ends(self) {
        tokio::task::spawn_blocking(|| self.thread.join().unwrap()).await.unwrap();
    }
}

/// A pipe whose reader sees its end when nobody has the writer any more.
async fn pipe_ends(writer: PipeWriter, mut reader: std::io::PipeReader) {
    drop(writer);
    let end = tokio::task::spawn_blocking(move || reader.read(&mut [0]).unwrap());
    assert_eq!(end.await.unwrap(), 0, "nobody keeps the descriptor");
}

fn file_info(bytes: &[u8]) -> Response {
    Response::File(Box::new(FileInfo {
        key: Key::new("f").unwrap(),
        size: bytes.len() as u64,
        etag: "e".into(),
        modified_ms: 0,
        version: stoker_format::VersionId([1; 12]),
        inode: 1,
        attributes: Attributes::default(),
        checksums: Vec::new(),
        part_sizes: Vec::new(),
        drain: DrainState::Dirty,
        links: 1,
        allocated: None,
        past: None,
        expires: None,
    }))
}

fn sample() -> Vec<u8> {
    (0..600_000u32).map(|at| (at / 7) as u8).collect()
}

/// Serves one file; what it does not know of is answered by `other`, or ends the connection as an old node would.
fn serve_file(mut stream: UnixStream, other: impl Fn(&mut UnixStream, u64, &Request) -> bool) {
    let bytes = sample();
    while let Some((id, request)) = next_request(&mut stream) {
        match &request {
            Request::Open { .. } => respond(&mut stream, id, &file_info(&bytes), &[]),
            Request::Read { offset, len, .. } => {
                let rest = &bytes[(*offset as usize).min(bytes.len())..];
                respond(&mut stream, id, &Response::Read, &rest[..rest.len().min(*len as usize)]);
            }
            other_request => {
                if !other(&mut stream, id, other_request) {
                    return;
                }
            }
        }
    }
}

async fn read_sample(client: &Client) {
    let file = client.open("data", &Key::new("f").unwrap()).await.unwrap();
    let mut got = Vec::new();
    while (got.len() as u64) < file.info().size {
        got.extend_from_slice(&file.read(got.len() as u64, 100_000).await.unwrap());
    }
    assert!(got == sample());
}

#[tokio::test]
async fn an_older_node_is_not_asked_for_leases() {
    let node = FakeNode::start(1, |stream| serve_file(stream, |_, _, request| panic!("{request:?}")));
    let client = node.client().await;
    read_sample(&client).await;
    // Volumes look different there; that is said, and the connection goes on.
    let error = client.volume("data").await.unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("same release"), "{error}");
    read_sample(&client).await;
    drop(client);
    node.ends().await;
}

#[tokio::test]
async fn an_older_client_gets_no_lease_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let listen = vec![Endpoint::Unix(folder.path().join("s"))];
    let server =
        Server::start(Guard::new(Arc::new(Memory::new())), listen, None, ServerOptions::default()).unwrap();
    let path = folder.path().join("s");
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = UnixStream::connect(path).unwrap();
        let hello =
            ClientHello { version: 1, version_min: 1, token: 0, nonce: [1; 32], cluster: ClusterId::ZERO };
        stream.write_all(&hello.encode()).unwrap();
        let mut answer = [0; SERVER_HELLO_LEN];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(ServerHello::decode(&answer).unwrap().version, 1);
        stream.write_all(&[0; PROOF_LEN]).unwrap();
        stream.read_exact(&mut [0; VERDICT_LEN]).unwrap();
        let mut ask = |id: u64, request: &Request| -> Response {
            stream.write_all(&frame(Kind::Request, id, &encode(request), &[])).unwrap();
            decode(&next_frame(&mut stream).unwrap().1).unwrap()
        };
        let lease = Request::Lease { file: 1, offset: 0, len: 1 };
        for (id, request) in [(1, Request::Volumes), (2, lease), (3, Request::Status)] {
            match ask(id, &request) {
                Response::Error(error) => assert!(error.message.contains("same release"), "{error}"),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(ask(4, &Request::AccessKeys), Response::AccessKeys(_)));
    });
    asked.await.unwrap();
    server.stop(Duration::from_secs(10)).await;
}

/// What a lying node answers to a wish for leases.
type Lie = fn(&UnixStream, u64, BorrowedFd<'_>);

fn lease_frame(id: u64, places: Vec<Place>, payload: &[u8]) -> Vec<u8> {
    frame(Kind::Lease, id, &encode(&Response::Lease { places }), payload)
}

fn place(len: u32, descriptor: u32, at: u64) -> Place {
    Place { offset: 0, len, descriptor, at }
}

#[tokio::test]
async fn leases_that_do_not_fit_are_closed_and_the_node_is_asked_for_bytes() {
    let lies: [Lie; 7] = [
        // Nothing beside it.
        |mut stream, id, _| stream.write_all(&lease_frame(id, vec![place(4096, 0, 0)], &[0; 4])).unwrap(),
        // No file.
        |stream, id, pipe| send_with(stream, &lease_frame(id, vec![place(4096, 0, 0)], &[0; 4]), &[pipe]),
        // A place that another descriptor would show, none at all, a table of another length.
        |stream, id, pipe| send_with(stream, &lease_frame(id, vec![place(4096, 1, 0)], &[0; 4]), &[pipe]),
        |stream, id, pipe| send_with(stream, &lease_frame(id, Vec::new(), &[]), &[pipe]),
        |stream, id, pipe| send_with(stream, &lease_frame(id, vec![place(5000, 0, 0)], &[0; 4]), &[pipe]),
        // More descriptors than a frame may have.
        |stream, id, pipe| send_with(stream, &lease_frame(id, vec![place(4096, 0, 0)], &[0; 4]), &[pipe; 60]),
        // Somebody else's answer first.
        |mut stream, id, pipe| {
            send_with(stream, &lease_frame(id + 1000, vec![place(4096, 0, 0)], &[0; 4]), &[pipe]);
            let no = encode(&Response::NoLease { reason: NoLease::Limit, until: u64::MAX });
            stream.write_all(&frame(Kind::Response, id, &no, &[])).unwrap();
        },
    ];
    for lie in lies {
        let (reader, writer) = std::io::pipe().unwrap();
        let sent = writer.try_clone().unwrap();
        let node = FakeNode::start(VERSION, move |stream| {
            serve_file(stream, |stream, id, request| {
                assert!(matches!(request, Request::Lease { .. }));
                lie(stream, id, sent.as_fd());
                true
            });
        });
        let client = node.client().await;
        read_sample(&client).await;
        drop(client);
        node.ends().await;
        pipe_ends(writer, reader).await;
    }
}

/// A file of other bytes than those that the table is about, and a place behind its end.
#[tokio::test]
async fn a_lease_on_other_bytes_is_not_believed() {
    for at in [4096, 1 << 40] {
        let node = FakeNode::start(VERSION, move |stream| {
            serve_file(stream, |stream, id, request| {
                assert!(matches!(request, Request::Lease { .. }));
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(&[7; 8192]).unwrap();
                let table = crc32c(&sample()[..4096]).to_le_bytes();
                send_with(stream, &lease_frame(id, vec![place(4096, 0, at)], &table), &[file.as_fd()]);
                true
            });
        });
        let client = node.client().await;
        read_sample(&client).await;
        drop(client);
        node.ends().await;
    }
}

#[tokio::test]
async fn descriptors_that_nobody_asked_for_end_the_connection() {
    let (reader, writer) = std::io::pipe().unwrap();
    let sent = writer.try_clone().unwrap();
    let node = FakeNode::start(VERSION, move |mut stream| {
        while let Some((id, _)) = next_request(&mut stream) {
            let answer = frame(Kind::Response, id, &encode(&Response::Number(1)), &[]);
            send_with(&stream, &answer, &[sent.as_fd()]);
        }
    });
    let client = node.client().await;
    let ended = async {
        // The first answers may still come through: descriptors are missed when the next frame begins.
        while client.drain("data", b"").await.is_ok() {}
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap();
    drop(client);
    node.ends().await;
    pipe_ends(writer, reader).await;
}
