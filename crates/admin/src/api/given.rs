//! What a request gives: names in its path, parameters in its query, a body. Everything is checked against the route first.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::fault::Fault;
use super::routes::{Kind, PATH_PARAMETERS, Parameter, Route};
use crate::access::Caller;

/// Longest value in a path or a query, in characters; a key has no more bytes than that.
pub const VALUE_LEN_MAX: usize = 1_024;

/// A request that fits its route.
pub struct Given {
    pub caller: Caller,
    values: BTreeMap<&'static str, Vec<u8>>,
    body: Bytes,
    idempotency_key: Option<String>,
}

impl Given {
    /// Checks names and parameters.
    pub fn new(
        route: &Route,
        names: Vec<(&'static str, &str)>,
        query: &str,
        caller: Caller,
    ) -> Result<Given, Fault> {
        let mut values = BTreeMap::new();
        for (name, text) in names {
            let parameter = PATH_PARAMETERS.iter().find(|parameter| parameter.name == name);
            let parameter = parameter.ok_or_else(|| Fault::invalid(format!("`{name}` is not known")))?;
            values.insert(name, checked(parameter, decoded(text, Plus::Kept)?)?);
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = text(decoded(name, Plus::Space)?)?;
            let Some(parameter) = route.query.iter().find(|parameter| parameter.name == name) else {
                let known: Vec<&str> = route.query.iter().map(|parameter| parameter.name).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(Fault::invalid(format!(
                    "there is no parameter `{name}` here; there are: {known}"
                )));
            };
            let value = checked(parameter, decoded(value, Plus::Space)?)?;
            if values.insert(parameter.name, value).is_some() {
                return Err(Fault::invalid(format!("`{name}` is given twice")));
            }
        }
        if let Some(lacking) = route.query.iter().find(|one| one.is_needed && !values.contains_key(one.name))
        {
            return Err(Fault::invalid(format!("`{}` is needed: {}", lacking.name, lacking.words)));
        }
        Ok(Given { caller, values, body: Bytes::new(), idempotency_key: None })
    }

    /// The same with a body, and the word by which it is the same request if it is sent again.
    pub fn with_body(self, body: Bytes, idempotency_key: Option<String>) -> Given {
        Given { body, idempotency_key, ..self }
    }

    /// The word by which it is the same request if it is sent again.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }

    /// A value as bytes.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.values.get(name).map(Vec::as_slice)
    }

    /// A value as text; empty if it was not given.
    pub fn text(&self, name: &str) -> &str {
        self.bytes(name).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    /// The same; none if it was not given or is empty.
    pub fn some_text(&self, name: &str) -> Option<&str> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    /// A value as a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name).parse().ok()
    }

    /// A yes or no; no if it was not given.
    pub fn flag(&self, name: &str) -> bool {
        self.text(name) == "true"
    }

    /// The body; without one, an empty object. Nothing else than an object is taken: serde would take a list for one, too.
    pub fn body<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        let misfit = |error| Fault::invalid(format!("the body does not fit: {error}"));
        let fields: Map<String, Value> = match self.body.is_empty() {
            true => Map::new(),
            false => serde_json::from_slice(&self.body).map_err(misfit)?,
        };
        serde_json::from_value(Value::Object(fields)).map_err(misfit)
    }

    /// The body as it came, for those who keep what was asked.
    pub fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// What a plus sign means: itself in a path, a blank in a query.
#[derive(Clone, Copy)]
enum Plus {
    Kept,
    Space,
}

fn decoded(text: &str, plus: Plus) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match (byte, plus) {
            (b'%', _) => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                match (digit(rest.next()), digit(rest.next())) {
                    (Some(high), Some(low)) => (high * 16 + low) as u8,
                    _ => return Err(Fault::invalid("a `%` is not followed by two hex digits")),
                }
            }
            (b'+', Plus::Space) => b' ',
            _ => byte,
        });
    }
    Ok(bytes)
}

fn text(bytes: Vec<u8>) -> Result<String, Fault> {
    String::from_utf8(bytes).map_err(|_| Fault::invalid("a name or value is not UTF-8"))
}

fn checked(parameter: &Parameter, value: Vec<u8>) -> Result<Vec<u8>, Fault> {
    let name = parameter.name;
    if String::from_utf8_lossy(&value).chars().count() > VALUE_LEN_MAX {
        return Err(Fault::invalid(format!("`{name}` has at most {VALUE_LEN_MAX} characters")));
    }
    if let Kind::Bytes = parameter.kind {
        return Ok(value);
    }
    let text = text(value)?;
    match parameter.kind {
        Kind::Bytes => {}
        Kind::Text if text.is_empty() => return Err(Fault::invalid(format!("`{name}` is empty"))),
        Kind::Text if text.contains(char::is_control) => {
            return Err(Fault::invalid(format!("`{name}` contains control characters")));
        }
        Kind::Text => {}
        Kind::Number { min, max } => {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            if !text.parse::<u64>().is_ok_and(|number| is_plain && (min..=max).contains(&number)) {
                return Err(Fault::invalid(format!("`{name}` is a number from {min} to {max}")));
            }
        }
        Kind::Flag if !["true", "false"].contains(&text.as_str()) => {
            return Err(Fault::invalid(format!("`{name}` is true or false")));
        }
        Kind::Flag => {}
    }
    Ok(text.into_bytes())
}
