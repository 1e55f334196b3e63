//! `stoker generate`: man pages and completions of shells, for whoever makes packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_complete::{Shell, generate_to};

use crate::command;
use crate::failure::Failure;

/// A folder for each shell, and what reads it.
const SHELLS: [(&str, Shell); 3] = [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

/// Arguments of `generate`.
#[derive(clap::Args)]
pub struct Args {
    /// The folder that gets `man`, `bash`, `zsh` and `fish`.
    directory: PathBuf,
}

/// Writes them.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let command = without_help(command());
    let man = made(&args.directory, "man")?;
    clap_mangen::generate_to(command.clone(), &man).map_err(|error| Failure::io(man.display(), &error))?;
    for (name, shell) in SHELLS {
        let folder = made(&args.directory, name)?;
        let path = generate_to(shell, &mut command.clone(), "stoker", &folder)
            .map_err(|error| Failure::io(folder.display(), &error))?;
        // Bash looks for a file that is named as the program is.
        if shell == Shell::Bash {
            fs::rename(&path, folder.join("stoker")).map_err(|error| Failure::io(path.display(), &error))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `stoker help` and its like have no page of their own.
fn without_help(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    let command = command.disable_help_subcommand(true);
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, without_help))
}

fn made(directory: &Path, name: &str) -> Result<PathBuf, Failure> {
    let folder = directory.join(name);
    fs::create_dir_all(&folder).map_err(|error| Failure::io(folder.display(), &error))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_and_every_verb_gets_a_page() {
        let folder = tempfile::tempdir().unwrap();
        run(&Args { directory: folder.path().to_owned() }).unwrap();
        let read = |path: &str| {
            fs::read_to_string(folder.path().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
        };
        for verb in command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let page = read(&format!("man/stoker-{}.1", verb.get_name()));
            assert!(page.contains("SYNOPSIS"), "{}", verb.get_name());
        }
        for none in ["generate", "help", "volume-help"] {
            assert!(!folder.path().join(format!("man/stoker-{none}.1")).exists(), "{none}");
        }
        for path in ["bash/stoker", "zsh/_stoker", "fish/stoker.fish"] {
            assert!(read(path).contains("evacuate"), "{path}");
        }
    }
}
