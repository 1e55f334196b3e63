//! What callers and services see: messages, calls, faults, and the two traits between them.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use stoker_buffer::Buf;
use stoker_format::{NodeId, crc32c, crc32c_combine};

use super::frame::{BODY_LEN_MAX, HEAD_LEN_MAX};
use super::refusal::Reason;
use super::stats::PeerStatus;

/// A future that a trait returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request or an answer.
#[derive(Debug)]
pub struct Message {
    /// What it is, in the numbers of the service.
    pub kind: u16,
    /// The small part, at most [`HEAD_LEN_MAX`] bytes.
    pub head: Bytes,
    /// The bulk part, at most [`BODY_LEN_MAX`] bytes.
    pub body: Body,
    /// CRC32C of the body. Whoever knows it spares the sender a pass; what was received with a body always has it.
    pub body_crc: Option<u32>,
    /// The sum is what the body should have; nobody has looked. Answers only: the caller compares it with what arrived.
    pub is_claimed: bool,
}

/// Bulk bytes of a message.
#[derive(Debug)]
pub enum Body {
    /// No bytes.
    None,
    /// Aligned memory. All that arrives is in this form and knows the sums of its blocks.
    Buf(Buf),
    /// Pieces that others use too, sent from where they are.
    Shared(Vec<Bytes>),
}

impl Message {
    /// A message without a body.
    pub fn new(kind: u16, head: impl Into<Bytes>) -> Message {
        Message { kind, head: head.into(), body: Body::None, body_crc: None, is_claimed: false }
    }

    /// The same message with a body.
    pub fn with_body(self, body: Body) -> Message {
        Message { body, body_crc: None, ..self }
    }

    /// The same message with a body whose CRC32C is known.
    pub fn with_summed_body(self, body: Body, crc: u32) -> Message {
        Message { body, body_crc: Some(crc), ..self }
    }

    /// The same message with a body that nobody compared with its CRC32C. The transport neither does; the head has to tell the
    /// caller what it should be.
    pub fn with_claimed_body(self, body: Body, crc: u32) -> Message {
        Message { is_claimed: true, ..self.with_summed_body(body, crc) }
    }

    /// The body's CRC32C: the known one, or else computed.
    pub(super) fn crc(&self) -> u32 {
        self.body_crc.unwrap_or_else(|| self.body.crc())
    }

    /// What is too long about it, if something is.
    pub(super) fn excess(&self) -> Option<String> {
        if self.head.len() > HEAD_LEN_MAX {
            return Some(format!("a head of {} bytes; the limit is {HEAD_LEN_MAX}", self.head.len()));
        }
        let body = self.body.len();
        (body > BODY_LEN_MAX).then(|| format!("a body of {body} bytes; the limit is {BODY_LEN_MAX}"))
    }
}

impl Body {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.slices().map(<[u8]>::len).sum()
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The aligned memory of a body that was received; empty if there is none.
    pub fn into_buf(self) -> Buf {
        match self {
            Body::None => Buf::none(),
            Body::Buf(buf) => buf,
            Body::Shared(pieces) => Buf::copy_of(&pieces.concat()),
        }
    }

    /// The bytes, piece by piece.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (buf, shared) = match self {
            Body::None => (None, &[][..]),
            Body::Buf(buf) => (Some(buf.as_slice()), &[][..]),
            Body::Shared(pieces) => (None, pieces.as_slice()),
        };
        buf.into_iter().chain(shared.iter().map(|piece| &piece[..]))
    }

    fn crc(&self) -> u32 {
        match self {
            Body::Buf(buf) => buf.crc32c().unwrap_or_else(|| crc32c(buf.as_slice())),
            _ => self.slices().fold(0, |crc, piece| crc32c_combine(crc, crc32c(piece), piece.len() as u64)),
        }
    }
}

/// Who sent a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its node, proved by certificate or secret.
    pub node: NodeId,
    /// Its session.
    pub session: u64,
    /// Our address that it came in by.
    pub rail: SocketAddr,
}

/// Answers the requests of other nodes.
pub trait Service: Send + Sync + 'static {
    /// Answers one request. The future is dropped when the caller gave up, its deadline passed or its connection is
    /// gone; the same request may come again on another one.
    fn serve(&self, from: Peer, request: Message) -> BoxFuture<'static, Result<Message, Fault>>;
}

/// Sends requests to other nodes.
pub trait Transport: Send + Sync {
    /// Sends a request and waits for its answer. Dropping the future gives the request up, there too.
    fn call(&self, to: NodeId, request: Message, call: Call) -> BoxFuture<'_, Result<Message, CallError>>;

    /// Says where a node can be reached, by all of its addresses (rails); replaces what was said before.
    fn set_peer(&self, node: NodeId, addresses: Vec<SocketAddr>);

    /// Ends what leads to a node.
    fn remove_peer(&self, node: NodeId);

    /// Counters and latencies of every peer.
    fn peers(&self) -> Vec<PeerStatus>;
}

/// How a request is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// How long it may take; the service learns it.
    pub deadline: Duration,
    /// The longest body that the answer may have; room for it is kept from the start.
    pub answer_len_max: usize,
    /// The service does not mind to see the request twice, so it is sent again when its connection is lost.
    pub repeatable: bool,
}

impl Call {
    /// A repeatable call whose answer has no body.
    pub fn within(deadline: Duration) -> Call {
        Call { deadline, answer_len_max: 0, repeatable: true }
    }

    /// The same call with an answer of up to `len` bytes of body.
    pub fn expecting(self, len: usize) -> Call {
        Call { answer_len_max: len, ..self }
    }

    /// The same call, sent at most once.
    pub fn once(self) -> Call {
        Call { repeatable: false, ..self }
    }
}

/// A service's refusal to answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What it is, in the numbers of the service.
    pub code: u16,
    /// For people.
    pub message: String,
}

impl Fault {
    /// A fault.
    pub fn new(code: u16, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (fault {})", self.message, self.code)
    }
}

impl std::error::Error for Fault {}

/// Why a call has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallError {
    /// The service answered with a fault.
    Fault(Fault),
    /// Time is up. Whether the request was served is not known.
    Deadline,
    /// The connection was lost, on every try that was allowed. Whether the request was served is not known.
    Lost(String),
    /// The node cannot be reached now; the request was not sent. Take another node.
    Unreachable(String),
    /// The node and we refuse each other; the request was not sent. A human has to look.
    Refused(Reason),
    /// The request is beyond a limit and was not sent.
    Invalid(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Fault(fault) => fault.fmt(f),
            CallError::Deadline => f.write_str("no answer in time"),
            CallError::Lost(why) => write!(f, "the connection was lost: {why}"),
            CallError::Unreachable(why) => write!(f, "the node cannot be reached: {why}"),
            CallError::Refused(reason) => write!(f, "refused: {reason}"),
            CallError::Invalid(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for CallError {}
