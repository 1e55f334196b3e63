//! The XML of S3 answers: small trees without attributes.

use quick_xml::Reader;
use quick_xml::events::Event;

/// Answers are flat; anything deeper is not one.
const DEPTH_MAX: usize = 16;

/// One element.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Element {
    pub name: String,
    pub text: String,
    pub children: Vec<Element>,
}

impl Element {
    /// The root of a document; `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Element> {
        let mut reader = Reader::from_reader(bytes);
        let mut open: Vec<Element> = vec![Element::default()];
        loop {
            match reader.read_event().ok()? {
                Event::Start(start) => {
                    if open.len() > DEPTH_MAX {
                        return None;
                    }
                    open.push(Element {
                        name: local_name(start.local_name().as_ref())?,
                        ..Element::default()
                    });
                }
                Event::Empty(empty) => {
                    let name = local_name(empty.local_name().as_ref())?;
                    open.last_mut()?.children.push(Element { name, ..Element::default() });
                }
                Event::End(_) => {
                    let element = open.pop()?;
                    open.last_mut()?.children.push(element);
                }
                Event::Text(text) => open.last_mut()?.text.push_str(&text.decode().ok()?),
                Event::CData(text) => open.last_mut()?.text.push_str(&text.decode().ok()?),
                Event::GeneralRef(reference) => {
                    let character = match reference.resolve_char_ref().ok()? {
                        Some(character) => character,
                        None => named(&reference.decode().ok()?)?,
                    };
                    open.last_mut()?.text.push(character);
                }
                Event::Eof => break,
                _ => {}
            }
        }
        let mut document = open.pop().filter(|_| open.is_empty())?;
        document.children.pop()
    }

    /// The text of a child; empty if there is none.
    pub fn text_of(&self, name: &str) -> &str {
        self.children.iter().find(|child| child.name == name).map_or("", |child| child.text.as_str())
    }

    /// Children of this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

/// Text that may stand between tags.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn local_name(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

fn named(name: &str) -> Option<char> {
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_becomes_a_tree() {
        let text = r#"<?xml version="1.0"?><List xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
            <Key>a&amp;b&#x41;&lt;</Key><Empty/><Part><Size>5</Size></Part><Part><Size>6</Size></Part></List>"#;
        let list = Element::parse(text.as_bytes()).unwrap();
        assert_eq!((list.name.as_str(), list.text_of("Key"), list.text_of("Empty")), ("List", "a&bA<", ""));
        let sizes: Vec<&str> = list.all("Part").map(|part| part.text_of("Size")).collect();
        assert_eq!(sizes, ["5", "6"]);
        let escaped = format!("<x>{}</x>", escape("a&b<\">"));
        assert_eq!(Element::parse(escaped.as_bytes()).unwrap().text, "a&b<\">");
    }

    #[test]
    fn what_is_no_answer_is_none() {
        for text in ["", "hello", "<a><b></a>", "<a>", "<a>&nope;</a>", "<a></a></a>"] {
            assert_eq!(Element::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Element::parse("<a>".repeat(1000).as_bytes()), None);
    }
}
