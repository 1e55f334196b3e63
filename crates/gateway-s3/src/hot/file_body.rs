//! A range of a file as the body of an answer: one piece is read ahead while the one before is being sent.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use stoker_store::{BoxFuture, ErrorKind, File, StoreError};

use crate::counters::Counters;

/// Most bytes that are read at once. Small enough that a slow reader holds little, large enough to be cheap.
pub(crate) const PIECE_BYTES_MAX: usize = 512 << 10;

/// Reads a range of one version of a file.
pub(crate) struct FileBody {
    file: Arc<dyn File>,
    counters: Arc<Counters>,
    /// Where the piece behind `ready` and `ahead` starts.
    at: u64,
    end: u64,
    /// Bytes that were not handed out yet.
    left: u64,
    ready: Option<Bytes>,
    ahead: Option<BoxFuture<'static, Result<Bytes, StoreError>>>,
}

impl FileBody {
    /// The range whose first bytes are there already; they start at `start`, and more must follow.
    pub(crate) fn new(
        file: Box<dyn File>,
        first: Bytes,
        start: u64,
        end: u64,
        counters: Arc<Counters>,
    ) -> FileBody {
        let at = start + first.len() as u64;
        assert!(at < end, "a body of one piece needs no file");
        FileBody {
            file: Arc::from(file),
            counters,
            at,
            end,
            left: end - start,
            ready: Some(first),
            ahead: None,
        }
    }

    /// Bytes that were not handed out yet.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// The next piece.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StoreError>>> {
        if let Some(first) = self.ready.take() {
            return Poll::Ready(Some(Ok(self.hand_out(first, cx))));
        }
        let Some(ahead) = &mut self.ahead else {
            return Poll::Ready(None);
        };
        let Poll::Ready(read) = ahead.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.ahead = None;
        let piece = read.and_then(|piece| {
            let fits = !piece.is_empty() && piece.len() as u64 <= self.end - self.at;
            fits.then_some(piece)
                .ok_or_else(|| StoreError::new(ErrorKind::Corrupt, "the file is not as long as it says"))
        });
        match piece {
            Ok(piece) => {
                self.at += piece.len() as u64;
                Poll::Ready(Some(Ok(self.hand_out(piece, cx))))
            }
            Err(error) => {
                self.counters.body_broken();
                tracing::warn!(key = %self.file.info().key, at = self.at, %error, "an answer was broken off");
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    /// Starts the next read before the piece is sent.
    fn hand_out(&mut self, piece: Bytes, cx: &mut Context<'_>) -> Bytes {
        self.left -= piece.len() as u64;
        if self.at < self.end {
            let len =
                usize::try_from(self.end - self.at).map_or(PIECE_BYTES_MAX, |len| len.min(PIECE_BYTES_MAX));
            let (file, at) = (Arc::clone(&self.file), self.at);
            let mut ahead: BoxFuture<'static, _> = Box::pin(async move { file.read(at, len).await });
            // A read begins with its first poll. If it is done at once, its answer is kept for the next call.
            self.ahead = Some(match ahead.as_mut().poll(cx) {
                Poll::Ready(read) => Box::pin(std::future::ready(read)),
                Poll::Pending => ahead,
            });
        }
        piece
    }
}
