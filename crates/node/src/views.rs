//! What operators are shown when the catalog does not answer: what was known last, and what this node knows by itself.
//!
//! A view is made from the catalog as long as that answers, however long the whole takes. Once the catalog is silent the view is not
//! waited for: it is given as it was last, with its age, or made of membership, drives and counters of this node alone. What is lost
//! and what helps is said beside it, by [`Order::Outages`](stoker_store::Order::Outages).

use std::sync::{Arc, Mutex, PoisonError};

use stoker_catalog::kv::Health;
use stoker_format::NodeId;
use stoker_schema::rows::DriveState;
use stoker_store::{
    CatalogAt, DriveInfo, ErrorKind, NodeInfo, NodeWord, Outage, Outages, Rebuild, Result, Risk, RiskReport,
    StaleView, VolumeInfo, VolumeProtection,
};

use crate::census::Census;
use crate::clock;
use crate::core::Core;
use crate::node::Node;
use crate::status::Counts;

/// A node that is silent for less is not called lost.
const SILENT_MS: u64 = 3_000;

/// The last good answers.
#[derive(Default)]
pub(crate) struct Views {
    pub status: Last<Counts>,
    pub risk: Last<RiskReport>,
    pub nodes: Last<Vec<NodeInfo>>,
    pub drives: Last<Vec<DriveInfo>>,
    pub volumes: Last<Vec<VolumeInfo>>,
    pub protection: Last<Vec<VolumeProtection>>,
    pub rebuild: Last<Rebuild>,
}

impl Views {
    fn stale(&self) -> Vec<StaleView> {
        let all = [
            ("status", self.status.stale()),
            ("risk", self.risk.stale()),
            ("nodes", self.nodes.stale()),
            ("drives", self.drives.stale()),
            ("volumes", self.volumes.stale()),
            ("protection", self.protection.stale()),
            ("rebuild", self.rebuild.stale()),
        ];
        let told = |(view, stale): (&str, Option<Option<u64>>)| {
            stale.map(|as_of_ms| StaleView { view: view.to_owned(), as_of_ms })
        };
        all.into_iter().filter_map(told).collect()
    }
}

/// The last good answer to a question.
pub(crate) struct Last<T>(Mutex<Known<T>>);

struct Known<T> {
    /// With the time at which it was true, milliseconds since 1970.
    good: Option<(u64, T)>,
    /// Whoever asked last got it, and no newer one.
    is_stale: bool,
}

impl<T> Default for Last<T> {
    fn default() -> Last<T> {
        Last(Mutex::new(Known { good: None, is_stale: false }))
    }
}

impl<T: Clone> Last<T> {
    fn keep(&self, value: &T) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Known { good: Some((clock::now_ms(), value.clone())), is_stale: false };
    }

    fn before(&self) -> Seen<T> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.is_stale = true;
        known.good.as_ref().map_or(Seen::Never, |(_, value)| Seen::Before(value.clone()))
    }

    /// Since when it is old, if the last answer was; none inside if there never was a good one.
    fn stale(&self) -> Option<Option<u64>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.is_stale.then(|| known.good.as_ref().map(|(at_ms, _)| *at_ms))
    }
}

impl Last<Vec<DriveInfo>> {
    /// The catalog does not know where drives are: of those whose node says nothing, what it said before.
    fn fill_in(&self, drives: &mut [DriveInfo]) {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((_, before)) = &known.good else { return };
        for drive in drives.iter_mut().filter(|drive| drive.path.is_empty()) {
            if let Some(known) = before.iter().find(|known| known.drive == drive.drive) {
                drive.path.clone_from(&known.path);
            }
        }
    }
}

/// An answer, and how old it is.
pub(crate) enum Seen<T> {
    Now(T),
    /// What was true when the catalog last answered.
    Before(T),
    Never,
}

impl Core {
    /// Makes a view, or says what was known last if the catalog does not answer.
    pub(crate) async fn view<T: Clone>(
        &self,
        last: &Last<T>,
        make: impl Future<Output = Result<T>>,
    ) -> Result<Seen<T>> {
        let made = tokio::select! {
            biased;
            made = make => made,
            () = self.catalog_times.pulse.until_silent() => return Ok(last.before()),
        };
        match made {
            Ok(value) => {
                last.keep(&value);
                Ok(Seen::Now(value))
            }
            Err(fault) if fault.kind == ErrorKind::Unavailable => Ok(last.before()),
            Err(fault) => Err(fault),
        }
    }

    pub(crate) async fn risk_view(&self) -> Result<RiskReport> {
        Ok(match self.view(&self.views.risk, self.risk()).await? {
            Seen::Now(report) => report,
            Seen::Before(report) => self.with_names(report),
            Seen::Never => self.risk_known(),
        })
    }

    /// A report of before, with what became of the nodes since.
    fn with_names(&self, mut report: RiskReport) -> RiskReport {
        let view = self.cell.view();
        for risk in &mut report.nodes {
            if let Ok(node) = risk.node.parse::<NodeId>() {
                risk.state = view.state_word(node).to_owned();
            }
        }
        report
    }

    /// What this node knows without the catalog: what it owes the lake itself. Each number is at least that.
    fn risk_known(&self) -> RiskReport {
        let view = self.cell.view();
        let (files, bytes, oldest_ms) = self.drainer.sums();
        let nothing = |node: NodeId| Risk {
            node: node.to_string(),
            name: view.name(node),
            cell: view.cell_of(node).to_owned(),
            state: view.state_word(node).to_owned(),
            ..Risk::default()
        };
        let of = |node: NodeId| match node == self.node {
            true => Risk {
                undrained_files: files,
                undrained_bytes: bytes,
                oldest_age_ms: oldest_ms.map_or(0, |since_ms| clock::now_ms().saturating_sub(since_ms)),
                ..nothing(node)
            },
            false => nothing(node),
        };
        let mut nodes: Vec<Risk> = view.nodes().map(of).collect();
        if nodes.is_empty() {
            nodes.push(of(self.node));
        }
        nodes.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
        RiskReport { nodes, cells: Vec::new(), lost_files: 0, lost_bytes: 0, at_least: true }
    }

    pub(crate) async fn nodes_view(&self) -> Result<Vec<NodeInfo>> {
        let before = match self.view(&self.views.nodes, self.node_list()).await? {
            Seen::Now(nodes) => return Ok(nodes),
            Seen::Before(nodes) => nodes,
            Seen::Never => Vec::new(),
        };
        // Who there is and who answers is known here; what they hold is what it was.
        let mut nodes = self.nodes_known(&Default::default());
        for node in &mut nodes {
            if let Some(known) = before.iter().find(|known| known.node == node.node) {
                node.undrained_files = known.undrained_files;
                node.undrained_bytes = known.undrained_bytes;
                node.drives_gone = known.drives_gone;
            }
        }
        Ok(nodes)
    }

    pub(crate) async fn drives_view(self: &Arc<Core>, only: Option<NodeId>) -> Result<Vec<DriveInfo>> {
        // Of one node only: asked and not kept.
        let one = Last::default();
        let last = if only.is_none() { &self.views.drives } else { &one };
        let make = async {
            let mut drives = self.drive_list(only).await?;
            self.views.drives.fill_in(&mut drives);
            Ok(drives)
        };
        let before = match self.view(last, make).await? {
            Seen::Now(drives) => return Ok(drives),
            Seen::Before(drives) => drives,
            Seen::Never => match self.views.drives.before() {
                Seen::Before(drives) => drives,
                _ => Vec::new(),
            },
        };
        let mut drives = self.drives_known(&before).await;
        drives.retain(|drive| only.is_none_or(|only| drive.node == only.to_string()));
        Ok(drives)
    }

    /// The drives of this node as they are, and those of others as they were.
    pub(crate) async fn drives_known(&self, before: &[DriveInfo]) -> Vec<DriveInfo> {
        let (view, census) = (self.cell.view(), Census::default());
        let mut all = Vec::new();
        for drive in self.rings.drives() {
            all.push(self.drive_info(&drive, &census).await);
        }
        all.extend(self.workshop.missing().iter().map(|missing| self.missing_info(missing, &census)));
        for info in &mut all {
            if let Some(known) = before.iter().find(|known| known.drive == info.drive) {
                (info.undrained_files, info.undrained_bytes) = (known.undrained_files, known.undrained_bytes);
            }
        }
        let own = self.node.to_string();
        for known in before.iter().filter(|known| known.node != own) {
            let is_gone = known.state == "gone";
            let (state, why) = match is_gone {
                true => (known.state.clone(), known.why.clone()),
                false => ("unknown".to_owned(), Some(format!("it was {} before", known.state))),
            };
            all.push(DriveInfo { state, why, ..known.clone() });
        }
        for (id, row) in view.drives().iter().filter(|(_, row)| row.node != self.node.0) {
            let (drive, node) = (id.to_string(), NodeId(row.node));
            if row.state != DriveState::Gone && !all.iter().any(|known| known.drive == drive) {
                all.push(DriveInfo {
                    drive,
                    node: node.to_string(),
                    name: view.name(node),
                    path: String::new(),
                    state: "unknown".to_owned(),
                    why: Some("the catalog does not answer".to_owned()),
                    incarnation: row.incarnation,
                    bytes: 0,
                    keep_bytes: 0,
                    clean_bytes: 0,
                    undrained_files: 0,
                    undrained_bytes: 0,
                });
            }
        }
        all.sort_by(|a, b| (&a.name, &a.path, &a.drive).cmp(&(&b.name, &b.path, &b.drive)));
        all
    }

    pub(crate) async fn volumes_view(&self) -> Result<Vec<VolumeInfo>> {
        let make = async {
            let mut infos = Vec::new();
            for volume in self.volumes.all().await? {
                infos.push(self.volumes.info(&volume).await?);
            }
            Ok(infos)
        };
        let before = match self.view(&self.views.volumes, make).await? {
            Seen::Now(volumes) => return Ok(volumes),
            Seen::Before(volumes) => volumes,
            Seen::Never => Vec::new(),
        };
        let known = |volume: Arc<crate::volumes::Volume>| VolumeInfo {
            name: volume.name.clone(),
            id: volume.id,
            created_ms: volume.created_ms,
            lake: volume.lake_url.clone(),
            policy: volume.policy.clone(),
            files: 0,
            bytes: 0,
        };
        if !before.is_empty() {
            return Ok(before);
        }
        let mut volumes: Vec<VolumeInfo> = self.volumes.known().into_iter().map(known).collect();
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }

    pub(crate) async fn protection_view(&self) -> Result<Vec<VolumeProtection>> {
        Ok(match self.view(&self.views.protection, self.protection()).await? {
            Seen::Now(volumes) | Seen::Before(volumes) => volumes,
            Seen::Never => Vec::new(),
        })
    }

    pub(crate) async fn rebuild_view(&self) -> Result<Rebuild> {
        let known = match self.view(&self.views.rebuild, self.rebuild_status()).await? {
            Seen::Now(rebuild) => return Ok(rebuild),
            Seen::Before(rebuild) => rebuild,
            Seen::Never => self.rebuild_here(),
        };
        // Nobody takes it for the present, least of all one that has nothing left.
        let trouble = "the catalog does not answer: this is what was known before".to_owned();
        Ok(Rebuild { trouble: Some(trouble), ..known })
    }
}

impl Node {
    /// What does not answer, and what helps. Asks nobody.
    pub(crate) fn outages(&self) -> Outages {
        let core = &self.core;
        let (view, now_ms) = (core.cell.view(), clock::now_ms());
        let mut lost = Vec::new();
        if let Some(silence) = core.catalog_times.pulse.silence() {
            let at = match self.catalog_host().map(|host| host.holder()) {
                Some(holder) if holder == core.node => {
                    CatalogAt::Here { name: view.name(holder), id: holder.to_string() }
                }
                Some(holder) => CatalogAt::Node { name: view.name(holder), id: holder.to_string() },
                None => CatalogAt::Database,
            };
            lost.push(Outage::of_catalog(&at, silence.since_ms, now_ms, silence.last_error.as_deref()));
        }
        // One that is here and answers, and takes no changes.
        let (name, id) = (view.name(core.node), core.node.to_string());
        let health = core.catalog.health();
        match &health {
            Health::ReadOnly(why) | Health::Failed(why) if lost.is_empty() => {
                lost.push(Outage::of_catalog_refusing(&name, &id, why));
            }
            Health::Stalled if lost.is_empty() => {
                let is_away = |node: &NodeId| *node != core.node && core.cell.is_suspect(*node);
                let away: Vec<String> = view.nodes().filter(is_away).map(|node| view.name(node)).collect();
                lost.push(Outage::of_catalog_stalled(&name, &id, &away));
            }
            _ => {}
        }
        // Nothing is declared down by a catalog that acknowledges nothing.
        let is_stalled = health == Health::Stalled;
        let mut nodes: Vec<Outage> = view
            .nodes()
            .filter(|node| *node != core.node)
            .filter_map(|node| {
                let word = core.node_word(node);
                // One that has just started has not heard everybody yet, and one ping may be lost.
                let is_lately =
                    matches!(word, NodeWord::Silent { since_ms } if now_ms < since_ms + SILENT_MS);
                if is_lately {
                    return None;
                }
                let outage = Outage::of_node(&view.name(node), &node.to_string(), word, now_ms)?;
                Some(if is_stalled { outage.for_a_person() } else { outage })
            })
            .collect();
        nodes.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
        lost.extend(nodes);
        lost.extend(core.lake_trouble(now_ms).map(|trouble| Outage::of_lake(&trouble)));
        Outages { lost, stale: core.views.stale() }
    }
}

impl Core {
    /// What is wrong with a lake, if something is: what a drain ran into, or that it does not answer.
    pub(crate) fn lake_trouble(&self, now_ms: u64) -> Option<String> {
        let silent = || self.volumes.known().iter().find_map(|volume| volume.lake_silence());
        self.drainer.trouble(now_ms).or_else(silent)
    }

    /// Whether a node answers, in one word.
    pub(crate) fn node_word(&self, node: NodeId) -> NodeWord {
        let view = self.cell.view();
        let since_ms = view.member(node).map_or(0, |member| member.row.since_ms);
        let latency_us = if node == self.node { 0 } else { self.cell.latency_seen_us(node) };
        NodeWord::of(view.became(node), since_ms, self.cell.silent_since(node), latency_us)
    }
}
