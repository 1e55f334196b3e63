//! `Range` headers.

/// What a range means for a file of some size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Range {
    /// Everything: no range, several ranges, or one that makes no sense.
    Whole,
    /// First byte, and the byte behind the last.
    Part(u64, u64),
    /// Beyond the end.
    Unsatisfiable,
}

impl Range {
    /// Reads the header's value.
    pub(crate) fn parse(text: Option<&str>, size: u64) -> Range {
        text.and_then(|text| Range::of(text, size)).unwrap_or(Range::Whole)
    }

    fn of(text: &str, size: u64) -> Option<Range> {
        let (unit, range) = text.split_once('=')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") || range.contains(',') {
            return None;
        }
        let (first, last) = range.trim().split_once('-')?;
        let (first, last) = (first.trim(), last.trim());
        if first.is_empty() {
            let suffix = number(last)?;
            return Some(if suffix == 0 || size == 0 {
                Range::Unsatisfiable
            } else {
                Range::Part(size.saturating_sub(suffix), size)
            });
        }
        let first = number(first)?;
        let end = if last.is_empty() { u64::MAX } else { number(last)?.saturating_add(1) };
        if end <= first && !last.is_empty() {
            return None;
        }
        Some(if first >= size { Range::Unsatisfiable } else { Range::Part(first, end.min(size)) })
    }
}

/// Digits only; more than fit are as good as the largest number.
fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::Range::{self, *};

    #[test]
    fn ranges_are_read() {
        for (text, size, expected) in [
            ("bytes=0-9", 100, Part(0, 10)),
            ("bytes=0-0", 100, Part(0, 1)),
            ("bytes=99-", 100, Part(99, 100)),
            ("bytes=90-200", 100, Part(90, 100)),
            ("bytes=-1", 100, Part(99, 100)),
            ("bytes=-1000", 100, Part(0, 100)),
            ("Bytes= 1 - 2 ", 100, Part(1, 3)),
            ("bytes=0-99999999999999999999", 100, Part(0, 100)),
            ("bytes=100-", 100, Unsatisfiable),
            ("bytes=99999999999999999999-", 100, Unsatisfiable),
            ("bytes=-0", 100, Unsatisfiable),
            ("bytes=0-", 0, Unsatisfiable),
            ("bytes=-5", 0, Unsatisfiable),
            ("bytes=5-2", 100, Whole),
            ("bytes=0-1,5-6", 100, Whole),
            ("bytes=a-b", 100, Whole),
            ("bytes=-", 100, Whole),
            ("bytes=+1-2", 100, Whole),
            ("bytes", 100, Whole),
            ("lines=0-1", 100, Whole),
            ("", 100, Whole),
        ] {
            assert_eq!(Range::parse(Some(text), size), expected, "{text} of {size}");
        }
        assert_eq!(Range::parse(None, 100), Whole);
    }

    proptest::proptest! {
        #[test]
        fn a_part_lies_inside(text in "bytes=[0-9]{0,21}-[0-9]{0,21}", size: u64) {
            if let Part(start, end) = Range::parse(Some(&text), size) {
                proptest::prop_assert!(start < end && end <= size);
            }
        }
    }
}
