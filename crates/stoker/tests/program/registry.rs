//! `stoker up --registry` in front of another registry, as skopeo sees it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use stoker_testing::skipped;

use crate::rig::*;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn digest_of(bytes: &[u8]) -> String {
    let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    format!("sha256:{}", sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

type Files = HashMap<String, (&'static str, Vec<u8>)>;

/// A registry with one image, which counts what it is asked.
struct Hub {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    fn start(files: Files) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let (of_thread, files) = (asked.clone(), Arc::new(files));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (asked, files) = (of_thread.clone(), files.clone());
                // A client that hangs up ends its thread.
                std::thread::spawn(move || answer(stream, &files, &asked));
            }
        });
        Hub { address, asked }
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn answer(mut stream: TcpStream, files: &Files, asked: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    asked.lock().unwrap().push(format!("{method} {path}"));
    let Some((kind, bytes)) = files.get(path) else {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    };
    let (len, digest) = (bytes.len(), digest_of(bytes));
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len}\r\ndocker-content-digest: {digest}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    if method != "HEAD" {
        stream.write_all(bytes)?;
    }
    Ok(())
}

/// An image of two layers, and its manifest.
fn image() -> (Files, String) {
    let (config, first, second) = (
        br#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#.to_vec(),
        bytes_of(1, 5_000_000),
        bytes_of(2, 70_000),
    );
    let layer = |bytes: &[u8]| {
        serde_json::json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
            "digest": digest_of(bytes),
            "size": bytes.len(),
        })
    };
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest_of(&config),
            "size": config.len(),
        },
        "layers": [layer(&first), layer(&second)],
    });
    let manifest = manifest.to_string();
    let mut files = Files::new();
    for bytes in [config, first, second] {
        files
            .insert(format!("/v2/team/app/blobs/{}", digest_of(&bytes)), ("application/octet-stream", bytes));
    }
    files.insert("/v2/team/app/manifests/v1".to_owned(), (MANIFEST, manifest.clone().into_bytes()));
    (files, manifest)
}

#[test]
fn skopeo_pulls_an_image_and_the_second_pull_asks_no_upstream() {
    if !Command::new("skopeo").arg("--version").output().is_ok_and(|done| done.status.success()) {
        return skipped("there is no skopeo");
    }
    let (files, manifest) = image();
    let hub = Hub::start(files.clone());
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = folder.path().join("node");
    let mut command = binary();
    command.args(["up", "--json", "--size", "512MiB", "--memory", "256MiB", "--s3", "127.0.0.1:0"]);
    command.args(["--admin", "127.0.0.1:0", "--registry", "127.0.0.1:0", "--dir"]).arg(&dir);
    command.arg("--registry-upstream").arg(format!("http://{}", hub.address));
    let node = Node::start(command, &dir);
    let registry = node.ready["registry"].as_str().unwrap().trim_start_matches("http://").to_owned();
    for round in 0..2 {
        let out = folder.path().join(format!("image-{round}"));
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["copy", "--insecure-policy", "--src-tls-verify=false"]);
        skopeo.arg(format!("docker://{registry}/team/app:v1")).arg(format!("dir:{}", out.display()));
        let done = ran(&mut skopeo);
        assert_eq!(done.code, 0, "{}{}", done.text(), done.err);
        assert_eq!(std::fs::read(out.join("manifest.json")).unwrap(), manifest.as_bytes());
        for (path, (_, bytes)) in &files {
            if let Some(hex) = path.strip_prefix("/v2/team/app/blobs/sha256:") {
                assert!(std::fs::read(out.join(hex)).unwrap() == *bytes, "{path}");
            }
        }
        let asked = hub.asked();
        assert_eq!(asked.len(), if round == 0 { files.len() } else { 0 }, "{asked:?}");
    }
    let listed = done(&dir, &["ls", "images", "-r"]).text();
    assert!(listed.contains("blobs/sha256/") && listed.contains("_tags/v1"), "{listed}");
    let refused = ran(binary()
        .args(["up", "--registry", "127.0.0.1:0", "--check", "--dir"])
        .arg(folder.path().join("x")));
    assert!(refused.code == 1 && refused.err.contains("no upstream"), "{}", refused.err);
}
