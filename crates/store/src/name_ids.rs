//! Ids of nodes and drives in a text for people become their names.

use std::borrow::Cow;

/// Hex digits of an id.
const ID_LEN: usize = 32;

/// The text with every id that has a name replaced by it. What is longer or shorter than an id is none, and a name that could break
/// a line or a quoted text is not used. (D95)
pub fn name_ids<'t>(text: &'t str, name: impl Fn(&str) -> Option<String>) -> Cow<'t, str> {
    let bytes = text.as_bytes();
    let is_part = |at: usize| bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let mut named: Option<String> = None;
    let (mut at, mut copied) = (0, 0);
    while at + ID_LEN <= bytes.len() {
        let is_id = bytes[at..at + ID_LEN].iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_alone = !is_part(at + ID_LEN) && (at == 0 || !is_part(at - 1));
        if !is_id || !is_alone {
            at += 1;
            continue;
        }
        if let Some(name) = name(&text[at..at + ID_LEN]).filter(|name| is_plain(name)) {
            let named = named.get_or_insert_with(String::new);
            named.push_str(&text[copied..at]);
            named.push_str(&name);
            copied = at + ID_LEN;
        }
        at += ID_LEN;
    }
    match named {
        None => Cow::Borrowed(text),
        Some(named) => Cow::Owned(named + &text[copied..]),
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|c| c.is_control() || matches!(c, '"' | '\\'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_become_names_and_nothing_else_does() {
        let (one, two) = ("0123456789abcdef0123456789abcdef", "ffffffffffffffffffffffffffffffff");
        let name = |id: &str| match id {
            _ if id == one => Some("n0".to_owned()),
            _ if id == two => Some("bad\nname".to_owned()),
            _ => None,
        };
        let check = |text: &str, expect: &str| assert_eq!(name_ids(text, name), expect);
        check("nothing here", "nothing here");
        check("", "");
        check(&format!("node {one} does not answer"), "node n0 does not answer");
        check(&format!("{one}, {one}"), "n0, n0");
        check(&format!("ä {one}ä"), "ä n0ä");
        check(&format!("version {one}-1"), "version n0-1");
        for text in [
            format!("x{one}"),
            format!("{one}0"),
            format!("{one}{one}"),
            one.to_uppercase(),
            format!("node {two}"),
            format!("node {}", "1".repeat(32)),
        ] {
            check(&text, &text);
        }
    }
}
