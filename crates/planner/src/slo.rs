//! Targets of the storage architecture for GB300 NVL72 trays, as a share of what this machine's drives can do, and on named hardware.

use crate::constants::Constants;
use crate::plan::{Plan, Tone};
use crate::spec::{Inputs, Spec, choice, field};
use crate::value::{Kind, human};

const MIB: f64 = 1_048_576.0;

const HARDWARE: &[(&str, &str)] = &[
    ("gb300-tray", "a GB300 NVL72 tray: 8 E1.S drives of PCIe Gen5, 4 ports of 800 Gbit/s"),
    ("h100-node", "an HGX H100 node: 8 drives of PCIe Gen4, 2 storage ports of 200 Gbit/s"),
    ("own", "what the other inputs say"),
];

/// What it takes.
pub static SPEC: Spec = Spec {
    name: "slo",
    kind: "slo",
    words: "the architecture's targets for a tray: what named hardware would reach with the shares measured here",
    fields: &[
        choice("hardware", HARDWARE, 0, "which hardware"),
        field("drives", Kind::Count, 8.0, (1.0, 1024.0), "drives of a tray, for `own`"),
        field("drive_read", Kind::Rate, 14e9, (1e6, 1e12), "large reads of a drive, for `own`"),
        field("drive_write", Kind::Rate, 10e9, (1e6, 1e12), "large writes of a drive, for `own`"),
        field(
            "drive_p99",
            Kind::Seconds,
            200e-6,
            (1e-6, 10.0),
            "P99 of small reads of a drive under load, for `own`",
        ),
        field(
            "write_p99",
            Kind::Seconds,
            60e-6,
            (1e-6, 10.0),
            "P99 of small durable writes of a drive, for `own`",
        ),
        field("rails", Kind::Count, 4.0, (1.0, 64.0), "storage ports of a tray, for `own`"),
        field("rail_rate", Kind::Rate, 100e9, (1e6, 1e13), "rate of a port, for `own`"),
        field("network_p99", Kind::Seconds, 20e-6, (1e-7, 1.0), "P99 of a small message to a neighbour"),
        field(
            "stripe",
            Kind::Count,
            4.0,
            (1.0, 64.0),
            "drives that bring a large read or take a large write together",
        ),
    ],
};

struct Hardware {
    drives: f64,
    read: f64,
    write: f64,
    read_p99: f64,
    write_p99: f64,
    rails: f64,
    rail: f64,
}

fn hardware(inputs: &Inputs) -> Hardware {
    let get = |name: &str| inputs.get(name);
    match inputs.word("hardware") {
        "gb300-tray" => Hardware {
            drives: 8.0,
            read: 14e9,
            write: 10e9,
            read_p99: 200e-6,
            write_p99: 60e-6,
            rails: 4.0,
            rail: 100e9,
        },
        "h100-node" => Hardware {
            drives: 8.0,
            read: 7e9,
            write: 5e9,
            read_p99: 250e-6,
            write_p99: 80e-6,
            rails: 2.0,
            rail: 25e9,
        },
        _ => Hardware {
            drives: get("drives"),
            read: get("drive_read"),
            write: get("drive_write"),
            read_p99: get("drive_p99"),
            write_p99: get("write_p99"),
            rails: get("rails"),
            rail: get("rail_rate"),
        },
    }
}

/// The plan.
pub fn plan(inputs: &Inputs, constants: &Constants) -> Plan {
    let mut plan = Plan::new(inputs, "stoker");
    let (given, stripe) = (hardware(inputs), inputs.get("stripe"));
    let at_once = stripe.min(given.drives);
    let share_read = constants.get("read_efficiency");
    let share_write = constants.get("write_efficiency");
    let rails = given.rails * given.rail * constants.get("network_efficiency");

    let read_1m = (given.read_p99 + MIB / (given.read * at_once)) * constants.get("read_latency_ratio");
    let read = given.drives * given.read * share_read;
    // Both copies are written at the same time; the one that crosses a port takes longer.
    let one = 4.0 * MIB / (given.write * at_once) + given.write_p99;
    let crossing = 4.0 * MIB / rails.min(given.rail * at_once) + inputs.get("network_p99");
    let commit_4m = (one + crossing) * constants.get("write_latency_ratio");
    // Each tray also takes the copies of a neighbour, so its drives write everything twice.
    let write = (given.drives * given.write * share_write / 2.0).min(rails);

    let mut missed = Vec::new();
    let mut row = |name, label, value: f64, unit, target: f64, is_time: bool, words: &str| {
        let holds = if is_time { value <= target } else { value >= target };
        let tone = if holds { Tone::Ok } else { Tone::Bad };
        plan.toned(name, label, value, unit, tone);
        let side = if is_time { "at most" } else { "at least" };
        plan.reasons.push(format!(
            "{words}: {} against {side} {}, {}",
            human(value, unit),
            human(target, unit),
            if holds { "reached" } else { "not reached" }
        ));
        if !holds {
            missed.push(words.to_owned());
        }
    };
    row("read_1mib_p99", "1 MiB read P99", read_1m, "s", 1e-3, true, "1 MiB read P99 (inference)");
    row(
        "dataset_1mib_p99",
        "1 MiB dataset read P99",
        read_1m,
        "s",
        1.5e-3,
        true,
        "1 MiB read P99 (training)",
    );
    row(
        "dataset_rate",
        "Dataset reads of a tray",
        read.min(rails * 2.0),
        "B/s",
        100e9,
        false,
        "dataset reads of a tray, 100 to 160 GB/s",
    );
    row(
        "commit_4mib_p99",
        "4 MiB commit P99, 2 of 2",
        commit_4m,
        "s",
        0.8e-3,
        true,
        "4 MiB commit P99, 2 of 2",
    );
    row(
        "checkpoint_rate",
        "Checkpoint commits of a tray",
        write,
        "B/s",
        200e9,
        false,
        "checkpoint writes of a tray, 200 GB/s offered",
    );

    plan.figure("here_read", "A drive of this machine, reads", constants.get("drive_read"), "B/s")
        .figure("here_read_share", "Of them through Stoker", share_read, "share")
        .figure("here_write", "A drive of this machine, writes", constants.get("drive_write"), "B/s")
        .figure("here_write_share", "Of them through Stoker", share_write, "share")
        .figure(
            "here_read_p99",
            "P99 of reads through Stoker, of the drive's own",
            constants.get("read_latency_ratio"),
            "times",
        )
        .figure(
            "here_write_p99",
            "P99 of commits through Stoker, of the drive's own",
            constants.get("write_latency_ratio"),
            "times",
        );
    plan.tone = if missed.is_empty() { Tone::Ok } else { Tone::Warn };
    plan.title = match missed.len() {
        0 => "Extrapolated, every target is reached.".into(),
        _ => format!("Extrapolated, not reached: {}.", missed.join("; ")),
    };
    let measured = ["read_efficiency", "write_efficiency", "read_latency_ratio", "write_latency_ratio"];
    let assumed: Vec<&str> = measured.into_iter().filter(|name| !constants.is_measured(name)).collect();
    if !assumed.is_empty() {
        plan.reasons.push(format!(
            "nobody measured here: {}; calibrate to replace what is assumed",
            assumed.join(", ")
        ));
    }
    plan.uses(
        constants,
        &[
            "drive_read",
            "drive_write",
            "read_efficiency",
            "write_efficiency",
            "read_latency_ratio",
            "write_latency_ratio",
            "network_efficiency",
        ],
    );
    plan.assumptions.push(format!(
        "{}: {:.0} drives with {} reads, {} writes, P99 {} and {}; {:.0} ports with {}. These are of data sheets, not measured",
        inputs.word("hardware"),
        given.drives,
        human(given.read, "B/s"),
        human(given.write, "B/s"),
        human(given.read_p99, "s"),
        human(given.write_p99, "s"),
        given.rails,
        human(given.rail, "B/s"),
    ));
    plan.assumes(&[
        "the share of the raw drive, and the ratio of latencies, are on that hardware what they are here",
        "a large read or write is spread over `stripe` drives; a 4 MiB chunk of today lies on one, for which `stripe` is 1",
        "GPUDirect Storage and RDMA are not part of this: bytes pass through memory of the host",
    ]);
    plan
}
