//! The log in front of the table: a commit is durable once its group lies here, behind one flush; the table follows in memory and goes to
//! its file once in a while. (D126)
//!
//! A group of commits is one record, in whole blocks, so that none is ever written again: what a power loss tears is a record that nobody
//! was told of. It lies there twice, once in each half, so that one that rots is not taken for a torn one. Records fill the file from its beginning; when the next one finds no room, the table goes to its own file, and the log begins
//! again, in the next generation. The table knows which log is its own, and from when on it needs none: an orderly end leaves a table that
//! is whole by itself.
//!
//! What is read back is either a chain that continues the table, or a refusal: a record of which no copy can be read is the torn end only if
//! nothing that was written behind it can be.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use stoker_consensus::log_paths;
use stoker_format::{ClusterId, crc32c};

use super::file::{damaged, folder_sync, unreachable_file};
use super::tail::Entries;
use crate::error::{CatalogError, Result};

/// Records begin at multiples of this, and no two share one.
const BLOCK: usize = 4096;
/// The first bytes of a log, with its version.
const MAGIC: [u8; 8] = *b"STKLOG\0\x01";
/// The first bytes of a record.
const RECORD: [u8; 4] = *b"SKgr";
const RECORD_HEADER: usize = 40;

/// Which log belongs to which table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogId(pub [u8; 16]);

impl LogId {
    /// One that no other log has.
    fn new() -> LogId {
        let random = || RandomState::new().hash_one(0u8).to_le_bytes();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&random());
        id[8..].copy_from_slice(&random());
        LogId(id)
    }
}

/// A log that is being written.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) id: LogId,
    file: File,
    /// Bytes of each half.
    half: u64,
    /// Where the next record goes, in each half.
    at: u64,
    generation: u64,
}

/// The log of a table lies beside it.
pub(super) fn path_of(table: &Path) -> PathBuf {
    let mut name = table.as_os_str().to_owned();
    name.push(".log");
    PathBuf::from(name)
}

impl Log {
    /// Begins a new log of `len` bytes; one that is there is put aside. Everything that it will need is allocated.
    pub(super) fn create(table: &Path, cluster: ClusterId, len: u64) -> Result<Log> {
        let path = path_of(table);
        if path.try_exists().map_err(|error| unreachable_file(&path, &error))? {
            // Nobody closed it: it may be all that is left of a table that was taken away.
            let aside = super::file::put_aside(&path)?;
            tracing::warn!(path = %aside.display(), "a log that belongs to no catalog here was put aside");
        }
        Log::make(&path, cluster, len).inspect_err(|_| {
            // What it has of the drive is better left to the table.
            let _ = std::fs::remove_file(&path);
        })
    }

    fn make(path: &Path, cluster: ClusterId, len: u64) -> Result<Log> {
        let failed = |error: io::Error| unreachable_file(path, &error);
        let half = len / 2 / BLOCK as u64 * BLOCK as u64;
        let len = 2 * half;
        let id = LogId::new();
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(failed)?;
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        file.set_len(len).map_err(failed)?;
        for at in [0, half] {
            file.write_all_at(&header(id, cluster, len), at).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        folder_sync(path)?;
        Ok(Log { id, file, half, at: BLOCK as u64, generation: 1 })
    }

    /// Whether there is room for a record of these commits.
    pub(super) fn fits(&self, entries: &Entries) -> bool {
        self.at + record_len(entries) as u64 <= self.half
    }

    /// Whether the table should go to its file while the log still has what it would lose by that. (D126)
    pub(super) fn is_nearly_full(&self) -> bool {
        self.half - self.at < self.half / 8
    }

    /// Makes commits durable that follow the last ones.
    pub(super) fn append(&mut self, entries: &Entries) -> io::Result<()> {
        let bytes = record(self.id, self.generation, self.at, entries);
        self.file.write_all_at(&bytes, self.at)?;
        self.file.write_all_at(&bytes, self.half + self.at)?;
        self.file.sync_data()?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Begins again at the front: all that was written is in the table's file.
    pub(super) fn restart(&mut self) {
        self.at = BLOCK as u64;
        self.generation += 1;
    }
}

/// The commits of a table's log that are not in its file, whose last one is `seq`.
///
/// Fails with `Corrupt` if some that were acknowledged cannot be read, or do not follow.
pub(super) fn read(table: &Path, cluster: ClusterId, id: LogId, seq: u64) -> Result<Vec<(u64, Vec<u8>)>> {
    let path = path_of(table);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = "is missing, and with it commits that the catalog's file does not have";
            return Err(damaged(format!("{} {message}", path.display())));
        }
        // The drive has lost it; salvage begins with the table then.
        Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
            return Err(damaged(format!("{} cannot be read: {error}", path.display())));
        }
        Err(error) => return Err(unreachable_file(&path, &error)),
    };
    let (half, expected) = (bytes.len() / 2, header(id, cluster, bytes.len() as u64));
    if ![0, half].iter().any(|at| bytes.get(*at..at + BLOCK) == Some(expected.as_slice())) {
        return Err(damaged(format!("{} is not the log that belongs to the catalog's file", path.display())));
    }
    let mut whole: BTreeMap<(u64, usize), Record> = BTreeMap::new();
    for at in (BLOCK..bytes.len()).step_by(BLOCK) {
        if let Some(found) =
            parse(&bytes, at, id).filter(|found| [found.start, found.start + half].contains(&at))
        {
            whole.insert((found.generation, found.start), found);
        }
    }
    let newest = whole.last_key_value().map_or(0, |((generation, _), _)| *generation);
    let (mut at, mut missing) = (BLOCK, Vec::new());
    while let Some(found) = whole.remove(&(newest, at)) {
        at = found.end;
        missing.extend(found.entries.into_iter().filter(|(number, _)| *number > seq));
    }
    // Each record is written after the one before it was durable, so what lies behind the end is older than the table.
    if whole.values().any(|record| record.last_seq() > seq) {
        return Err(damaged(format!("{} is damaged at byte {at}", path.display())));
    }
    let follows = missing.iter().zip(seq + 1..).all(|((number, _), wanted)| *number == wanted);
    match follows {
        true => Ok(missing),
        false => Err(damaged(format!("{} does not continue the catalog's file", path.display()))),
    }
}

/// Gives the logs of a table a second name, which belongs to another name of the table; one that is not there is fine.
pub(super) fn link(table: &Path, to: &Path) -> Result<()> {
    for (from, to) in log_paths(table).iter().zip(log_paths(to)) {
        match std::fs::hard_link(from, &to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(unreachable_file(from, &error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn header(id: LogId, cluster: ClusterId, len: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..8].copy_from_slice(&MAGIC);
    block[8..24].copy_from_slice(&id.0);
    block[24..40].copy_from_slice(&cluster.0);
    block[40..48].copy_from_slice(&len.to_le_bytes());
    let sum = crc32c(&block[..48]);
    block[48..52].copy_from_slice(&sum.to_le_bytes());
    block
}

/// A record that is whole.
struct Record {
    /// Where it begins in each half.
    start: usize,
    /// Where the next record begins.
    end: usize,
    generation: u64,
    entries: Entries,
}

impl Record {
    fn last_seq(&self) -> u64 {
        self.entries.last().map_or(0, |(seq, _)| *seq)
    }
}

fn record_len(entries: &Entries) -> usize {
    let body: usize = entries.iter().map(|(_, bytes)| 12 + bytes.len()).sum();
    (RECORD_HEADER + body).next_multiple_of(BLOCK)
}

fn record(id: LogId, generation: u64, start: u64, entries: &Entries) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(record_len(entries));
    bytes.extend_from_slice(&RECORD);
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&generation.to_le_bytes());
    bytes.extend_from_slice(&id.0);
    let block = u32::try_from(start / BLOCK as u64).expect("limited by the length of a log");
    bytes.extend_from_slice(&block.to_le_bytes());
    for (seq, entry) in entries {
        let len = u32::try_from(entry.len()).expect("limited by COMMIT_BYTES_MAX");
        bytes.extend_from_slice(&seq.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(entry);
    }
    let len = u32::try_from(bytes.len()).expect("limited by the length of a log");
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    let sum = crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

/// The record of which a copy lies here, if it is of this log and whole.
fn parse(bytes: &[u8], at: usize, id: LogId) -> Option<Record> {
    let rest = bytes.get(at..)?;
    let header = rest.get(..RECORD_HEADER)?;
    let number = |place: std::ops::Range<usize>| Some(u32::from_le_bytes(header[place].try_into().ok()?));
    let len = number(8..12)? as usize;
    if header[..4] != RECORD || header[20..36] != id.0 || len < RECORD_HEADER {
        return None;
    }
    if number(4..8)? != crc32c(rest.get(8..len)?) {
        return None;
    }
    let generation = u64::from_le_bytes(header[12..20].try_into().ok()?);
    let start = number(36..40)? as usize * BLOCK;
    let (mut body, mut entries) = (&rest[RECORD_HEADER..len], Entries::new());
    while let Some((seq, more)) = body.split_first_chunk::<8>() {
        let (len, more) = more.split_first_chunk::<4>()?;
        let (entry, more) = more.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        entries.push((u64::from_le_bytes(*seq), entry.to_vec()));
        body = more;
    }
    Some(Record { start, end: start + len.next_multiple_of(BLOCK), generation, entries })
}

/// What an error of the log means to a caller.
pub(super) fn failed(error: &io::Error) -> CatalogError {
    CatalogError::unknown(format!(
        "making a commit durable failed, and it may be there after a restart: the catalog's log failed: {error}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId([7; 16]);
    const LEN: u64 = 32 * BLOCK as u64;

    fn commits(seqs: std::ops::RangeInclusive<u64>, len: usize) -> Entries {
        seqs.map(|seq| (seq, vec![seq as u8; len])).collect()
    }

    fn filled(table: &Path) -> Log {
        let mut log = Log::create(table, CLUSTER, LEN).unwrap();
        for group in [commits(1..=1, 10), commits(2..=5, 3000), commits(6..=6, 100)] {
            log.append(&group).unwrap();
        }
        log
    }

    fn seqs(read: &Result<Vec<(u64, Vec<u8>)>>) -> Vec<u64> {
        read.as_ref().unwrap().iter().map(|(seq, _)| *seq).collect()
    }

    #[test]
    fn commits_behind_the_table_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("t");
        let mut log = filled(&table);
        assert_eq!(seqs(&read(&table, CLUSTER, log.id, 0)), [1, 2, 3, 4, 5, 6]);
        assert_eq!(seqs(&read(&table, CLUSTER, log.id, 4)), [5, 6]);
        assert_eq!(read(&table, CLUSTER, log.id, 0).unwrap()[3], (4, vec![4; 3000]));
        // The table went to its file, and the log began again.
        log.restart();
        assert_eq!(seqs(&read(&table, CLUSTER, log.id, 6)), [0; 0]);
        log.append(&commits(7..=7, 5)).unwrap();
        assert_eq!(seqs(&read(&table, CLUSTER, log.id, 6)), [7]);
        assert!(log.fits(&commits(8..=8, 5)) && !log.fits(&commits(8..=8, LEN as usize)));
    }

    #[test]
    fn one_bad_copy_is_no_loss_and_two_are_the_end_or_damage() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("t");
        let id = filled(&table).id;
        let whole = std::fs::read(path_of(&table)).unwrap();
        let with = |places: &[usize]| {
            let mut bytes = whole.clone();
            places.iter().for_each(|at| bytes[at * BLOCK + 60] ^= 1);
            std::fs::write(path_of(&table), bytes).unwrap();
            read(&table, CLUSTER, id, 0)
        };
        // In each half of sixteen blocks the records begin at 1, 2 and 5; the second one has three blocks.
        for block in 0..32 {
            assert_eq!(seqs(&with(&[block])), [1, 2, 3, 4, 5, 6], "block {block}");
        }
        assert!(with(&[1, 17]).unwrap_err().message.contains("damaged at byte 4096"));
        assert!(with(&[3, 20]).unwrap_err().message.contains("damaged at byte 8192"));
        assert_eq!(seqs(&with(&[5, 21])), [1, 2, 3, 4, 5], "a torn end was never acknowledged");
    }

    #[test]
    fn a_log_that_is_cut_missing_or_not_its_own_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("t");
        let id = filled(&table).id;
        let whole = std::fs::read(path_of(&table)).unwrap();
        assert!(read(&table, ClusterId([8; 16]), id, 0).is_err());
        assert!(read(&table, CLUSTER, LogId::new(), 0).is_err());
        for len in [0, 100, BLOCK, 9 * BLOCK, whole.len() - 1] {
            std::fs::write(path_of(&table), &whole[..len]).unwrap();
            assert!(read(&table, CLUSTER, id, 0).unwrap_err().message.contains("not the log"), "{len}");
        }
        std::fs::remove_file(path_of(&table)).unwrap();
        assert!(read(&table, CLUSTER, id, 0).unwrap_err().message.contains("missing"));
    }

    #[test]
    fn a_log_of_later_commits_does_not_continue_an_older_table() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("t");
        let mut log = filled(&table);
        log.restart();
        log.append(&commits(7..=7, 5)).unwrap();
        assert!(read(&table, CLUSTER, log.id, 0).unwrap_err().message.contains("damaged"));
        assert!(read(&table, CLUSTER, log.id, 5).unwrap_err().message.contains("damaged"));
    }

    #[test]
    fn what_an_older_generation_left_is_not_taken_for_damage() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("t");
        let mut log = filled(&table);
        log.restart();
        log.append(&commits(7..=7, 5)).unwrap();
        // The first record of the new generation is torn: the old ones behind it are in the table.
        let mut bytes = std::fs::read(path_of(&table)).unwrap();
        [1, 17].iter().for_each(|block| bytes[block * BLOCK + 50] ^= 1);
        std::fs::write(path_of(&table), bytes).unwrap();
        assert_eq!(seqs(&read(&table, CLUSTER, log.id, 6)), [0; 0]);
    }
}
