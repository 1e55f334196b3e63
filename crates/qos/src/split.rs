//! A promise that holds over many nodes, split by what each of them is asked for.
//!
//! Whoever leads asks the nodes what they see and what they could promise, splits, and tells them: those that get less first, or for a
//! moment more would be promised than there is.

/// What one node sees of a job, in bytes or operations per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    /// What the job asked of it lately, granted or not.
    pub wanted: u64,
    /// What the node could promise to this job, with what it promised it already.
    pub free: u64,
}

/// The nodes cannot promise that much together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsplit {
    /// What they could promise.
    pub free: u64,
}

impl std::fmt::Display for Unsplit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the floor cannot be promised: all nodes together have {} free", self.free)
    }
}

impl std::error::Error for Unsplit {}

/// Of a promise each node gets this part whatever it is asked for, so that the first requests of a job find something there: the
/// eighth of an even share.
const EVEN_PART: u64 = 8;

/// Splits a promise over nodes: what they are asked for decides, and none gets more than it has. The sum is the promise exactly.
pub fn split(total: u64, nodes: &[Demand]) -> Result<Vec<u64>, Unsplit> {
    let free = nodes.iter().fold(0_u64, |sum, node| sum.saturating_add(node.free));
    if total > free {
        return Err(Unsplit { free });
    }
    let count = nodes.len().max(1) as u64;
    let even = total / EVEN_PART / count;
    let mut parts: Vec<u64> = nodes.iter().map(|node| even.min(node.free)).collect();
    // What is wanted first, then what is left to whoever has room: each round fills a node or ends.
    let wants = |node: &Demand, part: u64| node.wanted.min(node.free).saturating_sub(part);
    fill(total, nodes, &mut parts, wants);
    fill(total, nodes, &mut parts, |node, part| match node.wanted {
        0 => 0,
        _ => node.free - part,
    });
    fill(total, nodes, &mut parts, |node, part| node.free - part);
    Ok(parts)
}

/// Gives what is left of the total in proportion to what nodes take, never more than that.
fn fill(total: u64, nodes: &[Demand], parts: &mut [u64], takes: impl Fn(&Demand, u64) -> u64) {
    let left = total - parts.iter().sum::<u64>();
    let room: Vec<u64> = nodes.iter().zip(&*parts).map(|(node, part)| takes(node, *part)).collect();
    let all: u128 = room.iter().map(|room| u128::from(*room)).sum();
    if all == 0 || left == 0 {
        return;
    }
    let give = u128::from(left).min(all);
    let mut given = 0;
    for (part, room) in parts.iter_mut().zip(&room) {
        let more = (u128::from(*room) * give / all) as u64;
        *part += more;
        given += more;
    }
    // What rounding left, one by one.
    let mut rest = give as u64 - given;
    for ((part, room), node) in parts.iter_mut().zip(&room).zip(nodes) {
        let more = rest.min(*room).min(node.free - *part);
        *part += more;
        rest -= more;
    }
}

/// Whether another split is worth telling the nodes: somebody's part would change by more than an eighth of an even one.
pub fn is_worth(old: &[u64], new: &[u64]) -> bool {
    let total: u64 = new.iter().fold(0, |sum, part| sum.saturating_add(*part));
    let least = total / (new.len().max(1) as u64) / EVEN_PART;
    old.len() != new.len() || old.iter().zip(new).any(|(old, new)| old.abs_diff(*new) > least)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(total: u64, nodes: &[(u64, u64)], expect: Result<&[u64], u64>) {
        let nodes: Vec<Demand> = nodes.iter().map(|&(wanted, free)| Demand { wanted, free }).collect();
        let expect = expect.map(<[u64]>::to_vec).map_err(|free| Unsplit { free });
        assert_eq!(split(total, &nodes), expect, "{total} over {nodes:?}");
    }

    #[test]
    fn what_is_wanted_decides() {
        // Nobody asked yet: even, where there is room.
        check(800, &[(0, 1000), (0, 1000)], Ok(&[400, 400]));
        // One node is asked for nearly all.
        check(800, &[(1000, 1000), (0, 1000)], Ok(&[750, 50]));
        check(800, &[(300, 1000), (900, 1000)], Ok(&[210, 590]));
        // It has no room for that.
        check(800, &[(1000, 500), (0, 1000)], Ok(&[500, 300]));
        check(800, &[(1000, 500), (0, 200)], Err(700));
        check(0, &[], Ok(&[]));
        check(1, &[], Err(0));
    }

    #[test]
    fn small_changes_are_not_worth_it() {
        assert!(!is_worth(&[400, 400], &[410, 390]));
        assert!(is_worth(&[400, 400], &[500, 300]));
        assert!(is_worth(&[400], &[200, 200]));
    }

    proptest! {
        #[test]
        fn the_sum_is_the_promise(
            total in 0_u64..10_000,
            nodes in prop::collection::vec((0_u64..5_000, 0_u64..5_000), 0..9),
        ) {
            let nodes: Vec<Demand> = nodes.into_iter().map(|(wanted, free)| Demand { wanted, free }).collect();
            let free: u64 = nodes.iter().map(|node| node.free).sum();
            match split(total, &nodes) {
                Ok(parts) => {
                    prop_assert_eq!(parts.iter().sum::<u64>(), total);
                    prop_assert!(parts.iter().zip(&nodes).all(|(part, node)| *part <= node.free));
                }
                Err(refused) => prop_assert!(total > free && refused.free == free),
            }
        }
    }
}
