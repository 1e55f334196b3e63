//! The file of events: a JSON object on each line, bounded by putting a full one aside.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::Event;

/// Longest line that is read back.
const LINE_BYTES_MAX: usize = 64 << 10;
/// No node ever counts so far: a line that says so was not written by one.
const SEQ_MAX: u64 = 1 << 62;
/// A file is never put aside before it has this much.
const FILE_BYTES_MIN: u64 = 64 << 10;

/// The file, open.
pub struct Journal {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
    bytes_max: u64,
    last_seq: u64,
}

impl Journal {
    /// Opens or makes it.
    pub fn open(path: &Path, bytes_max: u64) -> io::Result<Journal> {
        let file = append_to(path)?;
        let bytes = file.metadata()?.len();
        let mut journal = Journal {
            path: path.to_owned(),
            file: Some(file),
            bytes,
            bytes_max: bytes_max.max(FILE_BYTES_MIN),
            last_seq: 0,
        };
        journal.last_seq = journal.after(0).iter().map(|event| event.seq).max().unwrap_or(0);
        // A crash may have left half a line.
        if bytes > 0 && !ends_a_line(path)? {
            journal.append(b"\n")?;
        }
        Ok(journal)
    }

    /// The highest number in it.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Events behind a number that are still there, in their order. Lines that make no sense are passed over.
    pub fn after(&self, seq: u64) -> Vec<Event> {
        let mut events: Vec<Event> = Vec::new();
        for path in [aside(&self.path), self.path.clone()] {
            let Ok(file) = File::open(path) else { continue };
            // Somebody else may have made it longer than we would.
            let lines = BufReader::new(file.take(4 * self.bytes_max)).split(b'\n').map_while(Result::ok);
            let sane = lines.filter(|line| line.len() <= LINE_BYTES_MAX);
            let parsed = sane.filter_map(|line| serde_json::from_slice::<Event>(&line).ok());
            events.extend(parsed.filter(|event| event.seq > seq && event.seq < SEQ_MAX));
        }
        events.sort_by_key(|event| event.seq);
        events
    }

    /// Writes one event, in one piece.
    pub fn write(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.turn_over(line.len() as u64).and_then(|()| self.append(&line))
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(append_to(&self.path)?),
        };
        let written = file.write_all(line);
        self.bytes += line.len() as u64;
        if written.is_err() {
            // Opened again for the next one: the disk may be there again by then.
            self.file = None;
        }
        written
    }

    fn turn_over(&mut self, more: u64) -> io::Result<()> {
        if self.bytes + more <= self.bytes_max || self.bytes == 0 {
            return Ok(());
        }
        self.file = None;
        std::fs::rename(&self.path, aside(&self.path))?;
        self.file = Some(append_to(&self.path)?);
        self.bytes = 0;
        Ok(())
    }
}

/// Where a full file goes.
fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)
}

fn ends_a_line(path: &Path) -> io::Result<bool> {
    use std::io::{Seek, SeekFrom};
    let mut file = File::open(path)?;
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::super::{Origin, Severity};
    use super::*;

    fn event(seq: u64, words: &str) -> Event {
        Event {
            seq,
            id: format!("n-{seq}"),
            time: "2026-07-01T12:00:00Z".into(),
            origin: Origin { node: "n".into(), node_id: "i".into(), cluster: "c".into() },
            kind: "node_down".into(),
            severity: Severity::Error,
            about: "node_down/b".into(),
            words: words.into(),
        }
    }

    fn seqs(journal: &Journal, after: u64) -> Vec<u64> {
        journal.after(after).iter().map(|event| event.seq).collect()
    }

    #[test]
    fn events_are_found_again_after_a_restart_and_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut journal = Journal::open(&path, 0).unwrap();
        assert_eq!((journal.last_seq(), seqs(&journal, 0)), (0, vec![]));
        journal.write(&event(1, "one\ntwo")).unwrap();
        journal.write(&event(2, "")).unwrap();
        drop(journal);
        // Half a line, and a line of somebody else.
        let mut file = append_to(&path).unwrap();
        let foreign = serde_json::to_string(&event(u64::MAX, "")).unwrap();
        file.write_all(format!("{foreign}\nhello\n{{\"seq\":3,").as_bytes()).unwrap();
        let mut journal = Journal::open(&path, 0).unwrap();
        assert_eq!((journal.last_seq(), seqs(&journal, 1)), (2, vec![2]));
        journal.write(&event(3, "after")).unwrap();
        assert_eq!(seqs(&journal, 0), [1, 2, 3]);
    }

    #[test]
    fn a_full_file_is_put_aside_and_two_are_the_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut journal = Journal::open(&path, 0).unwrap();
        let words = "x".repeat(1_000);
        (1..=500).for_each(|seq| journal.write(&event(seq, &words)).unwrap());
        let kept = seqs(&journal, 0);
        assert_eq!(kept.last(), Some(&500));
        assert!(kept.len() < 200 && kept.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{kept:?}");
        for name in ["events.jsonl", "events.jsonl.1"] {
            assert!(std::fs::metadata(dir.path().join(name)).unwrap().len() <= FILE_BYTES_MIN, "{name}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/events.jsonl");
        assert!(Journal::open(&path, 0).is_err());
        std::fs::create_dir(dir.path().join("below")).unwrap();
        let mut journal = Journal::open(&path, 0).unwrap();
        journal.file = None;
        std::fs::remove_dir_all(dir.path().join("below")).unwrap();
        assert!(journal.write(&event(1, "")).is_err());
        std::fs::create_dir(dir.path().join("below")).unwrap();
        journal.write(&event(2, "")).unwrap();
        assert_eq!(seqs(&journal, 0), [2]);
    }
}
