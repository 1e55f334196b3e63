//! Files that are changed in the middle.

use stoker_node::Node;
use stoker_store::{
    Attributes, Condition, EditRequest, ErrorKind, Finish, INODES_MAX, Piece, Receipt, Result, Store, Subject,
};

use crate::harness::cluster::{Cluster, nodes_of};
use crate::harness::{
    Home, copy_request, counter, delete, drained, eager, get, key, lazy, pattern, put, write,
};

async fn edit(node: &Node, name: &str, request: EditRequest, bytes: &[u8]) -> Result<Receipt> {
    let mut writer = node.edit("data", &key(name), request).await?;
    write(&mut writer, bytes).await?;
    writer.finish(Finish::default()).await
}

async fn pieces(node: &Node, name: &str, pieces: Vec<Piece>, bytes: &[u8]) -> Result<Receipt> {
    let base = Some(node.stat("data", &key(name)).await?.version);
    edit(node, name, EditRequest { base, pieces, ..EditRequest::default() }, bytes).await
}

/// Puts bytes over those at an offset.
async fn overwrite(node: &Node, name: &str, model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let (at64, end, size) = (at as u64, (at + bytes.len()) as u64, model.len() as u64);
    let mut list = vec![Piece::Keep { start: 0, end: at64.min(size) }];
    if at64 > size {
        list.push(Piece::Zero(at64 - size));
    }
    list.push(Piece::Take(bytes.len() as u64));
    if end < size {
        list.push(Piece::Keep { start: end, end: size });
    }
    pieces(node, name, list, bytes).await.unwrap();
    model.resize(model.len().max(at + bytes.len()), 0);
    model[at..at + bytes.len()].copy_from_slice(bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_changed_all_over_is_what_it_should_be() {
    let home = Home::new(lazy());
    let mut node = home.start().await;
    let mut model = pattern(1, 9 << 20);
    put(&node, "f", &model).await;
    let inode = node.stat("data", &key("f")).await.unwrap().inode;
    let mut state = 7u64;
    let mut dice = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..60u64 {
        match dice(10) {
            0 => {
                let len = dice(model.len() + 1);
                let list = vec![Piece::Keep { start: 0, end: len as u64 }];
                pieces(&node, "f", list, b"").await.unwrap();
                model.truncate(len);
            }
            1 => {
                let at = model.len() + dice(300_000);
                overwrite(&node, "f", &mut model, at, &pattern(round, 5)).await;
            }
            2 => {
                let at = dice(model.len().max(1));
                overwrite(&node, "f", &mut model, at, &pattern(round, 3 << 20)).await;
            }
            _ => {
                let (at, len) = (dice(model.len().max(1)), 1 + dice(9_000));
                overwrite(&node, "f", &mut model, at, &pattern(round, len)).await;
            }
        }
        if round % 20 == 13 {
            node = home.restart(node).await;
        }
        if round % 7 == 0 {
            assert!(get(&node, "f").await.unwrap() == model, "round {round}");
        }
    }
    assert!(get(&node, "f").await.unwrap() == model);
    let info = node.stat("data", &key("f")).await.unwrap();
    assert_eq!((info.size, info.inode), (model.len() as u64, inode));
}

/// What is overwritten does not stay on the drive, even while somebody has the file open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_overwritten_is_collected() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let mut model = pattern(1, 3 << 20);
    put(&node, "f", &model).await;
    let first = node.open("data", &key("f")).await.unwrap();
    let before = model.clone();
    for round in 0..20 {
        overwrite(&node, "f", &mut model, 1 << 20, &pattern(100 + round, 4096)).await;
    }
    let _latest = node.open("data", &key("f")).await.unwrap();
    // Twenty name records, and the chunk of each change but the last; what the first version reads stays.
    while counter(&node, "collected_chunks_total").await < 39.0 {
        tokio::task::yield_now().await;
    }
    assert!(crate::harness::read_all(first.as_ref()).await.unwrap() == before);
    drop(first);
    assert!(get(&node, "f").await.unwrap() == model);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_and_the_lake_keep_their_bytes() {
    let home = Home::new(eager());
    let node = home.start().await;
    let mut model = pattern(2, 6 << 20);
    put(&node, "a", &model).await;
    node.copy(copy_request("a", "b")).await.unwrap();
    let copied = model.clone();
    overwrite(&node, "a", &mut model, 100, b"changed").await;
    drained(&node, "a").await;
    drained(&node, "b").await;
    // A clean file is changed, too.
    overwrite(&node, "a", &mut model, 5 << 20, b"again").await;
    drained(&node, "a").await;
    assert!(delete(&node, "b").await.unwrap());
    assert!(get(&node, "a").await.unwrap() == model);
    assert!(std::fs::read(home.lake().join("data/a")).unwrap() == model);
    let node = home.restart(node).await;
    assert!(get(&node, "a").await.unwrap() == model);
    assert_ne!(copied, model);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_of_another_version_are_refused() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let old = put(&node, "f", b"one").await.version;
    let request = |base| EditRequest {
        base: Some(base),
        pieces: vec![Piece::Keep { start: 0, end: 2 }, Piece::Rest],
        ..EditRequest::default()
    };
    // Begun in time, overtaken before it is published.
    let mut writer = node.edit("data", &key("f"), request(old)).await.unwrap();
    write(&mut writer, b"x").await.unwrap();
    put(&node, "f", b"two").await;
    let fault = writer.finish(Finish::default()).await.unwrap_err();
    assert_eq!((fault.kind, fault.subject), (ErrorKind::Conflict, Subject::Condition));
    let fault = edit(&node, "f", request(old), b"x").await.unwrap_err();
    assert_eq!((fault.kind, fault.subject), (ErrorKind::Conflict, Subject::Condition));
    assert_eq!(get(&node, "f").await.unwrap(), b"two");
    for (list, bytes) in [
        (vec![Piece::Keep { start: 0, end: 4 }], &b""[..]),
        (vec![Piece::Rest, Piece::Rest], b""),
        (vec![Piece::Take(5)], b"abc"),
        (vec![Piece::Take(1)], b"abc"),
    ] {
        assert_eq!(pieces(&node, "f", list, bytes).await.unwrap_err().kind, ErrorKind::Invalid);
    }
}

/// The version that an edit goes on with is published after it began, as a mount does with a file that grows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_learns_at_its_end_what_it_goes_on_with() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let late = |end| EditRequest {
        pieces: vec![Piece::Keep { start: 0, end }, Piece::Rest],
        ..EditRequest::default()
    };
    let mut model = pattern(1, 700_000);
    let mut writer = node.edit("data", &key("f"), late(model.len() as u64)).await.unwrap();
    let mut base = put(&node, "f", &model).await.version;
    for round in 2..6 {
        let bytes = pattern(round, 300_000 * round as usize);
        write(&mut writer, &bytes).await.unwrap();
        model.extend(bytes);
        // The next one begins before this one ends.
        let next = node.edit("data", &key("f"), late(model.len() as u64)).await.unwrap();
        let receipt = writer.finish_on(base, Finish::default()).await.unwrap();
        assert_eq!(receipt.size, model.len() as u64);
        assert!(get(&node, "f").await.unwrap() == model);
        (writer, base) = (next, receipt.version);
    }
    // Without bytes of its own it is the same file once more.
    let receipt = writer.finish_on(base, Finish::default()).await.unwrap();
    assert!(receipt.size == model.len() as u64 && get(&node, "f").await.unwrap() == model);

    let refused = |fault: stoker_store::StoreError| (fault.kind, fault.subject);
    let conflict = (ErrorKind::Conflict, Subject::Condition);
    // A version that is not the present one, one of another length, and none.
    for (len, version, why) in [(model.len() as u64, base, conflict), (5, receipt.version, conflict)] {
        let mut writer = node.edit("data", &key("f"), late(len)).await.unwrap();
        write(&mut writer, b"x").await.unwrap();
        assert_eq!(refused(writer.finish_on(version, Finish::default()).await.unwrap_err()), why);
    }
    let fault = edit(&node, "f", late(model.len() as u64), b"x").await.unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Invalid);
    let mut plain = node
        .edit("data", &key("f"), EditRequest { pieces: vec![Piece::Rest], ..EditRequest::default() })
        .await
        .unwrap();
    write(&mut plain, b"x").await.unwrap();
    assert_eq!(plain.finish_on(base, Finish::default()).await.unwrap_err().kind, ErrorKind::Invalid);
    assert!(get(&node, "f").await.unwrap() == model);

    // It survives a restart, and what it replaced leaves nothing behind.
    let node = home.restart(node).await;
    assert!(get(&node, "f").await.unwrap() == model);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_files_directories_or_nothing() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let inode = node.inodes(10).await.unwrap() + 3;
    let attributes = Attributes { mode: Some(0o40700), ..Attributes::default() };
    let request = EditRequest {
        attributes,
        condition: Condition::absent(),
        inode: Some(inode),
        ..EditRequest::default()
    };
    edit(&node, "made/", request.clone(), b"").await.unwrap();
    assert_eq!(edit(&node, "made/", request, b"").await.unwrap_err().kind, ErrorKind::Conflict);
    put(&node, "implied/file", b"x").await;
    put(&node, "both", b"x").await;
    put(&node, "both/file", b"x").await;
    let entry = async |name: &str| {
        let entry = node.entry("data", &key(name)).await.unwrap();
        let marker = entry.directory.as_ref().map(|directory| directory.marker.is_some());
        (entry.file.is_some(), marker)
    };
    assert_eq!(entry("made").await, (false, Some(true)));
    assert_eq!(entry("implied").await, (false, Some(false)));
    assert_eq!(entry("implied/file").await, (true, None));
    assert_eq!(entry("both").await, (true, Some(false)));
    assert_eq!(entry("no/such/thing").await, (false, None));
    let marker = node.entry("data", &key("made")).await.unwrap().directory.unwrap().marker.unwrap();
    assert_eq!((marker.inode, marker.attributes.mode), (inode, Some(0o40700)));
    for count in [0, INODES_MAX + 1] {
        assert_eq!(node.inodes(count).await.unwrap_err().kind, ErrorKind::Invalid);
    }
    let stranger = EditRequest { inode: Some(1 << 40), ..EditRequest::default() };
    assert_eq!(edit(&node, "x", stranger, b"").await.unwrap_err().kind, ErrorKind::Invalid);
}

/// Of a chunk that a file has the front of, that front alone may be copied again after a loss. It must not count for the file that
/// has all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_front_of_a_chunk_is_no_copy_of_it() {
    const LEN: usize = 300_000;
    let mut cluster = Cluster::new(4, lazy()).await;
    let whole = |at: usize| format!("whole{at:02}");
    let front = |at: usize| format!("front{at:02}");
    for at in 0..16 {
        let node = cluster.node(0);
        put(node, &whole(at), &pattern(at as u64, LEN)).await;
        node.copy(copy_request(&whole(at), &front(at))).await.unwrap();
        pieces(node, &front(at), vec![Piece::Keep { start: 0, end: 100_000 }], b"").await.unwrap();
    }
    // Of three others, each is lost once, and what it had is copied again by whoever inherits it, in any order.
    for lost in 0..2 {
        let gone = cluster.lose(lost);
        let id = gone.id();
        assert!(cluster.node(3).members().declare_down(id, std::time::Duration::ZERO).await.unwrap());
        let is_safe = async || {
            for at in 0..16 {
                for name in [whole(at), front(at)] {
                    let receipt = cluster.node(3).receipt("data", &key(&name)).await.unwrap();
                    if receipt.copies < 2 || nodes_of(&receipt).contains(&id.to_string()) {
                        return false;
                    }
                }
            }
            true
        };
        cluster.until("everything has two copies again", is_safe).await;
        gone.stop().await;
    }
    for at in 0..16 {
        let bytes = pattern(at as u64, LEN);
        assert!(get(cluster.node(3), &whole(at)).await.unwrap() == bytes, "{at}");
        assert!(get(cluster.node(3), &front(at)).await.unwrap() == bytes[..100_000], "{at}");
    }
    cluster.stop().await;
}
