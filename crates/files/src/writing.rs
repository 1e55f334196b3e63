//! Writing: into memory, and from there to the node before anybody asks if much comes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stoker_store::{EditRequest, Piece, StoreError};
use tokio::sync::MutexGuard;

use crate::content::{Content, Stream};
use crate::error::{Errno, Result};
use crate::files::{Core, Files, Handle};
use crate::inode::{Inode, Kind};
use crate::publish::stale;

/// Most bytes of a file.
const SIZE_MAX: u64 = 50 << 40;

/// Separate changes of one file that wait.
const EXTENTS_MAX: usize = 1000;

/// What `fallocate` is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// The file is at least this long.
    Grow,
    /// Nothing that could be seen: space is not set aside.
    Reserve,
    /// Zeros in a range inside the file, which take no space.
    Zero {
        /// The file may become longer.
        grow: bool,
    },
}

impl Files {
    /// Writes bytes; at the end of the file if that is wished.
    pub async fn write(&self, handle: &Handle, offset: u64, bytes: &[u8], append: bool) -> Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let inode = &handle.inode;
        let mut content = self.0.make_room(inode).await?;
        inode.check_kept()?;
        let offset = if append { content.overlay.size() } else { offset };
        offset.checked_add(bytes.len() as u64).filter(|end| *end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
        if offset < content.overlay.size() {
            self.0.land(inode, &mut content).await;
        }
        self.0.change(inode, &mut content, |content| {
            let Content { overlay, stream, .. } = content;
            let rooms = || stream.as_ref()?.writer.memory();
            if append { overlay.append_in(bytes, rooms) } else { overlay.write_in(offset, bytes, rooms) }
        });
        self.0.send_ahead(inode, &mut content).await;
        Ok(bytes.len())
    }

    /// Changes the length.
    pub async fn truncate(&self, ino: u64, size: u64) -> Result<()> {
        if size > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        let inode = self.0.table.get(ino)?;
        match inode.kind {
            Kind::File => {}
            Kind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        let mut content = self.0.still(&inode).await;
        inode.check_kept()?;
        // Also to the length that it has: its times are new then.
        self.0.change(&inode, &mut content, |content| {
            content.overlay.truncate(size);
            if content.base.is_none() {
                // Whoever makes the file elsewhere meanwhile had it longer.
                content.overlay.insist();
            }
        });
        drop(content);
        if !inode.is_open() {
            // Nobody will close it.
            self.0.flush(&inode).await?;
        }
        Ok(())
    }

    /// The same for somebody who does not have the file open: published when this returns.
    pub async fn truncate_closed(&self, ino: u64, size: u64) -> Result<()> {
        self.truncate(ino, size).await?;
        self.0.flush(&self.0.table.get(ino)?).await
    }

    /// Makes room, or zeros.
    pub async fn allocate(&self, handle: &Handle, offset: u64, len: u64, what: Allocate) -> Result<()> {
        let inode = &handle.inode;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
        let mut content = match what {
            Allocate::Zero { .. } => {
                // Holes are changes that wait, and of those there are not too many.
                let content = self.0.make_room(inode).await?;
                drop(content);
                self.0.still(inode).await
            }
            Allocate::Grow | Allocate::Reserve => self.0.still(inode).await,
        };
        inode.check_kept()?;
        let size = content.overlay.size();
        match what {
            Allocate::Reserve => {}
            Allocate::Grow if end > size => {
                self.0.change(inode, &mut content, |content| content.overlay.truncate(end));
            }
            Allocate::Grow => {}
            Allocate::Zero { grow } => {
                let grown = grow && end > size;
                if offset < size || grown {
                    self.0.change(inode, &mut content, |content| {
                        content.overlay.punch(offset, end);
                        if grown {
                            content.overlay.truncate(end);
                        }
                    });
                }
            }
        }
        Ok(())
    }
}

impl Core {
    /// Changes bytes, and what follows from that.
    pub fn change(&self, inode: &Inode, content: &mut Content, change: impl FnOnce(&mut Content)) {
        let (before, tail) = (content.overlay.bytes(), content.overlay.tail());
        let size = content.overlay.size();
        change(content);
        let after = content.overlay.bytes();
        match after >= before {
            true => self.waiting.fetch_add(after - before, Ordering::Relaxed),
            false => self.waiting.fetch_sub(before - after, Ordering::Relaxed),
        };
        // What was sent ahead is only good for a file that goes on growing at its end.
        let grows = content.overlay.tail().is_some() && content.overlay.tail() == tail;
        if content.stream.is_some() && !(grows && after >= before && content.overlay.size() > size) {
            content.stream = None;
        }
        let now_ns = self.now_ns();
        content.dirty_since_ns.get_or_insert(now_ns);
        inode.is_dirty.store(true, Ordering::Relaxed);
        let mut meta = inode.meta.lock().unwrap();
        inode.told.lock().unwrap().change(&meta.attr);
        meta.resize(content.overlay.size(), after);
        meta.set_mtime(now_ns);
        meta.attr.ctime_ns = now_ns;
    }

    /// The content of a file, with room for more: what waits is published if it is much. That is done before bytes are
    /// taken, so that nothing stays of a write that fails.
    async fn make_room<'i>(&self, inode: &'i Arc<Inode>) -> Result<MutexGuard<'i, Content>> {
        let mut content = inode.content.lock().await;
        if self.is_much(&content) {
            self.land(inode, &mut content).await;
        }
        if !self.is_much(&content) {
            return Ok(content);
        }
        drop(content);
        let _still = self.moves.read().await;
        let mut content = inode.content.lock().await;
        if self.is_much(&content) {
            self.publish_bytes(inode, &mut content).await?;
        }
        Ok(content)
    }

    fn is_much(&self, content: &Content) -> bool {
        let bytes = content.overlay.bytes();
        bytes >= self.options.file_bytes_max
            || content.overlay.extents() > EXTENTS_MAX
            || (self.waiting.load(Ordering::Relaxed) > self.options.bytes_max && bytes > 0)
    }

    /// Bytes are on their way before anybody asks: full chunks of a file that grows while it is written.
    async fn send_ahead(&self, inode: &Arc<Inode>, content: &mut Content) {
        if content.stream.is_none()
            && content.flight.is_none()
            && !content.is_unsure
            && let Some(tail) = content.overlay.tail()
            && content.overlay.size() - tail >= self.options.stream_from
        {
            // It is only sent early: if that fails it is sent when it is published.
            content.stream = self.begin_stream(inode, content, tail).await.ok();
        }
        if content.stream.is_some() && self.push(content, false).await.is_err() {
            content.stream = None;
        }
        self.take_off(inode, content).await;
    }

    async fn begin_stream(
        &self,
        inode: &Inode,
        content: &mut Content,
        tail: u64,
    ) -> std::result::Result<Stream, StoreError> {
        let mut pieces = content.overlay.pieces();
        pieces.pop();
        pieces.push(Piece::Rest);
        let (key, request) = self.edit_request(inode, content, pieces)?;
        let mtime_ns = request.attributes.mtime_ns;
        let writer = self.store.edit(&self.volume, &key, request).await?;
        Ok(Stream { key, writer, buf: None, sent: tail, mtime_ns, is_late: false })
    }

    /// The edit that publishes these pieces of a file.
    pub fn edit_request(
        &self,
        inode: &Inode,
        content: &Content,
        pieces: Vec<Piece>,
    ) -> std::result::Result<(stoker_store::Key, EditRequest), StoreError> {
        let key = self.table.key(inode).map_err(stale)?;
        let keeps = pieces.iter().any(|piece| matches!(piece, Piece::Keep { .. }));
        let (base, condition) = match &content.base {
            Some(base) if keeps => (Some(base.version), stoker_store::Condition::default()),
            Some(base) => {
                let if_match = Some(vec![base.etag.clone()]);
                (None, stoker_store::Condition { if_match, ..Default::default() })
            }
            // What lost its name is under a key of ours, whose directory may not be there yet.
            None if inode.is_unlinked() => (None, stoker_store::Condition::absent()),
            None => (None, stoker_store::Condition::absent_within()),
        };
        let attributes = inode.meta.lock().unwrap().properties();
        let is_ours = inode.ino < 1 << 62;
        Ok((key, EditRequest { attributes, condition, base, pieces, inode: is_ours.then_some(inode.ino) }))
    }

    /// Hands bytes to the node that it does not have yet: full buffers, or all.
    pub async fn push(&self, content: &mut Content, all: bool) -> std::result::Result<(), StoreError> {
        let Content { stream: Some(stream), overlay, .. } = content else { return Ok(()) };
        if stream.writer.takes_bytes() {
            while let Some(shared) = overlay.share_at(stream.sent, all) {
                stream.sent += shared.bytes.len() as u64;
                stream.writer.write_bytes(shared).await?;
            }
            return Ok(());
        }
        while stream.sent < overlay.size() {
            if stream.buf.is_none() {
                stream.buf = Some(stream.writer.buffer().await?);
            }
            let Some(buf) = &mut stream.buf else { break };
            let left = overlay.size() - stream.sent;
            let room = (buf.capacity() - buf.len()) as u64;
            if left < room && !all {
                return Ok(());
            }
            let bytes = overlay.run_at(stream.sent);
            let part = bytes.len().min(room as usize);
            buf.fill(&bytes[..part]);
            stream.sent += part as u64;
            if buf.len() == buf.capacity()
                && let Some(buf) = stream.buf.take()
            {
                stream.writer.write(buf).await?;
            }
        }
        if all && let Some(buf) = stream.buf.take().filter(|buf| !buf.is_empty()) {
            stream.writer.write(buf).await?;
        }
        Ok(())
    }
}
