//! `stoker join`: a new node on this machine becomes a member of a cluster.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::up;

/// Arguments of `join`.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Where a node of the cluster listens for others: HOST:PORT, as its `up` prints it.
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// The token that its `up` prints.
    #[arg(long, value_name = "TOKEN", env = "STOKER_JOIN_TOKEN", hide_env_values = true)]
    token: String,
    #[command(flatten)]
    node: up::Args,
}

/// Joins, unless the directory is a member already, and runs the node.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    up::run_member(&args.node, Some((&args.address, &args.token)))
}
