//! What was measured in the place of what is assumed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stoker_store::{Calibration as DriveCalibration, Measures, Times};

use crate::FORM;
use crate::constants::CONSTANTS;
use crate::spec::{Misfit, nearest};
use crate::value::human;

/// Operations below which a live histogram says nothing.
const OPERATIONS_MIN: u64 = 200;

/// One measured constant.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// In the unit of the constant.
    pub value: f64,
    /// Who measured it, when and how.
    pub from: String,
}

/// Measured constants, as a document.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The form of the document.
    pub form: u32,
    /// When, milliseconds since 1970.
    #[serde(default)]
    pub at_ms: u64,
    /// Where.
    #[serde(default)]
    pub machine: String,
    /// By the names of constants.
    #[serde(default)]
    pub values: BTreeMap<String, Measured>,
}

impl Default for Calibration {
    fn default() -> Calibration {
        Calibration { form: FORM, at_ms: 0, machine: String::new(), values: BTreeMap::new() }
    }
}

impl Calibration {
    /// Reads a document.
    pub fn parse(text: &str) -> Result<Calibration, Vec<Misfit>> {
        let hint = "`stoker plan calibrate` writes one";
        let value: serde_json::Value = serde_json::from_str(text)
            .map_err(|error| vec![Misfit::new("calibration", format!("it is no JSON: {error}"), hint)])?;
        if value.get("form").and_then(serde_json::Value::as_u64) != Some(u64::from(FORM)) {
            let found = value.get("form").map_or_else(|| "none".to_owned(), ToString::to_string);
            let message = format!("form {found}; this release reads form {FORM}");
            return Err(vec![Misfit::new("form", message, "calibrate again with this release")]);
        }
        let read: Calibration = serde_json::from_value(value)
            .map_err(|error| vec![Misfit::new("calibration", error.to_string(), hint)])?;
        let misfits: Vec<Misfit> =
            read.values.iter().filter_map(|(name, one)| misfit(name, one.value)).collect();
        if misfits.is_empty() { Ok(read) } else { Err(misfits) }
    }

    /// A measured value.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.values.get(name).map(|one| one.value)
    }

    /// Takes a measured value, if it is one that can be.
    pub fn take(&mut self, name: &str, value: f64, from: impl Into<String>) {
        if misfit(name, value).is_none() {
            self.values.insert(name.to_owned(), Measured { value, from: from.into() });
        }
    }

    /// The values of another one, which count more.
    pub fn merge(&mut self, other: Calibration) {
        self.values.extend(other.values);
        self.at_ms = self.at_ms.max(other.at_ms);
        if !other.machine.is_empty() {
            self.machine = other.machine;
        }
    }

    /// What nodes measured of themselves: what the gate found of their drives, and their live histograms. Of several drives
    /// the middle one counts.
    pub fn of_measures(nodes: &[Measures], at_ms: u64) -> Calibration {
        let mut calibration = Calibration { at_ms, ..Calibration::default() };
        let facts = || nodes.iter().flat_map(|node| &node.facts.drives);
        let reads: Vec<DriveCalibration> = facts().filter_map(|drive| drive.read).collect();
        let writes: Vec<DriveCalibration> = facts().filter_map(|drive| drive.write).collect();
        let of_gate = |rates: &[DriveCalibration]| format!("gate, {} drives", rates.len());
        let rate = |one: &DriveCalibration| one.bytes_per_s as f64;
        if let Some(value) = middle(reads.iter().map(rate)) {
            calibration.take("drive_read", value, of_gate(&reads));
        }
        if let Some(value) = middle(reads.iter().map(|one| one.small_p99_us as f64 * 1e-6)) {
            calibration.take("drive_latency", value, format!("{} (P99)", of_gate(&reads)));
        }
        if let Some(value) = middle(writes.iter().map(rate)) {
            calibration.take("drive_write", value, of_gate(&writes));
        }
        // Only what the gate did not say: a live drive was seldom asked for all it can.
        let drives: Vec<_> = nodes.iter().flat_map(|node| &node.drives).collect();
        for (name, times) in [
            ("drive_read", drives.iter().map(|drive| &drive.reads).collect::<Vec<_>>()),
            ("drive_write", drives.iter().map(|drive| &drive.writes).collect()),
        ] {
            if calibration.value(name).is_none()
                && let Some(value) = middle(times.iter().filter_map(|times| busy_rate(times)))
            {
                let from = "live counters: bytes by busy time, which is the least that it can do";
                calibration.take(name, value, from);
            }
        }
        calibration
    }
}

/// Which constants a workload of `stoker bench ring` measures.
const WORKLOADS: [(&str, &[(&str, Taken)]); 4] = [
    ("read_4m", &[("drive_read", Taken::Rate), ("read_efficiency", Taken::Ratio)]),
    (
        "append_4m",
        &[
            ("drive_write", Taken::Rate),
            ("write_efficiency", Taken::Ratio),
            ("write_latency_ratio", Taken::P99),
        ],
    ),
    ("read_1m", &[("read_latency_ratio", Taken::P99)]),
    ("read_4k", &[("drive_iops", Taken::Reads4k)]),
];

/// What is taken of a workload.
#[derive(Clone, Copy)]
enum Taken {
    /// Bytes per second of the bare drive.
    Rate,
    /// Stoker's rate by that of the bare drive.
    Ratio,
    /// The same of the P99 latencies.
    P99,
    /// Reads of 4 KiB per second of the bare drive.
    Reads4k,
}

impl Calibration {
    /// What `stoker bench ring --json` found on a drive: the bare drive, and which share of it comes through Stoker.
    pub fn of_bench(text: &str, at_ms: u64) -> Result<Calibration, Vec<Misfit>> {
        let hint = "`stoker bench ring --dir D --json` prints one";
        let wrong = |message: String| vec![Misfit::new("bench", message, hint)];
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| wrong(format!("it is no JSON: {error}")))?;
        let rows = value.get("workloads").and_then(serde_json::Value::as_array);
        let rows = rows.ok_or_else(|| wrong("it has no `workloads`".into()))?;
        let mut calibration = Calibration { at_ms, ..Calibration::default() };
        for row in rows {
            let name = row.get("name").and_then(serde_json::Value::as_str).unwrap_or_default();
            let number = |field: &str| row.get(field).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN);
            let Some((name, all)) = WORKLOADS.iter().find(|(known, _)| *known == name) else { continue };
            for (constant, taken) in *all {
                let value = match taken {
                    Taken::Rate => number("raw_mb_s") * 1e6,
                    Taken::Ratio => number("ratio"),
                    Taken::P99 => number("stoker_p99_us") / number("raw_p99_us"),
                    Taken::Reads4k => number("raw_mb_s") * 1e6 / 4096.0,
                };
                calibration.take(constant, value, format!("bench ring, {name}"));
            }
        }
        if calibration.values.is_empty() {
            let known: Vec<&str> = WORKLOADS.iter().map(|(name, _)| *name).collect();
            return Err(wrong(format!("it measured none of {}", known.join(", "))));
        }
        Ok(calibration)
    }
}

fn misfit(name: &str, value: f64) -> Option<Misfit> {
    let Some(constant) = CONSTANTS.iter().find(|one| one.name == name) else {
        let hint = nearest(name, CONSTANTS.iter().map(|one| one.name));
        let hint = hint
            .map_or_else(|| "see `stoker plan calibrate`".into(), |near| format!("did you mean `{near}`?"));
        return Some(Misfit::new(name, "there is no such constant", &hint));
    };
    if value.is_finite() && (constant.min..=constant.max).contains(&value) {
        return None;
    }
    let range =
        format!("from {} to {}", human(constant.min, constant.unit), human(constant.max, constant.unit));
    Some(Misfit::new(
        name,
        format!("{} is out of range; it is {range}", human(value, constant.unit)),
        constant.words,
    ))
}

fn busy_rate(times: &Times) -> Option<f64> {
    let count: u64 = times.buckets.iter().map(|(_, count)| count).sum();
    let is_enough = count >= OPERATIONS_MIN && times.busy_us > 0 && times.bytes > 0;
    is_enough.then(|| times.bytes as f64 / (times.busy_us as f64 * 1e-6))
}

fn middle(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
