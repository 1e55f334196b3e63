//! Patterns with `*` for any bytes and `?` for one.

/// A pattern, and where the name of who asks goes into it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pattern {
    text: String,
    has_name: bool,
}

/// The one variable that policies may have.
const NAME: &str = "${aws:username}";

impl Pattern {
    /// Reads a pattern; none if it has a variable that nobody fills in here.
    pub fn parse(text: &str) -> Option<Pattern> {
        let rest = text.replace(NAME, "");
        // AWS's ways to write the signs themselves are variables, too.
        (!rest.contains("${")).then(|| Pattern { text: text.to_owned(), has_name: rest.len() != text.len() })
    }

    /// As written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether all of it is this. A pattern about a name fits nobody who has none.
    pub fn fits(&self, value: &[u8], name: Option<&str>) -> bool {
        self.filled(name).is_some_and(|text| fits(text.as_bytes(), value))
    }

    /// Whether something that begins so may fit.
    pub fn may_fit_below(&self, beginning: &[u8], name: Option<&str>) -> bool {
        self.filled(name).is_some_and(|text| may_fit_below(text.as_bytes(), beginning))
    }

    /// Whether everything that begins so fits.
    pub fn fits_all_below(&self, beginning: &[u8], name: Option<&str>) -> bool {
        self.text.ends_with('*') && self.fits(beginning, name)
    }

    fn filled(&self, name: Option<&str>) -> Option<std::borrow::Cow<'_, str>> {
        match (self.has_name, name) {
            (false, _) => Some(self.text.as_str().into()),
            (true, Some(name)) => Some(self.text.replace(NAME, name).into()),
            (true, None) => None,
        }
    }
}

/// Whether all of a value fits a pattern. Takes at most the product of both lengths.
pub(super) fn fits(pattern: &[u8], value: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    // The last star, and how much of the value it has taken.
    let mut star: Option<(usize, usize)> = None;
    while of < value.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, of));
                at += 1;
            }
            Some(b'?') => (at, of) = (at + 1, of + 1),
            Some(byte) if *byte == value[of] => (at, of) = (at + 1, of + 1),
            _ => {
                let Some((behind, taken)) = star else { return false };
                star = Some((behind, taken + 1));
                (at, of) = (behind, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Whether some value that begins so fits.
fn may_fit_below(pattern: &[u8], beginning: &[u8]) -> bool {
    // Up to its first star a pattern says byte for byte what a value has; behind it anything may come.
    let fixed = pattern.iter().position(|byte| *byte == b'*').unwrap_or(pattern.len());
    let head = &pattern[..fixed];
    let is_open = fixed < pattern.len();
    let alike = head.iter().zip(beginning).all(|(sign, byte)| *sign == b'?' || sign == byte);
    alike && (is_open || head.len() >= beginning.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, value, is_fit) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "a/b", true),
            ("a/*", "a/", true),
            ("a/*", "a", false),
            ("a/*/c", "a/b/b/c", true),
            ("a/*/c", "a/b/d", false),
            ("*.log", "x.log.log", true),
            ("*.log", "x.logs", false),
            ("?b*", "ab", true),
            ("?b*", "b", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXcYb", false),
            ("**a**", "xxaxx", true),
        ] {
            assert_eq!(fits(pattern.as_bytes(), value.as_bytes()), is_fit, "{pattern} {value}");
        }
    }

    #[test]
    fn what_may_be_below() {
        for (pattern, beginning, may) in [
            ("a/secret/*", "a/", true),
            ("a/secret/*", "b/", false),
            ("a/secret/*", "a/secret/x/", true),
            ("a/secret/*", "a/sec", true),
            ("*/secret", "a/", true),
            ("a/b", "a/", true),
            ("a/b", "a/b/", false),
            ("?/b", "a/", true),
            ("*", "", true),
        ] {
            assert_eq!(may_fit_below(pattern.as_bytes(), beginning.as_bytes()), may, "{pattern} {beginning}");
        }
    }

    #[test]
    fn names_are_filled_in_and_other_variables_are_refused() {
        let home = Pattern::parse("home/${aws:username}/*").unwrap();
        assert!(home.fits(b"home/alice/x", Some("alice")));
        assert!(!home.fits(b"home/bob/x", Some("alice")));
        assert!(!home.fits(b"home//x", None));
        assert_eq!(Pattern::parse("home/${aws:userid}/*"), None);
        assert_eq!(Pattern::parse("a${*}b"), None);
    }

    #[test]
    fn a_long_pattern_ends() {
        let pattern = "*a".repeat(500);
        assert!(!fits(pattern.as_bytes(), "a".repeat(499).as_bytes()));
        assert!(fits(pattern.as_bytes(), "a".repeat(1_000).as_bytes()));
    }
}
