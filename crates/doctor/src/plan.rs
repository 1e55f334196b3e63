//! What a node is configured with, and what was tried on the machine by whoever may try something.

use std::net::IpAddr;
use std::path::PathBuf;

/// Something that may not be known; then the reason is.
pub type Known<T> = Result<T, String>;

/// A node as it is, or is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The directory of the node.
    pub dir: Option<PathBuf>,
    /// The process, if the node runs.
    pub process: Option<u32>,
    /// Its drives.
    pub drives: Vec<Drive>,
    /// The cores that it keeps to, by their absolute numbers.
    pub cores: Known<Vec<u32>>,
    /// Cap on memory.
    pub memory_bytes: Known<u64>,
    /// Memory that is registered with the kernel for I/O; a part of the cap.
    pub pool_bytes: Known<u64>,
    /// Descriptors that it may need at once.
    pub descriptors: Known<u64>,
    /// Where it listens for other machines.
    pub addresses: Vec<IpAddr>,
    /// Files with secrets.
    pub keys: Vec<PathBuf>,
    /// Where the bytes of users lie: drives, lakes that are directories.
    pub data: Vec<PathBuf>,
    /// Certificates that it shows or trusts.
    pub certificates: Vec<Certificate>,
    /// What the database says, if names are in one.
    pub database: Option<Known<Database>>,
    /// What setting up an io_uring came to: nothing, or the number of an error.
    pub uring: Known<Result<(), i32>>,
    /// What the kernel says of the clock.
    pub clock: Known<Clock>,
    /// How far other clocks are ahead of ours.
    pub offsets_ms: Vec<(String, i64)>,
}

impl Default for Plan {
    fn default() -> Plan {
        fn untold<T>() -> Known<T> {
            Err("nobody said".to_owned())
        }
        Plan {
            dir: None,
            process: None,
            drives: Vec::new(),
            cores: untold(),
            memory_bytes: untold(),
            pool_bytes: untold(),
            descriptors: untold(),
            addresses: Vec::new(),
            keys: Vec::new(),
            data: Vec::new(),
            certificates: Vec::new(),
            database: None,
            uring: untold(),
            clock: untold(),
            offsets_ms: Vec::new(),
        }
    }
}

/// A drive of the plan.
#[derive(Clone, Debug)]
pub struct Drive {
    /// A directory, a file or a block device.
    pub path: PathBuf,
    /// Which of them.
    pub kind: DriveKind,
    /// What a write past the page cache came to.
    pub direct: Known<Direct>,
}

/// What a drive is given as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveKind {
    /// A directory or a file of a file system.
    Files,
    /// A raw block device.
    Device,
}

/// What a write past the page cache came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Direct {
    /// It was written and read back.
    Works,
    /// The file system does not take O_DIRECT.
    Refused,
    /// It failed.
    Failed(String),
    /// There is no such drive, so that nothing else can be said of it.
    Absent,
}

impl Drive {
    /// Whether there is something to look at, as far as is known.
    pub fn is_there(&self) -> bool {
        self.direct != Ok(Direct::Absent)
    }
}

/// A certificate.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// What it is for.
    pub name: String,
    /// First and last second of its life, since 1970.
    pub validity_s: Known<(u64, u64)>,
    /// The command that makes the next one.
    pub renew: String,
}

/// The clock as the kernel keeps it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Something keeps it right.
    pub is_synchronised: bool,
}

/// The database that holds the names.
#[derive(Clone, Debug, Default)]
pub struct Database {
    /// Where it is, without a password.
    pub name: String,
    /// `synchronous_standby_names`; none if it has no such setting, because it is no PostgreSQL.
    pub standby_names: Option<String>,
    /// `synchronous_commit`.
    pub synchronous_commit: Option<String>,
    /// `fsync`.
    pub fsync: Option<String>,
    /// `full_page_writes`.
    pub full_page_writes: Option<String>,
    /// Its standbys; unknown to a user without the right to see them.
    pub standbys: Option<Vec<Standby>>,
}

/// A standby.
#[derive(Clone, Debug)]
pub struct Standby {
    /// Its name.
    pub name: String,
    /// `streaming` if it follows.
    pub state: String,
    /// `sync` or `quorum` if commits wait for it.
    pub sync_state: String,
}
