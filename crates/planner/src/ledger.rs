//! The design ledger: what was predicted, what came of it, and how far the two are apart.
//!
//! It is a list of lines that only grows, each a JSON object of at most [`LINE_LEN_MAX`] bytes, so that it fits the notes of a catalog as well as
//! a file. A line is a prediction, or an outcome of one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::plan::Plan;
use crate::spec::Misfit;
use crate::{FORM, Inputs};

/// Bytes of a line; a note of the catalog takes no longer one.
pub const LINE_LEN_MAX: usize = 1_000;
/// Predictions that are read; a ledger of more is cut, and says so.
pub const ENTRIES_MAX: usize = 10_000;
/// Figures of a prediction that are kept: the first ones, which are the most important.
const FIGURES_MAX: usize = 6;

/// A line of the ledger.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line {
    /// Something was predicted.
    Prediction(Prediction),
    /// It happened.
    Outcome(Outcome),
}

/// What was predicted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Prediction {
    /// The form of the line.
    pub form: u32,
    /// By which outcomes name it.
    pub id: String,
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// The kind of plan.
    pub kind: String,
    /// Whose model.
    pub model: String,
    /// For which job, as people call it.
    #[serde(default)]
    pub job: String,
    /// Whether constants were measured.
    #[serde(default)]
    pub calibrated: bool,
    /// Inputs that are not the default.
    #[serde(default)]
    pub inputs: Map<String, Value>,
    /// What was predicted, in base units.
    pub figures: BTreeMap<String, f64>,
}

/// What happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The form of the line.
    pub form: u32,
    /// Of the prediction.
    pub id: String,
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// Who measured.
    #[serde(default)]
    pub from: String,
    /// What was measured, in the units of the prediction.
    pub figures: BTreeMap<String, f64>,
}

/// A prediction with what came of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Entry {
    /// What was predicted.
    pub prediction: Prediction,
    /// What happened, the last word on each figure.
    pub measured: BTreeMap<String, f64>,
    /// When that was, milliseconds since 1970; 0 if it was not.
    pub measured_ms: u64,
}

impl Entry {
    /// Relative errors of the figures that were measured: (predicted - measured) / measured.
    pub fn errors(&self) -> impl Iterator<Item = (&str, f64)> {
        self.measured.iter().filter_map(|(name, measured)| {
            let predicted = self.prediction.figures.get(name)?;
            (*measured != 0.0).then(|| (name.as_str(), (predicted - measured) / measured))
        })
    }
}

/// How far predictions were off.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ErrorSummary {
    /// What is summed up: a kind and a figure, or a month.
    pub of: String,
    /// Predictions that came true or not.
    pub count: usize,
    /// Half were off by no more than this share.
    pub median: f64,
    /// Nine of ten were off by no more than this share.
    pub p90: f64,
    /// The middle of signed errors: above zero, what is predicted is too high.
    pub bias: f64,
}

/// All predictions.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Ledger {
    /// Oldest first.
    pub entries: Vec<Entry>,
    /// Lines that are not understood, with the reason.
    pub skipped: Vec<String>,
}

/// The line of a prediction: its id is made of what it says and when.
pub fn prediction(plan: &Plan, inputs: &Inputs, at_ms: u64, job: &str) -> Result<(String, String), Misfit> {
    let job: String = job.chars().filter(|c| !c.is_control()).take(80).collect();
    let figures = plan.figures.iter().filter(|figure| figure.value.is_finite()).take(FIGURES_MAX);
    let mut made = Prediction {
        form: FORM,
        id: String::new(),
        at_ms,
        kind: plan.kind.to_owned(),
        model: plan.model.to_owned(),
        job,
        calibrated: plan.constants.iter().any(|constant| constant.measured.is_some()),
        inputs: inputs.changed(),
        figures: figures.map(|figure| (figure.name.to_owned(), rounded(figure.value))).collect(),
    };
    let text = serde_json::to_string(&made).unwrap_or_default();
    made.id = format!("{:08x}", fnv(text.as_bytes()) as u32);
    let id = made.id.clone();
    Ok((id, line(&Line::Prediction(made))?))
}

/// The line of an outcome.
pub fn outcome(id: &str, at_ms: u64, from: &str, figures: BTreeMap<String, f64>) -> Result<String, Misfit> {
    if figures.is_empty() || figures.values().any(|value| !value.is_finite()) {
        return Err(Misfit::new(
            "figures",
            "an outcome has at least one finite figure",
            "such as utilization=0.91",
        ));
    }
    let from = from.chars().filter(|c| !c.is_control()).take(80).collect();
    line(&Line::Outcome(Outcome { form: FORM, id: id.to_owned(), at_ms, from, figures }))
}

fn line(line: &Line) -> Result<String, Misfit> {
    let text = serde_json::to_string(line).map_err(|error| Misfit::new("ledger", error.to_string(), ""))?;
    if text.len() > LINE_LEN_MAX {
        let message = format!("a line would have {} bytes; {LINE_LEN_MAX} are kept", text.len());
        return Err(Misfit::new("ledger", message, "leave inputs at their defaults where that is right"));
    }
    Ok(text)
}

/// Six digits are more than any model is right.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Ledger {
    /// Reads lines. What is not understood is told, not dropped in silence.
    pub fn parse(text: &str) -> Ledger {
        let mut ledger = Ledger::default();
        for (number, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            if let Err(why) = ledger.take(text)
                && ledger.skipped.len() < 100
            {
                ledger.skipped.push(format!("line {}: {why}", number + 1));
            }
        }
        ledger
    }

    fn take(&mut self, text: &str) -> Result<(), String> {
        let value: Value = serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
        match value.get("form").and_then(Value::as_u64) {
            Some(form) if form == u64::from(FORM) => {}
            form => return Err(format!("form {form:?}; this release reads {FORM}")),
        }
        match serde_json::from_value(value).map_err(|error| error.to_string())? {
            Line::Prediction(made) => {
                if self.entries.len() >= ENTRIES_MAX {
                    return Err(format!("more than {ENTRIES_MAX} predictions"));
                }
                // The same line may come twice, by an import.
                if !self.entries.iter().any(|entry| entry.prediction.id == made.id) {
                    self.entries.push(Entry { prediction: made, measured: BTreeMap::new(), measured_ms: 0 });
                }
            }
            Line::Outcome(seen) => {
                let entry = self.entries.iter_mut().find(|entry| entry.prediction.id == seen.id);
                let entry = entry.ok_or_else(|| format!("no prediction `{}`", seen.id.escape_debug()))?;
                entry.measured.extend(seen.figures);
                entry.measured_ms = entry.measured_ms.max(seen.at_ms);
            }
        }
        Ok(())
    }

    /// A prediction by its id, or by the beginning of it if that is enough.
    pub fn find(&self, id: &str) -> Option<&Entry> {
        let mut found =
            self.entries.iter().filter(|entry| entry.prediction.id.starts_with(id) && !id.is_empty());
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// Errors by kind and figure.
    pub fn errors(&self) -> Vec<ErrorSummary> {
        self.summed(|entry, figure| format!("{} {figure}", entry.prediction.kind))
    }

    /// Errors by the month in which it was predicted, oldest first.
    pub fn errors_over_time(&self) -> Vec<ErrorSummary> {
        self.summed(|entry, _| month(entry.prediction.at_ms))
    }

    fn summed(&self, of: impl Fn(&Entry, &str) -> String) -> Vec<ErrorSummary> {
        let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for entry in &self.entries {
            for (figure, error) in entry.errors() {
                all.entry(of(entry, figure)).or_default().push(error);
            }
        }
        let sum = |(of, errors): (String, Vec<f64>)| {
            let sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
            ErrorSummary {
                of,
                count: errors.len(),
                median: quantile(&sizes, 0.5),
                p90: quantile(&sizes, 0.9),
                bias: quantile(&errors, 0.5),
            }
        };
        all.into_iter().map(sum).collect()
    }
}

/// The value below which a share of all lies; between two it is in between.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    let at = share.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (values[at.floor() as usize], values[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// `2026-11`, of a time in milliseconds since 1970.
fn month(at_ms: u64) -> String {
    // Days of the civil calendar, by the well-known algorithm that begins years in March.
    let days = (at_ms / 86_400_000) as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{:04}-{month:02}", year_of_era + era * 400 + i64::from(month <= 2))
}

/// The note of a catalog that holds a page of the ledger. A page is full at some sixty KiB; then the next one is begun.
pub fn page(number: u8) -> Option<String> {
    (number < PAGES_MAX).then(|| format!("plan-ledger-{}", char::from(b'a' + number)))
}

/// Pages of a ledger in a catalog: some 1.5 MiB, or three thousand predictions.
pub const PAGES_MAX: u8 = 26;
