//! The past of this node, for whoever asks: an hour in memory, two days by the minute and 31 days by ten minutes in a file of less
//! than a megabyte. It never grows, and nothing waits for it: samples are taken into memory, and a task of its own writes them. (D104)

mod file;
mod tier;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stoker_store::{HistoryPoint, HistoryRequest, HistorySource, figure};
use tokio::sync::watch;

use super::pause;
use crate::clock;
use file::HistoryFile;
use tier::Tier;

/// The file in the node's directory.
const FILE: &str = "history.bin";
/// Step and points of the circle in memory.
const RECENT: (u64, usize) = (10_000, 360);
/// Step and points of the circles in the file.
const KEPT: [(u64, usize); 2] = [(60_000, 2_880), (600_000, 4_464)];
/// How often the file is written: what a crash can take from it.
const WRITE_EVERY: Duration = Duration::from_secs(60);

/// The past.
pub struct PastKeeper {
    circles: Mutex<Circles>,
    /// None if it could not be opened, which was said.
    file: Option<HistoryFile>,
}

struct Circles {
    recent: Tier,
    kept: Vec<Tier>,
    /// Points that the file has not.
    changed: BTreeSet<(usize, usize)>,
}

impl PastKeeper {
    /// The past as it was kept. One that cannot be read begins anew, which is said: it is no reason not to start.
    pub fn open(dir: &Path) -> PastKeeper {
        let path = dir.join(FILE);
        let mut kept: Vec<Tier> = KEPT.map(|(every_ms, len)| Tier::new(every_ms, len)).into();
        let file = match HistoryFile::open(&path, &mut kept) {
            Ok(opened) => {
                if let Some(why) = opened.dropped {
                    tracing::warn!("the history for plots begins anew: {}: {why}", path.display());
                }
                if opened.damaged > 0 {
                    let path = path.display();
                    tracing::warn!(
                        "{} damaged points of the history for plots are left out: {path}",
                        opened.damaged
                    );
                }
                Some(opened.file)
            }
            Err(error) => {
                tracing::error!("the history for plots cannot be kept: {}: {error}", path.display());
                None
            }
        };
        let circles = Circles { recent: Tier::new(RECENT.0, RECENT.1), kept, changed: BTreeSet::new() };
        PastKeeper { circles: Mutex::new(circles), file }
    }

    /// Takes what was measured at a moment.
    pub fn add(&self, at_ms: u64, values: &[(&str, f64)]) {
        let values: Vec<(usize, f64)> =
            values.iter().filter_map(|(name, value)| Some((figure(name)?, *value))).collect();
        let mut circles = self.circles.lock().unwrap_or_else(PoisonError::into_inner);
        let Circles { recent, kept, changed } = &mut *circles;
        recent.add(at_ms, &values);
        changed.extend(kept.iter_mut().enumerate().map(|(tier, circle)| (tier, circle.add(at_ms, &values))));
    }

    /// Finished points: of the coarsest circle that is fine enough and reaches far enough back, or of a finer one as long as that has
    /// none; else of the longest one.
    pub fn points(&self, request: HistoryRequest, now_ms: u64) -> Vec<HistoryPoint> {
        let circles = self.circles.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<&Tier> = std::iter::once(&circles.recent).chain(&circles.kept).collect();
        let reaches =
            |tier: &Tier| request.since_ms >= now_ms.saturating_sub(tier.every_ms() * tier.len() as u64);
        let is_fine = |tier: &Tier| tier.every_ms() <= request.every_ms;
        let best = all.iter().rposition(|tier| is_fine(tier) && reaches(tier));
        let best = best.or_else(|| all.iter().position(|tier| reaches(tier))).unwrap_or(all.len() - 1);
        let points = all[..=best].iter().rev().map(|tier| tier.points(request, now_ms));
        points.into_iter().find(|points| !points.is_empty()).unwrap_or_default()
    }

    /// What tells it to others.
    pub fn source(self: &Arc<PastKeeper>) -> HistorySource {
        let own = self.clone();
        Arc::new(move |request| own.points(request, clock::unix_ms()))
    }

    /// Writes what changed every now and then, and at the end.
    pub async fn keep(self: Arc<PastKeeper>, mut stopped: watch::Receiver<bool>) {
        let mut was_told = false;
        loop {
            let is_over = pause(WRITE_EVERY, &mut stopped).await;
            let own = self.clone();
            let written = tokio::task::spawn_blocking(move || own.write()).await;
            let trouble = match written {
                Ok(Ok(())) => None,
                Ok(Err(words)) => Some(words),
                Err(fault) => Some(fault.to_string()),
            };
            // Once, when it begins, and not every minute.
            if let Some(words) = trouble.as_ref().filter(|_| !was_told) {
                tracing::error!("the history for plots cannot be kept: {words}");
            }
            was_told = trouble.is_some();
            if is_over {
                return;
            }
        }
    }

    fn write(&self) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut circles = self.circles.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = std::mem::take(&mut circles.changed);
        for (tier, at) in changed {
            file.write(&circles.kept, tier, at)
                .map_err(|error| format!("{}: {error}", file.path().display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
