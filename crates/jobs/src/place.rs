//! What a source means in a store: a volume, and a file or directory in it.

use stoker_store::{JOB_TEXT_LEN_MAX, Key};

/// A volume, and a path in it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The volume, as whoever wrote the source calls it.
    pub volume: String,
    /// A file, or a directory without the slash at its end; empty for the whole volume.
    pub path: String,
}

impl Place {
    /// Reads `s3://VOLUME/PATH`, and the same with `nfs` or `stoker`.
    pub fn parse(source: &str) -> Result<Place, String> {
        let shown = || source.chars().take(200).collect::<String>();
        if source.len() > JOB_TEXT_LEN_MAX {
            return Err(format!("`{}...` is longer than {JOB_TEXT_LEN_MAX} bytes", shown()));
        }
        let wrong = |why: &str| format!("`{}` is no place of data: {why}", shown());
        let (scheme, rest) = source
            .split_once("://")
            .ok_or_else(|| wrong("write s3://VOLUME/PATH, nfs://VOLUME/PATH or stoker://VOLUME/PATH"))?;
        if !matches!(scheme, "s3" | "nfs" | "stoker") {
            return Err(wrong("it begins with s3://, nfs:// or stoker://"));
        }
        let (volume, path) = rest.split_once('/').unwrap_or((rest, ""));
        if volume.is_empty() {
            return Err(wrong("it names no volume"));
        }
        if volume.chars().any(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))) {
            return Err(wrong("a volume is named with letters, digits, `-`, `.` and `_`"));
        }
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.contains(char::is_control) {
            return Err(wrong("it has control characters"));
        }
        if !path.is_empty() && path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(wrong("parts of a path are not empty, `.` or `..`"));
        }
        if !path.is_empty() {
            Key::new(path.as_bytes()).map_err(|fault| wrong(&fault.message))?;
        }
        Ok(Place { volume: volume.to_owned(), path: path.to_owned() })
    }

    /// What all keys in the directory begin with; empty for the whole volume.
    pub fn directory(&self) -> String {
        if self.path.is_empty() { String::new() } else { format!("{}/", self.path) }
    }

    /// The same place in another volume.
    pub fn in_volume(&self, volume: &str) -> String {
        match self.path.as_str() {
            "" => format!("stoker://{volume}"),
            path => format!("stoker://{volume}/{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let check = |text: &str, expect: Option<(&str, &str)>| {
            let found = Place::parse(text).ok();
            let found = found.as_ref().map(|place| (place.volume.as_str(), place.path.as_str()));
            assert_eq!(found, expect, "{text}");
        };
        check("s3://training-data/imagenet", Some(("training-data", "imagenet")));
        check("s3://training-data/imagenet/", Some(("training-data", "imagenet")));
        check("nfs://home/alice", Some(("home", "alice")));
        check("stoker://data", Some(("data", "")));
        check("s3://data/", Some(("data", "")));
        check("s3://data/a b/ü", Some(("data", "a b/ü")));
        for bad in [
            "data/x",
            "gs://data/x",
            "s3://",
            "s3:///x",
            "s3://data//x",
            "s3://data/../x",
            "s3://data/./x",
            "s3://da ta/x",
            "s3://data/x\n",
            "s3://data/x//",
        ] {
            check(bad, None);
        }
        assert!(Place::parse(&format!("s3://data/{}", "x".repeat(2_000))).is_err());
    }
}
