//! Locks of files, by mounts that speak to different nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stoker_node::Node;
use stoker_schema::rows::keys;
use stoker_store::{
    ErrorKind, LOCK_LEASE_MS, LOCK_OWNERS_MAX, LOCKS_MAX, LockClient, LockHeld, LockKind, LockOwner,
    LockRequest, LockSpace, Result, Store,
};

use crate::harness::cluster::Cluster;
use crate::harness::*;

const LEASE: Duration = Duration::from_millis(LOCK_LEASE_MS);
const INODE: u64 = 77;

fn client(number: u8) -> LockClient {
    LockClient([number; 16])
}

fn request(number: u8, kind: Option<LockKind>, start: u64, end: u64) -> LockRequest {
    LockRequest {
        inode: INODE,
        client: client(number),
        space: LockSpace::Ranges,
        owner: 1,
        pid: u32::from(number),
        kind,
        start,
        end,
        is_test: false,
        wait_ms: 0,
    }
}

async fn lock(node: &Node, request: LockRequest) -> Result<Option<LockHeld>> {
    node.lock("data", &key("f"), request).await
}

/// Whether a client gets all of the file for itself.
async fn takes(node: &Node, number: u8) -> bool {
    lock(node, request(number, Some(LockKind::Exclusive), 0, u64::MAX)).await.unwrap().is_none()
}

async fn gives_back(node: &Node, number: u8) {
    assert_eq!(lock(node, request(number, None, 0, u64::MAX)).await.unwrap(), None);
}

fn owner(inode: u64) -> LockOwner {
    LockOwner { inode, space: LockSpace::Ranges, owner: 1 }
}

/// Says that it is there until a lease is over, for each of those that are.
async fn outlast_a_lease(there: &[(&Arc<Node>, u8)]) {
    let until = tokio::time::Instant::now() + LEASE + LEASE / 4;
    while tokio::time::Instant::now() < until {
        for (node, number) in there {
            let kept = node.locks_keep("data", client(*number), vec![owner(INODE)]).await;
            assert_eq!(kept.unwrap(), [], "client {number} is there");
        }
        tokio::time::sleep(LEASE / 8).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_hold_between_nodes() {
    let cluster = Cluster::new(3, lazy()).await;
    let [a, b, c] = [0, 1, 2].map(|at| cluster.node(at));
    assert!(takes(a, 1).await);
    assert!(takes(c, 1).await, "it has it already, and speaks to another node now");
    assert!(!takes(b, 2).await);
    let test = LockRequest { is_test: true, ..request(2, Some(LockKind::Shared), 5, 9) };
    let held = lock(b, test).await.unwrap().unwrap();
    assert_eq!((held.is_own, held.pid, held.kind), (false, 1, LockKind::Exclusive));
    assert_eq!((held.start, held.end), (0, u64::MAX));
    let of_file =
        LockRequest { space: LockSpace::Files, ..request(2, Some(LockKind::Exclusive), 0, u64::MAX) };
    assert_eq!(lock(b, of_file).await.unwrap(), None, "the two kinds do not see each other");
    // Whoever waits goes on as soon as it is free.
    let waiting = {
        let b = b.clone();
        let wait = LockRequest { wait_ms: 60_000, ..request(2, Some(LockKind::Exclusive), 10, 19) };
        tokio::spawn(async move { lock(&b, wait).await })
    };
    gives_back(c, 1).await;
    assert_eq!(waiting.await.unwrap().unwrap(), None);
    // Ranges that do not touch are for two, and shared ones for many.
    let shared = |number| request(number, Some(LockKind::Shared), 30, 39);
    assert_eq!(lock(a, shared(1)).await.unwrap(), None);
    assert_eq!(lock(c, shared(3)).await.unwrap(), None);
    assert!(lock(b, LockRequest { kind: Some(LockKind::Exclusive), ..shared(2) }).await.unwrap().is_some());
    // Who gives a part back hears of what is left.
    let left = lock(b, request(2, None, 12, 19)).await.unwrap().unwrap();
    assert_eq!((left.is_own, left.start, left.end), (true, 10, 11));
    // All that a client has is given back in one call.
    assert_eq!(b.locks_keep("data", client(2), Vec::new()).await.unwrap(), []);
    gives_back(a, 1).await;
    gives_back(c, 3).await;
    assert_eq!(cluster.rows(keys::LOCKS).await, 0, "what nobody has is no row");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_at_a_time_counts_right() {
    const CLIENTS: u8 = 9;
    const ROUNDS: u64 = 12;
    let cluster = Cluster::new(3, lazy()).await;
    let (counter, inside) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let all: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let node = cluster.node(usize::from(number) % 3).clone();
            let (counter, inside) = (counter.clone(), inside.clone());
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let wait =
                        LockRequest { wait_ms: 60_000, ..request(number, Some(LockKind::Exclusive), 0, 9) };
                    assert_eq!(lock(&node, wait).await.unwrap(), None);
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                    let read = counter.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    counter.store(read + 1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(lock(&node, request(number, None, 0, 9)).await.unwrap(), None);
                }
            })
        })
        .collect();
    for one in all {
        one.await.unwrap();
    }
    assert_eq!(counter.load(Ordering::SeqCst), u64::from(CLIENTS) * ROUNDS);
    assert_eq!(cluster.rows(keys::LOCKS).await, 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_silent_loses_its_locks_and_who_speaks_keeps_them() {
    let cluster = Cluster::new(3, lazy()).await;
    let [a, b, c] = [0, 1, 2].map(|at| cluster.node(at));
    let part = |number, start| request(number, Some(LockKind::Exclusive), start, start + 9);
    assert_eq!(lock(a, part(1, 0)).await.unwrap(), None);
    assert_eq!(lock(b, part(2, 10)).await.unwrap(), None);
    // This one speaks to another node from now on.
    assert_eq!(lock(a, part(4, 20)).await.unwrap(), None);
    outlast_a_lease(&[(b, 2), (c, 4)]).await;
    cluster.until("the silent one has nothing", async || lock(c, part(3, 0)).await.unwrap().is_none()).await;
    assert!(lock(c, part(3, 10)).await.unwrap().is_some(), "who speaks has it");
    assert!(lock(b, part(3, 20)).await.unwrap().is_some(), "wherever it speaks");
    // Of two owners on one mount one lost what it had, and the other one got something since: that is no comfort to the first.
    let second = LockRequest { owner: 2, ..part(1, 60) };
    assert_eq!(lock(a, second).await.unwrap(), None);
    let both = vec![owner(INODE), LockOwner { owner: 2, ..owner(INODE) }];
    assert_eq!(a.locks_keep("data", client(1), both).await.unwrap(), [owner(INODE)]);
    assert_eq!(
        a.locks_keep("data", client(1), vec![owner(INODE)]).await.unwrap(),
        [owner(INODE)],
        "it is told"
    );
    assert_eq!(b.locks_keep("data", client(4), vec![owner(INODE), owner(5)]).await.unwrap(), [owner(5)]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_outlive_a_node_for_those_who_come_back() {
    let mut cluster = Cluster::new(3, lazy()).await;
    let part = |number, start| request(number, Some(LockKind::Exclusive), start, start + 9);
    assert_eq!(lock(cluster.node(0), part(1, 0)).await.unwrap(), None);
    assert_eq!(lock(cluster.node(0), part(2, 10)).await.unwrap(), None);
    let lost = cluster.lose(0);
    assert!(cluster.node(1).members().declare_down(lost.id(), Duration::ZERO).await.unwrap());
    assert!(lock(cluster.node(1), part(3, 0)).await.unwrap().is_some(), "its mounts may come back");
    assert!(lock(cluster.node(2), part(3, 10)).await.unwrap().is_some());
    // What the node that is out of it says counts for nobody.
    assert_eq!(lock(&lost, part(4, 40)).await.unwrap_err().kind, ErrorKind::Closed);
    outlast_a_lease(&[(cluster.node(1), 2)]).await;
    let b = cluster.node(1);
    cluster.until("who did not come back", async || lock(b, part(3, 0)).await.unwrap().is_none()).await;
    assert!(lock(cluster.node(2), part(3, 10)).await.unwrap().is_some(), "who came back has it");
    assert_eq!(
        cluster.node(2).locks_keep("data", client(1), vec![owner(INODE)]).await.unwrap(),
        [owner(INODE)]
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_locks_are_refused() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let backwards = lock(&node, request(1, Some(LockKind::Shared), 9, 3)).await.unwrap_err();
    assert_eq!(backwards.kind, ErrorKind::Invalid, "{backwards}");
    let many = vec![owner(1); LOCK_OWNERS_MAX + 1];
    let refused = node.locks_keep("data", client(1), many).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid, "{refused}");
    assert_eq!(node.locks_keep("data", client(1), vec![owner(1)]).await.unwrap(), [owner(1)]);
    let gone = node.lock("none", &key("f"), request(1, Some(LockKind::Shared), 0, 1)).await.unwrap_err();
    assert_eq!(gone.kind, ErrorKind::NotFound, "{gone}");
    // Locks next to each other are one, those with gaps are not.
    for at in 0..LOCKS_MAX as u64 {
        assert_eq!(lock(&node, request(1, Some(LockKind::Shared), 2 * at, 2 * at)).await.unwrap(), None);
    }
    let full = lock(&node, request(1, Some(LockKind::Shared), u64::MAX, u64::MAX)).await.unwrap_err();
    assert_eq!(full.kind, ErrorKind::Full, "{full}");
    assert!(takes(&node, 1).await, "one lock instead of all of them");
    node.stop().await;
}
