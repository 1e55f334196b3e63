//! A PostgreSQL server of our own, on a socket in a temporary folder.
//!
//! A shell stands between: when this process ends, however it ends, the shell's input ends too, and it stops
//! the server and removes the folder. The server refuses to run as root, so root starts it as another user.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_postgres::{Client, NoTls};

/// Starts the server given as arguments; keeps the folder if it is told to.
const GUARD: &str = r#"
    folder=$1; shift
    "$@" >>"$folder/log" 2>&1 &
    server=$!
    read -r word
    kill -QUIT $server 2>/dev/null
    # A shell starts it with this signal ignored: one that comes before the server has a handler of its own is lost.
    (
        tries=0
        while sleep 1 && kill -QUIT $server 2>/dev/null; do
            tries=$((tries + 1))
            [ $tries -lt 20 ] || kill -9 $server 2>/dev/null
        done
    ) &
    again=$!
    wait $server
    kill $again 2>/dev/null
    [ "$word" = keep ] || rm -rf "$folder"
"#;

/// A running server.
pub struct Server {
    pub folder: PathBuf,
    programs: PathBuf,
    settings: Vec<String>,
    guard: Option<Child>,
}

/// The server that tests share, each with a schema of its own; says why if there is none.
pub fn shared() -> Option<&'static Server> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    // Asked by each test, so that each is told as skipped.
    installed()?;
    let start = || Server::start(&["fsync=off", "max_connections=300"]);
    SERVER.get_or_init(start).as_ref()
}

/// The folder of PostgreSQL's programs; says that the test is skipped if there is none.
fn installed() -> Option<PathBuf> {
    let programs = programs();
    if programs.is_none() {
        stoker_testing::skipped("no PostgreSQL server on this machine (initdb and postgres not found)");
    }
    programs
}

impl Server {
    /// Makes a database and starts a server; `None` if this machine has no PostgreSQL.
    pub fn start(settings: &[&str]) -> Option<Server> {
        let programs = installed()?;
        let folder =
            tempfile::Builder::new().prefix("stoker-pg").tempdir().expect("a temporary folder").keep();
        if let Some(user) = user() {
            run(Command::new("chown").arg(user).arg(&folder));
        }
        let mut initdb = command(&programs.join("initdb"));
        initdb.args([
            "--no-sync",
            "--auth=trust",
            "--username=stoker",
            "--encoding=UTF8",
            "--locale=C",
            "-D",
        ]);
        run(initdb.arg(folder.join("data")));
        let settings = settings.iter().map(|setting| setting.to_string()).collect();
        let mut server = Server { folder, programs, settings, guard: None };
        server.resume();
        Some(server)
    }

    /// Starts a standby of this server, which streams from it; both must take connections.
    pub fn standby(&self) -> Server {
        let folder =
            tempfile::Builder::new().prefix("stoker-pg").tempdir().expect("a temporary folder").keep();
        if let Some(user) = user() {
            run(Command::new("chown").arg(user).arg(&folder));
        }
        let mut backup = self.program("pg_basebackup");
        backup.args(["-U", "stoker", "-c", "fast", "-R", "--no-sync", "-h"]).arg(&self.folder);
        run(backup.arg("-D").arg(folder.join("data")));
        let mut server =
            Server { folder, programs: self.programs.clone(), settings: Vec::new(), guard: None };
        server.resume();
        server
    }

    /// Makes a standby the server that takes changes.
    pub fn promote(&self) {
        run(self.program("pg_ctl").args(["promote", "-w", "-D"]).arg(self.folder.join("data")));
    }

    /// Starts the server again.
    pub fn resume(&mut self) {
        assert!(self.guard.is_none());
        let mut postgres = command(&self.programs.join("postgres"));
        postgres.arg("-D").arg(self.folder.join("data")).arg("-k").arg(&self.folder);
        postgres.args(["-c", "listen_addresses=", "-c", "log_min_messages=fatal"]);
        for setting in &self.settings {
            postgres.arg("-c").arg(setting);
        }
        let mut guard = Command::new("sh");
        guard
            .args(["-c", GUARD, "guard"])
            .arg(&self.folder)
            .arg(postgres.get_program())
            .args(postgres.get_args());
        guard.stdin(Stdio::piped()).current_dir(&self.folder);
        self.guard = Some(guard.spawn().expect("starts"));
    }

    /// Kills every process of the server, as a crash of its machine would.
    pub fn kill(&mut self) {
        let file = std::fs::read_to_string(self.folder.join("data/postmaster.pid")).expect("runs");
        let main: u32 = file.lines().next().expect("a number").parse().expect("a number");
        // Stopped first, so that it starts no process that would be overlooked and keep the memory in use.
        // One that ended by itself meanwhile is not there any more.
        let _ = Command::new("kill").arg("-STOP").arg(main.to_string()).stderr(Stdio::null()).status();
        while stat(main).is_some_and(|(state, _)| !matches!(state, 'T' | 'Z')) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut pids = children(main);
        pids.push(main);
        // Some of them may end by themselves meanwhile.
        let _ = Command::new("kill")
            .arg("-9")
            .args(pids.iter().map(u32::to_string))
            .stderr(Stdio::null())
            .status();
        self.stop_guard("keep\n");
        while pids.iter().any(|pid| alive(*pid)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the server at once but in order.
    pub fn stop(&mut self) {
        self.stop_guard("keep\n");
    }

    /// The address of a schema in the database; every name is a world of its own.
    pub fn url(&self, schema: &str) -> String {
        format!(
            "host={} user=stoker dbname=postgres options='-c search_path={schema}'",
            self.folder.display()
        )
    }

    /// The address of a new schema.
    pub async fn fresh(&self) -> String {
        static NAMES: AtomicUsize = AtomicUsize::new(0);
        let name = format!("test_{}", NAMES.fetch_add(1, Ordering::Relaxed));
        self.client("public").await.batch_execute(&format!("CREATE SCHEMA {name}")).await.expect("creates");
        self.url(&name)
    }

    /// A plain connection, as soon as the server takes one.
    pub async fn client(&self, schema: &str) -> Client {
        let mut last = None;
        for _ in 0..600 {
            match tokio_postgres::connect(&self.url(schema), NoTls).await {
                Ok((client, io)) => {
                    tokio::spawn(io);
                    return client;
                }
                Err(error) => last = Some(error),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        panic!("the server does not start: {last:?}\n{log}");
    }

    /// A program that came with the server, run as the server's user.
    pub fn program(&self, name: &str) -> Command {
        command(&self.programs.join(name))
    }

    fn stop_guard(&mut self, word: &str) {
        if let Some(mut guard) = self.guard.take() {
            // The pipe is closed by the drop; if the shell is gone already there is nothing to tell.
            let _ = guard.stdin.take().expect("piped").write_all(word.as_bytes());
            let _ = guard.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_guard("end\n");
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The folder of the server's programs: that of the one in `PATH`, or Debian's newest.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .collect();
    let version = |folder: &PathBuf| folder.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    folders.sort_by_key(|folder| std::cmp::Reverse(version(folder)));
    std::env::split_paths(&path).chain(folders).find_map(|folder| {
        // In `PATH` there may be links to some of the programs only.
        let server = folder.join("postgres").canonicalize().ok()?;
        server.parent().filter(|folder| folder.join("initdb").exists()).map(Path::to_path_buf)
    })
}

/// Who runs the server, if it cannot be us.
fn user() -> Option<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux machine");
    let root = status.lines().any(|line| line.split_whitespace().take(3).eq(["Uid:", "0", "0"]));
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = |user: &&str| users.lines().any(|line| line.split(':').next() == Some(*user));
    root.then(|| ["postgres", "nobody"].into_iter().find(known).expect("a user besides root"))
}

fn command(program: &Path) -> Command {
    let mut command = match user() {
        None => Command::new(program),
        Some(user) => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", user, "--regid", user, "--clear-groups", "--"]).arg(program);
            command
        }
    };
    command.current_dir(std::env::temp_dir());
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn children(parent: u32) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc")
        .expect("a Linux machine")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(_, its_parent)| its_parent == parent)).collect()
}

fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

/// State and parent of a process.
fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}
