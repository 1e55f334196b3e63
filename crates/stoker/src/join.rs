//! `stoker join`: a new node on this machine becomes a member of a cluster.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::failure::Failure;
use crate::up;

/// Longest text that is taken for a token.
const TOKEN_LEN_MAX: u64 = 4096;

/// The environment variable that a token may be in.
pub const TOKEN_VARIABLE: &str = "STOKER_JOIN_TOKEN";

/// Arguments of `join`.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Where a node of the cluster listens for others: HOST:PORT, as its `up` prints it.
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// File with a join token, - for stdin; by default the token is in STOKER_JOIN_TOKEN. `stoker join-token create` makes one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Refused: what is on a command line can be read by everybody on the machine.
    #[arg(long, value_name = "TOKEN", hide = true)]
    token: Option<String>,
    #[command(flatten)]
    node: up::Args,
}

/// Joins, unless the directory is a member already, and runs the node.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.token.is_some() {
        return Err(Failure::new("a token on the command line can be read by everybody on this machine").hint(
            "revoke it with `stoker join-token revoke`, make another, and give it in STOKER_JOIN_TOKEN or by --token-file",
        ));
    }
    let token = match &args.token_file {
        Some(file) => Some(read(file)?),
        None => std::env::var(TOKEN_VARIABLE).ok(),
    };
    up::run_member(&args.node, Some(up::Cluster { address: &args.address, token: token.as_deref() }))
}

fn read(file: &Path) -> Result<String, Failure> {
    let is_stdin = file == Path::new("-");
    let name = if is_stdin { "stdin".to_owned() } else { file.display().to_string() };
    let failed = |error: std::io::Error| Failure::io(&name, &error);
    let mut text = String::new();
    let read = if is_stdin {
        std::io::stdin().lock().take(TOKEN_LEN_MAX).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).map_err(failed)?.take(TOKEN_LEN_MAX).read_to_string(&mut text)
    };
    read.map_err(failed)?;
    Ok(text.trim().to_owned())
}
