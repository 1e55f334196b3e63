//! Who is turned away, by real peers: both sides say why, and nobody else notices.

use std::sync::Arc;
use std::time::Duration;

use stoker_fabric::transport::{
    Authority, BODY_LEN_MAX, CallError, Credentials, Issued, Issuer, PublicKey, Reason, Security, Transport,
};
use stoker_format::{ClusterId, NodeId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::*;
use crate::stranger::{self, Hello, SECRET};

/// Waits until a node has counted a refusal.
async fn counted(node: &Node, reason: Reason) {
    while !node.transport.refusals().iter().any(|(counted, _)| *counted == reason) {
        tokio::task::yield_now().await;
    }
}

/// `near` and `far` refuse each other for this reason, while a good peer of `far` goes on.
async fn refuse_each_other(near: Node, far: Node, good: Node, reason: Reason) {
    good.knows(&far);
    assert_eq!(good.ask(far.id, COUNT).await.unwrap(), "0");
    near.knows(&far);
    assert_eq!(near.ask(far.id, COUNT).await.unwrap_err(), CallError::Refused(reason));
    counted(&near, reason).await;
    counted(&far, reason).await;
    assert_eq!(good.ask(far.id, COUNT).await.unwrap(), "0");
    assert_eq!(good.transport.peers()[0].rails[0].reconnects, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_another_authority() {
    let (ours, theirs) = (Rig::tls(), Rig::tls());
    refuse_each_other(theirs.node(1), ours.node(2), ours.node(3), Reason::Certificate).await;
}

/// Signs by a clock that is hours behind or ahead.
struct OffClock(Arc<Authority>, i64);

impl Issuer for OffClock {
    fn issue(
        &self,
        node: NodeId,
        key: PublicKey,
    ) -> stoker_fabric::transport::BoxFuture<'_, Result<Issued, String>> {
        let issued =
            self.0.issue_for(node, &key, now_s().saturating_add_signed(self.1), Duration::from_secs(3600));
        Box::pin(std::future::ready(issued.map_err(|error| error.to_string())))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_clocks_that_are_hours_off() {
    for (late, off_s) in [(1, -7200), (2, -7200), (1, 7200), (2, 7200)] {
        let rig = Rig::tls();
        let [mut near, mut far] = [rig.config(1), rig.config(2)];
        let config = if late == 1 { &mut near } else { &mut far };
        let Security::Tls(credentials) = &config.security else { unreachable!() };
        credentials.renew(&OffClock(rig.authority.clone(), off_s)).await.unwrap();
        let [near, far] = [start(near), start(far)];
        near.knows(&far);
        let refused = CallError::Refused(Reason::Clock);
        assert_eq!(near.ask(far.id, COUNT).await.unwrap_err(), refused, "{late} {off_s}");
        counted(&far, Reason::Clock).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_node() {
    let rig = Rig::tls();
    let mut config = rig.config(1);
    config.security = Security::Tls(rig.credentials(5));
    refuse_each_other(start(config), rig.node(2), rig.node(3), Reason::Certificate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_cluster() {
    let rig = Rig::plain();
    let mut config = rig.config(1);
    config.cluster = ClusterId([0xdd; 16]);
    refuse_each_other(start(config), rig.node(2), rig.node(3), Reason::Cluster).await;
    // The same authority, which signed for another cluster's name.
    let rig = Rig::tls();
    let mut config = rig.config(1);
    config.cluster = ClusterId([0xdd; 16]);
    refuse_each_other(start(config), rig.node(2), rig.node(3), Reason::Cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_secret() {
    let rig = Rig::plain();
    let mut config = rig.config(1);
    config.security = Security::Plaintext { secret: b"another of sixteen".to_vec() };
    refuse_each_other(start(config), rig.node(2), rig.node(3), Reason::Secret).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plaintext_where_tls_is_wanted_and_the_other_way_round() {
    let (plain, tls) = (Rig::plain(), Rig::tls());
    refuse_each_other(plain.node(1), tls.node(2), tls.node(3), Reason::Security).await;
    refuse_each_other(tls.node(1), plain.node(2), plain.node(3), Reason::Security).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_node_than_the_one_that_was_called() {
    for rig in Rig::both() {
        let [near, far] = [rig.node(1), rig.node(2)];
        near.transport.set_peer(node_id(7), vec![far.address()]);
        let refused = near.ask(node_id(7), COUNT).await.unwrap_err();
        assert_eq!(refused, CallError::Refused(Reason::OtherNode));
        counted(&far, Reason::OtherNode).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_calls_itself_or_has_our_id() {
    for rig in Rig::both() {
        let near = rig.node(1);
        near.knows(&near);
        assert_eq!(near.ask(near.id, COUNT).await.unwrap_err(), CallError::Refused(Reason::OwnId));
        let twin = rig.node(1);
        twin.knows(&near);
        assert_eq!(twin.ask(near.id, COUNT).await.unwrap_err(), CallError::Refused(Reason::OwnId));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protocols_that_are_too_old_or_too_new() {
    let far = Rig::plain().node(2);
    for (version_min, version) in [(0, 0), (3, 9)] {
        let hello = Hello { version_min, version, ..Hello::of(node_id(1), far.id) };
        let refused = stranger::dial(far.address(), hello, SECRET).await.unwrap_err();
        assert_eq!(refused, Reason::Version as u8);
    }
    counted(&far, Reason::Version).await;
    let mut hello = Hello::of(node_id(1), far.id);
    assert_eq!(stranger::dial(far.address(), hello, b"no secret").await.unwrap_err(), Reason::Secret as u8);
    hello.session = 5;
    stranger::dial(far.address(), hello, SECRET).await.unwrap();
    hello.session = 4;
    let refused = stranger::dial(far.address(), hello, SECRET).await.unwrap_err();
    assert_eq!(refused, Reason::OldSession as u8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_connections_than_allowed() {
    let rig = Rig::plain();
    let mut config = rig.config(2);
    config.connections_max = 3;
    let far = start(config);
    let [first, second] = [rig.node(1), rig.node(3)];
    first.knows(&far);
    // All of its connections are up.
    while first.transport.peers()[0].rails[0].connections < 3 {
        tokio::task::yield_now().await;
    }
    second.knows(&far);
    assert!(matches!(second.ask(far.id, COUNT).await, Err(CallError::Unreachable(_))));
    counted(&far, Reason::Full).await;
    assert_eq!(first.ask(far.id, COUNT).await.unwrap(), "0");
}

/// Bytes of all kinds on the port; each connection is closed, and a peer notices nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_port() {
    for rig in Rig::both() {
        let [near, far] = rig.pair();
        assert_eq!(near.ask(far.id, COUNT).await.unwrap(), "0");
        let tls_like = [&[22, 3, 1, 2, 0][..], &bytes(600, 2)].concat();
        let stoker_like = [&b"STOKER>\n"[..], &bytes(200, 3)].concat();
        for garbage in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), bytes(1000, 1), tls_like, stoker_like] {
            let mut stream = TcpStream::connect(far.address()).await.unwrap();
            let _ = stream.write_all(&garbage).await;
            let mut rest = Vec::new();
            // Closed, with or without a word.
            let _ = stream.read_to_end(&mut rest).await;
        }
        counted(&far, Reason::Garbage).await;
        assert_eq!(near.ask(far.id, COUNT).await.unwrap(), "0");
        assert_eq!(near.transport.peers()[0].rails[0].reconnects, 0);
    }
}

/// Peers that have proved themselves and then break the rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_break_the_rules() {
    let far = Rig::plain().node(2);
    let oversized = |head: u32, body: u32| {
        let mut frame = stranger::frame(1, COUNT, 1, b"", b"");
        frame[0..4].copy_from_slice(&head.to_le_bytes());
        frame[4..8].copy_from_slice(&body.to_le_bytes());
        stranger::sealed(frame[..36].to_vec())
    };
    let twice = [stranger::frame(1, HANG, 1, b"", b""), stranger::frame(1, HANG, 1, b"", b"")].concat();
    let many: Vec<u8> = (0..300).flat_map(|id| stranger::frame(1, HANG, id, b"", b"")).collect();
    let mut damaged = stranger::frame(1, COUNT, 1, b"head", b"body");
    *damaged.last_mut().unwrap() ^= 1;
    for frames in [
        oversized(u32::MAX, 0),
        oversized(0, BODY_LEN_MAX as u32 + 1),
        stranger::frame(99, 0, 1, b"", b""),
        stranger::frame(2, 0, 1, b"", b""),
        twice,
        many,
        damaged,
        vec![0xff; 40],
    ] {
        let hello = Hello::of(node_id(1), far.id);
        let mut stream = stranger::dial(far.address(), hello, SECRET).await.unwrap();
        let _ = stream.write_all(&frames).await;
        // Told why, then closed. What was under way may still be answered.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        let goodbye = rest.chunks_exact(40).find(|frame| frame[18] == 6).expect("a goodbye");
        assert_eq!(goodbye[16], Reason::Broken as u8);
    }
    counted(&far, Reason::Broken).await;
    let near = Rig::plain().node(1);
    near.knows(&far);
    assert_eq!(near.ask(far.id, COUNT).await.unwrap(), "0");
}

/// New certificates while calls run: no connection ends, and connections made later show the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_renewed_under_load() {
    let rig = Rig::tls();
    let credentials = [rig.credentials(1), rig.credentials(2)];
    let [near, far] = [1, 2].map(|number| {
        let mut config = rig.config(number);
        config.security = Security::Tls(credentials[number as usize - 1].clone());
        Arc::new(start(config))
    });
    near.knows(&far);
    let calls = tokio::spawn({
        let (near, to) = (near.clone(), far.id);
        async move {
            for n in 0..200 {
                let body = bytes(70_000, n);
                assert!(near.echo(to, body.clone()).await.unwrap() == body);
            }
        }
    });
    while !calls.is_finished() {
        for credentials in &credentials {
            let before = credentials.identity();
            credentials.renew(&*rig.authority).await.unwrap();
            assert!(credentials.identity() != before);
        }
        tokio::task::yield_now().await;
    }
    calls.await.unwrap();
    assert_eq!(near.transport.peers()[0].rails[0].reconnects, 0);
    let late = rig.node(3);
    late.knows(&far);
    assert_eq!(late.ask(far.id, COUNT).await.unwrap(), "0");
    // What was kept works after a restart.
    let identity = credentials[0].identity();
    let kept = stoker_fabric::transport::Identity::from_bytes(&identity.to_bytes()).unwrap();
    let again = Credentials::from_identity(kept).unwrap();
    assert!((again.node(), again.cluster()) == (near.id, CLUSTER));
    let kept = Authority::from_bytes(&rig.authority.to_bytes()).unwrap();
    again.renew(&kept).await.unwrap();
    let mut config = rig.config(1);
    config.session = 2;
    config.security = Security::Tls(again);
    let near = start(config);
    near.knows(&far);
    assert_eq!(near.ask(far.id, COUNT).await.unwrap(), "0");
}
