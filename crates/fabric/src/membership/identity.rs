//! One boot of one node, as others know it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use stoker_format::NodeId;

/// Addresses of a node, at most.
pub const ADDRESSES_MAX: usize = 4;
/// Bytes that a node may attach to itself.
pub const META_BYTES_MAX: usize = 256;
/// The renewal of a node that said goodbye. It wins over every other of its boot.
const FAREWELL: u32 = u32::MAX;

/// A node and its boot. A newer boot replaces an older one at once; the renewal rises when others wrongly took this
/// boot for dead.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(super) node: NodeId,
    pub(super) boot: u64,
    pub(super) renewal: u32,
    pub(super) profile: Arc<Profile>,
}

/// How to reach a node, and what it says of itself. Fixed for a boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) meta: Vec<u8>,
}

/// Why something is no profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileError {
    /// None, or more than [`ADDRESSES_MAX`].
    Addresses,
    /// More than [`META_BYTES_MAX`].
    Meta,
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileError::Addresses => write!(f, "a node has 1 to {ADDRESSES_MAX} addresses"),
            ProfileError::Meta => write!(f, "a node's own bytes are at most {META_BYTES_MAX}"),
        }
    }
}

impl std::error::Error for ProfileError {}

impl Profile {
    /// Checks the limits.
    pub fn new(addresses: Vec<SocketAddr>, meta: Vec<u8>) -> Result<Profile, ProfileError> {
        if addresses.is_empty() || addresses.len() > ADDRESSES_MAX {
            return Err(ProfileError::Addresses);
        }
        if meta.len() > META_BYTES_MAX {
            return Err(ProfileError::Meta);
        }
        Ok(Profile { addresses, meta })
    }
}

impl Identity {
    /// A node in its newest boot; the catalog gives out the numbers of boots.
    pub fn new(node: NodeId, boot: u64, profile: Profile) -> Identity {
        Identity { node, boot, renewal: 0, profile: Arc::new(profile) }
    }

    /// The identity whose end is an announced leave, not a failure.
    pub(super) fn farewell(&self) -> Identity {
        Identity { renewal: FAREWELL, ..self.clone() }
    }

    pub(super) fn is_farewell(&self) -> bool {
        self.renewal == FAREWELL
    }

    fn order(&self) -> (NodeId, u64, u32) {
        (self.node, self.boot, self.renewal)
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Identity) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Identity {}

impl foca::Identity for Identity {
    type Addr = NodeId;

    fn renew(&self) -> Option<Identity> {
        let renewal = self.renewal.checked_add(1).filter(|renewal| *renewal != FAREWELL)?;
        Some(Identity { renewal, ..self.clone() })
    }

    fn addr(&self) -> NodeId {
        self.node
    }

    fn win_addr_conflict(&self, adversary: &Identity) -> bool {
        self.order() > adversary.order()
    }
}
