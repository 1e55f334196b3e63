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
    }
}

fn time(ns: i64) -> SystemTime {
    let span = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - span } else { UNIX_EPOCH + span }
}

/// Nanoseconds since 1970 of a time that a program gave.
pub(crate) fn ns(time: TimeOrNow) -> i64 {
    let at = match time {
        TimeOrNow::SpecificTime(at) => at,
        TimeOrNow::Now => return now_ns(),
    };
    match at.duration_since(UNIX_EPOCH) {
        Ok(span) => i64::try_from(span.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    }
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
        atime: time(attr.mtime_ns),
        mtime: time(attr.mtime_ns),
        ctime: time(attr.ctime_ns),
        crtime: time(attr.ctime_ns),
        kind: kind(attr.kind),
        perm: attr.mode as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back() {
        for at in [0, 1, -1, 1_700_000_000_123_456_789, -5_000_000_001] {
            assert_eq!(ns(TimeOrNow::SpecificTime(time(at))), at);
        }
    }
}
