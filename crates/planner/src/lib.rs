//! The planner: what to buy, what to expect, and whether it came true.
//!
//! A [`Spec`] names the inputs of a model with their units, ranges and defaults; [`Inputs`] are values that fit it. [`plan`] turns them,
//! with [`Constants`] that a [`Calibration`] may replace, into a [`Plan`]: figures, a verdict with reasons, changes that would help,
//! curves, and what was assumed. [`sim`] plays days of a cluster from a seed. [`lab`] is the model of the I/O lab, number for number; the others are ours. [`slow`] goes the other way, from
//! what a run measured to its cause. [`Ledger`] keeps predictions beside what came of them; [`report`] writes a page.
//!
//! Everything is a function of its arguments, so the command line, the API and the console show the same numbers.
//!
//! It must not do I/O, read a clock, or know a cluster's internals: what was measured comes as plain types of the door.

#![forbid(unsafe_code)]

mod calibration;
mod constants;
pub mod design;
pub mod gravity;
pub mod io;
pub mod kv;
pub mod lab;
pub mod ledger;
mod plan;
pub mod report;
pub mod sim;
pub mod slo;
pub mod slow;
mod spec;
mod value;
pub mod what_if;

pub use calibration::{Calibration, Measured};
pub use constants::{CONSTANTS, Constant, Constants};
pub use ledger::Ledger;
pub use plan::{Change, ConstantShown, Curve, Figure, Line, Plan, Tone};
pub use spec::{Field, Inputs, Misfit, Spec};
pub use value::{Kind, human};

/// The form of documents that this release writes and reads: plans, calibrations, ledgers.
pub const FORM: u32 = 1;

/// Whose model is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// That of the I/O lab, with its constants.
    Lab,
    /// Ours.
    Stoker,
}

impl Model {
    /// As people write it.
    pub fn word(self) -> &'static str {
        match self {
            Model::Lab => "lab",
            Model::Stoker => "stoker",
        }
    }

    /// By its word.
    pub fn parse(text: &str) -> Result<Model, Misfit> {
        match text {
            "lab" => Ok(Model::Lab),
            "stoker" => Ok(Model::Stoker),
            other => {
                Err(Misfit::new("model", format!("there is no model `{other}`"), "use `stoker` or `lab`"))
            }
        }
    }
}

/// Every kind of plan, as people write it.
pub const KINDS: [&str; 6] = ["io", "design", "sim", "gravity", "kv", "slo"];

/// What a plan of a kind is made from.
pub fn spec(kind: &str, model: Model) -> Result<&'static Spec, Misfit> {
    Ok(match (kind, model) {
        ("io", Model::Stoker) => &io::SPEC,
        ("io", Model::Lab) => &lab::IO,
        ("design", Model::Stoker) => &design::SPEC,
        ("design", Model::Lab) => &lab::DESIGN,
        ("gravity", Model::Stoker) => &gravity::SPEC,
        ("gravity", Model::Lab) => &lab::GRAVITY,
        ("kv", Model::Stoker) => &kv::SPEC,
        ("slo", Model::Stoker) => &slo::SPEC,
        ("sim", Model::Stoker) => &sim::SPEC,
        ("kv" | "slo" | "sim", Model::Lab) => {
            let hint = "the lab has io, design and gravity; leave `model` out for ours";
            return Err(Misfit::new("model", format!("the lab has no model of `{kind}`"), hint));
        }
        _ => {
            let hint = format!("there are {}", KINDS.join(", "));
            return Err(Misfit::new("kind", format!("there is no plan `{kind}`"), &hint));
        }
    })
}

/// Makes a plan.
pub fn plan(inputs: &Inputs, constants: &Constants) -> Plan {
    match inputs.spec().name {
        "lab-io" => lab::plan_io(inputs),
        "lab-design" => lab::plan_design(inputs),
        "lab-gravity" => lab::plan_gravity(inputs),
        "design" => design::plan(inputs, constants),
        "gravity" => gravity::plan(inputs, constants),
        "kv" => kv::plan(inputs, constants),
        "slo" => slo::plan(inputs, constants),
        "sim" => sim::plan(inputs, constants),
        _ => io::plan(inputs, constants),
    }
}

#[cfg(test)]
mod tests;
