//! Garage: a real distributed S3 store in Rust, here with one node and as it comes. Its PUT is not durable when it answers.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{BUCKET, Server, credentials};
use crate::failure::Failure;
use crate::out;
use crate::process::{Process, find_program, free_port, test_cache};
use crate::s3::target::Target;

const REGION: &str = "garage";

/// Starts it; `None`, with a word about it, if the program is not there.
pub fn start(dir: &Path) -> Result<Option<Server>, Failure> {
    let place = test_cache().join("garage/bin/garage");
    let Some(program) = find_program("STOKER_GARAGE", "garage", &[place]) else {
        out::say("skipped: garage: no `garage` on the path and no STOKER_GARAGE (cargo install garage)");
        return Ok(None);
    };
    fs::create_dir_all(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let (address, rpc, admin) = (free_port()?, free_port()?, free_port()?);
    let (config, data) = (dir.join("garage.toml"), dir.display());
    let text = format!(
        "metadata_dir = \"{data}/meta\"
data_dir = \"{data}/data\"
db_engine = \"lmdb\"
replication_factor = 1
rpc_bind_addr = \"{rpc}\"
rpc_public_addr = \"{rpc}\"
rpc_secret = \"{secret}\"
[s3_api]
s3_region = \"{REGION}\"
api_bind_addr = \"{address}\"
[admin]
api_bind_addr = \"{admin}\"
",
        secret = "0e".repeat(32)
    );
    fs::write(&config, text).map_err(|e| Failure::io(config.display(), &e))?;
    let keys = credentials(REGION);
    let mut command = Command::new(program);
    command.arg("-c").arg(&config).args(["server", "--single-node", "--default-bucket"]);
    command.env("GARAGE_DEFAULT_ACCESS_KEY", &keys.access_key);
    command.env("GARAGE_DEFAULT_SECRET_KEY", &keys.secret_key);
    command.env("GARAGE_DEFAULT_BUCKET", BUCKET);
    let process = Process::start("garage", command, dir.join("log"))?;
    process.wait_for(address)?;
    Ok(Some(Server { name: "garage", process, target: Target::s3(address, BUCKET, &keys).into() }))
}
