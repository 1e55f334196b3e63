//! What happened in a run, in order: its hash tells whether two runs were the same, its end is printed when one fails.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

/// Lines that are kept for people.
const LINES_MAX: usize = 400;

/// The history of one run.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<Lines>>);

struct Lines {
    began: Instant,
    hash: u64,
    count: u64,
    last: VecDeque<String>,
    keep: usize,
}

impl Trace {
    /// An empty history that begins now.
    pub fn new() -> Trace {
        // Everything, for whoever looks for the cause.
        let keep = if std::env::var_os("STOKER_TRACE").is_some() { usize::MAX } else { LINES_MAX };
        let lines = Lines { began: Instant::now(), hash: 0, count: 0, last: VecDeque::new(), keep };
        Trace(Arc::new(Mutex::new(lines)))
    }

    /// Something happened.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        let mut lines = self.0.lock().unwrap();
        let line = format!("{:>7} {what}", lines.began.elapsed().as_millis());
        lines.hash = lines.hash.rotate_left(5) ^ stoker_format::crc64(line.as_bytes());
        lines.count += 1;
        if lines.last.len() >= lines.keep {
            lines.last.pop_front();
        }
        lines.last.push_back(line);
    }

    /// Something that only whoever looks for a cause wants to know. Not a part of the history.
    pub fn detail(&self, what: impl FnOnce() -> String) {
        let mut lines = self.0.lock().unwrap();
        if lines.keep == usize::MAX {
            let line = format!("{:>7}     {}", lines.began.elapsed().as_millis(), what());
            lines.last.push_back(line);
        }
    }

    /// The same for the same history.
    pub fn hash(&self) -> u64 {
        self.0.lock().unwrap().hash
    }

    /// Number of lines.
    pub fn count(&self) -> u64 {
        self.0.lock().unwrap().count
    }

    /// How long it has lasted, milliseconds of simulated time.
    pub fn now_ms(&self) -> u64 {
        self.0.lock().unwrap().began.elapsed().as_millis() as u64
    }

    /// Its end, for people.
    pub fn tail(&self) -> String {
        let lines = self.0.lock().unwrap();
        lines.last.iter().map(|line| format!("{line}\n")).collect()
    }
}

impl Default for Trace {
    fn default() -> Trace {
        Trace::new()
    }
}
