//! NFS clients against a real node: one on bare sockets, which sends what others do not, and libnfs. They are Python; where
//! the machine has no Python or no libnfs, the tests say so and pass.

mod storm;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use storm::Node;

/// What a script ends with if what it needs is not here.
const EXIT_SKIPPED: i32 = 3;

/// A node with an NFS door.
fn up(dir: &Path, exports: &[&str]) -> Node {
    let mut verb = vec!["up", "--nfs", storm::LOCAL];
    exports.iter().for_each(|export| verb.extend(["--nfs-export", export]));
    Node::start(&verb, dir)
}

fn text(node: &Node, name: &str) -> String {
    node.ready[name].as_str().unwrap_or_else(|| panic!("{name} lacks in {}", node.ready)).to_owned()
}

fn port(node: &Node) -> String {
    text(node, "nfs").rsplit(':').next().unwrap().to_owned()
}

/// Runs a script; false if it cannot run here.
fn script(name: &str, args: &[&str]) -> bool {
    // Tests run in the folder of their package. The one that they were built in may be another: checkouts share builds.
    let path: PathBuf = ["tests/nfs", name].iter().collect();
    let done = match Command::new("python3").arg("-B").arg(path).args(args).output() {
        Ok(done) => done,
        Err(error) => {
            stoker_testing::skipped(format_args!("python3 cannot be started: {error}"));
            return false;
        }
    };
    let words = [done.stdout, done.stderr].concat();
    let words = String::from_utf8_lossy(&words);
    let is_skipped = |status: ExitStatus| status.code() == Some(EXIT_SKIPPED);
    if is_skipped(done.status) {
        stoker_testing::skipped(&words);
        return false;
    }
    assert!(done.status.success(), "{name}: {words}");
    true
}

#[test]
fn nfs_is_what_it_should_be_and_handles_survive_a_kill() {
    let dir = tempfile::TempDir::new().unwrap();
    let (at, kept) = (dir.path().join("node"), dir.path().join("kept.json"));
    let kept = kept.to_str().unwrap();
    let node = up(&at, &[]);
    let names = ["s3", "access_key", "secret_key"].map(|name| text(&node, name));
    if !script("first.py", &[&port(&node), kept, &names[0], &names[1], &names[2]]) {
        return;
    }
    node.kill();
    let node = up(&at, &[]);
    assert!(script("second.py", &[&port(&node), kept]));
    node.stop();
}

#[test]
fn libnfs_works() {
    let dir = tempfile::TempDir::new().unwrap();
    let node = up(&dir.path().join("node"), &[]);
    script("libnfs.py", &[&port(&node)]);
    node.stop();
}

#[test]
fn exports_are_kept_to() {
    let dir = tempfile::TempDir::new().unwrap();
    let at = dir.path().join("node");
    let node = up(&at, &["data:allow=10.0.0.0/8"]);
    if !script("exports.py", &[&port(&node), "other network"]) {
        return;
    }
    node.stop();
    let node = up(&at, &["data:allow=10.0.0.0/8", "another"]);
    script("exports.py", &[&port(&node), "other volume"]);
    node.stop();
    let node = up(&at, &["data:keep-root"]);
    script("exports.py", &[&port(&node), "keep root"]);
    node.stop();
    let node = up(&at, &["data:read-only"]);
    script("exports.py", &[&port(&node), "read only"]);
    node.stop();
    let node = up(&at, &["another"]);
    script("exports.py", &[&port(&node), "another volume"]);
    node.stop();
}

/// Two nodes of a cell, and a client that goes from one to the other.
#[test]
fn a_client_that_moves_overwrites_nothing_newer() {
    let dir = tempfile::TempDir::new().unwrap();
    let (at, there) = (dir.path().join("first"), dir.path().join("second"));
    let first = up(&at, &[]);
    Node::join(&first, &[], &there).stop();
    let second = up(&there, &[]);
    script("moves.py", &[&port(&first), &port(&second)]);
    second.stop();
    first.stop();
}

/// Connections of 4 bytes that say how long the request is that never comes.
#[test]
fn silent_connections_block_nobody() {
    let dir = tempfile::TempDir::new().unwrap();
    let node = up(&dir.path().join("node"), &[]);
    script("crowd.py", &[&port(&node)]);
    node.stop();
}

/// What crowds do to the latency of one who behaves. A measurement, for `STOKER_CROWDS=1` and a quiet machine: it judges nothing.
#[test]
fn crowds_are_measured() {
    if !stoker_testing::is_asked(&["STOKER_CROWDS"]) {
        return;
    }
    let dir = tempfile::TempDir::new().unwrap();
    let at = dir.path().join("node");
    let node = Node::start(&["up", "--nfs", storm::LOCAL], &at);
    let door = |name: &str| text(&node, name);
    let peers = door("peers").rsplit(':').next().unwrap().to_owned();
    let names = ["s3", "access_key", "secret_key"].map(door);
    let program = env!("CARGO_BIN_EXE_stoker");
    let args = [program, at.to_str().unwrap(), &port(&node), &peers, &names[0], &names[1], &names[2]];
    let path: PathBuf = ["tests/nfs", "crowds.py"].iter().collect();
    assert!(Command::new("python3").arg("-B").arg(path).args(args).status().unwrap().success());
    node.stop();
}

/// Takes the mount away even if the test fails.
struct Mounted(PathBuf, Option<std::process::Child>);

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(child) = self.1.take() {
            storm::unmount(&self.0, child);
        }
    }
}

/// Changes through FUSE, NFS and S3 in a random order against a model. More with `STOKER_DOOR_STEPS` and `STOKER_SEED`.
#[test]
fn every_door_shows_what_the_others_did() {
    if !storm::can_mount() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (steps, first) =
        (number("STOKER_DOOR_STEPS").unwrap_or(150).to_string(), number("STOKER_SEED").unwrap_or(1));
    let dir = tempfile::TempDir::new().unwrap();
    let (at, mnt) = (dir.path().join("node"), dir.path().join("mnt"));
    let node = up(&at, &["data:keep-root"]);
    std::fs::create_dir(&mnt).unwrap();
    let mount = Mounted(mnt.clone(), Some(storm::mount(&at, "data", &mnt, &["--cache", "0"])));
    // What comes through S3 belongs to whom its key says.
    let made = Command::new(env!("CARGO_BIN_EXE_stoker"))
        .args(["key", "create", "--uid", "1234", "--gid", "567", "--json", "--dir"])
        .arg(&at)
        .output()
        .unwrap();
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let [access, secret] = ["access_key", "secret_key"].map(|name| made[name].as_str().unwrap().to_owned());
    let (endpoint, port) = (text(&node, "s3"), port(&node));
    for seed in first..first + 2 {
        let (mnt, seed) = (mnt.to_str().unwrap(), seed.to_string());
        let args = [&port, mnt, &endpoint, &access, &secret, "data", &seed, &steps, "1234", "567"];
        script("doors.py", &args);
        std::fs::remove_dir_all(mount.0.join("a")).unwrap();
        std::fs::remove_dir_all(mount.0.join("b")).unwrap();
        for left in std::fs::read_dir(&mount.0).unwrap() {
            std::fs::remove_file(left.unwrap().path()).unwrap();
        }
    }
    drop(mount);
    node.stop();
}
