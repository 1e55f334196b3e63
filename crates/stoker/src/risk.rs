//! `stoker risk`: what would be lost if a node or a cell died now, and what is.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use stoker_store::{LostFile, Order, Report, Risk, RiskReport, Store};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::paint::{self, Tone};
use crate::{clock, lake, out, outages, show, size, span};

/// Longest wait for what is told of second lakes.
const REPLICAS_MAX: Duration = Duration::from_secs(1);

/// Arguments of `risk`.
#[derive(clap::Args)]
pub struct Args {
    /// Name the files of which no copy can be read now; the exit code is 1 if there are any.
    #[arg(long)]
    lost: bool,
    /// Print one object: nodes, cells, lost_files, lost_bytes, at_least, replicas, outages, stale. With --lost one per line: volume, key, version,
    /// bytes, since, whole, nodes, may_return.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Asks.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        if args.lost {
            let Report::Lost(lost) = client.operate(Order::Lost).await? else {
                return Err(Failure::confused());
            };
            if lost.is_empty() && !args.json {
                out::say("every file can be read");
            }
            lost.iter().try_for_each(|file| tell_lost(file, args.json))?;
            return Ok(if lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        let Report::Risk(report) = client.operate(Order::Risk).await? else {
            return Err(Failure::confused());
        };
        let outages = outages::ask(&client).await;
        // They are in the catalog, which may be what hangs; and a node of an older release knows none.
        let asked = tokio::time::timeout(REPLICAS_MAX, lake::replicas(&client, None)).await;
        let replicas = asked.ok().map(Result::unwrap_or_default);
        if args.json {
            let mut value = show::plain(&report);
            value["replicas"] = show::plain(&replicas);
            out::json(&outages::beside(value, &outages))?;
        } else {
            tell(&report)?;
            match &replicas {
                Some(replicas) => replicas
                    .iter()
                    .try_for_each(|info| out::line(format!("replica of {}", lake::words(info))))?,
                None => out::line("replicas: nobody tells how far they are")?,
            }
            if outages::is_present(&outages, "risk") {
                out::line(verdict(&report))?;
            }
            outages::tell(&outages, "risk");
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn tell(report: &RiskReport) -> Result<(), Failure> {
    report.nodes.iter().try_for_each(|node| out::line(painted(&node.name, node)))?;
    if report.cells.len() > 1 {
        let name =
            |cell: &Risk| if cell.name.is_empty() { "(no name)".to_owned() } else { cell.name.clone() };
        report.cells.iter().try_for_each(|cell| out::line(painted(&format!("cell {}", name(cell)), cell)))?;
    }
    if report.lost_files > 0 {
        let files = show::count(report.lost_files, "file");
        let bytes = size::human(report.lost_bytes);
        out::line(format!("cannot be read now: {files}, {bytes}; `stoker risk --lost` names them"))?;
    }
    if report.at_least {
        out::say("there is more than was looked at: each number is at least that");
    }
    Ok(())
}

/// All of it in one sentence, the worst first.
pub fn verdict(report: &RiskReport) -> String {
    let worst = report.nodes.iter().filter(|node| node.state != "down").max_by_key(|node| node.lost_bytes);
    let alone = report.nodes.iter().map(|node| node.one_copy_files).max().unwrap_or(0);
    if report.lost_files > 0 {
        let files = show::count(report.lost_files, "file");
        return format!("{files} cannot be read now: `stoker risk --lost` names them");
    }
    if let Some(worst) = worst.filter(|node| node.lost_files > 0 || node.lost_parts > 0) {
        let files = show::count(worst.lost_files, "file");
        return format!("if {} dies now, {files} ({}) are lost", worst.name, size::human(worst.lost_bytes));
    }
    match (alone, report.nodes.len()) {
        (0, 0 | 1) => "if this node dies now, nothing is lost".to_owned(),
        (0, _) => "if any one node dies now, nothing is lost".to_owned(),
        (files, _) => format!("no loss if one node dies, but {} have one copy", show::count(files, "file")),
    }
}

/// In a colour where something would be lost.
fn painted(name: &str, risk: &Risk) -> String {
    let words = words(name, risk);
    match risk.lost_files > 0 || risk.lost_parts > 0 {
        true => paint::text(&words, Tone::Bad),
        false => words,
    }
}

fn words(name: &str, risk: &Risk) -> String {
    let state = match risk.state.as_str() {
        "" | "up" => String::new(),
        state => format!(" ({state})"),
    };
    let doubtful = match risk.doubtful_bytes {
        0 => String::new(),
        bytes => format!(", perhaps {} more", size::human(bytes)),
    };
    let parts = match risk.lost_parts {
        0 => String::new(),
        parts => format!(", {} of unfinished uploads", show::count(parts, "part")),
    };
    let oldest = match risk.undrained_files {
        0 => String::new(),
        _ => format!(", oldest {}", span::human(risk.oldest_age_ms)),
    };
    let died = match risk.state.as_str() {
        "down" => format!("with {name}, which is down:"),
        _ => format!("if {name}{state} dies now:"),
    };
    format!(
        "{died} {} lost{doubtful}{parts}; undrained {}{oldest}; one copy {}",
        size::human(risk.lost_bytes),
        size::human(risk.undrained_bytes),
        size::human(risk.one_copy_bytes)
    )
}

/// A lost file for programs.
pub fn lost_json(file: &LostFile) -> serde_json::Value {
    json!({
        "volume": file.volume,
        "key": show::name(&file.key),
        "version": file.version,
        "bytes": file.bytes,
        "since": clock::rfc3339(file.since_ms),
        "whole": file.whole,
        "nodes": file.nodes,
        "may_return": file.may_return,
    })
}

/// Tells of a lost file.
pub fn tell_lost(file: &LostFile, json: bool) -> Result<(), Failure> {
    if json {
        return out::json(&lost_json(file));
    }
    let name = show::name(&file.key);
    let name = if name.is_empty() { "(a shard without a name)".to_owned() } else { name };
    let whole = if file.whole { "no copy can be read" } else { "some of it may be gone" };
    let hope = if file.may_return { "; bring one of them back" } else { "" };
    out::line(format!(
        "{}/{name}  {}, {}: {whole}; its copies are on {}{hope}",
        file.volume,
        size::human(file.bytes),
        clock::rfc3339(file.since_ms),
        file.nodes.join(", ")
    ))
}
