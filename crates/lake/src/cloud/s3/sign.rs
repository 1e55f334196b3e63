//! Signatures of requests (AWS Signature Version 4). Pure: time and keys are arguments.
//!
//! `object_store` can sign too, but through a url type that folds `..` and `.` segments, which are legal in keys.

use aws_lc_rs::{digest, hmac};

/// Keys of an account.
#[derive(Clone)]
pub(super) struct Credentials {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

/// What a body that is not part of the signature is called.
pub(super) const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

/// A request in the form in which it is signed.
pub(super) struct Signable<'a> {
    pub method: &'a str,
    /// Percent-encoded.
    pub path: &'a str,
    /// Percent-encoded and sorted.
    pub query: &'a str,
    /// Names in lower case, sorted.
    pub headers: &'a [(String, String)],
    pub payload_hash: &'a str,
}

/// The value of the `authorization` header. `time` is like `20130524T000000Z`.
pub(super) fn authorization(
    request: &Signable<'_>,
    credentials: &Credentials,
    region: &str,
    time: &str,
) -> String {
    let names: Vec<&str> = request.headers.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(";");
    let mut canonical = format!("{}\n{}\n{}\n", request.method, request.path, request.query);
    for (name, value) in request.headers {
        canonical.push_str(&format!("{name}:{}\n", squeeze(value)));
    }
    canonical.push_str(&format!("\n{names}\n{}", request.payload_hash));
    let date = &time[..8];
    let scope = format!("{date}/{region}/s3/aws4_request");
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", sha256_hex(canonical.as_bytes()));
    let mut key = format!("AWS4{}", credentials.secret_access_key).into_bytes();
    for word in [date, region, "s3", "aws4_request", &to_sign] {
        key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), word.as_bytes()).as_ref().to_vec();
    }
    format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={}",
        credentials.access_key_id,
        hex(&key)
    )
}

/// SHA-256 of a body in pieces, in hexadecimal digits.
pub(super) fn sha256_hex_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for piece in pieces {
        context.update(piece);
    }
    hex(context.finish().as_ref())
}

/// Percent-encodes everything but letters, digits and `-._~`, and slashes where they are kept.
pub(super) fn percent_encode(bytes: &[u8], slash: Slash) -> String {
    let mut text = String::with_capacity(bytes.len() * 3 / 2);
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte))
            }
            b'/' if slash == Slash::Keep => text.push('/'),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// What becomes of slashes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Slash {
    Keep,
    Encode,
}

/// Seconds since 1970 as `20130524T000000Z`.
pub(super) fn time_text(unix_s: u64) -> String {
    let (days, seconds) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil_from_days(days);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The Gregorian date of a day since 1970, by the rule that years begin in March.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Without blanks at the ends, and with one where there are many.
fn squeeze(value: &str) -> String {
    value.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of Amazon's documentation of Signature Version 4.
    fn check(
        method: &str,
        path: &str,
        query: &str,
        headers: &[(&str, &str)],
        payload_hash: &str,
        signature: &str,
    ) {
        let credentials = Credentials {
            access_key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
        };
        let time = time_text(1_369_353_600);
        assert_eq!(time, "20130524T000000Z");
        let mut headers: Vec<(String, String)> =
            headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        headers.push(("host".into(), "examplebucket.s3.amazonaws.com".into()));
        headers.push(("x-amz-content-sha256".into(), payload_hash.into()));
        headers.push(("x-amz-date".into(), time.clone()));
        headers.sort();
        let request = Signable { method, path, query, headers: &headers, payload_hash };
        let value = authorization(&request, &credentials, "us-east-1", &time);
        assert!(value.ends_with(&format!("Signature={signature}")), "{value}");
    }

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn signatures_are_those_of_the_documentation() {
        assert_eq!(sha256_hex_pieces([].into_iter()), EMPTY);
        check(
            "GET",
            "/test.txt",
            "",
            &[("range", "bytes=0-9")],
            EMPTY,
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        );
        check(
            "PUT",
            &percent_encode(b"/test$file.text", Slash::Keep),
            "",
            &[("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")],
            "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        );
        check(
            "GET",
            "/",
            "max-keys=2&prefix=J",
            &[],
            EMPTY,
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        );
    }

    #[test]
    fn dates_are_right() {
        for (unix_s, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (4_107_542_400, "21000301T000000Z"),
            (1_700_000_000, "20231114T221320Z"),
        ] {
            assert_eq!(time_text(unix_s), text);
        }
    }

    #[test]
    fn keys_are_encoded_strictly() {
        assert_eq!(percent_encode("a/../b c+é%\0".as_bytes(), Slash::Keep), "a/../b%20c%2B%C3%A9%25%00");
        assert_eq!(percent_encode(b"a/~_", Slash::Encode), "a%2F~_");
    }
}
