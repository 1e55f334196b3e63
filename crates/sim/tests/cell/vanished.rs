//! A copy that vanished from a drive is noticed when its node starts, is not counted, and is made up for before the other one may go.

use stoker_node::Node;
use stoker_sim::cell::client::key;
use stoker_sim::cell::machine::Vanish;
use stoker_sim::cell::world::{GRACE, VOLUME};
use stoker_store::{Class, LostFile, Order, Report, RiskReport, Store, VolumePolicy};

use super::scene::{Scene, lazy, play};

static BYTES: [u8; 20_000] = [7; 20_000];

/// The machines that hold a file, its home first.
async fn holders(scene: &Scene, home: usize, name: &str) -> Vec<usize> {
    let own = key(name);
    let receipt = scene.on(home, |node| async move { node.receipt(VOLUME, &own).await }).await.unwrap();
    let ids: Vec<_> = receipt.holders.iter().map(|holder| holder.node.clone()).collect();
    let mut held: Vec<usize> = (0..3)
        .filter(|at| scene.cluster.net.id_of(*at).is_some_and(|id| ids.contains(&id.to_string())))
        .collect();
    held.sort_by_key(|at| *at != home);
    held
}

async fn risk(scene: &Scene, at: usize) -> RiskReport {
    let ask = |node: std::sync::Arc<Node>| async move { node.operate(Order::Risk).await };
    match scene.on(at, ask).await.unwrap() {
        Report::Risk(report) => report,
        other => panic!("{other:?}"),
    }
}

async fn lost(scene: &Scene, at: usize) -> Vec<LostFile> {
    let ask = |node: std::sync::Arc<Node>| async move { node.operate(Order::Lost).await };
    match scene.on(at, ask).await.unwrap() {
        Report::Lost(files) => files,
        other => panic!("{other:?}"),
    }
}

async fn copies(scene: &Scene, at: usize, name: &str) -> u32 {
    let own = key(name);
    scene.on(at, |node| async move { node.receipt(VOLUME, &own).await }).await.unwrap().copies
}

fn check(what: Vanish) {
    play(3, &lazy(), async |scene| {
        scene.put(0, "a", &BYTES).await.unwrap();
        let held = holders(scene, 0, "a").await;
        assert_eq!(held.len(), 2);
        let second = held[1];
        scene.cluster.vanish(second, what, 100);
        // It cannot bring its copy back as long as nobody hears it.
        scene.cluster.net.cut_off(second);
        scene.cluster.boot(second);
        scene.until("it is open", async || scene.cluster.net.host(second).is_some()).await;
        // Nobody suspects it yet, so that nothing but its inventory can say so.
        assert_eq!(copies(scene, 0, "a").await, 1, "{}", scene.cluster.trace.tail());
        let told = risk(scene, 0).await;
        let home = told.nodes.iter().find(|one| one.name == "n0").unwrap();
        assert_eq!((home.one_copy_files, home.lost_files), (1, 1), "{told:?}");
        assert_eq!(lost(scene, 0).await, []);
        scene.cluster.net.heal();
        scene.cluster.all_open().await;
        scene.until("it has its copy back", async || copies(scene, 0, "a").await == 2).await;
        // The home goes for good, and nothing is lost.
        scene.cluster.lose(0);
        scene.pause_ms((GRACE * 2).as_millis() as u64).await;
        for at in 1..3 {
            assert_eq!(scene.get(at, "a").await.unwrap(), BYTES);
        }
        scene.rest().await;
        assert_eq!(scene.in_lake("a").unwrap(), BYTES);
    });
}

#[test]
fn records_whose_header_rotted() {
    check(Vanish::Headers);
}

#[test]
fn records_that_read_as_zeros() {
    check(Vanish::Records);
}

#[test]
fn segments_that_are_gone() {
    check(Vanish::Segments);
}

#[test]
fn a_header_that_rotted_in_a_closed_segment() {
    play(3, &lazy(), async |scene| {
        scene.put(0, "a", &BYTES).await.unwrap();
        let second = holders(scene, 0, "a").await[1];
        // A clean stop: the next start believes the footers and reads no header.
        scene.cluster.leave(second).await;
        scene.cluster.vanish(second, Vanish::Headers, 100);
        scene.cluster.boot(second);
        scene.cluster.all_open().await;
        // It reads them soon after.
        scene.pause_ms(20_000).await;
        assert_eq!(copies(scene, 0, "a").await, 2);
        scene.cluster.lose(0);
        scene.pause_ms((GRACE * 2).as_millis() as u64).await;
        assert_eq!(scene.get(second, "a").await.unwrap(), BYTES);
    });
}

/// Two files begin with the same chunk, of which the home has one copy and not two.
#[test]
fn a_chunk_of_two_files_that_one_node_has_is_one_copy() {
    play(3, &lazy(), async |scene| {
        scene.put(0, "a", &BYTES).await.unwrap();
        let second = holders(scene, 0, "a").await[1];
        let third = 3 - second;
        scene.copy(0, "a", "b").await.unwrap();
        // Each has chunks on all three from now on, so that a node needs the others to know what it lacks.
        for name in ["a", "b"] {
            scene.append(third, name, b"more").await.unwrap();
            assert_eq!(holders(scene, third, name).await.len(), 3);
        }
        scene.cluster.vanish(second, Vanish::Records, 100);
        scene.cluster.boot(second);
        scene.cluster.all_open().await;
        scene.pause_ms(60_000).await;
        scene.cluster.lose(0);
        scene.pause_ms((GRACE * 2).as_millis() as u64).await;
        let whole = [&BYTES[..], b"more"].concat();
        for name in ["a", "b"] {
            assert_eq!(scene.get(third, name).await.unwrap(), whole, "{name}");
        }
    });
}

#[test]
fn what_no_node_has_any_more_is_called_lost() {
    play(3, &lazy(), async |scene| {
        scene.put(0, "a", &BYTES).await.unwrap();
        scene.put(0, "b", b"").await.unwrap();
        for at in holders(scene, 0, "a").await {
            scene.cluster.vanish(at, Vanish::Records, 100);
            scene.cluster.boot(at);
        }
        scene.cluster.all_open().await;
        scene.until("it is called lost", async || !lost(scene, 1).await.is_empty()).await;
        let told = lost(scene, 2).await;
        assert_eq!(
            told.iter().map(|one| one.key.as_slice()).collect::<Vec<_>>(),
            [b"a".as_slice()],
            "{told:?}"
        );
        assert!(told[0].whole, "{told:?}");
        assert_eq!(risk(scene, 0).await.lost_files, 1);
        assert!(scene.get(0, "a").await.is_err());
    });
}

#[test]
fn a_node_without_others_tells_as_well() {
    let policy = VolumePolicy { class: Class::One, ..lazy() };
    play(1, &policy, async |scene| {
        scene.put(0, "a", &BYTES).await.unwrap();
        scene.cluster.vanish(0, Vanish::Segments, 100);
        scene.cluster.boot(0);
        scene.cluster.all_open().await;
        let told = lost(scene, 0).await;
        assert_eq!(
            told.iter().map(|one| one.key.as_slice()).collect::<Vec<_>>(),
            [b"a".as_slice()],
            "{told:?}"
        );
        assert_eq!(copies(scene, 0, "a").await, 0);
    });
}
