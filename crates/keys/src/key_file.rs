//! A key-encryption key in a file: 32 bytes as 64 hexadecimal digits, private to its owner.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use zeroize::Zeroizing;

use crate::Secret;

/// Longest file that is read.
const LEN_MAX: u64 = 4 << 10;

/// Why there is no key in a file.
#[derive(Debug)]
pub enum KeyFileError {
    /// It cannot be read.
    Io(std::io::Error),
    /// It is not what it should be.
    Wrong(&'static str),
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyFileError::Io(fault) => fault.fmt(f),
            KeyFileError::Wrong(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for KeyFileError {}

/// Reads the key of a file.
pub fn read(path: &Path) -> Result<Secret, KeyFileError> {
    let file = File::open(path).map_err(KeyFileError::Io)?;
    if file.metadata().map_err(KeyFileError::Io)?.mode() & 0o077 != 0 {
        return Err(KeyFileError::Wrong("others can read it; make it private with `chmod 600`"));
    }
    let mut text = Zeroizing::new(Vec::with_capacity(LEN_MAX as usize));
    file.take(LEN_MAX).read_to_end(&mut text).map_err(KeyFileError::Io)?;
    let digits = text.trim_ascii();
    let wrong =
        KeyFileError::Wrong("it has to be 64 hexadecimal digits, as `openssl rand -hex 32` prints them");
    if digits.len() != 64 {
        return Err(wrong);
    }
    let mut bytes = Zeroizing::new([0; 32]);
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |text: u8| char::from(text).to_digit(16);
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else { return Err(wrong) };
        *byte = (high << 4 | low) as u8;
    }
    Ok(Secret::of(&*bytes).expect("32 bytes"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_are_read_with_care() {
        let path = std::env::temp_dir().join(format!("stoker-key-{}", std::process::id()));
        let put = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read(&path)
        };
        assert_eq!(put(&format!("{}\n", "0f".repeat(32)), 0o600).unwrap().bytes(), &[15; 32]);
        for wrong in ["", "zz", &"0".repeat(63), &"\u{e9}".repeat(32), &"g".repeat(64)] {
            assert!(put(wrong, 0o600).unwrap_err().to_string().contains("64"), "{wrong}");
        }
        assert!(put(&"0".repeat(64), 0o644).unwrap_err().to_string().contains("chmod 600"));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(read(&path), Err(KeyFileError::Io(_))));
    }
}
