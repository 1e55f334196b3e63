//! The file that keeps the entries of a replica, with its term and vote. (D126, D127)
//!
//! What is made durable together is one record, in whole blocks, so that none is ever written again: what a power loss tears is a record that
//! nobody was told of. It lies there twice, once in each half, so that one that rots is not taken for a torn one. Entries of a later record
//! take the place of those with the same index and what follows them.
//!
//! There are two such files, of which one is in use. Before it is full, what is applied goes to the table's own file; term, vote and what is
//! not applied begin the other log, and the table then says which log is its own. A crash at any moment leaves one that is whole.
//!
//! What is read back is either all that was durable, or a refusal: a record of which no copy can be read is the torn end only if nothing that
//! was written behind it can be.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use stoker_format::{ClusterId, crc32c};

use crate::replica::{Entry, Hard, Point};

/// Records begin at multiples of this, and no two share one.
const BLOCK: usize = 4096;
/// The first bytes of a log, with its version.
const MAGIC: [u8; 8] = *b"STKLOG\0\x02";
/// The first bytes of a record.
const RECORD: [u8; 4] = *b"SKrf";
/// Mark, sum, length, log, block, and the hard state.
const RECORD_HEADER: usize = 32 + 24;
/// Index, term, kind and length of an entry.
const ENTRY_HEADER: usize = 21;
/// Names of the two files, behind that of the table.
const NAMES: [&str; 2] = [".log", ".log2"];

/// What a new log has room for behind what it begins with.
pub const SLACK_BYTES: u64 = 1 << 20;

/// Which log belongs to which table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogId(pub [u8; 16]);

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

/// Why a log cannot be read or written.
#[derive(Debug)]
pub enum LogError {
    /// It is not there, or not that of the table, or what was durable in it cannot be read.
    Damaged(String),
    /// The drive or the file system refuses.
    Io(PathBuf, io::Error),
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Damaged(words) => f.write_str(words),
            LogError::Io(path, error) => write!(f, "cannot use {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for LogError {}

/// What a log has.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Replayed {
    /// The last that was durable.
    pub hard: Hard,
    /// The entries, in order.
    pub entries: Vec<Entry>,
}

/// One of the two files.
#[derive(Debug)]
struct Slot {
    file: File,
    /// Bytes of each half.
    half: u64,
}

/// A log that is being written.
#[derive(Debug)]
pub struct Log {
    table: PathBuf,
    cluster: ClusterId,
    len: u64,
    slots: [Option<Slot>; 2],
    /// The one in use, and which log it is.
    used: usize,
    id: LogId,
    /// Where the next record goes, in each half.
    at: u64,
    /// The other one, once it is begun: which log it is, and where its next record goes.
    next: Option<(LogId, u64)>,
}

/// The files that a log of this table may have.
pub fn log_paths(table: &Path) -> [PathBuf; 2] {
    NAMES.map(|behind| {
        let mut name = table.as_os_str().to_owned();
        name.push(behind);
        PathBuf::from(name)
    })
}

impl Log {
    /// Reads the log of a table. Fails if it is not whole.
    pub fn read(table: &Path, cluster: ClusterId, id: LogId) -> Result<Replayed, LogError> {
        let mut why = None;
        for path in log_paths(table) {
            match read_one(&path, cluster, id) {
                Ok(Some(replayed)) => return Ok(replayed),
                Ok(None) => {}
                Err(error) => why = Some(error),
            }
        }
        Err(why.unwrap_or_else(|| {
            let path = log_paths(table)[0].display().to_string();
            LogError::Damaged(format!(
                "{path} is missing, or is not the log that belongs to the catalog's file"
            ))
        }))
    }

    /// A log of a table that has `used`, or none: nothing is in use until [`begin`](Log::begin) and [`switch`](Log::switch). Everything that it
    /// will need is allocated.
    pub fn open(table: &Path, cluster: ClusterId, len: u64, used: Option<LogId>) -> Result<Log, LogError> {
        let mut log = Log {
            table: table.to_owned(),
            cluster,
            len,
            slots: [None, None],
            used: 0,
            id: LogId([0; 16]),
            at: 0,
            next: None,
        };
        for (slot, path) in log_paths(table).iter().enumerate() {
            let is_used =
                used.is_some_and(|id| matches!(header_of(path), Ok(Some(found)) if found == (id, cluster)));
            if is_used {
                log.used = slot;
            }
        }
        let free = 1 - log.used;
        log.slots[free] = Some(log.slot(free, len)?);
        Ok(log)
    }

    /// Begins the other file with this, durable when this returns, and with room for `more` bytes behind it. It is used once the table says
    /// so, by [`switch`](Log::switch).
    pub fn begin(&mut self, hard: &Hard, entries: &[Entry], more: u64) -> Result<LogId, LogError> {
        let free = 1 - self.used;
        let needed = 2 * (BLOCK as u64 + record_len(entries) as u64 + more.max(SLACK_BYTES));
        let len = self.len.max(needed.next_multiple_of(2 * BLOCK as u64));
        if self.slots[free].as_ref().is_none_or(|slot| 2 * slot.half < len) {
            self.slots[free] = Some(self.slot(free, len)?);
        }
        let path = &log_paths(&self.table)[free];
        let slot = self.slots[free].as_ref().expect("made above");
        let id = LogId::new();
        let header = header(id, self.cluster, 2 * slot.half);
        let record = record(id, BLOCK as u64, hard, entries);
        let write = || {
            for at in [0, slot.half] {
                slot.file.write_all_at(&header, at)?;
                slot.file.write_all_at(&record, at + BLOCK as u64)?;
            }
            slot.file.sync_all()
        };
        write().map_err(|error| LogError::Io(path.clone(), error))?;
        self.next = Some((id, BLOCK as u64 + record.len() as u64));
        Ok(id)
    }

    /// The table says that the other file is its log: what follows goes there.
    pub fn switch(&mut self) {
        if let Some((id, at)) = self.next.take() {
            self.used = 1 - self.used;
            (self.id, self.at) = (id, at);
        }
    }

    /// Whether there is room for a record of these entries.
    pub fn fits(&self, entries: &[Entry]) -> bool {
        self.slots[self.used].as_ref().is_some_and(|slot| self.at + record_len(entries) as u64 <= slot.half)
    }

    /// Whether the other file should be begun while this one still has room.
    pub fn is_nearly_full(&self) -> bool {
        self.slots[self.used].as_ref().is_none_or(|slot| slot.half - self.at < slot.half / 8)
    }

    /// How many bytes a record of these entries takes.
    pub fn len_of(entries: &[Entry]) -> u64 {
        record_len(entries) as u64
    }

    /// Makes term, vote and entries durable.
    pub fn append(&mut self, hard: &Hard, entries: &[Entry]) -> io::Result<()> {
        let slot = self.slots[self.used].as_ref().ok_or(io::ErrorKind::NotFound)?;
        let bytes = record(self.id, self.at, hard, entries);
        if self.at + bytes.len() as u64 > slot.half {
            return Err(io::ErrorKind::StorageFull.into());
        }
        slot.file.write_all_at(&bytes, self.at)?;
        slot.file.write_all_at(&bytes, slot.half + self.at)?;
        slot.file.sync_data()?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// One of the files, with everything allocated.
    fn slot(&self, which: usize, len: u64) -> Result<Slot, LogError> {
        let path = &log_paths(&self.table)[which];
        let failed = |error: io::Error| LogError::Io(path.clone(), error);
        let half = len / 2 / BLOCK as u64 * BLOCK as u64;
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = file.map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 2 * half) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => {
                // What it has of the drive is better left to others.
                let _ = file.set_len(found);
                return Err(failed(errno.into()));
            }
        }
        file.set_len(2 * half).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        Ok(Slot { file, half })
    }
}

/// Which log a file is, if it is one.
fn header_of(path: &Path) -> io::Result<Option<(LogId, ClusterId)>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let len = file.metadata()?.len();
    for at in [0, len / 2] {
        let mut block = vec![0; BLOCK];
        if file.read_exact_at(&mut block, at).is_ok() && block[..8] == MAGIC {
            let (id, cluster) = (block[8..24].try_into(), block[24..40].try_into());
            if let (Ok(id), Ok(cluster)) = (id, cluster) {
                let (id, cluster) = (LogId(id), ClusterId(cluster));
                if header(id, cluster, len) == block {
                    return Ok(Some((id, cluster)));
                }
            }
        }
    }
    Ok(None)
}

/// What one of the files has; none if it is another log or none at all.
fn read_one(path: &Path, cluster: ClusterId, id: LogId) -> Result<Option<Replayed>, LogError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // The drive has lost it.
        Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
            return Err(LogError::Damaged(format!("{} cannot be read: {error}", path.display())));
        }
        Err(error) => return Err(LogError::Io(path.to_owned(), error)),
    };
    let (half, expected) = (bytes.len() / 2, header(id, cluster, bytes.len() as u64));
    if ![0, half].iter().any(|at| bytes.get(*at..at + BLOCK) == Some(expected.as_slice())) {
        return Ok(None);
    }
    let mut whole: BTreeMap<usize, Record> = BTreeMap::new();
    for at in (BLOCK..bytes.len()).step_by(BLOCK) {
        let found = parse(&bytes, at, id);
        if let Some(found) = found.filter(|found| [found.start, found.start + half].contains(&at)) {
            whole.insert(found.start, found);
        }
    }
    let (mut at, mut replayed) = (BLOCK, Replayed::default());
    let mut records = 0;
    while let Some(found) = whole.remove(&at) {
        (at, replayed.hard) = (found.end, found.hard);
        records += 1;
        if let Some(first) = found.entries.first().map(|entry| entry.point().index) {
            replayed.entries.retain(|entry| entry.point().index < first);
            let follows = replayed.entries.last().is_none_or(|last| last.point().index + 1 == first);
            if !follows {
                let message = format!("{} has a gap in front of entry {first}", path.display());
                return Err(LogError::Damaged(message));
            }
            replayed.entries.extend(found.entries);
        }
    }
    // It was durable with its first record, and each record was written after the one before it was durable.
    if records == 0 || !whole.is_empty() {
        return Err(LogError::Damaged(format!("{} is damaged at byte {at}", path.display())));
    }
    Ok(Some(replayed))
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
    hard: Hard,
    entries: Vec<Entry>,
}

fn record_len(entries: &[Entry]) -> usize {
    let body: usize = entries.iter().map(|entry| ENTRY_HEADER + entry.data().len()).sum();
    (RECORD_HEADER + body).next_multiple_of(BLOCK)
}

fn record(id: LogId, start: u64, hard: &Hard, entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(record_len(entries));
    bytes.extend_from_slice(&RECORD);
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&id.0);
    let block = u32::try_from(start / BLOCK as u64).expect("limited by the length of a log");
    bytes.extend_from_slice(&block.to_le_bytes());
    for number in [hard.term, hard.vote, hard.commit] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    for entry in entries {
        let Point { index, term } = entry.point();
        let len = u32::try_from(entry.data().len()).expect("limited by the length of a log");
        bytes.extend_from_slice(&index.to_le_bytes());
        bytes.extend_from_slice(&term.to_le_bytes());
        bytes.push(u8::from(entry.is_change()));
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(entry.data());
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
    let small = |place: usize| Some(u32::from_le_bytes(header[place..place + 4].try_into().ok()?));
    let large = |place: usize| Some(u64::from_le_bytes(header[place..place + 8].try_into().ok()?));
    let len = small(8)? as usize;
    if header[..4] != RECORD || header[12..28] != id.0 || len < RECORD_HEADER {
        return None;
    }
    if small(4)? != crc32c(rest.get(8..len)?) {
        return None;
    }
    let start = small(28)? as usize * BLOCK;
    let hard = Hard { term: large(32)?, vote: large(40)?, commit: large(48)? };
    let (mut body, mut entries) = (&rest[RECORD_HEADER..len], Vec::new());
    while !body.is_empty() {
        let (head, more) = body.split_first_chunk::<ENTRY_HEADER>()?;
        let number = |place: usize| Some(u64::from_le_bytes(head[place..place + 8].try_into().ok()?));
        let point = Point { index: number(0)?, term: number(8)? };
        let len = u32::from_le_bytes(head[17..21].try_into().ok()?) as usize;
        let (data, more) = more.split_at_checked(len)?;
        entries.push(Entry::of(point, head[16] != 0, data.to_vec()));
        body = more;
    }
    Some(Record { start, end: start + len.next_multiple_of(BLOCK), hard, entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId([7; 16]);
    const LEN: u64 = 2 * 1024 * BLOCK as u64;

    fn entries(indexes: std::ops::RangeInclusive<u64>, term: u64, len: usize) -> Vec<Entry> {
        indexes
            .map(|index| Entry::of(Point { index, term }, index % 3 == 0, vec![index as u8; len]))
            .collect()
    }

    fn hard(term: u64) -> Hard {
        Hard { term, vote: 3, commit: 1 }
    }

    /// Records at block 1 (the beginning), 2, 3 and 6.
    fn filled(table: &Path) -> Log {
        let mut log = Log::open(table, CLUSTER, LEN, None).unwrap();
        log.begin(&hard(1), &entries(5..=5, 1, 7), 0).unwrap();
        log.switch();
        log.append(&hard(2), &entries(6..=6, 2, 10)).unwrap();
        log.append(&hard(2), &entries(7..=10, 2, 3000)).unwrap();
        log.append(&hard(3), &[]).unwrap();
        log
    }

    fn indexes(replayed: &Result<Replayed, LogError>) -> Vec<u64> {
        replayed.as_ref().unwrap().entries.iter().map(|entry| entry.point().index).collect()
    }

    #[test]
    fn what_was_durable_comes_back_and_later_entries_replace_earlier_ones() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("t");
        let mut log = filled(&table);
        let read = Log::read(&table, CLUSTER, log.id);
        assert_eq!(indexes(&read), [5, 6, 7, 8, 9, 10]);
        assert_eq!(read.unwrap().hard, hard(3));
        log.append(&hard(4), &entries(8..=8, 4, 1)).unwrap();
        let read = Log::read(&table, CLUSTER, log.id).unwrap();
        assert_eq!(read.entries[2..], [entries(7..=7, 2, 3000), entries(8..=8, 4, 1)].concat());
        assert_eq!(read.entries[1], entries(6..=6, 2, 10)[0]);
    }

    #[test]
    fn one_bad_copy_is_no_loss_and_two_are_the_end_or_damage() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("t");
        let log = filled(&table);
        let (id, path) = (log.id, log_paths(&table)[log.used].clone());
        let whole = std::fs::read(&path).unwrap();
        let half = whole.len() / 2 / BLOCK;
        let with = |places: &[usize]| {
            let mut bytes = whole.clone();
            places.iter().for_each(|at| bytes[at * BLOCK + 60] ^= 1);
            std::fs::write(&path, bytes).unwrap();
            Log::read(&table, CLUSTER, id)
        };
        for block in (0..8).chain(half..half + 8) {
            let read = with(&[block]);
            assert_eq!(indexes(&read), [5, 6, 7, 8, 9, 10], "block {block}");
        }
        assert!(with(&[1, half + 1]).unwrap_err().to_string().contains("damaged at byte 4096"));
        assert!(with(&[2, half + 2]).unwrap_err().to_string().contains("damaged at byte 8192"));
        assert!(with(&[4, half + 5]).unwrap_err().to_string().contains("damaged at byte 12288"));
        // The last record says only that the term is higher. Torn, it was never relied on.
        let mut bytes = whole.clone();
        [6, half + 6].iter().for_each(|at| bytes[at * BLOCK + 40] ^= 1);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(Log::read(&table, CLUSTER, id).unwrap().hard, hard(2));
    }

    #[test]
    fn a_log_that_is_cut_missing_or_not_its_own_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("t");
        let log = filled(&table);
        let (id, path) = (log.id, log_paths(&table)[log.used].clone());
        let whole = std::fs::read(&path).unwrap();
        assert!(Log::read(&table, ClusterId([8; 16]), id).is_err());
        assert!(Log::read(&table, CLUSTER, LogId::new()).is_err());
        for len in [0, 100, BLOCK, 9 * BLOCK, whole.len() - 1] {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert!(Log::read(&table, CLUSTER, id).unwrap_err().to_string().contains("not the log"), "{len}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Log::read(&table, CLUSTER, id).unwrap_err().to_string().contains("missing"));
    }

    #[test]
    fn the_one_in_use_stays_whole_until_the_other_is() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("t");
        let mut log = filled(&table);
        for round in 0..6 {
            let before = log.id;
            let id = log.begin(&hard(9), &entries(9..=10, 2, 30), 0).unwrap();
            assert_eq!(indexes(&Log::read(&table, CLUSTER, before)).last(), Some(&10), "round {round}");
            assert_eq!(indexes(&Log::read(&table, CLUSTER, id)), [9, 10]);
            log.switch();
            log.append(&hard(9), &entries(11..=11, 9, 30)).unwrap();
            assert_eq!(indexes(&Log::read(&table, CLUSTER, id)), [9, 10, 11]);
            log.append(&hard(9), &entries(10..=10, 9, 30)).unwrap();
        }
        // A start that finds the second file in use begins the first.
        let again = Log::open(&table, CLUSTER, LEN, Some(log.id)).unwrap();
        assert_eq!(again.used, log.used);
    }

    #[test]
    fn an_entry_that_is_larger_than_the_log_makes_it_larger() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = filled(&folder.path().join("t"));
        let large = entries(11..=11, 3, 2 * LEN as usize);
        assert!(!log.fits(&large) && log.append(&hard(3), &large).is_err());
        log.begin(&hard(3), &[], Log::len_of(&large)).unwrap();
        log.switch();
        assert!(log.fits(&large));
        log.append(&hard(3), &large).unwrap();
        assert_eq!(indexes(&Log::read(&folder.path().join("t"), CLUSTER, log.id)), [11]);
    }
}
