//! What is disturbed: a loop that multiplies matrices, as the CPU side of training does, on cores of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use crate::failure::Failure;
use crate::rng::Rng;
use crate::{clock, sys};

/// Rows and columns. Three of these matrices are more than a core has to itself near by, and less than what cores share.
const SIDE: usize = 256;

/// One step of training: `c = a * b`, then `c` takes the place of `a`, scaled so that numbers stay numbers.
pub struct Kernel {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl Kernel {
    pub fn new(seed: u64) -> Kernel {
        let mut rng = Rng::new(seed);
        let mut matrix =
            || (0..SIDE * SIDE).map(|_| (rng.next_u64() >> 40) as f32 / (1 << 24) as f32).collect();
        Kernel { a: matrix(), b: matrix(), c: vec![0.0; SIDE * SIDE] }
    }

    /// One step; a number that depends on all of it, so that none of it can be left out.
    pub fn step(&mut self) -> f32 {
        for (row, out) in self.a.chunks_exact(SIDE).zip(self.c.chunks_exact_mut(SIDE)) {
            out.fill(0.0);
            for (factor, line) in row.iter().zip(self.b.chunks_exact(SIDE)) {
                for (out, value) in out.iter_mut().zip(line) {
                    *out += factor * value;
                }
            }
        }
        let sum: f32 = self.c.iter().sum();
        let scale = if sum > 0.0 { (SIDE * SIDE) as f32 / 2.0 / sum } else { 1.0 };
        self.c.iter_mut().for_each(|value| *value *= scale);
        std::mem::swap(&mut self.a, &mut self.c);
        sum
    }
}

/// Times of steps in one round, in seconds.
pub type Steps = Vec<f64>;

/// Threads that train, each kept to a core.
pub struct Training {
    workers: Vec<Worker>,
    running: Arc<AtomicBool>,
}

struct Worker {
    rounds: Option<mpsc::Sender<()>>,
    done: mpsc::Receiver<Steps>,
    thread: Option<JoinHandle<()>>,
}

impl Training {
    /// Starts a thread for each core, which then waits.
    pub fn start(cores: &[usize]) -> Result<Training, Failure> {
        let running = Arc::new(AtomicBool::new(false));
        let workers = cores.iter().map(|core| Worker::start(*core, running.clone()));
        Ok(Training { workers: workers.collect::<Result<_, _>>()?, running })
    }

    /// Trains while something else is done; at least one step each. Times of all steps, and what was done.
    pub fn during<T>(&self, act: impl FnOnce() -> Result<T, Failure>) -> Result<(Steps, T), Failure> {
        self.running.store(true, Ordering::Relaxed);
        for worker in &self.workers {
            let sent = worker.rounds.as_ref().map(|rounds| rounds.send(()).is_ok());
            assert_eq!(sent, Some(true), "a worker that waits for rounds");
        }
        let acted = act();
        self.running.store(false, Ordering::Relaxed);
        let mut steps = Vec::new();
        for worker in &self.workers {
            steps.extend(worker.done.recv().map_err(|_| Failure::new("the training stopped by itself"))?);
        }
        Ok((steps, acted?))
    }
}

impl Worker {
    fn start(core: usize, running: Arc<AtomicBool>) -> Result<Worker, Failure> {
        let (rounds, wanted) = mpsc::channel::<()>();
        let (tell, done) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        let work = move || {
            let pinned = sys::keep_to_cores(&[core]);
            let is_pinned = pinned.is_ok();
            let _ = ready.send(pinned);
            let mut kernel = Kernel::new(core as u64);
            while is_pinned && wanted.recv().is_ok() {
                let mut steps = Vec::new();
                loop {
                    let begun = clock::now();
                    std::hint::black_box(kernel.step());
                    steps.push(begun.elapsed().as_secs_f64());
                    if !running.load(Ordering::Relaxed) {
                        break;
                    }
                }
                if tell.send(steps).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("training".into()).spawn(work);
        let thread = thread.map_err(|e| Failure::io("thread", &e))?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Worker { rounds: Some(rounds), done, thread: Some(thread) }),
            Ok(Err(error)) => Err(Failure::io(format!("keeping to core {core}"), &error)),
            Err(_) => Err(Failure::new("the training did not start")),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.rounds = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_multiplies() {
        let mut kernel = Kernel::new(1);
        let (a, b) = (kernel.a.clone(), kernel.b.clone());
        let sum = kernel.step();
        let at = |row: usize, column: usize| -> f32 {
            (0..SIDE).map(|k| a[row * SIDE + k] * b[k * SIDE + column]).sum()
        };
        // After the step `a` is the product, scaled to a mean of one half.
        let scale = (SIDE * SIDE) as f32 / 2.0 / sum;
        for (row, column) in [(0, 0), (3, 200), (255, 255)] {
            let (expect, found) = (at(row, column) * scale, kernel.a[row * SIDE + column]);
            assert!((expect - found).abs() < 1e-3 * expect, "{row} {column}: {expect} {found}");
        }
        for _ in 0..3 {
            assert!(kernel.step().is_finite());
        }
    }

    #[test]
    fn steps_are_counted_while_something_else_is_done() {
        let core = sys::cores_allowed().unwrap()[0];
        let training = Training::start(&[core]).unwrap();
        for expect in [7, 8] {
            let (steps, done) = training.during(|| Ok(expect)).unwrap();
            assert_eq!(done, expect);
            assert!(!steps.is_empty() && steps.iter().all(|step| *step > 0.0));
        }
        assert!(training.during(|| Err::<(), _>(Failure::new("no"))).is_err());
        assert!(training.during(|| Ok(())).is_ok(), "it goes on after a failure");
        assert!(Training::start(&[1_000_000]).is_err());
    }
}
