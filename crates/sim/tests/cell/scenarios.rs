//! Stories in which something used to go wrong somewhere, or easily could. Each must end well with every seed.

use std::sync::Arc;
use std::time::Duration;

use stoker_node::{InWorld, Node};
use stoker_sim::cell::catalog::CatalogFaults;
use stoker_sim::cell::client::key;
use stoker_sim::cell::machine::Death;
use stoker_sim::cell::world::{GRACE, VOLUME};
use stoker_store::{
    Class, ErrorKind, Finish, Result, SetId, SetRequest, ShardRequest, Store, VolumePolicy, Writer,
};

use super::scene::{eager, lazy, play};

const POWER: Death = Death::Power { survive_percent: 30 };

fn beyond_grace_ms() -> u64 {
    (GRACE * 2).as_millis() as u64
}

#[test]
fn an_acknowledged_file_survives_a_power_loss_of_all_nodes() {
    play(3, &lazy(), async |scene| {
        scene.put(0, "a", &[7; 20_000]).await.unwrap();
        (0..3).for_each(|at| scene.cluster.end(at, POWER));
        scene.cluster.heal();
        scene.cluster.all_open().await;
        for at in 0..3 {
            assert_eq!(scene.get(at, "a").await.unwrap(), [7; 20_000]);
        }
    });
}

#[test]
fn a_write_waits_for_nodes_that_are_back_in_a_moment() {
    play(3, &lazy(), async |scene| {
        (1..3).for_each(|at| scene.cluster.end(at, Death::Kill));
        let back = async {
            scene.pause_ms(500).await;
            scene.cluster.heal();
        };
        let (put, ()) = tokio::join!(scene.put(0, "a", &[7; 20_000]), back);
        put.unwrap();
        scene.cluster.all_open().await;
        assert_eq!(scene.get(1, "a").await.unwrap(), [7; 20_000]);
    });
}

#[test]
fn an_acknowledged_file_survives_the_loss_of_its_home() {
    play(3, &lazy(), async |scene| {
        scene.put(0, "a", &[7; 20_000]).await.unwrap();
        scene.cluster.lose(0);
        scene.pause_ms(beyond_grace_ms()).await;
        for at in 1..3 {
            assert_eq!(scene.get(at, "a").await.unwrap(), [7; 20_000]);
        }
        scene.rest().await;
        assert_eq!(scene.in_lake("a").unwrap(), [7; 20_000]);
    });
}

#[test]
fn bytes_that_the_lake_gives_wrong_reach_nobody() {
    play(3, &eager(), async |scene| {
        let bytes: Vec<u8> = (0..50_000_u32).map(|at| (at / 7) as u8).collect();
        scene.put(0, "a", &bytes).await.unwrap();
        scene.until_drained("a", &bytes).await;
        scene.rest().await;
        // Only the lake has it now.
        (0..3).for_each(|at| scene.cluster.replace_drive(at));
        scene.cluster.heal();
        scene.cluster.all_open().await;
        scene.cluster.lake_way.set_rot_percent(100);
        assert_eq!(scene.get(0, "a").await.unwrap_err().kind, ErrorKind::Corrupt);
        scene.cluster.lake_way.set_rot_percent(40);
        for at in (0..3).cycle().take(12) {
            match scene.get(at, "a").await {
                Ok(got) => assert!(got == bytes),
                Err(fault) => assert_eq!(fault.kind, ErrorKind::Corrupt, "{fault}"),
            }
            scene.pause_ms(3_000).await;
        }
        scene.cluster.lake_way.heal();
        scene.until("it is read again", async || scene.get(1, "a").await.is_ok_and(|got| got == bytes)).await;
    });
}

#[test]
fn a_zombie_drain_does_not_undo_what_came_after_its_takeover() {
    play(3, &eager(), async |scene| {
        scene.put(0, "a", b"old").await.unwrap();
        // Stopped in the middle of the drain, for so long that another node takes over.
        scene.cluster.lake_way.set_slow_ms(2_000);
        scene.until("the drain has begun", async || scene.cluster.lake.calls() > 2).await;
        scene.cluster.machines[0].stop();
        scene.pause_ms(beyond_grace_ms()).await;
        scene.put(1, "a", b"new").await.unwrap();
        scene.until_drained("a", b"new").await;
        scene.cluster.machines[0].go_on();
        scene.rest().await;
        assert_eq!(scene.in_lake("a").unwrap(), b"new");
        assert_eq!(scene.get(0, "a").await.unwrap(), b"new");
    });
}

#[test]
fn the_overwritten_source_of_a_copy_leaves_the_copy_alone() {
    play(3, &eager(), async |scene| {
        scene.put(0, "a", &[1; 9_000]).await.unwrap();
        scene.until_drained("a", &[1; 9_000]).await;
        scene.copy(1, "a", "b").await.unwrap();
        scene.put(2, "a", &[2; 9_000]).await.unwrap();
        assert_eq!(scene.get(0, "b").await.unwrap(), [1; 9_000]);
        scene.rest().await;
        assert_eq!(scene.in_lake("a").unwrap(), [2; 9_000]);
        assert_eq!(scene.in_lake("b").unwrap(), [1; 9_000]);
    });
}

#[test]
fn a_publish_that_races_the_loss_of_a_holder_is_safe_or_refused() {
    play(3, &lazy(), async |scene| {
        // Between the copies and the publish a holder goes, and comes back as another boot.
        scene.cluster.catalog.set_faults(CatalogFaults { slow_ms: 30_000, ..CatalogFaults::default() });
        let put = scene.put(0, "a", &[5; 9_000]);
        let loss = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            scene.cluster.lose(1);
        };
        let (put, ()) = tokio::join!(put, loss);
        scene.cluster.catalog.set_faults(CatalogFaults::default());
        scene.pause_ms(beyond_grace_ms()).await;
        if put.is_ok() {
            scene.cluster.end(0, POWER);
            assert_eq!(scene.get(2, "a").await.unwrap(), [5; 9_000]);
        }
    });
}

#[test]
fn a_writer_that_slept_through_its_verdict_publishes_nothing() {
    play(3, &eager(), async |scene| {
        scene.put(0, "a", b"old").await.unwrap();
        let node = scene.host(0).node;
        let (own, host) = (key("a"), scene.host(0));
        let begun = InWorld::new(&host.world(), async move {
            let mut writer = node.create(VOLUME, &own, Default::default()).await.unwrap();
            for _ in 0..3 {
                let mut buf = writer.buffer().await.unwrap();
                buf.fill(&[9; 5_000]);
                writer.write(buf).await.unwrap();
            }
            writer
        });
        let writer = begun.await;
        scene.cluster.machines[0].stop();
        // The others collect what it left with them.
        scene.pause_ms(beyond_grace_ms()).await;
        scene.cluster.machines[0].go_on();
        let finish = tokio::spawn(InWorld::new(&host.world(), writer.finish(Finish::default())));
        if let Ok(Ok(finished)) = tokio::time::timeout(Duration::from_secs(30), finish).await {
            assert!(finished.is_err(), "{finished:?}");
        }
        scene.rest().await;
        assert_eq!(scene.get(1, "a").await.unwrap(), b"old");
    });
}

#[test]
fn a_commit_whose_answer_is_lost_happened_or_did_not() {
    play(3, &eager(), async |scene| {
        scene.put(0, "a", b"first").await.unwrap();
        scene.cluster.catalog.set_faults(CatalogFaults { ambiguous_percent: 50, ..CatalogFaults::default() });
        let mut may_be = vec![b"first".to_vec()];
        for round in 0..10u8 {
            let bytes = vec![round; 3_000];
            match scene.put(usize::from(round % 3), "a", &bytes).await {
                Ok(_) => may_be = vec![bytes],
                Err(fault) => {
                    assert_eq!(fault.kind, ErrorKind::Unavailable, "{fault}");
                    may_be.push(bytes);
                }
            }
        }
        scene.rest().await;
        let seen = scene.get(2, "a").await.unwrap();
        assert!(may_be.contains(&seen));
        assert_eq!(scene.in_lake("a").unwrap(), seen);
    });
}

#[test]
fn a_catalog_that_went_back_is_refused() {
    play(3, &eager(), async |scene| {
        for round in 0..5 {
            scene.put(0, "a", &[round; 100]).await.unwrap();
        }
        // Long enough that the highest commit was written down.
        scene.pause_ms(3_000).await;
        scene.cluster.catalog.set_faults(CatalogFaults { behind: 4, ..CatalogFaults::default() });
        scene.cluster.end(0, Death::Kill);
        scene.cluster.boot(0);
        scene.pause_ms(10_000).await;
        assert!(scene.cluster.net.host(0).is_none(), "it started with a catalog that forgot something");
        scene.rest().await;
        assert_eq!(scene.get(0, "a").await.unwrap(), [4; 100]);
    });
}

#[test]
fn what_a_foreign_writer_put_into_the_lake_is_not_overwritten() {
    play(3, &eager(), async |scene| {
        scene.put(0, "a", b"ours").await.unwrap();
        scene.until_drained("a", b"ours").await;
        scene.cluster.lake.foreign_put(b"a", "theirs");
        scene.put(1, "a", b"ours again").await.unwrap();
        scene.pause_ms(60_000).await;
        assert_eq!(scene.in_lake("a").unwrap(), b"theirs");
        assert_eq!(scene.get(2, "a").await.unwrap(), b"ours again");
        let conflicts = scene.on(0, |node| async move { node.conflicts(None).await }).await.unwrap();
        assert_eq!(conflicts.len(), 1);
    });
}

#[test]
fn a_delete_is_not_rolled_back_by_a_power_loss() {
    play(3, &eager(), async |scene| {
        scene.put(0, "a", &[1; 9_000]).await.unwrap();
        scene.put(1, "b", &[2; 9_000]).await.unwrap();
        scene.until_drained("a", &[1; 9_000]).await;
        scene.delete(2, "a").await.unwrap();
        scene.delete(2, "b").await.unwrap();
        (0..3).for_each(|at| scene.cluster.end(at, POWER));
        scene.rest().await;
        for (at, name) in [(0, "a"), (1, "a"), (2, "b"), (0, "b")] {
            assert_eq!(scene.get(at, name).await.unwrap_err().kind, ErrorKind::NotFound);
        }
        assert!(scene.cluster.lake.objects().is_empty());
    });
}

async fn shard(node: Arc<Node>, set: SetId, byte: u8) -> Result<Box<dyn Writer>> {
    let request = ShardRequest { number: 0, ..ShardRequest::default() };
    let mut writer = node.set_shard(VOLUME, &key("set/x"), set, request).await?;
    let mut buf = writer.buffer().await?;
    buf.fill(&[byte; 3_000]);
    writer.write(buf).await?;
    Ok(writer)
}

#[test]
fn a_late_shard_is_refused_and_changes_nothing() {
    play(3, &eager(), async |scene| {
        let request = SetRequest { target: key("set/"), owner: "job".into(), shards: 1, deadline_s: None };
        let set = scene.on(0, |node| async move { node.set_begin(VOLUME, request).await }).await.unwrap().set;
        scene
            .on(0, |node| async move { shard(node, set, 1).await?.finish(Finish::default()).await })
            .await
            .unwrap();
        let writer = scene.on(1, |node| shard(node, set, 2)).await.unwrap();
        scene.on(2, |node| async move { node.set_publish(VOLUME, set).await }).await.unwrap();
        let refused = scene.on(1, |_| writer.finish(Finish::default())).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Conflict, "{refused}");
        assert_eq!(scene.get(0, "set/x").await.unwrap(), [1; 3_000]);
        scene.rest().await;
        assert_eq!(scene.in_lake("set/x").unwrap(), [1; 3_000]);
    });
}

/// With a node lost for ever there were too few for the class, so the marker was never written and the set in the lake looked like
/// half of one.
#[test]
fn a_published_set_is_whole_in_the_lake_although_too_few_nodes_are_left_for_its_class() {
    let policy = VolumePolicy { class: Class::Three, ..eager() };
    play(3, &policy, async |scene| {
        let request = SetRequest { target: key("set/"), owner: "job".into(), shards: 1, deadline_s: None };
        let set = scene.on(0, |node| async move { node.set_begin(VOLUME, request).await }).await.unwrap().set;
        scene
            .on(0, |node| async move { shard(node, set, 1).await?.finish(Finish::default()).await })
            .await
            .unwrap();
        scene.on(0, |node| async move { node.set_publish(VOLUME, set).await }).await.unwrap();
        scene.cluster.lose(2);
        scene.rest().await;
        assert_eq!(scene.in_lake("set/x").unwrap(), [1; 3_000]);
        assert!(scene.in_lake("set/_STOKER_SET.json").is_some());
    });
}
