//! `stoker audit`: search the audit log of a node, and check that nothing of it was changed. Needs the files alone, no node that runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use stoker_agent::{AUDIT_DIR, audit_keys};
use stoker_audit::{Entry, Findings, PAGE_LEN_MAX, PublicKey, Query, time};

use crate::config::Config;
use crate::failure::Failure;
use crate::home::Home;
use crate::{out, show};

/// What to do with the log.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// List who did what, newest first.
    Query(QueryArgs),
    /// Check that no line was changed, removed or put elsewhere, and that no signed line is missing. Exit code 1 if one was.
    Verify(VerifyArgs),
}

/// Where the log is.
#[derive(clap::Args)]
struct Place {
    /// A folder with segments, such as a copy of what the volume `stoker-audit` has of a node; otherwise the log of a node of this machine.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["dir", "config"])]
    files: Option<PathBuf>,
    #[command(flatten)]
    home: Home,
}

/// Arguments of `audit query`.
#[derive(clap::Args)]
pub struct QueryArgs {
    /// Only paths that start with this: a volume by its full name, or VOLUME/KEY.
    #[arg(long)]
    path: Option<String>,
    /// Only of this one, such as `acme/alice`, `operator` or an access key.
    #[arg(long)]
    user: Option<String>,
    /// Only of users of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Only this action, such as `Create`, `Open` or `Delete`.
    #[arg(long)]
    action: Option<String>,
    /// Only results that start with this: `ok`, `denied` or `failed`.
    #[arg(long)]
    result: Option<String>,
    /// Only through this endpoint: `s3`, `client`, `admin` or `nfs`.
    #[arg(long)]
    door: Option<String>,
    /// Not before this time, such as 2026-11-19 or 2026-11-19T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = time_of)]
    from: Option<u64>,
    /// Before this time.
    #[arg(long, value_name = "TIME", value_parser = time_of)]
    to: Option<u64>,
    /// At most this many lines; 0 for all.
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Print one object per line, as the log has it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Arguments of `audit verify`.
#[derive(clap::Args)]
pub struct VerifyArgs {
    /// A public key of the cluster, as `audit verify` prints it on a node; may be given several times. By default those of the node's directory.
    #[arg(long, value_name = "HEX", value_parser = key_of)]
    public_key: Vec<PublicKey>,
    /// Print one object: node, segments, events, heads, signed_to, problems.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

fn time_of(text: &str) -> Result<u64, String> {
    time::parse(text).ok_or_else(|| "not a time; write 2026-11-19 or 2026-11-19T12:00:00Z, in UTC".to_owned())
}

fn key_of(text: &str) -> Result<PublicKey, String> {
    PublicKey::parse(text).ok_or_else(|| "a public key has 64 lower-case hex digits".to_owned())
}

impl Place {
    /// The folder with the segments, and the directory of the node if there is one.
    fn find(&self) -> Result<(PathBuf, Option<PathBuf>), Failure> {
        let (folder, node) = match (&self.files, &self.home.config) {
            (Some(files), _) => (files.clone(), None),
            (None, Some(file)) => {
                let dir = Config::read(file)?.node.dir;
                (dir.join(AUDIT_DIR), Some(dir))
            }
            (None, None) => {
                let dir = self.home.dir();
                (dir.join(AUDIT_DIR), Some(dir))
            }
        };
        if !folder.is_dir() {
            return Err(Failure::new(format!("there is no audit log in {}", folder.display()))
                .hint("name the node's directory with --dir, or a folder with segments with --files"));
        }
        Ok((folder, node))
    }
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Query(args) => query(args),
        Verb::Verify(args) => verify(args),
    }
}

fn broken(folder: &Path, error: &std::io::Error) -> Failure {
    Failure::io(format!("the audit log in {}", folder.display()), error)
}

fn query(args: &QueryArgs) -> Result<ExitCode, Failure> {
    let (folder, _) = args.place.find()?;
    let mut left = if args.limit == 0 { usize::MAX } else { args.limit };
    let mut query = Query {
        path: args.path.clone(),
        user: args.user.clone(),
        tenant: args.tenant.clone(),
        action: args.action.clone(),
        result: args.result.clone(),
        door: args.door.clone(),
        from_ms: args.from,
        to_ms: args.to,
        before: None,
        limit: 0,
    };
    loop {
        query.limit = left.min(PAGE_LEN_MAX);
        let page = query.run(&folder).map_err(|error| broken(&folder, &error))?;
        for entry in &page.entries {
            match args.json {
                true => out::line(show::plain(entry))?,
                false => out::line(line(entry))?,
            }
        }
        left -= page.entries.len();
        match page.next {
            Some(next) if left > 0 => query.before = Some(next),
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn line(entry: &Entry) -> String {
    let event = &entry.event;
    let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let mut text = format!(
        "{}  {:<8} {}  {} {}  {}",
        entry.time,
        event.result,
        event.principal,
        dash(&event.door),
        event.action,
        dash(&event.path)
    );
    if event.bytes > 0 {
        text += &format!("  {} bytes", event.bytes);
    }
    for (name, value) in
        [("session", &event.session), ("from", &event.address), ("request", &event.request_id)]
    {
        if !value.is_empty() {
            text += &format!("  {name} {value}");
        }
    }
    if !event.detail.is_empty() {
        text += &format!("  ({})", event.detail);
    }
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn verify(args: &VerifyArgs) -> Result<ExitCode, Failure> {
    let (folder, node) = args.place.find()?;
    let keys = match (args.public_key.as_slice(), node) {
        ([], Some(node)) => audit_keys(&node)?,
        (keys, _) => keys.to_vec(),
    };
    let found = stoker_audit::verify(&folder, &keys).map_err(|error| broken(&folder, &error))?;
    match args.json {
        true => out::json(&show::plain(&found))?,
        false => tell(&found, &keys)?,
    }
    Ok(if found.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(found: &Findings, keys: &[PublicKey]) -> Result<(), Failure> {
    for problem in &found.problems {
        out::line(format!("PROBLEM: {problem}"))?;
    }
    out::line(format!(
        "node {}: {} events in {} segments, {} signed heads; signed up to event {} of {}",
        found.node, found.events, found.segments, found.heads, found.signed_to, found.seq
    ))?;
    for key in keys {
        out::line(format!("key {key}"))?;
    }
    if keys.is_empty() {
        out::say(
            "no key was given: the heads are signed by the keys that they name; give the cluster's with --public-key",
        );
    }
    if found.is_sound() {
        out::line("no line was changed, removed or put elsewhere".to_owned())?;
        if found.signed_to < found.seq {
            out::say(
                "what is behind the last head is chained and not signed yet: a node signs within seconds, and when it stops",
            );
        }
    }
    Ok(())
}
