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

    pub fn extents(&self) -> usize {
        self.extents.len()
    }

    pub fn is_clean(&self) -> bool {
        self.extents.is_empty() && self.size == self.base && self.cut.is_none()
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
            self.size = self.size.max(offset);
        }
    }

    /// Makes the file shorter, or longer with zeros.
    pub fn truncate(&mut self, size: u64) {
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
        }
        self.size = size;
    }

    /// What a range is made of; nothing behind the end.
    pub fn parts(&self, offset: u64, len: u64) -> Vec<Part> {
        let end = offset.saturating_add(len).min(self.size);
        let mut parts = Vec::new();
        let mut at = offset;
        while at < end {
            let inside = self.run_at(at);
            if !inside.is_empty() {
                let take = (inside.len() as u64).min(end - at);
                parts.push(Part::Fresh(inside[..take as usize].to_vec()));
                at += take;
                continue;
            }
            let next = self.extents.range(at..end).next().map_or(end, |(start, _)| *start);
            let shown = self.shown().clamp(at, next);
            if shown > at {
                parts.push(Part::Base { start: at, len: shown - at });
            }
            if next > shown {
                parts.push(Part::Zero(next - shown));
            }
            at = next;
        }
        parts
    }

    /// The file as an edit of the published version; the bytes that it takes are those of [`Self::fresh`].
    pub fn pieces(&self) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let gap = |pieces: &mut Vec<Piece>, from: u64, to: u64| {
            let shown = self.shown().clamp(from, to);
            if shown > from {
                pieces.push(Piece::Keep { start: from, end: shown });
            }
            if to > shown {
                pieces.push(Piece::Zero(to - shown));
            }
        };
        let mut at = 0;
        for (&start, held) in &self.extents {
            gap(&mut pieces, at, start);
            match pieces.last_mut() {
                Some(Piece::Take(len)) if start == at => *len += held.len() as u64,
                _ => pieces.push(Piece::Take(held.len() as u64)),
            }
            at = start + held.len() as u64;
        }
        gap(&mut pieces, at, self.size);
        pieces
    }

    /// The changes in the order of the file.
    pub fn fresh(&self) -> impl Iterator<Item = &[u8]> {
        self.extents.values().map(|held| &**held)
    }

    /// Lays the changes over another published version than the one that they were made on.
    pub fn rebase(&mut self, base: u64) {
        let is_grown = self.size != self.base || self.cut.is_some();
        let end = self.extents.last_key_value().map_or(0, |(start, held)| start + held.len() as u64);
        if !is_grown {
            self.size = base.max(end);
        } else if self.cut.is_none() {
            self.size = self.size.max(base);
        }
        self.base = base;
    }

    /// Nothing of what is published behind what shows through is ours to show: the length is as it is here.
    pub fn insist(&mut self) {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bytes; sums that are known of them are right.
    fn checked(shared: Option<SummedBytes>) -> Option<Bytes> {
        let SummedBytes { bytes, crc64, crc32c } = shared?;
        assert!(crc64.is_none_or(|sum| sum == stoker_format::crc64(&bytes)));
        assert!(crc32c.is_none_or(|sum| sum == stoker_format::crc32c(&bytes)));
        Some(bytes)
    }

    fn shown(overlay: &Overlay, base: &[u8], offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in overlay.parts(offset, len) {
            match part {
                Part::Fresh(fresh) => bytes.extend(fresh),
                Part::Base { start, len } => bytes.extend(&base[start as usize..(start + len) as usize]),
                Part::Zero(len) => bytes.extend(vec![0; len as usize]),
            }
        }
        bytes
    }

    /// What a node makes of the pieces.
    fn edited(overlay: &Overlay, base: &[u8]) -> Vec<u8> {
        let fresh: Vec<u8> = overlay.fresh().flatten().copied().collect();
        let (mut bytes, mut at) = (Vec::new(), 0);
        for piece in overlay.pieces() {
            match piece {
                Piece::Keep { start, end } => bytes.extend(&base[start as usize..end as usize]),
                Piece::Take(len) => {
                    bytes.extend(&fresh[at..at + len as usize]);
                    at += len as usize;
                }
                Piece::Zero(len) => bytes.extend(vec![0; len as usize]),
                Piece::Rest => unreachable!("an overlay knows its length"),
            }
        }
        bytes
    }

    #[derive(Clone, Debug)]
    enum Op {
        Write(u64, Vec<u8>),
        Truncate(u64),
        Share(u64),
        Publish,
        /// The front up to a share of it in 256.
        PublishFront(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0..300u64, proptest::collection::vec(1..=255u8, 1..60)).prop_map(|(at, bytes)| Op::Write(at, bytes)),
            2 => (0..300u64).prop_map(Op::Truncate),
            2 => (0..300u64).prop_map(Op::Share),
            1 => Just(Op::Publish),
            2 => (0..=256u64).prop_map(Op::PublishFront),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_file(base in proptest::collection::vec(1..=255u8, 0..200), ops in proptest::collection::vec(op(), 0..40)) {
            let (mut base, mut model) = (base.clone(), base);
            let mut overlay = Overlay::new(model.len() as u64);
            let mut shared = Vec::new();
            for op in ops {
                match op {
                    Op::Write(at, bytes) => {
                        overlay.write(at, &bytes);
                        let end = at as usize + bytes.len();
                        model.resize(model.len().max(end), 0);
                        model[at as usize..end].copy_from_slice(&bytes);
                    }
                    Op::Truncate(size) => {
                        overlay.truncate(size);
                        model.resize(size as usize, 0);
                    }
                    Op::Share(at) => {
                        let run = overlay.run_at(at).to_vec();
                        let bytes = checked(overlay.share_at(at, true));
                        prop_assert_eq!(bytes.as_deref().unwrap_or_default(), &run);
                        shared.extend(bytes.map(|bytes| (bytes, run)));
                    }
                    Op::PublishFront(share) => {
                        if let Some(front) = overlay.tail() {
                            let end = front + (overlay.size() - front) * share / 256;
                            base = edited(&overlay, &base)[..end as usize].to_vec();
                            overlay.settle_front(end);
                        }
                    }
                    Op::Publish => {
                        base = edited(&overlay, &base);
                        overlay.settle();
                        prop_assert!(overlay.is_clean());
                    }
                }
                for (bytes, run) in &shared {
                    prop_assert_eq!(&bytes[..], &run[..], "what others read does not change");
                }
                prop_assert_eq!(overlay.size(), model.len() as u64);
                prop_assert_eq!(overlay.bytes(), overlay.fresh().map(<[u8]>::len).sum::<usize>());
                prop_assert_eq!(&shown(&overlay, &base, 0, 1000), &model);
                prop_assert_eq!(&edited(&overlay, &base), &model);
                let middle = model.len() as u64 / 3;
                prop_assert_eq!(shown(&overlay, &base, middle, 17), model[middle as usize..].iter().copied().take(17).collect::<Vec<u8>>());
            }
        }
    }

    /// Where the second buffer of a file that grows begins.
    const SECOND: u64 = EXTENT_MAX as u64;

    fn far_op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0..9_000u64, proptest::collection::vec(1..=255u8, 1..3_000)).prop_map(|(at, bytes)| Op::Write(at, bytes)),
            // The file goes on where it ends.
            6 => proptest::collection::vec(1..=255u8, 1..3_000).prop_map(|bytes| Op::Write(u64::MAX, bytes)),
            2 => (0..9_000u64).prop_map(Op::Truncate),
            2 => (0..9_000u64).prop_map(Op::Share),
            2 => (0..=256u64).prop_map(Op::PublishFront),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn it_is_a_file_in_memory_of_others_too(ops in proptest::collection::vec(far_op(), 0..30), gives in proptest::collection::vec(any::<bool>(), 16)) {
            // What lies behind the first buffer; that one is full, so that the file goes on in memory of others.
            let (mut base, mut model, mut shared) = (Vec::new(), Vec::<u8>::new(), Vec::new());
            let mut overlay = Overlay::new(0);
            overlay.write(0, &vec![9; EXTENT_MAX]);
            let asked = std::cell::Cell::new(0);
            let rooms = || {
                asked.set(asked.get() + 1);
                let mut room = gives[asked.get() % gives.len()].then(|| Buf::heap(1))?;
                room.set_len(0);
                Some(room)
            };
            for op in ops {
                match op {
                    Op::Write(at, bytes) => {
                        let at = at.min(model.len() as u64);
                        overlay.write_in(SECOND + at, &bytes, rooms);
                        let end = at as usize + bytes.len();
                        model.resize(model.len().max(end), 0);
                        model[at as usize..end].copy_from_slice(&bytes);
                    }
                    Op::Truncate(size) => {
                        overlay.truncate(SECOND + size);
                        model.resize(size as usize, 0);
                    }
                    Op::Share(at) => {
                        let run = overlay.run_at(SECOND + at).to_vec();
                        let bytes = checked(overlay.share_at(SECOND + at, true));
                        prop_assert_eq!(bytes.as_deref().unwrap_or_default(), &run);
                        shared.extend(bytes.map(|bytes| (bytes, run)));
                    }
                    Op::PublishFront(share) => {
                        if let Some(front) = overlay.tail() {
                            let front = front.max(SECOND) - SECOND;
                            let end = front + (model.len() as u64 - front) * share / 256;
                            base = model[..end as usize].to_vec();
                            overlay.settle_front(SECOND + end);
                        }
                    }
                    Op::Publish => {}
                }
                for (bytes, run) in &shared {
                    prop_assert_eq!(&bytes[..], &run[..], "what others read does not change");
                }
                prop_assert_eq!(overlay.size(), SECOND + model.len() as u64);
                prop_assert_eq!(overlay.bytes(), overlay.fresh().map(<[u8]>::len).sum::<usize>());
                let mut got = Vec::new();
                for part in overlay.parts(SECOND, 1 << 20) {
                    match part {
                        Part::Fresh(fresh) => got.extend(fresh),
                        Part::Base { start, len } => got.extend(&base[(start - SECOND) as usize..][..len as usize]),
                        Part::Zero(len) => got.extend(vec![0; len as usize]),
                    }
                }
                prop_assert!(got == model);
            }
        }
    }

    #[test]
    fn a_file_that_grows_is_seen() {
        let mut overlay = Overlay::new(10);
        assert_eq!(overlay.tail(), None);
        overlay.write(10, &[1; 5]);
        overlay.write(15, &[1; 5]);
        assert_eq!(overlay.tail(), Some(10));
        overlay.write(3, &[1]);
        assert_eq!(overlay.tail(), None);
        overlay.settle();
        overlay.write(30, &[1; 5]);
        assert_eq!(overlay.tail(), Some(30));
        overlay.truncate(40);
        assert_eq!(overlay.tail(), None);
    }

    #[test]
    fn shared_buffers_are_let_go_when_they_are_published() {
        let mut overlay = Overlay::new(0);
        for at in 0..9 {
            overlay.write(at << 20, &[1; 1 << 20]);
        }
        let (first, second) = (checked(overlay.share_at(0, false)), overlay.share_at(4 << 20, false));
        assert_eq!(first.as_deref().map(<[u8]>::len), Some(4 << 20));
        assert!(overlay.share_at(8 << 20, false).is_none(), "it is not full");
        drop(second);
        overlay.settle();
        assert!(overlay.is_clean());
        assert!(first.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 1)), "who reads it still does");
    }

    #[test]
    fn changes_lie_over_what_others_wrote() {
        let mut overlay = Overlay::new(10);
        overlay.write(2, b"x");
        overlay.rebase(4);
        assert_eq!(overlay.size(), 4);
        overlay.write(4, b"y");
        overlay.rebase(20);
        assert_eq!(overlay.size(), 20);
        overlay.truncate(1);
        overlay.rebase(30);
        assert_eq!((overlay.size(), overlay.pieces()), (1, vec![Piece::Keep { start: 0, end: 1 }]));
    }
}
