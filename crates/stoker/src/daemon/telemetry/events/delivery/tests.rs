use super::super::{Origin, Severity};
use super::*;

pub fn event(seq: u64) -> Event {
    Event {
        seq,
        id: format!("n-{seq}"),
        time: "2026-07-01T12:00:00Z".into(),
        origin: Origin { node: "n".into(), node_id: "i".into(), cluster: "c".into() },
        kind: "node_down".into(),
        severity: Severity::Error,
        about: "node_down/b".into(),
        words: String::new(),
    }
}

/// Runs a delivery until it is done with events up to a number.
pub async fn until_sent(delivery: &Arc<Delivery>, seq: u64) {
    let (_changes, changed) = watch::channel(0);
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(delivery.clone().send_all(changed, stopped));
    while delivery.sent_seq() < seq {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.send_replace(true);
    task.await.unwrap();
}

pub fn value(delivery: &Delivery, name: &str) -> f64 {
    delivery.counters().into_iter().find(|counter| counter.name == name).unwrap().value
}

/// Nobody.
struct Gone;

impl Receiver for Gone {
    fn send<'a>(&'a self, _: &'a Event) -> BoxFuture<'a, Outcome> {
        Box::pin(async { Outcome::Failed("nobody is there".into()) })
    }
}

const SORT: Sort = Sort { name: "test", label: "to", words: "a test" };

#[test]
fn what_waits_is_bounded_and_the_oldest_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let delivery = Delivery::open(dir.path(), SORT, "it", "it".into(), Box::new(Gone));
    delivery.fill((1..=WAITING_MAX as u64 + 5).map(event));
    assert_eq!(delivery.waiting.lock().unwrap().front().unwrap().seq, 6);
    assert_eq!(value(&delivery, "test_given_up_total"), 5.0);
    assert_eq!(value(&delivery, "test_waiting"), WAITING_MAX as f64);
}

#[test]
fn pauses() {
    let mut rng = Rng::new(1);
    for tries in [0, 1, 5, 20, u32::MAX] {
        let pause = pause_after(tries, &mut rng);
        assert!(pause >= PAUSE_MIN / 2 && pause <= PAUSE_MAX, "{tries}: {pause:?}");
    }
    assert!(pause_after(20, &mut rng) >= PAUSE_MAX / 2);
}
