//! The flash write ledger: bytes written to each drive, kept over restarts, against what the drive can bear.
//!
//! It counts what Stoker writes. What else writes to the same drive, and what the drive writes for itself, it cannot see:
//! the drive's own health page can.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stoker_node::{DriveLedger, Node};
use stoker_store::Counter;
use tokio::sync::watch;

use super::pause;
use crate::clock;
use crate::small_file::{read_small, write_small};

/// The file in the node's directory.
const FILE: &str = "endurance.json";
/// How often the ledger is written: what a crash can take from it.
const KEEP_EVERY: Duration = Duration::from_secs(60);
/// Hours of a day.
const HOURS: usize = 24;
const HOUR_MS: u64 = 3_600_000;
/// Drives that are remembered, also those that were taken out.
const DRIVES_MAX: usize = 1_024;

/// What a drive can bear, by its maker.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Wear {
    /// Times that the whole drive may be written each day.
    pub dwpd: Option<f64>,
    /// TB (10^12 bytes) that may be written in its life.
    pub endurance_tb: Option<f64>,
}

/// One drive's page of the ledger.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(default)]
struct Page {
    /// In its life with Stoker.
    written_bytes: u64,
    /// By hours of the day, in a circle.
    hours: [u64; HOURS],
    /// The hour that was written last, in hours since 1970.
    hour: u64,
}

impl Page {
    /// Goes on to an hour: what is older than a day counts no more.
    fn turn_to(&mut self, hour: u64) {
        // A clock that is set back by more than a day was wrong before: what it counted would never be a day old.
        if self.hour > hour.saturating_add(HOURS as u64) {
            (self.hours, self.hour) = ([0; HOURS], hour);
        }
        // One that goes back by less changes nothing until it has caught up.
        let passed = hour.saturating_sub(self.hour).min(HOURS as u64);
        for step in 0..passed {
            self.hours[((hour - step) % HOURS as u64) as usize] = 0;
        }
        self.hour = self.hour.max(hour);
    }

    fn add(&mut self, bytes: u64, hour: u64) {
        self.turn_to(hour);
        // The file may say anything.
        self.written_bytes = self.written_bytes.saturating_add(bytes);
        let now = &mut self.hours[(self.hour % HOURS as u64) as usize];
        *now = now.saturating_add(bytes);
    }

    fn day_bytes(&self) -> u64 {
        self.hours.iter().fold(0, |sum, hour| sum.saturating_add(*hour))
    }
}

/// The ledger.
#[derive(Default)]
struct Ledger {
    pages: BTreeMap<String, Page>,
    /// What the rings said last, since they were opened.
    seen: BTreeMap<String, u64>,
    /// How large drives are. Asked once: a file system on a drive that hangs does not answer, and then numbers are wanted most.
    sizes: BTreeMap<String, u64>,
}

impl Ledger {
    /// Takes in what rings wrote since the last look.
    fn note(&mut self, drives: &[DriveLedger], hour: u64) {
        for drive in drives {
            let seen = self.seen.entry(drive.drive.clone()).or_default();
            // A ring that was opened anew begins at zero.
            let more = match drive.written_bytes.checked_sub(*seen) {
                Some(more) => more,
                None => drive.written_bytes,
            };
            *seen = drive.written_bytes;
            if self.pages.len() < DRIVES_MAX || self.pages.contains_key(&drive.drive) {
                self.pages.entry(drive.drive.clone()).or_default().add(more, hour);
            }
        }
    }
}

/// Keeps the ledger.
pub struct Endurance {
    dir: PathBuf,
    wear: Vec<(PathBuf, Wear)>,
    node: Arc<Node>,
    ledger: Mutex<Ledger>,
}

impl Endurance {
    /// The ledger as it was kept. One that cannot be read is begun anew, which is said: it is no reason not to start.
    pub fn open(dir: &Path, wear: Vec<(PathBuf, Wear)>, node: Arc<Node>) -> Endurance {
        let pages = read_pages(dir).unwrap_or_else(|words| {
            tracing::error!("the flash write ledger begins anew: {words}");
            BTreeMap::new()
        });
        let ledger = Mutex::new(Ledger { pages, ..Ledger::default() });
        Endurance { dir: dir.to_owned(), wear, node, ledger }
    }

    /// Writes the ledger every now and then, and at the end.
    pub async fn keep(self: Arc<Endurance>, mut stopped: watch::Receiver<bool>) {
        let mut trouble = Trouble::default();
        loop {
            let is_over = pause(KEEP_EVERY, &mut stopped).await;
            let own = self.clone();
            let kept = tokio::task::spawn_blocking(move || own.write()).await;
            let words = match kept {
                Ok(Ok(())) => None,
                Ok(Err(words)) => Some(words),
                Err(fault) => Some(fault.to_string()),
            };
            if let Some(words) = trouble.news(words) {
                tracing::error!("the flash write ledger cannot be kept: {words}");
            }
            if is_over {
                return;
            }
        }
    }

    fn write(&self) -> Result<(), String> {
        let text = {
            let mut ledger = self.ledger.lock().unwrap();
            ledger.note(&self.node.drive_ledgers(), clock::unix_ms() / HOUR_MS);
            serde_json::to_string(&ledger.pages).map_err(|error| error.to_string())?
        };
        write_small(&self.dir, FILE, &text).map_err(|failure| failure.cause().to_owned())
    }

    /// Numbers of the drives that are in service.
    pub fn counters(&self) -> Vec<Counter> {
        let drives = self.node.drive_ledgers();
        let mut ledger = self.ledger.lock().unwrap();
        ledger.note(&drives, clock::unix_ms() / HOUR_MS);
        let Ledger { pages, sizes, .. } = &mut *ledger;
        let one = |drive: &DriveLedger| {
            let page = pages.get(&drive.drive)?;
            let bytes = *sizes.entry(drive.drive.clone()).or_insert_with(|| drive_bytes(drive));
            Some(numbers(drive, page, self.wear_of(&drive.path), bytes))
        };
        drives.iter().filter_map(one).flatten().collect()
    }

    fn wear_of(&self, ring: &Path) -> Wear {
        // A directory that a person named has its ring below it.
        let is_it = |(path, _): &&(PathBuf, Wear)| ring == path || ring.parent() == Some(path.as_path());
        self.wear.iter().find(is_it).map(|(_, wear)| *wear).unwrap_or_default()
    }
}

/// Tells of a trouble once, when it begins, and not every minute.
#[derive(Default)]
struct Trouble {
    is_told: bool,
}

impl Trouble {
    fn news(&mut self, words: Option<String>) -> Option<String> {
        let was_told = std::mem::replace(&mut self.is_told, words.is_some());
        words.filter(|_| !was_told)
    }
}

fn read_pages(dir: &Path) -> Result<BTreeMap<String, Page>, String> {
    match read_small(&dir.join(FILE)) {
        Ok(None) => Ok(BTreeMap::new()),
        Ok(Some(text)) => serde_json::from_str(&text).map_err(|error| format!("{FILE}: {error}")),
        Err(failure) => Err(failure.cause().to_owned()),
    }
}

/// How large the drive is: the file system around the ring, or the ring if it has the device for itself.
fn drive_bytes(drive: &DriveLedger) -> u64 {
    let total = match std::fs::metadata(&drive.path) {
        Ok(meta) if meta.is_dir() || meta.is_file() => stoker_ring::disk_space(&drive.path).ok(),
        _ => None,
    };
    total.map_or(drive.ring_bytes, |(_, total)| total).max(drive.ring_bytes)
}

fn numbers(drive: &DriveLedger, page: &Page, wear: Wear, drive_bytes: u64) -> Vec<Counter> {
    let path = drive.path.display().to_string();
    let labels = [("drive", drive.drive.as_str()), ("path", path.as_str())];
    let one = |name: &str, help: &str, value: f64| Counter::new(name, help, &labels, value);
    let dwpd = page.day_bytes() as f64 / drive_bytes.max(1) as f64;
    let mut all = vec![
        one("drive_bytes", "Size of a drive.", drive_bytes as f64),
        one(
            "drive_written_bytes_total",
            "Bytes that Stoker wrote to a drive in its life, restarts included.",
            page.written_bytes as f64,
        ),
        one("drive_dwpd", "Times that a drive was written over in the last 24 hours.", dwpd),
    ];
    if let Some(budget) = wear.dwpd {
        all.push(one("drive_dwpd_budget", "Times that a drive may be written over each day.", budget));
        let used = if budget > 0.0 { dwpd / budget } else { f64::INFINITY };
        all.push(one(
            "drive_dwpd_used_ratio",
            "Share of the day's budget that was used in the last 24 hours.",
            used,
        ));
    }
    if let Some(endurance_tb) = wear.endurance_tb {
        let used = page.written_bytes as f64 / (endurance_tb * 1e12).max(1.0);
        all.push(one("drive_endurance_used_ratio", "Share of a drive's endurance that Stoker used.", used));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(written_bytes: u64) -> DriveLedger {
        DriveLedger { drive: "d".into(), path: "/no/such/drive".into(), ring_bytes: 1_000, written_bytes }
    }

    #[test]
    fn a_restart_goes_on_and_a_day_passes() {
        let mut ledger = Ledger::default();
        ledger.note(&[drive(100)], 1_000);
        ledger.note(&[drive(250)], 1_001);
        // The same ledger, another boot: rings count from zero.
        let text = serde_json::to_string(&ledger.pages).unwrap();
        let mut ledger = Ledger { pages: serde_json::from_str(&text).unwrap(), ..Ledger::default() };
        ledger.note(&[drive(50)], 1_002);
        let day = |ledger: &Ledger| (ledger.pages["d"].written_bytes, ledger.pages["d"].day_bytes());
        assert_eq!(day(&ledger), (300, 300));
        // A ring that was opened anew while the node ran.
        ledger.note(&[drive(10)], 1_002);
        assert_eq!(day(&ledger), (310, 310));
        ledger.note(&[drive(10)], 1_000 + 24);
        assert_eq!(day(&ledger), (310, 210));
        // The clock went back by a little.
        ledger.note(&[drive(15)], 1_020);
        assert_eq!(day(&ledger), (315, 215));
        // It was years ahead before: its day is not the last one.
        ledger.note(&[drive(20)], 3);
        assert_eq!(day(&ledger), (320, 5));
        ledger.note(&[drive(20)], 5_000);
        assert_eq!(day(&ledger), (320, 0));
    }

    #[test]
    fn a_file_that_says_anything_does_no_harm() {
        let mut page = Page { written_bytes: u64::MAX, hours: [u64::MAX; HOURS], hour: u64::MAX };
        page.add(1, u64::MAX);
        assert_eq!((page.written_bytes, page.day_bytes()), (u64::MAX, u64::MAX));
        page.add(7, 1_000);
        assert_eq!(page.day_bytes(), 7);
    }

    #[test]
    fn a_trouble_is_told_once() {
        let mut trouble = Trouble::default();
        let told =
            [true, true, true, false, true].map(|is_bad| trouble.news(is_bad.then(String::new)).is_some());
        assert_eq!(told, [true, false, false, false, true]);
    }

    #[test]
    fn shares_of_what_a_drive_can_bear() {
        let mut page = Page::default();
        page.add(1_500, 7);
        let wear = Wear { dwpd: Some(3.0), endurance_tb: Some(1e-9) };
        let numbers = numbers(&drive(0), &page, wear, 1_000);
        let value = |name: &str| numbers.iter().find(|one| one.name == name).map(|one| one.value);
        assert_eq!(value("drive_dwpd"), Some(1.5));
        assert_eq!(value("drive_dwpd_used_ratio"), Some(0.5));
        assert!(value("drive_endurance_used_ratio").is_some_and(|share| (share - 1.5).abs() < 1e-9));
        let bare = super::numbers(&drive(0), &page, Wear::default(), 1_000);
        assert!(bare.iter().all(|one| !one.name.ends_with("ratio")));
    }

    #[test]
    fn a_ledger_that_cannot_be_read_is_told() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_pages(dir.path()), Ok(BTreeMap::new()));
        for text in ["{", "[]", "{\"d\": {\"hours\": [1]}}"] {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            assert!(read_pages(dir.path()).is_err(), "{text}");
        }
    }
}
