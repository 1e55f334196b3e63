//! `stoker logs`: what the programs of a job said, also while they say it.

mod pipe;
mod place;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stoker_client::Client;
use stoker_logs::{Line, Reader, Select, Stream};
use stoker_store::{ErrorKind, JobName, JobState, StoreError};

pub use pipe::{Verb, run as run_pipe};
use place::{Whose, ask, parse_job};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{clock, out, span};

/// Between two looks for more.
const POLL_PAUSE: Duration = Duration::from_millis(500);
/// How often a writer that did not say that it ended may have said nothing when its job is over.
const QUIET_POLLS: u32 = 4;
/// Most lines of `--tail`, and their bytes.
const TAIL_MAX: u64 = 1_000_000;
const TAIL_BYTES_MAX: usize = 256 << 20;

/// Arguments of `logs`.
#[derive(clap::Args)]
pub struct Args {
    /// ID, or TENANT/ID.
    #[arg(value_name = "JOB", value_parser = parse_job, required_unless_present = "from")]
    job: Option<JobName>,
    /// Read `logs/` below this directory instead of the output of a job.
    #[arg(long, value_name = "VOLUME/DIRECTORY", conflicts_with = "job")]
    from: Option<Address>,
    /// Go on while more comes, until the job is over.
    #[arg(short, long)]
    follow: bool,
    /// Only stdout or only stderr.
    #[arg(long, value_parser = Stream::parse)]
    stream: Option<Stream>,
    /// Only of this node.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Only what was said since then: a span of time such as 10m.
    #[arg(long, value_name = "TIME", value_parser = span::parse)]
    since: Option<Duration>,
    /// Only the last lines, and what follows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=TAIL_MAX))]
    tail: Option<u64>,
    /// Only lines with this text in them.
    #[arg(long, value_name = "TEXT")]
    grep: Option<String>,
    /// Say when each line was said.
    #[arg(short, long)]
    timestamps: bool,
    /// Print one line of JSON for each line: time_ms, stream, node, text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Shows logs.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let Some(whose) = Whose::of(args.job.as_ref(), args.from.as_ref()) else {
        return Err(Failure::new("nobody says whose logs").hint("name a job"));
    };
    connect::run(&args.target, async |client| show(args, &whose, client).await)
}

async fn show(args: &Args, whose: &Whose, client: Client) -> Result<ExitCode, Failure> {
    let place = whose.find(&client).await?;
    let since_ms = args.since.map_or(0, |span| clock::unix_ms().saturating_sub(span.as_millis() as u64));
    let select = Select { stream: args.stream, node: args.node.clone(), since_ms };
    let store = Arc::new(client.clone());
    let mut reader = Reader::open(store, place.clone(), select).await?;
    if reader.is_empty() && !args.follow {
        return Err(Failure::new(format!("nothing was logged in {place}"))
            .hint("programs write there through `stoker log pipe --job JOB`"));
    }
    let mut printer = Printer::new(args);
    if let (Some(lines), None) = (args.tail, &args.grep) {
        reader.skip_to_last(lines as usize).await?;
    }
    printer.all(&mut reader).await?;
    if args.follow {
        printer.end_tail()?;
        follow(&client, whose, &mut reader, &mut printer).await?;
    }
    reader.end();
    printer.all(&mut reader).await?;
    printer.end_tail()?;
    Ok(ExitCode::SUCCESS)
}

/// Goes on until the job is over and all of its words were read.
async fn follow(
    client: &Client,
    whose: &Whose,
    reader: &mut Reader,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let (mut quiet, mut is_away) = (0, false);
    loop {
        // Asked first: what was written before the job was over is seen by what follows.
        let step = async {
            let is_over = is_over(client, whose, reader).await?;
            let is_news = reader.refresh().await?;
            Ok::<_, StoreError>((is_over, is_news))
        };
        let (is_over, is_news) = match step.await {
            Ok(found) => found,
            Err(fault) if fault.is_unknown() && fault.kind != ErrorKind::Corrupt => {
                if !is_away {
                    out::say(format!("stoker: {}; trying again", fault.message));
                }
                is_away = true;
                tokio::time::sleep(POLL_PAUSE).await;
                continue;
            }
            Err(fault) => return Err(fault.into()),
        };
        is_away = false;
        printer.all(reader).await?;
        quiet = if is_news { 0 } else { quiet + 1 };
        if is_over && !is_news && (reader.is_ended() || quiet >= QUIET_POLLS) {
            return Ok(());
        }
        if !is_news {
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }
}

/// Whether nobody will say more.
async fn is_over(client: &Client, whose: &Whose, reader: &Reader) -> Result<bool, StoreError> {
    let Some(job) = whose.job() else { return Ok(reader.is_ended()) };
    match ask(client, job).await {
        Ok(job) => Ok(job.state.is_over() || job.state == JobState::Draining),
        // Forgotten since.
        Err(fault) if fault.kind == ErrorKind::NotFound => Ok(true),
        Err(fault) => Err(fault),
    }
}

/// Prints lines, or keeps the last ones until all are known.
struct Printer<'a> {
    args: &'a Args,
    tail: Option<VecDeque<(Stream, String, Line)>>,
    tail_bytes: usize,
}

impl<'a> Printer<'a> {
    fn new(args: &'a Args) -> Printer<'a> {
        Printer { args, tail: args.tail.map(|_| VecDeque::new()), tail_bytes: 0 }
    }

    /// Everything that is there by now.
    async fn all(&mut self, reader: &mut Reader) -> Result<(), Failure> {
        let has_nodes = reader.nodes() > 1;
        while let Some((stream, node, line)) = reader.next().await? {
            if !self.is_wanted(&line) {
                continue;
            }
            match &mut self.tail {
                None => self.print(stream, &node, &line, has_nodes)?,
                Some(tail) => {
                    self.tail_bytes += line.bytes.len();
                    tail.push_back((stream, node, line));
                    while tail.len() as u64 > self.args.tail.unwrap_or(0) || self.tail_bytes > TAIL_BYTES_MAX
                    {
                        let Some((_, _, line)) = tail.pop_front() else { break };
                        self.tail_bytes -= line.bytes.len();
                    }
                }
            }
        }
        Ok(())
    }

    /// The last lines are known: prints them, and what follows as it comes.
    fn end_tail(&mut self) -> Result<(), Failure> {
        let tail = self.tail.take().unwrap_or_default();
        let has_nodes = tail.iter().any(|(_, node, _)| *node != tail[0].1);
        tail.iter().try_for_each(|(stream, node, line)| self.print(*stream, node, line, has_nodes))
    }

    fn is_wanted(&self, line: &Line) -> bool {
        let Some(text) = self.args.grep.as_deref().filter(|text| !text.is_empty()) else { return true };
        line.bytes.windows(text.len()).any(|part| part == text.as_bytes())
    }

    fn print(&self, stream: Stream, node: &str, line: &Line, has_nodes: bool) -> Result<(), Failure> {
        if self.args.json {
            let text = String::from_utf8_lossy(&line.bytes);
            let text = text.trim_end_matches(['\n', '\r']);
            return out::json(&json!({
                "time_ms": line.at_ms,
                "stream": stream.word(),
                "node": node,
                "text": text,
                "is_note": line.is_note,
            }));
        }
        let mut bytes = Vec::with_capacity(line.bytes.len() + 64);
        if self.args.timestamps {
            bytes.extend(format!("{} ", clock::rfc3339(line.at_ms)).bytes());
        }
        if has_nodes {
            bytes.extend(format!("{node} | ").bytes());
        }
        bytes.extend_from_slice(&line.bytes);
        out::bytes(&bytes)
    }
}
