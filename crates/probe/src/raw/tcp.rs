//! The bare way to a drive behind a TCP connection on this machine: what two nodes do for each other, without Stoker.
//!
//! A connection for each slot of the queue, a blocking thread at each end. Writes: send all, receive all, write with O_DSYNC,
//! answer with a byte. Reads: send an offset, read, send the bytes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use super::arena::Arena;
use crate::clock;
use crate::measure::{Meter, Round};
use crate::rng::Rng;
use crate::workload::{Job, Limit, Mix};

/// The connections.
pub struct TcpLeg {
    job: Job,
    places: u64,
    /// The next place to be written.
    next: AtomicU64,
    near: Vec<Near>,
    servers: Vec<JoinHandle<io::Result<()>>>,
}

/// The near end of a connection, with memory that an operation is sent from or received into.
struct Near {
    stream: TcpStream,
    memory: Vec<u8>,
    rng: Rng,
}

impl TcpLeg {
    /// Connects to threads that read or write a file, every extent of which is written.
    pub fn start(path: &Path, size: u64, job: Job) -> io::Result<TcpLeg> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (mut near, mut servers) = (Vec::new(), Vec::new());
        for slot in 0..job.depth {
            let client = TcpStream::connect(listener.local_addr()?)?;
            let (server, _) = listener.accept()?;
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            let file = open(path)?;
            let serve = move || match job.mix {
                Mix::Reads => serve_reads(server, &file, job.len),
                _ => serve_writes(server, &file, job.len),
            };
            let (mut memory, mut rng) = (vec![0; job.len], Rng::new(slot as u64));
            rng.fill(&mut memory);
            near.push(Near { stream: client, memory, rng });
            servers.push(thread::Builder::new().name("bare-server".into()).spawn(serve)?);
        }
        Ok(TcpLeg { job, places: size / job.len as u64, next: AtomicU64::new(0), near, servers })
    }

    /// Keeps every connection busy until the limit, then waits for the last answer.
    pub fn round(&mut self, limit: Limit) -> io::Result<Round> {
        let meter = Mutex::new(Meter::start());
        let issued = AtomicU64::new(0);
        let (job, places, next) = (&self.job, self.places, &self.next);
        let (meter_of, issued_of) = (&meter, &issued);
        thread::scope(|scope| {
            let work = |near| move || client(near, job, places, next, limit, meter_of, issued_of);
            let clients: Vec<_> = self.near.iter_mut().map(|near| scope.spawn(work(near))).collect();
            clients.into_iter().try_for_each(|client| client.join().expect("a client that does not panic"))
        })?;
        Ok(meter.into_inner().expect("no client panicked").finish())
    }
}

fn client(
    near: &mut Near,
    job: &Job,
    places: u64,
    next: &AtomicU64,
    limit: Limit,
    meter: &Mutex<Meter>,
    issued: &AtomicU64,
) -> io::Result<()> {
    let len = job.len;
    let started = meter.lock().expect("no client panicked").started();
    while limit.is_open(started.elapsed().as_secs_f64(), issued.fetch_add(len as u64, Ordering::Relaxed)) {
        let place = match job.mix {
            Mix::Reads => near.rng.below(places),
            _ => next.fetch_add(1, Ordering::Relaxed) % places,
        };
        let offset = (place * len as u64).to_le_bytes();
        let begun = clock::now();
        near.stream.write_all(&offset)?;
        match job.mix {
            Mix::Reads => near.stream.read_exact(&mut near.memory)?,
            _ => {
                near.stream.write_all(&near.memory)?;
                near.stream.read_exact(&mut [0])?;
            }
        }
        let took = begun.elapsed();
        meter.lock().expect("no client panicked").note(len, took);
    }
    Ok(())
}

/// Opens a file for durable writes past the page cache, if the file system can do that.
fn open(path: &Path) -> io::Result<File> {
    let with = |flags: i32| File::options().read(true).write(true).custom_flags(flags).open(path);
    match with(libc::O_DIRECT | libc::O_DSYNC) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => with(libc::O_DSYNC),
        opened => opened,
    }
}

/// The next offset; none when the other side is gone.
fn offset(stream: &mut TcpStream) -> io::Result<Option<u64>> {
    let mut offset = [0; 8];
    match stream.read_exact(&mut offset) {
        Ok(()) => Ok(Some(u64::from_le_bytes(offset))),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

fn serve_writes(mut stream: TcpStream, file: &File, len: usize) -> io::Result<()> {
    let mut arena = Arena::new(len)?;
    let memory = arena.slot_mut(0, len);
    while let Some(offset) = offset(&mut stream)? {
        stream.read_exact(memory)?;
        file.write_all_at(memory, offset)?;
        stream.write_all(&[1])?;
    }
    Ok(())
}

fn serve_reads(mut stream: TcpStream, file: &File, len: usize) -> io::Result<()> {
    let mut arena = Arena::new(len)?;
    let memory = arena.slot_mut(0, len);
    while let Some(offset) = offset(&mut stream)? {
        file.read_exact_at(memory, offset)?;
        stream.write_all(memory)?;
    }
    Ok(())
}

impl Drop for TcpLeg {
    fn drop(&mut self) {
        // The servers end when nobody is connected.
        self.near.clear();
        for server in self.servers.drain(..) {
            let _ = server.join();
        }
    }
}
