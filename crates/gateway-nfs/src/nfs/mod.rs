//! The procedures of NFSv3 (RFC 1813).

mod attr;
mod directories;
mod files;
mod info;
mod names;
mod status;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stoker_files::{Acl, Attr};
use tokio::time::Instant;

use crate::access::Identity;
use crate::admission::{NfsClient, Room};
use crate::connection::Service;
use crate::counters::Counters;
use crate::handle::{HANDLE_LEN_MAX, Handle, NoHandle};
use crate::record::Reply;
use crate::rpc::{self, Call, Refusal};
use crate::volumes::Volume;
use crate::xdr::{self, Garbage, Reader, Writer};
pub use status::Status;

/// Most bytes of a read or a write.
pub const TRANSFER_MAX: u32 = 1 << 20;

/// A change that could not be made for this long is not made any more.
pub const AGE_MAX: Duration = Duration::from_secs(30);

/// Result of a procedure.
type Outcome<T> = Result<T, Status>;

/// Something that a request is about.
struct At {
    volume: Arc<Volume>,
    ino: u64,
    who: Identity,
    begun: Instant,
}

impl At {
    /// Whether a change may still be made, or made again over what others published. Who asked longer ago may have asked
    /// another node meanwhile, and have gone on from there: it is told to ask again, if it is still there.
    fn is_fresh(&self) -> bool {
        self.begun.elapsed() < AGE_MAX
    }

    /// The list that says more than the mode.
    fn acl(&self, attr: &Attr) -> Option<Acl> {
        self.volume.files.acl(attr.ino)
    }

    /// Whether who asks may do all of this.
    fn may(&self, attr: &Attr, wish: u32) -> bool {
        self.who.may(attr, self.acl(attr).as_ref(), wish)
    }
}

/// A request while it is worked on.
struct Asked<'s> {
    service: &'s Arc<Service>,
    client: &'s NfsClient,
    begun: Instant,
    caller: Option<Identity>,
    out: Writer,
    /// Bytes of a file that follow.
    data: Bytes,
    room: Option<Room>,
}

/// Whether a request must not be carried out twice.
pub fn is_once(call: &Call) -> bool {
    // SETATTR, and all that change names.
    call.program == rpc::NFS && matches!(call.procedure, 2 | 8..=15)
}

pub async fn answer(service: &Arc<Service>, client: &NfsClient, call: Call) -> Result<Reply, Refusal> {
    let out = rpc::accepted(call.xid, 256);
    let front = out.len();
    let begun = Instant::now();
    let mut asked =
        Asked { service, client, begun, caller: call.caller, out, data: Bytes::new(), room: None };
    let input = Reader::new(call.args);
    let read = match call.procedure {
        0 => Ok(()),
        1 => asked.getattr(input).await,
        2 => asked.setattr(input).await,
        3 => asked.lookup(input).await,
        4 => asked.access(input).await,
        5 => asked.readlink(input).await,
        6 => asked.read(input).await,
        7 => asked.write(input).await,
        8 => asked.create(input).await,
        9 => asked.mkdir(input).await,
        10 => asked.symlink(input).await,
        11 => asked.mknod(input).await,
        12 => asked.remove(input).await,
        13 => asked.rmdir(input).await,
        14 => asked.rename(input).await,
        15 => asked.link(input).await,
        16 => asked.readdir(input).await,
        17 => asked.readdirplus(input).await,
        18 => asked.fsstat(input).await,
        19 => asked.fsinfo(input).await,
        20 => asked.pathconf(input).await,
        21 => asked.commit(input).await,
        _ => return Err(Refusal::ProcedureUnknown),
    };
    read.map_err(|Garbage| Refusal::Arguments)?;
    if let Some(times) = service.counters.times.get(call.procedure as usize) {
        times.note(begun.elapsed());
    }
    let Asked { out, data, room, .. } = asked;
    let head = out.freeze();
    if head.get(front..front + 4).is_some_and(|status| status != [0; 4]) {
        Counters::add(&service.counters.failed, 1);
    }
    Ok(Reply { head, data, _room: room })
}

impl Asked<'_> {
    /// What a handle is of, for who asks.
    async fn at(&self, handle: &Bytes) -> Outcome<At> {
        let handle = Handle::decode(handle, self.service.volumes.handle_key()).map_err(|why| match why {
            NoHandle::Foreign => Status::BadHandle,
            NoHandle::Unknown => Status::Stale,
        })?;
        let volume = match self.service.volumes.by_id(handle.volume).await {
            Ok(volume) => volume.ok_or(Status::Stale)?,
            Err(fault) => {
                tracing::warn!("{fault}");
                return Err(Status::Jukebox);
            }
        };
        if !volume.export.allows(self.client.address) {
            return Err(Status::Access);
        }
        self.client.prove();
        let ino = volume.resolve(&handle).await?;
        let who = volume.export.identity(self.caller.clone());
        Ok(At { volume, ino, who, begun: self.begun })
    }

    /// The same for a request that changes something.
    async fn at_change(&self, handle: &Bytes) -> Outcome<At> {
        let at = self.at(handle).await?;
        if at.volume.export.read_only {
            return Err(Status::ReadOnly);
        }
        if !at.is_fresh() {
            return Err(Status::Jukebox);
        }
        Ok(at)
    }

    /// Room for an answer of so many bytes.
    async fn make_room(&mut self, bytes: u32) -> Outcome<()> {
        self.room = Some(self.client.output.acquire(bytes as usize).await.ok_or(Status::Jukebox)?);
        Ok(())
    }

    fn status(&mut self, status: Status) {
        self.out.u32(status as u32);
    }
}

fn read_handle(input: &mut Reader) -> xdr::Result<Bytes> {
    input.opaque(HANDLE_LEN_MAX)
}

/// A directory and a name in it. Names that are too long are read, and refused by the file system.
fn read_entry(input: &mut Reader) -> xdr::Result<(Bytes, Bytes)> {
    Ok((read_handle(input)?, input.opaque(4096)?))
}
