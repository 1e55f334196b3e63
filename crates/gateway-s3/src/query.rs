//! The query string: decoded once, strictly, without duplicates, so that everyone who looks sees the same.

use crate::percent::{self, Keep, Plus};
use crate::refusal::{Code, Refusal, Result};

/// Most parameters in one query.
const PARAMETERS_MAX: usize = 64;

/// Decoded parameters, in the order in which they came.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Takes a query string apart.
    pub(crate) fn parse(raw: Option<&str>) -> Result<Query> {
        let mut pairs = Vec::new();
        for piece in raw.unwrap_or("").split('&').filter(|piece| !piece.is_empty()) {
            let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(Refusal::new(
                    Code::InvalidArgument,
                    format!("The query parameter {name} is given twice."),
                ));
            }
            if pairs.len() == PARAMETERS_MAX {
                return Err(Refusal::new(Code::InvalidURI, "The query has too many parameters."));
            }
            pairs.push((name, value));
        }
        Ok(Query { pairs })
    }

    /// The value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// True if a parameter is given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// True if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// All names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|(name, _)| name.as_str())
    }

    /// Appends the canonical form, sorted, without one parameter.
    pub(crate) fn push_canonical(&self, out: &mut Vec<u8>, without: Option<&str>) {
        let mut pairs: Vec<(String, String)> = self
            .pairs
            .iter()
            .filter(|(name, _)| Some(name.as_str()) != without)
            .map(|(name, value)| {
                (
                    percent::encoded(name.as_bytes(), Keep::Nothing),
                    percent::encoded(value.as_bytes(), Keep::Nothing),
                )
            })
            .collect();
        pairs.sort_unstable();
        for (index, (name, value)) in pairs.iter().enumerate() {
            if index > 0 {
                out.push(b'&');
            }
            out.extend_from_slice(name.as_bytes());
            out.push(b'=');
            out.extend_from_slice(value.as_bytes());
        }
    }

    /// The query without what signs the request, encoded anew.
    pub(crate) fn without_signature(&self) -> String {
        let mut out = String::new();
        for (name, value) in &self.pairs {
            let is_new = name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"));
            if is_new || matches!(name.as_str(), "AWSAccessKeyId" | "Signature" | "Expires") {
                continue;
            }
            if !out.is_empty() {
                out.push('&');
            }
            out.push_str(&percent::encoded(name.as_bytes(), Keep::Nothing));
            out.push('=');
            out.push_str(&percent::encoded(value.as_bytes(), Keep::Nothing));
        }
        out
    }
}

fn decoded(text: &str) -> Result<String> {
    percent::decode(text.as_bytes(), Plus::Space)
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| Refusal::new(Code::InvalidURI, "The query is not properly percent-encoded UTF-8."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_once() {
        let query = Query::parse(Some("prefix=a%2520b&uploads&x=1+2&=&&e=")).unwrap();
        assert_eq!(query.get("prefix"), Some("a%20b"));
        assert_eq!(query.get("uploads"), Some(""));
        assert_eq!(query.get("x"), Some("1 2"));
        assert_eq!(query.get("nothing"), None);
    }

    #[test]
    fn what_two_readers_could_see_differently_is_refused() {
        for raw in ["a=1&a=2", "a=%zz", "a=%ff", "%61=1&a=2"] {
            assert!(Query::parse(Some(raw)).is_err(), "{raw}");
        }
    }

    #[test]
    fn the_canonical_form_is_sorted_and_complete() {
        let query = Query::parse(Some("prefix=J&max-keys=2&a%2Fb=%20&X-Amz-Signature=s")).unwrap();
        let mut out = Vec::new();
        query.push_canonical(&mut out, Some("X-Amz-Signature"));
        assert_eq!(out, b"a%2Fb=%20&max-keys=2&prefix=J");
        assert_eq!(query.without_signature(), "prefix=J&max-keys=2&a%2Fb=%20");
        let older = Query::parse(Some("uploads&AWSAccessKeyId=a&Signature=b&Expires=1")).unwrap();
        assert_eq!(older.without_signature(), "uploads=");
    }
}
