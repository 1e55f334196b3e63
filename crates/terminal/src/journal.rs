//! Priorities for systemd's journal: `journalctl -u stoker -p warning` finds what is one. The journal takes them from the beginning
//! of a line (sd-daemon(3)); nobody else is given them. (D117)

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use tracing::Level;

/// What a line of this level begins with; nothing if stderr is not the journal's.
pub fn priority(level: Level) -> &'static str {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    let look = || std::env::var("JOURNAL_STREAM").is_ok_and(|stream| is_stream(&stream, io::stderr()));
    if *IS_JOURNAL.get_or_init(look) { prefix(level) } else { "" }
}

fn prefix(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Whether something is the stream that systemd names by device and inode: a child may have another stderr than its parent.
fn is_stream(stream: &str, output: impl AsFd) -> bool {
    let numbers = stream
        .split_once(':')
        .and_then(|(device, inode)| Some((device.parse::<u64>().ok()?, inode.parse::<u64>().ok()?)));
    let found = output.as_fd().try_clone_to_owned().and_then(|output| File::from(output).metadata());
    found.is_ok_and(|found| numbers == Some((found.dev(), found.ino())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_stream_that_is_named_gets_priorities() {
        let file = tempfile::tempfile().unwrap();
        let meta = file.metadata().unwrap();
        assert!(is_stream(&format!("{}:{}", meta.dev(), meta.ino()), &file));
        for other in [String::new(), ":".into(), "a:b".into(), format!("{}:{}", meta.dev(), meta.ino() + 1)] {
            assert!(!is_stream(&other, &file), "{other}");
        }
        assert_eq!((prefix(Level::ERROR), prefix(Level::WARN), prefix(Level::INFO)), ("<3>", "<4>", "<6>"));
    }
}
