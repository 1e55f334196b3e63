//! Rules that say what becomes of files, in TOML.
//!
//! ```toml
//! [budget]
//! requests_per_s = 50
//!
//! [[rule]]
//! name = "old runs"
//! volumes = ["runs"]
//! when = ["prefix step-", "set older than the newest 5", "after 30 days without access"]
//! then = "delete"
//! ```
//!
//! A rule acts on a file if all of its conditions hold; of several such rules the first one acts, and no other. Whatever is wrong is told with its line and column.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

/// Longest text of rules.
pub const POLICY_BYTES_MAX: usize = 32 << 10;
/// Most rules.
pub const RULES_MAX: usize = 100;
/// Most conditions of a rule, and volumes.
const PARTS_MAX: usize = 32;

const DAY_MS: u64 = 86_400_000;

/// Rules, and how fast they may act.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The rules, in their order.
    pub rules: Vec<Rule>,
    /// How fast they may act.
    pub budget: Budget,
}

/// How fast rules may act. 0 is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Requests to lakes in a second.
    pub requests_per_s: u64,
    /// Bytes from and to lakes in a second.
    pub bytes_per_s: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { requests_per_s: 100, bytes_per_s: 0 }
    }
}

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// What it is called in reports.
    pub name: String,
    /// Volumes that it is about.
    pub volumes: Vec<String>,
    /// All of these hold.
    pub when: Vec<Condition>,
    /// What is done then.
    pub then: Action,
}

/// What must be so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Nobody read or wrote it for so long, milliseconds.
    Idle(u64),
    /// It was written so long ago, milliseconds.
    Older(u64),
    /// It is longer than this.
    Larger(u64),
    /// It is shorter than this.
    Smaller(u64),
    /// Its key starts so.
    Prefix(String),
    /// It has this tag.
    Tag(String, String),
    /// It belongs to this user id.
    Owner(u32),
    /// It is in a published checkpoint set, and so many newer ones are there.
    SetsBut(u32),
}

/// What is done with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Its bytes are brought onto drives.
    Stage,
    /// It leaves for the lake now.
    Drain,
    /// It is deleted.
    Delete,
}

impl Action {
    /// Its name in rules.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Stage => "stage",
            Action::Drain => "drain now",
            Action::Delete => "delete",
        }
    }
}

/// What is known of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Key.
    pub key: String,
    /// Length.
    pub size: u64,
    /// When it was written, milliseconds since 1970.
    pub modified_ms: u64,
    /// When somebody opened it, as far as that is known.
    pub accessed_ms: Option<u64>,
    /// It is in the lake.
    pub is_clean: bool,
    /// Bytes of it that are on drives of the node that looks.
    pub local_bytes: u64,
    /// Tags.
    pub tags: Vec<(String, String)>,
    /// User id of its owner.
    pub owner: Option<u32>,
    /// Published sets of its volume that are newer than the one that it is in.
    pub newer_sets: Option<u32>,
}

/// Why a text is no policy, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyError {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong, and what helps.
    pub message: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for PolicyError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    #[serde(default)]
    budget: BudgetForm,
    #[serde(default)]
    rule: Vec<Spanned<RuleForm>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct BudgetForm {
    requests_per_s: Option<u64>,
    bytes_per_s: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleForm {
    name: Spanned<String>,
    volumes: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    when: Vec<Spanned<String>>,
    then: Spanned<String>,
}

/// Where a byte of a text is.
fn at(text: &str, offset: usize, message: impl Into<String>) -> PolicyError {
    let mut end = offset.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = &text[..end];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    PolicyError { line, column, message: message.into() }
}

impl Policy {
    /// Reads rules.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        if text.len() > POLICY_BYTES_MAX {
            return Err(at(text, 0, format!("rules have at most {POLICY_BYTES_MAX} bytes")));
        }
        let form: Form = toml::from_str(text)
            .map_err(|fault| at(text, fault.span().map_or(0, |span| span.start), fault.message()))?;
        let mut budget = Budget::default();
        budget.requests_per_s = form.budget.requests_per_s.unwrap_or(budget.requests_per_s);
        if let Some(given) = &form.budget.bytes_per_s {
            let words = Words::of(given.get_ref());
            budget.bytes_per_s = size(&words.0.iter().map(|word| word.text).collect::<Vec<_>>())
                .ok_or_else(|| at(text, given.span().start, "`bytes_per_s` is a size such as \"100 MiB\""))?;
        }
        if form.rule.is_empty() {
            return Err(at(text, text.len(), "there is no [[rule]]"));
        }
        if form.rule.len() > RULES_MAX {
            return Err(at(text, form.rule[RULES_MAX].span().start, format!("at most {RULES_MAX} rules")));
        }
        let mut rules: Vec<Rule> = Vec::new();
        for form in &form.rule {
            let rule = rule(text, form.get_ref())?;
            let start = form.get_ref().name.span().start;
            if rules.iter().any(|other| other.name == rule.name) {
                return Err(at(text, start, format!("there are two rules `{}`", rule.name)));
            }
            for other in &rules {
                if let Some(why) = quarrel(other, &rule) {
                    return Err(at(text, start, why));
                }
            }
            rules.push(rule);
        }
        Ok(Policy { rules, budget })
    }

    /// The rule that acts on a file of a volume, if one does and there is something to do.
    pub fn decide(&self, volume: &str, facts: &Facts, now_ms: u64) -> Option<&Rule> {
        let acts = |rule: &&Rule| {
            rule.volumes.iter().any(|name| name == volume)
                && rule.when.iter().all(|condition| condition.holds(facts, now_ms))
        };
        self.rules.iter().find(acts).filter(|rule| match rule.then {
            Action::Stage => facts.is_clean && facts.local_bytes < facts.size,
            Action::Drain => !facts.is_clean,
            Action::Delete => true,
        })
    }

    /// Volumes that any rule is about.
    pub fn volumes(&self) -> Vec<String> {
        let mut all: Vec<String> = self.rules.iter().flat_map(|rule| rule.volumes.clone()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Whether any rule of a volume asks for sets.
    pub fn wants_sets(&self, volume: &str) -> bool {
        self.rules.iter().any(|rule| {
            rule.volumes.iter().any(|name| name == volume)
                && rule.when.iter().any(|condition| matches!(condition, Condition::SetsBut(_)))
        })
    }
}

impl Condition {
    /// Whether it holds for a file.
    pub fn holds(&self, facts: &Facts, now_ms: u64) -> bool {
        let before = |at_ms: u64, span_ms: u64| at_ms.saturating_add(span_ms) <= now_ms;
        match self {
            Condition::Idle(span_ms) => {
                before(facts.modified_ms.max(facts.accessed_ms.unwrap_or_default()), *span_ms)
            }
            Condition::Older(span_ms) => before(facts.modified_ms, *span_ms),
            Condition::Larger(size) => facts.size > *size,
            Condition::Smaller(size) => facts.size < *size,
            Condition::Prefix(prefix) => facts.key.starts_with(prefix.as_str()),
            Condition::Tag(name, value) => {
                facts.tags.iter().any(|(known, held)| known == name && held == value)
            }
            Condition::Owner(owner) => facts.owner == Some(*owner),
            Condition::SetsBut(newest) => facts.newer_sets.is_some_and(|newer| newer >= *newest),
        }
    }
}

/// Words of a text, with where they begin.
struct Word<'t> {
    text: &'t str,
    offset: usize,
}

struct Words<'t>(Vec<Word<'t>>);

impl<'t> Words<'t> {
    fn of(text: &'t str) -> Words<'t> {
        let words = text.split(' ').scan(0, |offset, word| {
            let at = *offset;
            *offset += word.len() + 1;
            Some(Word { text: word, offset: at })
        });
        Words(words.filter(|word| !word.text.is_empty()).collect())
    }
}

fn rule(text: &str, form: &RuleForm) -> Result<Rule, PolicyError> {
    let name = form.name.get_ref();
    if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
        return Err(at(text, form.name.span().start, "a rule has a name of 1 to 100 bytes"));
    }
    let volumes = form.volumes.get_ref();
    if volumes.is_empty() || volumes.len() > PARTS_MAX {
        return Err(at(text, form.volumes.span().start, format!("a rule names 1 to {PARTS_MAX} volumes")));
    }
    if form.when.len() > PARTS_MAX {
        return Err(at(text, form.when[PARTS_MAX].span().start, format!("at most {PARTS_MAX} conditions")));
    }
    let when = form.when.iter().map(|one| condition(text, one)).collect::<Result<Vec<_>, _>>()?;
    let then = match form.then.get_ref().as_str() {
        "stage" => Action::Stage,
        "drain now" => Action::Drain,
        "delete" => Action::Delete,
        other => {
            let message = format!("`{}` is no action: stage, drain now, delete", other.escape_debug());
            return Err(at(text, form.then.span().start, message));
        }
    };
    if then == Action::Delete && when.is_empty() {
        let message = "a rule that deletes says when; this one would delete everything";
        return Err(at(text, form.then.span().start, message));
    }
    let volumes = volumes.iter().map(|volume| volume.get_ref().clone()).collect();
    Ok(Rule { name: name.clone(), volumes, when, then })
}

const CONDITIONS: &str = "`after 30 days without access`, `older than 7 days`, `size over 1 GiB`, `size under 64 KiB`, `prefix runs/`, \
                          `tag keep=no`, `owner 1000`, `set older than the newest 5`";

fn condition(text: &str, given: &Spanned<String>) -> Result<Condition, PolicyError> {
    let words = Words::of(given.get_ref());
    let span: Range<usize> = given.span();
    // Behind the quotation mark; with escapes in the text the column is the one without them.
    let fault = |index: usize, message: String| {
        let offset = words.0.get(index).map_or(given.get_ref().len(), |word| word.offset);
        at(text, (span.start + 1 + offset).min(span.end), message)
    };
    let list: Vec<&str> = words.0.iter().map(|word| word.text).collect();
    match list.as_slice() {
        ["after", count, unit, "without", "access"] => {
            let span = span_ms(count, unit);
            span.map(Condition::Idle).ok_or_else(|| fault(1, "expected a span such as `30 days`".into()))
        }
        ["older", "than", count, unit] => {
            let span = span_ms(count, unit);
            span.map(Condition::Older).ok_or_else(|| fault(2, "expected a span such as `7 days`".into()))
        }
        ["size", "over", rest @ ..] if !rest.is_empty() => size(rest)
            .map(Condition::Larger)
            .ok_or_else(|| fault(2, "expected a size such as `1 GiB`".into())),
        ["size", "under", rest @ ..] if !rest.is_empty() => size(rest)
            .map(Condition::Smaller)
            .ok_or_else(|| fault(2, "expected a size such as `64 KiB`".into())),
        // Keys may hold spaces.
        ["prefix", _, ..] => Ok(Condition::Prefix(given.get_ref()[words.0[1].offset..].to_owned())),
        ["tag", _, ..] => {
            let tag = &given.get_ref()[words.0[1].offset..];
            let (name, value) =
                tag.split_once('=').ok_or_else(|| fault(1, "expected a tag such as `keep=no`".into()))?;
            Ok(Condition::Tag(name.to_owned(), value.to_owned()))
        }
        ["owner", owner] => owner
            .parse()
            .map(Condition::Owner)
            .map_err(|_| fault(1, "expected a user id such as `1000`".into())),
        ["set", "older", "than", "the", "newest", count] => match count.parse() {
            Ok(count) if count > 0 => Ok(Condition::SetsBut(count)),
            _ => Err(fault(5, "expected a number of sets, from 1".into())),
        },
        _ => Err(fault(0, format!("this is no condition; there are {CONDITIONS}"))),
    }
}

fn span_ms(count: &str, unit: &str) -> Option<u64> {
    let unit_ms = match unit {
        "second" | "seconds" => 1_000,
        "minute" | "minutes" => 60_000,
        "hour" | "hours" => 3_600_000,
        "day" | "days" => DAY_MS,
        _ => return None,
    };
    count.parse::<u64>().ok()?.checked_mul(unit_ms)
}

fn size(words: &[&str]) -> Option<u64> {
    let text = words.concat();
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match &text[end..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    text[..end].parse::<u64>().ok()?.checked_mul(unit)
}

/// Why two rules cannot stand beside each other: one would undo what the other did, or never act.
fn quarrel(first: &Rule, second: &Rule) -> Option<String> {
    if !first.volumes.iter().any(|volume| second.volumes.contains(volume)) {
        return None;
    }
    let covers = second.volumes.iter().all(|volume| first.volumes.contains(volume))
        && first.when.iter().all(|condition| second.when.iter().any(|other| implies(other, condition)));
    if covers {
        return Some(format!(
            "rule `{}` can never act, since `{}` above acts on all of its files; put it first, or narrow the other",
            second.name, first.name
        ));
    }
    let undoes = matches!(
        (first.then, second.then),
        (Action::Stage, Action::Delete) | (Action::Delete, Action::Stage)
    );
    (undoes && !excludes(&first.when, &second.when)).then(|| {
        format!(
            "rules `{}` and `{}` work against each other: a file may be brought onto drives by one and deleted by the other; let a condition \
             tell their files apart (prefix or size)",
            first.name, second.name
        )
    })
}

/// Whether a condition holds wherever another one does.
fn implies(one: &Condition, other: &Condition) -> bool {
    match (one, other) {
        (Condition::Idle(long), Condition::Idle(short) | Condition::Older(short)) => long >= short,
        (Condition::Older(long), Condition::Older(short)) => long >= short,
        (Condition::Larger(large), Condition::Larger(small)) => large >= small,
        (Condition::Smaller(small), Condition::Smaller(large)) => small <= large,
        (Condition::Prefix(long), Condition::Prefix(short)) => long.starts_with(short.as_str()),
        (Condition::SetsBut(many), Condition::SetsBut(few)) => many >= few,
        (one, other) => one == other,
    }
}

/// Whether no file can meet both.
fn excludes(first: &[Condition], second: &[Condition]) -> bool {
    let apart = |one: &Condition, other: &Condition| match (one, other) {
        (Condition::Prefix(one), Condition::Prefix(other)) => {
            !one.starts_with(other.as_str()) && !other.starts_with(one.as_str())
        }
        (Condition::Larger(floor), Condition::Smaller(ceiling))
        | (Condition::Smaller(ceiling), Condition::Larger(floor)) => floor.saturating_add(1) >= *ceiling,
        (Condition::Owner(one), Condition::Owner(other)) => one != other,
        (Condition::Tag(name, value), Condition::Tag(other, held)) => name == other && value != held,
        _ => false,
    };
    first.iter().any(|one| second.iter().any(|other| apart(one, other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[budget]
requests_per_s = 20
bytes_per_s = "100 MiB"

[[rule]]
name = "old sets"
volumes = ["runs"]
when = ["prefix step ", "set older than the newest 5", "after 30 days without access"]
then = "delete"

[[rule]]
name = "hot"
volumes = ["data", "more"]
when = ["size under 64 KiB", "tag keep=yes=1", "owner 7", "older than 2 hours", "size over 1KiB"]
then = "stage"
"#;

    #[test]
    fn rules_are_read_and_the_first_one_acts() {
        let policy = Policy::parse(GOOD).unwrap();
        assert_eq!(policy.budget, Budget { requests_per_s: 20, bytes_per_s: 100 << 20 });
        assert_eq!(
            policy.rules[0].when,
            [Condition::Prefix("step ".into()), Condition::SetsBut(5), Condition::Idle(30 * DAY_MS)]
        );
        assert_eq!(policy.volumes(), ["data", "more", "runs"]);
        assert!(policy.wants_sets("runs") && !policy.wants_sets("data"));
        let now_ms = 100 * DAY_MS;
        let old = Facts {
            key: "step 1/a".into(),
            modified_ms: DAY_MS,
            is_clean: true,
            newer_sets: Some(5),
            ..Facts::default()
        };
        let name = |facts: &Facts| policy.decide("runs", facts, now_ms).map(|rule| rule.name.as_str());
        assert_eq!(name(&old), Some("old sets"));
        assert_eq!(name(&Facts { newer_sets: Some(4), ..old.clone() }), None);
        assert_eq!(name(&Facts { newer_sets: None, ..old.clone() }), None);
        assert_eq!(name(&Facts { accessed_ms: Some(71 * DAY_MS), ..old.clone() }), None);
        assert_eq!(name(&Facts { key: "step".into(), ..old.clone() }), None);
        let hot = Facts {
            size: 2_000,
            tags: vec![("keep".into(), "yes=1".into())],
            owner: Some(7),
            is_clean: true,
            ..Facts::default()
        };
        assert_eq!(policy.decide("data", &hot, now_ms).map(|rule| rule.then), Some(Action::Stage));
        // There is nothing to do.
        assert_eq!(policy.decide("data", &Facts { local_bytes: 2_000, ..hot.clone() }, now_ms), None);
        assert_eq!(policy.decide("runs", &hot, now_ms), None);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let check = |text: &str, line: usize, column: usize, words: &str| {
            let fault = Policy::parse(text).unwrap_err();
            assert!(fault.message.contains(words), "{fault}");
            assert_eq!((fault.line, fault.column), (line, column), "{fault}");
        };
        let rule = |when: &str, then: &str| {
            format!("[[rule]]\nname = \"r\"\nvolumes = [\"v\"]\nwhen = [{when}]\nthen = \"{then}\"\n")
        };
        check("", 1, 1, "no [[rule]]");
        check("x = 1", 1, 1, "unknown field");
        check(&rule("\"after 3 weeks without access\"", "stage"), 4, 16, "span");
        check(&rule("\"prefix a\", \"size over much\"", "stage"), 4, 32, "size");
        check(&rule("\"sometimes\"", "stage"), 4, 10, "no condition");
        check(&rule("\"set older than the newest 0\"", "stage"), 4, 36, "from 1");
        check(&rule("\"tag x\"", "stage"), 4, 14, "tag");
        check(&rule("\"owner me\"", "stage"), 4, 16, "user id");
        check(&rule("\"prefix a\"", "explode"), 5, 8, "no action");
        check(&rule("", "delete"), 5, 8, "everything");
        check("[budget]\nbytes_per_s = \"fast\"\n", 2, 15, "bytes_per_s");
        check("[[rule]]\nname = \"a\"\nvolumes = []\nthen = \"stage\"", 3, 11, "volumes");
        assert!(Policy::parse(&"#".repeat(POLICY_BYTES_MAX + 1)).is_err());
        for text in ["\u{0}", "[[rule", "[[rule]]\nwhen=1", "rule = 7", "\"", "=\u{1F600}"] {
            assert!(Policy::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn rules_that_undo_each_other_are_found() {
        let two = |first: (&str, &str), second: (&str, &str)| {
            let rule = |name: &str, (when, then): (&str, &str)| {
                format!(
                    "[[rule]]\nname = \"{name}\"\nvolumes = [\"v\"]\nwhen = [{when}]\nthen = \"{then}\"\n"
                )
            };
            Policy::parse(&format!("{}{}", rule("one", first), rule("two", second)))
        };
        let against = two(("\"prefix a/\"", "stage"), ("\"older than 1 day\"", "delete")).unwrap_err();
        assert!(against.message.contains("against each other") && against.line == 7, "{against}");
        assert!(two(("\"prefix a/\"", "stage"), ("\"prefix b/\"", "delete")).is_ok());
        assert!(two(("\"size over 10\"", "stage"), ("\"size under 10\"", "delete")).is_ok());
        let never = two(("\"older than 1 day\"", "delete"), ("\"after 2 days without access\"", "delete"));
        assert!(never.unwrap_err().message.contains("never act"));
        assert!(two(("\"prefix a/\"", "drain now"), ("\"older than 1 day\"", "delete")).is_ok());
    }
}
