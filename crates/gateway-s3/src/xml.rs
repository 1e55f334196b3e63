//! The little XML that is written without a serializer.

/// Appends text with everything escaped that a parser would change or choke on. Control characters become references,
/// as S3 writes them.
pub(crate) fn push_text(out: &mut String, text: &str) {
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            char if u32::from(char) < 0x20 => out.push_str(&format!("&#x{:X};", u32::from(char))),
            char => out.push(char),
        }
    }
}

/// Appends `<name>text</name>`.
pub(crate) fn push_element(out: &mut String, name: &str, text: &str) {
    out.push('<');
    out.push_str(name);
    out.push('>');
    push_text(out, text);
    out.push_str("</");
    out.push_str(name);
    out.push('>');
}

/// Replaces raw control characters of a finished document by references. A serializer that only knows `<`, `>` and `&`
/// would let a parser turn a carriage return inside a key into a line feed.
pub(crate) fn escape_controls(document: &[u8]) -> Option<Vec<u8>> {
    let start = if document.starts_with(b"<?xml") {
        document.iter().position(|&byte| byte == b'>').map_or(0, |end| end + 1)
    } else {
        0
    };
    // The line break behind the declaration is layout.
    let start = start + usize::from(document.get(start) == Some(&b'\n'));
    if document[start..].iter().all(|&byte| byte >= 0x20) {
        return None;
    }
    let mut out = Vec::with_capacity(document.len() + 64);
    out.extend_from_slice(&document[..start]);
    for &byte in &document[start..] {
        if byte < 0x20 {
            out.extend_from_slice(format!("&#x{byte:X};").as_bytes());
        } else {
            out.push(byte);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut out = String::new();
        push_element(&mut out, "Key", "a<b>&\"c\"\r\u{1}ä");
        assert_eq!(out, "<Key>a&lt;b&gt;&amp;&quot;c&quot;&#xD;&#x1;ä</Key>");
    }

    #[test]
    fn controls_of_a_document_become_references() {
        let document = b"<?xml version=\"1.0\"?>\n<Key>a\rb\x01</Key>";
        let escaped = escape_controls(document).unwrap();
        assert_eq!(escaped, b"<?xml version=\"1.0\"?>\n<Key>a&#xD;b&#x1;</Key>");
        assert_eq!(escape_controls(&escaped), None);
    }
}
