//! Jobs: the data is there before the job is, is held as long as somebody needs it, and nothing stays behind.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::*;
use stoker_node::Node;
use stoker_store::{
    ErrorKind, JobAccess, JobEnd, JobInfo, JobMount, JobName, JobOrder, JobReport, JobSpec, JobState,
    JobSubmit, Order, Store, Tier,
};

const MIB: usize = 1 << 20;

fn name(id: &str) -> JobName {
    JobName { tenant: None, id: id.to_owned() }
}

fn mount(source: &str, target: &str) -> JobMount {
    JobMount {
        source: source.to_owned(),
        target: target.to_owned(),
        tier_hint: Tier::Hot,
        access: JobAccess::ReadOnly,
        is_default: false,
    }
}

fn submit(id: &str, sources: &[&str]) -> JobSubmit {
    let mounts = sources.iter().enumerate().map(|(at, source)| mount(source, &format!("/in/{at}"))).collect();
    let spec = JobSpec { mounts, reservation_ms: 600_000, time_limit_ms: 600_000, ..JobSpec::default() };
    JobSubmit { id: id.to_owned(), spec, ..JobSubmit::default() }
}

async fn ask(node: &Node, order: JobOrder) -> stoker_store::Result<JobInfo> {
    node.job(order).await?.job()
}

async fn submitted(node: &Node, submit: JobSubmit) -> JobInfo {
    ask(node, JobOrder::Submit(Box::new(submit))).await.unwrap()
}

async fn show(node: &Node, id: &str) -> JobInfo {
    ask(node, JobOrder::Show(name(id))).await.unwrap()
}

async fn until(node: &Node, id: &str, what: impl Fn(&JobInfo) -> bool) -> JobInfo {
    for _ in 0..1_200 {
        let job = show(node, id).await;
        if what(&job) {
            return job;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("it stays so: {:#?}", show(node, id).await);
}

/// A volume whose files are in the lake alone.
async fn in_the_lake_only(home: &Home, files: &[(&str, Vec<u8>)]) -> Arc<Node> {
    let node = home.start().await;
    for (file, bytes) in files {
        put(&node, file, bytes).await;
        drained(&node, file).await;
    }
    // New drives know nothing of what was there.
    node.stop().await;
    drop(node);
    std::fs::remove_dir_all(home.dir.path().join("ring0")).unwrap();
    home.open_with_new_drives().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_job_reads_is_there_before_it_starts_and_is_let_go_when_it_ends() {
    let home = Home::new(eager());
    let files = [("set/a", pattern(1, 9 * MIB + 5)), ("set/b", pattern(2, 3)), ("settle", pattern(3, MIB))];
    let node = in_the_lake_only(&home, &files).await;
    let before = counter(&node, "lake_read_bytes_total").await;
    submitted(&node, submit("train", &["s3://data/set", "s3://data/set/b"])).await;
    let job = until(&node, "train", |job| job.state == JobState::Ready).await;
    assert_eq!(job.readiness(), Some(1.0));
    let bytes = (9 * MIB + 8) as u64;
    assert_eq!(
        (job.sources[0].files, job.sources[0].bytes),
        (2, bytes),
        "not what only begins with the same word"
    );
    assert_eq!(job.sources[1].bytes, 3);
    assert!(job.steps.iter().any(|step| step.state == JobState::Staging), "{:?}", job.steps);
    let staged = counter(&node, "lake_read_bytes_total").await - before;
    assert_eq!(staged, bytes as f64, "each byte is asked for once");
    assert_eq!(counter(&node, "jobs_held_bytes").await, bytes as f64);
    let found = node.job(JobOrder::Readiness { job: name("train"), nodes: Vec::new() }).await.unwrap();
    let JobReport::Readiness(found) = found else { panic!("{found:?}") };
    assert_eq!((found.share, found.bytes, found.nodes[0].own_bytes), (1.0, bytes + 3, bytes + 3));

    ask(&node, JobOrder::Start { job: name("train"), nodes: vec!["here".into()] }).await.unwrap();
    for (file, bytes) in &files[..2] {
        assert!(get(&node, file).await.unwrap() == *bytes);
    }
    let read = counter(&node, "lake_read_bytes_total").await - before - staged;
    // A drive that is late on a busy machine is given company by the lake.
    let hedged = counter(&node, "read_hedges_total").await * f64::from(4 << 20);
    assert!(read <= hedged, "no byte comes from the lake while it runs: {read}, {hedged}");
    let over = ask(&node, JobOrder::End { job: name("train"), end: JobEnd::Done, reason: String::new() })
        .await
        .unwrap();
    assert_eq!(over.state, JobState::Done);
    for _ in 0..400 {
        if counter(&node, "jobs_held_bytes").await == 0.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!(counter(&node, "jobs_held_bytes").await, 0.0, "nothing stays pinned");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_where_it_was_after_a_restart_and_one_that_nobody_starts_ends() {
    let home = Home::new(eager());
    let node = in_the_lake_only(&home, &[("set/a", pattern(1, 5 * MIB))]).await;
    let mut soon = submit("soon", &["s3://data/set"]);
    soon.spec.reservation_ms = 8_000;
    submitted(&node, soon).await;
    submitted(&node, submit("later", &["s3://data/set"])).await;
    until(&node, "later", |job| job.state == JobState::Ready).await;
    let node = home.restart(node).await;
    let job = until(&node, "soon", |job| job.state.is_over()).await;
    assert_eq!(job.state, JobState::Failed);
    assert!(job.reason.contains("nobody started it"), "{}", job.reason);
    let job = until(&node, "later", |job| job.state == JobState::Ready && job.readiness() == Some(1.0)).await;
    assert_eq!(job.sources[0].resident_bytes, 5 * MIB as u64);
    // What the rings say, not what was asked for.
    let held = async || counter(&node, "jobs_held_bytes").await;
    for _ in 0..800 {
        if held().await > 0.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!(held().await, 5.0 * MIB as f64, "it is held again");
    ask(&node, JobOrder::Cancel { job: name("later"), reason: "enough".into() }).await.unwrap();
    let jobs = node
        .job(JobOrder::List { tenant: None, state: None, with_over: true, after: None, limit: 10 })
        .await
        .unwrap();
    let JobReport::Jobs { jobs, more } = jobs else { panic!() };
    let states: Vec<_> = jobs.iter().map(|job| (job.id.as_str(), job.state)).collect();
    assert_eq!((states, more), (vec![("later", JobState::Cancelled), ("soon", JobState::Failed)], false));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_is_there_when_a_job_starts_and_in_the_lake_when_it_is_done() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let mut job = submit("out", &[]);
    job.project = Some("vision".into());
    job.spec.output = Some("s3://data/{project}/{allocation_id}/".into());
    job.spec.checkpoint = true;
    let info = submitted(&node, job).await;
    assert_eq!(info.spec.output.as_deref(), Some("stoker://data/vision/out"));
    assert_eq!(info.checkpoints.as_deref(), Some("stoker://data/vision/out/checkpoints"));
    until(&node, "out", |job| job.state == JobState::Ready).await;
    let started = ask(&node, JobOrder::Start { job: name("out"), nodes: Vec::new() }).await.unwrap();
    assert_eq!(started.state, JobState::Running);
    assert_eq!(
        names(&node, "vision/", None).await,
        ["vision/out/", "vision/out/checkpoints/"],
        "the directories are there"
    );
    put(&node, "vision/out/result", b"42").await;
    let ended =
        ask(&node, JobOrder::End { job: name("out"), end: JobEnd::Failed, reason: "exit code 3".into() });
    let ended = ended.await.unwrap();
    assert_eq!(ended.state, JobState::Draining);
    let job = until(&node, "out", |job| job.state.is_over()).await;
    assert_eq!(job.state, JobState::Failed);
    assert_eq!(std::fs::read(home.lake().join("data/vision/out/result")).unwrap(), b"42");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_is_said_at_once() {
    let home = Home::new(lazy());
    let node = home.start().await;
    put(&node, "set/a", b"x").await;
    let refused = async |submit: JobSubmit| ask(&node, JobOrder::Submit(Box::new(submit))).await.unwrap_err();
    let fault = refused(submit("j", &["s3://data/nothing"])).await;
    assert_eq!((fault.kind, fault.message.contains("is not there")), (ErrorKind::NotFound, true), "{fault}");
    let fault = refused(submit("j", &["s3://nowhere/x"])).await;
    assert!(fault.kind == ErrorKind::NotFound && fault.message.contains("no volume `nowhere`"), "{fault}");
    let fault = refused(submit("a/b", &[])).await;
    assert_eq!(fault.kind, ErrorKind::Invalid, "{fault}");
    let mut large = submit("j", &[]);
    large.spec.scratch_per_node = 1 << 50;
    let fault = refused(large).await;
    assert!(fault.kind == ErrorKind::Full && fault.message.contains("no node has"), "{fault}");

    let mut first = submit("j", &["s3://data/set"]);
    first.again = Some("word".into());
    submitted(&node, first.clone()).await;
    submitted(&node, first).await;
    let fault = refused(submit("j", &["s3://data/set"])).await;
    assert!(fault.kind == ErrorKind::Conflict && fault.message.contains("a job `j` already"), "{fault}");
    // Its only file is on drives, and in no lake: there is nothing to wait for.
    until(&node, "j", |job| job.state == JobState::Ready).await;
    ask(&node, JobOrder::Cancel { job: name("j"), reason: String::new() }).await.unwrap();
    let fault = ask(&node, JobOrder::Start { job: name("j"), nodes: Vec::new() }).await.unwrap_err();
    assert!(fault.kind == ErrorKind::Conflict && fault.message.contains("is over"), "{fault}");
    assert_eq!(ask(&node, JobOrder::Show(name("none"))).await.unwrap_err().kind, ErrorKind::NotFound);
    assert!(node.operate(Order::Level).await.is_ok());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_waits_and_writers_are_not_stopped() {
    let home = Home::new(eager());
    let files: Vec<(String, Vec<u8>)> =
        (0..6).map(|at| (format!("set-{at}/file"), pattern(at, 24 * MIB))).collect();
    let files: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let node = in_the_lake_only(&home, &files).await;
    for at in 0..6 {
        submitted(&node, submit(&format!("job-{at}"), &[&format!("s3://data/set-{at}")])).await;
    }
    until(&node, "job-0", |job| job.state == JobState::Ready).await;
    let waiting = until(&node, "job-5", |job| job.reason.contains("room")).await;
    assert_eq!(waiting.state, JobState::Queued);
    // What jobs hold leaves room for others.
    for at in 0..8 {
        put(&node, &format!("new/{at}"), &pattern(at, 8 * MIB)).await;
        drained(&node, &format!("new/{at}")).await;
    }
    // Each that is over makes room for the next.
    for at in 0..6 {
        let id = format!("job-{at}");
        until(&node, &id, |job| job.state == JobState::Ready).await;
        ask(&node, JobOrder::Cancel { job: name(&id), reason: String::new() }).await.unwrap();
    }
    node.stop().await;
}
