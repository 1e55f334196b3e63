//! Peers that speak the bytes of `docs/wire.md` by hand, in plaintext.

use std::net::SocketAddr;

use aws_lc_rs::hmac;
use stoker_format::{ClusterId, NodeId, crc32c};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::*;

pub const SECRET: &[u8] = b"a secret of sixteen";

/// A hello, as the document draws it.
#[derive(Clone, Copy)]
pub struct Hello {
    pub version: u16,
    pub version_min: u16,
    pub cluster: ClusterId,
    pub node: NodeId,
    pub other: NodeId,
    pub session: u64,
}

impl Hello {
    pub fn of(node: NodeId, other: NodeId) -> Hello {
        Hello { version: 2, version_min: 1, cluster: CLUSTER, node, other, session: 1 }
    }

    pub fn encode(&self, magic: &[u8; 8]) -> Vec<u8> {
        let mut bytes = magic.to_vec();
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&self.version_min.to_le_bytes());
        bytes.extend_from_slice(&[1, 0, 1, 0]);
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&self.cluster.0);
        bytes.extend_from_slice(&self.node.0);
        bytes.extend_from_slice(&self.other.0);
        bytes.extend_from_slice(&self.session.to_le_bytes());
        bytes.extend_from_slice(&[9; 32]);
        bytes.extend_from_slice(&64u32.to_le_bytes());
        bytes.extend_from_slice(&(1u32 << 20).to_le_bytes());
        sealed(bytes)
    }
}

pub fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

pub fn verdict(reason: u8, proof: &[u8]) -> Vec<u8> {
    sealed([&[reason, 0, 0, 0], proof].concat())
}

pub fn proof(secret: &[u8], who: &[u8], hellos: [&[u8]; 2]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::sign(&key, &[who, hellos[0], hellos[1]].concat()).as_ref().to_vec()
}

pub async fn read(stream: &mut TcpStream, len: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Dials by hand; the reason of the refusal, if there is one.
pub async fn dial(address: SocketAddr, hello: Hello, secret: &[u8]) -> Result<TcpStream, u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mine = hello.encode(b"STOKER>\n");
    stream.write_all(&mine).await.unwrap();
    let theirs = read(&mut stream, 124).await.unwrap();
    assert_eq!(&theirs[..8], b"STOKER<\n");
    let verdict_of_theirs = read(&mut stream, 40).await.unwrap();
    if verdict_of_theirs[0] != 0 {
        return Err(verdict_of_theirs[0]);
    }
    let mine_proof = proof(secret, b"stoker dialer", [&mine, &theirs]);
    stream.write_all(&verdict(0, &mine_proof)).await.unwrap();
    match read(&mut stream, 40).await.unwrap()[0] {
        0 => Ok(stream),
        reason => Err(reason),
    }
}

/// A frame: form, flags, kind, id, head, body.
pub fn frame(form: u8, kind: u16, id: u64, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = (head.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&[form, 0]);
    bytes.extend_from_slice(&60_000u32.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&crc32c(body).to_le_bytes());
    bytes.extend_from_slice(&crc32c(head).to_le_bytes());
    [sealed(bytes), head.to_vec(), body.to_vec()].concat()
}

/// A peer that holds the hello of the release before, then serves or says nothing.
pub struct Mute {
    pub address: SocketAddr,
}

impl Mute {
    pub async fn start(node: NodeId) -> Mute {
        let (address, listener) = listening().await;
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.push(receive(stream, node).await);
            }
        });
        Mute { address }
    }
}

pub async fn listening() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (listener.local_addr().unwrap(), listener)
}

/// The acceptor's hello, in version 1.
pub async fn receive(mut stream: TcpStream, node: NodeId) -> std::io::Result<TcpStream> {
    let theirs = read(&mut stream, 124).await?;
    let hello = Hello { version: 1, ..Hello::of(node, NodeId::ZERO) };
    let mine = hello.encode(b"STOKER<\n");
    stream.write_all(&mine).await?;
    stream.write_all(&verdict(0, &proof(SECRET, b"stoker acceptor", [&theirs, &mine]))).await?;
    read(&mut stream, 40).await?;
    stream.write_all(&verdict(0, &[0; 32])).await?;
    Ok(stream)
}

#[tokio::test]
async fn the_release_before_can_call_us() {
    let far = Rig::plain().node(2);
    let hello = Hello { version: 1, version_min: 1, ..Hello::of(node_id(1), far.id) };
    let mut stream = dial(far.address(), hello, SECRET).await.unwrap();
    let body = bytes(10_000, 4);
    stream.write_all(&frame(1, ECHO, 5, b"head", &body)).await.unwrap();
    let answer = read(&mut stream, 40).await.unwrap();
    let expect = frame(2, ECHO, 5, b"head", &body);
    // Only requests have a deadline and room for an answer.
    assert_eq!(answer[..20], expect[..20]);
    assert_eq!(answer[28..36], expect[28..36]);
    assert_eq!(read(&mut stream, 4 + body.len()).await.unwrap(), expect[40..]);
}

#[tokio::test]
async fn we_can_call_the_release_before() {
    let near = Rig::plain().node(1);
    let (address, listener) = listening().await;
    near.knows_at(node_id(7), address);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut stream = receive(stream, node_id(7)).await.unwrap();
                loop {
                    let request = read(&mut stream, 40).await.unwrap();
                    if request[18] != 1 {
                        continue;
                    }
                    let id = u64::from_le_bytes(request[8..16].try_into().unwrap());
                    stream.write_all(&frame(2, COUNT, id, b"served by hand", b"")).await.unwrap();
                }
            });
        }
    });
    assert_eq!(near.ask(node_id(7), COUNT).await.unwrap(), "served by hand");
}
