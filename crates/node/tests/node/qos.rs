//! Admission (R16): what uses drives, links and lakes is counted by whose it is, and policies promise only what there is.

use crate::harness::cluster::Cluster;
use crate::harness::*;
use stoker_node::Node;
use stoker_store::{
    Class, ErrorKind, JobLabel, Order, QosInfo, QosRate, QosReport, QosRequest, QosSpec, QosSubject, Report,
    Result, SetState, Store, VolumePolicy,
};

fn of_job(job: &str) -> QosSubject {
    QosSubject { job: Some(JobLabel::parse(job).unwrap()), ..QosSubject::default() }
}

fn bytes(rate: u64) -> QosRate {
    QosRate { bytes_per_s: Some(rate), ops_per_s: None }
}

pub fn floor(job: &str, rate: u64) -> QosRequest {
    let spec = QosSpec { floor: bytes(rate), ..QosSpec::default() };
    QosRequest { subject: of_job(job), spec, export: None, request: None, is_new: false }
}

pub async fn set(node: &Node, request: QosRequest) -> Result<QosInfo> {
    match node.operate(Order::QosSet(Box::new(request))).await? {
        Report::QosPolicy(info) => Ok(*info),
        other => panic!("{other:?}"),
    }
}

pub async fn report(node: &Node) -> QosReport {
    match node.operate(Order::Qos).await.unwrap() {
        Report::Qos(report) => *report,
        other => panic!("{other:?}"),
    }
}

/// Of a number of admission, what one class did with one kind of resource.
async fn admitted(node: &Node, name: &str, resource: &str, class: &str) -> f64 {
    let has = |labels: &[(String, String)], name: &str, value: &str| {
        labels.iter().any(|(known, is)| known == name && is == value)
    };
    let counters = node.counters().await.unwrap();
    let fits = counters.iter().filter(|counter| {
        counter.name == name
            && has(&counter.labels, "resource", resource)
            && has(&counter.labels, "class", class)
    });
    fits.map(|counter| counter.value).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_is_admitted_as_what_it_is() {
    let home = Home::new(eager());
    let node = home.start().await;
    put(&node, "a", &pattern(1, 3 << 20)).await;
    drained(&node, "a").await;
    for (resource, class) in [("drive", "client"), ("lake", "drain")] {
        assert!(admitted(&node, "admission_bytes_total", resource, class).await >= 3e6, "{resource} {class}");
    }
    let info = set_begin(&node, "run/step-1/", 1).await.unwrap();
    set_add(&node, info.set, 0, "run/step-1/shard", &pattern(2, 1 << 20)).await.unwrap();
    assert!(admitted(&node, "admission_bytes_total", "drive", "checkpoint").await >= 1e6);
    assert_eq!(admitted(&node, "admission_refused_total", "drive", "client").await, 0.0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_class_goes_over_the_wire() {
    let policy = VolumePolicy { class: Class::Two, ..lazy() };
    let cluster = Cluster::new(2, policy).await;
    let info = set_begin(cluster.node(0), "run/step-1/", 1).await.unwrap();
    set_add(cluster.node(0), info.set, 0, "run/step-1/shard", &pattern(2, 1 << 20)).await.unwrap();
    assert_eq!(cluster.node(0).set_publish("data", info.set).await.unwrap().state, SetState::Published);
    for (at, resource) in [(0, "drive"), (0, "link"), (1, "drive")] {
        let bytes = admitted(cluster.node(at), "admission_bytes_total", resource, "checkpoint").await;
        assert!(bytes >= 1e6, "{resource} of {at}: {bytes}");
    }
    cluster.stop().await;
}

/// A node whose drive is known to do 1 GB/s from an earlier boot.
pub async fn measured() -> (Home, std::sync::Arc<Node>) {
    let home = Home::new(lazy());
    let node = home.start().await;
    let drive = node.status().await.unwrap().rings[0].drive.clone();
    node.stop().await;
    drop(node);
    let known = format!(r#"{{"{drive}": {{"bytes_per_s": 1000000000, "ops_per_s": 100000}}}}"#);
    std::fs::write(home.options().dir.join("capacities.json"), known).unwrap();
    let node = home.open().await;
    while report(&node).await.capacity.is_none() {
        tokio::task::yield_now().await;
    }
    (home, node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_floor_is_promised_that_there_is_not() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let fault = set(&node, floor("train", 1_000_000)).await.unwrap_err();
    assert!(fault.kind == ErrorKind::Full && fault.message.contains("not known yet"), "{fault}");
    node.stop().await;
    let (home, node) = measured().await;
    let fault = set(&node, floor("train", 2_000_000_000)).await.unwrap_err();
    assert!(fault.kind == ErrorKind::Full && fault.message.contains("900000000 bytes/s"), "{fault}");
    set(&node, floor("train", 600_000_000)).await.unwrap();
    let fault = set(&node, floor("other", 400_000_000)).await.unwrap_err();
    assert!(fault.kind == ErrorKind::Full && fault.message.contains("300000000 bytes/s"), "{fault}");
    // What is its own may be exchanged for more.
    set(&node, floor("train", 900_000_000)).await.unwrap();
    assert_eq!(report(&node).await.free.bytes_per_s, Some(0));
    set(&node, floor("train", 500_000_000)).await.unwrap();
    set(&node, floor("other", 400_000_000)).await.unwrap();
    // Drives hold it, also after a restart.
    let given = async |node: &Node| {
        let mut given: Vec<_> = report(node).await.policies.iter().map(|one| one.given.bytes_per_s).collect();
        given.sort();
        given
    };
    let node = home.restart(node).await;
    while given(&node).await != [Some(400_000_000), Some(500_000_000)] {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // Reads and writes of a job that has a floor are as sound as any.
    let job = JobLabel::parse("train").unwrap();
    stoker_store::in_job(Some(job), async {
        put(&node, "x", &pattern(5, 9 << 20)).await;
        assert_eq!(get(&node, "x").await.unwrap(), pattern(5, 9 << 20));
    })
    .await;
    let id = report(&node).await.policies[0].id.clone();
    assert_eq!(node.operate(Order::QosUnset { id: id.clone() }).await.unwrap(), Report::Done);
    assert_eq!(node.operate(Order::QosUnset { id }).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(report(&node).await.policies.len(), 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_who_ask_at_once_are_not_promised_the_same() {
    let (_home, node) = measured().await;
    let ask = |job: &'static str| set(&node, floor(job, 500_000_000));
    let (one, two, three) = tokio::join!(ask("one"), ask("two"), ask("three"));
    let all = [one, two, three];
    assert_eq!(all.iter().filter(|asked| asked.is_ok()).count(), 1, "{all:?}");
    assert!(all.iter().flat_map(|asked| asked.as_ref().err()).all(|fault| fault.kind == ErrorKind::Full));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_twice_is_carried_out_once() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let export = |ceiling: u64, key: &str| QosRequest {
        subject: QosSubject { volume: Some("data".into()), ..of_job("train") },
        spec: QosSpec { ceiling: bytes(ceiling), ..QosSpec::default() },
        export: Some("run/".into()),
        request: Some(key.into()),
        is_new: true,
    };
    let first = set(&node, export(1 << 30, "k1")).await.unwrap();
    assert_eq!(set(&node, export(1 << 30, "k1")).await.unwrap(), first);
    assert_eq!(set(&node, export(2 << 30, "k1")).await.unwrap_err().kind, ErrorKind::Conflict);
    assert_eq!(
        set(&node, export(1 << 30, "k2")).await.unwrap_err().kind,
        ErrorKind::Conflict,
        "there is one"
    );
    let mut nowhere = export(1, "k3");
    nowhere.subject.volume = Some("nowhere".into());
    assert_eq!(set(&node, nowhere).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(report(&node).await.policies.len(), 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ceiling_holds_its_job_and_nobody_else() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let spec = QosSpec { ceiling: bytes(16 << 20), burst_ms: 1, ..QosSpec::default() };
    let request = QosRequest { spec, ..floor("greedy", 1) };
    set(&node, request).await.unwrap();
    put(&node, "free", &pattern(1, 6 << 20)).await;
    assert_eq!(get(&node, "free").await.unwrap(), pattern(1, 6 << 20));
    assert_eq!(admitted(&node, "admission_waits_total", "ceiling", "client").await, 0.0);
    let job = JobLabel::parse("greedy").unwrap();
    stoker_store::in_job(Some(job), async {
        put(&node, "held", &pattern(2, 6 << 20)).await;
        // Whoever gives up gives its place back.
        let file = node.open("data", &key("held")).await.unwrap();
        for _ in 0..20 {
            let read = file.read(0, 1 << 20);
            let _ = tokio::time::timeout(std::time::Duration::from_millis(1), read).await;
        }
        assert_eq!(get(&node, "held").await.unwrap(), pattern(2, 6 << 20));
    })
    .await;
    assert!(admitted(&node, "admission_waits_total", "ceiling", "client").await > 0.0);
    assert_eq!(admitted(&node, "admission_waiting", "ceiling", "client").await, 0.0, "nobody waits any more");
    node.stop().await;
}
