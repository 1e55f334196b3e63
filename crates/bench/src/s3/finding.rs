//! What one workload showed: the rounds of each side, the ratios between them, and the bars.

use serde_json::{Map, Value, json};

use super::load::Tally;
use super::workload::Workload;
use crate::measure::{Round, Side, median, range};

/// The rounds of one server.
#[derive(Default)]
pub struct Score {
    /// The rounds; their CPU time is the client's.
    pub side: Side,
    /// CPU time of the server in all of them.
    server_cpu_s: f64,
    slow_downs: u64,
}

impl Score {
    /// Adds a round.
    pub fn note(&mut self, tally: Tally, server_cpu_s: f64) {
        self.side.0.push(tally.round);
        self.server_cpu_s += server_cpu_s;
        self.slow_downs += tally.slow_downs;
    }

    fn per_op_ms(&self, seconds: f64) -> f64 {
        let ops: u64 = self.side.0.iter().map(|round| round.ops).sum();
        if ops == 0 { 0.0 } else { seconds * 1e3 / ops as f64 }
    }

    /// CPU time of the server for one request.
    pub fn cpu_ms_per_op(&self) -> f64 {
        self.per_op_ms(self.server_cpu_s)
    }

    fn client_cpu_ms_per_op(&self) -> f64 {
        self.per_op_ms(self.side.0.iter().map(|round| round.cpu_seconds).sum())
    }

    fn latency_ms(&self, quantile: f64) -> f64 {
        self.side.latency_us(quantile) / 1e3
    }

    fn bytes(&self) -> u64 {
        self.side.0.iter().map(|round| round.bytes).sum()
    }
}

/// All sides of one workload; rounds with the same place were run one after the other.
pub struct Finding {
    /// What was done.
    pub workload: &'static Workload,
    /// Stoker.
    pub stoker: Score,
    /// nginx, if it is there.
    pub nginx: Option<Score>,
    /// The drive without anything above it, where that says something.
    pub raw: Option<Side>,
    /// Other stores.
    pub peers: Vec<(&'static str, Score)>,
    /// Bytes that went to the lake during Stoker's rounds.
    pub drained_bytes: u64,
}

impl Finding {
    fn ratios<'a>(&'a self, other: &'a Side) -> impl Iterator<Item = f64> + 'a {
        let pairs = self.stoker.side.0.iter().zip(&other.0);
        pairs.map(|(stoker, other): (&Round, &Round)| stoker.mb_s() / other.mb_s())
    }

    /// Throughput against nginx: middle of the ratios of neighbouring rounds, because what drifts, drifts for both.
    pub fn ratio(&self) -> Option<f64> {
        self.nginx.as_ref().map(|nginx| median(self.ratios(&nginx.side)))
    }

    /// Throughput against the bare drive.
    pub fn raw_ratio(&self) -> Option<f64> {
        self.raw.as_ref().map(|raw| median(self.ratios(raw)))
    }

    /// Throughput against a peer.
    pub fn peer_ratio(&self, name: &str) -> Option<f64> {
        let (_, score) = self.peers.iter().find(|(peer, _)| *peer == name)?;
        Some(median(self.ratios(&score.side)))
    }

    /// CPU time per request against nginx.
    pub fn cpu_ratio(&self) -> Option<f64> {
        let nginx = self.nginx.as_ref()?.cpu_ms_per_op();
        (nginx > 0.0).then(|| self.stoker.cpu_ms_per_op() / nginx)
    }

    /// Whether all bars were reached; unknown if there are none or one could not be judged.
    pub fn passes(&self) -> Option<bool> {
        let verdicts: Vec<Option<bool>> = self.workload.bars.iter().map(|bar| bar.is_met(self)).collect();
        if verdicts.contains(&Some(false)) {
            Some(false)
        } else if verdicts.is_empty() || verdicts.contains(&None) {
            None
        } else {
            Some(true)
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let stoker = &self.stoker;
        let (ratio_min, ratio_max) = self.nginx.as_ref().map(|nginx| range(self.ratios(&nginx.side))).unzip();
        let nginx = |value: fn(&Score) -> f64| rounded(self.nginx.as_ref().map(value));
        let peers: Map<String, Value> = self
            .peers
            .iter()
            .map(|(name, score)| {
                let value = json!({
                    "mb_s": rounded(Some(score.side.mb_s())),
                    "ratio": rounded(self.peer_ratio(name)),
                    "cpu_ms_per_op": rounded(Some(score.cpu_ms_per_op())),
                    "p99_ms": rounded(Some(score.latency_ms(0.99))),
                });
                ((*name).into(), value)
            })
            .collect();
        let bars: Vec<String> = self.workload.bars.iter().map(|bar| bar.words()).collect();
        let mut value = json!({
            "name": self.workload.name,
            "object_bytes": self.workload.object_bytes,
            "connections": self.workload.connections,
            "stoker_mb_s": rounded(Some(stoker.side.mb_s())),
            "nginx_mb_s": nginx(|score| score.side.mb_s()),
            "ratio": rounded(self.ratio()),
            "ratio_min": rounded(ratio_min),
            "ratio_max": rounded(ratio_max),
            "stoker_cpu_ms_per_op": rounded(Some(stoker.cpu_ms_per_op())),
            "nginx_cpu_ms_per_op": nginx(Score::cpu_ms_per_op),
            "cpu_ratio": rounded(self.cpu_ratio()),
            "client_cpu_ms_per_op": rounded(Some(stoker.client_cpu_ms_per_op())),
            "p50_ms": rounded(Some(stoker.latency_ms(0.5))),
            "p99_ms": rounded(Some(stoker.latency_ms(0.99))),
            "nginx_p50_ms": nginx(|score| score.latency_ms(0.5)),
            "nginx_p99_ms": nginx(|score| score.latency_ms(0.99)),
            "raw_mb_s": rounded(self.raw.as_ref().map(Side::mb_s)),
            "raw_ratio": rounded(self.raw_ratio()),
            "peers": peers,
            "bar": bars.join(" and "),
            "pass": self.passes(),
        });
        if self.workload.kind == super::workload::Kind::Put {
            value["written_bytes"] = stoker.bytes().into();
            value["drained_bytes"] = self.drained_bytes.into();
            value["slow_downs"] = stoker.slow_downs.into();
        }
        value
    }

    /// For people: the cells of one row, without those of the peers.
    pub fn row(&self) -> Vec<String> {
        let stoker = &self.stoker;
        let whole = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.0}"));
        let fine = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        let spread = self.nginx.as_ref().map_or("-".into(), |nginx| {
            let (min, max) = range(self.ratios(&nginx.side));
            format!("{min:.2}..{max:.2}")
        });
        vec![
            self.workload.name.into(),
            whole(Some(stoker.side.mb_s())),
            whole(self.nginx.as_ref().map(|nginx| nginx.side.mb_s())),
            fine(self.ratio()),
            spread,
            whole(self.raw.as_ref().map(Side::mb_s)),
            fine(self.raw_ratio()),
            fine(Some(stoker.cpu_ms_per_op())),
            fine(self.nginx.as_ref().map(Score::cpu_ms_per_op)),
            fine(Some(stoker.latency_ms(0.5))),
            fine(Some(stoker.latency_ms(0.99))),
        ]
    }

    /// Throughput of a peer, for the table.
    pub fn peer_cell(&self, name: &str) -> String {
        let score = self.peers.iter().find(|(peer, _)| *peer == name);
        score.map_or("-".into(), |(_, score)| format!("{:.0}", score.side.mb_s()))
    }

    /// The verdict in words, with what was drained meanwhile.
    pub fn verdict(&self) -> String {
        let missed: Vec<String> = self
            .workload
            .bars
            .iter()
            .filter(|bar| bar.is_met(self) == Some(false))
            .map(|bar| bar.words())
            .collect();
        let verdict = match self.passes() {
            Some(true) => "ok".into(),
            Some(false) => format!("below: {}", missed.join(", ")),
            None => "-".into(),
        };
        if self.workload.kind != super::workload::Kind::Put {
            return verdict;
        }
        let (written, drained) = (self.stoker.bytes() as f64 / 1e6, self.drained_bytes as f64 / 1e6);
        let slow = match self.stoker.slow_downs {
            0 => String::new(),
            times => format!(", told to slow down {times} times"),
        };
        format!("{verdict}; {written:.0} MB written, {drained:.0} MB drained meanwhile{slow}")
    }
}

/// Three decimals, so that JSON stays readable.
fn rounded(value: Option<f64>) -> Option<f64> {
    value.map(|value| (value * 1e3).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::super::workload::WORKLOADS;
    use super::*;
    use hdrhistogram::Histogram;

    /// One round of a second for each throughput.
    fn score(mb_s: &[u64], cpu_s: f64) -> Score {
        let mut score = Score::default();
        for mb in mb_s {
            let latency_ns = Histogram::new_with_bounds(1, 100_000_000_000, 3).unwrap();
            let round = Round { seconds: 1.0, cpu_seconds: 0.0, bytes: mb * 1_000_000, ops: 100, latency_ns };
            score.note(Tally { round, slow_downs: 0 }, cpu_s);
        }
        score
    }

    fn finding(name: &str, stoker: Score, nginx: Option<Score>, raw: Option<Score>) -> Finding {
        let workload = WORKLOADS.iter().find(|workload| workload.name == name).unwrap();
        let raw = raw.map(|score| score.side);
        Finding { workload, stoker, nginx, raw, peers: Vec::new(), drained_bytes: 0 }
    }

    #[test]
    fn a_bar_is_met_missed_or_unknown() {
        let check = |name, stoker: &[u64], nginx: Option<(&[u64], f64)>, raw: Option<&[u64]>, expect| {
            let nginx = nginx.map(|(mb_s, cpu_s)| score(mb_s, cpu_s));
            let finding = finding(name, score(stoker, 1.0), nginx, raw.map(|mb_s| score(mb_s, 0.0)));
            assert_eq!(finding.passes(), expect, "{name}");
        };
        check("get_8m_c8", &[80, 80], Some((&[100, 100], 0.6)), None, Some(true));
        check("get_8m_c8", &[80, 80], Some((&[100, 100], 0.4)), None, Some(false));
        check("get_8m_c8", &[70, 70], Some((&[100, 100], 0.6)), None, Some(false));
        check("get_8m_c8", &[70, 70], None, None, None);
        check("get_8m_c32", &[1, 1], Some((&[100, 100], 0.6)), None, None);
        check("get_8m_cold", &[85], None, Some(&[100]), Some(true));
        check("get_8m_cold", &[84], None, Some(&[100]), Some(false));
        // No Garage: the second bar is unknown, unless the first is missed.
        check("put_8m_c8", &[160], Some((&[100], 1.0)), Some(&[1000]), None);
        check("put_8m_c8", &[150], Some((&[100], 1.0)), Some(&[1000]), Some(false));
    }

    #[test]
    fn a_peer_counts_by_its_neighbouring_rounds() {
        let mut put =
            finding("put_8m_c8", score(&[100, 200, 400], 1.0), None, Some(score(&[100, 200, 400], 0.0)));
        put.peers.push(("garage", score(&[20, 20, 20], 1.0)));
        assert_eq!(put.peer_ratio("garage"), Some(10.0));
        assert_eq!(put.passes(), Some(true));
        put.peers[0].1 = score(&[20, 50, 100], 1.0);
        assert_eq!(put.passes(), Some(false));
        assert_eq!(put.json()["peers"]["garage"]["ratio"], 4.0);
        assert_eq!(put.json()["pass"], false);
    }
}
