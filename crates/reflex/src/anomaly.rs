//! A part that departs from its peers. Median and median deviation, so that a few sick parts do not make themselves the measure.

/// A deviation of a normal distribution, in median deviations.
const DEVIATION: f64 = 1.4826;

/// What is usual among peers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Usual {
    pub median: f64,
    /// Beyond it a value is odd.
    pub limit: f64,
}

/// What is usual, or nothing if there are too few to tell.
pub(crate) fn usual(values: &[u64], peers_min: u32, deviations: f64, ratio_min: f64) -> Option<Usual> {
    if values.len() <= peers_min as usize {
        return None;
    }
    let mut sorted: Vec<f64> = values.iter().map(|value| *value as f64).collect();
    let median = median(&mut sorted);
    let mut off: Vec<f64> = sorted.iter().map(|value| (value - median).abs()).collect();
    let spread = self::median(&mut off) * DEVIATION;
    // Peers that are all alike have no spread; then the ratio alone decides.
    Some(Usual { median, limit: (median + deviations * spread).max(median * ratio_min) })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[half - 1] + values[half]) / 2.0 } else { values[half] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that are odd among these.
    fn check(values: &[u64], expect: &[u64]) {
        let usual = usual(values, 4, 6.0, 2.0);
        let odd: Vec<u64> = values
            .iter()
            .copied()
            .filter(|value| usual.is_some_and(|usual| *value as f64 > usual.limit))
            .collect();
        assert_eq!(odd, expect, "{values:?} {usual:?}");
    }

    #[test]
    fn those_far_away_are_odd() {
        check(&[100, 100, 100, 100, 100], &[]);
        check(&[100, 101, 99, 100, 199], &[]);
        check(&[100, 101, 99, 100, 900], &[900]);
        // A wide spread allows much.
        check(&[100, 200, 300, 400, 500, 1_100], &[]);
        // Two of seven do not hide each other.
        check(&[100, 110, 90, 105, 95, 2_000, 3_000], &[2_000, 3_000]);
        // Most are slow: nobody departs.
        check(&[100, 2_000, 2_100, 1_900, 2_050], &[]);
        check(&[0, 0, 0, 0, 0], &[]);
    }

    #[test]
    fn too_few_say_nothing() {
        check(&[], &[]);
        check(&[1], &[]);
        check(&[100, 100, 100, 90_000], &[]);
    }
}
