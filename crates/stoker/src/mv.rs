//! `stoker mv`: renames a file or a folder in its volume, in one transaction.

use std::process::ExitCode;

use stoker_store::{RenameMode, Store};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;

/// Arguments of `mv`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME/KEY, or VOLUME/FOLDER/ with a slash at its end.
    from: Address,
    /// The new name, in the same volume. With a slash at its end, a file keeps its own name below it.
    to: Address,
    /// Do not replace a file.
    #[arg(short, long)]
    no_clobber: bool,
    #[command(flatten)]
    target: Target,
}

/// Renames.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (from, to) = (&args.from, &args.to);
    if from.volume != to.volume {
        let cause = format!("{from} and {to} are in two volumes");
        return Err(Failure::new(cause).hint("copy with `stoker cp -r`, then remove with `stoker rm -r`"));
    }
    let from_key = from.key()?;
    // A folder gets the name that is given; a file goes below a folder that is given.
    let to_key = if !from.is_folder() && to.is_folder() {
        to.with_path(format!("{}{}", to.path, from.name())).key()?
    } else if from.is_folder() && !to.path.is_empty() {
        to.with_path(to.folder()).key()?
    } else {
        to.key()?
    };
    let mode = if args.no_clobber { RenameMode::NoReplace } else { RenameMode::Replace };
    connect::run(&args.target, async |client| {
        client.rename(&from.volume, &from_key, &to_key, mode).await?;
        Ok(ExitCode::SUCCESS)
    })
}
