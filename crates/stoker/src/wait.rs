//! `stoker wait`: until a file is committed or in the lake.

use std::process::ExitCode;
use std::time::Duration;

use stoker_format::VersionId;
use stoker_store::{Awaited, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{out, show, span};

/// Arguments of `wait`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME/KEY.
    address: Address,
    /// Until it is confirmed in the lake (the default).
    #[arg(long)]
    drained: bool,
    /// Until it is on as many drives as its class says.
    #[arg(long, conflicts_with = "drained")]
    committed: bool,
    /// This version of the file, not the present one.
    #[arg(long, value_name = "ID")]
    version: Option<VersionId>,
    /// Give up after this long, such as 30s or 5m; exit code 1.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    timeout: Option<Duration>,
    /// Print the receipt as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Waits.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let key = args.address.key()?;
    let (awaited, state) =
        if args.committed { (Awaited::Committed, "committed") } else { (Awaited::Drained, "drained") };
    connect::run(&args.target, async |client| {
        let waited = client.wait(&args.address.volume, &key, args.version, awaited);
        let receipt = match args.timeout {
            None => waited.await?,
            Some(limit) => tokio::time::timeout(limit, waited).await.map_err(|_| {
                let cause = format!("{} is not {state} after {limit:?}", args.address);
                Failure::new(cause).hint(format!("`stoker explain {}` says why", args.address))
            })??,
        };
        if args.json {
            out::json(&show::receipt_json(&receipt))?
        } else {
            out::line(show::receipt(&receipt))?
        }
        Ok(ExitCode::SUCCESS)
    })
}
