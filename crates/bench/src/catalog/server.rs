//! A PostgreSQL server of the benchmark's own, reached over a socket in its folder.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

use crate::failure::Failure;
use crate::out;
use crate::process::{Process, find_program};

/// Where Debian puts one folder per version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// Who runs the server if root must not.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// The kernel takes no longer name for a socket; the server adds its own part to the folder's.
const FOLDER_BYTES_MAX: usize = 90;
/// Besides those of both sides: one that listens, and those that look around.
const CONNECTIONS_MORE: u16 = 16;

/// A running server.
pub struct Server {
    process: Process,
    folder: PathBuf,
}

impl Server {
    /// Makes a database and starts a server on it; `None`, with a word about it, if the program is not there. `connections`
    /// are those of one side.
    pub fn start(folder: &Path, connections: u16, runtime: &Runtime) -> Result<Option<Server>, Failure> {
        let Some(programs) = programs() else {
            out::say("skipped: PostgreSQL is not installed (Debian: apt-get install postgresql)");
            return Ok(None);
        };
        let folder = std::path::absolute(folder).map_err(|e| Failure::io(folder.display(), &e))?;
        if folder.as_os_str().len() > FOLDER_BYTES_MAX {
            return Err(Failure::new(format!("{} is too long for a socket in it", folder.display()))
                .hint("choose a --dir with a shorter path"));
        }
        let failed = |e| Failure::io(folder.display(), &e);
        fs::create_dir(&folder).map_err(failed)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        let owner = owner(&folder)?;
        if let Some((uid, gid)) = owner {
            chown(&folder, Some(uid), Some(gid)).map_err(failed)?;
        }
        let program = |name: &str| {
            let mut command = Command::new(programs.join(name));
            command.current_dir(&folder);
            if let Some((uid, gid)) = owner {
                command.uid(uid).gid(gid);
            }
            command
        };
        let mut initdb = program("initdb");
        initdb.args([
            "--no-sync",
            "--auth=trust",
            "--username=stoker",
            "--encoding=UTF8",
            "--locale=C",
            "-D",
            "data",
        ]);
        let made =
            initdb.output().map_err(|e| Failure::io("initdb", &e).hint("its user has to reach --dir"))?;
        if !made.status.success() {
            let words = String::from_utf8_lossy(&made.stderr);
            return Err(Failure::new(format!("initdb: {}", words.trim())).hint("its user has to reach --dir"));
        }
        let mut postgres = program("postgres");
        postgres.arg("-D").arg("data").arg("-k").arg(&folder);
        for setting in [
            "listen_addresses=",
            "shared_buffers=512MB",
            "max_wal_size=4GB",
            &format!("max_connections={}", 2 * connections + CONNECTIONS_MORE),
        ] {
            postgres.args(["-c", setting]);
        }
        let server = Server { process: Process::start("postgres", postgres, folder.join("log"))?, folder };
        let address = server.address();
        let is_ready = || runtime.block_on(tokio_postgres::connect(&address, NoTls)).is_ok();
        server.process.wait_until("does not take connections", is_ready)?;
        Ok(Some(server))
    }

    /// Where it is, in PostgreSQL's words.
    pub fn address(&self) -> String {
        // A quote or a backslash would end the word early.
        let host = self.folder.display().to_string().replace('\\', "\\\\").replace('\'', "\\'");
        format!("host='{host}' user=stoker dbname=postgres")
    }

    /// Stops it, once nobody is connected any more.
    pub fn stop(&self) -> Result<(), Failure> {
        self.process.stop()
    }
}

/// The folder of the server's programs.
fn programs() -> Option<PathBuf> {
    let mut places: Vec<PathBuf> = fs::read_dir(DEBIAN)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .map(|version| version.join("bin/postgres"))
        .collect();
    places.sort();
    places.reverse();
    // On the path there may be links to some of the programs only.
    let server = find_program("STOKER_POSTGRES", "postgres", &places)?.canonicalize().ok()?;
    server.parent().filter(|folder| folder.join("initdb").is_file()).map(Path::to_path_buf)
}

/// Whom the folder and the server belong to, if it cannot be us: the server does not run as root.
fn owner(folder: &Path) -> Result<Option<(u32, u32)>, Failure> {
    let meta = fs::metadata(folder).map_err(|e| Failure::io(folder.display(), &e))?;
    if meta.uid() != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").map_err(|e| Failure::io("/etc/passwd", &e))?;
    let found = USERS.iter().find_map(|user| ids(&users, user));
    let missing = || Failure::new("PostgreSQL does not run as root").hint("run this as another user");
    found.map(Some).ok_or_else(missing)
}

/// User and group of a name in `/etc/passwd`.
fn ids(users: &str, name: &str) -> Option<(u32, u32)> {
    let mut fields =
        users.lines().map(|line| line.split(':')).find(|line| line.clone().next() == Some(name))?.skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::ids;

    #[test]
    fn users_are_found_by_their_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\npostgresql:x:5:6::/:\npostgres:x:7:8::/:\nbroken:x:y\n";
        for (name, expect) in [("postgres", Some((7, 8))), ("broken", None), ("nobody", None)] {
            assert_eq!(ids(users, name), expect, "{name}");
        }
    }
}
