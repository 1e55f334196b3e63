//! What every node does for the loop, whoever leads: it keeps to what was decided, says what its surroundings tell of its parts, and
//! measures parts that are to come back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use stoker_node::Node;
use stoker_ring::Histogram;
use stoker_store::{DriveFacts, GateFacts, PartFacts, PortFacts, Times};

use super::head::{GateAsked, Head};
use super::part_gate::PartGate;

/// What was told about parts of one node at most.
const GATES_MAX: usize = 64;

/// The agent of a node.
pub struct Agent {
    node: Arc<Node>,
    id: String,
    dir: PathBuf,
    gate: Arc<dyn PartGate>,
    /// What tries of drives that are out took.
    tried: Mutex<BTreeMap<PathBuf, Arc<Tried>>>,
    /// Gates that run or ran, by part and run.
    gates: Mutex<BTreeMap<(String, u64), Option<GateFacts>>>,
}

#[derive(Default)]
struct Tried {
    reads: Histogram,
    writes: Histogram,
    bad: AtomicU64,
    /// One at a time: a slow drive is slow to try.
    busy: tokio::sync::Mutex<()>,
}

impl Agent {
    pub fn new(node: Arc<Node>, id: &str, dir: &Path, gate: Arc<dyn PartGate>) -> Arc<Agent> {
        let (tried, gates) = Default::default();
        Arc::new(Agent { node, id: id.to_owned(), dir: dir.to_owned(), gate, tried, gates })
    }

    /// Keeps to what was decided.
    pub fn keep_to(self: &Arc<Agent>, head: &Head) {
        self.node.set_weights(&head.weights);
        let mine: Vec<&GateAsked> = head.gates.iter().filter(|asked| asked.node == self.id).collect();
        self.gates
            .lock()
            .unwrap()
            .retain(|(part, run), _| mine.iter().any(|asked| asked.part == *part && asked.run == *run));
        for asked in mine {
            self.begin_gate(asked);
        }
        let out: Vec<PathBuf> = head
            .probes
            .iter()
            .filter(|asked| asked.node == self.id)
            .map(|asked| PathBuf::from(&asked.drive))
            .collect();
        self.tried.lock().unwrap().retain(|path, _| out.contains(path));
        out.into_iter().filter(|path| self.has(path)).for_each(|path| self.begin_try(path));
    }

    /// Nobody leads, or nobody can be heard: everything is asked as ever.
    pub fn be_free(&self) {
        self.node.set_weights(&[]);
    }

    fn has(&self, path: &Path) -> bool {
        self.node.drive_ledgers().iter().any(|drive| drive.path == path)
    }

    fn begin_gate(self: &Arc<Agent>, asked: &GateAsked) {
        let key = (asked.part.clone(), asked.run);
        {
            let mut gates = self.gates.lock().unwrap();
            if gates.contains_key(&key) || gates.len() >= GATES_MAX {
                return;
            }
            gates.insert(key.clone(), None);
        }
        let all = self.node.drive_ledgers().into_iter().map(|drive| drive.path);
        let paths: Vec<PathBuf> = match &asked.drive {
            Some(path) => all.filter(|known| known == Path::new(path)).collect(),
            None => all.collect(),
        };
        let agent = self.clone();
        tokio::task::spawn_blocking(move || {
            let (passed, words) = match paths.is_empty() {
                true => (false, "it is not there".to_owned()),
                false => agent.gate.verify(&agent.dir, &paths),
            };
            tracing::info!(part = %key.0, passed, "the gate measured a part that was out: {words}");
            let found = GateFacts { part: key.0.clone(), run: key.1, passed, words };
            if let Some(place) = agent.gates.lock().unwrap().get_mut(&key) {
                *place = Some(found);
            }
        });
    }

    fn begin_try(&self, path: PathBuf) {
        let tried = self.tried.lock().unwrap().entry(path.clone()).or_default().clone();
        let (dir, gate) = (self.dir.clone(), self.gate.clone());
        tokio::task::spawn_blocking(move || {
            let Ok(_busy) = tried.busy.try_lock() else { return };
            let sound = gate.calibrations(&dir, &path);
            if let Err(why) = gate.try_drive(&path, sound, &tried.reads, &tried.writes) {
                tried.bad.fetch_add(1, Relaxed);
                tracing::warn!("a drive that is to be tried fails: {why}");
            }
        });
    }

    /// What the surroundings of this node tell, for whoever leads. `drives` and `ports` come from those who can ask them.
    pub fn tell(&self, mut drives: Vec<DriveFacts>, ports: Vec<PortFacts>) {
        for ledger in self.node.drive_ledgers() {
            let path = ledger.path.display().to_string();
            let at = drives.iter().position(|facts| facts.path == path).unwrap_or_else(|| {
                drives.push(DriveFacts { path: path.clone(), ..DriveFacts::default() });
                drives.len() - 1
            });
            let facts = &mut drives[at];
            (facts.read, facts.write) = self.gate.calibrations(&self.dir, &ledger.path);
            if let Some(tried) = self.tried.lock().unwrap().get(&ledger.path) {
                (facts.tried_reads, facts.tried_writes) = (times(&tried.reads), times(&tried.writes));
                facts.tried_bad = tried.bad.load(Relaxed);
            }
        }
        let gates = self.gates.lock().unwrap().values().flatten().cloned().collect();
        self.node.set_facts(PartFacts { drives, ports, gates });
    }
}

fn times(histogram: &Histogram) -> Times {
    Times { buckets: histogram.snapshot(), ..Times::default() }
}
