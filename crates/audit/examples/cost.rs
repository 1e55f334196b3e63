//! What a line costs: written alone, and durable with as many waiting as there are writers. `cargo run --release -p stoker-audit --example cost [FOLDER]`

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures time, and the result is the output"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use stoker_audit::{Event, Log, LogOptions, OK, SigningKey};

const LINES: usize = 100_000;
const DURABLE_LINES: usize = 200;

fn event(number: usize) -> Event {
    Event {
        principal: "user acme/alice".into(),
        tenant: "acme".into(),
        door: "s3".into(),
        action: "Create".into(),
        path: format!("acme_data/checkpoints/step-1000/shard-{number:05}.pt"),
        bytes: 8 << 20,
        result: OK.into(),
        request_id: format!("{number:016x}"),
        address: "10.0.0.7:41212".into(),
        ..Event::default()
    }
}

fn main() {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = folder.join(format!("audit-cost-{}", std::process::id()));
    let key = SigningKey::of_seed(&[1; 32]).expect("a seed is a key");
    let log = Arc::new(Log::open(LogOptions::new(&folder, "n1", vec![key])).expect("opens"));
    let begun = Instant::now();
    for number in 0..LINES {
        log.append(event(number)).expect("written");
    }
    println!("a line in the file: {:.2} us", begun.elapsed().as_secs_f64() * 1e6 / LINES as f64);
    for writers in [1, 8, 64] {
        let begun = Instant::now();
        let work = |_| {
            let log = Arc::clone(&log);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().expect("starts");
                for number in 0..DURABLE_LINES {
                    runtime
                        .block_on(log.append_now(event(number)).expect("written").wait())
                        .expect("durable");
                }
            })
        };
        let threads: Vec<_> = (0..writers).map(work).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("ends"));
        let each = begun.elapsed().as_secs_f64() * 1e3 / DURABLE_LINES as f64;
        let rate = (writers * DURABLE_LINES) as f64 / begun.elapsed().as_secs_f64();
        println!("a durable line, {writers} writers: {each:.2} ms each, {rate:.0} lines a second");
    }
    log.stop();
    let _ = std::fs::remove_dir_all(&folder);
}
