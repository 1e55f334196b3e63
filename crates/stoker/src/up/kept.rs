//! What `up` was once told and does not want to be told again: the lake and the drives.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::daemon::place::{Place, read_small};
use crate::failure::Failure;

const FILE: &str = "up.json";

/// The choices of earlier starts.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(default)]
pub struct Kept {
    /// A URL; none for the directory below the node's own.
    pub lake: Option<String>,
    /// Absolute; none for the one below the node's own directory.
    pub drives: Vec<PathBuf>,
}

impl Kept {
    /// The choices so far.
    pub fn read(place: &Place) -> Result<Kept, Failure> {
        Kept::read_in(place.dir())
    }

    /// The choices of a node that somebody else may use.
    pub fn read_in(dir: &Path) -> Result<Kept, Failure> {
        let path = dir.join(FILE);
        let Some(text) = read_small(&path)? else { return Ok(Kept::default()) };
        serde_json::from_str(&text).map_err(|error| {
            Failure::new(format!("{} cannot be read: {error}", path.display()))
                .hint("remove it and give --lake and --drive once again")
        })
    }

    /// With new choices, which replace the old ones.
    pub fn with(mut self, lake: Option<&str>, drives: &[PathBuf]) -> Result<Kept, Failure> {
        if let Some(lake) = lake {
            self.lake = Some(lake_url(lake)?);
        }
        if !drives.is_empty() {
            let absolute =
                |path: &PathBuf| std::path::absolute(path).map_err(|e| Failure::io(path.display(), &e));
            self.drives = drives.iter().map(absolute).collect::<Result<_, _>>()?;
        }
        Ok(self)
    }

    /// Keeps them, if there are any.
    pub fn write(&self, place: &Place) -> Result<(), Failure> {
        if *self == Kept::read(place)? {
            return Ok(());
        }
        let text = serde_json::to_string(self).map_err(|e| Failure::new(format!("{FILE}: {e}")))?;
        place.write(FILE, &text)
    }
}

/// A URL as it is, or the URL of a directory.
fn lake_url(text: &str) -> Result<String, Failure> {
    if text.contains("://") {
        return Ok(text.to_string());
    }
    let absolute = std::path::absolute(Path::new(text)).map_err(|e| Failure::io(text, &e))?;
    Ok(format!("file://{}", absolute.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_last_until_others_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::take(dir.path()).unwrap();
        assert_eq!(Kept::read(&place).unwrap(), Kept::default());
        let first = Kept::default().with(Some("s3://b/p"), &["/d0".into(), "/d1".into()]).unwrap();
        first.write(&place).unwrap();
        let again = Kept::read(&place).unwrap().with(None, &[]).unwrap();
        assert_eq!((again.lake.as_deref(), again.drives.len()), (Some("s3://b/p"), 2));
        let other = again.with(Some("/mnt/lake"), &[]).unwrap();
        assert_eq!((other.lake.as_deref(), other.drives.len()), (Some("file:///mnt/lake"), 2));
    }
}
