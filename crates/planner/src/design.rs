//! The storage designer: bandwidth, checkpoints and what they cost, rebuilds, losses by class, wear, and what to do about it.

use crate::constants::Constants;
use crate::plan::{Change, Curve, Line, Plan, Tone};
use crate::spec::{Inputs, Spec, choice, field};
use crate::value::{Kind, human};

const YEAR: f64 = 31_557_600.0;
const DAY: f64 = 86_400.0;

pub(crate) const CLASSES: &[(&str, &str)] = &[
    ("two", "two drives in two nodes before the acknowledgement"),
    ("one", "one drive"),
    ("three", "three drives in three nodes"),
];
const OPENS: &[(&str, &str)] =
    &[("sealed", "a packed and sealed dataset: no metadata for a read"), ("files", "a file for each sample")];

/// What it takes.
pub static SPEC: Spec = Spec {
    name: "design",
    kind: "design",
    words: "nodes, drives and a lake: bandwidth and metadata headroom, checkpoints, rebuild, losses per year, wear",
    fields: &[
        field("nodes", Kind::Count, 64.0, (1.0, 100_000.0), "nodes"),
        field("gpus_per_node", Kind::Count, 8.0, (1.0, 128.0), "GPUs of a node"),
        field("drives", Kind::Count, 8.0, (1.0, 1024.0), "drives of a node"),
        field("drive_size", Kind::Bytes, 7.68e12, (1e9, 1e15), "bytes of a drive"),
        field("rails", Kind::Count, 2.0, (1.0, 64.0), "storage ports of a node"),
        field("rail_rate", Kind::Rate, 50e9, (1e6, 1e13), "rate of a port"),
        choice("class", CLASSES, 0, "how many copies before the acknowledgement"),
        field(
            "read_per_gpu",
            Kind::Rate,
            80e6,
            (0.0, 1e12),
            "bytes per second that a GPU takes of its dataset",
        ),
        choice("dataset", OPENS, 0, "how the dataset is kept"),
        field(
            "opens_per_gpu",
            Kind::Number,
            400.0,
            (0.0, 1e6),
            "files opened per second for a GPU, if there is a file for each sample",
        ),
        field(
            "metadata_servers",
            Kind::Count,
            1.0,
            (1.0, 10_000.0),
            "servers of metadata, where files are opened",
        ),
        field("checkpoint_size", Kind::Bytes, 2e12, (0.0, 1e18), "bytes of a checkpoint of the whole job"),
        field(
            "checkpoint_shards",
            Kind::Count,
            512.0,
            (1.0, 1e7),
            "files of a checkpoint, which are written side by side",
        ),
        field(
            "blocked_share",
            Kind::Share,
            1.0,
            (0.0, 1.0),
            "share of a checkpoint's time that the job stands still; snapshots have less",
        ),
        field(
            "node_mtbf",
            Kind::Seconds,
            5.0 * YEAR,
            (3600.0, 1e11),
            "time between two failures of one node that end a job",
        ),
        field("restart_time", Kind::Seconds, 300.0, (0.0, 1e6), "from a failure until training goes on"),
        field("gpu_hour", Kind::Money, 3.0, (0.0, 10_000.0), "dollars for a GPU for an hour"),
        field("lake_rate", Kind::Rate, 20e9, (1e3, 1e15), "rate at which the lake takes what drains"),
        field("drain_lag", Kind::Seconds, 300.0, (0.0, 1e9), "usual age of what the lake lacks"),
        field("drive_failures", Kind::Share, 0.009, (0.0, 1.0), "share of drives that die in a year"),
        field(
            "node_losses",
            Kind::Share,
            0.01,
            (0.0, 1.0),
            "share of nodes that are lost for good in a year, with their drives",
        ),
        field(
            "detect_time",
            Kind::Seconds,
            30.0,
            (0.0, 1e6),
            "until a loss is noticed and its repair begins",
        ),
        field(
            "endurance",
            Kind::Number,
            1.0,
            (0.01, 100.0),
            "whole writes of a drive per day that it is rated for, over five years",
        ),
    ],
};

/// What a checkpoint costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Checkpoints {
    /// Seconds of writing one.
    pub time_s: f64,
    /// Seconds that the job stands still for it.
    pub blocked_s: f64,
    /// Seconds between two, by Young and Daly.
    pub every_s: f64,
    /// Share of GPU time that goes to checkpoints, work done again, and restarts.
    pub overhead: f64,
    /// Seconds between two failures of the job.
    pub mtbf_s: f64,
}

/// The interval of Young and Daly, which balances time for checkpoints against work done again: the square root of twice the
/// product of what one costs and what lies between failures.
pub fn young_daly(blocked_s: f64, mtbf_s: f64) -> f64 {
    (2.0 * blocked_s * mtbf_s).sqrt()
}

/// Share of time lost with a checkpoint every so often.
pub fn overhead(blocked_s: f64, every_s: f64, mtbf_s: f64, restart_s: f64) -> f64 {
    if every_s <= 0.0 {
        return (restart_s / mtbf_s).min(1.0);
    }
    (blocked_s / every_s + (every_s / 2.0 + restart_s) / mtbf_s).min(1.0)
}

pub(crate) fn copies(inputs: &Inputs) -> f64 {
    match inputs.word("class") {
        "one" => 1.0,
        "three" => 3.0,
        _ => 2.0,
    }
}

/// Bytes per second that all nodes commit.
pub(crate) fn write_rate(inputs: &Inputs, constants: &Constants) -> f64 {
    let nodes = inputs.get("nodes");
    let drives = inputs.get("drives") * constants.get("drive_write") * constants.get("write_efficiency");
    let rails = inputs.get("rails") * inputs.get("rail_rate") * constants.get("network_efficiency");
    let copies = copies(inputs);
    let by_drives = drives / copies;
    let by_rails = if copies > 1.0 { rails / (copies - 1.0) } else { f64::INFINITY };
    nodes * by_drives.min(by_rails)
}

/// What checkpoints cost.
pub fn checkpoints(inputs: &Inputs, constants: &Constants) -> Checkpoints {
    let size = inputs.get("checkpoint_size");
    let shards = inputs.get("checkpoint_shards");
    let rate = write_rate(inputs, constants).min(shards * constants.get("shard_rate"));
    let time_s =
        size / rate + constants.get("checkpoint_overhead") + shards * constants.get("shard_overhead");
    let blocked_s = time_s * inputs.get("blocked_share");
    let mtbf_s = inputs.get("node_mtbf") / inputs.get("nodes");
    // Not more often than one can be written.
    let every_s = young_daly(blocked_s, mtbf_s).max(time_s);
    Checkpoints {
        time_s,
        blocked_s,
        every_s,
        overhead: overhead(blocked_s, every_s, mtbf_s, inputs.get("restart_time")),
        mtbf_s,
    }
}

/// Seconds until what a lost node held is on two drives again: what is not in the lake, from and to all others.
fn rebuild_s(inputs: &Inputs, constants: &Constants, dirty_per_node: f64) -> f64 {
    let others = (inputs.get("nodes") - 1.0).max(1.0);
    let drives = inputs.get("drives") * constants.get("drive_write") * constants.get("write_efficiency");
    let rails = inputs.get("rails") * inputs.get("rail_rate") * constants.get("network_efficiency");
    inputs.get("detect_time") + dirty_per_node / (others * drives.min(rails) * 0.5)
}

/// Probability that acknowledged bytes are lost within a year, for a number of copies. Only what the lake lacks can be: all copies must
/// die before it drained or was copied again.
pub fn loss_per_year(
    copies: u32,
    drives: f64,
    rate_per_drive: f64,
    dirty_share_of_time: f64,
    window_years: f64,
) -> f64 {
    let mut events = drives * rate_per_drive * dirty_share_of_time;
    for more in 1..copies {
        events *= (drives - f64::from(more)).max(0.0) * rate_per_drive * window_years;
    }
    -(-events).exp_m1()
}

/// The plan.
pub fn plan(inputs: &Inputs, constants: &Constants) -> Plan {
    let mut plan = Plan::new(inputs, "stoker");
    let get = |name: &str| inputs.get(name);
    let (nodes, gpus) = (get("nodes"), get("nodes") * get("gpus_per_node"));
    let read_drives = nodes * get("drives") * constants.get("drive_read") * constants.get("read_efficiency");
    let demand = gpus * get("read_per_gpu");
    let headroom = 1.0 - demand / read_drives;
    let read_tone = if headroom < 0.0 {
        Tone::Bad
    } else if headroom < 0.3 {
        Tone::Warn
    } else {
        Tone::Ok
    };

    let ops = if inputs.word("dataset") == "files" { gpus * get("opens_per_gpu") * 3.0 } else { 0.0 };
    let capacity = constants.get("metadata_rate") * get("metadata_servers");
    let metadata = ops / capacity;
    let metadata_tone = if metadata > 1.0 {
        Tone::Bad
    } else if metadata > 0.6 {
        Tone::Warn
    } else {
        Tone::Ok
    };

    let saves = checkpoints(inputs, constants);
    let saved_rate = if saves.every_s > 0.0 { get("checkpoint_size") / saves.every_s } else { 0.0 };
    let drains = saved_rate / get("lake_rate");
    // If the lake is slower than what is written, what it lacks grows until the drives are full.
    let space = nodes * get("drives") * get("drive_size");
    let lag = if drains >= 1.0 {
        f64::INFINITY
    } else {
        get("drain_lag") + get("checkpoint_size") / get("lake_rate")
    };
    let dirty = if lag.is_finite() { saved_rate * lag * copies(inputs) } else { space * 0.5 };
    let full_in = if saved_rate > 0.0 { space / (saved_rate * copies(inputs)) } else { f64::INFINITY };
    let rebuild = rebuild_s(inputs, constants, dirty / nodes);
    let window_years = rebuild.min(if lag.is_finite() { lag } else { f64::INFINITY }) / YEAR;
    let rate = get("drive_failures") + get("node_losses");
    let dirty_time = if saved_rate > 0.0 { (lag / saves.every_s).min(1.0) } else { 0.0 };
    let losses =
        [1, 2, 3].map(|copies| loss_per_year(copies, nodes * get("drives"), rate, dirty_time, window_years));
    let own = losses[copies(inputs) as usize - 1];
    let loss_tone = if own > 0.1 {
        Tone::Bad
    } else if own > 1e-3 {
        Tone::Warn
    } else {
        Tone::Ok
    };

    let written = saved_rate * copies(inputs) / (nodes * get("drives"));
    let per_day = written * DAY / get("drive_size");
    let life = if per_day > 0.0 { get("endurance") * 5.0 / per_day } else { f64::INFINITY };
    let wear_tone = if life < 3.0 {
        Tone::Bad
    } else if life < 5.0 {
        Tone::Warn
    } else {
        Tone::Ok
    };
    let hour_cost = gpus * get("gpu_hour");

    plan.toned("headroom", "Headroom of dataset reads", headroom, "share", read_tone)
        .figure("read_supply", "Reads that drives can bring", read_drives, "B/s")
        .figure("read_demand", "Reads that GPUs take", demand, "B/s")
        .toned("metadata_use", "Use of metadata servers", metadata, "share", metadata_tone)
        .figure("metadata_ops", "Metadata demand", ops, "/s")
        .figure("checkpoint_time", "Time of a checkpoint", saves.time_s, "s")
        .figure("checkpoint_interval", "Checkpoint every (Young-Daly)", saves.every_s, "s")
        .figure("job_mtbf", "Time between failures of the job", saves.mtbf_s, "s")
        .figure("overhead", "GPU time lost to saves and failures", saves.overhead, "share")
        .figure("overhead_gpu_hours", "The same per day", saves.overhead * gpus * 24.0, "GPU hours")
        .figure("overhead_cost", "The same in dollars per day", saves.overhead * hour_cost * 24.0, "usd")
        .figure("lake_use", "Use of the lake by drains", drains, "share")
        .figure("dirty", "Bytes that the lake lacks", dirty, "B")
        .figure("full_in", "Until drives are full if the lake stands still", full_in, "s")
        .figure("rebuild", "Until a lost node's bytes are safe again", rebuild, "s")
        .toned("loss", "Chance of a loss in a year", own, "share", loss_tone)
        .figure("loss_one", "The same with class one", losses[0], "share")
        .figure("loss_two", "The same with class two", losses[1], "share")
        .figure("loss_three", "The same with class three", losses[2], "share")
        .toned("drive_life", "Life of the drives by writes", life * YEAR, "s", wear_tone);

    let mut bad = Vec::new();
    let mut say = |tone: Tone, words: String| {
        bad.push(tone);
        plan.reasons.push(words);
    };
    match read_tone {
        Tone::Bad => say(
            Tone::Bad,
            format!(
                "drives bring {} and GPUs take {}: add drives or nodes",
                human(read_drives, "B/s"),
                human(demand, "B/s")
            ),
        ),
        Tone::Warn => say(
            Tone::Warn,
            format!(
                "reads leave {} of headroom, too little for a lost node or growth",
                human(headroom, "share")
            ),
        ),
        _ => say(Tone::Ok, format!("reads leave {} of headroom", human(headroom, "share"))),
    }
    if ops > 0.0 {
        let need = (ops / constants.get("metadata_rate")).ceil();
        let words = format!(
            "opening files asks for {} of metadata: {need:.0} servers, or a packed and sealed dataset and none",
            human(ops, "/s")
        );
        say(metadata_tone, words);
    }
    if drains >= 1.0 {
        say(
            Tone::Bad,
            format!(
                "checkpoints bring {} and the lake takes {}: save less often, drain every Nth, or widen the lake",
                human(saved_rate, "B/s"),
                human(get("lake_rate"), "B/s")
            ),
        );
    }
    if own > 1e-3 {
        let words = match inputs.word("class") {
            "one" => format!(
                "one copy loses bytes with {} in a year; class `two` with {}",
                human(losses[0], "share"),
                human(losses[1], "share")
            ),
            _ => format!(
                "bytes are lost with {} in a year: a shorter drain lag helps most",
                human(own, "share")
            ),
        };
        say(loss_tone, words);
    }
    if wear_tone != Tone::Ok {
        say(
            wear_tone,
            format!(
                "drives wear out in {}: fewer checkpoints, larger drives, or such of more endurance",
                human(life * YEAR, "s")
            ),
        );
    }
    if saves.overhead > 0.1 {
        say(
            Tone::Warn,
            format!(
                "{} of GPU time goes to saves and failures: snapshots that do not block help most",
                human(saves.overhead, "share")
            ),
        );
    }
    plan.tone = if bad.contains(&Tone::Bad) {
        Tone::Bad
    } else if bad.contains(&Tone::Warn) {
        Tone::Warn
    } else {
        Tone::Ok
    };
    plan.title = match plan.tone {
        Tone::Bad => "This design does not carry the load.".into(),
        Tone::Warn => "This design works, with something to watch.".into(),
        _ => "This design is sound for this load.".into(),
    };
    plan.changes = changes(inputs, constants, saves.overhead);
    plan.curves = vec![cost_curve(inputs, &saves), loss_curve(inputs, rate, dirty_time, window_years)];
    plan.uses(
        constants,
        &[
            "drive_read",
            "drive_write",
            "read_efficiency",
            "write_efficiency",
            "network_efficiency",
            "metadata_rate",
            "checkpoint_overhead",
            "shard_overhead",
            "shard_rate",
        ],
    );
    plan.assumes(&[
        "failures come one by one and by chance: no power cut of a row, no bad batch of drives, no error of an operator",
        "bytes that are in the lake are not lost; the window for a second failure is the shorter of rebuild and drain",
        "each drive holds undrained bytes while something is undrained, which makes losses look more likely than they are",
        "half of a node's write rate is left to rebuilding; drains and reads of datasets go on beside it",
    ]);
    plan
}

fn changes(inputs: &Inputs, constants: &Constants, now: f64) -> Vec<Change> {
    let candidates = [
        (
            "snapshots that block for a tenth of the time",
            inputs.with("blocked_share", inputs.get("blocked_share") * 0.1),
        ),
        ("twice the drives", inputs.with("drives", inputs.get("drives") * 2.0)),
        ("twice the storage ports", inputs.with("rails", inputs.get("rails") * 2.0)),
        ("a restart in half the time", inputs.with("restart_time", inputs.get("restart_time") / 2.0)),
        ("class `one` for checkpoints that may be lost", inputs.with_word("class", "one")),
    ];
    let mut all: Vec<Change> = candidates
        .into_iter()
        .filter_map(|(what, other)| {
            let after = checkpoints(&other, constants).overhead;
            let text = format!("{} -> {}", human(now, "share"), human(after, "share"));
            (now - after > 0.0005).then(|| Change {
                what: what.to_owned(),
                figure: "overhead",
                before: now,
                after,
                text,
            })
        })
        .collect();
    all.sort_by(|a, b| a.after.total_cmp(&b.after));
    all
}

fn cost_curve(inputs: &Inputs, saves: &Checkpoints) -> Curve {
    let x: Vec<f64> = (-12..=12).map(|step| saves.every_s * 2f64.powf(f64::from(step) / 3.0)).collect();
    let gpus = inputs.get("nodes") * inputs.get("gpus_per_node");
    let day = gpus * inputs.get("gpu_hour") * 24.0;
    let cost = |share: f64| day * share.min(1.0);
    let lines = vec![
        Line {
            name: "all".into(),
            y: x.iter()
                .map(|every| {
                    cost(overhead(saves.blocked_s, *every, saves.mtbf_s, inputs.get("restart_time")))
                })
                .collect(),
        },
        Line { name: "checkpoints".into(), y: x.iter().map(|every| cost(saves.blocked_s / every)).collect() },
        Line {
            name: "work done again".into(),
            y: x.iter().map(|every| cost(every / 2.0 / saves.mtbf_s)).collect(),
        },
    ];
    Curve {
        name: "cost",
        title: "Cost of a day by the time between checkpoints".into(),
        x_label: "seconds between checkpoints",
        x_unit: "s",
        y_label: "dollars per day",
        y_unit: "usd",
        x,
        lines,
        mark: saves.every_s,
    }
}

fn loss_curve(inputs: &Inputs, rate: f64, dirty_time: f64, window_years: f64) -> Curve {
    let x: Vec<f64> = (0..=10).map(|power| f64::from(1u32 << power)).collect();
    let line = |name: &str, copies: u32| {
        let y = x.iter().map(|nodes| {
            // Nines, so that three classes fit on one plot.
            let loss = loss_per_year(copies, nodes * inputs.get("drives"), rate, dirty_time, window_years);
            (-loss.max(1e-30).log10()).max(0.0)
        });
        Line { name: name.to_owned(), y: y.collect() }
    };
    Curve {
        name: "durability",
        title: "Nines of durability in a year by nodes".into(),
        x_label: "nodes",
        x_unit: "",
        y_label: "nines",
        y_unit: "nines",
        lines: vec![line("one", 1), line("two", 2), line("three", 3)],
        x,
        mark: inputs.get("nodes"),
    }
}
