//! Bytes of writers through memory that both sides share.

use std::sync::Arc;

use crate::memory::Memory;
use futures_util::future::join_all;
use stoker_access::Guard;
use stoker_client::{Client, ClientOptions, Endpoint, Server, ServerOptions};
use stoker_store::*;

const MIB: usize = 1 << 20;
const TOKEN: &str = "a token";

struct Rig {
    server: Server,
    client: Client,
    _folder: tempfile::TempDir,
}

async fn rig() -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let listen = vec![Endpoint::Unix(folder.path().join("s")), Endpoint::Tcp("127.0.0.1:0".into())];
    let store = Arc::new(Memory::new());
    let server =
        Server::start(Guard::new(store), listen, Some(TOKEN.into()), ServerOptions::default()).unwrap();
    let client = Client::connect(&server.addresses()[0], None).await.unwrap();
    Rig { server, client, _folder: folder }
}

impl Rig {
    /// Writes until the connection has its memory, which nobody waits for.
    async fn warm(&self) {
        let bytes = bytes_of(0, 8 * MIB);
        for _ in 0..100 {
            if self.server.hatch_bytes() > 0 {
                return;
            }
            put(&self.client, "warm", &bytes, None).await;
        }
        panic!("no memory came");
    }
}

fn bytes_of(seed: usize, len: usize) -> bytes::Bytes {
    (0..len).map(|at| (at * 31 + at / 4099 + seed * 7) as u8).collect::<Vec<u8>>().into()
}

async fn begin(store: &dyn Store, name: &str, size: Option<u64>) -> Box<dyn Writer> {
    let request = WriteRequest { size, ..WriteRequest::default() };
    store.create("data", &Key::new(name).unwrap(), request).await.unwrap()
}

async fn put(store: &dyn Store, name: &str, bytes: &bytes::Bytes, size: Option<u64>) {
    let mut writer = begin(store, name, size).await;
    // Pieces that end anywhere.
    let mut rest = bytes.clone();
    while !rest.is_empty() {
        let piece = rest.split_to(rest.len().min(3 * MIB + 4321));
        writer.write_bytes(piece.into()).await.unwrap();
    }
    writer.finish(Finish::default()).await.unwrap();
}

async fn get(store: &dyn Store, name: &str) -> Vec<u8> {
    let file = store.open("data", &Key::new(name).unwrap()).await.unwrap();
    let mut got = Vec::new();
    while got.len() < file.info().size as usize {
        got.extend_from_slice(&file.read(got.len() as u64, 4 * MIB).await.unwrap());
    }
    got
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_files_pass_through_it_and_short_ones_do_not() {
    let rig = rig().await;
    let (server, client) = (&rig.server, &rig.client);
    let short = bytes_of(1, 60_000);
    for size in [Some(60_000), None] {
        put(client, "short", &short, size).await;
    }
    assert_eq!(server.hatch_bytes(), 0);
    rig.warm().await;
    let long = bytes_of(2, 20 * MIB + 5);
    for (name, size) in [("long", Some(long.len() as u64)), ("unknown", None)] {
        let before = server.hatch_bytes();
        put(client, name, &long, size).await;
        let passed = server.hatch_bytes() - before;
        assert!(passed > 19 * MIB as u64, "{passed} of {name}");
    }
    let before = server.hatch_bytes();
    put(client, "short", &short, None).await;
    assert_eq!(server.hatch_bytes(), before);
    for (name, expect) in [("short", &short), ("long", &long), ("unknown", &long)] {
        assert!(get(client, name).await == expect[..], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_writers_than_it_has_room_for_get_their_bytes_across() {
    let rig = rig().await;
    rig.warm().await;
    let Rig { server, client, _folder } = rig;
    let before = server.hatch_bytes();
    let files: Vec<_> =
        (0..12).map(|seed| (format!("f{seed}"), bytes_of(seed, 9 * MIB + seed * 1000))).collect();
    join_all(files.iter().map(|(name, bytes)| put(&client, name, bytes, None))).await;
    assert!(server.hatch_bytes() > before + 9 * MIB as u64);
    for (name, bytes) in &files {
        assert!(get(&client, name).await == bytes[..], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_made_in_it_are_not_copied_and_its_room_comes_back() {
    let rig = rig().await;
    rig.warm().await;
    let Rig { server, client, _folder } = rig;
    let bytes = bytes_of(5, 64 * MIB + 77);
    let mut writer = begin(&client, "in place", None).await;
    let (mut rest, mut in_place) = (bytes.clone(), 0);
    while !rest.is_empty() {
        let piece = rest.split_to(rest.len().min(4 * MIB));
        match writer.memory() {
            Some(mut room) => {
                room.spare_mut()[..piece.len()].copy_from_slice(&piece);
                room.set_len(piece.len());
                let made = bytes::Bytes::from_owner(Made(room));
                in_place += 1;
                // Others may have a part of it.
                let end = made.slice(piece.len() / 3..);
                writer.write_bytes(made.slice(..piece.len() / 3).into()).await.unwrap();
                writer.write_bytes(end.into()).await.unwrap();
            }
            None => writer.write_bytes(piece.into()).await.unwrap(),
        }
    }
    writer.finish(Finish::default()).await.unwrap();
    assert!(in_place > 4, "{in_place}");
    assert!(server.hatch_bytes() > 60 * MIB as u64);
    assert!(get(&client, "in place").await == bytes[..]);
    let writer = begin(&client, "next", None).await;
    let rooms: Vec<_> = std::iter::from_fn(|| writer.memory()).collect();
    assert_eq!(rooms.len(), 12, "all of it is free again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_fills_buffers_fills_them_in_place_and_their_room_comes_back() {
    let rig = rig().await;
    rig.warm().await;
    let Rig { server, client, _folder } = rig;
    let bytes = bytes_of(6, 40 * MIB + 5);
    for (name, size) in [("unknown", None), ("announced", Some(bytes.len() as u64))] {
        let before = server.hatch_bytes();
        let mut filler = Filler::new(begin(&client, name, size).await);
        for piece in bytes.chunks(3 * MIB / 2 + 1) {
            filler.put(piece).await.unwrap();
        }
        assert_eq!(filler.len(), bytes.len() as u64);
        let writer = filler.end().await.unwrap();
        assert_eq!(writer.crc64(), stoker_format::crc64(&bytes));
        writer.finish(Finish::default()).await.unwrap();
        assert!(server.hatch_bytes() >= before + 40 * MIB as u64, "{name}");
        assert!(get(&client, name).await == bytes[..], "{name}");
    }
    // One that is given up in the middle of a buffer keeps none, either.
    let mut filler = Filler::new(begin(&client, "given up", None).await);
    filler.put(&bytes[..9 * MIB]).await.unwrap();
    drop(filler);
    put(&client, "small", &bytes.slice(..100), None).await;
    let writer = begin(&client, "next", None).await;
    let rooms: Vec<_> = std::iter::from_fn(|| writer.memory()).collect();
    assert_eq!(rooms.len(), 12, "all of it is free again");
}

struct Made(Buf);

impl AsRef<[u8]> for Made {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_that_are_given_up_leave_it_free() {
    let rig = rig().await;
    rig.warm().await;
    let Rig { server, client, _folder } = rig;
    let bytes = bytes_of(3, 8 * MIB);
    for round in 0..20 {
        let mut writer = begin(&client, &format!("gone{round}"), None).await;
        writer.write_bytes(bytes.slice(..4 * MIB).into()).await.unwrap();
        drop(writer);
    }
    let before = server.hatch_bytes();
    put(&client, "there", &bytes, None).await;
    assert!(server.hatch_bytes() >= before + 7 * MIB as u64, "its slots came back");
    assert!(get(&client, "there").await == bytes[..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_machines_and_those_who_want_no_descriptors_use_the_socket() {
    let Rig { server, client: _, _folder } = rig().await;
    let bytes = bytes_of(4, 6 * MIB);
    let far = Client::connect(&server.addresses()[1], Some(TOKEN)).await.unwrap();
    put(&far, "far", &bytes, None).await;
    let options = ClientOptions { leases: false, ..ClientOptions::default() };
    let plain = Client::connect_with(&server.addresses()[0], None, options).await.unwrap();
    put(&plain, "plain", &bytes, None).await;
    assert_eq!(server.hatch_bytes(), 0);
    assert!(get(&far, "plain").await == bytes[..] && get(&plain, "far").await == bytes[..]);
}
