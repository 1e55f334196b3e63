//! Catalogs that are kept by a group: of one, of three, that lose whoever leads, drives and touch.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use stoker_catalog::engine::{
    Beginning, Embedded, PrimaryOptions, ReplicaProgress, ReplicaStanding, ReplicaWays, ReplicatedCatalog,
    Role, inspect, read_file,
};
use stoker_catalog::remote::{CatalogServer, RemoteCatalog, RemoteOptions};
use stoker_catalog::{BoxFuture, Catalog, CatalogError, Commit, ErrorKind, Health, Outcome, Result, Wire};
use stoker_format::NodeId;
use tokio::task::JoinSet;

use crate::fixture::{CLUSTER, Dice, Fixture, done, full, refused, small, value};

fn node(number: usize) -> NodeId {
    NodeId([number as u8 + 1; 16])
}

/// Which replicas hear which.
#[derive(Default)]
struct Net {
    ends: Mutex<BTreeMap<NodeId, Weak<ReplicatedCatalog>>>,
    cut: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// Requests that were answered, by who asked whom.
    answered: Mutex<BTreeMap<(NodeId, NodeId), u64>>,
}

/// From one node to another.
struct Path {
    net: Arc<Net>,
    from: NodeId,
    to: NodeId,
}

impl Wire for Path {
    fn call(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            let gone = || CatalogError::unavailable("nobody is there");
            let cut = |from, to| self.net.cut.lock().unwrap().contains(&(from, to));
            if cut(self.from, self.to) {
                return Err(gone());
            }
            let end = self.net.ends.lock().unwrap().get(&self.to).and_then(Weak::upgrade).ok_or_else(gone)?;
            let answer = end.answer(self.from, request).await;
            *self.net.answered.lock().unwrap().entry((self.from, self.to)).or_default() += 1;
            if cut(self.to, self.from) { Err(gone()) } else { Ok(answer) }
        })
    }
}

impl Net {
    fn ways(self: &Arc<Net>, from: NodeId) -> ReplicaWays {
        let net = Arc::clone(self);
        Arc::new(move |to| Arc::new(Path { net: Arc::clone(&net), from, to }))
    }

    fn cut_off(&self, one: NodeId, others: impl IntoIterator<Item = NodeId>) {
        let mut cut = self.cut.lock().unwrap();
        others.into_iter().for_each(|other| cut.extend([(one, other), (other, one)]));
    }

    fn heal(&self) {
        self.cut.lock().unwrap().clear();
    }

    async fn until_answered(&self, from: usize, to: usize, more: u64) {
        let count = || self.answered.lock().unwrap().get(&(node(from), node(to))).copied().unwrap_or(0);
        let enough = count() + more;
        until("it was answered", || count() >= enough).await;
    }
}

/// Nodes with a folder each, and the replicas that run there.
struct Nodes {
    net: Arc<Net>,
    folders: Vec<tempfile::TempDir>,
    running: Vec<Option<Arc<ReplicatedCatalog>>>,
}

impl Nodes {
    fn new(count: usize) -> Nodes {
        let folders = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
        Nodes { net: Arc::default(), folders, running: vec![None; count] }
    }

    fn path(&self, at: usize) -> PathBuf {
        self.folders[at].path().join("catalog")
    }

    fn start(&mut self, at: usize, beginning: Beginning) -> Arc<ReplicatedCatalog> {
        let ways = self.net.ways(node(at));
        let opened =
            ReplicatedCatalog::open(&self.path(at), CLUSTER, node(at), &small(), beginning, ways).unwrap();
        let opened = Arc::new(opened);
        self.net.ends.lock().unwrap().insert(node(at), Arc::downgrade(&opened));
        self.running[at] = Some(Arc::clone(&opened));
        opened
    }

    /// As many as there are folders, of which the first began the group.
    async fn group(count: usize) -> Nodes {
        let mut nodes = Nodes::new(count);
        let leader = nodes.start(0, Beginning::Group);
        until_leads(&leader).await;
        for at in 1..count {
            nodes.start(at, Beginning::Wait);
            nodes.join(at).await;
        }
        nodes
    }

    /// Whoever leads takes a node in, and has it vote.
    async fn join(&self, at: usize) {
        let leader = self.leader().await;
        let id = self.running[at].as_ref().unwrap().standing().borrow().id;
        assert!(leader.take_in(id, node(at)).await);
        let has_all = || {
            let (members, last) = leader.progress();
            members.iter().any(|progress| progress.member.id == id && progress.has == last)
        };
        until("it has caught up", has_all).await;
        until_async("it may vote", || leader.let_vote(id)).await;
        until("it votes", || leader.standing().borrow().voters().contains(&node(at))).await;
    }

    async fn leader(&self) -> Arc<ReplicatedCatalog> {
        let leads = || self.running.iter().flatten().find(|one| one.standing().borrow().leads).cloned();
        until("somebody leads", || leads().is_some()).await;
        leads().unwrap()
    }

    fn index_of(&self, one: &Arc<ReplicatedCatalog>) -> usize {
        self.running
            .iter()
            .position(|other| other.as_ref().is_some_and(|other| Arc::ptr_eq(one, other)))
            .unwrap()
    }

    async fn stop(&mut self, at: usize) {
        if let Some(running) = self.running[at].take() {
            running.close().await;
        }
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{what}: not after a minute");
}

async fn until_async<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    for _ in 0..600 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{what}: not after a minute");
}

async fn until_leads(one: &ReplicatedCatalog) {
    let mut standing = one.standing();
    standing.wait_for(|standing: &ReplicaStanding| standing.leads && standing.answers).await.unwrap();
}

async fn one() -> Option<Fixture> {
    let mut nodes = Nodes::group(1).await;
    let catalog = nodes.running[0].take().unwrap();
    Some(Fixture::new(catalog, nodes.folders))
}

async fn three() -> Option<Fixture> {
    let nodes = Nodes::group(3).await;
    Some(Fixture::new(nodes.leader().await, (nodes.folders, nodes.running)))
}

mod of_one {
    crate::conformance::conformance!(super::one().await);
}

mod of_three {
    crate::conformance::conformance!(super::three().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_is_there_after_a_start() {
    let mut nodes = Nodes::group(1).await;
    let path = nodes.path(0);
    for round in 0..200u32 {
        let catalog = nodes.running[0].clone().unwrap();
        done(&*catalog, Commit::new().put(format!("row/{round}"), vec![7; 900]).add("sum", 1)).await;
        drop(catalog);
        if round % 20 == 19 {
            // As it lies on the drive now, like after a kill.
            let image = tempfile::tempdir().unwrap();
            for found in std::fs::read_dir(path.parent().unwrap()).unwrap().flatten() {
                std::fs::copy(found.path(), image.path().join(found.file_name())).unwrap();
            }
            let held = read_file(&image.path().join("catalog"), CLUSTER).unwrap();
            assert_eq!(held.seq(), u64::from(round) + 1);
            drop(held);
            let ways = nodes.net.ways(node(0));
            let image = image.path().join("catalog");
            assert_eq!(inspect(&image, CLUSTER).unwrap().unwrap().role, Role::Replica);
            let opened =
                ReplicatedCatalog::open(&image, CLUSTER, node(0), &small(), Beginning::Group, ways).unwrap();
            until_leads(&opened).await;
            let sum = i64::from_le_bytes(value(&opened, b"sum").await.unwrap().try_into().unwrap());
            assert_eq!(sum, i64::from(round) + 1);
        }
        if round % 50 == 49 {
            nodes.stop(0).await;
            until_leads(&nodes.start(0, Beginning::Group)).await;
        }
    }
    nodes.stop(0).await;
    let error = Embedded::open(&path, CLUSTER, &small()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Foreign, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_one_leads_when_the_leader_is_lost() {
    let mut nodes = Nodes::group(3).await;
    for round in 0..4i64 {
        let leader = nodes.leader().await;
        done(&*leader, Commit::new().put(format!("round/{round}"), "there").add("sum", 1)).await;
        let lost = nodes.index_of(&leader);
        // It reaches nobody from one moment to the next, and is gone then.
        nodes.net.cut_off(node(lost), (0..3).map(node));
        nodes.stop(lost).await;
        drop(leader);
        let next = nodes.leader().await;
        until_leads(&next).await;
        for before in 0..=round {
            assert_eq!(value(&*next, format!("round/{before}").as_bytes()).await.unwrap(), b"there");
        }
        assert_eq!(value(&*next, b"sum").await.unwrap(), (round + 1).to_le_bytes());
        nodes.net.heal();
        let back = nodes.start(lost, Beginning::Wait);
        until("it follows", || back.standing().borrow().epoch.is_some()).await;
    }
}

/// A leader that is cut off answers for no longer than its lease, and by then nobody else has been elected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_replaced_gives_no_old_answer() {
    let nodes = Nodes::group(3).await;
    let old = nodes.leader().await;
    let cut = nodes.index_of(&old);
    done(&*old, Commit::new().put("a", "before")).await;
    nodes.net.cut_off(node(cut), (0..3).map(node));
    let reads = tokio::spawn({
        let old = Arc::clone(&old);
        async move {
            loop {
                match old.get(&[b"a"]).await {
                    Ok(rows) => assert_eq!(rows[0].as_ref().unwrap().value, b"before"),
                    Err(error) => return error,
                }
            }
        }
    });
    let others = || nodes.running.iter().flatten().filter(|one| !Arc::ptr_eq(one, &old));
    until("another one leads", || others().any(|one| one.standing().borrow().answers)).await;
    let new = others().find(|one| one.standing().borrow().leads).unwrap().clone();
    done(&*new, Commit::new().put("a", "after")).await;
    // From the moment of this answer the old one must not give the value before.
    match old.get(&[b"a"]).await {
        Ok(rows) => assert_eq!(rows[0].as_ref().unwrap().value, b"after"),
        Err(error) => assert_eq!(error.kind, ErrorKind::Unavailable, "{error}"),
    }
    assert_eq!(reads.await.unwrap().kind, ErrorKind::Unavailable);
    let waiting = tokio::spawn(async move { old.commit(Commit::new().put("a", "never")).await });
    assert!(matches!(waiting.await.unwrap().unwrap_err().kind, ErrorKind::Unavailable | ErrorKind::Unknown));
    nodes.net.heal();
    until("it follows", || {
        nodes.running[cut].as_ref().unwrap().standing().borrow().epoch == new.standing().borrow().epoch
    })
    .await;
    assert_eq!(value(&*new, b"a").await.unwrap(), b"after");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_lost_its_drive_comes_back_as_somebody_else_with_everything() {
    let mut nodes = Nodes::group(3).await;
    let leader = nodes.leader().await;
    for round in 0..300u32 {
        done(&*leader, Commit::new().put(format!("row/{round}"), vec![round as u8; 2_000])).await;
    }
    let lost = (nodes.index_of(&leader) + 1) % 3;
    let id = nodes.running[lost].as_ref().unwrap().standing().borrow().id;
    nodes.stop(lost).await;
    nodes.folders[lost] = tempfile::tempdir().unwrap();
    let fresh = nodes.start(lost, Beginning::Wait);
    assert_ne!(fresh.standing().borrow().id, id);
    until_async("the old one goes", || leader.take_out(id)).await;
    until("it is gone", || leader.standing().borrow().members.len() == 2).await;
    nodes.join(lost).await;
    // It has to lead to show what it has.
    leader.give_away(Some(node(lost)));
    until_leads(&fresh).await;
    for round in 0..300u32 {
        assert_eq!(
            value(&*fresh, format!("row/{round}").as_bytes()).await.unwrap(),
            vec![round as u8; 2_000]
        );
    }
    drop(leader);
    assert_eq!(std::fs::read_dir(nodes.folders[lost].path()).unwrap().count(), 3, "a table and its log");
}

/// Of two, one is not enough to acknowledge anything; what it has may be read, and a person may let it go on alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_reads_on_and_goes_on_alone_when_told() {
    let mut nodes = Nodes::group(2).await;
    let leader = nodes.leader().await;
    done(&*leader, Commit::new().put("a", "1")).await;
    let kept = nodes.index_of(&leader);
    until("both know that they are two", || leader.standing().borrow().answers_alone).await;
    nodes.net.cut_off(node(kept), [node(1 - kept)]);
    let error = leader.commit(Commit::new().put("a", "2")).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Unknown), "{error}");
    until("it says so", || leader.health() == Health::Stalled).await;
    assert!(refused(&*leader, Commit::new().put("a", "3"), ErrorKind::Unavailable).await.is_stalled());
    assert!([b"1".to_vec(), b"2".to_vec()].contains(&value(&*leader, b"a").await.unwrap()));
    leader.begin_anew().await.unwrap();
    until_leads(&leader).await;
    done(&*leader, Commit::new().put("a", "4")).await;
    assert_eq!(leader.standing().borrow().voters(), [node(kept)]);
    // What is left of the group before hears that it is no more, and acknowledges nothing.
    nodes.net.heal();
    let other = nodes.running[1 - kept].clone().unwrap();
    refused(&*other, Commit::new().put("a", "5"), ErrorKind::Unavailable).await;
    nodes.stop(1 - kept).await;
    drop(other);
    nodes.folders[1 - kept] = tempfile::tempdir().unwrap();
    nodes.start(1 - kept, Beginning::Wait);
    nodes.join(1 - kept).await;
    assert_eq!(value(&*leader, b"a").await.unwrap(), b"4");
}

/// Persons on both sides of a partition have their side go on alone: there are two catalogs then, and neither takes anything from the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_groups_that_were_begun_anew_refuse_each_other() {
    let mut nodes = Nodes::group(3).await;
    let standing = |nodes: &Nodes, at: usize| nodes.running[at].as_ref().unwrap().standing().borrow().clone();
    let before = standing(&nodes, 0).group;
    (0..3).for_each(|at| nodes.net.cut_off(node(at), (0..3).map(node)));
    for at in 0..2 {
        let side = nodes.running[at].clone().unwrap();
        side.begin_anew().await.unwrap();
        until_leads(&side).await;
        done(&*side, Commit::new().put("a", format!("{at}"))).await;
    }
    let groups = [0, 1].map(|at| standing(&nodes, at));
    assert!(groups.iter().all(|group| group.former == [before] && group.group != before));
    assert_ne!(groups[0].group, groups[1].group);
    nodes.net.heal();
    // Each has the replicas of the other and of the group before as members, as if nobody had looked: they hear of it all the same.
    let (one, other) = (nodes.running[0].clone().unwrap(), nodes.running[1].clone().unwrap());
    assert!(one.take_in(groups[1].id, node(1)).await && other.take_in(groups[0].id, node(0)).await);
    nodes.net.until_answered(0, 1, 30).await;
    nodes.net.until_answered(1, 0, 30).await;
    for (at, side) in [&one, &other].into_iter().enumerate() {
        assert_eq!(value(&**side, b"a").await.unwrap(), format!("{at}").as_bytes());
        let heard = |progress: &ReplicaProgress| progress.member.node != node(at) && progress.has > 0;
        assert!(!side.progress().0.iter().any(heard), "side {at} took an answer of the other one");
        assert!(!standing(&nodes, at).is_superseded);
    }
    // What is left of the group before hears that it is no more; it is the same after a start.
    let left = standing(&nodes, 2).id;
    until_async("it is written to", || one.take_in(left, node(2))).await;
    until("it hears of it", || standing(&nodes, 2).is_superseded).await;
    drop((one, other));
    nodes.stop(1).await;
    until_leads(&nodes.start(1, Beginning::Wait)).await;
    let again = standing(&nodes, 1);
    assert_eq!((again.group, again.former), (groups[1].group, groups[1].former.clone()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_one_node_becomes_that_of_a_group() {
    let mut nodes = Nodes::new(2);
    let before = Embedded::open(&nodes.path(0), CLUSTER, &small()).unwrap();
    let seq = done(&before, Commit::new().put("a", "1")).await;
    before.close().await;
    drop(before);
    let leader = nodes.start(0, Beginning::Group);
    until_leads(&leader).await;
    assert_eq!(value(&*leader, b"a").await.unwrap(), b"1");
    assert!(done(&*leader, Commit::new().put("b", "2")).await > seq);
    nodes.start(1, Beginning::Wait);
    nodes.join(1).await;
    // Where others followed it, nothing is acknowledged before one of them has everything again.
    let other = tempfile::tempdir().unwrap();
    let path = other.path().join("catalog");
    let primary = Embedded::open_primary(&path, CLUSTER, &small(), &PrimaryOptions::new(node(5))).unwrap();
    done(&primary, Commit::new().put("a", "1")).await;
    let epoch = primary.epoch().unwrap();
    primary.close().await;
    drop(primary);
    let ways = Arc::<Net>::default().ways(node(5));
    let alone = ReplicatedCatalog::open(&path, CLUSTER, node(5), &small(), Beginning::Group, ways).unwrap();
    until_leads(&alone).await;
    assert!(alone.standing().borrow().epoch.unwrap() > epoch);
    done(&alone, Commit::new().put("b", "1")).await;
}

/// A client finds whoever leads, and each of its commits is done once, whatever became of answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_clients_are_done_once_across_elections() {
    let mut nodes = Nodes::group(3).await;
    let served = Arc::new(Served(Mutex::new(None)));
    let options = RemoteOptions { budget: Duration::from_secs(60), ..RemoteOptions::default() };
    let remote = Arc::new(RemoteCatalog::new(Arc::clone(&served) as Arc<dyn Wire>, 9, &options));
    let count = if full() { 20 } else { 3 };
    let mut told = 0i64;
    for _ in 0..count {
        let leader = nodes.leader().await;
        until_leads(&leader).await;
        let epoch = leader.standing().borrow().epoch.unwrap();
        *served.0.lock().unwrap() = Some(Arc::new(CatalogServer::leader(Arc::clone(&leader), epoch)));
        let mut adds = JoinSet::new();
        for _ in 0..20 {
            let remote = Arc::clone(&remote);
            adds.spawn(async move { remote.commit(Commit::new().add("sum", 1)).await });
        }
        // Some are done, some are under way, some are not begun when it loses touch.
        assert!(matches!(adds.join_next().await.unwrap().unwrap().unwrap(), Outcome::Done { .. }));
        let lost = nodes.index_of(&leader);
        nodes.net.cut_off(node(lost), (0..3).map(node));
        nodes.stop(lost).await;
        *served.0.lock().unwrap() = None;
        drop(leader);
        let next = nodes.leader().await;
        until_leads(&next).await;
        let epoch = next.standing().borrow().epoch.unwrap();
        *served.0.lock().unwrap() = Some(Arc::new(CatalogServer::leader(Arc::clone(&next), epoch)));
        while let Some(ended) = adds.join_next().await {
            assert!(matches!(ended.unwrap().unwrap(), Outcome::Done { .. }));
        }
        told += 20;
        assert_eq!(value(&*next, b"sum").await.unwrap(), told.to_le_bytes());
        nodes.net.heal();
        nodes.start(lost, Beginning::Wait);
    }
}

/// Whoever answers for the catalog now.
struct Served(Mutex<Option<Arc<CatalogServer>>>);

impl Wire for Served {
    fn call(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            let server = self.0.lock().unwrap().clone();
            match server {
                Some(server) => Ok(server.answer(request).await),
                None => Err(CatalogError::unavailable("nobody leads")),
            }
        })
    }
}

/// Replicas are killed, cut off and healed at random while others commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_nothing_acknowledged_is_lost() {
    for seed in 1..=if full() { 40 } else { 2 } {
        let mut dice = Dice::new(seed);
        let mut nodes = Nodes::group(3).await;
        let mut told: Vec<u64> = Vec::new();
        let mut next = 0u64;
        for _ in 0..if full() { 12 } else { 4 } {
            let leader = nodes.leader().await;
            let rounds = 10 + dice.roll(30) as u64;
            let mut commits = JoinSet::new();
            for number in next..next + rounds {
                let leader = Arc::clone(&leader);
                commits.spawn(async move {
                    let commit = Commit::new().put(format!("row/{number}"), vec![1; 3_000]);
                    (number, leader.commit(commit).await)
                });
            }
            next += rounds;
            let struck = dice.roll(3);
            let enough = dice.roll(rounds as usize);
            for _ in 0..enough {
                if let Some((number, Ok(_))) = commits.join_next().await.map(|ended| ended.unwrap()) {
                    told.push(number);
                }
            }
            match dice.roll(3) {
                0 => nodes.net.cut_off(node(struck), (0..3).map(node)),
                _ => {
                    drop(leader);
                    nodes.stop(struck).await;
                }
            }
            while let Some(ended) = commits.join_next().await {
                if let (number, Ok(_)) = ended.unwrap() {
                    told.push(number);
                }
            }
            nodes.net.heal();
            if nodes.running[struck].is_none() {
                nodes.start(struck, Beginning::Wait);
            }
        }
        let leader = nodes.leader().await;
        until_leads(&leader).await;
        for number in &told {
            let found = value(&*leader, format!("row/{number}").as_bytes()).await;
            assert!(found.is_some(), "seed {seed}: commit {number} was acknowledged and is not there");
        }
        assert!(!told.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_strangers_are_refused() {
    let nodes = Nodes::group(1).await;
    let catalog = nodes.running[0].clone().unwrap();
    done(&*catalog, Commit::new().put("a", "1")).await;
    let before = catalog.standing().borrow().clone();
    let mut dice = Dice::new(5);
    for round in 0..3000 {
        let mut bytes: Vec<u8> = (0..dice.roll(60)).map(|_| dice.roll(256) as u8).collect();
        if let (Some(first), true) = (bytes.first_mut(), round % 2 == 0) {
            *first = 1;
        }
        assert!(!catalog.answer(node(7), bytes).await.is_empty());
    }
    assert_eq!(value(&*catalog, b"a").await.unwrap(), b"1");
    assert_eq!(*catalog.standing().borrow(), before);
}
