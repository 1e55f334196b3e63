//! What a model takes: named inputs with units, ranges and defaults, and what is said about those that do not fit.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::value::Kind;

/// Why an input is not taken: which, what is wrong, what to write instead.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Misfit {
    /// The input.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
    /// What to write instead.
    pub hint: String,
}

impl Misfit {
    /// From its parts.
    pub fn new(field: &str, message: impl Into<String>, hint: &str) -> Misfit {
        Misfit { field: field.to_owned(), message: message.into(), hint: hint.to_owned() }
    }
}

/// One input of a model.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// As programs write it; the command line has dashes.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// If nothing is said.
    pub default: f64,
    /// Least value.
    pub min: f64,
    /// Greatest value.
    pub max: f64,
    /// What it is, for people.
    pub words: &'static str,
}

/// An input with its range.
pub const fn field(
    name: &'static str,
    kind: Kind,
    default: f64,
    range: (f64, f64),
    words: &'static str,
) -> Field {
    Field { name, kind, default, min: range.0, max: range.1, words }
}

/// An input that is one of some words.
pub const fn choice(
    name: &'static str,
    words: &'static [(&'static str, &'static str)],
    default: usize,
    what: &'static str,
) -> Field {
    let max = words.len() as f64 - 1.0;
    Field { name, kind: Kind::Choice(words), default: default as f64, min: 0.0, max, words: what }
}

/// The inputs of a model.
#[derive(Debug)]
pub struct Spec {
    /// Its name.
    pub name: &'static str,
    /// The kind of plan.
    pub kind: &'static str,
    /// What it answers.
    pub words: &'static str,
    /// Its inputs.
    pub fields: &'static [Field],
}

impl Spec {
    /// An input by its name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// For programs that draw a form.
    pub fn describe(&self) -> Value {
        let fields = self.fields.iter().map(|field| {
            let choices = match field.kind {
                Kind::Choice(words) => words
                    .iter()
                    .map(|(word, what)| json!({ "word": word, "words": what }))
                    .collect::<Vec<_>>(),
                _ => Vec::new(),
            };
            json!({
                "name": field.name,
                "kind": field.kind.name(),
                "default": field.default,
                "min": field.min,
                "max": field.max,
                "words": field.words,
                "choices": choices,
            })
        });
        json!({ "name": self.name, "kind": self.kind, "words": self.words, "fields": fields.collect::<Vec<_>>() })
    }

    fn unknown(&self, name: &str) -> Misfit {
        let shown: String = name.chars().take(40).flat_map(char::escape_default).collect();
        let hint = match nearest(name, self.fields.iter().map(|field| field.name)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                let known: Vec<&str> = self.fields.iter().map(|field| field.name).collect();
                format!("there are {}", known.join(", "))
            }
        };
        Misfit::new(&shown, format!("`{}` has no such input", self.name), &hint)
    }
}

/// The known word that is most like another, if one is.
pub fn nearest<'w>(text: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let text: Vec<char> = text.chars().take(40).collect();
    let distance = |word: &str| {
        let word: Vec<char> = word.chars().collect();
        let mut row: Vec<usize> = (0..=word.len()).collect();
        for (at, left) in text.iter().enumerate() {
            let mut before = row[0];
            row[0] = at + 1;
            for (place, right) in word.iter().enumerate() {
                let kept = row[place + 1];
                row[place + 1] = (before + usize::from(left != right)).min(row[place] + 1).min(kept + 1);
                before = kept;
            }
        }
        row[word.len()]
    };
    known
        .map(|word| (distance(word), word))
        .min()
        .filter(|(far, word)| *far <= word.len() / 3 + 1)
        .map(|(_, word)| word)
}

/// Values that fit a model.
#[derive(Clone, Debug)]
pub struct Inputs {
    spec: &'static Spec,
    values: Vec<f64>,
}

impl Inputs {
    /// All defaults.
    pub fn defaults(spec: &'static Spec) -> Inputs {
        Inputs { spec, values: spec.fields.iter().map(|field| field.default).collect() }
    }

    /// From names and texts, as the command line has them.
    pub fn from_texts<'t>(
        spec: &'static Spec,
        texts: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> Result<Inputs, Vec<Misfit>> {
        let (mut inputs, mut misfits) = (Inputs::defaults(spec), Vec::new());
        for (name, text) in texts {
            let Some(field) = spec.field(name) else {
                misfits.push(spec.unknown(name));
                continue;
            };
            match field.kind.parse(name, text).and_then(|value| checked(field, value)) {
                Ok(value) => inputs.put(name, value),
                Err(misfit) => misfits.push(misfit),
            }
        }
        if misfits.is_empty() { Ok(inputs) } else { Err(misfits) }
    }

    /// From an object: numbers in base units, or texts as the command line has them.
    pub fn from_json(spec: &'static Spec, object: &Map<String, Value>) -> Result<Inputs, Vec<Misfit>> {
        let (mut inputs, mut misfits) = (Inputs::defaults(spec), Vec::new());
        for (name, value) in object {
            let Some(field) = spec.field(name) else {
                misfits.push(spec.unknown(name));
                continue;
            };
            let read = match (value, field.kind) {
                (Value::String(text), kind) => kind.parse(name, text),
                (Value::Number(number), kind) if !matches!(kind, Kind::Choice(_)) => {
                    Ok(number.as_f64().unwrap_or(f64::NAN))
                }
                _ => {
                    let (what, example) = field.kind.words();
                    Err(Misfit::new(name, format!("it is {what}"), &format!("write it as {example}")))
                }
            };
            match read.and_then(|value| checked(field, value)) {
                Ok(value) => inputs.put(name, value),
                Err(misfit) => misfits.push(misfit),
            }
        }
        if misfits.is_empty() { Ok(inputs) } else { Err(misfits) }
    }

    /// Whose they are.
    pub fn spec(&self) -> &'static Spec {
        self.spec
    }

    fn at(&self, name: &str) -> usize {
        let at = self.spec.fields.iter().position(|field| field.name == name);
        at.unwrap_or_else(|| panic!("{} has no input `{name}`", self.spec.name))
    }

    /// A value by its name, which must be one of the model's.
    pub fn get(&self, name: &str) -> f64 {
        self.values[self.at(name)]
    }

    /// The word of a choice.
    pub fn word(&self, name: &str) -> &'static str {
        let at = self.at(name);
        match self.spec.fields[at].kind {
            Kind::Choice(words) => words.get(self.values[at] as usize).map_or("", |(word, _)| word),
            _ => "",
        }
    }

    /// Whether somebody changed it.
    pub fn is_default(&self, name: &str) -> bool {
        let at = self.at(name);
        self.values[at] == self.spec.fields[at].default
    }

    fn put(&mut self, name: &str, value: f64) {
        let at = self.at(name);
        self.values[at] = value;
    }

    /// The same with another value, moved into its range.
    #[must_use]
    pub fn with(&self, name: &str, value: f64) -> Inputs {
        let (mut other, at) = (self.clone(), self.at(name));
        let field = &self.spec.fields[at];
        other.values[at] = value.clamp(field.min, field.max);
        other
    }

    /// The same with another word.
    #[must_use]
    pub fn with_word(&self, name: &str, word: &str) -> Inputs {
        let at = self.at(name);
        match self.spec.fields[at].kind.parse(name, word) {
            Ok(value) => self.with(name, value),
            Err(misfit) => panic!("{}: {}", misfit.field, misfit.message),
        }
    }

    /// As an object: numbers in base units, choices as words.
    pub fn to_json(&self) -> Map<String, Value> {
        let pairs = self.spec.fields.iter().zip(&self.values);
        pairs.map(|(field, value)| (field.name.to_owned(), shown(field, *value))).collect()
    }

    /// The same without what nobody changed.
    pub fn changed(&self) -> Map<String, Value> {
        let pairs =
            self.spec.fields.iter().zip(&self.values).filter(|(field, value)| field.default != **value);
        pairs.map(|(field, value)| (field.name.to_owned(), shown(field, *value))).collect()
    }

    /// Names and texts for people.
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let pairs = self.spec.fields.iter().zip(&self.values);
        pairs.map(|(field, value)| (field.name, field.kind.show(*value))).collect()
    }
}

fn shown(field: &Field, value: f64) -> Value {
    match field.kind {
        Kind::Choice(_) => field.kind.show(value).into(),
        Kind::Count if value.abs() < 9e15 => (value as i64).into(),
        _ => value.into(),
    }
}

fn checked(field: &Field, value: f64) -> Result<f64, Misfit> {
    let (what, _) = field.kind.words();
    let range = format!("from {} to {}", field.kind.show(field.min), field.kind.show(field.max));
    if !value.is_finite() {
        return Err(Misfit::new(field.name, "it is no finite number", &format!("it is {what} {range}")));
    }
    if field.kind == Kind::Count && value.fract() != 0.0 {
        return Err(Misfit::new(
            field.name,
            format!("{value} is no whole number"),
            &format!("it is {range}"),
        ));
    }
    if (field.min..=field.max).contains(&value) {
        return Ok(value);
    }
    let shown = field.kind.show(value);
    let message = match field.kind {
        _ if value == 0.0 => format!("it cannot be zero; it is {range}"),
        _ if value < 0.0 => format!("{shown} is negative; it is {range}"),
        _ => format!("{shown} is out of range; it is {range}"),
    };
    // Who writes a plain number often means the usual unit, not the base unit.
    let slips: &[(f64, &str)] = match field.kind {
        Kind::Seconds => &[(1e-3, "ms"), (1e-6, "us")],
        Kind::Bytes => &[(1024.0, "KiB"), (1_048_576.0, "MiB"), (1_073_741_824.0, "GiB")],
        Kind::Rate => &[(1e9, "GB/s"), (1e6, "MB/s")],
        Kind::Share => &[(0.01, "%")],
        _ => &[],
    };
    let slip =
        slips.iter().find(|(factor, _)| (field.min..=field.max).contains(&(value * factor)) && value > 0.0);
    let hint = match slip {
        Some((_, unit)) => format!("did you mean {value}{unit}?"),
        None => format!("the default is {}", field.kind.show(field.default)),
    };
    Err(Misfit::new(field.name, message, &hint))
}
