//! The I/O analyzer: how much of their time GPUs compute, who keeps them waiting, and which change gives most.
//!
//! For one step of training every resource has a time: drives, network, lake, metadata, CPU, and the loader's own workers, of which each
//! does one thing after the other. They work side by side, so the longest is what a step costs; loading ahead hides as much of it as a step
//! computes. All nodes are alike and share the work evenly.

use crate::constants::Constants;
use crate::plan::{Change, Curve, Line, Plan, Tone};
use crate::spec::{Inputs, Spec, choice, field};
use crate::value::{Kind, human};

/// Bytes that the loader reads at once where samples lie together.
const PIECE: f64 = 4.0 * 1_048_576.0;
/// Metadata operations of opening, asking and closing a file.
const OPS_PER_OPEN: f64 = 3.0;
/// Reads that the loader has under way at once where it knows the order.
const AHEAD: f64 = 16.0;
/// Below this gain, as a share of utilization, a change is not named.
const GAIN_MIN: f64 = 0.005;

const PATTERNS: &[(&str, &str)] = &[
    ("blocks", "a packed dataset with a seal, shuffled in blocks of 4 MiB"),
    ("samples", "a packed dataset with a seal, every sample on its own"),
    ("shards", "large shards from front to back"),
    ("files", "a file for each sample"),
];

/// What it takes.
pub static SPEC: Spec = Spec {
    name: "io",
    kind: "io",
    words: "GPU utilization of a training job, who keeps it waiting, and what would help most",
    fields: &[
        field("gpus", Kind::Count, 128.0, (1.0, 1e6), "GPUs of the job"),
        field("gpus_per_node", Kind::Count, 8.0, (1.0, 128.0), "GPUs of a node"),
        field(
            "workers",
            Kind::Count,
            4.0,
            (0.0, 256.0),
            "loader workers for each GPU; 0 loads in the training loop",
        ),
        field("sample_size", Kind::Bytes, 4_194_304.0, (1.0, 1e12), "bytes of a sample"),
        field("batch", Kind::Count, 64.0, (1.0, 1e6), "samples of a step on one GPU"),
        field("step_time", Kind::Seconds, 0.05, (1e-6, 3600.0), "compute of a step"),
        choice("pattern", PATTERNS, 0, "how samples are kept and read"),
        field("decode_time", Kind::Seconds, 0.0, (0.0, 100.0), "decoding of one sample on one core"),
        field("prefetch", Kind::Count, 2.0, (0.0, 1024.0), "batches read ahead; 0 reads when asked"),
        field("cached", Kind::Share, 0.0, (0.0, 1.0), "share of reads answered from memory"),
        field("cold", Kind::Share, 0.0, (0.0, 1.0), "share of the other reads that goes to the lake"),
        field("remote", Kind::Share, 0.0, (0.0, 1.0), "share of reads of drives that comes from other nodes"),
        field("drives", Kind::Count, 4.0, (1.0, 1024.0), "drives of a node"),
        field("rails", Kind::Count, 1.0, (1.0, 64.0), "storage ports of a node"),
        field("rail_rate", Kind::Rate, 25e9, (1e6, 1e13), "rate of a port"),
        field("lake_rate", Kind::Rate, 10e9, (1e5, 1e15), "rate of the lake, for all nodes together"),
        field(
            "metadata_servers",
            Kind::Count,
            1.0,
            (1.0, 10_000.0),
            "servers of metadata, where files are opened",
        ),
        field("cores", Kind::Count, 64.0, (1.0, 4096.0), "cores of a node that the loader may use"),
    ],
};

/// Who can keep a step waiting, with what it is called.
pub const PARTS: [(&str, &str); 6] = [
    ("drive", "Drives"),
    ("network", "Network"),
    ("lake", "Lake"),
    ("metadata", "Metadata"),
    ("cpu", "CPU"),
    ("loader", "Loader workers"),
];

/// What a step costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Step {
    /// Seconds of each of [`PARTS`] for one step.
    pub times: [f64; 6],
    /// Seconds until a batch is there for every GPU.
    pub io_s: f64,
    /// Seconds that a step waits.
    pub wait_s: f64,
    /// Share of time that GPUs compute.
    pub utilization: f64,
    /// Samples per second of the job.
    pub samples_per_s: f64,
    /// Bytes per second that the loaders could bring if nobody computed.
    pub supply: f64,
    /// Bytes per second that the job would take if nothing made it wait.
    pub demand: f64,
}

impl Step {
    /// The place in [`PARTS`] of the longest.
    pub fn bottleneck(&self) -> usize {
        (0..self.times.len()).max_by(|a, b| self.times[*a].total_cmp(&self.times[*b])).unwrap_or(0)
    }
}

/// Computes a step.
pub fn step(inputs: &Inputs, constants: &Constants) -> Step {
    let get = |name: &str| inputs.get(name);
    let constant = |name: &str| constants.get(name);
    let per_node = get("gpus_per_node").min(get("gpus"));
    let nodes = (get("gpus") / per_node).ceil();
    let (size, batch) = (get("sample_size"), get("batch"));
    let samples = per_node * batch;
    let bytes = samples * size;
    let pattern = inputs.word("pattern");
    let is_packed = matches!(pattern, "blocks" | "shards");
    // Parts of a read, for one sample.
    let reads = if is_packed { size / PIECE } else { (size / PIECE).max(1.0) };
    let opens = if pattern == "files" { 1.0 } else { 0.0 };
    let hot = get("cached");
    let cold = (1.0 - hot) * get("cold");
    let warm = 1.0 - hot - cold;

    let drive_rate = constant("drive_read") * constant("read_efficiency");
    let by_rate = bytes * warm / (get("drives") * drive_rate);
    let by_count = samples * reads * warm / (get("drives") * constant("drive_iops"));
    let rails = get("rails") * get("rail_rate") * constant("network_efficiency");
    let read_each = hot * constant("cache_overhead") + (1.0 - hot) * constant("read_overhead");
    let loader_each = constant("sample_overhead") + reads * read_each;
    let ahead = if pattern == "files" { 1.0 } else { AHEAD };
    let latency = reads * (warm * constant("drive_latency") + cold * constant("lake_latency")) / ahead;
    let carried = size
        * (hot / constant("cache_rate")
            + warm / constant("stream_rate")
            + cold / constant("lake_stream_rate"));
    let busy = hot * constant("cache_cores") + (1.0 - hot) * constant("worker_cores");
    let worker_each = get("decode_time") + loader_each + carried + latency + opens * constant("open_time");
    let cpu_each = get("decode_time") + (loader_each + carried) * busy;
    let workers = get("workers").max(1.0);
    let times = [
        f64::max(by_rate, by_count),
        bytes * (warm * get("remote") + cold) / rails,
        bytes * cold * nodes / get("lake_rate"),
        samples * opens * OPS_PER_OPEN * nodes / (constant("metadata_rate") * get("metadata_servers")),
        samples * cpu_each / get("cores"),
        (batch * worker_each + constant("batch_overhead")) / workers,
    ];
    let io_s = times.into_iter().fold(0.0, f64::max);
    let compute = get("step_time");
    let is_overlapped = get("workers") >= 1.0 && get("prefetch") >= 1.0;
    let wait_s = if is_overlapped { (io_s - compute).max(0.0) } else { io_s };
    let all = bytes * nodes;
    Step {
        times,
        io_s,
        wait_s,
        utilization: compute / (compute + wait_s),
        samples_per_s: samples * nodes / (compute + wait_s),
        supply: all / io_s,
        demand: all / compute,
    }
}

/// Seconds of one read of a sample while nothing else is asked for.
pub fn read_alone(inputs: &Inputs, constants: &Constants) -> f64 {
    let size = inputs.get("sample_size");
    let hot = inputs.get("cached");
    let cold = (1.0 - hot) * inputs.get("cold");
    let of = |latency: &str, rate: &str| constants.get(latency) + size / constants.get(rate);
    hot * of("cache_latency", "cache_read_rate")
        + (1.0 - hot - cold) * of("drive_latency", "read_rate")
        + cold * of("lake_latency", "lake_read_rate")
}

fn tone(utilization: f64) -> Tone {
    match utilization {
        value if value >= 0.8 => Tone::Ok,
        value if value >= 0.5 => Tone::Warn,
        _ => Tone::Bad,
    }
}

/// What could be changed, in words, with the inputs after it.
fn candidates(inputs: &Inputs) -> Vec<(String, Inputs)> {
    let double = |name: &str| inputs.with(name, inputs.get(name) * 2.0);
    let mut all = Vec::new();
    match inputs.word("pattern") {
        "files" => {
            all.push((
                "pack the dataset (`stoker pack`) and shuffle in blocks".to_owned(),
                inputs.with_word("pattern", "blocks"),
            ));
        }
        "samples" => {
            all.push((
                "shuffle in blocks instead of single samples".to_owned(),
                inputs.with_word("pattern", "blocks"),
            ));
        }
        _ => {}
    }
    let workers = inputs.get("workers");
    if workers >= 1.0 {
        all.push((
            format!("{:.0} workers for each GPU instead of {workers:.0}", workers * 2.0),
            double("workers"),
        ));
    } else {
        all.push((
            "4 workers for each GPU, which read ahead".to_owned(),
            inputs.with("workers", 4.0).with("prefetch", 2.0),
        ));
    }
    if workers >= 1.0 && inputs.get("prefetch") < 1.0 {
        all.push(("read two batches ahead".to_owned(), inputs.with("prefetch", 2.0)));
    }
    if inputs.get("cold") > 0.0 {
        all.push((
            "stage the dataset onto drives before the job (`stoker stage`)".to_owned(),
            inputs.with("cold", 0.0),
        ));
    }
    if inputs.get("remote") > 0.0 {
        all.push(("read from the node's own drives".to_owned(), inputs.with("remote", 0.0)));
    }
    if inputs.get("decode_time") > 0.0 {
        all.push((
            "decode in half the time (smaller images, a faster decoder, or the GPU)".to_owned(),
            inputs.with("decode_time", inputs.get("decode_time") / 2.0),
        ));
    }
    for (name, words) in [
        ("drives", "twice the drives in each node"),
        ("rails", "twice the storage ports in each node"),
        ("lake_rate", "twice the rate of the lake"),
        ("metadata_servers", "twice the metadata servers"),
        ("cores", "twice the cores for the loader"),
    ] {
        all.push((words.to_owned(), double(name)));
    }
    let larger =
        inputs.with("batch", inputs.get("batch") * 2.0).with("step_time", inputs.get("step_time") * 2.0);
    all.push(("twice the batch, if a step then takes twice as long".to_owned(), larger));
    all
}

fn changes(inputs: &Inputs, constants: &Constants, now: f64) -> Vec<Change> {
    let of = |(what, other): (String, Inputs)| {
        let after = step(&other, constants).utilization;
        let text = format!("{} -> {}", human(now, "share"), human(after, "share"));
        (after - now >= GAIN_MIN).then_some(Change { what, figure: "utilization", before: now, after, text })
    };
    let mut all: Vec<Change> = candidates(inputs).into_iter().filter_map(of).collect();
    all.sort_by(|a, b| b.after.total_cmp(&a.after));
    all.truncate(5);
    all
}

/// The plan.
pub fn plan(inputs: &Inputs, constants: &Constants) -> Plan {
    let now = step(inputs, constants);
    let mut plan = Plan::new(inputs, "stoker");
    let at = now.bottleneck();
    plan.tone = tone(now.utilization);
    let waits = now.wait_s / (inputs.get("step_time") + now.wait_s);
    plan.title = match now.wait_s > 0.0 {
        true => format!(
            "{} GPU utilization: {} of each step waits for data, by {}",
            human(now.utilization, "share"),
            human(waits, "share"),
            PARTS[at].1.to_lowercase()
        ),
        false => format!("{} GPU utilization: no step waits for data", human(now.utilization, "share")),
    };
    plan.toned("utilization", "GPU utilization", now.utilization, "share", tone(now.utilization))
        .figure("wait", "Wait of each step", now.wait_s, "s")
        .figure("io_time", "Loading of a step", now.io_s, "s")
        .figure("samples", "Samples of the job", now.samples_per_s, "/s")
        .figure("read_latency", "One sample read alone", read_alone(inputs, constants), "s")
        .figure("supply", "Bytes that loading can bring", now.supply, "B/s")
        .figure("demand", "Bytes that the GPUs would take", now.demand, "B/s");
    const NAMES: [&str; 6] =
        ["drive_time", "network_time", "lake_time", "metadata_time", "cpu_time", "loader_time"];
    for (place, name) in NAMES.into_iter().enumerate() {
        let tone = if place == at && now.wait_s > 0.0 { Tone::Bad } else { Tone::Plain };
        plan.toned(name, PARTS[place].1, now.times[place], "s", tone);
    }
    let compute = human(inputs.get("step_time"), "s");
    plan.reasons.push(format!(
        "a step computes for {compute}; {} need {} for it",
        PARTS[at].1.to_lowercase(),
        human(now.times[at], "s")
    ));
    let mut order: Vec<usize> = (0..PARTS.len()).filter(|place| *place != at).collect();
    order.sort_by(|a, b| now.times[*b].total_cmp(&now.times[*a]));
    if let Some(next) = order.first() {
        plan.reasons.push(format!(
            "next would be {} with {}",
            PARTS[*next].1.to_lowercase(),
            human(now.times[*next], "s")
        ));
    }
    plan.changes = changes(inputs, constants, now.utilization);
    plan.curves = vec![by_workers(inputs, constants), roofline(inputs, constants)];
    plan.uses(
        constants,
        &[
            "drive_read",
            "read_efficiency",
            "drive_iops",
            "drive_latency",
            "stream_rate",
            "cache_rate",
            "read_overhead",
            "cache_overhead",
            "worker_cores",
            "cache_cores",
            "lake_stream_rate",
            "sample_overhead",
            "batch_overhead",
            "open_time",
            "metadata_rate",
            "lake_latency",
            "read_rate",
            "cache_latency",
            "cache_read_rate",
            "lake_read_rate",
            "network_efficiency",
        ],
    );
    plan.assumes(&[
        "all nodes are alike and read evenly; the job runs alone",
        "resources work side by side, so the slowest decides; reading ahead hides as much as a step computes",
        "opening a file costs three operations of metadata; a sealed dataset costs none",
    ]);
    plan
}

fn by_workers(inputs: &Inputs, constants: &Constants) -> Curve {
    let most = (inputs.get("workers") as u32 * 2).clamp(16, 64);
    let all = 1..=most;
    let line = |pattern: &str| {
        let y = all.clone().map(|w| {
            step(&inputs.with("workers", f64::from(w)).with_word("pattern", pattern), constants).utilization
        });
        Line { name: pattern.to_owned(), y: y.collect() }
    };
    let own = inputs.word("pattern");
    let mut lines = vec![line(own)];
    lines.extend(["blocks", "files"].into_iter().filter(|other| *other != own).map(line));
    Curve {
        name: "utilization",
        title: "GPU utilization by workers".into(),
        x_label: "workers for each GPU",
        x_unit: "",
        y_label: "utilization",
        y_unit: "share",
        x: all.map(f64::from).collect(),
        lines,
        mark: inputs.get("workers"),
    }
}

fn roofline(inputs: &Inputs, constants: &Constants) -> Curve {
    let x: Vec<f64> = (10..=28).map(|power| f64::from(1u32 << power)).collect();
    let at = |size: &f64| inputs.with("sample_size", *size);
    let reach = |name: &'static str, place: usize| Line {
        name: name.to_owned(),
        y: x.iter()
            .map(|size| {
                let found = step(&at(size), constants);
                found.supply * found.io_s / found.times[place].max(1e-12)
            })
            .collect(),
    };
    let lines = vec![
        Line {
            name: "all together".into(),
            y: x.iter().map(|size| step(&at(size), constants).supply).collect(),
        },
        reach("drives alone", 0),
        reach("loader alone", 5),
    ];
    Curve {
        name: "roofline",
        title: "Roofline: bytes per second by size of samples".into(),
        x_label: "bytes of a sample",
        x_unit: "B",
        y_label: "bytes per second",
        y_unit: "B/s",
        x,
        lines,
        mark: inputs.get("sample_size"),
    }
}
