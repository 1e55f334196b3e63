//! The model of the I/O lab, number for number, with its constants.
//!
//! It follows the lab's code where its text says something else: for the opening scenario (128 GPUs, one worker, random reads, 24
//! OST nodes) the text says 12 % utilisation and the code gives 1.1 %. Its numbers are frozen in `tests/lab/`, computed by the lab's formulas
//! in Python, and compared bit for bit.

use crate::plan::{Curve, Line, Plan, Tone};
use crate::spec::{Inputs, Spec, choice, field};
use crate::value::Kind;

const OST_GBS: f64 = 28.0;
const IB_GBS: f64 = 25.0;
const GPUS: f64 = 128.0;
const SAMPLE_MB: f64 = 4.0;
const COMPUTE_MS: f64 = 50.0;
const DESIGN_OSTS: f64 = 48.0;
const MDS_OPS: f64 = 50_000.0;
const OPS_PER_FILE: f64 = 3.0;
const GBS_PER_GPU: f64 = 0.08;

const CONTEXTS: &[(&str, &str)] = &[
    ("distributed_fs", "a Lustre or GPFS cluster of OST nodes with 28 GB/s each"),
    ("nvme", "one node with four drives of 7 GB/s"),
];
const PATTERNS: &[(&str, &str)] = &[
    ("random", "small reads of 4 KiB, the worst case"),
    ("sequential", "large pieces"),
    ("prefetch", "asynchronous, while the GPUs compute"),
];
const DATASETS: &[(&str, &str)] = &[
    ("individual", "a file for each sample"),
    ("shards", "a file for ten thousand samples"),
    ("object_store", "objects, without a metadata server"),
];

/// The lab's I/O analyzer.
pub static IO: Spec = Spec {
    name: "lab-io",
    kind: "io",
    words: "GPU utilization of 128 GPUs with 50 ms of compute for a batch of samples of 4 MB, as the lab computes it",
    fields: &[
        choice("context", CONTEXTS, 0, "where the data is"),
        field("workers", Kind::Count, 1.0, (1.0, 16.0), "loader workers for each GPU"),
        field("batch", Kind::Count, 64.0, (32.0, 512.0), "samples of a batch"),
        choice("pattern", PATTERNS, 0, "how samples are read"),
        field("osts", Kind::Count, 24.0, (4.0, 48.0), "active OST nodes"),
    ],
};

/// The lab's storage designer.
pub static DESIGN: Spec = Spec {
    name: "lab-design",
    kind: "design",
    words: "metadata and bandwidth of 48 OST nodes for a cluster of GPUs, as the lab computes it",
    fields: &[
        choice("context", CONTEXTS, 0, "where the data is"),
        field("gpus", Kind::Count, 512.0, (128.0, 4096.0), "GPUs"),
        field("workers", Kind::Count, 4.0, (1.0, 16.0), "loader workers for each GPU"),
        choice("dataset", DATASETS, 0, "how the dataset is kept"),
        field("mds", Kind::Count, 1.0, (1.0, 8.0), "metadata servers"),
    ],
};

/// The lab's sum about data gravity.
pub static GRAVITY: Spec = Spec {
    name: "lab-gravity",
    kind: "gravity",
    words: "moving data once against running where it is, as the lab computes it",
    fields: &[
        field("data_gb", Kind::Number, 100_000.0, (0.001, 1e12), "data, in GB"),
        field("link_gbs", Kind::Number, 12.5, (1e-6, 1e6), "GB/s of the way"),
        field("egress_usd", Kind::Money, 0.09, (0.0, 100.0), "dollars for a GB that leaves"),
        field("gpus", Kind::Count, 512.0, (1.0, 1e7), "GPUs of the job"),
        field("gpu_hour_usd", Kind::Money, 3.5, (0.0, 1e4), "dollars for a GPU for an hour"),
        field("hours", Kind::Number, 24.0, (0.001, 1e6), "hours of the job"),
    ],
};

/// Every number of the analyzer.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs, reason = "the lab's own names")]
pub struct Analysis {
    pub base_gbs: f64,
    pub network: f64,
    pub pattern: f64,
    pub worker: f64,
    pub prefetch_depth: f64,
    pub effective_gbs: f64,
    pub per_gpu_gbs: f64,
    pub batch_gb: f64,
    pub io_ms: f64,
    pub wait_ms: f64,
    pub total_ms: f64,
    pub utilization: f64,
    pub storage_utilization: f64,
}

/// What the lab makes of these choices.
pub fn analyze(is_nvme: bool, workers: u32, batch: u32, pattern: &str, osts: u32) -> Analysis {
    let (base_gbs, network) = if is_nvme {
        (28.0, 1.0)
    } else {
        let base = f64::from(osts) * OST_GBS;
        (base, f64::min(1.0, IB_GBS * 16.0 / base))
    };
    let (factor, overlap) = match pattern {
        "sequential" => (0.85, 2.0),
        "prefetch" => (0.78, 4.0),
        _ => (0.07, 0.5),
    };
    let w = f64::from(workers);
    let worker = match workers {
        0 | 1 => 0.25,
        2..=4 => 0.25 + (w - 1.0) * 0.20,
        5..=8 => 0.85 + (w - 4.0) * 0.03,
        _ => f64::min(0.97 + (w - 8.0) * 0.002, 1.0),
    };
    let prefetch_depth = f64::max(1.0, (w * overlap).trunc());
    let effective_gbs = base_gbs * factor * worker * network;
    let per_gpu_gbs = effective_gbs / GPUS;
    let batch_gb = f64::from(batch) * SAMPLE_MB / 1024.0;
    let io_ms = if per_gpu_gbs > 0.0 { batch_gb / per_gpu_gbs * 1000.0 } else { 9999.0 };
    let wait_ms = if pattern == "prefetch" {
        f64::max(0.0, io_ms - COMPUTE_MS * f64::min(prefetch_depth, 4.0))
    } else {
        f64::max(0.0, io_ms - COMPUTE_MS)
    };
    let total_ms = COMPUTE_MS + wait_ms;
    let utilization = if total_ms > 0.0 { f64::min(COMPUTE_MS / total_ms * 100.0, 100.0) } else { 0.0 };
    let storage_utilization = effective_gbs / (base_gbs + 0.001) * 100.0;
    Analysis {
        base_gbs,
        network,
        pattern: factor,
        worker,
        prefetch_depth,
        effective_gbs,
        per_gpu_gbs,
        batch_gb,
        io_ms,
        wait_ms,
        total_ms,
        utilization,
        storage_utilization,
    }
}

/// Every number of the designer.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs, reason = "the lab's own names")]
pub struct Architecture {
    pub workers: f64,
    pub ops: f64,
    pub mds_capacity: f64,
    pub mds_utilization: f64,
    pub is_mds_saturated: bool,
    pub demand_gbs: f64,
    pub supply_gbs: f64,
    pub headroom: f64,
    pub is_bandwidth_saturated: bool,
    pub needed_mds: f64,
    pub recommendation: String,
}

/// What the lab makes of these choices.
pub fn architect(is_nvme: bool, gpus: u32, workers: u32, dataset: &str, mds: u32) -> Architecture {
    let (opens, pressure) = match dataset {
        "shards" => (0.2, 0.02),
        "object_store" => (50.0, 0.0),
        _ => (50.0, 1.0),
    };
    let is_object_store = dataset == "object_store";
    let all = f64::from(gpus) * f64::from(workers);
    let ops = all * opens * OPS_PER_FILE * pressure;
    let mds_capacity = f64::from(mds) * MDS_OPS;
    let is_mds_saturated = !is_object_store && ops > mds_capacity;
    let mds_utilization = f64::min(ops / mds_capacity * 100.0, 200.0);
    let demand_gbs = f64::from(gpus) * GBS_PER_GPU;
    let supply_gbs = if is_nvme { 28.0 } else { DESIGN_OSTS * OST_GBS };
    let headroom = (supply_gbs - demand_gbs) / supply_gbs * 100.0;
    let needed_mds = if is_object_store { 1.0 } else { f64::max(1.0, (ops / MDS_OPS).ceil()) };
    let recommendation = if is_object_store {
        "Object store — no MDS. Scales to any GPU count.".to_owned()
    } else if is_mds_saturated {
        format!("Add {:.0} more MDS nodes or migrate to object store.", needed_mds - f64::from(mds))
    } else if mds_utilization > 60.0 {
        "MDS approaching capacity. Switch to sequential shards or pre-provision additional MDS.".to_owned()
    } else {
        "Architecture is sound at current scale. Monitor MDS utilization as GPU count grows.".to_owned()
    };
    Architecture {
        workers: all,
        ops,
        mds_capacity,
        mds_utilization,
        is_mds_saturated,
        demand_gbs,
        supply_gbs,
        headroom,
        is_bandwidth_saturated: demand_gbs > supply_gbs,
        needed_mds,
        recommendation,
    }
}

/// Seconds of the move, its egress in dollars, dollars of the job.
pub fn gravity(
    data_gb: f64,
    link_gbs: f64,
    egress: f64,
    gpus: f64,
    hour: f64,
    hours: f64,
) -> (f64, f64, f64) {
    (data_gb / link_gbs, data_gb * egress, gpus * hour * hours)
}

fn tone(utilization: f64) -> (Tone, &'static str) {
    match utilization {
        value if value >= 80.0 => (Tone::Ok, "Healthy"),
        value if value >= 50.0 => (Tone::Warn, "Degraded"),
        _ => (Tone::Bad, "Starved"),
    }
}

fn whole(inputs: &Inputs, name: &str) -> u32 {
    inputs.get(name) as u32
}

/// The analyzer as a plan.
pub fn plan_io(inputs: &Inputs) -> Plan {
    let is_nvme = inputs.word("context") == "nvme";
    let (workers, batch, osts) = (whole(inputs, "workers"), whole(inputs, "batch"), whole(inputs, "osts"));
    let pattern = inputs.word("pattern");
    let found = analyze(is_nvme, workers, batch, pattern, osts);
    let mut plan = Plan::new(inputs, "lab");
    let (tone, word) = tone(found.utilization);
    plan.tone = tone;
    plan.title = format!(
        "{word}: {:.1} % GPU utilization, {:.1} ms of wait for each batch",
        found.utilization, found.wait_ms
    );
    plan.reasons = vec![
        format!(
            "effective {:.1} GB/s = {:.0} GB/s x {:.2} (pattern) x {:.2} (workers) x {:.2} (network)",
            found.effective_gbs, found.base_gbs, found.pattern, found.worker, found.network
        ),
        format!(
            "{:.4} GB/s for each of 128 GPUs; a batch takes {:.1} ms and 50 ms of compute",
            found.per_gpu_gbs, found.io_ms
        ),
    ];
    plan.toned("utilization", "GPU utilization", found.utilization / 100.0, "share", tone)
        .figure("wait", "Wait for each batch", found.wait_ms / 1e3, "s")
        .figure("io_time", "I/O time of a batch", found.io_ms / 1e3, "s")
        .figure("bandwidth", "Effective bandwidth", found.effective_gbs * 1e9, "B/s")
        .figure("bandwidth_per_gpu", "Bandwidth for each GPU", found.per_gpu_gbs * 1e9, "B/s")
        .figure("prefetch_depth", "Batches read ahead", found.prefetch_depth, "count")
        .figure(
            "storage_utilization",
            "Share of the storage's capacity",
            found.storage_utilization / 100.0,
            "share",
        );
    let all = 1..=16u32;
    let y = all.clone().map(|w| analyze(is_nvme, w, batch, pattern, osts).utilization / 100.0).collect();
    plan.curves.push(Curve {
        name: "utilization",
        title: "GPU utilization by workers".into(),
        x_label: "workers for each GPU",
        x_unit: "",
        y_label: "utilization",
        y_unit: "share",
        x: all.map(f64::from).collect(),
        lines: vec![Line { name: pattern.to_owned(), y }],
        mark: f64::from(workers),
    });
    plan.assumes(&[
        "the lab's constants: 28 GB/s for each OST node, 25 GB/s for each of 16 InfiniBand ports, 128 GPUs, 4 MB, 50 ms",
        "the lab's text says 12 % for its opening scenario; its code, which this follows, gives 1.1 %",
    ]);
    plan
}

/// The designer as a plan.
pub fn plan_design(inputs: &Inputs) -> Plan {
    let is_nvme = inputs.word("context") == "nvme";
    let (gpus, workers, mds) = (whole(inputs, "gpus"), whole(inputs, "workers"), whole(inputs, "mds"));
    let dataset = inputs.word("dataset");
    let found = architect(is_nvme, gpus, workers, dataset, mds);
    let mut plan = Plan::new(inputs, "lab");
    let mds_tone = match (found.is_mds_saturated, found.mds_utilization > 60.0) {
        (true, _) => Tone::Bad,
        (_, true) => Tone::Warn,
        _ => Tone::Ok,
    };
    let bandwidth_tone = if found.is_bandwidth_saturated { Tone::Bad } else { Tone::Ok };
    plan.tone = if bandwidth_tone == Tone::Bad { Tone::Bad } else { mds_tone };
    plan.title = found.recommendation.clone();
    plan.toned(
        "mds_utilization",
        "MDS utilization (200 % at most)",
        found.mds_utilization / 100.0,
        "share",
        mds_tone,
    )
    .figure("metadata_ops", "Metadata demand", found.ops, "/s")
    .figure("mds_capacity", "Metadata capacity", found.mds_capacity, "/s")
    .figure("needed_mds", "Metadata servers needed", found.needed_mds, "count")
    .toned("bandwidth_demand", "Bandwidth demand", found.demand_gbs * 1e9, "B/s", bandwidth_tone)
    .figure("bandwidth_supply", "Bandwidth supply", found.supply_gbs * 1e9, "B/s")
    .figure("headroom", "Bandwidth headroom", found.headroom / 100.0, "share")
    .figure("connections", "Concurrent connections", found.workers, "count");
    let x: Vec<u32> = (1..=32).map(|step| step * 128).collect();
    let all: Vec<Architecture> =
        x.iter().map(|gpus| architect(is_nvme, *gpus, workers, dataset, mds)).collect();
    plan.curves.push(Curve {
        name: "metadata",
        title: "Metadata demand and capacity by GPUs".into(),
        x_label: "GPUs",
        x_unit: "",
        y_label: "operations",
        y_unit: "/s",
        x: x.iter().map(|gpus| f64::from(*gpus)).collect(),
        lines: vec![
            Line { name: "demand".into(), y: all.iter().map(|one| one.ops).collect() },
            Line { name: "capacity".into(), y: all.iter().map(|one| one.mds_capacity).collect() },
        ],
        mark: f64::from(gpus),
    });
    plan.assumes(&["the lab's constants: 50,000 operations/s for each metadata server, 3 for a file, 80 MB/s for each GPU"]);
    plan
}

/// The sum about data gravity as a plan.
pub fn plan_gravity(inputs: &Inputs) -> Plan {
    let [data, link, egress, gpus, hour, hours] =
        ["data_gb", "link_gbs", "egress_usd", "gpus", "gpu_hour_usd", "hours"].map(|name| inputs.get(name));
    let (seconds, moved, job) = gravity(data, link, egress, gpus, hour, hours);
    let mut plan = Plan::new(inputs, "lab");
    plan.title =
        "Move compute to data if transfer cost and latency exceed what compute near the data costs.".into();
    plan.figure("transfer", "Time of the move", seconds, "s")
        .figure("egress", "Egress", moved, "usd")
        .figure("job", "The job where the data is", job, "usd");
    plan
}
