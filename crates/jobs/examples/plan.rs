//! How long a plan takes: 10,000 queued jobs and 1,000,000 files to stage. Run by hand:
//! `cargo run --release -p stoker-jobs --example plan`.

use std::time::Instant;

use stoker_jobs::{Limits, SourceNeed, Want, plan};

const JOBS: u32 = 10_000;
const SOURCES: u32 = 2_000;
const FILES: usize = 1_000_000;

#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures, and tells what it found")]
fn main() {
    let files = FILES / SOURCES as usize;
    let sources: Vec<SourceNeed> = (0..u64::from(SOURCES))
        .map(|source| {
            let missing: Vec<u64> =
                (0..files as u64).map(|file| 1 + (source * 31 + file * 7) % 1_000_000).collect();
            SourceNeed { bytes: Some(missing.iter().sum()), missing }
        })
        .collect();
    let jobs: Vec<Want> = (0..JOBS)
        .map(|job| Want {
            start_ms: (job % 3 > 0).then_some(u64::from(job.wrapping_mul(2_654_435_761) % 1_000_000)),
            since_ms: u64::from(job),
            is_admitted: false,
            sources: (0..4).map(|one| job.wrapping_mul(17).wrapping_add(one * 503) % SOURCES).collect(),
        })
        .collect();
    let limits = Limits {
        now_ms: 0,
        room_bytes: u64::MAX,
        rate_bytes_per_s: 1 << 30,
        pieces_max: 16,
        bytes_max: 1 << 30,
    };
    let mut took = Vec::new();
    for _ in 0..5 {
        let begun = Instant::now();
        let found = plan(&jobs, &sources, &limits);
        took.push(begun.elapsed());
        assert!(found.verdicts.len() == JOBS as usize && !found.bring.is_empty());
    }
    took.sort();
    println!("{JOBS} jobs, {FILES} files in {SOURCES} sources: {:?} (median of 5)", took[2]);
}
