//! Drives that come, fail and go while the node runs. A drive that failed counts no more from the transaction on that says
//! so; one that is to go counts until everything that is not in the lake is elsewhere, and nothing else takes it out.

use std::collections::{BTreeSet, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stoker_catalog::kv::{Commit, Outcome, Range, prefix_end};
use stoker_format::{DriveId, NodeId, VersionId};
use stoker_ring::Settings;
use stoker_schema::rows::{DriveRow, DriveState, PartRow, RowValue, keys};
use stoker_store::{DriveInfo, ErrorKind, LostFile, Order, Report, Result, StoreError};

use crate::census::{Census, Fate};
use crate::core::Core;
use crate::error;
use crate::identity::{Identity, write_durable};
use crate::known::MissingDrive;
use crate::open_drive::open_drive;
use crate::options::{DriveOpener, DriveOptions, MemoryPlan};
use crate::rings::{Drive, Standing};
use crate::world::GivenWorld;

/// Pause between looks at the drives.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a node that was asked for is waited for, and the pause between two tries.
const PATIENCE: Duration = Duration::from_secs(3);
const PATIENCE_STEP: Duration = Duration::from_millis(100);

/// Drives of a node, in its life of one boot.
const DRIVES_MAX: usize = 256;

/// The file that remembers which drives came and went.
const KEPT: &str = "drives.json";

/// What opens drives.
pub(crate) struct Workshop {
    pub identity: Identity,
    pub memory: MemoryPlan,
    pub ring: Settings,
    pub dir: PathBuf,
    /// One change at a time.
    pub busy: tokio::sync::Mutex<()>,
    /// What opens drives, if they are not real.
    pub opener: Option<DriveOpener>,
    /// Drives of this node that were not where they should be when it started.
    pub missing: Mutex<Vec<MissingDrive>>,
    pub world: Option<GivenWorld>,
}

/// Drives that came and went while the node ran: its configuration does not know of them.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Kept {
    added: Vec<PathBuf>,
    removed: BTreeSet<PathBuf>,
    /// Ids of drives that are cordoned. Earlier releases called it `resting`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[serde(alias = "cordoned")]
    cordoned: BTreeSet<String>,
}

impl Kept {
    pub fn read(dir: &Path) -> Result<Kept> {
        let path = dir.join(KEPT);
        let broken = |fault: &dyn std::fmt::Display| {
            let message = format!("{}: {fault}; it says which drives were added and removed", path.display());
            StoreError::new(ErrorKind::Corrupt, message)
        };
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|fault| broken(&fault)),
            Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => Ok(Kept::default()),
            Err(fault) => Err(broken(&fault)),
        }
    }

    /// The drives of a configuration, and what became of them.
    pub fn apply(&self, configured: &[DriveOptions]) -> Vec<DriveOptions> {
        let added = self.added.iter().map(|path| DriveOptions { path: path.clone(), size_bytes: None });
        let known = |path: &Path| configured.iter().any(|drive| drive.path == path);
        let added = added.filter(|drive| !known(&drive.path));
        let all = configured.iter().filter(|drive| !self.removed.contains(&drive.path)).cloned();
        all.chain(added).collect()
    }

    /// Whether a drive was cordoned and not uncordoned since.
    pub fn is_cordoned(&self, id: DriveId) -> bool {
        self.cordoned.contains(&id.to_string())
    }

    fn with(mut self, path: &Path) -> Kept {
        self.removed.remove(path);
        if !self.added.iter().any(|known| known == path) {
            self.added.push(path.to_owned());
        }
        self
    }

    pub fn without(mut self, path: &Path) -> Kept {
        self.added.retain(|known| known != path);
        self.removed.insert(path.to_owned());
        self
    }

    pub fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(KEPT);
        let json = serde_json::to_vec_pretty(self).expect("plain data encodes");
        write_durable(&path, &json)
            .map_err(|fault| StoreError::new(ErrorKind::Unavailable, format!("{}: {fault}", path.display())))
    }
}

/// Drives that were taken out while a node ran, by the path of their ring.
pub fn drives_removed(dir: &Path) -> Result<BTreeSet<PathBuf>> {
    Ok(Kept::read(dir)?.removed)
}

/// The rings of a stopped node: those of its configuration, by their paths, and what became of them while it ran. (D112)
pub fn drives_kept(dir: &Path, configured: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let configured: Vec<DriveOptions> =
        configured.into_iter().map(|path| DriveOptions { path, size_bytes: None }).collect();
    Ok(Kept::read(dir)?.apply(&configured).into_iter().map(|drive| drive.path).collect())
}

/// What lies at the path of a drive: another one has another number.
pub(crate) fn mark_of(path: &Path) -> Option<(u64, u64)> {
    let place = if path.is_dir() { path.join("superblock") } else { path.to_owned() };
    std::fs::metadata(place).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Looks at the drives until the node closes.
pub(crate) async fn run(core: Arc<Core>) {
    while !core.closing.load(Ordering::Relaxed) {
        tokio::select! {
            biased;
            () = core.rings.failed.notified() => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
        for drive in core.rings.drives() {
            if let Err(fault) = core.look_at(&drive).await {
                tracing::warn!(drive = %drive.path.display(), "looking at a drive: {fault}");
            }
        }
    }
}

pub(crate) fn refused(message: String) -> StoreError {
    StoreError::new(ErrorKind::Conflict, message)
}

impl Core {
    async fn look_at(self: &Arc<Core>, drive: &Arc<Drive>) -> Result<()> {
        if !drive.is_failed() {
            let poisoned = drive.ring.status().await.map_err(error::ring)?.poisoned;
            if let Some(why) = poisoned {
                self.rings.fail(drive, why);
            } else if self.workshop.opener.is_none() && mark_of(&drive.path) != Some(drive.mark) {
                let why = "it is not at its path any more: unplugged, or another one is in its place";
                self.rings.fail(drive, why.to_owned());
            }
        }
        match drive.standing() {
            Standing::Serving | Standing::Cordoned => Ok(()),
            Standing::Failed(_) => {
                self.declare_gone(drive.id, Emptied::No).await?;
                match drive.goes.load(Ordering::Relaxed) && self.is_empty_drive(drive.id).await? {
                    true => self.take_out(drive).await,
                    false => Ok(()),
                }
            }
            Standing::Leaving => {
                let is_given_up =
                    self.is_empty_drive(drive.id).await? && self.declare_gone(drive.id, Emptied::Yes).await?;
                // A part of an upload may have come between the look and the transaction, after which none can come. It is moved
                // from here like the others.
                match is_given_up && self.is_empty_drive(drive.id).await? {
                    true => self.take_out(drive).await,
                    false => Ok(()),
                }
            }
        }
    }

    /// Says that nothing which a drive acknowledged counts; false if that cannot be said yet.
    async fn declare_gone(&self, id: DriveId, emptied: Emptied) -> Result<bool> {
        let key = keys::drive(id);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let Some(row) = row else { return Ok(true) };
        let value = DriveRow::of(&row).map_err(error::catalog)?;
        if value.state == DriveState::Gone {
            return Ok(true);
        }
        let gone = DriveRow { state: DriveState::Gone, ..value };
        let mut change = Commit::new().seq(key.clone(), row.seq).put(key, gone.encode());
        if emptied == Emptied::Yes {
            let all = keys::dirty_on(self.node, id);
            let end = prefix_end(&all).expect("a table is not 0xff");
            change = change.at_most(all, end, 0);
        }
        let done = matches!(self.catalog.commit(change).await.map_err(error::catalog)?, Outcome::Done { .. });
        if self.cell.is_joined() {
            self.cell.load_view().await?;
        }
        Ok(done)
    }

    /// Drives that the catalog knows as this node's and that it was started without: nothing on them counts until they are back.
    pub(crate) async fn give_up_missing(&self) -> Result<()> {
        let here: BTreeSet<DriveId> = self.rings.drives().iter().map(|drive| drive.id).collect();
        let mut missing = Vec::new();
        self.each(b"D".to_vec(), |row| {
            let id = row.key.get(1..17).and_then(|id| id.try_into().ok()).map(DriveId);
            let value = DriveRow::of(row).map_err(error::catalog)?;
            let is_missed = |id: &DriveId| {
                value.node == self.node.0 && value.state == DriveState::Live && !here.contains(id)
            };
            missing.extend(id.filter(is_missed));
            Ok(())
        })
        .await?;
        for id in missing {
            tracing::warn!(drive = %id, "this node was started without one of its drives: what it held does not count");
            self.declare_gone(id, Emptied::No).await?;
        }
        Ok(())
    }

    /// Whether no row says that something which is not in the lake is there.
    pub(crate) async fn is_empty_drive(&self, id: DriveId) -> Result<bool> {
        Ok(!self.has_undrained(id).await? && !self.drives_with_parts().await?.contains(&id))
    }

    /// Whether a row says that a version which is not in the lake has bytes there.
    pub(crate) async fn has_undrained(&self, id: DriveId) -> Result<bool> {
        let page = self.catalog.range(Range::prefix(&keys::dirty_on(self.node, id), 1)).await;
        Ok(!page.map_err(error::catalog)?.rows.is_empty())
    }

    /// Every drive that has parts of unfinished uploads.
    pub(crate) async fn drives_with_parts(&self) -> Result<HashSet<DriveId>> {
        let mut drives = HashSet::new();
        self.each(keys::PARTS.to_vec(), |row| {
            let part = PartRow::of(row).map_err(error::catalog)?;
            drives.extend(part.holders.iter().map(|holder| DriveId(holder.drive)));
            Ok(())
        })
        .await?;
        Ok(drives)
    }

    async fn take_out(self: &Arc<Core>, drive: &Arc<Drive>) -> Result<()> {
        let _busy = self.workshop.busy.lock().await;
        // A new one may be at the same path already.
        let others = |other: &Arc<Drive>| other.id != drive.id && other.path == drive.path;
        if !self.rings.drives().iter().any(others) {
            Kept::read(&self.workshop.dir)?.without(&drive.path).write(&self.workshop.dir)?;
        }
        // Should it come back, nobody remembers why it was cordoned.
        let mut kept = Kept::read(&self.workshop.dir)?;
        if kept.cordoned.remove(&drive.id.to_string()) {
            kept.write(&self.workshop.dir)?;
        }
        self.workshop.forget_drive(&drive.id.to_string())?;
        if let Some(drive) = self.rings.retire(drive.id) {
            tracing::info!(drive = %drive.path.display(), "the drive is taken out");
            if let Err(fault) = drive.ring.clone().close().await {
                tracing::debug!(drive = %drive.path.display(), "closing its ring: {fault:?}");
            }
        }
        Ok(())
    }

    /// Carries out an order about drives, here or on the node that it is about.
    pub(crate) async fn order_drive(self: &Arc<Core>, order: Order) -> Result<Report> {
        let node = match &order {
            Order::DriveAdd { node, .. }
            | Order::DriveRemove { node, .. }
            | Order::DriveCordon { node, .. }
            | Order::DriveLosses { node, .. } => self.cell.named(node)?,
            Order::Measures { node: Some(node) } => self.cell.named(node)?,
            _ => self.node,
        };
        match node == self.node {
            true => self.carry_out_here(order).await,
            false => self.cell.order_on(node, order).await,
        }
    }

    /// Puts a drive into service.
    pub(crate) async fn drive_add(
        self: &Arc<Core>,
        path: &str,
        size_bytes: Option<u64>,
    ) -> Result<Vec<DriveInfo>> {
        self.check_open()?;
        if self.is_witness {
            return Err(refused(
                "a witness takes no drives: stop it, and start its directory with `stoker up` to have it hold bytes".to_owned(),
            ));
        }
        let options = DriveOptions::named(Path::new(path), size_bytes)?;
        let _busy = self.workshop.busy.lock().await;
        let drives = self.rings.drives();
        let is_here = |drive: &Arc<Drive>| drive.path == options.path && !drive.is_failed();
        if drives.iter().any(is_here) {
            return Err(refused(format!("{} is in service already", options.path.display())));
        }
        if drives.len() >= DRIVES_MAX {
            return Err(refused(format!("a node has at most {DRIVES_MAX} drives; remove some first")));
        }
        self.check_not_missing(&options.path)?;
        let (pool, record_min) = (self.rings.pool(), self.chunk_bytes);
        let drive = open_drive(&options, &self.workshop, pool, &self.catalog, record_min).await?;
        // After a start every chunk is dirty until the catalog was asked (R8).
        let must_keep = self.must_keep_versions().await?;
        self.sort_drive(&drive, &must_keep).await?;
        let kept = Kept::read(&self.workshop.dir)?.with(&options.path);
        kept.write(&self.workshop.dir)?;
        if kept.is_cordoned(drive.id) {
            drive.set_standing(Standing::Cordoned);
        }
        self.workshop.note_drive(&drive)?;
        let drive = self.rings.add(drive);
        if self.cell.is_joined() {
            self.cell.load_view().await?;
        }
        self.inventory.compare_again();
        self.settle_all_leases().await?;
        tracing::info!(drive = %drive.path.display(), "the drive is in service");
        let census = self.census().await?;
        Ok(vec![self.drive_info(&drive, &census).await])
    }

    fn drive_named(&self, text: &str) -> Result<Arc<Drive>> {
        let is_meant = |drive: &&Arc<Drive>| drive.id.to_string() == text || drive.path == Path::new(text);
        let drives = self.rings.drives();
        // At one path a drive that failed and a new one in its place: the old one is meant.
        let mut meant: Vec<&Arc<Drive>> = drives.iter().filter(is_meant).collect();
        meant.sort_by_key(|drive| drive.is_serving());
        meant.first().map(|drive| Arc::clone(drive)).ok_or_else(|| {
            let message = format!("this node has no drive `{text}`; `stoker drive ls` lists them");
            StoreError::new(ErrorKind::NotFound, message)
        })
    }

    /// Lets a drive go: as soon as nothing is only there, or at once, whatever that loses.
    pub(crate) async fn drive_remove(self: &Arc<Core>, name: &str, force: bool) -> Result<Vec<DriveInfo>> {
        if let Some(missing) = self.workshop.missing().into_iter().find(|missing| missing.is_named(name)) {
            return self.remove_missing(&missing, force).await;
        }
        let drive = self.drive_named(name)?;
        let serves = |other: &Arc<Drive>| other.id != drive.id && other.is_serving();
        let is_last = !self.rings.drives().iter().any(serves);
        let path = drive.path.display().to_string();
        if is_last && !force {
            return Err(refused(format!(
                "{path} is the last drive of this node: add another one first with `stoker drive add`, or empty the node with \
                 `stoker node evacuate`"
            )));
        }
        if is_last && self.rings.drives().len() == 1 {
            return Err(refused(format!(
                "{path} is the only drive of this node, and a node without one cannot start: add another one first with \
                 `stoker drive add`, or stop the node"
            )));
        }
        drive.goes.store(true, Ordering::Relaxed);
        drive.set_standing(Standing::Leaving);
        if force {
            self.rings.fail(&drive, "a person gave it up".to_owned());
            self.declare_gone(drive.id, Emptied::No).await?;
            self.take_out(&drive).await?;
        }
        self.rings.failed.notify_one();
        self.cell.wake.notify_waiters();
        let census = self.census().await?;
        Ok(vec![self.drive_info(&drive, &census).await])
    }

    /// Cordons a drive, or uncordons it. It lasts over restarts.
    pub(crate) async fn drive_cordon(self: &Arc<Core>, name: &str, cordoned: bool) -> Result<Vec<DriveInfo>> {
        // At one path a drive that failed and a new one in its place: the new one is meant, the other one stays as it is.
        let is_new = |drive: &Arc<Drive>| drive.path == Path::new(name) && !drive.is_failed();
        let drive = match self.rings.drives().into_iter().find(is_new) {
            Some(drive) => drive,
            None => self.drive_named(name)?,
        };
        let _busy = self.workshop.busy.lock().await;
        let path = drive.path.display();
        let standing = drive.standing();
        if !cordoned {
            // What a drive is taken for that is not here any more does not matter, and one that failed works no more either way.
            let open: Vec<String> = self.rings.drives().iter().map(|drive| drive.id.to_string()).collect();
            let mut kept = Kept::read(&self.workshop.dir)?;
            let before = kept.cordoned.len();
            kept.cordoned
                .retain(|id| open.contains(id) && (*id != drive.id.to_string() || !drive.is_failed()));
            if kept.cordoned.len() != before {
                kept.write(&self.workshop.dir)?;
            }
            if drive.is_failed() {
                let census = self.census().await?;
                return Ok(vec![self.drive_info(&drive, &census).await]);
            }
        }
        match &standing {
            Standing::Failed(why) => return Err(refused(format!("{path} failed ({why}): replace it"))),
            Standing::Leaving => return Err(refused(format!("{path} is on its way out already"))),
            Standing::Serving | Standing::Cordoned => {}
        }
        let serves = |other: &Arc<Drive>| other.id != drive.id && other.is_serving();
        let is_new = cordoned && standing != Standing::Cordoned;
        if is_new && !self.rings.drives().iter().any(serves) {
            return Err(refused(format!(
                "{path} is the last drive of this node that takes chunks: quarantine the node instead"
            )));
        }
        let mut kept = Kept::read(&self.workshop.dir)?;
        let is_news = match cordoned {
            true => kept.cordoned.insert(drive.id.to_string()),
            false => kept.cordoned.remove(&drive.id.to_string()),
        };
        if is_news {
            kept.write(&self.workshop.dir)?;
        }
        // Whoever removes a drive does not wait for this; what they decided counts.
        let to = if cordoned { Standing::Cordoned } else { Standing::Serving };
        if !drive.change_standing(&standing, to) {
            if is_news && kept.cordoned.remove(&drive.id.to_string()) {
                kept.write(&self.workshop.dir)?;
            }
            return Err(refused(format!("{path} fails, or is on its way out, since a moment ago")));
        }
        self.cell.wake.notify_waiters();
        let census = self.census().await?;
        Ok(vec![self.drive_info(&drive, &census).await])
    }

    /// What would be lost with a drive now.
    pub(crate) async fn drive_losses(&self, name: &str) -> Result<Vec<LostFile>> {
        let drive = self.drive_named(name)?;
        let census = self.census().await?;
        let view = self.cell.view();
        let counts = |node: NodeId, id: DriveId| id != drive.id && self.is_readable(&view, node, id);
        let is_there = |places: &[(NodeId, DriveId)]| places.iter().any(|(_, id)| *id == drive.id);
        let mut lost: Vec<VersionId> = census
            .versions
            .iter()
            .filter(|(_, one)| is_there(&one.places) && census.fate(one, counts) != Fate::Safe)
            .map(|(version, _)| *version)
            .collect();
        lost.sort_unstable();
        let mut told = Vec::new();
        for version in lost.iter().take(crate::risk::TOLD_MAX) {
            self.tell_lost(*version, &census.versions[version], Fate::Lost, &mut told).await?;
        }
        self.tell_lost_parts(&census, |part| is_there(&part.places), counts, &mut told).await?;
        Ok(told)
    }

    /// The drives of this node.
    pub(crate) async fn drives_here(&self) -> Result<Vec<DriveInfo>> {
        let census = self.census().await?;
        let mut all = Vec::new();
        for drive in self.rings.drives() {
            all.push(self.drive_info(&drive, &census).await);
        }
        all.extend(self.workshop.missing().iter().map(|missing| self.missing_info(missing, &census)));
        Ok(all)
    }

    pub(crate) async fn drive_info(&self, drive: &Drive, census: &Census) -> DriveInfo {
        let (state, why) = match drive.standing() {
            Standing::Serving => ("live", None),
            Standing::Cordoned => {
                ("cordoned", Some("no new chunks go there until it is found sound".to_owned()))
            }
            Standing::Leaving => ("leaving", Some("it goes when nothing is only there".to_owned())),
            Standing::Failed(why) => ("failed", Some(why)),
        };
        let status = Core::ring_status(drive).await.ok();
        let (undrained_files, undrained_bytes) = undrained_on(census, drive.id);
        DriveInfo {
            drive: drive.id.to_string(),
            node: self.node.to_string(),
            name: self.cell.view().name(self.node),
            path: drive.path.display().to_string(),
            state: state.to_owned(),
            why,
            incarnation: drive.row.incarnation,
            bytes: drive.bytes,
            keep_bytes: status.as_ref().map_or(0, |status| status.keep_bytes),
            clean_bytes: status.as_ref().map_or(0, |status| status.clean_bytes),
            undrained_files,
            undrained_bytes,
        }
    }

    /// What another node says of its drives.
    async fn drives_of(&self, node: NodeId, is_patient: bool) -> Option<Vec<DriveInfo>> {
        let end = tokio::time::Instant::now() + if is_patient { PATIENCE } else { Duration::ZERO };
        loop {
            let order = Order::Drives { node: None };
            let told = match is_patient {
                true => self.cell.order_on(node, order).await,
                false => self.cell.order_soon(node, order).await,
            };
            match told {
                Ok(Report::Drives(theirs)) => return Some(theirs),
                other if tokio::time::Instant::now() >= end => {
                    tracing::debug!(%node, "its drives are not known: {:?}", other.err());
                    return None;
                }
                _ => tokio::time::sleep(PATIENCE_STEP).await,
            }
        }
    }

    /// The drives of all nodes, or of one.
    pub(crate) async fn drive_list(self: &Arc<Core>, only: Option<NodeId>) -> Result<Vec<DriveInfo>> {
        let view = self.cell.view();
        let mut all = Vec::new();
        if only.is_none_or(|node| node == self.node) {
            all.extend(self.drives_here().await?);
        }
        // Whoever is suspected is waited for only if it is the one that was asked for.
        let others: Vec<NodeId> = view
            .nodes()
            .filter(|node| *node != self.node && !view.is_down(*node))
            .filter(|node| only.map_or_else(|| !self.cell.is_suspect(*node), |only| only == *node))
            .collect();
        let mut answered: BTreeSet<NodeId> = BTreeSet::from([self.node]);
        let asked = others.iter().map(|node| self.drives_of(*node, only.is_some()));
        for (node, told) in others.iter().zip(futures_util::future::join_all(asked).await) {
            if let Some(theirs) = told {
                answered.insert(*node);
                all.extend(theirs);
            }
        }
        // Of the rest only what the catalog says.
        let census = self.census().await?;
        let told: BTreeSet<String> = all.iter().map(|drive| drive.drive.clone()).collect();
        for (id, row) in view.drives() {
            let node = NodeId(row.node);
            let (undrained_files, undrained_bytes) = undrained_on(&census, *id);
            let is_gone = row.state == DriveState::Gone;
            // What is left of a drive that is out. Of a node that was asked for and said nothing it cannot be told whether it is.
            let is_told = only.is_none() || answered.contains(&node) || view.is_down(node);
            let is_history = is_gone && undrained_files == 0 && is_told;
            if told.contains(&id.to_string()) || is_history || only.is_some_and(|only| only != node) {
                continue;
            }
            let (state, why) = match is_gone {
                true if undrained_files == 0 => ("gone", format!("node {} does not answer", view.name(node))),
                true => ("gone", "it was given up with files that the lake does not have".to_owned()),
                false => ("unknown", format!("node {} does not answer", view.name(node))),
            };
            all.push(DriveInfo {
                drive: id.to_string(),
                node: node.to_string(),
                name: view.name(node),
                path: String::new(),
                state: state.to_owned(),
                why: Some(why),
                incarnation: row.incarnation,
                bytes: 0,
                keep_bytes: 0,
                clean_bytes: 0,
                undrained_files,
                undrained_bytes,
            });
        }
        all.sort_by(|a, b| (&a.name, &a.path, &a.drive).cmp(&(&b.name, &b.path, &b.drive)));
        Ok(all)
    }
}

/// Whether a drive has to be empty before it is given up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Emptied {
    Yes,
    No,
}

pub(crate) fn undrained_on(census: &Census, id: DriveId) -> (u64, u64) {
    let there = census.versions.values().filter(|one| one.places.iter().any(|(_, drive)| *drive == id));
    there.fold((0, 0), |(files, bytes), one| (files + 1, bytes + one.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_that_came_and_went_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let drive = |path: &str| DriveOptions { path: path.into(), size_bytes: None };
        let configured = [drive("/a"), drive("/b")];
        let paths = |kept: &Kept| {
            let all = kept.apply(&configured);
            all.iter().map(|drive| drive.path.display().to_string()).collect::<Vec<_>>()
        };
        let none = Kept::read(dir.path()).unwrap();
        assert_eq!(paths(&none), ["/a", "/b"]);
        let kept = none.with(Path::new("/c")).without(Path::new("/a"));
        kept.write(dir.path()).unwrap();
        let kept = Kept::read(dir.path()).unwrap();
        assert_eq!(paths(&kept), ["/b", "/c"]);
        let stopped = drives_kept(dir.path(), vec!["/a".into(), "/b".into()]).unwrap();
        assert_eq!(stopped, [PathBuf::from("/b"), PathBuf::from("/c")]);
        assert_eq!(paths(&kept.with(Path::new("/a")).without(Path::new("/c"))), ["/a", "/b"]);
        std::fs::write(dir.path().join(KEPT), "{").unwrap();
        assert_eq!(Kept::read(dir.path()).unwrap_err().kind, ErrorKind::Corrupt);
    }
}
