//! What one workload showed: the rounds of each side, the ratio between them, and the bar.

use serde_json::{Value, json};

use super::workload::{Bar, Workload};
use crate::failure::Failure;
use crate::measure::{Round, Side, median, range};
use crate::out;

/// The rounds of one side.
#[derive(Default)]
pub struct Score {
    side: Side,
    server_cpu_s: f64,
}

impl Score {
    /// Adds a round and the CPU time of the servers behind it.
    pub fn note(&mut self, round: Round, server_cpu_s: f64) {
        self.side.0.push(round);
        self.server_cpu_s += server_cpu_s;
    }

    /// CPU time of the servers for one operation.
    fn server_cpu_us(&self) -> f64 {
        let ops: u64 = self.side.0.iter().map(|round| round.ops).sum();
        if ops == 0 { 0.0 } else { self.server_cpu_s * 1e6 / ops as f64 }
    }
}

/// All sides of one workload; rounds with the same place were run one after the other.
pub struct Finding {
    workload: &'static Workload,
    /// The plain directory.
    pub plain: Score,
    /// Stoker.
    pub stoker: Score,
    /// JuiceFS, if it is there.
    pub juicefs: Score,
}

impl Finding {
    /// Without rounds.
    pub fn new(workload: &'static Workload) -> Finding {
        let none = Score::default;
        Finding { workload, plain: none(), stoker: none(), juicefs: none() }
    }

    fn rate_of(&self, round: &Round) -> f64 {
        if self.workload.work.is_in_bytes() { round.mb_s() } else { round.iops() }
    }

    fn rate(&self, score: &Score) -> f64 {
        median(score.side.0.iter().map(|round| self.rate_of(round)))
    }

    /// Middle of the ratios of neighbouring rounds.
    fn ratios<'a>(&'a self, score: &'a Score) -> impl Iterator<Item = f64> + 'a {
        let pairs = score.side.0.iter().zip(&self.plain.side.0);
        pairs.map(|(ours, plain)| self.rate_of(ours) / self.rate_of(plain))
    }

    fn ratio(&self, score: &Score) -> f64 {
        median(self.ratios(score))
    }

    fn passes(&self) -> Option<bool> {
        Some(match self.workload.bar? {
            Bar::Ratio(least) => self.ratio(&self.stoker) >= least,
            Bar::Rate(least) => self.rate(&self.stoker) >= least,
        })
    }

    fn bar(&self) -> String {
        match self.workload.bar {
            Some(Bar::Ratio(least)) => format!("{least} of the plain directory"),
            Some(Bar::Rate(least)) => format!("{} a second", out::count(least as u64)),
            None => String::new(),
        }
    }

    fn unit(&self) -> &'static str {
        if self.workload.work.is_in_bytes() { "mb_s" } else { "ops_s" }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let (min, max) = range(self.ratios(&self.stoker));
        let us = |score: &Score, quantile| rounded(score.side.latency_us(quantile));
        let mut value = json!({
            "name": self.workload.name,
            "unit": self.unit(),
            "plain": rounded(self.rate(&self.plain)),
            "stoker": rounded(self.rate(&self.stoker)),
            "ratio": rounded(self.ratio(&self.stoker)),
            "ratio_min": rounded(min),
            "ratio_max": rounded(max),
            "plain_p50_us": us(&self.plain, 0.5),
            "plain_p99_us": us(&self.plain, 0.99),
            "p50_us": us(&self.stoker, 0.5),
            "p99_us": us(&self.stoker, 0.99),
            "server_cpu_us_per_op": rounded(self.stoker.server_cpu_us()),
            "bar": self.bar(),
            "pass": self.passes(),
        });
        if !self.juicefs.side.0.is_empty() {
            value["juicefs"] = json!({
                "rate": rounded(self.rate(&self.juicefs)),
                "ratio": rounded(self.ratio(&self.juicefs)),
                "p50_us": us(&self.juicefs, 0.5),
                "server_cpu_us_per_op": rounded(self.juicefs.server_cpu_us()),
            });
        }
        value
    }

    fn row(&self) -> Vec<String> {
        let (min, max) = range(self.ratios(&self.stoker));
        let juicefs = match self.juicefs.side.0.is_empty() {
            true => ["-".into(), "-".into()],
            false => {
                [format!("{:.0}", self.rate(&self.juicefs)), format!("{:.2}", self.ratio(&self.juicefs))]
            }
        };
        let verdict = match self.passes() {
            None => "-".into(),
            Some(true) => "ok".into(),
            Some(false) => format!("below: {}", self.bar()),
        };
        let mut row = vec![
            self.workload.name.into(),
            self.unit().replace("_s", "/s").replace("mb", "MB"),
            format!("{:.0}", self.rate(&self.plain)),
            format!("{:.0}", self.rate(&self.stoker)),
            format!("{:.2}", self.ratio(&self.stoker)),
            format!("{min:.2}..{max:.2}"),
            format!("{:.0}", self.stoker.side.latency_us(0.5)),
            format!("{:.0}", self.stoker.side.latency_us(0.99)),
            format!("{:.0}", self.stoker.server_cpu_us()),
        ];
        row.extend(juicefs);
        row.push(verdict);
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
        "unit",
        "plain",
        "stoker",
        "ratio",
        "min..max",
        "p50 us",
        "p99 us",
        "cpu us/op",
        "juicefs",
        "ratio",
        "bars",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(findings.iter().map(Finding::row));
    out::table(&rows)
}
