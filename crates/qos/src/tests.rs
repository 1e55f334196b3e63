//! Decisions of the scheduler, one at a time.

use crate::{
    Class, Cost, Granted, Latency, Match, Next, Overload, Rate, Refusal, Scheduler, Settings, Spec,
    Submitted, Tag, Ticket,
};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

fn client(job: u64) -> Tag {
    Tag::of(Class::Client).job(job)
}

/// One operation at a time.
fn narrow() -> Scheduler {
    Scheduler::new(Settings { depth_ops: 1, ..Settings::default() })
}

fn known(bytes_per_s: u64) -> Scheduler {
    Scheduler::new(Settings { capacity: Rate::bytes(bytes_per_s), ..Settings::default() })
}

fn granted(submitted: Result<Submitted, Overload>) -> Granted {
    match submitted {
        Ok(Submitted::Granted(granted)) => granted,
        other => panic!("{other:?}"),
    }
}

fn queued(submitted: Result<Submitted, Overload>) -> Ticket {
    match submitted {
        Ok(Submitted::Queued(ticket)) => ticket,
        other => panic!("{other:?}"),
    }
}

fn floor(bytes_per_s: u64) -> Spec {
    Spec { floor: Rate::bytes(bytes_per_s), ..Spec::default() }
}

/// The order in which those who wait are granted, one after the other.
fn order(scheduler: &mut Scheduler, first: Granted, now: u64) -> Vec<Ticket> {
    let (mut held, mut order) = (first, Vec::new());
    loop {
        scheduler.complete(now, held);
        match scheduler.next(now) {
            Next::Grant(ticket, granted) => {
                order.push(ticket);
                held = granted;
            }
            _ => return order,
        }
    }
}

#[test]
fn flows_take_turns_whoever_came_first() {
    let mut scheduler = narrow();
    let held = granted(scheduler.submit(0, client(1), Cost::bytes(MIB)));
    let first: Vec<Ticket> =
        (0..4).map(|_| queued(scheduler.submit(0, client(1), Cost::bytes(MIB)))).collect();
    let late: Vec<Ticket> =
        (0..2).map(|_| queued(scheduler.submit(1, client(2), Cost::bytes(MIB)))).collect();
    let expect = [first[0], late[0], first[1], late[1], first[2], first[3]];
    assert_eq!(order(&mut scheduler, held, 2), expect);
}

#[test]
fn who_was_away_has_no_credit_and_who_was_alone_no_debt() {
    let mut scheduler = narrow();
    // One flow alone for a long time.
    let mut held = granted(scheduler.submit(0, client(1), Cost::bytes(MIB)));
    for round in 0..1_000 {
        queued(scheduler.submit(round, client(1), Cost::bytes(MIB)));
        scheduler.complete(round, held);
        let Next::Grant(_, next) = scheduler.next(round) else { panic!("it is alone") };
        held = next;
    }
    let one: Vec<Ticket> =
        (0..3).map(|_| queued(scheduler.submit(1_000, client(1), Cost::bytes(MIB)))).collect();
    let two: Vec<Ticket> =
        (0..3).map(|_| queued(scheduler.submit(1_000, client(2), Cost::bytes(MIB)))).collect();
    let order = order(&mut scheduler, held, 1_000);
    for pair in order.chunks(2) {
        assert!(pair.iter().any(|ticket| one.contains(ticket)), "{order:?}");
        assert!(pair.iter().any(|ticket| two.contains(ticket)), "{order:?}");
    }
}

#[test]
fn a_ceiling_sets_aside_nobody_else() {
    let mut scheduler = narrow();
    let spec = Spec { ceiling: Rate::bytes(MIB), burst_ns: 0, ..Spec::default() };
    scheduler.reserve(0, Match::job(1), spec, None).unwrap();
    let now = 10 * SECOND;
    let held = granted(scheduler.submit(now, client(1), Cost::bytes(MIB)));
    scheduler.complete(now, held);
    let limited = queued(scheduler.submit(now, client(1), Cost::bytes(MIB)));
    assert!(matches!(scheduler.next(now), Next::At(at, ticket) if at == now + SECOND && ticket == limited));
    let other = granted(scheduler.submit(now, client(2), Cost::bytes(MIB)));
    assert!(matches!(scheduler.next(now + SECOND), Next::Idle));
    scheduler.complete(now + SECOND, other);
    assert!(matches!(scheduler.next(now + SECOND), Next::Grant(ticket, _) if ticket == limited));
}

#[test]
fn a_depth_is_of_one_flow() {
    let mut scheduler = Scheduler::new(Settings::default());
    let spec = Spec { depth: Some(2), ..Spec::default() };
    scheduler.reserve(0, Match::class(Class::Repair), spec, None).unwrap();
    let tag = Tag::of(Class::Repair).job(5);
    let first = granted(scheduler.submit(0, tag, Cost::bytes(1)));
    let _second = granted(scheduler.submit(0, tag, Cost::bytes(1)));
    let third = queued(scheduler.submit(0, tag, Cost::bytes(1)));
    assert!(matches!(scheduler.next(0), Next::Idle));
    let _other = granted(scheduler.submit(0, client(1), Cost::bytes(1)));
    scheduler.complete(1, first);
    assert!(matches!(scheduler.next(1), Next::Grant(ticket, _) if ticket == third));
}

#[test]
fn what_is_withdrawn_leaves_no_trace() {
    let mut scheduler = narrow();
    let held = granted(scheduler.submit(0, client(1), Cost::bytes(1)));
    let tickets: Vec<Ticket> =
        (0..3).map(|_| queued(scheduler.submit(0, client(1), Cost::bytes(1)))).collect();
    assert!(scheduler.cancel(0, tickets[1]) && !scheduler.cancel(0, tickets[1]));
    assert_eq!(order(&mut scheduler, held, 1), [tickets[0], tickets[2]]);
    // The place is used again; the ticket of before is not taken for that one.
    let held = granted(scheduler.submit(1, client(1), Cost::bytes(1)));
    queued(scheduler.submit(1, client(1), Cost::bytes(1)));
    assert!(!scheduler.cancel(1, tickets[0]) && !scheduler.cancel(1, tickets[2]));
    scheduler.complete(1, held);
    assert_eq!((scheduler.waiting(), scheduler.class(Class::Client).cancelled), (1, 1));
}

#[test]
fn a_promise_is_what_there_is() {
    let mut scheduler = known(1_000);
    let first = scheduler.reserve(0, Match::job(1), floor(600), Some(100)).unwrap();
    let refused = Refusal::Floor { asked: Rate::bytes(400), free: Rate::bytes(300) };
    assert_eq!(scheduler.reserve(0, Match::job(2), floor(400), None), Err(refused));
    assert!(refused.to_string().contains("300 bytes/s"), "{refused}");
    assert_eq!(scheduler.reserve(0, Match::job(1), floor(1), None), Err(Refusal::Exists));
    assert_eq!(scheduler.change(0, first, floor(901)).map_err(|_| ()), Err(()));
    assert_eq!(scheduler.free(), Rate::bytes(300));
    scheduler.change(0, first, floor(500)).unwrap();
    let second = scheduler.reserve(0, Match::job(2), floor(400), None).unwrap();
    assert_eq!(scheduler.free(), Rate::bytes(0));
    scheduler.release(0, second).unwrap();
    assert_eq!(scheduler.release(0, second), Err(Refusal::NotFound));
    assert_eq!(scheduler.free(), Rate::bytes(400));
    // Nobody renewed the first.
    scheduler.expire(100);
    assert_eq!((scheduler.free(), scheduler.flow(&Match::job(1))), (Rate::bytes(900), None));
    // A drive that became slower.
    scheduler.reserve(100, Match::job(3), floor(900), None).unwrap();
    assert!(!scheduler.set_capacity(100, Rate::bytes(500)));
    assert!(scheduler.set_capacity(100, Rate::bytes(2_000)));
    assert_eq!(scheduler.free(), Rate::bytes(900));
}

#[test]
fn nonsense_is_refused() {
    let mut scheduler = Scheduler::new(Settings::default());
    let mut reserve = |spec| scheduler.reserve(0, Match::job(1), spec, None);
    assert_eq!(reserve(floor(1)), Err(Refusal::CapacityUnknown));
    let nonsense = [
        floor(0),
        floor(u64::MAX),
        Spec { weight: 0, ..Spec::default() },
        Spec { depth: Some(0), ..Spec::default() },
        Spec { burst_ns: u64::MAX, ..Spec::default() },
        Spec { ceiling: Rate::bytes(1), ..floor(2) },
    ];
    for spec in nonsense {
        assert!(matches!(reserve(spec), Err(Refusal::Invalid(_))), "{spec:?}");
    }
    for cost in [Cost::bytes(u64::MAX), Cost { ops: 0, ..Cost::bytes(1) }] {
        assert!(matches!(scheduler.submit(0, client(1), cost), Err(Overload::Size)));
    }
}

#[test]
fn queues_and_flows_have_limits() {
    let settings =
        Settings { depth_ops: 1, waiting_max: 5, flow_waiting_max: 3, flows_max: 10, ..Settings::default() };
    let mut scheduler = Scheduler::new(settings);
    let held = granted(scheduler.submit(0, client(1), Cost::bytes(1)));
    for _ in 0..3 {
        queued(scheduler.submit(0, client(1), Cost::bytes(1)));
    }
    assert_eq!(scheduler.submit(0, client(1), Cost::bytes(1)).unwrap_err(), Overload::Flow);
    for _ in 0..2 {
        queued(scheduler.submit(0, client(2), Cost::bytes(1)));
    }
    assert_eq!(scheduler.submit(0, client(2), Cost::bytes(1)).unwrap_err(), Overload::All);
    assert_eq!(scheduler.class(Class::Client).refused, 2);
    assert_eq!(order(&mut scheduler, held, 0).len(), 5);
    // Jobs come and go: those that nobody uses are forgotten.
    for job in 0..1_000 {
        let held = granted(scheduler.submit(job, client(job), Cost::bytes(1)));
        scheduler.complete(job, held);
        assert!(scheduler.flows() <= 10);
    }
    // Beyond that they share a flow, and reservations are refused.
    let held: Vec<Granted> =
        (2_000..2_001).map(|job| granted(scheduler.submit(1, client(job), Cost::bytes(1)))).collect();
    for job in 0..10 {
        let _ = scheduler.reserve(1, Match::job(9_000 + job), Spec::default(), None);
    }
    assert_eq!(scheduler.reserve(1, Match::job(1), Spec::default(), None), Err(Refusal::Full));
    held.into_iter().for_each(|held| scheduler.complete(2, held));
    let held = granted(scheduler.submit(3, client(77), Cost::bytes(1)));
    scheduler.complete(3, held);
}

#[test]
fn interactive_work_goes_first_but_not_for_ever() {
    let mut scheduler = narrow();
    let spec = Spec { latency: Latency::Interactive, ..Spec::default() };
    scheduler.reserve(0, Match::job(1), spec, None).unwrap();
    let held = granted(scheduler.submit(0, client(2), Cost::bytes(MIB)));
    let bulk = queued(scheduler.submit(0, client(2), Cost::bytes(MIB)));
    let many: Vec<Ticket> =
        (0..200).map(|_| queued(scheduler.submit(0, client(1), Cost::bytes(MIB)))).collect();
    let order = order(&mut scheduler, held, 0);
    assert_eq!(order[0], many[0]);
    let at = order.iter().position(|ticket| *ticket == bulk).unwrap();
    assert!((1..100).contains(&at), "{at}");
}

#[test]
fn promises_leave_something_where_there_is_less_than_was_said() {
    // It said 1,000 MB/s and does a fifth of that: the promise takes all but the tenth that is everybody's.
    let mut scheduler =
        Scheduler::new(Settings { capacity: Rate::bytes(1_000 * MIB), depth_ops: 1, ..Settings::default() });
    scheduler.reserve(0, Match::job(1), floor(900 * MIB), None).unwrap();
    let (mut now, mut got) = (SECOND, [0_u64; 2]);
    let mut held = granted(scheduler.submit(now, client(1), Cost::bytes(MIB)));
    let mut whose = std::collections::HashMap::new();
    for job in [1, 2] {
        for _ in 0..4 {
            whose.insert(queued(scheduler.submit(now, client(job), Cost::bytes(MIB))), job);
        }
    }
    for _ in 0..2_000 {
        now += 5_000_000;
        scheduler.complete(now, held);
        let Next::Grant(ticket, granted) = scheduler.next(now) else { panic!("nothing is granted") };
        held = granted;
        let job = whose.remove(&ticket).unwrap();
        got[job as usize - 1] += 1;
        whose.insert(queued(scheduler.submit(now, client(job), Cost::bytes(MIB))), job);
    }
    assert!(got[0] >= 1_700 && got[1] >= 180, "{got:?}");
}
