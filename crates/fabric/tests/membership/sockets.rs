//! Real nodes on the sockets of this machine.

use std::net::{SocketAddr, UdpSocket};

use stoker_fabric::membership::{Dropped, Event, Identity, Membership, Options, Profile, Seal, Settings};
use stoker_format::{ClusterId, NodeId};
use tokio::sync::mpsc::Receiver;

const CLUSTER: ClusterId = ClusterId([7; 16]);

/// An address that is free now; the kernel does not hand it out again soon.
fn free(ip: &str) -> SocketAddr {
    let socket = UdpSocket::bind((ip, 0)).expect("a loopback address");
    socket.local_addr().expect("it is bound")
}

fn start(number: u8, cluster: ClusterId, seeds: Vec<SocketAddr>) -> (Membership, Receiver<Event>) {
    let listen = vec![free("127.0.0.1"), free("::1")];
    let profile = Profile::new(listen.clone(), vec![number; 8]).expect("within the limits");
    Membership::start(Options {
        cluster,
        secret: b"the secret of the cluster".to_vec(),
        me: Identity::new(NodeId([number; 16]), 1, profile),
        listen,
        seeds,
        known: Vec::new(),
        settings: Settings::default(),
    })
    .expect("it starts")
}

async fn next(events: &mut Receiver<Event>) -> Event {
    events.recv().await.expect("the membership runs")
}

#[tokio::test]
async fn nodes_meet_and_part() {
    let (one, mut events_of_one) = start(1, CLUSTER, Vec::new());
    let (two, mut events_of_two) = start(2, CLUSTER, one.listening().to_vec());
    let Event::Joined(peer) = next(&mut events_of_one).await else { panic!("two joins") };
    assert_eq!((peer.node, peer.boot, peer.meta), (NodeId([2; 16]), 1, vec![2; 8]));
    assert!(matches!(next(&mut events_of_two).await, Event::Joined(peer) if peer.node == NodeId([1; 16])));
    assert_eq!(one.peers().await.len(), 1);

    two.leave().await;
    assert_eq!(next(&mut events_of_one).await, Event::Left(NodeId([2; 16])));
    assert_eq!(one.peers().await, []);
}

#[tokio::test]
async fn a_silent_node_is_suspect() {
    let (one, mut events) = start(1, CLUSTER, Vec::new());
    let (two, _events) = start(2, CLUSTER, one.listening().to_vec());
    assert!(matches!(next(&mut events).await, Event::Joined(_)));
    drop(two);
    assert_eq!(next(&mut events).await, Event::Suspect(NodeId([2; 16])));
}

#[tokio::test]
async fn strangers_are_dropped_and_counted() {
    let (one, mut events) = start(1, CLUSTER, Vec::new());
    let to = one.listening()[0];
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a loopback address");
    let foreign = Seal::new(ClusterId([8; 16]), b"the secret of the cluster").seal(b"body");
    let forged = Seal::new(CLUSTER, b"a guess").seal(b"body");
    let malformed = Seal::new(CLUSTER, b"the secret of the cluster").seal(b"body");
    for datagram in [foreign, forged, malformed, vec![0; 3000], Vec::new()] {
        stranger.send_to(&datagram, to).expect("loopback takes it");
    }
    // Whoever joins comes behind these datagrams: the same socket takes them in order.
    let (_two, _events) = start(2, CLUSTER, vec![to]);
    assert!(matches!(next(&mut events).await, Event::Joined(_)));
    let counts = one.counts();
    assert_eq!(counts.dropped(Dropped::Foreign), 1);
    assert_eq!(counts.dropped(Dropped::Forged), 2, "one of them is empty");
    assert_eq!(counts.dropped(Dropped::Malformed), 1);
    assert_eq!(counts.dropped(Dropped::Oversized), 1);
    assert!(counts.received() >= 5);
}
