//! Data gravity: bring the data to the GPUs, or the job to the data.

use crate::constants::Constants;
use crate::plan::{Curve, Line, Plan, Tone};
use crate::spec::{Inputs, Spec, field};
use crate::value::{Kind, human};

/// What it takes.
pub static SPEC: Spec = Spec {
    name: "gravity",
    kind: "gravity",
    words: "move the data or the job: time, egress, and after how many runs the move has paid",
    fields: &[
        field("data_size", Kind::Bytes, 1e14, (1.0, 1e19), "bytes of the dataset"),
        field("link_rate", Kind::Rate, 12.5e9, (1e3, 1e14), "rate of the way between the two places"),
        field("link_share", Kind::Share, 0.8, (0.001, 1.0), "share of it that the move gets"),
        field(
            "egress",
            Kind::Money,
            0.09,
            (0.0, 100.0),
            "dollars for 10^9 bytes that leave the place where the data is",
        ),
        field("gpus", Kind::Count, 512.0, (1.0, 1e7), "GPUs of the job"),
        field("hours", Kind::Number, 24.0, (0.001, 1e6), "hours of one run"),
        field(
            "gpu_hour_here",
            Kind::Money,
            3.0,
            (0.0, 10_000.0),
            "dollars for a GPU for an hour where the GPUs are",
        ),
        field("gpu_hour_there", Kind::Money, 3.5, (0.0, 10_000.0), "the same where the data is"),
        field("runs", Kind::Count, 4.0, (1.0, 1e6), "runs over the same data"),
        field("epochs", Kind::Number, 1.0, (0.001, 1e6), "times that a run reads all of it"),
        field(
            "kept",
            Kind::Share,
            1.0,
            (0.0, 1.0),
            "share of the data that stays on drives here after it came once",
        ),
        field("changed", Kind::Share, 0.0, (0.0, 1.0), "share of the data that is new in each further run"),
    ],
};

/// Bytes that cross in the first run and in each further one.
fn crossing(inputs: &Inputs) -> (f64, f64) {
    let (size, epochs, kept) = (inputs.get("data_size"), inputs.get("epochs"), inputs.get("kept"));
    // What is not kept comes again in every epoch.
    let again = size * (1.0 - kept) * epochs;
    (size * kept + again, size * kept * inputs.get("changed") + again)
}

/// Dollars of so many runs with the data brought here, and with the job there.
fn dollars(inputs: &Inputs, runs: f64) -> (f64, f64) {
    let (first, further) = crossing(inputs);
    let egress = (first + further * (runs - 1.0).max(0.0)) / 1e9 * inputs.get("egress");
    let hours = inputs.get("gpus") * inputs.get("hours") * runs;
    (egress + hours * inputs.get("gpu_hour_here"), hours * inputs.get("gpu_hour_there"))
}

/// The plan.
pub fn plan(inputs: &Inputs, _: &Constants) -> Plan {
    let mut plan = Plan::new(inputs, "stoker");
    let rate = inputs.get("link_rate") * inputs.get("link_share");
    let (first, further) = crossing(inputs);
    let transfer = first / rate;
    let (here, there) = dollars(inputs, inputs.get("runs"));
    let run_s = inputs.get("hours") * 3600.0;
    let saved = inputs.get("gpus")
        * inputs.get("hours")
        * (inputs.get("gpu_hour_there") - inputs.get("gpu_hour_here"));
    let each = saved - further / 1e9 * inputs.get("egress");
    let first_cost = (first - further) / 1e9 * inputs.get("egress");
    let break_even = match (first_cost <= 0.0, each > 0.0) {
        (true, _) if each >= 0.0 => 1.0,
        (_, true) => (first_cost / each).ceil().max(1.0),
        _ => f64::INFINITY,
    };
    // While a run goes on, a part of the data may still be coming; a job waits only for what comes too slowly.
    let staged_s = (transfer - run_s).max(0.0);
    plan.figure("transfer", "Time of the first move", transfer, "s")
        .figure("wait", "Of it longer than a run, so that GPUs wait", staged_s, "s")
        .figure("egress_first", "Egress of the first run", first / 1e9 * inputs.get("egress"), "usd")
        .figure("egress_further", "Egress of each further run", further / 1e9 * inputs.get("egress"), "usd")
        .figure("cost_move_data", "All runs, with the data brought here", here, "usd")
        .figure("cost_move_job", "All runs, with the job there", there, "usd")
        .figure("break_even", "Runs until the move has paid", break_even, "runs");
    let is_here = here <= there;
    plan.tone = Tone::Ok;
    plan.title = if is_here {
        format!("Bring the data here: {} instead of {}.", human(here, "usd"), human(there, "usd"))
    } else {
        format!("Run where the data is: {} instead of {}.", human(there, "usd"), human(here, "usd"))
    };
    plan.reasons.push(format!(
        "the first move takes {} and {} of egress",
        human(transfer, "s"),
        human(first / 1e9 * inputs.get("egress"), "usd")
    ));
    plan.reasons.push(match break_even.is_finite() {
        true => format!("the move has paid after {}", human(break_even, "runs")),
        false => "GPUs here are not cheaper by what the data costs: the move never pays".to_owned(),
    });
    if staged_s > 0.0 {
        plan.tone = Tone::Warn;
        plan.reasons
            .push(format!("the way is slower than a run: start staging {} before", human(staged_s, "s")));
    }
    if inputs.get("kept") < 1.0 {
        plan.reasons.push("what does not stay on drives comes again in every epoch".to_owned());
    }
    let most = (inputs.get("runs") * 2.0).clamp(8.0, 200.0) as u32;
    let x: Vec<f64> = (1..=most).map(f64::from).collect();
    plan.curves.push(Curve {
        name: "cost",
        title: "Cost by runs over the same data".into(),
        x_label: "runs",
        x_unit: "",
        y_label: "dollars",
        y_unit: "usd",
        lines: vec![
            Line {
                name: "data brought here".into(),
                y: x.iter().map(|runs| dollars(inputs, *runs).0).collect(),
            },
            Line {
                name: "job where the data is".into(),
                y: x.iter().map(|runs| dollars(inputs, *runs).1).collect(),
            },
        ],
        x,
        mark: inputs.get("runs"),
    });
    plan.assumes(&[
        "prices are what is given; requests, storage of a second copy and people's time are not in them",
    ]);
    plan
}
