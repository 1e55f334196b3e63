//! From when until when a certificate holds: the one thing that is read from it, by walking to it.
//!
//! Bytes of any length and content are refused or read, never followed beyond their end.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// What is no certificate, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct NoCertificate(&'static str);

impl fmt::Display for NoCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "is no certificate: {}", self.0)
    }
}

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// First and last second, since 1970, of the first certificate in a PEM file: that of the server itself.
pub fn validity_of_pem(text: &str) -> Result<(u64, u64), NoCertificate> {
    let (_, rest) =
        text.split_once("-----BEGIN CERTIFICATE-----").ok_or(NoCertificate("there is no PEM block"))?;
    let (body, _) =
        rest.split_once("-----END CERTIFICATE-----").ok_or(NoCertificate("the PEM block has no end"))?;
    let body: String = body.chars().filter(|c| !c.is_whitespace()).collect();
    let der = BASE64_STANDARD.decode(body).map_err(|_| NoCertificate("the PEM block is not base64"))?;
    validity_of_der(&der)
}

/// The same of the bytes themselves.
pub fn validity_of_der(der: &[u8]) -> Result<(u64, u64), NoCertificate> {
    let (certificate, _) = take(der, SEQUENCE)?;
    let (mut body, _) = take(certificate, SEQUENCE)?;
    if body.first() == Some(&VERSION) {
        body = take(body, VERSION)?.1;
    }
    // Serial number, algorithm, issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        body = take(body, tag)?.1;
    }
    let (validity, _) = take(body, SEQUENCE)?;
    let (from, rest) = time(validity)?;
    let (until, _) = time(rest)?;
    Ok((from, until))
}

/// Contents of the value at the front, and what is behind it.
fn take(bytes: &[u8], tag: u8) -> Result<(&[u8], &[u8]), NoCertificate> {
    const SHORT: NoCertificate = NoCertificate("it ends too early");
    let (&found, bytes) = bytes.split_first().ok_or(SHORT)?;
    if found != tag {
        return Err(NoCertificate("a part is missing or out of order"));
    }
    let (&first, bytes) = bytes.split_first().ok_or(SHORT)?;
    let (len, bytes) = match first {
        0..=0x7f => (usize::from(first), bytes),
        0x81..=0x84 => {
            let (digits, bytes) = bytes.split_at_checked(usize::from(first & 0x7f)).ok_or(SHORT)?;
            (digits.iter().fold(0_usize, |len, digit| len << 8 | usize::from(*digit)), bytes)
        }
        _ => return Err(NoCertificate("a length makes no sense")),
    };
    bytes.split_at_checked(len).ok_or(SHORT)
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn time(bytes: &[u8]) -> Result<(u64, &[u8]), NoCertificate> {
    const WRONG: NoCertificate = NoCertificate("a time makes no sense");
    let (year_len, (text, rest)) = match bytes.first() {
        Some(&UTC_TIME) => (2, take(bytes, UTC_TIME)?),
        _ => (4, take(bytes, GENERALIZED_TIME)?),
    };
    let digits = text.strip_suffix(b"Z").ok_or(WRONG)?;
    if digits.len() != year_len + 10 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(WRONG);
    }
    let number = |part: &[u8]| part.iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    let year = match (year_len, number(&digits[..year_len])) {
        (2, year) if year >= 50 => 1900 + year,
        (2, year) => 2000 + year,
        (_, year) => year,
    };
    let part = |at: usize| number(&digits[year_len + 2 * at..year_len + 2 * at + 2]);
    let (month, day, hour, minute, second) = (part(0), part(1), part(2), part(3), part(4));
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return Err(WRONG);
    }
    if hour > 23 || minute > 59 || second > 60 {
        return Err(WRONG);
    }
    Ok((days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second, rest))
}

/// Days from 1970 to a date in the Gregorian calendar, with years that begin in March so that leap days come last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let before = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    before - 719_468
}

#[cfg(test)]
mod tests;
