//! Publishing in passing: a file that grows for long is published piece by piece while it goes on growing. (D65)
//!
//! The front of what waits is on its way to being published, in a task; what comes behind it goes to an edit that learns at
//! its end which version it goes on with. Whoever does anything else with the file waits until the front has landed, so
//! that nothing but growing happens meanwhile. If it does not land, nothing is lost: the bytes are still here, and are sent
//! again when they are published.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stoker_store::{EditRequest, Finish, Piece, Receipt, StoreError};
use tokio::sync::MutexGuard;
use tokio::time::Instant;

use crate::content::{Base, Content, Flight, Sent, Stream};
use crate::files::Core;
use crate::inode::Inode;
use crate::publish::{LATE, stale};

impl Stream {
    /// Publishes, over this version if it goes on with one.
    pub async fn finish(self, base: Option<&Base>) -> Result<Receipt, StoreError> {
        match (self.is_late, base) {
            (false, _) => self.writer.finish(Finish::default()).await,
            (true, Some(base)) => self.writer.finish_on(base.version, Finish::default()).await,
            (true, None) => Err(stale(crate::Errno::ESTALE)),
        }
    }
}

impl Core {
    /// The content of a file of which nothing is under way.
    pub async fn still<'i>(&self, inode: &'i Inode) -> MutexGuard<'i, Content> {
        let mut content = inode.content.lock().await;
        self.land(inode, &mut content).await;
        content
    }

    /// Waits for what is being published in passing.
    pub async fn land(&self, inode: &Inode, content: &mut Content) {
        let Some(flight) = &mut content.flight else { return };
        let landed = (&mut flight.task).await;
        let (end, sent, begun) =
            (flight.end, Sent { mtime_ns: flight.mtime_ns, size: flight.end }, flight.begun);
        content.flight = None;
        let receipt = match landed {
            Ok(Ok(receipt)) => receipt,
            failed => {
                // What was sent behind it has nothing to go on with.
                content.stream = None;
                let is_certain = matches!(&failed, Ok(Err(fault)) if !fault.is_unknown());
                content.is_late |= !is_certain || begun.elapsed() >= LATE;
                if !is_certain {
                    content.note_unanswered(sent);
                    // Whatever is published under us, the file is what it is here.
                    content.overlay.insist();
                    content.is_unsure = true;
                }
                return;
            }
        };
        let before = content.overlay.bytes();
        content.overlay.settle_front(end);
        let published = before - content.overlay.bytes();
        self.waiting.fetch_sub(published, Ordering::Relaxed);
        self.note_published(inode, content, receipt);
        // The time has changed since.
        inode.meta.lock().unwrap().is_changed = true;
        content.dirty_since_ns = Some(self.now_ns());
    }

    /// Begins to publish what was handed to the node, if it is much.
    pub async fn take_off(&self, inode: &Arc<Inode>, content: &mut Content) {
        if content.flight.as_ref().is_some_and(|flight| flight.task.is_finished()) {
            self.land(inode, content).await;
        }
        if inode.check_lost().is_err() || self.locks.is_doubtful(inode.ino) {
            return;
        }
        let Some(front) = content.overlay.tail().filter(|_| content.flight.is_none()) else { return };
        let is_enough = |stream: &Stream| {
            let is_even = stream.buf.as_ref().is_none_or(|buf| buf.is_empty());
            is_even && stream.sent - front >= self.options.file_bytes_max as u64 / 2
        };
        if !content.stream.as_ref().is_some_and(is_enough) || inode.is_unlinked() || inode.is_taken() {
            return;
        }
        // Names stay until it has landed. Whoever moves one right now waits for this content: it is for another time.
        let Ok(names) = self.moves.clone().try_read_owned() else { return };
        let Ok(key) = self.table.key(inode) else { return };
        let Some(stream) = content.stream.take_if(|stream| stream.key == key) else { return };
        let (end, mtime_ns, base) = (stream.sent, stream.mtime_ns, content.base.clone());
        // A node of an older release knows no such edits; there it goes on when the front has landed.
        content.stream = self.begin_late(inode, content, end).await.ok();
        let published = inode.clone();
        let task = tokio::spawn(async move {
            let receipt = stream.finish(base.as_ref()).await?;
            published.is_published.store(true, Ordering::Relaxed);
            drop(names);
            Ok(receipt)
        });
        content.flight = Some(Flight { end, mtime_ns, begun: Instant::now(), task });
    }

    async fn begin_late(&self, inode: &Inode, content: &mut Content, end: u64) -> Result<Stream, StoreError> {
        let pieces = vec![Piece::Keep { start: 0, end }, Piece::Rest];
        let (key, request) = self.edit_request(inode, content, Vec::new())?;
        let mtime_ns = request.attributes.mtime_ns;
        let request = EditRequest { base: None, condition: Default::default(), pieces, ..request };
        let writer = self.store.edit(&self.volume, &key, request).await?;
        Ok(Stream { key, writer, buf: None, sent: end, mtime_ns, is_late: true })
    }
}
