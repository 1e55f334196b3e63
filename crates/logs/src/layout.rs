//! Where logs are: `PREFIX/logs/{stdout,stderr}/NODE/chunk_NNN.log.zst`, and `metadata.json` beside the streams. (D249)

use stoker_store::{ErrorKind, Key, Result, StoreError};

/// Longest name of a node in a path.
pub const NODE_LEN_MAX: usize = 128;

const CHUNK: &str = "chunk_";
const SUFFIX: &str = ".log.zst";

/// Which of its outputs a program wrote to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stream {
    /// Its data.
    Stdout,
    /// Its words.
    Stderr,
}

impl Stream {
    /// Both.
    pub const ALL: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    /// Its name, also in paths.
    pub fn word(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }

    /// Reads its name.
    pub fn parse(text: &str) -> std::result::Result<Stream, String> {
        Stream::ALL
            .into_iter()
            .find(|stream| stream.word() == text)
            .ok_or_else(|| "stdout or stderr".to_owned())
    }
}

/// Refuses names of nodes that cannot stand in a path.
pub fn check_node_name(name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_sound =
        (1..=NODE_LEN_MAX).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('.');
    if is_sound {
        return Ok(());
    }
    let message = format!(
        "`{}` cannot be the name of a node in a log: 1 to {NODE_LEN_MAX} letters, digits, `-`, `_` and `.`, not starting with `.`",
        name.chars().take(80).flat_map(char::escape_default).collect::<String>()
    );
    Err(StoreError::new(ErrorKind::Invalid, message))
}

/// Where the logs of a job are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogPlace {
    /// Volume.
    pub volume: String,
    /// The directory above `logs`, with a slash at its end; empty for the root of the volume.
    prefix: String,
}

impl LogPlace {
    /// The logs in this directory of a volume, with or without a slash at its end.
    pub fn new(volume: impl Into<String>, directory: &str) -> LogPlace {
        let directory = directory.trim_matches('/');
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        LogPlace { volume: volume.into(), prefix }
    }

    /// What all keys of a stream begin with.
    pub fn stream_prefix(&self, stream: Stream) -> String {
        format!("{}logs/{}/", self.prefix, stream.word())
    }

    /// What all keys of a stream of a node begin with.
    pub fn node_prefix(&self, stream: Stream, node: &str) -> String {
        format!("{}{node}/", self.stream_prefix(stream))
    }

    /// The key of a chunk.
    pub(crate) fn chunk(&self, stream: Stream, node: &str, number: u64) -> Result<Key> {
        Key::new(format!("{}{CHUNK}{number:03}{SUFFIX}", self.node_prefix(stream, node)))
    }

    /// The key of what is known of all of them.
    pub fn metadata(&self) -> Result<Key> {
        Key::new(format!("{}logs/metadata.json", self.prefix))
    }

    /// The node and number of a chunk of a stream; none if it is another file.
    pub(crate) fn parse(&self, stream: Stream, key: &[u8]) -> Option<(String, u64)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.stream_prefix(stream))?;
        let (node, file) = rest.split_once('/')?;
        check_node_name(node).ok()?;
        let digits = file.strip_prefix(CHUNK)?.strip_suffix(SUFFIX)?;
        let is_number = digits.len() >= 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten().map(|number| (node.to_owned(), number))
    }
}

impl std::fmt::Display for LogPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}logs/", self.volume, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_named_and_read() {
        let place = LogPlace::new("data", "/vision/run-7/");
        assert_eq!(place.to_string(), "data/vision/run-7/logs/");
        let key = place.chunk(Stream::Stderr, "gpu-01", 7).unwrap();
        assert_eq!(key.as_str(), Some("vision/run-7/logs/stderr/gpu-01/chunk_007.log.zst"));
        let read =
            |name: &str| place.parse(Stream::Stderr, format!("vision/run-7/logs/stderr/{name}").as_bytes());
        assert_eq!(read("gpu-01/chunk_007.log.zst"), Some(("gpu-01".to_owned(), 7)));
        assert_eq!(read("gpu-01/chunk_1007.log.zst"), Some(("gpu-01".to_owned(), 1007)));
        for name in [
            "gpu-01/chunk_7.log.zst",
            "gpu-01/chunk_00x.log.zst",
            "gpu-01/chunk_+07.log.zst",
            "gpu-01/chunk_99999999999999999999.log.zst",
            "../chunk_007.log.zst",
            "gpu-01/a/chunk_007.log.zst",
            "gpu-01/notes.txt",
            "",
        ] {
            assert_eq!(read(name), None, "{name}");
        }
        assert_eq!(place.parse(Stream::Stdout, key.as_bytes()), None);
        assert_eq!(LogPlace::new("data", "").metadata().unwrap().as_str(), Some("logs/metadata.json"));
    }

    #[test]
    fn nodes_that_are_no_name_are_refused() {
        for name in ["", ".", "..", "a/b", "a b", "\n", &"n".repeat(NODE_LEN_MAX + 1)] {
            assert!(check_node_name(name).is_err(), "{name}");
        }
        assert!(check_node_name("gpu-01.cluster_2").is_ok());
    }
}
