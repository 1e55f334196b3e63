//! Reads that took long, by file, for those who ask why. Bounded: of many slow files the latest are remembered.

use std::collections::HashMap;
use std::sync::Mutex;

use stoker_format::VersionId;

use super::Source;

/// A read that took this long is remembered: a drive that answers later counts as late.
pub(super) const SLOW_US: u64 = 5_000;

/// Files that are remembered.
const FILES_MAX: usize = 1_024;

/// Which way a read went.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(super) struct Trail {
    /// Who was asked first.
    pub first: Option<Source>,
    /// Who had the bytes.
    pub answered: Option<Source>,
    /// How many were asked because another was late.
    pub hedges: u32,
    /// How many could not answer.
    pub failures: u32,
}

/// A read that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlowRead {
    pub at_ms: u64,
    pub took_us: u64,
    pub bytes: usize,
    pub trail: Trail,
}

/// The last slow read of each file.
#[derive(Default)]
pub(super) struct SlowReads(Mutex<HashMap<VersionId, SlowRead>>);

impl SlowReads {
    pub fn note(&self, version: VersionId, read: SlowRead) {
        let mut all = self.0.lock().unwrap();
        if all.len() >= FILES_MAX && !all.contains_key(&version) {
            // Half at once, so that a flood of slow reads does not look through all of them each time.
            let mut times: Vec<u64> = all.values().map(|read| read.at_ms).collect();
            times.sort_unstable();
            let middle = times[times.len() / 2];
            all.retain(|_, read| read.at_ms > middle);
        }
        all.insert(version, read);
    }

    /// The latest of some versions.
    pub fn last(&self, versions: impl Iterator<Item = VersionId>) -> Option<SlowRead> {
        let all = self.0.lock().unwrap();
        versions.filter_map(|version| all.get(&version)).max_by_key(|read| read.at_ms).cloned()
    }
}

/// A slow read in words; `usual_us` is what whoever answered usually takes, `name` knows how sources are called.
pub(super) fn words(
    read: &SlowRead,
    now_ms: u64,
    usual_us: Option<u64>,
    name: impl Fn(Source) -> String,
) -> String {
    let ms = |us: u64| format!("{:.1} ms", us as f64 / 1_000.0);
    let called = |source: Source| match source {
        Source::Drive(_) => format!("drive {}", name(source)),
        Source::Peer(_) => format!("node {}", name(source)),
        Source::Turn(_) => format!("node {}, whose turn it is to ask the lake", name(source)),
        Source::Lake(_) => format!("the lake of {}", name(source)),
    };
    let trail = &read.trail;
    let from = match trail.answered {
        Some(source) => format!("from {}", called(source)),
        None => "and failed".to_owned(),
    };
    let mut why = Vec::new();
    if let Some(first) = trail.first.filter(|first| trail.answered != Some(*first)) {
        let what = if trail.failures > 0 { "could not answer" } else { "was late" };
        why.push(format!("{} was asked first and {what}", called(first)));
    } else if trail.hedges > 0 {
        why.push("it was late, and so was the second one that was asked".to_owned());
    }
    match (trail.answered, usual_us) {
        (Some(Source::Lake(_) | Source::Turn(_)), _) if why.is_empty() => {
            why.push("the bytes were on no drive of this cell that could be asked".to_owned());
        }
        _ => {}
    }
    if let Some(us) = usual_us {
        why.push(format!("it takes {} on average now", ms(us)));
    }
    let why = if why.is_empty() { String::new() } else { format!(": {}", why.join("; ")) };
    let ago_s = now_ms.saturating_sub(read.at_ms) / 1_000;
    format!("last slow read, {ago_s} s ago: {} bytes in {} {from}{why}", read.bytes, ms(read.took_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(at_ms: u64, trail: Trail) -> SlowRead {
        SlowRead { at_ms, took_us: 48_200, bytes: 4096, trail }
    }

    fn version(at: u32) -> VersionId {
        let mut id = [0; 12];
        id[..4].copy_from_slice(&at.to_le_bytes());
        VersionId(id)
    }

    #[test]
    fn the_latest_are_remembered_and_no_more() {
        let slow = SlowReads::default();
        for at in 0..5_000 {
            slow.note(version(at), read(u64::from(at), Trail::default()));
        }
        assert!(slow.0.lock().unwrap().len() <= FILES_MAX);
        assert_eq!(slow.last([version(4_999), version(4_998)].into_iter()).unwrap().at_ms, 4_999);
        assert_eq!(slow.last([version(1)].into_iter()), None);
    }

    #[test]
    fn words_say_who_was_slow() {
        let name = |source: Source| match source {
            Source::Drive(at) => format!("/nvme{at}"),
            _ => "b".to_owned(),
        };
        let (drive, lake) = (Source::Drive(0), Source::Lake(stoker_format::VolumeId(1)));
        let check = |trail: Trail, usual_us, expect: &str| {
            assert_eq!(words(&read(1_000, trail), 13_500, usual_us, name), expect);
        };
        let trail = |first, answered| Trail { first, answered, hedges: 0, failures: 0 };
        check(
            trail(Some(lake), Some(lake)),
            Some(45_000),
            "last slow read, 12 s ago: 4096 bytes in 48.2 ms from the lake of b: the bytes were on no drive of this cell that \
             could be asked; it takes 45.0 ms on average now",
        );
        check(
            Trail { hedges: 1, ..trail(Some(drive), Some(lake)) },
            None,
            "last slow read, 12 s ago: 4096 bytes in 48.2 ms from the lake of b: drive /nvme0 was asked first and was late",
        );
        check(
            Trail { failures: 1, ..trail(Some(drive), None) },
            None,
            "last slow read, 12 s ago: 4096 bytes in 48.2 ms and failed: drive /nvme0 was asked first and could not answer",
        );
        check(
            trail(Some(drive), Some(drive)),
            Some(300),
            "last slow read, 12 s ago: 4096 bytes in 48.2 ms from drive /nvme0: it takes 0.3 ms on average now",
        );
    }
}
