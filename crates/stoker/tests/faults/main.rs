//! Real nodes, each in a network of its own and on drives of its own where the machine allows it, meet what happens to real
//! ones while writers and readers run: nothing acknowledged is lost, no byte is wrong, and clients that go on with another node
//! see nothing of it.
//!
//! `STOKER_FAULTS=200 cargo test -p stoker --test faults -- --nocapture` asks for more faults than the usual number, and
//! `STOKER_SEED` for other ones; `STOKER_ONLY=DriveFull,Kill` for these kinds alone. What the machine does not allow is said to be
//! skipped. `STOKER_REFLEX=1` also lets a drive be slow until it is taken out, and well until it is back. `STOKER_PREVIOUS=/path/to/stoker` names the program of the release before.

mod cell;
mod drives;
mod fault;
mod gate;
mod net;
mod reflex;
#[allow(dead_code, reason = "a part of it is for other tests")]
#[path = "../../../catalog/tests/engines/server.rs"]
mod server;
#[path = "../storm/mod.rs"]
mod storm;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cell::{Cell, PROGRAM, soon};
use fault::{Trouble, possible};
use server::Server;
use storm::Dice;
use storm::cell::{Load, NODES, connect_in, home};

/// Writers and readers at the same time.
const WORKERS: u64 = 4;

/// Between two operations of each of them: while a node is silent nothing is deleted that it might read, so a load that overwrites
/// at full speed fills small rings.
const PAUSE: Duration = Duration::from_millis(100);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// So many faults, from a seed.
fn storm(cell: &mut Cell, mut database: Option<&mut Server>, count: u64) {
    cell.lacks.iter().for_each(stoker_testing::skipped);
    let seed = number("STOKER_SEED").unwrap_or(1);
    let mut faults = possible(cell, database.is_some());
    if let Ok(only) = std::env::var("STOKER_ONLY") {
        faults.retain(|fault| only.split(',').any(|name| name == format!("{fault:?}")));
        assert!(!faults.is_empty(), "none of {only} is possible here");
    }
    let mut load = Load::start(&cell.dir, WORKERS, PAUSE);
    load.add_doors(PAUSE, cell.nfs());
    load.after(20);
    let mut dice = Dice::new(seed);
    // A short run has no minutes for it.
    let mut has_refused = (count as usize) < faults.len();
    let (mut met, mut skipped) = (0, 0);
    for at in 0..count as usize {
        // Each kind once before any comes again, each time in another order.
        let kind = at % faults.len();
        let other = kind + dice.below((faults.len() - kind) as u64) as usize;
        faults.swap(kind, other);
        let fault = faults[kind];
        let victim = dice.below(NODES as u64) as usize;
        eprintln!("{at}: {fault:?} of node {victim}");
        let mut trouble = Trouble { cell, load: &load, database: database.as_deref_mut(), has_refused };
        match trouble.meet(fault, victim) {
            Ok(()) => met += 1,
            Err(why) => {
                skipped += 1;
                eprintln!("   skipped: {why}");
            }
        }
        has_refused = trouble.has_refused;
        if load.is_over() {
            break;
        }
    }
    finish(cell, load, &format!("{met} faults, {skipped} skipped, seed {seed}"));
}

/// Ends the load, checks every key through every node, then in the lake.
fn finish(cell: &Cell, load: Load, words: &str) {
    let (runtime, model, acks) = load.finish();
    runtime.block_on(async {
        soon("everything is in the lake", async || {
            let risks = cell.risks(0).await;
            risks.is_some_and(|risks| !risks.is_empty() && risks.iter().all(|risk| risk.undrained_files == 0))
        })
        .await;
        let lake = connect_in(&cell.dir.join("lake")).await;
        storm::verify_lake(&lake, "cell/data/", &model).await;
    });
    eprintln!("{words}: {acks} acknowledged operations, none lost, no wrong byte, the same in the lake");
}

#[test]
fn a_cell_meets_faults_and_nothing_is_lost() {
    let full = std::env::var_os("STOKER_FULL").is_some();
    let dir = tempfile::TempDir::new().unwrap();
    let mut cell = Cell::start(dir.path(), Path::new(PROGRAM), None);
    storm(&mut cell, None, number("STOKER_FAULTS").unwrap_or(if full { 60 } else { 4 }));
}

/// The same with names in PostgreSQL, which is restarted and killed, too.
#[test]
fn a_cell_on_postgresql_meets_faults_and_nothing_is_lost() {
    let full = std::env::var_os("STOKER_FULL").is_some();
    let Some(count) = number("STOKER_DATABASE_FAULTS").or(full.then_some(20)) else {
        return stoker_testing::skipped("only with STOKER_FULL or STOKER_DATABASE_FAULTS");
    };
    let Some(mut database) = Server::start(&[]) else { return };
    let dir = tempfile::TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = runtime.block_on(database.fresh());
    let mut cell = Cell::start(dir.path(), Path::new(PROGRAM), Some(url));
    storm(&mut cell, Some(&mut database), count);
}

/// Nodes of the release before become nodes of this one while clients work, one after the other, and one goes back. As long as one is of the
/// release before, all write what it can read; after that the level rises, and it starts no more.
#[test]
fn a_cell_is_upgraded_node_by_node() {
    let Some(previous) = std::env::var_os("STOKER_PREVIOUS").map(PathBuf::from) else {
        return stoker_testing::skipped("only with STOKER_PREVIOUS, the program of the release before");
    };
    let dir = tempfile::TempDir::new().unwrap();
    let mut cell = Cell::start(dir.path(), &previous, None);
    let load = Load::start(&cell.dir, WORKERS, PAUSE);
    let become_one = |cell: &mut Cell, at: usize, program: &Path| {
        load.after(40);
        eprintln!("node {at} becomes {}", program.display());
        cell.nodes[at].take().unwrap().stop();
        cell.programs[at] = program.to_owned();
        cell.back(at);
        load.runtime.block_on(cell.until(at, (at + 1) % NODES, "up"));
    };
    for at in (1..NODES).rev() {
        become_one(&mut cell, at, Path::new(PROGRAM));
    }
    let level = level(&cell, 1);
    assert_eq!((level["level"].as_u64(), level["newest"].as_u64()), (Some(1), Some(3)), "{level}");
    let holds_up = |node: &serde_json::Value| !node["holds_up"].is_null();
    let held_by: Vec<_> = level["nodes"].as_array().unwrap().iter().filter(|node| holds_up(node)).collect();
    assert_eq!(held_by.len(), 1, "{level}");
    // Files are written in the old form as well, and there is a way back.
    let seq = |cell: &Cell, at: usize| std::fs::read_to_string(home(&cell.dir, at).join("seq")).unwrap();
    assert!(!seq(&cell, 1).trim().contains(' '), "{}", seq(&cell, 1));
    become_one(&mut cell, 1, &previous);
    load.after(40);
    become_one(&mut cell, 1, Path::new(PROGRAM));
    become_one(&mut cell, 0, Path::new(PROGRAM));
    load.runtime
        .block_on(soon("the level rises", async || self::level(&cell, 0)["level"].as_u64() >= Some(3)));
    load.runtime.block_on(soon("files are written in the new form", async || {
        // A node writes what it saw of commits; one that nobody asks sees none.
        (0..NODES).any(|at| seq(&cell, at).trim().contains(' '))
    }));
    // The node that kept the catalog makes it that of a group, and the others have a part in it.
    load.runtime.block_on(soon("the catalog is kept by a group", async || {
        let (_, words) = cell.ask(0, &["catalog", "status", "--json"]);
        serde_json::from_str(&words).is_ok_and(|told: serde_json::Value| {
            let follow = told["standbys"]
                .as_array()
                .map_or(0, |all| all.iter().filter(|standby| standby["in_sync"] == true).count());
            // Terms are counted from what was promoted before, and starts are none.
            told["epoch"].as_str().is_some_and(|epoch| epoch.contains(".0 ")) && follow == NODES - 1
        })
    }));
    // And now there is none.
    cell.nodes[2].take().unwrap().stop();
    let words = cell.refused(2, &previous);
    // It meets a file of the new form first, then rows of it.
    assert!(words.contains("seq: not a number") || words.contains("newer release"), "{words}");
    cell.back(2);
    load.runtime.block_on(cell.until(2, 0, "up"));
    finish(&cell, load, "an upgrade");
}

/// What a node says of the level of the cluster.
fn level(cell: &Cell, at: usize) -> serde_json::Value {
    let (_, words) = cell.ask(at, &["cluster", "level", "--json"]);
    serde_json::from_str(&words).unwrap_or_else(|error| panic!("{error}: {words}"))
}
