//! `stoker set`: checkpoint sets, whose shards become visible together or not at all.

mod put;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use serde_json::{Value, json};
use stoker_client::Client;
use stoker_store::{
    DrainState, Key, SET_DEADLINE_S_MAX, SetId, SetInfo, SetRequest, SetState, SetStatus, Store,
    check_volume_name,
};

use crate::address::Address;
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::transfer::upload::{self, ShardAt};
use crate::{clock, out, show, size, span, sys};

/// Sets asked for at once.
const PAGE: usize = 1_000;

/// Laggards that are told to a person.
const LAGGARDS_TOLD: usize = 20;

/// What to do with checkpoint sets.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Write a whole set: begin it, add all files at once, publish it.
    Put(put::Args),
    /// Begin a set; prints its id. Asked again by the same owner, the answer is the same.
    Begin(BeginArgs),
    /// Add files as shards. They are durable when this returns, and not visible.
    Add(AddArgs),
    /// Make all shards visible at once; fails and names those that lack.
    Publish(NameArgs),
    /// Give a set up; what was written for it goes.
    Abort(NameArgs),
    /// Show how far a set is, and which shards it lacks.
    Status(NameArgs),
    /// List sets.
    Ls(LsArgs),
    /// Show the directory of the set that was published last.
    Latest(LatestArgs),
}

/// Names a set: by its id, or by the directory that it is or will be.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Name {
    Id { volume: String, set: SetId },
    Path(Address),
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        match text.split_once(':') {
            Some((volume, id)) if !volume.contains('/') && !id.starts_with('/') => {
                check_volume_name(volume).map_err(|error| error.message)?;
                Ok(Name::Id { volume: volume.to_owned(), set: id.parse().map_err(|e| format!("{e}"))? })
            }
            _ => parse_folder(text).map(Name::Path).map_err(|why| format!("{why}, or its id: VOLUME:NUMBER")),
        }
    }
}

impl Name {
    /// The volume and id of a set.
    async fn find(&self, client: &Client) -> Result<(String, SetId), Failure> {
        match self {
            Name::Id { volume, set } => Ok((volume.clone(), *set)),
            Name::Path(address) => match client.set_find(&address.volume, &address.key()?).await? {
                Some(found) => Ok((address.volume.clone(), found.set)),
                None => Err(Failure::new(format!(
                    "no checkpoint set is open for {address} or was published as it"
                ))
                .hint(format!("see the sets with `stoker set ls {}`", address.volume))),
            },
        }
    }
}

/// Reads VOLUME/DIRECTORY/.
fn parse_folder(text: &str) -> Result<Address, String> {
    let address: Address = text.parse()?;
    if address.path.is_empty() || !address.is_folder() {
        return Err("a set is a directory and is named with a slash at its end: VOLUME/DIRECTORY/".into());
    }
    Ok(address)
}

fn parse_deadline(text: &str) -> Result<u32, String> {
    match span::parse_seconds(text)? {
        seconds @ 1..=SET_DEADLINE_S_MAX => Ok(seconds),
        _ => Err(format!("expected between 1s and {}d", SET_DEADLINE_S_MAX / 86_400)),
    }
}

/// Arguments of `set begin`.
#[derive(clap::Args)]
pub struct BeginArgs {
    /// VOLUME/DIRECTORY/ that the set will be; nothing may have that name.
    #[arg(value_name = "VOLUME/DIRECTORY/", value_parser = parse_folder)]
    dest: Address,
    /// How many shards it has.
    #[arg(long, value_name = "N")]
    shards: u32,
    /// It is given up if it is not published by then.
    #[arg(long, value_name = "SPAN", default_value = "1h", value_parser = parse_deadline)]
    deadline: u32,
    /// Who gathers it; all ranks of a job name the same one, its id, say.
    #[arg(long, value_name = "NAME", default_value = "stoker")]
    owner: String,
    /// Print the set as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `set add`.
#[derive(clap::Args)]
pub struct AddArgs {
    /// VOLUME:ID as `begin` printed it, or VOLUME/DIRECTORY/.
    #[arg(value_name = "SET")]
    set: Name,
    /// Files; more than one are shards K, K+1 and so on.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Number of the shard, from 0; one that is there already is replaced.
    #[arg(long, value_name = "K")]
    shard: u32,
    /// Key below the set's directory; by default the name of the file.
    #[arg(long, value_name = "KEY")]
    name: Option<String>,
    /// Who writes it, for people; by default the name of this machine.
    #[arg(long, value_name = "NAME")]
    writer: Option<String>,
    /// Keep mode and modification time.
    #[arg(short, long)]
    preserve: bool,
    /// Print each receipt as one line of JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `set publish`, `set abort` and `set status`.
#[derive(clap::Args)]
pub struct NameArgs {
    /// VOLUME:ID as `begin` printed it, or VOLUME/DIRECTORY/.
    #[arg(value_name = "SET")]
    set: Name,
    /// Print the set as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `set ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Only of this volume.
    volume: Option<String>,
    /// Print one object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `set latest`.
#[derive(clap::Args)]
pub struct LatestArgs {
    /// VOLUME, or VOLUME/PREFIX of the directories that count.
    address: Address,
    /// Print the set as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Put(args) => put::run(args),
        Verb::Begin(args) => connect::run(&args.target, async |client| {
            let request = SetRequest {
                target: args.dest.key()?,
                owner: args.owner.clone(),
                shards: args.shards,
                deadline_s: Some(args.deadline),
            };
            let set = client.set_begin(&args.dest.volume, request).await?;
            if args.json { out::json(&info_json(&set)) } else { out::line(id_text(&set)) }?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Add(args) => connect::run(&args.target, async |client| add(&client, args).await),
        Verb::Publish(args) => connect::run(&args.target, async |client| {
            let (volume, set) = args.set.find(&client).await?;
            tell(&client.set_publish(&volume, set).await?, args.json)
        }),
        Verb::Abort(args) => connect::run(&args.target, async |client| {
            let (volume, set) = args.set.find(&client).await?;
            tell(&client.set_abort(&volume, set).await?, args.json)
        }),
        Verb::Status(args) => connect::run(&args.target, async |client| {
            let (volume, set) = args.set.find(&client).await?;
            let status = client.set_status(&volume, set).await?;
            if args.json { out::json(&status_json(&status)) } else { out::fields(&status_rows(&status)) }?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Ls(args) => connect::run(&args.target, async |client| list(&client, args).await),
        Verb::Latest(args) => connect::run(&args.target, async |client| {
            let Address { volume, path } = &args.address;
            let Some(set) = client.set_latest(volume, path.as_bytes()).await? else {
                return Err(Failure::new(format!("no checkpoint set was published below {}", args.address))
                    .hint(format!("see the sets with `stoker set ls {volume}`")));
            };
            let path = || format!("{volume}/{}", show::name(set.path.as_bytes()));
            if args.json { out::json(&info_json(&set)) } else { out::line(path()) }?;
            Ok(ExitCode::SUCCESS)
        }),
    }
}

async fn add(client: &Client, args: &AddArgs) -> Result<ExitCode, Failure> {
    if args.name.is_some() && args.files.len() > 1 {
        return Err(Failure::new("one --name cannot name several files").hint("add them one by one"));
    }
    let (volume, set) = args.set.find(client).await?;
    let directory = client.set_status(&volume, set).await?.info.path;
    let bytes = args.files.iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    let progress = Progress::over_bytes(bytes, args.json);
    let how = upload::UploadOptions { preserve: args.preserve, ..upload::UploadOptions::default() };
    for (at, file) in args.files.iter().enumerate() {
        let name = match &args.name {
            Some(name) => name.clone().into_bytes(),
            None => name_of(file)?,
        };
        let key = Key::new([directory.as_bytes(), &name].concat())?;
        let number = u32::try_from(at).ok().and_then(|at| args.shard.checked_add(at));
        let number = number.ok_or_else(|| Failure::new("there is no shard of this number"))?;
        let writer = args.writer.clone().unwrap_or_else(sys::host_name);
        let place = ShardAt { set, number, writer };
        progress.say(show::name(&name));
        let receipt = upload::shard(client, file, &volume, &key, place, &how, &progress).await?;
        if args.json {
            out::json(&show::receipt_json(&receipt))?;
        } else {
            let copies = show::count(u64::from(receipt.copies), "node");
            let (name, size) = (show::name(key.as_bytes()), size::human(receipt.size));
            out::line(format!("shard {number}  {volume}/{name}  {size}, on {copies}, not visible yet"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of a file, as a key.
fn name_of(file: &std::path::Path) -> Result<Vec<u8>, Failure> {
    use std::os::unix::ffi::OsStrExt;
    let name = file.file_name().map(|name| name.as_bytes().to_vec());
    name.ok_or_else(|| Failure::new(format!("{} has no name", file.display())).hint("give one with --name"))
}

async fn list(client: &Client, args: &LsArgs) -> Result<ExitCode, Failure> {
    let volumes = match &args.volume {
        Some(volume) => vec![volume.clone()],
        None => client.volumes().await?.into_iter().map(|volume| volume.name).collect(),
    };
    let mut rows = Vec::new();
    for volume in volumes {
        let mut after = None;
        loop {
            let page = client.sets(&volume, after, PAGE).await?;
            for set in &page.sets {
                if args.json { out::json(&info_json(set))? } else { rows.push(row(set)) }
            }
            after = page.sets.last().map(|set| set.set);
            if !page.more || after.is_none() {
                break;
            }
        }
    }
    if rows.is_empty() && !args.json {
        out::say("no checkpoint sets; write one with `stoker set put VOLUME/DIRECTORY/ FILES`");
    }
    out::table(&rows)?;
    Ok(ExitCode::SUCCESS)
}

fn id_text(set: &SetInfo) -> String {
    format!("{}:{}", set.volume, set.set)
}

fn state(state: SetState) -> &'static str {
    match state {
        SetState::Open => "open",
        SetState::Published => "published",
        SetState::Aborted => "aborted",
        SetState::Expired => "expired",
    }
}

/// What happens next, or when it ended.
fn when(set: &SetInfo) -> String {
    match set.state {
        SetState::Open => format!("until {}", clock::rfc3339(set.deadline_ms)),
        _ => format!("at {}", clock::rfc3339(set.closed_ms)),
    }
}

fn row(set: &SetInfo) -> Vec<String> {
    vec![
        id_text(set),
        state(set.state).to_owned(),
        when(set),
        show::count(u64::from(set.shards), "shard"),
        format!("{}/{}", set.volume, show::name(set.path.as_bytes())),
    ]
}

fn tell(set: &SetInfo, json: bool) -> Result<ExitCode, Failure> {
    if json { out::json(&info_json(set)) } else { out::line(row(set).join("  ")) }?;
    Ok(ExitCode::SUCCESS)
}

fn info_json(set: &SetInfo) -> Value {
    let mut object = serde_json::Map::new();
    object.insert("set".to_owned(), id_text(set).into());
    object.insert("volume".to_owned(), set.volume.clone().into());
    show::put_name(&mut object, "path", set.path.as_bytes());
    let rest = json!({
        "id": set.set.0,
        "state": state(set.state),
        "owner": set.owner,
        "shards": set.shards,
        "begun": clock::rfc3339(set.begun_ms),
        "deadline": clock::rfc3339(set.deadline_ms),
        "closed": (set.closed_ms > 0).then(|| clock::rfc3339(set.closed_ms)),
        "seq": (set.seq > 0).then_some(set.seq),
    });
    show::extend(object, rest)
}

fn status_json(status: &SetStatus) -> Value {
    let mut value = info_json(&status.info);
    value["present"] = status.present.into();
    value["bytes"] = status.bytes.into();
    value["laggards"] = status.laggards.clone().into();
    value["drain"] = show::drain(&status.drain).into();
    value
}

fn status_rows(status: &SetStatus) -> Vec<(&'static str, String)> {
    let info = &status.info;
    let mut rows = vec![
        ("set", id_text(info)),
        ("path", format!("{}/{}", info.volume, show::name(info.path.as_bytes()))),
        ("state", format!("{} {}", state(info.state), when(info))),
        ("owner", info.owner.clone()),
        ("shards", format!("{} of {}, {}", status.present, info.shards, size::human(status.bytes))),
    ];
    if info.state == SetState::Open && !status.laggards.is_empty() {
        let named = status.laggards.iter().take(LAGGARDS_TOLD).map(u32::to_string).collect::<Vec<_>>();
        let more = (info.shards - status.present.min(info.shards)) as usize - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        rows.push(("missing", format!("{}{more}", named.join(", "))));
    }
    if info.state == SetState::Published {
        let lake = match status.drain {
            DrainState::Clean => "all of it, with its marker",
            DrainState::Never => "never: the volume does not drain",
            DrainState::Dirty | DrainState::Conflict => "on its way; its marker comes last",
        };
        rows.push(("in the lake", lake.to_owned()));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_named_by_id_or_directory() {
        let id = |volume: &str, set| Name::Id { volume: volume.into(), set: SetId(set) };
        let path =
            |volume: &str, path: &str| Name::Path(Address { volume: volume.into(), path: path.into() });
        for (text, expect) in [
            ("data:17", id("data", 17)),
            ("data/run/step-1/", path("data", "run/step-1/")),
            ("stoker://data/run/", path("data", "run/")),
            ("data/a:b/", path("data", "a:b/")),
        ] {
            assert_eq!(text.parse::<Name>(), Ok(expect), "{text}");
        }
        for text in ["", "17", "data", "data/", "data/run", "data:", "data:x", "data:-1", "DATA:1", ":1"] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }

    #[test]
    fn deadlines_are_limited() {
        assert_eq!(parse_deadline("90m"), Ok(5_400));
        for text in ["0s", "31d", "x"] {
            assert!(parse_deadline(text).is_err(), "{text}");
        }
    }
}
