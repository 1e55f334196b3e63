//! Promises over many nodes: whether one can be made, and what could be.

use crate::settings::Rate;

/// Parts that a promise is measured in.
const PARTS: u128 = 1_000_000_000;

/// The part of a capacity that a rate is: for large operations the one in bytes counts, for small ones the other. None where nothing is known of
/// what is asked for.
fn part(rate: Rate, capacity: Rate) -> Option<u128> {
    let of = |rate: Option<u64>, all: Option<u64>| match (rate, all) {
        (None, _) => Some(0),
        (Some(_), None | Some(0)) => None,
        (Some(rate), Some(all)) => Some((u128::from(rate) * PARTS).div_ceil(u128::from(all))),
    };
    Some(of(rate.bytes_per_s, capacity.bytes_per_s)?.max(of(rate.ops_per_s, capacity.ops_per_s)?))
}

/// What can be promised beside these floors, of all nodes together.
pub fn left(capacity: Rate, floors: impl IntoIterator<Item = Rate>, promised_percent_max: u32) -> Rate {
    let promised = floors.into_iter().fold(0_u128, |sum, floor| sum + part(floor, capacity).unwrap_or(0));
    let most = PARTS * u128::from(promised_percent_max.min(100)) / 100;
    let parts = most.saturating_sub(promised);
    let of = |all: u64| (u128::from(all) * parts / PARTS) as u64;
    Rate { bytes_per_s: capacity.bytes_per_s.map(of), ops_per_s: capacity.ops_per_s.map(of) }
}

/// Whether a floor can be promised beside others; if not, what can.
pub fn can_promise(
    floor: Rate,
    capacity: Rate,
    floors: impl IntoIterator<Item = Rate>,
    promised_percent_max: u32,
) -> Result<(), Rate> {
    let left = left(capacity, floors, promised_percent_max);
    match (part(floor, capacity), part(left, capacity)) {
        (Some(0), _) => Ok(()),
        (Some(asked), Some(left)) if asked <= left => Ok(()),
        _ => Err(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_cell() {
        let capacity = Rate { bytes_per_s: Some(1_000), ops_per_s: Some(100) };
        assert_eq!(left(capacity, [], 90), Rate { bytes_per_s: Some(900), ops_per_s: Some(90) });
        // A promise in operations takes bytes with it: it is a part of the time.
        let floors = [Rate::bytes(400), Rate::ops(30)];
        assert_eq!(left(capacity, floors, 90), Rate { bytes_per_s: Some(200), ops_per_s: Some(20) });
        assert_eq!(can_promise(Rate::bytes(200), capacity, floors, 90), Ok(()));
        let refused = can_promise(Rate::bytes(201), capacity, floors, 90);
        assert_eq!(refused, Err(Rate { bytes_per_s: Some(200), ops_per_s: Some(20) }));
        assert_eq!(can_promise(Rate::default(), Rate::default(), [], 90), Ok(()), "nothing is always there");
        assert!(can_promise(Rate::bytes(1), Rate::default(), [], 90).is_err(), "nobody knows what there is");
        // More was promised than there is now.
        assert_eq!(
            left(capacity, [Rate::bytes(5_000)], 90),
            Rate { bytes_per_s: Some(0), ops_per_s: Some(0) }
        );
    }
}
