//! Values with units: how people write them, how they are shown.

use crate::spec::Misfit;

/// What a value is. Sizes are bytes, rates bytes per second, times seconds, shares parts of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A whole number.
    Count,
    /// Any number.
    Number,
    /// A part of one; `40%` is 0.4.
    Share,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    Rate,
    /// Seconds.
    Seconds,
    /// US dollars.
    Money,
    /// One of these words, with what each means. The value is its place.
    Choice(&'static [(&'static str, &'static str)]),
}

const SIZES: [(&str, f64); 15] = [
    ("b", 1.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("pb", 1e15),
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("tib", 1_099_511_627_776.0),
    ("pib", 1_125_899_906_842_624.0),
    ("k", 1024.0),
    ("m", 1_048_576.0),
    ("g", 1_073_741_824.0),
    ("t", 1_099_511_627_776.0),
];
const BITS: [(&str, f64); 6] = [
    ("gbps", 1.25e8),
    ("mbps", 1.25e5),
    ("tbps", 1.25e11),
    ("gbit/s", 1.25e8),
    ("mbit/s", 1.25e5),
    ("tbit/s", 1.25e11),
];
const TIMES: [(&str, f64); 12] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
    ("w", 604_800.0),
    ("y", 31_557_600.0),
    ("years", 31_557_600.0),
];
const COUNTS: [(&str, f64); 3] = [("k", 1e3), ("million", 1e6), ("billion", 1e9)];

/// The factor of a unit for a kind.
fn factor(kind: Kind, unit: &str) -> Option<f64> {
    let of = |table: &[(&str, f64)]| table.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    match kind {
        Kind::Bytes => of(&SIZES),
        Kind::Rate => unit.strip_suffix("/s").and_then(of_size).or_else(|| of(&BITS)),
        Kind::Seconds => of(&TIMES),
        Kind::Share => (unit == "%").then_some(0.01),
        Kind::Count | Kind::Number => of(&COUNTS),
        Kind::Money => of(&COUNTS).or((unit == "usd").then_some(1.0)),
        Kind::Choice(_) => None,
    }
}

fn of_size(unit: &str) -> Option<f64> {
    SIZES.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor)
}

impl Kind {
    /// What it is, and an example.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Kind::Count => ("a whole number", "128"),
            Kind::Number => ("a number", "1.5"),
            Kind::Share => ("a share", "40% or 0.4"),
            Kind::Bytes => ("a size", "4MiB"),
            Kind::Rate => ("a rate", "7GB/s or 400Gbit/s"),
            Kind::Seconds => ("a time", "50ms or 2h"),
            Kind::Money => ("an amount in dollars", "3.50"),
            Kind::Choice(_) => ("a word", ""),
        }
    }

    /// For programs that draw a form.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Count => "count",
            Kind::Number => "number",
            Kind::Share => "share",
            Kind::Bytes => "bytes",
            Kind::Rate => "bytes_per_s",
            Kind::Seconds => "s",
            Kind::Money => "usd",
            Kind::Choice(_) => "choice",
        }
    }

    /// Reads what somebody wrote for the input `field`. Ranges are not checked here.
    pub fn parse(self, field: &str, text: &str) -> Result<f64, Misfit> {
        let text = text.trim();
        if let Kind::Choice(words) = self {
            return match words.iter().position(|(word, _)| *word == text) {
                Some(at) => Ok(at as f64),
                None => {
                    let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                    let hint = match crate::spec::nearest(text, known.iter().copied()) {
                        Some(near) => format!("did you mean `{near}`? There are {}", known.join(", ")),
                        None => format!("there are {}", known.join(", ")),
                    };
                    Err(Misfit::new(field, format!("`{}` is not known", clip(text)), &hint))
                }
            };
        }
        let plain = text.strip_prefix('$').filter(|_| self == Kind::Money).unwrap_or(text);
        let end = plain
            .char_indices()
            .find(|(at, c)| {
                !(c.is_ascii_digit() || *c == '.' || *c == '_' || (*at == 0 && "+-".contains(*c)))
            })
            .map_or(plain.len(), |(at, _)| at);
        // `1e9` is a number, `1e` is not.
        let (number, unit) = match plain[end..].strip_prefix(['e', 'E']) {
            Some(power) if power.trim_start_matches(['+', '-']).chars().all(|c| c.is_ascii_digit()) => {
                (plain, "")
            }
            _ => (&plain[..end], plain[end..].trim()),
        };
        let (what, example) = self.words();
        let number: f64 = number.replace('_', "").parse().map_err(|_| {
            Misfit::new(
                field,
                format!("`{}` is no number", clip(text)),
                &format!("it is {what}, such as {example}"),
            )
        })?;
        let unit = unit.to_lowercase();
        if unit.is_empty() {
            return Ok(number);
        }
        if let Some(factor) = factor(self, &unit) {
            return Ok(number * factor);
        }
        let others = [Kind::Bytes, Kind::Rate, Kind::Seconds, Kind::Share];
        let message = match others.into_iter().find(|kind| factor(*kind, &unit).is_some()) {
            Some(other) => format!("`{}` is {}; `{field}` is {what}", clip(text), other.words().0),
            None => format!("`{}` is no unit that is known", clip(&unit)),
        };
        Err(Misfit::new(field, message, &format!("write it as {example}")))
    }

    /// A value as people read it.
    pub fn show(self, value: f64) -> String {
        match self {
            Kind::Count => human(value, ""),
            Kind::Number => human(value, ""),
            Kind::Share => human(value, "share"),
            Kind::Bytes => human(value, "B"),
            Kind::Rate => human(value, "B/s"),
            Kind::Seconds => human(value, "s"),
            Kind::Money => human(value, "usd"),
            Kind::Choice(words) => {
                words.get(value as usize).map_or_else(String::new, |(word, _)| (*word).to_owned())
            }
        }
    }
}

fn clip(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_default).collect()
}

fn digits(value: f64) -> String {
    let size = value.abs();
    let text = if size >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn grouped(value: f64) -> String {
    let text = format!("{value:.0}");
    let (sign, text) = text.strip_prefix('-').map_or(("", text.as_str()), |rest| ("-", rest));
    let mut out = String::new();
    for (at, digit) in text.chars().enumerate() {
        if at > 0 && (text.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    format!("{sign}{out}")
}

fn scaled(value: f64, step: f64, names: &[&str]) -> String {
    let (mut value, mut at) = (value, 0);
    while value.abs() >= step && at + 1 < names.len() {
        value /= step;
        at += 1;
    }
    format!("{} {}", digits(value), names[at])
}

/// A figure with its unit, as people read it: `share`, `B`, `B/s`, `s`, `usd`, `/s`, or any other word.
pub fn human(value: f64, unit: &str) -> String {
    if !value.is_finite() {
        return if value == f64::INFINITY { "never".into() } else { "-".into() };
    }
    match unit {
        "share" => {
            let percent = value * 100.0;
            let small = percent != 0.0 && percent.abs() < 0.01;
            if small { format!("{percent:.1e} %") } else { format!("{} %", digits(percent)) }
        }
        "B" => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]),
        "B/s" => scaled(value, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"]),
        "s" => seconds(value),
        "usd" if value.abs() >= 1000.0 => format!("${}", grouped(value)),
        "usd" => format!("${value:.2}"),
        "" | "count" if value.abs() >= 1000.0 => grouped(value),
        "" | "count" => digits(value),
        unit if value.abs() >= 1000.0 => format!("{} {unit}", grouped(value)),
        unit => format!("{} {unit}", digits(value)),
    }
}

fn seconds(value: f64) -> String {
    let size = value.abs();
    let (factor, unit) = match size {
        _ if size == 0.0 => (1.0, "s"),
        _ if size < 1e-3 => (1e6, "µs"),
        _ if size < 1.0 => (1e3, "ms"),
        _ if size < 120.0 => (1.0, "s"),
        _ if size < 7200.0 => (1.0 / 60.0, "min"),
        _ if size < 172_800.0 => (1.0 / 3600.0, "h"),
        _ if size < 63_115_200.0 => (1.0 / 86_400.0, "d"),
        _ => (1.0 / 31_557_600.0, "years"),
    };
    format!("{} {unit}", digits(value * factor))
}
