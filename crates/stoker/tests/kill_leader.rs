//! kill -9 of whichever node keeps the catalog, again and again under load: the others elect another one and writes go on without a person.
//! What the pauses were is printed; that nothing acknowledged is lost, and that no worker meets an error that does not pass, is checked.

mod storm;

use std::time::{Duration, Instant};

use storm::cell::{Load, NODES, home, keeps_catalog, until_followed};
use storm::*;

/// Acknowledged operations after which writes go on: some were on their way to nodes that live.
const ACKS: u64 = 12;

#[test]
#[expect(clippy::disallowed_methods, reason = "pauses are printed, and nothing hangs on them")]
fn the_node_that_keeps_the_catalog_dies_and_writes_go_on() {
    let rounds = kills(100, 3);
    let dir = tempfile::TempDir::new().unwrap();
    let lake = dir.path().join("lake");
    std::fs::create_dir(&lake).unwrap();
    let lake = lake.to_str().unwrap();
    let first = Node::start(&["up", "--lake", lake, "--grace", "3s"], &home(dir.path(), 0));
    let mut nodes = vec![first];
    for at in 1..NODES {
        nodes.push(Node::join(&nodes[0], &["--grace", "3s"], &home(dir.path(), at)));
    }
    let mut nodes: Vec<Option<Node>> = nodes.into_iter().map(Some).collect();
    let load = Load::start(dir.path(), 4, Duration::ZERO);
    let mut pauses = Vec::new();
    for _ in 0..rounds {
        load.runtime.block_on(until_followed(dir.path(), 0));
        load.after(10);
        let leads = |at: &usize| load.runtime.block_on(keeps_catalog(dir.path(), *at));
        let leader = (0..NODES).find(leads).expect("somebody keeps the catalog");
        nodes[leader].take().unwrap().kill();
        let begun = Instant::now();
        load.after(ACKS);
        pauses.push(begun.elapsed());
        assert!(!load.is_over(), "a worker found something wrong");
        nodes[leader] = Some(Node::start(&["up", "--grace", "3s"], &home(dir.path(), leader)));
    }
    load.after(20);
    let (_, _, acks) = load.finish();
    pauses.sort();
    let part = |percent: usize| pauses[(pauses.len() * percent / 100).min(pauses.len() - 1)];
    eprintln!(
        "{rounds} leaders killed: {ACKS} writes later after {:.2?} (P50), {:.2?} (P99); {acks} acknowledged operations",
        part(50),
        part(99)
    );
}
