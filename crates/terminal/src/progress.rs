//! Progress of long work on stderr; nothing is drawn if stderr is no terminal or the answer is JSON.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar that is gone from the screen when it is dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar over bytes.
    pub fn over_bytes(total: u64, quiet: bool) -> Progress {
        Progress::with(total, quiet, "{msg:24} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
    }

    /// A bar over equal steps.
    pub fn over_steps(total: u64, quiet: bool) -> Progress {
        Progress::with(total, quiet, "{msg:24} [{bar:30}] {pos}/{len}, {elapsed}, {eta} left")
    }

    fn with(total: u64, quiet: bool, template: &str) -> Progress {
        if quiet || !stderr().is_terminal() {
            return Progress(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template(template).expect("a template of ours");
        let bar = ProgressBar::new(total).with_style(style.progress_chars("=> "));
        // A drawing thread of its own would take time from what is being measured; draw on demand only.
        bar.tick();
        Progress(bar)
    }

    /// Says what is being done.
    pub fn say(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }

    /// Moves on.
    pub fn add(&self, n: u64) {
        self.0.inc(n);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
