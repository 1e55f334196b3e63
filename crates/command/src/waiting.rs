//! Waiting for a node: a limit, and words that say how far it is or why it does not go on. (D100)
//!
//! On a terminal one line is drawn again and again. In a pipe or a log there are plain lines, few of them: one when something
//! moved, and now and then one that says why nothing does.

use std::cell::RefCell;
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use stoker_client::Client;
use stoker_format::VersionId;
use stoker_store::{Key, Store};

use crate::failure::Failure;
use crate::{clock, out, show, span};

/// Between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// How long a look may take before the node counts as silent.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// What is over sooner needs no words.
const FIRST_LINE: Duration = Duration::from_secs(2);
/// Between two lines while something moves.
const LINE_PAUSE: Duration = Duration::from_secs(5);
/// Without a change for this long, something is said about it, and again each time.
const STALLED: Duration = Duration::from_secs(30);

/// How the failure of a wait that was too short begins.
pub const TOO_LATE: &str = "not done after ";

/// How far it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sight {
    /// What is done and what is left.
    pub text: String,
    /// What it waits for, if that is known.
    pub why: Option<String>,
}

/// Works until it is done or the time is up, and tells how far it is. The time being up is a failure with what was seen last.
pub async fn wait<T>(
    work: impl Future<Output = Result<T, Failure>>,
    limit: Option<Duration>,
    quiet: bool,
    mut look: impl AsyncFnMut() -> Result<Sight, Failure>,
) -> Result<T, Failure> {
    let last: RefCell<Option<Sight>> = RefCell::new(None);
    let looking = async {
        let mut teller = Teller::new(quiet, clock::now());
        loop {
            tokio::time::sleep(LOOK_PAUSE).await;
            let sight = match tokio::time::timeout(LOOK_MAX, look()).await {
                Ok(Ok(sight)) => sight,
                Ok(Err(failure)) => unseen(&last, failure.cause()),
                Err(_) => unseen(&last, "the node does not answer"),
            };
            teller.tell(&sight, clock::now());
            *last.borrow_mut() = Some(sight);
        }
    };
    let over = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        done = work => done,
        () = over => Err(too_late(limit.unwrap_or_default(), last.take())),
        () = looking => Err(Failure::new("the wait ended by itself")),
    }
}

/// What was seen last, and why nothing is seen now.
fn unseen(last: &RefCell<Option<Sight>>, why: &str) -> Sight {
    Sight { text: last.borrow().clone().unwrap_or_default().text, why: Some(why.to_owned()) }
}

fn too_late(limit: Duration, last: Option<Sight>) -> Failure {
    let seen = last.map_or_else(String::new, |sight| {
        let why = sight.why.map(|why| format!("; {why}")).unwrap_or_default();
        if sight.text.is_empty() { why } else { format!(": {}{why}", sight.text) }
    });
    Failure::new(format!("{TOO_LATE}{}{seen}", span::exact(limit)))
}

/// Says what is seen, where somebody reads it.
struct Teller {
    bar: Option<ProgressBar>,
    lines: Option<Lines>,
}

impl Teller {
    fn new(quiet: bool, now: Instant) -> Teller {
        let is_drawn = !quiet && stderr().is_terminal();
        let bar = || {
            let style =
                ProgressStyle::with_template("{spinner} {elapsed}  {wide_msg}").expect("a template of ours");
            ProgressBar::new_spinner().with_style(style)
        };
        Teller { bar: is_drawn.then(bar), lines: (!quiet && !is_drawn).then(|| Lines::new(now)) }
    }

    fn tell(&mut self, sight: &Sight, now: Instant) {
        if let Some(bar) = &self.bar {
            let why = sight.why.as_ref().map(|why| format!("  ({why})")).unwrap_or_default();
            bar.set_message(show::name(format!("{}{why}", sight.text).as_bytes()));
            bar.tick();
        }
        if let Some(line) = self.lines.as_mut().and_then(|lines| lines.next(sight, now)) {
            out::say(line);
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Which lines a log gets.
struct Lines {
    begun: Instant,
    text: String,
    /// Since when the text is this one.
    since: Instant,
    said: Option<(String, Instant)>,
}

impl Lines {
    fn new(now: Instant) -> Lines {
        Lines { begun: now, text: String::new(), since: now, said: None }
    }

    fn next(&mut self, sight: &Sight, now: Instant) -> Option<String> {
        if self.text != sight.text {
            (self.text, self.since) = (sight.text.clone(), now);
        }
        let still = now.duration_since(self.since);
        let is_due = match &self.said {
            None => now.duration_since(self.begun) >= FIRST_LINE,
            Some((text, at)) if *text != sight.text => now.duration_since(*at) >= LINE_PAUSE,
            Some((_, at)) => still >= STALLED && now.duration_since(*at) >= STALLED,
        };
        if !is_due {
            return None;
        }
        let stalled = (still >= STALLED).then(|| format!(" for {}", span::human(still.as_millis() as u64)));
        let why = match (&stalled, &sight.why) {
            (Some(_), None) => "; nothing moves, and the node does not say why".to_owned(),
            (_, why) => why.as_ref().map(|why| format!("; {why}")).unwrap_or_default(),
        };
        self.said = Some((sight.text.clone(), now));
        Some(show::name(format!("{}{}{why}", sight.text, stalled.unwrap_or_default()).as_bytes()))
    }
}

/// Why a file is not in the lake yet, or not on its drives: the lake's trouble, or what the node says of the file.
pub async fn why(
    client: &Client,
    volume: &str,
    key: &Key,
    version: Option<VersionId>,
) -> Result<Option<String>, Failure> {
    if let Some(trouble) = client.status().await?.lake_trouble {
        return Ok(Some(format!("the lake does not answer: {trouble}")));
    }
    let explanation = client.explain(volume, key).await?;
    if version.is_some_and(|version| explanation.file.version != version) {
        return Ok(Some("a newer version of the file is there".to_owned()));
    }
    Ok(explanation.words.into_iter().find(|words| !words.starts_with("last slow read")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gets_few_lines_and_the_reason_when_nothing_moves() {
        let begun = clock::now();
        let mut lines = Lines::new(begun);
        let mut at = |ms: u64, text: &str, why: Option<&str>| {
            let sight = Sight { text: text.to_owned(), why: why.map(str::to_owned) };
            lines.next(&sight, begun + Duration::from_millis(ms))
        };
        assert_eq!(at(500, "9 files left", None), None);
        assert_eq!(at(2_000, "8 files left", None).as_deref(), Some("8 files left"));
        assert_eq!(at(3_000, "7 files left", None), None, "not each change");
        assert_eq!(
            at(7_000, "5 files left", Some("the lake is busy")).as_deref(),
            Some("5 files left; the lake is busy")
        );
        assert_eq!(at(30_000, "5 files left", None), None);
        assert_eq!(
            at(37_000, "5 files left", Some("the lake does not answer")).as_deref(),
            Some("5 files left for 30 s; the lake does not answer")
        );
        assert_eq!(at(40_000, "5 files left", None), None);
        assert_eq!(
            at(67_000, "5 files left", None).as_deref(),
            Some("5 files left for 1 m 0 s; nothing moves, and the node does not say why")
        );
        assert_eq!(at(72_000, "no files left", None).as_deref(), Some("no files left"));
    }

    #[test]
    fn the_time_is_up_with_what_was_seen() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let never = std::future::pending::<Result<(), Failure>>();
        let sight = || Sight { text: "1 file left".into(), why: Some("the lake is gone".into()) };
        let done = runtime.block_on(wait(never, Some(Duration::from_secs(60)), true, async || Ok(sight())));
        assert_eq!(done.unwrap_err().cause(), "not done after 60s: 1 file left; the lake is gone");
        let soon = async { Ok::<_, Failure>(7) };
        let done = runtime.block_on(wait(soon, Some(Duration::ZERO), true, async || Ok(sight())));
        assert_eq!(done.unwrap(), 7);
        // A node that does not answer is said to be silent, and the work goes on.
        let late = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok::<_, Failure>(8)
        };
        assert_eq!(
            runtime.block_on(wait(late, None, true, async || std::future::pending().await)).unwrap(),
            8
        );
    }
}
