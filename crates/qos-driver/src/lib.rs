//! Waiting for admission: a [`Resource`] is a scheduler of `stoker-qos` with a clock and with those who wait. (R16, D202)
//!
//! [`Resource::acquire`] waits for a [`Permit`]; dropping the permit says that the work is done, dropping the future gives its place
//! back. There is no task behind it: whatever changes something (a request, a permit that ends, a future that is dropped) asks the
//! scheduler who may go on and wakes them. Where time is what they wait for, one of those who wait keeps the time for all, and hands
//! that over when it goes.
//!
//! It must not decide who goes first, start tasks, or know what a drive, a network or a lake is.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use stoker_qos::{
    CLASSES, Capacity, Class, Cost, Counters, FlowReport, Granted, Match, Next, Overload, Rate, Refusal,
    ReservationId, Scheduler, Settings, Spec, Submitted, Tag, Ticket,
};
use tokio::time::{Instant, Sleep};

mod work;

pub use work::{inherit, work, working};

#[cfg(test)]
mod tests;

/// A resource that many use; clones are the same one.
#[derive(Clone)]
pub struct Resource {
    inner: Arc<Inner>,
}

struct Inner {
    /// The scheduler counts from here.
    start: Instant,
    state: Mutex<State>,
}

struct State {
    scheduler: Scheduler,
    waiters: HashMap<Ticket, Waiter>,
    /// Who sleeps until when, for all.
    keeper: Option<(Ticket, u64)>,
}

enum Waiter {
    Waits(Option<Waker>),
    Granted(Granted),
}

/// Work that may go on; it is done when this is dropped.
#[must_use = "the work is done when the permit is dropped"]
pub struct Permit {
    inner: Arc<Inner>,
    granted: Option<Granted>,
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("granted", &self.granted).finish_non_exhaustive()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(granted) = self.granted.take() else { return };
        let now = self.inner.now();
        let mut state = self.inner.state();
        state.scheduler.complete(now, granted);
        pump(state, now);
    }
}

impl Inner {
    fn now(&self) -> u64 {
        // Five centuries.
        self.start.elapsed().as_nanos() as u64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nobody panics while holding it but by a bug of the scheduler, and then nothing may go on.
        self.state.lock().unwrap()
    }
}

/// Lets everybody go on who may, and sees to it that somebody keeps the time.
fn pump(mut state: MutexGuard<'_, State>, now: u64) {
    let mut wakers = Vec::new();
    if state.scheduler.waiting() > 0 {
        loop {
            match state.scheduler.next(now) {
                Next::Grant(ticket, granted) => {
                    if state.keeper.is_some_and(|(keeper, _)| keeper == ticket) {
                        state.keeper = None;
                    }
                    let old = state.waiters.insert(ticket, Waiter::Granted(granted));
                    if let Some(Waiter::Waits(Some(waker))) = old {
                        wakers.push(waker);
                    }
                }
                Next::At(time, ticket) => {
                    // One whose time is over and that was not polled since keeps nobody waiting.
                    if state.keeper.is_none_or(|(_, until)| time < until || until <= now) {
                        state.keeper = Some((ticket, time));
                        // It sleeps by itself once it is polled.
                        if let Some(Waiter::Waits(waker)) = state.waiters.get_mut(&ticket) {
                            wakers.extend(waker.take());
                        }
                    }
                    break;
                }
                Next::Idle => break,
            }
        }
    }
    // Not under the lock: a waker may run whatever it likes.
    drop(state);
    wakers.into_iter().for_each(Waker::wake);
}

/// A request under way.
struct Acquire {
    inner: Arc<Inner>,
    ticket: Option<Ticket>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let inner = this.inner.clone();
        loop {
            let now = inner.now();
            let mut state = inner.state();
            let Some(ticket) = this.ticket else { return Poll::Pending };
            if matches!(state.waiters.get(&ticket), Some(Waiter::Granted(_))) {
                let Some(Waiter::Granted(granted)) = state.waiters.remove(&ticket) else {
                    return Poll::Pending;
                };
                this.ticket = None;
                drop(state);
                return Poll::Ready(Permit { inner, granted: Some(granted) });
            }
            state.waiters.insert(ticket, Waiter::Waits(Some(context.waker().clone())));
            let Some((_, until)) = state.keeper.filter(|(keeper, _)| *keeper == ticket) else {
                this.sleep = None;
                return Poll::Pending;
            };
            if until <= now {
                state.keeper = None;
                pump(state, now);
                continue;
            }
            drop(state);
            let until = inner.start + Duration::from_nanos(until);
            let sleep = match &mut this.sleep {
                Some(sleep) => {
                    if sleep.deadline() != until {
                        sleep.as_mut().reset(until);
                    }
                    sleep
                }
                none => none.insert(Box::pin(tokio::time::sleep_until(until))),
            };
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let now = self.inner.now();
        let mut state = self.inner.state();
        if state.keeper.is_some_and(|(keeper, _)| keeper == ticket) {
            state.keeper = None;
        }
        match state.waiters.remove(&ticket) {
            Some(Waiter::Granted(granted)) => state.scheduler.complete(now, granted),
            _ => {
                state.scheduler.cancel(now, ticket);
            }
        }
        pump(state, now);
    }
}

impl Resource {
    /// Nobody uses it yet. Its time is that of the runtime in which it is made.
    pub fn new(settings: Settings) -> Resource {
        let state = State { scheduler: Scheduler::new(settings), waiters: HashMap::new(), keeper: None };
        Resource { inner: Arc::new(Inner { start: Instant::now(), state: Mutex::new(state) }) }
    }

    /// Waits until the work may go on.
    pub async fn acquire(&self, tag: Tag, cost: Cost) -> Result<Permit, Overload> {
        let now = self.inner.now();
        let acquire = {
            let mut state = self.inner.state();
            match state.scheduler.submit(now, tag, cost)? {
                Submitted::Granted(granted) => {
                    drop(state);
                    return Ok(Permit { inner: self.inner.clone(), granted: Some(granted) });
                }
                Submitted::Queued(ticket) => {
                    state.waiters.insert(ticket, Waiter::Waits(None));
                    // From here on dropping gives the place back.
                    let acquire = Acquire { inner: self.inner.clone(), ticket: Some(ticket), sleep: None };
                    pump(state, now);
                    acquire
                }
            }
        };
        Ok(acquire.await)
    }

    /// Promises and allows something to work that a rule is about, for so long or until it is released.
    pub fn reserve(
        &self,
        rule: Match,
        spec: Spec,
        lasts: Option<Duration>,
    ) -> Result<ReservationId, Refusal> {
        let (now, until) = self.until(lasts);
        self.change_all(now, |scheduler| scheduler.reserve(now, rule, spec, until))
    }

    /// Promises and allows something else.
    pub fn change(&self, id: ReservationId, spec: Spec) -> Result<(), Refusal> {
        let now = self.inner.now();
        self.change_all(now, |scheduler| scheduler.change(now, id, spec))
    }

    /// Lets a reservation last for so long from now on.
    pub fn renew(&self, id: ReservationId, lasts: Option<Duration>) -> Result<(), Refusal> {
        let (now, until) = self.until(lasts);
        self.change_all(now, |scheduler| scheduler.renew(now, id, until))
    }

    /// Ends a reservation.
    pub fn release(&self, id: ReservationId) -> Result<(), Refusal> {
        let now = self.inner.now();
        self.change_all(now, |scheduler| scheduler.release(now, id))
    }

    /// What it can do is known, or another; false if less than was promised.
    pub fn set_capacity(&self, capacity: Capacity) -> bool {
        let now = self.inner.now();
        self.change_all(now, |scheduler| scheduler.set_capacity(now, capacity))
    }

    /// What it is taken to do, of which floors are parts.
    pub fn capacity(&self) -> Capacity {
        self.inner.state().scheduler.capacity()
    }

    /// What it was seen to do lately.
    pub fn seen(&self) -> Capacity {
        self.inner.state().scheduler.seen()
    }

    /// What it did before anything was seen.
    pub fn recall(&self, capacity: Capacity) {
        self.inner.state().scheduler.recall(capacity);
    }

    /// Other limits on operations and bytes in flight.
    pub fn set_depth(&self, ops: u32, bytes: u64) {
        let now = self.inner.now();
        self.change_all(now, |scheduler| scheduler.set_depth(ops, bytes));
    }

    /// Operations and bytes in flight, and requests that wait.
    pub fn load(&self) -> (u32, u64, usize) {
        let state = self.inner.state();
        let (ops, bytes) = state.scheduler.in_flight();
        (ops, bytes, state.scheduler.waiting())
    }

    /// What could be promised now.
    pub fn free(&self) -> Rate {
        self.inner.state().scheduler.free()
    }

    /// What the classes got, and how long they waited.
    pub fn classes(&self) -> [(Class, Counters); 6] {
        let state = self.inner.state();
        CLASSES.map(|class| (class, state.scheduler.class(class)))
    }

    /// The same of the flow of a rule.
    pub fn flow(&self, rule: &Match) -> Option<FlowReport> {
        self.inner.state().scheduler.flow(rule)
    }

    fn until(&self, lasts: Option<Duration>) -> (u64, Option<u64>) {
        let now = self.inner.now();
        (now, lasts.map(|lasts| now.saturating_add(lasts.as_nanos().min(u128::from(u64::MAX)) as u64)))
    }

    /// Whatever is promised or ends may let somebody go on.
    fn change_all<T>(&self, now: u64, change: impl FnOnce(&mut Scheduler) -> T) -> T {
        let mut state = self.inner.state();
        let changed = change(&mut state.scheduler);
        pump(state, now);
        changed
    }
}
