//! Calls between nodes that are well.

use std::time::Duration;

use bytes::Bytes;
use stoker_fabric::transport::{BODY_LEN_MAX, Body, Call, CallError, HEAD_LEN_MAX, Message, Transport};
use stoker_format::{BLOCK, crc32c};

use crate::rig::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_all_sizes_come_back_whole() {
    for rig in Rig::both() {
        let [near, far] = rig.pair();
        for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 64 << 10, (64 << 10) + 1, 4 << 20, BODY_LEN_MAX] {
            let body = bytes(len, len as u64);
            assert!(near.echo(far.id, body.clone()).await.unwrap() == body, "{len}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrives_is_aligned_summed_and_taken_from_the_pool() {
    for rig in Rig::both() {
        let [near, far] = rig.pair();
        let body = bytes(3 * BLOCK + 5, 9);
        let pieces = vec![Bytes::from(body[..100].to_vec()), Bytes::new(), Bytes::from(body[100..].to_vec())];
        let request = Message::new(ECHO, "head").with_summed_body(Body::Shared(pieces), crc32c(&body));
        let answer = near.call(far.id, request, Call::within(PATIENCE).expecting(1 << 20)).await.unwrap();
        assert_eq!(answer.body_crc, Some(crc32c(&body)));
        assert!(near.pool.in_use() > 0);
        let buf = answer.body.into_buf();
        assert!(buf.io_ptr(0).addr().is_multiple_of(BLOCK) && buf.has_headroom());
        assert_eq!(buf.crc32c(), Some(crc32c(&body)), "a reader need not sum it again");
        drop(buf);
        assert_eq!(near.pool.in_use(), 0);
    }
}

#[tokio::test]
async fn limits_are_errors_of_the_caller() {
    let [near, far] = Rig::plain().pair();
    let refused = |outcome: Result<Message, CallError>| matches!(outcome, Err(CallError::Invalid(_)));
    let long = Body::Shared(vec![Bytes::from(vec![0; 64 << 20])]);
    assert!(refused(
        near.call(far.id, Message::new(COUNT, "").with_body(long), Call::within(PATIENCE)).await
    ));
    let long = vec![0; HEAD_LEN_MAX + 1];
    assert!(refused(near.call(far.id, Message::new(COUNT, long), Call::within(PATIENCE)).await));
    let call = Call::within(PATIENCE).expecting(BODY_LEN_MAX + 1);
    assert!(refused(near.call(far.id, Message::new(COUNT, ""), call).await));
    // An answer beyond what was asked for.
    let request = Message::new(ECHO, "").with_body(Body::Shared(vec![Bytes::from_static(b"four")]));
    assert!(refused(near.call(far.id, request, Call::within(PATIENCE).expecting(3)).await));
    // None of it disturbed the connection.
    assert_eq!(near.ask(far.id, COUNT).await.unwrap(), "0");
    assert_eq!(near.transport.peers()[0].rails[0].reconnects, 0);
}

#[tokio::test]
async fn faults_and_breakdowns_reach_the_caller_alone() {
    let [near, far] = Rig::plain().pair();
    let Err(CallError::Fault(fault)) = near.ask(far.id, FAIL).await else { panic!("no fault") };
    assert_eq!((fault.code, fault.message.as_str()), (77, "as you wish"));
    assert!(matches!(near.ask(far.id, PANIC).await, Err(CallError::Lost(_))));
    assert!(matches!(near.ask(node_id(9), COUNT).await, Err(CallError::Unreachable(_))));
    assert_eq!(near.ask(far.id, WHO).await.unwrap(), format!("{} 1", near.id));
    assert_eq!(near.transport.peers()[0].rails[0].reconnects, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_at_once_each_get_their_own_answer() {
    let count = if std::env::var_os("STOKER_FULL").is_some() { 20_000 } else { 1_000 };
    for rig in Rig::both() {
        let [near, far] = rig.pair();
        let near = std::sync::Arc::new(near);
        let calls: Vec<_> = (0..count)
            .map(|n| {
                let (near, to) = (near.clone(), far.id);
                tokio::spawn(async move {
                    let body = bytes(n * 7919 % 200_000, n as u64);
                    assert!(near.echo(to, body.clone()).await.unwrap() == body, "{n}");
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        let status = &near.transport.peers()[0].rails[0];
        assert_eq!((status.calls, status.errors, status.load_bytes), (count as u64, 0, 0));
        assert!(status.latency.is_some() && status.latency_p95.is_some());
        // The last answer may be with its writer still.
        while near.pool.in_use() + far.pool.in_use() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_is_dropped_there_too() {
    for rig in Rig::both() {
        let [near, far] = rig.pair();
        let hang = near.ask(far.id, HANG);
        tokio::select! {
            outcome = hang => panic!("{outcome:?}"),
            () = far.seen.until(|seen| &seen.serving, 1) => {}
        }
        far.seen.until(|seen| &seen.dropped, 1).await;
        assert_eq!(near.ask(far.id, COUNT).await.unwrap(), "0");
    }
}

#[tokio::test]
async fn a_deadline_ends_both_sides() {
    let [near, far] = Rig::plain().pair();
    near.ask(far.id, COUNT).await.unwrap();
    let call = Call::within(Duration::from_millis(30));
    let outcome = near.call(far.id, Message::new(HANG, ""), call).await;
    assert_eq!(outcome.unwrap_err(), CallError::Deadline);
    far.seen.until(|seen| &seen.dropped, 1).await;
}

/// The service never answers: as much as the window allows arrives, the rest waits with its senders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_never_answers_takes_bounded_memory() {
    let rig = Rig::plain();
    let (near, mut config) = (std::sync::Arc::new(rig.node(1)), rig.config(2));
    config.window_bytes = 8 << 20;
    let far = start(config);
    near.knows(&far);
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let (near, to) = (near.clone(), far.id);
            tokio::spawn(async move {
                let body = Body::Shared(vec![Bytes::from(vec![1; 1 << 20])]);
                near.call(to, Message::new(HANG, "").with_body(body), Call::within(PATIENCE)).await
            })
        })
        .collect();
    // Two connections for bulk bytes, eight mebibytes each.
    far.seen.until(|seen| &seen.serving, 16).await;
    assert!(far.pool.in_use() <= 17 << 20, "{}", far.pool.in_use());
    // Small requests are not stuck behind, and giving up makes room for those that wait.
    assert_eq!(near.ask(far.id, COUNT).await.unwrap(), "0");
    calls.iter().take(20).for_each(|call| call.abort());
    far.seen.gate.add_permits(calls.len());
    for call in calls.into_iter().skip(20) {
        call.await.unwrap().unwrap();
    }
    far.seen.until(|seen| &seen.serving, 0).await;
}

#[tokio::test]
async fn more_requests_than_a_node_serves_wait_for_their_turn() {
    let rig = Rig::plain();
    let (near, mut config) = (rig.node(1), rig.config(2));
    config.requests_max = 3;
    let far = start(config);
    near.knows(&far);
    let asks = (0..10).map(|_| near.ask(far.id, HANG));
    let open = async {
        for _ in 0..10 {
            far.seen.changed.notified().await;
            assert!(far.seen.serving.load(std::sync::atomic::Ordering::SeqCst) <= 3);
            far.seen.gate.add_permits(1);
        }
        far.seen.gate.add_permits(10);
    };
    let all = async {
        let mut asks: Vec<_> = asks.map(Box::pin).collect();
        std::future::poll_fn(|cx| {
            asks.retain_mut(|ask| match ask.as_mut().poll(cx) {
                std::task::Poll::Ready(answer) => {
                    answer.unwrap();
                    false
                }
                std::task::Poll::Pending => true,
            });
            if asks.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    };
    tokio::join!(open, all);
}

#[tokio::test]
async fn a_node_that_stops_answers_what_it_has_and_takes_no_more() {
    let [near, far] = Rig::tls().pair();
    let hang = near.ask(far.id, HANG);
    let stop = async {
        far.seen.until(|seen| &seen.serving, 1).await;
        let open = async {
            // Calls fail only after the peer heard of the stop.
            while near.ask(far.id, COUNT).await.is_ok() {}
            far.seen.gate.add_permits(1);
        };
        tokio::join!(far.transport.stop(PATIENCE), open)
    };
    let (answer, _) = tokio::join!(hang, stop);
    answer.unwrap();
    assert!(matches!(near.ask(far.id, COUNT).await, Err(CallError::Unreachable(_))));
}

#[tokio::test]
async fn addresses_of_both_families_and_chosen_local_ones() {
    let rig = Rig::plain();
    let mut config = rig.config(2);
    config.listen = vec!["[::1]:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap()];
    let far = start(config);
    let mut config = rig.config(1);
    config.bind = vec!["127.0.0.77".parse().unwrap(), "::1".parse().unwrap()];
    let near = start(config);
    near.knows(&far);
    for _ in 0..20 {
        assert_eq!(near.echo(far.id, vec![7; 100_000]).await.unwrap(), vec![7; 100_000]);
    }
    assert_eq!(near.transport.peers()[0].rails.len(), 2);
    // A local address that is not there.
    let mut config = rig.config(3);
    config.bind = vec!["192.0.2.1".parse().unwrap()];
    let other = start(config);
    other.transport.set_peer(far.id, vec![far.transport.addresses()[1]]);
    assert!(matches!(other.ask(far.id, COUNT).await, Err(CallError::Unreachable(_))));
    far.transport.remove_peer(near.id);
    near.transport.remove_peer(far.id);
    assert!(near.transport.peers().is_empty());
    assert!(matches!(near.ask(far.id, COUNT).await, Err(CallError::Unreachable(_))));
}
