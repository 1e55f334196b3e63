//! `stoker log pipe`: what a program says goes into the logs of its job while it says it.
//!
//! A thread reads stdin and knows no network, so that the program is never held up by more than the queue allows. Everything else is
//! tried until it works or the program is over.

use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use stoker_client::Client;
use stoker_logs::{Clock, LogPlace, PipeOptions, PipeReport, Queue, QueueOptions, Stream, check_node_name};
use stoker_store::{ErrorKind, JobName, StoreError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::place::{Whose, parse_job};
use crate::address::Address;
use crate::connect::Target;
use crate::failure::Failure;
use crate::{clock, out, size, span, sys};

/// Bytes that are read from stdin at once.
const READ_LEN: usize = 64 << 10;
/// How long few bytes wait for more.
const FLUSH_AFTER: Duration = Duration::from_secs(1);
/// How long stdin may still have something when a signal came.
const GRACE: Duration = Duration::from_secs(5);
/// Between two tries to find out where logs go.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Smallest and largest queue.
const BUFFER: (u64, u64) = (1 << 20, 4 << 30);
const ZERO: Duration = Duration::ZERO;

/// Subcommands of `log`.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Write what a program says on stdin to the logs of its job, while it runs.
    Pipe(Args),
}

/// Arguments of `log pipe`.
#[derive(clap::Args)]
pub struct Args {
    /// The job: its logs are below its output, in `logs/` [env: STOKER_JOB].
    #[arg(long, value_name = "JOB", value_parser = parse_job)]
    job: Option<JobName>,
    /// Write to `logs/` below this directory instead.
    #[arg(long, value_name = "VOLUME/DIRECTORY")]
    to: Option<Address>,
    /// Which output of the program it is: stdout or stderr.
    #[arg(long, default_value = "stdout", value_parser = Stream::parse)]
    stream: Stream,
    /// The node that the program runs on [default: SLURMD_NODENAME, then the name of this machine].
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Pass everything on to stdout.
    #[arg(long)]
    tee: bool,
    /// How much is kept while the cluster does not answer.
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse_buffer)]
    buffer: u64,
    /// How long the program is held up when that is full, before the oldest output is dropped.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span::parse)]
    stall: Duration,
    /// Hold the program up for as long as it takes, and drop nothing.
    #[arg(long, conflicts_with = "stall")]
    strict: bool,
    /// How long the rest is tried when the program is over.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = span::parse)]
    end: Duration,
    #[command(flatten)]
    target: Target,
}

fn parse_buffer(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    match (BUFFER.0..=BUFFER.1).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("{} to {}", size::human(BUFFER.0), size::human(BUFFER.1))),
    }
}

struct Wall;

impl Clock for Wall {
    fn now_ms(&self) -> u64 {
        clock::unix_ms()
    }
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    let Verb::Pipe(args) = verb;
    let whose = whose(args)?;
    let node = node_name(args)?;
    let queue = Arc::new(Queue::new(QueueOptions {
        bytes_max: args.buffer as usize,
        stall_max: args.stall,
        is_strict: args.strict,
    }));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::io("runtime", &error))?;
    let (of_thread, tee) = (queue.clone(), args.tee);
    // It is not waited for: a read of stdin cannot be called off, and the process ends without it.
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || read_stdin(&of_thread, tee))
        .map_err(|error| Failure::io("a thread for stdin", &error))?;
    let done = runtime.block_on(with_signals(args, whose, node, &queue));
    runtime.shutdown_timeout(Duration::from_millis(500));
    done
}

fn whose(args: &Args) -> Result<Whose, Failure> {
    let said = std::env::var("STOKER_JOB").ok().filter(|job| !job.is_empty());
    let job = match (&args.job, said) {
        (None, Some(job)) if args.to.is_none() => Some(
            JobName::parse(&job).map_err(|fault| Failure::new(format!("STOKER_JOB: {}", fault.message)))?,
        ),
        (job, _) => job.clone(),
    };
    Whose::of(job.as_ref(), args.to.as_ref()).ok_or_else(|| {
        Failure::new("nobody says whose log it is")
            .hint("name the job with --job or STOKER_JOB, or a directory with --to")
    })
}

fn node_name(args: &Args) -> Result<String, Failure> {
    let of_slurm = || std::env::var("SLURMD_NODENAME").ok().filter(|name| !name.is_empty());
    let name = args.node.clone().or_else(of_slurm).unwrap_or_else(sys::host_name);
    check_node_name(&name).map_err(|fault| Failure::from(fault).hint("give one with --node"))?;
    Ok(name)
}

/// Reads until there is nothing more, or nobody wants it.
fn read_stdin(queue: &Queue, tee: bool) {
    let (mut stdin, mut stdout) = (std::io::stdin().lock(), Some(std::io::stdout()).filter(|_| tee));
    let mut bytes = vec![0; READ_LEN];
    let mut is_logged = true;
    loop {
        let read = match stdin.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => &bytes[..read],
            Err(error) if error.kind() == IoErrorKind::Interrupted => continue,
            Err(error) => {
                out::say(format!("stoker: stdin: {error}"));
                break;
            }
        };
        let passed = stdout.as_mut().map(|stdout| stdout.write_all(read).and_then(|()| stdout.flush()));
        if passed.is_some_and(|passed| passed.is_err()) {
            stdout = None;
        }
        // The program goes on if its log does not; a strict one is over by then.
        is_logged = is_logged && queue.push(read, &Wall);
    }
    queue.close();
}

/// Works until the program is over. A signal does not take its last words: those are waited for, for a moment.
async fn with_signals(args: &Args, whose: Whose, node: String, queue: &Queue) -> Result<ExitCode, Failure> {
    let caught = |kind| signal(kind).map_err(|error| Failure::io("signals", &error));
    let (mut interrupt, mut terminate) = (caught(SignalKind::interrupt())?, caught(SignalKind::terminate())?);
    let mut stopped = None;
    let mut work = std::pin::pin!(work(args, whose, node, queue));
    let report = loop {
        let until = stopped.map(|(_, until)| until);
        let grace = async {
            match until {
                Some(until) if !queue.is_closed() => tokio::time::sleep_until(until).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            report = &mut work => break report?,
            number = next(&mut interrupt, &mut terminate) => {
                if stopped.is_some() {
                    return Ok(ExitCode::from(128 + number));
                }
                stopped = Some((number, Instant::now() + GRACE));
            }
            () = grace => queue.close(),
        }
    };
    match (report.dropped, report.fault) {
        (0, None) => Ok(stopped.map_or(ExitCode::SUCCESS, |(number, _)| ExitCode::from(128 + number))),
        (dropped, fault) => {
            let why = fault.map_or_else(|| "the cluster did not answer".to_owned(), |fault| fault.message);
            let cause = format!("{} bytes of the log were not written: {why}", out::count(dropped));
            Err(Failure::new(cause).hint("a larger --buffer bears a longer outage; --strict drops nothing"))
        }
    }
}

async fn next(interrupt: &mut Signal, terminate: &mut Signal) -> u8 {
    tokio::select! {
        _ = interrupt.recv() => libc::SIGINT as u8,
        _ = terminate.recv() => libc::SIGTERM as u8,
    }
}

async fn work(args: &Args, whose: Whose, node: String, queue: &Queue) -> Result<PipeReport, Failure> {
    let (client, place) = match find(args, &whose, queue).await {
        Ok(found) => found,
        Err(failure) => {
            out::say(format!("stoker: the log is not written: {}", failure.cause()));
            queue.give_up();
            // The program does not end because its log does.
            while !args.strict && queue.wait(usize::MAX, ZERO).await {}
            return Err(failure);
        }
    };
    let options = PipeOptions {
        place,
        stream: args.stream,
        node,
        writer: format!("{:x}-{:x}", clock::unix_ns(), std::process::id()),
        job: whose.job().map(|job| job.id.clone()),
        flush_after: FLUSH_AFTER,
        end_max: args.end,
    };
    let mut told = |fault: Option<&StoreError>| match fault {
        Some(fault) => out::say(format!("stoker: the log waits: {}", fault.message)),
        None => out::say("stoker: the log is written again"),
    };
    let report = stoker_logs::pipe(Arc::new(client), queue, &Wall, &options, &mut told).await;
    if let Some(fault) = &report.fault
        && !args.strict
        && !queue.is_closed()
    {
        out::say(format!("stoker: the log ends here: {}", fault.message));
        while queue.wait(usize::MAX, ZERO).await {}
    }
    Ok(PipeReport { dropped: queue.dropped_total(), ..report })
}

/// Connects and finds out where logs go; tries for as long as the program runs, and a while longer.
async fn find(args: &Args, whose: &Whose, queue: &Queue) -> Result<(Client, LogPlace), Failure> {
    let (mut deadline, mut is_told) = (None, false);
    loop {
        let failure = match once(args, whose).await {
            Ok(found) => return Ok(found),
            Err((failure, true)) => return Err(failure),
            Err((failure, false)) => failure,
        };
        if queue.is_closed() && Instant::now() >= *deadline.get_or_insert(Instant::now() + args.end) {
            return Err(failure);
        }
        if !is_told {
            out::say(format!("stoker: the log waits: {}", failure.cause()));
            is_told = true;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// One try; whether there is no sense in another one.
async fn once(args: &Args, whose: &Whose) -> Result<(Client, LogPlace), (Failure, bool)> {
    let client = args.target.connect().await.map_err(|failure| (failure, false))?;
    let place = whose.find(&client).await.map_err(|fault| {
        let is_hopeless = matches!(fault.kind, ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Denied);
        (Failure::from(fault), is_hopeless)
    })?;
    Ok((client, place))
}
