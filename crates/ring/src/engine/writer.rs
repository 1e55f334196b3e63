//! Places queued records, follows their writes to durability, and answers those who wait.

use std::collections::VecDeque;
use std::sync::Arc;

use stoker_format::{
    BLOCK, CIPHER_AES_256_GCM, ChunkId, FooterEntry, KeyId, RecordHeader, RecordKind, Seal, Seq, header_len,
    header_span,
};

use super::packer::{lay_out, lay_out_large};
use super::segments::State;
use super::victims::Urgency;
use super::{Crcs, Done, Engine, Io, Item, StreamKey, WriteData};
use crate::buffer::{Buf, blocks_up};
use crate::error::{ErrorKind, RingError};
use crate::index::{Entry, Marks};
use crate::settings::SyncMode;

/// Records of one kind of segment, in order.
pub(crate) struct Stream<T> {
    pub queue: VecDeque<Item<T>>,
    pub queued_bytes: usize,
    pub segment: Option<u32>,
    pub batches_in_flight: usize,
}

impl<T> Default for Stream<T> {
    fn default() -> Self {
        Stream { queue: VecDeque::new(), queued_bytes: 0, segment: None, batches_in_flight: 0 }
    }
}

/// A record on its way to the drive.
pub(crate) struct Placed<T> {
    pub chunk: ChunkId,
    pub kind: RecordKind,
    pub entry: Entry,
    pub crcs: Crcs,
    pub seal: Option<Arc<Seal>>,
    pub token: Option<T>,
    pub payload: Option<Buf>,
    pub from: Option<Entry>,
    pub cancelled: bool,
}

/// Records that one write carries.
pub(crate) struct Records<T> {
    pub segment: u32,
    pub stream: StreamKey,
    pub batch: bool,
    pub bytes: usize,
    pub submitted_us: u64,
    pub placed: Vec<Placed<T>>,
}

/// A command under way, and what its end means.
pub(crate) enum InFlight<T> {
    Records(Records<T>),
    Flush(Vec<Records<T>>),
    Header(u32),
    Footer(u32),
    Prepare { segment: u32, replace: bool },
    MarkLeased(u32),
    Reclaim,
}

impl<T> Engine<T> {
    pub(super) fn enqueue(&mut self, key: StreamKey, item: Item<T>) {
        let stream = self.streams.entry(key).or_default();
        stream.queued_bytes += item.payload.len();
        self.stats.queued_bytes.add(item.payload.len() as u64);
        stream.queue.push_back(item);
    }

    fn dequeue(&mut self, key: &StreamKey) -> Option<Item<T>> {
        let stream = self.streams.get_mut(key)?;
        let item = stream.queue.pop_front()?;
        stream.queued_bytes -= item.payload.len();
        self.stats.queued_bytes.sub(item.payload.len() as u64);
        Some(item)
    }

    /// Moves everything that can move; called after every request and completion.
    pub fn pump(&mut self) {
        self.prepare_next();
        if self.poisoned.is_some() {
            return;
        }
        loop {
            self.advance_reclaim();
            let keys: Vec<StreamKey> = self.streams.keys().copied().collect();
            // Relocation first: it makes the room that everyone else waits for.
            for relocation in [true, false] {
                for key in keys.iter().filter(|k| k.relocation == relocation) {
                    while self.poisoned.is_none() && self.place_next(*key) {}
                }
            }
            // Placing may have found that a copy is not wanted any more, and with it ended the moving.
            if !self.reclaim_can_advance() && !std::mem::take(&mut self.deletes_passed_on) {
                break;
            }
        }
        self.start_reclaim_if_low();
        self.flush_written();
    }

    /// Places the next large record or batch of a stream; false if it has to wait. (D15)
    fn place_next(&mut self, key: StreamKey) -> bool {
        let Some(stream) = self.streams.get(&key) else { return false };
        let Some(front) = stream.queue.front() else { return false };
        // A record of some size that finds no company goes out as it is: packing it alone would only copy it.
        let alone = stream.queue.len() == 1 && front.payload.len() >= self.settings.small_bytes_max / 2;
        let large =
            front.payload.len() > self.settings.small_bytes_max || (alone && front.payload.has_headroom());
        if !large && stream.batches_in_flight >= self.settings.batches_in_flight_max {
            return false;
        }
        if self.in_flight_bytes > 0
            && self.in_flight_bytes + front.payload.len() > self.settings.in_flight_bytes_max
        {
            return false;
        }
        let takes_entry = !key.relocation && front.kind != RecordKind::Dead;
        if takes_entry && self.index.len() + self.records_in_flight >= self.index.max() {
            return self.wait_or_refuse(key, "the index has reached its memory cap");
        }
        let Some(id) = stream.segment else { return self.open_for(key) };
        if self.segments[id as usize].state != State::Open {
            return false;
        }
        if large { self.place_large(key, id) } else { self.place_batch(key, id) }
    }

    fn open_for(&mut self, key: StreamKey) -> bool {
        match self.open_segment(key) {
            Some(id) => {
                self.streams.get_mut(&key).expect("stream of the caller").segment = Some(id);
                false
            }
            None if key.relocation => {
                self.cancel_reclaim();
                if self.reclaim.is_none() && !self.segment_is_coming() {
                    self.refuse_all(key, "not even a delete fits");
                }
                false
            }
            None => self.wait_or_refuse(key, "every segment holds bytes that must stay"),
        }
    }

    /// Waits if anything under way can make room, starts a reclaim if one is worth it, refuses otherwise.
    fn wait_or_refuse(&mut self, key: StreamKey, why: &str) -> bool {
        if self.reclaim.is_some() || self.segment_is_coming() || self.start_reclaim(Urgency::Now) {
            return false;
        }
        // Idle streams may sit on half-filled segments that a close turns into victims.
        let idle = self.streams.iter().filter(|(k, s)| !k.relocation && s.queue.is_empty());
        let closable: Vec<u32> =
            idle.filter_map(|(_, s)| s.segment).filter(|&id| self.worth_closing(id)).collect();
        for &id in &closable {
            self.streams.values_mut().filter(|s| s.segment == Some(id)).for_each(|s| s.segment = None);
            self.begin_close(id);
        }
        if !closable.is_empty() {
            return false;
        }
        self.pass_deletes_on(key);
        self.refuse_all(key, why);
        false
    }

    /// Deletes make room, so they may use what is kept back for relocation; refusing them would leave a full ring full.
    fn pass_deletes_on(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(&key).filter(|_| !key.relocation) else { return };
        let queue = std::mem::take(&mut stream.queue);
        let (deletes, others): (VecDeque<_>, VecDeque<_>) =
            queue.into_iter().partition(|i| i.kind == RecordKind::Dead);
        stream.queue = others;
        let bytes: usize = deletes.iter().map(|i| i.payload.len()).sum();
        stream.queued_bytes -= bytes;
        let relocation = StreamKey { relocation: true, ..key };
        let stream = self.streams.entry(relocation).or_default();
        stream.queued_bytes += bytes;
        self.deletes_passed_on |= !deletes.is_empty();
        stream.queue.extend(deletes);
    }

    fn refuse_all(&mut self, key: StreamKey, why: &str) {
        let error = RingError::new(ErrorKind::Full, format!("the ring is full: {why}"));
        while let Some(item) = self.dequeue(&key) {
            self.stats.refused_full.add(1);
            if item.marks.has(Marks::NEVER) && item.from.is_none() {
                self.never_queued -= item.payload.len() as u64;
            }
            if let Some(token) = item.token {
                self.done.push(Done { token, result: Err(error.clone()), payload: Some(item.payload) });
            }
        }
    }

    /// True if a relocation item still is what the index points at.
    fn still_wanted(&self, item: &Item<T>) -> bool {
        match &item.from {
            Some(from) => self.index.get(&item.chunk).is_some_and(|e| e.same_place(from)),
            None => true,
        }
    }

    fn place_large(&mut self, key: StreamKey, id: u32) -> bool {
        let len = self.streams[&key].queue[0].payload.len();
        let aux = self.streams[&key].queue[0].aux();
        let (head, span) = lay_out_large(len, aux);
        let lines = self.streams[&key].queue[0].deaths.len().max(1);
        if !self.fits(id, span, lines) {
            self.streams.get_mut(&key).expect("stream of the caller").segment = None;
            self.begin_close(id);
            return true;
        }
        let mut item = self.dequeue(&key).expect("looked at just above");
        if !self.still_wanted(&item) {
            self.moved_or_dropped(item.payload.len());
            return true;
        }
        let offset = self.segments[id as usize].cursor;
        let header = self.header_for(id, &item, offset, offset + head as u32);
        item.payload.zero_tail();
        let mut data = WriteData::default();
        {
            let nonce = self.segments[id as usize].nonce;
            let mut heap = None;
            let area = match item.payload.head_mut(head) {
                Some(area) => {
                    data.body_head = head;
                    area
                }
                None => heap.insert(Buf::heap(head)).as_mut_slice(),
            };
            let used = header_span(len, aux);
            header.encode(nonce, item.crcs.blocks(), tags(&item.seal), &mut area[..used]);
            area[used..].fill(0);
            data.head = heap;
        }
        self.stats.padding_bytes.add((span - len) as u64);
        self.advance_cursor(id, span);
        let placed = self.note_placed(id, &mut item, header);
        data.body = Some(item.payload);
        self.submit_records(key, id, offset, data, vec![placed], len);
        true
    }

    fn place_batch(&mut self, key: StreamKey, id: u32) -> bool {
        let stream = self.streams.get_mut(&key).expect("stream of the caller");
        let mut queue = std::mem::take(&mut stream.queue);
        let entries_left = match key.relocation {
            true => usize::MAX,
            false => self.index.max().saturating_sub(self.index.len() + self.records_in_flight).max(1),
        };
        let records_max = self.settings.batch_records_max.min(entries_left);
        let room = queue.len().min(records_max);
        let (mut items, mut lens) = (Vec::with_capacity(room), Vec::with_capacity(room));
        let (mut bytes, mut lines, mut spans, mut taken) = (0, 0, 0, 0);
        let mut full = false;
        while let Some(front) = queue.front() {
            let len = front.payload.len();
            let aux = front.aux();
            let (more_lines, span) =
                (front.deaths.len().max(1), header_span(len, aux) + len.next_multiple_of(64));
            if len > self.settings.small_bytes_max
                || items.len() >= records_max
                || (!items.is_empty() && bytes + len > self.settings.batch_bytes_max)
            {
                break;
            }
            // Padding of a batch is under two blocks, whatever its mix.
            if !self.fits(id, spans + span + 2 * BLOCK, lines + more_lines) {
                full = true;
                break;
            }
            let item = queue.pop_front().expect("looked at just above");
            taken += len;
            if !self.still_wanted(&item) {
                self.moved_or_dropped(len);
                continue;
            }
            (bytes, lines, spans) = (bytes + len, lines + more_lines, spans + span);
            lens.push((len, aux));
            items.push(item);
        }
        let stream = self.streams.get_mut(&key).expect("stream of the caller");
        stream.queue = queue;
        stream.queued_bytes -= taken;
        self.stats.queued_bytes.sub(taken as u64);
        if items.is_empty() {
            if full {
                self.streams.get_mut(&key).expect("stream of the caller").segment = None;
                self.begin_close(id);
            }
            return full || !self.streams[&key].queue.is_empty();
        }
        let (spots, span) = lay_out(&lens);
        let mut out = self.pool.take(span).unwrap_or_else(|| Buf::heap(span));
        out.set_len(span);
        let offset = self.segments[id as usize].cursor;
        let nonce = self.segments[id as usize].nonce;
        let mut placed = Vec::with_capacity(items.len());
        let mut end_of_last = 0;
        {
            let area = out.as_mut_slice();
            for (mut item, spot) in items.into_iter().zip(&spots) {
                let len = item.payload.len();
                let header =
                    self.header_for(id, &item, offset + spot.header as u32, offset + spot.payload as u32);
                header.encode(
                    nonce,
                    item.crcs.blocks(),
                    tags(&item.seal),
                    &mut area[spot.header..][..header_span(len, item.aux())],
                );
                area[spot.payload..][..len].copy_from_slice(item.payload.as_slice());
                let padded = if len.is_multiple_of(BLOCK) { len } else { len.next_multiple_of(64) };
                area[spot.payload + len..spot.payload + padded].fill(0);
                end_of_last = end_of_last.max(spot.payload + padded);
                let mut record = self.note_placed(id, &mut item, header);
                record.payload = Some(item.payload);
                placed.push(record);
            }
            zero_gaps(area, &spots, &lens, end_of_last);
        }
        self.stats.batches.add(1);
        self.stats.padding_bytes.add((span - bytes) as u64);
        self.advance_cursor(id, span);
        let data = WriteData { head: Some(out), body: None, body_head: 0 };
        self.submit_records(key, id, offset, data, placed, bytes);
        true
    }

    fn advance_cursor(&mut self, id: u32, span: usize) {
        let segment = &mut self.segments[id as usize];
        segment.cursor += blocks_up(span) as u32;
        segment.in_flight += 1;
    }

    fn header_for(
        &mut self,
        id: u32,
        item: &Item<T>,
        header_offset: u32,
        payload_offset: u32,
    ) -> RecordHeader {
        let seq = self.next_seq;
        self.next_seq = Seq(seq.0 + 1);
        let segment = &mut self.segments[id as usize];
        segment.last_seq = seq;
        RecordHeader {
            kind: item.kind,
            flags: item.marks.to_flags(),
            ring: self.ring,
            generation: segment.generation,
            header_offset,
            payload_offset,
            len: item.payload.len() as u32,
            seq,
            chunk: item.chunk,
            volume: item.volume,
            key: item.seal.as_ref().map_or(KeyId(0), |seal| seal.key),
            aux_per_block: item.aux(),
            payload_crc: item.crcs.whole(),
            cipher: if item.seal.is_some() { CIPHER_AES_256_GCM } else { 0 },
            salt: item.seal.as_ref().map_or([0; 16], |seal| seal.salt),
        }
    }

    /// Writes the footer lines of a record and turns it into one that is under way.
    fn note_placed(&mut self, id: u32, item: &mut Item<T>, header: RecordHeader) -> Placed<T> {
        let line = FooterEntry::from(&header);
        let segment = &mut self.segments[id as usize];
        if header.kind == RecordKind::Dead {
            segment.deaths += item.deaths.len() as u32;
            self.deaths_total += item.deaths.len() as u64;
            segment.below_max = item.deaths.iter().map(|d| d.below).fold(segment.below_max, Seq::max);
            let deaths = item.deaths.iter().map(|d| FooterEntry { chunk: d.chunk, seq: d.below, ..line });
            segment.lines.extend(deaths);
        } else {
            segment.lines.push(line);
        }
        Placed {
            chunk: header.chunk,
            kind: header.kind,
            entry: Entry { marks: item.marks, ..Entry::from_footer(id, &line) },
            crcs: item.crcs.clone(),
            seal: item.seal.clone(),
            token: item.token.take(),
            payload: None,
            from: item.from,
            cancelled: false,
        }
    }

    fn submit_records(
        &mut self,
        key: StreamKey,
        id: u32,
        offset: u32,
        data: WriteData,
        placed: Vec<Placed<T>>,
        bytes: usize,
    ) {
        let batch = data.body.is_none();
        let durable = self.settings.sync == SyncMode::Dsync;
        if key.relocation {
            self.stats.relocated_bytes.add(bytes as u64);
        } else {
            self.stats.user_bytes.add(bytes as u64);
            self.stats.append_records.add(placed.len() as u64);
        }
        self.stats.writes.add(1);
        self.in_flight_bytes += bytes;
        self.records_in_flight += placed.len();
        let stream = self.streams.get_mut(&key).expect("stream of the caller");
        stream.batches_in_flight += usize::from(batch);
        self.writes_in_flight += 1;
        let op = self.issue(Io::Write { segment: id, offset, data, durable });
        let records = Records { segment: id, stream: key, batch, bytes, submitted_us: self.now_us, placed };
        self.ops.insert(op, InFlight::Records(records));
    }
}

/// The aux bytes of a header.
fn tags(seal: &Option<Arc<Seal>>) -> &[u8] {
    seal.as_ref().map_or(&[], |seal| &seal.tags)
}

/// Zeroes what lies between the parts of a batch, so that no old memory reaches the drive.
fn zero_gaps(area: &mut [u8], spots: &[super::packer::Spot], lens: &[(usize, u8)], end: usize) {
    let headers_end: usize = lens.iter().map(|&(len, aux)| header_span(len, aux)).sum();
    let odd_end = spots
        .iter()
        .zip(lens)
        .filter(|(_, (len, _))| !len.is_multiple_of(BLOCK))
        .map(|(spot, (len, _))| (spot.payload + len).next_multiple_of(64))
        .max()
        .unwrap_or(headers_end);
    let odd_block_end = blocks_up(odd_end).min(area.len());
    area[odd_end..odd_block_end].fill(0);
    area[end.max(odd_end)..].fill(0);
    debug_assert!(lens.iter().all(|&(len, aux)| header_len(len, aux) <= header_span(len, aux)));
}
