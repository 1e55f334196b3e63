use std::fs;
use std::os::unix::fs::FileExt;

use super::*;

const WRITE: &str = "write_bytes_per_s";
const DAY_MS: u64 = 86_400_000;
const NOW: u64 = 20_000 * DAY_MS + 7_000_000;

/// A node that wrote ten bytes each second for this long, with a sample each minute, and stopped.
fn filled(dir: &Path, age_ms: u64) {
    let past = PastKeeper::open(dir);
    for at_ms in (NOW - age_ms..NOW).step_by(60_000) {
        past.add(at_ms, &[(WRITE, 10.0), ("unheard of", 1.0)]);
    }
    past.write().unwrap();
}

fn told(past: &PastKeeper, age_ms: u64, every_ms: u64) -> Vec<(u64, f64)> {
    let points = past.points(HistoryRequest { since_ms: NOW - age_ms, every_ms }, NOW);
    let value = |point: &HistoryPoint| Some((NOW - point.at_ms, point.value(figure(WRITE)?)?));
    points.iter().filter_map(value).collect()
}

#[test]
fn a_month_is_kept_over_a_restart_in_a_file_that_does_not_grow() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), DAY_MS);
    let len = fs::metadata(dir.path().join(FILE)).unwrap().len();
    assert!(len < 1 << 20, "{len} bytes");
    filled(dir.path(), 40 * DAY_MS);
    assert_eq!(fs::metadata(dir.path().join(FILE)).unwrap().len(), len);
    let past = PastKeeper::open(dir.path());
    let hours = told(&past, 30 * DAY_MS, 4 * 3_600_000);
    assert!((179..=181).contains(&hours.len()), "{}", hours.len());
    assert!(hours.iter().all(|(_, value)| *value == 10.0), "{hours:?}");
    assert!((288..=289).contains(&told(&past, DAY_MS, 300_000).len()));
    let week = told(&past, 40 * DAY_MS, 600_000);
    assert!(week.iter().all(|(age_ms, _)| *age_ms <= 31 * DAY_MS), "nothing older than the circle");
}

#[test]
fn the_last_minutes_are_fine() {
    let dir = tempfile::tempdir().unwrap();
    let past = PastKeeper::open(dir.path());
    for at_ms in (NOW - 600_000..NOW).step_by(2_000) {
        past.add(at_ms, &[(WRITE, 10.0)]);
    }
    assert_eq!(told(&past, 600_000, 10_000).len(), 60);
    // A month has what there is of it.
    assert_eq!(told(&past, 30 * DAY_MS, 14_400_000).len(), 1);
    // Another start has the minutes only.
    past.write().unwrap();
    assert_eq!(told(&PastKeeper::open(dir.path()), 600_000, 60_000).len(), 10);
}

#[test]
fn damage_takes_what_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    filled(dir.path(), DAY_MS);
    let whole = told(&PastKeeper::open(dir.path()), DAY_MS, 60_000).len();
    // A point that a crash tore: the others stay.
    let bytes = fs::read(&path).unwrap();
    let at = bytes.iter().skip(64).position(|byte| *byte != 0).unwrap() + 64;
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[bytes[at] ^ 0x40], at as u64).unwrap();
    assert_eq!(told(&PastKeeper::open(dir.path()), DAY_MS, 60_000).len(), whole - 1);
    // A head of another release, a file that was cut, one that is something else: it begins anew, and works.
    let mut other = bytes.clone();
    other[9] ^= 1;
    for damaged in [other, bytes[..bytes.len() - 3].to_vec(), b"{}".to_vec(), Vec::new()] {
        fs::write(&path, damaged).unwrap();
        assert_eq!(told(&PastKeeper::open(dir.path()), DAY_MS, 60_000), []);
        filled(dir.path(), 3_600_000);
        assert_eq!(told(&PastKeeper::open(dir.path()), DAY_MS, 60_000).len(), 60);
    }
    // What cannot be opened is no reason not to run.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    filled(dir.path(), 3_600_000);
}
