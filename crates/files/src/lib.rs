//! A POSIX file system on the door. It knows inodes, directories, offsets and errno; it knows no FUSE and no NFS. (D53)
//!
//! Changes of bytes wait in memory, bounded, until fsync, close, a bound or some seconds publish them as one new version
//! (an *edit* of the one before). Changes of names are made at once. When a call returns an error, it is the one that a
//! local file system would give.
//!
//! A node that is away is waited for: calls block and go on when it is back. What was sent and not published is still
//! here and is sent again.
//!
//! It must not hold durable state, and must not know FUSE or NFS.

#![forbid(unsafe_code)]

mod acl;
mod ahead;
mod caches;
mod content;
mod directory;
mod error;
mod extras;
mod files;
mod flight;
mod inode;
mod locks;
mod names;
mod options;
mod overlay;
mod properties;
mod publish;
mod reading;
mod recall;
mod table;
mod writing;

pub use acl::Acl;
pub use directory::{DirEntry, Listing};
pub use error::{Errno, Result};
pub use files::{Files, Handle, Space};
pub use inode::{Attr, Kind, ROOT};
pub use locks::Lock;
pub use names::{Create, Make, RenameFlag};
pub use options::{Newer, Options};
pub use properties::{Change, XattrMode};
pub use stoker_store::{LINKS_MAX, LockHeld, LockKind, LockSpace, Seek, alone};
pub use writing::Allocate;
