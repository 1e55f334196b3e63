//! How far rebuilds are, for those who ask.

use std::sync::atomic::Ordering;

use stoker_format::{DriveId, NodeId};
use stoker_store::{Rebuild, Result};

use super::rebuild::Loss;
use crate::census::Fate;
use crate::core::Core;

impl Core {
    /// How far all of it is, with what the other nodes say of their share.
    pub(crate) async fn rebuild_status(&self) -> Result<Rebuild> {
        let losses = self.losses();
        let census = self.census().await?;
        let view = self.cell.view();
        let counts = |node: NodeId, drive: DriveId| self.is_readable(&view, node, drive);
        let mut told = self.rebuild_here();
        let is_hit = |place: &(NodeId, DriveId)| losses.iter().any(|loss| loss.has(place.0, place.1));
        for one in census.versions.values().filter(|one| one.places.iter().any(is_hit)) {
            let (files, bytes) = match census.fate(one, counts) {
                Fate::Lost => (&mut told.lost_files, &mut told.lost_bytes),
                _ => (&mut told.files_left, &mut told.bytes_left),
            };
            (*files, *bytes) = (*files + 1, *bytes + one.bytes);
            if one.bytes > 0 && !one.is_in_lake && one.copies(counts) == 1 {
                told.one_copy_files += 1;
                told.one_copy_bytes += one.bytes;
            }
        }
        for part in census.parts.iter().filter(|part| part.places.iter().any(is_hit)) {
            let is_lost = !part.places.iter().any(|(node, drive)| counts(*node, *drive));
            let (files, bytes) = match is_lost {
                true => (&mut told.lost_files, &mut told.lost_bytes),
                false => (&mut told.files_left, &mut told.bytes_left),
            };
            (*files, *bytes) = (*files + 1, *bytes + part.bytes);
        }
        let left = |loss: &&Loss| {
            let is_of = |(node, drive): &(NodeId, DriveId)| loss.has(*node, *drive);
            census.versions.values().any(|one| one.places.iter().any(is_of))
                || census.parts.iter().any(|part| part.places.iter().any(is_of))
        };
        told.losses = losses.iter().filter(left).map(|loss| self.loss_words(*loss)).collect();
        let asked = self.cell.others().into_iter().filter(|node| !self.cell.is_suspect(*node));
        let answers = asked.map(|node| async move { (node, self.cell.rebuild_of(node).await) });
        for (node, theirs) in futures_util::future::join_all(answers).await {
            let Ok(theirs) = theirs else {
                // It may have found that some of its copies are gone.
                let silent = || format!("node {} does not say how far it is", view.name(node));
                told.trouble = told.trouble.or_else(|| Some(silent()));
                continue;
            };
            told.files_done += theirs.files_done;
            told.bytes_done += theirs.bytes_done;
            told.bytes_per_s += theirs.bytes_per_s;
            told.trouble = told.trouble.or(theirs.trouble);
        }
        told.end_in_ms = match (told.bytes_left, told.bytes_per_s) {
            (0, _) => Some(0),
            (_, 0) => None,
            (bytes, rate) => Some(bytes.saturating_mul(1_000) / rate),
        };
        Ok(told)
    }

    /// This node's share.
    pub(crate) fn rebuild_here(&self) -> Rebuild {
        let rebuilder = &self.cell.rebuilder;
        Rebuild {
            files_done: rebuilder.files.load(Ordering::Relaxed),
            bytes_done: rebuilder.bytes.load(Ordering::Relaxed),
            bytes_per_s: rebuilder.bytes_per_s(),
            bytes_per_s_max: rebuilder.options.bytes_per_s_max,
            workers: rebuilder.options.workers as u32,
            trouble: rebuilder.trouble().or_else(|| self.inventory.unknown()),
            ..Rebuild::default()
        }
    }

    fn loss_words(&self, loss: Loss) -> String {
        let name = self.cell.view().name(loss.node());
        match loss {
            Loss::Down(_) => format!("node {name} is down"),
            Loss::Evacuating(_) => format!("node {name} is being evacuated"),
            Loss::Gone(_, drive) => format!("drive {drive} of node {name} is gone"),
            Loss::Leaving(_, drive) => format!("drive {drive} of node {name} is to go"),
        }
    }
}
