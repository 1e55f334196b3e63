//! `stoker upgrade`: before this release takes the place of another one.

use std::process::ExitCode;

use serde_json::json;
use stoker_schema::level::Level;
use stoker_store::{LevelStatus, Order, Report, Store};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::out;

/// What to do.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Say whether nodes of this release may join the cluster of a running node, and whether there is a way back.
    ///
    /// Run it with the new program, against a node that still runs the old one.
    Check(CheckArgs),
}

/// Arguments of `upgrade check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// Print one object: release, reads, level, may_join, rises_to, is_held.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    let Verb::Check(args) = verb;
    connect::run(&args.target, async |client| {
        let Report::Level(status) = client.operate(Order::Level).await? else {
            return Err(Failure::confused());
        };
        let verdict = Verdict::of(&status, Level::NEWEST.0);
        if args.json {
            out::json(&json!({
                "release": env!("CARGO_PKG_VERSION"),
                "reads": Level::NEWEST.0,
                "level": status.level,
                "may_join": verdict.may_join,
                "rises_to": verdict.rises_to,
                "is_held": status.is_held,
            }))?;
        } else {
            out::line(verdict.text)?;
        }
        Ok(if verdict.may_join { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

struct Verdict {
    may_join: bool,
    /// The level after all nodes are upgraded, if that is another one.
    rises_to: Option<u16>,
    text: String,
}

impl Verdict {
    fn of(status: &LevelStatus, reads: u16) -> Verdict {
        let release = env!("CARGO_PKG_VERSION");
        if status.level > reads {
            let text = format!(
                "no: the cluster is at level {}, and release {release} reads levels up to {reads}. Use the release that its nodes run, or a \
                 newer one",
                status.level
            );
            return Verdict { may_join: false, rises_to: None, text };
        }
        let rises_to = (reads > status.level && !status.is_held).then_some(reads);
        let way = match rises_to {
            None if status.is_held => {
                "the level is held: there is a way back to the release before".to_owned()
            }
            None => "the level stays: there is a way back to every release that reads it".to_owned(),
            Some(level) => format!(
                "once all {} nodes run it the level rises to {level}, and no node can go back; `stoker cluster level --hold` before keeps the way",
                status.nodes.len()
            ),
        };
        let text = format!(
            "yes: release {release} reads levels up to {reads}, the cluster is at {}; {way}",
            status.level
        );
        Verdict { may_join: true, rises_to, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_joins_what_it_can_read() {
        let check = |level, is_held, reads, expect: (bool, Option<u16>), part: &str| {
            let status = LevelStatus { level, newest: level, is_held, since_ms: 0, nodes: Vec::new() };
            let verdict = Verdict::of(&status, reads);
            assert_eq!((verdict.may_join, verdict.rises_to), expect);
            assert!(verdict.text.contains(part), "{}", verdict.text);
        };
        check(3, false, 2, (false, None), "reads levels up to 2");
        check(3, false, 3, (true, None), "the level stays");
        check(2, false, 3, (true, Some(3)), "rises to 3");
        check(2, true, 3, (true, None), "is held");
    }
}
