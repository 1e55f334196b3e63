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

use crate::identity::Identity;
use crate::keys::ClusterKeys;
use crate::members::{Health, Lost, Members};

/// Most nodes that are asked for others at a start.
const SEEDS_MAX: usize = 64;

/// Grace periods that a node has to come back which was stopped on purpose: an upgrade takes longer than a hiccup.
const RETURN_GRACES: u32 = 10;

/// Pause between looks at who should be there.
const INTRODUCE_PAUSE: Duration = Duration::from_secs(2);

/// Sockets that are taken, so that their ports are known before anybody is told.
pub struct Sockets;

/// Pings that run.
pub struct Pings {
    membership: Membership,
    events: JoinHandle<()>,
    introductions: JoinHandle<()>,
}

impl Pings {
    /// Finds ports for addresses without one.
    pub fn listen(addresses: &[SocketAddr]) -> std::io::Result<(Sockets, Vec<SocketAddr>)> {
        let chosen = |address: &SocketAddr| match address.port() {
            0 => std::net::UdpSocket::bind(address)?.local_addr(),
            _ => Ok(*address),
        };
        Ok((Sockets, addresses.iter().map(chosen).collect::<std::io::Result<_>>()?))
    }

    /// Tells the others that this node goes.
    pub async fn leave(self) {
        self.introductions.abort();
        self.membership.leave().await;
        self.events.abort();
    }
}

impl Sockets {
    /// Pings from these sockets, and has what it hears told to the members.
    pub fn start(
        self,
        keys: &ClusterKeys,
        identity: Identity,
        addresses: Vec<SocketAddr>,
        grace: Duration,
        members: &Arc<Members>,
    ) -> Result<Pings> {
        let invalid = |fault: String| StoreError::new(ErrorKind::Invalid, format!("pings: {fault}"));
        let profile = Profile::new(addresses.clone(), Vec::new());
        let profile = profile.map_err(|fault| invalid(fault.to_string()))?;
        let mut seeds: Vec<SocketAddr> =
            keys.seeds.iter().chain(&members.view().gossip()).filter_map(|seed| seed.parse().ok()).collect();
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
            known: known(members),
            settings: Settings { grace, ..Settings::default() },
        };
        let (membership, mut events) =
            Membership::start(options).map_err(|fault| invalid(fault.to_string()))?;
        // Who stopped while all others were down is not heard of either.
        for left in members.leaving() {
            members.set_health(left, Health::Suspect);
            tokio::spawn(expect_back(members.clone(), left, grace));
        }
        let introductions = tokio::spawn(introduce(Arc::downgrade(members), membership.introducer()));
        let (members, boot) = (members.clone(), keys.boot);
        let events = tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                heed(&members, event, boot, grace);
            }
        });
        Ok(Pings { membership, events, introductions })
    }
}

/// Nodes that the catalog expects to be up. One that was lost while all others were down is missed as well: nobody who runs has ever
/// heard of it. Its boot is not known here, and any that answers is newer than this one.
fn known(members: &Members) -> Vec<PingIdentity> {
    let identity = |(peer, gossip): (NodeId, Vec<String>)| {
        let addresses = gossip.iter().filter_map(|address| address.parse().ok()).collect();
        Profile::new(addresses, Vec::new()).ok().map(|profile| PingIdentity::new(peer, 0, profile))
    };
    members.expected().into_iter().filter_map(identity).collect()
}

/// Tells the pings of nodes that joined meanwhile. One that hangs before it has pinged anybody would never be missed otherwise, and
/// writes would try it for ever. (D110)
async fn introduce(members: Weak<Members>, pings: Introducer) {
    loop {
        tokio::time::sleep(INTRODUCE_PAUSE).await;
        let Some(known) = members.upgrade().map(|members| known(&members)) else { return };
        if !pings.introduce(known).await {
            return;
        }
    }
}

/// Waits for a node that was stopped on purpose. One that does not come back is lost like any other: what it alone held besides one
/// other copy must not stay at that for good.
async fn expect_back(members: Arc<Members>, left: NodeId, grace: Duration) {
    tokio::time::sleep(grace * RETURN_GRACES).await;
    // It may have come back and gone again since; whoever saw that waits on.
    if members.leaving().contains(&left) && members.is_suspect(left) {
        tracing::info!("node {left} was stopped and did not come back");
        members.give_up(left, grace).await;
    }
}

fn heed(members: &Arc<Members>, event: Event, boot: u64, grace: Duration) {
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
        Event::Joined(_) | Event::Alive(_) => members.set_health(about, Health::Alive),
        Event::Suspect(_) => members.set_health(about, Health::Suspect),
        Event::Left(_) => {
            members.set_health(about, Health::Suspect);
            tokio::spawn(expect_back(members.clone(), about, grace));
        }
        Event::Gone(_) => {
            members.set_health(about, Health::Suspect);
            let members = members.clone();
            tokio::spawn(async move { members.give_up(about, grace).await });
        }
        Event::Duplicate { older, newer, address, .. } => {
            tracing::error!(
                "two processes run as node {about}: boots {older} and {newer}, the other one at {address}; the older must stop"
            );
            if about == members.node && older == boot {
                members.set_lost(Lost::Duplicate);
            }
        }
    }
}
