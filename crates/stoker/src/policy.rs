//! `stoker policy`: rules that stage, drain and delete files. What they are: docs/tiers.md.

use std::path::PathBuf;
use std::process::ExitCode;

use stoker_client::Client;
use stoker_store::{PolicyInfo, PolicyMove, PolicyPlan, TierOrder, TierReport};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::lake::{ask, money};
use crate::{clock, out, show, size, span};

/// What to do with rules.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Say what rules would do, or let nodes act by them.
    Apply(ApplyArgs),
    /// List rules that nodes act by, and what came of them.
    Ls(LsArgs),
    /// Show what was moved, when, and why.
    Moves(MovesArgs),
    /// Act no more by rules. What was moved stays so.
    Rm(NameArgs),
}

/// Arguments of `policy apply`.
#[derive(clap::Args)]
pub struct ApplyArgs {
    /// The rules, in TOML.
    file: PathBuf,
    /// Say what they would do now: files, bytes, requests, time and money. Changes nothing.
    #[arg(long, required_unless_present = "run", conflicts_with = "run")]
    dry_run: bool,
    /// Keep them, and act by them from now on, once an hour.
    #[arg(long)]
    run: bool,
    /// What they are called; the name of the file without one. Rules of that name are replaced.
    #[arg(long)]
    name: Option<String>,
    /// Print one object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `policy ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Print one object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `policy moves`.
#[derive(clap::Args)]
pub struct MovesArgs {
    /// Name of the rules.
    name: String,
    /// Print one object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `policy rm`.
#[derive(clap::Args)]
pub struct NameArgs {
    /// Name of the rules.
    name: String,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Apply(args) => connect::run(&args.target, async |client| apply(&client, args).await),
        Verb::Ls(args) => connect::run(&args.target, async |client| {
            let TierReport::Policies(policies) = ask(&client, TierOrder::Policies).await? else {
                return Err(Failure::confused());
            };
            if policies.is_empty() && !args.json {
                out::say("no rules yet; try some with `stoker policy apply FILE --dry-run`");
            }
            policies.iter().try_for_each(|policy| tell_policy(policy, args.json))?;
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Moves(args) => connect::run(&args.target, async |client| moves(&client, args).await),
        Verb::Rm(args) => connect::run(&args.target, async |client| {
            ask(&client, TierOrder::PolicyRemove { name: args.name.clone() }).await?;
            Ok(ExitCode::SUCCESS)
        }),
    }
}

async fn apply(client: &Client, args: &ApplyArgs) -> Result<ExitCode, Failure> {
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| Failure::io(format!("the rules {}", args.file.display()), &error))?;
    if args.dry_run {
        let TierReport::Plan(plan) = ask(client, TierOrder::PolicyPlan { text }).await? else {
            return Err(Failure::confused());
        };
        if args.json {
            out::json(&show::plain(&plan))?
        } else {
            tell_plan(&plan)?
        }
        return Ok(ExitCode::SUCCESS);
    }
    let stem = args.file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = args.name.clone().or(stem).unwrap_or_default();
    let TierReport::Policies(policies) = ask(client, TierOrder::PolicySet { name, text }).await? else {
        return Err(Failure::confused());
    };
    policies.iter().try_for_each(|policy| tell_policy(policy, args.json))?;
    Ok(ExitCode::SUCCESS)
}

fn tell_plan(plan: &PolicyPlan) -> Result<(), Failure> {
    let rows: Vec<Vec<String>> = plan
        .rules
        .iter()
        .map(|rule| {
            vec![
                rule.rule.clone(),
                rule.action.clone(),
                show::count(rule.files, "file"),
                size::human(rule.file_bytes),
                show::count(rule.requests, "request"),
                format!("{} moved", size::human(rule.bytes)),
                if plan.is_priced { money(rule.micros) } else { String::new() },
            ]
        })
        .collect();
    out::table(&rows)?;
    let least = if plan.at_least { "at least " } else { "" };
    out::say(format!(
        "{least}{} looked at; within the budget it takes {}",
        show::count(plan.looked, "file"),
        span::human(plan.seconds.saturating_mul(1_000))
    ));
    if !plan.is_priced {
        out::say(
            "no money is told, since not all of these volumes drain to a lake with a name (`stoker lake add --cost-...`)",
        );
    }
    Ok(())
}

fn tell_policy(policy: &PolicyInfo, json: bool) -> Result<(), Failure> {
    if json {
        return out::json(&show::plain(policy));
    }
    let failed = match policy.failed_files {
        0 => String::new(),
        files => format!(", {} failed", show::count(files, "file")),
    };
    out::line(format!(
        "{}  {}  passes: {}, {} looked at, {} ({}) moved{failed}",
        policy.name,
        policy.volumes.join(", "),
        policy.passes,
        show::count(policy.looked, "file"),
        show::count(policy.moved_files, "file"),
        size::human(policy.moved_bytes),
    ))
}

async fn moves(client: &Client, args: &MovesArgs) -> Result<ExitCode, Failure> {
    let mut after = None;
    loop {
        let order = TierOrder::PolicyMoves { name: args.name.clone(), after };
        let TierReport::Moves(moves, more) = ask(client, order).await? else {
            return Err(Failure::confused());
        };
        moves.iter().try_for_each(|one| tell_move(one, args.json))?;
        after = moves.last().map(|one| (one.at_ms, one.number)).filter(|_| more);
        if after.is_none() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn tell_move(one: &PolicyMove, json: bool) -> Result<(), Failure> {
    if json {
        return out::json(&show::plain(one));
    }
    out::line(format!(
        "{}  {}  {}/{}  {}: {} ({})",
        clock::rfc3339(one.at_ms),
        one.action,
        one.volume,
        one.key.escape_debug(),
        one.rule,
        one.result,
        one.reason
    ))
}
