//! Types of the file system as types of the kernel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use stoker_files::{Attr, Errno, Kind};

/// What `stat` calls a good size to read.
const BLOCK_SIZE: u32 = 1 << 20;

pub(crate) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.code())
}

pub(crate) fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::CharDevice => FileType::CharDevice,
    }
}

fn time(ns: i64) -> SystemTime {
    let span = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - span } else { UNIX_EPOCH + span }
}

/// Nanoseconds since 1970 of a time that a program gave. The kernel counts nanoseconds forward also before 1970, and the library
/// takes them for backward.
pub(crate) fn ns(time: TimeOrNow, now_ns: i64) -> i64 {
    let at = match time {
        TimeOrNow::SpecificTime(at) => at,
        TimeOrNow::Now => return now_ns,
    };
    let (seconds, ns) = match at.duration_since(UNIX_EPOCH) {
        Ok(span) => (i128::from(span.as_secs()), span.subsec_nanos()),
        Err(before) => (-i128::from(before.duration().as_secs()), before.duration().subsec_nanos()),
    };
    let at = seconds * 1_000_000_000 + i128::from(ns);
    at.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// The time, nanoseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the edge: the file system takes time as an argument")]
pub(crate) fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| span.as_nanos() as i64)
}

pub(crate) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: time(attr.atime_ns),
        mtime: time(attr.mtime_ns),
        ctime: time(attr.ctime_ns),
        crtime: time(attr.ctime_ns),
        kind: kind(attr.kind),
        perm: attr.mode as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_program() {
        let check = |seconds: i64, nanoseconds: u32, expect: i64| {
            // What the library makes of the two numbers.
            let span = Duration::new(seconds.unsigned_abs(), nanoseconds);
            let given = if seconds < 0 { UNIX_EPOCH - span } else { UNIX_EPOCH + span };
            let found = ns(TimeOrNow::SpecificTime(given), 0);
            assert_eq!(found, expect, "{seconds} {nanoseconds}");
            let from = time(found).duration_since(UNIX_EPOCH).map_or_else(
                |before| -(before.duration().as_nanos() as i128),
                |span| span.as_nanos() as i128,
            );
            assert_eq!(from, i128::from(expect));
        };
        check(0, 1, 1);
        check(1_700_000_000, 123_456_789, 1_700_000_000_123_456_789);
        check(1 << 32, 5, (1 << 32) * 1_000_000_000 + 5);
        check(-5, 0, -5_000_000_000);
        check(-5, 999_999_999, -4_000_000_001);
        check(-1, 500_000_000, -500_000_000);
        assert_eq!(ns(TimeOrNow::Now, 77), 77);
        assert_eq!(ns(TimeOrNow::SpecificTime(UNIX_EPOCH + Duration::from_secs(1 << 40)), 0), i64::MAX);
    }
}
