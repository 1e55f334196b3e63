//! `stoker status`: how a node is, and what is at risk right now.

use std::process::ExitCode;
use std::time::Duration;

use stoker_store::{
    NodeStatus, Order, Outages, PeerStatus, Report, RingStatus, RiskReport, SourceStatus, Store,
};

use crate::connect::{self, Target};
use crate::failure::Failure;
use crate::risk::verdict;
use crate::{clock, out, outages, show, size, span};

/// Longest wait for what is at risk: the rest is told without it.
const RISK_MAX: Duration = Duration::from_secs(1);

/// Arguments of `status`.
#[derive(clap::Args)]
pub struct Args {
    /// Print one object: node, version, rings, dirty_files, dirty_bytes, dirty_age_ms, conflicts, ready, outages (what, name,
    /// since_ms, summary, cure), stale (view, as_of_ms) and more.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Asks. Exit code 1 if the node is not ready.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    connect::run(&args.target, async |client| {
        let status = client.status().await?;
        let outages = outages::ask(&client).await;
        if args.json {
            out::json(&outages::beside(show::plain(&status), &outages))?
        } else {
            tell(&status, &outages, risk(&client, &status, &outages).await.as_ref())?
        }
        Ok(if status.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// What others have that is not in the lake: this node counts only what it has to drain itself. None where that is not known now.
async fn risk(client: &dyn Store, status: &NodeStatus, outages: &Outages) -> Option<RiskReport> {
    if status.nodes.len() < 2 || !outages::is_present(outages, "risk") {
        return None;
    }
    match tokio::time::timeout(RISK_MAX, client.operate(Order::Risk)).await {
        Ok(Ok(Report::Risk(report))) => Some(report),
        _ => None,
    }
}

fn tell(status: &NodeStatus, outages: &Outages, risk: Option<&RiskReport>) -> Result<(), Failure> {
    let running = span::human(clock::unix_ms().saturating_sub(status.started_ms));
    let ready = if status.ready { "ready" } else { "not ready" };
    let name = own_name(status);
    let mut rows =
        vec![("node", format!("{name}, {ready}, version {}, running for {running}", status.version))];
    for outage in &outages.lost {
        rows.extend([("lost", outage.summary.clone()), ("cure", outage.cure.clone())]);
    }
    rows.extend(outages::age(outages, "status").map(|age| ("as of", age)));
    rows.extend([("cluster", status.cluster.clone()), ("catalog", show::catalog(status))]);
    rows.extend(status.nodes.iter().filter(|_| status.nodes.len() > 1).map(|node| ("member", member(node))));
    rows.extend(status.rings.iter().map(|ring| ("drive", drive(ring))));
    rows.extend(status.sources.iter().filter(|source| source.reads > 0).map(|one| ("reads", source(one))));
    rows.push(("cache", size::human(status.cache_bytes)));
    rows.push(("undrained", undrained(status, risk)));
    if status.conflicts > 0 {
        let count = out::count(status.conflicts);
        rows.push(("conflicts", format!("{count}; see `stoker conflict ls`")));
    }
    rows.extend(status.lake_trouble.iter().map(|trouble| ("lake", trouble.clone())));
    rows.extend(status.words.iter().map(|words| ("safety", words.clone())));
    rows.extend(risk.map(|report| ("safety", verdict(report))));
    out::fields(&rows)
}

/// How people call the node that was asked.
fn own_name(status: &NodeStatus) -> String {
    let own = status.nodes.iter().find(|peer| peer.node == status.node);
    match own.filter(|peer| !peer.name.is_empty()) {
        Some(peer) => format!("{} ({})", peer.name, status.node),
        None => status.node.clone(),
    }
}

fn member(node: &PeerStatus) -> String {
    let silent = if node.suspect && node.state != "down" { ", does not answer" } else { "" };
    let latency = match node.latency_us {
        0 => String::new(),
        us => format!(", {us} us away"),
    };
    let cell = if node.cell.is_empty() { String::new() } else { format!(", cell {}", node.cell) };
    let addresses = node.addresses.join(" ");
    format!("{} ({}): {}{silent}{latency}{cell}, {addresses}", node.name, node.node, node.state)
}

fn drive(ring: &RingStatus) -> String {
    let poisoned =
        ring.poisoned.as_ref().map(|why| format!("; takes no more writes: {why}")).unwrap_or_default();
    format!(
        "{}, {}: {} to keep, {} clean, {}, {}{poisoned}",
        ring.path,
        size::human(ring.bytes),
        size::human(ring.keep_bytes),
        size::human(ring.clean_bytes),
        show::count(ring.records, "record"),
        ring.io
    )
}

fn source(source: &SourceStatus) -> String {
    let what = match source.kind.as_str() {
        "drive" => format!("drive {}", source.name),
        "peer" => format!("node {}", source.name),
        "turn" => format!("node {}, out of the lake if need be", source.name),
        _ => format!("lake of {}", source.name),
    };
    let times = |size: &str, mean_us: Option<u64>, p95_us: Option<u64>| {
        let p95 = p95_us.map_or(String::new(), |us| format!(" (P95 {us} us)"));
        mean_us.map(|us| format!(", {size} {us} us{p95}"))
    };
    let small = times("small", source.small_mean_us, source.small_p95_us).unwrap_or_default();
    let large = times("large", source.large_mean_us, source.large_p95_us).unwrap_or_default();
    let failures = match source.failures {
        0 => String::new(),
        count => format!(", {} failed", out::count(count)),
    };
    format!("{what}: {}{small}{large}{failures}", out::count(source.reads))
}

fn undrained(status: &NodeStatus, risk: Option<&RiskReport>) -> String {
    let elsewhere = risk.iter().flat_map(|report| &report.nodes).max_by_key(|node| node.undrained_bytes);
    let elsewhere = elsewhere.filter(|node| node.undrained_files > 0);
    if status.dirty_files == 0 {
        return match (elsewhere, status.nodes.len() < 2 || risk.is_some()) {
            (Some(node), _) => format!(
                "nothing that this node has to drain; in the cluster at least {}, {} (with {})",
                show::count(node.undrained_files, "file"),
                size::human(node.undrained_bytes),
                node.name
            ),
            (None, true) => "nothing: every file that drains is in its lake".to_owned(),
            (None, false) => "nothing that this node has to drain; of others it is not known now".to_owned(),
        };
    }
    format!(
        "{}, {}, the oldest for {}; {} under way",
        show::count(status.dirty_files, "file"),
        size::human(status.dirty_bytes),
        span::human(status.dirty_age_ms),
        show::count(status.drains, "upload")
    )
}
