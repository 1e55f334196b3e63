//! The section `[slo]` of the configuration. Every setting has a default; a mistake is told with its line and column.
//!
//! The types are serde's, so that the configuration of `stoker serve` holds a [`Slo`] as it is; [`Slo::parse`] reads a text that has
//! nothing else that matters.

mod hook;

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use toml::Spanned;

use crate::fault::{Fault, Told};
use crate::objective::{Indicator, Objective, Threshold};
pub use hook::{HOST_LEN_MAX, Hook, HookKind, check_host};

/// Places that work orders go to.
const TARGETS_MAX: usize = 16;

/// The section `[slo]`.
#[derive(Clone, Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Slo {
    /// Anything is watched. Off, nothing is measured, decided or told.
    pub enabled: bool,
    /// Decisions are carried out. Off, they are recorded and told, and nobody is taken out.
    pub act: bool,
    /// How long a period is, of which each is good or bad.
    pub period_s: NonZeroU64,
    /// What is measured by the gate, times this, is what is enforced.
    pub baseline_factor: Spanned<f64>,
    /// Bad periods in a row after which less is asked of a part.
    pub mitigate_periods: NonZeroU32,
    /// Bad periods in a row after which it is quarantined.
    pub quarantine_periods: Spanned<NonZeroU32>,
    /// Good periods in a row after which it is sound again.
    pub recover_periods: NonZeroU32,
    /// What is older says nothing.
    pub stale_s: Spanned<NonZeroU64>,
    /// Losses wait this long for others, which tell whether there is one cause.
    pub settle_s: u64,
    /// How long the gate may take.
    pub gate_timeout_s: NonZeroU64,
    /// Endurance used, in percent, from which a drive is worn out.
    pub endurance_percent_max: u32,
    /// Times that a port or node may go and come in `flap_window_s`.
    pub flaps_max: NonZeroU32,
    /// See `flaps_max`.
    pub flap_window_s: NonZeroU64,
    /// How many may be out.
    pub quarantine: QuarantineLimits,
    /// When a part departs from its peers.
    pub anomaly: AnomalyLimits,
    /// What is wanted.
    pub objectives: Objectives,
    /// Where work orders go.
    pub target: Vec<Target>,
    /// How jobs are kept away from a node that is out; without one nobody is told.
    pub hook: Option<Hook>,
}

/// How many nodes may be out of placement by our decision.
#[derive(Clone, Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct QuarantineLimits {
    /// Of the nodes of a rack; one is always allowed.
    pub rack_percent_max: Spanned<u32>,
    /// From one quarantine in a rack to the next.
    pub rack_pause_s: u64,
    /// How long a decision of a person is not gone against.
    pub overruled_s: u64,
}

/// When a part departs from its peers.
#[derive(Clone, Deserialize, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct AnomalyLimits {
    /// The rule is used.
    pub enabled: bool,
    /// With fewer others nothing is said.
    pub peers_min: NonZeroU32,
    /// How far from the median, in deviations.
    pub deviations: Spanned<f64>,
    /// And how many times the median.
    pub ratio_min: Spanned<f64>,
}

/// What is wanted of each indicator that has a number.
#[derive(Clone, Deserialize, PartialEq, Debug, Default)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "see `Indicator`")]
pub struct Objectives {
    pub drive_read_p99: Latency,
    pub drive_write_p99: Latency,
    pub drive_errors: Share,
    pub read_p99: Latency,
    pub commit_p99: Latency,
    pub copy_errors: Share,
    pub drain_lag: Age,
}

macro_rules! wish {
    ($(#[doc = $doc:literal])+ $name:ident { $($threshold:ident)? }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Deserialize, PartialEq, Debug)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            /// It is looked at.
            pub enabled: bool,
            $(/// What counts as too long.
            pub $threshold: Limit,)?
            /// The share that has to be good.
            pub target: Spanned<f64>,
            /// Fewer than these say nothing.
            pub samples_min: NonZeroU64,
        }
    };
}

wish! {
    /// Of latencies.
    Latency { threshold }
}
wish! {
    /// Of counts.
    Share { }
}
wish! {
    /// Of an age.
    Age { threshold }
}

/// A time such as `"800us"`, `"1.5ms"`, `"300s"`, or `"auto"`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limit(pub Threshold);

/// Where work orders go.
#[derive(Clone, Deserialize, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// For people, and for the outbox; unique.
    pub name: Spanned<String>,
    /// In which form.
    pub format: Format,
    /// Where to; of Alertmanager and ServiceNow without the path.
    pub url: Spanned<String>,
    /// The file with the routing key of PagerDuty, or the bearer token of the others.
    #[serde(default)]
    pub token_file: Option<String>,
    /// The file with the secret that signs bodies.
    #[serde(default)]
    pub secret_file: Option<String>,
}

/// The form of a work order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Alertmanager, API v2.
    Alertmanager,
    /// PagerDuty, Events API v2.
    Pagerduty,
    /// ServiceNow, table API.
    Servicenow,
    /// Our own JSON.
    Webhook,
}

fn at<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

const fn some32(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).expect("a positive number")
}

const fn some64(value: u64) -> NonZeroU64 {
    NonZeroU64::new(value).expect("a positive number")
}

impl Default for Slo {
    fn default() -> Slo {
        Slo {
            enabled: true,
            act: true,
            period_s: some64(10),
            baseline_factor: at(1.5),
            mitigate_periods: some32(3),
            quarantine_periods: at(some32(30)),
            recover_periods: some32(18),
            stale_s: at(some64(60)),
            settle_s: 20,
            gate_timeout_s: some64(1_800),
            endurance_percent_max: 90,
            flaps_max: some32(3),
            flap_window_s: some64(600),
            quarantine: QuarantineLimits::default(),
            anomaly: AnomalyLimits::default(),
            objectives: Objectives::default(),
            target: Vec::new(),
            hook: None,
        }
    }
}

impl Default for QuarantineLimits {
    fn default() -> QuarantineLimits {
        QuarantineLimits { rack_percent_max: at(10), rack_pause_s: 900, overruled_s: 86_400 }
    }
}

impl Default for AnomalyLimits {
    fn default() -> AnomalyLimits {
        AnomalyLimits { enabled: true, peers_min: some32(4), deviations: at(6.0), ratio_min: at(2.0) }
    }
}

impl Default for Latency {
    fn default() -> Latency {
        Latency {
            enabled: true,
            threshold: Limit(Threshold::Auto),
            target: at(0.99),
            samples_min: some64(100),
        }
    }
}

impl Default for Share {
    fn default() -> Share {
        Share { enabled: true, target: at(0.999), samples_min: some64(10) }
    }
}

impl Default for Age {
    fn default() -> Age {
        let threshold = Limit(Threshold::Set(600_000_000));
        Age { enabled: true, threshold, target: at(0.99), samples_min: some64(1) }
    }
}

impl Slo {
    /// Reads the section `[slo]` of a text and checks it. Other sections are somebody else's.
    pub fn parse(text: &str) -> Result<Slo, Told> {
        #[derive(Deserialize)]
        struct File {
            #[serde(default)]
            slo: Slo,
        }
        let parsed = toml::from_str(text).map_err(Fault::from);
        let checked = parsed.and_then(|file: File| file.slo.check().map(|()| file.slo));
        checked.map_err(|fault| fault.told(text))
    }

    /// Refuses what is well written and cannot be.
    pub fn check(&self) -> Result<(), Fault> {
        let between = |value: &Spanned<f64>, low: f64, high: f64, words: &str| {
            let fits = (low..=high).contains(value.get_ref());
            if fits { Ok(()) } else { Err(Fault::at(value.span(), words)) }
        };
        between(
            &self.baseline_factor,
            1.0,
            100.0,
            "the factor is at least 1, or what the gate measured is a breach",
        )?;
        if *self.quarantine_periods.get_ref() <= self.mitigate_periods {
            let words = "quarantine comes after mitigation: more than `mitigate_periods`";
            return Err(Fault::at(self.quarantine_periods.span(), words));
        }
        if self.stale_s.get_ref().get() < 2 * self.period_s.get() {
            let words = "at least two periods, or nothing is ever bad in a row";
            return Err(Fault::at(self.stale_s.span(), words));
        }
        let percent = &self.quarantine.rack_percent_max;
        if *percent.get_ref() > 50 {
            return Err(Fault::at(
                percent.span(),
                "at most 50: half of a rack cannot be out by our decision",
            ));
        }
        between(&self.anomaly.deviations, 1.0, 1e6, "at least 1 deviation")?;
        between(&self.anomaly.ratio_min, 1.0, 1e6, "at least 1 times the median")?;
        for target in self.objectives.targets() {
            between(target, 0.5, 0.999_999_999, "a share from 0.5 to below 1, such as 0.99")?;
        }
        self.check_targets()?;
        self.hook.as_ref().map_or(Ok(()), Hook::check)
    }

    fn check_targets(&self) -> Result<(), Fault> {
        for (index, target) in self.target.iter().enumerate() {
            let (name, url) = (target.name.get_ref(), target.url.get_ref());
            if index >= TARGETS_MAX {
                let words = format!("at most {TARGETS_MAX} places that work orders go to");
                return Err(Fault::at(target.name.span(), words));
            }
            if name.is_empty() || name.len() > crate::part::NAME_LEN_MAX {
                return Err(Fault::at(target.name.span(), "a name for people, not empty and not too long"));
            }
            if self.target[..index].iter().any(|other| other.name.get_ref() == name) {
                return Err(Fault::at(target.name.span(), format!("there is a target `{name}` already")));
            }
            if !["https://", "http://"]
                .iter()
                .any(|scheme| url.starts_with(scheme) && url.len() > scheme.len())
            {
                return Err(Fault::at(target.url.span(), "an address such as https://alerts.example.com"));
            }
            if target.format == Format::Pagerduty && target.token_file.is_none() {
                return Err(Fault::at(
                    target.name.span(),
                    "PagerDuty needs a `token_file` with the routing key",
                ));
            }
        }
        Ok(())
    }

    /// What is wanted of an indicator; none if it has no numbers or is off.
    pub fn objective(&self, indicator: Indicator) -> Option<Objective> {
        let all = &self.objectives;
        let latency = |one: &Latency| Objective {
            enabled: one.enabled,
            threshold: one.threshold.0,
            target: *one.target.get_ref(),
            samples_min: one.samples_min.get(),
        };
        let share = |one: &Share| Objective {
            enabled: one.enabled,
            threshold: Threshold::Auto,
            target: *one.target.get_ref(),
            samples_min: one.samples_min.get(),
        };
        let objective = match indicator {
            Indicator::DriveReadP99 => latency(&all.drive_read_p99),
            Indicator::DriveWriteP99 => latency(&all.drive_write_p99),
            Indicator::ReadP99 => latency(&all.read_p99),
            Indicator::CommitP99 => latency(&all.commit_p99),
            Indicator::DriveErrors => share(&all.drive_errors),
            Indicator::CopyErrors => share(&all.copy_errors),
            Indicator::DrainLag => Objective {
                enabled: all.drain_lag.enabled,
                threshold: all.drain_lag.threshold.0,
                target: *all.drain_lag.target.get_ref(),
                samples_min: all.drain_lag.samples_min.get(),
            },
            Indicator::Smart
            | Indicator::Endurance
            | Indicator::Flaps
            | Indicator::Link
            | Indicator::Together => {
                return None;
            }
        };
        objective.enabled.then_some(objective)
    }

    pub(crate) fn period_ms(&self) -> u64 {
        self.period_s.get().saturating_mul(1_000)
    }

    pub(crate) fn stale_ms(&self) -> u64 {
        self.stale_s.get_ref().get().saturating_mul(1_000)
    }

    pub(crate) fn factor(&self) -> f64 {
        *self.baseline_factor.get_ref()
    }
}

impl Objectives {
    fn targets(&self) -> [&Spanned<f64>; 7] {
        [
            &self.drive_read_p99.target,
            &self.drive_write_p99.target,
            &self.drive_errors.target,
            &self.read_p99.target,
            &self.commit_p99.target,
            &self.copy_errors.target,
            &self.drain_lag.target,
        ]
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
        struct LimitVisitor;
        impl Visitor<'_> for LimitVisitor {
            type Value = Limit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a time, such as \"800us\", \"1.5ms\" or \"300s\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Limit, E> {
                let limit =
                    if text == "auto" { Some(Threshold::Auto) } else { time_us(text).map(Threshold::Set) };
                limit.map(Limit).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(LimitVisitor)
    }
}

/// Microseconds of a number with a unit.
fn time_us(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let unit_us = match unit.trim_start() {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "min" => 60e6,
        "h" => 3_600e6,
        _ => return None,
    };
    let us = number.parse::<f64>().ok()? * unit_us;
    (1.0..=1e15).contains(&us).then_some(us as u64)
}

#[cfg(test)]
mod tests;
