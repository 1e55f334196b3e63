//! Follows commands to their end: records become durable and visible, their writers hear of it, failures poison.

use std::sync::Arc;

use stoker_format::{ChunkId, RecordKind, Seal};

use super::writer::{InFlight, Placed, Records};
use super::{Crcs, Done, Engine, Io, OpId, Outcome};
use crate::error::{ErrorKind, RingError};
use crate::index::{Entry, Marks};
use crate::settings::SyncMode;
use crate::tables::Blocks;

impl<T> Engine<T> {
    /// Tells the engine how a command ended. Call [`Engine::pump`] afterwards.
    pub fn complete(&mut self, op: OpId, outcome: Outcome) {
        let Some(in_flight) = self.ops.remove(&op) else { panic!("completion of unknown {op:?}") };
        self.writes_in_flight -= usize::from(matches!(in_flight, InFlight::Records(_)));
        if let Outcome::Failed(why) = outcome {
            return self.failed(op, in_flight, why);
        }
        match (in_flight, outcome) {
            (InFlight::Records(mut records), Outcome::Done(data)) => {
                self.stats.write_latency.record_us(self.now_us.saturating_sub(records.submitted_us));
                if let Some(body) = data.body {
                    records.placed[0].payload = Some(body);
                }
                if let Some(stream) = self.streams.get_mut(&records.stream).filter(|_| records.batch) {
                    stream.batches_in_flight -= 1;
                }
                match self.settings.sync {
                    SyncMode::Flush if self.poisoned.is_some() => self.fail_records(records),
                    SyncMode::Dsync => self.durable(records),
                    SyncMode::Flush => self.written.push(records),
                }
            }
            (InFlight::Flush(all), _) => all.into_iter().for_each(|records| self.durable(records)),
            (InFlight::Header(id), _) => self.header_written(id),
            (InFlight::Footer(id), _) => self.footer_written(id),
            (InFlight::Prepare { segment, .. }, _) => self.prepared(segment),
            (InFlight::MarkLeased(id), _) => {
                self.segments[id as usize].leased = true;
                for token in self.lease_waiters.remove(&id).unwrap_or_default() {
                    self.done.push(Done { token, result: Ok(()), payload: None });
                }
            }
            (InFlight::Reclaim, outcome) => self.reclaim_input(op, outcome),
            (InFlight::Records(_), other) => panic!("a write ended as {other:?}"),
        }
    }

    fn failed(&mut self, op: OpId, in_flight: InFlight<T>, why: String) {
        match in_flight {
            InFlight::Records(records) => {
                let why = format!("write to segment {} failed: {why}", records.segment);
                self.poison(why);
                self.fail_records(records);
            }
            InFlight::Flush(all) => {
                let segment = all.first().map_or(0, |r| r.segment);
                self.poison(format!("flush of segment {segment} failed: {why}"));
                all.into_iter().for_each(|records| self.fail_records(records));
            }
            // A segment that cannot be made (no space, a lease holding the old file's blocks) is tried again later.
            InFlight::Prepare { segment, replace } => self.prepare_failed(segment, replace),
            InFlight::Reclaim => {
                self.stats.io_errors.add(1);
                self.reclaim_input(op, Outcome::Failed(why));
            }
            InFlight::MarkLeased(id) => {
                let error = RingError::new(ErrorKind::Io, format!("no lease on segment {id}: {why}"));
                for token in self.lease_waiters.remove(&id).unwrap_or_default() {
                    self.done.push(Done { token, result: Err(error.clone()), payload: None });
                }
            }
            InFlight::Header(id) | InFlight::Footer(id) => {
                self.poison(format!("write to segment {id} failed: {why}"));
            }
        }
    }

    pub(super) fn fail_records(&mut self, records: Records<T>) {
        let why = self.poisoned.clone().unwrap_or_default();
        self.in_flight_bytes -= records.bytes;
        self.records_in_flight -= records.placed.len();
        self.segments[records.segment as usize].in_flight -= 1;
        for record in records.placed {
            self.unqueue_never(&record);
            if let Some(token) = record.token {
                let result = Err(RingError::new(ErrorKind::Poisoned, why.clone()));
                self.done.push(Done { token, result, payload: record.payload });
            }
        }
    }

    fn unqueue_never(&mut self, record: &Placed<T>) {
        if record.from.is_none() && record.entry.marks.has(Marks::NEVER) {
            self.never_queued -= u64::from(record.entry.len);
        }
    }

    /// Groups what was written since the last flush; one flush per segment answers for all of it.
    pub(super) fn flush_written(&mut self) {
        let flushing: Vec<u32> = self
            .ops
            .values()
            .filter_map(|op| match op {
                InFlight::Flush(all) => all.first().map(|r| r.segment),
                _ => None,
            })
            .collect();
        while let Some(id) = self.written.iter().map(|r| r.segment).find(|id| !flushing.contains(id)) {
            let (now, later) = std::mem::take(&mut self.written).into_iter().partition(|r| r.segment == id);
            self.written = later;
            self.stats.flushes.add(1);
            let op = self.issue(Io::Flush { segment: id });
            self.ops.insert(op, InFlight::Flush(now));
        }
    }

    /// Records are on stable media: they become visible, then their writers hear of it.
    fn durable(&mut self, records: Records<T>) {
        self.in_flight_bytes -= records.bytes;
        self.records_in_flight -= records.placed.len();
        for record in records.placed {
            self.unqueue_never(&record);
            let is_dead = record.kind == RecordKind::Dead;
            match &record.from {
                Some(from) => {
                    self.land_relocated(&record.chunk, from, record.entry);
                    self.moved_or_dropped(record.entry.len as usize);
                }
                None if is_dead || record.cancelled => {}
                None => self.land_fresh(record.chunk, record.entry, &record.crcs, record.seal),
            }
            if is_dead && record.token.is_none() {
                self.moved_or_dropped(record.entry.len as usize);
            }
            if let Some(token) = record.token {
                self.done.push(Done { token, result: Ok(()), payload: record.payload });
            }
        }
        self.segments[records.segment as usize].in_flight -= 1;
        self.write_footer_when_quiet(records.segment);
    }

    fn land_fresh(&mut self, chunk: ChunkId, entry: Entry, crcs: &Crcs, seal: Option<Arc<Seal>>) {
        let Ok(old) = self.index.insert(chunk, entry) else {
            // A newer record of the chunk landed first, and this one is dead where it lies. But that it must stay, stays.
            let keep = |m: Marks| entry.marks.keeping(m);
            if let Some((before, after)) = self.index.remark(&chunk, keep) {
                self.forget(&before);
                self.account(&after);
            }
            return;
        };
        let mut entry = entry;
        if let Some(old) = old {
            self.forget(&old);
            // What had to stay, stays: it may have become must-keep while a copy from the lake was on its way here.
            if let Some((_, after)) = self.index.remark(&chunk, |m| old.marks.keeping(m)) {
                entry = after;
            }
        }
        self.account(&entry);
        if entry.marks.has(Marks::CLEAN) {
            // It was admitted for its touches; without them the next newcomer would push it out again.
            self.index.segment(entry.segment).warm(u32::from(self.admission.frequency(&chunk)));
        }
        if seal.is_some() || matches!(crcs, Crcs::Many(..)) {
            self.tables.put(chunk, Blocks { table: crcs.table(), seal, crc: crcs.whole() });
        }
    }

    fn land_relocated(&mut self, chunk: &ChunkId, from: &Entry, to: Entry) {
        // Marks may have changed since the copy was made, so accounting uses what the index holds.
        let Some(current) = self.index.get(chunk).filter(|e| e.same_place(from)) else { return };
        let heat = self.mean_heat(from.segment).unwrap_or(0.0).ceil();
        if let Some(after) = self.index.relocate(chunk, from, to) {
            if after.marks.has(Marks::CLEAN) {
                self.index.segment(after.segment).warm(heat as u32);
            }
            self.forget(&current);
            self.account(&after);
        }
    }

    /// A delete outruns puts that are still being written.
    pub(super) fn cancel_in_flight(&mut self, chunks: &[ChunkId]) {
        let records = self
            .ops
            .values_mut()
            .flat_map(|op| match op {
                InFlight::Records(records) => std::slice::from_mut(records),
                InFlight::Flush(all) => all.as_mut_slice(),
                _ => &mut [],
            })
            .chain(&mut self.written);
        let placed = records.flat_map(|r| &mut r.placed).filter(|p| chunks.contains(&p.chunk));
        placed.for_each(|p| p.cancelled = true);
    }
}
