//! Bytes of writers on their way in: from the socket or from the hatch, into the writer's own memory.
//!
//! Sums are taken while the bytes are in the processor's cache; those that the drive needs stay with the buffer.

use std::io;
use std::time::Duration;

use stoker_format::{crc32c, crc32c_combine};
use stoker_store::{Buf, HatchOut, SLOT_LEN};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::inlet::{Inlet, Posted};
use crate::fault::Fault;
use crate::frame::{FLAG_UNSUMMED, Header, InHatch, UNSUMMED_VERSION};
use crate::socket::ReadHalf;

/// Read and summed at once: small enough for the second cache.
const PIECE: usize = 256 << 10;

/// The buffers of a writer while bytes come in.
struct Filling<'a> {
    inlet: &'a Inlet,
    grow: fn(&mut Buf, usize),
    full: Vec<Posted>,
    open: Option<Posted>,
}

impl<'a> Filling<'a> {
    /// For so many bytes, which must have been granted.
    fn new(inlet: &'a Inlet, len: usize) -> Result<Filling<'a>, Fault> {
        if len as u64 > inlet.credit() {
            return Err(Fault::broken("bytes for a writer beyond what was granted"));
        }
        let grow = if inlet.is_late { Buf::grow } else { Buf::grow_summed };
        Ok(Filling { inlet, grow, full: Vec::new(), open: None })
    }

    /// Memory for the next bytes, `rest` at most.
    fn room(&mut self, rest: usize) -> Result<&mut [u8], Fault> {
        if self.open.is_none() {
            self.open = self.inlet.take();
        }
        match &mut self.open {
            Some(posted) => {
                let spare = posted.buf.spare_mut();
                let len = spare.len().min(rest).min(PIECE);
                Ok(&mut spare[..len])
            }
            None => Err(Fault::broken("bytes for a writer without memory for them")),
        }
    }

    /// So many bytes of the room were filled; returns them.
    fn filled(&mut self, len: usize) -> &[u8] {
        let mut posted = self.open.take().expect("room was given");
        let start = posted.buf.len();
        (self.grow)(&mut posted.buf, len);
        let posted = if posted.buf.len() < posted.buf.capacity() {
            self.open.insert(posted)
        } else {
            self.full.push(posted);
            self.full.last_mut().expect("pushed above")
        };
        &posted.buf.as_slice()[start..]
    }

    /// All came and may be written.
    fn end(self, len: usize) {
        self.inlet.received(len as u64, self.full, self.open);
    }
}

/// Reads the payload of a frame. It counts only once its checksum fits, if it has one.
pub(super) async fn from_socket(
    inlet: &Inlet,
    reader: &mut ReadHalf,
    header: &Header,
    version: u16,
    stall: Duration,
) -> Result<(), Fault> {
    // Where it has none, that of the whole file is compared before it is published.
    let is_summed = header.flags & FLAG_UNSUMMED == 0 || version < UNSUMMED_VERSION;
    let len = header.payload_len as usize;
    let mut filling = Filling::new(inlet, len)?;
    let (mut rest, mut crc) = (len, 0);
    while rest > 0 {
        let read = reader.read(filling.room(rest)?);
        let read = match timeout(stall, read).await.map_err(|_| Fault::Stalled)?? {
            0 => return Err(Fault::Io(io::ErrorKind::UnexpectedEof.into())),
            read => read,
        };
        let fresh = filling.filled(read);
        if is_summed {
            crc = crc32c_combine(crc, crc32c(fresh), read as u64);
        }
        rest -= read;
    }
    if is_summed {
        header.check_payload(crc)?;
    }
    filling.end(len);
    Ok(())
}

/// Takes bytes out of the hatch; returns how many. The sum of the whole file is compared before it is published.
pub(super) fn from_hatch(inlet: Option<&Inlet>, hatch: &HatchOut, place: InHatch) -> Result<u64, Fault> {
    let InHatch { slot, offset, len } = place;
    let (offset, len) = (offset as usize, len as usize);
    if slot as usize >= hatch.slots() || offset.saturating_add(len) > SLOT_LEN {
        return Err(Fault::broken("bytes outside of the hatch"));
    }
    // Who wrote them may be gone; the slot is free all the same.
    if let Some(inlet) = inlet {
        let mut filling = Filling::new(inlet, len)?;
        let mut done = 0;
        while done < len {
            let room = filling.room(len - done)?;
            let taken = room.len();
            hatch.take(slot, offset + done, room);
            filling.filled(taken);
            done += taken;
        }
        filling.end(len);
    }
    hatch.free(slot);
    Ok(len as u64)
}
