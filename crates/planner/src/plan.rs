//! What a model says: figures, a verdict with reasons, changes that would help, curves, assumptions.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::FORM;
use crate::constants::Constants;
use crate::spec::Inputs;
use crate::value::human;

/// How good something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    /// As it should be.
    Ok,
    /// Wants an eye on it.
    Warn,
    /// Does not work.
    Bad,
    /// Neither good nor bad.
    Plain,
}

/// One number.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    /// For programs.
    pub name: &'static str,
    /// For people.
    pub label: &'static str,
    /// In base units; none if it is infinite.
    pub value: f64,
    /// `share`, `B`, `B/s`, `s`, `usd` or another word.
    pub unit: &'static str,
    /// As people read it.
    pub text: String,
    /// How good it is.
    pub tone: Tone,
}

/// Something that could be changed, and what would come of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Change {
    /// What.
    pub what: String,
    /// The figure that it moves.
    pub figure: &'static str,
    /// Now.
    pub before: f64,
    /// Then.
    pub after: f64,
    /// Both, as people read them.
    pub text: String,
}

/// A line of a curve.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Line {
    /// What it is.
    pub name: String,
    /// One value for each x.
    pub y: Vec<f64>,
}

/// How something depends on something else.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Curve {
    /// For programs.
    pub name: &'static str,
    /// For people.
    pub title: String,
    /// What is on the axis to the right.
    pub x_label: &'static str,
    /// Its unit.
    pub x_unit: &'static str,
    /// What is on the axis upwards.
    pub y_label: &'static str,
    /// Its unit.
    pub y_unit: &'static str,
    /// Places on the axis to the right.
    pub x: Vec<f64>,
    /// The lines.
    pub lines: Vec<Line>,
    /// Where the inputs are.
    pub mark: f64,
}

/// A constant of a model, beside what was measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ConstantShown {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub words: &'static str,
    /// What is assumed if nobody measured.
    pub assumed: f64,
    /// What was measured.
    pub measured: Option<f64>,
    /// Where it comes from.
    pub from: String,
    /// Its unit.
    pub unit: &'static str,
    /// The one that counts, as people read it.
    pub text: String,
}

/// What a model says.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Plan {
    /// The form of this document.
    pub form: u32,
    /// Which plan.
    pub kind: &'static str,
    /// Whose model.
    pub model: &'static str,
    /// Every input, in base units.
    pub inputs: Map<String, Value>,
    /// The same for people.
    pub input_texts: Vec<(&'static str, String)>,
    /// The verdict in one line.
    pub title: String,
    /// How good that is.
    pub tone: Tone,
    /// Why.
    pub reasons: Vec<String>,
    /// The numbers, the most important first.
    pub figures: Vec<Figure>,
    /// What would help, the best first.
    pub changes: Vec<Change>,
    /// What depends on what.
    pub curves: Vec<Curve>,
    /// Constants that were used.
    pub constants: Vec<ConstantShown>,
    /// What was taken for granted.
    pub assumptions: Vec<String>,
}

impl Plan {
    /// An empty one.
    pub fn new(inputs: &Inputs, model: &'static str) -> Plan {
        Plan {
            form: FORM,
            kind: inputs.spec().kind,
            model,
            inputs: inputs.to_json(),
            input_texts: inputs.texts(),
            title: String::new(),
            tone: Tone::Plain,
            reasons: Vec::new(),
            figures: Vec::new(),
            changes: Vec::new(),
            curves: Vec::new(),
            constants: Vec::new(),
            assumptions: Vec::new(),
        }
    }

    /// Adds a figure.
    pub fn figure(
        &mut self,
        name: &'static str,
        label: &'static str,
        value: f64,
        unit: &'static str,
    ) -> &mut Plan {
        self.toned(name, label, value, unit, Tone::Plain)
    }

    /// Adds a figure that is good or bad.
    pub fn toned(
        &mut self,
        name: &'static str,
        label: &'static str,
        value: f64,
        unit: &'static str,
        tone: Tone,
    ) -> &mut Plan {
        self.figures.push(Figure { name, label, value, unit, text: human(value, unit), tone });
        self
    }

    /// Adds constants by their names.
    pub fn uses(&mut self, constants: &Constants, names: &[&str]) {
        self.constants.extend(names.iter().map(|name| constants.show(name)));
    }

    /// The value of a figure.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    /// Adds assumptions.
    pub fn assumes(&mut self, words: &[&str]) {
        self.assumptions.extend(words.iter().map(|words| (*words).to_owned()));
    }
}
