//! What one workload showed on one catalog, beside the bare database.

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::measure::{Side, median, range};
use crate::out;

/// Both sides; rounds with the same place were run one after the other.
pub struct Finding {
    /// `publish` or `open`.
    pub name: &'static str,
    /// Which catalog.
    pub engine: &'static str,
    /// At once.
    pub clients: u16,
    /// Through the catalog.
    pub stoker: Side,
    /// The database alone.
    pub bare: Side,
    /// Commits that had to be tried again, where that can happen.
    pub conflicts: Option<u64>,
}

impl Finding {
    fn ratios(&self) -> impl Iterator<Item = f64> + '_ {
        self.stoker.0.iter().zip(&self.bare.0).map(|(stoker, bare)| stoker.iops() / bare.iops())
    }

    fn name(&self) -> String {
        format!("{}_{}c", self.name, self.clients)
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let (ratio_min, ratio_max) = range(self.ratios());
        let mut value = json!({
            "name": self.name(),
            "engine": self.engine,
            "clients": self.clients,
            "stoker_ops_s": rounded(self.stoker.iops()),
            "raw_ops_s": rounded(self.bare.iops()),
            "ratio": rounded(median(self.ratios())),
            "ratio_min": rounded(ratio_min),
            "ratio_max": rounded(ratio_max),
            "p50_ms": ms(&self.stoker, 0.5),
            "p99_ms": ms(&self.stoker, 0.99),
            "raw_p50_ms": ms(&self.bare, 0.5),
            "raw_p99_ms": ms(&self.bare, 0.99),
        });
        if let Some(conflicts) = self.conflicts {
            value["conflicts"] = conflicts.into();
        }
        value
    }

    fn row(&self) -> Vec<String> {
        let (min, max) = range(self.ratios());
        let latency = |side: &Side, quantile| format!("{:.2}", side.latency_us(quantile) / 1e3);
        vec![
            self.name(),
            format!("{:.0}", self.stoker.iops()),
            format!("{:.0}", self.bare.iops()),
            format!("{:.2}", median(self.ratios())),
            format!("{min:.2}..{max:.2}"),
            latency(&self.stoker, 0.5),
            latency(&self.stoker, 0.99),
            latency(&self.bare, 0.5),
            latency(&self.bare, 0.99),
            self.engine.into(),
        ]
    }
}

/// Prints the findings for people.
pub fn print(findings: &[Finding]) -> Result<(), Failure> {
    let heads = [
        "workload", "stoker/s", "raw/s", "ratio", "min..max", "p50 ms", "p99 ms", "raw p50", "raw p99",
        "engine",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(findings.iter().map(Finding::row));
    out::table(&rows)
}

fn ms(side: &Side, quantile: f64) -> f64 {
    rounded(side.latency_us(quantile) / 1e3)
}

/// Three decimals, so that JSON stays readable.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
