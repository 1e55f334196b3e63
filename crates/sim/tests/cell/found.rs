//! What the simulation found, one story each.

use std::collections::BTreeSet;
use std::time::Duration;

use stoker_sim::cell::catalog::CatalogFaults;
use stoker_sim::cell::client::key;
use stoker_sim::cell::machine::Death;
use stoker_sim::cell::world::{GRACE, VOLUME};
use stoker_store::{Condition, Finish, PartChoice, Store};

use super::scene::{eager, lazy, play};

/// The home of the copy had none of its bytes, and so did not find it among what its drives hold.
#[test]
fn a_copy_made_by_a_node_without_the_bytes_is_drained_after_a_restart() {
    play(3, &eager(), async |scene| {
        let holders = scene.put(0, "a", &[3; 9_000]).await.unwrap().holders;
        let has =
            |at: usize| holders.iter().any(|holder| holder.node == scene.host(at).node.id().to_string());
        let other = (0..3).find(|at| !has(*at)).expect("two of three have it");
        scene.copy(other, "a", "b").await.unwrap();
        scene.put(0, "a", b"something else").await.unwrap();
        scene.cluster.end(other, Death::Kill);
        scene.rest().await;
        assert_eq!(scene.in_lake("b").unwrap(), [3; 9_000]);
    });
}

/// Nobody had a row of it.
#[test]
fn an_upload_without_bytes_is_drained_after_a_restart() {
    play(3, &eager(), async |scene| {
        let own = key("a");
        let upload = scene
            .on(0, |node| async move {
                let upload = node.upload_create(VOLUME, &own, Default::default(), None).await?.upload;
                let part = node.upload_part(VOLUME, &own, &upload, 1, Some(0)).await?;
                let etag = part.finish(Finish::default()).await?.etag;
                let parts = vec![PartChoice { number: 1, etag, checksum: None }];
                let finish = Finish::default();
                node.upload_complete(VOLUME, &own, &upload, parts, Condition::default(), finish).await
            })
            .await;
        assert_eq!(upload.unwrap().size, 0);
        scene.cluster.end(0, Death::Kill);
        scene.rest().await;
        assert_eq!(scene.in_lake("a").unwrap(), b"");
    });
}

/// The file was left as one that needs the lake object of another key: its own.
#[test]
fn a_file_that_was_renamed_there_and_back_needs_nothing_of_others() {
    play(3, &eager(), async |scene| {
        scene.put(0, "a", &[4; 3_000]).await.unwrap();
        scene.until_drained("a", &[4; 3_000]).await;
        scene.rename(1, "a", "b").await.unwrap();
        scene.rename(2, "b", "a").await.unwrap();
        scene.rest().await;
        assert_eq!(scene.in_lake("a").unwrap(), [4; 3_000]);
        assert_eq!(scene.in_lake("b"), None);
    });
}

/// The drain of the copy took the note away that the renamed file, of the same version, had to move.
#[test]
fn a_renamed_file_moves_in_the_lake_although_its_copy_is_drained_first() {
    play(3, &eager(), async |scene| {
        scene.put(0, "a", &[5; 3_000]).await.unwrap();
        scene.until_drained("a", &[5; 3_000]).await;
        scene.rename(1, "a", "b").await.unwrap();
        scene.copy(1, "b", "c").await.unwrap();
        scene.rest().await;
        for name in ["b", "c"] {
            assert_eq!(scene.in_lake(name).unwrap(), [5; 3_000]);
        }
        assert_eq!(scene.in_lake("a"), None);
    });
}

/// It was called damaged, which pages somebody, although it was there all the time.
#[test]
fn what_only_nodes_have_that_are_down_is_unavailable_and_not_corrupt() {
    play(3, &lazy(), async |scene| {
        let holders = scene.put(0, "a", &[6; 3_000]).await.unwrap().holders;
        let has =
            |at: &usize| holders.iter().any(|holder| holder.node == scene.host(*at).node.id().to_string());
        let (with, without): (Vec<usize>, Vec<usize>) = (0..3).partition(has);
        with.iter().for_each(|at| scene.cluster.end(*at, Death::Kill));
        scene.pause_ms(30_000).await;
        let fault = scene.get(without[0], "a").await.unwrap_err();
        assert_eq!(fault.kind, stoker_store::ErrorKind::Unavailable, "{fault}");
        scene.cluster.heal();
        scene.cluster.all_open().await;
        assert_eq!(scene.get(without[0], "a").await.unwrap(), [6; 3_000]);
    });
}

/// A put without an answer was sent again and confirmed. The first one came after the delete that followed, and nobody knew the
/// object any more.
#[test]
fn a_put_that_was_sent_twice_does_not_undo_the_delete_that_follows() {
    play(3, &eager(), async |scene| {
        scene.cluster.lake_way.set_late_percent(50);
        for round in 0..6u8 {
            scene.put(0, "a", &[round; 3_000]).await.unwrap();
            scene.until_drained("a", &[round; 3_000]).await;
            scene.delete(1, "a").await.unwrap();
        }
        scene.rest().await;
        assert!(scene.cluster.lake.objects().is_empty());
        scene.put(2, "a", b"new").await.unwrap();
        scene.rest().await;
        assert_eq!(scene.in_lake("a").unwrap(), b"new");
    });
}

/// It heard nobody, took the others for dead, and said so in the catalog, which it still reached.
#[test]
fn a_node_that_is_cut_off_declares_nobody_down() {
    play(3, &lazy(), async |scene| {
        let others = [scene.host(1), scene.host(2)];
        scene.cluster.net.cut_off(0);
        scene.pause_ms((GRACE * 4).as_millis() as u64).await;
        assert!(others.iter().all(|host| host.process.is_alive()), "{}", scene.cluster.trace.tail());
        scene.put(1, "a", b"those who hear each other go on").await.unwrap();
        scene.rest().await;
        assert!(others.iter().all(|host| host.process.is_alive()));
    });
}

/// Who survives all others goes on without them, only later.
#[test]
fn the_last_node_drains_what_the_others_owed() {
    play(3, &lazy(), async |scene| {
        let holders = scene.put(0, "a", &[8; 3_000]).await.unwrap().holders;
        let id = |at: usize| scene.host(at).node.id().to_string();
        let other = (1..3).find(|at| holders.iter().any(|holder| holder.node == id(*at))).unwrap();
        (0..3).filter(|at| *at != other).for_each(|at| scene.cluster.lose(at));
        scene.until_drained("a", &[8; 3_000]).await;
        assert_eq!(scene.get(other, "a").await.unwrap(), [8; 3_000]);
    });
}

/// Nobody told it once more, so that it kept bytes of a write that had failed until the writer's node booted again.
#[test]
fn a_holder_that_missed_the_end_of_a_write_hears_of_it_later() {
    play(3, &eager(), async |scene| {
        scene.cluster.net.set_faults(40, 100, 0);
        for round in 0..6u8 {
            let _ = scene.put(usize::from(round % 3), "a", &[round; 9_000]).await;
        }
        // Comes to rest without a restart.
        scene.rest().await;
    });
}

/// Its drain had just replaced the lake object that it was copied from, under the name that it had then; under the next one it was
/// parked as a conflict with itself.
#[test]
fn a_copy_that_replaced_its_source_can_be_renamed_while_it_is_drained() {
    play(3, &eager(), async |scene| {
        let etag = || scene.cluster.lake.objects().get(&b"a"[..]).map(|object| object.etag.clone());
        scene.put(0, "a", &[9; 3_000]).await.unwrap();
        // Only what is known to be clean: a copy of what is on its way is the same version, and need not be sent again.
        scene.rest().await;
        assert_eq!(scene.in_lake("a").unwrap(), [9; 3_000]);
        scene.cluster.lake_way.set_slow_ms(1_000);
        let before = etag();
        scene.copy(1, "a", "b").await.unwrap();
        scene.rename(1, "b", "a").await.unwrap();
        scene.until("the copy is on its way to its own source", async || etag() != before).await;
        scene.rename(2, "a", "c").await.unwrap();
        scene.rest().await;
        assert_eq!(scene.in_lake("c").unwrap(), [9; 3_000]);
        assert_eq!(scene.in_lake("a"), None);
    });
}

/// What was copied again were its bytes, of which it has none; so its name was on one node, and the receipt said so too late.
#[test]
fn an_empty_file_whose_holder_is_lost_in_between_has_its_copies() {
    play(3, &lazy(), async |scene| {
        let slow = CatalogFaults { slow_ms: 30_000, ..CatalogFaults::default() };
        scene.cluster.catalog.set_faults(slow);
        let loss = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            scene.cluster.end(1, Death::Kill);
            scene.cluster.boot(1);
        };
        let (put, ()) = tokio::join!(scene.put(0, "a", b""), loss);
        scene.cluster.catalog.set_faults(CatalogFaults::default());
        if let Ok(receipt) = put {
            let nodes: BTreeSet<&str> = receipt.holders.iter().map(|holder| holder.node.as_str()).collect();
            assert_eq!(nodes.len(), 2, "{receipt:?}");
        }
        scene.rest().await;
    });
}

/// Each needed the lake object under the name of the other, and neither was drained before the other was.
#[test]
fn copies_that_took_each_others_place_are_drained() {
    play(3, &eager(), async |scene| {
        scene.put(0, "a", &[1; 3_000]).await.unwrap();
        scene.put(1, "b", &[2; 3_000]).await.unwrap();
        scene.rest().await;
        scene.copy(0, "a", "x").await.unwrap();
        scene.copy(1, "b", "y").await.unwrap();
        scene.rename(0, "x", "b").await.unwrap();
        scene.rename(1, "y", "a").await.unwrap();
        scene.rest().await;
        assert_eq!(scene.in_lake("a").unwrap(), [2; 3_000]);
        assert_eq!(scene.in_lake("b").unwrap(), [1; 3_000]);
    });
}
