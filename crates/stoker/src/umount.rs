//! `stoker umount`: takes a mounted volume away.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::failure::Failure;
use crate::sys;

/// Arguments of `umount`.
#[derive(clap::Args)]
pub struct Args {
    /// The directory that shows the volume.
    directory: PathBuf,
    /// Take the name away now although files are open; they can be used until they are closed.
    #[arg(long)]
    lazy: bool,
}

/// Unmounts.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let how = if args.lazy { sys::Unmount::Now } else { sys::Unmount::WhenUnused };
    let error = match sys::unmount(&args.directory, how) {
        Ok(()) => return Ok(ExitCode::SUCCESS),
        Err(error) => error,
    };
    let what = format!("unmounting {}", args.directory.display());
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            // Who mounted without being root unmounts with the same help.
            let lazy = args.lazy.then_some("-z");
            let done = Command::new("fusermount3").arg("-u").args(lazy).arg(&args.directory).status();
            match done {
                Ok(status) if status.success() => Ok(ExitCode::SUCCESS),
                _ => Err(Failure::io(what, &error)),
            }
        }
        Some(libc::EBUSY) => {
            let hint = "close what uses it (`fuser -vm DIRECTORY` names it), or use --lazy";
            Err(Failure::io(what, &error).hint(hint))
        }
        Some(libc::EINVAL) => {
            Err(Failure::new(format!("nothing is mounted on {}", args.directory.display())))
        }
        _ => Err(Failure::io(what, &error)),
    }
}
