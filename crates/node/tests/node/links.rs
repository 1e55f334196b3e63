//! Files with several names.

use std::sync::Arc;

use stoker_node::Node;
use stoker_store::{
    AttributesChange, Condition, EditRequest, ErrorKind, Finish, Piece, RenameMode, Store, Subject,
    VolumePolicy,
};

use crate::harness::*;

/// Writes over the front of a file, as mounts do.
async fn overwrite(node: &Node, name: &str, bytes: &[u8]) {
    let info = node.stat("data", &key(name)).await.unwrap();
    let pieces = vec![
        Piece::Take(bytes.len() as u64),
        Piece::Keep { start: bytes.len() as u64, end: info.size.max(bytes.len() as u64) },
    ];
    let request = EditRequest { base: Some(info.version), pieces, ..EditRequest::default() };
    let mut writer = node.edit("data", &key(name), request).await.unwrap();
    write(&mut writer, bytes).await.unwrap();
    writer.finish(Finish::default()).await.unwrap();
}

async fn link(node: &Node, from: &str, to: &str) {
    let linked = node.link("data", &key(from), &key(to)).await.unwrap();
    let source = node.stat("data", &key(from)).await.unwrap();
    assert_eq!((linked.inode, linked.links, linked.version), (source.inode, source.links, source.version));
}

/// Waits until the lake has these bytes under a key of `data`.
async fn lake_has(home: &Home, name: &str, expect: &[u8]) {
    for _ in 0..600 {
        if std::fs::read(home.lake().join("data").join(name)).is_ok_and(|found| found == expect) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the lake has not the bytes of {name}");
}

async fn mode(node: &Node, name: &str) -> Option<u32> {
    node.stat("data", &key(name)).await.unwrap().attributes.mode
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_one_file_show_one_file() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let mut bytes = pattern(1, 300_000);
    put(&node, "a", &bytes).await;
    let before = node.stat("data", &key("a")).await.unwrap();
    link(&node, "a", "d/b").await;
    link(&node, "d/b", "c").await;
    assert_eq!(
        node.stat("data", &key("c")).await.unwrap().inode,
        before.inode,
        "the number is that of the file"
    );
    let listed =
        node.list("data", stoker_store::ListRequest { limit: 10, ..Default::default() }).await.unwrap();
    for entry in &listed.entries {
        let stoker_store::ListEntry::File(info) = entry else { panic!("{entry:?}") };
        assert_eq!((info.links, info.inode), (3, before.inode), "{}", info.key);
    }
    // Written, appended and changed under one name, seen under all.
    overwrite(&node, "d/b", b"changed").await;
    bytes[..7].copy_from_slice(b"changed");
    append(&node, "c", b"more").await;
    bytes.extend_from_slice(b"more");
    let change = AttributesChange { mode: Some(0o100_600), ..AttributesChange::default() };
    let changed = node.set_attributes("data", &key("a"), change).await.unwrap();
    assert_eq!(changed.links, 3);
    let node = home.restart(node).await;
    for name in ["a", "c", "d/b"] {
        assert!(get(&node, name).await.unwrap() == bytes, "{name}");
        assert_eq!(mode(&node, name).await, Some(0o100_600), "{name}");
    }
    // A rename onto another name of the same file does nothing, one to a new name takes it along.
    node.rename("data", &key("a"), &key("c"), RenameMode::Replace).await.unwrap();
    node.rename("data", &key("d/"), &key("e/"), RenameMode::Replace).await.unwrap();
    node.rename("data", &key("c"), &key("f"), RenameMode::Replace).await.unwrap();
    assert_eq!(names(&node, "", None).await, ["a", "e/b", "f"]);
    overwrite(&node, "f", b"CHANGED").await;
    bytes[..7].copy_from_slice(b"CHANGED");
    assert!(get(&node, "e/b").await.unwrap() == bytes && get(&node, "a").await.unwrap() == bytes);
    // Written anew under one name, it is a file of its own.
    put(&node, "a", b"new").await;
    let (anew, rest) =
        (node.stat("data", &key("a")).await.unwrap(), node.stat("data", &key("f")).await.unwrap());
    assert_eq!((anew.links, rest.links, rest.inode), (1, 2, before.inode));
    assert_ne!(anew.inode, before.inode);
    assert!(delete(&node, "f").await.unwrap());
    let node = home.restart(node).await;
    assert!(get(&node, "e/b").await.unwrap() == bytes);
    let last = node.stat("data", &key("e/b")).await.unwrap();
    assert_eq!((last.links, last.inode), (1, before.inode));
    let taken = node.link("data", &key("a"), &key("e/b")).await.unwrap_err();
    assert_eq!((taken.kind, taken.subject), (ErrorKind::Conflict, Subject::Condition));
    assert_eq!(node.link("data", &key("no"), &key("x")).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(node.link("data", &key("e/"), &key("x")).await.unwrap_err().kind, ErrorKind::Invalid);
    for name in ["a", "e/b"] {
        assert!(delete(&node, name).await.unwrap());
    }
    assert_eq!(node.volume("data").await.unwrap().files, 0);
    node.stop().await;
}

/// Each name is an object of its own in the lake, whatever happens to the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_name_is_in_the_lake() {
    let home = Home::new(eager());
    let node = home.start().await;
    let bytes = pattern(7, 3 << 20);
    put(&node, "a", &bytes).await;
    drained(&node, "a").await;
    link(&node, "a", "b").await;
    link(&node, "a", "c").await;
    // The name whose object the others rely on goes before they are drained.
    assert!(delete(&node, "a").await.unwrap());
    for name in ["b", "c"] {
        drained(&node, name).await;
        lake_has(&home, name, &bytes).await;
    }
    overwrite(&node, "b", b"front").await;
    let mut bytes = bytes;
    bytes[..5].copy_from_slice(b"front");
    for name in ["b", "c"] {
        lake_has(&home, name, &bytes).await;
        drained(&node, name).await;
    }
    let change = AttributesChange { mode: Some(0o100_640), ..AttributesChange::default() };
    node.set_attributes("data", &key("c"), change).await.unwrap();
    node.rename("data", &key("b"), &key("d"), RenameMode::Replace).await.unwrap();
    put(&node, "c", b"another").await;
    lake_has(&home, "c", b"another").await;
    lake_has(&home, "d", &bytes).await;
    drained(&node, "d").await;
    let node = home.restart(node).await;
    assert!(get(&node, "d").await.unwrap() == bytes);
    assert_eq!(mode(&node, "d").await, Some(0o100_640));
    assert!(node.conflicts(None).await.unwrap().is_empty());
    for name in ["c", "d"] {
        assert!(delete(&node, name).await.unwrap());
    }
    for _ in 0..600 {
        if tree(&home.lake().join("data")).is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(tree(&home.lake().join("data")), Vec::<String>::new());
    node.stop().await;
}

/// Writers under all names at once: every change is under all of them, and nothing is left at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_change_one_file_under_its_names() {
    let home = Home::new(VolumePolicy { drain_quiet_s: 0, ..eager() });
    let node = home.start().await;
    put(&node, "0", &[0; 8]).await;
    for at in 1..4 {
        link(&node, "0", &at.to_string()).await;
    }
    let tasks: Vec<_> = (0..4u8)
        .map(|at| {
            let node: Arc<Node> = node.clone();
            tokio::spawn(async move {
                let name = at.to_string();
                for round in 1..=10u8 {
                    loop {
                        let info = node.stat("data", &key(&name)).await.unwrap();
                        let place = u64::from(at) * 2;
                        let pieces = vec![
                            Piece::Keep { start: 0, end: place },
                            Piece::Take(2),
                            Piece::Keep { start: place + 2, end: 8 },
                        ];
                        let request =
                            EditRequest { base: Some(info.version), pieces, ..EditRequest::default() };
                        let bytes = bytes::Bytes::copy_from_slice(&[at, round]);
                        match node.edit_now("data", &key(&name), request, bytes).await {
                            Ok(_) => break,
                            Err(fault) => assert_eq!(fault.kind, ErrorKind::Conflict, "{fault}"),
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for at in 0..4 {
        assert_eq!(get(&node, &at.to_string()).await.unwrap(), [0, 10, 1, 10, 2, 10, 3, 10], "{at}");
    }
    let keys = (0..4).map(|at| (key(&at.to_string()), Condition::default())).collect();
    for gone in node.delete("data", keys).await.unwrap() {
        assert!(gone.unwrap());
    }
    node.stop().await;
}
