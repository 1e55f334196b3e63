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

/// Who says the same to everything.
struct Always(fn(String) -> Outcome);

impl Receiver for Always {
    fn send<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Outcome> {
        Box::pin(async { (self.0)(event.id.clone()) })
    }
}

const SORT: Sort = Sort { name: "test", label: "to", words: "a test" };

fn open(dir: &Path, says: fn(String) -> Outcome, seq: u64) -> Delivery {
    Delivery::open(dir, SORT, "it", "it".into(), Box::new(Always(says)), seq)
}

#[test]
fn what_waits_is_bounded_and_the_oldest_go_first() {
    let dir = tempfile::tempdir().unwrap();
    let delivery = open(dir.path(), Outcome::Failed, 0);
    delivery.fill((1..=WAITING_MAX as u64 + 5).map(event));
    assert_eq!(delivery.waiting.lock().unwrap().front().unwrap().seq, 6);
    assert_eq!(value(&delivery, "test_given_up_total"), 5.0);
    assert_eq!(value(&delivery, "test_waiting"), WAITING_MAX as f64);
}

#[tokio::test(start_paused = true)]
async fn whoever_refuses_everything_is_not_called_well() {
    let dir = tempfile::tempdir().unwrap();
    let delivery = Arc::new(open(dir.path(), Outcome::Refused, 0));
    delivery.fill([event(1), event(2)]);
    until_sent(&delivery, 2).await;
    let values = ["test_up", "test_sent_total", "test_given_up_total"].map(|name| value(&delivery, name));
    assert_eq!(values, [0.0, 0.0, 2.0]);
}

#[test]
fn whoever_is_new_begins_now_and_stays_there() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(open(dir.path(), Outcome::Failed, 7).sent_seq(), 7);
    // A crash before it took something.
    assert_eq!(open(dir.path(), Outcome::Failed, 9).sent_seq(), 7);
    // What it took is not known: it is sent everything, and knows by the ids what it has.
    let file = dir.path().read_dir().unwrap().next().unwrap().unwrap().path();
    std::fs::write(file, "{").unwrap();
    assert_eq!(open(dir.path(), Outcome::Failed, 9).sent_seq(), 0);
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
