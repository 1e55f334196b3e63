//! `stoker drive`: the drives of nodes that run.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use stoker_client::Client;
use stoker_store::{DriveInfo, Order, Report, Store};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::waiting::{self, Sight};
use crate::{out, show, size, span};

/// Pause between two looks at a drive that goes.
const LOOK: Duration = Duration::from_millis(500);

/// Below a directory that is a drive.
const RING_DIR: &str = "stoker-ring";

/// Files that are named before they are lost.
const NAMED_MAX: usize = 20;

/// What to do with a drive.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// List drives: where they are, how they are, what they hold that the lake has not.
    Ls(LsArgs),
    /// Put a drive into service in a running node. It is remembered there.
    Add(AddArgs),
    /// Take a drive out of a running node once nothing is only there.
    Remove(RemoveArgs),
    /// Put a new drive into service and take the old one out.
    Replace(ReplaceArgs),
    /// Put nothing new on a drive, and bring what the lake lacks to others. It stays in service and can be read.
    Cordon(CordonArgs),
    /// Let a cordoned drive take chunks again.
    Uncordon(CordonArgs),
}

/// Arguments of `drive ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Only of this node, by its id or its name.
    node: Option<String>,
    /// Print one object per line: drive, node, name, path, state, why, incarnation, bytes, keep_bytes, clean_bytes,
    /// undrained_files, undrained_bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `drive add`.
#[derive(clap::Args)]
pub struct AddArgs {
    /// The node, by its id or its name.
    node: String,
    /// Where the drive is on that node: a directory, a file or a block device.
    path: PathBuf,
    /// Bytes of the ring if it has to be made, such as 500GiB [default: half of what is free, at most 256GiB; a device whole]
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Print the drive as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `drive remove`.
#[derive(clap::Args)]
pub struct RemoveArgs {
    /// The node, by its id or its name.
    node: String,
    /// The drive, by its id or its path.
    drive: String,
    /// At once, although what is only there is lost. It is named first.
    #[arg(long)]
    force: bool,
    /// Do not wait until it is out.
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting after this long, such as 5m; exit code 1. The drive goes all the same.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `drive replace`.
#[derive(clap::Args)]
pub struct ReplaceArgs {
    /// The node, by its id or its name.
    node: String,
    /// The old drive, by its id or its path.
    drive: String,
    /// Where the new one is on that node; that may be the same path.
    path: PathBuf,
    /// Bytes of the new ring.
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Take the old one out at once, although what is only there is lost. It is named first.
    #[arg(long)]
    force: bool,
    /// Do not wait until the old one is out.
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting after this long, such as 5m; exit code 1. The old one goes all the same.
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `drive cordon` and `drive uncordon`.
#[derive(clap::Args)]
pub struct CordonArgs {
    /// The node, by its id or its name.
    node: String,
    /// The drive, by its id or its path.
    drive: String,
    /// Print the drive as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

fn cordon(args: &CordonArgs, cordoned: bool) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        let node = args.node.clone();
        let drive = find(&client, &node, &args.drive).await?.drive;
        let now = drives(&client, Order::DriveCordon { node, drive, cordoned }).await?;
        list(&now, args.json)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Ls(args) => connect::run(&args.target, async |client| {
            let all = drives(&client, Order::Drives { node: args.node.clone() }).await?;
            list(&all, args.json)?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Add(args) => connect::run(&args.target, async |client| {
            let added = add(&client, &args.node, &args.path, args.size).await?;
            list(&added, args.json)?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Remove(args) => connect::run(&args.target, async |client| {
            let drive = find(&client, &args.node, &args.drive).await?.drive;
            let how = Leave { force: args.force, no_wait: args.no_wait, timeout: args.timeout };
            remove(&client, &args.node, &drive, &how).await
        }),
        Verb::Replace(args) => connect::run(&args.target, async |client| {
            // By its id: the new one may have the path of the old one.
            let old = find(&client, &args.node, &args.drive).await?;
            list(&add(&client, &args.node, &args.path, args.size).await?, false)?;
            let how = Leave { force: args.force, no_wait: args.no_wait, timeout: args.timeout };
            remove(&client, &args.node, &old.drive, &how).await
        }),
        Verb::Cordon(args) => cordon(args, true),
        Verb::Uncordon(args) => cordon(args, false),
    }
}

async fn drives(client: &Client, order: Order) -> Result<Vec<DriveInfo>, Failure> {
    match client.operate(order).await? {
        Report::Drives(drives) => Ok(drives),
        _ => Err(Failure::confused()),
    }
}

async fn find(client: &Client, node: &str, drive: &str) -> Result<DriveInfo, Failure> {
    let mut all = drives(client, Order::Drives { node: Some(node.to_owned()) }).await?;
    let absolute = std::path::absolute(drive).unwrap_or_else(|_| drive.into());
    all.retain(|one| is_meant(one, drive, &absolute));
    all.sort_by_key(|one| one.state == "live");
    all.into_iter().next().ok_or_else(|| {
        Failure::new(format!("node {node} has no drive {drive}")).hint("see them with `stoker drive ls`")
    })
}

/// A drive by its id, by its path, or by what `drive add` was given: a path from here, or the folder that its ring is in.
fn is_meant(one: &DriveInfo, text: &str, absolute: &Path) -> bool {
    let path = Path::new(&one.path);
    let is_in = path.file_name().is_some_and(|name| name == RING_DIR) && path.parent() == Some(absolute);
    one.drive == text || one.path == text || path == absolute || is_in
}

async fn add(
    client: &Client,
    node: &str,
    path: &Path,
    size_bytes: Option<u64>,
) -> Result<Vec<DriveInfo>, Failure> {
    let path = std::path::absolute(path).map_err(|e| Failure::io(path.display(), &e))?;
    let path = path.to_str().ok_or_else(|| Failure::new("the path of a drive is text"))?.to_owned();
    drives(client, Order::DriveAdd { node: node.to_owned(), path, size_bytes }).await
}

/// How a drive is taken out.
struct Leave {
    force: bool,
    no_wait: bool,
    timeout: Option<Duration>,
}

async fn remove(client: &Client, node: &str, drive: &str, how: &Leave) -> Result<ExitCode, Failure> {
    let (node, drive) = (node.to_owned(), drive.to_owned());
    if how.force {
        name_losses(client, &node, &drive).await?;
    }
    let order = Order::DriveRemove { node: node.clone(), drive, force: how.force };
    let asked = drives(client, order).await?;
    let Some(going) = asked.into_iter().next() else { return Err(Failure::confused()) };
    if !how.force && !how.no_wait {
        wait_out(client, &node, &going, how.timeout).await?;
    }
    let is_out = how.force || !how.no_wait;
    out::line(format!("{} {}", going.path, if is_out { "is out of service" } else { "goes" }))?;
    Ok(ExitCode::SUCCESS)
}

/// Tells what is left until the drive is out.
async fn wait_out(
    client: &Client,
    node: &str,
    going: &DriveInfo,
    timeout: Option<Duration>,
) -> Result<(), Failure> {
    let seen: RefCell<Option<DriveInfo>> = RefCell::new(None);
    let work = async {
        loop {
            let all = drives(client, Order::Drives { node: Some(node.to_owned()) }).await?;
            let Some(now) = all.into_iter().find(|one| one.drive == going.drive) else { return Ok(()) };
            *seen.borrow_mut() = Some(now);
            tokio::time::sleep(LOOK).await;
        }
    };
    let look = async || {
        let seen = seen.borrow();
        let now = seen.as_ref().unwrap_or(going);
        let files = show::count(now.undrained_files, "file");
        Ok(Sight {
            text: format!("{files}, {} left on {}", size::human(now.undrained_bytes), now.path),
            why: now.why.clone(),
        })
    };
    waiting::wait(work, timeout, false, look).await.map_err(|failure| {
        match failure.cause().starts_with(waiting::TOO_LATE) {
            true => failure.hint(
                "it goes on without this command, which can be given again; `stoker rebuild status` says what is left",
            ),
            false => failure,
        }
    })
}

/// Says what is lost, before it is.
async fn name_losses(client: &Client, node: &str, drive: &str) -> Result<(), Failure> {
    let order = Order::DriveLosses { node: node.to_owned(), drive: drive.to_owned() };
    let Report::Lost(lost) = client.operate(order).await? else { return Err(Failure::confused()) };
    if lost.is_empty() {
        out::say("nothing is only there");
        return Ok(());
    }
    let bytes: u64 = lost.iter().map(|file| file.bytes).sum();
    out::say(format!("lost with it: {}, {}", show::count(lost.len() as u64, "file"), size::human(bytes)));
    for file in lost.iter().take(NAMED_MAX) {
        out::say(format!("  {}/{}", file.volume, show::name(&file.key)));
    }
    if lost.len() > NAMED_MAX {
        out::say("  and more; `stoker risk --lost` names all of them afterwards");
    }
    Ok(())
}

fn list(drives: &[DriveInfo], json: bool) -> Result<(), Failure> {
    if json {
        return drives.iter().try_for_each(|drive| out::json(&show::plain(drive)));
    }
    let head = ["NODE", "STATE", "SIZE", "TO KEEP", "CLEAN", "UNDRAINED", "ID", "PATH"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(drives.iter().map(|drive| {
        let why = drive.why.as_ref().map(|why| format!("  ({why})")).unwrap_or_default();
        vec![
            drive.name.clone(),
            drive.state.clone(),
            size::human(drive.bytes),
            size::human(drive.keep_bytes),
            size::human(drive.clean_bytes),
            size::human(drive.undrained_bytes),
            drive.drive.clone(),
            format!("{}{why}", drive.path),
        ]
    }));
    out::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_goes_by_the_name_it_came_with() {
        let drive = |path: &str| -> DriveInfo {
            let value = serde_json::json!({
                "drive": "d1", "node": "n1", "name": "n", "path": path, "state": "live", "why": null, "incarnation": 1,
                "bytes": 1, "keep_bytes": 0, "clean_bytes": 0, "undrained_files": 0, "undrained_bytes": 0,
            });
            serde_json::from_value(value).unwrap()
        };
        let check = |path: &str, text: &str, expect: bool| {
            let absolute = Path::new("/here").join(text);
            assert_eq!(is_meant(&drive(path), text, &absolute), expect, "{path} {text}");
        };
        for text in ["d1", "/here/dA/stoker-ring", "/here/dA", "dA", "dA/stoker-ring"] {
            check("/here/dA/stoker-ring", text, true);
        }
        check("/here/dA/stoker-ring", "dB", false);
        check("/here/dA/stoker-ring", "/here", false);
        check("/here/dA", "dA", true);
        check("/dev/nvme0n1", "/dev", false);
    }
}
