//! One frame: a fixed header, a control part, raw payload bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | length of the control part |
//! | 4..8 | length of the payload |
//! | 8..16 | id: of the request, or of the request that opened the file or writer it belongs to |
//! | 16 | kind |
//! | 17 | flags |
//! | 18..20 | zero |
//! | 20..24 | deadline of a request in milliseconds; 0 for none |
//! | 24..28 | CRC32C of the payload; 0 where the flags say that it has none |
//! | 28..32 | CRC32C of the header before this field and the control part |
//!
//! All numbers are little-endian. The sender of requests draws ids, each once per connection. Kinds 32 to 47 are
//! for leases: descriptors that travel over a Unix socket with the first byte of the frame that names them.

use std::os::fd::OwnedFd;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stoker_format::{crc32c, crc32c_combine};
use stoker_store::LEASE_DESCRIPTORS_MAX;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::fault::Fault;
use crate::message;

/// Length of a header.
pub const HEADER_LEN: usize = 32;
/// Longest control part.
pub const CONTROL_LEN_MAX: usize = 1 << 20;
/// Longest payload.
pub const PAYLOAD_LEN_MAX: usize = 8 << 20;
/// Longest payload that our writers send in one frame, so that streams take turns.
pub const DATA_LEN_MAX: usize = 1 << 20;
/// Most bytes that our readers ask for at once.
pub const READ_LEN_MAX: usize = 4 << 20;
/// Longest answer, over all the frames that it is cut into.
pub(crate) const RESPONSE_LEN_MAX: usize = 64 << 20;

/// The answer goes on in the next frame.
pub(crate) const FLAG_MORE: u8 = 1;
/// The payload of a writer has no checksum of its own; that of the whole file comes when it is published.
pub(crate) const FLAG_UNSUMMED: u8 = 2;
/// The first protocol with such payloads.
pub(crate) const UNSUMMED_VERSION: u16 = 6;

/// What guards the bytes of a writer. (D64)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DataSum {
    /// A checksum of each frame, and that of the file.
    OfFrame,
    /// The checksum of the file, which is compared before it is published.
    OfFile,
}

/// Bytes of a writer that lie in the memory which both sides share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct InHatch {
    pub slot: u32,
    pub offset: u32,
    pub len: u32,
}

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A request; its id is new.
    Request = 1,
    /// The answer to the request of that id.
    Response = 2,
    /// The sender of a request wants nothing more of it: a call is given up, a file closed, a writer dropped.
    Release = 3,
    /// The server ends the connection and says why; requests under way may still be answered.
    Goaway = 4,
    /// Bytes for a writer, as many as were granted at most.
    Data = 16,
    /// How many bytes a writer has to send in all, so far.
    Want = 17,
    /// How many bytes a writer may send in all, so far.
    Grant = 18,
    /// The writer failed and is gone.
    Failed = 19,
    /// The same as Data for bytes in the hatch; the control part is an [`InHatch`].
    DataAt = 20,
    /// The answer to a request for leases, with descriptors beside it; the payload holds the tables of checksums.
    Lease = 32,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Request,
            2 => Kind::Response,
            3 => Kind::Release,
            4 => Kind::Goaway,
            16 => Kind::Data,
            17 => Kind::Want,
            18 => Kind::Grant,
            19 => Kind::Failed,
            20 => Kind::DataAt,
            32 => Kind::Lease,
            _ => return None,
        })
    }
}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Bit 0: the answer goes on in the next frame. Bit 1: bytes of a writer without a checksum of the frame.
    pub flags: u8,
    /// Request, file or writer.
    pub id: u64,
    /// Length of the control part.
    pub control_len: u32,
    /// Length of the payload.
    pub payload_len: u32,
    /// Deadline of a request in milliseconds; 0 for none.
    pub deadline_ms: u32,
    /// CRC32C of the payload.
    pub payload_crc: u32,
    /// CRC32C of header and control part.
    pub control_crc: u32,
}

impl Header {
    /// Reads a header; refuses unknown kinds and lengths over the limits. The checksum is [`Self::check`]ed later.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, Fault> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let id = u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32;
        let kind = Kind::from_byte(bytes[16])
            .ok_or_else(|| Fault::broken(format!("a frame of unknown kind {}", bytes[16])))?;
        let (control_len, payload_len) = (u32_at(0), u32_at(4));
        if control_len as usize > CONTROL_LEN_MAX {
            return Err(Fault::broken(format!(
                "a control part of {control_len} bytes; the limit is {CONTROL_LEN_MAX}"
            )));
        }
        if payload_len as usize > PAYLOAD_LEN_MAX {
            return Err(Fault::broken(format!(
                "a payload of {payload_len} bytes; the limit is {PAYLOAD_LEN_MAX}"
            )));
        }
        Ok(Header {
            kind,
            flags: bytes[17],
            id,
            control_len,
            payload_len,
            deadline_ms: u32_at(20),
            payload_crc: u32_at(24),
            control_crc: u32_at(28),
        })
    }

    fn encode_before_crc(&self) -> [u8; HEADER_LEN - 4] {
        let mut bytes = [0; HEADER_LEN - 4];
        bytes[0..4].copy_from_slice(&self.control_len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16] = self.kind as u8;
        bytes[17] = self.flags;
        bytes[20..24].copy_from_slice(&self.deadline_ms.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes
    }

    /// The checksum that fits this header and control part.
    pub fn crc_with(&self, control: &[u8]) -> u32 {
        crc32c_combine(crc32c(&self.encode_before_crc()), crc32c(control), control.len() as u64)
    }

    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..HEADER_LEN - 4].copy_from_slice(&self.encode_before_crc());
        bytes[HEADER_LEN - 4..].copy_from_slice(&self.control_crc.to_le_bytes());
        bytes
    }

    /// Checks header and control part against their checksum.
    pub fn check(&self, control: &[u8]) -> Result<(), Fault> {
        if self.crc_with(control) == self.control_crc {
            return Ok(());
        }
        Err(Fault::broken("a frame arrived damaged: its checksum does not fit"))
    }

    /// Checks payload bytes, whose CRC32C the caller computed, against the one in the header.
    pub(crate) fn check_payload(&self, crc: u32) -> Result<(), Fault> {
        if crc == self.payload_crc {
            return Ok(());
        }
        Err(Fault::broken("payload bytes arrived damaged: their checksum does not fit"))
    }
}

/// A frame on its way out.
pub(crate) struct OutFrame {
    /// Header and control part.
    pub head: Bytes,
    /// Payload, sent from where it is.
    pub payload: Bytes,
    /// Leave with the first byte, on a Unix socket; ours are closed then.
    pub descriptors: Vec<OwnedFd>,
    /// Lives until the last byte is with the kernel: permits that bound what is under way.
    _guard: Option<Box<dyn Send>>,
}

impl OutFrame {
    /// A frame without a payload.
    pub fn control(kind: Kind, id: u64, control: &impl Serialize) -> OutFrame {
        OutFrame::new(kind, id, 0, &message::encode(control), Bytes::new())
    }

    /// A frame without control part and payload.
    pub fn bare(kind: Kind, id: u64) -> OutFrame {
        OutFrame::new(kind, id, 0, &[], Bytes::new())
    }

    /// A frame of all its parts.
    pub fn new(kind: Kind, id: u64, deadline_ms: u32, control: &[u8], payload: Bytes) -> OutFrame {
        OutFrame::flagged(kind, 0, id, deadline_ms, control, payload)
    }

    fn flagged(kind: Kind, flags: u8, id: u64, deadline_ms: u32, control: &[u8], payload: Bytes) -> OutFrame {
        assert!(
            control.len() <= CONTROL_LEN_MAX && payload.len() <= PAYLOAD_LEN_MAX,
            "our own frame is too large"
        );
        let mut header = Header {
            kind,
            flags,
            id,
            control_len: control.len() as u32,
            payload_len: payload.len() as u32,
            deadline_ms,
            payload_crc: if flags & FLAG_UNSUMMED == 0 { crc32c(&payload) } else { 0 },
            control_crc: 0,
        };
        header.control_crc = header.crc_with(control);
        let mut head = Vec::with_capacity(HEADER_LEN + control.len());
        head.extend_from_slice(&header.encode());
        head.extend_from_slice(control);
        OutFrame { head: head.into(), payload, descriptors: Vec::new(), _guard: None }
    }

    /// An answer, cut into as many frames as it needs; the payload goes with the last.
    pub fn response(id: u64, control: &[u8], payload: Bytes) -> Vec<OutFrame> {
        let mut frames = Vec::new();
        let mut rest = control;
        while rest.len() > CONTROL_LEN_MAX {
            let (piece, behind) = rest.split_at(CONTROL_LEN_MAX);
            frames.push(OutFrame::flagged(Kind::Response, FLAG_MORE, id, 0, piece, Bytes::new()));
            rest = behind;
        }
        frames.push(OutFrame::flagged(Kind::Response, 0, id, 0, rest, payload));
        frames
    }

    /// Bytes of a writer.
    pub fn data(id: u64, payload: Bytes, sum: DataSum) -> OutFrame {
        let flags = if sum == DataSum::OfFile { FLAG_UNSUMMED } else { 0 };
        OutFrame::flagged(Kind::Data, flags, id, 0, &[], payload)
    }

    /// Bytes of a writer that the other side finds in the hatch.
    pub fn data_at(id: u64, place: InHatch) -> OutFrame {
        OutFrame::control(Kind::DataAt, id, &place)
    }

    /// An answer with descriptors.
    pub fn lease(id: u64, control: &[u8], payload: Bytes, descriptors: Vec<OwnedFd>) -> OutFrame {
        assert!(!descriptors.is_empty() && descriptors.len() <= LEASE_DESCRIPTORS_MAX, "checked before");
        OutFrame { descriptors, ..OutFrame::new(Kind::Lease, id, 0, control, payload) }
    }

    /// Bytes that are to be written.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// The same frame with something that is dropped once it is written.
    pub fn guarded(self, guard: impl Send + 'static) -> OutFrame {
        OutFrame { _guard: Some(Box::new(guard)), ..self }
    }
}

/// Reads header and control part of the next frame and checks them; the payload is left in the stream.
pub(crate) async fn read_head(reader: &mut (impl AsyncRead + Unpin)) -> Result<(Header, Vec<u8>), Fault> {
    let mut raw = [0; HEADER_LEN];
    reader.read_exact(&mut raw).await?;
    let header = Header::decode(&raw)?;
    let mut control = vec![0; header.control_len as usize];
    reader.read_exact(&mut control).await?;
    header.check(&control)?;
    Ok((header, control))
}

/// Reads and throws away the payload of a frame that nobody waits for.
pub(crate) async fn skip_payload(
    reader: &mut (impl AsyncRead + Unpin),
    header: &Header,
) -> Result<(), Fault> {
    let mut scratch = [0; 16 << 10];
    let mut rest = header.payload_len as usize;
    while rest > 0 {
        let part = rest.min(scratch.len());
        reader.read_exact(&mut scratch[..part]).await?;
        rest -= part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(frame: &OutFrame) -> (Header, Vec<u8>) {
        let raw: [u8; HEADER_LEN] = frame.head[..HEADER_LEN].try_into().unwrap();
        (Header::decode(&raw).unwrap(), frame.head[HEADER_LEN..].to_vec())
    }

    #[test]
    fn a_frame_reads_back() {
        let frame =
            OutFrame::new(Kind::Data, 1 << 40 | 7, 1500, b"control", Bytes::from_static(b"123456789"));
        let (header, control) = split(&frame);
        assert_eq!((header.kind, header.id, header.deadline_ms), (Kind::Data, 1 << 40 | 7, 1500));
        assert_eq!((header.payload_len, header.payload_crc), (9, 0xe306_9283));
        assert_eq!(control, b"control");
        header.check(&control).unwrap();
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let frame = OutFrame::new(Kind::Want, 3, 0, b"abc", Bytes::new());
        for bit in 0..frame.head.len() * 8 {
            let mut bytes = frame.head.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let raw: [u8; HEADER_LEN] = bytes[..HEADER_LEN].try_into().unwrap();
            // Bytes 18 and 19 are not read; what is read must not differ unnoticed.
            let noticed = Header::decode(&raw).and_then(|header| header.check(&bytes[HEADER_LEN..])).is_err();
            assert!(noticed || (18 * 8..20 * 8).contains(&bit), "bit {bit}");
        }
    }

    #[test]
    fn long_answers_are_cut() {
        let control: Vec<u8> = (0..CONTROL_LEN_MAX * 2 + 5).map(|at| at as u8).collect();
        let frames = OutFrame::response(9, &control, Bytes::from_static(b"p"));
        let parts: Vec<_> = frames.iter().map(split).collect();
        assert_eq!(parts.iter().map(|(header, _)| header.flags).collect::<Vec<_>>(), [1, 1, 0]);
        assert_eq!(parts.iter().map(|(header, _)| header.payload_len).collect::<Vec<_>>(), [0, 0, 1]);
        let joined: Vec<u8> = parts.into_iter().flat_map(|(_, control)| control).collect();
        assert_eq!(joined, control);
    }
}
