//! `stoker stat`: what is known of a file.

use std::process::ExitCode;

use stoker_store::Store;

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{out, show};

/// Arguments of `stat`.
#[derive(clap::Args)]
pub struct Args {
    /// VOLUME/KEY, any number of them.
    #[arg(required = true)]
    addresses: Vec<Address>,
    /// Print one object per line: volume, key, size, etag, modified, version, drain, checksums and properties.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Looks.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        for (number, address) in args.addresses.iter().enumerate() {
            let info = client.stat(&address.volume, &address.key()?).await?;
            if args.json {
                out::json(&show::file_json(&address.volume, &info))?;
                continue;
            }
            if number > 0 {
                out::line("")?;
            }
            let mut rows = show::file_rows(&address.volume, &info);
            // What is true of its copies, in the words of `explain`.
            let explained = client.explain(&address.volume, &info.key).await.ok();
            let copies = explained.and_then(|told| told.words.into_iter().next());
            rows.extend(copies.map(|words| ("copies", words)));
            out::fields(&rows)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}
