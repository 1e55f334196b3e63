//! Keeps callers who are denied again and again from filling the log: some lines a second each, and a number for the rest.

use std::collections::HashMap;

/// Lines that a caller may cause at once, and each second.
const BURST: u64 = 200;
const PER_S: u64 = 20;
/// Callers who are told apart. All others share one place.
const CALLERS_MAX: usize = 1024;
const OTHERS: &str = "others";

#[derive(Default)]
struct Bucket {
    /// Thousandths of lines.
    level: u64,
    at_ms: u64,
    suppressed: u64,
}

/// Who was denied how often.
#[derive(Default)]
pub(crate) struct Flood {
    buckets: HashMap<String, Bucket>,
}

impl Flood {
    /// Whether a caller may have another line now.
    pub fn take(&mut self, principal: &str, now_ms: u64) -> bool {
        let is_known = self.buckets.contains_key(principal) || self.buckets.len() < CALLERS_MAX;
        let name = if is_known { principal } else { OTHERS };
        let full = || Bucket { level: BURST * 1000, at_ms: now_ms, suppressed: 0 };
        let bucket = self.buckets.entry(name.to_owned()).or_insert_with(full);
        let gained = now_ms.saturating_sub(bucket.at_ms) * PER_S;
        bucket.level = bucket.level.saturating_add(gained).min(BURST * 1000);
        bucket.at_ms = now_ms;
        let fits = bucket.level >= 1000;
        if fits {
            bucket.level -= 1000;
        } else {
            bucket.suppressed += 1;
        }
        fits
    }

    /// Who had how many calls without a line since the last time.
    pub fn suppressed(&mut self) -> Vec<(String, u64)> {
        let taken = |(name, bucket): (&String, &mut Bucket)| {
            (bucket.suppressed > 0).then(|| (name.clone(), std::mem::take(&mut bucket.suppressed)))
        };
        let found = self.buckets.iter_mut().filter_map(taken).collect();
        if self.buckets.len() >= CALLERS_MAX {
            self.buckets.retain(|_, bucket| bucket.level < BURST * 1000);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_some_lines_and_then_a_number() {
        let mut flood = Flood::default();
        let taken = (0..10_000).filter(|_| flood.take("anonymous", 5)).count() as u64;
        assert_eq!(taken, BURST);
        assert!(flood.take("user acme/alice", 5));
        assert_eq!(flood.suppressed(), [("anonymous".to_owned(), 10_000 - BURST)]);
        assert!(flood.suppressed().is_empty());
        let taken = (0..10_000).filter(|_| flood.take("anonymous", 1005)).count() as u64;
        assert_eq!(taken, PER_S);
    }

    #[test]
    fn callers_beyond_the_table_share_a_place() {
        let mut flood = Flood::default();
        let taken = (0..100_000).filter(|n| flood.take(&format!("key {n}"), 5)).count();
        assert_eq!(taken, CALLERS_MAX + BURST as usize);
        assert!(flood.buckets.len() <= CALLERS_MAX + 1);
    }
}
