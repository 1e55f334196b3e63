//! Who answers: pings between nodes, and what follows when one stops answering.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use stoker_fabric::membership::{
    Event, Identity as PingIdentity, Introducer, Membership, Options, Profile, Settings,
};
use stoker_format::NodeId;
use stoker_store::{ErrorKind, Result, StoreError};
use tokio::task::JoinHandle;

use super::keys::ClusterKeys;
use crate::cell::Health;
use crate::core::Lost;
use crate::identity::Identity;
use crate::node::Node;

/// Most nodes that are asked for others at a start.
const SEEDS_MAX: usize = 64;

/// Grace periods that a node has to come back which was stopped on purpose: an upgrade takes longer than a hiccup.
const RETURN_GRACES: u32 = 10;

/// Pause between looks at who should be there.
const INTRODUCE_PAUSE: Duration = Duration::from_secs(2);

/// Sockets that are taken, so that their ports are known before anybody is told.
pub(super) struct Taken;

/// Pings that run.
pub(super) struct Pings {
    membership: Membership,
    events: JoinHandle<()>,
    introductions: JoinHandle<()>,
}

impl Pings {
    /// Finds ports for addresses without one.
    pub fn listen(addresses: &[SocketAddr]) -> std::io::Result<(Taken, Vec<SocketAddr>)> {
        let chosen = |address: &SocketAddr| match address.port() {
            0 => std::net::UdpSocket::bind(address)?.local_addr(),
            _ => Ok(*address),
        };
        Ok((Taken, addresses.iter().map(chosen).collect::<std::io::Result<_>>()?))
    }

    /// Tells the others that this node goes.
    pub async fn leave(self) {
        self.introductions.abort();
        self.membership.leave().await;
        self.events.abort();
    }
}

impl Taken {
    pub fn start(
        self,
        keys: &ClusterKeys,
        identity: Identity,
        addresses: Vec<SocketAddr>,
        grace: Duration,
        node: &Arc<Node>,
    ) -> Result<Pings> {
        let invalid = |fault: String| StoreError::new(ErrorKind::Invalid, format!("pings: {fault}"));
        let profile = Profile::new(addresses.clone(), Vec::new());
        let profile = profile.map_err(|fault| invalid(fault.to_string()))?;
        let mut seeds: Vec<SocketAddr> =
            keys.seeds.iter().chain(&node.gossip_addresses()).filter_map(|seed| seed.parse().ok()).collect();
        seeds.sort_unstable();
        seeds.dedup();
        seeds.retain(|seed| !addresses.contains(seed));
        seeds.truncate(SEEDS_MAX);
        let options = Options {
            cluster: identity.cluster,
            secret: keys.secret.to_vec(),
            me: PingIdentity::new(identity.node, keys.boot, profile),
            listen: addresses,
            seeds,
            known: known(node),
            settings: Settings { grace, ..Settings::default() },
        };
        let (membership, mut events) =
            Membership::start(options).map_err(|fault| invalid(fault.to_string()))?;
        // Who stopped while all others were down is not heard of either.
        for left in node.leaving_peers() {
            node.peer_health(left, Health::Suspect);
            tokio::spawn(expect_back(node.clone(), left, grace));
        }
        let introductions = tokio::spawn(introduce(Arc::downgrade(node), membership.introducer()));
        let (node, boot) = (node.clone(), keys.boot);
        let events = tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                heed(&node, event, boot, grace);
            }
        });
        Ok(Pings { membership, events, introductions })
    }
}

/// Nodes that the catalog expects to be up. One that was lost while all others were down is missed as well: nobody who runs has ever
/// heard of it. Its boot is not known here, and any that answers is newer than this one.
fn known(node: &Node) -> Vec<PingIdentity> {
    let identity = |(peer, gossip): (NodeId, Vec<String>)| {
        let addresses = gossip.iter().filter_map(|address| address.parse().ok()).collect();
        Profile::new(addresses, Vec::new()).ok().map(|profile| PingIdentity::new(peer, 0, profile))
    };
    node.expected_peers().into_iter().filter_map(identity).collect()
}

/// Tells the pings of nodes that joined meanwhile. One that hangs before it has pinged anybody would never be missed otherwise, and
/// writes would try it for ever. (D110)
async fn introduce(node: Weak<Node>, pings: Introducer) {
    loop {
        tokio::time::sleep(INTRODUCE_PAUSE).await;
        let Some(known) = node.upgrade().map(|node| known(&node)) else { return };
        if !pings.introduce(known).await {
            return;
        }
    }
}

/// Waits for a node that was stopped on purpose. One that does not come back is lost like any other: what it alone held besides one
/// other copy must not stay at that for good.
async fn expect_back(node: Arc<Node>, left: NodeId, grace: Duration) {
    tokio::time::sleep(grace * RETURN_GRACES).await;
    // It may have come back and gone again since; whoever saw that waits on.
    if node.leaving_peers().contains(&left) && node.is_suspect(left) {
        tracing::info!("node {left} was stopped and did not come back");
        node.give_up(left, grace).await;
    }
}

fn heed(node: &Arc<Node>, event: Event, boot: u64, grace: Duration) {
    let about = event.node();
    let word = match &event {
        Event::Joined(_) => "is there",
        Event::Alive(_) => "answers again",
        Event::Suspect(_) => "does not answer",
        Event::Left(_) => "said good-bye",
        Event::Gone(_) => "was silent for the grace period",
        Event::Duplicate { .. } => "is there twice",
    };
    tracing::info!("node {about} {word}");
    match event {
        Event::Joined(_) | Event::Alive(_) => node.peer_health(about, Health::Alive),
        Event::Suspect(_) => node.peer_health(about, Health::Suspect),
        Event::Left(_) => {
            node.peer_health(about, Health::Suspect);
            tokio::spawn(expect_back(node.clone(), about, grace));
        }
        Event::Gone(_) => {
            node.peer_health(about, Health::Suspect);
            let node = node.clone();
            tokio::spawn(async move { node.give_up(about, grace).await });
        }
        Event::Duplicate { older, newer, address, .. } => {
            tracing::error!(
                "two processes run as node {about}: boots {older} and {newer}, the other one at {address}; the older must stop"
            );
            if about == node.id() && older == boot {
                node.set_lost(Lost::Duplicate);
            }
        }
    }
}
