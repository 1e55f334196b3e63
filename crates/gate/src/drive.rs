//! Steps on one drive: bare, and through a ring of the gate's own. Both work on files beside the node's ring, on the same
//! file system; the ring that the node uses is never opened. A raw device that is all ring is only read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stoker_ring::DriveKind;

use super::Extent;
use super::leftovers::Leftovers;
use super::site::{Drive, Site};
use super::step::Outcome;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::size;
use stoker_probe::measure::Round;
use stoker_probe::raw::RawFile;
use stoker_probe::subject::Subject;
use stoker_probe::workload::{CHUNK, Job, Limit, Mix, Order};

/// What stays free on the file system, whatever the gate does.
const SPARE: u64 = 256 << 20;

const fn job(len: usize, depth: usize, mix: Mix) -> Job {
    Job { len, depth, mix, order: Order::RandomReads }
}

/// The loads of a bare drive; the first two are rates, the others times.
const DEVICE: [(&str, Job); 4] = [
    ("device_write_4m", job(CHUNK, 8, Mix::Writes)),
    ("device_read_4m", job(CHUNK, 8, Mix::Reads)),
    ("device_write_4k_p99", job(4096, 1, Mix::Writes)),
    ("device_read_4k_p99", job(4096, 1, Mix::Reads)),
];

const RING: [(&str, Job); 3] = [
    ("ring_append_4m", job(CHUNK, 8, Mix::Writes)),
    ("ring_append_4k_p99", job(4096, 1, Mix::Writes)),
    ("ring_read_4m", job(CHUNK, 8, Mix::Reads)),
];

/// Measures the drive without the ring.
pub fn device(site: &Site, drive: &Drive, extent: &Extent, leftovers: &Leftovers) -> Vec<Outcome> {
    let outcomes = match kind(drive) {
        Err(why) => every(&DEVICE, |step| Outcome::failed(step, &drive.subject, &why)),
        Ok(DriveKind::Device) => read_device(drive, extent),
        Ok(_) => match scratch(site, drive, extent.file_bytes) {
            Err(why) => every(&DEVICE, |step| Outcome::skipped(step, &drive.subject, &why)),
            Ok(folder) => {
                let undone = folder.clone();
                let _folder = leftovers.add(move || remove(&undone));
                let measured = make_file(&folder, extent).and_then(|file| {
                    DEVICE.iter().map(|(step, job)| bare(step, drive, &file, job, extent)).collect()
                });
                measured
                    .unwrap_or_else(|why| every(&DEVICE, |step| Outcome::failed(step, &drive.subject, &why)))
            }
        },
    };
    shown(outcomes, drive)
}

/// Measures a ring on the drive.
pub fn ring(site: &Site, drive: &Drive, extent: &Extent, leftovers: &Leftovers) -> Vec<Outcome> {
    let outcomes = match kind(drive) {
        Err(why) => every(&RING, |step| Outcome::failed(step, &drive.subject, &why)),
        Ok(DriveKind::Device) => every(&RING, |step| Outcome::skipped(step, &drive.subject, ALL_RING)),
        Ok(_) => match scratch(site, drive, extent.ring_bytes) {
            Err(why) => every(&RING, |step| Outcome::skipped(step, &drive.subject, &why)),
            Ok(folder) => {
                let undone = folder.clone();
                let _folder = leftovers.add(move || remove(&undone));
                let measured =
                    through_ring(drive, &folder, extent).map_err(|failure| failure.cause().to_owned());
                measured
                    .unwrap_or_else(|why| every(&RING, |step| Outcome::failed(step, &drive.subject, &why)))
            }
        },
    };
    shown(outcomes, drive)
}

const ALL_RING: &str = "the drive is a raw device, all of which is the node's ring: it is not written to";

fn kind(drive: &Drive) -> Result<DriveKind, String> {
    if !drive.path.exists() {
        return Err(format!("{} is not there", drive.path.display()));
    }
    stoker_ring::Drive::kind_of(&drive.path).map_err(|e| format!("{}: {e}", drive.path.display()))
}

fn every(steps: &[(&str, Job)], outcome: impl Fn(&str) -> Outcome) -> Vec<Outcome> {
    steps.iter().map(|(step, _)| outcome(step)).collect()
}

fn shown(outcomes: Vec<Outcome>, drive: &Drive) -> Vec<Outcome> {
    outcomes.into_iter().map(|outcome| outcome.shown_as(drive.path.display().to_string())).collect()
}

/// Makes an empty folder beside the ring, if so many bytes fit. The gate's lock makes it ours alone.
fn scratch(site: &Site, drive: &Drive, bytes: u64) -> Result<PathBuf, String> {
    let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev());
    let beside = drive.path.parent().filter(|parent| device(parent).ok() == device(&drive.path).ok());
    let beside = match beside {
        Some(parent) => parent,
        // The ring's directory is a mount point: what has another name than its segments does not concern it.
        None if drive.path.is_dir() => &drive.path,
        None => return Err(format!("there is no room beside {}", drive.path.display())),
    };
    let folder = beside.join(format!(".{}", site.name()));
    // Of a gate that was killed.
    remove(&folder);
    let (free, _) = stoker_ring::disk_space(beside).map_err(|e| format!("{}: {e}", beside.display()))?;
    if free < bytes + SPARE {
        let (need, free) = (size::human(bytes + SPARE), size::human(free));
        return Err(format!("it takes {need}, {} has {free} free", beside.display()));
    }
    fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

fn remove(folder: &Path) {
    for _ in 0..20 {
        // Again, if a ring that is being closed has made a file meanwhile.
        if fs::remove_dir_all(folder).is_ok() || !folder.exists() {
            return;
        }
    }
}

fn make_file(folder: &Path, extent: &Extent) -> Result<RawFile, String> {
    let path = folder.join("bare");
    let quiet = Progress::over_bytes(0, true);
    RawFile::make(&path, extent.file_bytes, &quiet).map_err(|e| format!("{}: {e}", path.display()))
}

fn bare(step: &str, drive: &Drive, file: &RawFile, job: &Job, extent: &Extent) -> Result<Outcome, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", drive.path.display());
    let mut queue = file.queue(job).map_err(failed)?;
    let mut rounds = Vec::new();
    for _ in 0..extent.rounds {
        rounds.push(queue.round(Limit::Seconds(extent.seconds)).map_err(failed)?);
    }
    Ok(Outcome::measured(step, &drive.subject, best(&rounds, job)))
}

/// What can be done with a drive that is the node's ring.
fn read_device(drive: &Drive, extent: &Extent) -> Vec<Outcome> {
    let file = RawFile::of_others(&drive.path).map_err(|e| format!("{}: {e}", drive.path.display()));
    let one = |(step, job): &(&str, Job)| match &file {
        _ if job.mix == Mix::Writes => Outcome::skipped(step, &drive.subject, ALL_RING),
        Ok(file) if file.size() < CHUNK as u64 => {
            Outcome::skipped(step, &drive.subject, "the drive is too small")
        }
        Ok(file) => bare(step, drive, file, job, extent)
            .unwrap_or_else(|why| Outcome::failed(step, &drive.subject, why)),
        Err(why) => Outcome::failed(step, &drive.subject, why),
    };
    DEVICE.iter().map(one).collect()
}

fn through_ring(drive: &Drive, folder: &Path, extent: &Extent) -> Result<Vec<Outcome>, Failure> {
    let quiet = Progress::over_bytes(0, true);
    let mut subject = Subject::make(&folder.join("ring"), extent.ring_bytes)?;
    let mut outcomes = Vec::new();
    for (step, job) in &RING {
        if job.mix == Mix::Reads {
            subject.make_resident(&quiet)?;
        }
        subject.equip(job);
        let mut rounds = Vec::new();
        for _ in 0..extent.rounds {
            rounds.push(subject.round(job, Limit::Seconds(extent.seconds))?);
        }
        outcomes.push(Outcome::measured(step, &drive.subject, best(&rounds, job)));
    }
    subject.close()?;
    Ok(outcomes)
}

/// The best round: a rate where many are under way, the longest of a hundred where one is.
fn best(rounds: &[Round], job: &Job) -> f64 {
    match job.depth {
        1 => rounds
            .iter()
            .filter(|round| round.ops > 0)
            .map(|round| round.latency_ns.value_at_quantile(0.99) as f64 / 1e3)
            .fold(f64::NAN, f64::min),
        _ => rounds.iter().map(Round::mb_s).fold(f64::NAN, f64::max),
    }
}
