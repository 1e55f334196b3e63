//! The gate for one part of a node that runs: what its drives could do when they were sound, and whether one that was out can do it
//! again.

use std::path::{Path, PathBuf};

use stoker_ring::Histogram;
use stoker_store::Calibration;

use super::baseline::{self, Baselines, Better};
use super::drive;
use super::leftovers::Leftovers;
use super::site::{Drive, Site};
use super::step::{Outcome, Verdict};
use super::{FULL, QUICK, RELEASE};
use crate::bench::raw::RawFile;
use crate::bench::workload::{Job, Limit, Mix, Order};
use crate::progress::Progress;

/// Bytes of a small operation.
const SMALL: usize = 4 << 10;

/// Bytes of the file that a drive is tried with.
const TRIED_BYTES: u64 = 4 << 20;

/// Operations of one try, and how long it may take.
const TRY_OPS: u64 = 64;
const TRY_S: f64 = 0.25;

/// How much worse a figure may be because the node works.
const BUSY: f64 = 3.0;

/// What is shorter than this is no sign of a broken drive: a busy processor is as long.
pub const SHORT_US: f64 = 1_000.0;

/// The file beside a ring that a drive is tried with.
const TRIED: &str = ".stoker-try";

/// What the gate measured of the drive at a path: reads, writes.
pub fn calibrations(dir: &Path, path: &Path) -> (Option<Calibration>, Option<Calibration>) {
    let Ok(baselines) = Baselines::read(&dir.join(baseline::FILE)) else { return (None, None) };
    let subject = Drive::at(path.to_owned()).subject;
    let figure = |step: &str| {
        let full = baselines.find(RELEASE, step, &subject, false);
        full.or_else(|| baselines.find(RELEASE, step, &subject, true)).map(|row| row.figure)
    };
    let one = |small: &str, large: &str| {
        let (small_us, mb_s) = (figure(small)?, figure(large)?);
        Some(Calibration { small_p99_us: small_us.ceil() as u64, bytes_per_s: (mb_s * 1e6) as u64 })
    };
    (one("device_read_4k_p99", "device_read_4m"), one("device_write_4k_p99", "device_write_4m"))
}

/// Measures drives and compares them with what they could do: whether they may work again, and why.
pub fn verify(dir: &Path, paths: &[PathBuf]) -> (bool, String) {
    let (mut site, baselines) = match (Site::find(dir, None), Baselines::read(&dir.join(baseline::FILE))) {
        (Ok(site), Ok(baselines)) => (site, baselines),
        (Err(failure), _) | (_, Err(failure)) => return (false, failure.cause().to_owned()),
    };
    site.set_drives(paths.iter().cloned());
    let (mut compared, mut wrong) = (0, Vec::new());
    for drive in &site.drives {
        // In the same way as what it is compared with was measured.
        let is_full = baselines.find(RELEASE, "device_read_4k_p99", &drive.subject, false).is_some();
        let extent = if is_full { &FULL } else { &QUICK };
        for outcome in drive::device(&site, drive, extent, &Leftovers::default()) {
            let outcome = outcome.judged(&baselines, RELEASE, extent.is_quick);
            compared += usize::from(outcome.baseline.is_some());
            match &outcome.verdict {
                Verdict::Fail(why) if !is_good_enough(&outcome) => {
                    wrong.push(format!("{} of {}: {why}", outcome.step.name, outcome.shown));
                }
                _ => {}
            }
        }
    }
    match wrong.is_empty() {
        true => (true, format!("{compared} figures are as good as when it was sound")),
        false => (false, wrong.join("; ")),
    }
}

/// Whether a figure that the gate would not let pass is good enough for a part of a node that works meanwhile: its baseline was measured
/// when nothing else was.
fn is_good_enough(outcome: &Outcome) -> bool {
    let (Some(figure), Some(baseline)) = (outcome.figure, &outcome.baseline) else { return false };
    match outcome.step.better {
        Better::Lower => figure <= (baseline.figure * BUSY).max(SHORT_US),
        Better::Higher => figure >= baseline.figure / BUSY,
    }
}

/// Reads and writes a little on the drive at a path, and adds how long that took. A raw device is only read.
pub fn try_drive(path: &Path, reads: &Histogram, writes: &Histogram) -> Result<(), String> {
    let words = |e: std::io::Error| format!("{}: {e}", path.display());
    let file = match path.is_dir() {
        true => {
            let place = path.join(TRIED);
            let made = RawFile::make(&place, TRIED_BYTES, &Progress::over_bytes(0, true)).map_err(words)?;
            // The file goes with its last descriptor, also when nobody comes back to it.
            std::fs::remove_file(&place).map_err(words)?;
            made
        }
        false => RawFile::of_others(path).map_err(words)?,
    };
    for (mix, into) in [(Mix::Reads, reads), (Mix::Writes, writes)] {
        if mix == Mix::Writes && !path.is_dir() {
            continue;
        }
        let job = Job { len: SMALL, depth: 1, mix, order: Order::RandomReads };
        let mut queue = file.queue(&job).map_err(words)?;
        let mut left = TRY_OPS as i64;
        let begun = crate::clock::now();
        while left > 0 && begun.elapsed().as_secs_f64() < TRY_S {
            let round = queue.round(Limit::Bytes(8 * SMALL as u64)).map_err(words)?;
            left -= round.ops.max(1) as i64;
            for value in round.latency_ns.iter_recorded() {
                (0..value.count_at_value()).for_each(|_| into.record_us(value.value_iterated_to() / 1_000));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_tried_and_nothing_is_left() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (reads, writes) = (Histogram::default(), Histogram::default());
        try_drive(folder.path(), &reads, &writes).unwrap();
        assert!(reads.count() > 0 && writes.count() > 0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(try_drive(&folder.path().join("no"), &reads, &writes).is_err());
    }

    #[test]
    fn what_nobody_measured_is_not_known() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(calibrations(folder.path(), folder.path()), (None, None));
        std::fs::write(folder.path().join(baseline::FILE), "{").unwrap();
        assert_eq!(calibrations(folder.path(), folder.path()), (None, None));
    }
}
