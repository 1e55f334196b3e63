//! Inputs of plans as flags: made from the table of the model, so that there is one list of them.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::LazyLock;

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use serde_json::Value;
use stoker_planner::{Field, Inputs, KINDS, Kind, Misfit, Model, Spec, spec};

use super::{document, in_file, refused};
use crate::failure::Failure;

/// A kind of plan.
pub trait Which {
    /// Its name.
    const KIND: &'static str;
}

macro_rules! kinds {
    ($($name:ident $kind:literal),*) => {
        $(
            /// See [`Which`].
            pub struct $name;
            impl Which for $name {
                const KIND: &'static str = $kind;
            }
        )*
    };
}
kinds!(Io "io", Design "design", Sim "sim", Gravity "gravity", Kv "kv", Slo "slo");

/// What was given by flags.
pub struct Given<W> {
    texts: Vec<(&'static str, String)>,
    which: PhantomData<W>,
}

/// Inputs of both models of a kind, once each, with the models that have them.
fn fields(kind: &str) -> Vec<(&'static Field, &'static str)> {
    let (ours, lab) = (spec(kind, Model::Stoker), spec(kind, Model::Lab));
    let mut all: Vec<(&Field, &str)> = Vec::new();
    for spec in ours.iter() {
        all.extend(spec.fields.iter().map(|field| (field, "")));
    }
    for spec in lab.iter() {
        for field in spec.fields {
            match all.iter_mut().find(|(other, _)| other.name == field.name) {
                Some((_, models)) => *models = "both",
                None => all.push((field, "lab")),
            }
        }
    }
    all
}

/// Names as flags have them.
static FLAGS: LazyLock<BTreeMap<&'static str, String>> = LazyLock::new(|| {
    let all = KINDS.iter().flat_map(|kind| fields(kind));
    all.map(|(field, _)| (field.name, field.name.replace('_', "-"))).collect()
});

fn flag(field: &'static Field, models: &str) -> Arg {
    let long: &'static str = FLAGS.get(field.name).map_or(field.name, String::as_str);
    let mut words = field.words.to_owned();
    if let Kind::Choice(choices) = field.kind {
        let names: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        words = format!("{words}: {}", names.join(", "));
    }
    let words = match models {
        "lab" => format!("{words} [lab, default: {}]", field.kind.show(field.default)),
        "both" => format!("{words} [default: {}; the lab has its own]", field.kind.show(field.default)),
        _ => format!("{words} [default: {}]", field.kind.show(field.default)),
    };
    let value = match field.kind {
        Kind::Bytes => "SIZE",
        Kind::Rate => "RATE",
        Kind::Seconds => "TIME",
        Kind::Share => "SHARE",
        Kind::Choice(_) => "WORD",
        Kind::Money => "USD",
        _ => "N",
    };
    Arg::new(field.name)
        .long(long)
        .value_name(value)
        .help(words)
        .help_heading("Inputs")
        .allow_hyphen_values(true)
}

impl<W: Which> clap::Args for Given<W> {
    fn augment_args(command: Command) -> Command {
        fields(W::KIND).into_iter().fold(command, |command, (field, models)| command.arg(flag(field, models)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Given::<W>::augment_args(command)
    }
}

impl<W: Which> FromArgMatches for Given<W> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given<W>, clap::Error> {
        let texts = fields(W::KIND)
            .into_iter()
            .filter_map(|(field, _)| Some((field.name, matches.get_one::<String>(field.name)?.clone())));
        Ok(Given { texts: texts.collect(), which: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Given::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<W> Given<W> {
    /// Inputs of a model: defaults, then a file, then flags.
    pub fn inputs(&self, spec: &'static Spec, file: Option<&Path>) -> Result<Inputs, Failure> {
        let Some(path) = file else {
            let texts = self.texts.iter().map(|(name, text)| (*name, text.as_str()));
            return Inputs::from_texts(spec, texts).map_err(|misfits| refused(&misfits));
        };
        let read: Value = serde_json::from_str(&document(path)?)
            .map_err(|error| in_file(path, &[Misfit::new("input", format!("it is no JSON: {error}"), "")]))?;
        // A whole plan that was printed holds its inputs.
        let object = read.get("inputs").unwrap_or(&read).as_object().cloned();
        let mut object = object.ok_or_else(|| {
            in_file(path, &[Misfit::new("input", "it is no object", "such as {\"gpus\": 64, \"batch\": 32}")])
        })?;
        object.extend(self.texts.iter().map(|(name, text)| ((*name).to_owned(), Value::from(text.as_str()))));
        Inputs::from_json(spec, &object).map_err(|misfits| in_file(path, &misfits))
    }
}
