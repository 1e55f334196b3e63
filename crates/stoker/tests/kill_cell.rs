//! kill -9 of real nodes of a cell under load: nothing acknowledged is lost, no byte is wrong, and clients that go on with
//! another node see nothing of it.

mod storm;

use std::time::Duration;

use storm::cell::{Load, NODES, home, keeps_catalog, promote, until_followed};
use storm::*;

#[test]
fn nodes_of_a_cell_die_and_nothing_is_lost() {
    let rounds = kills(50, 6);
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
    // Of two that keep the catalog none may be lost.
    load.runtime.block_on(until_followed(dir.path(), 0));
    let mut promotions = 0;
    for round in 0..rounds {
        let victim = round as usize % NODES;
        load.after(10 + round * 7_919 % 40);
        let kept = load.runtime.block_on(keeps_catalog(dir.path(), victim));
        nodes[victim].take().unwrap().kill();
        if kept && round % 2 == 1 {
            // Nobody can do anything before another node keeps the catalog.
            load.runtime.block_on(promote(dir.path(), (victim + 1) % NODES));
            promotions += 1;
        }
        if !kept || round % 2 == 1 {
            // Some come back before anybody misses them, some after they were declared down.
            load.after(if round % 4 < 2 { 5 } else { 40 });
        }
        nodes[victim] = Some(Node::start(&["up", "--grace", "3s"], &home(dir.path(), victim)));
    }
    load.after(20);
    let (_, _, acks) = load.finish();
    eprintln!("{rounds} kills, {promotions} promotions, {acks} acknowledged operations");
}
