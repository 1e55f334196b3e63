//! Why nodes turn each other away, and the log of it: once per address and reason, however often they try.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// The same refusal is logged again after this long.
const QUIET: Duration = Duration::from_secs(600);
/// Refusals that are remembered; beyond that all are forgotten, and logged anew.
const REMEMBERED_MAX: usize = 1024;

/// Why one node refuses another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Reason {
    /// The bytes are not those of a node.
    Garbage = 1,
    /// No version that both speak.
    Version = 2,
    /// It is of another cluster.
    Cluster = 3,
    /// It is another node than the one that was called.
    OtherNode = 4,
    /// It has the id of the node that it speaks to.
    OwnId = 5,
    /// A later session of that node was seen: an old process, or two nodes with one id.
    OldSession = 6,
    /// It does not know the cluster's secret.
    Secret = 7,
    /// It speaks plaintext where TLS is wanted, or the other way round.
    Security = 8,
    /// There are as many connections as are allowed.
    Full = 9,
    /// Its certificate is of another node or of another authority.
    Certificate = 10,
    /// The node is stopping.
    Stopping = 11,
    /// A rule of the protocol was broken, or bytes arrived damaged.
    Broken = 12,
    /// Its certificate has expired or begins later, by the clock of one of the two.
    Clock = 13,
    /// A reason that this release does not know.
    Unknown = 255,
}

impl Reason {
    /// A reason by its number.
    pub(super) fn from_byte(byte: u8) -> Reason {
        use Reason::*;
        [
            Garbage,
            Version,
            Cluster,
            OtherNode,
            OwnId,
            OldSession,
            Secret,
            Security,
            Full,
            Certificate,
            Stopping,
            Broken,
            Clock,
        ]
        .into_iter()
        .find(|reason| *reason as u8 == byte)
        .unwrap_or(Unknown)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Garbage => "what speaks there is no node of Stoker",
            Reason::Version => "the two nodes speak no common version; releases may differ by one at most",
            Reason::Cluster => "the two nodes belong to different clusters",
            Reason::OtherNode => "another node answers at that address",
            Reason::OwnId => "a node called itself, or two nodes have one id",
            Reason::OldSession => "a later session of that node is known; two processes may run with one id",
            Reason::Secret => "the two nodes do not have the same cluster secret",
            Reason::Security => "one node wants TLS and the other plaintext",
            Reason::Full => "the node has as many connections as it takes",
            Reason::Certificate => "a certificate is of another node or authority",
            Reason::Stopping => "the node is stopping",
            Reason::Broken => "the protocol was broken, or bytes arrived damaged",
            Reason::Clock => {
                "a certificate has expired or is not valid yet; are the clocks of both machines right?"
            }
            Reason::Unknown => "a reason that this release does not know",
        })
    }
}

/// What was refused so far.
#[derive(Default)]
pub(super) struct Refusals {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    logged: HashMap<(IpAddr, Reason), Instant>,
    counts: HashMap<Reason, u64>,
}

impl Refusals {
    /// Counts a refusal; logs it unless the same one was logged a short time ago.
    pub fn note(&self, address: IpAddr, reason: Reason, detail: &dyn fmt::Display) {
        let now = Instant::now();
        let fresh = {
            let mut state = self.state.lock().unwrap();
            *state.counts.entry(reason).or_default() += 1;
            if state.logged.len() >= REMEMBERED_MAX {
                state.logged.clear();
            }
            let last = state.logged.get(&(address, reason)).copied();
            let fresh = last.is_none_or(|last| now - last >= QUIET);
            if fresh {
                state.logged.insert((address, reason), now);
            }
            fresh
        };
        if fresh {
            tracing::warn!(%address, %reason, %detail, "refused a connection between nodes");
        }
    }

    /// How often each reason came up.
    pub fn counts(&self) -> Vec<(Reason, u64)> {
        let mut counts: Vec<_> = self.state.lock().unwrap().counts.iter().map(|(&r, &n)| (r, n)).collect();
        counts.sort_unstable();
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_and_memory_is_bounded() {
        for byte in 0..=255 {
            let reason = Reason::from_byte(byte);
            assert!(reason == Reason::Unknown || reason as u8 == byte);
        }
        let refusals = Refusals::default();
        for n in 0..10_000u32 {
            refusals.note(IpAddr::from(n.to_be_bytes()), Reason::Garbage, &"");
        }
        assert_eq!(refusals.counts(), [(Reason::Garbage, 10_000)]);
        assert!(refusals.state.lock().unwrap().logged.len() <= REMEMBERED_MAX);
    }
}
