//! What was measured when a node was known to be good: one file in its directory, `gate.json`.
//!
//! A row is the figure of one step for one subject (a drive by its serial number, a way between two nodes, the lake) in
//! one release. [`Better::limit`] of it is what a figure may be before something is wrong; whatever judges latencies of a drive
//! while the node runs takes its limit from the same place.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::daemon::place::{read_small, write_small};
use crate::failure::Failure;

/// The file in a node's directory.
pub const FILE: &str = "gate.json";

/// A figure may be worse than its baseline by this factor.
pub const SLACK: f64 = 1.5;

/// The form of the file that this release writes and reads.
const FORM: u32 = 1;

/// Rows that are kept; the oldest go first.
const ROWS_MAX: usize = 2_000;

/// Which way is better.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// A time.
    Lower,
    /// A rate.
    Higher,
}

impl Better {
    /// The worst figure that still passes.
    pub fn limit(self, baseline: f64) -> f64 {
        match self {
            Better::Lower => baseline * SLACK,
            Better::Higher => baseline / SLACK,
        }
    }

    /// Whether a figure is as good as the limit.
    pub fn holds(self, figure: f64, limit: f64) -> bool {
        match self {
            Better::Lower => figure <= limit,
            Better::Higher => figure >= limit,
        }
    }
}

/// One figure of a node that was known to be good.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Baseline {
    /// The release that was measured.
    pub release: String,
    /// The step, as in the report.
    pub step: String,
    /// What was measured: the serial number of a drive, or its path if it has none; two nodes; the lake.
    pub subject: String,
    /// What came out.
    pub figure: f64,
    /// Its unit.
    pub unit: String,
    /// Which way is better.
    pub better: Better,
    /// It comes from a short run, and is compared with short runs only.
    pub quick: bool,
    /// When it was measured, milliseconds since 1970.
    pub taken_ms: u64,
}

/// All of them.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Baselines {
    form: u32,
    rows: Vec<Baseline>,
}

impl Default for Baselines {
    fn default() -> Baselines {
        Baselines { form: FORM, rows: Vec::new() }
    }
}

impl Baselines {
    /// Reads a file; one that is not there holds nothing.
    pub fn read(path: &Path) -> Result<Baselines, Failure> {
        let Some(text) = read_small(path)? else { return Ok(Baselines::default()) };
        Baselines::parse(&text).map_err(|why| {
            Failure::new(format!("{} holds no baselines: {why}", path.display()))
                .hint("remove it, and record new ones on a node that is known to be good with --record")
        })
    }

    fn parse(text: &str) -> Result<Baselines, String> {
        let read: Baselines = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if read.form != FORM {
            return Err(format!("form {}; this release knows {FORM}", read.form));
        }
        if read.rows.len() > ROWS_MAX {
            return Err(format!("{} rows; at most {ROWS_MAX} are kept", read.rows.len()));
        }
        let is_sound = |row: &Baseline| row.figure.is_finite() && row.figure > 0.0;
        match read.rows.iter().find(|row| !is_sound(row)) {
            Some(row) => {
                Err(format!("{} of {} is {}, which nobody measured", row.step, row.subject, row.figure))
            }
            None => Ok(read),
        }
    }

    /// Writes a file, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Failure::new(format!("{FILE}: {e}")))?;
        let path = std::path::absolute(path).map_err(|e| Failure::io(path.display(), &e))?;
        match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
            (Some(dir), Some(name)) => write_small(dir, name, &text),
            _ => Err(Failure::new(format!("{} is no name for a file", path.display()))),
        }
    }

    /// What a figure is compared with: the baseline of this release, or else the latest of another one.
    pub fn find(&self, release: &str, step: &str, subject: &str, quick: bool) -> Option<&Baseline> {
        let same = |row: &&Baseline| row.step == step && row.subject == subject && row.quick == quick;
        self.rows.iter().filter(same).max_by_key(|row| (row.release == release, row.taken_ms))
    }

    /// Keeps a figure in place of the one of the same release.
    pub fn put(&mut self, row: Baseline) {
        let name = |row: &Baseline| (row.release.clone(), row.step.clone(), row.subject.clone(), row.quick);
        let new = name(&row);
        self.rows.retain(|old| name(old) != new);
        self.rows.push(row);
        if self.rows.len() > ROWS_MAX {
            self.rows.sort_by_key(|row| row.taken_ms);
            self.rows.drain(..self.rows.len() - ROWS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(release: &str, figure: f64, taken_ms: u64) -> Baseline {
        Baseline {
            release: release.into(),
            step: "device_read_4m".into(),
            subject: "S1".into(),
            figure,
            unit: "MB/s".into(),
            better: Better::Higher,
            quick: false,
            taken_ms,
        }
    }

    #[test]
    fn limits_leave_half_as_much_again() {
        assert_eq!((Better::Lower.limit(100.0), Better::Higher.limit(300.0)), (150.0, 200.0));
        for (better, figure, limit, holds) in [
            (Better::Lower, 150.0, 150.0, true),
            (Better::Lower, 150.1, 150.0, false),
            (Better::Higher, 200.0, 200.0, true),
            (Better::Higher, 199.9, 200.0, false),
        ] {
            assert_eq!(better.holds(figure, limit), holds, "{better:?} {figure} {limit}");
        }
    }

    #[test]
    fn a_release_is_compared_with_itself_and_else_with_the_latest_before() {
        let mut all = Baselines::default();
        all.put(row("0.1.0", 100.0, 10));
        all.put(row("0.2.0", 200.0, 20));
        let found = |release| all.find(release, "device_read_4m", "S1", false).map(|row| row.figure);
        assert_eq!((found("0.1.0"), found("0.2.0"), found("0.3.0")), (Some(100.0), Some(200.0), Some(200.0)));
        assert_eq!(all.find("0.1.0", "device_read_4m", "S1", true), None, "short runs have their own");
        assert_eq!(all.find("0.1.0", "device_read_4m", "S2", false), None, "another drive");
        all.put(row("0.1.0", 50.0, 30));
        assert_eq!(all.find("0.1.0", "device_read_4m", "S1", false).map(|row| row.figure), Some(50.0));
        assert_eq!(all.rows.len(), 2);
    }

    #[test]
    fn what_is_kept_is_bounded_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        assert_eq!(Baselines::read(&path).unwrap(), Baselines::default());
        let mut all = Baselines::default();
        for at in 0..ROWS_MAX as u64 + 5 {
            all.put(Baseline { subject: format!("S{at}"), ..row("0.1.0", 1.0, at) });
        }
        assert_eq!(all.rows.len(), ROWS_MAX);
        assert_eq!(all.rows[0].taken_ms, 5, "the oldest went");
        all.write(&path).unwrap();
        assert_eq!(Baselines::read(&path).unwrap(), all);
    }

    #[test]
    fn foreign_bytes_are_refused_with_a_reason() {
        let fields = r#""release":"1","step":"s","subject":"d","unit":"us","better":"lower","quick":false,"taken_ms":1"#;
        let with = |figure: &str| format!(r#"{{"form":1,"rows":[{{{fields},"figure":{figure}}}]}}"#);
        assert!(Baselines::parse(&with("1.5")).is_ok());
        for (text, why) in [
            (String::new(), "EOF"),
            ("[]".into(), ""),
            ("null".into(), ""),
            (r#"{"form":2,"rows":[]}"#.into(), "form 2"),
            (r#"{"form":1}"#.into(), "rows"),
            (r#"{"form":-1,"rows":[]}"#.into(), ""),
            (with("0"), "nobody measured"),
            (with("-3"), "nobody measured"),
            (with("1e999"), ""),
            (with("null"), ""),
            (with("\"fast\""), ""),
            (with("1").replace("lower", "sideways"), "sideways"),
            ("[".repeat(100_000), ""),
        ] {
            let refused = Baselines::parse(&text).unwrap_err();
            assert!(refused.contains(why), "{}: {refused}", &text[..text.len().min(80)]);
        }
    }
}
