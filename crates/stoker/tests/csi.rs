//! The CSI driver over its socket, with a real node and real mounts. Where volumes cannot be mounted, what needs them says so and passes.

#[path = "csi/controller.rs"]
mod controller;
#[path = "csi/hostile.rs"]
mod hostile;
#[path = "csi/node.rs"]
mod node;
mod storm;
#[path = "csi/tenants.rs"]
mod tenants;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use stoker_gateway_csi::proto::*;
use stoker_gateway_csi::{Caller, Code, Status};
use storm::Node;

const WRITER: i32 = 1;
const MANY_READERS: i32 = 3;
const MANY_WRITERS: i32 = 5;
const ONLY_WRITER: i32 = 6;

/// A node, and a driver beside it.
struct Rig {
    dir: tempfile::TempDir,
    node: Option<Node>,
    driver: Option<Child>,
    caller: Option<Caller>,
    /// Arguments of the driver beside those that it always has.
    more: Vec<String>,
    runtime: tokio::runtime::Runtime,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::TempDir::new().unwrap();
        let node = Node::up(&dir.path().join("node"));
        Rig::of(dir, node, vec![])
    }

    /// A node that takes tokens of users, and a driver that uses them.
    fn with_tenants() -> Rig {
        let dir = tempfile::TempDir::new().unwrap();
        let (home, drive) = (dir.path().join("node"), dir.path().join("drive"));
        std::fs::create_dir(&drive).unwrap();
        let config = format!(
            "[node]\ndir = {home:?}\n[s3]\nlisten = [\"{LOCAL}\"]\n[admin]\nlisten = \"{LOCAL}\"\n\
             [door]\nlisten = [\"{LOCAL}\"]\n[[drive]]\npath = {drive:?}\nsize = \"1GiB\"\n",
            LOCAL = storm::LOCAL,
        );
        let file = dir.path().join("stoker.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
        command.args(["serve", "--json", "--config"]).arg(file);
        let node = Node::run(command, &home);
        let door = node.ready["door"][0].as_str().unwrap().to_owned();
        Rig::of(dir, node, vec!["--tenant-endpoint".to_owned(), door])
    }

    fn of(dir: tempfile::TempDir, node: Node, more: Vec<String>) -> Rig {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mut rig = Rig { dir, node: Some(node), driver: None, caller: None, more, runtime };
        rig.start();
        rig
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("csi.sock")
    }

    /// A path that the orchestrator would give.
    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn start(&mut self) {
        let log =
            std::fs::File::options().create(true).append(true).open(self.dir.path().join("csi.log")).unwrap();
        let mut driver = Command::new(env!("CARGO_BIN_EXE_stoker"))
            .args(["csi", "all", "--endpoint"])
            .arg(format!("unix://{}", self.socket().display()))
            .arg("--node-dir")
            .arg(self.dir.path().join("node"))
            .arg("--state")
            .arg(self.dir.path().join("state"))
            .args(["--node-id", "machine-1"])
            .args(&self.more)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(driver.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("serving"), "{line}");
        self.driver = Some(driver);
        let socket = self.socket();
        self.caller = Some(self.runtime.block_on(Caller::connect(&socket)).unwrap());
    }

    /// SIGKILL: nothing is told to anybody.
    fn kill(&mut self) {
        let mut driver = self.driver.take().unwrap();
        driver.kill().unwrap();
        driver.wait().unwrap();
    }

    fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let caller = self.caller.as_mut().unwrap();
        self.runtime.block_on(caller.call(path, request))
    }

    fn create(&mut self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        let made: Result<CreateVolumeResponse, _> = self.call("/csi.v1.Controller/CreateVolume", request);
        made.map(|made| made.volume.unwrap())
    }

    fn delete(&mut self, id: &str) -> Result<DeleteVolumeResponse, Status> {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        self.call("/csi.v1.Controller/DeleteVolume", request)
    }

    fn stoker(&self, args: &[&str]) -> String {
        let done = Command::new(env!("CARGO_BIN_EXE_stoker"))
            .env("STOKER_DIR", self.dir.path().join("node"))
            .args(args)
            .output()
            .unwrap();
        assert!(done.status.success(), "stoker {args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            let _ = driver.kill();
            let _ = driver.wait();
        }
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = self.dir.path().display().to_string();
        for path in table
            .lines()
            .rev()
            .filter_map(|line| line.split(' ').nth(4))
            .filter(|path| path.starts_with(&own))
        {
            let _ = Command::new(env!("CARGO_BIN_EXE_stoker")).args(["umount", "--lazy", path]).output();
        }
        if let Some(node) = self.node.take() {
            node.kill();
        }
    }
}

fn capability(mode: i32, flags: &[&str]) -> VolumeCapability {
    let mount_flags = flags.iter().map(ToString::to_string).collect();
    let mount = MountVolume { mount_flags, ..Default::default() };
    VolumeCapability { mount: Some(mount), access_mode: Some(AccessMode { mode }), block: None }
}

fn wanted(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![capability(MANY_WRITERS, &[])],
        ..Default::default()
    }
}

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn range(required_bytes: i64, limit_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes, limit_bytes })
}

/// The code that a call was refused with.
#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code) {
    match answer {
        Ok(answer) => panic!("{code:?} was expected, not {answer:?}"),
        Err(status) => assert_eq!(status.code(), code, "{status}"),
    }
}
