//! Numbers for those who watch.

use std::sync::atomic::{AtomicU64, Ordering};

use stoker_store::{Counter, Histogram};

/// Procedures of NFSv3 by their number.
pub const PROCEDURES: [&str; 22] = [
    "null",
    "getattr",
    "setattr",
    "lookup",
    "access",
    "readlink",
    "read",
    "write",
    "create",
    "mkdir",
    "symlink",
    "mknod",
    "remove",
    "rmdir",
    "rename",
    "link",
    "readdir",
    "readdirplus",
    "fsstat",
    "fsinfo",
    "pathconf",
    "commit",
];

#[derive(Debug, Default)]
pub struct Counters {
    pub requests: AtomicU64,
    pub failed: AtomicU64,
    pub refused: AtomicU64,
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub connections: AtomicU64,
    pub turned_away: AtomicU64,
    /// By procedure.
    pub times: [Histogram; PROCEDURES.len()],
}

impl Counters {
    pub fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    pub fn list(&self, waiting_bytes: u64) -> Vec<Counter> {
        let one = |name: &str, help: &str, value: u64| Counter {
            name: name.into(),
            help: help.into(),
            labels: Vec::new(),
            value: value as f64,
        };
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut all = vec![
            one("nfs_requests_total", "NFS and MOUNT requests.", of(&self.requests)),
            one("nfs_failed_total", "NFS requests that ended with an error status.", of(&self.failed)),
            one("nfs_refused_total", "RPC calls that could not be understood.", of(&self.refused)),
            one("nfs_read_bytes_total", "Bytes of files that NFS clients read.", of(&self.read_bytes)),
            one("nfs_written_bytes_total", "Bytes of files that NFS clients wrote.", of(&self.written_bytes)),
            one("nfs_connections", "Connections of NFS clients.", of(&self.connections)),
            one(
                "nfs_turned_away_total",
                "Connections closed: too many, or from an address that no export allows.",
                of(&self.turned_away),
            ),
            one(
                "nfs_buffered_bytes",
                "Bytes that NFS clients wrote and that are not published.",
                waiting_bytes,
            ),
        ];
        for (procedure, times) in PROCEDURES.iter().zip(&self.times).filter(|(_, times)| times.count() > 0) {
            let help = "Time from a request to its answer.";
            all.extend(times.list("nfs_request_seconds", help, &[("procedure", procedure)]));
        }
        all
    }
}
