//! What windows do for checkpoints: 32 jobs that write for a tenth of their time, with and without.
//!
//! ```text
//! cargo run --release -p stoker-jobs --example windows -- 1000
//! ```

#[path = "sim.rs"]
mod sim;

use sim::{JOBS, LAG_S_MAX, Mode, ROUNDS, Seen, WAIT_MS_MAX, play, quantile};

#[expect(clippy::print_stdout, reason = "a program that tells what it found")]
fn main() {
    let seeds: u64 = std::env::args().nth(1).and_then(|seeds| seeds.parse().ok()).unwrap_or(100);
    println!(
        "{JOBS} jobs, {ROUNDS} checkpoints each, {seeds} seeds, half of them with jobs that began together"
    );
    println!("a checkpoint, against one alone:");
    let modes = [
        (Mode::Without, "without windows"),
        (Mode::Windows, "with windows, trained on until they begin"),
        (Mode::Standing, "with windows, stood still until they begin"),
    ];
    for (mode, name) in modes {
        let mut all = Seen::default();
        for seed in 0..seeds {
            let seen = play(seed, mode);
            all.stood.extend(seen.stood);
            all.later_s.extend(seen.later_s);
            all.lag_s.extend(seen.lag_s);
        }
        let of = |numbers: &mut Vec<f64>| [500, 990, 1_000].map(|permille| quantile(numbers, permille));
        let (stood, later, lag) = (of(&mut all.stood), of(&mut all.later_s), of(&mut all.lag_s));
        println!("{name}:");
        println!("  P50 {:.2}x  P99 {:.2}x  most {:.2}x", stood[0], stood[1], stood[2]);
        println!("  began later by  P50 {:.0} s  P99 {:.0} s  most {:.0} s", later[0], later[1], later[2]);
        println!("  in the lake after  P50 {:.0} s  P99 {:.0} s  most {:.0} s", lag[0], lag[1], lag[2]);
    }
    println!(
        "nobody was to begin later than {} s and a step, nor a drain to wait for others longer than {LAG_S_MAX} s",
        WAIT_MS_MAX / 1_000
    );
}
