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
    /// Lines are printed as they come, for a run that does not end.
    is_live: bool,
}

impl Lines {
    fn keep(&mut self, line: String) {
        if self.is_live {
            eprintln!("{line}");
            return;
        }
        if self.last.len() >= self.keep {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }
}

impl Trace {
    /// An empty history that begins now.
    pub fn new() -> Trace {
        // Everything, for whoever looks for the cause.
        let asked = std::env::var_os("STOKER_TRACE");
        let keep = if asked.is_some() { usize::MAX } else { LINES_MAX };
        let is_live = asked.is_some_and(|asked| asked == "live");
        let lines = Lines { began: Instant::now(), hash: 0, count: 0, last: VecDeque::new(), keep, is_live };
        Trace(Arc::new(Mutex::new(lines)))
    }

    /// Something happened.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        let mut lines = self.0.lock().unwrap();
        let line = format!("{:>7} {what}", lines.began.elapsed().as_millis());
        lines.hash = lines.hash.rotate_left(5) ^ stoker_format::crc64(line.as_bytes());
        lines.count += 1;
        lines.keep(line);
    }

    /// Something that only whoever looks for a cause wants to know. Not a part of the history.
    pub fn detail(&self, what: impl FnOnce() -> String) {
        let mut lines = self.0.lock().unwrap();
        if lines.keep == usize::MAX {
            let line = format!("{:>7}     {}", lines.began.elapsed().as_millis(), what());
            lines.keep(line);
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
