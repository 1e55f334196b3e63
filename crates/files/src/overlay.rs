//! Changes of a file that are not published, over the bytes that are. Pure.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use stoker_store::{Buf, Piece, SummedBytes};

/// Longest buffer of changes.
const EXTENT_MAX: usize = 4 << 20;

/// Full buffers that are kept for the next file that grows, of all files of the process: memory that the kernel has just
/// handed out costs as much as the copy into it.
const SPARES_MAX: usize = 16;
static SPARES: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// An empty buffer of the greatest length.
fn spare() -> Vec<u8> {
    let kept = SPARES.lock().unwrap_or_else(PoisonError::into_inner).pop();
    kept.unwrap_or_else(|| Vec::with_capacity(EXTENT_MAX))
}

/// Keeps full buffers, as many as may be.
fn keep(buffers: impl Iterator<Item = Vec<u8>>) {
    let mut spares = SPARES.lock().unwrap_or_else(PoisonError::into_inner);
    let room = SPARES_MAX.saturating_sub(spares.len());
    let full = buffers.filter(|buffer| buffer.len() == EXTENT_MAX && buffer.capacity() == EXTENT_MAX);
    spares.extend(full.take(room).map(|mut buffer| {
        buffer.clear();
        buffer
    }));
}

/// Where changes lie.
#[derive(Debug)]
enum Memory {
    Heap(Vec<u8>),
    /// Memory from which a writer takes them without a copy.
    Room(Buf),
}

impl Memory {
    /// Adds bytes; there is room.
    fn add(&mut self, bytes: &[u8]) {
        match self {
            Memory::Heap(held) => held.extend_from_slice(bytes),
            Memory::Room(held) => held.fill(bytes),
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Memory::Heap(held) => held.truncate(len),
            Memory::Room(held) => held.set_len(len.min(held.len())),
        }
    }

    /// Most bytes that it may hold.
    fn len_max(&self) -> usize {
        match self {
            Memory::Heap(_) => EXTENT_MAX,
            Memory::Room(held) => held.capacity().min(EXTENT_MAX),
        }
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        match self {
            Memory::Heap(held) => held,
            Memory::Room(held) => held.as_slice(),
        }
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Heap(held) => held,
            Memory::Room(held) => held.as_mut_slice(),
        }
    }
}

impl Clone for Memory {
    fn clone(&self) -> Memory {
        Memory::Heap(self.as_ref().to_vec())
    }
}

/// Changes that follow one another.
#[derive(Clone, Debug)]
enum Extent {
    /// More may come.
    Own(Memory),
    /// Somebody else reads them, too: they do not change any more.
    Shared(Bytes),
}

/// A buffer that others read; kept when the last of them is done.
struct Lent(Memory);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Memory::Heap(held) = &mut self.0 {
            keep(std::iter::once(std::mem::take(held)));
        }
    }
}

impl Deref for Extent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Extent::Own(memory) => memory.as_ref(),
            Extent::Shared(bytes) => bytes,
        }
    }
}

impl Extent {
    fn of(bytes: Vec<u8>) -> Extent {
        Extent::Own(Memory::Heap(bytes))
    }

    /// The bytes, to be changed; a copy if others read them.
    fn own(&mut self) -> &mut Memory {
        if let Extent::Shared(bytes) = self {
            *self = Extent::of(bytes.to_vec());
        }
        match self {
            Extent::Own(memory) => memory,
            Extent::Shared(_) => unreachable!("changed above"),
        }
    }

    /// The bytes, to be read by others.
    fn share(&mut self) -> SummedBytes {
        let (mut crc64, mut crc32c) = (None, None);
        if let Extent::Own(memory) = self {
            if let Memory::Room(held) = memory {
                (crc64, crc32c) = (held.crc64(), held.crc32c());
            }
            let memory = std::mem::replace(memory, Memory::Heap(Vec::new()));
            *self = Extent::Shared(Bytes::from_owner(Lent(memory)));
        }
        match self {
            Extent::Shared(bytes) => SummedBytes { bytes: bytes.clone(), crc64, crc32c },
            Extent::Own(_) => unreachable!("changed above"),
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Extent::Own(memory) => memory.truncate(len),
            Extent::Shared(bytes) => bytes.truncate(len),
        }
    }

    /// Most bytes that it may hold.
    fn len_max(&self) -> usize {
        match self {
            Extent::Own(memory) => memory.len_max(),
            Extent::Shared(_) => EXTENT_MAX,
        }
    }

    /// The buffer, if nobody else reads it.
    fn into_own(self) -> Option<Vec<u8>> {
        match self {
            Extent::Own(Memory::Heap(bytes)) => Some(bytes),
            Extent::Own(Memory::Room(_)) | Extent::Shared(_) => None,
        }
    }
}

/// What a stretch of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stretch {
    /// Bytes that were written.
    Fresh,
    /// Bytes of the published version.
    Base,
    /// Zeros that nobody wrote.
    Zero,
}

/// A stretch of a file as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Bytes that were written.
    Fresh(Vec<u8>),
    /// Bytes of the published version.
    Base { start: u64, len: u64 },
    /// Zeros.
    Zero(u64),
}

/// A file's length and the changes of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    /// Length of the published version.
    base: u64,
    /// The shortest that the file was cut to since.
    cut: Option<u64>,
    size: u64,
    /// By offset; they do not overlap.
    extents: BTreeMap<u64, Extent>,
    bytes: usize,
    /// Zeros that hide the published version, from and to. They do not touch, and what was written lies over them.
    zeros: BTreeMap<u64, u64>,
    /// What lies behind the published version was appended: it belongs behind any other one, too.
    follows: bool,
}

impl Overlay {
    /// No changes of a file of this length.
    pub fn new(size: u64) -> Overlay {
        Overlay { base: size, size, ..Overlay::default() }
    }

    /// A file that is to be empty, whatever is published under its name.
    pub fn emptied() -> Overlay {
        Overlay { cut: Some(0), ..Overlay::default() }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Separate changes.
    pub fn extents(&self) -> usize {
        self.extents.len() + self.zeros.len()
    }

    pub fn is_clean(&self) -> bool {
        self.extents.is_empty() && self.zeros.is_empty() && self.size == self.base && self.cut.is_none()
    }

    /// How much of the published version shows through.
    fn shown(&self) -> u64 {
        self.cut.map_or(self.base, |cut| cut.min(self.base))
    }

    /// Where nothing but changes follows one another up to the end, if it is so and nothing lies in front of it but
    /// published bytes and zeros: the file grows at its end.
    pub fn tail(&self) -> Option<u64> {
        let (&first, _) = self.extents.first_key_value()?;
        (first >= self.shown() && self.size - first == self.bytes as u64).then_some(first)
    }

    /// Bytes from an offset inside a buffer on, as far as the buffer goes.
    pub fn run_at(&self, offset: u64) -> &[u8] {
        match self.extents.range(..=offset).next_back() {
            Some((start, bytes)) => bytes.get((offset - start) as usize..).unwrap_or_default(),
            None => &[],
        }
    }

    /// The same, to be kept by others: a full buffer, or any if more is not waited for.
    pub fn share_at(&mut self, offset: u64, any: bool) -> Option<SummedBytes> {
        let (start, held) = self.extents.range(..=offset).next_back()?;
        // One that another one follows is as full as it will be.
        let is_full = held.len() == held.len_max() || self.extents.contains_key(&(start + held.len() as u64));
        let (start, held) = self.extents.range_mut(..=offset).next_back()?;
        let skip = (offset - start) as usize;
        if skip >= held.len() || !(is_full || any) {
            return None;
        }
        let all = held.share();
        // The sums are of all of them.
        Some(if skip == 0 { all } else { all.bytes.slice(skip..).into() })
    }

    /// Writes bytes.
    #[cfg(test)]
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.write_in(offset, bytes, || None);
    }

    /// The same; a file that grows does so in memory of the caller's, as far as there is some.
    pub fn write_in(&mut self, mut offset: u64, mut bytes: &[u8], rooms: impl Fn() -> Option<Buf>) {
        let written = !bytes.is_empty();
        while !bytes.is_empty() {
            let next = self.extents.range(offset + 1..).next().map(|(start, _)| *start);
            let near = self.extents.range_mut(..=offset).next_back();
            let part = match near {
                Some((start, held)) if offset < start + held.len() as u64 => {
                    let at = (offset - start) as usize;
                    let part = bytes.len().min(held.len() - at);
                    held.own().as_mut()[at..at + part].copy_from_slice(&bytes[..part]);
                    part
                }
                Some((start, held)) if offset == start + held.len() as u64 && held.len() < held.len_max() => {
                    let part = room(bytes.len().min(held.len_max() - held.len()), offset, next);
                    held.own().add(&bytes[..part]);
                    self.bytes += part;
                    part
                }
                near => {
                    // Whoever filled the buffer in front of this one goes on.
                    let goes_on = near.is_some_and(|(start, held)| offset == start + held.len() as u64);
                    let mut held = match goes_on {
                        true => rooms().map_or_else(|| Memory::Heap(spare()), Memory::Room),
                        false => Memory::Heap(Vec::new()),
                    };
                    let part = room(bytes.len().min(held.len_max()), offset, next);
                    held.add(&bytes[..part]);
                    self.extents.insert(offset, Extent::Own(held));
                    self.bytes += part;
                    part
                }
            };
            offset += part as u64;
            bytes = &bytes[part..];
        }
        if written {
            self.follows &= offset <= self.base;
            self.size = self.size.max(offset);
        }
    }

    /// Writes bytes at the end, wherever that is when they are published.
    pub fn append_in(&mut self, bytes: &[u8], rooms: impl Fn() -> Option<Buf>) {
        let follows = self.cut.is_none() && (self.follows || self.size == self.base);
        self.write_in(self.size, bytes, rooms);
        self.follows = follows;
    }

    /// Makes the file shorter, or longer with zeros.
    pub fn truncate(&mut self, size: u64) {
        self.follows = false;
        if size < self.size {
            let gone = self.extents.split_off(&size);
            self.bytes -= gone.values().map(|held| held.len()).sum::<usize>();
            if let Some((start, held)) =
                self.extents.last_entry().map(|entry| (*entry.key(), entry.into_mut()))
                && start + held.len() as u64 > size
            {
                let keep = (size - start) as usize;
                self.bytes -= held.len() - keep;
                held.truncate(keep);
            }
            if size < self.shown() {
                self.cut = Some(size);
            }
            self.zeros.split_off(&size);
            if let Some(mut last) = self.zeros.last_entry() {
                let end = *last.get();
                last.insert(end.min(size));
            }
        }
        self.size = size;
    }

    /// Puts zeros into a range, as far as the file goes.
    pub fn punch(&mut self, start: u64, end: u64) {
        let end = end.min(self.size);
        if start >= end {
            return;
        }
        self.follows &= end <= self.base;
        let first = self.extents.range(..start).next_back().map_or(start, |(start, _)| *start);
        let touched: Vec<u64> = self.extents.range(first..end).map(|(start, _)| *start).collect();
        for at in touched {
            let Some(mut held) = self.extents.remove(&at) else { continue };
            let held_end = at + held.len() as u64;
            self.bytes -= held.len();
            if held_end > end {
                let behind = Extent::of(held[(end - at) as usize..].to_vec());
                self.bytes += behind.len();
                self.extents.insert(end, behind);
            }
            if at < start {
                held.truncate((start.min(held_end) - at) as usize);
                self.bytes += held.len();
                self.extents.insert(at, held);
            }
        }
        // Ranges that touch this one become one with it.
        let (mut start, mut end) = (start, end);
        while let Some((from, to)) = self.zeros.range(..=end).next_back().map(|(from, to)| (*from, *to))
            && to >= start
        {
            self.zeros.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.zeros.insert(start, end);
    }

    /// What lies at an offset, and where that ends; none behind the end.
    pub fn stretch(&self, at: u64) -> Option<(Stretch, u64)> {
        if at >= self.size {
            return None;
        }
        let inside = self.run_at(at).len() as u64;
        if inside > 0 {
            return Some((Stretch::Fresh, at + inside));
        }
        let next = self.extents.range(at..).next().map_or(self.size, |(start, _)| *start);
        if at >= self.shown() {
            return Some((Stretch::Zero, next));
        }
        if let Some((_, &end)) = self.zeros.range(..=at).next_back().filter(|(_, end)| **end > at) {
            return Some((Stretch::Zero, next.min(end)));
        }
        let zeros = self.zeros.range(at..).next().map_or(next, |(start, _)| *start);
        Some((Stretch::Base, next.min(zeros).min(self.shown())))
    }

    /// What a range is made of; nothing behind the end.
    pub fn parts(&self, offset: u64, len: u64) -> Vec<Part> {
        let end = offset.saturating_add(len).min(self.size);
        let mut parts = Vec::new();
        let mut at = offset;
        while at < end
            && let Some((what, to)) = self.stretch(at)
        {
            let len = to.min(end) - at;
            parts.push(match what {
                Stretch::Fresh => Part::Fresh(self.run_at(at)[..len as usize].to_vec()),
                Stretch::Base => Part::Base { start: at, len },
                Stretch::Zero => Part::Zero(len),
            });
            at += len;
        }
        parts
    }

    /// The file as an edit of the published version; the bytes that it takes are those of [`Self::fresh`].
    pub fn pieces(&self) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = 0;
        while let Some((what, end)) = self.stretch(at) {
            let len = end - at;
            match (what, pieces.last_mut()) {
                (Stretch::Fresh, Some(Piece::Take(before))) => *before += len,
                (Stretch::Fresh, _) => pieces.push(Piece::Take(len)),
                (Stretch::Zero, Some(Piece::Zero(before))) => *before += len,
                (Stretch::Zero, _) => pieces.push(Piece::Zero(len)),
                (Stretch::Base, _) => pieces.push(Piece::Keep { start: at, end }),
            }
            at = end;
        }
        pieces
    }

    /// The changes in the order of the file.
    pub fn fresh(&self) -> impl Iterator<Item = &[u8]> {
        self.extents.values().map(|held| &**held)
    }

    /// Lays the changes over another published version than the one that they were made on.
    pub fn rebase(&mut self, base: u64) {
        if self.follows {
            return self.follow(base);
        }
        let is_grown = self.size != self.base || self.cut.is_some();
        let end = self.extents.last_key_value().map_or(0, |(start, held)| start + held.len() as u64);
        if !is_grown {
            self.size = base.max(end);
        } else if self.cut.is_none() {
            self.size = self.size.max(base);
        }
        self.base = base;
    }

    /// Puts what was appended behind another published version. What was written over the one before stays where it is.
    fn follow(&mut self, base: u64) {
        let appended = self.size - self.base;
        let mut behind = self.extents.split_off(&self.base);
        if let Some(mut last) = self.extents.last_entry() {
            let inside = (self.base - last.key()) as usize;
            if last.get().len() > inside {
                behind.insert(self.base, Extent::of(last.get()[inside..].to_vec()));
                last.get_mut().truncate(inside);
            }
        }
        let front = self.extents.last_key_value().map_or(0, |(start, held)| start + held.len() as u64);
        let to = base.max(front);
        self.extents.extend(behind.into_iter().map(|(start, held)| (start - self.base + to, held)));
        (self.base, self.size) = (base, to + appended);
        // Bytes that were written over what is cut off now end the version that is appended to.
        self.follows = to == base;
    }

    /// What was appended has its place.
    pub fn stay(&mut self) {
        self.follows = false;
    }

    /// Nothing of what is published behind what shows through is ours to show: the length is as it is here.
    pub fn insist(&mut self) {
        self.follows = false;
        self.cut = Some(self.shown());
    }

    /// The changes in front of an offset are published, and all that the file has there; it only grew behind it since.
    pub fn settle_front(&mut self, end: u64) {
        let mut behind = self.extents.split_off(&end);
        let front = std::mem::take(&mut self.extents);
        let mut own = Vec::new();
        for (start, held) in front {
            if start + held.len() as u64 > end {
                behind.insert(end, Extent::of(held[(end - start) as usize..].to_vec()));
            }
            own.extend(held.into_own());
        }
        keep(own.into_iter());
        self.bytes = behind.values().map(|held| held.len()).sum();
        (self.extents, self.base, self.cut) = (behind, end, None);
        self.zeros.clear();
    }

    /// The changes are published.
    pub fn settle(&mut self) {
        // Shared ones go home by themselves, one by one, and not while the others are being kept.
        let own: Vec<_> =
            std::mem::take(&mut self.extents).into_values().filter_map(Extent::into_own).collect();
        keep(own.into_iter());
        *self = Overlay::new(self.size);
    }
}

/// How much fits in front of the next buffer.
fn room(len: usize, offset: u64, next: Option<u64>) -> usize {
    next.map_or(len, |next| len.min((next - offset) as usize))
}

#[cfg(test)]
mod tests;
