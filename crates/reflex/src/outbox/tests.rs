//! Notices arrive once, in order, or are kept.

use super::*;
use crate::order::{OrderKind, Severity};
use crate::part::Location;

fn order(key: &str, status: OrderStatus, at: u64) -> WorkOrder {
    WorkOrder {
        key: key.into(),
        kind: OrderKind::Repair,
        status,
        severity: Severity::Error,
        cluster: "c".into(),
        incident: 1,
        part: None,
        location: Location::default(),
        title: "t".into(),
        task: "k".into(),
        reason: format!("at {at}"),
        opened: Time(1),
        at: Time(at),
        evidence: Vec::new(),
    }
}

fn opened(key: &str) -> WorkOrder {
    order(key, OrderStatus::Opened, 1)
}

fn due(outbox: &Outbox, now: u64) -> Vec<(u64, OrderStatus)> {
    outbox.due(Time(now)).iter().map(|notice| (notice.id, notice.order.status)).collect()
}

fn later() -> Answer {
    Answer::Later { why: "x".into() }
}

/// One try, from its begin to its end.
fn answered(outbox: &mut Outbox, id: u64, now: Time, answer: Answer) {
    outbox.begin(id);
    outbox.answered(id, now, answer);
}

fn taken() -> Answer {
    Answer::Taken { remote: None }
}

#[test]
fn the_same_twice_is_once() {
    let mut outbox = Outbox::default();
    outbox.push("a", &opened("k"), Time(0));
    outbox.push("a", &opened("k"), Time(5));
    outbox.push("b", &opened("k"), Time(5));
    assert_eq!(due(&outbox, 10), [(1, OrderStatus::Opened), (2, OrderStatus::Opened)]);
}

#[test]
fn pauses_grow_and_end_at_a_limit() {
    let mut outbox = Outbox::default();
    outbox.push("a", &opened("k"), Time(0));
    let mut now = 0;
    let mut pauses = Vec::new();
    for _ in 0..40 {
        answered(&mut outbox, 1, Time(now), later());
        let pause_ms = outbox.waiting()[0].due.since_ms(Time(now));
        assert!(due(&outbox, now + pause_ms - 1).is_empty());
        assert_eq!(due(&outbox, now + pause_ms).len(), 1);
        now += pause_ms;
        pauses.push(pause_ms);
    }
    assert!(pauses[..8].windows(2).all(|two| two[0] < two[1]), "{pauses:?}");
    assert!(pauses.iter().all(|pause_ms| (3_750..=PAUSE_MS_MAX).contains(pause_ms)), "{pauses:?}");
    assert_eq!(outbox.waiting()[0].tries, 40);
    answered(&mut outbox, 1, Time(now), taken());
    assert_eq!(outbox.waiting(), []);
}

#[test]
fn notices_of_one_order_go_one_after_the_other() {
    let mut outbox = Outbox::default();
    outbox.push("a", &opened("k"), Time(0));
    answered(&mut outbox, 1, Time(0), later());
    outbox.push("a", &order("k", OrderStatus::Updated, 2), Time(1));
    outbox.push("a", &order("k", OrderStatus::Updated, 3), Time(1));
    outbox.push("a", &order("k", OrderStatus::Closed, 4), Time(1));
    outbox.push("a", &opened("other"), Time(1));
    assert_eq!(due(&outbox, 1), [(4, OrderStatus::Opened)]);
    assert_eq!(due(&outbox, 10_000), [(1, OrderStatus::Opened), (4, OrderStatus::Opened)]);
    answered(&mut outbox, 1, Time(10_000), Answer::Taken { remote: Some("r1".into()) });
    let next = outbox.due(Time(10_000)).remove(0);
    assert_eq!((next.id, next.order.at, next.remote.as_deref()), (2, Time(3), Some("r1")));
    answered(&mut outbox, 2, Time(10_000), taken());
    assert_eq!(due(&outbox, 10_000)[0], (3, OrderStatus::Closed));
    answered(&mut outbox, 3, Time(10_000), taken());
    assert_eq!(outbox.remotes, []);
}

#[test]
fn what_was_never_told_is_not_taken_back() {
    let mut outbox = Outbox::default();
    outbox.push("a", &opened("k"), Time(0));
    outbox.push("a", &order("k", OrderStatus::Updated, 2), Time(1));
    let first = &outbox.waiting()[0].order;
    assert_eq!((first.status, first.at), (OrderStatus::Opened, Time(2)));
    outbox.push("a", &order("k", OrderStatus::Closed, 3), Time(1));
    assert_eq!(outbox.waiting(), []);
}

#[test]
fn what_nobody_wants_is_kept_for_a_person() {
    let mut outbox = Outbox::default();
    outbox.push("a", &opened("k"), Time(0));
    answered(&mut outbox, 1, Time(0), Answer::of_status(400, None));
    assert_eq!(due(&outbox, u64::MAX / 2), []);
    assert_eq!(outbox.waiting()[0].why.as_deref(), Some("status 400"));
    outbox.retry_all(Time(7));
    assert_eq!(due(&outbox, 7), [(1, OrderStatus::Opened)]);
    outbox.keep_targets(|target| target == "b");
    assert_eq!(outbox.waiting(), []);
}

#[test]
fn statuses() {
    for (status, expect) in [
        (200, taken()),
        (202, taken()),
        (400, Answer::Never { why: "status 400".into() }),
        (401, Answer::Later { why: "status 401".into() }),
        (429, Answer::Later { why: "status 429".into() }),
        (503, Answer::Later { why: "status 503".into() }),
    ] {
        assert_eq!(Answer::of_status(status, None), expect);
    }
}

#[test]
fn it_is_bounded_and_updates_go_first() {
    let mut outbox = Outbox::default();
    outbox.push("a", &order("u", OrderStatus::Updated, 1), Time(0));
    for at in 0..NOTICES_MAX + 5 {
        outbox.push("a", &opened(&format!("k{at}")), Time(0));
    }
    assert_eq!((outbox.waiting().len(), outbox.dropped), (NOTICES_MAX, 6));
    assert!(outbox.waiting().iter().all(|notice| notice.order.key != "u"));
    answered(&mut outbox, 99_999, Time(0), taken());
}

#[test]
fn a_clock_set_back_does_not_hold_it() {
    let mut outbox = Outbox::default();
    outbox.push("a", &opened("k"), Time(1_000_000_000));
    assert_eq!(due(&outbox, 5).len(), 1);
}

#[test]
fn it_is_the_same_after_a_restart() {
    let mut outbox = Outbox::default();
    outbox.push("a", &opened("k"), Time(0));
    answered(&mut outbox, 1, Time(0), later());
    let text = serde_json::to_string(&outbox).unwrap();
    let mut again: Outbox = serde_json::from_str(&text).unwrap();
    assert_eq!(again, outbox);
    again.push("a", &opened("k"), Time(9));
    assert_eq!(again.waiting().len(), 1);
}

/// What is being sent may be told: its end is told, too, and what changed meanwhile is another notice.
#[test]
fn what_is_being_sent_is_not_taken_back() {
    let now = Time(1_000);
    for is_kept in [false, true] {
        let mut outbox = Outbox::default();
        outbox.push("desk", &order("k", OrderStatus::Opened, 1), now);
        let sent = outbox.due(now).remove(0);
        outbox.begin(sent.id);
        if is_kept {
            // The leader died; the next one does not take it for the first try.
            let text = serde_json::to_string(&outbox).unwrap();
            outbox = serde_json::from_str(&text).unwrap();
            assert_eq!(outbox.due(now)[0].tries, 1);
        }
        outbox.push("desk", &order("k", OrderStatus::Updated, 2), now);
        outbox.push("desk", &order("k", OrderStatus::Closed, 3), now);
        outbox.answered(sent.id, now, Answer::Taken { remote: None });
        let left: Vec<OrderStatus> = outbox.waiting().iter().map(|notice| notice.order.status).collect();
        assert_eq!(left, [OrderStatus::Updated, OrderStatus::Closed]);
    }
}
