//! With the runtime's clock stopped: it goes on when all wait, so each wait takes exactly what it should.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const MIB: u64 = 1 << 20;

fn drain() -> Tag {
    Tag::of(Class::Drain)
}

fn with_ceiling(bytes_per_s: u64, burst_ns: u64) -> Resource {
    let resource = Resource::new(Settings::default());
    let spec = Spec { ceiling: Rate::bytes(bytes_per_s), burst_ns, ..Spec::default() };
    resource.reserve(Match::class(Class::Drain), spec, None).expect("a ceiling needs no capacity");
    resource
}

/// Lets every task run that can.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_is_a_rate() {
    let resource = with_ceiling(MIB, 0);
    let start = Instant::now();
    for _ in 0..10 {
        drop(resource.acquire(drain(), Cost::bytes(MIB)).await.unwrap());
    }
    // The first goes at once.
    assert_eq!(start.elapsed().as_secs(), 9);
    // Others do not wait for that.
    let before = Instant::now();
    drop(resource.acquire(Tag::of(Class::Client), Cost::bytes(MIB)).await.unwrap());
    assert_eq!(before.elapsed(), Duration::ZERO);
    let [.., (class, counters), _, _, _] = resource.classes();
    assert_eq!((class, counters.granted_ops, counters.waited, counters.waiting), (Class::Drain, 10, 9, 0));
    assert_eq!(counters.waited_ns / 1_000_000_000, 9);
}

#[tokio::test(start_paused = true)]
async fn many_tasks_keep_the_time_for_each_other() {
    let resource = with_ceiling(100 * MIB, 0);
    let start = Instant::now();
    let tasks: Vec<_> = (0..200)
        .map(|at| {
            let resource = resource.clone();
            tokio::spawn(async move {
                let acquired = resource.acquire(drain(), Cost::bytes(MIB));
                // Every third gives up, whoever keeps the time among them.
                let patience = Duration::from_millis(if at % 3 == 0 { 1 + at } else { 1_000_000 });
                tokio::time::timeout(patience, acquired).await.is_ok()
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += usize::from(task.await.unwrap());
    }
    assert!(done >= 133, "{done}");
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(done as u64 * 10 - 10), "{took:?} for {done}");
    assert!(took <= Duration::from_millis(done as u64 * 11 + 20), "{took:?} for {done}");
    let state = resource.inner.state();
    assert_eq!((state.scheduler.waiting(), state.waiters.len(), state.scheduler.in_flight()), (0, 0, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_dropped_gives_its_place_back() {
    let resource = Resource::new(Settings { depth_ops: 1, ..Settings::default() });
    let first = resource.acquire(drain(), Cost::bytes(1)).await.unwrap();
    let waits = |tag: Tag| {
        let resource = resource.clone();
        tokio::spawn(async move { resource.acquire(tag, Cost::bytes(1)).await })
    };
    let (second, third) = (waits(drain()), waits(drain()));
    settle().await;
    assert_eq!(resource.inner.state().scheduler.waiting(), 2);
    second.abort();
    assert!(second.await.is_err());
    // One that was granted, but whose task did not run since, does not keep its place either.
    drop(first);
    third.abort();
    let _ = third.await;
    let permit = resource.acquire(drain(), Cost::bytes(1)).await.unwrap();
    assert_eq!(resource.inner.state().scheduler.in_flight(), (1, 1));
    drop(permit);
    assert_eq!(resource.inner.state().waiters.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn interactive_work_goes_first() {
    let resource = Resource::new(Settings { depth_ops: 1, ..Settings::default() });
    let spec = Spec { latency: stoker_qos::Latency::Interactive, ..Spec::default() };
    resource.reserve(Match::job(1), spec, None).unwrap();
    let first = resource.acquire(drain(), Cost::bytes(1)).await.unwrap();
    let order = Arc::new(AtomicUsize::new(0));
    let waits = |tag: Tag| {
        let (resource, order) = (resource.clone(), order.clone());
        tokio::spawn(async move {
            let _permit = resource.acquire(tag, Cost::bytes(MIB)).await;
            order.fetch_add(1, Ordering::Relaxed)
        })
    };
    let bulk: Vec<_> = (0..5).map(|_| waits(drain())).collect();
    settle().await;
    let interactive = waits(Tag::of(Class::Client).job(1));
    settle().await;
    drop(first);
    assert_eq!(interactive.await.unwrap(), 0);
    for task in bulk {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_nobody_renews_ends() {
    let resource = Resource::new(Settings { capacity: Rate::bytes(100), ..Settings::default() });
    let spec = Spec { floor: Rate::bytes(80), ..Spec::default() };
    let minute = Some(Duration::from_secs(60));
    let id = resource.reserve(Match::job(1), spec, minute).unwrap();
    let refused = resource.reserve(Match::job(2), spec, minute).unwrap_err();
    assert_eq!(refused, Refusal::Floor { asked: Rate::bytes(80), free: Rate::bytes(10) });
    tokio::time::advance(Duration::from_secs(50)).await;
    resource.renew(id, minute).unwrap();
    tokio::time::advance(Duration::from_secs(50)).await;
    resource.reserve(Match::job(2), spec, minute).unwrap_err();
    tokio::time::advance(Duration::from_secs(11)).await;
    resource.reserve(Match::job(2), spec, minute).unwrap();
    assert_eq!(resource.renew(id, minute), Err(Refusal::NotFound));
}

/// Two nodes that write to each other and to themselves, as the node asks: a link, and while it is held the drive at its other end.
#[tokio::test(start_paused = true)]
async fn chains_of_those_who_wait_have_an_end() {
    let narrow = || Resource::new(Settings { is_paced: false, depth_ops: 2, ..Settings::default() });
    let (links, drives) = (Arc::new([narrow(), narrow()]), Arc::new([narrow(), narrow()]));
    let done = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..400_usize)
        .map(|number| {
            let (links, drives, done) = (links.clone(), drives.clone(), done.clone());
            tokio::spawn(async move {
                let tag = Tag::of(CLASSES[number % CLASSES.len()]).job(number as u64 % 7);
                let here = number % 2;
                let local = async {
                    let _drive = drives[here].acquire(tag, Cost::write(MIB)).await;
                    tokio::time::sleep(Duration::from_millis(1 + number as u64 % 3)).await;
                };
                let copy = async {
                    let _link = links[here].acquire(tag, Cost::write(MIB)).await;
                    let _drive = drives[1 - here].acquire(tag, Cost::write(MIB)).await;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                };
                tokio::join!(local, copy);
                done.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    // Some give up, wherever they are.
    tokio::time::sleep(Duration::from_millis(20)).await;
    tasks.iter().step_by(5).for_each(|task| task.abort());
    for task in tasks {
        let _ = task.await;
    }
    assert!(done.load(Ordering::Relaxed) >= 320);
    for resource in links.iter().chain(drives.iter()) {
        assert_eq!(resource.load(), (0, 0, 0));
    }
}

/// What nobody waits for goes on beside clients that never stop, and gets no more than its share of what they want.
#[tokio::test(start_paused = true)]
async fn background_work_neither_starves_nor_takes_over() {
    let resource = Resource::new(Settings { is_paced: false, depth_ops: 4, ..Settings::default() });
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let end = tokio::time::Instant::now() + Duration::from_secs(10);
    let worker = |class: Class, at: usize| {
        let (resource, counts) = (resource.clone(), counts.clone());
        tokio::spawn(async move {
            while tokio::time::Instant::now() < end {
                let _permit = resource.acquire(Tag::of(class), Cost::bytes(MIB)).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
                counts[at].fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let clients = (0..64).map(|_| worker(Class::Client, 0));
    let tasks: Vec<_> = clients.chain((0..64).map(|_| worker(Class::Scrub, 1))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let [clients, scrub] = [0, 1].map(|at| counts[at].load(Ordering::Relaxed));
    // Weights are 200 and 10.
    let share = scrub as f64 / (clients + scrub) as f64;
    assert!((0.03..0.08).contains(&share), "{scrub} beside {clients}");
}
