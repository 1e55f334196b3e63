//! `stoker join`: a new node on this machine becomes a member of a cluster.

use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use stoker_node::JoinAs;

use crate::config::Config;
use crate::daemon::place::Place;
use crate::failure::Failure;
use crate::{daemon, out, shell, sys, up};

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
    /// The configuration of the node that is to be a service: joins with its directory and ends; `stoker serve` then runs it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
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
    let token = token(args.token_file.as_deref())?;
    if let Some(config) = &args.config {
        return join_service(config, &args.address, token.as_deref());
    }
    up::run_member(&args.node, Some(up::Cluster { address: &args.address, token: token.as_deref() }))
}

/// Makes the directory that a configuration names that of a member, and starts nothing.
fn join_service(file: &Path, address: &str, token: Option<&str>) -> Result<ExitCode, Failure> {
    let config = Config::read(file)?;
    make_for_service(&config.node.dir)?;
    let place = Place::take(&config.node.dir)?;
    let was_node = stoker_node::is_node(place.dir());
    let wanted = JoinAs {
        name: config.peers.name.clone().unwrap_or_else(sys::host_name),
        is_name_chosen: config.peers.name.is_some(),
        peers: config.peers.listen.first().copied(),
    };
    let lake = daemon::join(&place, address, token, &wanted)?;
    let dir = place.dir().display();
    out::say(match was_node {
        true => format!(
            "{dir} is a node already; nothing was changed. To join another cluster, move it away first"
        ),
        false => format!("{dir} is now a node of the cluster at {address}"),
    });
    if let Some(lake) = lake.filter(|lake| Some(lake) != config.lake.url.as_ref()) {
        let own = config.lake.url.as_deref().unwrap_or("none");
        out::say(format!(
            "  the cluster's lake is {lake}, that of {} is {own}: give all nodes the same",
            file.display()
        ));
    }
    if config.peers.listen.is_empty() {
        out::say(
            "  [peers] listen is not set: other nodes reach this one at the address of this machine by which it joined, port 9002",
        );
    }
    let start = format!("stoker serve --config {}", shell::quoted(&file.display().to_string()));
    out::say(match sys::user().0 == 0 && service_user().is_some() {
        true => format!("  start it: systemctl enable --now stoker, or runuser -u {SERVICE_USER} -- {start}"),
        false => format!("  start it: {start}"),
    });
    Ok(ExitCode::SUCCESS)
}

/// The token, from where it was given.
pub fn token(file: Option<&Path>) -> Result<Option<String>, Failure> {
    match file {
        Some(file) => read(file).map(Some),
        None => Ok(std::env::var(TOKEN_VARIABLE).ok()),
    }
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

/// The user of the service, as docs/install.md has it made.
const SERVICE_USER: &str = "stoker";

/// Makes the directory of a node that is to be a service, if it is not there: root makes it for the user of the service, who could not read
/// what root leaves in its own.
fn make_for_service(dir: &Path) -> Result<(), Failure> {
    if sys::user().0 != 0 || dir.exists() {
        return Ok(());
    }
    let Some((user, group)) = service_user() else {
        return Ok(());
    };
    let failed = |error: std::io::Error| Failure::io(dir.display(), &error);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    std::os::unix::fs::chown(dir, Some(user), Some(group)).map_err(failed)
}

fn service_user() -> Option<(u32, u32)> {
    user_of(&std::fs::read_to_string("/etc/passwd").unwrap_or_default(), SERVICE_USER)
}

/// User and group of a name, by the lines of `/etc/passwd`.
fn user_of(lines: &str, name: &str) -> Option<(u32, u32)> {
    let fields = lines.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = fields.into_iter().find(|fields| fields.first() == Some(&name))?;
    Some((found.get(2)?.parse().ok()?, found.get(3)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let lines =
            "root:x:0:0::/root:/bin/sh\nstoker2:x:7:8::/:/bin/sh\nstoker:x:998:997::/:/bin/sh\nbroken\n";
        assert_eq!(user_of(lines, "stoker"), Some((998, 997)));
        assert_eq!(user_of(lines, "stok"), None);
        assert_eq!(user_of("stoker:x:many:1::", "stoker"), None);
    }
}
