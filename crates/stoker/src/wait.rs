//! `stoker wait`: until a file is committed or in the lake.

use std::process::ExitCode;
use std::time::Duration;

use stoker_format::VersionId;
use stoker_store::{Awaited, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::waiting::{self, Sight};
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
    let (volume, key) = (&args.address.volume, args.address.key()?);
    let (awaited, state) =
        if args.committed { (Awaited::Committed, "committed") } else { (Awaited::Drained, "drained") };
    connect::run(&args.target, async |client| {
        let work = async { Ok(client.wait(volume, &key, args.version, awaited).await?) };
        let look = async || {
            let text = format!("{} is not {state} yet", args.address);
            Ok(Sight { text, why: waiting::why(&client, volume, &key, args.version).await? })
        };
        let receipt = waiting::wait(work, args.timeout, args.json, look)
            .await
            .map_err(|failure| late(failure, &args.address, state))?;
        if args.json {
            out::json(&show::receipt_json(&receipt))?
        } else {
            out::line(show::receipt(&receipt))?
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// A wait that was too short says of what, and who knows more.
fn late(failure: Failure, address: &Address, state: &str) -> Failure {
    match failure {
        Failure::Failed { cause, hint: None } if cause.starts_with(waiting::TOO_LATE) => {
            Failure::new(format!("{address} is not {state}: {cause}"))
                .hint(format!("`stoker explain {address}` says more; it goes on without this command"))
        }
        other => other,
    }
}
