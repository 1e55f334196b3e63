//! Whether rules make sense, in S3's words.

use std::collections::HashSet;

use super::{DAY_MS, Expiration, Form, ID_LEN_MAX, Lifecycle, PREFIX_LEN_MAX, RULES_MAX, Rule};

/// Most former versions that a rule keeps, as in S3.
const NEWER_MAX: u32 = 100;
/// Most tags that a rule asks for: an object has no more.
const TAGS_MAX: usize = 10;

/// What S3 calls what is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The document has not the form of one.
    Malformed,
    /// A value is out of its bounds.
    Argument,
    /// Parts do not go together.
    Request,
}

/// Why rules make no sense.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What S3 calls it.
    pub kind: FaultKind,
    /// For a person.
    pub message: String,
}

impl Fault {
    /// The document has not the form of one.
    pub fn malformed() -> Fault {
        let message =
            "The XML you provided was not well-formed or did not validate against our published schema";
        Fault { kind: FaultKind::Malformed, message: message.to_owned() }
    }

    /// A value is out of its bounds.
    pub fn argument(message: impl Into<String>) -> Fault {
        Fault { kind: FaultKind::Argument, message: message.into() }
    }

    /// Parts do not go together.
    pub fn request(message: impl Into<String>) -> Fault {
        Fault { kind: FaultKind::Request, message: message.into() }
    }
}

/// Refuses anything but 1 and more.
fn positive(value: u32, name: &str, action: &str) -> Result<(), Fault> {
    match value {
        0 => Err(Fault::argument(format!("'{name}' for {action} action must be a positive integer"))),
        _ => Ok(()),
    }
}

impl Lifecycle {
    /// Refuses rules that make no sense.
    pub fn check(&self) -> Result<(), Fault> {
        if self.rules.is_empty() || self.rules.len() > RULES_MAX {
            return Err(Fault::malformed());
        }
        let mut ids = HashSet::new();
        for rule in &self.rules {
            rule.check()?;
            if !ids.insert(&rule.id) {
                let message = "Rule ID must be unique. Found same ID for more than one rule";
                return Err(Fault::argument(message));
            }
        }
        Ok(())
    }
}

impl Rule {
    fn check(&self) -> Result<(), Fault> {
        if self.id.len() > ID_LEN_MAX {
            let message = format!("ID length should not exceed allowed limit of {ID_LEN_MAX}");
            return Err(Fault::argument(message));
        }
        self.check_filter()?;
        self.check_actions()
    }

    fn check_filter(&self) -> Result<(), Fault> {
        let filter = &self.filter;
        let (has_prefix, sizes) =
            (filter.prefix.is_some(), [filter.larger, filter.smaller].into_iter().flatten().count());
        if filter.prefix.as_ref().is_some_and(|prefix| prefix.len() > PREFIX_LEN_MAX) {
            return Err(Fault::request(format!("The maximum size of a prefix is {PREFIX_LEN_MAX}.")));
        }
        match filter.form {
            Form::Prefix if !has_prefix || !filter.is_of_keys() => return Err(Fault::malformed()),
            Form::And if usize::from(has_prefix) + filter.tags.len() + sizes < 2 => {
                return Err(Fault::malformed());
            }
            Form::Filter if filter.tags.len() > 1 => return Err(Fault::malformed()),
            _ => {}
        }
        let mut names = HashSet::new();
        for (name, value) in &filter.tags {
            if name.is_empty() || name.chars().count() > 128 || value.chars().count() > 256 {
                return Err(Fault::request("The TagKey or TagValue you have provided is invalid"));
            }
            if !names.insert(name) {
                return Err(Fault::request("Duplicate Tag Keys are not allowed."));
            }
        }
        if filter.tags.len() > TAGS_MAX {
            return Err(Fault::request(format!("A rule asks for at most {TAGS_MAX} tags.")));
        }
        if filter.smaller == Some(0) {
            return Err(Fault::request("'ObjectSizeLessThan' has to be a value greater than 0."));
        }
        if filter.larger.zip(filter.smaller).is_some_and(|(larger, smaller)| larger >= smaller) {
            let message = "'ObjectSizeLessThan' has to be a value greater than 'ObjectSizeGreaterThan'.";
            return Err(Fault::request(message));
        }
        Ok(())
    }

    fn check_actions(&self) -> Result<(), Fault> {
        let is_of_keys = self.filter.is_of_keys();
        let has_action = self.expiration.is_some() || self.former.is_some() || self.abort_days.is_some();
        if !has_action {
            return Err(Fault::request("At least one action needs to be specified in a rule"));
        }
        match self.expiration {
            Some(Expiration::Days(days)) => positive(days, "Days", "Expiration")?,
            Some(Expiration::Date(at_ms)) if at_ms % DAY_MS != 0 => {
                return Err(Fault::argument("'Date' must be at midnight GMT"));
            }
            Some(Expiration::LoneMarker(_)) if !is_of_keys => {
                let message = "ExpiredObjectDeleteMarker cannot be specified with Tags or sizes.";
                return Err(Fault::request(message));
            }
            _ => {}
        }
        if let Some(former) = self.former {
            positive(former.days, "NoncurrentDays", "NoncurrentVersionExpiration")?;
            if former.newer > NEWER_MAX {
                let message = format!(
                    "'NewerNoncurrentVersions' for NoncurrentVersionExpiration action must be between 1 and {NEWER_MAX}"
                );
                return Err(Fault::argument(message));
            }
        }
        if let Some(days) = self.abort_days {
            positive(days, "DaysAfterInitiation", "AbortIncompleteMultipartUpload")?;
            if !is_of_keys {
                let message = "AbortIncompleteMultipartUpload cannot be specified with Tags or sizes.";
                return Err(Fault::request(message));
            }
        }
        Ok(())
    }
}
