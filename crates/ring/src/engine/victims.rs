//! Chooses which segment is given up next, and tells whether giving it up would end and gain space.

use stoker_format::{BLOCK, DEATH_LEN, FOOTER_ENTRY_LEN, Seq, VolumeId};

use super::reclaimer::WINDOW;
use super::segments::{Segment, State};
use super::{Engine, StreamKey};

/// Why space is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Urgency {
    /// To have some in stock.
    Ahead,
    /// A writer waits.
    Now,
}

impl<T> Engine<T> {
    /// Bytes of clean records that may be carried over: little of the flash budget, and never the room of must-keep ones.
    pub(super) fn rescue_budget(&self, id: u32) -> u64 {
        let share = (self.stats.user_bytes.get() as f64 * self.settings.rescue_share) as u64;
        let flash = share.saturating_sub(self.stats.relocated_bytes.get());
        let segment = &self.segments[id as usize];
        let largest = self.record_len_max() + 4 * BLOCK;
        let bound = self.keep_bound(id) + 2 * largest;
        let room = self.relocation_room(segment.stream.volume, largest).saturating_sub(bound);
        let gain = (self.usable() / 2).saturating_sub(bound);
        flash.min(room as u64).min(gain as u64)
    }

    /// What moving a segment's must-keep records may cost at most, padding and footer included.
    pub(super) fn keep_bound(&self, id: u32) -> usize {
        let segment = &self.segments[id as usize];
        let windows = 2 + self.segment_size as usize / WINDOW;
        let deaths = self.deaths_needed(id);
        let death_records = deaths.div_ceil(self.deaths_max().max(1));
        segment.keep_bytes as usize
            + windows * 2 * BLOCK
            + deaths * (DEATH_LEN + FOOTER_ENTRY_LEN)
            + death_records * 2 * BLOCK
    }

    /// Deaths of a segment that have to outlive it, at most.
    fn deaths_needed(&self, id: u32) -> usize {
        let segment = &self.segments[id as usize];
        if segment.deaths == 0 || !self.is_extant_below(id, segment.below_max) {
            return 0;
        }
        segment.deaths as usize
    }

    /// True if another segment may hold records older than `below`.
    pub(super) fn is_extant_below(&self, id: u32, below: Seq) -> bool {
        self.segments.iter().any(|s| s.id != id && s.may_hold_below(below))
    }

    /// Space that relocation of one volume could fill right now if records of up to `largest` bytes come.
    pub(super) fn relocation_room(&self, volume: VolumeId, largest: usize) -> usize {
        let key = StreamKey { volume, relocation: true };
        let open = self.streams.get(&key).map_or(0, |s| self.remaining(s).saturating_sub(largest));
        open + self.free.len() * self.usable().saturating_sub(largest)
    }

    /// True if reclaiming the segment certainly ends, and gains space.
    fn is_victim(&self, id: u32) -> bool {
        let segment = &self.segments[id as usize];
        segment.state == State::Closed && !segment.stuck && self.would_be_victim(id)
    }

    /// True if moving what must stay costs less than is gained: a segment that is mostly dirty is left alone. (D6)
    fn would_be_victim(&self, id: u32) -> bool {
        let segment = &self.segments[id as usize];
        if segment.keep_bytes == 0 && self.deaths_needed(id) == 0 {
            return true;
        }
        let bound = self.keep_bound(id);
        let largest = segment.keep_max as usize;
        bound + 2 * largest <= self.usable()
            && segment.keep_bytes as usize <= self.segment_size as usize / 16 * 15
            && bound <= self.relocation_room(segment.stream.volume, largest)
    }

    /// True if closing a half-filled segment would make it a victim.
    pub(super) fn worth_closing(&self, id: u32) -> bool {
        let segment = &self.segments[id as usize];
        segment.state == State::Open
            && segment.in_flight == 0
            && !segment.lines.is_empty()
            && self.would_be_victim(id)
    }

    /// Oldest first; a hot segment is passed over once. A mostly must-keep one costs more flash than it gains, so it
    /// comes last, and only when somebody waits. (D7)
    pub(super) fn pick_victim(&mut self, urgency: Urgency) -> Option<u32> {
        // Deaths live as long as the oldest segment does; moving it, gain or not, lets them go.
        if let Some(oldest) = self.oldest_if_deaths_pile_up() {
            return Some(oldest);
        }
        // Space that was never written counts as no gain here, or two half-filled segments could chase each other.
        let cheap = |s: &&Segment| s.keep_bytes * 2 <= u64::from(s.cursor);
        let candidates = self.segments.iter().filter(|s| self.is_victim(s.id));
        let mut victims: Vec<(u64, u32)> =
            candidates.clone().filter(cheap).map(|s| (s.order, s.id)).collect();
        if victims.is_empty() && urgency == Urgency::Now {
            victims.extend(candidates.map(|s| (s.keep_bytes, s.id)).min());
        }
        victims.sort_unstable();
        for &(_, id) in &victims {
            let hot = self.mean_heat(id).is_some_and(|heat| heat >= 1.0);
            let segment = &mut self.segments[id as usize];
            if hot && !segment.spared {
                segment.spared = true;
                segment.order = self.next_order;
                self.next_order += 1;
                continue;
            }
            return Some(id);
        }
        victims.first().map(|&(_, id)| id)
    }

    /// True if the lists of the dead take more than an eighth of the ring.
    fn deaths_pile_up(&self) -> bool {
        let bytes = self.deaths_total * (DEATH_LEN + FOOTER_ENTRY_LEN) as u64;
        bytes * 8 > self.segments.len() as u64 * u64::from(self.segment_size)
    }

    /// The oldest segment, if deaths pile up and it can be moved; an old one that is still open is closed for that.
    fn oldest_if_deaths_pile_up(&mut self) -> Option<u32> {
        if !self.deaths_pile_up() {
            return None;
        }
        let holding = self.segments.iter().filter(|s| s.may_hold_below(Seq(u64::MAX)));
        let oldest = holding.min_by_key(|s| s.first_seq)?;
        let id = oldest.id;
        if oldest.state == State::Open && oldest.in_flight == 0 && !oldest.lines.is_empty() {
            self.streams.values_mut().filter(|s| s.segment == Some(id)).for_each(|s| s.segment = None);
            self.begin_close(id);
            return None;
        }
        let movable = oldest.state == State::Closed && !oldest.stuck;
        let room = self.relocation_room(oldest.stream.volume, oldest.keep_max as usize);
        (movable && self.keep_bound(id) <= room).then_some(id)
    }

    pub(super) fn mean_heat(&self, id: u32) -> Option<f64> {
        let clean = self.segments[id as usize].clean_count;
        (clean > 0).then(|| f64::from(self.index.segment(id).heat()) / f64::from(clean))
    }

    /// Mean touches per clean record of the coldest segment that could be given up.
    pub(super) fn coldest(&mut self) -> Option<f64> {
        if self.coldest_cache.0 == 0 {
            let heats = (0..self.segments.len() as u32)
                .filter(|&id| self.segments[id as usize].state == State::Closed)
                .map(|id| {
                    let segment = &self.segments[id as usize];
                    let clean_share = segment.clean_bytes as f64 / f64::from(self.segment_size);
                    let dead =
                        self.segment_size as u64 - segment.keep_bytes.min(u64::from(self.segment_size));
                    // A segment of dead bytes is free for the taking.
                    if clean_share < 0.01 && dead * 16 >= u64::from(self.segment_size) {
                        0.0
                    } else {
                        self.mean_heat(id).unwrap_or(f64::INFINITY)
                    }
                });
            let coldest = heats.fold(f64::INFINITY, f64::min);
            self.coldest_cache = (64, coldest.is_finite().then_some(coldest));
        }
        self.coldest_cache.0 -= 1;
        self.coldest_cache.1
    }
}
