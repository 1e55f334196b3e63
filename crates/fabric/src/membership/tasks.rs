//! What is due when.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use foca::Timer;
use stoker_format::NodeId;

use super::identity::Identity;

/// Something to do later.
#[derive(Debug)]
pub(super) enum Task {
    /// Of foca.
    Swim(Timer<Identity>),
    /// Ask for a sign of life of somebody who is not up.
    Seek,
    /// Compare what is known with somebody who is up.
    Compare,
    /// The page that was asked for in this attempt should be here.
    Overdue(u64),
    /// The grace period of a node, suspect since then, is over. How long this process had stood still when it was
    /// planned.
    Verdict { node: NodeId, since: Duration, stood_still: Duration },
}

/// Tasks by time; those of one moment in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    heap: BinaryHeap<Entry>,
    count: u64,
}

#[derive(Debug)]
struct Entry {
    due: Duration,
    number: u64,
    task: Task,
}

impl Tasks {
    pub(super) fn add(&mut self, due: Duration, task: Task) {
        self.count += 1;
        self.heap.push(Entry { due, number: self.count, task });
    }

    /// When the next one is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.heap.peek().map(|entry| entry.due)
    }

    /// The next one that is due by now.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<Task> {
        self.next_due().filter(|due| *due <= now)?;
        self.heap.pop().map(|entry| entry.task)
    }
}

impl Ord for Entry {
    /// The earliest is the greatest, for the heap.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}
