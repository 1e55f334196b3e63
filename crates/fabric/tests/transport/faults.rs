//! Calls while wires are cut, damage bytes, or lead nowhere.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use stoker_fabric::transport::{Body, Call, CallError, Message, Reason, Transport};
use tokio::net::TcpListener;

use crate::proxy::Proxy;
use crate::rig::*;

/// Calls that go on until told to stop; each must succeed.
fn load(
    near: &Arc<Node>,
    to: stoker_format::NodeId,
    stop: &Arc<tokio::sync::Notify>,
) -> Vec<tokio::task::JoinHandle<usize>> {
    (0..8)
        .map(|worker: u64| {
            let (near, stop) = (near.clone(), stop.clone());
            tokio::spawn(async move {
                let mut done = 0;
                let stopped = stop.notified();
                tokio::pin!(stopped);
                loop {
                    let body = bytes(if worker.is_multiple_of(2) { 300_000 } else { 50 }, worker);
                    let echo = async {
                        let back = near.echo(to, body.clone()).await.expect("no call fails");
                        assert!(back == body);
                    };
                    tokio::select! {
                        biased;
                        () = &mut stopped => return done,
                        () = echo => done += 1,
                    }
                }
            })
        })
        .collect()
}

async fn passes(proxy: &Proxy, bytes: u64) {
    while proxy.passed() < bytes {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rail_that_is_lost_loses_no_call() {
    for rig in Rig::both() {
        let (near, far) = (Arc::new(rig.node(1)), rig.node(2));
        let rails = [Proxy::to(far.address()).await, Proxy::to(far.address()).await];
        near.transport.set_peer(far.id, rails.iter().map(|rail| rail.address).collect());
        let stop = Arc::<tokio::sync::Notify>::default();
        let workers = load(&near, far.id, &stop);
        // Both carry their part.
        passes(&rails[0], 3 << 20).await;
        passes(&rails[1], 3 << 20).await;
        rails[0].kill();
        let so_far = rails[1].passed();
        passes(&rails[1], so_far + (6 << 20)).await;
        stop.notify_waiters();
        for worker in workers {
            assert!(worker.await.unwrap() > 0);
        }
        let status = &near.transport.peers()[0].rails;
        assert_eq!((status[0].connections, status[1].connections), (0, 3));
        assert!(status[0].reconnects > 0 && status[1].reconnects == 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_rail_comes_back() {
    let rig = Rig::plain();
    let (near, far) = (rig.node(1), rig.node(2));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    near.transport.set_peer(far.id, vec![address, far.address()]);
    assert_eq!(near.ask(far.id, COUNT).await.unwrap(), "0", "one rail is enough");
    let mut config = rig.config(2);
    config.listen = vec![address];
    config.session = 1;
    let _again = start(config);
    while near.transport.peers()[0].rails[0].connections < 3 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_must_not_be_repeated_says_that_it_was_lost() {
    let rig = Rig::plain();
    let (near, far) = (rig.node(1), rig.node(2));
    let proxy = Proxy::to(far.address()).await;
    near.transport.set_peer(far.id, vec![proxy.address]);
    let hang = near.call(far.id, Message::new(HANG, ""), Call::within(PATIENCE).once());
    let cut = async {
        far.seen.until(|seen| &seen.serving, 1).await;
        proxy.kill();
    };
    let (outcome, ()) = tokio::join!(hang, cut);
    assert!(matches!(outcome, Err(CallError::Lost(_))), "{outcome:?}");
    far.seen.until(|seen| &seen.dropped, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flipped_bit_is_noticed() {
    for rig in Rig::both() {
        let mut config = rig.config(1);
        // A damaged length of a TLS record shows as silence.
        config.ping_interval = Duration::from_millis(50);
        let (near, far) = (start(config), rig.node(2));
        let proxy = Proxy::to(far.address()).await;
        near.transport.set_peer(far.id, vec![proxy.address]);
        near.ask(far.id, COUNT).await.unwrap();
        proxy.damage(200_000);
        let (mut whole, mut lost) = (0, 0);
        for n in 0..20 {
            let body = bytes(100_000, n);
            match near.echo(far.id, body.clone()).await {
                Ok(back) => {
                    assert!(back == body, "damage went unnoticed");
                    whole += 1;
                }
                Err(CallError::Lost(_) | CallError::Unreachable(_) | CallError::Refused(_)) => lost += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(proxy.flipped() > 5 && whole > 0, "{} flips, {whole} whole, {lost} lost", proxy.flipped());
        assert!(near.transport.peers()[0].rails[0].reconnects > 0);
        proxy.damage(0);
        // Whatever the damage left behind, the next calls find their way.
        while near.echo(far.id, vec![1; 100_000]).await.is_err() {}
    }
}

/// A peer that takes connections and says nothing, and one whose wire went dead after the hello.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_noticed() {
    let rig = Rig::plain();
    let mut config = rig.config(1);
    config.dial_timeout = Duration::from_millis(100);
    let near = start(config);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    near.transport.set_peer(node_id(3), vec![silent.local_addr().unwrap()]);
    assert!(matches!(near.ask(node_id(3), COUNT).await, Err(CallError::Unreachable(_))));

    let mut config = rig.config(1);
    config.ping_interval = Duration::from_millis(20);
    let near = start(config);
    let mute = crate::stranger::Mute::start(node_id(4)).await;
    near.transport.set_peer(node_id(4), vec![mute.address]);
    let outcome = near.call(node_id(4), Message::new(COUNT, ""), Call::within(PATIENCE).once()).await;
    assert!(matches!(outcome, Err(CallError::Lost(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_node_that_is_gone_is_an_error_at_once() {
    let rig = Rig::plain();
    let near = rig.node(1);
    let address: SocketAddr = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    near.transport.set_peer(node_id(2), vec![address]);
    assert!(matches!(near.ask(node_id(2), COUNT).await, Err(CallError::Unreachable(_))));
    assert!(near.transport.refusals().is_empty());
}

/// A newer session takes the place of the older one, which is told and does not come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_sessions_the_later_one_counts() {
    let rig = Rig::tls();
    let [old, far] = rig.pair();
    assert_eq!(old.ask(far.id, WHO).await.unwrap(), format!("{} 1", old.id));
    let mut config = rig.config(1);
    config.session = 2;
    let new = start(config);
    new.knows(&far);
    assert_eq!(new.ask(far.id, WHO).await.unwrap(), format!("{} 2", old.id));
    loop {
        match old.ask(far.id, WHO).await {
            Err(CallError::Refused(Reason::OldSession)) => break,
            // Its last connection may not have ended yet.
            Ok(_) | Err(CallError::Lost(_) | CallError::Unreachable(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(new.ask(far.id, WHO).await.unwrap(), format!("{} 2", old.id));
    assert!(far.transport.refusals().iter().any(|(reason, _)| *reason == Reason::OldSession));
}

/// Large bodies from shared pieces survive the loss of the connection that carried them half way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_cut_in_the_middle_is_sent_again() {
    let rig = Rig::plain();
    let (near, far) = (rig.node(1), rig.node(2));
    let proxy = Proxy::to(far.address()).await;
    near.transport.set_peer(far.id, vec![proxy.address, far.address()]);
    // With nothing under way, the first rail is taken.
    while near.transport.peers()[0].rails.iter().any(|rail| rail.connections < 3) {
        tokio::task::yield_now().await;
    }
    proxy.kill_after(proxy.passed() + (1 << 20));
    let request = Message::new(COUNT, "").with_body(Body::Shared(vec![bytes(8 << 20, 3).into()]));
    let answer = near.call(far.id, request, Call::within(PATIENCE)).await.unwrap();
    assert_eq!(&answer.head[..], (8 << 20).to_string().as_bytes());
    assert!(near.transport.peers()[0].rails[0].errors > 0, "it went by the first rail");
}
