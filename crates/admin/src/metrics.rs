//! Numbers in Prometheus' text format.
//!
//! The numbers come from many places and are made at the moment of the request, so there is no registry: they are put
//! into families here. A scraper rejects a whole answer for one bad line, so a number that would spoil it is left out
//! and counted.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use stoker_store::Counter;

/// How many numbers had to be left out; itself a number in every answer.
const LEFT_OUT: &str = "stoker_metrics_left_out";

/// Labels and value of one line, keyed by the labels as text.
type Samples = BTreeMap<String, f64>;

/// The text of all numbers. Names have their prefix already. `x_bucket` with a label `le` makes a histogram `x`, to
/// which `x_sum` and `x_count` belong; other names that end in `_total` are counters, the rest are gauges.
pub fn exposition(counters: Vec<Counter>) -> String {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut left_out = 0u64;
    let histograms: HashSet<String> = counters.iter().filter_map(histogram_name).map(String::from).collect();
    for counter in counters {
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| counter.name.strip_suffix(suffix))
            .find(|base| histograms.contains(*base));
        let (name, kind) = match base {
            Some(base) => (base.to_string(), Kind::Histogram),
            None if counter.name.ends_with("_total") => (counter.name.clone(), Kind::Counter),
            None => (counter.name.clone(), Kind::Gauge),
        };
        if !is_sound(&counter) {
            left_out += 1;
            continue;
        }
        let family = families.entry(name).or_insert_with(|| Family::new(kind, counter.help.clone()));
        left_out += u64::from(!family.add(kind, counter));
    }
    let help = "Numbers that were left out of this answer, because their name is wrong or taken.";
    let mut own = Family::new(Kind::Gauge, help.into());
    own.plain.insert(String::new(), left_out as f64);
    families.insert(LEFT_OUT.into(), own);
    let mut text = String::new();
    for (name, family) in &families {
        family.write(name, &mut text);
    }
    text
}

/// The histogram that a bucket belongs to.
fn histogram_name(counter: &Counter) -> Option<&str> {
    let has_bound = counter.labels.iter().any(|(name, _)| name == "le");
    counter.name.strip_suffix("_bucket").filter(|_| has_bound)
}

fn is_sound(counter: &Counter) -> bool {
    let word = |name: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        !name.is_empty() && !name.as_bytes()[0].is_ascii_digit() && name.bytes().all(inner)
    };
    let mut names: Vec<&str> = counter.labels.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let is_bound = |(name, value): &(String, String)| name != "le" || bound(value).is_some();
    word(&counter.name)
        && names.iter().all(|name| word(name) && !name.starts_with("__"))
        && names.windows(2).all(|pair| pair[0] != pair[1])
        && counter.labels.iter().all(is_bound)
}

/// The upper bound of a bucket.
fn bound(text: &str) -> Option<f64> {
    if text == "+Inf" {
        Some(f64::INFINITY)
    } else {
        text.parse().ok().filter(|bound: &f64| bound.is_finite())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// All numbers of one name.
struct Family {
    kind: Kind,
    help: String,
    /// Of counters and gauges.
    plain: Samples,
    /// Of histograms, by labels other than `le`.
    series: BTreeMap<String, Series>,
}

/// One histogram.
#[derive(Default)]
struct Series {
    /// In ascending order, cumulative.
    buckets: Vec<(f64, f64)>,
    sum: Option<f64>,
    count: Option<f64>,
}

impl Family {
    fn new(kind: Kind, help: String) -> Family {
        Family { kind, help, plain: BTreeMap::new(), series: BTreeMap::new() }
    }

    /// Takes a number, unless it is there already or the name means something else.
    fn add(&mut self, kind: Kind, counter: Counter) -> bool {
        if self.kind != kind {
            return false;
        }
        if kind != Kind::Histogram {
            let labels = label_text(&counter.labels);
            return self.plain.insert(labels, counter.value).is_none();
        }
        let (bounds, labels): (Vec<_>, Vec<_>) =
            counter.labels.into_iter().partition(|(name, _)| name == "le");
        let series = self.series.entry(label_text(&labels)).or_default();
        if counter.name.ends_with("_sum") {
            return series.sum.replace(counter.value).is_none();
        }
        if counter.name.ends_with("_count") {
            return series.count.replace(counter.value).is_none();
        }
        let Some(upper) = bounds.first().and_then(|(_, value)| bound(value)) else { return false };
        let place = series.buckets.partition_point(|(other, _)| *other < upper);
        if series.buckets.get(place).is_some_and(|(other, _)| *other == upper) {
            return false;
        }
        series.buckets.insert(place, (upper, counter.value));
        true
    }

    fn write(&self, name: &str, text: &mut String) {
        let help = self.help.replace('\\', "\\\\").replace('\n', "\\n");
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in &self.plain {
            line(text, name, labels, *value);
        }
        for (labels, series) in &self.series {
            series.write(name, labels, text);
        }
    }
}

impl Series {
    /// Writes what a histogram must have, also where its source left something out.
    fn write(&self, name: &str, labels: &str, text: &mut String) {
        let last = self.buckets.last().map_or(0.0, |(_, count)| *count);
        let count = self.count.unwrap_or(last).max(last);
        let with_bound = |upper: &str| {
            if labels.is_empty() { format!("le=\"{upper}\"") } else { format!("{labels},le=\"{upper}\"") }
        };
        for (upper, count) in self.buckets.iter().filter(|(upper, _)| upper.is_finite()) {
            line(text, &format!("{name}_bucket"), &with_bound(&number(*upper)), *count);
        }
        line(text, &format!("{name}_bucket"), &with_bound("+Inf"), count);
        line(text, &format!("{name}_sum"), labels, self.sum.unwrap_or(0.0));
        line(text, &format!("{name}_count"), labels, count);
    }
}

fn line(text: &mut String, name: &str, labels: &str, value: f64) {
    let value = number(value);
    let _ = if labels.is_empty() {
        writeln!(text, "{name} {value}")
    } else {
        writeln!(text, "{name}{{{labels}}} {value}")
    };
}

fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    value.to_string()
}

/// Labels as they are written, sorted by name.
fn label_text(labels: &[(String, String)]) -> String {
    let mut labels: Vec<&(String, String)> = labels.iter().collect();
    labels.sort();
    let label = |(name, value): &&(String, String)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    labels.iter().map(label).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(name: &str, labels: &[(&str, &str)], value: f64) -> Counter {
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Counter { name: name.into(), help: format!("About {name}."), labels, value }
    }

    fn check(counters: Vec<Counter>, expect: &str) {
        let text = exposition(counters);
        let (before, own) = text.split_once("# HELP stoker_metrics_left_out").unwrap();
        let left_out = own.lines().last().unwrap().rsplit_once(' ').unwrap().1;
        assert_eq!(format!("{before}left out {left_out}"), expect);
    }

    #[test]
    fn counters_and_gauges() {
        check(
            vec![
                counter("b_bytes", &[], 1.5),
                counter("a_total", &[("op", "put"), ("class", "2xx")], 7.0),
                counter("a_total", &[("op", "get\"\\\n")], 1e18),
                counter("b_bytes", &[("drive", "0")], f64::NAN),
                counter("c", &[], f64::NEG_INFINITY),
            ],
            "# HELP a_total About a_total.\n# TYPE a_total counter\n\
             a_total{class=\"2xx\",op=\"put\"} 7\na_total{op=\"get\\\"\\\\\\n\"} 1000000000000000000\n\
             # HELP b_bytes About b_bytes.\n# TYPE b_bytes gauge\nb_bytes 1.5\nb_bytes{drive=\"0\"} NaN\n\
             # HELP c About c.\n# TYPE c gauge\nc -Inf\nleft out 0",
        );
    }

    #[test]
    fn buckets_become_a_histogram() {
        check(
            vec![
                counter("h_seconds_bucket", &[("le", "+Inf"), ("op", "get")], 9.0),
                counter("h_seconds_bucket", &[("le", "0.5"), ("op", "get")], 4.0),
                counter("h_seconds_bucket", &[("op", "get"), ("le", "0.001")], 2.0),
                counter("h_seconds_sum", &[("op", "get")], 3.25),
                counter("h_seconds_count", &[("op", "get")], 9.0),
                counter("j_bucket", &[("le", "1")], 3.0),
            ],
            "# HELP h_seconds About h_seconds_bucket.\n# TYPE h_seconds histogram\n\
             h_seconds_bucket{op=\"get\",le=\"0.001\"} 2\nh_seconds_bucket{op=\"get\",le=\"0.5\"} 4\n\
             h_seconds_bucket{op=\"get\",le=\"+Inf\"} 9\nh_seconds_sum{op=\"get\"} 3.25\n\
             h_seconds_count{op=\"get\"} 9\n\
             # HELP j About j_bucket.\n# TYPE j histogram\nj_bucket{le=\"1\"} 3\nj_bucket{le=\"+Inf\"} 3\nj_sum 0\n\
             j_count 3\nleft out 0",
        );
    }

    #[test]
    fn a_sum_without_buckets_is_a_gauge() {
        check(
            vec![counter("h_sum", &[], 1.0)],
            "# HELP h_sum About h_sum.\n# TYPE h_sum gauge\nh_sum 1\nleft out 0",
        );
    }

    #[test]
    fn what_would_spoil_the_answer_is_left_out() {
        check(
            vec![
                counter("a", &[], 1.0),
                counter("a", &[], 2.0),
                counter("", &[], 1.0),
                counter("1a", &[], 1.0),
                counter("a b", &[], 1.0),
                counter("d", &[("bad name", "")], 1.0),
                counter("d", &[("__name__", "")], 1.0),
                counter("d", &[("x", "1"), ("x", "2")], 1.0),
                counter("h_bucket", &[("le", "much")], 1.0),
                counter("a_bucket", &[("le", "1")], 1.0),
            ],
            "# HELP a About a.\n# TYPE a gauge\na 2\nleft out 9",
        );
    }
}
