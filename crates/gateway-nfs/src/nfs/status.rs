//! How a request ended.

use stoker_files::Errno;

/// `nfsstat3`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Status {
    Ok = 0,
    Permission = 1,
    NoEntry = 2,
    Io = 5,
    Access = 13,
    Exists = 17,
    OtherVolume = 18,
    NotDirectory = 20,
    IsDirectory = 21,
    Invalid = 22,
    TooBig = 27,
    NoSpace = 28,
    ReadOnly = 30,
    TooManyLinks = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    Quota = 69,
    Stale = 70,
    BadHandle = 10_001,
    NotSync = 10_002,
    BadCookie = 10_003,
    NotSupported = 10_004,
    TooSmall = 10_005,
    BadType = 10_007,
    /// Later; the client asks again.
    Jukebox = 10_008,
}

impl From<Errno> for Status {
    fn from(errno: Errno) -> Status {
        match errno {
            Errno::EPERM => Status::Permission,
            Errno::ENOENT => Status::NoEntry,
            Errno::EACCES => Status::Access,
            Errno::EEXIST => Status::Exists,
            Errno::EXDEV => Status::OtherVolume,
            Errno::ENOTDIR => Status::NotDirectory,
            Errno::EISDIR => Status::IsDirectory,
            Errno::EINVAL | Errno::ELOOP => Status::Invalid,
            Errno::EFBIG => Status::TooBig,
            Errno::ENOSPC => Status::NoSpace,
            Errno::EROFS => Status::ReadOnly,
            Errno::EMLINK => Status::TooManyLinks,
            Errno::ENAMETOOLONG => Status::NameTooLong,
            Errno::ENOTEMPTY => Status::NotEmpty,
            Errno::EDQUOT => Status::Quota,
            Errno::ESTALE | Errno::EBADF => Status::Stale,
            Errno::EOPNOTSUPP => Status::NotSupported,
            // Somebody else changes the same thing just now, or did.
            Errno::EBUSY | Errno::EAGAIN => Status::Jukebox,
            // The catalog is away: the client asks again, here or elsewhere.
            Errno::ETIMEDOUT => Status::Jukebox,
            _ => Status::Io,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_status() {
        let check = |errno: Errno, status: u32| assert_eq!(Status::from(errno) as u32, status, "{errno:?}");
        check(Errno::EPERM, 1);
        check(Errno::ENOENT, 2);
        check(Errno::EIO, 5);
        check(Errno::EACCES, 13);
        check(Errno::EEXIST, 17);
        check(Errno::EXDEV, 18);
        check(Errno::ENOTDIR, 20);
        check(Errno::EISDIR, 21);
        check(Errno::EINVAL, 22);
        check(Errno::EFBIG, 27);
        check(Errno::ENOSPC, 28);
        check(Errno::EROFS, 30);
        check(Errno::EMLINK, 31);
        check(Errno::ENAMETOOLONG, 63);
        check(Errno::ENOTEMPTY, 66);
        check(Errno::EDQUOT, 69);
        check(Errno::ESTALE, 70);
        check(Errno::EOPNOTSUPP, 10_004);
        check(Errno::EBUSY, 10_008);
        check(Errno::EAGAIN, 10_008);
        check(Errno::ETIMEDOUT, 10_008);
    }
}
