//! The past of a cluster as figures over time: what a node keeps of its own past, and how those of many nodes become one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Points of an answer.
pub const HISTORY_POINTS_MAX: usize = 720;

/// How far back a node can be asked, milliseconds.
pub const HISTORY_AGE_MS_MAX: u64 = 31 * 86_400_000;

/// How a figure of many nodes, or of many moments, becomes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Combine {
    /// Nodes add up; moments are averaged.
    Sum,
    /// The worst counts.
    Max,
}

/// What is kept over time, in this order; new ones are added at the end.
pub const FIGURES: [(&str, Combine); 25] = [
    ("read_bytes_per_s", Combine::Sum),
    ("write_bytes_per_s", Combine::Sum),
    ("drain_bytes_per_s", Combine::Sum),
    ("lake_read_bytes_per_s", Combine::Sum),
    ("copy_bytes_per_s", Combine::Sum),
    ("requests_per_s", Combine::Sum),
    ("errors_per_s", Combine::Sum),
    ("commits_per_s", Combine::Sum),
    ("read_p99_ms", Combine::Max),
    ("write_p99_ms", Combine::Max),
    ("drain_lag_bytes", Combine::Sum),
    ("drain_lag_s", Combine::Max),
    ("space_bytes", Combine::Sum),
    ("keep_bytes", Combine::Sum),
    ("clean_bytes", Combine::Sum),
    ("lake_requests_per_s", Combine::Sum),
    ("lake_errors_per_s", Combine::Sum),
    ("lake_sent_bytes_per_s", Combine::Sum),
    ("lake_received_bytes_per_s", Combine::Sum),
    ("lake_cost_usd_per_s", Combine::Sum),
    ("s3_connections", Combine::Sum),
    ("nfs_connections", Combine::Sum),
    ("door_connections", Combine::Sum),
    ("cpu_cores", Combine::Sum),
    ("memory_bytes", Combine::Sum),
];

/// Where a figure is in [`FIGURES`].
pub fn figure(name: &str) -> Option<usize> {
    FIGURES.iter().position(|(other, _)| *other == name)
}

/// A moment: one value for each figure, as bits of an `f32`, so that equal is equal. Not a number: nobody knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryPoint {
    /// When it begins, milliseconds since 1970; a multiple of the step.
    pub at_ms: u64,
    /// In the order of [`FIGURES`]; a node of another release may know fewer or more.
    pub bits: Vec<u32>,
}

impl HistoryPoint {
    /// From values in the order of [`FIGURES`].
    pub fn new(at_ms: u64, values: &[f32]) -> HistoryPoint {
        HistoryPoint { at_ms, bits: values.iter().map(|value| value.to_bits()).collect() }
    }

    /// The value of a figure, if it is known and finite.
    pub fn value(&self, figure: usize) -> Option<f64> {
        let value = f32::from_bits(*self.bits.get(figure)?);
        value.is_finite().then_some(f64::from(value))
    }
}

/// A node of a [`History`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryNode {
    /// Its id.
    pub node: String,
    /// Its name.
    pub name: String,
    /// Its newest point; none if it did not answer, or keeps none yet.
    pub latest: Option<HistoryPoint>,
    /// False if it did not answer: its past is not in the points.
    pub answers: bool,
}

/// What was, of one node or of all.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// Time between two points.
    pub every_ms: u64,
    /// Oldest first; moments of which nothing is known are not there.
    pub points: Vec<HistoryPoint>,
    /// Whose past this is.
    pub nodes: Vec<HistoryNode>,
}

/// What somebody wants to know of the past.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HistoryRequest {
    /// The first moment, milliseconds since 1970.
    pub since_ms: u64,
    /// Time between two points.
    pub every_ms: u64,
}

/// Tells the past of a node: finished points, oldest first.
pub type HistorySource = Arc<dyn Fn(HistoryRequest) -> Vec<HistoryPoint> + Send + Sync>;

/// Makes one of moments, in the order of [`FIGURES`]: averages, or the worst.
#[derive(Clone, PartialEq, Debug)]
pub struct Averages {
    sums: [f64; FIGURES.len()],
    counts: [u32; FIGURES.len()],
}

impl Default for Averages {
    fn default() -> Averages {
        Averages { sums: [0.0; FIGURES.len()], counts: [0; FIGURES.len()] }
    }
}

impl Averages {
    /// Takes a value as often as it counts.
    pub fn add(&mut self, figure: usize, value: f64, weight: u32) {
        let (Some((_, combine)), true) = (FIGURES.get(figure), value.is_finite() && weight > 0) else {
            return;
        };
        let (sum, count) = (&mut self.sums[figure], &mut self.counts[figure]);
        *sum = match combine {
            Combine::Sum => *sum + value * f64::from(weight),
            Combine::Max if *count == 0 => value,
            Combine::Max => sum.max(value),
        };
        *count = count.saturating_add(weight);
    }

    /// The values.
    pub fn values(&self) -> [f32; FIGURES.len()] {
        std::array::from_fn(|at| match (self.counts[at], FIGURES[at].1) {
            (0, _) => f32::NAN,
            (count, Combine::Sum) => (self.sums[at] / f64::from(count)) as f32,
            (_, Combine::Max) => self.sums[at] as f32,
        })
    }
}

/// Makes one past of those of many nodes. What only some have told yet, because a moment has just ended, is left out.
pub fn merge(every_ms: u64, parts: Vec<(HistoryNode, Vec<HistoryPoint>)>) -> History {
    let newest = |points: &Vec<HistoryPoint>| points.last().map(|point| point.at_ms);
    let end_ms = parts.iter().filter_map(|(_, points)| newest(points)).max().unwrap_or(0);
    // Who is further behind than one step has stopped telling, and is not waited for.
    let is_current = |at_ms: &u64| at_ms.saturating_add(every_ms) >= end_ms;
    let end_ms =
        parts.iter().filter_map(|(_, points)| newest(points)).filter(is_current).min().unwrap_or(end_ms);
    let mut times = BTreeSet::new();
    let mut by_time: BTreeMap<u64, [(f64, u32); FIGURES.len()]> = BTreeMap::new();
    for point in parts.iter().flat_map(|(_, points)| points).filter(|point| point.at_ms <= end_ms) {
        times.insert(point.at_ms);
        let sums = by_time.entry(point.at_ms).or_insert([(0.0, 0); FIGURES.len()]);
        for (at, (sum, count)) in sums.iter_mut().enumerate() {
            let Some(value) = point.value(at) else { continue };
            *sum = match FIGURES[at].1 {
                Combine::Max if *count > 0 => sum.max(value),
                _ => *sum + value,
            };
            *count += 1;
        }
    }
    let skipped = times.len().saturating_sub(HISTORY_POINTS_MAX);
    let one = |(at_ms, sums): (u64, [(f64, u32); FIGURES.len()])| {
        let values = sums.map(|(sum, count)| if count == 0 { f32::NAN } else { sum as f32 });
        HistoryPoint::new(at_ms, &values)
    };
    let points = by_time.into_iter().skip(skipped).map(one).collect();
    let nodes =
        parts.into_iter().map(|(node, points)| HistoryNode { latest: points.last().cloned(), ..node });
    History { every_ms, points, nodes: nodes.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at_ms: u64, write: f32, p99: f32) -> HistoryPoint {
        let mut values = [f32::NAN; FIGURES.len()];
        (values[figure("write_bytes_per_s").unwrap()], values[figure("write_p99_ms").unwrap()]) =
            (write, p99);
        HistoryPoint::new(at_ms, &values)
    }

    fn node(name: &str, answers: bool) -> HistoryNode {
        HistoryNode { node: name.into(), name: name.into(), latest: None, answers }
    }

    #[test]
    fn rates_add_up_and_the_worst_latency_counts() {
        let (write, p99) = (figure("write_bytes_per_s").unwrap(), figure("write_p99_ms").unwrap());
        let history = merge(
            10,
            vec![
                (node("a", true), vec![point(0, 5.0, 1.0), point(10, 1.0, 9.0), point(20, 2.0, f32::NAN)]),
                // It has not told the last moment yet.
                (node("b", true), vec![point(10, 3.0, 2.0)]),
                (node("c", false), Vec::new()),
            ],
        );
        let told: Vec<_> = history.points.iter().map(|p| (p.at_ms, p.value(write), p.value(p99))).collect();
        assert_eq!(told, [(0, Some(5.0), Some(1.0)), (10, Some(4.0), Some(9.0))]);
        let latest: Vec<_> = history.nodes.iter().map(|node| node.latest.as_ref().map(|p| p.at_ms)).collect();
        assert_eq!((latest, history.nodes[2].answers), (vec![Some(20), Some(10), None], false));
    }

    #[test]
    fn a_node_that_stopped_telling_does_not_hide_the_present() {
        let old = vec![point(0, 1.0, 1.0)];
        let history = merge(10, vec![(node("a", true), old), (node("b", true), vec![point(100, 2.0, 1.0)])]);
        assert_eq!(history.points.iter().map(|point| point.at_ms).collect::<Vec<_>>(), [0, 100]);
    }

    #[test]
    fn moments_are_averaged_by_their_weight() {
        let (write, p99) = (figure("write_bytes_per_s").unwrap(), figure("write_p99_ms").unwrap());
        let mut all = Averages::default();
        all.add(write, 10.0, 3);
        all.add(write, 2.0, 1);
        all.add(write, f64::NAN, 1);
        all.add(p99, 4.0, 1);
        all.add(p99, 2.0, 5);
        all.add(FIGURES.len(), 1.0, 1);
        let values = all.values();
        assert_eq!((values[write], values[p99]), (8.0, 4.0));
        assert!(values[figure("space_bytes").unwrap()].is_nan());
    }
}
