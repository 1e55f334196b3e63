//! Numbers for `/metrics`, made when somebody asks. Whoever works adds to plain atomics and knows nothing of this.
//!
//! Labels have values of bounded sets only: drives, nodes, operations, classes, and [`VOLUMES_MAX`] volumes; the rest of
//! the volumes are counted together as `other`.

mod cell;
mod drives;
mod lakes;
mod volumes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stoker_format::VolumeId;
use stoker_store::{Class, Counter, Receipt, Result};

pub(crate) use cell::labels as node_labels;
pub use drives::DriveLedger;
pub use lakes::LakePrices;
pub(crate) use volumes::{Tallies, Tally, VOLUMES_MAX};

use crate::clock;
use crate::core::{Core, add};

/// Copies that are told apart; no class asks for more.
const COPIES_MAX: usize = 3;
const CLASSES: [Class; 4] = [Class::Auto, Class::One, Class::Two, Class::Three];

/// Commits by the class that the volume asks for and the copies that were durable at the acknowledgement.
#[derive(Default)]
pub(crate) struct Commits([[AtomicU64; COPIES_MAX + 1]; CLASSES.len()]);

impl Commits {
    fn note(&self, class: Class, copies: u32) {
        let row = CLASSES.iter().position(|known| *known == class).unwrap_or(0);
        add(&self.0[row][(copies as usize).min(COPIES_MAX)], 1);
    }

    fn list(&self, into: &mut Vec<Counter>) {
        let help = "Commits, by the class that the volume asks for and the copies on drives when they were acknowledged; 0 copies: the lake has it.";
        for (class, row) in CLASSES.iter().zip(&self.0) {
            for (copies, count) in row.iter().enumerate() {
                let count = count.load(Ordering::Relaxed);
                // Most pairs never happen.
                if count > 0 {
                    let labels = [("class", class.as_str()), ("copies", &copies.to_string())];
                    into.push(Counter::new("commits_total", help, &labels, count as f64));
                }
            }
        }
    }
}

impl Core {
    /// A version was made visible: by how many bytes, and how well they are protected.
    pub fn note_publish(&self, volume: VolumeId, receipt: &Receipt, bytes: u64) {
        add(&self.stats.publishes, 1);
        add(&self.stats.publish_bytes, bytes);
        self.stats.commits.note(receipt.class, receipt.copies);
        let tally = self.tallies.of(volume);
        add(&tally.publishes, 1);
        add(&tally.publish_bytes, bytes);
    }

    /// Numbers for `/metrics`.
    pub async fn node_counters(self: &Arc<Core>) -> Result<Vec<Counter>> {
        let mut all = self.totals();
        self.stats.commits.list(&mut all);
        all.extend(self.gauges());
        for (times, name, help) in [
            (
                &self.stats.commit_times,
                "commit_seconds",
                "From the last byte of a write to its acknowledgement.",
            ),
            (
                &self.stats.read_times,
                "read_seconds",
                "Reads of a piece of a file (512 KiB at most), wherever it came from.",
            ),
            (
                &self.stats.drain_times,
                "drain_seconds",
                "From the oldest change of a file to its confirmation by the lake.",
            ),
        ] {
            all.extend(times.list(name, help, &[]));
        }
        all.extend(self.catalog_times.list());
        all.extend(self.drive_numbers().await);
        all.extend(self.cell_numbers());
        // The catalog is not asked: numbers are most wanted when it does not answer.
        let volumes = self.volumes.known();
        all.extend(self.tallies.list(&volumes));
        all.extend(self.lake_numbers(&volumes));
        all.extend(self.replicas.counters());
        all.extend(self.sums.counters());
        all.extend(self.account_counters());
        all.extend(self.admission_numbers());
        all.extend(self.sources.counters(self.source_names(volumes)));
        Ok(all)
    }

    /// What only grows and has no labels.
    fn totals(&self) -> Vec<Counter> {
        let (stats, drain) = (&self.stats, &self.drainer.stats);
        let (cell, repairs) = (&self.cell.stats, &self.read_repair.stats);
        let totals: [(&str, &str, &AtomicU64); 37] = [
            ("publishes_total", "Versions made visible.", &stats.publishes),
            ("publish_bytes_total", "Bytes of versions made visible.", &stats.publish_bytes),
            (
                "alone_publishes_total",
                "Versions made visible by the lake's copy, because too few nodes could take one.",
                &stats.alone_publishes,
            ),
            (
                "spilled_bytes_total",
                "Bytes of files too large for the rings that went to a lake before they were published.",
                &stats.spilled_bytes,
            ),
            ("sets_published_total", "Checkpoint sets made visible.", &stats.sets_published),
            ("sets_expired_total", "Checkpoint sets given up at their deadline.", &stats.sets_expired),
            (
                "expiry_rounds_total",
                "Rounds that looked for uploads whose time is over.",
                &stats.expiry_rounds,
            ),
            ("deletes_total", "Names removed.", &stats.deletes),
            ("opens_total", "Files opened.", &stats.opens),
            ("lists_total", "Pages listed.", &stats.lists),
            ("read_bytes_total", "Bytes read from files.", &stats.read_bytes),
            ("leases_total", "Pieces of files that local readers may read themselves.", &stats.leases),
            ("lake_read_bytes_total", "Bytes read from lakes.", &stats.lake_read_bytes),
            ("cache_hits_total", "Pieces found in memory.", &stats.cache_hits),
            ("cache_misses_total", "Pieces not found in memory.", &stats.cache_misses),
            ("aborted_writes_total", "Writes that ended before they were published.", &stats.aborted_writes),
            (
                "collected_chunks_total",
                "Chunks deleted because nothing refers to them.",
                &stats.collected_chunks,
            ),
            ("scrubbed_records_total", "Records read by the scrubber.", &stats.scrubbed_records),
            ("scrub_bad_records_total", "Records that the scrubber found damaged.", &stats.scrub_bad),
            ("read_repairs_total", "Bad copies replaced by sound ones.", &repairs.replaced),
            (
                "read_repair_dropped_total",
                "Bad copies of chunks that the lake has, dropped.",
                &repairs.dropped,
            ),
            ("read_repair_failures_total", "Bad copies that could not be repaired.", &repairs.failed),
            ("drained_files_total", "Files confirmed in a lake.", &drain.files),
            ("drained_bytes_total", "Bytes confirmed in a lake.", &drain.bytes),
            ("drain_errors_total", "Tries to drain that failed.", &drain.errors),
            ("lake_deletes_total", "Deletes carried out in lakes.", &drain.deletes),
            ("lake_rekeys_total", "Objects moved in lakes after renames.", &drain.rekeys),
            (
                "lake_kept_open_total",
                "Objects copied because somebody had them open when they were replaced.",
                &drain.kept_open,
            ),
            ("conflicts_total", "Versions put aside because a lake was changed by others.", &drain.conflicts),
            ("cell_copies_total", "Chunks copied to peers.", &cell.copies),
            ("cell_copy_bytes_total", "Bytes copied to peers.", &cell.copy_bytes),
            ("cell_copy_retries_total", "Copies that a peer did not take.", &cell.copy_retries),
            ("cell_reads_total", "Reads from peers.", &cell.reads),
            ("cell_read_bytes_total", "Bytes read from peers.", &cell.read_bytes),
            ("cell_served_reads_total", "Reads answered for peers.", &cell.served_reads),
            ("cell_served_copies_total", "Chunks kept for peers.", &cell.served_copies),
            ("cell_repaired_total", "Versions protected again.", &cell.repaired),
        ];
        let one = |(name, help, value): (&str, &str, &AtomicU64)| {
            Counter::new(name, help, &[], value.load(Ordering::Relaxed) as f64)
        };
        totals.into_iter().map(one).collect()
    }

    /// How things stand, without labels.
    fn gauges(&self) -> Vec<Counter> {
        let now_ms = clock::now_ms();
        let (files, bytes, oldest) = self.drainer.sums();
        let age_s = oldest.map_or(0.0, |since| now_ms.saturating_sub(since) as f64 / 1_000.0);
        let pool = self.rings.pool();
        let (held_sources, held_bytes) = self.held.numbers();
        let lake_trouble = f64::from(self.lake_trouble(now_ms).is_some());
        let is_ready = !self.closing.load(Ordering::Relaxed) && self.takes_requests();
        let gauges = [
            ("ready", "1 if the node takes requests.", f64::from(is_ready)),
            ("drain_files", "Files that wait for their drain.", files as f64),
            ("drain_lag_bytes", "Dirty bytes: they wait for their drain.", bytes as f64),
            ("drain_lag_seconds", "Age of the oldest change that waits for its drain.", age_s),
            ("drains_active", "Files on their way to a lake.", self.drainer.active() as f64),
            ("lake_trouble", "1 while a lake does not answer as it should.", lake_trouble),
            ("cache_bytes", "Bytes of the cache in use.", self.cache.bytes() as f64),
            ("cache_limit_bytes", "Bytes that the cache may use.", self.cache.bytes_max() as f64),
            ("pool_bytes", "Buffers between sockets and drives, in all.", pool.size() as f64),
            ("pool_used_bytes", "Buffers between sockets and drives, in use.", pool.in_use() as f64),
            ("jobs_held_sources", "Sources that are held on drives for jobs.", held_sources as f64),
            ("jobs_held_bytes", "Bytes that are held on drives for jobs.", held_bytes as f64),
            ("catalog_seq", "Highest catalog commit seen.", self.seq_seen.load(Ordering::Relaxed) as f64),
        ];
        let one = |(name, help, value): (&str, &str, f64)| Counter::new(name, help, &[], value);
        let evictions = Counter::new(
            "cache_evictions_total",
            "Pieces dropped from memory to make room.",
            &[],
            self.cache.evictions() as f64,
        );
        gauges.into_iter().map(one).chain([evictions]).collect()
    }
}
