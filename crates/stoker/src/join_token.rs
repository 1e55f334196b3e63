//! `stoker join-token`: tokens that let nodes join.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use stoker_store::{JoinTokenInfo, Order, PeerStatus, Report, Store};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::{clock, out, show, span};

/// What to do with join tokens.
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Make a token and print it; nobody can print it again.
    Create(CreateArgs),
    /// List tokens by their ids, with who joined by them.
    Ls(LsArgs),
    /// Let no more nodes join by a token. Nodes that joined stay.
    Revoke(RevokeArgs),
}

/// Arguments of `join-token create`.
#[derive(clap::Args)]
pub struct CreateArgs {
    /// How long it works; at most 30d.
    #[arg(long, value_name = "SPAN", default_value = "1h", value_parser = span::parse)]
    ttl: Duration,
    /// How many nodes it lets join; at most 1000.
    #[arg(long, value_name = "N", default_value_t = 1)]
    uses: u32,
    /// Print one object: join_token, id, state, created, expires, uses_max, nodes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `join-token ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    /// Print one object per line: id, state, created, expires, uses_max, nodes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `join-token revoke`.
#[derive(clap::Args)]
pub struct RevokeArgs {
    /// The id of the token, as `join-token ls` shows it.
    #[arg(required_unless_present = "all")]
    id: Option<String>,
    /// Revoke every token.
    #[arg(long, conflicts_with = "id")]
    all: bool,
    #[command(flatten)]
    target: Target,
}

/// Runs a subcommand.
pub fn run(verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Create(args) => connect::run(&args.target, async |client| {
            let ttl_ms = u64::try_from(args.ttl.as_millis()).unwrap_or(u64::MAX);
            let made = client.operate(Order::JoinTokenCreate { ttl_ms, uses: args.uses }).await?;
            let Report::JoinTokenMade { token, info } = made else { return Err(Failure::confused()) };
            if args.json {
                let mut made = shape(&info);
                made["join_token"] = token.into();
                out::json(&made)?;
                return Ok(ExitCode::SUCCESS);
            }
            out::line(token)?;
            let nodes =
                if info.uses_max == 1 { "one node".to_owned() } else { format!("{} nodes", info.uses_max) };
            out::say(format!("{} is for {nodes}, until {}", info.id, clock::rfc3339(info.expires_ms)));
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Ls(args) => connect::run(&args.target, async |client| {
            let Report::JoinTokens(tokens) = client.operate(Order::JoinTokens).await? else {
                return Err(Failure::confused());
            };
            match args.json {
                true => tokens.iter().try_for_each(|token| out::json(&shape(token)))?,
                false => {
                    let nodes = client.status().await?.nodes;
                    out::table(&tokens.iter().map(|token| row(token, &nodes)).collect::<Vec<_>>())?
                }
            }
            Ok(ExitCode::SUCCESS)
        }),
        Verb::Revoke(args) => connect::run(&args.target, async |client| {
            let id = args.id.clone().filter(|_| !args.all);
            match client.operate(Order::JoinTokenRevoke { id }).await? {
                Report::JoinTokens(_) => Ok(ExitCode::SUCCESS),
                _ => Err(Failure::confused()),
            }
        }),
    }
}

fn shape(token: &JoinTokenInfo) -> Value {
    json!({
        "id": token.id,
        "state": token.state.as_str(),
        "created": clock::rfc3339(token.created_ms),
        "expires": clock::rfc3339(token.expires_ms),
        "uses_max": token.uses_max,
        "nodes": token.nodes,
    })
}

fn row(token: &JoinTokenInfo, nodes: &[PeerStatus]) -> Vec<String> {
    let names: Vec<&str> = token.nodes.iter().map(|id| show::node_name(nodes, id)).collect();
    vec![
        token.id.clone(),
        token.state.as_str().to_owned(),
        format!("{} of {} used", token.nodes.len(), token.uses_max),
        format!("until {}", clock::rfc3339(token.expires_ms)),
        names.join(", "),
    ]
}
