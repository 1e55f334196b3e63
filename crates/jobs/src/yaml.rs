//! A strict reader of a small part of YAML: block and flow maps and lists, plain and quoted words, comments. JSON is a part of it.
//!
//! What it leaves out is left out on purpose: anchors and aliases (a few lines of them can stand for more memory than a machine has), tags,
//! values over several lines, several documents. Words stay text: a field says what it takes, so that `no` is never suddenly false. Every
//! value knows the line and column where it stands, for errors that name the place. (D215)

use std::fmt;

/// Longest text that is read.
pub const TEXT_BYTES_MAX: usize = 64 << 10;
/// Deepest nesting.
const DEPTH_MAX: usize = 12;
/// Most values.
const NODES_MAX: usize = 10_000;

/// A place in a text, from 1 on; columns count characters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct At {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// What is wrong with a text, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Where.
    pub at: At,
    /// What.
    pub message: String,
}

impl Fault {
    /// A fault at a place.
    pub fn new(at: At, message: impl Into<String>) -> Fault {
        Fault { at, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.at.line, self.at.column, self.message)
    }
}

impl std::error::Error for Fault {}

/// A value and where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Where.
    pub at: At,
    /// What.
    pub value: Value,
}

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Nothing behind a name, `~` or `null`.
    Empty,
    /// A word.
    Word(String),
    /// A list.
    List(Vec<Node>),
    /// Names and values, each name once.
    Map(Vec<(Name, Node)>),
}

/// A name in a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// Where.
    pub at: At,
    /// The name.
    pub text: String,
}

impl Value {
    /// What it is, for errors.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Empty => "nothing",
            Value::Word(_) => "a word",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

/// Reads a text; an empty one is an empty map.
pub fn read(text: &str) -> Result<Node, Fault> {
    if text.len() > TEXT_BYTES_MAX {
        let message = format!("the text has {} bytes; at most {TEXT_BYTES_MAX} are read", text.len());
        return Err(Fault::new(At { line: 1, column: 1 }, message));
    }
    let mut reader = Reader { lines: lines(text)?, line: 0, nodes: 0 };
    let Some(first) = reader.lines.first() else {
        return Ok(Node { at: At { line: 1, column: 1 }, value: Value::Map(Vec::new()) });
    };
    let indent = first.indent;
    let node = reader.block(indent, 0)?;
    match reader.lines.get(reader.line) {
        None => Ok(node),
        Some(line) => Err(Fault::new(
            line.at(0),
            "this does not belong to what is above; look at how far it is indented",
        )),
    }
}

/// A line that is not empty. `chars` start behind its indentation.
struct Line {
    number: u32,
    indent: usize,
    chars: Vec<char>,
}

impl Line {
    fn at(&self, offset: usize) -> At {
        At { line: self.number, column: (self.indent + offset + 1) as u32 }
    }

    fn is_item(&self) -> bool {
        self.chars.first() == Some(&'-') && self.chars.get(1).is_none_or(|c| *c == ' ')
    }
}

fn lines(text: &str) -> Result<Vec<Line>, Fault> {
    let mut all: Vec<Line> = Vec::new();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (number, line) in (1..).zip(text.lines()) {
        let indent = line.chars().take_while(|c| *c == ' ').count();
        let chars: Vec<char> = line.chars().skip(indent).collect();
        let end = chars.iter().rposition(|c| !c.is_whitespace()).map_or(0, |last| last + 1);
        let one = Line { number, indent, chars: chars[..end].to_vec() };
        if let Some(bad) = one.chars.iter().position(|c| c.is_control()) {
            let what =
                if one.chars[bad] == '\t' { "a tab; indent with spaces" } else { "a control character" };
            return Err(Fault::new(one.at(bad), what));
        }
        match one.chars.first() {
            None | Some('#') => {}
            Some('-') if one.indent == 0 && one.chars.iter().collect::<String>() == "---" => {
                if !all.is_empty() {
                    return Err(Fault::new(one.at(0), "a second document; one is read"));
                }
            }
            Some('%') => return Err(Fault::new(one.at(0), "directives are not read")),
            Some(_) => all.push(one),
        }
    }
    Ok(all)
}

struct Reader {
    lines: Vec<Line>,
    line: usize,
    nodes: usize,
}

impl Reader {
    fn here(&self, offset: usize) -> At {
        self.lines
            .get(self.line)
            .or(self.lines.last())
            .map_or(At { line: 1, column: 1 }, |line| line.at(offset))
    }

    fn node(&mut self, at: At, value: Value) -> Result<Node, Fault> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(Fault::new(at, format!("more than {NODES_MAX} values")));
        }
        Ok(Node { at, value })
    }

    /// What begins in this line, at this indentation.
    fn block(&mut self, indent: usize, depth: usize) -> Result<Node, Fault> {
        if depth > DEPTH_MAX {
            return Err(Fault::new(self.here(0), format!("nested deeper than {DEPTH_MAX}")));
        }
        let line = &self.lines[self.line];
        if line.is_item() {
            return self.list(indent, depth);
        }
        if matches!(line.chars[0], '{' | '[') || self.name_end(0)?.is_none() {
            return self.inline(0, depth);
        }
        self.map(indent, depth)
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Node, Fault> {
        let at = self.here(0);
        let mut items = Vec::new();
        while let Some(line) = self.lines.get(self.line) {
            if line.indent != indent || !line.is_item() {
                self.check_left(indent)?;
                break;
            }
            let rest = line.chars.iter().skip(1).position(|c| *c != ' ').map(|at| at + 1);
            let item = match rest.filter(|rest| line.chars[*rest] != '#') {
                None => self.below(indent, depth, false)?,
                Some(rest) => {
                    let inner = line.indent + rest;
                    let is_nested =
                        line.chars[rest] == '-' && line.chars.get(rest + 1).is_none_or(|c| *c == ' ');
                    let is_flow = matches!(line.chars[rest], '{' | '[');
                    if is_nested || (!is_flow && self.name_end(rest)?.is_some()) {
                        // The rest of the line is the first one of a block that is indented as far as it stands.
                        let line = &mut self.lines[self.line];
                        line.chars.drain(..rest);
                        line.indent = inner;
                        self.block(inner, depth + 1)?
                    } else {
                        self.inline(rest, depth + 1)?
                    }
                }
            };
            items.push(item);
        }
        self.node(at, Value::List(items))
    }

    fn map(&mut self, indent: usize, depth: usize) -> Result<Node, Fault> {
        let at = self.here(0);
        let mut fields: Vec<(Name, Node)> = Vec::new();
        while let Some(line) = self.lines.get(self.line) {
            if line.indent != indent || line.is_item() {
                self.check_left(indent)?;
                break;
            }
            let Some((text, colon)) = self.name_end(0)? else {
                return Err(Fault::new(self.here(0), "expected `name: value`"));
            };
            let name = Name { at: self.here(0), text };
            if let Some((other, _)) = fields.iter().find(|(other, _)| other.text == name.text) {
                let message = format!("`{}` is there twice, first in line {}", name.text, other.at.line);
                return Err(Fault::new(name.at, message));
            }
            let line = &self.lines[self.line];
            let rest = (colon + 1..line.chars.len()).find(|at| line.chars[*at] != ' ');
            let value = match rest.filter(|rest| line.chars[*rest] != '#') {
                None => self.below(indent, depth, true)?,
                Some(rest) => self.inline(rest, depth + 1)?,
            };
            fields.push((name, value));
        }
        self.node(at, Value::Map(fields))
    }

    /// A line that is indented further than the block that it follows belongs to nothing.
    fn check_left(&self, indent: usize) -> Result<(), Fault> {
        match self.lines.get(self.line) {
            Some(line) if line.indent > indent => {
                let message = format!("indented by {} spaces, where {indent} are expected", line.indent);
                Err(Fault::new(line.at(0), message))
            }
            _ => Ok(()),
        }
    }

    /// What stands in the lines below one that ends with a name or a dash.
    fn below(&mut self, indent: usize, depth: usize, may_list: bool) -> Result<Node, Fault> {
        let at = self.here(0);
        self.line += 1;
        let Some(next) = self.lines.get(self.line) else { return self.node(at, Value::Empty) };
        let inner = next.indent;
        if inner > indent || (may_list && inner == indent && next.is_item()) {
            return self.block(inner, depth + 1);
        }
        self.node(at, Value::Empty)
    }

    /// A value that begins in this line and is not a block; the next line is read behind it.
    fn inline(&mut self, offset: usize, depth: usize) -> Result<Node, Fault> {
        let at = self.here(offset);
        let first = self.lines[self.line].chars[offset];
        if matches!(first, '[' | '{') {
            let (node, end) = self.flow(offset, depth)?;
            self.end_line(end)?;
            return Ok(node);
        }
        if matches!(first, '"' | '\'') {
            let (text, end) = self.quoted(offset)?;
            self.end_line(end)?;
            return self.node(at, Value::Word(text));
        }
        self.check_plain(offset)?;
        let chars = &self.lines[self.line].chars;
        let end = comment_from(chars, offset);
        let text: String = chars[offset..end].iter().collect();
        let text = text.trim_end().to_owned();
        if let Some(colon) = text.find(": ") {
            let column = text[..colon].chars().count();
            return Err(Fault::new(self.here(offset + column), "a value with `: ` in it needs quotes"));
        }
        self.line += 1;
        let value = if matches!(text.as_str(), "~" | "null") { Value::Empty } else { Value::Word(text) };
        self.node(at, value)
    }

    fn check_plain(&self, offset: usize) -> Result<(), Fault> {
        let first = self.lines[self.line].chars[offset];
        let what = match first {
            '&' | '*' => "anchors and aliases are not read; write it out",
            '!' => "tags are not read",
            '|' | '>' => "values over several lines are not read; write it in quotes, in one line",
            '@' | '`' | '%' => "a value that begins with this needs quotes",
            ']' | '}' | ',' => "this opens nothing",
            '?' if self.lines[self.line].chars.get(offset + 1) == Some(&' ') => "complex names are not read",
            _ => return Ok(()),
        };
        Err(Fault::new(self.here(offset), what))
    }

    /// Nothing but a comment may follow in this line.
    fn end_line(&mut self, offset: usize) -> Result<(), Fault> {
        let chars = &self.lines[self.line].chars;
        let rest = (offset..chars.len()).find(|at| chars[*at] != ' ');
        if let Some(rest) = rest.filter(|rest| chars[*rest] != '#') {
            return Err(Fault::new(self.here(rest), "nothing is expected behind this value"));
        }
        self.line += 1;
        Ok(())
    }

    /// The name that begins there, and where its colon is; none if this is no `name: value`.
    fn name_end(&self, offset: usize) -> Result<Option<(String, usize)>, Fault> {
        let chars = &self.lines[self.line].chars;
        let ends = |colon: usize| chars.get(colon + 1).is_none_or(|c| *c == ' ');
        if matches!(chars[offset], '"' | '\'') {
            let (text, end) = self.quoted(offset)?;
            let is_name = chars.get(end) == Some(&':') && ends(end);
            return Ok(is_name.then_some((text, end)));
        }
        let end = comment_from(chars, offset);
        let colon = (offset..end).find(|at| chars[*at] == ':' && ends(*at));
        let Some(colon) = colon else { return Ok(None) };
        self.check_plain(offset)?;
        let text: String = chars[offset..colon].iter().collect();
        Ok(Some((text.trim_end().to_owned(), colon)))
    }

    /// A word in quotes, and the offset behind it. It ends in its line.
    fn quoted(&self, offset: usize) -> Result<(String, usize), Fault> {
        let chars = &self.lines[self.line].chars;
        let quote = chars[offset];
        let (mut text, mut at) = (String::new(), offset + 1);
        loop {
            let Some(c) = chars.get(at).copied() else {
                return Err(Fault::new(self.here(offset), "the quotes are not closed in this line"));
            };
            match c {
                '\'' if quote == '\'' && chars.get(at + 1) == Some(&'\'') => {
                    text.push('\'');
                    at += 2;
                }
                c if c == quote => return Ok((text, at + 1)),
                '\\' if quote == '"' => {
                    let (c, len) = self.escaped(at)?;
                    text.push(c);
                    at += len;
                }
                c => {
                    text.push(c);
                    at += 1;
                }
            }
        }
    }

    fn escaped(&self, at: usize) -> Result<(char, usize), Fault> {
        let chars = &self.lines[self.line].chars;
        let wrong = || Fault::new(self.here(at), "this is no escape that is known");
        let c = match chars.get(at + 1).ok_or_else(wrong)? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            c @ ('"' | '\\' | '/' | ' ') => *c,
            'u' => {
                let digits: String = chars.iter().skip(at + 2).take(4).collect();
                let is_hex = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let code = u32::from_str_radix(&digits, 16).ok().filter(|_| is_hex);
                return Ok((code.and_then(char::from_u32).ok_or_else(wrong)?, 6));
            }
            _ => return Err(wrong()),
        };
        Ok((c, 2))
    }

    /// Goes to the next character that is none between values, in this line or one below.
    fn skip(&mut self, mut offset: usize) -> Result<usize, Fault> {
        loop {
            let Some(line) = self.lines.get(self.line) else {
                let last = self.lines.last().expect("a list or map was opened");
                return Err(Fault::new(last.at(last.chars.len()), "a list or map is not closed"));
            };
            match line.chars.get(offset) {
                Some(' ') => offset += 1,
                Some('#') if offset == 0 || line.chars[offset - 1] == ' ' => offset = line.chars.len(),
                Some(_) => return Ok(offset),
                None => {
                    self.line += 1;
                    offset = 0;
                }
            }
        }
    }

    /// A list or map in brackets, and the offset behind it in the line where it ends.
    fn flow(&mut self, offset: usize, depth: usize) -> Result<(Node, usize), Fault> {
        let at = self.here(offset);
        if depth > DEPTH_MAX {
            return Err(Fault::new(at, format!("nested deeper than {DEPTH_MAX}")));
        }
        let is_list = self.lines[self.line].chars[offset] == '[';
        let close = if is_list { ']' } else { '}' };
        let (mut items, mut fields): (Vec<Node>, Vec<(Name, Node)>) = (Vec::new(), Vec::new());
        let mut offset = self.skip(offset + 1)?;
        loop {
            if self.lines[self.line].chars[offset] == close {
                let value = if is_list { Value::List(items) } else { Value::Map(fields) };
                return Ok((self.node(at, value)?, offset + 1));
            }
            if is_list {
                let (item, end) = self.flow_value(offset, depth)?;
                items.push(item);
                offset = self.skip(end)?;
            } else {
                let name_at = self.here(offset);
                let (name, end) = self.flow_value(offset, depth)?;
                let Value::Word(text) = name.value else {
                    return Err(Fault::new(name_at, "a name is expected here"));
                };
                if fields.iter().any(|(other, _)| other.text == text) {
                    return Err(Fault::new(name_at, format!("`{text}` is there twice")));
                }
                offset = self.skip(end)?;
                if self.lines[self.line].chars[offset] != ':' {
                    return Err(Fault::new(self.here(offset), format!("`:` is expected behind `{text}`")));
                }
                offset = self.skip(offset + 1)?;
                let (value, end) = self.flow_value(offset, depth)?;
                fields.push((Name { at: name_at, text }, value));
                offset = self.skip(end)?;
            }
            match self.lines[self.line].chars[offset] {
                ',' => offset = self.skip(offset + 1)?,
                c if c == close => {}
                _ => {
                    let message = format!("`,` or `{close}` is expected here");
                    return Err(Fault::new(self.here(offset), message));
                }
            }
        }
    }

    fn flow_value(&mut self, offset: usize, depth: usize) -> Result<(Node, usize), Fault> {
        let at = self.here(offset);
        let chars = &self.lines[self.line].chars;
        match chars[offset] {
            '[' | '{' => self.flow(offset, depth + 1),
            '"' | '\'' => {
                let (text, end) = self.quoted(offset)?;
                Ok((self.node(at, Value::Word(text))?, end))
            }
            _ => {
                self.check_plain(offset)?;
                let chars = &self.lines[self.line].chars;
                let stops = |at: usize| {
                    let next = chars.get(at + 1);
                    matches!(chars[at], ',' | ']' | '}' | '[' | '{')
                        || (chars[at] == ':' && next.is_none_or(|c| matches!(c, ' ' | ',' | ']' | '}')))
                        || (chars[at] == '#' && at > 0 && chars[at - 1] == ' ')
                };
                let end = (offset..chars.len()).find(|at| stops(*at)).unwrap_or(chars.len());
                if end == offset {
                    return Err(Fault::new(at, "a value is expected here"));
                }
                let text: String = chars[offset..end].iter().collect();
                let text = text.trim_end();
                let value =
                    if matches!(text, "~" | "null") { Value::Empty } else { Value::Word(text.to_owned()) };
                Ok((self.node(at, value)?, end))
            }
        }
    }
}

/// Where a comment begins behind a plain value, or the line ends.
fn comment_from(chars: &[char], offset: usize) -> usize {
    let is_comment = |at: &usize| chars[*at] == '#' && *at > offset && chars[*at - 1] == ' ';
    (offset..chars.len()).find(is_comment).unwrap_or(chars.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(node: &Node) -> String {
        match &node.value {
            Value::Empty => "~".into(),
            Value::Word(text) => format!("{text:?}"),
            Value::List(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(",")),
            Value::Map(fields) => {
                let one = |(name, node): &(Name, Node)| format!("{}:{}", name.text, shown(node));
                format!("{{{}}}", fields.iter().map(one).collect::<Vec<_>>().join(","))
            }
        }
    }

    #[test]
    fn what_is_read() {
        for (text, expect) in [
            ("", "{}"),
            ("# nothing\n\n", "{}"),
            ("---\na: 1\n", r#"{a:"1"}"#),
            ("a:\n  b: x # why\n  c: \"y # z\"\nd:\n", r#"{a:{b:"x",c:"y # z"},d:~}"#),
            ("a:\n- 1\n- 2\nb: 3", r#"{a:["1","2"],b:"3"}"#),
            ("a:\n  - s: s3://x/y\n    t: /in\n  - s: z\n", r#"{a:[{s:"s3://x/y",t:"/in"},{s:"z"}]}"#),
            ("a:\n  -\n    s: 1\n  - - x\n    - y\n", r#"{a:[{s:"1"},["x","y"]]}"#),
            ("a: {b: [1, two], 'c d': s3://e/f}", r#"{a:{b:["1","two"],c d:"s3://e/f"}}"#),
            ("{\"a\":{\"b\":[1,true,null]},\n \"c\":\"\\u00e4\\n\"}", r#"{a:{b:["1","true",~]},c:"ä\n"}"#),
            ("a: 'it''s'\n", r#"{a:"it's"}"#),
            ("a: x#y\nb: \"{user}\"\n", r#"{a:"x#y",b:"{user}"}"#),
            ("- 1\n- 2", r#"["1","2"]"#),
            ("a: []\nb: {}\n", "{a:[],b:{}}"),
            ("a: [1,\n  2, # two\n  3]\nb: x", r#"{a:["1","2","3"],b:"x"}"#),
            ("\u{feff}a: /home/{user}\r\n", r#"{a:"/home/{user}"}"#),
        ] {
            assert_eq!(read(text).map(|node| shown(&node)).as_deref(), Ok(expect), "{text:?}");
        }
    }

    #[test]
    fn what_is_refused_and_where() {
        for (text, line, column, part) in [
            ("a: 1\na: 2", 2, 1, "twice"),
            ("a:\n\tb: 1", 2, 1, "tab"),
            ("a: &x 1", 1, 4, "anchors"),
            ("a: *x", 1, 4, "anchors"),
            ("a: !!str 1", 1, 4, "tags"),
            ("a: |\n  x", 1, 4, "several lines"),
            ("a: b: c", 1, 5, "needs quotes"),
            ("a: 1\n  b: 2", 2, 3, "indented"),
            ("a:\n    b: 1\n  c: 2", 3, 3, ""),
            ("a: [1, 2", 1, 9, "not closed"),
            ("a: [1 2", 1, 8, "not closed"),
            ("a: \"x", 1, 4, "not closed"),
            ("a: \"x\" y", 1, 8, "nothing is expected"),
            ("a: 1\n---\nb: 2", 2, 1, "second document"),
            ("a: {b 1}", 1, 8, "`:` is expected"),
            ("a: {b: 1, b: 2}", 1, 11, "twice"),
            ("word\nother", 2, 1, "does not belong"),
            ("a: \"\\q\"", 1, 5, "escape"),
            ("a: ]", 1, 4, "opens nothing"),
            ("a: x\u{7}", 1, 5, "control"),
        ] {
            let fault = read(text).expect_err(text);
            assert_eq!((fault.at.line, fault.at.column), (line, column), "{text:?}: {fault}");
            assert!(fault.message.contains(part), "{text:?}: {fault}");
        }
        assert!(read(&"[".repeat(1_000)).unwrap_err().message.contains("deeper"));
        assert!(read(&"- ".repeat(1_000)).unwrap_err().message.contains("deeper"));
        assert!(read(&"a".repeat(TEXT_BYTES_MAX + 1)).unwrap_err().message.contains("at most"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[-a:{}\\[\\]\"'#, \\n\\\\&*|0~]{0,80}") {
            let _ = read(&text);
        }
    }
}
