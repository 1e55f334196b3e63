//! Days of a cluster, simulated: checkpoints, drains, a lake that is away, nodes and drives that are lost, all from one seed.
//!
//! The designer computes means; this shows what they hide: how long a checkpoint takes while the rings are full, how much the lake lacks
//! after an outage, how often a second loss comes before the repair of the first. It judges rates and times. Whether the protocol is right
//! under faults is what `cargo xtask sim` judges, which knows no speed of hardware.

mod chance;
mod world;

use crate::constants::Constants;
use crate::design::{self, CLASSES};
use crate::plan::{Curve, Line, Plan, Tone};
use crate::spec::{Inputs, Spec, choice, field};
use crate::value::{Kind, human};
#[cfg(test)]
use world::POINTS;
use world::{Outcome, Setup, Strike, World};

const YEAR: f64 = 31_557_600.0;
const DAY: f64 = 86_400.0;
/// Checkpoints of all runs together; more cost seconds and tell nothing new.
const CHECKPOINTS_MAX: f64 = 20_000.0;
/// Failures of all runs together, likewise.
const FAILURES_MAX: f64 = 20_000.0;

const SPREADS: &[(&str, &str)] =
    &[("node", "copies in different nodes"), ("rack", "copies in different racks or power feeds")];
const STRIKES: &[(&str, &str)] = &[
    ("none", "nothing but chance"),
    ("node", "a node is lost for good, with its drives"),
    ("rack", "a rack is lost for good"),
    ("lake", "the lake is away"),
];

/// What it takes.
pub static SPEC: Spec = Spec {
    name: "sim",
    kind: "sim",
    words: "days of a cluster, simulated: checkpoints, drains and rings while nodes, drives and the lake fail",
    fields: &[
        field("nodes", Kind::Count, 64.0, (1.0, 100_000.0), "nodes"),
        field("nodes_per_rack", Kind::Count, 8.0, (1.0, 10_000.0), "nodes of a rack or power feed"),
        field("gpus_per_node", Kind::Count, 8.0, (1.0, 128.0), "GPUs of a node"),
        field("drives", Kind::Count, 8.0, (1.0, 1024.0), "drives of a node"),
        field("drive_size", Kind::Bytes, 7.68e12, (1e9, 1e15), "bytes of a drive"),
        field(
            "ring_share",
            Kind::Share,
            0.5,
            (0.001, 1.0),
            "share of the drives that undrained bytes may take",
        ),
        field("rails", Kind::Count, 2.0, (1.0, 64.0), "storage ports of a node"),
        field("rail_rate", Kind::Rate, 50e9, (1e6, 1e13), "rate of a port"),
        choice("class", CLASSES, 0, "how many copies before the acknowledgement"),
        choice("spread", SPREADS, 0, "how far apart the copies are"),
        field("checkpoint_size", Kind::Bytes, 2e12, (1e6, 1e18), "bytes of a checkpoint of the whole job"),
        field(
            "checkpoint_shards",
            Kind::Count,
            512.0,
            (1.0, 1e7),
            "files of a checkpoint, written side by side",
        ),
        field(
            "checkpoint_every",
            Kind::Seconds,
            0.0,
            (0.0, 1e8),
            "time between two; 0 is that of Young and Daly",
        ),
        field(
            "blocked_share",
            Kind::Share,
            1.0,
            (0.0, 1.0),
            "share of a checkpoint's time that the job stands still",
        ),
        field(
            "node_mtbf",
            Kind::Seconds,
            5.0 * YEAR,
            (3600.0, 1e11),
            "time between two crashes of one node that end a job",
        ),
        field("restart_time", Kind::Seconds, 300.0, (0.0, 1e6), "from a failure until training goes on"),
        field("lake_rate", Kind::Rate, 20e9, (1e3, 1e15), "rate at which the lake takes what drains"),
        field("lake_outages", Kind::Number, 4.0, (0.0, 10_000.0), "times in a year that the lake is away"),
        field("lake_outage_time", Kind::Seconds, 1800.0, (1.0, 1e7), "how long it is away then"),
        field("drain_quiet", Kind::Seconds, 10.0, (0.0, 1e6), "rest of a file before it drains"),
        field("drive_failures", Kind::Share, 0.009, (0.0, 1.0), "share of drives that die in a year"),
        field(
            "node_losses",
            Kind::Share,
            0.01,
            (0.0, 1.0),
            "share of nodes that are lost for good in a year",
        ),
        field(
            "detect_time",
            Kind::Seconds,
            30.0,
            (0.0, 1e6),
            "until a loss is noticed and its repair begins",
        ),
        field("replace_time", Kind::Seconds, DAY, (0.0, 1e8), "until a lost node is replaced"),
        choice("strike", STRIKES, 0, "what happens for certain in each run"),
        field("strike_at", Kind::Seconds, DAY / 2.0, (0.0, 1e9), "when"),
        field("days", Kind::Number, 7.0, (0.01, 3660.0), "days of each run"),
        field("runs", Kind::Count, 20.0, (1.0, 10_000.0), "runs, each with chances of its own"),
        field("seed", Kind::Count, 1.0, (0.0, 1e15), "the same seed gives the same days"),
    ],
};

fn setup(inputs: &Inputs, constants: &Constants) -> Setup {
    let get = |name: &str| inputs.get(name);
    let nodes = get("nodes");
    let drives = get("drives") * constants.get("drive_write") * constants.get("write_efficiency");
    let rails = get("rails") * get("rail_rate") * constants.get("network_efficiency");
    let shards = get("checkpoint_shards");
    let begin_s = constants.get("checkpoint_overhead") + shards * constants.get("shard_overhead");
    let commit_rate = design::write_rate(inputs, constants).min(shards * constants.get("shard_rate"));
    let time_s = begin_s + get("checkpoint_size") / commit_rate;
    let every_s = match get("checkpoint_every") {
        0.0 => design::young_daly(time_s * get("blocked_share"), get("node_mtbf") / nodes).max(time_s),
        every => every,
    };
    Setup {
        nodes,
        drives: get("drives"),
        nodes_per_rack: get("nodes_per_rack").min(nodes),
        copies: (design::copies(inputs) as usize).min(nodes as usize).max(1),
        is_spread_over_racks: inputs.word("spread") == "rack",
        ring: nodes * get("drives") * get("drive_size") * get("ring_share"),
        commit_rate,
        // Half is left to those who write.
        repair_rate: drives.min(rails) * 0.5,
        lake_rate: get("lake_rate"),
        checkpoint: get("checkpoint_size"),
        begin_s,
        every_s,
        blocked_share: get("blocked_share"),
        quiet_s: get("drain_quiet"),
        detect_s: get("detect_time"),
        restart_s: get("restart_time"),
        replace_s: get("replace_time"),
        crash_rate: 1.0 / get("node_mtbf"),
        loss_rate: get("node_losses") / YEAR,
        drive_rate: get("drive_failures") / YEAR,
        outage_rate: get("lake_outages") / YEAR,
        outage_s: get("lake_outage_time"),
        strike: match inputs.word("strike") {
            "node" => Strike::Node,
            "rack" => Strike::Rack,
            "lake" => Strike::Lake,
            _ => Strike::None,
        },
        strike_s: get("strike_at"),
        end_s: get("days") * DAY,
    }
}

/// Runs that are made, and the events that each may have.
fn bounds(inputs: &Inputs, setup: &Setup) -> (u64, usize) {
    let checkpoints = setup.end_s / setup.every_s + 1.0;
    let per_node = setup.crash_rate + setup.loss_rate + setup.drives * setup.drive_rate;
    let failures = setup.end_s * (setup.nodes * per_node + setup.outage_rate) + 1.0;
    let runs = (CHECKPOINTS_MAX / checkpoints).min(FAILURES_MAX / failures).min(inputs.get("runs")).max(1.0);
    let events = 20.0 * (checkpoints.min(CHECKPOINTS_MAX) + failures.min(FAILURES_MAX));
    (runs as u64, events as usize + 1000)
}

/// The value below which so many of them are; none of none.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    match sorted.len() {
        0 => 0.0,
        len => sorted[(((len as f64) * share).ceil() as usize).clamp(1, len) - 1],
    }
}

fn sorted(outcomes: &[Outcome], of: impl Fn(&Outcome) -> &Vec<f64>) -> Vec<f64> {
    let mut all: Vec<f64> = outcomes.iter().flat_map(|one| of(one).iter().copied()).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Simulates.
pub fn plan(inputs: &Inputs, constants: &Constants) -> Plan {
    let mut plan = Plan::new(inputs, "stoker");
    let setup = setup(inputs, constants);
    let (runs, events_max) = bounds(inputs, &setup);
    let seed = inputs.get("seed") as u64;
    let outcomes: Vec<Outcome> = (0..runs).map(|run| World::new(&setup, seed, run).run(events_max)).collect();

    let count = runs as f64;
    let total = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>();
    let most = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).fold(0.0, f64::max);
    let (saves, drains) = (sorted(&outcomes, |one| &one.saves), sorted(&outcomes, |one| &one.drains));
    let lossy = outcomes.iter().filter(|one| one.lost > 0.0).count() as f64;
    let held = total(|one| one.held_s) / (count * setup.end_s);
    let trained = total(|one| one.trained_s) / (count * setup.end_s);
    let (ring, hurt_s) = (most(|one| one.ring_max), most(|one| one.hurt_longest_s));
    let figures = Told { setup: &setup, runs, lossy, held, ring, hurt_s };

    plan.toned(
        "runs_with_loss",
        "Runs that lost acknowledged bytes",
        lossy / count,
        "share",
        figures.loss_tone(),
    )
    .figure("lost", "Bytes lost, mean of a run", total(|one| one.lost) / count, "B")
    .toned("held", "Time in which writers waited for room", held, "share", figures.held_tone())
    .toned("ring_max", "Fullest that rings were", ring, "share", figures.ring_tone())
    .figure("dirty_max", "Most bytes that the lake lacked", most(|one| one.dirty_max), "B")
    .figure("checkpoint_p50", "Time of a checkpoint, P50", percentile(&saves, 0.5), "s")
    .figure("checkpoint_p99", "Time of a checkpoint, P99", percentile(&saves, 0.99), "s")
    .figure("checkpoint_max", "Time of a checkpoint, longest", percentile(&saves, 1.0), "s")
    .figure("checkpoint_interval", "Checkpoint every", setup.every_s, "s")
    .figure("drained_p50", "Until a checkpoint was in the lake, P50", percentile(&drains, 0.5), "s")
    .figure("drained_p99", "Until a checkpoint was in the lake, P99", percentile(&drains, 0.99), "s")
    .figure("drained_max", "Until a checkpoint was in the lake, longest", percentile(&drains, 1.0), "s")
    .figure("hurt_max", "Most bytes that lacked a copy", most(|one| one.hurt_max), "B")
    .figure("hurt_time", "Longest time that some did", hurt_s, "s")
    .figure(
        "failures",
        "Failures of the job, mean of a run",
        total(|one| f64::from(one.failures)) / count,
        "",
    )
    .figure("trained", "Time that was training in the end", trained, "share")
    .figure("runs_made", "Runs that were made", count, "");

    figures.verdict(&mut plan);
    if (runs as f64) < inputs.get("runs") {
        plan.reasons.push(format!(
            "{runs} of {} runs were made: so many days with so many checkpoints and failures are enough",
            inputs.get("runs")
        ));
    }
    plan.curves = vec![timeline(&outcomes[0], &setup)];
    plan.uses(
        constants,
        &[
            "drive_write",
            "write_efficiency",
            "network_efficiency",
            "checkpoint_overhead",
            "shard_overhead",
            "shard_rate",
        ],
    );
    plan.assumes(&[
        "copies lie on nodes drawn evenly; a lost node takes its share of every file",
        "failures come one by one and by chance, but for the one that is asked for",
        "the oldest checkpoint drains first, and of it what has the fewest copies",
        "half of a node's write rate is left to repair; reads of datasets go on beside all of it",
        "with full rings a checkpoint goes on as fast as the lake takes bytes; a lake that is away stops it",
    ]);
    plan
}

/// What the verdict is made from.
struct Told<'s> {
    setup: &'s Setup,
    runs: u64,
    lossy: f64,
    held: f64,
    ring: f64,
    hurt_s: f64,
}

impl Told<'_> {
    fn loss_tone(&self) -> Tone {
        if self.lossy > 0.0 { Tone::Bad } else { Tone::Ok }
    }

    fn held_tone(&self) -> Tone {
        match self.held {
            held if held > 0.01 => Tone::Bad,
            held if held > 0.0 => Tone::Warn,
            _ => Tone::Ok,
        }
    }

    fn ring_tone(&self) -> Tone {
        if self.ring > 0.8 { Tone::Warn } else { Tone::Ok }
    }

    fn verdict(&self, plan: &mut Plan) {
        let tones = [self.loss_tone(), self.held_tone(), self.ring_tone()];
        let days = human(self.setup.end_s, "s");
        (plan.tone, plan.title) = if tones.contains(&Tone::Bad) {
            (Tone::Bad, format!("Within {days} this cluster loses bytes or stands still."))
        } else if tones.contains(&Tone::Warn) {
            (Tone::Warn, format!("This cluster gets through {days}, with little to spare."))
        } else {
            (Tone::Ok, format!("This cluster gets through {days}."))
        };
        if self.lossy > 0.0 {
            let cure = match (self.setup.copies, self.setup.strike, self.setup.is_spread_over_racks) {
                (1, ..) => "class `two` keeps a second copy",
                (_, Strike::Rack, false) => "spread the copies over racks",
                _ => "a faster lake or class `three` shortens the time in which a second loss matters",
            };
            plan.reasons
                .push(format!("{} of {} runs lost acknowledged bytes: {cure}", self.lossy, self.runs));
        } else {
            plan.reasons.push(format!("none of {} runs lost an acknowledged byte", self.runs));
        }
        if self.held > 0.0 {
            plan.reasons.push(format!(
                "writers waited for room {} of the time: larger rings, a faster lake, or fewer checkpoints",
                human(self.held, "share")
            ));
        } else {
            plan.reasons.push(format!("rings were {} full at most", human(self.ring, "share")));
        }
        if self.hurt_s > 0.0 && self.setup.copies > 1 {
            plan.reasons.push(format!(
                "after a loss it took {} at most until every byte had its copies again",
                human(self.hurt_s, "s")
            ));
        }
    }
}

fn timeline(outcome: &Outcome, setup: &Setup) -> Curve {
    let points = &outcome.timeline;
    let line = |name: &str, of: fn(&(f64, f64, f64)) -> f64| Line {
        name: name.into(),
        y: points.iter().map(of).collect(),
    };
    Curve {
        name: "timeline",
        title: "The first run: bytes that the lake lacks, and such that lack a copy".into(),
        x_label: "hours",
        x_unit: "",
        y_label: "bytes",
        y_unit: "B",
        x: points.iter().map(|point| point.0 / 3600.0).collect(),
        lines: vec![line("not in the lake", |point| point.1), line("lacking a copy", |point| point.2)],
        mark: if setup.strike == Strike::None { 0.0 } else { setup.strike_s / 3600.0 },
    }
}

#[cfg(test)]
mod tests;
