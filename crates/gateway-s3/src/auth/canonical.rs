//! The canonical request: the one spelling of a request that both sides sign.

use http::{HeaderMap, Method};

use crate::percent::{self, Keep, Plus};
use crate::query::Query;

/// How the path is spelled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Decoded and encoded anew, as S3 documents it.
    Canonical,
    /// As it was sent; some clients sign that.
    Raw,
}

/// What a canonical request is made of.
pub(super) struct Parts<'a> {
    pub(super) method: &'a Method,
    pub(super) raw_path: &'a str,
    pub(super) query: &'a Query,
    pub(super) headers: &'a HeaderMap,
    pub(super) signed_headers: &'a str,
    pub(super) payload: &'a str,
}

/// Writes the canonical request into a buffer that is kept between requests.
pub(super) fn write(out: &mut Vec<u8>, parts: &Parts<'_>, spelling: Spelling) {
    out.clear();
    out.extend_from_slice(parts.method.as_str().as_bytes());
    out.push(b'\n');
    push_path(out, parts.raw_path, spelling);
    out.push(b'\n');
    if !parts.query.is_empty() {
        parts.query.push_canonical(out, Some("X-Amz-Signature"));
    }
    out.push(b'\n');
    for name in parts.signed_headers.split(';') {
        out.extend_from_slice(name.as_bytes());
        out.push(b':');
        for (index, value) in parts.headers.get_all(name).iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            push_value(out, value.as_bytes());
        }
        out.push(b'\n');
    }
    out.push(b'\n');
    out.extend_from_slice(parts.signed_headers.as_bytes());
    out.push(b'\n');
    out.extend_from_slice(parts.payload.as_bytes());
}

fn push_path(out: &mut Vec<u8>, raw: &str, spelling: Spelling) {
    match percent::decode(raw.as_bytes(), Plus::Plus) {
        Some(decoded) if spelling == Spelling::Canonical => percent::encode(out, &decoded, Keep::Slash),
        _ => out.extend_from_slice(raw.as_bytes()),
    }
}

/// A header's value without spaces at its ends and with single spaces inside.
fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    let value = value.trim_ascii();
    let mut space = false;
    for &byte in value {
        if byte == b' ' && space {
            continue;
        }
        space = byte == b' ';
        out.push(byte);
    }
}
