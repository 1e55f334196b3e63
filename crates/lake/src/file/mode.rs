//! Who may read what lies in a file lake: the file's own mode decides, and at most what the umask leaves.

use rustix::fs::Mode;

use crate::error::{LakeError, Result};
use crate::types::Attributes;

/// Metadata that tells the mode of a file, in octal digits.
const MODE: &str = "stoker-mode";

/// The modes of files and directories of a lake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes {
    umask: u32,
}

impl Default for Modes {
    /// For the owner alone.
    fn default() -> Modes {
        Modes { umask: 0o077 }
    }
}

impl Modes {
    /// Reads a umask as `umask` writes it. The owner always keeps all rights: it is we who read there.
    pub(crate) fn parse(umask: &str) -> Result<Modes> {
        let digits =
            (1..=4).contains(&umask.len()) && umask.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        match u32::from_str_radix(umask, 8) {
            Ok(umask) if digits && umask <= 0o077 => Ok(Modes { umask }),
            _ => Err(LakeError::invalid(format!(
                "`umask={umask}` is none; use 0077 (for the owner alone) to 0000, such as 0027"
            ))),
        }
    }

    /// Of a directory.
    pub(super) fn directory(self) -> Mode {
        Mode::from_raw_mode(0o777 & !self.umask)
    }

    /// Of a file of ours.
    pub(super) fn file(self) -> Mode {
        Mode::from_raw_mode(0o666 & !self.umask)
    }

    /// Of an object: that of the file, without anything that would let it be run by another user's right.
    pub(super) fn object(self, attributes: &Attributes) -> Mode {
        let own = attributes.meta.iter().find(|(name, _)| name == MODE);
        let own = own.and_then(|(_, mode)| u32::from_str_radix(mode, 8).ok()).unwrap_or(0o666);
        Mode::from_raw_mode((own & 0o777 & !self.umask) | 0o600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_mode_decides_below_the_umask() {
        let object = |umask: &str, mode: Option<&str>| {
            let meta = mode.map(|mode| (MODE.to_owned(), mode.to_owned())).into_iter().collect();
            let attributes = Attributes { meta, ..Attributes::default() };
            Modes::parse(umask).unwrap().object(&attributes).as_raw_mode()
        };
        let table = [
            ("0077", Some("100644"), 0o600),
            ("0027", Some("100644"), 0o640),
            ("0027", Some("100600"), 0o600),
            ("0022", Some("100755"), 0o755),
            ("0", Some("104755"), 0o755),
            ("0", Some("100000"), 0o600),
            ("0022", None, 0o644),
            ("0022", Some("no mode"), 0o644),
        ];
        for (umask, mode, expected) in table {
            assert_eq!(object(umask, mode), expected, "{umask} {mode:?}");
        }
        for wrong in ["", "0177", "077x", "00022", "+22", "0100"] {
            assert!(Modes::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Modes::default().directory().as_raw_mode(), 0o700);
        assert_eq!(Modes::default().file().as_raw_mode(), 0o600);
    }
}
