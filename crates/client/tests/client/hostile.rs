//! Peers that break the rules: nothing panics, they are told why, and others do not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::memory::Memory;
use proptest::prelude::*;
use stoker_access::Guard;
use stoker_client::wire::*;
use stoker_client::{Client, ClientOptions, Endpoint, Server, ServerOptions};
use stoker_format::{ClusterId, crc32c};
use stoker_store::*;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Tasks swallow panics; this counts them.
fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            before(info);
        }));
    });
}

struct Rig {
    memory: Memory,
    server: Server,
    folder: tempfile::TempDir,
}

fn rig(options: ServerOptions) -> Rig {
    count_panics();
    let (memory, folder) = (Memory::new(), tempfile::tempdir().unwrap());
    let listen = vec![Endpoint::Unix(folder.path().join("s"))];
    let server = Server::start(Guard::new(Arc::new(memory.clone())), listen, None, options).unwrap();
    Rig { memory, server, folder }
}

impl Rig {
    async fn raw(&self) -> UnixStream {
        UnixStream::connect(self.folder.path().join("s")).await.unwrap()
    }

    /// A connection behind its hello.
    async fn greeted(&self) -> UnixStream {
        self.greeted_with(VERSION).await
    }

    /// The same of a client that speaks nothing newer.
    async fn greeted_with(&self, version: u16) -> UnixStream {
        let mut stream = self.raw().await;
        stream.write_all(&hello(VERSION_MIN, version).encode()).await.unwrap();
        let mut answer = [0; SERVER_HELLO_LEN];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(ServerHello::decode(&answer).unwrap().version, version);
        stream.write_all(&[0; PROOF_LEN]).await.unwrap();
        let mut verdict = [0; VERDICT_LEN];
        stream.read_exact(&mut verdict).await.unwrap();
        assert_eq!(Verdict::decode(&verdict).unwrap().status, 0);
        stream
    }

    /// The server still serves others, and nothing panicked or stayed open.
    async fn check_alive(&self) {
        let client = Client::connect(&self.server.addresses()[0], None).await.unwrap();
        assert!(client.status().await.unwrap().ready);
        self.memory.until_live(0).await;
        assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    }

    /// Sends bytes as a client would and expects to be told this before the connection ends.
    async fn told(&self, bytes: &[u8], reason: &str) {
        let mut stream = self.greeted().await;
        let _ = stream.write_all(bytes).await;
        let mut got = Vec::new();
        stream.read_to_end(&mut got).await.unwrap();
        let (kind, control) = frames(&got).pop().expect("the server says why");
        assert_eq!(kind, Kind::Goaway);
        let error: StoreError = decode(&control).unwrap();
        assert!(error.message.contains(reason), "{error}");
        self.check_alive().await;
    }
}

/// Begins a writer with id 7 and is granted ten bytes.
async fn begin_writer(stream: &mut UnixStream) {
    stream.write_all(&request(7, &create())).await.unwrap();
    let mut answer = [0; HEADER_LEN + 1];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(frames(&answer), [(Kind::Response, encode(&Response::Done))]);
    stream.write_all(&frame(Kind::Want, 7, &encode(&10u64), &[])).await.unwrap();
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(frames(&answer), [(Kind::Grant, encode(&10u64))]);
}

fn hello(version_min: u16, version: u16) -> ClientHello {
    ClientHello { version, version_min, token: 0, nonce: [1; 32], cluster: ClusterId::ZERO }
}

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

fn request(id: u64, request: &Request) -> Vec<u8> {
    frame(Kind::Request, id, &encode(request), &[])
}

/// Takes a stream of frames apart.
fn frames(mut bytes: &[u8]) -> Vec<(Kind, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((raw, rest)) = bytes.split_first_chunk::<HEADER_LEN>() {
        let header = Header::decode(raw).unwrap();
        let (control, rest) = rest.split_at(header.control_len as usize);
        header.check(control).unwrap();
        frames.push((header.kind, control.to_vec()));
        bytes = &rest[header.payload_len as usize..];
    }
    frames
}

fn create() -> Request {
    let (volume, key) = ("data".to_owned(), Key::new("k").unwrap());
    Request::Create { volume, key, request: WriteRequest::default() }
}

#[tokio::test]
async fn broken_frames_are_answered_with_the_reason() {
    let rig = rig(ServerOptions { requests_max: 3, ..ServerOptions::default() });
    let good = request(1, &Request::Status);

    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    rig.told(&damaged, "checksum").await;

    let mut unknown = good.clone();
    unknown[16] = 99;
    rig.told(&unknown, "unknown kind 99").await;

    let mut long = good.clone();
    long[..4].copy_from_slice(&(CONTROL_LEN_MAX as u32 + 1).to_le_bytes());
    rig.told(&long, "control part of").await;
    let mut long = good.clone();
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    rig.told(&long, "payload of").await;

    rig.told(&frame(Kind::Request, 1, b"\xff\xff\xff\xff", &[]), "cannot be read").await;
    rig.told(&frame(Kind::Request, 1, &[encode(&Request::Status), vec![0]].concat(), &[]), "behind its end")
        .await;
    rig.told(&frame(Kind::Grant, 1, &[0], &[]), "only nodes send").await;
    rig.told(&frame(Kind::Lease, 1, &[0], &[]), "only nodes send").await;
    rig.told(&[request(5, &create()), request(5, &create())].concat(), "in use already").await;

    let wait = Request::Wait {
        volume: "data".into(),
        key: Key::new("k").unwrap(),
        version: None,
        awaited: Awaited::Drained,
    };
    let many: Vec<u8> = (0..4).flat_map(|id| request(id, &wait)).collect();
    let gated = gated_rig();
    gated.told(&many, "more than 3 requests").await;
}

fn gated_rig() -> Rig {
    let (memory, folder) = (Memory::gated(), tempfile::tempdir().unwrap());
    let listen = vec![Endpoint::Unix(folder.path().join("s"))];
    let options = ServerOptions { requests_max: 3, ..ServerOptions::default() };
    let server = Server::start(Guard::new(Arc::new(memory.clone())), listen, None, options).unwrap();
    Rig { memory, server, folder }
}

#[tokio::test]
async fn bytes_beyond_the_grant_are_refused_before_they_are_read() {
    let rig = rig(ServerOptions::default());
    let mut stream = rig.greeted().await;
    begin_writer(&mut stream).await;
    stream.write_all(&frame(Kind::Data, 7, &[], &[0; 11])).await.unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await.unwrap();
    let (_, control) = frames(&got).pop().unwrap();
    assert!(decode::<StoreError>(&control).unwrap().message.contains("beyond what was granted"));
    rig.check_alive().await;
}

#[tokio::test]
async fn damaged_payload_ends_the_writer_and_leaves_nothing() {
    let rig = rig(ServerOptions::default());
    let mut stream = rig.greeted().await;
    begin_writer(&mut stream).await;
    let mut data = frame(Kind::Data, 7, &[], b"0123456789");
    *data.last_mut().unwrap() ^= 1;
    stream.write_all(&data).await.unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await.unwrap();
    let (_, control) = frames(&got).pop().unwrap();
    assert!(decode::<StoreError>(&control).unwrap().message.contains("payload bytes arrived damaged"));
    rig.check_alive().await;
    assert!(rig.memory.stat("data", &Key::new("k").unwrap()).await.is_err());
}

/// Bytes of a writer whose frame has no sum.
fn unsummed(id: u64, payload: &[u8]) -> Vec<u8> {
    let mut raw = [0; HEADER_LEN];
    raw.copy_from_slice(&frame(Kind::Data, id, &[], payload)[..HEADER_LEN]);
    let mut header = Header { flags: 2, payload_crc: 0, ..Header::decode(&raw).unwrap() };
    header.control_crc = header.crc_with(&[]);
    [&header.encode(), payload].concat()
}

#[tokio::test]
async fn bytes_without_a_sum_of_their_frame_are_compared_before_they_are_published() {
    let rig = rig(ServerOptions::default());
    for (sent, is_same) in [(b"0123456789", true), (b"0123456780", false)] {
        let mut stream = rig.greeted().await;
        begin_writer(&mut stream).await;
        stream.write_all(&unsummed(7, sent)).await.unwrap();
        let crc64 = stoker_format::crc64(b"0123456789");
        let finish = Request::Finish { writer: 7, len: 10, crc64, finish: Finish::default() };
        stream.write_all(&request(8, &finish)).await.unwrap();
        match answered(&mut stream).await {
            Response::Receipt(_) => assert!(is_same),
            Response::Error(error) => assert!(!is_same && error.kind == ErrorKind::Corrupt, "{error}"),
            other => panic!("{other:?}"),
        }
    }
    rig.check_alive().await;
}

/// Asks for a hatch, gets one of four slots, and leaves it empty: all its bytes are zeros.
async fn ask_for_hatch(stream: &mut UnixStream) {
    stream.write_all(&request(5, &Request::Hatch { slots: 1 })).await.unwrap();
    let mut answer = [0; HEADER_LEN + 1];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(frames(&answer), [(Kind::Lease, encode(&Response::Hatch))]);
}

fn in_hatch(id: u64, slot: u32, offset: u32, len: u32) -> Vec<u8> {
    frame(Kind::DataAt, id, &encode(&(slot, offset, len)), &[])
}

#[tokio::test]
async fn bytes_in_a_hatch_are_refused_where_they_cannot_be() {
    let cases = [
        (false, in_hatch(7, 0, 0, 10), "a hatch that nobody asked for"),
        (true, in_hatch(7, 4, 0, 10), "outside of the hatch"),
        (true, in_hatch(7, u32::MAX, 0, 10), "outside of the hatch"),
        (true, in_hatch(7, 0, 0, u32::MAX), "outside of the hatch"),
        (true, in_hatch(7, 0, u32::MAX, 10), "outside of the hatch"),
        (true, in_hatch(7, 0, (SLOT_LEN - 9) as u32, 10), "outside of the hatch"),
        (true, in_hatch(7, 0, 5, 11), "beyond what was granted"),
    ];
    let rig = rig(ServerOptions::default());
    for (asks, bytes, reason) in cases {
        let mut stream = rig.greeted().await;
        if asks {
            ask_for_hatch(&mut stream).await;
        }
        begin_writer(&mut stream).await;
        stream.write_all(&bytes).await.unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).await.unwrap();
        let (_, control) = frames(&got).pop().unwrap();
        let told = decode::<StoreError>(&control).unwrap().message;
        assert!(told.contains(reason), "{told}");
        rig.check_alive().await;
    }
}

#[tokio::test]
async fn bytes_in_a_hatch_are_compared_before_they_are_published() {
    let rig = rig(ServerOptions::default());
    for (expect, is_same) in [([0; 10], true), ([1; 10], false)] {
        let mut stream = rig.greeted().await;
        ask_for_hatch(&mut stream).await;
        begin_writer(&mut stream).await;
        // Nobody has this writer: its bytes are passed over.
        stream.write_all(&in_hatch(99, 0, 0, 10)).await.unwrap();
        stream.write_all(&in_hatch(7, 0, 0, 10)).await.unwrap();
        let crc64 = stoker_format::crc64(&expect);
        let finish = Request::Finish { writer: 7, len: 10, crc64, finish: Finish::default() };
        stream.write_all(&request(8, &finish)).await.unwrap();
        match answered(&mut stream).await {
            Response::Receipt(_) => assert!(is_same),
            Response::Error(error) => assert!(!is_same && error.kind == ErrorKind::Corrupt, "{error}"),
            other => panic!("{other:?}"),
        }
        stream.write_all(&request(9, &Request::Hatch { slots: 1 })).await.unwrap();
        let again = answered(&mut stream).await;
        assert!(matches!(&again, Response::Error(error) if error.kind == ErrorKind::Conflict), "{again:?}");
    }
    rig.check_alive().await;
}

async fn answered(stream: &mut UnixStream) -> Response {
    let mut raw = [0; HEADER_LEN];
    stream.read_exact(&mut raw).await.unwrap();
    let mut control = vec![0; Header::decode(&raw).unwrap().control_len as usize];
    stream.read_exact(&mut control).await.unwrap();
    decode(&control).unwrap()
}

#[tokio::test]
async fn older_clients_sum_every_frame() {
    let rig = rig(ServerOptions::default());
    let mut stream = rig.greeted_with(5).await;
    begin_writer(&mut stream).await;
    stream.write_all(&unsummed(7, b"0123456789")).await.unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await.unwrap();
    let (_, control) = frames(&got).pop().unwrap();
    assert!(decode::<StoreError>(&control).unwrap().message.contains("payload bytes arrived damaged"));
    rig.check_alive().await;
}

#[tokio::test]
async fn bytes_that_change_before_the_store_sees_them_are_not_published() {
    let rig = rig(ServerOptions::default());
    for (len, crc64, kind) in [(10, 1, ErrorKind::Corrupt), (11, 0, ErrorKind::Invalid)] {
        let mut stream = rig.greeted().await;
        begin_writer(&mut stream).await;
        stream.write_all(&frame(Kind::Data, 7, &[], b"0123456789")).await.unwrap();
        let finish = Request::Finish { writer: 7, len, crc64, finish: Finish::default() };
        stream.write_all(&request(8, &finish)).await.unwrap();
        let mut raw = [0; HEADER_LEN];
        stream.read_exact(&mut raw).await.unwrap();
        let mut control = vec![0; Header::decode(&raw).unwrap().control_len as usize];
        stream.read_exact(&mut control).await.unwrap();
        match decode(&control).unwrap() {
            Response::Error(error) => assert_eq!(error.kind, kind),
            other => panic!("{other:?}"),
        }
        drop(stream);
        rig.check_alive().await;
    }
    assert!(rig.memory.stat("data", &Key::new("k").unwrap()).await.is_err());
}

#[tokio::test]
async fn a_client_that_promises_bytes_and_sends_none_loses_its_writer() {
    let rig = rig(ServerOptions { stall_timeout: Duration::from_millis(50), ..ServerOptions::default() });
    let mut stream = rig.greeted().await;
    begin_writer(&mut stream).await;
    let mut raw = [0; HEADER_LEN];
    stream.read_exact(&mut raw).await.unwrap();
    assert_eq!(Header::decode(&raw).unwrap().kind, Kind::Failed);
    // The connection is fine, only the memory is taken back.
    rig.memory.until_live(0).await;
    assert_eq!(rig.memory.pool.in_use(), 0);
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_disconnected() {
    let rig = rig(ServerOptions { stall_timeout: Duration::from_millis(50), ..ServerOptions::default() });
    let mut stream = rig.greeted().await;
    // Megabytes of answer, more than any socket buffer takes.
    stream.write_all(&request(1, &Request::Counters)).await.unwrap();
    let release = frame(Kind::Release, 99, &[], &[]);
    while stream.write_all(&release).await.is_ok() {}
    rig.check_alive().await;
}

#[tokio::test]
async fn keys_from_the_wire_are_checked() {
    let rig = rig(ServerOptions::default());
    // What no `Key::new` would make: an empty one, as its only field's bytes.
    let sound = encode(&Request::Stat { volume: "data".into(), key: Key::new("k").unwrap() });
    let empty = [&sound[..sound.len() - 2], &[0]].concat();
    let mut stream = rig.greeted().await;
    stream.write_all(&frame(Kind::Request, 1, &empty, &[])).await.unwrap();
    let mut raw = [0; HEADER_LEN];
    stream.read_exact(&mut raw).await.unwrap();
    let mut control = vec![0; Header::decode(&raw).unwrap().control_len as usize];
    stream.read_exact(&mut control).await.unwrap();
    assert!(matches!(decode(&control).unwrap(), Response::Error(error) if error.kind == ErrorKind::Invalid));
}

#[tokio::test]
async fn hellos_of_others_are_turned_away() {
    let rig = rig(ServerOptions { hello_timeout: Duration::from_millis(50), ..ServerOptions::default() });
    // Another release: told what is spoken here.
    let mut stream = rig.raw().await;
    stream.write_all(&hello(VERSION + 1, VERSION + 5).encode()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = ServerHello::decode(answer[..].try_into().unwrap()).unwrap();
    assert_eq!((answer.version, answer.version_min, answer.version_max), (0, VERSION_MIN, VERSION));
    // A browser, half a hello, a damaged one, silence.
    let mut damaged = hello(1, 1).encode();
    damaged[20] ^= 1;
    let half = &hello(1, 1).encode()[..30];
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: stoker.example.com\r\nAccept: */*\r\nUser-Agent: x\r\n\r\n"[..],
        half,
        &damaged,
        b"",
    ] {
        let mut stream = rig.raw().await;
        stream.write_all(bytes).await.unwrap();
        let mut got = Vec::new();
        // A reset is an end too: the server leaves what it did not want to read.
        let _ = stream.read_to_end(&mut got).await;
        assert!(got.is_empty());
    }
    rig.check_alive().await;
}

/// Answers a hello without wanting a token, welcomes everybody, then sends these bytes.
async fn lie(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) -> std::io::Result<()> {
    let mut hello = [0; CLIENT_HELLO_LEN];
    stream.read_exact(&mut hello).await?;
    let answer = ServerHello {
        version: VERSION,
        version_min: VERSION_MIN,
        version_max: VERSION,
        token_wanted: false,
        nonce: [0; 32],
        cluster: ClusterId::ZERO,
    };
    stream.write_all(&answer.encode()).await?;
    let mut proof = [0; PROOF_LEN];
    stream.read_exact(&mut proof).await?;
    let verdict = Verdict { status: 0, requests_max: 8, handles_max: 8, proof };
    stream.write_all(&verdict.encode()).await?;
    stream.write_all(bytes).await
}

async fn lying_node(bytes: Vec<u8>) -> (tempfile::TempDir, Endpoint) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let _ = lie(stream, &bytes).await;
        }
    });
    (folder, Endpoint::Unix(path))
}

#[tokio::test]
async fn a_client_with_a_token_gives_nothing_to_a_stranger() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let _ = lie(stream, b"").await;
        }
    });
    let error = Client::connect(&endpoint, Some("a token")).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Denied, "{error}");
    assert!(error.message.contains("wants no token"), "{error}");
    // The file mode of a Unix socket says who listens there.
    let (_folder, endpoint) = lying_node(Vec::new()).await;
    Client::connect(&endpoint, Some("a token")).await.unwrap();
}

async fn ask_lying_node(bytes: Vec<u8>) -> StoreError {
    count_panics();
    let (_folder, endpoint) = lying_node(bytes).await;
    let options = ClientOptions {
        reconnect_patience: Duration::ZERO,
        stall_timeout: Duration::from_millis(200),
        ..ClientOptions::default()
    };
    let client = Client::connect_with(&endpoint, None, options).await.unwrap();
    let error = client.status().await.unwrap_err();
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    error
}

#[tokio::test]
async fn a_client_survives_a_node_that_lies() {
    let response = |response: &Response| frame(Kind::Response, 1, &encode(response), &[]);
    for bytes in [
        Vec::new(),
        b"no frame at all, but long enough to be taken for one".to_vec(),
        response(&Response::Done),
        frame(Kind::Response, 1, &[0xff; 10], &[]),
        frame(Kind::Want, 1, &[1], &[]),
        frame(Kind::Data, 1, &[], &[0; 1000]),
        frame(Kind::Lease, 1, &encode(&Response::Lease { places: Vec::new() }), &[]),
        frame(Kind::Response, 1, &encode(&Response::Read), &[0; 1000])[..500].to_vec(),
    ] {
        let error = ask_lying_node(bytes).await;
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn shard() -> Request {
    let key = Key::new("s/a").unwrap();
    let request = ShardRequest { size: Some(3), ..ShardRequest::default() };
    Request::SetShard { volume: "data".into(), key, set: SetId(u64::MAX), request }
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        Just(Kind::Request),
        Just(Kind::Release),
        Just(Kind::Data),
        Just(Kind::DataAt),
        Just(Kind::Want),
        Just(Kind::Grant),
        Just(Kind::Lease)
    ];
    let control = prop_oneof![
        Just(encode(&create())),
        Just(encode(&Request::Read { file: 1, offset: 0, len: u32::MAX })),
        Just(encode(&Request::Lease { file: 1, offset: u64::MAX, len: u64::MAX })),
        Just(encode(&shard())),
        Just(encode(&Request::Hatch { slots: u32::MAX })),
        (0..20u32, 0..20u32, 0..20u32).prop_map(|place| encode(&place)),
        Just(encode(&Request::Finish { writer: 1, len: 3, crc64: 0, finish: Finish::default() })),
        any::<u64>().prop_map(|number| encode(&number)),
        prop::collection::vec(any::<u8>(), 0..60),
    ];
    let payload = prop::collection::vec(any::<u8>(), 0..50);
    (kind, 0..4u64, control, payload, prop::option::weighted(0.1, any::<(prop::sample::Index, u8)>()))
        .prop_map(|(kind, id, control, payload, damage)| {
            let mut bytes = frame(kind, id, &control, &payload);
            if let Some((at, byte)) = damage {
                let at = at.index(bytes.len());
                bytes[at] ^= byte;
            }
            bytes
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Frames that make sense one by one but not together, and damaged ones, and a cut at the end.
    #[test]
    fn a_server_survives_any_frames(sent in prop::collection::vec(any_frame(), 1..12), cut in any::<prop::sample::Index>()) {
        runtime().block_on(async {
            let rig = rig(ServerOptions::default());
            let bytes = sent.concat();
            let mut stream = rig.greeted().await;
            let _ = stream.write_all(&bytes[..cut.index(bytes.len() + 1)]).await;
            let _ = stream.shutdown().await;
            let mut got = Vec::new();
            let _ = stream.read_to_end(&mut got).await;
            drop(stream);
            rig.check_alive().await;
        });
    }

    #[test]
    fn decoders_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<Request>(&bytes);
        let _ = decode::<Response>(&bytes);
        let mut long = bytes.clone();
        long.resize(CLIENT_HELLO_LEN.max(SERVER_HELLO_LEN).max(VERDICT_LEN), 0);
        let _ = ClientHello::decode(long[..CLIENT_HELLO_LEN].try_into().unwrap());
        let _ = ServerHello::decode(long[..SERVER_HELLO_LEN].try_into().unwrap());
        let _ = Verdict::decode(long[..VERDICT_LEN].try_into().unwrap());
        let _ = Header::decode(long[..HEADER_LEN].try_into().unwrap());
    }

    /// Small messages that claim large lists cost no more memory than they have bytes for.
    #[test]
    fn claimed_lengths_are_not_believed(variant in 0u8..40, claim in prop::collection::vec(128u8..255, 1..9)) {
        let bytes = [&[variant], &claim[..], &[1]].concat();
        let _ = decode::<Request>(&bytes);
        let _ = decode::<Response>(&bytes);
    }
}
