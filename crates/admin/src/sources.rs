//! What the API shows beside the door, and who may fill it in: numbers, events.

use serde::Serialize;
use stoker_store::Counter;

/// A place that numbers for `/metrics` come from, beside the door.
pub type Source = Box<dyn Fn() -> Vec<Counter> + Send + Sync>;

/// Keeps what the node measured at a moment, by name, for longer than the process remembers it. It must not block.
pub type PointSink = Box<dyn Fn(u64, &[(&str, f64)]) + Send + Sync>;

/// What the node is good for, as far as it knows itself. Asked on a thread that may block.
pub type HealthSource = Box<dyn Fn() -> Health + Send + Sync>;

/// What a node is good for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Health {
    /// Everything.
    Good,
    /// Everything, but something waits for a person.
    Warned(String),
    /// Not every request, until what is said is cured; a restart does not help.
    Degraded(String),
    /// Nothing until it is started again.
    Failed(String),
}

/// Something that happened and that an operator may want to know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Event {
    /// Grows with every event of this node.
    pub seq: u64,
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// `info`, `warn` or `error`; `error` means that somebody has to act.
    pub level: String,
    /// What it is about: `node`, `drive`, `lake`, `volume`, `set`, ...
    pub subject: String,
    /// Its name; empty if there is none.
    pub name: String,
    /// What happened.
    pub words: String,
}

/// Keeps events.
pub trait Events: Send + Sync {
    /// The newest events behind this number, oldest first, at most so many.
    fn events(&self, after: u64, limit: usize) -> Vec<Event>;
}
