//! How often to ping and how long to wait, for nodes on one local network.

use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use super::seal::BODY_BYTES_MAX;

/// Times of the protocol. All nodes of a cluster use the same.
#[derive(Clone, Debug)]
pub struct Settings {
    /// One other node is pinged in each of these.
    pub probe_period: Duration,
    /// After this long without an answer the ping is repeated over another address, and others are asked to ping.
    pub probe_wait: Duration,
    /// News are handed on this often, while there are any.
    pub gossip_period: Duration,
    /// Nodes that do not answer, and seeds that nobody knows, are asked for a sign of life this often.
    pub seek_period: Duration,
    /// What is known is compared with a random node this often.
    pub compare_period: Duration,
    /// A node that is suspect for this long is proposed as gone.
    pub grace: Duration,
    /// What SWIM calls down is remembered this long, so that no late news revive it.
    pub remember: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            probe_period: Duration::from_millis(400),
            probe_wait: Duration::from_millis(150),
            gossip_period: Duration::from_millis(200),
            seek_period: Duration::from_secs(1),
            compare_period: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            remember: Duration::from_secs(3600),
        }
    }
}

/// How many are told at once, and asked to ping for us.
const FANOUT: NonZeroUsize = NonZeroUsize::new(3).unwrap();

impl Settings {
    /// What foca needs to know, for a cluster of this many nodes. News take a logarithmic number of hops, so the time
    /// to defend oneself and the number of repeats grow with it.
    pub(super) fn swim(&self, nodes: usize) -> foca::Config {
        let hops = (nodes as u32 + 1).ilog10() + 1;
        let repeats = u8::try_from(4 * hops).ok().and_then(NonZeroU8::new);
        foca::Config {
            probe_period: self.probe_period,
            probe_rtt: self.probe_wait,
            num_indirect_probes: FANOUT,
            max_transmissions: repeats.unwrap_or(NonZeroU8::MAX),
            suspect_to_down_after: self.probe_period * 2 * hops,
            remove_down_after: Some(self.remember),
            max_packet_size: NonZeroUsize::new(BODY_BYTES_MAX - 1).expect("a datagram has room"),
            notify_down_members: true,
            // The core asks for members itself, whole pages at a time and also when it is alone.
            periodic_announce: None,
            periodic_announce_to_down_members: None,
            periodic_gossip: Some(foca::PeriodicParams {
                frequency: self.gossip_period,
                num_members: FANOUT,
            }),
        }
    }
}
