//! Finds members by their headers alone. The scanner says which bytes it wants to see; whoever drives it fetches them.
//!
//! The bytes are foreign: lengths are checked against the length of the whole, what is kept is bounded, and forms that could
//! be read in two ways are refused.

use stoker_store::{ErrorKind, Result, StoreError};

use super::{BLOCK, NAME_LEN_MAX, padded};

/// Longest pax header that is looked at; a longer one is refused.
const PAX_LEN_MAX: u64 = 1 << 20;

/// A member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its whole name.
    pub name: Vec<u8>,
    /// Where its first header begins, which may be one that only carries the name.
    pub start: u64,
    /// Where its bytes begin.
    pub data: u64,
    /// How many they are.
    pub size: u64,
    /// Where the next header would begin.
    pub end: u64,
    /// False for directories, links and devices.
    pub is_file: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wants {
    Header,
    /// Records of a pax header.
    Pax(usize),
    /// A long name in the manner of GNU.
    LongName(usize),
    Nothing,
}

/// What headers in front of a member say of it.
#[derive(Default)]
struct Said {
    start: Option<u64>,
    name: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Goes from header to header.
pub struct Scanner {
    len: u64,
    at: u64,
    wants: Wants,
    said: Said,
    needs_end: bool,
}

fn damaged(at: u64, what: &str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("no sound tar: {what}, at byte {at}"))
}

impl Scanner {
    /// Over a whole tar of this length. One without its end mark is refused: it may be cut off.
    pub fn whole(len: u64) -> Scanner {
        Scanner { len, at: 0, wants: Wants::Header, said: Said::default(), needs_end: true }
    }

    /// Over a piece of a tar of this length, such as a sample.
    pub fn piece(len: u64) -> Scanner {
        Scanner { needs_end: false, ..Scanner::whole(len) }
    }

    /// Where the bytes are that have to be looked at next, and how many; none at the end.
    pub fn wants(&self) -> Result<Option<(u64, usize)>> {
        let len = match self.wants {
            Wants::Nothing => return Ok(None),
            Wants::Pax(len) | Wants::LongName(len) => len,
            Wants::Header if self.at == self.len && self.said.start.is_some() => {
                return Err(damaged(self.at, "it ends behind a header without its member"));
            }
            Wants::Header if self.at == self.len && self.needs_end => {
                return Err(damaged(self.at, "its end mark is missing, so it may be cut off"));
            }
            Wants::Header if self.at == self.len => return Ok(None),
            Wants::Header if self.len - self.at < BLOCK => {
                return Err(damaged(self.at, "a header is cut off"));
            }
            Wants::Header => BLOCK as usize,
        };
        Ok(Some((self.at, len)))
    }

    /// Looks at the wanted bytes. Gives a member when its header was complete.
    ///
    /// Panics if they are not as many as were wanted.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Option<Member>> {
        let wanted = self.wants()?.map_or(0, |(_, len)| len);
        assert_eq!(bytes.len(), wanted, "the bytes that were wanted");
        match self.wants {
            Wants::Nothing => Ok(None),
            Wants::Header => self.take_header(bytes),
            Wants::Pax(len) => {
                self.take_pax(bytes)?;
                self.skip(len as u64)
            }
            Wants::LongName(len) => {
                let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                self.said.name = Some(bytes[..end].to_vec());
                self.skip(len as u64)
            }
        }
    }

    /// Goes behind bytes that are inside: that was checked with their header.
    fn skip(&mut self, len: u64) -> Result<Option<Member>> {
        self.at = padded(len).and_then(|len| self.at.checked_add(len)).unwrap_or(self.len).min(self.len);
        self.wants = Wants::Header;
        Ok(None)
    }

    fn take_header(&mut self, head: &[u8]) -> Result<Option<Member>> {
        let at = self.at;
        if head.iter().all(|byte| *byte == 0) {
            if self.said.start.is_some() {
                return Err(damaged(at, "it ends behind a header without its member"));
            }
            self.wants = Wants::Nothing;
            return Ok(None);
        }
        if !sum_holds(head) {
            return Err(damaged(at, "the checksum of a header does not hold"));
        }
        if &head[257..262] != b"ustar" {
            return Err(damaged(at, "a header is not of the ustar form"));
        }
        let own_size = number(&head[124..136]).ok_or_else(|| damaged(at, "a size is no number"))?;
        let kind = head[156];
        let is_extra = matches!(kind, b'x' | b'g' | b'L' | b'K');
        let size = if is_extra { own_size } else { self.said.size.unwrap_or(own_size) };
        let data = at + BLOCK;
        let end = padded(size).and_then(|len| data.checked_add(len)).filter(|end| *end <= self.len);
        let end = end.ok_or_else(|| damaged(at, "a member goes on behind the end"))?;
        if is_extra {
            return self.take_extra(kind, size, data, end);
        }
        let is_file = match kind {
            b'0' | b'7' | 0 => true,
            b'1'..=b'6' if size == 0 => false,
            b'1'..=b'6' => return Err(damaged(at, "a link, device or directory has bytes")),
            _ => {
                let message =
                    format!("a tar with members of the kind {:?} is not supported", char::from(kind));
                return Err(StoreError::new(ErrorKind::Invalid, message));
            }
        };
        let said = std::mem::take(&mut self.said);
        let name = said.name.unwrap_or_else(|| own_name(head));
        if name.is_empty() || name.len() > NAME_LEN_MAX || name.contains(&0) {
            return Err(damaged(at, "a member has no name, or one that is too long"));
        }
        // The oldest writers mark a directory by the end of its name alone.
        let is_file = is_file && !(size == 0 && name.ends_with(b"/"));
        self.at = end;
        Ok(Some(Member { name, start: said.start.unwrap_or(at), data, size, end, is_file }))
    }

    fn take_extra(&mut self, kind: u8, size: u64, data: u64, end: u64) -> Result<Option<Member>> {
        let at = self.at;
        match kind {
            b'x' if size > PAX_LEN_MAX => return Err(damaged(at, "a pax header is too long")),
            b'L' if size > NAME_LEN_MAX as u64 + 1 => return Err(damaged(at, "a name is too long")),
            // Nothing that is said for all members matters here.
            b'g' if self.said.start.is_none() => {
                self.at = end;
                return Ok(None);
            }
            b'g' => return Err(damaged(at, "a header for all members stands in front of a single one")),
            _ => {}
        }
        self.said.start.get_or_insert(at);
        (self.at, self.wants) = match kind {
            b'x' if size > 0 => (data, Wants::Pax(size as usize)),
            b'L' if size > 0 => (data, Wants::LongName(size as usize)),
            _ => (end, Wants::Header),
        };
        Ok(None)
    }

    fn take_pax(&mut self, mut bytes: &[u8]) -> Result<()> {
        let bad = || damaged(self.at, "a pax header makes no sense");
        while !bytes.is_empty() {
            let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(bad)?;
            let len = decimal(&bytes[..space]).and_then(|len| usize::try_from(len).ok()).ok_or_else(bad)?;
            if len <= space + 1 || len > bytes.len() {
                return Err(bad());
            }
            let record = bytes[space + 1..len].strip_suffix(b"\n").ok_or_else(bad)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
            let (name, value) = (&record[..equals], &record[equals + 1..]);
            match name {
                b"path" => self.said.name = Some(value.to_vec()),
                b"size" => self.said.size = Some(decimal(value).ok_or_else(bad)?),
                _ if name.starts_with(b"GNU.sparse.") => {
                    let message = "a tar with sparse members is not supported";
                    return Err(StoreError::new(ErrorKind::Invalid, message));
                }
                _ => {}
            }
            bytes = &bytes[len..];
        }
        Ok(())
    }
}

/// The files of a piece of a tar that lies in memory, such as a sample.
pub fn members(bytes: &[u8]) -> Result<Vec<Member>> {
    let (mut scanner, mut found) = (Scanner::piece(bytes.len() as u64), Vec::new());
    while let Some((at, len)) = scanner.wants()? {
        let at = at as usize;
        found.extend(scanner.take(&bytes[at..at + len])?.filter(|member| member.is_file));
    }
    Ok(found)
}

/// Some old writers added the bytes up as signed ones.
fn sum_holds(head: &[u8]) -> bool {
    let Some(told) = number(&head[148..156]) else { return false };
    let others = || head[..148].iter().chain(&head[156..]);
    let unsigned: u64 = others().map(|byte| u64::from(*byte)).sum::<u64>() + 8 * u64::from(b' ');
    let signed: i64 = others().map(|byte| i64::from(*byte as i8)).sum::<i64>() + 8 * i64::from(b' ');
    told == unsigned || i64::try_from(told) == Ok(signed)
}

fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

fn own_name(head: &[u8]) -> Vec<u8> {
    let name = text(&head[..100]);
    // GNU's own form has other things where ustar has the prefix.
    let prefix = if &head[257..263] == b"ustar\0" { text(&head[345..500]) } else { b"" };
    if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
}

/// Octal digits with blanks around them, or a binary number in the manner of GNU.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (low, high) = (&field[field.len().saturating_sub(8)..], &field[..field.len().saturating_sub(8)]);
        let high_is_zero = high.first() == Some(&0x80) && high[1..].iter().all(|byte| *byte == 0);
        return high_is_zero.then(|| low.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)));
    }
    let digits = text(field).trim_ascii();
    if !digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) {
        return None;
    }
    // Twelve octal digits at most: no overflow.
    Some(digits.iter().fold(0, |value, digit| value << 3 | u64::from(digit - b'0')))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    if digits.starts_with('+') { None } else { digits.parse().ok() }
}
