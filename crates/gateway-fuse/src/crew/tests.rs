//! Threads of a session over a kernel that hands out requests as the real one does: to who waits longest.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle, ThreadId};

use super::*;

type Request = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queues {
    requests: VecDeque<Request>,
    waiting: VecDeque<Sender<Request>>,
    is_gone: bool,
}

/// Hands requests to threads in turn.
#[derive(Clone, Default)]
struct Kernel(Arc<Mutex<Queues>>);

impl Kernel {
    fn ask(&self, request: Request) {
        let mut queues = self.0.lock().unwrap();
        match queues.waiting.pop_front() {
            Some(thread) => thread.send(request).unwrap(),
            None => queues.requests.push_back(request),
        }
    }

    /// The next request; none if it was unmounted.
    fn next(&self) -> Option<Request> {
        let answer = {
            let mut queues = self.0.lock().unwrap();
            if queues.is_gone {
                return None;
            }
            if let Some(request) = queues.requests.pop_front() {
                return Some(request);
            }
            let (thread, answer) = channel();
            queues.waiting.push_back(thread);
            answer
        };
        answer.recv().ok()
    }

    fn unmount(&self) {
        let mut queues = self.0.lock().unwrap();
        queues.is_gone = true;
        queues.waiting.clear();
    }

    /// Asks and waits for the answer; who gave it.
    fn call(&self) -> ThreadId {
        let (told, heard) = channel();
        self.ask(Box::new(move || told.send(thread::current().id()).unwrap()));
        heard.recv().unwrap()
    }

    fn calls(&self, count: usize) {
        (0..count).for_each(|_| {
            self.call();
        });
    }

    /// Requests that wait for one another: all have to be worked on at once.
    fn call_together(&self, count: usize) {
        let barrier = Arc::new(Barrier::new(count));
        let ends: Vec<Receiver<()>> = (0..count)
            .map(|_| {
                let (barrier, (told, heard)) = (barrier.clone(), channel());
                self.ask(Box::new(move || {
                    barrier.wait();
                    told.send(()).unwrap();
                }));
                heard
            })
            .collect();
        ends.into_iter().for_each(|end| end.recv().unwrap());
    }
}

fn session(threads: usize) -> (Kernel, Vec<JoinHandle<()>>) {
    let (kernel, crew) = (Kernel::default(), Crew::new(threads));
    let run = |kernel: Kernel, crew: Crew| {
        move || {
            while let Some(request) = kernel.next() {
                let _at_work = crew.begin();
                request();
            }
        }
    };
    let threads = (0..threads).map(|_| thread::spawn(run(kernel.clone(), crew.clone()))).collect();
    (kernel, threads)
}

#[test]
fn one_caller_is_answered_by_few() {
    let (kernel, threads) = session(32);
    // Everybody works once, and more than one may be at it while threads begin to rest.
    let all: BTreeSet<String> = (0..8 * WINDOW).map(|_| format!("{:?}", kernel.call())).collect();
    let few: BTreeSet<String> = (0..WINDOW).map(|_| format!("{:?}", kernel.call())).collect();
    assert!(few.len() <= SPARE + 3, "{} of {} threads", few.len(), all.len());
    kernel.unmount();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn whoever_rests_gets_up_when_needed() {
    let (kernel, threads) = session(16);
    for round in 0..300 {
        kernel.calls(round % 40);
        kernel.call_together(1 + round % 16);
    }
    kernel.unmount();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn nobody_rests_for_ever() {
    for calls in [0, 1, 5, 100] {
        let (kernel, threads) = session(8);
        kernel.calls(calls);
        kernel.unmount();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
