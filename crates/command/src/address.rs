//! Names of things in Stoker on the command line: `VOLUME`, `VOLUME/KEY`, `stoker://VOLUME/KEY`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use stoker_store::{Key, check_volume_name};

use crate::failure::Failure;

const SCHEME: &str = "stoker://";

/// A volume, a key in it, or all keys with a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The volume.
    pub volume: String,
    /// What is behind the first slash; empty for the volume itself.
    pub path: String,
}

impl Address {
    /// The same with another path.
    pub fn with_path(&self, path: impl Into<String>) -> Address {
        Address { volume: self.volume.clone(), path: path.into() }
    }

    /// True if it cannot be one file: a volume, or a path that ends with a slash.
    pub fn is_folder(&self) -> bool {
        self.path.is_empty() || self.path.ends_with('/')
    }

    /// The path as a prefix of the keys below it: with a slash at its end unless it is the whole volume.
    pub fn folder(&self) -> String {
        if self.is_folder() { self.path.clone() } else { format!("{}/", self.path) }
    }

    /// The key; a whole volume is refused.
    pub fn key(&self) -> Result<Key, Failure> {
        if self.path.is_empty() {
            let cause = format!("`{self}` is a whole volume; a file is named VOLUME/KEY");
            return Err(Failure::new(cause).hint(format!("list its files with `stoker ls {}`", self.volume)));
        }
        Ok(Key::new(self.path.as_bytes())?)
    }

    /// What follows the last slash.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or("")
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let rest = text.strip_prefix(SCHEME).unwrap_or(text);
        let (volume, path) = rest.split_once('/').unwrap_or((rest, ""));
        check_volume_name(volume).map_err(|error| format!("{error}; files are named VOLUME/KEY"))?;
        Ok(Address { volume: volume.to_owned(), path: path.to_owned() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.volume, self.path)
    }
}

/// One end of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// stdin or stdout.
    Stdio,
    /// A path on this machine.
    Local(PathBuf),
    /// In Stoker.
    Stoker(Address),
}

impl FromStr for Place {
    type Err = String;

    /// `-` is stdio; what starts with `/`, `./`, `../` or `file://` is a path; the rest is in Stoker.
    fn from_str(text: &str) -> Result<Place, String> {
        if text == "-" {
            return Ok(Place::Stdio);
        }
        if let Some(path) = text.strip_prefix("file://") {
            return Ok(Place::Local(path.into()));
        }
        let local =
            text == "." || text == ".." || ["/", "./", "../"].iter().any(|start| text.starts_with(start));
        if local {
            return Ok(Place::Local(text.into()));
        }
        text.parse().map(Place::Stoker).map_err(|error| format!("{error}; paths here start with `./` or `/`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let address = |volume: &str, path: &str| Ok(Address { volume: volume.into(), path: path.into() });
        for (text, expect) in [
            ("data", address("data", "")),
            ("data/", address("data", "")),
            ("data/a/b", address("data", "a/b")),
            ("stoker://data/a/", address("data", "a/")),
            ("data//a", address("data", "/a")),
        ] {
            assert_eq!(text.parse::<Address>(), expect, "{text}");
        }
        for text in ["", "/data/a", "Data/a", "s3://data/a", "stoker:///a"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn folders_and_names() {
        let check = |text: &str, is_folder, folder: &str, name: &str| {
            let address: Address = text.parse().unwrap();
            assert_eq!(
                (address.is_folder(), address.folder().as_str(), address.name()),
                (is_folder, folder, name)
            );
        };
        check("data", true, "", "");
        check("data/a", false, "a/", "a");
        check("data/a/", true, "a/", "");
        check("data/a/b", false, "a/b/", "b");
    }

    #[test]
    fn places_are_told_apart() {
        assert_eq!("-".parse(), Ok(Place::Stdio));
        for text in ["./data/a", "/data/a", "../data", "."] {
            assert_eq!(text.parse(), Ok(Place::Local(text.into())), "{text}");
        }
        assert_eq!("file:///data".parse(), Ok(Place::Local("/data".into())));
        assert!(matches!("data/a".parse(), Ok(Place::Stoker(_))));
        assert!("A".parse::<Place>().is_err());
    }
}
