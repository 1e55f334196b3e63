//! How long a ring takes to open after a kill, against reading as many bytes from the bare drive.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use stoker_ring::{OpenOptions, Ring};

use super::measure::{Meter, Round, Side};
use super::raw::RawFile;
use super::workload::{Job, Limit, Mix, Order};
use crate::clock;
use crate::failure::Failure;
use crate::progress::Progress;

/// How the bare drive is read: in the windows that recovery uses, enough of them at a time to fill the drive's queue.
const RAW: Job = Job { len: 1 << 20, depth: 8, mix: Mix::Reads, order: Order::Sequential };

/// Kills a writer, opens what it left, reads as much from the bare drive; in alternating order.
pub fn measure(
    ring: &Path,
    segment_size: u64,
    raw: &RawFile,
    rounds: u32,
    progress: &Progress,
) -> Result<[Side; 2], Failure> {
    let (mut raw_side, mut ring_side) = (Side::default(), Side::default());
    let mut queue = raw.queue(&RAW).map_err(|e| Failure::io("raw", &e))?;
    let mut bytes_before = segment_size;
    for round in 0..rounds {
        // The bytes that a recovery reads are known after it; a raw round that comes first takes those of the last.
        let raw_first = round % 2 == 0 && round > 0;
        leave(ring, segment_size + segment_size / 2)?;
        if raw_first {
            raw_side.0.push(queue.round(Limit::Bytes(bytes_before)).map_err(|e| Failure::io("raw", &e))?);
        }
        let opened = open(ring)?;
        bytes_before = opened.bytes;
        ring_side.0.push(opened);
        if !raw_first {
            raw_side.0.push(queue.round(Limit::Bytes(bytes_before)).map_err(|e| Failure::io("raw", &e))?);
        }
        progress.add(2);
    }
    Ok([raw_side, ring_side])
}

/// Lets a process of its own write into the ring, and kills it in the middle.
fn leave(ring: &Path, bytes: u64) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::io("starting a writer to kill", &e);
    let program = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .args(["bench", "leave", "--bytes", &bytes.to_string(), "--dir"])
        .arg(ring)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    let read = BufReader::new(stdout).read_line(&mut line);
    let killed = child.kill().and_then(|()| child.wait());
    read.and(killed).map_err(failed)?;
    if line == "ready\n" {
        Ok(())
    } else {
        Err(Failure::new("the writer that was to be killed failed before"))
    }
}

/// Opens the ring as one operation that took as long as it did and read what it says.
fn open(path: &Path) -> Result<Round, Failure> {
    let mut meter = Meter::start();
    let started = clock::now();
    let ring = Ring::open(path, OpenOptions::default())?;
    let took = clock::now() - started;
    meter.note(0, took);
    let mut round = meter.finish();
    let runtime =
        tokio::runtime::Builder::new_current_thread().build().map_err(|e| Failure::io("runtime", &e))?;
    round.bytes = runtime.block_on(ring.status())?.recovery.bytes_read;
    runtime.block_on(ring.close())?;
    Ok(round)
}
