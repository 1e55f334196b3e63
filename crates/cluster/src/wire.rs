//! How nodes reach each other, as those who ask see it.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use stoker_format::NodeId;
use stoker_store::{BoxFuture, Buf, Counter, Result};

/// Bytes that go with a message.
pub enum Body {
    /// None.
    None,
    /// To be sent: somebody else may have them as well.
    Shared(Summed),
    /// Received: in memory that a drive can take.
    Aligned(Buf),
}

/// Bytes and what is known of them.
#[derive(Clone, Debug)]
pub struct Summed {
    /// The bytes.
    pub bytes: Bytes,
    /// Their CRC32C, if somebody has it already: large bodies are not summed twice.
    pub crc: Option<u32>,
    /// Nobody has compared them with it; whoever receives them does.
    pub is_claimed: bool,
}

/// How a node reaches the others.
pub trait Wire: Send + Sync + 'static {
    /// Asks a node, and gives its answer, whose body has at most `answer_len` bytes. Fails with `Unavailable` if it cannot be reached or does not answer in time; then
    /// it may have done what was asked.
    fn call(
        &self,
        to: NodeId,
        head: Vec<u8>,
        body: Body,
        answer_len: usize,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<(Vec<u8>, Body)>>;

    /// How long a node takes to answer, microseconds, by what was seen lately.
    fn latency_us(&self, node: NodeId) -> u64;

    /// The same, if it was seen at all.
    fn latency_seen_us(&self, node: NodeId) -> Option<u64> {
        Some(self.latency_us(node))
    }

    /// Where nodes can be reached.
    fn set_peers(&self, peers: &[(NodeId, Vec<String>)]);

    /// A node was removed for good: nothing leads there any more.
    fn remove_peer(&self, _node: NodeId) {}

    /// Numbers of the ways there, for `/metrics`, by what nodes are called; none where nobody counts.
    fn counters(&self, _names: &HashMap<NodeId, String>) -> Vec<Counter> {
        Vec::new()
    }
}
