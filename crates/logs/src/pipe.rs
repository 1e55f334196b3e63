//! From the queue to chunks.
//!
//! What is taken from the queue is one frame, and it is tried again until it is there: the queue takes what comes meanwhile. When the
//! program is over, what is left is tried for a while that the caller says.

use std::sync::Arc;
use std::time::Duration;

use stoker_store::{ErrorKind, Result, Store, StoreError};

use crate::Clock;
use crate::chunk::ChunkWriter;
use crate::frame::Frame;
use crate::layout::{LogPlace, Stream, check_node_name};
use crate::queue::{Batch, Queue};

/// So many bytes do not wait for more.
const BATCH_LEN: usize = 256 << 10;
/// First and longest pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What is written, and where.
#[derive(Clone, Debug)]
pub struct PipeOptions {
    /// Where.
    pub place: LogPlace,
    /// Which output of the program.
    pub stream: Stream,
    /// The node that it runs on.
    pub node: String,
    /// Tells this writer apart from all others; whoever starts one draws it.
    pub writer: String,
    /// The job, for `metadata.json`.
    pub job: Option<String>,
    /// How long a few bytes wait for more.
    pub flush_after: Duration,
    /// How long what is left is tried when the program is over.
    pub end_max: Duration,
}

/// What became of what a program said.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PipeReport {
    /// Bytes that are in chunks.
    pub written: u64,
    /// Bytes that are not.
    pub dropped: u64,
    /// Why.
    pub fault: Option<StoreError>,
}

/// Writes what comes through the queue until it is closed. `told` hears of trouble when it begins, and with none when it is over.
pub async fn pipe(
    store: Arc<dyn Store>,
    queue: &Queue,
    clock: &dyn Clock,
    options: &PipeOptions,
    told: &mut (dyn FnMut(Option<&StoreError>) + Send),
) -> PipeReport {
    let mut report = PipeReport::default();
    let done = match check_node_name(&options.node) {
        Ok(()) => Pipe::new(store, queue, options).run(clock, told, &mut report).await,
        Err(fault) => Err(fault),
    };
    if let Err(fault) = done {
        queue.give_up();
        report.fault = Some(fault);
    }
    report.dropped = queue.dropped_total();
    report
}

struct Pipe<'a> {
    queue: &'a Queue,
    options: &'a PipeOptions,
    chunks: ChunkWriter,
    seq: u64,
    is_described: bool,
    /// When the time to write the rest is over.
    deadline: Option<tokio::time::Instant>,
}

impl<'a> Pipe<'a> {
    fn new(store: Arc<dyn Store>, queue: &'a Queue, options: &'a PipeOptions) -> Pipe<'a> {
        let (node, writer) = (options.node.clone(), options.writer.clone());
        let chunks = ChunkWriter::new(store, options.place.clone(), options.stream, node, writer);
        Pipe { queue, options, chunks, seq: 0, is_described: false, deadline: None }
    }

    async fn run(
        mut self,
        clock: &dyn Clock,
        told: &mut (dyn FnMut(Option<&StoreError>) + Send),
        report: &mut PipeReport,
    ) -> Result<()> {
        loop {
            let has_more = self.queue.wait(BATCH_LEN, self.options.flush_after).await;
            let batch = self.queue.take(BATCH_LEN);
            let len = batch.raw.len() as u64;
            if has_more && len == 0 {
                continue;
            }
            let frame = self.frame(batch, !has_more)?;
            if let Err(fault) = self.write(&frame, clock, told).await {
                self.queue.lost(len);
                return Err(fault);
            }
            report.written += len;
            if !has_more {
                return Ok(());
            }
        }
    }

    fn frame(&mut self, batch: Batch, is_end: bool) -> Result<Vec<u8>> {
        let Batch { raw, marks, dropped } = batch;
        let frame = Frame { seq: self.seq, is_end, dropped, marks, raw };
        self.seq += 1;
        frame.encode().map_err(|fault| StoreError::new(ErrorKind::Invalid, fault.to_string()))
    }

    /// Tries until it is there, or there is no sense in trying.
    async fn write(
        &mut self,
        frame: &[u8],
        clock: &dyn Clock,
        told: &mut (dyn FnMut(Option<&StoreError>) + Send),
    ) -> Result<()> {
        let (mut pause, mut is_in_trouble) = (PAUSE.0, false);
        loop {
            let fault = match self.once(frame, clock).await {
                Ok(()) => {
                    if is_in_trouble {
                        told(None);
                    }
                    return Ok(());
                }
                Err(fault) => fault,
            };
            if is_hopeless(&fault) || self.is_too_late() {
                return Err(fault);
            }
            if !is_in_trouble {
                told(Some(&fault));
                is_in_trouble = true;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    async fn once(&mut self, frame: &[u8], clock: &dyn Clock) -> Result<()> {
        if !self.is_described {
            self.chunks.describe(&metadata(self.options, clock)).await?;
            self.is_described = true;
        }
        self.chunks.add(frame).await
    }

    /// Whether the program is over, and what is left of it was tried for long enough.
    fn is_too_late(&mut self) -> bool {
        if !self.queue.is_closed() {
            return false;
        }
        let now = tokio::time::Instant::now();
        now >= *self.deadline.get_or_insert(now + self.options.end_max)
    }
}

/// Whether the same again gets the same answer.
fn is_hopeless(fault: &StoreError) -> bool {
    match fault.kind {
        ErrorKind::Denied | ErrorKind::Invalid | ErrorKind::NotFound => true,
        ErrorKind::Conflict | ErrorKind::Full | ErrorKind::Unavailable => false,
        ErrorKind::Corrupt | ErrorKind::Closed => false,
    }
}

fn metadata(options: &PipeOptions, clock: &dyn Clock) -> Vec<u8> {
    let value = serde_json::json!({
        "format": 1,
        "job": options.job,
        "created_ms": clock.now_ms(),
        "layout": "{stream}/{node}/chunk_{number}.log.zst",
        "streams": Stream::ALL.map(Stream::word),
        "encoding": "zstd",
    });
    format!("{value:#}\n").into_bytes()
}
