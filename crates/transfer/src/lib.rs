//! Many files at once: what is copied, how many at a time, what came of it.
//!
//! A source (a walk here, a listing there) hands over items one by one; a bounded number of tasks works on them. One
//! that fails is remembered and the others go on.
//!
//! It must not know a command: what is copied where is said by who asks.

pub mod download;
pub mod listing;
pub mod local;
pub mod upload;
pub mod walk;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use stoker_command::show;
use stoker_terminal::failure::Failure;
use stoker_terminal::progress::Progress;
use stoker_terminal::{clock, failure, out, progress, size};

/// Files at once if nobody says otherwise.
pub const JOBS_DEFAULT: usize = 8;
/// Items that a source may be ahead.
const AHEAD: usize = 256;
/// Failures that are told one by one.
const FAILURES_TOLD: usize = 20;
/// Failures that are kept to be told.
const FAILURES_KEPT: usize = 1000;

/// How many files at once; for the command line.
pub fn parse_jobs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(jobs @ 1..=256) => Ok(jobs),
        _ => Err("expected a number from 1 to 256".into()),
    }
}

/// True if somebody watches: a bar is drawn, and it is worth asking for totals.
pub fn is_shown() -> bool {
    std::io::stderr().is_terminal()
}

/// What a source hands over: something to do, or why it could not be found.
pub type Item<T> = Result<T, FileError>;

/// A file that could not be copied.
#[derive(Clone, Debug)]
pub struct FileError {
    /// Of the file, as the source calls it.
    pub name: String,
    /// What went wrong.
    pub why: String,
}

impl FileError {
    /// Of a failure.
    pub fn new(name: impl Into<String>, failure: &Failure) -> FileError {
        let why = failure.cause().to_owned();
        FileError { name: name.into(), why }
    }
}

/// A source of items: a task that fills a channel.
pub fn source<T: Send + 'static, F>(make: impl FnOnce(mpsc::Sender<Item<T>>) -> F) -> mpsc::Receiver<Item<T>>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(make(sender));
    receiver
}

/// What came of it.
pub struct Tally {
    begun: Instant,
    /// Files that were copied.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that were not.
    pub failed: u64,
    /// Why, of some of them.
    pub errors: Vec<FileError>,
}

impl Tally {
    fn new() -> Tally {
        Tally { begun: clock::now(), files: 0, bytes: 0, failed: 0, errors: Vec::new() }
    }

    fn fail(&mut self, error: FileError) {
        self.failed += 1;
        if self.errors.len() < FAILURES_KEPT {
            self.errors.push(error);
        }
    }

    /// Says on stderr what was done and what was not; exit code 1 if anything failed.
    pub fn report(&self, verb: &str) -> ExitCode {
        let seconds = clock::now().duration_since(self.begun).as_secs_f64();
        let rate = size::human((self.bytes as f64 / seconds.max(0.001)) as u64);
        out::say(format!(
            "{verb} {}, {} in {seconds:.1} s ({rate}/s)",
            show::count(self.files, "file"),
            size::human(self.bytes),
        ));
        if self.failed == 0 {
            return ExitCode::SUCCESS;
        }
        out::say(format!("stoker: {} failed:", out::count(self.failed)));
        for error in self.errors.iter().take(FAILURES_TOLD) {
            out::say(format!("  {}: {}", error.name, error.why));
        }
        if self.failed > FAILURES_TOLD as u64 {
            out::say(format!("  … and {} more", out::count(self.failed - FAILURES_TOLD as u64)));
        }
        ExitCode::FAILURE
    }
}

/// Works on all items, `jobs` at a time. The work returns how many bytes it moved.
pub async fn run<T, F>(
    mut items: mpsc::Receiver<Item<T>>,
    jobs: usize,
    progress: &Arc<Progress>,
    work: impl Fn(T) -> F,
) -> Result<Tally, Failure>
where
    T: Named + Send + 'static,
    F: Future<Output = Result<u64, Failure>> + Send + 'static,
{
    let mut tally = Tally::new();
    let mut tasks: JoinSet<(String, Result<u64, Failure>)> = JoinSet::new();
    let mut open = true;
    while open || !tasks.is_empty() {
        tokio::select! {
            item = items.recv(), if open && tasks.len() < jobs => match item {
                Some(Ok(item)) => {
                    let name = item.name();
                    progress.say(shortened(&name));
                    let task = work(item);
                    tasks.spawn(async move { (name, task.await) });
                }
                Some(Err(error)) => tally.fail(error),
                None => open = false,
            },
            Some(done) = tasks.join_next() => match done {
                Ok((_, Ok(bytes))) => {
                    tally.files += 1;
                    tally.bytes += bytes;
                }
                Ok((_, Err(Failure::PipeClosed))) => return Err(Failure::PipeClosed),
                Ok((name, Err(failure))) => tally.fail(FileError::new(name, &failure)),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
        }
    }
    Ok(tally)
}

/// Something with a name for people.
pub trait Named {
    /// The name.
    fn name(&self) -> String;
}

/// The end of a name, for a narrow place.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    if count <= 24 {
        name.to_owned()
    } else {
        format!("…{}", name.chars().skip(count - 23).collect::<String>())
    }
}

/// A rate in words, for a single file.
pub fn rate(bytes: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    format!(
        "{} in {seconds:.1} s ({}/s)",
        size::human(bytes),
        size::human((bytes as f64 / seconds.max(0.001)) as u64)
    )
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn names_keep_their_ends() {
        assert_eq!(shortened("a/b.txt"), "a/b.txt");
        assert_eq!(shortened(&"ä".repeat(30)), format!("…{}", "ä".repeat(23)));
    }
}
