//! What operators see: status, numbers, explanations.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stoker_catalog::kv::Range;
use stoker_catalog::rows::{DirtyRow, Drain, RowValue, keys};
use stoker_store::{DrainPolicy, Explanation, HolderInfo, Key, NodeStatus, Result, RingStatus};

use crate::cache::PIECE;
use crate::core::Core;
use crate::lookup::no_such_key;
use crate::rings::Drive;
use crate::sources::Source;
use crate::volumes::Volume;
use crate::{clock, error, rings};

/// Dirty rows counted one by one; beyond, the numbers are what the drainer has planned.
const COUNTED_MAX: usize = 100_000;

/// What only this node has.
#[derive(Default)]
struct Alone {
    /// Files that will be drained.
    files: u64,
    /// Bytes of these.
    bytes: u64,
    /// Their oldest change, milliseconds since 1970.
    oldest_ms: Option<u64>,
    /// Files of volumes that never drain.
    kept: u64,
    /// Parts of uploads that are not complete.
    parts: u64,
}

impl Alone {
    fn words(&self) -> Vec<String> {
        let count = |count: u64, one: &str, many: &str| match count {
            1 => format!("1 {one}"),
            _ => format!("{count} {many}"),
        };
        let mut words = Vec::new();
        if self.files == 0 {
            words.push("every file that drains is in the lake; the rings are a cache of it".to_owned());
        } else {
            let files = count(self.files, "file is", "files are");
            words
                .push(format!("{files} on this node alone: lost if the drive dies before the drain is done"));
        }
        if self.kept > 0 {
            let files = count(self.kept, "file is", "files are");
            words.push(format!("{files} in volumes that never drain: lost if the drive dies"));
        }
        if self.parts > 0 {
            let parts =
                count(self.parts, "part of an unfinished upload is", "parts of unfinished uploads are");
            words.push(format!("{parts} on this node alone"));
        }
        words
    }
}

/// How a cell is called.
fn cell_name(cell: &str) -> &str {
    if cell.is_empty() { "(no name)" } else { cell }
}

impl Core {
    async fn alone(&self) -> Result<Alone> {
        let mut never = std::collections::HashSet::new();
        for volume in self.volumes.all().await? {
            if Core::drain_of(&volume) == Drain::Never {
                never.insert(volume.id.0);
            }
        }
        let mut alone = Alone::default();
        self.count_parts(&mut alone).await?;
        let mut range = Range::prefix(&keys::dirty_of(self.node), 1_000);
        let mut versions = std::collections::HashSet::new();
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            for row in &page.rows {
                let dirty = DirtyRow::of(row).map_err(error::catalog)?;
                if dirty.home != self.node.0 {
                    // A copy for another node, which counts it.
                    continue;
                }
                // A version on several drives has a row for each.
                if !keys::dirty_version(&row.key).is_some_and(|version| versions.insert(version)) {
                    continue;
                }
                if never.contains(&dirty.volume) {
                    alone.kept += 1;
                    continue;
                }
                alone.files += 1;
                alone.bytes += dirty.bytes;
                let oldest_ms = alone.oldest_ms.map_or(dirty.since_ms, |known| known.min(dirty.since_ms));
                alone.oldest_ms = Some(oldest_ms);
            }
            if versions.len() > COUNTED_MAX {
                (alone.files, alone.bytes, alone.oldest_ms) = self.drainer.sums();
                return Ok(alone);
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(alone),
            }
        }
    }

    async fn count_parts(&self, alone: &mut Alone) -> Result<()> {
        let mut range = Range::prefix(b"p", 1_000);
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            alone.parts += page.rows.len() as u64;
            match page.rows.last() {
                Some(last) if page.more && alone.parts < COUNTED_MAX as u64 => range = range.after(&last.key),
                _ => return Ok(()),
            }
        }
    }

    /// The state of the node.
    pub async fn node_status(&self) -> Result<NodeStatus> {
        let now_ms = clock::now_ms();
        let mut ring_states = Vec::new();
        for drive in self.rings.drives() {
            let status = drive.ring.status().await.map_err(error::ring)?;
            let superblock = &status.superblock;
            ring_states.push(RingStatus {
                path: drive.path.display().to_string(),
                drive: drive.id.to_string(),
                bytes: superblock.segment_size * u64::from(superblock.segment_count),
                keep_bytes: status.keep_bytes,
                clean_bytes: status.clean_bytes,
                records: status.records as u64,
                poisoned: drive.why_failed().or(status.poisoned.clone()),
                io: status.io_engine.clone(),
            });
        }
        let alone = self.alone().await?;
        let mut conflicts = 0;
        self.each(b"x".to_vec(), |_| {
            conflicts += 1;
            Ok(())
        })
        .await?;
        let lake_trouble = self.drainer.trouble(now_ms);
        let failed = ring_states.iter().filter(|ring| ring.poisoned.is_some());
        let failed: Vec<String> = failed.map(|ring| ring.path.clone()).collect();
        let mut words = match self.cell.has_others() {
            true => self.cell.words(alone.files + alone.kept),
            false => alone.words(),
        };
        for path in &failed {
            words.push(format!("drive {path} failed and takes no more: `stoker drive replace`"));
        }
        if let Some(trouble) = &lake_trouble {
            words.push(format!("the lake makes trouble: {trouble}"));
        }
        if conflicts > 0 {
            words.push(format!("{conflicts} files wait for a decision: `stoker conflict ls`"));
        }
        Ok(NodeStatus {
            node: self.node.to_string(),
            cluster: self.cluster.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_ms: self.started_ms,
            catalog: self.catalog.describe(),
            nodes: self.cell.status(),
            rings: ring_states,
            sources: self.sources.status(self.source_names().await?),
            dirty_files: alone.files,
            dirty_bytes: alone.bytes,
            dirty_age_ms: alone.oldest_ms.map_or(0, |since| now_ms.saturating_sub(since)),
            conflicts,
            drains: self.drainer.active() as u64,
            lake_trouble,
            cache_bytes: self.cache.bytes(),
            ready: !self.closing.load(Ordering::Relaxed) && self.rings.is_serving(),
            words,
        })
    }

    /// How sources of reads are called.
    pub(crate) async fn source_names(&self) -> Result<impl Fn(Source) -> String> {
        let volumes = self.volumes.all().await?;
        let (view, own) = (self.cell.view(), self.node);
        let names = crate::numbers::node_labels(&view);
        let path = |(at, drive): (usize, Arc<Drive>)| (at, drive.path.display().to_string());
        let drives: HashMap<usize, String> = self.rings.numbered().into_iter().map(path).collect();
        Ok(move |source: Source| match source {
            Source::Drive(at) => drives.get(&at).cloned().unwrap_or_else(|| "taken out".to_owned()),
            Source::Peer(node) | Source::Turn(node) => {
                let Some(member) = view.member(node) else { return node.to_string() };
                let name = names.get(&node).cloned().unwrap_or_else(|| node.to_string());
                match view.is_near(own, node) {
                    true => name,
                    false => format!("{name} of cell {}", cell_name(&member.row.cell)),
                }
            }
            Source::Lake(id) => volumes
                .iter()
                .find(|volume| volume.id == id)
                .map_or(id.to_string(), |volume| volume.name.clone()),
        })
    }

    /// Numbers for `/metrics`.
    pub async fn node_counters(&self) -> Result<Vec<Counter>> {
        let mut all = Vec::new();
        let mut push = |name: &str, help: &str, labels: Vec<(String, String)>, value: f64| {
            all.push(Counter { name: name.to_owned(), help: help.to_owned(), labels, value });
        };
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let (stats, drain) = (&self.stats, &self.drainer.stats);
        let (cell, mends) = (&self.cell.stats, &self.mender.stats);
        let calls = &self.catalog_calls;
        let totals: [(&str, &str, &AtomicU64); 36] = [
            ("catalog_reads_total", "Reads that this node asked the catalog for.", &calls.reads),
            ("catalog_commits_total", "Commits that this node asked the catalog for.", &calls.commits),
            ("publishes_total", "Versions made visible.", &stats.publishes),
            ("publish_bytes_total", "Bytes of versions made visible.", &stats.publish_bytes),
            (
                "alone_publishes_total",
                "Versions made visible by the lake's copy, because too few nodes could take one.",
                &stats.alone_publishes,
            ),
            ("sets_published_total", "Checkpoint sets made visible.", &stats.sets_published),
            ("sets_expired_total", "Checkpoint sets given up at their deadline.", &stats.sets_expired),
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
            ("mended_total", "Bad copies replaced by sound ones.", &mends.mended),
            ("mend_dropped_total", "Bad copies of chunks that the lake has, dropped.", &mends.dropped),
            ("mend_failures_total", "Bad copies that could not be repaired.", &mends.failed),
            ("drained_files_total", "Files confirmed in a lake.", &drain.files),
            ("drained_bytes_total", "Bytes confirmed in a lake.", &drain.bytes),
            ("drain_errors_total", "Tries to drain that failed.", &drain.errors),
            ("lake_deletes_total", "Deletes carried out in lakes.", &drain.deletes),
            ("lake_rekeys_total", "Objects moved in lakes after renames.", &drain.rekeys),
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
        for (name, help, counter) in totals {
            push(name, help, Vec::new(), load(counter));
        }
        for (class, counter) in ["one", "two", "three"].iter().zip(&stats.commits) {
            let labels = vec![("class".to_owned(), (*class).to_owned())];
            push(
                "commits_total",
                "Versions made visible, by the class that they reached.",
                labels,
                load(counter),
            );
        }
        let (files, bytes, oldest) = self.drainer.sums();
        let sources = self.sources.counters(self.source_names().await?);
        let age_s = oldest.map_or(0.0, |since| clock::now_ms().saturating_sub(since) as f64 / 1_000.0);
        push("drain_files", "Files planned to be drained.", Vec::new(), files as f64);
        push("drain_lag_bytes", "Bytes planned to be drained.", Vec::new(), bytes as f64);
        push("drain_lag_seconds", "Age of the oldest change planned to be drained.", Vec::new(), age_s);
        push("drains_active", "Files on their way to a lake.", Vec::new(), self.drainer.active() as f64);
        push("cache_bytes", "Bytes of the cache in use.", Vec::new(), self.cache.bytes() as f64);
        let pool = self.rings.pool();
        push("pool_bytes", "Buffers between sockets and drives, in all.", Vec::new(), pool.size() as f64);
        push(
            "pool_used_bytes",
            "Buffers between sockets and drives, in use.",
            Vec::new(),
            pool.in_use() as f64,
        );
        push("catalog_seq", "Highest catalog commit seen.", Vec::new(), load(&self.seq_seen));
        for drive in self.rings.drives() {
            let labels = vec![("drive".to_owned(), drive.id.to_string())];
            let status = drive.ring.status().await.map_err(error::ring)?;
            push(
                "ring_keep_bytes",
                "Bytes of a ring that must stay.",
                labels.clone(),
                status.keep_bytes as f64,
            );
            push(
                "ring_clean_bytes",
                "Bytes of a ring that may go.",
                labels.clone(),
                status.clean_bytes as f64,
            );
            push("ring_records", "Records of a ring.", labels.clone(), status.records as f64);
            push(
                "ring_poisoned",
                "1 if the drive failed a write.",
                labels.clone(),
                f64::from(status.poisoned.is_some()),
            );
            for (name, value) in drive.ring.stats().counters() {
                let name = format!("ring_{name}_total");
                push(&name, "A counter of the ring.", labels.clone(), value as f64);
            }
        }
        all.extend(sources);
        Ok(all)
    }

    /// Where a file is, and what happens to it next.
    pub async fn explain_file(self: &Arc<Core>, volume: &Arc<Volume>, key: &Key) -> Result<Explanation> {
        let path = key.as_bytes();
        let seen = self.seen(volume, path).await?.ok_or_else(|| no_such_key(path))?;
        let file = &seen.file;
        let runs = self.names.runs(file).await.map_err(error::catalog)?;
        let (mut chunks, mut local, mut cached) = (0, 0, 0);
        let mut holders: Vec<HolderInfo> = self
            .rings
            .drives()
            .iter()
            .map(|drive| HolderInfo { drive: drive.path.display().to_string(), chunks: 0, bytes: 0 })
            .collect();
        for (chunk, len) in rings::chunks(&runs) {
            chunks += 1;
            let piece_len = |piece: u32| (len as usize - piece as usize * PIECE).min(PIECE);
            let is_hot = |piece| self.cache.has(chunk, piece, piece_len(piece));
            cached += u64::from((0..len.div_ceil(PIECE as u32)).any(is_hot));
            let mut here = false;
            for (drive, holder) in self.rings.drives().iter().zip(&mut holders) {
                if drive.has(&chunk, len as usize) {
                    here = true;
                    holder.chunks += 1;
                    holder.bytes += u64::from(len);
                }
            }
            local += u64::from(here);
        }
        holders.retain(|holder| holder.chunks > 0);
        let seq = seen.located.as_ref().map_or(0, |located| located.seq);
        let receipt = Core::receipt(volume, path, file, seq)?;
        let policy = &volume.policy;
        let words = match file.drain {
            Drain::Clean if local == chunks => {
                vec!["in the lake, confirmed; all of it is on drives here too".into()]
            }
            Drain::Clean => {
                vec![format!("in the lake, confirmed; {local} of {chunks} chunks are on drives here")]
            }
            Drain::Never => {
                vec!["on this node only: the volume does not drain. Lost if the drive dies".into()]
            }
            Drain::Conflict => {
                vec!["not in the lake: somebody else changed the object. See `stoker conflict ls`".into()]
            }
            Drain::Dirty => {
                let when = match policy.drain {
                    DrainPolicy::OnDemand => "when `stoker drain` asks for it".to_owned(),
                    DrainPolicy::Every(n) => format!("with every {n}th version of its name"),
                    _ => format!(
                        "once it was left alone for {} s, or {} s after its oldest change",
                        policy.drain_quiet_s, policy.drain_lag_max_s
                    ),
                };
                vec![format!(
                    "one copy, on this node; lost if the drive dies before it is drained. It drains {when}"
                )]
            }
        };
        Ok(Explanation {
            file: Core::info(path, file)?,
            receipt,
            chunks,
            chunks_local: local,
            chunks_cached: cached,
            holders,
            words,
        })
    }
}
