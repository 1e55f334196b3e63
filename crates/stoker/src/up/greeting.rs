//! What `up` says when everything runs.

use std::net::{IpAddr, SocketAddr};

use serde_json::json;
use stoker_store::commit_words;

use crate::daemon::{CREDENTIALS, Credentials, Ready, nfs};
use crate::failure::Failure;
use crate::join::TOKEN_VARIABLE;
use crate::shell::{program, quoted};
use crate::sys::interfaces;
use crate::{out, size};

/// One line for programs.
pub fn json(ready: &Ready) -> Result<(), Failure> {
    let credentials = ready.credentials.as_ref();
    out::json(&json!({
        "s3": ready.s3.first(),
        "access_key": credentials.map(|keys| &keys.access_key),
        "secret_key": credentials.map(|keys| &keys.secret_key),
        "region": ready.region,
        "nfs": ready.nfs.first(),
        "registry": ready.registry.first(),
        "admin": ready.admin,
        "ca": ready.ca.as_ref().map(|ca| ca.display().to_string()),
        "token": ready.tokens.operator,
        "view_token": ready.tokens.view,
        "lake": ready.lake,
        "dir": ready.dir.display().to_string(),
        "socket": ready.socket.display().to_string(),
        "pid": std::process::id(),
        "volume": ready.volume,
        "id": ready.status.node,
        "peers": ready.peers.first(),
        "join_token": ready.join_token,
        "unreachable": ready.unreachable,
    }))
}

/// What has changed for the volumes of a cluster that this node joined.
pub fn joined(ready: &Ready) {
    if let Some(why) = &ready.unreachable {
        out::say(format!("this node is a member, but {why}"));
        return;
    }
    for volume in &ready.protection {
        let copies = match volume.copies {
            1 => "commits to one node".to_owned(),
            2 => "now commits two-of-two".to_owned(),
            more => format!("now commits to {more} nodes"),
        };
        let older = match volume.files_below {
            0 => "every file that is not in the lake has its copies".to_owned(),
            1 => "1 older file has fewer copies, re-protecting".to_owned(),
            many => format!("{many} older files have fewer copies, re-protecting"),
        };
        out::say(format!("volume {} {copies}; {older}", volume.volume));
    }
}

/// Lines for people, most of which can be pasted as they are.
pub fn words(ready: &Ready, is_check: bool) -> Result<(), Failure> {
    out::fields(&rows(ready))?;
    if let (Some(keys), Some(s3), Some(volume)) = (&ready.credentials, ready.s3.first(), &ready.volume) {
        out::line("")?;
        examples(ready, keys, s3, volume).into_iter().try_for_each(out::line)?;
    }
    out::say(if is_check { "\neverything starts; stopped again" } else { "\nready; stop with Ctrl-C" });
    Ok(())
}

fn examples(ready: &Ready, keys: &Credentials, s3: &str, volume: &str) -> Vec<String> {
    let (access, secret, region) = (&keys.access_key, &keys.secret_key, &ready.region);
    let dir = quoted(&ready.dir.display().to_string());
    let file = quoted(&ready.dir.join(CREDENTIALS).display().to_string());
    let program = program();
    let mut lines = vec!["a file to try it with:".into(), "  echo hello > hello.txt".into()];
    lines.extend(trust(ready));
    lines.extend([
        format!("aws (the keys are in {file}, too, for you alone):"),
        format!(
            "  export AWS_ACCESS_KEY_ID={access} AWS_SECRET_ACCESS_KEY={secret} AWS_DEFAULT_REGION={region}"
        ),
        format!("  aws --endpoint-url {s3} s3 cp hello.txt s3://{volume}/"),
        "boto3:".into(),
        "  import boto3".into(),
        format!("  s3 = boto3.client(\"s3\", endpoint_url=\"{s3}\", region_name=\"{region}\","),
        format!("                    aws_access_key_id=\"{access}\", aws_secret_access_key=\"{secret}\")"),
        format!("  s3.upload_file(\"hello.txt\", \"{volume}\", \"hello.txt\")"),
        "rclone:".into(),
        format!("  export RCLONE_S3_PROVIDER=Other RCLONE_S3_ENDPOINT={s3} RCLONE_S3_REGION={region} \\"),
        format!("         RCLONE_S3_ACCESS_KEY_ID={access} RCLONE_S3_SECRET_ACCESS_KEY={secret}"),
        format!("  rclone copy hello.txt :s3:{volume}"),
        "stoker:".into(),
        format!("  export STOKER_DIR={dir}"),
        format!("  {program} put hello.txt {volume}/hello.txt"),
        "as a file system (root, FUSE):".into(),
        format!("  mkdir -p /mnt/{volume} && {program} mount {volume} /mnt/{volume} --dir {dir}"),
        "until it is in the lake, and where it is there:".into(),
        format!("  {program} wait {volume}/hello.txt"),
    ]);
    lines
}

/// How clients are told to trust the authority of the cluster, if they have to.
fn trust(ready: &Ready) -> Vec<String> {
    let Some(ca) = &ready.ca else { return Vec::new() };
    let ca = quoted(&ca.display().to_string());
    vec![
        "trust its certificates (aws and boto3; rclone; curl; copy the file to other machines):".into(),
        format!("  export AWS_CA_BUNDLE={ca} RCLONE_CA_CERT={ca} CURL_CA_BUNDLE={ca}"),
    ]
}

fn rows(ready: &Ready) -> Vec<(&'static str, String)> {
    let status = &ready.status;
    let mut rows = vec![
        ("s3", format!("{}  region {}", ready.s3.join(" "), ready.region)),
        ("console", format!("{}/  log in with {}", ready.admin, ready.tokens.operator)),
        ("lake", lake(ready)),
    ];
    if let Some(address) = ready.nfs.first() {
        rows.insert(1, ("nfs", nfs::mount_command(*address, ready.volume.as_deref().unwrap_or("VOLUME"))));
    }
    if let Some(url) = ready.registry.first() {
        let images = url.trim_start_matches("http://");
        rows.insert(1, ("registry", format!("podman pull --tls-verify=false {images}/IMAGE")));
    }
    for ring in &status.rings {
        rows.push(("drive", format!("{}, {}, {}", ring.path, size::human(ring.bytes), ring.io)));
    }
    rows.push((
        "limits",
        format!("{}, {} of memory, no busy polling", ready.cores, size::human(ready.memory_bytes)),
    ));
    if status.dirty_files > 0 {
        let (files, bytes) = (out::count(status.dirty_files), size::human(status.dirty_bytes));
        rows.push(("draining", format!("{files} files, {bytes}, left from the last run")));
    }
    rows.push(("safety", commit_words(ready.copies)));
    if let (Some(peers), Some(token)) = (ready.peers.first(), &ready.join_token) {
        let line = format!("{TOKEN_VARIABLE}={token} {} join {peers} --dir OTHER_DIR", program());
        rows.push(("add a node", line));
        let more = format!(
            "the token is for one node, within an hour; `{} join-token create` makes more",
            program()
        );
        rows.push(("", more));
        rows.extend(elsewhere(ready, peers).map(|words| ("", words)));
    }
    rows
}

/// What to do before a node of another machine can join, if this one is reached on its own machine only.
fn elsewhere(ready: &Ready, peers: &str) -> Option<String> {
    let at: SocketAddr = peers.parse().ok()?;
    let example = reachable(at.port()).filter(|_| at.ip().is_loopback())?;
    let dir = quoted(&ready.dir.display().to_string());
    Some(format!(
        "on this machine only: {peers} is not reached from others; for them start this node with `{} up --dir {dir} --peers \
         {example}`",
        program()
    ))
}

/// An address of this machine that others may reach, with a port; none if there is no network.
pub fn reachable(port: u16) -> Option<String> {
    let port = if port == 0 { 9002 } else { port };
    let all = interfaces::addresses().ok()?;
    let v4 = |address: &IpAddr| matches!(address, IpAddr::V4(v4) if !v4.is_link_local());
    let found = all.into_iter().map(|(_, address)| address).find(v4)?;
    Some(SocketAddr::new(found, port).to_string())
}

fn lake(ready: &Ready) -> String {
    match &ready.lake_trouble {
        None => format!(
            "{}  plain objects, about {} s after a file's last change",
            ready.lake, ready.drain_quiet_s
        ),
        Some(_) => format!("{}  DOES NOT ANSWER; files stay on the drives here until it does", ready.lake),
    }
}
