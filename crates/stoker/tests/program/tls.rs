//! Ports in TLS with certificates of the cluster's own authority.

use std::fs;
use std::path::Path;

use crate::up::{Daemon, folder, run};

fn config(dir: &Path, tls: &str) -> String {
    let (home, drive) = (dir.join("home"), dir.join("drive"));
    fs::create_dir_all(&drive).unwrap();
    let text = format!(
        "[node]\ndir = {home:?}\nmemory = \"256MiB\"\n[[drive]]\npath = {drive:?}\nsize = \"256MiB\"\n\
         [tls]\n{tls}\n[s3]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [door]\nlisten = [\"127.0.0.1:0\"]\n"
    );
    let file = dir.join("stoker.toml");
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn all_ports_take_tls_and_the_command_line_trusts_the_clusters_authority() {
    let dir = folder();
    let file = config(dir.path(), "own = true\nnames = [\"s3.example.com\"]");
    let node = Daemon::start(&["serve", "--json", "--config", &file]);
    let text = |name: &str| node.ready[name].as_str().unwrap_or_default().to_owned();
    let door = node.ready["door"][0].as_str().unwrap().to_owned();
    assert!(door.starts_with("tls://"), "{door}");
    assert!(text("admin").starts_with("https://"), "{}", node.ready);
    assert!(node.ready["s3"][0].as_str().unwrap().starts_with("https://"), "{}", node.ready);
    let (ca, token) = (text("ca"), dir.path().join("home/token").display().to_string());
    assert!(fs::read_to_string(&ca).unwrap().starts_with("-----BEGIN CERTIFICATE-----\n"));

    let at = |endpoint: &str, more: &[&str]| {
        let given = ["volume", "ls", "--endpoint", endpoint, "--token-file", &token];
        run(&[&given[..], more].concat())
    };
    let (code, _, err) = at(&door, &["--ca", &ca]);
    assert_eq!(code, Some(0), "{err}");
    // The system does not know that authority.
    let (code, _, err) = at(&door, &[]);
    assert_ne!(code, Some(0));
    assert!(err.contains("not trusted here") && err.contains("ca.pem"), "{err}");
    let (code, _, err) = at(door.trim_start_matches("tls://"), &[]);
    assert_ne!(code, Some(0));
    assert!(err.contains("connect to tls://HOST:PORT"), "{err}");
    node.stop();
}

#[test]
fn a_certificate_that_cannot_be_used_is_told_before_anything_listens() {
    let dir = folder();
    let check = |tls: &str, words: &[&str]| {
        let file = config(dir.path(), tls);
        let (code, _, err) = run(&["serve", "--check", "--config", &file]);
        assert_ne!(code, Some(0), "{tls}");
        words.iter().for_each(|part| assert!(err.contains(part), "{part}: {err}"));
    };
    check("own = true\ncert = \"c\"\nkey = \"k\"", &["stoker.toml:", "either `own = true`"]);
    check("cert = \"c\"", &["stoker.toml:", "both `cert` and `key`"]);
    check("own = true\nnames = [\"https://h\"]", &["stoker.toml:", "no host name and no address"]);
    let file = config(dir.path(), "cert = \"/nowhere/c.pem\"\nkey = \"/nowhere/k.pem\"");
    let (code, _, err) = run(&["serve", "--config", &file]);
    assert_ne!(code, Some(0));
    assert!(err.contains("/nowhere/c.pem") && err.contains("hint: give PEM files"), "{err}");
    let dir = dir.path().join("up");
    let up = |more: &[&str]| run(&[&["up", "--check", "--dir", dir.to_str().unwrap()], more].concat());
    assert!(up(&["--tls", "perhaps"]).2.contains("expected on or off"));
    assert!(up(&["--tls-name", "h"]).2.contains("--tls"));
}
