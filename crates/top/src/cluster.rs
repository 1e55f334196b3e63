//! The whole cluster in `top`: what all nodes together do now, and the last minutes as small bars.

use stoker_store::{History, figure};

use super::view::mb_s;
use crate::{paint, show, size, span};

/// Points of a line of small bars: ten minutes by ten seconds fit.
const WIDTH: usize = 24;

fn values(history: &History, name: &str) -> Vec<Option<f64>> {
    let Some(at) = figure(name) else { return Vec::new() };
    history.points.iter().map(|point| point.value(at)).collect()
}

/// The lines, with numbers and bars below each other.
pub fn lines(history: &History) -> Vec<String> {
    if history.points.is_empty() {
        return Vec::new();
    }
    let last = |name: &str| values(history, name).last().copied().flatten();
    let line = |title: &str, name: &str, now: String, more: String| {
        let bars = paint::sparkline(&values(history, name), WIDTH);
        format!("{title:<8} {now:>12}  {bars}{more}")
    };
    let away: Vec<String> = history
        .nodes
        .iter()
        .filter(|node| !node.answers)
        .map(|node| show::name(if node.name.is_empty() { &node.node } else { &node.name }.as_bytes()))
        .collect();
    let all = history.nodes.len() - away.len();
    let whose = match away.len() {
        0 => format!("  {}", show::count(all as u64, "node")),
        _ => format!("  {}, without {}", show::count(all as u64, "node"), away.join(", ")),
    };
    let lag = last("drain_lag_bytes").map_or("-".to_owned(), |bytes| size::human(bytes as u64));
    let age = last("drain_lag_s")
        .map_or(String::new(), |age_s| format!("  behind by {}", span::human((age_s * 1e3) as u64)));
    vec![
        line("all read", "read_bytes_per_s", mb_s(last("read_bytes_per_s")), whose),
        line("  write", "write_bytes_per_s", mb_s(last("write_bytes_per_s")), String::new()),
        line("  drain", "drain_bytes_per_s", mb_s(last("drain_bytes_per_s")), String::new()),
        line("  behind", "drain_lag_bytes", lag, age),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_store::{FIGURES, HistoryNode, HistoryPoint};

    #[test]
    fn numbers_and_bars_lie_below_each_other() {
        let point = |at: u64| {
            let mut values = [f32::NAN; FIGURES.len()];
            for (name, value) in
                [("read_bytes_per_s", 2e6 * at as f32), ("drain_lag_bytes", 1024.0), ("drain_lag_s", 5.0)]
            {
                values[figure(name).unwrap()] = value;
            }
            HistoryPoint::new(at * 10_000, &values)
        };
        let node =
            |name: &str, answers| HistoryNode { node: "ab".into(), name: name.into(), latest: None, answers };
        let mut history = History {
            every_ms: 10_000,
            points: Vec::new(),
            nodes: vec![node("a", true), node("b\x1b", false)],
        };
        assert!(lines(&history).is_empty());
        history.points = (0..3).map(point).collect();
        let told = lines(&history);
        assert!(
            told[0].starts_with("all read     4.0 MB/s  ")
                && told[0].ends_with("▁▅█  1 node, without b\\u{1b}"),
            "{told:?}"
        );
        let place =
            |line: &str, what: char| line.chars().collect::<Vec<_>>().iter().rposition(|c| *c == what);
        assert_eq!(place(&told[0], '█'), place(&told[3], '█'), "{told:?}");
        assert!(told[3].ends_with("behind by 5 s"), "{told:?}");
    }
}
