//! What is measured, and what it has to reach.

/// Which way it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Door {
    /// A mount.
    Fuse,
    /// An export.
    Nfs,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// One reader, from front to back, 1 MiB at a time.
    SeqRead {
        /// Past the page cache.
        direct: bool,
    },
    /// One writer, from front to back, 1 MiB at a time, with an fsync at the end.
    SeqWrite,
    /// One reader, 4 KiB anywhere, past the page cache.
    RandRead,
    /// Make a file, write 4 KiB, fsync, close; all in one directory.
    Create {
        /// At the same time.
        writers: usize,
    },
    /// Ask for the properties of files, anywhere in one directory, by several threads.
    Stat {
        /// The kernel may believe what it was told.
        cached: bool,
    },
    /// List a directory.
    Readdir,
}

impl Work {
    /// Nothing of what it looks at may be in memory.
    pub fn is_cold(self) -> bool {
        matches!(self, Work::SeqRead { .. } | Work::RandRead | Work::Readdir)
    }

    /// It reads a large file.
    pub fn reads(self) -> bool {
        matches!(self, Work::SeqRead { .. } | Work::RandRead)
    }

    /// It is counted in bytes; else in operations.
    pub fn is_in_bytes(self) -> bool {
        matches!(self, Work::SeqRead { .. } | Work::SeqWrite)
    }
}

/// What it has to reach.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bar {
    /// A share of the plain directory.
    Ratio(f64),
    /// Operations per second.
    Rate(f64),
}

/// A named load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Workload {
    /// As in the table, in JSON and on the command line.
    pub name: &'static str,
    /// Which way it goes.
    pub door: Door,
    /// What is done.
    pub work: Work,
    /// What is expected.
    pub bar: Option<Bar>,
}

const fn fuse(name: &'static str, work: Work, bar: Option<Bar>) -> Workload {
    Workload { name, door: Door::Fuse, work, bar }
}

const fn nfs(name: &'static str, work: Work) -> Workload {
    Workload { name, door: Door::Nfs, work, bar: Some(Bar::Ratio(0.5)) }
}

/// The loads in the order in which they run; those of NFS come last, because the mounts are gone then.
pub const WORKLOADS: [Workload; 11] = [
    fuse("fuse_seq_read_direct", Work::SeqRead { direct: true }, Some(Bar::Ratio(0.85))),
    fuse("fuse_seq_read_buffered", Work::SeqRead { direct: false }, Some(Bar::Ratio(0.8))),
    fuse("fuse_seq_write_fsync", Work::SeqWrite, Some(Bar::Ratio(0.8))),
    fuse("fuse_rand_read_4k", Work::RandRead, Some(Bar::Ratio(0.5))),
    fuse("fuse_create_fsync", Work::Create { writers: 16 }, Some(Bar::Rate(3000.0))),
    fuse("fuse_create_fsync_1", Work::Create { writers: 1 }, Some(Bar::Rate(1000.0))),
    fuse("fuse_stat", Work::Stat { cached: false }, Some(Bar::Rate(20_000.0))),
    fuse("fuse_stat_cached", Work::Stat { cached: true }, None),
    fuse("fuse_readdir", Work::Readdir, None),
    nfs("nfs_seq_read", Work::SeqRead { direct: false }),
    nfs("nfs_seq_write", Work::SeqWrite),
];
