//! Who may do what, by mode bits and access control lists: what a local file system would say.

use stoker_files::{Acl, Attr, Kind};

/// Who asks, as the network says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

pub const READ: u32 = 4;
pub const WRITE: u32 = 2;
pub const EXECUTE: u32 = 1;

const STICKY: u32 = 0o1000;
const SET_GID: u32 = 0o2000;

impl Identity {
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub fn owns(&self, attr: &Attr) -> bool {
        self.is_root() || self.uid == attr.uid
    }

    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether all of these may be done.
    pub fn may(&self, attr: &Attr, acl: Option<&Acl>, wish: u32) -> bool {
        if self.is_root() {
            // As elsewhere, what nobody may execute is not for root to execute either.
            return wish & EXECUTE == 0 || attr.kind == Kind::Directory || attr.mode & 0o111 != 0;
        }
        let granted = if self.uid == attr.uid {
            attr.mode >> 6
        } else if let Some(acl) = acl {
            return acl.allows(self.uid, |gid| self.is_in(gid), attr.gid, wish);
        } else if self.is_in(attr.gid) {
            attr.mode >> 3
        } else {
            attr.mode
        };
        granted & wish == wish
    }

    /// Whether bytes may be read. NFS knows no open files: who owns one may go on after taking the right away, and what
    /// may be executed must be read for that.
    pub fn may_read(&self, attr: &Attr, acl: Option<&Acl>) -> bool {
        self.owns(attr) || self.may(attr, acl, READ) || self.may(attr, acl, EXECUTE)
    }

    /// The same for writing.
    pub fn may_write(&self, attr: &Attr, acl: Option<&Acl>) -> bool {
        self.owns(attr) || self.may(attr, acl, WRITE)
    }

    /// Whether names in a directory may be changed.
    pub fn may_change(&self, directory: &Attr, acl: Option<&Acl>) -> bool {
        self.may(directory, acl, WRITE | EXECUTE)
    }

    /// Whether one that hangs in a directory may be taken away, by the directory's sticky bit.
    pub fn may_remove(&self, directory: &Attr, entry: &Attr) -> bool {
        directory.mode & STICKY == 0 || self.owns(directory) || self.owns(entry)
    }

    /// The group of something that is made in a directory, and the bits that it inherits.
    pub fn group_in(&self, directory: &Attr, kind: Kind) -> (u32, u32) {
        match directory.mode & SET_GID {
            0 => (self.gid, 0),
            _ if kind == Kind::Directory => (directory.gid, SET_GID),
            _ => (directory.gid, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(kind: Kind, mode: u32) -> Attr {
        Attr {
            ino: 9,
            kind,
            size: 0,
            allocated: 0,
            mode,
            uid: 1000,
            gid: 100,
            nlink: 1,
            mtime_ns: 0,
            ctime_ns: 0,
            atime_ns: 0,
            rdev: 0,
        }
    }

    fn who(uid: u32, gid: u32, groups: &[u32]) -> Identity {
        Identity { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn mode_bits_hold() {
        let check = |who: &Identity, mode, wish, may| {
            assert_eq!(who.may(&attr(Kind::File, mode), None, wish), may, "{who:?} {mode:o} {wish}");
        };
        let (owner, member, other) = (who(1000, 1, &[]), who(7, 1, &[100]), who(7, 1, &[]));
        check(&owner, 0o600, READ | WRITE, true);
        check(&owner, 0o077, READ, false);
        check(&member, 0o640, READ, true);
        check(&member, 0o604, READ, false);
        check(&other, 0o604, READ, true);
        check(&other, 0o640, READ, false);
        check(&who(0, 0, &[]), 0o000, READ | WRITE, true);
        check(&who(0, 0, &[]), 0o666, EXECUTE, false);
        assert!(owner.may_write(&attr(Kind::File, 0o400), None), "the owner may have it open");
        assert!(other.may_read(&attr(Kind::File, 0o711), None));
    }

    #[test]
    fn sticky_and_set_gid_directories() {
        let tmp = attr(Kind::Directory, 0o1777);
        let file = Attr { uid: 7, ..attr(Kind::File, 0o644) };
        assert!(who(7, 1, &[]).may_remove(&tmp, &file));
        assert!(who(1000, 1, &[]).may_remove(&tmp, &file));
        assert!(!who(8, 1, &[]).may_remove(&tmp, &file));
        let shared = attr(Kind::Directory, 0o2775);
        assert_eq!(who(7, 1, &[]).group_in(&shared, Kind::File), (100, 0));
        assert_eq!(who(7, 1, &[]).group_in(&shared, Kind::Directory), (100, 0o2000));
        assert_eq!(who(7, 1, &[]).group_in(&tmp, Kind::Directory), (1, 0));
    }
}
