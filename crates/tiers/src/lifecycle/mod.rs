//! Rules of a volume by which objects expire, as S3 has them: what they say, whether they make sense, and when an object is due. What is due of a
//! listing is decided by [`Scan`]. Nothing here reads a clock or knows a catalog. (D241)

mod check;
mod scan;

use serde::{Deserialize, Serialize};

pub use check::{Fault, FaultKind};
pub use scan::{Act, Decision, Line, Scan};

/// Most rules of a volume.
pub const RULES_MAX: usize = 1_000;
/// Longest name of a rule.
pub const ID_LEN_MAX: usize = 255;
/// Longest prefix.
pub const PREFIX_LEN_MAX: usize = 1_024;

/// A day, milliseconds.
pub const DAY_MS: u64 = 86_400_000;

/// The rules of a volume. A field that is not known fails: what narrows a rule is never overlooked.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lifecycle {
    /// In the order in which they were given.
    pub rules: Vec<Rule>,
}

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, which no other rule of the volume has.
    pub id: String,
    /// It is carried out.
    #[serde(rename = "on", default)]
    pub is_enabled: bool,
    /// What it is about.
    #[serde(default, skip_serializing_if = "is_default")]
    pub filter: Filter,
    /// What becomes of the present version.
    #[serde(default, skip_serializing_if = "is_default")]
    pub expiration: Option<Expiration>,
    /// What becomes of former versions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub former: Option<FormerExpiration>,
    /// Uploads that began so many days ago are aborted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub abort_days: Option<u32>,
}

/// How a filter was written down; all forms mean that everything in them holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Form {
    /// In `Filter`.
    #[default]
    #[serde(rename = "f")]
    Filter,
    /// In `And` of `Filter`.
    #[serde(rename = "a")]
    And,
    /// `Prefix` beside the actions, as S3 had it first.
    #[serde(rename = "p")]
    Prefix,
}

/// Which objects a rule is about: all of what is said must hold.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// How it was written down.
    #[serde(default, skip_serializing_if = "is_default")]
    pub form: Form,
    /// The key starts so.
    #[serde(default, skip_serializing_if = "is_default")]
    pub prefix: Option<String>,
    /// It has these tags.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tags: Vec<(String, String)>,
    /// It is longer than this.
    #[serde(rename = "over", default, skip_serializing_if = "is_default")]
    pub larger: Option<u64>,
    /// It is shorter than this.
    #[serde(rename = "under", default, skip_serializing_if = "is_default")]
    pub smaller: Option<u64>,
}

/// When a present version expires.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expiration {
    /// So many days after it was written.
    Days(u32),
    /// From this moment on, milliseconds since 1970.
    Date(u64),
    /// If it is a marker with no version behind it, and this is true.
    LoneMarker(bool),
}

/// When former versions expire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormerExpiration {
    /// So many days after another version came.
    pub days: u32,
    /// And only if so many former versions are newer.
    #[serde(default, skip_serializing_if = "is_default")]
    pub newer: u32,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How long a day is. A real one ends at midnight UTC, and what expires does so at the next one; one of a test just passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calendar {
    day_ms: u64,
}

impl Default for Calendar {
    fn default() -> Calendar {
        Calendar { day_ms: DAY_MS }
    }
}

impl Calendar {
    /// Days of this length; 0 is taken for 1.
    pub fn of(day_ms: u64) -> Calendar {
        Calendar { day_ms: day_ms.max(1) }
    }

    /// Milliseconds of a day.
    pub fn day_ms(&self) -> u64 {
        self.day_ms
    }

    /// When so many days have passed.
    pub fn due_ms(&self, since_ms: u64, days: u32) -> u64 {
        let at_ms = since_ms.saturating_add(u64::from(days).saturating_mul(self.day_ms));
        match self.day_ms {
            DAY_MS => at_ms.div_ceil(DAY_MS).saturating_mul(DAY_MS),
            _ => at_ms,
        }
    }
}

/// What is known of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object<'o> {
    /// Key.
    pub key: &'o [u8],
    /// Length.
    pub size: u64,
    /// When it was written, milliseconds since 1970.
    pub modified_ms: u64,
    /// Tags.
    pub tags: &'o [(String, String)],
}

impl Filter {
    /// Whether keys are all that it asks for: then it is about markers and uploads, too.
    pub fn is_of_keys(&self) -> bool {
        self.tags.is_empty() && self.larger.is_none() && self.smaller.is_none()
    }

    fn has_key(&self, key: &[u8]) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix.as_bytes()))
    }

    fn has(&self, object: &Object<'_>) -> bool {
        self.has_key(object.key)
            && self.tags.iter().all(|tag| object.tags.contains(tag))
            && self.larger.is_none_or(|larger| object.size > larger)
            && self.smaller.is_none_or(|smaller| object.size < smaller)
    }
}

impl Rule {
    /// When a present version expires by it; none if it does not.
    fn expires_ms(&self, object: &Object<'_>, calendar: Calendar) -> Option<u64> {
        let at_ms = match self.expiration? {
            Expiration::Days(days) => calendar.due_ms(object.modified_ms, days),
            Expiration::Date(at_ms) => at_ms,
            Expiration::LoneMarker(_) => return None,
        };
        self.filter.has(object).then_some(at_ms)
    }

    /// Whether a former version goes by it, however many are newer. `since_ms` is when the one after it came.
    pub fn removes(
        &self,
        object: &Object<'_>,
        is_marker: bool,
        since_ms: u64,
        (calendar, now_ms): (Calendar, u64),
    ) -> bool {
        // None is a former one before it came.
        let since_ms = since_ms.max(object.modified_ms);
        self.former.is_some_and(|former| calendar.due_ms(since_ms, former.days) <= now_ms)
            && self.filter.has(object)
            && (!is_marker || self.filter.is_of_keys())
    }

    /// When a marker with nothing behind it goes by it. `since_ms` is when it came.
    fn lone_marker_ms(&self, key: &[u8], since_ms: u64, calendar: Calendar) -> Option<u64> {
        let at_ms = match self.expiration? {
            Expiration::LoneMarker(goes) => goes.then_some(0)?,
            Expiration::Days(days) => calendar.due_ms(since_ms, days),
            Expiration::Date(at_ms) => at_ms,
        };
        (self.filter.is_of_keys() && self.filter.has_key(key)).then_some(at_ms)
    }
}

impl Lifecycle {
    fn enabled(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(|rule| rule.is_enabled)
    }

    /// The rule of this name, if it is carried out.
    pub fn rule(&self, id: &str) -> Option<&Rule> {
        self.enabled().find(|rule| rule.id == id)
    }

    /// Whether any rule is about objects, and not about uploads alone.
    pub fn has_objects(&self) -> bool {
        self.enabled().any(|rule| rule.expiration.is_some() || rule.former.is_some())
    }

    /// Whether any rule is about uploads.
    pub fn has_uploads(&self) -> bool {
        self.enabled().any(|rule| rule.abort_days.is_some())
    }

    /// What all keys start with that any rule is about.
    pub fn common_prefix(&self) -> Vec<u8> {
        let prefix = |rule: &Rule| rule.filter.prefix.clone().unwrap_or_default().into_bytes();
        let common = |one: Vec<u8>, other: Vec<u8>| {
            let len = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
            one[..len].to_vec()
        };
        self.enabled().map(prefix).reduce(common).unwrap_or_default()
    }

    /// When a present version expires, and by which rule: the one by which it does first.
    pub fn expires(&self, object: &Object<'_>, calendar: Calendar) -> Option<(u64, &Rule)> {
        let due = |rule| Some((Rule::expires_ms(rule, object, calendar)?, rule));
        self.enabled().filter_map(due).min_by_key(|(at_ms, _)| *at_ms)
    }

    /// The rule by which an upload is aborted now.
    pub fn aborts(&self, key: &[u8], begun_ms: u64, calendar: Calendar, now_ms: u64) -> Option<&Rule> {
        self.enabled().find(|rule| {
            rule.abort_days.is_some_and(|days| calendar.due_ms(begun_ms, days) <= now_ms)
                && rule.filter.is_of_keys()
                && rule.filter.has_key(key)
        })
    }
}
