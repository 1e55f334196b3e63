//! What `bench ring`, `bench commit` and `bench read` found: one row per workload, against its bars.

use serde_json::{Value, json};

use super::measure::{Side, median, range};
use super::workload::{Bars, RECOVERY};
use crate::failure::Failure;
use crate::out;

/// Both sides of one workload.
pub struct Finding {
    name: &'static str,
    bars: Bars,
    raw: Side,
    ours: Side,
    more: Vec<(&'static str, f64)>,
}

impl Finding {
    /// Rounds of both sides, in pairs.
    pub fn new(name: &'static str, bars: Bars, raw: Side, ours: Side) -> Finding {
        Finding { name, bars, raw, ours, more: Vec::new() }
    }

    /// The same with figures that have no bar; for programs.
    #[must_use]
    pub fn with(mut self, more: impl IntoIterator<Item = (&'static str, f64)>) -> Finding {
        self.more.extend(more);
        self
    }

    fn ratios(&self) -> impl Iterator<Item = f64> + '_ {
        self.raw.0.iter().zip(&self.ours.0).map(|(raw, ours)| ours.mb_s() / raw.mb_s())
    }

    /// Middle of the ratios of neighbouring rounds: what drifts, drifts for both.
    fn ratio(&self) -> f64 {
        median(self.ratios())
    }

    fn latency_ratio(&self, quantile: f64) -> f64 {
        let raw = self.raw.latency_us(quantile);
        if raw > 0.0 { self.ours.latency_us(quantile) / raw } else { 0.0 }
    }

    /// Bars that were missed, in words; `None` if there are no bars.
    fn missed(&self) -> Option<Vec<String>> {
        let Bars { ratio_min, p50_max, p99_max } = self.bars;
        ratio_min.or(p50_max).or(p99_max)?;
        let (ratio, p50, p99) = (self.ratio(), self.latency_ratio(0.5), self.latency_ratio(0.99));
        let low = ratio_min.filter(|&min| ratio < min).map(|min| format!("ratio {ratio:.3} < {min}"));
        let slow = p50_max.filter(|&max| p50 > max).map(|max| format!("p50 {p50:.2}x > {max}x"));
        let late = p99_max.filter(|&max| p99 > max).map(|max| format!("p99 {p99:.2}x > {max}x"));
        Some([low, slow, late].into_iter().flatten().collect())
    }

    fn verdict(&self) -> String {
        if self.name == RECOVERY {
            let bytes = median(self.ours.0.iter().map(|round| round.bytes as f64));
            let ms = self.ours.latency_us(0.5) / 1e3;
            return format!("{ms:.0} ms to open, {:.0} MB read", bytes / 1e6);
        }
        match self.missed() {
            None => "-".into(),
            Some(missed) if missed.is_empty() => "ok".into(),
            Some(missed) => format!("below: {}", missed.join(", ")),
        }
    }

    /// The finding for programs.
    pub fn json(&self) -> Value {
        let (min, max) = range(self.ratios());
        let mut value = json!({
            "name": self.name,
            "raw_mb_s": rounded(self.raw.mb_s()),
            "stoker_mb_s": rounded(self.ours.mb_s()),
            "ratio": rounded(self.ratio()),
            "ratio_min": rounded(min),
            "ratio_max": rounded(max),
            "raw_p50_us": rounded(self.raw.latency_us(0.5)),
            "stoker_p50_us": rounded(self.ours.latency_us(0.5)),
            "raw_p99_us": rounded(self.raw.latency_us(0.99)),
            "stoker_p99_us": rounded(self.ours.latency_us(0.99)),
            "cpu_s_per_gib": rounded(self.ours.cpu_s_per_gib()),
            "raw_cpu_s_per_gib": rounded(self.raw.cpu_s_per_gib()),
        });
        if self.name == RECOVERY {
            value["wall_ms"] = rounded(median(self.ours.0.iter().map(|round| round.seconds * 1e3))).into();
            value["raw_wall_ms"] = rounded(median(self.raw.0.iter().map(|round| round.seconds * 1e3))).into();
            value["bytes_read"] = median(self.ours.0.iter().map(|round| round.bytes as f64)).into();
        }
        for (name, figure) in &self.more {
            value[*name] = rounded(*figure).into();
        }
        value
    }

    fn row(&self) -> Vec<String> {
        let (min, max) = range(self.ratios());
        let us = |side: &Side, quantile| format!("{:.0}", side.latency_us(quantile));
        let times = |quantile| format!("{:.2}", self.latency_ratio(quantile));
        let mut row = vec![
            self.name.into(),
            format!("{:.0}", self.raw.mb_s()),
            format!("{:.0}", self.ours.mb_s()),
            format!("{:.2}", self.ratio()),
            format!("{min:.2}..{max:.2}"),
        ];
        if self.name == RECOVERY {
            // One side is one long operation, the other many short ones: their latencies do not compare.
            row.extend(["", "", "", "", "", ""].map(String::from));
        } else {
            row.extend([us(&self.raw, 0.5), us(&self.ours, 0.5), times(0.5)]);
            row.extend([us(&self.raw, 0.99), us(&self.ours, 0.99), times(0.99)]);
        }
        row.push(format!("{:.2}", self.raw.cpu_s_per_gib()));
        row.push(format!("{:.2}", self.ours.cpu_s_per_gib()));
        row.push(self.verdict());
        row
    }
}

/// Three decimals, so that JSON stays readable.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Prints the findings for people.
pub fn print(findings: &[Finding]) -> Result<(), Failure> {
    let heads = [
        "workload",
        "raw MB/s",
        "stoker MB/s",
        "ratio",
        "min..max",
        "raw p50us",
        "stoker p50",
        "p50x",
        "raw p99us",
        "stoker p99",
        "p99x",
        "raw cpu s/GiB",
        "stoker cpu",
        "bars",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(findings.iter().map(Finding::row));
    out::table(&rows)
}
