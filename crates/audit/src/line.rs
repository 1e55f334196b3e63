//! Lines and how they are chained.
//!
//! A line is a JSON object. Its last field is the SHA-256 of the hash of the line before it and of its own bytes up to that field, so that no
//! line can be changed, left out or put elsewhere without changing all that follow.

use std::borrow::Cow;

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};

use crate::head::Head;

/// Longest text of a field that a caller chooses. Keys of files are shorter.
const TEXT_LEN_MAX: usize = 8 << 10;

/// Longest line that is read.
pub const LINE_LEN_MAX: usize = 256 << 10;

/// A place in the chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hash(pub [u8; 32]);

impl std::fmt::Display for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl Hash {
    /// Reads 64 lower-case hex digits.
    pub fn parse(text: &str) -> Option<Hash> {
        unhex(text).map(Hash)
    }

    fn next(self, body: &[u8]) -> Hash {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&self.0);
        context.update(body);
        let mut hash = [0; 32];
        hash.copy_from_slice(context.finish().as_ref());
        Hash(hash)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Event {
    /// Who asked.
    pub principal: String,
    /// The tenant that they belong to; empty for those who work for all.
    pub tenant: String,
    /// The endpoint that it came through.
    pub door: String,
    /// What was asked for.
    pub action: String,
    /// Full name of the volume and key; empty if it is about neither.
    pub path: String,
    /// Bytes of the file that was written or opened.
    pub bytes: u64,
    /// `ok`, `denied`, or `failed` with the kind of the error.
    pub result: String,
    /// The request, as its endpoint numbers them.
    pub request_id: String,
    /// Where the caller is.
    pub address: String,
    /// The session by whose temporary key it came; empty for others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub session: String,
    /// What else there is to say, without secrets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The result of a call that did what it should.
pub const OK: &str = "ok";
/// The result of a call that was not allowed.
pub const DENIED: &str = "denied";

/// An event in the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Counts events of this log.
    pub seq: u64,
    /// When, RFC 3339.
    pub time: String,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// The first line of a segment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Begin {
    /// Number of the segment.
    pub segment: u64,
    /// The node.
    pub node: String,
    /// Number of the first event in it.
    pub first: u64,
    /// When it was begun.
    pub time: String,
    /// Hash of the last line of the segment before.
    pub prev: String,
}

/// The last line of a segment that is closed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct End {
    /// Vouches for everything before it.
    pub end: Head,
}

/// A line that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// The first one.
    Begin(Begin),
    /// An event.
    Entry(Entry),
    /// The last one.
    End(End),
}

const TAIL_START: &str = ",\"hash\":\"";
const TAIL_LEN: usize = TAIL_START.len() + 64 + 2;

/// Writes a line behind `prev`, with its end; the hash that the next one goes on with.
pub(crate) fn encode<T: Serialize>(prev: Hash, line: &T, into: &mut Vec<u8>) -> Hash {
    into.clear();
    serde_json::to_writer(&mut *into, line).expect("plain data encodes");
    into.pop();
    let hash = prev.next(into);
    into.extend_from_slice(TAIL_START.as_bytes());
    into.extend_from_slice(hex(&hash.0).as_bytes());
    into.extend_from_slice(b"\"}\n");
    hash
}

/// Splits a line, without its end of line, into what is hashed and the hash that it says.
pub(crate) fn split(line: &[u8]) -> Option<(&[u8], Hash)> {
    let (body, tail) = line.split_at_checked(line.len().checked_sub(TAIL_LEN)?)?;
    let hash = tail.strip_prefix(TAIL_START.as_bytes())?.strip_suffix(b"\"}")?;
    Some((body, Hash::parse(std::str::from_utf8(hash).ok()?)?))
}

/// Whether a line stands behind `prev`; the hash that the next one goes on with.
pub(crate) fn follow(prev: Hash, line: &[u8]) -> Option<Hash> {
    let (body, said) = split(line)?;
    let hash = prev.next(body);
    (hash == said).then_some(hash)
}

/// Reads a line, without looking at its hash.
pub fn parse(line: &[u8]) -> Option<Line> {
    let (body, _) = split(line)?;
    let mut whole = body.to_vec();
    whole.push(b'}');
    match body.get(..6)? {
        b"{\"seq\"" => serde_json::from_slice(&whole).ok().map(Line::Entry),
        b"{\"segm" => serde_json::from_slice(&whole).ok().map(Line::Begin),
        b"{\"end\"" => serde_json::from_slice(&whole).ok().map(Line::End),
        _ => None,
    }
}

impl Event {
    /// Takes away what no log may hold, and cuts what is too long.
    pub(crate) fn sound(mut self) -> Event {
        if let Cow::Owned(redacted) = redact(&self.detail) {
            self.detail = redacted;
        }
        for text in [
            &mut self.principal,
            &mut self.tenant,
            &mut self.door,
            &mut self.action,
            &mut self.path,
            &mut self.result,
            &mut self.request_id,
            &mut self.address,
            &mut self.session,
            &mut self.detail,
        ] {
            cut(text);
        }
        self
    }
}

fn cut(text: &mut String) {
    if text.len() > TEXT_LEN_MAX {
        let end = (0..=TEXT_LEN_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

/// Names of JSON fields whose values nobody may read.
const SECRET_NAMES: [&str; 5] = ["secret", "token", "password", "signature", "credential"];

/// A request without its secrets. What is not JSON is taken as it is: requests that carry secrets are JSON.
fn redact(detail: &str) -> Cow<'_, str> {
    let lower = detail.to_ascii_lowercase();
    if !SECRET_NAMES.iter().any(|name| lower.contains(name)) {
        return detail.into();
    }
    match serde_json::from_str::<serde_json::Value>(detail) {
        Ok(mut value) => {
            hide(&mut value);
            value.to_string().into()
        }
        Err(_) => "(left out: it may hold a secret)".to_owned().into(),
    }
}

fn hide(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.to_ascii_lowercase();
                match SECRET_NAMES.iter().any(|secret| name.contains(secret)) {
                    true => *value = "(secret)".into(),
                    false => hide(value),
                }
            }
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(hide),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_and_any_changed_byte_is_found() {
        let event = Event { path: "vol/ä\n\"x".into(), bytes: 7, result: OK.into(), ..Event::default() };
        let entry = Entry { seq: 3, time: crate::time::format(5), event };
        let mut bytes = Vec::new();
        let hash = encode(Hash::default(), &entry, &mut bytes);
        assert_eq!(bytes.pop(), Some(b'\n'));
        assert!(!bytes.contains(&b'\n'));
        assert_eq!(parse(&bytes), Some(Line::Entry(entry)));
        assert_eq!(follow(Hash::default(), &bytes), Some(hash));
        assert_eq!(follow(hash, &bytes), None);
        for at in 0..bytes.len() {
            for flip in [1, 0x20, 0x80] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                assert_eq!(follow(Hash::default(), &changed), None, "byte {at}");
            }
        }
    }

    #[test]
    fn secrets_are_left_out() {
        let check = |detail: &str, expect: &str| {
            let event = Event { detail: detail.into(), ..Event::default() }.sound();
            assert_eq!(event.detail, expect);
        };
        check("{\"name\":\"x\"}", "{\"name\":\"x\"}");
        check(
            "{\"name\":\"x\",\"secret_key\":\"abc\",\"deep\":[{\"Token\":{\"a\":1}}]}",
            "{\"deep\":[{\"Token\":\"(secret)\"}],\"name\":\"x\",\"secret_key\":\"(secret)\"}",
        );
        check("X-Amz-Signature=abc", "(left out: it may hold a secret)");
    }

    #[test]
    fn what_is_too_long_is_cut() {
        let event = Event { path: "ä".repeat(TEXT_LEN_MAX), ..Event::default() }.sound();
        assert!(event.path.ends_with('…') && event.path.len() <= TEXT_LEN_MAX + '…'.len_utf8());
    }
}
