//! A file being written in the node, filled from here.

use std::sync::Arc;

use stoker_format::{VersionId, crc32c, crc32c_combine, crc64, crc64_combine};
use stoker_store::{BoxFuture, Buf, ErrorKind, Finish, Receipt, Result, StoreError, SummedBytes, Writer};
use tokio::sync::Semaphore;

use super::link::{Link, WRITE_BYTES_MAX};
use super::outlet::Outlet;
use super::spare::{BUFFER_LEN, Spares};
use super::{Attempts, Client, unexpected};
use crate::message::{Request, Response};

/// Buffers of one writer that may be under way while the caller fills the next.
const BUFFERS_MAX: usize = 2;

/// A writer of so many bytes wants to share memory with the node.
const HATCH_FROM: u64 = 4 << 20;
/// A buffer for so many bytes lies in that memory if there is some: it needs no copy on its way.
const SHARED_FROM: usize = 1 << 20;

pub(super) struct RemoteWriter {
    link: Arc<Link>,
    outlet: Arc<Outlet>,
    spares: Arc<Spares>,
    slots: Arc<Semaphore>,
    size: Option<u64>,
    written: u64,
    sum: Sum,
    /// The node ends the writer by itself once it is asked to finish it.
    finishing: bool,
}

/// What is summed of the bytes, for the node to compare.
enum Sum {
    /// CRC-64/NVME, which is kept with the file.
    Whole(u64),
    /// CRC32C: what goes on with another version has no sum that could be kept.
    Late(u32),
}

impl Sum {
    fn of(request: &Request) -> Sum {
        match request.is_late() {
            true => Sum::Late(0),
            false => Sum::Whole(0),
        }
    }

    /// Adds bytes, whose sum is taken unless whoever made them knows it.
    fn add(&mut self, more: &SummedBytes) {
        let (bytes, len) = (&more.bytes, more.bytes.len() as u64);
        match self {
            Sum::Whole(sum) => *sum = crc64_combine(*sum, more.crc64.unwrap_or_else(|| crc64(bytes)), len),
            Sum::Late(sum) => *sum = crc32c_combine(*sum, more.crc32c.unwrap_or_else(|| crc32c(bytes)), len),
        }
    }

    /// Whoever fills this empty buffer sums its bytes on the way.
    fn prepare(&self, buf: &mut Buf) {
        match self {
            Sum::Whole(_) => buf.sum_crc64(),
            Sum::Late(_) => buf.sum_crc32c(),
        }
    }
}

impl RemoteWriter {
    /// Begins a file or a part; asks again on a new connection.
    pub async fn create(client: &Client, request: Request, size: Option<u64>) -> Result<RemoteWriter> {
        let mut attempts = Attempts::default();
        loop {
            let link = client.link().await?;
            let outlet = Arc::new(Outlet::new(link.new_id(), link.data_sum(), link.hatch().clone()));
            link.add_outlet(&outlet);
            // Made before the answer, so that whatever happens, the node hears of the end.
            let mut writer = RemoteWriter {
                link: link.clone(),
                outlet: outlet.clone(),
                spares: client.0.spares.clone(),
                slots: Arc::new(Semaphore::new(BUFFERS_MAX)),
                size,
                written: 0,
                sum: Sum::of(&request),
                finishing: false,
            };
            match client.within(&request, link.call(outlet.id(), &request)).await? {
                Ok(reply) => {
                    let made = reply.into_result().inspect_err(|_| writer.finishing = true)?;
                    return if made.response == Response::Done { Ok(writer) } else { Err(unexpected()) };
                }
                // Nothing of it is visible and the lost connection ended it: beginning again is safe.
                Err(lost) => attempts.again(lost)?,
            }
        }
    }

    async fn write(&mut self, summed: SummedBytes) -> Result<()> {
        let bytes = &summed.bytes;
        if bytes.is_empty() {
            return Ok(());
        }
        let slot = self.slots.clone().acquire_owned().await.expect("never closed");
        let room =
            self.link.write_bytes().clone().acquire_many_owned(bytes.len().min(WRITE_BYTES_MAX) as u32);
        let pass = Arc::new((slot, room.await.expect("never closed")));
        self.sum.add(&summed);
        self.written += bytes.len() as u64;
        if self.written >= HATCH_FROM || self.size.is_some_and(|size| size >= HATCH_FROM) {
            self.link.want_hatch();
        }
        self.outlet.push(summed.bytes, pass, self.link.outbox())
    }

    async fn finish(mut self, base: Option<VersionId>, finish: Finish) -> Result<Receipt> {
        let len = self.outlet.drained().await?;
        assert_eq!(len, self.written, "bytes of a writer went astray");
        let writer = self.outlet.id();
        let request = match (&self.sum, base) {
            (Sum::Whole(crc64), None) => Request::Finish { writer, len, crc64: *crc64, finish },
            (Sum::Late(crc32c), Some(VersionId(base))) => {
                Request::FinishOn { writer, len, crc32c: *crc32c, finish, base }
            }
            _ => {
                return Err(StoreError::new(
                    ErrorKind::Invalid,
                    "the base of an edit is named once, when it begins or when it ends",
                ));
            }
        };
        let answer = self.link.call(self.link.new_id(), &request).await;
        self.finishing = true;
        match answer {
            Ok(reply) => {
                match reply.into_result().map_err(|error| self.outlet.failure().unwrap_or(error))?.response {
                    Response::Receipt(receipt) => Ok(*receipt),
                    _ => Err(unexpected()),
                }
            }
            Err(lost) if lost.sent => Err(lost.outcome_unknown()),
            Err(lost) => {
                let message = format!("{}; nothing was written: try again", lost.error.message);
                Err(StoreError::new(ErrorKind::Unavailable, message))
            }
        }
    }
}

impl Writer for RemoteWriter {
    fn buffer(&mut self) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(async {
            if let Some(error) = self.outlet.failure() {
                return Err(error);
            }
            let left = self.size.map_or(u64::MAX, |size| size.saturating_sub(self.written));
            // At the announced end there is still room for a byte, so that a longer file is noticed by the node.
            let len = usize::try_from(left).unwrap_or(usize::MAX).clamp(1, BUFFER_LEN);
            let shared = if len >= SHARED_FROM { self.outlet.memory() } else { None };
            let mut buf = shared.unwrap_or_else(|| self.spares.take(len));
            self.sum.prepare(&mut buf);
            Ok(buf)
        })
    }

    fn write(&mut self, buf: Buf) -> BoxFuture<'_, Result<()>> {
        let (crc64, crc32c) = (buf.crc64(), buf.crc32c());
        let bytes = self.spares.freeze(buf);
        Box::pin(RemoteWriter::write(self, SummedBytes { bytes, crc64, crc32c }))
    }

    fn takes_bytes(&self) -> bool {
        true
    }

    fn memory(&self) -> Option<Buf> {
        let mut room = self.outlet.memory()?;
        self.sum.prepare(&mut room);
        Some(room)
    }

    fn write_bytes(&mut self, bytes: SummedBytes) -> BoxFuture<'_, Result<()>> {
        Box::pin(RemoteWriter::write(self, bytes))
    }

    fn crc64(&self) -> u64 {
        match &self.sum {
            Sum::Whole(crc64) => *crc64,
            Sum::Late(_) => 0,
        }
    }

    fn finish(self: Box<Self>, finish: Finish) -> BoxFuture<'static, Result<Receipt>> {
        Box::pin(RemoteWriter::finish(*self, None, finish))
    }

    fn finish_on(self: Box<Self>, base: VersionId, finish: Finish) -> BoxFuture<'static, Result<Receipt>> {
        Box::pin(RemoteWriter::finish(*self, Some(base), finish))
    }
}

impl Drop for RemoteWriter {
    fn drop(&mut self) {
        self.link.remove_outlet(self.outlet.id());
        if !self.finishing {
            self.link.release(self.outlet.id());
        }
    }
}
