//! The recent past of a node: rates and latencies, sampled at a steady pace into a bounded ring, so that a plot has a past
//! when somebody opens it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};
use stoker_store::Counter;

/// Points that are kept.
const POINTS_MAX: usize = 450;

/// Operations of the S3 door that a reader waits for, and those that a writer waits for.
const READS: [&str; 1] = ["GetObject"];
const WRITES: [&str; 3] = ["PutObject", "UploadPart", "CompleteMultipartUpload"];

/// What is told at a moment, by name. None: nobody knows, or nothing happened that could be measured.
type Values = Vec<Option<f64>>;

/// Names of the values, in their order.
pub const NAMES: [&str; 32] = [
    "read_bytes_per_s",
    "write_bytes_per_s",
    "drain_bytes_per_s",
    "lake_read_bytes_per_s",
    "copy_bytes_per_s",
    "requests_per_s",
    "errors_per_s",
    "read_p50_ms",
    "read_p99_ms",
    "write_p50_ms",
    "write_p99_ms",
    "commits_one_per_s",
    "commits_two_per_s",
    "commits_three_per_s",
    "commits_lake_per_s",
    "drain_lag_bytes",
    "drain_lag_s",
    "cache_hit_percent",
    "cpu_cores",
    "memory_bytes",
    "commits_per_s",
    "space_bytes",
    "keep_bytes",
    "clean_bytes",
    "lake_requests_per_s",
    "lake_errors_per_s",
    "lake_sent_bytes_per_s",
    "lake_received_bytes_per_s",
    "lake_cost_usd_per_s",
    "s3_connections",
    "nfs_connections",
    "door_connections",
];

/// Counters whose labels do not matter here: they are added up.
const SUMMED: [&str; 9] = [
    "s3_requests_total",
    "ring_bytes",
    "ring_keep_bytes",
    "ring_clean_bytes",
    "lake_requests_total",
    "lake_errors_total",
    "lake_sent_bytes_total",
    "lake_received_bytes_total",
    "lake_cost_usd_total",
];

/// The ring of points.
#[derive(Default)]
pub struct Series {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    last: Option<(u64, Totals)>,
    points: VecDeque<(u64, Values)>,
}

impl Series {
    /// Takes what the node says now; none if it did not answer, which is a gap. Gives the point that this made.
    pub fn add(&self, at_ms: u64, counters: Option<&[Counter]>) -> Option<Vec<Option<f64>>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = counters.map(Totals::of);
        let values = match (&kept.last, &now) {
            (Some((before_ms, before)), Some(now)) if at_ms > *before_ms => {
                now.since(before, (at_ms - before_ms) as f64 / 1_000.0)
            }
            _ => vec![None; NAMES.len()],
        };
        // The first sample has nothing to be compared with.
        let is_first = kept.last.is_none() && kept.points.is_empty();
        kept.last = now.map(|now| (at_ms, now));
        if is_first {
            return None;
        }
        if kept.points.len() == POINTS_MAX {
            kept.points.pop_front();
        }
        kept.points.push_back((at_ms, values.clone()));
        Some(values)
    }

    /// Points behind a time, as one list for each name.
    pub fn after(&self, after_ms: u64) -> Value {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen: Vec<&(u64, Values)> = kept.points.iter().filter(|(at, _)| *at > after_ms).collect();
        let column = |at: usize| -> Vec<Option<f64>> {
            chosen.iter().map(|(_, values)| values[at].map(rounded)).collect()
        };
        let series: Map<String, Value> =
            NAMES.iter().enumerate().map(|(at, name)| ((*name).to_owned(), json!(column(at)))).collect();
        json!({ "at_ms": chosen.iter().map(|(at, _)| *at).collect::<Vec<_>>(), "series": series })
    }
}

/// Counters that are compared with those of the sample before.
#[derive(Default)]
struct Totals {
    sums: BTreeMap<String, f64>,
    read: Latency,
    write: Latency,
}

/// Requests by the bound of the bucket that they fell into, microseconds; buckets hold those below, too.
#[derive(Default)]
struct Latency {
    buckets: BTreeMap<u64, f64>,
    count: f64,
}

impl Totals {
    fn of(counters: &[Counter]) -> Totals {
        let mut totals = Totals::default();
        for counter in counters {
            let label = |name: &str| {
                counter.labels.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value.as_str())
            };
            match counter.name.as_str() {
                "s3_request_seconds_bucket" | "s3_request_seconds_count" => {
                    let operation = label("operation");
                    let latency = match operation {
                        _ if READS.contains(&operation) => &mut totals.read,
                        _ if WRITES.contains(&operation) => &mut totals.write,
                        _ => continue,
                    };
                    match label("le").parse::<f64>() {
                        Ok(bound_s) if bound_s.is_finite() => {
                            *latency.buckets.entry((bound_s * 1e6) as u64).or_default() += counter.value;
                        }
                        _ if counter.name.ends_with("_count") => latency.count += counter.value,
                        _ => {}
                    }
                }
                "s3_requests_total" if label("status") == "5xx" => totals.add("s3_errors", counter.value),
                "commits_total" => totals.add(&format!("commits_{}", label("class")), counter.value),
                _ => {}
            }
            if counter.labels.is_empty() || SUMMED.contains(&counter.name.as_str()) {
                totals.add(&counter.name, counter.value);
            }
        }
        totals
    }

    fn add(&mut self, name: &str, value: f64) {
        *self.sums.entry(name.to_owned()).or_default() += value;
    }

    fn sum(&self, name: &str) -> Option<f64> {
        self.sums.get(name).copied()
    }

    /// The values of a point, in the order of [`NAMES`].
    fn since(&self, before: &Totals, seconds: f64) -> Values {
        let delta = |name: &str| Some((self.sum(name)? - before.sum(name).unwrap_or(0.0)).max(0.0));
        let rate = |name: &str| Some(delta(name)? / seconds);
        let [read, write] = [(&self.read, &before.read), (&self.write, &before.write)]
            .map(|(now, before)| [0.5, 0.99].map(|share| now.quantile_ms(before, share)));
        let cache = || {
            let (hits, misses) = (delta("cache_hits_total")?, delta("cache_misses_total")?);
            (hits + misses > 0.0).then(|| 100.0 * hits / (hits + misses))
        };
        let values = [
            rate("read_bytes_total"),
            rate("publish_bytes_total"),
            rate("drained_bytes_total"),
            rate("lake_read_bytes_total"),
            rate("cell_copy_bytes_total"),
            rate("s3_requests_total").or(Some(0.0)),
            rate("s3_errors").or(Some(0.0)),
            read[0],
            read[1],
            write[0],
            write[1],
            rate("commits_one"),
            rate("commits_two"),
            rate("commits_three"),
            rate("alone_publishes_total"),
            self.sum("drain_lag_bytes"),
            self.sum("drain_lag_seconds"),
            cache(),
            rate("process_cpu_seconds_total"),
            self.sum("process_resident_memory_bytes"),
            rate("publishes_total"),
            self.sum("ring_bytes"),
            self.sum("ring_keep_bytes"),
            self.sum("ring_clean_bytes"),
            rate("lake_requests_total").or(Some(0.0)),
            rate("lake_errors_total").or(Some(0.0)),
            rate("lake_sent_bytes_total").or(Some(0.0)),
            rate("lake_received_bytes_total").or(Some(0.0)),
            rate("lake_cost_usd_total").or(Some(0.0)),
            self.sum("s3_connections").or(Some(0.0)),
            self.sum("nfs_connections").or(Some(0.0)),
            self.sum("door_connections").or(Some(0.0)),
        ];
        values.to_vec()
    }
}

/// Three digits are enough for a plot.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl Latency {
    /// The time within which this share of the requests since `before` was answered, by the buckets that they fell into.
    fn quantile_ms(&self, before: &Latency, share: f64) -> Option<f64> {
        let count = self.count - before.count;
        if count < 1.0 {
            return None;
        }
        let wanted = share * count;
        let (mut below_us, mut below) = (0, 0.0);
        for (bound_us, total) in &self.buckets {
            let within = total - before.buckets.get(bound_us).unwrap_or(&0.0);
            if within >= wanted {
                let part = if within > below { (wanted - below) / (within - below) } else { 1.0 };
                return Some((below_us as f64 + part * (bound_us - below_us) as f64) / 1e3);
            }
            (below_us, below) = (*bound_us, within);
        }
        // Slower than the last bound: at least that.
        Some(below_us as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(name: &str, labels: &[(&str, &str)], value: f64) -> Counter {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Counter { name: name.into(), help: String::new(), labels, value }
    }

    fn last(series: &Series, name: &str) -> Value {
        series.after(0)["series"][name].as_array().unwrap().last().cloned().unwrap_or(Value::Null)
    }

    #[test]
    fn rates_are_differences_over_time() {
        let series = Series::default();
        let sample = |bytes: f64, ones: f64| {
            [
                counter("publish_bytes_total", &[], bytes),
                counter("drain_lag_bytes", &[], 7.0),
                counter("commits_total", &[("class", "one")], ones),
                counter("cache_hits_total", &[], ones),
                counter("cache_misses_total", &[], 3.0 * ones),
            ]
        };
        series.add(1_000, Some(&sample(1e6, 0.0)));
        assert_eq!(series.after(0)["at_ms"], json!([]), "the first sample has nothing before it");
        series.add(3_000, Some(&sample(5e6, 4.0)));
        assert_eq!(last(&series, "write_bytes_per_s"), json!(2e6));
        assert_eq!(last(&series, "commits_one_per_s"), json!(2.0));
        assert_eq!(last(&series, "drain_lag_bytes"), json!(7.0));
        assert_eq!(last(&series, "cache_hit_percent"), json!(25.0));
        assert_eq!(last(&series, "read_p50_ms"), Value::Null);
        // A node that does not answer is a gap, and so is the point behind it.
        series.add(5_000, None);
        assert_eq!(last(&series, "write_bytes_per_s"), Value::Null);
        series.add(7_000, Some(&sample(9e6, 4.0)));
        assert_eq!(last(&series, "write_bytes_per_s"), Value::Null);
        assert_eq!(series.after(3_000)["at_ms"], json!([5_000, 7_000]));
    }

    #[test]
    fn quantiles_come_from_buckets() {
        let sample = |fast: f64, slow: f64| {
            let bucket = |le: &str, value| {
                counter("s3_request_seconds_bucket", &[("operation", "GetObject"), ("le", le)], value)
            };
            [
                bucket("0.001", fast),
                bucket("0.01", fast + slow),
                bucket("+Inf", fast + slow),
                counter("s3_request_seconds_count", &[("operation", "GetObject")], fast + slow),
            ]
        };
        let series = Series::default();
        series.add(1_000, Some(&sample(1_000.0, 0.0)));
        series.add(2_000, Some(&sample(1_000.0, 0.0)));
        assert_eq!(last(&series, "read_p99_ms"), Value::Null, "nothing was read");
        series.add(3_000, Some(&sample(1_050.0, 50.0)));
        assert_eq!(last(&series, "read_p50_ms"), json!(1.0));
        assert_eq!(last(&series, "read_p99_ms"), json!(9.82));
    }

    #[test]
    fn the_past_is_bounded() {
        let series = Series::default();
        for at in 0..POINTS_MAX as u64 + 10 {
            series.add(at * 1_000, Some(&[]));
        }
        assert_eq!(series.after(0)["at_ms"].as_array().unwrap().len(), POINTS_MAX);
    }
}
