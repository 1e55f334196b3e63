//! What the simulation found, one story each.

use stoker_sim::cell::client::key;
use stoker_sim::cell::machine::Death;
use stoker_sim::cell::world::VOLUME;
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
