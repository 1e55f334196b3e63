//! Histories of a whole cluster: clients that read and write, faults of every kind, then a time without faults in which
//! everything must come to rest.
//!
//! One thread, one seed: the clock is the runtime's and jumps from event to event, every choice is the seed's, and the
//! nodes are the real ones. The same seed gives the same trace.

pub mod catalog;
pub mod client;
pub mod faults;
pub mod invariants;
pub mod lake;
pub mod machine;
pub mod model;
pub mod mutations;
pub mod network;
pub mod trace;
pub mod workloads;
pub mod world;

use std::cell::Cell;
use std::sync::{Arc, Once};
use std::time::Duration;

use stoker_store::{Class, VolumePolicy, WhenAlone};

use self::client::Clients;
use self::invariants::Broken;
use self::mutations::Mutation;
use self::world::{Cluster, Shape};
use crate::rng::Rng;

/// What one seed did.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Requests of clients.
    pub requests: u64,
    /// Of those, acknowledged.
    pub acknowledged: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Simulated time.
    pub simulated_ms: u64,
    /// Lines of the trace.
    pub events: u64,
    /// Of the trace.
    pub hash: u64,
}

impl Tally {
    /// Adds another seed's.
    pub fn add(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.acknowledged += other.acknowledged;
        self.faults += other.faults;
        self.simulated_ms += other.simulated_ms;
        self.events += other.events;
        self.hash ^= other.hash;
    }
}

/// A runtime whose clock jumps from event to event.
pub fn runtime() -> tokio::runtime::Runtime {
    let built = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    built.expect("a runtime without I/O can be had")
}

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// Counts panics of this thread: a runtime catches those of tasks, and a node that lost a task runs on as if nothing was.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
    PANICS.set(0);
}

/// Runs the history of one seed; an error says which promise broke, with the end of the trace.
pub fn run_seed(seed: u64) -> Result<Tally, String> {
    run_mutated(seed, None)
}

/// The same with a bug planted.
pub fn run_mutated(seed: u64, mutation: Option<Mutation>) -> Result<Tally, String> {
    count_panics();
    let runtime = runtime();
    let (outcome, trace) = runtime.block_on(async {
        let mut rng = Rng::new(seed);
        let cluster = Cluster::start(shape(&mut rng, mutation), seed).await;
        let outcome = run(&cluster, &mut rng).await;
        cluster.dismantle();
        (outcome, cluster.trace.clone())
    });
    let outcome = match PANICS.get() {
        0 => outcome,
        _ => Err(Broken::new("no panics", "a task of a node panicked (see above)")),
    };
    outcome.map_err(|broken| format!("{}end of the trace above; {broken}", trace.tail()))
}

fn shape(rng: &mut Rng, mutation: Option<Mutation>) -> Shape {
    let class = match rng.below(20) {
        0..3 => Class::One,
        3 => Class::Three,
        _ => Class::Two,
    };
    let when_alone = if rng.percent(20) { WhenAlone::Lake } else { WhenAlone::Refuse };
    let promised = VolumePolicy {
        class,
        when_alone,
        drain_quiet_s: rng.below(3) as u32,
        drain_lag_max_s: 20,
        ..VolumePolicy::default()
    };
    let class = if mutation == Some(Mutation::AckAfterOneCopy) { Class::One } else { class };
    let policy = VolumePolicy { class, ..promised.clone() };
    Shape {
        nodes: if rng.percent(70) { 3 } else { rng.between(4, 5) },
        segments: 24,
        policy,
        promised,
        mutation,
    }
}

async fn run(cluster: &Arc<Cluster>, rng: &mut Rng) -> Result<Tally, Broken> {
    let clients = Clients::new(cluster.clone(), rng.number());
    let faults = faults::Faulter::new(cluster.clone());
    // Safety: whatever goes wrong, nothing that was promised may be untrue.
    let struck = {
        // Faults overlap, or a second one never meets what the first one left.
        let seeds = [rng.number(), rng.number(), rng.number()];
        let count = rng.between(1, 3);
        let work = workloads::mixed(&clients, rng);
        let trouble = futures_util::future::join_all(seeds[..count].iter().map(|seed| faults.run(*seed)));
        tokio::pin!(work, trouble);
        tokio::select! {
            biased;
            done = &mut work => done?,
            _ = &mut trouble => unreachable!("it goes on for ever"),
        }
        faults.struck()
    };
    // Liveness: without faults everything comes to rest.
    cluster.heal();
    let open = tokio::time::timeout(Duration::from_secs(120), cluster.all_open()).await;
    open.map_err(|_| Broken::new("heals", "a node does not come back although nothing is wrong"))?;
    faults::vanish_and_lose(cluster, &clients, rng).await?;
    invariants::heals::check(cluster).await?;
    invariants::copies_count::check(cluster)?;
    invariants::one_writer_per_lake_key::check(cluster)?;
    invariants::acked_survives::check(&clients).await?;
    invariants::all_or_nothing::check(&clients).await?;
    invariants::drained_before_evicted::check(&clients).await?;
    invariants::said_is_true::check(&clients).await?;
    invariants::bounded::check(cluster).await?;
    let (requests, acknowledged) = clients.counts();
    let trace = &cluster.trace;
    Ok(Tally {
        requests,
        acknowledged,
        faults: struck,
        simulated_ms: trace.now_ms(),
        events: trace.count(),
        hash: trace.hash(),
    })
}
