//! One seed, one history.

use stoker_sim::cell::run_seed;

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 1..=20 {
        let (one, other) = (run_seed(seed).unwrap(), run_seed(seed).unwrap());
        assert_eq!(one, other, "seed {seed}");
    }
}

#[test]
fn another_seed_gives_another_trace() {
    assert_ne!(run_seed(1).unwrap().hash, run_seed(2).unwrap().hash);
}
