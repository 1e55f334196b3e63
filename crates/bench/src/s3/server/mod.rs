//! The servers of one run: Stoker, nginx as the upper bound, and real object stores as peers. Each is started here, in the
//! run's own folder and on free ports, and stopped with the run.

mod garage;
mod nginx;
mod seaweedfs;
mod stoker;

use std::path::Path;
use std::sync::Arc;

pub use nginx::Nginx;
pub use stoker::{Room, Stoker};

use super::connection::Connection;
use super::target::Credentials;
use super::target::Target;
use crate::failure::Failure;
use crate::process::Process;

/// The bucket on servers that let us choose.
const BUCKET: &str = "bench";

/// What nginx and the peers are called on the command line.
pub const PEERS: [&str; 3] = ["nginx", "seaweedfs", "garage"];

/// A server that runs.
pub struct Server {
    name: &'static str,
    process: Process,
    target: Arc<Target>,
}

impl Server {
    /// As in the report.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Where requests go.
    pub fn target(&self) -> Arc<Target> {
        Arc::clone(&self.target)
    }

    /// CPU time that it has used so far.
    pub fn cpu_seconds(&self) -> f64 {
        self.process.cpu_seconds()
    }

    /// Makes the bucket, as soon as the server is able to.
    fn make_bucket(&self) -> Result<(), Failure> {
        let head = self.target.bucket_head();
        let address = self.target.address();
        self.process.wait_until("does not make a bucket", || {
            let answer = Connection::open(address).and_then(|mut to| to.exchange(&head, &[], false));
            answer.is_ok_and(|answer| answer.status == 200)
        })
    }
}

/// Starts a peer; `None`, with a word about it, if its program is not there.
pub fn start_peer(name: &str, dir: &Path) -> Result<Option<Server>, Failure> {
    match name {
        "seaweedfs" => seaweedfs::start(dir),
        "garage" => garage::start(dir),
        _ => Err(Failure::new(format!("there is no peer `{name}`")).hint(PEERS.join(", "))),
    }
}

/// Keys for servers that let us choose them, in the form that Garage demands.
fn credentials(region: &str) -> Credentials {
    Credentials {
        access_key: format!("GK{}", "5709".repeat(6)),
        secret_key: "5709be9c".repeat(8),
        region: region.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::content::Content;
    use crate::s3::load::{Load, Verb};

    /// Writes, reads and removes objects on a real server, and sees what that costs it.
    fn check(server: &Server) {
        let content = Content::new(1 << 20);
        let load = |verb| Load::new(verb, server.target(), &content, "a/b", 1 << 20, 16);
        let before = server.cpu_seconds();
        assert_eq!(load(Verb::Put).pass(4).unwrap().round.ops, 16, "{}", server.name());
        // A connection each, so that the bytes of every object are checked.
        assert_eq!(load(Verb::Get).pass(16).unwrap().round.bytes, 16 << 20, "{}", server.name());
        assert!(server.cpu_seconds() > before, "{} cost nothing", server.name());
        assert!(Load::new(Verb::Get, server.target(), &content, "none", 1 << 20, 1).pass(1).is_err());
        load(Verb::Delete).pass(4).unwrap();
        assert!(load(Verb::Get).pass(1).is_err(), "{} gives what was removed", server.name());
    }

    /// Programs that are not installed are skipped, with a word about it.
    #[test]
    fn real_servers_take_and_give_objects() {
        if std::env::var_os("STOKER_FULL").is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        if let Some(nginx) = Nginx::start(&dir.path().join("nginx")).unwrap() {
            check(&nginx.server);
        }
        for name in &PEERS[1..] {
            if let Some(server) = start_peer(name, &dir.path().join(name)).unwrap() {
                check(&server);
            }
        }
    }
}
