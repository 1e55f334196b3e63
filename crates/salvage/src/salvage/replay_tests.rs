use super::*;

fn id(number: u8) -> VersionId {
    VersionId([number; 12])
}

fn named(number: u8, seq: u64, set: Option<u64>) -> Named {
    Named {
        id: id(number),
        version: id(number),
        seq,
        size: 0,
        etag: String::new(),
        modified_ms: 0,
        crc64: None,
        properties: Vec::new(),
        runs: Some(Vec::new()),
        upload_parts: Vec::new(),
        set: set.map(|set| (set, None)),
        drive: Some(0),
    }
}

fn put(number: u8, seq: u64, key: &str) -> Event {
    let change = Change::Put(key.into(), Box::new(named(number, seq, None)));
    Event { seq, id: id(number), change }
}

fn shard(number: u8, seq: u64, key: &str, set: u64) -> Event {
    let change = Change::Put(key.into(), Box::new(named(number, seq, Some(set))));
    Event { seq, id: id(number), change }
}

fn delete(number: u8, seq: u64, key: &str) -> Event {
    Event { seq, id: id(number), change: Change::Delete(key.into()) }
}

fn rename(number: u8, seq: u64, from: &str, to: &str) -> Event {
    Event { seq, id: id(number), change: Change::Rename { from: from.into(), to: to.into() } }
}

fn exchange(number: u8, seq: u64, from: &str, to: &str) -> Event {
    Event { seq, id: id(number), change: Change::Exchange { from: from.into(), to: to.into() } }
}

fn publish(number: u8, seq: u64, target: &str, set: u64) -> Event {
    Event { seq, id: id(number), change: Change::PublishSet { target: target.into(), set } }
}

/// Keys with the numbers of their versions, oldest first.
fn shown(replayed: &Replayed) -> String {
    let one = |(key, versions): (&Vec<u8>, &Vec<Named>)| {
        let numbers: Vec<String> = versions.iter().map(|named| named.id.0[0].to_string()).collect();
        format!("{}={}", String::from_utf8_lossy(key), numbers.join("<"))
    };
    replayed.names.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn changes_count_in_their_order_however_they_are_found() {
    let table: Vec<(Vec<Event>, &str)> = vec![
        (vec![put(1, 1, "a"), put(2, 2, "b")], "a=1 b=2"),
        (vec![put(2, 5, "a"), put(1, 1, "a")], "a=1<2"),
        (vec![put(1, 1, "a"), delete(2, 2, "a")], ""),
        (vec![delete(2, 2, "a"), put(3, 3, "a"), put(1, 1, "a")], "a=3"),
        (vec![put(1, 1, "d/x"), rename(2, 2, "d/", "e/"), put(3, 3, "d/x")], "d/x=3 e/x=1"),
        // Both directories have a record of their exchange; one of them may be gone already.
        (
            vec![put(1, 1, "d/x"), put(2, 2, "e/x"), exchange(3, 3, "d/", "e/"), exchange(4, 3, "e/", "d/")],
            "d/x=2 e/x=1",
        ),
        (vec![put(1, 1, "d/x"), put(2, 2, "e/y"), exchange(4, 3, "e/", "d/")], "d/y=2 e/x=1"),
        (
            vec![put(1, 1, "d/x"), put(2, 2, "e/x"), exchange(3, 3, "d/", "e/"), exchange(4, 5, "d/", "e/")],
            "d/x=1 e/x=2",
        ),
        (vec![shard(1, 1, "s/0", 7), publish(9, 3, "s/", 7), exchange(3, 4, "t/", "s/")], "t/0=1"),
        // One drive has the name before a rename, the other the one after it.
        (vec![put(1, 1, "old"), put(1, 4, "new")], "new=1"),
        (vec![shard(1, 1, "s/0", 7), shard(2, 2, "s/1", 7)], ""),
        (vec![shard(1, 1, "s/0", 7), publish(9, 3, "s/", 7), shard(2, 2, "t/0", 8)], "s/0=1"),
        (vec![shard(1, 1, "s/0", 7), publish(9, 3, "s/", 7), rename(3, 4, "s/", "u/")], "u/0=1"),
        (vec![shard(1, 1, "s/0", 7), publish(9, 3, "s/", 7), delete(3, 4, "s/0")], ""),
    ];
    for (events, expect) in table {
        let backwards: Vec<Event> = events.iter().rev().cloned().collect();
        assert_eq!(shown(&replay(events)), expect);
        assert_eq!(shown(&replay(backwards)), expect);
    }
}

#[test]
fn sets_and_deletes_are_told() {
    let replayed = replay(vec![
        shard(1, 1, "s/0", 7),
        publish(9, 3, "s/", 7),
        rename(3, 4, "s/", "u/"),
        put(4, 5, "gone"),
        delete(5, 6, "gone"),
        shard(6, 7, "t/0", 8),
    ]);
    assert_eq!(replayed.sets, [PublishedSet { set: 7, target: b"u/".to_vec(), seq: 3 }]);
    let gone = Moment { seq: 6, id: id(5) };
    assert_eq!(replayed.deleted.into_iter().collect::<Vec<_>>(), [(b"gone".to_vec(), gone)]);
    assert_eq!(replayed.shards.keys().collect::<Vec<_>>(), [b"t/0"]);
}
