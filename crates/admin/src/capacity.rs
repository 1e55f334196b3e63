//! How full the cluster is, and when it will be full if it goes on as it did.

use serde::Serialize;
use stoker_store::{History, figure};

/// Growth below this share of the space, over all that was measured, is no trend.
const GROWTH_SHARE_MIN: f64 = 0.005;
/// A trend needs so many points.
const POINTS_MIN: usize = 10;
/// Nobody plans further ahead.
const FORECAST_S_MAX: f64 = 365.0 * 86_400.0;

/// Space of all nodes that answer.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Capacity {
    /// What all rings hold at most.
    pub space_bytes: u64,
    /// Bytes that must stay: the lake does not have them.
    pub keep_bytes: u64,
    /// Bytes that may go when room is needed.
    pub clean_bytes: u64,
    /// How fast the bytes that must stay grow; less than nothing if they shrink. None if too little was measured.
    pub fill_bytes_per_s: Option<f64>,
    /// When nothing more can be written, at this rate; none if that is not to be expected.
    pub full_in_s: Option<u64>,
    /// Over what time that was measured.
    pub measured_s: u64,
    /// The same in a sentence.
    pub words: String,
}

/// From the past of all nodes.
pub fn forecast(history: &History) -> Capacity {
    let [Some(space), Some(keep), Some(clean)] = ["space_bytes", "keep_bytes", "clean_bytes"].map(figure)
    else {
        return Capacity::default();
    };
    let known =
        |point: &stoker_store::HistoryPoint| Some((point.at_ms, point.value(space)?, point.value(keep)?));
    let all: Vec<(u64, f64, f64)> = history.points.iter().filter_map(known).collect();
    let Some(&(end_ms, space_now, keep_now)) = all.last() else {
        return Capacity { words: "nothing was measured yet".into(), ..Capacity::default() };
    };
    let clean_now = history.points.iter().rev().find_map(|point| point.value(clean)).unwrap_or(0.0);
    // A drive that came or went changes what is there, which is no trend.
    let is_same = |(_, space, _): &&(u64, f64, f64)| (space - space_now).abs() <= 0.01 * space_now;
    let mut same: Vec<&(u64, f64, f64)> = all.iter().rev().take_while(is_same).collect();
    same.reverse();
    let measured_s = (end_ms - same.first().map_or(end_ms, |(at, ..)| *at)) / 1_000;
    let fill = slope(&same).filter(|_| same.len() >= POINTS_MIN);
    let grows = |rate: &f64| rate * measured_s as f64 > GROWTH_SHARE_MIN * space_now;
    let full_in_s = fill.filter(grows).map(|rate| (space_now - keep_now).max(0.0) / rate);
    let full_in_s = full_in_s.filter(|seconds| *seconds <= FORECAST_S_MAX).map(|seconds| seconds as u64);
    let words = match (fill, full_in_s) {
        (None, _) => "too little was measured for a forecast".to_owned(),
        (_, None) => "at this rate it does not fill up".to_owned(),
        (_, Some(seconds)) => format!("at this rate nothing more fits in {}", span(seconds)),
    };
    Capacity {
        space_bytes: space_now as u64,
        keep_bytes: keep_now as u64,
        clean_bytes: clean_now as u64,
        fill_bytes_per_s: fill,
        full_in_s,
        measured_s,
        words,
    }
}

/// Least squares, bytes per second.
fn slope(points: &[&(u64, f64, f64)]) -> Option<f64> {
    let (begin, ..) = points.first()?;
    let count = points.len() as f64;
    let at = |time: u64| (time - begin) as f64 / 1_000.0;
    let (mean_x, mean_y) =
        points.iter().fold((0.0, 0.0), |(x, y), (time, _, keep)| (x + at(*time) / count, y + keep / count));
    let (mut over, mut under) = (0.0, 0.0);
    for (time, _, keep) in points {
        let x = at(*time) - mean_x;
        over += x * (keep - mean_y);
        under += x * x;
    }
    (under > 0.0).then(|| over / under)
}

/// A time for a person.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_store::{FIGURES, HistoryPoint};

    const SPACE: f64 = 1e12;

    fn history(points: impl IntoIterator<Item = (u64, f64, f64)>) -> History {
        let point = |(at_s, space, keep): (u64, f64, f64)| {
            let mut values = [f32::NAN; FIGURES.len()];
            for (name, value) in [("space_bytes", space), ("keep_bytes", keep), ("clean_bytes", 5.0)] {
                values[figure(name).unwrap()] = value as f32;
            }
            HistoryPoint::new(at_s * 1_000, &values)
        };
        History { every_ms: 300_000, points: points.into_iter().map(point).collect(), nodes: Vec::new() }
    }

    #[test]
    fn a_cluster_that_fills_is_told_when_it_is_full() {
        // A gigabyte each 300 s: 500 of 1000 GB are left.
        let filling = forecast(&history((0..101).map(|at| (at * 300, SPACE, 4e11 + at as f64 * 1e9))));
        let full_in_s = filling.full_in_s.unwrap();
        assert!((149_000..151_000).contains(&full_in_s), "{full_in_s}");
        assert_eq!((filling.space_bytes, filling.measured_s), (SPACE as f32 as u64, 30_000));
        assert_eq!(filling.words, "at this rate nothing more fits in 41 h");
        let full = forecast(&history((0..20).map(|at| (at * 300, SPACE, 8e11 + at as f64 * 2e10))));
        assert_eq!(full.words, "at this rate nothing more fits in 0 s");
    }

    #[test]
    fn no_trend_is_no_forecast() {
        let check = |history: &History, words: &str| {
            let capacity = forecast(history);
            assert_eq!((capacity.full_in_s, capacity.words.as_str()), (None, words));
        };
        check(&history([]), "nothing was measured yet");
        check(
            &history((0..3).map(|at| (at * 300, SPACE, at as f64 * 1e10))),
            "too little was measured for a forecast",
        );
        // What was drained as it came, and what wobbles.
        check(
            &history((0..50).map(|at| (at * 300, SPACE, 9e11 - at as f64 * 1e9))),
            "at this rate it does not fill up",
        );
        check(
            &history((0..50).map(|at| (at * 300, SPACE, 1e11 + (at % 2) as f64 * 1e8))),
            "at this rate it does not fill up",
        );
        // A drive that came with bytes on it is no growth.
        let came =
            (0..50).map(|at| if at < 45 { (at * 300, SPACE / 2.0, 1e11) } else { (at * 300, SPACE, 2e11) });
        check(&history(came), "too little was measured for a forecast");
    }
}
