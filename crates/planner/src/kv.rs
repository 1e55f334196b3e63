//! Sizing of a KV cache: how often a prefix is found, where, and how long its blocks take.

use crate::constants::Constants;
use crate::plan::{Curve, Line, Plan, Tone};
use crate::spec::{Inputs, Spec, field};
use crate::value::{Kind, human};

/// What it takes.
pub static SPEC: Spec = Spec {
    name: "kv",
    kind: "kv",
    words: "hit rate by tier, sizes of tiers, and time until a prompt's blocks are there",
    fields: &[
        field("layers", Kind::Count, 80.0, (1.0, 10_000.0), "layers of the model"),
        field("kv_heads", Kind::Count, 8.0, (1.0, 10_000.0), "heads that keys and values have"),
        field("head_size", Kind::Count, 128.0, (1.0, 65_536.0), "numbers of a head"),
        field("number_size", Kind::Number, 2.0, (0.25, 8.0), "bytes of a number"),
        field("prefix_tokens", Kind::Count, 8192.0, (1.0, 1e8), "tokens of a prefix that is used again"),
        field("prefixes", Kind::Count, 20_000.0, (1.0, 1e12), "prefixes that are in use"),
        field(
            "skew",
            Kind::Number,
            0.9,
            (0.0, 3.0),
            "how unequal they are: the exponent of Zipf; 0 is all alike",
        ),
        field("device_size", Kind::Bytes, 200e9, (0.0, 1e16), "memory of GPUs for blocks"),
        field("memory_size", Kind::Bytes, 1e12, (0.0, 1e16), "memory of hosts for blocks"),
        field("flash_size", Kind::Bytes, 30e12, (0.0, 1e19), "drives for blocks"),
        field("memory_rate", Kind::Rate, 50e9, (1e6, 1e14), "from memory to the GPU"),
        field("drives", Kind::Count, 8.0, (1.0, 100_000.0), "drives that bring one prefix together"),
        field(
            "prefill_rate",
            Kind::Number,
            10_000.0,
            (1.0, 1e9),
            "tokens per second that computing them anew makes",
        ),
        field("hit_target", Kind::Share, 0.9, (0.0, 1.0), "share of prefixes that are to be found"),
    ],
};

/// The sum of the first so many terms of Zipf's series, by its integral with the middle rule.
fn zipf_sum(count: f64, skew: f64) -> f64 {
    if count <= 0.0 {
        return 0.0;
    }
    // The first terms count most and are summed as they are.
    let whole = count.min(1000.0).floor();
    let head: f64 = (1..=whole as u32).map(|rank| f64::from(rank).powf(-skew)).sum();
    if count <= 1000.0 {
        return head + (count - whole) * (whole + 1.0).powf(-skew);
    }
    let (from, to) = (1000.5, count + 0.5);
    let tail = if (skew - 1.0).abs() < 1e-9 {
        (to / from).ln()
    } else {
        (to.powf(1.0 - skew) - from.powf(1.0 - skew)) / (1.0 - skew)
    };
    head + tail
}

/// Share of uses that the most used `kept` of `all` have.
pub fn hit_rate(kept: f64, all: f64, skew: f64) -> f64 {
    if kept >= all { 1.0 } else { zipf_sum(kept, skew) / zipf_sum(all, skew) }
}

/// The plan.
pub fn plan(inputs: &Inputs, constants: &Constants) -> Plan {
    let get = |name: &str| inputs.get(name);
    let mut plan = Plan::new(inputs, "stoker");
    let per_token = 2.0 * get("layers") * get("kv_heads") * get("head_size") * get("number_size");
    let prefix = per_token * get("prefix_tokens");
    let (all, skew) = (get("prefixes"), get("skew"));
    let tiers = [get("device_size"), get("memory_size"), get("flash_size")];
    let mut kept = 0.0;
    let mut before = 0.0;
    let found: Vec<f64> = tiers
        .iter()
        .map(|size| {
            kept += size / prefix;
            let upto = hit_rate(kept, all, skew);
            let own = upto - before;
            before = upto;
            own
        })
        .collect();
    let hit = before;
    let flash_rate = get("drives") * constants.get("drive_read") * constants.get("read_efficiency");
    let from_memory = prefix / get("memory_rate");
    let from_flash =
        prefix / flash_rate + constants.get("drive_latency") * constants.get("read_latency_ratio");
    let anew = get("prefix_tokens") / get("prefill_rate");
    let mean = found[1] * from_memory + found[2] * from_flash.min(anew) + (1.0 - hit) * anew;
    let without = found[1] * from_memory + (1.0 - found[0] - found[1]) * anew;
    let goal = get("hit_target");
    let wanted = needed(goal, all, skew) * prefix;
    let lacks = (wanted - tiers.iter().sum::<f64>()).max(0.0);
    let tone = if hit >= goal {
        Tone::Ok
    } else if hit >= goal * 0.7 {
        Tone::Warn
    } else {
        Tone::Bad
    };
    plan.toned("hit", "Prefixes that are found", hit, "share", tone)
        .figure("hit_device", "in memory of GPUs", found[0], "share")
        .figure("hit_memory", "in memory of hosts", found[1], "share")
        .figure("hit_flash", "on drives", found[2], "share")
        .figure("prefix_size", "Bytes of a prefix", prefix, "B")
        .figure("working_set", "Bytes of all prefixes", prefix * all, "B")
        .figure("size_for_target", "Bytes that the target needs", wanted, "B")
        .figure("load_memory", "A prefix from memory", from_memory, "s")
        .figure("load_flash", "A prefix from drives", from_flash, "s")
        .figure("compute", "A prefix computed anew", anew, "s")
        .figure("mean", "Mean time until a prefix is there", mean, "s")
        .figure("mean_without_flash", "The same without drives", without, "s");
    plan.tone = tone;
    plan.title = match hit >= goal {
        true => {
            format!("{} of prefixes are found, {} on drives.", human(hit, "share"), human(found[2], "share"))
        }
        false => format!(
            "{} of prefixes are found; {} need {} more.",
            human(hit, "share"),
            human(goal, "share"),
            human(lacks, "B")
        ),
    };
    plan.reasons.push(match from_flash < anew {
        true => format!(
            "drives bring a prefix in {}, computing it takes {}: worth keeping",
            human(from_flash, "s"),
            human(anew, "s")
        ),
        false => format!(
            "computing a prefix takes {}, drives {}: more drives first, or keep it in memory alone",
            human(anew, "s"),
            human(from_flash, "s")
        ),
    });
    if lacks > 0.0 {
        let drives = get("drives");
        plan.reasons.push(format!("{} more on drives reach the target", human(lacks, "B")));
        plan.reasons.push(format!("{drives:.0} drives together are {}", human(flash_rate, "B/s")));
    }
    let x: Vec<f64> = (0..=24).map(|step| prefix * all * 2f64.powf(f64::from(step - 24) / 2.0)).collect();
    let y = x.iter().map(|size| hit_rate(size / prefix, all, skew)).collect();
    plan.curves.push(Curve {
        name: "hits",
        title: "Prefixes that are found by bytes of cache".into(),
        x_label: "bytes of all tiers",
        x_unit: "B",
        y_label: "found",
        y_unit: "share",
        x,
        lines: vec![Line { name: "found".into(), y }],
        mark: tiers.iter().sum(),
    });
    plan.uses(constants, &["drive_read", "read_efficiency", "drive_latency", "read_latency_ratio"]);
    plan.assumes(&[
        "uses of prefixes follow Zipf's law, and the most used ones are kept: a cache that admits on second use comes near to it",
        "a prefix is found as a whole or not at all",
    ]);
    plan
}

/// How many of the most used prefixes have a share of all uses.
fn needed(share: f64, all: f64, skew: f64) -> f64 {
    let (mut low, mut high) = (0.0, all);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if hit_rate(middle, all, skew) < share { low = middle } else { high = middle }
    }
    high
}
