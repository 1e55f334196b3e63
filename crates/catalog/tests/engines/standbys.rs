//! Copies on other nodes: who follows, who falls out, who may take over, and what nobody loses.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stoker_catalog::engine::{
    Embedded, PrimaryOptions, PromoteOptions, Promotion, Role, Standby, StandbyOptions, WhenAlone, inspect,
};
use stoker_catalog::remote::{CatalogServer, RemoteCatalog, RemoteOptions};
use stoker_catalog::{Catalog, Commit, Epoch, ErrorKind, Outcome, Range, Result, Row, Wire};
use stoker_format::NodeId;
use tokio::task::JoinSet;

use crate::fixture::{CLUSTER, Dice, all, done, full, small, value};
use crate::wires::Way;

/// Long enough that a busy machine drops nobody.
const PATIENCE: Duration = Duration::from_secs(60);
/// Short enough to wait for.
const SHORT: Duration = Duration::from_millis(150);

fn node(number: u8) -> NodeId {
    NodeId([number; 16])
}

/// A place for one node's file.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("catalog")
    }

    fn standby(&self) -> Arc<Standby> {
        Arc::new(Standby::open(&self.path(), CLUSTER, &standby_options()).unwrap())
    }

    fn primary(&self, options: &PrimaryOptions) -> Arc<Embedded> {
        Arc::new(self.try_primary(options).unwrap())
    }

    fn try_primary(&self, options: &PrimaryOptions) -> Result<Embedded> {
        Embedded::open_primary(&self.path(), CLUSTER, &small(), options)
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        // Logs come and go with those who write.
        names.retain(|name| !name.ends_with(".log"));
        names.sort();
        names
    }
}

fn standby_options() -> StandbyOptions {
    StandbyOptions { file: small(), ..StandbyOptions::default() }
}

fn options(ack_timeout: Duration) -> PrimaryOptions {
    PrimaryOptions { ack_timeout, ..PrimaryOptions::new(node(1)) }
}

fn promote_options(number: u8) -> PromoteOptions {
    PromoteOptions { node: node(number), seen_seq: 0, accept_loss: false, timeout: PATIENCE }
}

fn others<const N: usize>(ways: [(u8, &Arc<Way>); N]) -> BTreeMap<NodeId, Arc<dyn Wire>> {
    ways.into_iter().map(|(number, way)| (node(number), Arc::clone(way) as Arc<dyn Wire>)).collect()
}

async fn promoted<const N: usize>(
    standby: &Standby,
    options: &PromoteOptions,
    ways: [(u8, &Arc<Way>); N],
) -> Result<Promotion> {
    standby.promote(options, &others(ways)).await
}

fn is_in_sync(catalog: &Embedded, number: u8) -> bool {
    let replication = catalog.replication().unwrap();
    replication.standbys.iter().any(|standby| standby.node == node(number) && standby.in_sync)
}

/// Waits for something that comes by itself.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn attach(catalog: &Embedded, number: u8, way: &Arc<Way>) {
    catalog.attach(node(number), Arc::clone(way) as Arc<dyn Wire>).unwrap();
    until("a standby in sync", || is_in_sync(catalog, number)).await;
}

async fn everything(catalog: &dyn Catalog) -> Vec<Row> {
    all(catalog, Range::prefix(b"", 1000)).await
}

/// A primary and one standby that is in sync.
async fn pair(options: &PrimaryOptions) -> (Place, Arc<Embedded>, Place, Arc<Standby>, Arc<Way>) {
    let (first, second) = (Place::new(), Place::new());
    let (catalog, standby) = (first.primary(options), second.standby());
    let way = Way::new(standby.clone());
    attach(&catalog, 2, &way).await;
    (first, catalog, second, standby, way)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_has_everything_and_the_old_primary_follows() {
    let (first, catalog, second, standby, _) = pair(&options(PATIENCE)).await;
    for n in 0..50u32 {
        let commit = Commit::new().put(n.to_be_bytes(), vec![7; 300]).add("count", 1);
        done(&*catalog, commit.delete((n / 2).to_be_bytes())).await;
    }
    done(&*catalog, Commit::new().delete_range(5u32.to_be_bytes(), 30u32.to_be_bytes())).await;
    let (rows, seq) = (everything(&*catalog).await, catalog.seq().await.unwrap());
    let epoch = catalog.epoch().unwrap();
    catalog.close().await;

    standby.close();
    assert_eq!(second.try_primary(&options(PATIENCE)).err().unwrap().kind, ErrorKind::Foreign);
    let error = Embedded::open(&second.path(), CLUSTER, &small()).err().unwrap();
    assert!(error.kind == ErrorKind::Foreign && error.message.contains("promote"), "{error}");
    let standby = second.standby();
    let promotion =
        promoted(&standby, &PromoteOptions { seen_seq: seq, ..promote_options(2) }, []).await.unwrap();
    assert_eq!((promotion.seq, promotion.loss), (seq, None));
    assert!(promotion.epoch > epoch);
    let next = second.primary(&PrimaryOptions { node: node(2), ..options(PATIENCE) });
    assert_eq!(everything(&*next).await, rows);
    assert!(next.seq().await.unwrap() >= seq, "numbers never go back");

    let error = first.try_primary(&PrimaryOptions { seen: next.epoch().unwrap(), ..options(PATIENCE) });
    assert_eq!(error.err().unwrap().kind, ErrorKind::Foreign);
    assert_eq!(
        Standby::open(&first.path(), CLUSTER, &standby_options()).err().unwrap().kind,
        ErrorKind::Invalid
    );
    let follower = Arc::new(Standby::open_former(&first.path(), CLUSTER, &standby_options()).unwrap());
    assert_eq!(first.files(), ["catalog", "catalog.aside.0"]);
    let way = Way::new(follower.clone());
    attach(&next, 1, &way).await;
    assert!(done(&*next, Commit::new().put("new", "1")).await > seq);
    let rows = everything(&*next).await;
    next.close().await;
    promoted(&follower, &promote_options(1), []).await.unwrap();
    let back = first.primary(&options(PATIENCE));
    assert_eq!(everything(&*back).await, rows);
    let role = inspect(&first.folder.path().join("catalog.aside.0"), CLUSTER).unwrap().unwrap().role;
    assert_eq!(role, Role::Primary, "what was put aside is whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_acknowledged_or_read_that_no_standby_has() {
    let (_first, catalog, _second, standby, way) = pair(&options(SHORT)).await;
    done(&*catalog, Commit::new().put("a", "1")).await;
    let seq = catalog.seq().await.unwrap();
    way.cut();
    let error = catalog.commit(Commit::new().put("a", "2")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
    assert_eq!(value(&*catalog, b"a").await.unwrap(), b"1");
    assert_eq!(catalog.seq().await.unwrap(), seq);
    until("stalled", || catalog.replication().unwrap().stalled).await;
    let error = catalog.commit(Commit::new().put("a", "3")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    assert!(is_in_sync(&catalog, 2), "who could not be replaced stays");

    let mut watch = catalog.watch(b"a".to_vec());
    way.lead_to(standby);
    while value(&*catalog, b"a").await.unwrap() != b"2" {
        watch.changed().await.unwrap();
    }
    until("moving", || !catalog.replication().unwrap().stalled).await;
    done(&*catalog, Commit::new().value("a", "2").put("a", "4")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_is_said_and_ends_when_the_standby_is_back() {
    let serve = PrimaryOptions { when_alone: WhenAlone::Serve, ..options(SHORT) };
    let (_first, catalog, _second, standby, way) = pair(&serve).await;
    assert!(!catalog.replication().unwrap().alone);
    done(&*catalog, Commit::new().put("a", "1")).await;
    way.cut();
    let alone = done(&*catalog, Commit::new().put("a", "2")).await;
    assert!(catalog.replication().unwrap().alone && !is_in_sync(&catalog, 2));
    // The standby cannot know; the number that nodes saw tells.
    let stale = PromoteOptions { seen_seq: alone, ..promote_options(2) };
    let error = promoted(&standby, &stale, []).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(error.message.contains("went on alone"), "{error}");

    way.lead_to(standby.clone());
    until("back in sync", || is_in_sync(&catalog, 2)).await;
    let seq = done(&*catalog, Commit::new().put("a", "3")).await;
    assert!(!catalog.replication().unwrap().alone);
    assert_eq!(standby.report().unwrap().position.seq, seq);
    catalog.close().await;
    let promotion = promoted(&standby, &PromoteOptions { seen_seq: seq, ..promote_options(2) }, []).await;
    assert_eq!(promotion.unwrap().loss, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_is_accepted_is_told_and_numbers_go_on() {
    let serve = PrimaryOptions { when_alone: WhenAlone::Serve, ..options(SHORT) };
    let (first, catalog, second, standby, way) = pair(&serve).await;
    done(&*catalog, Commit::new().put("a", "1")).await;
    way.cut();
    let lost = done(&*catalog, Commit::new().put("a", "2")).await;
    catalog.close().await;
    let accept = PromoteOptions { seen_seq: lost, accept_loss: true, ..promote_options(2) };
    let promotion = promoted(&standby, &accept, []).await.unwrap();
    assert!(promotion.loss.is_some_and(|loss| loss.contains("commits are only there")));
    let next = second.primary(&PrimaryOptions { node: node(2), ..serve.clone() });
    assert_eq!(value(&*next, b"a").await.unwrap(), b"1");
    assert!(done(&*next, Commit::new().put("b", "1")).await > lost);
    // A copy at the same number, with what was lost, is not taken for one of these.
    std::fs::copy(first.path(), first.folder.path().join("kept")).unwrap();
    let follower = Arc::new(Standby::open_former(&first.path(), CLUSTER, &standby_options()).unwrap());
    attach(&next, 1, &Way::new(follower.clone())).await;
    let rows = everything(&*next).await;
    next.close().await;
    promoted(&follower, &promote_options(1), []).await.unwrap();
    assert_eq!(everything(&*first.primary(&options(SHORT))).await, rows);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_far_behind_gets_a_snapshot() {
    let serve = PrimaryOptions { when_alone: WhenAlone::Serve, tail_bytes: 8 << 10, ..options(SHORT) };
    let (_first, catalog, second, standby, way) = pair(&serve).await;
    way.cut();
    for n in 0..40u32 {
        done(&*catalog, Commit::new().put(n.to_be_bytes(), vec![1; 4000]).delete((n / 3).to_be_bytes()))
            .await;
    }
    let before = std::fs::metadata(second.path()).unwrap();
    way.lead_to(standby.clone());
    until("in sync by a snapshot", || is_in_sync(&catalog, 2)).await;
    use std::os::unix::fs::MetadataExt as _;
    assert_ne!(before.ino(), std::fs::metadata(second.path()).unwrap().ino(), "another file");
    assert_eq!(second.files(), ["catalog"], "what a primary has need not be kept");
    done(&*catalog, Commit::new().put("after", "1")).await;
    let rows = everything(&*catalog).await;
    catalog.close().await;
    promoted(&standby, &promote_options(2), []).await.unwrap();
    assert_eq!(everything(&*second.primary(&options(SHORT))).await, rows);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_standby_in_sync_is_promoted() {
    let (_first, catalog, _second, left, left_way) = pair(&options(SHORT)).await;
    let third = Place::new();
    let stays = third.standby();
    let stays_way = Way::new(stays.clone());
    attach(&catalog, 3, &stays_way).await;
    done(&*catalog, Commit::new().put("a", "1")).await;
    left_way.cut();
    done(&*catalog, Commit::new().put("a", "2")).await;
    assert!(!is_in_sync(&catalog, 2) && is_in_sync(&catalog, 3));

    // It does not know that it fell out, so it must ask.
    let error = promoted(&left, &promote_options(2), []).await.unwrap_err();
    assert!(error.message.contains("cannot be asked"), "{error}");
    let error = promoted(&left, &promote_options(2), [(3, &stays_way)]).await.unwrap_err();
    assert!(error.message.contains(&format!("promote {}", node(3))), "{error}");
    // Neither hurt the primary.
    done(&*catalog, Commit::new().put("a", "3")).await;

    let promotion = promoted(&stays, &promote_options(3), [(2, &Way::new(left))]).await.unwrap();
    assert_eq!(promotion.loss, None);
    // The old primary lives and can acknowledge nothing.
    let error = catalog.commit(Commit::new().put("a", "4")).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Unknown | ErrorKind::Unavailable), "{error}");
    let next =
        third.primary(&PrimaryOptions { node: node(3), when_alone: WhenAlone::Serve, ..options(SHORT) });
    assert_eq!(value(&*next, b"a").await.unwrap(), b"3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_is_fenced_by_its_standbys() {
    let (first, catalog, _second, standby, _) = pair(&options(PATIENCE)).await;
    let third = Place::new();
    let other = third.standby();
    let other_way = Way::new(other.clone());
    attach(&catalog, 3, &other_way).await;
    done(&*catalog, Commit::new().put("a", "1")).await;
    let mut fenced = catalog.fenced();
    // The promoted node is out of its reach; the other standby made a promise.
    let promotion = promoted(&standby, &promote_options(2), [(3, &other_way)]).await.unwrap();
    let error = catalog.commit(Commit::new().put("a", "2")).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Unknown | ErrorKind::Unavailable), "{error}");
    assert_eq!(*fenced.wait_for(Option::is_some).await.unwrap(), Some(promotion.epoch));
    assert_eq!(catalog.get(&[b"a"]).await.unwrap_err().kind, ErrorKind::Unavailable);
    catalog.close().await;
    // It remembers, even if nobody tells it.
    assert_eq!(first.try_primary(&options(PATIENCE)).err().unwrap().kind, ErrorKind::Foreign);
    assert_eq!(inspect(&first.path(), CLUSTER).unwrap().unwrap().promised, promotion.epoch);
}

/// A group reached the standby, and the primary lost its power before its own file had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_ahead_is_put_right() {
    let (first, catalog, second, standby, way) = pair(&options(SHORT)).await;
    done(&*catalog, Commit::new().put("a", "1")).await;
    // Nothing is being written, so this is what a loss of power would leave.
    let log = first.path().with_extension("log");
    let image = [first.path(), log].map(|path| (std::fs::read(&path).unwrap(), path));
    way.answers_lost(true);
    assert_eq!(catalog.commit(Commit::new().put("a", "lost")).await.unwrap_err().kind, ErrorKind::Unknown);
    catalog.close().await;
    let ahead = standby.report().unwrap().position;
    image.iter().for_each(|(bytes, path)| std::fs::write(path, bytes).unwrap());
    way.answers_lost(false);

    let catalog = first.primary(&options(Duration::from_secs(30)));
    catalog.attach(node(2), way.clone()).unwrap();
    until("readable", || is_in_sync(&catalog, 2)).await;
    assert_eq!(value(&*catalog, b"a").await.unwrap(), b"1");
    let seq = done(&*catalog, Commit::new().put("a", "2")).await;
    assert!(seq >= ahead.seq && standby.report().unwrap().position.epoch > ahead.epoch);
    assert_eq!(second.files(), ["catalog", "catalog.aside.0"], "what only the standby had is kept");
    catalog.close().await;
    promoted(&standby, &promote_options(2), []).await.unwrap();
    let next = second.primary(&PrimaryOptions { node: node(2), ..options(SHORT) });
    assert_eq!(value(&*next, b"a").await.unwrap(), b"2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_detached_is_waited_for_no_longer() {
    let (first, catalog, _second, _standby, way) = pair(&options(SHORT)).await;
    catalog.close().await;
    let error = Embedded::open(&first.path(), CLUSTER, &small()).err().unwrap();
    assert!(error.kind == ErrorKind::Foreign && error.message.contains("standbys"), "{error}");
    way.cut();
    let catalog = first.primary(&options(SHORT));
    catalog.attach(node(2), way).unwrap();
    assert_eq!(catalog.get(&[b"a"]).await.unwrap_err().kind, ErrorKind::Unavailable);
    catalog.detach(node(2)).await.unwrap();
    until("readable", || !catalog.replication().unwrap().stalled).await;
    let mut tries = 0;
    while catalog.get(&[b"a"]).await.is_err() {
        tries += 1;
        assert!(tries < 100_000);
        tokio::task::yield_now().await;
    }
    done(&*catalog, Commit::new().put("a", "1")).await;
    assert_eq!(catalog.replication().unwrap().standbys, []);
    catalog.close().await;
    let alone = Embedded::open(&first.path(), CLUSTER, &small()).unwrap();
    assert_eq!(value(&alone, b"a").await.unwrap(), b"1");
}

/// A commit whose answer was lost with its primary is done once, and the promoted standby says so, whether it
/// learned of it by following or by a snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_found_at_the_promoted_standby() {
    for by_snapshot in [false, true] {
        let (first, second) = (Place::new(), Place::new());
        let (catalog, standby) = (first.primary(&options(PATIENCE)), second.standby());
        let to_standby = Way::new(standby.clone());
        if !by_snapshot {
            attach(&catalog, 2, &to_standby).await;
        }
        let serve = |catalog: &Arc<Embedded>| {
            Arc::new(CatalogServer::embedded(catalog.clone(), Epoch::default(), |_| {}))
        };
        let way = Way::new(serve(&catalog));
        let remote = Arc::new(RemoteCatalog::new(way.clone(), 1, &RemoteOptions::default()));
        done(&*remote, Commit::new().add("count", 1)).await;
        way.answers_lost(true);
        let waiting = tokio::spawn({
            let remote = remote.clone();
            async move { remote.commit(Commit::new().add("count", 1)).await }
        });
        while value(&*catalog, b"count").await != Some(2i64.to_le_bytes().to_vec()) {
            tokio::task::yield_now().await;
        }
        way.cut();
        if by_snapshot {
            // Nothing of this is in a tail that such a primary reads.
            catalog.close().await;
            let few = PrimaryOptions { tail_bytes: 1, ..options(PATIENCE) };
            let again = first.primary(&few);
            done(&*again, Commit::new().put("other", "1")).await;
            attach(&again, 2, &to_standby).await;
            again.close().await;
        }
        let row = standby.report().unwrap();
        catalog.close().await;
        promoted(&standby, &promote_options(2), []).await.unwrap();
        let next = second.primary(&PrimaryOptions { node: node(2), ..options(PATIENCE) });
        assert!(next.seq().await.unwrap() >= row.position.seq);
        way.lead_to(serve(&next));
        way.answers_lost(false);
        let Outcome::Done { seq } = waiting.await.unwrap().unwrap() else { panic!("nothing was checked") };
        let row = next.get(&[b"count"]).await.unwrap().remove(0).unwrap();
        assert_eq!((row.value, row.seq), (2i64.to_le_bytes().to_vec(), seq), "by snapshot: {by_snapshot}");
    }
}

/// What a task was told is done.
#[derive(Debug, Clone, Copy)]
struct Told {
    task: u64,
    round: u64,
    seq: u64,
}

fn halves(task: u64) -> [Vec<u8>; 2] {
    ["a", "b"].map(|half| format!("task/{task}/{half}").into_bytes())
}

/// Commits until the catalog refuses for good, or enough is done.
async fn commit_on(catalog: Arc<Embedded>, task: u64, start: u64, rounds: u64) -> Vec<Told> {
    let mut told = Vec::new();
    for round in start..start + rounds {
        let [a, b] = halves(task);
        let commit = Commit::new().put(a, round.to_le_bytes()).put(b, round.to_le_bytes()).add("sum", 1);
        match catalog.commit(commit).await {
            Ok(Outcome::Done { seq }) => told.push(Told { task, round, seq }),
            Ok(Outcome::Failed { .. }) => panic!("nothing was checked"),
            Err(error) if error.kind == ErrorKind::Closed => break,
            Err(error) => {
                assert!(matches!(error.kind, ErrorKind::Unknown | ErrorKind::Unavailable), "{error}");
                tokio::task::yield_now().await;
            }
        }
    }
    told
}

/// Everything that anybody was told is there, and no half of anything.
async fn audit(catalog: &dyn Catalog, told: &[Told], seed: u64) {
    let seq = catalog.seq().await.unwrap();
    for told in told {
        let [a, b] = halves(told.task);
        let rows = catalog.get(&[&a, &b]).await.unwrap();
        let rows: Vec<Row> =
            rows.into_iter().map(|row| row.unwrap_or_else(|| panic!("seed {seed}: {told:?}"))).collect();
        assert_eq!(
            (rows[0].seq, &rows[0].value),
            (rows[1].seq, &rows[1].value),
            "seed {seed}: half a commit"
        );
        let found = u64::from_le_bytes(rows[0].value.as_slice().try_into().unwrap());
        assert!(
            found >= told.round && rows[0].seq >= told.seq && seq >= told.seq,
            "seed {seed}: {told:?}, {found}"
        );
    }
}

/// Three nodes over bad ways; the primary is lost at any moment, or starts again, and standbys come and go.
async fn storm(seed: u64) {
    let mut dice = Dice::new(seed);
    let mut places = [Place::new(), Place::new(), Place::new()];
    let mut told: Vec<Told> = Vec::new();
    let mut serving = 0;
    let mut start = 0;
    let mut standbys: Vec<Option<Arc<Standby>>> = vec![None, None, None];
    let mut seen = Epoch::default();
    for turn in 0..4 {
        let options = PrimaryOptions {
            node: node(serving as u8 + 1),
            tail_bytes: if dice.roll(2) == 0 { 4 << 10 } else { 1 << 20 },
            seen,
            ..options(Duration::from_millis(500))
        };
        let catalog = places[serving].primary(&options);
        seen = seen.max(catalog.epoch().unwrap());
        let mut ways = BTreeMap::new();
        for other in (0..3).filter(|other| *other != serving) {
            let standby = standbys[other].take().unwrap_or_else(|| places[other].standby());
            let way = Way::bad(standby.clone(), 40, seed * 31 + turn * 7 + other as u64);
            catalog.attach(node(other as u8 + 1), way.clone()).unwrap();
            standbys[other] = Some(standby);
            ways.insert(other, way);
        }
        until("somebody follows", || (1..=3).any(|number| is_in_sync(&catalog, number))).await;
        audit(&*catalog, &told, seed).await;
        let rounds = if full() { 60 } else { 20 };
        let mut tasks = JoinSet::new();
        for task in 0..4 {
            tasks.spawn(commit_on(catalog.clone(), task, start, rounds));
        }
        start += rounds;
        // The moment is a number of commits and not a time.
        let before = catalog.seq().await.unwrap();
        let moment = before + 1 + dice.roll(rounds as usize * 2) as u64;
        while catalog.seq().await.is_ok_and(|seq| seq < moment) && !tasks.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            while let Some(ended) = tasks.try_join_next() {
                told.extend(ended.unwrap());
            }
            if dice.roll(40) == 0 {
                // A standby dies and comes back from its file.
                let other = *ways.keys().nth(dice.roll(2)).unwrap();
                ways[&other].cut();
                standbys[other].take().unwrap().close();
                standbys[other] = Some(places[other].standby());
                ways[&other].lead_to(standbys[other].clone().unwrap());
            }
        }
        // From this moment the primary reaches nobody.
        ways.values().for_each(|way| way.cut());
        let lost = dice.roll(3) != 0;
        catalog.close().await;
        while let Some(ended) = tasks.join_next().await {
            told.extend(ended.unwrap());
        }
        if lost {
            serving = take_over(&mut places, &mut standbys, serving, &told, seed).await;
        }
    }
    assert!(!told.is_empty());
}

/// Loses the primary and promotes whoever may be; gives the new one.
async fn take_over(
    places: &mut [Place; 3],
    standbys: &mut [Option<Arc<Standby>>],
    lost: usize,
    told: &[Told],
    seed: u64,
) -> usize {
    let seen_seq = told.iter().map(|told| told.seq).max().unwrap_or(0);
    let alive: Vec<usize> = (0..3).filter(|other| *other != lost).collect();
    for (one, other) in [(alive[0], alive[1]), (alive[1], alive[0])] {
        let way = Way::new(standbys[other].clone().unwrap());
        let number = one as u8 + 1;
        let options = PromoteOptions { seen_seq, ..promote_options(number) };
        let standby = standbys[one].clone().unwrap();
        match promoted(&standby, &options, [(other as u8 + 1, &way)]).await {
            Ok(promotion) => {
                assert_eq!(promotion.loss, None);
                standbys[one] = None;
                // Its drive is gone, or it comes back as a standby.
                if seed.is_multiple_of(2) {
                    places[lost] = Place::new();
                } else {
                    let former = Standby::open_former(&places[lost].path(), CLUSTER, &standby_options());
                    standbys[lost] = Some(Arc::new(former.unwrap()));
                }
                return one;
            }
            Err(error) => assert!(error.message.contains("fell behind"), "seed {seed}: {error}"),
        }
    }
    panic!("seed {seed}: nobody may be promoted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_nothing_acknowledged_is_lost() {
    let seeds = if full() { 60 } else { 4 };
    for seed in 1..=seeds {
        storm(seed).await;
    }
}

/// Requests of strangers are refused, and hurt nothing.
#[tokio::test]
async fn bytes_of_strangers_are_refused() {
    let place = Place::new();
    let standby = place.standby();
    let before = standby.report().unwrap();
    let mut dice = Dice::new(5);
    for round in 0..3000 {
        let mut bytes: Vec<u8> = (0..dice.roll(60)).map(|_| dice.roll(256) as u8).collect();
        if let (Some(first), true) = (bytes.first_mut(), round % 2 == 0) {
            // The version; what follows has an epoch of zero, which nobody has.
            *first = 1;
            bytes.splice(1..1, [0; 18]);
        }
        if round % 2 == 1 && bytes.first() == Some(&1) {
            continue;
        }
        assert!(!standby.answer(bytes).await.is_empty());
    }
    assert_eq!(standby.report().unwrap(), before);
}
