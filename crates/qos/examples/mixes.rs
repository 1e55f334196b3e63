//! Many seeds of the simulation: `cargo run --release -p stoker-qos --example mixes -- 1000 1`, how many and the first.

#[path = "../tests/twin/mixes.rs"]
mod mixes;
#[path = "../tests/twin/mod.rs"]
mod twin;

#[expect(clippy::print_stdout, reason = "a program that tells what it found")]
fn main() {
    let number = |at| std::env::args().nth(at).and_then(|text| text.parse::<u64>().ok());
    let (count, first) = (number(1).unwrap_or(1_000), number(2).unwrap_or(1));
    println!("{:?}", mixes::two_jobs(1));
    let mut worst = 0.0_f64;
    for seed in first..first + count {
        let jobs = mixes::two_jobs(seed);
        jobs.check(seed);
        worst = worst.max(jobs.first_p99 as f64 / jobs.alone_p99 as f64);
        mixes::mix(seed);
        if seed % 50 == 0 {
            println!("{seed} seeds: P99 at most {worst:.2} times that of alone");
        }
    }
    println!("{count} seeds of two jobs and of mixes: all hold; P99 at most {worst:.2} times that of alone");
}
