//! The retries against the simulated lake, in simulated time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::rng::Rng;
use crate::twin::{Faults, TwinLake};

/// Time passes only while somebody sleeps.
struct SimTimer {
    now_us: Arc<AtomicU64>,
    slept_ms: Arc<Mutex<Vec<u64>>>,
    rng: Mutex<Rng>,
}

impl SimTimer {
    fn new(seed: u64) -> Arc<SimTimer> {
        Arc::new(SimTimer {
            now_us: Arc::default(),
            slept_ms: Arc::default(),
            rng: Mutex::new(Rng::new(seed)),
        })
    }
}

impl Timer for SimTimer {
    fn now_us(&self) -> u64 {
        self.now_us.load(Ordering::SeqCst)
    }

    fn sleep_ms(&self, ms: u64) -> BoxFuture<'static, ()> {
        let (now_us, slept_ms) = (self.now_us.clone(), self.slept_ms.clone());
        Box::pin(async move {
            now_us.fetch_add(ms * 1000, Ordering::SeqCst);
            slept_ms.lock().unwrap().push(ms);
        })
    }

    fn random(&self) -> u64 {
        self.rng.lock().unwrap().next()
    }
}

fn patient() -> RetryOptions {
    RetryOptions { tries_max: 100, budget: 100_000, ..RetryOptions::default() }
}

fn wrap(twin: &Arc<TwinLake>, options: RetryOptions) -> RetryLake {
    RetryLake::new(twin.clone(), options, SimTimer::new(1))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn body(text: &str) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(text.as_bytes())]
}

fn seeds() -> std::ops::Range<u64> {
    if std::env::var_os("STOKER_FULL").is_some_and(|value| value == "1") { 0..3000 } else { 0..150 }
}

/// One writer with conditions never loses against itself, whatever the network does.
#[test]
fn a_lone_writer_never_sees_a_conflict() {
    for seed in seeds() {
        let twin = Arc::new(TwinLake::new(seed));
        twin.fault_rate(0.4);
        let lake = wrap(&twin, patient());
        block_on(async {
            let mut etag: Option<String> = None;
            for round in 0..20 {
                let condition = etag.take().map_or(Condition::Absent, Condition::Matches);
                let text = format!("round {round}");
                let crc64 = Some(stoker_format::crc64(text.as_bytes()));
                let options = PutOptions { condition, crc64, ..PutOptions::default() };
                let answer = if round % 3 == 2 {
                    let upload = lake.upload_begin(b"k", Attributes::default()).await.unwrap();
                    let part = lake.upload_part(b"k", &upload, 1, body(&text)).await.unwrap();
                    lake.upload_complete(b"k", &upload, vec![part], options).await
                } else if round % 3 == 1 {
                    let from = format!("source{round}");
                    let from = from.as_bytes();
                    lake.put(from, body(&text), PutOptions::default()).await.unwrap();
                    // A put without a condition may come again, late, with another etag.
                    let source = lake.head(from).await.unwrap().unwrap().etag;
                    match lake.copy(from, &source, b"k", options).await {
                        Err(error)
                            if error.kind == LakeErrorKind::Changed && error.message.contains("source") =>
                        {
                            etag = lake.head(b"k").await.unwrap().map(|info| info.etag);
                            continue;
                        }
                        answer => answer,
                    }
                } else {
                    lake.put(b"k", body(&text), options).await
                };
                let written = answer.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
                let object = &twin.objects()[&b"k"[..]];
                assert_eq!(
                    (object.etag.as_str(), &object.body[..]),
                    (written.as_str(), text.as_bytes()),
                    "seed {seed}"
                );
                etag = Some(written);
            }
            // What comes late finds its condition gone.
            let before = twin.objects()[&b"k"[..]].clone();
            twin.settle();
            assert_eq!(twin.objects()[&b"k"[..]], before, "seed {seed}: a late write overwrote a newer one");
        });
        assert!(twin.fault_counts().reset_after + twin.fault_counts().late > 0 || seed > 0);
    }
}

/// A try without an answer may come late, so that the key stays in doubt although the next try worked.
#[test]
fn a_write_that_was_sent_twice_is_in_doubt_once() {
    let (mut twice, mut once) = (0, 0);
    for seed in seeds() {
        let twin = Arc::new(TwinLake::new(seed));
        twin.set_faults(Faults { late: 0.5, ..Faults::default() });
        let lake = wrap(&twin, patient());
        let options = PutOptions { condition: Condition::Absent, ..PutOptions::default() };
        block_on(lake.put(b"k", body("x"), options)).unwrap();
        let is_late = twin.fault_counts().late > 0;
        assert_eq!(lake.is_doubted(b"k"), is_late, "seed {seed}");
        assert_eq!(lake.is_doubted(b"k"), is_late, "seed {seed}: it stays until somebody wrote it down");
        lake.end_doubt(b"k");
        assert!(!lake.is_doubted(b"k"), "seed {seed}");
        *(if is_late { &mut twice } else { &mut once }) += 1;
    }
    assert!(twice > 0 && once > 0);
}

#[test]
fn a_real_conflict_is_still_one() {
    for seed in seeds() {
        let twin = Arc::new(TwinLake::new(seed));
        let lake = wrap(&twin, patient());
        block_on(async {
            let etag = lake.put(b"k", body("mine"), PutOptions::default()).await.unwrap();
            twin.foreign_put(b"k", "their");
            twin.fault_rate(0.4);
            let options = PutOptions { condition: Condition::Matches(etag), ..PutOptions::default() };
            let answer = lake.put(b"k", body("newer"), options).await;
            assert_eq!(answer.unwrap_err().kind, LakeErrorKind::Changed, "seed {seed}");
            assert_eq!(twin.objects()[&b"k"[..]].body, "their");
        });
    }
}

#[test]
fn what_only_an_operator_can_fix_is_not_tried_again() {
    let twin = Arc::new(TwinLake::new(1));
    let lake = wrap(&twin, patient());
    block_on(async {
        assert_eq!(lake.get(b"none", 0..1, None).await.unwrap_err().kind, LakeErrorKind::NotFound);
        assert_eq!(
            lake.put(b"", body("x"), PutOptions::default()).await.unwrap_err().kind,
            LakeErrorKind::Invalid
        );
    });
    let stats = lake.stats().unwrap();
    assert_eq!((stats.retries, twin.calls()), (0, 1));
}

#[test]
fn a_dead_lake_is_not_hammered() {
    let twin = Arc::new(TwinLake::new(1));
    twin.refuse_all(true);
    let lake = wrap(&twin, RetryOptions { tries_max: 5, budget: 10, ..RetryOptions::default() });
    block_on(async {
        for _ in 0..100 {
            assert_eq!(lake.head(b"k").await.unwrap_err().kind, LakeErrorKind::Unavailable);
        }
    });
    assert_eq!(twin.calls(), 110, "each call once, and ten retries in all");
    let stats = lake.stats().unwrap();
    assert_eq!((stats.retries, stats.retries_refused), (10, 98));
    twin.refuse_all(false);
    block_on(async {
        for _ in 0..11 {
            lake.head(b"k").await.unwrap();
        }
        twin.refuse_all(true);
        lake.head(b"k").await.unwrap_err();
    });
    assert_eq!(twin.calls(), 110 + 11 + 2, "successes earn retries");
}

#[test]
fn waits_grow_and_stay_in_their_bounds() {
    let twin = Arc::new(TwinLake::new(1));
    twin.refuse_all(true);
    let timer = SimTimer::new(7);
    let options =
        RetryOptions { tries_max: 30, wait_ms_min: 10, wait_ms_max: 1000, ..RetryOptions::default() };
    let lake = RetryLake::new(twin.clone(), options, timer.clone());
    block_on(lake.head(b"k")).unwrap_err();
    let waits = timer.slept_ms.lock().unwrap().clone();
    assert_eq!(waits.len(), 29);
    assert!(waits.iter().all(|ms| (10..=1000).contains(ms)), "{waits:?}");
    assert!(waits[0] < 30 && waits.iter().any(|&ms| ms > 300), "{waits:?}");
}

#[test]
fn a_lake_that_hangs_meets_the_deadline() {
    let twin = Arc::new(TwinLake::new(1));
    twin.hang_all(true);
    let timer = SimTimer::new(1);
    let options = RetryOptions {
        tries_max: 2,
        request_ms_max: 5000,
        bytes_per_s_min: 1 << 20,
        ..RetryOptions::default()
    };
    let lake = RetryLake::new(twin.clone(), options, timer.clone());
    let error = block_on(lake.get(b"k", 0..8 << 20, None)).unwrap_err();
    assert_eq!(error.kind, LakeErrorKind::Unavailable);
    let slept = timer.slept_ms.lock().unwrap().clone();
    assert_eq!((slept[0], slept[2]), (13_000, 13_000), "the time grows with the bytes: {slept:?}");
    let stats = lake.stats().unwrap();
    assert_eq!((stats.requests_now, stats.operations[Operation::Get as usize].requests), (0, 2));
    assert_eq!(stats.operations[Operation::Get as usize].latency_us_sum, 26_000_000);
    assert_eq!(stats.errors[LakeErrorKind::Unavailable as usize], 2);
    let silence = lake.silence().unwrap();
    assert!(silence.ms >= 26_000 && silence.error.unwrap().contains("did not answer within 13000 ms"));
    twin.hang_all(false);
    assert_eq!(block_on(lake.head(b"k")).unwrap(), None);
    assert_eq!(lake.silence(), None, "it answers");
}

#[test]
fn a_busy_lake_gets_fewer_requests() {
    let twin = Arc::new(TwinLake::new(1));
    twin.set_faults(Faults { busy: 1.0, ..Faults::default() });
    let lake = wrap(&twin, RetryOptions { requests_max: 64, tries_max: 5, ..RetryOptions::default() });
    block_on(lake.head(b"k")).unwrap_err();
    assert_eq!(lake.stats().unwrap().requests_limit, 2);
    twin.set_faults(Faults::default());
    block_on(async {
        for _ in 0..3000 {
            lake.head(b"k").await.unwrap();
        }
    });
    assert_eq!(lake.stats().unwrap().requests_limit, 64);
}

#[test]
fn bytes_are_counted_once() {
    let twin = Arc::new(TwinLake::new(1));
    twin.fault_rate(0.5);
    let lake = wrap(&twin, patient());
    block_on(async {
        for _ in 0..20 {
            lake.put(b"k", body("12345"), PutOptions::default()).await.unwrap();
            lake.get(b"k", 1..4, None).await.unwrap();
        }
    });
    let stats = lake.stats().unwrap();
    assert_eq!((stats.bytes_written, stats.bytes_read), (100, 60));
    assert!(stats.retries > 0);
}
