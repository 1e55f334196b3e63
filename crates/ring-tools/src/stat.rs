//! `stoker ring stat`: what a ring is and how it is.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use stoker_format::RecordKind;
use stoker_ring::DriveKind;
use stoker_ring::index::Marks;

use super::snapshot::Snapshot;
use crate::failure::Failure;
use crate::{clock, out, size};

/// Arguments of `ring stat`.
#[derive(clap::Args)]
pub struct Args {
    /// Where the ring is.
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Sums over live records.
#[derive(Default)]
struct Totals {
    records: u64,
    bytes: u64,
    names: u64,
    never: u64,
    pinned: u64,
    damaged: u64,
}

impl Totals {
    fn of(snapshot: &Snapshot) -> Totals {
        let mut totals = Totals::default();
        for (_, entry) in snapshot.records() {
            totals.records += 1;
            totals.bytes += u64::from(entry.len);
            totals.names += u64::from(entry.kind() == RecordKind::Name);
            totals.never += u64::from(entry.marks.has(Marks::NEVER));
            totals.pinned += u64::from(entry.marks.has(Marks::PINNED));
            totals.damaged += u64::from(entry.marks.has(Marks::DAMAGED));
        }
        totals
    }
}

/// What an operator should know, worst first; empty if all is well. Torn and stale records are no trouble: the first
/// were never acknowledged, the second are last lap's.
fn troubles(snapshot: &Snapshot, totals: &Totals) -> Vec<String> {
    let report = &snapshot.recovered.report;
    let rows = [
        (snapshot.recovered.missing.len() as u64, "segment files are missing"),
        (u64::from(report.damaged), "segments cannot be read, their records are lost here"),
        (totals.damaged, "records have damaged blocks"),
        (u64::from(report.bad_footers), "footers were bad, their segments were scanned instead"),
        (report.corrupt, "record headers are damaged"),
        (report.misplaced, "record headers lie at the wrong place"),
        (report.foreign, "record headers belong to another ring"),
    ];
    let mut troubles: Vec<String> =
        rows.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    troubles.extend(snapshot.missing_files().map(|path| format!("{} is missing", path.display())));
    troubles
}

/// Shows a ring.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let snapshot = Snapshot::take(&args.dir)?;
    let totals = Totals::of(&snapshot);
    let troubles = troubles(&snapshot, &totals);
    if args.json {
        print_json(&snapshot, &totals, &troubles)?
    } else {
        print_text(&snapshot, &totals, &troubles)?
    }
    Ok(ExitCode::SUCCESS)
}

fn kind_name(kind: DriveKind) -> &'static str {
    match kind {
        DriveKind::Directory => "directory",
        DriveKind::File => "file",
        DriveKind::Device => "device",
    }
}

fn print_json(snapshot: &Snapshot, totals: &Totals, troubles: &[String]) -> Result<(), Failure> {
    let (superblock, report) = (snapshot.drive.superblock(), snapshot.recovered.report);
    out::json(&json!({
        "dir": snapshot.drive.path().display().to_string(),
        "kind": kind_name(snapshot.drive.kind()),
        "direct": snapshot.drive.is_direct(),
        "ring": superblock.ring.to_string(),
        "drive": superblock.drive.to_string(),
        "cluster": superblock.cluster.to_string(),
        "node": superblock.node.to_string(),
        "label": superblock.label,
        "incarnation": superblock.incarnation,
        "boot": superblock.boot,
        "format_version": superblock.format_version,
        "created_unix_ms": superblock.created_unix_ms,
        "bytes": superblock.segment_size * u64::from(superblock.segment_count),
        "segment_size": superblock.segment_size,
        "segment_count": superblock.segment_count,
        "segments": snapshot.segments_by_state(),
        "records": {
            "live": totals.records,
            "bytes": totals.bytes,
            "dirty": totals.records,
            "clean": 0,
            "names": totals.names,
            "never_drain": totals.never,
            "pinned": totals.pinned,
            "damaged": totals.damaged,
        },
        "recovery": {
            "footers": report.footers,
            "scanned": report.scanned,
            "bad_footers": report.bad_footers,
            "damaged": report.damaged,
            "missing": snapshot.recovered.missing,
            "deaths": report.deaths,
            "torn": report.torn,
            "stale": report.stale,
            "foreign": report.foreign,
            "misplaced": report.misplaced,
            "corrupt": report.corrupt,
            "bytes_read": report.bytes_read,
        },
        "healthy": troubles.is_empty(),
        "troubles": troubles,
    }))
}

fn print_text(snapshot: &Snapshot, totals: &Totals, troubles: &[String]) -> Result<(), Failure> {
    let (superblock, report) = (snapshot.drive.superblock(), snapshot.recovered.report);
    let bytes = superblock.segment_size * u64::from(superblock.segment_count);
    let states: Vec<String> =
        snapshot.segments_by_state().iter().map(|(state, count)| format!("{count} {state}")).collect();
    let label =
        if superblock.label.is_empty() { String::new() } else { format!(" \"{}\"", superblock.label) };
    let direct =
        if snapshot.drive.is_direct() { "O_DIRECT" } else { "no O_DIRECT here: through the page cache" };
    let cluster = if superblock.cluster.is_zero() { "none".into() } else { superblock.cluster.to_string() };
    out::fields(&[
        ("ring", format!("{}{label}", superblock.ring)),
        ("drive", format!("{} ({}, {direct})", superblock.drive, kind_name(snapshot.drive.kind()))),
        ("cluster", cluster),
        (
            "made",
            format!(
                "{}, format {}, boot {}, incarnation {}",
                clock::rfc3339(superblock.created_unix_ms),
                superblock.format_version,
                superblock.boot,
                superblock.incarnation
            ),
        ),
        (
            "size",
            format!(
                "{} in {} segments of {}",
                size::human(bytes),
                superblock.segment_count,
                size::human(superblock.segment_size)
            ),
        ),
        ("segments", states.join(", ")),
        (
            "records",
            format!(
                "{} live, {}; {} names, {} never drain, {} pinned",
                out::count(totals.records),
                size::human(totals.bytes),
                out::count(totals.names),
                out::count(totals.never),
                out::count(totals.pinned),
            ),
        ),
        ("dirty", format!("{} (all: a ring at rest knows of no copy elsewhere)", out::count(totals.records))),
        (
            "recovery",
            format!(
                "{} footers, {} scanned, {} read; {} deaths, {} torn, {} stale, {} foreign, {} misplaced, {} corrupt",
                report.footers,
                report.scanned,
                size::human(report.bytes_read),
                report.deaths,
                report.torn,
                report.stale,
                report.foreign,
                report.misplaced,
                report.corrupt
            ),
        ),
        ("health", if troubles.is_empty() { "ok".into() } else { troubles.join("; ") }),
    ])
}
