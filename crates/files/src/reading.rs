//! Reading: what waits in memory, over what is published.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use stoker_store::{ErrorKind, File, Seek, StoreError};

use crate::ahead::{BLOCK, read_exactly};
use crate::content::Content;
use crate::error::{Errno, Result};
use crate::files::{Core, Files, Handle, Waiting, patiently};
use crate::inode::{Inode, Kind};
use crate::overlay::{Part, Stretch};
use crate::publish::stale;

impl Files {
    /// Bytes at an offset; fewer than asked for only at the end.
    pub async fn read(&self, handle: &Handle, offset: u64, len: usize) -> Result<Bytes> {
        self.0.read(&handle.inode, Some(handle), offset, len).await
    }

    /// Opens what a file is now, so that it can be read from here on whatever becomes of its name.
    pub async fn hold(&self, handle: &Handle) -> Result<()> {
        let inode = &handle.inode;
        let mut waiting = Waiting::default();
        loop {
            let held = {
                let mut content = inode.content.lock().await;
                let is_empty = content.base.is_none() || inode.meta.lock().unwrap().stored == 0;
                if is_empty || content.file.is_some() {
                    return Ok(());
                }
                self.0.base_file(inode, &mut content).await
            };
            match held {
                Ok(_) => return Ok(()),
                Err(fault) => self.0.after_fault(inode, &mut waiting, fault).await?,
            }
        }
    }

    /// The first offset from this one on where bytes are, or where none are stored. The end of a file is a hole.
    pub async fn seek(&self, handle: &Handle, offset: u64, what: Seek) -> Result<u64> {
        self.0.seek(&handle.inode, offset, what).await?.ok_or(Errno::ENXIO)
    }

    /// The target of a symbolic link.
    pub async fn readlink(&self, ino: u64) -> Result<Bytes> {
        let inode = self.0.table.get(ino)?;
        if inode.kind != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        let size = inode.attr().size as usize;
        self.0.read(&inode, None, 0, size).await
    }
}

impl Core {
    async fn read(
        &self,
        inode: &Arc<Inode>,
        handle: Option<&Handle>,
        offset: u64,
        len: usize,
    ) -> Result<Bytes> {
        if inode.is_lost.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Errno::ESTALE);
        }
        let mut waiting = Waiting::default();
        loop {
            match self.read_once(inode, handle, offset, len).await {
                Ok(bytes) => return Ok(bytes),
                Err(fault) => self.after_fault(inode, &mut waiting, fault).await?,
            }
        }
    }

    async fn seek(&self, inode: &Arc<Inode>, offset: u64, what: Seek) -> Result<Option<u64>> {
        if inode.is_lost.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Errno::ESTALE);
        }
        let mut waiting = Waiting::default();
        loop {
            match self.seek_once(inode, offset, what).await {
                Ok(found) => return Ok(found),
                Err(fault) => self.after_fault(inode, &mut waiting, fault).await?,
            }
        }
    }

    /// Makes the published version ready to be asked again, if that may help: a node that is away is waited for.
    async fn after_fault(&self, inode: &Arc<Inode>, waiting: &mut Waiting, fault: StoreError) -> Result<()> {
        // Replaced while the node was away: what is there now is read.
        if matches!(fault.kind, ErrorKind::Conflict | ErrorKind::NotFound) {
            waiting.after_conflict(fault, &self.options).await?;
            return self.reopen(inode).await;
        }
        if fault.kind == ErrorKind::Closed {
            inode.content.lock().await.file = None;
        }
        Ok(waiting.after(fault, &self.options).await?)
    }

    async fn seek_once(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        what: Seek,
    ) -> std::result::Result<Option<u64>, StoreError> {
        let mut content = self.still(inode).await;
        let mut at = offset;
        while let Some((stretch, end)) = content.overlay.stretch(at) {
            match (stretch, what) {
                (Stretch::Fresh, Seek::Data) | (Stretch::Zero, Seek::Hole) => return Ok(Some(at)),
                (Stretch::Fresh, Seek::Hole) | (Stretch::Zero, Seek::Data) => {}
                (Stretch::Base, _) => {
                    let file = self.base_file(inode, &mut content).await?;
                    if let Some(found) = file.seek(at, what).await?.filter(|found| *found < end) {
                        return Ok(Some(found));
                    }
                }
            }
            at = end;
        }
        let size = content.overlay.size();
        Ok((what == Seek::Hole && offset < size).then_some(size))
    }

    async fn read_once(
        &self,
        inode: &Arc<Inode>,
        handle: Option<&Handle>,
        offset: u64,
        len: usize,
    ) -> std::result::Result<Bytes, StoreError> {
        let (parts, file) = {
            let mut content = inode.content.lock().await;
            let needs_file = |parts: &[Part]| parts.iter().any(|part| matches!(part, Part::Base { .. }));
            let mut parts = content.overlay.parts(offset, len as u64);
            if needs_file(&parts) && content.flight.is_some() {
                self.land(inode, &mut content).await;
                parts = content.overlay.parts(offset, len as u64);
            }
            let needs_file = needs_file(&parts);
            let file = if needs_file { Some(self.base_file(inode, &mut content).await?) } else { None };
            (parts, file)
        };
        if let ([Part::Base { start, len }], Some(file)) = (parts.as_slice(), &file) {
            return self.read_base(file, handle, *start, *len).await;
        }
        let mut bytes = BytesMut::with_capacity(len);
        for part in parts {
            match (part, &file) {
                (Part::Fresh(fresh), _) => bytes.extend_from_slice(&fresh),
                (Part::Zero(len), _) => bytes.resize(bytes.len() + len as usize, 0),
                (Part::Base { start, len }, Some(file)) => {
                    bytes.extend_from_slice(&self.read_base(file, handle, start, len).await?);
                }
                (Part::Base { .. }, None) => unreachable!("opened above"),
            }
        }
        Ok(bytes.freeze())
    }

    async fn read_base(
        &self,
        file: &Arc<dyn File>,
        handle: Option<&Handle>,
        start: u64,
        len: u64,
    ) -> std::result::Result<Bytes, StoreError> {
        let blocks =
            handle.and_then(|handle| handle.ahead.lock().unwrap().wish(file, start, len, &self.ahead));
        let (Some(blocks), Some(handle)) = (blocks, handle) else {
            return read_exactly(&**file, start, len as usize).await;
        };
        let mut bytes = BytesMut::new();
        for (at, read) in &blocks {
            let block = read.clone().await.inspect_err(|_| handle.ahead.lock().unwrap().distrust(*at))?;
            let from = start.saturating_sub(at * BLOCK) as usize;
            let to = ((start + len - at * BLOCK) as usize).min(block.len());
            if blocks.len() == 1 {
                return Ok(block.slice(from..to));
            }
            bytes.extend_from_slice(&block[from..to]);
        }
        Ok(bytes.freeze())
    }

    /// The published version, open.
    async fn base_file(
        &self,
        inode: &Inode,
        content: &mut Content,
    ) -> std::result::Result<Arc<dyn File>, StoreError> {
        if let Some(file) = &content.file {
            return Ok(file.clone());
        }
        let key = self.table.key(inode).map_err(stale)?;
        let file: Arc<dyn File> = self.store.open(&self.volume, &key).await?.into();
        if content.base.as_ref().is_some_and(|base| base.version == file.info().version) {
            (content.file, content.former) = (Some(file.clone()), None);
            return Ok(file);
        }
        Err(StoreError::new(ErrorKind::Conflict, "the file was replaced"))
    }

    /// Goes on with what is published now; if that is gone, with what was open before it.
    async fn reopen(&self, inode: &Arc<Inode>) -> Result<()> {
        let reopened = self.reopen_now(inode).await;
        if reopened != Err(Errno::ESTALE) {
            return reopened;
        }
        let mut content = self.still(inode).await;
        let info = content.go_back().ok_or(Errno::ESTALE)?;
        let mut meta = inode.meta.lock().unwrap();
        meta.version = Some(info.version);
        meta.stored = info.allocated_bytes();
        meta.resize(info.size, 0);
        Ok(())
    }

    async fn reopen_now(&self, inode: &Arc<Inode>) -> Result<()> {
        let key = self.table.key(inode)?;
        let mut content = self.still(inode).await;
        let info = patiently!(self, self.store.stat(&self.volume, &key));
        let info = match info {
            Err(fault) if fault.kind == ErrorKind::NotFound => {
                // A file with several names is read under another one.
                let has_others = inode.place.lock().unwrap().names().len() > 1;
                return if has_others && self.table.take_used(inode) { Ok(()) } else { Err(Errno::ESTALE) };
            }
            found => found?,
        };
        if inode.is_another(&info) && !inode.is_unlinked() {
            return Err(Errno::ESTALE);
        }
        if self.is_outdated(inode, &content, &info) {
            // What is there now is read; who lost bytes for it is told another way, unless it is who reads.
            return match self.stand_back(inode, &mut content, &info) {
                Errno::EAGAIN => Ok(()),
                errno => Err(errno),
            };
        }
        content.rebase(&info, inode.attr().mtime_ns);
        // Also if it is the same version: the open file may know the name that it had before.
        content.file = None;
        let mut meta = inode.meta.lock().unwrap();
        meta.version = Some(info.version);
        meta.stored = info.allocated_bytes();
        meta.resize(content.overlay.size(), content.overlay.bytes());
        Ok(())
    }
}
