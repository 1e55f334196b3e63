//! An encrypted volume on two real nodes, as an operator and a client of S3 use it: nothing of its bytes lies anywhere in plain.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use aws_lc_rs::{digest, hmac};
use serde_json::Value;

use crate::rig::*;

/// In every kilobyte of what is written here.
const MARK: &[u8] = b"plain-as-day-51c2e8";

fn marked(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = bytes_of(seed, len);
    for piece in bytes.chunks_mut(1024).filter(|piece| piece.len() > MARK.len()) {
        piece[..MARK.len()].copy_from_slice(MARK);
    }
    bytes
}

/// Files below a folder that have the mark in them.
fn marked_files(folder: &Path) -> Vec<PathBuf> {
    const BLOCK: usize = 4096;
    let has = |bytes: &[u8]| {
        (0..bytes.len()).step_by(BLOCK).any(|at| {
            let block = &bytes[at..(at + BLOCK).min(bytes.len())];
            let around = &bytes[at..(at + BLOCK + MARK.len()).min(bytes.len())];
            block != &[0; BLOCK][..block.len()] && around.windows(MARK.len()).any(|window| window == MARK)
        })
    };
    tree(folder).into_iter().filter(|(_, bytes)| has(bytes)).map(|(path, _)| path).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A signed request of S3; its status and body.
fn s3(node: &Value, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let text = |name: &str| node[name].as_str().unwrap();
    let host = text("s3").strip_prefix("http://").unwrap();
    let time = ran(Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"])).text().trim().to_owned();
    let (day, region) = (&time[..8], text("region"));
    let signed = "host;x-amz-content-sha256;x-amz-date";
    let canonical = format!(
        "{method}\n{path}\n\nhost:{host}\nx-amz-content-sha256:UNSIGNED-PAYLOAD\nx-amz-date:{time}\n\n{signed}\nUNSIGNED-PAYLOAD"
    );
    let scope = format!("{day}/{region}/s3/aws4_request");
    let hashed = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let mut key = format!("AWS4{}", text("secret_key")).into_bytes();
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashed}");
    for part in [day, region, "s3", "aws4_request", &to_sign] {
        key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
    }
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\nx-amz-date: {time}\r\n\
         x-amz-content-sha256: UNSIGNED-PAYLOAD\r\nAuthorization: AWS4-HMAC-SHA256 Credential={}/{scope}, \
         SignedHeaders={signed}, Signature={}\r\n\r\n",
        body.len(),
        text("access_key"),
        hex(&key)
    );
    let mut stream = TcpStream::connect(host).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
    (status, answer.split_off(end + 4))
}

fn up(home: &Path) -> Node {
    let mut command = binary();
    command.args(["up", "--nodes", "2", "--json", "--size", "128MiB", "--memory", "512MiB"]);
    command.arg("--dir").arg(home);
    Node::start(command, home)
}

/// Asks them to stop and waits until they have: killed, the one that started them would leave them behind for a moment.
fn stop(mut all: Node) {
    assert!(Command::new("kill").arg(all.child.id().to_string()).status().unwrap().success());
    assert!(all.child.wait().unwrap().success());
}

#[test]
fn bytes_of_an_encrypted_volume_are_plain_nowhere() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (home, local) = (folder.path().join("all"), folder.path().join("local"));
    let all = up(&home);
    let dir = |node: &Node, at: usize| PathBuf::from(node.ready[at]["dir"].as_str().unwrap());
    let (first, second) = (dir(&all, 0), dir(&all, 1));
    let refused =
        ask(&first, &["volume", "create", "vault", "--encrypt", "aes-256-gcm", "--lake-form", "sealed"]);
    assert!(refused.code != 0 && refused.err.contains("--lake none"), "{}", refused.err);
    let made =
        done(&first, &["volume", "create", "vault", "--encrypt", "aes-256-gcm", "--lake", "none", "--json"]);
    assert_eq!(made.json()["encryption"]["epochs"][0]["epoch"], 1, "{}", made.text());
    let bytes = marked(1, (6 << 20) + 77);
    fs::write(&local, &bytes).unwrap();
    let put = done(&second, &["put", local.to_str().unwrap(), "vault/by-client"]);
    assert!(put.text().contains("2 copies on 2 nodes"), "{}", put.text());
    assert_eq!(s3(&all.ready[0], "PUT", "/vault/by-s3", &bytes).0, 200);
    fs::remove_file(&local).unwrap();
    for node in [&all.ready[0], &all.ready[1]] {
        assert!(s3(node, "GET", "/vault/by-client", b"") == (200, bytes.clone()));
    }
    let explained = done(&first, &["explain", "vault/by-s3"]).text();
    assert!(explained.contains("encrypted on drives"), "{explained}");
    done(&first, &["data-key", "rotate", "vault"]);
    assert_eq!(s3(&all.ready[1], "PUT", "/vault/later", &bytes).0, 200);
    assert_eq!(marked_files(&home), Vec::<PathBuf>::new(), "rings, catalogs, logs and what else nodes write");
    // The hunt finds what is plain.
    assert_eq!(s3(&all.ready[0], "PUT", "/data/plain", &bytes).0, 200);
    assert!(!marked_files(&home).is_empty());
    stop(all);
    let all = up(&home);
    let (first, second) = (dir(&all, 0), dir(&all, 1));
    for (node, name) in [(&first, "by-s3"), (&second, "by-client"), (&second, "later")] {
        done(node, &["get", &format!("vault/{name}"), local.to_str().unwrap()]);
        assert!(fs::read(&local).unwrap() == bytes, "{name}");
    }
    let unsure = ask(&first, &["data-key", "destroy", "vault"]);
    assert!(unsure.code == 1 && unsure.err.contains("--lose-data"), "{}", unsure.err);
    done(&first, &["data-key", "destroy", "vault", "--lose-data"]);
    let (status, answer) = s3(&all.ready[0], "GET", "/vault/by-s3", b"");
    assert!(status == 403, "{status} {}", String::from_utf8_lossy(&answer));
    let gone = ask(&first, &["get", "vault/by-s3", local.to_str().unwrap()]);
    assert!(gone.code == 1 && gone.err.contains("destroyed"), "{}", gone.err);
    wait_for(|| s3(&all.ready[1], "GET", "/vault/later", b"").0 == 403);
    let shown = done(&second, &["volume", "show", "vault"]).text();
    assert!(shown.contains("keys were destroyed"), "{shown}");
}
