//! Lakes with names and second lakes of volumes: copies follow, a lost lake costs what was not copied and no more, and that is named.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::*;
use stoker_lake::{Faults, Lake, TwinLake};
use stoker_node::{LakeOpener, Node, NodeOptions};
use stoker_salvage::{SalvageOptions, StoppedNode, Target, salvage};
use stoker_store::{
    Class, ErrorKind, LakeChange, LakeInfo, Order, ReplicaInfo, Report, Result, Store, TierOrder, TierReport,
    VolumeOptions,
};

const MIB: usize = 1 << 20;

struct Site {
    home: Home,
}

impl Site {
    fn new() -> Site {
        Site { home: Home::new(eager()) }
    }

    /// Where a lake is.
    fn lake(&self, name: &str) -> PathBuf {
        self.home.dir.path().join(format!("lake-{name}"))
    }

    /// A node with the lakes `a` and `b`, and a volume `data` in the first one.
    async fn start(&self) -> Arc<Node> {
        let node = self.home.open().await;
        for name in ["a", "b"] {
            add(&node, name, self.url(name)).await;
        }
        let options = VolumeOptions { lake: Some("lake://a".into()), policy: None };
        node.volume_create("data", options).await.unwrap();
        node
    }

    fn url(&self, name: &str) -> String {
        format!("file://{}", self.lake(name).display())
    }

    /// Files of the volume in a lake.
    fn tree(&self, name: &str) -> Vec<String> {
        tree(&self.lake(name).join("data"))
    }

    fn hide(&self, name: &str) {
        std::fs::rename(self.lake(name), self.lake(&format!("{name}-away"))).unwrap();
    }
}

async fn tiers(node: &Node, order: TierOrder) -> Result<TierReport> {
    match node.operate(Order::Tiers(order)).await? {
        Report::Tiers(report) => Ok(report),
        other => panic!("{other:?}"),
    }
}

async fn add(node: &Node, name: &str, url: String) -> LakeInfo {
    let change = Box::new(LakeChange { url: Some(url), ..LakeChange::default() });
    let order = TierOrder::LakeAdd { name: name.into(), change };
    // The level of a new node rises within its first moments.
    loop {
        match tiers(node, order.clone()).await {
            Ok(TierReport::Lakes(lakes)) => return lakes.into_iter().next().unwrap(),
            Err(fault) if fault.message.contains("level") => tokio::task::yield_now().await,
            other => panic!("{other:?}"),
        }
    }
}

async fn replica(node: &Node) -> ReplicaInfo {
    match tiers(node, TierOrder::Replicas { volume: Some("data".into()) }).await.unwrap() {
        TierReport::Replicas(infos) => infos.into_iter().next().unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn set_replica(node: &Node, lake: &str) -> Result<TierReport> {
    tiers(node, TierOrder::ReplicaSet { volume: "data".into(), lake: Some(lake.into()) }).await
}

/// Waits until something is so.
async fn until(node: &Node, what: &str, is_so: impl Fn(&ReplicaInfo) -> bool) -> ReplicaInfo {
    for _ in 0..3_000 {
        let info = replica(node).await;
        if is_so(&info) {
            return info;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}: {:?}", replica(node).await);
}

async fn caught_up(node: &Node) -> ReplicaInfo {
    until(node, "the replica catches up", |info| info.walked && info.lag_files == 0).await
}

async fn lacking(node: &Node) -> Vec<String> {
    match tiers(node, TierOrder::Lacking { volume: "data".into(), after: None }).await.unwrap() {
        TierReport::Lacking(files, _) => files.into_iter().map(|file| file.key).collect(),
        other => panic!("{other:?}"),
    }
}

async fn put_drained(node: &Node, name: &str, bytes: &[u8]) {
    put(node, name, bytes).await;
    drained(node, name).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lakes_have_names_and_their_secrets_stay_inside() {
    let site = Site::new();
    let node = site.start().await;
    let change = LakeChange {
        url: Some("s3://bucket/p".into()),
        endpoint: Some("http://127.0.0.1:1".into()),
        access_key_id: Some("AKIA".into()),
        secret_access_key: Some("hush-hush".into()),
        storage_class: Some("STANDARD_IA".into()),
        gb_month: Some(23_000),
        labels: [("site".to_owned(), "zrh".to_owned())].into(),
        ..LakeChange::default()
    };
    let order = TierOrder::LakeAdd { name: "cold".into(), change: Box::new(change) };
    assert!(matches!(tiers(&node, order.clone()).await.unwrap(), TierReport::Lakes(_)));
    assert_eq!(tiers(&node, order).await.unwrap_err().kind, ErrorKind::Conflict);
    let TierReport::Lakes(lakes) = tiers(&node, TierOrder::Lakes).await.unwrap() else { panic!() };
    assert_eq!(lakes.iter().map(|lake| lake.name.as_str()).collect::<Vec<_>>(), ["a", "b", "cold"]);
    assert_eq!(lakes[0].volumes, ["data"]);
    assert!(!format!("{lakes:?}").contains("hush"));
    let set = |change: LakeChange| {
        let order = TierOrder::LakeSet { name: "cold".into(), change: Box::new(change) };
        tiers(&node, order)
    };
    let changed =
        set(LakeChange { region: Some("eu-west-1".into()), ..LakeChange::default() }).await.unwrap();
    let TierReport::Lakes(changed) = changed else { panic!() };
    assert_eq!(
        (changed[0].region.as_deref(), changed[0].access_key_id.as_deref()),
        (Some("eu-west-1"), Some("AKIA"))
    );
    for bad in [
        LakeChange { url: Some("ftp://x".into()), ..LakeChange::default() },
        LakeChange { url: Some("s3://b?nonsense=1".into()), ..LakeChange::default() },
        LakeChange { storage_class: Some("no class".into()), ..LakeChange::default() },
        LakeChange { endpoint: Some("nonsense".into()), ..LakeChange::default() },
        LakeChange { region: Some("x".repeat(2_000)), ..LakeChange::default() },
        LakeChange { secret_access_key: Some("with space".into()), ..LakeChange::default() },
    ] {
        assert_eq!(set(bad.clone()).await.unwrap_err().kind, ErrorKind::Invalid, "{bad:?}");
    }
    // A used lake stays where it is, and stays.
    let away = LakeChange { url: Some("file:///elsewhere".into()), ..LakeChange::default() };
    let order = TierOrder::LakeSet { name: "a".into(), change: Box::new(away) };
    assert_eq!(tiers(&node, order).await.unwrap_err().kind, ErrorKind::Invalid);
    let remove = |name: &str| tiers(&node, TierOrder::LakeRemove { name: name.into() });
    assert_eq!(remove("a").await.unwrap_err().kind, ErrorKind::Conflict);
    assert_eq!(remove("none-such").await.unwrap_err().kind, ErrorKind::NotFound);
    remove("cold").await.unwrap();
    // Everything is tried for real.
    let TierReport::Trials(trials) = tiers(&node, TierOrder::LakeCheck { name: "b".into() }).await.unwrap()
    else {
        panic!()
    };
    let faults: Vec<_> = trials.iter().filter(|trial| trial.fault.is_some()).collect();
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(trials.len(), 8, "{trials:?}");
    assert!(tree(&site.lake("b")).is_empty(), "nothing is left");
    // A volume of its own folder; two volumes never share one.
    put_drained(&node, "x", b"1").await;
    assert_eq!(site.tree("a"), ["x"]);
    let inside = VolumeOptions { lake: Some(format!("{}/data/sub", site.url("a"))), policy: None };
    assert_eq!(node.volume_create("other", inside).await.unwrap_err().kind, ErrorKind::Conflict);
    let unknown = VolumeOptions { lake: Some("lake://nobody".into()), policy: None };
    assert_eq!(node.volume_create("other", unknown).await.unwrap_err().kind, ErrorKind::NotFound);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_follow_and_nothing_foreign_is_replaced() {
    let site = Site::new();
    let node = site.start().await;
    for number in 0..10u64 {
        put_drained(&node, &format!("before/{number}"), &pattern(number, 1_000)).await;
    }
    // Somebody else's object, where a copy would go.
    let theirs = site.lake("b").join("data/after");
    std::fs::create_dir_all(&theirs).unwrap();
    std::fs::write(theirs.join("0"), b"theirs").unwrap();
    set_replica(&node, "b").await.unwrap();
    put_drained(&node, "long", &pattern(99, 20 * MIB)).await;
    for number in 0..5u64 {
        put_drained(&node, &format!("after/{number}"), &pattern(100 + number, 2_000)).await;
    }
    // Changed, renamed and deleted while it is copied.
    put_drained(&node, "before/1", b"newer").await;
    delete(&node, "before/2").await.unwrap();
    node.rename("data", &key("before/3"), &key("moved/3"), stoker_store::RenameMode::Replace).await.unwrap();
    let info = until(&node, "all but one is copied", |info| {
        info.walked && info.lag_files == 1 && !info.foreign.is_empty()
    })
    .await;
    assert_eq!(info.foreign, ["after/0"]);
    assert_eq!(std::fs::read(theirs.join("0")).unwrap(), b"theirs");
    // The rename and the delete arrive in the first lake, and then in the second.
    for _ in 0..3_000 {
        if site.tree("a") == site.tree("b") && !site.tree("a").contains(&"before/3".to_owned()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(site.tree("a"), site.tree("b"));
    assert!(!site.tree("b").contains(&"before/2".to_owned()));
    let copy = |name: &str| std::fs::read(site.lake("b").join("data").join(name)).unwrap();
    assert!(copy("long") == pattern(99, 20 * MIB));
    assert_eq!(copy("before/1"), b"newer");
    assert_eq!(copy("moved/3"), pattern(3, 1_000));
    // Whoever owns the foreign object takes it away.
    std::fs::remove_file(theirs.join("0")).unwrap();
    caught_up(&node).await;
    assert_eq!(copy("after/0"), pattern(100, 2_000));
    // Without a replica nothing is copied any more, and what is there stays.
    tiers(&node, TierOrder::ReplicaSet { volume: "data".into(), lake: None }).await.unwrap();
    put_drained(&node, "alone", b"x").await;
    assert!(!site.tree("b").contains(&"alone".to_owned()) && site.tree("b").contains(&"long".to_owned()));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_replicas_are_refused() {
    let site = Site::new();
    let node = site.start().await;
    let refused = async |lake: &str| set_replica(&node, lake).await.unwrap_err().kind;
    assert_eq!(refused("nobody").await, ErrorKind::NotFound);
    assert_eq!(refused("a").await, ErrorKind::Conflict);
    assert_eq!(refused("../x").await, ErrorKind::Invalid);
    add(&node, "inside", format!("{}/data", site.url("a"))).await;
    assert_eq!(refused("inside").await, ErrorKind::Conflict);
    let promote = TierOrder::Promote { volume: "data".into(), to: "b".into() };
    assert_eq!(tiers(&node, promote).await.unwrap_err().kind, ErrorKind::Invalid);
    let none = VolumeOptions { lake: Some("none".into()), policy: None };
    node.volume_create("bare", none).await.unwrap();
    let order = TierOrder::ReplicaSet { volume: "bare".into(), lake: Some("b".into()) };
    assert_eq!(tiers(&node, order).await.unwrap_err().kind, ErrorKind::Invalid);
    set_replica(&node, "b").await.unwrap();
    // A lake that somebody's copies are in is nobody else's.
    let other = VolumeOptions { lake: Some(format!("{}/data", site.url("b"))), policy: None };
    assert_eq!(node.volume_create("other", other).await.unwrap_err().kind, ErrorKind::Conflict);
    // With its replica a volume goes as a whole.
    put_drained(&node, "x", b"1").await;
    caught_up(&node).await;
    delete(&node, "x").await.unwrap();
    node.volume_delete("data").await.unwrap();
    for _ in 0..3_000 {
        if site.tree("a").is_empty() && site.tree("b").is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(site.tree("a").is_empty() && site.tree("b").is_empty());
    node.stop().await;
}

/// Catalog and drives are lost: what the node wrote down beside them says where the lake is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_salvage_finds_lakes_by_their_names() {
    let site = Site::new();
    let node = site.start().await;
    put_drained(&node, "x", b"drained").await;
    node.stop().await;
    drop(node);
    let options = site.home.options();
    std::fs::remove_file(options.dir.join("catalog.redb")).unwrap();
    std::fs::remove_dir_all(site.home.dir.path().join("ring0")).unwrap();
    let secrets = stoker_node::secrets_kept(&options.dir).unwrap();
    let given = SalvageOptions {
        home: StoppedNode { dir: options.dir.clone(), drives: Vec::new(), secrets },
        others: Vec::new(),
        target: Target::Embedded,
        backup: None,
        lake_options: options.lake_options,
        lake_opener: None,
    };
    let report = salvage(&given, &|_, _| {}).await.unwrap();
    assert_eq!(report.volumes, 1, "{report:?}");
    let node = site.home.open_with_new_drives().await;
    assert_eq!(node.volume("data").await.unwrap().lake.as_deref(), Some("lake://a/data"));
    assert_eq!(get(&node, "x").await.unwrap(), b"drained");
    put_drained(&node, "y", b"and on").await;
    assert_eq!(site.tree("a"), ["x", "y"]);
    node.stop().await;
}

/// Two lakes in memory, which refuse and fail as told.
struct Twins {
    home: Home,
    a: Arc<TwinLake>,
    b: Arc<TwinLake>,
}

impl Twins {
    fn new(seed: u64) -> Twins {
        let mut home = Home::new(eager());
        home.policy.class = Class::One;
        Twins { home, a: Arc::new(TwinLake::new(seed)), b: Arc::new(TwinLake::new(seed + 1)) }
    }

    fn options(&self) -> NodeOptions {
        let (a, b) = (self.a.clone(), self.b.clone());
        let open = move |url: &str| match url.starts_with("s3://lake-a/") {
            true => a.clone() as Arc<dyn Lake>,
            false => b.clone() as Arc<dyn Lake>,
        };
        NodeOptions {
            lake: None,
            lake_opener: Some(LakeOpener(Arc::new(open))),
            lake_settle_ms: 300,
            ..self.home.options()
        }
    }

    async fn start(&self) -> Arc<Node> {
        let node = Node::open(self.options()).await.unwrap();
        for name in ["a", "b"] {
            add(&node, name, format!("s3://lake-{name}")).await;
        }
        let options = VolumeOptions { lake: Some("lake://a".into()), policy: None };
        node.volume_create("data", options).await.unwrap();
        node
    }

    /// What a lake holds under the keys of files.
    fn held(lake: &TwinLake) -> BTreeMap<String, Vec<u8>> {
        let objects = lake.objects().into_iter();
        let text = |key: Vec<u8>| String::from_utf8(key).unwrap();
        let files = objects.map(|(key, object)| (text(key), object.body.to_vec()));
        files.filter(|(key, _)| !key.starts_with(".stoker")).collect()
    }

    async fn equal(&self, what: &str) {
        for _ in 0..3_000 {
            self.a.settle();
            self.b.settle();
            if Twins::held(&self.a) == Twins::held(&self.b) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (a, b) = (Twins::held(&self.a), Twins::held(&self.b));
        let differ: Vec<&String> =
            a.keys().chain(b.keys()).filter(|key| a.get(*key) != b.get(*key)).collect();
        panic!("{what}: {differ:?} differ");
    }
}

/// The first lake is lost together with all drives: what the second one has is read on, what it lacks is named, and comes back with
/// the first one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lake_costs_what_was_not_copied_and_no_more() {
    let site = Twins::new(1);
    let node = site.start().await;
    set_replica(&node, "b").await.unwrap();
    for number in 0..20u64 {
        put_drained(&node, &format!("safe/{number}"), &pattern(number, 3_000)).await;
    }
    put_drained(&node, "safe/long", &pattern(77, 20 * MIB)).await;
    put_drained(&node, "twice", b"older").await;
    caught_up(&node).await;
    assert_eq!(Twins::held(&site.a), Twins::held(&site.b));
    site.b.refuse_all(true);
    put_drained(&node, "twice", b"newer").await;
    for number in 0..7u64 {
        put_drained(&node, &format!("late/{number}"), &pattern(200 + number, 4_000)).await;
    }
    let behind = replica(&node).await;
    assert_eq!(behind.lag_files, 8, "{behind:?}");
    assert_eq!(behind.lag_bytes, 7 * 4_000 + 5);
    let order = TierOrder::Promote { volume: "data".into(), to: "b".into() };
    assert_eq!(tiers(&node, order.clone()).await.unwrap_err().kind, ErrorKind::Unavailable);
    node.stop().await;
    drop(node);
    site.b.refuse_all(false);
    site.a.refuse_all(true);
    // Bytes on drives are gone as well, so that nothing hides the loss.
    std::fs::remove_dir_all(site.home.dir.path().join("ring0")).unwrap();
    let drives = site.options().drives.iter().map(|drive| drive.path.clone()).collect();
    let node = Node::open(NodeOptions { new_drives: drives, ..site.options() }).await.unwrap();
    // Reads go on.
    for number in 0..20u64 {
        assert!(get(&node, &format!("safe/{number}")).await.unwrap() == pattern(number, 3_000), "{number}");
    }
    assert!(get(&node, "safe/long").await.unwrap() == pattern(77, 20 * MIB));
    assert!(get(&node, "late/0").await.is_err());
    tiers(&node, order.clone()).await.unwrap();
    let info = until(&node, "b takes over", |info| info.state == "promoted").await;
    let mut expect: Vec<String> = (0..7).map(|number| format!("late/{number}")).collect();
    expect.push("twice".into());
    assert_eq!((info.lacking_files, lacking(&node).await), (8, expect), "{info:?}");
    assert_eq!(info.lacking_bytes, 7 * 4_000 + 5);
    // Asked again, it is done already.
    tiers(&node, order).await.unwrap();
    assert_eq!(node.volume("data").await.unwrap().lake.as_deref(), Some("lake://b/data"));
    assert!(get(&node, "safe/3").await.unwrap() == pattern(3, 3_000));
    assert!(get(&node, "twice").await.is_err(), "never an older one in its place");
    // Writes go on, over what is there and over what is lacking.
    put_drained(&node, "safe/3", b"after").await;
    put_drained(&node, "late/1", b"written again").await;
    put_drained(&node, "new", b"new").await;
    delete(&node, "safe/4").await.unwrap();
    let b = Twins::held(&site.b);
    assert_eq!((b["safe/3"].as_slice(), b["late/1"].as_slice()), (&b"after"[..], &b"written again"[..]));
    node.stop().await;
    drop(node);
    let node = Node::open(site.options()).await.unwrap();
    // The first lake is back, as the second one: what was lacking comes back, and what is newer stays.
    site.a.refuse_all(false);
    set_replica(&node, "a").await.unwrap();
    for _ in 0..3_000 {
        if lacking(&node).await.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(lacking(&node).await, [""; 0]);
    assert_eq!(get(&node, "twice").await.unwrap(), b"newer");
    assert_eq!(get(&node, "late/1").await.unwrap(), b"written again");
    assert!(get(&node, "late/0").await.unwrap() == pattern(200, 4_000));
    caught_up(&node).await;
    // Deleted while it was away: nobody knows that it was not somebody's.
    let mut a = Twins::held(&site.a);
    a.remove("safe/4");
    assert_eq!(a, Twins::held(&site.b));
    assert_eq!(a["twice"], b"newer");
    // And the way back: the first lake is the volume's again, and nothing is missing.
    tiers(&node, TierOrder::Promote { volume: "data".into(), to: "a".into() }).await.unwrap();
    let info = until(&node, "a takes over", |info| info.state == "promoted").await;
    assert_eq!((info.lacking_files, info.rescued_files), (0, 0), "{info:?}");
    site.b.refuse_all(true);
    for number in [0u64, 1, 2, 5, 6] {
        assert!(get(&node, &format!("safe/{number}")).await.unwrap() == pattern(number, 3_000));
    }
    put_drained(&node, "home", b"home").await;
    assert_eq!(Twins::held(&site.a)["home"], b"home");
    node.stop().await;
}

/// Lakes that lose answers, answer late and refuse: in the end both hold the same, and nothing that was written over is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_are_right_whatever_the_lakes_do() {
    for seed in 0..3 {
        let site = Twins::new(100 + seed);
        let node = site.start().await;
        set_replica(&node, "b").await.unwrap();
        site.a.fault_rate(0.05);
        site.b.fault_rate(0.25);
        for round in 0..6u64 {
            for number in 0..12u64 {
                let name = format!("f/{number}");
                match (round + number) % 5 {
                    0 => drop(delete(&node, &name).await),
                    _ => drop(put(&node, &name, &pattern(seed * 1_000 + round * 100 + number, 900)).await),
                }
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        site.a.set_faults(Faults::default());
        site.b.set_faults(Faults::default());
        for number in 0..12u64 {
            let name = format!("f/{number}");
            if node.stat("data", &key(&name)).await.is_ok() {
                drained(&node, &name).await;
            }
        }
        caught_up(&node).await;
        site.equal("copies").await;
        let held = Twins::held(&site.b);
        for number in 0..12u64 {
            let name = format!("f/{number}");
            assert_eq!(get(&node, &name).await.ok().as_ref(), held.get(&name), "{name}");
        }
        assert_eq!(node.conflicts(None).await.unwrap().len(), 0);
        assert!(replica(&node).await.foreign.is_empty());
        node.stop().await;
    }
}

/// A swap of lakes that both work loses nothing, whatever goes on meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_of_living_lakes_loses_nothing() {
    let site = Site::new();
    let node = site.start().await;
    for number in 0..50u64 {
        put_drained(&node, &format!("f/{number}"), &pattern(number, 500)).await;
    }
    set_replica(&node, "b").await.unwrap();
    // Not waited for: some copies are made, some are not; and writes go on.
    let writing = async {
        for number in 0..60u64 {
            put(&node, &format!("w/{}", number % 20), &pattern(1_000 + number, 700)).await;
            if number == 20 {
                let order = TierOrder::Promote { volume: "data".into(), to: "b".into() };
                tiers(&node, order).await.unwrap();
            }
        }
    };
    writing.await;
    let info = until(&node, "b takes over", |info| info.state == "promoted").await;
    assert_eq!(info.lacking_files, 0, "{info:?}");
    for number in 0..20u64 {
        drained(&node, &format!("w/{number}")).await;
    }
    for number in 0..50u64 {
        drained(&node, &format!("f/{number}")).await;
        assert!(get(&node, &format!("f/{number}")).await.unwrap() == pattern(number, 500), "{number}");
    }
    site.hide("a");
    let b = site.lake("b").join("data");
    for number in 0..20u64 {
        let expect = pattern(1_000 + 40 + number, 700);
        assert!(std::fs::read(b.join(format!("w/{number}"))).unwrap() == expect, "{number}");
        assert!(std::fs::read(b.join(format!("f/{number}"))).unwrap() == pattern(number, 500), "{number}");
    }
    assert_eq!(node.conflicts(None).await.unwrap().len(), 0);
    node.stop().await;
}

/// What a dry run says is what is done, and every move is written down with its reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_do_what_their_dry_run_said() {
    let site = Site::new();
    let node = site.start().await;
    let prices = LakeChange {
        writes_1000: Some(5_000),
        reads_1000: Some(400),
        gb_month: Some(23_000),
        ..LakeChange::default()
    };
    tiers(&node, TierOrder::LakeSet { name: "a".into(), change: Box::new(prices) }).await.unwrap();
    for number in 0..25u64 {
        put_drained(&node, &format!("tmp/{number}"), &pattern(number, 2_000)).await;
        put_drained(&node, &format!("keep/{number}"), &pattern(number, 2_000)).await;
    }
    let text = "[budget]\nrequests_per_s = 20\n[[rule]]\nname = \"old\"\nvolumes = [\"data\"]\n\
                when = [\"prefix tmp/\", \"size over 1 KiB\", \"older than 0 days\"]\nthen = \"delete\"\n";
    let plan = async |text: &str| match tiers(&node, TierOrder::PolicyPlan { text: text.into() }).await {
        Ok(TierReport::Plan(plan)) => Ok(plan),
        Ok(other) => panic!("{other:?}"),
        Err(fault) => Err(fault),
    };
    let said = plan(text).await.unwrap();
    assert_eq!((said.looked, said.rules[0].files, said.rules[0].file_bytes), (50, 25, 50_000));
    assert_eq!((said.rules[0].requests, said.is_priced, said.seconds), (50, true, 2));
    assert!(said.rules[0].micros > 0);
    assert_eq!(names(&node, "tmp/", None).await.len(), 25, "a dry run changes nothing");
    let wrong =
        plan("[[rule]]\nname = \"x\"\nvolumes = [\"data\"]\nwhen = [\"now\"]\nthen = \"stage\"").await;
    assert!(wrong.unwrap_err().message.contains("line 4, column 10"));
    let set = TierOrder::PolicySet { name: "tidy".into(), text: text.into() };
    tiers(&node, set).await.unwrap();
    let info = async || match tiers(&node, TierOrder::Policies).await.unwrap() {
        TierReport::Policies(policies) => policies.into_iter().next().unwrap(),
        other => panic!("{other:?}"),
    };
    for _ in 0..3_000 {
        if info().await.passes > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let done = info().await;
    assert_eq!((done.passes, done.moved_files, done.failed_files), (1, 25, 0), "{done:?}");
    assert_eq!((done.requests, done.micros), (said.rules[0].requests, said.rules[0].micros));
    assert_eq!(names(&node, "", None).await.len(), 25);
    let moves = TierOrder::PolicyMoves { name: "tidy".into(), after: None };
    let TierReport::Moves(moves, false) = tiers(&node, moves).await.unwrap() else { panic!() };
    assert_eq!(moves.len(), 25);
    assert!(moves.iter().all(|one| one.result == "done" && one.reason.contains("below tmp/")), "{moves:?}");
    let unknown = TierOrder::PolicyMoves { name: "other".into(), after: None };
    assert_eq!(tiers(&node, unknown).await.unwrap_err().kind, ErrorKind::NotFound);
    tiers(&node, TierOrder::PolicyRemove { name: "tidy".into() }).await.unwrap();
    node.stop().await;
}
