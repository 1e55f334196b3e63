//! The nodes of the demo: real processes, killed for real.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use stoker_client::{Client, Endpoint};

use crate::failure::Failure;
use crate::settings::Setting;
use crate::{clock, sys};

/// How long a node may take to be there.
const READY_MAX: Duration = Duration::from_secs(60);

/// How a node of the demo is started.
pub struct Shape {
    pub dir: PathBuf,
    pub ring_bytes: u64,
    /// How long a node may be silent before the others go on without it.
    pub grace: Duration,
}

/// A node; killed when dropped.
pub struct Node {
    pub dir: PathBuf,
    child: Child,
    /// What it said when it was ready.
    pub ready: Value,
}

impl Shape {
    /// Starts a node: the first of a cluster, one that joins it, or one that comes back.
    pub fn start(&self, number: usize, join: Option<&Node>) -> Result<Node, Failure> {
        let name = format!("node-{number}");
        let dir = self.dir.join(&name);
        let log = self.dir.join(format!("{name}.log"));
        let words = File::options().create(true).append(true).open(&log);
        let words = words.map_err(|error| Failure::io(log.display(), &error))?;
        let program = std::env::current_exe().map_err(|error| Failure::io("this program", &error))?;
        let mut command = Command::new(program);
        match join.map(|node| (node.ready["peers"].as_str(), node.ready["join_token"].as_str())) {
            Some((Some(peers), Some(token))) => {
                command.args(["join", peers]).env("STOKER_JOIN_TOKEN", token);
            }
            _ => {
                command.arg("up");
            }
        }
        command
            .args(["--json", "--name", &name, "--lake"])
            .arg(self.dir.join("lake"))
            .arg("--dir")
            .arg(&dir)
            .args(["--size", &self.ring_bytes.to_string(), "--memory", "1GiB"])
            .args(["--grace", &format!("{}ms", self.grace.as_millis())])
            .args(["--domain", &format!("tor=tor-{number},power=power-{number}"), "--log", "info"])
            .env_remove("STOKER_DIR")
            .env_remove("STOKER_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(words);
        // What the environment says of other nodes is not for these.
        Setting::ALL.iter().for_each(|setting| _ = command.env_remove(setting.variable()));
        sys::stop_with_parent(&mut command);
        let mut child = command.spawn().map_err(|error| Failure::io(&name, &error))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let read = BufReader::new(stdout).read_line(&mut line);
            read.map_err(|error| Failure::io(&name, &error))?;
        }
        match serde_json::from_str(&line) {
            Ok(ready) => Ok(Node { dir, child, ready }),
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Failure::new(format!("{name} does not start; it says why in {}", log.display())))
            }
        }
    }
}

impl Node {
    /// SIGKILL: no handler runs, nothing is flushed.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its door on this machine.
    pub async fn connect(&self) -> Result<Client, Failure> {
        let endpoint = Endpoint::Unix(self.dir.join(crate::daemon::SOCKET));
        let begun = clock::now();
        loop {
            match Client::connect(&endpoint, None).await {
                Ok(client) => return Ok(client),
                Err(error) if begun.elapsed() > READY_MAX => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Its console.
    pub fn console(&self) -> &str {
        self.ready["admin"].as_str().unwrap_or("?")
    }

    /// Its address for S3.
    pub fn s3(&self) -> &str {
        self.ready["s3"].as_str().unwrap_or("?")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
