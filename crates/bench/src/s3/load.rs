//! The light client at work: a thread per connection, requests that were prepared before, and a tally of what came back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::connection::{Answer, Connection};
use super::content::Content;
use super::target::Target;
use crate::failure::Failure;
use crate::measure::Round;
use crate::{clock, sys};

/// One in this many bodies is checked, and the first of every connection.
const CHECKED_SHARE: u64 = 16;
/// How long a client that was told to slow down waits.
const SLOW_DOWN_PAUSE: Duration = Duration::from_millis(20);
/// Told to slow down this often without an answer in between, a connection gives up.
const SLOW_DOWNS_MAX: u32 = 500;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read an object.
    Get,
    /// Write an object.
    Put,
    /// Remove an object.
    Delete,
}

impl Verb {
    /// As HTTP spells it.
    pub fn word(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
        }
    }
}

/// Requests for the objects of one group, prepared for one server. Requests are taken in turn, from the first again
/// after the last.
pub struct Load<'a> {
    verb: Verb,
    target: Arc<Target>,
    content: &'a Content,
    group: String,
    object_bytes: usize,
    heads: Vec<Vec<u8>>,
    /// Of the objects, where they are read.
    crcs: Vec<u64>,
    next: AtomicU64,
}

/// When a round ends: after a time or a number of requests, whatever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// No request is begun after this.
    pub seconds: f64,
    /// As many requests at most.
    pub requests: u64,
}

/// A round and what belongs to it.
pub struct Tally {
    /// Time, bytes, requests, latencies. Its CPU time is the client's.
    pub round: Round,
    /// Answers that said to slow down.
    pub slow_downs: u64,
}

impl<'a> Load<'a> {
    /// Prepares and signs a request for each of `count` objects called `group/000000`.
    pub fn new(
        verb: Verb,
        target: Arc<Target>,
        content: &'a Content,
        group: &str,
        object_bytes: usize,
        count: u64,
    ) -> Load<'a> {
        let body_bytes = (verb == Verb::Put).then_some(object_bytes);
        let head = |number| target.head(verb.word(), &format!("{group}/{number:06}"), body_bytes);
        let crcs = if verb == Verb::Get { content.crcs(count, object_bytes) } else { Vec::new() };
        let heads = (0..count).map(head).collect();
        Load {
            verb,
            target,
            content,
            group: group.into(),
            object_bytes,
            heads,
            crcs,
            next: AtomicU64::new(0),
        }
    }

    /// Requests before the first one comes again.
    pub fn count(&self) -> u64 {
        self.heads.len() as u64
    }

    /// How many of the objects were asked for.
    pub fn touched(&self) -> u64 {
        self.next.load(Ordering::Relaxed).min(self.count())
    }

    /// Asks for every object once.
    pub fn pass(&self, connections: usize) -> Result<Tally, Failure> {
        self.round(connections, Until { seconds: f64::INFINITY, requests: self.count() })
    }

    /// Keeps that many connections busy. They are new ones: a server that dealt them out badly gets another chance in
    /// the next round.
    pub fn round(&self, connections: usize, until: Until) -> Result<Tally, Failure> {
        let last = self.next.load(Ordering::Relaxed) + until.requests;
        let opened: Result<Vec<Connection>, _> =
            (0..connections).map(|_| Connection::open(self.target.address())).collect();
        let opened = opened.map_err(|e| Failure::io(self.target.address(), &e))?;
        let (start, stop) = (Barrier::new(connections + 1), AtomicBool::new(false));
        let cpu_before = sys::cpu_seconds();
        let (parts, seconds) = thread::scope(|scope| {
            let workers: Vec<_> = opened
                .into_iter()
                .map(|connection| {
                    let worker = Worker { load: self, connection, last, until, stop: &stop };
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        worker.run()
                    })
                })
                .collect();
            start.wait();
            let started = clock::now();
            let parts: Vec<_> =
                workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect();
            (parts, started.elapsed().as_secs_f64())
        });
        let cpu_seconds = sys::cpu_seconds() - cpu_before;
        // A worker that saw the last number took one too many.
        self.next.fetch_min(last, Ordering::Relaxed);
        let mut round = Round { seconds, cpu_seconds, bytes: 0, ops: 0, latency_ns: histogram() };
        let mut slow_downs = 0;
        for part in parts {
            let part = part?;
            round.ops += part.requests;
            slow_downs += part.slow_downs;
            round.latency_ns.add(&part.latency_ns).expect("the same bounds");
        }
        round.bytes = round.ops * self.object_bytes as u64;
        Ok(Tally { round, slow_downs })
    }

    /// Refuses an answer that is not what was asked for.
    fn check(&self, number: u64, answer: &Answer) -> Result<(), Failure> {
        let (address, verb, group) = (self.target.address(), self.verb.word(), &self.group);
        let what = || format!("{address}: {verb} {group}/{number:06}");
        if answer.status >= 300 {
            let words = answer.error.trim();
            return Err(Failure::new(format!("{}: status {}: {words}", what(), answer.status)));
        }
        if self.verb == Verb::Get && answer.bytes != self.object_bytes as u64 {
            return Err(Failure::new(format!(
                "{}: {} bytes instead of {}",
                what(),
                answer.bytes,
                self.object_bytes
            )));
        }
        let expect = self.crcs.get(number as usize);
        if let (Some(crc), Some(expect)) = (answer.crc, expect)
            && crc != *expect
        {
            return Err(Failure::new(format!("{}: wrong bytes: CRC {crc:x} instead of {expect:x}", what())));
        }
        Ok(())
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("bounds of ours")
}

struct Part {
    requests: u64,
    slow_downs: u64,
    latency_ns: Histogram<u64>,
}

struct Worker<'a, 'b> {
    load: &'b Load<'a>,
    connection: Connection,
    last: u64,
    until: Until,
    /// Set by the first worker that fails, so that the others end too.
    stop: &'b AtomicBool,
}

impl Worker<'_, '_> {
    fn run(mut self) -> Result<Part, Failure> {
        let part = self.work();
        if part.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
        part
    }

    fn work(&mut self) -> Result<Part, Failure> {
        let started = clock::now();
        let mut part = Part { requests: 0, slow_downs: 0, latency_ns: histogram() };
        let mut now = started;
        while (now - started).as_secs_f64() < self.until.seconds && !self.stop.load(Ordering::Relaxed) {
            let turn = self.load.next.fetch_add(1, Ordering::Relaxed);
            if turn >= self.last {
                break;
            }
            let number = turn % self.load.count();
            part.slow_downs += self.ask(number, part.requests.is_multiple_of(CHECKED_SHARE))?;
            let done = clock::now();
            part.requests += 1;
            part.latency_ns.saturating_record(nanos(done, now));
            now = done;
        }
        Ok(part)
    }

    /// One request, again for as long as the server says to slow down; returns how often it did.
    fn ask(&mut self, number: u64, is_checked: bool) -> Result<u64, Failure> {
        let load = self.load;
        let body = if load.verb == Verb::Put { load.content.of(number, load.object_bytes) } else { &[] };
        let wants_crc = is_checked && load.verb == Verb::Get;
        for slow_downs in 0..SLOW_DOWNS_MAX {
            let answer = self
                .connection
                .exchange(&load.heads[number as usize], body, wants_crc)
                .map_err(|e| Failure::io(load.target.address(), &e))?;
            if answer.status != 503 {
                load.check(number, &answer)?;
                return Ok(u64::from(slow_downs));
            }
            thread::sleep(SLOW_DOWN_PAUSE);
        }
        Err(Failure::new(format!("{} only says to slow down", load.target.address()))
            .hint("its drive is full: choose a larger --ring or a smaller --put"))
    }
}

fn nanos(later: Instant, earlier: Instant) -> u64 {
    (later - earlier).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const BYTES: usize = 10_000;
    const EVER: Until = Until { seconds: f64::INFINITY, requests: 40 };

    type Answer = fn(&str, u64, &[u8], &Content) -> (u16, Vec<u8>);

    /// A server that answers each request with what `answer` makes of its method, its object's number and its body.
    fn serve(answer: Answer) -> Arc<Target> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::plain(listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                thread::spawn(move || serve_one(stream.unwrap(), answer));
            }
        });
        target.into()
    }

    fn serve_one(stream: TcpStream, answer: Answer) -> Option<()> {
        let content = Content::new(BYTES);
        let (mut reader, mut writer) = (BufReader::new(stream.try_clone().ok()?), stream);
        loop {
            let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
            reader.read_line(&mut first).ok()?;
            while line != "\r\n" {
                line.clear();
                reader.read_line(&mut line).ok().filter(|got| *got > 0)?;
                if let Some(text) = line.strip_prefix("Content-Length: ") {
                    length = text.trim().parse().ok()?;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let (method, rest) = first.split_once(' ')?;
            let number = rest.split(' ').next()?.rsplit('/').next()?.parse().ok()?;
            let (status, body) = answer(method, number, &body, &content);
            write!(writer, "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len()).ok()?;
            writer.write_all(&body).ok()?;
        }
    }

    fn words(result: Result<Tally, Failure>) -> String {
        format!("{:?}", result.err().expect("it should fail"))
    }

    #[test]
    fn reads_are_counted_and_taken_in_turn() {
        let target = serve(|_, number, _, content| (200, content.of(number, BYTES).to_vec()));
        let content = Content::new(BYTES);
        let load = Load::new(Verb::Get, target, &content, "group", BYTES, 7);
        let tally = load.round(3, EVER).unwrap();
        assert_eq!((tally.round.ops, tally.round.bytes), (40, 400_000));
        assert_eq!((tally.round.latency_ns.len(), tally.slow_downs, load.touched()), (40, 0, 7));
        assert_eq!(load.pass(2).unwrap().round.ops, 7);
    }

    #[test]
    fn wrong_bytes_short_bodies_and_errors_end_the_run() {
        let content = Content::new(BYTES);
        let get = |target| Load::new(Verb::Get, target, &content, "group", BYTES, 7).round(2, EVER);
        let other = serve(|_, number, _, content| (200, content.of(number + 1, BYTES).to_vec()));
        assert!(words(get(other)).contains("wrong bytes"));
        let short = serve(|_, number, _, content| (200, content.of(number, BYTES - 1).to_vec()));
        assert!(words(get(short)).contains("9999 bytes instead of 10000"));
        let refused = serve(|_, _, _, _| (403, b"<Code>AccessDenied</Code>".to_vec()));
        let text = words(get(refused));
        assert!(text.contains("status 403") && text.contains("AccessDenied"), "{text}");
    }

    #[test]
    fn writes_send_the_objects_bytes_and_wait_when_told_to() {
        use std::sync::atomic::AtomicU32;
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let target = serve(|method, number, body, content| {
            let is_right = method == "PUT" && body == content.of(number, BYTES);
            let is_early = ASKED.fetch_add(1, Ordering::Relaxed) < 5;
            (
                if is_early {
                    503
                } else if is_right {
                    200
                } else {
                    400
                },
                Vec::new(),
            )
        });
        let content = Content::new(BYTES);
        let tally = Load::new(Verb::Put, target, &content, "group", BYTES, 7).round(2, EVER).unwrap();
        assert_eq!((tally.round.ops, tally.slow_downs), (40, 5));
    }
}
