//! Windows keep checkpoints apart: a simulation of 32 jobs, of which the example `windows` plays more seeds.

#[path = "../examples/windows/sim.rs"]
mod sim;

use sim::{LAG_S_MAX, Mode, WAIT_MS_MAX, play, quantile};

const SEEDS: u64 = 8;

#[test]
fn a_checkpoint_takes_what_one_alone_takes() {
    let all = |mode| {
        let mut all = sim::Seen::default();
        for seed in 0..SEEDS {
            let seen = play(seed, mode);
            all.stood.extend(seen.stood);
            all.later_s.extend(seen.later_s);
            all.lag_s.extend(seen.lag_s);
        }
        all
    };
    let (mut without, mut with) = (all(Mode::Without), all(Mode::Windows));
    let alone = quantile(&mut with.stood, 990);
    assert!(alone <= 1.3, "P99 of a checkpoint is {alone:.2} times that of one alone");
    let storm = quantile(&mut without.stood, 990);
    assert!(storm > 2.0, "without windows they are in each other's way: {storm:.2}");
    // The bound, and the step in which a window begins.
    let later = quantile(&mut with.later_s, 1_000);
    assert!(later <= WAIT_MS_MAX as f64 / 1_000.0 + 4.0, "{later:.0} s later");
    let lag = quantile(&mut with.lag_s, 1_000);
    assert!(lag <= LAG_S_MAX, "the last byte was in the lake after {lag:.0} s");
}
