//! `stoker plan ledger`: what was predicted, what came of it, and how far the two were apart.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use stoker_planner::slow::Recorded;
use stoker_planner::{Ledger, human, ledger};

use super::{document, in_file, keep, refused};
use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{clock, out, show};

/// What is done with it.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// List predictions, newest last.
    Ls(ReadArgs),
    /// Show one prediction and what came of it.
    Show(ShowArgs),
    /// Write down what came of a prediction.
    Record(RecordArgs),
    /// Show how far predictions were off: by kind and figure, and by month.
    Compare(ReadArgs),
    /// Write every line to stdout, as JSON Lines.
    Export(ReadArgs),
    /// Add the lines of a file; those that are there stay once.
    Import(ImportArgs),
}

/// Which ledger.
#[derive(clap::Args)]
pub struct Place {
    /// The ledger in this file instead of the catalog's.
    #[arg(long, value_name = "PATH")]
    ledger: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

/// Arguments of those that read.
#[derive(clap::Args)]
pub struct ReadArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Arguments of `plan ledger show`.
#[derive(clap::Args)]
pub struct ShowArgs {
    /// The prediction, or the beginning of its id.
    id: String,
    #[command(flatten)]
    read: ReadArgs,
}

/// Arguments of `plan ledger record`.
#[derive(clap::Args)]
pub struct RecordArgs {
    /// The prediction, or the beginning of its id.
    id: String,
    /// What was measured, in base units, such as utilization=0.91.
    #[arg(value_name = "FIGURE=VALUE")]
    figures: Vec<String>,
    /// Take utilization from the record of a run, as for `stoker explain slow`.
    #[arg(long, value_name = "PATH")]
    run: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

/// Arguments of `plan ledger import`.
#[derive(clap::Args)]
pub struct ImportArgs {
    /// Lines that were exported; `-` is stdin.
    file: PathBuf,
    #[command(flatten)]
    place: Place,
}

/// Acts.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Ls(args) => with(&args.place, |ledger, _| list(ledger, args.json)),
        Verb::Show(args) => with(&args.read.place, |ledger, _| one(ledger, &args.id, args.read.json)),
        Verb::Compare(args) => with(&args.place, |ledger, _| compare(ledger, args.json)),
        Verb::Export(args) => with(&args.place, |_, text| out::bytes(text.as_bytes())),
        Verb::Record(args) => record(args),
        Verb::Import(args) => import(args),
    }
}

fn with(place: &Place, tell: impl FnOnce(&Ledger, &str) -> Result<(), Failure>) -> Result<ExitCode, Failure> {
    let told = |text: String| {
        let ledger = Ledger::parse(&text);
        ledger.skipped.iter().for_each(|why| out::say(format!("not understood: {why}")));
        tell(&ledger, &text)?;
        Ok(ExitCode::SUCCESS)
    };
    match &place.ledger {
        Some(path) => told(document(path)?),
        None => connect::run(&place.target, async |client| told(keep::text(&client).await?)),
    }
}

fn list(ledger: &Ledger, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return out::json(&show::plain(ledger));
    }
    if ledger.entries.is_empty() {
        out::say("nothing was predicted yet: `stoker plan io --job NAME` keeps a prediction");
        return Ok(());
    }
    let mut rows = vec![
        ["id", "when", "plan", "figure", "predicted", "measured", "error", "job"].map(String::from).to_vec(),
    ];
    for entry in &ledger.entries {
        let made = &entry.prediction;
        let error = entry.errors().next();
        let name = error.map_or_else(
            || made.figures.keys().next_back().cloned().unwrap_or_default(),
            |(name, _)| name.to_owned(),
        );
        let shown =
            |value: Option<&f64>| value.map_or_else(|| "-".into(), |value| human(*value, unit(&name)));
        rows.push(vec![
            made.id.clone(),
            clock::rfc3339(made.at_ms),
            format!("{} ({})", made.kind, made.model),
            name.clone(),
            shown(made.figures.get(&name)),
            shown(entry.measured.get(&name)),
            error.map_or_else(|| "-".into(), |(_, error)| format!("{:+.1} %", error * 100.0)),
            out::name(made.job.as_bytes()),
        ]);
    }
    out::table(&rows)
}

/// The unit of a figure: ledgers keep base units only.
fn unit(figure: &str) -> &'static str {
    match figure {
        "utilization" | "headroom" | "metadata_use" | "hit" | "hit_device" | "hit_memory" | "hit_flash" => {
            "share"
        }
        "supply" | "demand" | "read_supply" | "read_demand" | "bandwidth" => "B/s",
        "wait" | "io_time" | "checkpoint_time" | "checkpoint_interval" | "transfer" => "s",
        "samples" => "/s",
        _ => "",
    }
}

fn one(ledger: &Ledger, id: &str, as_json: bool) -> Result<(), Failure> {
    let entry = ledger.find(id).ok_or_else(|| unknown(id))?;
    if as_json {
        return out::json(&show::plain(entry));
    }
    let made = &entry.prediction;
    out::fields(&[
        ("prediction", made.id.clone()),
        ("when", clock::rfc3339(made.at_ms)),
        (
            "plan",
            format!(
                "{}, model {}, {}",
                made.kind,
                made.model,
                if made.calibrated { "calibrated" } else { "constants assumed" }
            ),
        ),
        ("job", made.job.clone()),
        ("inputs", serde_json::Value::Object(made.inputs.clone()).to_string()),
    ])?;
    let mut rows = vec![["figure", "predicted", "measured", "error"].map(String::from).to_vec()];
    let errors: BTreeMap<&str, f64> = entry.errors().collect();
    for (name, value) in &made.figures {
        rows.push(vec![
            name.clone(),
            human(*value, unit(name)),
            entry.measured.get(name).map_or_else(|| "-".into(), |value| human(*value, unit(name))),
            errors.get(name.as_str()).map_or_else(|| "-".into(), |error| format!("{:+.1} %", error * 100.0)),
        ]);
    }
    out::table(&rows)
}

fn unknown(id: &str) -> Failure {
    Failure::new(format!("no prediction is called `{}`, or several begin so", id.escape_debug()))
        .hint("`stoker plan ledger ls` lists them")
}

fn compare(ledger: &Ledger, as_json: bool) -> Result<(), Failure> {
    let (errors, months) = (ledger.errors(), ledger.errors_over_time());
    if as_json {
        return out::json(&json!({ "errors": errors, "over_time": months }));
    }
    if errors.is_empty() {
        out::say(
            "nothing was measured yet: `stoker plan ledger record ID utilization=0.9` writes down what came of a prediction",
        );
        return Ok(());
    }
    let mut rows = vec![["of", "count", "median error", "P90 error", "bias"].map(String::from).to_vec()];
    for sum in errors.iter().chain(&months) {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        rows.push(vec![
            sum.of.clone(),
            sum.count.to_string(),
            percent(sum.median),
            percent(sum.p90),
            format!("{:+.1} %", sum.bias * 100.0),
        ]);
    }
    out::table(&rows)
}

fn record(args: &RecordArgs) -> Result<ExitCode, Failure> {
    let mut figures = BTreeMap::new();
    for text in &args.figures {
        let pair = text.split_once('=').and_then(|(name, value)| Some((name, value.parse::<f64>().ok()?)));
        let (name, value) = pair.filter(|(_, value)| value.is_finite()).ok_or_else(|| {
            Failure::new(format!("`{}` is no figure with a value", text.escape_debug()))
                .hint("such as utilization=0.91")
        })?;
        figures.insert(name.to_owned(), value);
    }
    let mut from = "a person".to_owned();
    if let Some(path) = &args.run {
        let run = Recorded::parse(&document(path)?).map_err(|misfits| in_file(path, &misfits))?;
        figures.entry("utilization".into()).or_insert(1.0 - run.waited_s / run.elapsed_s);
        from = if run.job.is_empty() { "a run".into() } else { run.job };
    }
    let line_of = |ledger: &Ledger| {
        let entry = ledger.find(&args.id).ok_or_else(|| unknown(&args.id))?;
        let made = &entry.prediction;
        if let Some(name) = figures.keys().find(|name| !made.figures.contains_key(*name)) {
            let known: Vec<&str> = made.figures.keys().map(String::as_str).collect();
            return Err(Failure::new(format!("{} predicted no `{}`", made.id, name.escape_debug()))
                .hint(format!("it predicted {}", known.join(", "))));
        }
        let line = ledger::outcome(&made.id, clock::unix_ms(), &from, figures.clone());
        line.map_err(|misfit| refused(&[misfit]))
    };
    if let Some(path) = &args.place.ledger {
        keep::append(path, &line_of(&keep::read(path)?)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    connect::run(&args.place.target, async |client| {
        let ledger = Ledger::parse(&keep::text(&client).await?);
        keep::add(&client, &line_of(&ledger)?).await?;
        Ok(ExitCode::SUCCESS)
    })
}

fn import(args: &ImportArgs) -> Result<ExitCode, Failure> {
    let given = document(&args.file)?;
    let fresh = |there: &str| -> Result<Vec<String>, Failure> {
        let known: std::collections::HashSet<&str> = there.lines().collect();
        let new: Vec<&str> =
            given.lines().filter(|line| !line.trim().is_empty() && !known.contains(line)).collect();
        // Whether they make sense behind what is there: an outcome needs its prediction.
        let both = format!("{there}\n{}", new.join("\n"));
        match Ledger::parse(&both).skipped.first() {
            Some(why) if Ledger::parse(there).skipped.is_empty() => Err(Failure::new(why.clone())),
            _ => Ok(new.into_iter().map(str::to_owned).collect()),
        }
    };
    if let Some(path) = &args.place.ledger {
        let there = if path.exists() { document(path)? } else { String::new() };
        let lines = fresh(&there)?;
        lines.iter().try_for_each(|line| keep::append(path, line))?;
        out::say(format!("{} lines were new", lines.len()));
        return Ok(ExitCode::SUCCESS);
    }
    connect::run(&args.place.target, async |client| {
        let lines = fresh(&keep::text(&client).await?)?;
        for line in &lines {
            keep::add(&client, line).await?;
        }
        out::say(format!("{} lines were new", lines.len()));
        Ok(ExitCode::SUCCESS)
    })
}
