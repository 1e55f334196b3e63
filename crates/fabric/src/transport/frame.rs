//! One frame: a fixed header, a small head, bulk bytes. Drawn in `docs/wire.md`.
//!
//! The header has a checksum of its own, so no length is believed before it is known to be what was sent.

use stoker_format::crc32c;

use super::end::End;

/// Length of a header.
pub(super) const HEADER_LEN: usize = 40;
/// Longest head of a message.
pub const HEAD_LEN_MAX: usize = 64 << 10;
/// Longest body of a message.
pub const BODY_LEN_MAX: usize = 16 << 20;

/// The answer is a fault of the service: its code is the kind, its text the head.
pub(super) const FLAG_FAULT: u8 = 1;
/// The request was not answered: the kind says why, see [`Unserved`].
pub(super) const FLAG_UNSERVED: u8 = 2;
/// On an answer: its body has the checksum that it should have. If it does not fit, the caller is told, and the connection goes on.
pub(super) const FLAG_CLAIMED: u8 = 4;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Form {
    /// A request; its id is new.
    Request = 1,
    /// The answer to the request of that id, and the end of it.
    Answer = 2,
    /// The caller gave the request up; it is answered all the same, so that both sides agree on what is under way.
    Cancel = 3,
    /// Wants a pong of the same id.
    Ping = 4,
    /// The answer to a ping.
    Pong = 5,
    /// No more requests, please: those under way are answered, then the connection ends. The kind is a reason.
    Goodbye = 6,
}

impl Form {
    fn from_byte(byte: u8) -> Option<Form> {
        Some(match byte {
            1 => Form::Request,
            2 => Form::Answer,
            3 => Form::Cancel,
            4 => Form::Ping,
            5 => Form::Pong,
            6 => Form::Goodbye,
            _ => return None,
        })
    }
}

/// Why a request was not answered by the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(super) enum Unserved {
    /// It was given up.
    Cancelled = 1,
    /// Its deadline passed.
    Deadline = 2,
    /// The service broke down.
    Broken = 3,
    /// The answer was longer than the caller allowed.
    TooLong = 4,
    /// The node is stopping; the service did not see the request.
    Stopping = 5,
}

impl Unserved {
    /// By its number; what this release does not know counts as broken.
    pub fn from_number(number: u16) -> Unserved {
        match number {
            1 => Unserved::Cancelled,
            2 => Unserved::Deadline,
            4 => Unserved::TooLong,
            5 => Unserved::Stopping,
            _ => Unserved::Broken,
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub form: Form,
    pub flags: u8,
    /// Kind of the message, code of the fault, or reason.
    pub kind: u16,
    /// Request or ping; drawn by the side that sends requests, each once per connection.
    pub id: u64,
    pub head_len: u32,
    pub body_len: u32,
    /// Time that a request has left; 0 for none.
    pub deadline_ms: u32,
    /// Longest body that the answer to a request may have.
    pub answer_len_max: u32,
    pub body_crc: u32,
    pub head_crc: u32,
}

impl Header {
    /// A header without head and body.
    pub fn bare(form: Form, id: u64) -> Header {
        Header {
            form,
            flags: 0,
            kind: 0,
            id,
            head_len: 0,
            body_len: 0,
            deadline_ms: 0,
            answer_len_max: 0,
            body_crc: 0,
            head_crc: 0,
        }
    }

    /// Reads a header; refuses damage, unknown forms and lengths over the limits.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, End> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if crc32c(&bytes[..36]) != u32_at(36) {
            return Err(End::broken("a frame arrived damaged: the checksum of its header does not fit"));
        }
        let form = Form::from_byte(bytes[18])
            .ok_or_else(|| End::broken(format!("a frame of unknown form {}", bytes[18])))?;
        let header = Header {
            form,
            flags: bytes[19],
            kind: u16::from_le_bytes([bytes[16], bytes[17]]),
            id: u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32,
            head_len: u32_at(0),
            body_len: u32_at(4),
            deadline_ms: u32_at(20),
            answer_len_max: u32_at(24),
            body_crc: u32_at(28),
            head_crc: u32_at(32),
        };
        header.check_lengths()?;
        Ok(header)
    }

    fn check_lengths(&self) -> Result<(), End> {
        let within = |what: &str, len: u32, max: usize| match len as usize <= max {
            true => Ok(()),
            false => Err(End::broken(format!("a frame with {what} of {len} bytes; the limit is {max}"))),
        };
        within("a head", self.head_len, HEAD_LEN_MAX)?;
        within("a body", self.body_len, BODY_LEN_MAX)?;
        within("room for an answer", self.answer_len_max, BODY_LEN_MAX)?;
        let plain = matches!(self.form, Form::Request | Form::Answer);
        if !plain && (self.head_len, self.body_len) != (0, 0) {
            return Err(End::broken("a frame with bytes that its form does not have"));
        }
        Ok(())
    }

    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&self.head_len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.kind.to_le_bytes());
        bytes[18] = self.form as u8;
        bytes[19] = self.flags;
        bytes[20..24].copy_from_slice(&self.deadline_ms.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.answer_len_max.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.body_crc.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.head_crc.to_le_bytes());
        let crc = crc32c(&bytes[..36]);
        bytes[36..40].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Checks a head against its checksum.
    pub fn check_head(&self, head: &[u8]) -> Result<(), End> {
        if crc32c(head) == self.head_crc {
            return Ok(());
        }
        Err(End::broken("a head arrived damaged: its checksum does not fit"))
    }

    /// Checks the CRC32C of a body, unless that is left to the caller.
    pub fn check_body(&self, crc: u32) -> Result<(), End> {
        if crc == self.body_crc || self.flags & FLAG_CLAIMED != 0 {
            return Ok(());
        }
        Err(End::broken("a body arrived damaged: its checksum does not fit"))
    }

    /// What a request takes of the window while it is under way, in bytes.
    pub fn weight(&self) -> u32 {
        self.body_len.max(self.answer_len_max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Header {
        Header {
            form: Form::Request,
            flags: FLAG_FAULT,
            kind: 0x0102,
            id: 0x1112_1314_1516_1718,
            head_len: 0x0304,
            body_len: 0x0005_0607,
            deadline_ms: 0x2122_2324,
            answer_len_max: 0x0031_3233,
            body_crc: 0x4142_4344,
            head_crc: 0x5152_5354,
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let hex: String = sample().encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&hex[..72], "040300000706050018171615141312110201010124232221333231004443424154535251");
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = sample().encode();
        for bit in 0..HEADER_LEN * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn lengths_beyond_the_limits_are_refused() {
        for header in [
            Header { head_len: HEAD_LEN_MAX as u32 + 1, ..sample() },
            Header { body_len: BODY_LEN_MAX as u32 + 1, ..sample() },
            Header { answer_len_max: u32::MAX, ..sample() },
            Header { form: Form::Ping, ..sample() },
        ] {
            assert!(matches!(Header::decode(&header.encode()), Err(End::Broken(_))), "{header:?}");
        }
    }

    proptest! {
        #[test]
        fn headers_read_back(
            kind: u16, flags: u8, id: u64, deadline_ms: u32, body_crc: u32, head_crc: u32,
            head_len in 0..=HEAD_LEN_MAX as u32, body_len in 0..=BODY_LEN_MAX as u32,
            answer_len_max in 0..=BODY_LEN_MAX as u32, answer: bool,
        ) {
            let form = if answer { Form::Answer } else { Form::Request };
            let header = Header {
                form, flags, kind, id, head_len, body_len, deadline_ms, answer_len_max, body_crc, head_crc,
            };
            prop_assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        }

        /// Whatever arrives: an error, or a header within the limits. With the right checksum, since random bytes
        /// would hardly get past it.
        #[test]
        fn foreign_bytes_are_refused_or_within_limits(mut bytes: [u8; HEADER_LEN], summed: bool) {
            if summed {
                let crc = crc32c(&bytes[..36]);
                bytes[36..].copy_from_slice(&crc.to_le_bytes());
            }
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert!(header.head_len as usize <= HEAD_LEN_MAX);
                prop_assert!(header.body_len as usize <= BODY_LEN_MAX);
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}
