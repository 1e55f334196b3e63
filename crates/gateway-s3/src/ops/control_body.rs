//! Bodies of control requests: small documents, collected and checked before anybody parses them.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::Payload;
use crate::hot::arrivals::{Arrival, Arrivals};
use crate::hot::checksum::{self, Demands};
use crate::refusal::{Code, Refusal, Result};

/// Longest document. A completion of 10,000 parts with checksums and a deletion of 1,000 long keys fit.
const BYTES_MAX: usize = 8 << 20;
/// Memory for all of them together.
const BYTES_TOTAL_MAX: usize = 64 << 20;
/// Memory is accounted for in these.
const UNIT: usize = 64 << 10;
/// Longest time that a document may take to arrive.
const TIME_MAX: Duration = Duration::from_secs(60);

/// The memory that documents share.
pub(super) struct Room(Arc<Semaphore>);

/// A document, and the memory that it has.
pub(super) struct Document {
    pub(super) bytes: Bytes,
    _room: Vec<OwnedSemaphorePermit>,
}

impl Room {
    /// All free.
    pub(super) fn new() -> Room {
        Room(Arc::new(Semaphore::new(BYTES_TOTAL_MAX / UNIT)))
    }

    /// Collects a body and checks it against everything that the request says about it.
    pub(super) async fn collect(
        &self,
        headers: &HeaderMap,
        payload: Payload,
        arrivals: &mut Arrivals,
        is_checked: bool,
    ) -> Result<Document> {
        let sha256 = match payload {
            Payload::Plain => None,
            Payload::Sha256(hash) => Some(hash),
            Payload::Chunked { .. } => {
                return Err(Refusal::new(
                    Code::NotImplemented,
                    "A streaming payload is not implemented for this operation.",
                ));
            }
        };
        let (bytes, room) =
            tokio::time::timeout(TIME_MAX, self.receive(arrivals)).await.map_err(|_| {
                Refusal::new(Code::RequestTimeout, "The body of the request took too long to arrive.")
            })??;
        // Headers of a completion are about the file, not about the document.
        let empty = HeaderMap::new();
        let demands = Demands::of(if is_checked { headers } else { &empty }, sha256)?;
        let mut digests = demands.digests();
        digests.update(&bytes);
        digests.finish(checksum::crc64(&bytes), &[])?;
        Ok(Document { bytes, _room: room })
    }

    async fn receive(&self, arrivals: &mut Arrivals) -> Result<(Bytes, Vec<OwnedSemaphorePermit>)> {
        let (mut bytes, mut room) = (BytesMut::new(), Vec::new());
        loop {
            match arrivals.next(None).await? {
                Arrival::Data(data) => {
                    if bytes.len() + data.len() > BYTES_MAX {
                        return Err(Refusal::new(
                            Code::MaxMessageLengthExceeded,
                            "Your request was too big.",
                        ));
                    }
                    while room.len() * UNIT < bytes.len() + data.len() {
                        let permit = Arc::clone(&self.0).try_acquire_owned().map_err(|_| {
                            Refusal::new(
                                Code::SlowDown,
                                "Too many large requests at the same time. Please slow down.",
                            )
                        })?;
                        room.push(permit);
                    }
                    bytes.extend_from_slice(&data);
                }
                Arrival::Quiet => {}
                Arrival::End => return Ok((bytes.freeze(), room)),
            }
        }
    }
}
