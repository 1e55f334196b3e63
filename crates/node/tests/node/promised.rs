//! Jobs and bandwidth: what a spec wants is held as long as the job needs its data, and checkpoints get windows.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::cluster::Cluster;
use crate::harness::*;
use crate::qos::{floor, measured, report, set};
use stoker_node::Node;
use stoker_store::{
    ErrorKind, JobEnd, JobInfo, JobName, JobOrder, JobQos, JobReport, JobSpec, JobState, JobSubmit,
    JobWindow, JobWindowAsk, QosInfo, Result, Store, UserName,
};

fn name(id: &str) -> JobName {
    JobName { tenant: None, id: id.to_owned() }
}

fn submit(id: &str, floor: u64, ceiling: u64) -> JobSubmit {
    let qos = JobQos { floor_bytes_per_s: floor, ceiling_bytes_per_s: ceiling, interactive: false };
    let spec = JobSpec { qos, reservation_ms: 600_000, time_limit_ms: 600_000, ..JobSpec::default() };
    JobSubmit { id: id.to_owned(), spec, ..JobSubmit::default() }
}

async fn ask(node: &Node, order: JobOrder) -> Result<JobInfo> {
    node.job(order).await?.job()
}

async fn submitted(node: &Node, submit: JobSubmit) -> Result<JobInfo> {
    ask(node, JobOrder::Submit(Box::new(submit))).await
}

async fn end(node: &Node, id: &str) -> JobInfo {
    let order = JobOrder::End { job: name(id), end: JobEnd::Done, reason: String::new() };
    ask(node, order).await.unwrap()
}

async fn until(node: &Node, job: &JobName, what: impl Fn(&JobInfo) -> bool) -> JobInfo {
    for _ in 0..2_400 {
        // Where the lead moves, a question may find nobody for a moment.
        if let Ok(info) = ask(node, JobOrder::Show(job.clone())).await
            && what(&info)
        {
            return info;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("it stays so: {:#?}", ask(node, JobOrder::Show(job.clone())).await);
}

async fn policies(node: &Node) -> Vec<QosInfo> {
    report(node).await.policies
}

fn is_held(info: &JobInfo) -> bool {
    info.state == JobState::Ready && info.qos_enforced
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_job_wants_is_held_until_it_ends() {
    let (home, node) = measured().await;
    let fault = submitted(&node, submit("huge", 2_000_000_000, 0)).await.unwrap_err();
    assert!(fault.kind == ErrorKind::Full && fault.message.contains("900000000 bytes/s"), "{fault}");
    submitted(&node, submit("train", 600_000_000, 700_000_000)).await.unwrap();
    until(&node, &name("train"), is_held).await;
    let policy = policies(&node).await.pop().unwrap();
    let rate = |rate: u64| Some(rate);
    assert_eq!(policy.spec.floor.bytes_per_s, rate(600_000_000));
    assert_eq!(policy.spec.ceiling.bytes_per_s, rate(700_000_000));
    assert_eq!(policy.subject.to_string(), "tenant:default job:train", "as connections say it");

    // What others have is waited for, in turn.
    submitted(&node, submit("next", 500_000_000, 0)).await.unwrap();
    let waits = |info: &JobInfo| info.reason.contains("400000000") || info.reason.contains("300000000");
    let next = until(&node, &name("next"), waits).await;
    assert!(next.state != JobState::Ready && !next.qos_enforced, "{}", next.reason);
    submitted(&node, submit("small", 100_000_000, 0)).await.unwrap();
    until(&node, &name("small"), |info| info.reason.contains("`next` waits for it")).await;
    // A job of another tenant that has the same id is another one.
    let alice = UserName::parse("acme/alice").unwrap();
    submitted(&node, JobSubmit { owner: Some(alice), ..submit("train", 0, 50_000_000) }).await.unwrap();
    until(&node, &JobName { tenant: Some("acme".into()), id: "train".into() }, is_held).await;

    let over = end(&node, "train").await;
    assert!(over.state == JobState::Done && !over.qos_enforced);
    let of_train = policies(&node)
        .await
        .into_iter()
        .filter(|policy| policy.subject.tenant.as_deref() == Some("default"));
    assert!(of_train.into_iter().all(|policy| policy.subject.to_string() != "tenant:default job:train"));
    until(&node, &name("next"), is_held).await;
    until(&node, &name("small"), is_held).await;

    // Whoever leads next finds what is promised, and promises nothing twice.
    let node = home.restart(node).await;
    submitted(&node, submit("last", 0, 10_000_000)).await.unwrap();
    until(&node, &name("last"), is_held).await;
    assert_eq!(policies(&node).await.len(), 4);
    for id in ["next", "small", "last"] {
        ask(&node, JobOrder::Cancel { job: name(id), reason: String::new() }).await.unwrap();
    }
    assert_eq!(policies(&node).await.len(), 1, "that of the other tenant");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_said_about_a_job_counts_and_stays() {
    let (_home, node) = measured().await;
    let mut request = floor("mine", 100_000_000);
    request.subject.tenant = Some("default".into());
    let theirs = set(&node, request.clone()).await.unwrap();
    submitted(&node, submit("mine", 600_000_000, 0)).await.unwrap();
    let job = until(&node, &name("mine"), |info| info.state == JobState::Ready).await;
    assert!(!job.qos_enforced);
    until(&node, &name("mine"), |info| info.notes.iter().any(|note| note.contains(&theirs.id))).await;
    end(&node, "mine").await;
    assert_eq!(policies(&node).await.len(), 1);
    request.request = Some("job@17".into());
    assert_eq!(set(&node, request).await.unwrap_err().kind, ErrorKind::Invalid);
    node.stop().await;
}

async fn window(node: &Arc<Node>, job: &str, wait_ms_max: u64) -> Result<JobWindow> {
    let ask = JobWindowAsk { bytes: 12_500_000_000, in_ms: 0, wait_ms_max: Some(wait_ms_max) };
    match node.job(JobOrder::Window { job: name(job), ask }).await? {
        JobReport::Window(window) => Ok(window),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoints_get_windows_and_who_is_done_makes_room() {
    let (home, node) = measured().await;
    for at in 0..7 {
        submitted(&node, submit(&format!("job-{at}"), 0, 0)).await.unwrap();
    }
    // Each is taken for an eighth of the drives, of which a byte is written twice; a third stays for drains.
    for at in 0..5 {
        let given = window(&node, &format!("job-{at}"), 600_000).await.unwrap();
        assert_eq!((given.wait_ms, given.length_ms), (0, 200_000), "{at}");
    }
    let sixth = window(&node, "job-5", 600_000).await.unwrap();
    assert!((1..=200_000).contains(&sixth.wait_ms) && !sixth.is_crowded, "{sixth:?}");
    assert_eq!(window(&node, "job-6", 0).await.unwrap().wait_ms, 0, "who does not wait is not held up");
    // What was given outlives the node that gave it.
    let node = home.restart(node).await;
    let again = window(&node, "job-5", 600_000).await.unwrap();
    assert!((1..=sixth.wait_ms).contains(&again.wait_ms), "{again:?}");
    for done in ["job-0", "job-1", "job-6", "job-6"] {
        node.job(JobOrder::WindowEnd { job: name(done), bytes: 0 }).await.unwrap();
    }
    assert_eq!(window(&node, "job-0", 600_000).await.unwrap().wait_ms, 0);
    assert_eq!(window(&node, "none", 1).await.unwrap_err().kind, ErrorKind::NotFound);
    end(&node, "job-1").await;
    assert_eq!(window(&node, "job-1", 1).await.unwrap_err().kind, ErrorKind::Conflict);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_lost_costs_no_promise() {
    let mut cluster = Cluster::new(3, lazy()).await;
    submitted(cluster.node(0), submit("one", 0, 50_000_000)).await.unwrap();
    until(cluster.node(1), &name("one"), is_held).await;
    let lost = cluster.lose(0);
    lost.stop().await;
    submitted(cluster.node(1), submit("two", 0, 50_000_000)).await.unwrap();
    until(cluster.node(2), &name("two"), is_held).await;
    assert_eq!(policies(cluster.node(1)).await.len(), 2, "each of them once");
    // All that ask at once, anywhere, have their own.
    let windows = [(1, "one"), (2, "two"), (2, "one"), (1, "two")];
    let asked = windows.map(|(at, job)| window(cluster.node(at), job, 1_000));
    for given in futures_util::future::join_all(asked).await {
        assert!(given.unwrap().wait_ms <= 1_000);
    }
    end(cluster.node(1), "one").await;
    end(cluster.node(2), "two").await;
    assert!(policies(cluster.node(2)).await.is_empty());
    cluster.stop().await;
}
