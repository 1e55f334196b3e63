//! What the node says of itself, asked at most once in a while: anybody may ask, and a disk may hang.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::sources::{Health, HealthSource};

/// Whoever asks waits no longer than this; whether a process lives must be told soon.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// Asks, and remembers the answer.
pub struct HealthProbe {
    source: Option<Arc<HealthSource>>,
    last: Arc<Mutex<(Option<Instant>, Health)>>,
    /// One look at a time: one that hangs keeps no second thread.
    permit: Arc<Semaphore>,
}

impl HealthProbe {
    pub fn new(source: Option<HealthSource>) -> HealthProbe {
        let last = Arc::new(Mutex::new((None, Health::Good)));
        HealthProbe { source: source.map(Arc::new), last, permit: Arc::new(Semaphore::new(1)) }
    }

    /// An answer that is not older than this, or the last one if there is no newer one to be had.
    pub async fn recent(&self, age_max: Duration) -> Health {
        let Some(source) = &self.source else { return Health::Good };
        let (when, known) = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if when.is_some_and(|when| when.elapsed() < age_max) {
            return known;
        }
        let asked = async {
            let permit = Arc::clone(&self.permit).acquire_owned().await.ok()?;
            let (source, last) = (Arc::clone(source), Arc::clone(&self.last));
            let look = tokio::task::spawn_blocking(move || {
                let health = source();
                *last.lock().unwrap_or_else(PoisonError::into_inner) = (Some(Instant::now()), health.clone());
                drop(permit);
                health
            });
            look.await.ok()
        };
        tokio::time::timeout(ANSWER_MAX, asked).await.ok().flatten().unwrap_or(known)
    }
}
