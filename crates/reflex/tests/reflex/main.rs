//! The loop against a fleet that breaks: scenes, streams, seeds; the forms of work orders; the page.

mod fleet;
mod golden;
mod invariants;
mod pages;
mod repairs;
mod scenes;
mod shared_causes;
mod simulation;
mod streams;
