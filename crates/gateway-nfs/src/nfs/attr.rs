//! Attributes on the wire.

use stoker_files::{Attr, Kind};

use crate::volumes::{Change, Volume};
use crate::xdr::{Garbage, Reader, Result, Writer};

const SECOND_NS: i64 = 1_000_000_000;

/// What a client wants to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wish {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
}

/// A time to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    Now,
    At(i64),
}

impl Wish {
    pub fn read(input: &mut Reader) -> Result<Wish> {
        let word = |input: &mut Reader| input.bool()?.then(|| input.u32()).transpose();
        let (mode, uid, gid) = (word(input)?, word(input)?, word(input)?);
        let size = input.bool()?.then(|| input.u64()).transpose()?;
        let (atime, mtime) = (read_time(input)?, read_time(input)?);
        Ok(Wish { mode, uid, gid, size, atime, mtime })
    }
}

fn read_time(input: &mut Reader) -> Result<Option<Time>> {
    match input.u32()? {
        0 => Ok(None),
        1 => Ok(Some(Time::Now)),
        2 => Ok(Some(Time::At(read_ns(input)?))),
        _ => Err(Garbage),
    }
}

/// Seconds and nanoseconds.
pub fn read_ns(input: &mut Reader) -> Result<i64> {
    let (seconds, ns) = (input.u32()?, input.u32()?);
    Ok(i64::from(seconds) * SECOND_NS + i64::from(ns).min(SECOND_NS - 1))
}

fn write_ns(out: &mut Writer, ns: i64) {
    let ns = ns.clamp(0, i64::from(u32::MAX) * SECOND_NS);
    out.u32((ns / SECOND_NS) as u32);
    out.u32((ns % SECOND_NS) as u32);
}

/// When something changed last, as clients see it. A directory does not know what other doors and nodes did in it, so it
/// always looks as if it changed a moment ago: clients then ask again instead of believing what they remember.
pub fn changed_ns(volume: &Volume, attr: &Attr) -> i64 {
    match attr.kind {
        Kind::Directory => attr.ctime_ns.max((volume.now_ns)() / SECOND_NS * SECOND_NS),
        _ => attr.ctime_ns,
    }
}

/// `specdata3`: major and minor number of a device, of which kernels make one number in this way.
fn device(rdev: u32) -> [u32; 2] {
    [rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xfff00]
}

/// The number of a device.
pub fn device_of(major: u32, minor: u32) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
}

/// `fattr3`.
pub fn write_attr(out: &mut Writer, volume: &Volume, attr: &Attr) {
    out.u32(match attr.kind {
        Kind::File => 1,
        Kind::Directory => 2,
        Kind::BlockDevice => 3,
        Kind::CharDevice => 4,
        Kind::Symlink => 5,
        Kind::Socket => 6,
        Kind::Fifo => 7,
    });
    for word in [attr.mode, attr.nlink, attr.uid, attr.gid] {
        out.u32(word);
    }
    out.u64(attr.size);
    // What it takes, rounded as programs expect it.
    out.u64(attr.allocated.next_multiple_of(512));
    let [major, minor] = device(attr.rdev);
    out.u32(major);
    out.u32(minor);
    out.u64(volume.id.0.into());
    out.u64(attr.ino);
    write_ns(out, attr.atime_ns);
    write_ns(out, attr.mtime_ns);
    write_ns(out, changed_ns(volume, attr));
}

/// `post_op_attr`.
pub fn write_after(out: &mut Writer, volume: &Volume, attr: Option<&Attr>) {
    out.bool(attr.is_some());
    if let Some(attr) = attr {
        write_attr(out, volume, attr);
    }
}

/// `wcc_data` of a change.
pub fn write_change(out: &mut Writer, volume: &Volume, change: &Change<'_>) {
    let before = change.before();
    out.bool(before.is_some());
    if let Some(attr) = before {
        out.u64(attr.size);
        write_ns(out, attr.mtime_ns);
        write_ns(out, changed_ns(volume, &attr));
    }
    write_after(out, volume, change.after().as_ref());
}

/// `wcc_data` of what is not known.
pub fn write_no_change(out: &mut Writer) {
    out.bool(false);
    out.bool(false);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn wishes_are_read() {
        let mut out = Writer::default();
        for word in [1, 0o644, 0, 1, 100, 1] {
            out.u32(word);
        }
        out.u64(1 << 40);
        for word in [1, 2, 5, 6] {
            out.u32(word);
        }
        let mut input = Reader::new(out.freeze());
        let wish = Wish::read(&mut input).unwrap();
        let (atime, mtime) = (Some(Time::Now), Some(Time::At(5 * SECOND_NS + 6)));
        let (mode, gid, size) = (Some(0o644), Some(100), Some(1 << 40));
        assert_eq!(wish, Wish { mode, uid: None, gid, size, atime, mtime });
        assert!(input.rest().is_empty());
    }

    #[test]
    fn numbers_of_devices_come_back() {
        for rdev in [0, 0x0801, 0x0103, 0xfff0_1f34, u32::MAX] {
            let [major, minor] = device(rdev);
            assert_eq!(device_of(major, minor), rdev);
        }
        assert_eq!(device(0x0801), [8, 1]);
    }

    #[test]
    fn times_stay_within_what_they_can_be() {
        let check = |ns: i64, bytes: [u32; 2]| {
            let mut out = Writer::default();
            write_ns(&mut out, ns);
            let mut input = Reader::new(out.freeze());
            assert_eq!([input.u32().unwrap(), input.u32().unwrap()], bytes);
        };
        check(-5, [0, 0]);
        check(3 * SECOND_NS + 7, [3, 7]);
        check(i64::MAX, [u32::MAX, 0]);
    }

    proptest! {
        #[test]
        fn random_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Wish::read(&mut Reader::new(Bytes::from(bytes)));
        }
    }
}
