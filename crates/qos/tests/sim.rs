//! The scheduler in front of a simulated resource. More seeds: `STOKER_SEEDS=1000 cargo test -p stoker-qos --test sim`, or the example
//! `mixes`, which is faster.

#[path = "twin/mixes.rs"]
mod mixes;
mod twin;

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("STOKER_FIRST").unwrap_or(1);
    first..first + number("STOKER_SEEDS").unwrap_or(default)
}

#[test]
fn a_floor_holds_and_the_rest_is_used() {
    for seed in seeds(3) {
        mixes::two_jobs(seed).check(seed);
    }
}

#[test]
fn whoever_comes_promises_hold_and_nobody_idles() {
    seeds(8).for_each(mixes::mix);
}
