//! A file that is open in the node, read from here.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use stoker_store::{BoxFuture, ErrorKind, File, FileInfo, Key, Result, Seek, StoreError, is_alone};
use tokio::sync::Mutex;

use super::leases::FileLeases;
use super::link::{Link, Reply};
use super::{Attempts, Client, unexpected};
use crate::frame::READ_LEN_MAX;
use crate::message::{Request, Response};

pub(super) struct RemoteFile {
    client: Client,
    volume: String,
    key: Key,
    info: FileInfo,
    handle: Mutex<Arc<Handle>>,
    /// Whether the reader said so; also after the connection was lost.
    wants_all: AtomicBool,
}

/// Smaller files are read through the node: one answer brings the whole of it, and a segment that was shown to somebody
/// costs the drive a new one later. (D22)
const LEASE_SIZE_MIN: u64 = 256 << 10;

/// The file in one connection; closed when nobody reads any more.
struct Handle {
    link: Arc<Link>,
    id: u64,
    leases: FileLeases,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.link.release(self.id);
    }
}

impl Handle {
    /// Opens the present version; asks again on a new connection.
    async fn open(client: &Client, volume: &str, key: &Key) -> Result<(Handle, FileInfo)> {
        let request = Request::Open { volume: volume.to_owned(), key: key.clone() };
        let mut attempts = Attempts::default();
        loop {
            let link = client.link().await?;
            let id = link.new_id();
            match client.within(&request, link.call(id, &request)).await? {
                Ok(reply) => {
                    return match reply.into_result()?.response.unlinked() {
                        Response::File(info) => {
                            let leases = FileLeases::new(link.clone(), id);
                            Ok((Handle { link, id, leases }, *info))
                        }
                        _ => Err(unexpected()),
                    };
                }
                Err(lost) => attempts.again(lost)?,
            }
        }
    }
}

impl RemoteFile {
    pub async fn open(client: &Client, volume: &str, key: &Key) -> Result<RemoteFile> {
        let (handle, info) = Handle::open(client, volume, key).await?;
        Ok(RemoteFile {
            client: client.clone(),
            volume: volume.to_owned(),
            key: key.clone(),
            info,
            handle: Mutex::new(Arc::new(handle)),
            wants_all: AtomicBool::new(false),
        })
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        let len = len.min(READ_LEN_MAX);
        let rest = self.info.size.saturating_sub(offset);
        let mut attempts = Attempts::default();
        loop {
            let handle = self.handle.lock().await.clone();
            if self.info.size >= LEASE_SIZE_MIN && len > 0 && rest > 0 {
                let len = len.min(usize::try_from(rest).unwrap_or(len));
                if let Some(bytes) = handle.leases.read(&self.client, offset, len).await {
                    return Ok(bytes);
                }
            }
            let request = Request::Read { file: handle.id, offset, len: len as u32 };
            let call = handle.link.call(handle.link.new_id(), &request);
            match self.client.within(&request, call).await? {
                Ok(reply) => return take_bytes(reply.into_result()?, len),
                Err(lost) => {
                    attempts.again(lost)?;
                    self.reopen(&handle).await?;
                }
            }
        }
    }

    /// The same into memory of the caller, without a copy where the drive can be read by this thread.
    async fn read_within(&self, offset: u64, len: usize, room: &mut [u8]) -> Result<Range<usize>> {
        let rest = usize::try_from(self.info.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.min(rest).min(room.len());
        if is_alone() && self.info.size >= LEASE_SIZE_MIN && len > 0 {
            let handle = self.handle.lock().await.clone();
            if let Some(found) = handle.leases.read_within(&self.client, offset, len, room).await {
                return Ok(found);
            }
        }
        let bytes = self.read(offset, len).await?;
        let count = bytes.len().min(room.len());
        room[..count].copy_from_slice(&bytes[..count]);
        Ok(0..count)
    }

    /// Looks for bytes or a hole.
    async fn seek(&self, offset: u64, what: Seek) -> Result<Option<u64>> {
        if offset >= self.info.size {
            return Ok(None);
        }
        if self.info.allocated.is_none() {
            // Without holes, or of a node that knows none.
            return Ok(Some(if what == Seek::Data { offset } else { self.info.size }));
        }
        let mut attempts = Attempts::default();
        loop {
            let handle = self.handle.lock().await.clone();
            let request = Request::Seek { file: handle.id, offset, what };
            let call = handle.link.call(handle.link.new_id(), &request);
            match self.client.within(&request, call).await? {
                Ok(reply) => {
                    return match reply.into_result()?.response {
                        Response::Sought(found) if found.is_none_or(|at| at >= offset) => Ok(found),
                        _ => Err(unexpected()),
                    };
                }
                Err(lost) => {
                    attempts.again(lost)?;
                    self.reopen(&handle).await?;
                }
            }
        }
    }

    /// Opens the file again after the connection was lost, if it is still the same version.
    async fn reopen(&self, lost: &Arc<Handle>) -> Result<()> {
        let mut slot = self.handle.lock().await;
        if !Arc::ptr_eq(&slot, lost) {
            return Ok(());
        }
        let (handle, info) = Handle::open(&self.client, &self.volume, &self.key).await?;
        if info.version != self.info.version {
            let message = format!(
                "{}/{} was replaced while the connection was lost; open it again",
                self.volume, self.key
            );
            return Err(StoreError::new(ErrorKind::Conflict, message));
        }
        if self.wants_all.load(Ordering::Relaxed) {
            handle.leases.wants_all();
        }
        *slot = Arc::new(handle);
        Ok(())
    }
}

fn take_bytes(reply: Reply, len_max: usize) -> Result<Bytes> {
    match reply.response {
        Response::Read if reply.payload.len() <= len_max => Ok(reply.payload),
        _ => Err(unexpected()),
    }
}

impl File for RemoteFile {
    fn info(&self) -> &FileInfo {
        &self.info
    }

    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(RemoteFile::read(self, offset, len))
    }

    fn read_within<'a>(
        &'a self,
        offset: u64,
        len: usize,
        room: &'a mut [u8],
    ) -> BoxFuture<'a, Result<Range<usize>>> {
        Box::pin(RemoteFile::read_within(self, offset, len, room))
    }

    fn seek(&self, offset: u64, what: Seek) -> BoxFuture<'_, Result<Option<u64>>> {
        Box::pin(RemoteFile::seek(self, offset, what))
    }

    fn wants_all(&self) {
        self.wants_all.store(true, Ordering::Relaxed);
        // Nobody holds it for longer than it takes to look, but while a lost connection is made again.
        if let Ok(handle) = self.handle.try_lock() {
            handle.leases.wants_all();
        }
    }
}
