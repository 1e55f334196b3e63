//! Takes secrets out of text: those that are known, and what looks like one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use crate::daemon::place::read_small;

/// What stands in the place of a secret.
const HIDDEN: &[u8] = b"[hidden]";

/// A shorter value would be taken out of words that have nothing to do with it.
const LEN_MIN: usize = 6;

/// Parts of names whose values are nobody's business.
const TELLING: [&str; 8] =
    ["secret", "token", "password", "passwd", "credential", "private", "apikey", "api_key"];

/// Files of a node's directory that are secret from the first to the last byte.
const SECRET_FILES: [&str; 3] = ["token", "view-token", "credentials"];

/// What is to be taken out.
#[derive(Default)]
pub struct Redactor {
    secrets: BTreeSet<Vec<u8>>,
}

/// Whether a value of this name is a secret.
fn is_telling(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // An access key's public part says who, and is needed to help.
    TELLING.iter().any(|part| name.contains(part)) || name.ends_with("_key") && name != "access_key"
}

impl Redactor {
    /// Takes a value out from now on.
    pub fn learn(&mut self, secret: &str) {
        let secret = secret.trim();
        if secret.len() >= LEN_MIN {
            self.secrets.insert(secret.as_bytes().to_vec());
        }
    }

    /// The values of variables whose names tell that they are secret, and passwords in all of them.
    pub fn learn_environment(&mut self, variables: impl Iterator<Item = (OsString, OsString)>) {
        for (name, value) in variables {
            let value = value.to_string_lossy();
            if is_telling(&name.to_string_lossy()) {
                self.learn(&value);
            }
            passwords(&value).into_iter().for_each(|password| self.learn(&password));
        }
    }

    /// The secrets in a node's directory.
    pub fn learn_directory(&mut self, dir: &Path) {
        for name in SECRET_FILES {
            let text = read_small(&dir.join(name)).ok().flatten().unwrap_or_default();
            for line in text.lines() {
                let value = line.split_once('=').map_or(line, |(_, value)| value);
                // The public part is no secret.
                if !line.starts_with("aws_access_key_id") {
                    self.learn(value);
                }
            }
        }
    }

    /// The text without secrets.
    pub fn redact(&self, text: &[u8]) -> Vec<u8> {
        let lines = text.split_inclusive(|byte| *byte == b'\n').map(line);
        let mut text: Vec<u8> = lines.flatten().collect();
        // The longest first: one may begin with another.
        let mut secrets: Vec<&Vec<u8>> = self.secrets.iter().collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        for secret in secrets {
            text = replace(&text, secret);
        }
        text
    }
}

fn replace(text: &[u8], secret: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with(secret) {
            out.extend_from_slice(HIDDEN);
            at += secret.len();
        } else {
            out.push(text[at]);
            at += 1;
        }
    }
    out
}

/// A line without values that look secret: passwords in addresses, values behind a telling name.
fn line(line: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(line) else { return line.to_vec() };
    let mut out = text.to_owned();
    for secret in passwords(text).into_iter().chain(values(text)) {
        out = out.replace(&secret, "[hidden]");
    }
    out.into_bytes()
}

/// Passwords in addresses: what is between `:` and `@` behind `//`, up to the end of the address.
fn passwords(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("//") {
        rest = &rest[start + 2..];
        let end = rest.find(|letter: char| letter.is_whitespace() || "\"'<>".contains(letter));
        let authority = &rest[..end.unwrap_or(rest.len())];
        let authority = &authority[..authority.find(['/', '?']).unwrap_or(authority.len())];
        if let Some((user, _)) = authority.rsplit_once('@')
            && let Some((_, password)) = user.split_once(':')
            && !password.is_empty()
        {
            found.push(password.to_owned());
        }
    }
    found
}

/// Values behind telling names: `name = value`, `name: value`, `"name": "value"`, `name=value&`.
fn values(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(['=', ':']) {
        let name =
            text[..at].trim_end_matches(|letter: char| letter.is_whitespace() || "\"'".contains(letter));
        let start = name.rfind(|letter: char| !letter.is_ascii_alphanumeric() && !"_-".contains(letter));
        let name =
            &name[start.map_or(0, |start| start + name[start..].chars().next().map_or(1, char::len_utf8))..];
        if !is_telling(&name.replace('-', "_")) {
            continue;
        }
        let value = text[at + 1..].trim_start();
        let value = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].split(quote).next(),
            _ => value.split(|letter: char| letter.is_whitespace() || ",&;}".contains(letter)).next(),
        };
        found.extend(value.filter(|value| !value.is_empty()).map(str::to_owned));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redact(text: &str) -> String {
        let mut redactor = Redactor::default();
        redactor.learn("KNOWNVALUE");
        String::from_utf8(redactor.redact(text.as_bytes())).unwrap()
    }

    #[test]
    fn what_is_or_looks_secret_is_taken_out_and_the_rest_stays() {
        let table = [
            ("nothing here", "nothing here"),
            ("a KNOWNVALUE in a KNOWNVALUES", "a [hidden] in a [hidden]S"),
            ("url = \"postgresql://u:pa:ss@host/db\"", "url = \"postgresql://u:[hidden]@host/db\""),
            ("see https://host/path@2:3", "see https://host/path@2:3"),
            ("secret_key = \"abc\" # x", "secret_key = \"[hidden]\" # x"),
            (
                "{\"access_key\":\"STKR1\",\"secret_key\":\"abc\"}",
                "{\"access_key\":\"STKR1\",\"secret_key\":\"[hidden]\"}",
            ),
            ("s3://b/p?region=r&secret=abc&x=1", "s3://b/p?region=r&secret=[hidden]&x=1"),
            ("host=/run user=u password=pw dbname=d", "host=/run user=u password=[hidden] dbname=d"),
            ("token-file: /etc/x", "token-file: [hidden]"),
            ("grüße token=ü1", "grüße token=[hidden]"),
        ];
        for (text, expect) in table {
            assert_eq!(redact(text), expect);
        }
    }

    #[test]
    fn variables_with_telling_names_are_learned() {
        let mut redactor = Redactor::default();
        let variables =
            [("AWS_SECRET_ACCESS_KEY", "planted1"), ("PATH", "/usr/bin"), ("U", "pg://a:planted2@h")];
        redactor.learn_environment(variables.map(|(name, value)| (name.into(), value.into())).into_iter());
        let text = redactor.redact(b"planted1 planted2 /usr/bin");
        assert_eq!(text, b"[hidden] [hidden] /usr/bin");
    }
}
