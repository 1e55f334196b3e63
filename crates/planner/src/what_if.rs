//! What if: the same inputs with one thing changed, and what it does to every figure that moves.

use serde::Serialize;

use crate::constants::Constants;
use crate::plan::Plan;
use crate::spec::{Inputs, Misfit, nearest};
use crate::value::human;

/// Things that can be changed, with what they do.
pub const CHANGES: &[(&str, &str)] = &[
    ("double-gpus", "twice the GPUs"),
    ("lose-node", "one node less, at the moment"),
    ("lose-rack", "an eighth of the nodes less, at least one"),
    ("class-one", "commit on one drive"),
    ("class-two", "commit on two drives"),
    ("class-three", "commit on three drives"),
    ("packed", "a packed and sealed dataset, shuffled in blocks"),
    ("single-samples", "a packed dataset, every sample on its own"),
    ("files", "a file for each sample"),
    ("halve-lake", "half the rate of the lake"),
    ("cold", "every read goes to the lake"),
    ("double-drives", "twice the drives of a node"),
    ("halve-rails", "half the rate of the storage ports"),
    ("double-workers", "twice the loader workers"),
];

/// A figure before and after.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Moved {
    /// The plan that it is of.
    pub kind: &'static str,
    /// Its name.
    pub name: &'static str,
    /// For people.
    pub label: &'static str,
    /// Before.
    pub before: f64,
    /// After.
    pub after: f64,
    /// Both, for people.
    pub text: String,
}

/// The inputs of a plan with a change made; none if it does not touch them.
pub fn changed(inputs: &Inputs, change: &str) -> Result<Option<Inputs>, Misfit> {
    if !CHANGES.iter().any(|(name, _)| *name == change) {
        let names = CHANGES.iter().map(|(name, _)| *name);
        let hint = match nearest(change, names.clone()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", names.collect::<Vec<_>>().join(", ")),
        };
        let shown: String = change.chars().take(40).flat_map(char::escape_default).collect();
        return Err(Misfit::new("change", format!("there is no change `{shown}`"), &hint));
    }
    let times = |name: &str, factor: f64| {
        let field = inputs.spec().field(name)?;
        let value = inputs.get(name) * factor;
        Some(inputs.with(name, if field.kind == crate::Kind::Count { value.round() } else { value }))
    };
    let word = |name: &str, word: &str| {
        inputs.spec().field(name)?;
        Some(inputs.with_word(name, word))
    };
    let fewer = |count: f64| {
        let nodes = inputs.spec().field("nodes").map(|_| inputs.get("nodes"))?;
        Some(inputs.with("nodes", nodes - count.min(nodes - 1.0)))
    };
    let kind = inputs.spec().kind;
    Ok(match change {
        "double-gpus" if kind == "io" => times("gpus", 2.0),
        "double-gpus" => times("gpus_per_node", 2.0),
        "lose-node" => fewer(1.0),
        "lose-rack" => inputs.spec().field("nodes").and_then(|_| fewer((inputs.get("nodes") / 8.0).ceil())),
        "class-one" => word("class", "one"),
        "class-two" => word("class", "two"),
        "class-three" => word("class", "three"),
        "packed" if kind == "io" => word("pattern", "blocks"),
        "packed" => word("dataset", "sealed"),
        "single-samples" => word("pattern", "samples"),
        "files" if kind == "io" => word("pattern", "files"),
        "files" => word("dataset", "files"),
        "halve-lake" => times("lake_rate", 0.5),
        "cold" => inputs.spec().field("cold").map(|_| inputs.with("cold", 1.0).with("cached", 0.0)),
        "double-drives" => times("drives", 2.0),
        "halve-rails" => times("rail_rate", 0.5),
        _ => times("workers", 2.0),
    })
}

/// What a change does to a plan: every figure that moves by more than a thousandth. None if the change does not touch it.
pub fn compare(
    inputs: &Inputs,
    constants: &Constants,
    change: &str,
) -> Result<Option<(Plan, Vec<Moved>)>, Misfit> {
    let Some(other) = changed(inputs, change)? else { return Ok(None) };
    let (before, after) = (crate::plan(inputs, constants), crate::plan(&other, constants));
    let moved = before.figures.iter().filter_map(|figure| {
        let value = after.value(figure.name)?;
        let is_same = value == figure.value || (value - figure.value).abs() <= 1e-3 * figure.value.abs();
        (!is_same).then(|| Moved {
            kind: before.kind,
            name: figure.name,
            label: figure.label,
            before: figure.value,
            after: value,
            text: format!("{} -> {}", figure.text, human(value, figure.unit)),
        })
    });
    let moved = moved.collect();
    Ok(Some((after, moved)))
}
