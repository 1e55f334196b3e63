//! Stoker itself: `stoker up` of this very binary, as anybody would start it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use stoker_client::{Client, Endpoint};
use stoker_store::{Class, DrainPolicy, Store, StoreError, VolumePolicy};

use super::Server;
use crate::clock;
use crate::failure::Failure;
use crate::process::{Memory, Process};
use crate::s3::target::Credentials;
use crate::s3::target::Target;

/// The metric that counts bytes that reached the lake.
const DRAINED: &str = "stoker_drained_bytes_total";
/// The metric that counts files that did.
const DRAINED_FILES: &str = "stoker_drained_files_total";

/// The metric that counts bytes of a new ring that were written with zeroes in the background.
const PREPARED: &str = "stoker_ring_prepared_bytes_total";
/// A ring that prepared nothing for this long is prepared.
const PREPARED_PAUSE: Duration = Duration::from_secs(2);

/// How much room it gets, and when it drains.
#[derive(Clone, Debug)]
pub struct Room {
    /// Its folder.
    pub dir: PathBuf,
    /// Size of its ring.
    pub ring_bytes: u64,
    /// Most memory that it may use.
    pub memory_bytes: u64,
    /// How long a file has to be left alone before it drains.
    pub drain_quiet_s: u32,
    /// It has an NFS door, too, that believes who says to be root.
    pub nfs: bool,
}

/// A running Stoker.
pub struct Stoker {
    /// The server.
    pub server: Server,
    room: Room,
    ready: Ready,
}

impl Stoker {
    /// Starts it and waits until it is ready.
    pub fn start(room: Room) -> Result<Stoker, Failure> {
        let program = std::env::current_exe().map_err(|e| Failure::io("this program", &e))?;
        let mut command = Command::new(program);
        command.args(["up", "--json", "--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.arg("--dir").arg(&room.dir);
        command.arg("--size").arg(room.ring_bytes.to_string());
        command.arg("--memory").arg(room.memory_bytes.to_string());
        if room.nfs {
            command.args(["--nfs", "127.0.0.1:0", "--nfs-export", "data:keep-root"]);
        }
        let process = Process::start("stoker up", command, log_of(&room.dir))?;
        let line = process.first_line()?;
        let ready = Ready::parse(&line).ok_or_else(|| process.failure(&format!("printed {line}")))?;
        let target = Target::s3(ready.s3, &ready.volume, &ready.credentials).into();
        ready
            .set_policy(|policy| policy.drain_quiet_s = room.drain_quiet_s)
            .map_err(|e| process.failure(&format!("does not take a policy: {e}")))?;
        Ok(Stoker { server: Server { name: "stoker", process, target }, room, ready })
    }

    /// Stops it and starts it again: what was in memory is gone.
    pub fn restart(&mut self) -> Result<(), Failure> {
        self.stop()?;
        *self = Stoker::start(self.room.clone())?;
        Ok(())
    }

    /// Stops it in order.
    pub fn stop(&self) -> Result<(), Failure> {
        self.server.process.stop()
    }

    /// The volume that it began with.
    pub fn volume(&self) -> &str {
        &self.ready.volume
    }

    /// Keeps what is written on the drive: one copy, and nothing goes to the lake unless somebody asks.
    pub fn keep_here(&self) -> Result<(), Failure> {
        self.ready.set_policy(|policy| {
            policy.class = Class::One;
            policy.drain = DrainPolicy::OnDemand;
        })?;
        Ok(())
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.room.dir
    }

    /// The NFS door, if it has one.
    pub fn nfs(&self) -> Option<SocketAddr> {
        self.ready.nfs
    }

    /// The door for this machine.
    pub fn socket(&self) -> &Path {
        &self.ready.socket
    }

    /// What it takes of the machine's memory.
    pub fn memory(&self) -> Result<Memory, Failure> {
        self.server.process.memory()
    }

    /// Waits until everything that was written is in the lake.
    pub fn wait_drained(&self) -> Result<(), Failure> {
        let is_drained = || self.ready.dirty_bytes().is_ok_and(|bytes| bytes == 0);
        self.server.process.wait_until("does not drain", is_drained)
    }

    /// Waits until a new ring is written once, which goes on in the background.
    pub fn wait_prepared(&self) -> Result<(), Failure> {
        let mut last = (self.metric(PREPARED)?, clock::now());
        self.server.process.wait_until("goes on preparing its ring", || {
            let bytes = self.metric(PREPARED).unwrap_or_default();
            if bytes != last.0 {
                last = (bytes, clock::now());
            }
            last.1.elapsed() > PREPARED_PAUSE
        })
    }

    /// Bytes that went to the lake since it was started.
    pub fn drained_bytes(&self) -> Result<u64, Failure> {
        self.metric(DRAINED)
    }

    /// Files that went to the lake since it was started.
    pub fn drained_files(&self) -> Result<u64, Failure> {
        self.metric(DRAINED_FILES)
    }

    fn metric(&self, name: &str) -> Result<u64, Failure> {
        let text = self.ready.ask("/metrics").map_err(|e| Failure::io(self.ready.admin, &e))?;
        sample(&text, name).ok_or_else(|| self.server.process.failure(&format!("has no metric {name}")))
    }

    /// What it has to say about its state, for the report.
    pub fn status(&self) -> Result<Value, Failure> {
        self.ready.status().map_err(|e| Failure::io(self.ready.admin, &e))
    }
}

/// What `stoker up --json` prints when it is ready.
#[derive(Clone, Debug)]
struct Ready {
    s3: SocketAddr,
    admin: SocketAddr,
    token: String,
    volume: String,
    nfs: Option<SocketAddr>,
    socket: PathBuf,
    credentials: Credentials,
}

impl Ready {
    fn parse(line: &str) -> Option<Ready> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| value[name].as_str().map(String::from);
        let address = |name: &str| text(name)?.strip_prefix("http://")?.trim_end_matches('/').parse().ok();
        let (access_key, secret_key) = (text("access_key")?, text("secret_key")?);
        Some(Ready {
            s3: address("s3")?,
            admin: address("admin")?,
            token: text("token")?,
            volume: text("volume")?,
            nfs: text("nfs").and_then(|text| text.parse().ok()),
            socket: text("socket")?.into(),
            credentials: Credentials { access_key, secret_key, region: text("region")? },
        })
    }

    fn set_policy(&self, change: impl FnOnce(&mut VolumePolicy)) -> Result<(), StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = Client::connect(&Endpoint::Unix(self.socket.clone()), None).await?;
            let mut policy = client.volume(&self.volume).await?.policy;
            change(&mut policy);
            client.volume_set(&self.volume, policy).await.map(drop)
        })
    }

    fn status(&self) -> io::Result<Value> {
        serde_json::from_str(&self.ask("/api/v1/status")?).map_err(io::Error::other)
    }

    fn dirty_bytes(&self) -> io::Result<u64> {
        let status = self.status()?;
        status["dirty_bytes"].as_u64().ok_or_else(|| io::Error::other("the status has no dirty_bytes"))
    }

    /// A page of the admin server.
    fn ask(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.admin)?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
            self.admin, self.token
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        match text.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
            _ => Err(io::Error::other(text.lines().next().unwrap_or("no answer").to_owned())),
        }
    }
}

/// The sum of a metric over its labels.
fn sample(text: &str, name: &str) -> Option<u64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = if rest.starts_with('{') { rest.rsplit_once("} ")?.1 } else { rest.strip_prefix(' ')? };
        value.trim().parse::<f64>().ok()
    });
    values.map(|value| value as u64).reduce(|a, b| a + b)
}

fn log_of(dir: &Path) -> PathBuf {
    dir.with_extension("log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_is_read() {
        let line = r#"{"s3":"http://127.0.0.1:9000","access_key":"a","secret_key":"b","region":"us-east-1",
            "admin":"http://127.0.0.1:9001","token":"t","lake":"l","dir":"d","socket":"s","pid":1,"volume":"data"}"#;
        let ready = Ready::parse(line).unwrap();
        assert_eq!((ready.s3.port(), ready.admin.port(), ready.volume.as_str()), (9000, 9001, "data"));
        assert!(Ready::parse("{}").is_none());
        assert!(Ready::parse("hello").is_none());
    }

    #[test]
    fn metrics_are_summed_over_their_labels() {
        let text = "# HELP a_total x\na_total{v=\"1\"} 3\na_total{v=\"2\"} 4.0\na_total_more 9\nb 5\n";
        assert_eq!(sample(text, "a_total"), Some(7));
        assert_eq!(sample(text, "b"), Some(5));
        assert_eq!(sample(text, "c"), None);
    }
}
