//! `stoker top`: how a node and its cluster are, again and again.
//!
//! It must not change anything, nor know more of a node than its door says.

mod cluster;
mod sample;
mod screen;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use stoker_client::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::sample::Sample;
use self::screen::Screen;
use self::view::View;
use stoker_command::connect::{self, Target};
use stoker_command::{outages, show};
use stoker_terminal::failure::Failure;
use stoker_terminal::sys::terminal;
use stoker_terminal::{clock, failure, out, paint, size, span, sys};

/// Columns and rows of a screen that does not tell.
const SCREEN: (usize, usize) = (80, 24);
/// A node that does not answer for so long is shown as silent.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How often the thread that waits for keys looks whether somebody still wants them.
const KEY_PATIENCE_MS: i32 = 200;
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Arguments of `top`.
#[derive(clap::Args)]
pub struct Args {
    /// How often to look, such as 500ms or 5s.
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Print one page, with what was done during one interval, and end. So it is if stdout is no terminal.
    #[arg(long)]
    once: bool,
    /// Print one object per look: at, node, ready, risk, drain, commits_per_s, commits_per_s_by_class, commit_bytes_per_s,
    /// read_bytes_per_s, nodes, drives, volumes, trouble, outages, stale.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = span::parse(text)?;
    if interval < INTERVAL_MIN || interval > Duration::from_secs(3600) {
        return Err("between 100ms and 1h".into());
    }
    Ok(interval)
}

/// Looks until somebody has seen enough.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        let mut node = Node { target: &args.target, client: Some(client) };
        if args.once || (!args.json && !std::io::stdout().is_terminal()) {
            return once(args, &mut node).await;
        }
        match args.json {
            true => stream(args, &mut node).await,
            false => watch(args, &mut node).await,
        }
    })
}

/// The node that is asked, whether or not it answers now.
struct Node<'t> {
    target: &'t Target,
    client: Option<Client>,
}

impl Node<'_> {
    async fn sample(&mut self) -> Sample {
        let ask = async {
            if self.client.is_none() {
                self.client =
                    Some(self.target.connect().await.map_err(|failure| failure.cause().to_owned())?);
            }
            let Some(client) = &self.client else { return Err("there is no connection".to_owned()) };
            Ok(Sample::ask(client).await)
        };
        let sample = match tokio::time::timeout(ANSWER_MAX, ask).await {
            Ok(Ok(sample)) => sample,
            Ok(Err(trouble)) => Sample::of_trouble(trouble),
            Err(_) => Sample::of_trouble(format!("no answer for {} s", ANSWER_MAX.as_secs())),
        };
        if sample.status.is_none() {
            // Perhaps it starts again.
            self.client = None;
        }
        sample
    }
}

async fn once(args: &Args, node: &mut Node<'_>) -> Result<ExitCode, Failure> {
    let before = node.sample().await;
    tokio::time::sleep(args.interval).await;
    let now = node.sample().await;
    let view = View { before: Some(&before), now: &now };
    if args.json {
        out::json(&view.json())?;
    } else {
        let (columns, _) = terminal::size().unwrap_or((usize::MAX, 0));
        view.lines(columns, usize::MAX).iter().try_for_each(out::line)?;
    }
    Ok(if now.status.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn stream(args: &Args, node: &mut Node<'_>) -> Result<ExitCode, Failure> {
    let mut before = None;
    loop {
        let next = Instant::now() + args.interval;
        let now = node.sample().await;
        out::json(&View { before: before.as_ref(), now: &now }.json())?;
        before = Some(now);
        tokio::time::sleep_until(next).await;
    }
}

/// Draws until `q` is pressed. Signals, such as that of Ctrl-C, drop this and with it the screen.
async fn watch(args: &Args, node: &mut Node<'_>) -> Result<ExitCode, Failure> {
    let mut resized = signal(SignalKind::window_change()).map_err(|e| Failure::io("signals", &e))?;
    let screen = Screen::take()?;
    let mut keys = Keys::listen();
    let (mut before, mut now) = (None, None::<Sample>);
    let mut next = Instant::now();
    loop {
        if Instant::now() >= next {
            next = Instant::now() + args.interval;
            let sample = node.sample().await;
            before = now.replace(sample);
        }
        if let Some(now) = &now {
            let (columns, rows) = terminal::size().unwrap_or(SCREEN);
            screen.draw(&View { before: before.as_ref(), now }.lines(columns, rows))?;
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            _ = resized.recv() => {}
            is_over = keys.wait() => if is_over {
                return Ok(ExitCode::SUCCESS);
            },
        }
    }
}

/// Keys of a terminal; without one, nobody presses any.
struct Keys(Option<mpsc::Receiver<Vec<u8>>>);

impl Keys {
    /// Listens on a thread of its own, which ends when nobody listens to it.
    fn listen() -> Keys {
        if !std::io::stdin().is_terminal() {
            return Keys(None);
        }
        let (tell, told) = mpsc::channel(1);
        let listen = move || {
            while let Some(keys) = terminal::wait_for_keys(KEY_PATIENCE_MS) {
                let is_heard =
                    if keys.is_empty() { !tell.is_closed() } else { tell.blocking_send(keys).is_ok() };
                if !is_heard {
                    return;
                }
            }
        };
        Keys(std::thread::Builder::new().name("keys".into()).spawn(listen).ok().map(|_| told))
    }

    /// Waits for keys; true if one of them says to end.
    async fn wait(&mut self) -> bool {
        match &mut self.0 {
            None => std::future::pending().await,
            Some(told) => match told.recv().await {
                // Ctrl-C where it makes no signal, and the end of input.
                Some(keys) => keys.iter().any(|key| matches!(key, b'q' | b'Q' | 3 | 4)),
                None => {
                    self.0 = None;
                    false
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        for text in ["0", "10ms", "2h", "x"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
