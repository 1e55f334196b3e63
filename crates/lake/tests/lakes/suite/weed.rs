//! A real S3 server for tests: SeaweedFS, if there is one.

use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stoker_lake::{LakeOptions, RetryOptions};

pub const BUCKET: &str = "lake";
pub const ACCESS_KEY: &str = "stoker-test";
pub const SECRET_KEY: &str = "stoker-secret";

/// A running server. It ends with the test.
pub struct Weed {
    server: Child,
    pub port: u16,
    _dir: tempfile::TempDir,
}

impl Weed {
    /// Starts a server with one bucket; `None`, and says why, if this is not to be.
    pub fn start() -> Option<Weed> {
        if !super::full() {
            stoker_testing::skipped("only with STOKER_FULL");
            return None;
        }
        let Some(weed) = program() else {
            stoker_testing::skipped("no `weed` in PATH and no STOKER_WEED");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("s3.json");
        let text = format!(
            r#"{{"identities":[{{"name":"test","credentials":[{{"accessKey":"{ACCESS_KEY}","secretKey":"{SECRET_KEY}"}}],"actions":["Admin","Read","Write","List","Tagging"]}}]}}"#
        );
        std::fs::write(&config, text).unwrap();
        let [master, volume, filer, port] = [free_port(), free_port(), free_port(), free_port()];
        let server = Command::new(&weed)
            .args(["server", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=20"])
            .arg(format!("-dir={}", dir.path().display()))
            .arg(format!("-s3.config={}", config.display()))
            .args(["-master.volumeSizeLimitMB=64", "-s3.autoCreateBucket=false"])
            .arg(format!("-master.port={master}"))
            .arg(format!("-volume.port={volume}"))
            .arg(format!("-filer.port={filer}"))
            .arg(format!("-s3.port={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let weed = Weed { server, port, _dir: dir };
        weed.make_bucket(&program().unwrap(), master, filer);
        Some(weed)
    }

    pub fn url(&self, prefix: &str) -> String {
        format!("s3://{BUCKET}/weed/{prefix}")
    }

    pub fn options(&self) -> LakeOptions {
        LakeOptions {
            endpoint: Some(format!("http://127.0.0.1:{}", self.port)),
            access_key_id: Some(ACCESS_KEY.into()),
            secret_access_key: Some(SECRET_KEY.into()),
            retry: RetryOptions { tries_max: 8, ..RetryOptions::default() },
            ..LakeOptions::default()
        }
    }

    /// Waits for the server and makes the bucket.
    fn make_bucket(&self, weed: &PathBuf, master: u16, filer: u16) {
        for _ in 0..60 {
            let mut shell = Command::new(weed)
                .args(["shell", &format!("-master=127.0.0.1:{master}"), &format!("-filer=127.0.0.1:{filer}")])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let commands = format!("s3.bucket.create -name {BUCKET}\ns3.bucket.list\n");
            let _ = shell.stdin.take().unwrap().write_all(commands.as_bytes());
            let output = String::from_utf8_lossy(&shell.wait_with_output().unwrap().stdout).into_owned();
            if output.contains(&format!("  {BUCKET}")) && self.answers() {
                return;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        panic!("the S3 server did not start");
    }

    fn answers(&self) -> bool {
        std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn program() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("STOKER_WEED") {
        return Some(PathBuf::from(path));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("weed")).find(|file| file.is_file())
}

/// A port that is free, as the one 10,000 above it is: SeaweedFS takes both.
fn free_port() -> u16 {
    for _ in 0..1000 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        if let Some(above) = port.checked_add(10_000)
            && TcpListener::bind(("127.0.0.1", above)).is_ok()
        {
            return port;
        }
    }
    panic!("no free ports");
}
