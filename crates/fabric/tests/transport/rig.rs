//! Nodes with a service that the tests steer by the kind of their requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use stoker_buffer::Pool;
use stoker_fabric::transport::{
    Authority, Body, BoxFuture, Call, CallError, Config, Credentials, Fault, Message, Peer, Security,
    Service, TcpTransport, Transport,
};
use stoker_format::{ClusterId, NodeId};
use tokio::sync::{Notify, Semaphore};

pub const CLUSTER: ClusterId = ClusterId([0xc1; 16]);
/// Long enough for a busy machine; no test waits for it to pass.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Answers with the head and body of the request.
pub const ECHO: u16 = 1;
/// Answers with the number of bytes in the body, as text.
pub const COUNT: u16 = 2;
/// Answers when the service is opened, and with nothing.
pub const HANG: u16 = 3;
/// Answers with a fault.
pub const FAIL: u16 = 4;
/// Breaks down.
pub const PANIC: u16 = 5;
/// Answers with the sender's node and session, as text.
pub const WHO: u16 = 6;

/// What a service saw.
pub struct Seen {
    pub served: AtomicUsize,
    pub serving: AtomicUsize,
    pub dropped: AtomicUsize,
    pub changed: Notify,
    pub gate: Semaphore,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            served: AtomicUsize::new(0),
            serving: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            changed: Notify::new(),
            gate: Semaphore::new(0),
        }
    }
}

impl Seen {
    /// Waits until a counter has a value.
    pub async fn until(&self, counter: impl Fn(&Seen) -> &AtomicUsize, value: usize) {
        loop {
            let changed = self.changed.notified();
            if counter(self).load(Ordering::SeqCst) == value {
                return;
            }
            changed.await;
        }
    }

    fn bump(&self, counter: &AtomicUsize) {
        counter.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
}

struct Steered(Arc<Seen>);

/// Notes how a request ends.
struct Serving {
    seen: Arc<Seen>,
    done: bool,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let counter = if self.done { &self.seen.served } else { &self.seen.dropped };
        self.seen.serving.fetch_sub(1, Ordering::SeqCst);
        self.seen.bump(counter);
    }
}

impl Service for Steered {
    fn serve(&self, from: Peer, request: Message) -> BoxFuture<'static, Result<Message, Fault>> {
        let seen = self.0.clone();
        Box::pin(async move {
            seen.bump(&seen.serving);
            let mut serving = Serving { seen: seen.clone(), done: false };
            let answer = match request.kind {
                ECHO => {
                    let crc = request.body_crc;
                    let mut buf = request.body.into_buf();
                    if !buf.is_empty() {
                        let table = stoker_format::block_table(buf.as_slice());
                        assert_eq!(buf.take_block_table(), Some(table), "the ring need not sum it again");
                    }
                    let body = Body::Buf(buf);
                    Ok(Message { body_crc: crc, ..Message::new(ECHO, request.head).with_body(body) })
                }
                COUNT => Ok(Message::new(COUNT, request.body.len().to_string())),
                HANG => {
                    seen.gate.acquire().await.unwrap().forget();
                    Ok(Message::new(HANG, Bytes::new()))
                }
                WHO => Ok(Message::new(WHO, format!("{} {}", from.node, from.session))),
                FAIL => Err(Fault::new(77, "as you wish")),
                _ => panic!("as you wish"),
            };
            serving.done = true;
            answer
        })
    }
}

/// A node of a test.
pub struct Node {
    pub id: NodeId,
    pub transport: Arc<TcpTransport>,
    pub seen: Arc<Seen>,
    pub pool: Arc<Pool>,
}

pub fn node_id(number: u8) -> NodeId {
    NodeId([number; 16])
}

/// A cluster that makes nodes.
pub struct Rig {
    pub authority: Arc<Authority>,
    tls: bool,
}

impl Rig {
    pub fn plain() -> Rig {
        Rig { tls: false, ..Rig::tls() }
    }

    pub fn tls() -> Rig {
        Rig { authority: Arc::new(Authority::create(CLUSTER, now_s()).unwrap()), tls: true }
    }

    pub fn both() -> [Rig; 2] {
        [Rig::plain(), Rig::tls()]
    }

    pub fn credentials(&self, number: u8) -> Arc<Credentials> {
        Credentials::issue(&self.authority, node_id(number), now_s()).unwrap()
    }

    /// The settings of a node that listens on loopback.
    pub fn config(&self, number: u8) -> Config {
        let security = match self.tls {
            true => Security::Tls(self.credentials(number)),
            false => Security::Plaintext { secret: b"a secret of sixteen".to_vec() },
        };
        let pool = Pool::new(128 << 20).unwrap();
        let mut config = Config::new(CLUSTER, node_id(number), 1, security, pool);
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.redial_pause_max = Duration::from_millis(200);
        config
    }

    pub fn node(&self, number: u8) -> Node {
        start(self.config(number))
    }

    /// Two nodes; the first knows the second.
    pub fn pair(&self) -> [Node; 2] {
        let [near, far] = [self.node(1), self.node(2)];
        near.knows(&far);
        [near, far]
    }
}

pub fn start(config: Config) -> Node {
    let seen = Arc::<Seen>::default();
    let (id, pool) = (config.node, config.pool.clone());
    let transport = TcpTransport::start(config, Arc::new(Steered(seen.clone()))).unwrap();
    Node { id, transport, seen, pool }
}

impl Node {
    pub fn address(&self) -> SocketAddr {
        self.transport.addresses()[0]
    }

    pub fn knows(&self, other: &Node) {
        self.transport.set_peer(other.id, other.transport.addresses().to_vec());
    }

    pub fn knows_at(&self, node: NodeId, address: SocketAddr) {
        self.transport.set_peer(node, vec![address]);
    }

    pub async fn call(&self, to: NodeId, request: Message, call: Call) -> Result<Message, CallError> {
        self.transport.call(to, request, call).await
    }

    /// Sends a body and gets it back.
    pub async fn echo(&self, to: NodeId, body: Vec<u8>) -> Result<Vec<u8>, CallError> {
        let call = Call::within(PATIENCE).expecting(body.len());
        let request = Message::new(ECHO, "head").with_body(Body::Shared(vec![body.into()]));
        let answer = self.call(to, request, call).await?;
        assert_eq!((answer.kind, &answer.head[..]), (ECHO, &b"head"[..]));
        Ok(answer.body.into_buf().as_slice().to_vec())
    }

    /// A small call, as text.
    pub async fn ask(&self, to: NodeId, kind: u16) -> Result<String, CallError> {
        let answer = self.call(to, Message::new(kind, Bytes::new()), Call::within(PATIENCE)).await?;
        Ok(String::from_utf8(answer.head.to_vec()).unwrap())
    }
}

/// Bytes that differ from place to place.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

pub fn now_s() -> u64 {
    rustls::pki_types::UnixTime::now().as_secs()
}
