//! The gate for one part of a node that runs: what its drives could do when they were sound, and whether one that was out can do it
//! again.

use std::path::{Path, PathBuf};

use stoker_reflex_driver::{PartGate, Sound};
use stoker_ring::Histogram;
use stoker_store::Calibration;

use super::baseline::{self, Baselines, Better};
use super::drive;
use super::leftovers::Leftovers;
use super::site::{Drive, Site};
use super::step::{Outcome, Verdict};
use super::{FULL, QUICK, RELEASE};
use crate::progress::Progress;
use stoker_probe::raw::RawFile;
use stoker_probe::workload::{Job, Limit, Mix, Order};

/// Bytes of a small operation.
const SMALL: usize = 4 << 10;

/// Bytes of a large operation, and how many a try has.
const LARGE: usize = 1 << 20;
const LARGE_OPS: u64 = 4;

/// Bytes of the file that a drive is tried with.
const TRIED_BYTES: u64 = 4 << 20;

/// Operations of one try, and how long it may take.
const TRY_OPS: u64 = 64;
const TRY_S: f64 = 0.25;

/// How much worse a figure may be because the node works.
const BUSY: f64 = 3.0;

/// What is shorter than this is no sign of a broken drive: a busy processor is as long.
const SHORT_US: f64 = stoker_reflex_driver::SHORT_US as f64;

/// The file beside a ring that a drive is tried with.
const TRIED: &str = ".stoker-try";

/// The gate as the break-fix loop asks it.
pub struct PartsOfNode;

impl PartGate for PartsOfNode {
    fn verify(&self, dir: &Path, paths: &[PathBuf]) -> (bool, String) {
        verify(dir, paths)
    }

    fn calibrations(&self, dir: &Path, path: &Path) -> Sound {
        calibrations(dir, path)
    }

    fn try_drive(
        &self,
        path: &Path,
        sound: Sound,
        reads: &Histogram,
        writes: &Histogram,
    ) -> Result<(), String> {
        try_drive(path, sound, reads, writes)
    }
}

/// What the gate measured of the drive at a path: reads, writes.
fn calibrations(dir: &Path, path: &Path) -> (Option<Calibration>, Option<Calibration>) {
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
fn verify(dir: &Path, paths: &[PathBuf]) -> (bool, String) {
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

/// Reads and writes a little on the drive at a path, and adds how long that took: small operations one at a time, and a few large ones
/// as long as they would be if they were small, by what is known of the drive when it was sound. A raw device is only read.
fn try_drive(
    path: &Path,
    sound: (Option<Calibration>, Option<Calibration>),
    reads: &Histogram,
    writes: &Histogram,
) -> Result<(), String> {
    let words = |e: std::io::Error| format!("{}: {e}", path.display());
    let is_device = !path.is_dir() && !path.is_file();
    let file = match is_device {
        true => RawFile::of_others(path).map_err(words)?,
        false => scratch(path).map_err(words)?,
    };
    for (mix, sound, into) in [(Mix::Reads, sound.0, reads), (Mix::Writes, sound.1, writes)] {
        if mix == Mix::Writes && is_device {
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
        let Some(sound) = sound.filter(|sound| sound.bytes_per_s > 0) else { continue };
        let job = Job { len: LARGE, depth: 1, mix, order: Order::RandomReads };
        let mut queue = file.queue(&job).map_err(words)?;
        let round = queue.round(Limit::Bytes(LARGE_OPS * LARGE as u64)).map_err(words)?;
        let small_us = (sound.small_p99_us as f64).max(SHORT_US);
        let times = 1.0 + LARGE as f64 / sound.bytes_per_s as f64 * 1e6 / small_us;
        for value in round.latency_ns.iter_recorded() {
            let us = (value.value_iterated_to() as f64 / 1e3 / times) as u64;
            (0..value.count_at_value()).for_each(|_| into.record_us(us));
        }
    }
    Ok(())
}

/// A file on the drive that goes with its last descriptor, also when nobody comes back to it.
fn scratch(path: &Path) -> std::io::Result<RawFile> {
    // Beside a ring that is a file.
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    let name = path.file_name().filter(|_| !path.is_dir()).map(|name| name.to_string_lossy().into_owned());
    let place = folder.join(format!("{TRIED}{}", name.map_or_else(String::new, |name| format!("-{name}"))));
    // One that a try left behind which did not come to its end.
    let _ = std::fs::remove_file(&place);
    let made = RawFile::make(&place, TRIED_BYTES, &Progress::over_bytes(0, true));
    let removed = std::fs::remove_file(&place);
    let made = made?;
    removed?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_tried_and_nothing_is_left() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (reads, writes) = (Histogram::default(), Histogram::default());
        // Whoever tried before did not come to the end.
        std::fs::write(folder.path().join(TRIED), "left behind").unwrap();
        try_drive(folder.path(), (None, None), &reads, &writes).unwrap();
        assert!(reads.count() > 0 && writes.count() > 0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(try_drive(&folder.path().join("no"), (None, None), &reads, &writes).is_err());
        // Of one that was measured large operations count, too: this one did a mebibyte in a microsecond when it was sound.
        let ring = folder.path().join("ring");
        std::fs::write(&ring, "a ring that is a file").unwrap();
        let (small, large) = (Histogram::default(), Histogram::default());
        try_drive(&ring, (None, None), &small, &small).unwrap();
        let sound = Some(Calibration { small_p99_us: 1, bytes_per_s: 1 << 40 });
        try_drive(&ring, (sound, sound), &large, &large).unwrap();
        assert!(large.quantile_us(1.0) >= small.quantile_us(0.01));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read(&ring).unwrap(), b"a ring that is a file");
    }

    #[test]
    fn what_nobody_measured_is_not_known() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(calibrations(folder.path(), folder.path()), (None, None));
        std::fs::write(folder.path().join(baseline::FILE), "{").unwrap();
        assert_eq!(calibrations(folder.path(), folder.path()), (None, None));
    }
}
