//! The S3 door of a daemon.

use std::sync::Arc;
use std::time::Duration;

use stoker_store::{Counter, Store};

use super::limits::Cores;
use super::plan::S3Plan;
use super::ports::Ports;
use crate::failure::Failure;

/// The gateway and the names under which it is reached.
pub struct S3Door {}

impl S3Door {
    pub async fn start(_: &Arc<dyn Store>, _: &S3Plan, _: &Cores, _: &mut Ports) -> Result<Option<S3Door>, Failure> {
        Ok(None)
    }

    pub fn urls(&self) -> Vec<String> {
        Vec::new()
    }

    pub fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    pub fn reload(&self) {}

    pub async fn stop(&self, _: Duration) {}
}
