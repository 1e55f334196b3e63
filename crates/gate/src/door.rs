//! Steps on the running node, through its door: commits, the catalog, and the ways between all nodes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use stoker_client::Client;
use stoker_store::{
    Class, Condition, DrainPolicy, ErrorKind, File, Filler, Finish, Key, ListRequest, NodeStatus, Order,
    Report, Store, StoreError, VolumeOptions, VolumePolicy, WriteRequest,
};
use tokio::runtime::Runtime;

use super::Extent;
use super::leftovers::Leftovers;
use super::step::Outcome;
use crate::connect::Target;
use crate::rng::Rng;
use crate::{clock, show};
use stoker_probe::measure::median;

/// Longest time that one group of steps may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest time that taking things away may take.
const REMOVE_MAX: Duration = Duration::from_secs(20);
const REMOVE_TRIES: usize = 50;
/// Names that are written in turn: old versions are deleted meanwhile.
const NAMES: usize = 4;
/// Share of the smallest ring that files may take together, in what one part of is.
const RING_SHARE: u64 = 8;
/// Ways between nodes that are measured; of more, those from and to this node.
const LEGS_MAX: usize = 600;
/// Each is looked at as often as a drive is, unless that are more looks than this: a second each.
const LOOKS_MAX: usize = 60;

/// A connection to the node that is looked at.
pub struct Door {
    runtime: Runtime,
    target: Target,
    client: Client,
    status: NodeStatus,
}

impl Door {
    /// Connects; says why that does not work.
    pub fn open(target: &Target) -> Result<Door, String> {
        let runtime = runtime()?;
        let said = |fault: StoreError| fault.message;
        let client = runtime.block_on(target.connect()).map_err(|failure| failure.cause().to_owned())?;
        let status = runtime.block_on(async { client.status().await }).map_err(said)?;
        Ok(Door { runtime, target: target.clone(), client, status })
    }

    /// Where the node has its rings.
    pub fn drives(&self) -> Vec<PathBuf> {
        self.status.rings.iter().map(|ring| PathBuf::from(&ring.path)).collect()
    }

    /// Commits files of two sizes.
    pub fn commit(&self, volume: &str, extent: &Extent, leftovers: &Leftovers) -> Vec<Outcome> {
        let subject = &self.status.node;
        let steps = [("commit_4k_p50", 4 << 10), ("commit_4m_p50", 4 << 20)];
        let every = |why: String| steps.map(|(step, _)| Outcome::failed(step, subject, &why)).into();
        // Of a gate that was killed.
        if let Err(fault) = self.within(remove(&self.client, volume)) {
            return every(fault);
        }
        let (target, undone) = (self.target.clone(), volume.to_owned());
        let _volume = leftovers.add(move || remove_again(&target, &undone));
        let smallest = self.status.rings.iter().map(|ring| ring.bytes).min().unwrap_or(0);
        let work = async {
            let policy = VolumePolicy { drain: DrainPolicy::OnDemand, ..VolumePolicy::default() };
            let options = VolumeOptions { lake: Some("none".into()), policy: Some(policy) };
            self.client.volume_create(volume, options).await?;
            let mut outcomes = Vec::new();
            for (step, len) in steps {
                let count = (smallest / RING_SHARE / len as u64).min(extent.files as u64).max(2);
                let times = self.write_files(volume, len, count as usize).await?;
                outcomes.push(Outcome::measured(step, subject, median(times.into_iter())));
            }
            remove(&self.client, volume).await?;
            Ok(outcomes)
        };
        self.within(work).unwrap_or_else(every)
    }

    async fn write_files(&self, volume: &str, len: usize, count: usize) -> Result<Vec<f64>, StoreError> {
        let is_up = |node: &&stoker_store::PeerStatus| node.state == "up" && !node.suspect;
        let wanted = Class::Auto.in_cluster(self.status.nodes.iter().filter(is_up).count()).copies() as u32;
        let mut rng = Rng::new(clock::unix_ms());
        let mut bytes = vec![0; len];
        let mut times = Vec::new();
        for number in 0..count {
            rng.fill(&mut bytes);
            let key = Key::new(format!("{len}/{}", number % NAMES))?;
            let begun = clock::now();
            let request = WriteRequest { size: Some(len as u64), ..WriteRequest::default() };
            let mut filler = Filler::new(self.client.create(volume, &key, request).await?);
            filler.put(&bytes).await?;
            let receipt = filler.finish(Finish::default()).await?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            if receipt.copies < wanted {
                let message = format!("a file was committed to {} of {wanted} nodes", receipt.copies);
                return Err(StoreError::new(ErrorKind::Unavailable, message));
            }
            let file = self.client.open(volume, &key).await?;
            if !is_same(file.as_ref(), &bytes).await? {
                return Err(StoreError::new(ErrorKind::Corrupt, "a file has other bytes than were written"));
            }
        }
        Ok(times)
    }

    /// Asks the catalog and changes it.
    pub fn catalog(&self, extent: &Extent) -> Vec<Outcome> {
        let steps = ["catalog_commit_p50", "catalog_read_p50"];
        // By the node that asks: words about the catalog change when another node takes it over.
        let subject = &self.status.node;
        let every = |why: String| steps.map(|step| Outcome::failed(step, subject, &why)).into();
        let work = async {
            if let Report::Catalog(catalog) = self.client.operate(Order::Catalog).await? {
                let stalled =
                    catalog.stalled.then(|| "it acknowledges nothing: too few standbys answer".to_owned());
                if let Some(trouble) = catalog.trouble.or(stalled) {
                    return Err(StoreError::new(ErrorKind::Unavailable, format!("the catalog: {trouble}")));
                }
            }
            let (mut commits, mut reads) = (Vec::new(), Vec::new());
            let name = Key::new("stoker-gate/no-such-name")?;
            let volume = self.client.volumes().await?.into_iter().next().map(|volume| volume.name);
            for _ in 0..extent.transactions {
                let begun = clock::now();
                self.client.inodes(1).await?;
                commits.push(us_since(begun));
                if let Some(volume) = &volume {
                    let begun = clock::now();
                    match self.client.stat(volume, &name).await {
                        Err(fault) if fault.kind != ErrorKind::NotFound => return Err(fault),
                        _ => reads.push(us_since(begun)),
                    }
                }
            }
            let read = match reads.is_empty() {
                true => Outcome::skipped("catalog_read_p50", subject, "there is no volume"),
                false => Outcome::measured("catalog_read_p50", subject, median(reads.into_iter())),
            };
            let commit = Outcome::measured("catalog_commit_p50", subject, median(commits.into_iter()));
            Ok(vec![commit, read])
        };
        let outcomes: Vec<Outcome> = self.within(work).unwrap_or_else(every);
        outcomes.into_iter().map(|outcome| outcome.shown_as(show::catalog(&self.status))).collect()
    }

    /// Has every node measure the way to every other one.
    pub fn fabric(&self, extent: &Extent, mut tell: impl FnMut(usize, usize)) -> Vec<Outcome> {
        let nodes = &self.status.nodes;
        let name = |id: &str| {
            nodes.iter().find(|node| node.node == id).map_or(id.to_owned(), |node| node.name.clone())
        };
        if nodes.len() < 2 {
            let why = "the cluster has one node";
            return ["fabric_trip_p50", "fabric_send"].map(|step| Outcome::skipped(step, "cell", why)).into();
        }
        let ids: Vec<&str> = nodes.iter().map(|node| node.node.as_str()).collect();
        let legs = legs(&ids, &self.status.node);
        let rounds = if legs.len() * extent.rounds <= LOOKS_MAX { extent.rounds } else { 1 };
        let mut outcomes = Vec::new();
        for (at, (from, to)) in legs.iter().enumerate() {
            tell(at, legs.len());
            let subject = format!("{from} {to}");
            let shown = format!("{} to {}", name(from), name(to));
            let order = Order::Fabric { from: (*from).to_owned(), to: (*to).to_owned() };
            let both = match self.best_leg(&order, rounds) {
                Ok((trip_us, mb_s)) => [
                    Outcome::measured("fabric_trip_p50", &subject, trip_us),
                    Outcome::measured("fabric_send", &subject, mb_s),
                ],
                Err(why) => {
                    ["fabric_trip_p50", "fabric_send"].map(|step| Outcome::failed(step, &subject, &why))
                }
            };
            outcomes.extend(both.map(|outcome| outcome.shown_as(&shown)));
        }
        outcomes
    }

    /// The best of some looks at one way: microseconds, MB/s.
    fn best_leg(&self, order: &Order, rounds: usize) -> Result<(f64, f64), String> {
        let mut best = (f64::INFINITY, 0.0);
        for _ in 0..rounds {
            let Report::Fabric(leg) = self.within(async { self.client.operate(order.clone()).await })? else {
                return Err("unexpected response type".to_owned());
            };
            best = (f64::min(best.0, leg.p50_us as f64), f64::max(best.1, leg.bytes_per_s as f64 / 1e6));
        }
        Ok(best)
    }

    fn within<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, String> {
        let done = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await });
        match done {
            Ok(done) => done.map_err(|fault| fault.message),
            Err(_) => Err(format!("no end after {} s", PATIENCE.as_secs())),
        }
    }
}

fn runtime() -> Result<Runtime, String> {
    let built = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    built.map_err(|e| format!("runtime: {e}"))
}

fn us_since(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}

/// All ordered pairs, or those with one node if that are too many.
fn legs<'n>(ids: &[&'n str], own: &str) -> Vec<(&'n str, &'n str)> {
    let pairs =
        ids.iter().flat_map(|from| ids.iter().map(move |to| (*from, *to))).filter(|(from, to)| from != to);
    let is_few = ids.len() * ids.len().saturating_sub(1) <= LEGS_MAX;
    pairs.filter(|(from, to)| is_few || *from == own || *to == own).collect()
}

async fn is_same(file: &dyn File, bytes: &[u8]) -> Result<bool, StoreError> {
    let mut at = 0;
    while at < bytes.len() {
        let read = file.read(at as u64, bytes.len() - at).await?;
        if read.is_empty() || bytes.get(at..at + read.len()) != Some(&read[..]) {
            return Ok(false);
        }
        at += read.len();
    }
    Ok(file.info().size == bytes.len() as u64)
}

/// Removes a volume of the gate's, with what is in it.
async fn remove(client: &Client, volume: &str) -> Result<(), StoreError> {
    match client.volume(volume).await {
        Err(fault) if fault.kind == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    loop {
        let page = client.list(volume, ListRequest { limit: 1_000, ..ListRequest::default() }).await?;
        let keys = page.entries.iter().map(|entry| Key::new(entry.name().to_vec()));
        let keys: Vec<_> =
            keys.map(|key| key.map(|key| (key, Condition::default()))).collect::<Result<_, _>>()?;
        if keys.is_empty() {
            return client.volume_delete(volume).await;
        }
        for deleted in client.delete(volume, keys).await? {
            deleted?;
        }
    }
}

/// The same over a connection of its own, should it still be there.
fn remove_again(target: &Target, volume: &str) {
    let Ok(runtime) = runtime() else { return };
    let work = async {
        let Ok(client) = target.connect().await else { return };
        // Again, if a file was being written meanwhile; without its volume the next one fails.
        for _ in 0..REMOVE_TRIES {
            if remove(&client, volume).await.is_ok() {
                return;
            }
        }
    };
    let _ = runtime.block_on(async { tokio::time::timeout(REMOVE_MAX, work).await });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_both_ways_or_those_with_this_node() {
        assert_eq!(legs(&["a", "b"], "a"), [("a", "b"), ("b", "a")]);
        assert_eq!(legs(&["a"], "a"), []);
        let names: Vec<String> = (0..30).map(|at| format!("n{at}")).collect();
        let ids: Vec<&str> = names.iter().map(String::as_str).collect();
        let few = legs(&ids, "n3");
        assert_eq!(few.len(), 58);
        assert!(few.iter().all(|(from, to)| *from == "n3" || *to == "n3"));
        assert_eq!(legs(&ids[..20], "n3").len(), 380);
    }
}
