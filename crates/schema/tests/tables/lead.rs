//! One node leads a loop: nobody has an effect beside it, and another one leads when it is gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stoker_catalog::kv::{BoxFuture, Catalog, Check, Commit, Outcome, Page, Range, Row, Watch};
use stoker_catalog::{CatalogError, ErrorKind, Result};
use stoker_schema::lead::{Candidate, FRESH, LEASE, LeadRow, Lease, POLL_EVERY, Term};
use stoker_schema::rows::{RowValue, keys};

use crate::fixture::Fixture;

const LOOP: &str = "tiers";

#[expect(clippy::disallowed_methods, reason = "a beginning to count from; time is what the tests say")]
fn start() -> Instant {
    Instant::now()
}

fn candidate(catalog: &Arc<dyn Catalog>, who: &str, now: Instant) -> Candidate {
    Candidate::new(catalog.clone(), LOOP, who, "gpu-01", Vec::new(), now).unwrap()
}

/// Whether a leader's commit happens.
async fn works(catalog: &Arc<dyn Catalog>, term: &Term) -> bool {
    let change = Commit::new().check(term.check()).put(&b"x-effect"[..], term.number.to_be_bytes());
    matches!(catalog.commit(change).await, Ok(Outcome::Done { .. }))
}

#[tokio::test]
async fn another_one_leads_when_the_leader_is_gone() {
    let (fixture, at) = (Fixture::memory(), start());
    let catalog = &fixture.catalog;
    let (mut one, mut other) = (candidate(catalog, "one", at), candidate(catalog, "other", at));
    let first = one.hold(at).await.unwrap().expect("nobody leads");
    assert_eq!(other.hold(at).await.unwrap(), None);
    assert_eq!(other.leader().await.unwrap().unwrap().leader, "one");
    let mut now = at;
    // As long as it beats, it leads, in one term.
    for _ in 0..30 {
        now += POLL_EVERY;
        assert_eq!(one.hold(now).await.unwrap().unwrap().number, first.number);
        assert_eq!(other.hold(now).await.unwrap(), None);
    }
    let last = one.term().unwrap().clone();
    assert!(works(catalog, &first).await && works(catalog, &last).await, "beats do not end a term");
    assert!(last.is_fresh(now) && !last.is_fresh(now + FRESH));
    let almost = now + LEASE - Duration::from_millis(1);
    assert_eq!(other.hold(almost).await.unwrap(), None, "it may be alive");
    let second = other.hold(now + LEASE).await.unwrap().expect("the leader is gone");
    assert_eq!(second.number, first.number + 1);
    assert!(!works(catalog, &last).await, "what it began before has no effect any more");
    assert!(works(catalog, &second).await);
    assert_eq!(one.hold(now + LEASE).await.unwrap(), None, "it is told, and waits like any other");
}

#[tokio::test]
async fn one_that_stops_lets_another_one_lead_at_once() {
    let (fixture, at) = (Fixture::memory(), start());
    let catalog = &fixture.catalog;
    let (mut one, mut other) = (candidate(catalog, "one", at), candidate(catalog, "other", at));
    let first = one.hold(at).await.unwrap().unwrap();
    assert_eq!(other.hold(at).await.unwrap(), None);
    candidate(catalog, "third", at).give_up().await.unwrap();
    assert!(works(catalog, &first).await, "nobody gives up for another one");
    one.give_up().await.unwrap();
    assert!(!works(catalog, &first).await);
    assert_eq!(other.leader().await.unwrap(), None);
    let second = other.hold(at).await.unwrap().expect("it was given up");
    assert!(second.number > first.number && works(catalog, &second).await);
}

#[tokio::test]
async fn one_that_was_fenced_does_not_lead() {
    let (fixture, at) = (Fixture::memory(), start());
    let catalog = &fixture.catalog;
    let session = Check::Value(b"x-session".to_vec(), b"1".to_vec());
    let mut one = Candidate::new(catalog.clone(), LOOP, "one", "gpu-01", vec![session], at).unwrap();
    assert_eq!(one.hold(at).await.unwrap(), None);
    let change = Commit::new().put(&b"x-session"[..], &b"1"[..]);
    let Outcome::Done { .. } = catalog.commit(change).await.unwrap() else { panic!("no checks") };
    assert!(one.hold(at).await.unwrap().is_some());
    let change = Commit::new().delete(&b"x-session"[..]);
    let Outcome::Done { .. } = catalog.commit(change).await.unwrap() else { panic!("no checks") };
    assert_eq!(one.hold(at + POLL_EVERY).await.unwrap(), None);
    assert_eq!(one.term(), None);
}

#[tokio::test]
async fn what_is_not_understood_is_not_replaced() {
    let (fixture, at) = (Fixture::memory(), start());
    let catalog = &fixture.catalog;
    for (value, kind) in [
        (&b""[..], ErrorKind::Corrupt),
        (&b"\x01\xff\xff"[..], ErrorKind::Corrupt),
        (&b"\x07newer"[..], ErrorKind::Foreign),
    ] {
        let Outcome::Done { .. } = catalog.commit(Commit::new().put(keys::lead(LOOP), value)).await.unwrap()
        else {
            panic!("no checks")
        };
        let mut one = candidate(catalog, "one", at);
        assert_eq!(one.hold(at).await.unwrap_err().kind, kind);
        assert_eq!(one.hold(at + LEASE * 2).await.unwrap_err().kind, kind);
    }
    // A sign of life of any length is one.
    let row = LeadRow { leader: "x".into(), node: "gpu-02".into(), term: 7 };
    let change = Commit::new().put(keys::lead(LOOP), row.encode()).put(keys::lead_beat(LOOP), &b"odd"[..]);
    let Outcome::Done { .. } = catalog.commit(change).await.unwrap() else { panic!("no checks") };
    let mut one = candidate(catalog, "one", at);
    assert_eq!(one.hold(at).await.unwrap(), None);
    assert_eq!(one.hold(at + LEASE).await.unwrap().unwrap().number, 8);
    for name in ["", "Tiers", "a/b", &"x".repeat(200)] {
        assert!(Candidate::new(catalog.clone(), name, "one", "", Vec::new(), at).is_err(), "{name}");
    }
}

#[test]
fn a_lease_goes_by_what_was_seen() {
    let at = start();
    let mut lease = Lease::new(at);
    lease.saw(None, at);
    assert!(lease.is_free(at));
    lease.saw(Some(4), at + LEASE);
    assert!(!lease.is_free(at + LEASE), "how old it is nobody knows");
    lease.saw(Some(4), at + LEASE * 2);
    assert!(lease.is_free(at + LEASE * 2));
    lease.saw(Some(9), at + LEASE * 2);
    assert!(!lease.is_free(at + LEASE * 2));
    lease.saw(None, at + LEASE * 2);
    assert!(lease.is_free(at + LEASE * 2), "somebody took it away");
}

/// A catalog whose answers get lost, as if its node had died: before it did what was asked, behind it, or much later.
struct Lossy {
    inner: Arc<dyn Catalog>,
    dice: AtomicU64,
    late: Mutex<Vec<Commit>>,
}

impl Lossy {
    fn roll(&self, sides: u64) -> u64 {
        let next =
            |dice: u64| dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let before = self.dice.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |dice| Some(next(dice)));
        (next(before.unwrap()) >> 33) % sides
    }
}

impl Catalog for Lossy {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        match self.roll(8) {
            0 => Box::pin(async { Err(CatalogError::unavailable("lost")) }),
            _ => self.inner.get(keys),
        }
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        self.inner.range(range)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        Box::pin(async move {
            match self.roll(8) {
                0 => return Err(CatalogError::unavailable("lost")),
                1 => drop(self.inner.commit(commit).await?),
                2 => self.late.lock().unwrap().push(commit),
                _ => return self.inner.commit(commit).await,
            }
            Err(CatalogError::unknown("lost"))
        })
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.inner.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        self.inner.seq()
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        self.inner.now_ms()
    }

    fn describe(&self) -> String {
        "lossy".into()
    }
}

/// Whatever gets lost and whoever pauses: of all terms that were ever given only the last one has an effect, terms rise, nobody is taken
/// over while its term is fresh, and in the end somebody leads.
#[tokio::test]
async fn at_most_one_has_an_effect() {
    for seed in 0..60 {
        let inner = Fixture::memory().catalog;
        let dice = AtomicU64::new(seed * 977 + 1);
        let lossy = Arc::new(Lossy { inner: inner.clone(), dice, late: Mutex::default() });
        let catalog: Arc<dyn Catalog> = lossy.clone();
        let (mut now, mut named) = (start(), 0);
        let mut fresh = |now| {
            named += 1;
            let who = format!("p{named}");
            (candidate(&catalog, &who, now), who)
        };
        let mut all: Vec<(Candidate, String)> = (0..3).map(|_| fresh(now)).collect();
        let mut given: Vec<(String, Term)> = Vec::new();
        let (mut leaders, mut gave_up) = (0, Vec::new());
        for _ in 0..400 {
            now += Duration::from_millis(lossy.roll(9_000));
            if lossy.roll(4) == 0 {
                let late = std::mem::take(&mut *lossy.late.lock().unwrap());
                for commit in late {
                    let (Outcome::Done { .. } | Outcome::Failed { .. }) = inner.commit(commit).await.unwrap();
                }
            }
            let at = lossy.roll(3) as usize;
            if lossy.roll(40) == 0 {
                let (gone, who) = std::mem::replace(&mut all[at], fresh(now));
                gave_up.push(who);
                let _ = gone.give_up().await;
            } else if let Ok(Some(term)) = all[at].0.hold(now).await {
                let who = &all[at].1;
                if let Some((by, of)) = given.last()
                    && (by, of.number) != (who, term.number)
                {
                    assert!(of.number < term.number, "seed {seed}: terms rise");
                    assert!(gave_up.contains(by) || !of.is_fresh(now), "seed {seed}: {by} may be at work");
                    leaders += 1;
                }
                given.push((who.clone(), term));
            }
            let row = inner.get(&[&keys::lead(LOOP)]).await.unwrap().pop().flatten();
            let lead = row.map(|row| LeadRow::of(&row).unwrap());
            for (by, term) in given.iter().rev().take(20) {
                let leads = lead.as_ref().is_some_and(|lead| (&lead.leader, lead.term) == (by, term.number));
                assert_eq!(works(&inner, term).await, leads, "seed {seed}");
            }
        }
        assert!(leaders > 3, "seed {seed}: {leaders} leaders");
        // Nothing gets lost any more.
        let mut left: Vec<Candidate> = ["x", "y", "z"].map(|who| candidate(&inner, who, now)).into();
        for candidate in &mut left {
            let _ = candidate.hold(now).await.unwrap();
        }
        let mut leads = 0;
        for candidate in &mut left {
            leads += usize::from(candidate.hold(now + LEASE).await.unwrap().is_some());
        }
        assert_eq!(leads, 1, "seed {seed}");
    }
}
