//! What the gate made and takes away again, however it ends. One that is killed outright leaves its things to the next
//! one, which begins by taking them away.

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use crate::failure::Failure;
use crate::sys::StopSignals;

type Undo = Box<dyn FnOnce() + Send>;

/// What is there now, the latest last.
#[derive(Clone, Default)]
pub struct Leftovers(Arc<Mutex<Vec<(u64, Undo)>>>);

impl Leftovers {
    /// Takes everything away when a signal asks to stop. Call it before other threads start: they leave the signals to it.
    pub fn watch() -> Result<Leftovers, Failure> {
        let leftovers = Leftovers::default();
        let (signals, watched) = (StopSignals::hold(), leftovers.clone());
        let watch = move || {
            let signal = signals.wait();
            // Never given back: what fails now because its things are gone says nothing.
            let mut all = watched.lock();
            while let Some((_, undo)) = all.pop() {
                undo();
            }
            std::process::exit(128 + signal);
        };
        let started = thread::Builder::new().name("stoker-signal".into()).spawn(watch);
        started.map_err(|e| Failure::io("thread", &e))?;
        Ok(leftovers)
    }

    /// Something that is taken away when the guard goes.
    pub fn add(&self, undo: impl FnOnce() + Send + 'static) -> Leftover {
        let mut all = self.lock();
        let id = all.last().map_or(0, |(id, _)| id + 1);
        all.push((id, Box::new(undo)));
        Leftover { id, all: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Undo)>> {
        // Whoever panicked while undoing had taken its entry out before.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// One thing.
pub struct Leftover {
    id: u64,
    all: Leftovers,
}

impl Drop for Leftover {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(at) = all.iter().position(|(id, _)| *id == self.id) {
            let (_, undo) = all.remove(at);
            undo();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn each_is_undone_once_when_its_guard_goes() {
        let leftovers = Leftovers::default();
        let (tell, told) = mpsc::channel();
        let add = |name: &'static str| {
            let tell = tell.clone();
            leftovers.add(move || tell.send(name).unwrap())
        };
        let (first, second) = (add("first"), add("second"));
        drop(first);
        let third = add("third");
        drop(third);
        drop(second);
        drop(tell);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["first", "third", "second"]);
        assert!(leftovers.lock().is_empty());
    }
}
