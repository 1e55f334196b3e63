//! What whoever judges parts of a cluster needs of a node: what it measured, what is known of the others, what was written
//! down for all, and that less is asked of a part. Nothing here judges.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use stoker_catalog::kv::Check;
use stoker_format::{DriveId, NodeId};
use stoker_schema::lead::Candidate;
use stoker_schema::notes::{self, Note};
use stoker_schema::rows::Duty;
use stoker_store::{
    CopyMeasures, DriveMeasures, ErrorKind, Evacuation, Measures, PartFacts, PartWeight, Result, StoreError,
    Times,
};

use crate::core::Core;
use crate::node::Node;
use crate::rings::{Drive, Standing};
use crate::sources::Source;
use crate::{clock, error};

/// Bytes of a line that is added to a note.
const LINE_LEN_MAX: usize = 1_024;

/// Tries to read or write a note that others write.
const TRIES_MAX: usize = 8;

/// A node as this one sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerSeen {
    /// Its id.
    pub node: String,
    /// For people.
    pub name: String,
    /// Cell, switch and power feed.
    pub cell: String,
    /// See `cell`.
    pub tor: String,
    /// See `cell`.
    pub power: String,
    /// What the cluster decided: `up`, `leaving`, `quarantined`, `evacuating` or `down`.
    pub state: &'static str,
    /// Whether it takes new chunks by decision, also while it is down: `full`, `quarantined` or `evacuating`.
    pub duty: &'static str,
    /// It misses pings.
    pub is_suspect: bool,
}

impl Node {
    /// Every node, as this one sees it now; the catalog is not asked.
    pub fn peers_seen(&self) -> Vec<PeerSeen> {
        let view = self.core.cell.view();
        let one = |node: NodeId| {
            let row = &view.member(node)?.row;
            Some(PeerSeen {
                node: node.to_string(),
                name: view.name(node),
                cell: row.cell.clone(),
                tor: row.tor.clone(),
                power: row.power.clone(),
                state: view.state_word(node),
                duty: match view.duty(node) {
                    Duty::Full => "full",
                    Duty::Quarantined => "quarantined",
                    Duty::Evacuating => "evacuating",
                },
                is_suspect: node != self.core.node && self.core.cell.is_suspect(node),
            })
        };
        view.nodes().filter_map(one).collect()
    }

    /// Where peers reach a node.
    pub fn addresses_of(&self, node: &str) -> Vec<String> {
        let view = self.core.cell.view();
        let member = node.parse().ok().and_then(|node: NodeId| view.member(node));
        member.map_or_else(Vec::new, |member| member.row.addresses.clone())
    }

    /// Nodes that the most demanding volume commits to.
    pub async fn copies_needed(&self) -> Result<u32> {
        let volumes = self.core.volumes.all().await?;
        let copies = volumes.iter().map(|volume| self.core.class(volume).copies());
        Ok(copies.max().unwrap_or(1) as u32)
    }

    /// What was written down under a name, without its body.
    pub async fn note(&self, name: &str) -> Result<Option<Note>> {
        self.core.note(name).await
    }

    /// The body of a note, which was written with it or before; none if somebody wrote another one meanwhile.
    pub async fn note_body(&self, name: &str, note: &Note) -> Result<Option<Vec<u8>>> {
        self.core.note_body(name, note).await
    }

    /// How far evacuations of nodes are, by their ids; those that are unknown are left out.
    pub async fn evacuations(&self, nodes: &[String]) -> Result<Vec<Evacuation>> {
        let nodes: Vec<NodeId> = nodes.iter().filter_map(|node| node.parse().ok()).collect();
        self.core.evacuations(&nodes).await
    }

    /// Writes a head, and a body if it changed, in place of what was read (`seq`; none for nothing). None if somebody else was
    /// quicker.
    pub async fn write_note(
        &self,
        name: &str,
        seq: Option<u64>,
        head: &[u8],
        body: Option<&[u8]>,
    ) -> Result<Option<u64>> {
        self.core.write_note(name, seq, head, body).await
    }

    /// Would lead the loop with a name, once in the cluster, from now on: what [`stoker_schema::lead`] says, for loops beside the node.
    pub fn candidate(&self, name: &str, now: Instant) -> Result<Candidate> {
        self.core.candidate(name, now)
    }

    /// Less is asked of these parts from now on, and of all others as much as ever.
    pub fn set_weights(&self, weights: &[PartWeight]) {
        self.core.set_weights(weights);
    }

    /// What the surroundings of this node say of its parts, for whoever asks it.
    pub fn set_facts(&self, facts: PartFacts) {
        *self.core.facts.0.lock().unwrap() = facts;
    }
}

/// What the surroundings of this node say.
#[derive(Default)]
pub(crate) struct Facts(Mutex<PartFacts>);

impl Core {
    pub(crate) async fn note(&self, name: &str) -> Result<Option<Note>> {
        notes::read(&*self.catalog, name).await.map_err(error::catalog)
    }

    async fn note_body(&self, name: &str, note: &Note) -> Result<Option<Vec<u8>>> {
        notes::body(&*self.catalog, name, note).await.map_err(error::catalog)
    }

    async fn write_note(
        &self,
        name: &str,
        seq: Option<u64>,
        head: &[u8],
        body: Option<&[u8]>,
    ) -> Result<Option<u64>> {
        self.check_open()?;
        let written = notes::write(&*self.catalog, name, seq, head, body).await.map_err(error::catalog)?;
        written.into_iter().for_each(|seq| self.saw(seq));
        Ok(written)
    }

    /// Would lead the loop with a name, once in the cluster, from now on; see [`stoker_schema::lead`]. A boot that was fenced leads nothing.
    pub(crate) fn candidate(&self, name: &str, now: Instant) -> Result<Candidate> {
        let session = Check::Value(self.session.0.clone(), self.session.1.clone());
        let who: String = self.session_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let node = self.cell.view().name(self.node);
        Candidate::new(self.catalog.clone(), name, &who, &node, vec![session], now).map_err(error::catalog)
    }

    /// Adds a line to a note. Nobody waits for it: a note that nobody reads is full at some time.
    pub(crate) async fn add_to_note(&self, name: &str, line: &str) -> Result<()> {
        let invalid = |message: String| StoreError::new(ErrorKind::Invalid, message);
        if line.is_empty() || line.contains('\n') || line.len() > LINE_LEN_MAX {
            return Err(invalid(format!(
                "a line of a note has 1 to {LINE_LEN_MAX} bytes, and no end of line"
            )));
        }
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') {
            return Err(invalid(format!("`{}` is no name of a note", name.escape_debug())));
        }
        for _ in 0..TRIES_MAX {
            let note = self.note(name).await?;
            let (seq, mut head) = note.map_or((None, Vec::new()), |note| (Some(note.seq), note.head));
            head.extend_from_slice(line.as_bytes());
            head.push(b'\n');
            if head.len() > notes::HEAD_LEN_MAX {
                return Err(StoreError::new(ErrorKind::Conflict, format!("the note `{name}` is full")));
            }
            if self.write_note(name, seq, &head, None).await?.is_some() {
                return Ok(());
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, format!("the note `{name}` is contended; retry")))
    }

    fn set_weights(&self, weights: &[PartWeight]) {
        let here = self.node.to_string();
        let takes = |weight: &PartWeight| if weight.takes_chunks { weight.percent } else { 0 };
        let mut sources: HashMap<Source, u8> = HashMap::new();
        for (at, drive) in self.rings.numbered() {
            let is_it = |weight: &&PartWeight| {
                let path = weight.drive.as_deref().map(Path::new);
                weight.node == here && path == Some(drive.path.as_path())
            };
            let weight = weights.iter().find(is_it);
            drive.weight_percent.store(weight.map_or(100, takes), Ordering::Relaxed);
            sources.extend(weight.map(|weight| (Source::Drive(at), weight.percent)));
        }
        let mut nodes: HashMap<NodeId, u8> = HashMap::new();
        for weight in weights.iter().filter(|weight| weight.drive.is_none() && weight.node != here) {
            let Ok(node) = weight.node.parse::<NodeId>() else { continue };
            nodes.insert(node, takes(weight));
            sources.extend([Source::Peer(node), Source::Turn(node)].map(|source| (source, weight.percent)));
        }
        self.cell.set_weights(nodes);
        self.sources.set_weights(&sources);
    }

    /// What this node measured.
    pub(crate) async fn measures_here(self: &Arc<Core>) -> Result<Measures> {
        let drives = self.rings.drives();
        let cordoned = drives.iter().filter(|drive| drive.standing() == Standing::Cordoned);
        let empty = self.empty_drives(cordoned.map(|drive| drive.id).collect());
        let measure = |drive: &Arc<Drive>| DriveMeasures {
            is_empty: empty.get(&drive.id).copied(),
            ..drive.measures()
        };
        let drives = drives.iter().map(measure).collect();
        let takes = self.cell.stats.takes.read().unwrap();
        let copies = takes.iter().map(|(node, takes)| CopyMeasures {
            node: node.to_string(),
            times: Times { bytes: takes.bytes.load(Ordering::Relaxed), ..takes.times.times() },
            bad: takes.bad.load(Ordering::Relaxed),
        });
        let copies = copies.collect();
        drop(takes);
        let (_, _, oldest) = self.drainer.sums();
        Ok(Measures {
            node: self.node.to_string(),
            drives,
            reads: self.stats.read_times.times(),
            copies,
            drain_age_ms: oldest.map_or(0, |since| clock::now_ms().saturating_sub(since)),
            facts: self.facts.0.lock().unwrap().clone(),
        })
    }
}

/// Which drives that rest are empty, as somebody found out lately.
#[derive(Default)]
pub(crate) struct Emptiness {
    found: HashMap<DriveId, bool>,
    /// When it was asked last; the answer may still be on its way.
    asked_ms: u64,
    is_asking: bool,
}

/// Pause between two looks whether drives that rest are empty: each goes through a table of the catalog.
const EMPTY_EVERY_MS: u64 = 4_000;

/// A look that takes longer has no answer any more.
const EMPTY_ASK_MAX_MS: u64 = 600_000;

impl Core {
    /// What is known of drives that rest. Whoever asks does not wait: what is not known yet is left out.
    fn empty_drives(self: &Arc<Core>, cordoned: Vec<DriveId>) -> HashMap<DriveId, bool> {
        let now_ms = clock::now_ms();
        let mut known = self.emptiness.lock().unwrap();
        known.found.retain(|drive, _| cordoned.contains(drive));
        let is_due = cordoned.iter().any(|drive| !known.found.contains_key(drive))
            || now_ms.abs_diff(known.asked_ms) >= EMPTY_EVERY_MS;
        let is_asking = known.is_asking && now_ms.abs_diff(known.asked_ms) < EMPTY_ASK_MAX_MS;
        if !cordoned.is_empty() && is_due && !is_asking {
            (known.asked_ms, known.is_asking) = (now_ms, true);
            let core = self.clone();
            self.tasks.spawn(async move {
                let found = core.look_for_empty(&cordoned).await;
                let mut known = core.emptiness.lock().unwrap();
                known.is_asking = false;
                known.found = found.unwrap_or_else(|fault| {
                    tracing::debug!("whether drives that rest are empty is not known: {fault}");
                    HashMap::new()
                });
            });
        }
        known.found.clone()
    }

    async fn look_for_empty(&self, drives: &[DriveId]) -> Result<HashMap<DriveId, bool>> {
        let with_parts = self.drives_with_parts().await?;
        let mut found = HashMap::new();
        for drive in drives {
            let is_empty = !with_parts.contains(drive) && !self.has_undrained(*drive).await?;
            found.insert(*drive, is_empty);
        }
        Ok(found)
    }
}

impl Drive {
    fn measures(self: &Arc<Drive>) -> DriveMeasures {
        let stats = self.ring.stats();
        let written = [&stats.user_bytes, &stats.relocated_bytes, &stats.padding_bytes];
        let times = |histogram: &stoker_ring::Histogram, bytes: u64, busy_us: u64| Times {
            buckets: histogram.snapshot(),
            sum_us: histogram.sum_us(),
            bytes,
            busy_us,
        };
        let (state, why) = match self.standing() {
            Standing::Serving => ("live", None),
            Standing::Cordoned => ("cordoned", None),
            Standing::Leaving => ("leaving", None),
            Standing::Failed(why) => ("failed", Some(why)),
        };
        DriveMeasures {
            drive: self.id.to_string(),
            path: self.path.display().to_string(),
            state: state.to_owned(),
            why,
            reads: times(&stats.read_latency, stats.read_bytes.get(), stats.read_busy_us.get()),
            writes: times(
                &stats.write_latency,
                written.iter().map(|part| part.get()).sum(),
                stats.write_busy_us.get(),
            ),
            good: stats.reads.get() + stats.writes.get(),
            bad: stats.io_errors.get() + stats.corrupt_blocks.get(),
            is_empty: None,
        }
    }
}
