//! Rust source without what is not code.

/// Blanks comments, strings and character literals; lines and columns stay where they were.
pub fn only(source: &str) -> String {
    let mut scanner =
        Scanner { chars: source.chars().collect(), at: 0, out: String::with_capacity(source.len()) };
    while scanner.at < scanner.chars.len() {
        scanner.step();
    }
    scanner.out
}

/// Words of a line: identifiers, keywords and numbers.
pub fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !is_word(c)).filter(|word| !word.is_empty())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct Scanner {
    chars: Vec<char>,
    at: usize,
    out: String,
}

impl Scanner {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn keep(&mut self) {
        self.out.push(self.chars[self.at]);
        self.at += 1;
    }

    fn blank(&mut self, count: usize) {
        for _ in 0..count {
            let Some(c) = self.peek(0) else { return };
            self.out.push(if c == '\n' { '\n' } else { ' ' });
            self.at += 1;
        }
    }

    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('/')) => self.line_comment(),
            (Some('/'), Some('*')) => self.block_comment(),
            (Some('"'), _) => self.string(),
            (Some('\''), _) => self.quote(),
            (Some(c), _) if is_word(c) => self.word(),
            _ => self.keep(),
        }
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.blank(1);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                (None, _) => return,
                _ => {
                    self.blank(1);
                    continue;
                }
            }
            self.blank(2);
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.blank(1);
        loop {
            match self.peek(0) {
                Some('\\') => self.blank(2),
                Some('"') | None => return self.blank(1),
                Some(_) => self.blank(1),
            }
        }
    }

    /// `'a'` and `'\n'` are literals; `'a` is a lifetime or a label.
    fn quote(&mut self) {
        if self.peek(1) == Some('\\') {
            self.blank(3);
            while self.peek(0).is_some_and(|c| c != '\'') {
                self.blank(1);
            }
            self.blank(1);
        } else if self.peek(2) == Some('\'') {
            self.blank(3);
        } else {
            self.keep();
        }
    }

    /// A word, or the prefix of a raw string: `r"`, `r#"`, `br##"`, `cr"`.
    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.keep();
        }
        let word: String = self.chars[start..self.at].iter().collect();
        if !matches!(word.as_str(), "r" | "br" | "cr") {
            return;
        }
        let hashes = (0..).take_while(|ahead| self.peek(*ahead) == Some('#')).count();
        if self.peek(hashes) != Some('"') {
            return;
        }
        self.blank(hashes + 1);
        while self.peek(0).is_some() && !self.closes_raw(hashes) {
            self.blank(1);
        }
        self.blank(hashes + 1);
    }

    fn closes_raw(&self, hashes: usize) -> bool {
        self.peek(0) == Some('"') && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expect: &[&str]) {
        let code = only(source);
        assert_eq!(words(&code).collect::<Vec<_>>(), expect, "{source}");
        assert_eq!(code.lines().count(), source.lines().count(), "{source}");
    }

    #[test]
    fn comments_are_blanked() {
        check("a // b\nc", &["a", "c"]);
        check("a /* b /* c */ d */ e", &["a", "e"]);
        check("/// a\n//! b\nc /* d", &["c"]);
    }

    #[test]
    fn strings_are_blanked() {
        check(r#"a "b \" c" d"#, &["a", "d"]);
        check("a r#\"b \" c\"# d", &["a", "r", "d"]);
        check("a br\"b\\\" c", &["a", "br", "c"]);
        check("a \"b\nc\" d", &["a", "d"]);
        check("a \"// b\" c", &["a", "c"]);
    }

    #[test]
    fn quotes_are_literals_or_lifetimes() {
        check(r"a '\'' b '\u{7f}' '\\' c", &["a", "b", "c"]);
        check("a '\"' b '/' c", &["a", "b", "c"]);
        check("fn f<'a>(b: &'a str)", &["fn", "f", "a", "b", "a", "str"]);
        check("r#type", &["r", "type"]);
    }
}
