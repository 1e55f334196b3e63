//! The known name that somebody probably meant.

/// Letters that two names must share for the longer one to be taken for a form of the shorter one.
const STEM_LEN_MIN: usize = 3;

/// The nearest of the known names, if one is near enough to be a slip of the hand or another form of it.
pub fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let is_form = |other: &str| {
        let (short, long) = if name.len() < other.len() { (name, other) } else { (other, name) };
        short.len() >= STEM_LEN_MIN && long.starts_with(short)
    };
    let near = known.into_iter().map(|other| (if is_form(other) { 1 } else { distance(name, other) }, other));
    let allowed = (name.chars().count() / 3).max(2);
    near.filter(|(distance, other)| *distance <= allowed && *distance < other.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other)
}

/// Letters to insert, remove, replace or swap with their neighbour to get from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows = vec![vec![0; to.len() + 1]; from.len() + 1];
    for i in 0..=from.len() {
        for j in 0..=to.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
                    let least = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    let swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
                    if swapped { least.min(rows[i - 2][j - 2] + 1) } else { least }
                }
            };
        }
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_are_recognised() {
        let known = ["listen", "region", "domains", "tls_cert", "tls_key"];
        for (name, expect) in [
            ("listn", Some("listen")),
            ("lisetn", Some("listen")),
            ("tls_crt", Some("tls_cert")),
            ("domain", Some("domains")),
            ("Region", Some("region")),
            ("regional", Some("region")),
            ("tls", Some("tls_cert")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), expect, "{name}");
        }
    }
}
