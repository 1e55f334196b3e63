//! `stoker lake`: lakes with names, what they can do, and second lakes of volumes. What they are: docs/tiers.md.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use stoker_client::Client;
use stoker_store::{
    LackingFile, LakeChange, LakeInfo, LakeTrial, Order, ReplicaInfo, Report, Store, TierOrder, TierReport,
};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{out, show, size, span};

/// Pause between two looks at a promotion.
const LOOK: Duration = Duration::from_millis(500);

/// What to do with lakes.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Give a lake a name, with its endpoint, keys, cost and limits.
    Add(AddArgs),
    /// Change a lake. What is not named stays; an empty text takes a setting away. Nodes need no restart.
    Set(SetArgs),
    /// Try everything that Stoker does with a lake, and say what works and how long it takes. The exit code is 1 if something does not.
    Check(CheckArgs),
    /// List lakes, without their secrets.
    Ls(LsArgs),
    /// Forget a lake that no volume uses. Its objects stay.
    Rm(NameArgs),
    /// Show second lakes of volumes, and how far they are behind.
    Replicas(ReplicasArgs),
    /// Make the second lake of a volume its lake, for when the first one is lost or to be left.
    Promote(PromoteArgs),
    /// Name the files that only the former lake has. The exit code is 1 if there are any.
    Lacking(LackingArgs),
}

/// Arguments of `lake add`.
#[derive(clap::Args)]
pub struct AddArgs {
    /// Name: lower-case letters, digits and hyphens.
    name: String,
    /// Where it is: s3://bucket/prefix, gs://, az://, file:///directory. Each volume has a folder of its own below.
    #[arg(long, value_name = "URL")]
    url: String,
    #[command(flatten)]
    settings: Settings,
    /// Print the lake as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `lake set`.
#[derive(clap::Args)]
pub struct SetArgs {
    /// Its name.
    name: String,
    /// Where it is; of a lake that is used it cannot be changed.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    settings: Settings,
    /// Print the lake as one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// What is said of a lake.
#[derive(clap::Args)]
struct Settings {
    /// The endpoint, if it is not the cloud's own: http://host:port.
    #[arg(id = "lake_endpoint", long = "lake-endpoint", value_name = "URL")]
    endpoint: Option<String>,
    /// The region of the bucket.
    #[arg(long)]
    region: Option<String>,
    /// Whether the bucket is in the path and not in the host name.
    #[arg(long, value_name = "BOOL")]
    path_style: Option<bool>,
    /// The access key; without one nodes use those of their environment.
    #[arg(long, value_name = "ID")]
    access_key: Option<String>,
    /// A file with the secret key, which is kept wrapped and never shown [env: STOKER_LAKE_SECRET_KEY]
    #[arg(long, value_name = "PATH")]
    secret_key_file: Option<PathBuf>,
    /// The storage class of what is written, such as STANDARD_IA (S3).
    #[arg(long, value_name = "CLASS")]
    storage_class: Option<String>,
    /// What a GB costs for a month, such as 0.023.
    #[arg(long, value_name = "MONEY", value_parser = parse_money)]
    cost_gb_month: Option<u64>,
    /// What 1000 requests cost that write or list.
    #[arg(long, value_name = "MONEY", value_parser = parse_money)]
    cost_1000_writes: Option<u64>,
    /// What 1000 requests cost that read.
    #[arg(long, value_name = "MONEY", value_parser = parse_money)]
    cost_1000_reads: Option<u64>,
    /// What a GB costs that is read.
    #[arg(long, value_name = "MONEY", value_parser = parse_money)]
    cost_gb_read: Option<u64>,
    /// Most requests in a second that each node sends; 0 for no limit.
    #[arg(long, value_name = "N")]
    requests_per_s: Option<u64>,
    /// Most bytes in a second that each node moves; 0 for no limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    bytes_per_s: Option<u64>,
    /// A label, as NAME=VALUE; without a value it is taken away. May be given several times.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
}

impl Settings {
    fn change(&self, url: Option<String>) -> Result<LakeChange, Failure> {
        let labels: BTreeMap<String, String> = self.labels.iter().cloned().collect();
        Ok(LakeChange {
            url,
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            path_style: self.path_style,
            access_key_id: self.access_key.clone(),
            secret_access_key: self.secret()?,
            storage_class: self.storage_class.clone(),
            gb_month: self.cost_gb_month,
            writes_1000: self.cost_1000_writes,
            reads_1000: self.cost_1000_reads,
            gb_read: self.cost_gb_read,
            requests_per_s: self.requests_per_s,
            bytes_per_s: self.bytes_per_s,
            labels,
        })
    }

    /// From a file or the environment: arguments are seen by everybody on the machine.
    fn secret(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.secret_key_file else {
            return Ok(std::env::var("STOKER_LAKE_SECRET_KEY").ok().filter(|secret| !secret.is_empty()));
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::io(format!("the secret key file {}", path.display()), &error))?;
        match text.trim() {
            "" => Err(Failure::new(format!("the secret key file {} is empty", path.display()))),
            secret => Ok(Some(secret.to_owned())),
        }
    }
}

/// Arguments of `lake check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// Its name.
    name: String,
    /// Print one object per line: what, fault, took_us.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `lake ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Print one object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `lake rm`.
#[derive(clap::Args)]
pub struct NameArgs {
    /// Its name.
    name: String,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `lake replicas`.
#[derive(clap::Args)]
pub struct ReplicasArgs {
    /// Of this volume; all without one.
    volume: Option<String>,
    /// Print one object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `lake promote`.
#[derive(clap::Args)]
pub struct PromoteArgs {
    /// The volume.
    volume: String,
    /// The name of its second lake.
    #[arg(long, value_name = "LAKE")]
    to: String,
    /// Do not wait until it is over; the nodes go on with it.
    #[arg(long)]
    no_wait: bool,
    /// Print one object, as `lake replicas --json` does.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `lake lacking`.
#[derive(clap::Args)]
pub struct LackingArgs {
    /// The volume.
    volume: String,
    /// Print one object per line: key, version, bytes, modified_ms.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Money as millionths: `0.023` is 23000.
fn parse_money(text: &str) -> Result<u64, String> {
    let bad = || "expected an amount such as 0.023".to_owned();
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && part.is_empty()) || part.len() > 6 || !digits(whole) || !digits(part) {
        return Err(bad());
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| bad())? };
    let part: u64 = format!("{part:0<6}").parse().map_err(|_| bad())?;
    whole.checked_mul(1_000_000).and_then(|whole| whole.checked_add(part)).ok_or_else(bad)
}

/// Millionths as money.
pub fn money(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    let short = text.trim_end_matches('0');
    match short.split_once('.') {
        Some((whole, part)) if part.len() < 2 => format!("{whole}.{part:0<2}"),
        _ => short.to_owned(),
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Asks about tiers.
pub async fn ask(client: &impl Store, order: TierOrder) -> Result<TierReport, Failure> {
    match client.operate(Order::Tiers(order)).await? {
        Report::Tiers(report) => Ok(report),
        _ => Err(Failure::confused()),
    }
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Add(args) => connect::run(&args.target, async |client| {
            let change = Box::new(args.settings.change(Some(args.url.clone()))?);
            let report = ask(&client, TierOrder::LakeAdd { name: args.name.clone(), change }).await?;
            tell_one(report, args.json)
        }),
        Verb::Set(args) => connect::run(&args.target, async |client| {
            let change = args.settings.change(args.url.clone())?;
            if change == LakeChange::default() {
                return Err(Failure::new("nothing to change").hint("name at least one of the options"));
            }
            let order = TierOrder::LakeSet { name: args.name.clone(), change: Box::new(change) };
            tell_one(ask(&client, order).await?, args.json)
        }),
        Verb::Check(args) => connect::run(&args.target, async |client| {
            let report = ask(&client, TierOrder::LakeCheck { name: args.name.clone() }).await?;
            let TierReport::Trials(trials) = report else { return Err(Failure::confused()) };
            tell_trials(&trials, args.json)
        }),
        Verb::Ls(args) => connect::run(&args.target, async |client| list(&client, args.json).await),
        Verb::Rm(args) => connect::run(&args.target, async |client| {
            ask(&client, TierOrder::LakeRemove { name: args.name.clone() }).await?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Replicas(args) => connect::run(&args.target, async |client| {
            let infos = replicas(&client, args.volume.clone()).await?;
            if infos.is_empty() && !args.json {
                out::say(
                    "no volume has a second lake; give one to it with `stoker volume set VOLUME --replica LAKE`",
                );
            }
            infos.iter().try_for_each(|info| tell_replica(info, args.json))?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Promote(args) => connect::run(&args.target, async |client| promote(&client, args).await),
        Verb::Lacking(args) => connect::run(&args.target, async |client| lacking(&client, args).await),
    }
}

fn tell_one(report: TierReport, json: bool) -> Result<ExitCode, Failure> {
    let TierReport::Lakes(lakes) = report else { return Err(Failure::confused()) };
    let Some(lake) = lakes.first() else { return Err(Failure::confused()) };
    if json {
        out::json(&show::plain(lake))?;
    } else {
        out::line(format!("{}  {}", lake.name, lake.url))?;
        out::say(format!("`stoker lake check {}` tries it", lake.name));
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, json: bool) -> Result<ExitCode, Failure> {
    let TierReport::Lakes(lakes) = ask(client, TierOrder::Lakes).await? else {
        return Err(Failure::confused());
    };
    if json {
        lakes.iter().try_for_each(|lake| out::json(&show::plain(lake)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if lakes.is_empty() {
        out::say("no lake has a name yet; give one with `stoker lake add NAME --url URL`");
    }
    out::table(&lakes.iter().map(row).collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}

fn row(lake: &LakeInfo) -> Vec<String> {
    let used = |count: usize, what: &str| (count > 0).then(|| show::count(count as u64, what));
    let users: Vec<String> = [used(lake.volumes.len(), "volume"), used(lake.replica_of.len(), "replica")]
        .into_iter()
        .flatten()
        .collect();
    let cost = match lake.cost.gb_month {
        0 => String::new(),
        micros => format!("{} per GB and month", money(micros)),
    };
    let key = lake.access_key_id.clone().unwrap_or_else(|| "keys of the environment".to_owned());
    vec![lake.name.clone(), lake.url.clone(), key, cost, users.join(", ")]
}

fn tell_trials(trials: &[LakeTrial], json: bool) -> Result<ExitCode, Failure> {
    for trial in trials {
        if json {
            out::json(&json!({ "what": trial.what, "fault": trial.fault, "took_us": trial.took_us }))?;
            continue;
        }
        let ms = format!("{}.{} ms", trial.took_us / 1_000, trial.took_us % 1_000 / 100);
        match &trial.fault {
            None => out::line(format!("ok    {:<16} {ms:>10}", trial.what))?,
            Some(fault) => out::line(format!("FAIL  {:<16} {ms:>10}  {fault}", trial.what))?,
        }
    }
    let is_well = trials.iter().all(|trial| trial.fault.is_none());
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Second lakes, and how far they are.
pub async fn replicas(client: &Client, volume: Option<String>) -> Result<Vec<ReplicaInfo>, Failure> {
    match ask(client, TierOrder::Replicas { volume }).await? {
        TierReport::Replicas(infos) => Ok(infos),
        _ => Err(Failure::confused()),
    }
}

/// How a volume and its second lake stand, in a line; also for `stoker risk`.
pub fn words(info: &ReplicaInfo) -> String {
    let lag = || match info.lag_files {
        0 if info.walked => "nothing is behind".to_owned(),
        0 => "still looking for what is behind".to_owned(),
        files => format!(
            "{}{}, {} behind, oldest {}{}",
            if info.at_least { "at least " } else { "" },
            show::count(files, "file"),
            size::human(info.lag_bytes),
            span::human(info.lag_ms),
            if info.walked { "" } else { ", and still looking" }
        ),
    };
    let mut text = match info.state.as_str() {
        "copying" => format!("{}: {} -> {}: {}", info.volume, info.lake, info.other, lag()),
        "promoting" => format!("{}: {} takes over from {}", info.volume, info.lake, info.other),
        _ => format!("{}: {} took over from {}", info.volume, info.lake, info.other),
    };
    if info.lacking_files > 0 {
        let files = show::count(info.lacking_files, "file");
        text.push_str(&format!(
            "; {files} ({}) lacked: `stoker lake lacking {}`",
            size::human(info.lacking_bytes),
            info.volume
        ));
    }
    if info.rescued_files > 0 {
        text.push_str(&format!("; {} drained again", show::count(info.rescued_files, "file")));
    }
    if !info.foreign.is_empty() {
        text.push_str(&format!(
            "; not copied, because somebody else's object is there: {}{}",
            info.foreign[0].escape_debug(),
            match info.foreign.len() {
                1 => String::new(),
                more => format!(" and {} more", more - 1),
            }
        ));
    }
    if let Some(trouble) = &info.trouble {
        text.push_str(&format!("; {trouble}"));
    }
    text
}

fn tell_replica(info: &ReplicaInfo, json: bool) -> Result<(), Failure> {
    if json { out::json(&show::plain(info)) } else { out::line(words(info)) }
}

async fn promote(client: &Client, args: &PromoteArgs) -> Result<ExitCode, Failure> {
    let order = TierOrder::Promote { volume: args.volume.clone(), to: args.to.clone() };
    let TierReport::Replicas(mut infos) = ask(client, order).await? else {
        return Err(Failure::confused());
    };
    while !args.no_wait && infos.iter().any(|info| info.state == "promoting") {
        tokio::time::sleep(LOOK).await;
        infos = replicas(client, Some(args.volume.clone())).await?;
    }
    infos.iter().try_for_each(|info| tell_replica(info, args.json))?;
    Ok(ExitCode::SUCCESS)
}

async fn lacking(client: &Client, args: &LackingArgs) -> Result<ExitCode, Failure> {
    let (mut after, mut is_any) = (None, false);
    loop {
        let order = TierOrder::Lacking { volume: args.volume.clone(), after };
        let TierReport::Lacking(files, more) = ask(client, order).await? else {
            return Err(Failure::confused());
        };
        files.iter().try_for_each(|file| tell_lacking(file, args.json))?;
        is_any |= !files.is_empty();
        after = files.last().map(|file| file.key.clone()).filter(|_| more);
        if after.is_none() {
            break;
        }
    }
    if !is_any && !args.json {
        out::say("the lake lacks nothing");
    }
    Ok(if is_any { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn tell_lacking(file: &LackingFile, json: bool) -> Result<(), Failure> {
    if json {
        return out::json(&show::plain(file));
    }
    let written = crate::clock::rfc3339(file.modified_ms);
    out::line(format!("{}  {}  {written}", file.key.escape_debug(), size::human(file.bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_exact() {
        for (text, micros) in
            [("0.023", 23_000), ("1", 1_000_000), (".5", 500_000), ("0.000001", 1), ("12.", 12_000_000)]
        {
            assert_eq!(parse_money(text), Ok(micros), "{text}");
        }
        for text in ["", ".", "1.2345678", "-1", "x", "1e3", "99999999999999"] {
            assert!(parse_money(text).is_err(), "{text}");
        }
        for (micros, text) in [(0, "0.00"), (23_000, "0.023"), (1_500_000, "1.50"), (1, "0.000001")] {
            assert_eq!(money(micros), text);
        }
    }

    #[test]
    fn labels_have_a_name() {
        assert_eq!(parse_label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(parse_label("a="), Ok(("a".into(), String::new())));
        assert!(parse_label("=b").is_err() && parse_label("a").is_err());
    }
}
