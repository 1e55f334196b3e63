//! Several files written or read at the same time, each by a thread with an io_uring of its own.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use super::RawFile;
use crate::measure::Round;
use crate::workload::{Job, Limit};

/// Threads that wait for rounds, one for each file.
pub struct Streams(Vec<Stream>);

struct Stream {
    /// None once it is told to end.
    rounds: Option<Sender<Limit>>,
    done: Receiver<io::Result<Round>>,
    thread: Option<JoinHandle<()>>,
}

impl Streams {
    /// Starts a thread for each file, all with the same load.
    pub fn start(files: &[Arc<RawFile>], job: Job) -> io::Result<Streams> {
        files.iter().map(|file| Stream::start(file.clone(), job)).collect::<io::Result<_>>().map(Streams)
    }

    /// One round of all of them at once. Bytes and operations are those of one stream: what all of them have.
    pub fn round(&mut self, limit: Limit) -> io::Result<Round> {
        for stream in &self.0 {
            let sent = stream.rounds.as_ref().map(|rounds| rounds.send(limit));
            sent.and_then(Result::ok).ok_or_else(ended)?;
        }
        let mut all: Option<Round> = None;
        for stream in &self.0 {
            let round = stream.done.recv().map_err(|_| ended())??;
            all = Some(match all {
                None => round,
                Some(sum) => together(sum, round)?,
            });
        }
        let mut all = all.ok_or_else(ended)?;
        all.bytes /= self.0.len() as u64;
        all.ops /= self.0.len() as u64;
        Ok(all)
    }
}

fn ended() -> io::Error {
    io::Error::other("a bare stream ended")
}

/// Two rounds that ran at the same time. Both saw the CPU time of the whole process.
fn together(a: Round, b: Round) -> io::Result<Round> {
    let mut latency_ns = a.latency_ns;
    latency_ns.add(&b.latency_ns).map_err(io::Error::other)?;
    Ok(Round {
        seconds: a.seconds.max(b.seconds),
        cpu_seconds: a.cpu_seconds.max(b.cpu_seconds),
        bytes: a.bytes + b.bytes,
        ops: a.ops + b.ops,
        latency_ns,
    })
}

impl Stream {
    fn start(file: Arc<RawFile>, job: Job) -> io::Result<Stream> {
        let (rounds, wanted) = mpsc::channel::<Limit>();
        let (tell, done) = mpsc::channel();
        let work = move || match file.queue(&job) {
            Err(error) => drop(tell.send(Err(error))),
            Ok(mut queue) => {
                for limit in wanted {
                    if tell.send(queue.round(limit)).is_err() {
                        return;
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("bare-stream".into()).spawn(work)?;
        Ok(Stream { rounds: Some(rounds), done, thread: Some(thread) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.rounds = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
