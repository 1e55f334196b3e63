//! Errors as programs know them.

use stoker_store::{ErrorKind, StoreError, Subject};

/// An error number of Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
#[expect(missing_docs, reason = "the names are those of errno(3)")]
pub enum Errno {
    EPERM = 1,
    ENOENT = 2,
    EINTR = 4,
    EIO = 5,
    ENXIO = 6,
    EBADF = 9,
    EAGAIN = 11,
    EACCES = 13,
    EBUSY = 16,
    EEXIST = 17,
    EXDEV = 18,
    ENOTDIR = 20,
    EISDIR = 21,
    EINVAL = 22,
    EFBIG = 27,
    ENOSPC = 28,
    EROFS = 30,
    EMLINK = 31,
    ERANGE = 34,
    ENAMETOOLONG = 36,
    ENOLCK = 37,
    ENOTEMPTY = 39,
    ELOOP = 40,
    ENODATA = 61,
    EOPNOTSUPP = 95,
    ETIMEDOUT = 110,
    ESTALE = 116,
    EDQUOT = 122,
}

impl Errno {
    /// The number.
    pub fn code(self) -> i32 {
        self as i32
    }
}

/// Result of a call of the file system.
pub type Result<T> = std::result::Result<T, Errno>;

/// The error that a program sees for one of the door. What only the log can say is logged here, where it ends.
impl From<StoreError> for Errno {
    fn from(fault: StoreError) -> Errno {
        let errno = match (fault.kind, fault.subject) {
            (ErrorKind::NotFound, Subject::Volume) => Errno::ESTALE,
            (ErrorKind::NotFound, _) => Errno::ENOENT,
            (ErrorKind::Conflict, Subject::Condition) => Errno::EEXIST,
            (ErrorKind::Conflict, _) => Errno::EBUSY,
            (ErrorKind::Full, Subject::Quota) => Errno::EDQUOT,
            (ErrorKind::Full, Subject::Links) => Errno::EMLINK,
            (ErrorKind::Full, _) => Errno::ENOSPC,
            (ErrorKind::Denied, Subject::Volume) => Errno::EROFS,
            (ErrorKind::Denied, _) => Errno::EACCES,
            (ErrorKind::Invalid, Subject::Size) => Errno::EFBIG,
            // Programs then move what is in it one by one.
            (ErrorKind::Invalid, Subject::Quota) => Errno::EXDEV,
            // Of what a lake cannot hold, names are all that a caller of most calls has in hand.
            (ErrorKind::Invalid, Subject::Lake) => Errno::ENAMETOOLONG,
            (ErrorKind::Invalid, _) => Errno::EINVAL,
            // It was waited for as long as the caller wants.
            (ErrorKind::Unavailable | ErrorKind::Closed, _) => Errno::ETIMEDOUT,
            (ErrorKind::Corrupt, _) => Errno::EIO,
        };
        match errno {
            Errno::EIO | Errno::ETIMEDOUT => tracing::error!("{fault}"),
            Errno::ENOENT | Errno::EEXIST => {}
            _ => tracing::debug!("{fault}"),
        }
        errno
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_number() {
        let check = |kind, subject, errno: Errno| {
            assert_eq!(Errno::from(StoreError::about(kind, subject, "x")), errno, "{kind:?} {subject:?}");
        };
        check(ErrorKind::NotFound, Subject::Key, Errno::ENOENT);
        check(ErrorKind::NotFound, Subject::Volume, Errno::ESTALE);
        check(ErrorKind::Conflict, Subject::Condition, Errno::EEXIST);
        check(ErrorKind::Full, Subject::Quota, Errno::EDQUOT);
        check(ErrorKind::Full, Subject::Links, Errno::EMLINK);
        check(ErrorKind::Full, Subject::Key, Errno::ENOSPC);
        check(ErrorKind::Denied, Subject::Volume, Errno::EROFS);
        check(ErrorKind::Denied, Subject::Key, Errno::EACCES);
        check(ErrorKind::Invalid, Subject::Size, Errno::EFBIG);
        check(ErrorKind::Invalid, Subject::Quota, Errno::EXDEV);
        check(ErrorKind::Invalid, Subject::Key, Errno::EINVAL);
        check(ErrorKind::Invalid, Subject::Lake, Errno::ENAMETOOLONG);
        check(ErrorKind::Corrupt, Subject::Key, Errno::EIO);
        check(ErrorKind::Unavailable, Subject::Key, Errno::ETIMEDOUT);
        assert_eq!((Errno::EDQUOT.code(), Errno::ENOENT.code()), (122, 2));
    }
}
