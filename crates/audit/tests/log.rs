//! What the log promises: nothing that was appended is lost when the process dies, and nothing can be taken away or changed unseen.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stoker_audit::{
    Event, Findings, Log, LogOptions, OK, Page, PublicKey, Query, SigningKey, segment, verify,
};
use tempfile::TempDir;

fn key() -> SigningKey {
    SigningKey::of_seed(&[7; 32]).unwrap()
}

fn keys() -> Vec<PublicKey> {
    vec![key().public()]
}

fn options(dir: &Path) -> LogOptions {
    LogOptions { segment_bytes_max: 4 << 10, ..LogOptions::new(&dir.join("audit"), "node-1", vec![key()]) }
}

fn event(number: usize) -> Event {
    Event {
        principal: format!("user acme/u{}", number % 3),
        tenant: "acme".into(),
        door: "s3".into(),
        action: if number.is_multiple_of(2) { "Create" } else { "Open" }.into(),
        path: format!("acme_data/dir-{}/file-{number}", number % 5),
        bytes: number as u64,
        result: OK.into(),
        request_id: format!("r{number}"),
        address: "10.0.0.1:1234".into(),
        ..Event::default()
    }
}

fn write(dir: &Path, count: usize) {
    let log = Log::open(options(dir)).unwrap();
    for number in 0..count {
        log.append(event(number)).unwrap();
    }
    log.stop();
}

fn check(dir: &Path) -> Findings {
    verify(&dir.join("audit"), &keys()).unwrap()
}

fn find(dir: &Path, query: Query) -> Page {
    query.run(&dir.join("audit")).unwrap()
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    segment::list(&dir.join("audit")).unwrap().into_iter().map(|(_, path)| path).collect()
}

fn all_paths(dir: &Path) -> Vec<String> {
    let (mut paths, mut before) = (Vec::new(), None);
    loop {
        let page = find(
            dir,
            Query { action: None, path: Some("acme".into()), limit: 7, before, ..Query::default() },
        );
        paths.extend(page.entries.into_iter().map(|entry| entry.event.path));
        match page.next {
            Some(next) => before = Some(next),
            None => return paths,
        }
    }
}

#[test]
fn what_was_written_is_found_page_by_page_and_is_sound() {
    let dir = TempDir::new().unwrap();
    write(dir.path(), 100);
    assert!(segments(dir.path()).len() > 3);
    let found = check(dir.path());
    assert!(found.is_sound(), "{found:?}");
    assert_eq!((found.events, found.signed_to), (101, 101));
    let expected: Vec<String> = (0..100).rev().map(|number| event(number).path).collect();
    assert_eq!(all_paths(dir.path()), expected);
    let count = |query: Query| find(dir.path(), Query { limit: 1000, ..query }).entries.len();
    assert_eq!(count(Query { user: Some("acme/u1".into()), ..Query::default() }), 33);
    assert_eq!(count(Query { user: Some("user acme/u1".into()), ..Query::default() }), 33);
    assert_eq!(count(Query { user: Some("acme/u".into()), ..Query::default() }), 0);
    assert_eq!(count(Query { path: Some("acme_data/dir-4/".into()), ..Query::default() }), 20);
    assert_eq!(
        count(Query { action: Some("Open".into()), tenant: Some("acme".into()), ..Query::default() }),
        50
    );
    assert_eq!(count(Query { from_ms: Some(u64::MAX), ..Query::default() }), 0);
    assert_eq!(count(Query { to_ms: Some(0), ..Query::default() }), 0);
}

#[test]
fn a_log_goes_on_where_it_ended() {
    let dir = TempDir::new().unwrap();
    for _ in 0..4 {
        write(dir.path(), 10);
    }
    let found = check(dir.path());
    assert!(found.is_sound(), "{found:?}");
    assert_eq!(found.events, 44);
}

#[test]
fn a_torn_tail_is_taken_away_and_what_was_whole_stays() {
    let dir = TempDir::new().unwrap();
    write(dir.path(), 30);
    // Behind the last head, as a crash would leave it.
    let last = segments(dir.path()).pop().unwrap();
    let mut bytes = fs::read(&last).unwrap();
    let len = bytes.len();
    bytes.extend_from_slice(b"{\"seq\":32,\"time\":\"2026");
    fs::write(&last, &bytes).unwrap();
    assert!(!check(dir.path()).is_sound());
    let log = Log::open(options(dir.path())).unwrap();
    log.stop();
    let found = check(dir.path());
    assert!(found.is_sound(), "{found:?}");
    assert_eq!(all_paths(dir.path()).len(), 30);
    assert_eq!(fs::read(last.with_extension("torn")).unwrap().len(), bytes.len() - len);
}

/// Where 100 mutations are made: deterministic, all over the log.
fn spread(number: usize, of: usize) -> usize {
    (number * 7919 + 13) % of
}

fn lines(path: &Path) -> Vec<Vec<u8>> {
    fs::read(path).unwrap().split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn mutate(dir: &Path, number: usize) -> String {
    let all = segments(dir);
    let path = &all[spread(number, all.len())];
    let mut lines = lines(path);
    let at = spread(number, lines.len());
    let what = match number % 10 {
        0 => {
            lines.remove(at);
            "a line removed"
        }
        1 => {
            let other = (at + 1) % lines.len();
            lines.swap(at, other);
            "two lines swapped"
        }
        2 => {
            let line = lines[at].clone();
            lines.insert(at, line);
            "a line twice"
        }
        3 => {
            lines.truncate(at);
            "a tail cut"
        }
        4 => {
            let len = lines[at].len();
            lines[at].truncate(len / 2);
            lines.truncate(at + 1);
            "a line cut"
        }
        5 => {
            fs::remove_file(path).unwrap();
            return format!("{} removed", path.display());
        }
        6 => {
            let other = &all[(spread(number, all.len()) + 1) % all.len()];
            fs::copy(other, path).unwrap();
            return format!("{} replaced", path.display());
        }
        7 => {
            // As somebody does it who knows the form: the chain of the line alone is made anew by a log of their own.
            let text = String::from_utf8(lines[at].clone()).unwrap();
            let changed = text.replace("acme", "evil");
            let changed = if changed == text { text.replace("node", "nude") } else { changed };
            let changed = if changed == text { text.replace("audit", "tidua") } else { changed };
            lines[at] = changed.into_bytes();
            "a name changed"
        }
        _ => {
            let byte = spread(number, lines[at].len());
            lines[at][byte] ^= 1 << (number % 8);
            "a bit changed"
        }
    };
    fs::write(path, lines.concat()).unwrap();
    format!("{what} at line {at} of {}", path.display())
}

#[test]
fn of_100_mutations_100_are_found() {
    let whole = TempDir::new().unwrap();
    write(whole.path(), 60);
    let mut missed = Vec::new();
    for number in 0..100 {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("audit")).unwrap();
        for entry in fs::read_dir(whole.path().join("audit")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), dir.path().join("audit").join(entry.file_name())).unwrap();
        }
        assert!(check(dir.path()).is_sound());
        let what = mutate(dir.path(), number);
        if check(dir.path()).is_sound() {
            missed.push(what);
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Somebody who can write the files and has no key writes a whole log anew, with a chain of its own.
#[test]
fn a_log_of_another_key_is_no_log_of_the_cluster() {
    let (dir, forged) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    write(dir.path(), 20);
    let other = SigningKey::of_seed(&[9; 32]).unwrap();
    let log = Log::open(LogOptions { keys: vec![other], ..options(forged.path()) }).unwrap();
    for number in 0..20 {
        log.append(event(number + 1)).unwrap();
    }
    log.stop();
    assert!(check(dir.path()).is_sound());
    assert!(!check(forged.path()).is_sound());
    assert!(
        verify(&forged.path().join("audit"), &[]).unwrap().is_sound(),
        "without a key it only fits together"
    );
}

/// A damaged log that a restart goes on with stays a damaged one.
#[test]
fn a_restart_makes_no_sound_log_of_a_cut_one() {
    let dir = TempDir::new().unwrap();
    write(dir.path(), 30);
    let last = segments(dir.path()).pop().unwrap();
    let mut kept = lines(&last);
    kept.truncate(2);
    fs::write(&last, kept.concat()).unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    log.append(event(1)).unwrap();
    log.stop();
    let found = check(dir.path());
    assert!(!found.is_sound());
    let page = find(dir.path(), Query { action: Some("Started".into()), limit: 1, ..Query::default() });
    assert!(page.entries[0].event.detail.contains("are missing"), "{page:?}");
}

#[test]
fn a_ticket_says_when_a_line_is_durable() {
    let dir = TempDir::new().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tickets: Vec<_> = (0..200).map(|number| log.append_now(event(number)).unwrap()).collect();
    runtime.block_on(async {
        for ticket in &tickets {
            ticket.wait().await.unwrap();
        }
    });
    assert!(tickets.iter().all(|ticket| ticket.is_done()));
    assert!(log.counts().flushes >= 1);
}

#[test]
fn a_log_that_is_full_refuses_until_segments_are_elsewhere() {
    let dir = TempDir::new().unwrap();
    let refuses = LogOptions { refuses: true, disk_bytes_max: 32 << 10, ..options(dir.path()) };
    let log = Log::open(refuses).unwrap();
    let refused = (0..10_000).find(|number| log.append(event(*number)).is_err()).unwrap();
    assert!(refused > 10);
    assert!(log.refusal().is_some() && log.counts().is_failed);
    assert!(log.counts().disk_bytes <= 36 << 10);
    let closed = log.unshipped().unwrap();
    log.shipped(closed.last().unwrap().0).unwrap();
    log.append(event(1)).unwrap();
    assert!(log.refusal().is_none());
    assert!(log.counts().disk_bytes < 32 << 10);
    log.stop();
    let found = check(dir.path());
    assert!(found.is_sound(), "{found:?}");
    assert!(found.segment_first > 1);
    // That it begins later is fine only because a line says so.
    fs::remove_file(&segments(dir.path())[0]).unwrap();
    assert!(!check(dir.path()).is_sound());
}

#[test]
fn an_old_segment_is_closed_and_waits_to_be_put_into_the_volume() {
    let dir = TempDir::new().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    log.append(event(1)).unwrap();
    assert!(log.unshipped().unwrap().is_empty());
    log.rotate().unwrap();
    let closed = log.unshipped().unwrap();
    assert_eq!(closed.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1]);
    log.shipped(1).unwrap();
    assert!(log.unshipped().unwrap().is_empty());
    log.stop();
    let log = Log::open(options(dir.path())).unwrap();
    assert!(log.unshipped().unwrap().is_empty(), "remembered over a restart");
}

#[test]
fn denied_calls_do_not_flood() {
    let dir = TempDir::new().unwrap();
    let log = Log::open(LogOptions { head_every: Duration::from_secs(3600), ..options(dir.path()) }).unwrap();
    let denied = |principal: &str| Event { principal: principal.into(), result: String::new(), ..event(1) };
    for _ in 0..20_000 {
        log.denied(denied("anonymous"));
    }
    log.denied(denied("user acme/alice"));
    log.stop();
    let counts = log.counts();
    assert!(counts.denied < 1000, "{counts:?}");
    assert_eq!(counts.denied + counts.suppressed - suppressed_lines(dir.path()).len() as u64, 20_001);
    let said: u64 = suppressed_lines(dir.path()).iter().map(|detail| number_in(detail)).sum();
    assert_eq!(said, counts.suppressed);
    let alice = find(dir.path(), Query { user: Some("acme/alice".into()), limit: 10, ..Query::default() });
    assert_eq!(alice.entries.len(), 1);
}

fn suppressed_lines(dir: &Path) -> Vec<String> {
    let page = find(dir, Query { action: Some("Suppressed".into()), limit: 1000, ..Query::default() });
    page.entries.into_iter().map(|entry| entry.event.detail).collect()
}

fn number_in(detail: &str) -> u64 {
    detail.split(' ').next().unwrap().parse().unwrap()
}
