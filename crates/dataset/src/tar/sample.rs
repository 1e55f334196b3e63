//! The members of a sample that lies in memory: names and ranges, without a copy.
//!
//! The bytes were checked by the store, and a seal or a scan has found the sample by its headers. So header sums are not added
//! up a second time, and what is no regular file is passed over; but no length is believed to stay inside of the sample.

use std::borrow::Cow;
use std::ops::Range;

/// Longest name or pax record that is looked at.
const EXTRA_LEN_MAX: usize = 1 << 20;

const BLOCK: usize = super::BLOCK as usize;

/// Why bytes are no sample.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoSample(pub String);

/// A file of a sample.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    /// Its whole name.
    pub name: Cow<'a, [u8]>,
    /// Its bytes in the sample.
    pub range: Range<usize>,
}

/// Stem and extension: the path up to the first dot of its last part, and what follows that dot.
pub fn divide(name: &[u8]) -> (&[u8], &[u8]) {
    let stem = super::stem(name);
    (stem, name.get(stem.len() + 1..).unwrap_or_default())
}

/// Goes from file to file. Ends at the first error.
pub struct Pieces<'a> {
    bytes: &'a [u8],
    at: usize,
    name: Option<&'a [u8]>,
    size: Option<usize>,
    is_over: bool,
}

/// The files of a sample.
pub fn pieces(bytes: &[u8]) -> Pieces<'_> {
    Pieces { bytes, at: 0, name: None, size: None, is_over: false }
}

impl<'a> Pieces<'a> {
    fn step(&mut self) -> Result<Option<Piece<'a>>, NoSample> {
        while let Some(head) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<BLOCK>()) {
            let at = self.at;
            if &head[257..262] != b"ustar" {
                if head.iter().all(|byte| *byte == 0) {
                    return Ok(None);
                }
                return Err(NoSample(format!("there is no header of a member at {at}")));
            }
            let (kind, start) = (head[156], at + BLOCK);
            let is_file = matches!(kind, b'0' | b'7' | 0);
            let own = number(&head[124..136])?;
            let size = if is_file { self.size.take().unwrap_or(own) } else { own };
            let what = if is_file { "member" } else { "header" };
            let end = start.checked_add(size).filter(|end| *end <= self.bytes.len()).ok_or_else(|| {
                NoSample(format!("a {what} of {size} bytes at {at} does not end inside of its sample"))
            })?;
            self.at = end.next_multiple_of(BLOCK);
            if is_file {
                let name = match self.name.take() {
                    Some(name) => Cow::Borrowed(name),
                    None => own_name(&self.bytes[at..start]),
                };
                return Ok(Some(Piece { name, range: start..end }));
            }
            match kind {
                b'L' => self.name = Some(trimmed(bounded(&self.bytes[start..end])?)),
                b'x' => self.learn(bounded(&self.bytes[start..end])?)?,
                b'g' | b'K' => {}
                _ => (self.name, self.size) = (None, None),
            }
        }
        if self.at < self.bytes.len() {
            return Err(NoSample("the sample ends within a header".to_owned()));
        }
        Ok(None)
    }

    fn learn(&mut self, mut record: &'a [u8]) -> Result<(), NoSample> {
        let bad = || NoSample("a pax record cannot be read".to_owned());
        while !record.is_empty() {
            let space = record.iter().position(|byte| *byte == b' ').ok_or_else(bad)?;
            let len = decimal(&record[..space], 8).ok_or_else(bad)?;
            let line = record.get(space + 1..len).and_then(<[u8]>::split_last).ok_or_else(bad)?.1;
            let equals = line.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
            let (name, value) = (&line[..equals], &line[equals + 1..]);
            match name {
                b"path" => self.name = Some(value),
                b"size" => {
                    let size =
                        decimal(value, 18).ok_or_else(|| NoSample("a pax size cannot be read".to_owned()))?;
                    self.size = Some(size);
                }
                _ if name.starts_with(b"GNU.sparse.") => {
                    return Err(NoSample("a sparse member: make the tar without --sparse".to_owned()));
                }
                _ => {}
            }
            record = &record[len..];
        }
        Ok(())
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Result<Piece<'a>, NoSample>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let found = self.step().transpose();
        self.is_over = !matches!(found, Some(Ok(_)));
        found
    }
}

fn bounded(record: &[u8]) -> Result<&[u8], NoSample> {
    if record.len() > EXTRA_LEN_MAX {
        return Err(NoSample(format!("a name or record of more than {EXTRA_LEN_MAX} bytes")));
    }
    Ok(record)
}

fn trimmed(name: &[u8]) -> &[u8] {
    &name[..name.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)]
}

fn text(field: &[u8]) -> &[u8] {
    &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
}

fn own_name(head: &[u8]) -> Cow<'_, [u8]> {
    let name = text(&head[..100]);
    // GNU's own form has other things where ustar has the prefix.
    if head[345] == 0 || &head[257..263] != b"ustar\0" {
        return Cow::Borrowed(name);
    }
    Cow::Owned([text(&head[345..500]), b"/", name].concat())
}

/// A size: octal digits with blanks around them, or a binary number in the manner of GNU.
fn number(field: &[u8]) -> Result<usize, NoSample> {
    let beyond = || NoSample("a size of a member is out of range".to_owned());
    if matches!(field[0], 0x80 | 0xff) {
        let (high, low) = field[1..].split_at(field.len() - 9);
        let value = low.iter().fold(0, |value: u64, byte| value << 8 | u64::from(*byte));
        let fits = field[0] == 0x80 && high.iter().all(|byte| *byte == 0) && value < 1 << 63;
        return if fits { usize::try_from(value).map_err(|_| beyond()) } else { Err(beyond()) };
    }
    let is_blank = |byte: &u8| matches!(byte, 0 | b' ');
    let first = field.iter().position(|byte| !is_blank(byte)).unwrap_or(field.len());
    let last = field.iter().rposition(|byte| !is_blank(byte)).map_or(first, |at| at + 1);
    let digits = &field[first..last];
    if !digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) {
        let shown = String::from_utf8_lossy(digits);
        return Err(NoSample(format!("{shown:?} is no size of a member")));
    }
    // Twelve octal digits at most: no overflow.
    Ok(digits.iter().fold(0, |value, digit| value << 3 | usize::from(digit - b'0')))
}

fn decimal(digits: &[u8], len_max: usize) -> Option<usize> {
    let is_number = !digits.is_empty() && digits.len() <= len_max && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| digits.iter().fold(0, |value, digit| value * 10 + usize::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::header;
    use super::*;

    fn sample_of(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut tar = Vec::new();
        for (name, bytes) in files {
            tar.extend(header(name.as_bytes(), bytes.len() as u64, 0));
            tar.extend_from_slice(bytes);
            tar.resize(tar.len().next_multiple_of(BLOCK), 0);
        }
        tar
    }

    fn read(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, NoSample> {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        pieces(bytes).map(|one| one.map(|one| (text(&one.name), bytes[one.range].to_vec()))).collect()
    }

    #[test]
    fn members_are_found_with_names_of_any_length() {
        let (long, split) = ("y/".repeat(200) + "z.jpg", "p".repeat(80) + "/" + &"q".repeat(80) + ".x");
        let files: [(&str, &[u8]); 4] =
            [("a.jpg", b"one"), (&long, b""), (&split, &[7; 513]), ("a.cls", b"7")];
        let expect: Vec<_> = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let bytes = sample_of(&files);
        assert_eq!(read(&bytes), Ok(expect.clone()));
        assert_eq!(read(&[&bytes[..], &[0; 1024]].concat()), Ok(expect));
    }

    #[test]
    fn other_kinds_are_passed_over_and_forgotten() {
        let mut bytes = sample_of(&[("d/", b""), ("a.jpg", b"one")]);
        bytes[156] = b'5';
        assert_eq!(read(&bytes), Ok(vec![("a.jpg".to_owned(), b"one".to_vec())]));
        bytes[156] = b'L';
        assert_eq!(read(&bytes).unwrap()[0].0, "", "a long name of no bytes");
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_said() {
        let bytes = sample_of(&[("a.jpg", &[1; 600])]);
        let check = |bytes: &[u8], words: &str| {
            let fault = read(bytes).unwrap_err().0;
            assert!(fault.contains(words), "{fault}");
        };
        check(&bytes[..512], "does not end inside");
        check(&bytes[..100], "within a header");
        check(&[b'x'; 512], "no header of a member at 0");
        for (size, words) in [
            (b"77777777777\0", "does not end inside"),
            (b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", "out of range"),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "out of range"),
            (b"0000000128x\0", "is no size"),
        ] {
            let mut hurt = bytes.clone();
            hurt[124..136].copy_from_slice(size);
            check(&hurt, words);
        }
        // Without its padding a sample is still one.
        assert_eq!(read(&bytes[..512 + 600]).unwrap()[0].1, [1; 600]);
    }

    #[test]
    fn records_of_pax_are_bounded() {
        let record = |text: &str| {
            let mut tar = sample_of(&[("PaxHeaders/x", text.as_bytes()), ("a.txt", &[1; 10])]);
            tar[156] = b'x';
            read(&tar).map(|found| (found[0].0.clone(), found[0].1.len()))
        };
        assert_eq!(record("16 path=b/c.png\n"), Ok(("b/c.png".to_owned(), 10)));
        assert_eq!(record("9 size=3\n"), Ok(("a.txt".to_owned(), 3)));
        for text in [
            "99 path=b\n",
            "0 path=b\n",
            "x path=b\n",
            "+9 path=b\n",
            "9 pathbc\n",
            "16 size=99999999\n",
            "\n",
        ] {
            assert!(record(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_divided_at_the_first_dot_of_the_last_part() {
        for (name, stem, extension) in [
            ("a.b/c.d.e", "a.b/c", "d.e"),
            ("a.b/c", "a.b/c", ""),
            ("c", "c", ""),
            ("c.", "c", ""),
            (".x", "", "x"),
        ] {
            assert_eq!(divide(name.as_bytes()), (stem.as_bytes(), extension.as_bytes()), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(at in prop::collection::vec((0usize..4096, any::<u8>()), 0..20), len in 0usize..4096) {
            let mut bytes = sample_of(&[("a.jpg", &[1; 600]), (&"l".repeat(300), b"x"), ("a.cls", b"7")]);
            for (at, value) in at {
                let len = bytes.len();
                bytes[at % len] = value;
            }
            bytes.truncate(len);
            for one in pieces(&bytes).flatten() {
                prop_assert!(one.range.end <= bytes.len());
            }
        }
    }
}
