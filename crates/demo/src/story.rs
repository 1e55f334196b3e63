//! What happens in the demo, in this order.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use stoker_client::Client;
use stoker_store::{Awaited, DrainState, Order, Receipt, Report, SET_MARKER, SetRequest, Store};
use tokio::task::JoinSet;

use super::Teller;
use super::board::NodeState;
use super::cell::{Node, Shape};
use super::shards::Shards;
use crate::failure::Failure;
use crate::{clock, show, size};

/// How long something may take that comes by itself.
const PATIENCE: Duration = Duration::from_secs(120);

/// Tells the story; the nodes that are left at its end.
pub async fn tell(shape: &Shape, shards: &Shards, teller: &mut Teller) -> Result<Vec<Node>, Failure> {
    let begun = clock::now();
    let lake = shape.dir.join("lake");
    std::fs::create_dir_all(&lake).map_err(|error| Failure::io(lake.display(), &error))?;

    let picture = teller.picture.clone();
    let started = |number: usize, join: Option<&Node>| {
        picture.node(number, NodeState::Starting, "");
        // It waits for the node, and the picture is drawn meanwhile.
        let node = tokio::task::block_in_place(|| shape.start(number, join))?;
        let role = if number == 1 { "keeps the catalog" } else { "follows the catalog" };
        picture.node(number, NodeState::Up, role);
        Ok::<Node, Failure>(node)
    };
    let first = started(1, None)?;
    let second = started(2, Some(&first))?;
    // A token is for one node; the second one has another.
    let third = started(3, Some(&second))?;
    picture.link(&format!(
        "console {}  (log in with the token in {}/token)",
        third.console(),
        third.dir.display()
    ));
    until_protected(&first).await?;
    teller.step(
        "start",
        &format!(
            "three nodes, each a process with its own drive, switch and power feed  ({:.1} s)\n  S3 at {}, {}, {}; lake in {}\n  \
             node-1 keeps the catalog, node-2 and node-3 follow it",
            begun.elapsed().as_secs_f64(),
            first.s3(),
            second.s3(),
            third.s3(),
            lake.display()
        ),
        json!({ "seconds": begun.elapsed().as_secs_f64() }),
    )?;

    let before = write(&second, shards, teller).await?;
    let killed = drain_and_kill(second, &third, shards, &lake, teller).await?;
    read(&third, shards, "read", "everything read back through node-3, while node-2 is gone", teller).await?;
    take_over(&third, shards, &lake, shape, &before, killed, teller).await?;
    let second = rejoin(shape, shards, teller).await?;
    elect(first, &second, &third, shards, teller).await?;
    Ok(vec![second, third])
}

/// Waits until the catalog is on a second node.
async fn until_protected(node: &Node) -> Result<(), Failure> {
    let client = node.connect().await?;
    until("another node to follow the catalog", async || {
        let Report::Catalog(status) = client.operate(Order::Catalog).await? else { return Ok(false) };
        Ok(status.standbys.iter().filter(|standby| standby.in_sync).count() >= 2)
    })
    .await
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let begun = clock::now();
    while !holds().await? {
        if begun.elapsed() > PATIENCE {
            return Err(Failure::new(format!("waited for {what} for two minutes")));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// A checkpoint set, all shards at once, through one node.
async fn write(node: &Node, shards: &Shards, teller: &mut Teller) -> Result<Receipt, Failure> {
    let client = node.connect().await?;
    let begun = clock::now();
    let request = SetRequest {
        target: stoker_store::Key::new(shards.dir.as_str())?,
        owner: "stoker demo".into(),
        shards: shards.count,
        deadline_s: None,
    };
    let set = client.set_begin(&shards.volume, request).await?.set;
    let mut writes = JoinSet::new();
    for number in 0..shards.count {
        let (client, shards) = (client.clone(), shards.clone());
        writes.spawn(async move { shards.write(&client, set, number).await });
    }
    while let Some(written) = writes.join_next().await {
        written.map_err(|error| Failure::new(format!("a writer ended: {error}")))??;
    }
    let written = begun.elapsed();
    client.set_publish(&shards.volume, set).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let receipt = client.receipt(&shards.volume, &shards.key(shards.count - 1)?).await?;
    if receipt.copies < 2 {
        return Err(Failure::new(format!("a shard has {} copy where two were promised", receipt.copies)));
    }
    teller.step(
        "write",
        &format!(
            "\na checkpoint of {} in {} shards written through node-2 and published at once  ({seconds:.2} s, {}/s, each byte on two nodes)\n  {}",
            size::human(shards.total()),
            shards.count,
            size::human((shards.total() as f64 / seconds) as u64),
            told(&receipt)
        ),
        json!({
            "seconds": seconds,
            "written_seconds": written.as_secs_f64(),
            "bytes": shards.total(),
            "shards": shards.count,
            "receipt": show::receipt_json(&receipt),
        }),
    )?;
    Ok(receipt)
}

fn told(receipt: &Receipt) -> String {
    format!("receipt of the last shard: {}", show::receipt(receipt))
}

fn drained(lake: &Path, shards: &Shards) -> usize {
    let dir = lake.join(&shards.volume).join(&shards.dir);
    std::fs::read_dir(dir).map_or(0, |entries| {
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rank-")).count()
    })
}

/// Kills the writer's node while some shards are in the lake and others are not.
async fn drain_and_kill(
    node: Node,
    other: &Node,
    shards: &Shards,
    lake: &Path,
    teller: &mut Teller,
) -> Result<std::time::Instant, Failure> {
    let client = node.connect().await?;
    client.drain(&shards.volume, shards.dir.as_bytes()).await?;
    until("the first shard to be in the lake", async || Ok(drained(lake, shards) > 0)).await?;
    node.kill();
    teller.picture.node(2, NodeState::Killed, "owed the lake the rest");
    let killed = clock::now();
    let there = drained(lake, shards);
    let receipt = receipt_of(&other.connect().await?, shards).await?;
    teller.step(
        "kill",
        &format!(
            "\nkill -9 of node-2 in the middle of the drain: {there} of {} shards are in the lake, node-2 owed the rest\n  {}",
            shards.count,
            told(&receipt)
        ),
        json!({ "in_lake": there, "receipt": show::receipt_json(&receipt) }),
    )?;
    Ok(killed)
}

async fn receipt_of(client: &Client, shards: &Shards) -> Result<Receipt, Failure> {
    Ok(client.receipt(&shards.volume, &shards.key(shards.count - 1)?).await?)
}

/// Reads and compares everything, all shards at once.
async fn read(
    node: &Node,
    shards: &Shards,
    step: &str,
    what: &str,
    teller: &mut Teller,
) -> Result<(), Failure> {
    let client = node.connect().await?;
    let begun = clock::now();
    let mut reads = JoinSet::new();
    for number in 0..shards.count {
        let (client, shards) = (client.clone(), shards.clone());
        reads.spawn(async move { shards.verify(&client, number).await });
    }
    while let Some(verified) = reads.join_next().await {
        verified.map_err(|error| Failure::new(format!("a reader ended: {error}")))??;
    }
    let seconds = begun.elapsed().as_secs_f64();
    teller.step(
        step,
        &format!(
            "\n{what}: {}, byte for byte the same  ({seconds:.2} s, {}/s)",
            size::human(shards.total()),
            size::human((shards.total() as f64 / seconds) as u64)
        ),
        json!({ "seconds": seconds, "bytes": shards.total() }),
    )
}

/// The others finish what the lost node owed to the lake.
async fn take_over(
    node: &Node,
    shards: &Shards,
    lake: &Path,
    shape: &Shape,
    before: &Receipt,
    killed: std::time::Instant,
    teller: &mut Teller,
) -> Result<(), Failure> {
    let client = node.connect().await?;
    for number in 0..shards.count {
        let key = shards.key(number)?;
        let waits = client.wait(&shards.volume, &key, None, Awaited::Drained);
        let waited = tokio::time::timeout(PATIENCE, waits).await;
        waited
            .map_err(|_| Failure::new(format!("shard {number} is not in the lake after two minutes")))??;
    }
    let marker = lake.join(&shards.volume).join(&shards.dir).join(SET_MARKER);
    until("the marker of the set in the lake", async || Ok(marker.exists())).await?;
    let seconds = killed.elapsed().as_secs_f64();
    for number in 0..shards.count {
        let (shards, lake) = (shards.clone(), lake.to_owned());
        let compared = tokio::task::spawn_blocking(move || shards.verify_lake(&lake, number)).await;
        compared.map_err(|error| Failure::new(format!("a reader ended: {error}")))??;
    }
    let after = receipt_of(&client, shards).await?;
    if after.drain != DrainState::Clean {
        return Err(Failure::new("the receipt of a drained shard does not say so"));
    }
    teller.step(
        "takeover",
        &format!(
            "\nthe drain was taken over: all {} shards and {SET_MARKER} are in the lake, plain files, byte for byte the same\n  {seconds:.1} s \
             after the kill; for {:.0} s of these nobody moved, because node-2 might have come back\n  before: {}\n  after:  {}",
            shards.count,
            shape.grace.as_secs_f64(),
            show::receipt(before),
            show::receipt(&after)
        ),
        json!({ "seconds": seconds, "receipt": show::receipt_json(&after) }),
    )
}

/// The lost node comes back with the bytes that it had.
async fn rejoin(shape: &Shape, shards: &Shards, teller: &mut Teller) -> Result<Node, Failure> {
    let begun = clock::now();
    teller.picture.node(2, NodeState::Starting, "comes back");
    let node = tokio::task::block_in_place(|| shape.start(2, None))?;
    teller.picture.node(2, NodeState::Up, "is back as it was");
    let client = node.connect().await?;
    let seconds = begun.elapsed().as_secs_f64();
    shards.verify(&client, 0).await?;
    let appended = |counters: &[stoker_store::Counter]| -> f64 {
        counters
            .iter()
            .filter(|counter| counter.name == "ring_user_bytes_total")
            .map(|counter| counter.value)
            .sum()
    };
    let copied = appended(&client.counters().await?) as u64;
    teller.step(
        "rejoin",
        &format!(
            "\nnode-2 started again and rejoined  ({seconds:.2} s): chunks never change, so there is nothing to copy; its drive took {} since the start",
            size::human(copied)
        ),
        json!({ "seconds": seconds, "appended_bytes": copied }),
    )?;
    Ok(node)
}

/// The node that keeps the catalog dies, and the others elect another one.
async fn elect(
    first: Node,
    second: &Node,
    third: &Node,
    shards: &Shards,
    teller: &mut Teller,
) -> Result<(), Failure> {
    // It may have gone to another node when one was killed.
    first.connect().await?.operate(Order::CatalogPromote { accept_loss: false }).await?;
    until_protected(&first).await?;
    let client = third.connect().await?;
    first.kill();
    teller.picture.node(1, NodeState::Killed, "kept the catalog");
    let begun = clock::now();
    let key = stoker_store::Key::new("after-the-election")?;
    let request = stoker_store::WriteRequest { size: Some(6), ..Default::default() };
    let mut writer = second.connect().await?.create(&shards.volume, &key, request).await?;
    let mut buf = writer.buffer().await?;
    buf.set_len(6);
    buf.as_mut_slice().copy_from_slice(b"stoked");
    writer.write(buf).await?;
    let receipt = writer.finish(stoker_store::Finish::default()).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let Report::Catalog(status) = client.operate(Order::Catalog).await? else {
        return Err(Failure::confused());
    };
    let (number, node) = match status.holder.as_deref() == third.ready["id"].as_str() {
        true => (3, "node-3"),
        false => (2, "node-2"),
    };
    teller.picture.node(number, NodeState::Up, "keeps the catalog now");
    teller.step(
        "elect",
        &format!(
            "\nkill -9 of node-1, which kept the catalog; the others elected {node}, no acknowledged change lost; the next write was \
             acknowledged {seconds:.2} s after the kill ({} copies)",
            receipt.copies
        ),
        json!({ "seconds": seconds, "epoch": status.epoch, "seq": status.seq }),
    )?;
    read(
        second,
        shards,
        "read_again",
        "everything read again through node-2, with the catalog on another node",
        teller,
    )
    .await
}
