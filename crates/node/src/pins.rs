//! Versions and chunks in use: the collector leaves them alone.
//!
//! A file that was changed in the middle is read by versions that use some chunks of one owner, and not others. So a
//! reader says which chunks it reads; whoever does not know them yet keeps all of a version.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use stoker_format::{ChunkRun, VersionId, VolumeId};

/// Users of one version on this node.
#[derive(Default)]
struct Uses {
    /// All of them.
    all: usize,
    /// Those that did not say which chunks.
    whole: usize,
    /// Open files of this version; others may read chunks of it, under a version of their own.
    files: usize,
    /// Where the lake had it last, as far as this node knows.
    object: Option<Object>,
    /// Chunks of it that open files read, by the file's number: first and behind the last.
    read: Vec<(u64, u32, u32)>,
}

/// An object: the volume of its lake, its key, its etag.
pub(crate) type Object = (VolumeId, Vec<u8>, String);

/// Counts users of versions on this node.
#[derive(Default)]
pub(crate) struct Pins {
    uses: Mutex<HashMap<VersionId, Uses>>,
    next: std::sync::atomic::AtomicU64,
}

/// One use; ends when dropped.
pub(crate) struct Pin {
    pins: Arc<Pins>,
    version: VersionId,
    /// The file that said which chunks it reads.
    reader: Option<u64>,
    /// It is the version that the file is open as.
    is_file: bool,
}

impl Pins {
    pub fn pin(self: &Arc<Pins>, version: VersionId) -> Pin {
        let mut uses = self.uses.lock().unwrap();
        let uses = uses.entry(version).or_default();
        uses.all += 1;
        uses.whole += 1;
        Pin { pins: self.clone(), version, reader: None, is_file: false }
    }

    /// Pins what an open file reads: the chunks of its layout, and its version by the pin that it has.
    pub fn pin_reader(self: &Arc<Pins>, mut own: Pin, runs: &[ChunkRun]) -> Vec<Pin> {
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let runs = || runs.iter().filter(|run| !run.is_hole());
        let mut owners: Vec<VersionId> = runs().map(|run| run.version).collect();
        owners.sort_unstable();
        owners.dedup();
        let mut table = self.uses.lock().unwrap();
        for run in runs() {
            let uses = table.entry(run.version).or_default();
            uses.read.push((number, run.first_index, run.first_index + run.count));
        }
        if let Some(uses) = table.get_mut(&own.version).filter(|_| own.reader.is_none()) {
            uses.whole -= 1;
            uses.files += 1;
            own.is_file = true;
        }
        own.reader = Some(number);
        owners.retain(|owner| *owner != own.version);
        let pin = |owner: VersionId| {
            table.entry(owner).or_default().all += 1;
            Pin { pins: self.clone(), version: owner, reader: Some(number), is_file: false }
        };
        let mut pins: Vec<Pin> = owners.into_iter().map(pin).collect();
        pins.push(own);
        pins
    }

    pub fn is_pinned(&self, version: VersionId) -> bool {
        self.uses.lock().unwrap().contains_key(&version)
    }

    /// Whether a file is open as this version, or may be about to be.
    pub fn is_open(&self, version: VersionId) -> bool {
        self.uses.lock().unwrap().get(&version).is_some_and(|uses| uses.whole + uses.files > 0)
    }

    /// Whether a file is open as any version but this, or may be about to be.
    pub fn is_any_open(&self, but: VersionId) -> bool {
        let uses = self.uses.lock().unwrap();
        uses.iter().any(|(version, uses)| *version != but && uses.whole + uses.files > 0)
    }

    /// Remembers where the lake has a version, for those who have it open when it loses its name.
    pub fn note_object(&self, version: VersionId, volume: VolumeId, key: &[u8], etag: &str) {
        if let Some(uses) = self.uses.lock().unwrap().get_mut(&version) {
            uses.object = Some((volume, key.to_vec(), etag.to_owned()));
        }
    }

    /// Where the lake had a version last, if that is known.
    pub fn object(&self, version: VersionId) -> Option<Object> {
        self.uses.lock().unwrap().get(&version)?.object.clone()
    }

    /// Whether somebody may need all of a version.
    pub fn is_held(&self, version: VersionId) -> bool {
        self.uses.lock().unwrap().get(&version).is_some_and(|uses| uses.whole > 0)
    }

    /// Whether somebody reads one of these chunks, or may.
    pub fn is_read(&self, version: VersionId, first: u32, count: u32) -> bool {
        let end = first.saturating_add(count);
        let uses = self.uses.lock().unwrap();
        let overlaps = |(_, from, to): &(u64, u32, u32)| *from < end && first < *to;
        uses.get(&version).is_some_and(|uses| uses.whole > 0 || uses.read.iter().any(overlaps))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut table = self.pins.uses.lock().unwrap();
        let Some(uses) = table.get_mut(&self.version) else { return };
        uses.all -= 1;
        uses.files -= usize::from(self.is_file);
        match self.reader {
            Some(number) => uses.read.retain(|(reader, ..)| *reader != number),
            None => uses.whole -= 1,
        }
        if uses.all == 0 {
            table.remove(&self.version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_hold_the_chunks_that_they_read() {
        let pins = Arc::new(Pins::default());
        let (old, new) = (VersionId([1; 12]), VersionId([2; 12]));
        let run = |version, first_index, count| ChunkRun {
            file_offset: 0,
            version,
            first_index,
            count,
            chunk_len: 10,
            last_len: 10,
        };
        let own = pins.pin(new);
        assert!(pins.is_held(new) && pins.is_read(new, 7, 1));
        let held = pins.pin_reader(own, &[run(old, 0, 2), run(new, 0, 1), run(old, 3, 1)]);
        assert!(!pins.is_held(new) && pins.is_pinned(new) && pins.is_pinned(old));
        assert!(pins.is_open(new) && !pins.is_open(old));
        for (version, first, count, expect) in [
            (old, 0, 1, true),
            (old, 1, 5, true),
            (old, 2, 1, false),
            (old, 3, 1, true),
            (old, 4, 9, false),
            (new, 0, 1, true),
            (new, 1, 1, false),
        ] {
            assert_eq!(pins.is_read(version, first, count), expect, "{version} {first} {count}");
        }
        let whole = pins.pin(old);
        assert!(pins.is_read(old, 2, 1));
        drop(whole);
        assert!(!pins.is_read(old, 2, 1));
        drop(held);
        assert!(!pins.is_pinned(old) && !pins.is_pinned(new) && pins.uses.lock().unwrap().is_empty());
    }

    #[test]
    fn a_file_without_chunks_is_pinned_all_the_same() {
        let pins = Arc::new(Pins::default());
        let version = VersionId([1; 12]);
        let held = pins.pin_reader(pins.pin(version), &[]);
        assert!(pins.is_pinned(version) && !pins.is_held(version));
        drop(held);
        assert!(!pins.is_pinned(version));
    }
}
