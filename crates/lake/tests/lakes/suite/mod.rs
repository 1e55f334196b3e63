//! What every lake has to do, checked against a model: a sorted map.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod keys;
pub mod model;
pub mod weed;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use stoker_lake::Lake;

use keys::KeyKind;
use model::{Action, Model};

/// Random actions against a lake, each compared with the model, then a full comparison.
pub fn check_actions<L: Lake + ?Sized>(
    runtime: &tokio::runtime::Runtime,
    lake: &L,
    actions: &[Action],
) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    runtime.block_on(async {
        for action in actions {
            model.step(lake, action).await?;
        }
        model.compare_all(lake).await
    })
}

/// Runs `check` with random lists of actions.
pub fn run(cases: u32, kind: KeyKind, mut check: impl FnMut(&[Action]) -> Result<(), TestCaseError>) {
    let cases = if full() { cases * 20 } else { cases };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let actions = keys::pool(kind).prop_flat_map(|pool| model::actions(pool, 24));
    let check = std::cell::RefCell::new(&mut check);
    let result = TestRunner::new(config).run(&actions, |actions| (check.borrow_mut())(&actions));
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

/// The long variants are asked for.
pub fn full() -> bool {
    std::env::var_os("STOKER_FULL").is_some_and(|value| value == "1")
}

/// A runtime of one thread.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
