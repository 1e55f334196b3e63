//! The file of the past: a head and places for points, all of fixed size, each with its checksum.
//!
//! Points are written where they belong, without a flush: a crash may take what was written last, and a torn point is known by its
//! checksum and left out. A head that is not understood means that the past begins anew.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use stoker_format::crc32c;
use stoker_store::FIGURES;

use super::tier::{Slot, Tier};

const MAGIC: [u8; 8] = *b"STKHIST\x01";
const HEAD_LEN: usize = 64;
/// When, samples, values, checksum.
const SLOT_LEN: usize = 8 + 4 + 4 * FIGURES.len() + 4;
/// A file beyond this is not ours.
const FILE_LEN_MAX: u64 = 16 << 20;

/// The file.
pub struct HistoryFile {
    file: File,
    path: PathBuf,
}

/// What came of opening it.
pub struct Opened {
    pub file: HistoryFile,
    /// Why the past begins anew, if it does although there was one.
    pub dropped: Option<String>,
    /// Points that were damaged.
    pub damaged: usize,
}

impl HistoryFile {
    /// Opens the file and puts its points into the circles; makes it if there is none, or none that is understood.
    pub fn open(path: &Path, tiers: &mut [Tier]) -> io::Result<Opened> {
        let dropped = match read(path)? {
            None => None,
            Some(bytes) => match restore(&bytes, tiers) {
                Ok(damaged) => {
                    let file = File::options().write(true).open(path)?;
                    let file = HistoryFile { file, path: path.to_owned() };
                    return Ok(Opened { file, dropped: None, damaged });
                }
                Err(why) => Some(why),
            },
        };
        let file = HistoryFile::make(path, tiers)?;
        Ok(Opened { file, dropped, damaged: 0 })
    }

    /// A new file, in one step: half of one is never seen.
    fn make(path: &Path, tiers: &[Tier]) -> io::Result<HistoryFile> {
        let new = path.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        file.set_len(file_len(tiers))?;
        file.write_all_at(&head(tiers), 0)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        Ok(HistoryFile { file, path: path.to_owned() })
    }

    /// Writes points of a circle.
    pub fn write(&self, tiers: &[Tier], tier: usize, at: usize) -> io::Result<()> {
        let Some(slot) = tiers.get(tier).and_then(|tier| tier.slot(at)) else { return Ok(()) };
        self.file.write_all_at(&slot_bytes(slot), place(tiers, tier, at))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(FILE_LEN_MAX).read_to_end(&mut bytes).map(|_| Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn file_len(tiers: &[Tier]) -> u64 {
    place(tiers, tiers.len(), 0)
}

/// Where a point of a circle is in the file.
fn place(tiers: &[Tier], tier: usize, at: usize) -> u64 {
    let before: usize = tiers.iter().take(tier).map(Tier::len).sum();
    (HEAD_LEN + (before + at) * SLOT_LEN) as u64
}

/// What the file holds and how: another release with other figures or circles has another head.
fn head(tiers: &[Tier]) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&(FIGURES.len() as u32).to_le_bytes());
    head[12..16].copy_from_slice(&(tiers.len() as u32).to_le_bytes());
    for (at, tier) in tiers.iter().enumerate() {
        let from = 16 + at * 12;
        head[from..from + 8].copy_from_slice(&tier.every_ms().to_le_bytes());
        head[from + 8..from + 12].copy_from_slice(&(tier.len() as u32).to_le_bytes());
    }
    let sum = crc32c(&head[..HEAD_LEN - 4]);
    head[HEAD_LEN - 4..].copy_from_slice(&sum.to_le_bytes());
    head
}

fn slot_bytes(slot: &Slot) -> [u8; SLOT_LEN] {
    let mut bytes = [0; SLOT_LEN];
    bytes[..8].copy_from_slice(&slot.at_ms.to_le_bytes());
    bytes[8..12].copy_from_slice(&slot.samples.to_le_bytes());
    for (place, value) in bytes[12..SLOT_LEN - 4].chunks_exact_mut(4).zip(&slot.values) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    let sum = crc32c(&bytes[..SLOT_LEN - 4]);
    bytes[SLOT_LEN - 4..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn slot_of(bytes: &[u8]) -> Option<Slot> {
    let (rest, sum) = bytes.split_last_chunk::<4>()?;
    if crc32c(rest) != u32::from_le_bytes(*sum) {
        return None;
    }
    let (at_ms, rest) = rest.split_first_chunk::<8>()?;
    let (samples, rest) = rest.split_first_chunk::<4>()?;
    let mut values = [f32::NAN; FIGURES.len()];
    for (value, bytes) in values.iter_mut().zip(rest.chunks_exact(4)) {
        *value = f32::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(Slot { at_ms: u64::from_le_bytes(*at_ms), samples: u32::from_le_bytes(*samples), values })
}

/// Puts what a file holds into the circles; how many points were damaged. Err: it is no file of these circles.
fn restore(bytes: &[u8], tiers: &mut [Tier]) -> Result<usize, String> {
    if bytes.get(..HEAD_LEN) != Some(&head(tiers)[..]) {
        return Err("its head is damaged, or of another release".to_owned());
    }
    if bytes.len() as u64 != file_len(tiers) {
        return Err(format!("it has {} bytes, not {}", bytes.len(), file_len(tiers)));
    }
    let mut damaged = 0;
    let mut slots = bytes[HEAD_LEN..].chunks_exact(SLOT_LEN);
    for tier in tiers {
        for (at, bytes) in slots.by_ref().take(tier.len()).enumerate() {
            if bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            if !slot_of(bytes).is_some_and(|slot| tier.restore(at, slot)) {
                damaged += 1;
            }
        }
    }
    Ok(damaged)
}
