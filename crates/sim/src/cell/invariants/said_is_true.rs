//! What people are told of the copies of a file is held against the drives: as many copies as `explain` and the receipt say can be read,
//! and what is said to be in the lake is there. Asked in a cluster that had time to notice what is wrong.

use std::sync::Arc;

use stoker_format::{ChunkId, ChunkRun};
use stoker_node::Node;
use stoker_schema::names::Names;
use stoker_store::{DrainState, ErrorKind, Explanation, Store};

use super::Broken;
use crate::cell::client::{Clients, key};
use crate::cell::world::{Cluster, VOLUME, VOLUME_ID};

/// Asks every node about every key.
pub async fn check(clients: &Clients) -> Result<(), Broken> {
    let names = clients.model().keys();
    for name in names {
        let there = copies_there(&clients.cluster, &name).await;
        for host in clients.cluster.net.hosts() {
            let (at, own) = (host.process.machine.at, key(&name));
            let node: Arc<Node> = host.node.clone();
            match clients.on(&host, async move { node.explain(VOLUME, &own).await }).await {
                Ok(told) => hold(clients, &name, at, &told, there)?,
                Err(fault) if fault.kind == ErrorKind::NotFound => {}
                Err(fault) => return Err(broken(format!("m{at} does not explain `{name}`: {fault}"))),
            }
        }
    }
    Ok(())
}

fn broken(how: String) -> Broken {
    Broken::new("said_is_true", how)
}

fn hold(
    clients: &Clients,
    name: &str,
    at: usize,
    told: &Explanation,
    there: Option<u32>,
) -> Result<(), Broken> {
    let words = told.words.join("; ");
    if told.receipt.drain == DrainState::Clean {
        // The lake follows a rename later; until then the name that it has there is said.
        let told_as = told.words.iter().find_map(|word| word.strip_prefix("the lake has it as `"));
        let lake_key = told_as.and_then(|word| Some(word.split_once('`')?.0)).unwrap_or(name);
        let object = clients.cluster.lake.objects().remove(lake_key.as_bytes());
        return match object.is_some_and(|object| object.body.len() as u64 == told.file.size) {
            true => Ok(()),
            false => Err(broken(format!("m{at} says of `{name}`: {words}; the lake does not have it"))),
        };
    }
    let Some(there) = there else { return Ok(()) };
    if told.receipt.copies > there {
        let said = told.receipt.copies;
        return Err(broken(format!("m{at} has a receipt with {said} copies of `{name}`, there are {there}")));
    }
    // The sentence and the receipt come from the same facts, and must not drift apart.
    let is_two = words.contains("copies on");
    match is_two && there < 2 || words.contains("one copy") && there < 1 {
        true => Err(broken(format!("m{at} says of `{name}`: {words}; there are {there} copies"))),
        false => Ok(()),
    }
}

/// Copies on drives of the byte that has fewest; none if the file has no bytes there, or is not there.
async fn copies_there(cluster: &Cluster, name: &str) -> Option<u32> {
    let names = Names::new(Arc::new(cluster.catalog.clone()));
    let located = names.lookup(VOLUME_ID, name.as_bytes()).await.ok()??;
    let runs = names.runs(&located.file).await.ok()?;
    let mut least = None;
    for chunk in runs.iter().flat_map(chunks) {
        let mut count = 0;
        for (_, ring) in cluster.rings() {
            count += u32::from(ring.has_sound_header(chunk).await);
        }
        least = Some(least.map_or(count, |least: u32| least.min(count)));
    }
    least
}

fn chunks(run: &ChunkRun) -> impl Iterator<Item = ChunkId> + use<> {
    let (version, first) = (run.version, run.first_index);
    let count = if run.is_hole() || run.is_spilled() { 0 } else { run.count };
    (0..count).map(move |at| ChunkId::new(version, first + at))
}
