//! What a node tells beside its own numbers: events, traces, the fabric around it, the wear of its drives, pages of other
//! exporters, and the history of what was measured.
//!
//! It must not slow a request down: it reads what others counted. It must not link the benches.

mod endurance;
mod events;
mod exporters;
mod fabric;
mod fetch;
mod history;
mod traces;

use std::time::Duration;

use stoker_terminal::{clock, failure, rng, small_file};
use tokio::sync::watch;

pub use endurance::{Endurance, Wear};
pub use events::{Change, Events, EventsPlan, KafkaPlan, Origin, Severity};
pub use exporters::Exporters;
pub use fabric::Fabric;
pub use fetch::{Answer as HttpAnswer, Http, check_url};
pub use history::PastKeeper;
pub use traces::{TRACE, Traces, TracesPlan, trace_parent};

/// Waits until everything is to stop.
async fn told(stopped: &mut watch::Receiver<bool>) {
    // An error means that whoever would tell is gone, which says the same.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Waits, or until everything is to stop; true if it is.
pub async fn pause(time: Duration, stopped: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        biased;
        () = told(stopped) => true,
        () = tokio::time::sleep(time) => false,
    }
}
