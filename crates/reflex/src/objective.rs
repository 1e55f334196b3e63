//! What is measured, what is good, and what follows from bad.

use serde::{Deserialize, Serialize};

use crate::part::PartKind;

/// What is measured or noticed of a part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Indicator {
    /// Reads of a drive, from hand-over to verified bytes.
    DriveReadP99,
    /// Appends to a drive, from hand-over to durable.
    DriveWriteP99,
    /// Reads, writes and flushes of a drive that failed, and blocks with wrong checksums.
    DriveErrors,
    /// Reads of files through a node.
    ReadP99,
    /// Commits of chunks through a node.
    CommitP99,
    /// Copies that a node was asked to take and did not.
    CopyErrors,
    /// Age of the oldest change of a node that should be in the lake.
    DrainLag,
    /// Critical warnings of a drive about itself.
    Smart,
    /// How much of its written bytes a drive was built for is used up.
    Endurance,
    /// A node or port that goes and comes again.
    Flaps,
    /// A port without a link.
    Link,
    /// Many parts below this one that are in trouble at the same time.
    Together,
}

/// How it is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// Latencies; those beyond the threshold are bad.
    Latency,
    /// Good and bad ones are counted by whoever measures.
    Share,
    /// One age at a time; beyond the threshold it is bad.
    Age,
    /// It is so, or it is not.
    Flag,
}

/// What the loop does about a part that stays bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// Less is asked of it; then it is taken out.
    Slow,
    /// The same, and nothing new is put there at once.
    Sick,
    /// Persons are told. The part is not to blame.
    Tell,
}

/// An indicator with everything about it that is not configured.
#[derive(Debug)]
pub struct Spec {
    /// Which.
    pub indicator: Indicator,
    /// Its word in configuration, events and documents.
    pub word: &'static str,
    /// Kinds of parts that it is measured of.
    pub parts: &'static [PartKind],
    /// How.
    pub measure: Measure,
    /// What follows.
    pub reaction: Reaction,
    /// What Stoker was designed for; shown, never enforced.
    pub aim: &'static str,
}

const fn spec(
    indicator: Indicator,
    word: &'static str,
    parts: &'static [PartKind],
    measure: Measure,
    reaction: Reaction,
    aim: &'static str,
) -> Spec {
    Spec { indicator, word, parts, measure, reaction, aim }
}

use Indicator as I;
use PartKind as P;

/// Every indicator.
pub static SPECS: [Spec; 12] = [
    spec(I::DriveReadP99, "drive_read_p99", &[P::Drive], Measure::Latency, Reaction::Slow, "1 MiB in 1.0 ms"),
    spec(
        I::DriveWriteP99,
        "drive_write_p99",
        &[P::Drive],
        Measure::Latency,
        Reaction::Slow,
        "4 MiB in 0.8 ms",
    ),
    spec(I::DriveErrors, "drive_errors", &[P::Drive], Measure::Share, Reaction::Sick, ""),
    spec(I::ReadP99, "read_p99", &[P::Node], Measure::Latency, Reaction::Tell, "1 MiB in 1.5 ms"),
    spec(
        I::CommitP99,
        "commit_p99",
        &[P::Node],
        Measure::Latency,
        Reaction::Slow,
        "4 MiB on two nodes in 0.8 ms",
    ),
    spec(I::CopyErrors, "copy_errors", &[P::Node], Measure::Share, Reaction::Slow, ""),
    spec(I::DrainLag, "drain_lag", &[P::Node], Measure::Age, Reaction::Tell, ""),
    spec(I::Smart, "smart", &[P::Drive], Measure::Flag, Reaction::Sick, ""),
    spec(I::Endurance, "endurance", &[P::Drive], Measure::Flag, Reaction::Sick, ""),
    spec(I::Flaps, "flaps", &[P::Node, P::Port], Measure::Flag, Reaction::Sick, ""),
    spec(I::Link, "link", &[P::Port], Measure::Flag, Reaction::Sick, ""),
    spec(I::Together, "together", &[P::Rack, P::Switch, P::Node], Measure::Flag, Reaction::Slow, ""),
];

impl Indicator {
    /// Everything about it.
    pub fn spec(self) -> &'static Spec {
        SPECS.iter().find(|spec| spec.indicator == self).expect("every indicator has a row")
    }

    /// Its word.
    pub fn word(self) -> &'static str {
        self.spec().word
    }

    /// Whether it may be measured of a kind of parts.
    pub fn fits(self, kind: PartKind) -> bool {
        self.spec().parts.contains(&kind)
    }
}

/// What counts as too long.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Threshold {
    /// What the gate measured of this part, times a factor. Nothing is enforced of a part that was not measured.
    Auto,
    /// This long, of every part; microseconds.
    Set(u64),
}

/// An indicator with what is wanted of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Objective {
    /// It is looked at.
    pub enabled: bool,
    /// What counts as too long; shares have none.
    pub threshold: Threshold,
    /// The share that has to be good.
    pub target: f64,
    /// Fewer than these say nothing.
    pub samples_min: u64,
}

impl Objective {
    /// The threshold of a part, if there is one.
    pub fn threshold_us(&self, baseline_us: Option<u64>, factor: f64) -> Option<u64> {
        match self.threshold {
            Threshold::Set(us) => Some(us),
            Threshold::Auto => baseline_us.filter(|us| *us > 0).map(|us| (us as f64 * factor) as u64),
        }
    }

    /// Whether so many bad ones are too many.
    pub fn is_broken(&self, good: u64, bad: u64) -> bool {
        let all = good.saturating_add(bad);
        all > 0 && bad as f64 > all as f64 * (1.0 - self.target)
    }
}

/// A time for people, in three digits.
pub(crate) fn words_us(us: u64) -> String {
    let three = |value: f64, unit: &str| {
        let digits = if value >= 99.95 {
            0
        } else if value >= 9.995 {
            1
        } else {
            2
        };
        format!("{value:.digits$} {unit}")
    };
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => three(us as f64 / 1e3, "ms"),
        _ => three(us as f64 / 1e6, "s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_indicator_has_one_row() {
        let mut words: Vec<&str> = SPECS.iter().map(|spec| spec.word).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), SPECS.len());
        for spec in &SPECS {
            assert_eq!(serde_json::to_value(spec.indicator).unwrap(), spec.word);
            assert!(std::ptr::eq(spec.indicator.spec(), spec));
        }
    }

    #[test]
    fn thresholds_and_shares() {
        let objective = |threshold, target| Objective { enabled: true, threshold, target, samples_min: 1 };
        let auto = objective(Threshold::Auto, 0.99);
        assert_eq!(auto.threshold_us(None, 1.5), None);
        assert_eq!(auto.threshold_us(Some(0), 1.5), None);
        assert_eq!(auto.threshold_us(Some(1_000), 1.5), Some(1_500));
        assert_eq!(objective(Threshold::Set(7), 0.99).threshold_us(Some(1_000), 1.5), Some(7));
        for (good, bad, expect) in
            [(0, 0, false), (99, 1, false), (98, 2, true), (0, 1, true), (100, 0, false)]
        {
            assert_eq!(auto.is_broken(good, bad), expect, "{good} {bad}");
        }
    }

    #[test]
    fn times_for_people() {
        for (us, expect) in [
            (7, "7 us"),
            (1_000, "1.00 ms"),
            (1_234, "1.23 ms"),
            (12_345, "12.3 ms"),
            (123_456, "123 ms"),
            (999_999, "1000 ms"),
            (600_000_000, "600 s"),
        ] {
            assert_eq!(words_us(us), expect);
        }
    }
}
