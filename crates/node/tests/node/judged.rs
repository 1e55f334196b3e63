//! What those who judge parts need of a node: drives that rest, less asked of a part, notes, measures.

use std::sync::Arc;

use crate::harness::cluster::Cluster;
use crate::harness::*;
use stoker_node::{NOTE_BODY_LEN_MAX, NOTE_HEAD_LEN_MAX, Node};
use stoker_store::{
    ErrorKind, FIGURES, History, HistoryPoint, Measures, Order, PartWeight, Report, Result, Store, figure,
};

async fn measures(node: &Node, of: &str) -> Measures {
    match node.operate(Order::Measures { node: Some(of.into()) }).await.unwrap() {
        Report::Measures(measures) => *measures,
        other => panic!("{other:?}"),
    }
}

async fn cordon(node: &Node, of: &str, drive: &str, cordoned: bool) -> Result<Report> {
    node.operate(Order::DriveCordon { node: of.into(), drive: drive.into(), cordoned }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cordoned_drive_is_emptied_and_works_again() {
    let mut cluster = Cluster::with_drives(&["", "", ""], 2, lazy()).await;
    let content = |at: u64| pattern(at, 5 << 20);
    for at in 0..6 {
        put(cluster.node(0), &format!("f/{at}"), &content(at)).await;
    }
    let path = cluster.folder(0).join("ring1").display().to_string();
    let drive = async |cluster: &Cluster| {
        let all = measures(cluster.node(1), "n0").await.drives;
        all.into_iter().find(|drive| drive.path == path).unwrap()
    };
    assert_eq!(drive(&cluster).await.state, "live");
    cordon(cluster.node(2), "n0", &path, true).await.unwrap();
    let written = drive(&cluster).await.writes.bytes;
    // Nothing new goes there, and in the end nothing is there that the lake has not.
    while drive(&cluster).await.is_empty != Some(true) {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    for at in 6..10 {
        put(cluster.node(0), &format!("f/{at}"), &content(at)).await;
    }
    let now = drive(&cluster).await;
    assert_eq!((now.state.as_str(), now.is_empty, now.writes.bytes), ("cordoned", Some(true), written));
    // The other one must not rest, too, and a restart changes nothing.
    let other = cluster.folder(0).join("ring0").display().to_string();
    let refused = cordon(cluster.node(1), "n0", &other, true).await.unwrap_err();
    assert!(refused.kind == ErrorKind::Conflict && refused.message.contains("quarantine"), "{refused:?}");
    let stopped = cluster.lose(0);
    stopped.stop().await;
    drop(stopped);
    cluster.start(0).await;
    assert_eq!(drive(&cluster).await.state, "cordoned");
    cordon(cluster.node(1), "n0", &path, false).await.unwrap();
    assert_eq!(drive(&cluster).await.state, "live");
    for at in 10..16 {
        put(cluster.node(0), &format!("f/{at}"), &content(at)).await;
    }
    assert!(drive(&cluster).await.writes.bytes > 0);
    for at in 0..16 {
        assert!(get(cluster.node(2), &format!("f/{at}")).await.unwrap() == content(at), "{at}");
    }
    assert!(cordon(cluster.node(1), "n0", "/no/such", true).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn less_is_asked_of_a_part() {
    let cluster = Cluster::with_drives(&["", "", ""], 2, lazy()).await;
    let id = async |at: usize| measures(cluster.node(at), &format!("n{at}")).await.node;
    let (here, other) = (id(0).await, id(1).await);
    let path = cluster.folder(0).join("ring1").display().to_string();
    let weight = |node: &str, drive: Option<&str>, takes_chunks: bool| PartWeight {
        node: node.into(),
        drive: drive.map(str::to_owned),
        percent: 25,
        takes_chunks,
    };
    cluster.node(0).set_weights(&[weight(&here, Some(&path), false), weight(&other, None, false)]);
    let look = async || {
        let seen = measures(cluster.node(2), "n0").await;
        let drive = seen.drives.into_iter().find(|drive| drive.path == path).unwrap();
        let taken = |copies: &&stoker_store::CopyMeasures| copies.node == other;
        let copies = seen.copies.iter().find(taken).map_or(0, |copies| copies.times.bytes);
        (drive.writes.bytes, copies)
    };
    for at in 0..12 {
        put(cluster.node(0), &format!("f/{at}"), &pattern(at, 100_000)).await;
    }
    assert_eq!(look().await, (0, 0), "others take everything");
    // As much as ever.
    cluster.node(0).set_weights(&[]);
    for at in 12..40 {
        put(cluster.node(0), &format!("f/{at}"), &pattern(at, 100_000)).await;
    }
    let (written, copied) = look().await;
    assert!(written > 0 && copied > 0, "{written} {copied}");
    // Where nobody else is left, it is used all the same.
    let third = id(2).await;
    cluster.node(0).set_weights(&[weight(&other, None, false), weight(&third, None, false)]);
    put(cluster.node(0), "last", b"copied").await;
    assert_eq!(get(cluster.node(1), "last").await.unwrap(), b"copied");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notes_are_written_by_one_at_a_time() {
    let cluster = Cluster::with_drives(&["", ""], 1, lazy()).await;
    let (a, b) = (cluster.node(0), cluster.node(1));
    assert_eq!(a.note("x").await.unwrap(), None);
    let body: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
    let first = a.write_note("x", None, b"head", Some(&body)).await.unwrap().unwrap();
    assert_eq!(b.write_note("x", None, b"other", None).await.unwrap(), None, "it is there already");
    let read = b.note("x").await.unwrap().unwrap();
    assert!(read.seq == first && read.head == b"head");
    assert!(b.note_body("x", &read).await.unwrap() == Some(body.clone()));
    // The head changes without the body.
    let second = b.write_note("x", Some(first), b"beat", None).await.unwrap().unwrap();
    assert_eq!(
        a.write_note("x", Some(first), b"late", Some(b"")).await.unwrap(),
        None,
        "somebody was quicker"
    );
    let old = a.note("x").await.unwrap().unwrap();
    assert!(old.head == b"beat" && a.note_body("x", &old).await.unwrap() == Some(body));
    // A shorter body leaves nothing of the longer one.
    a.write_note("x", Some(second), b"beat", Some(b"short")).await.unwrap().unwrap();
    let read = b.note("x").await.unwrap().unwrap();
    assert_eq!(b.note_body("x", &read).await.unwrap().unwrap(), b"short");
    assert_eq!(b.note_body("x", &old).await.unwrap(), None, "it was replaced");
    for (head, body) in [(NOTE_HEAD_LEN_MAX + 1, 0), (0, NOTE_BODY_LEN_MAX + 1)] {
        let refused = a.write_note("y", None, &vec![0; head], Some(&vec![0; body])).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid);
    }
    // Lines of people.
    let add = async |name: &str, line: &str| {
        b.operate(Order::NoteAdd { name: name.into(), line: line.into() }).await.map(drop)
    };
    add("lines", "one").await.unwrap();
    add("lines", "two").await.unwrap();
    let Report::Note(Some(text)) = a.operate(Order::Note { name: "lines".into() }).await.unwrap() else {
        panic!("no note");
    };
    assert_eq!(text, "one\ntwo\n");
    for (name, line) in [("lines", ""), ("lines", "a\nb"), ("a/b", "x"), ("", "x")] {
        assert_eq!(add(name, line).await.unwrap_err().kind, ErrorKind::Invalid, "{name:?} {line:?}");
    }
}

/// Better a drive that may be slow than an error; and what is cordoned already may be cordoned again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drive_that_rests_takes_what_nobody_else_takes() {
    let cluster = Cluster::with_drives(&["", "", ""], 2, lazy()).await;
    let path = |at: usize| cluster.folder(0).join(format!("ring{at}")).display().to_string();
    let written = async || {
        let drives = measures(cluster.node(1), "n0").await.drives;
        drives.into_iter().find(|drive| drive.path == path(1)).unwrap().writes.bytes
    };
    cordon(cluster.node(0), "n0", &path(1), true).await.unwrap();
    put(cluster.node(0), "before", &pattern(1, 1 << 20)).await;
    assert_eq!(written().await, 0);
    let remove = Order::DriveRemove { node: "n0".into(), drive: path(0), force: true };
    cluster.node(0).operate(remove).await.unwrap();
    cordon(cluster.node(2), "n0", &path(1), true).await.unwrap();
    put(cluster.node(0), "after", &pattern(2, 1 << 20)).await;
    assert!(written().await > 1 << 20);
    assert!(get(cluster.node(2), "after").await.unwrap() == pattern(2, 1 << 20));
    assert!(get(cluster.node(0), "before").await.unwrap() == pattern(1, 1 << 20));
}

/// A quarantine that is told twice, and one of a node without which too few are left already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantine_may_be_told_twice() {
    let cluster = Cluster::with_drives(&["", "", ""], 1, lazy()).await;
    let quarantine = async |node: &str| {
        cluster.node(0).operate(Order::Quarantine { node: node.into(), force: false }).await
    };
    quarantine("n2").await.unwrap();
    // Two nodes are left, and volumes commit to two: nobody else may go, and whoever is out already is.
    assert_eq!(quarantine("n1").await.unwrap_err().kind, ErrorKind::Conflict);
    quarantine("n2").await.unwrap();
    let ids = cluster.node(0).peers_seen();
    let out = ids.iter().find(|peer| peer.state == "quarantined").unwrap();
    let nodes = vec![out.node.clone(), "not an id".to_owned()];
    let told = cluster.node(1).evacuations(&nodes).await.unwrap();
    assert!(told.len() == 1 && !told[0].done, "{told:?}");
}

async fn history(node: &Node, of: Option<&str>) -> Result<History> {
    let order = Order::History { node: of.map(str::to_owned), since_ms: 0, every_ms: 10_000 };
    match node.operate(order).await? {
        Report::History(history) => Ok(*history),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_past_of_all_nodes_is_added_up_and_one_that_is_lost_is_named() {
    let mut cluster = Cluster::new(3, lazy()).await;
    let written = figure("write_bytes_per_s").unwrap();
    for at in 0..3 {
        let mut values = [f32::NAN; FIGURES.len()];
        values[written] = 10.0 * (at + 1) as f32;
        let points = vec![HistoryPoint::new(1_000_000, &values)];
        cluster.node(at).set_history(Arc::new(move |_| points.clone()));
    }
    let told = |history: &History| -> Vec<Option<f64>> {
        history.points.iter().map(|point| point.value(written)).collect()
    };
    assert_eq!(told(&history(cluster.node(1), None).await.unwrap()), [Some(60.0)]);
    assert_eq!(told(&history(cluster.node(1), Some("n2")).await.unwrap()), [Some(30.0)]);
    let unknown = history(cluster.node(1), Some("nobody")).await.unwrap_err();
    assert_eq!(unknown.kind, ErrorKind::NotFound, "{unknown:?}");
    // Killed: what it told is not known any more, and that is said.
    let _lost = cluster.lose(2);
    let all = history(cluster.node(0), None).await.unwrap();
    assert_eq!(told(&all), [Some(30.0)]);
    let answers: Vec<(&str, bool)> =
        all.nodes.iter().map(|node| (node.name.as_str(), node.answers)).collect();
    assert_eq!(answers, [("n0", true), ("n1", true), ("n2", false)]);
}
