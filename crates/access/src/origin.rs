//! Where a request comes from, for those who write it down. A request carries it beside its arguments, as it carries its trace.

use std::sync::Arc;

/// Of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    /// Where its caller is.
    pub address: Arc<str>,
    /// The request, as its endpoint numbers them.
    pub request_id: Arc<str>,
    /// Nobody on the way to its caller reads it.
    pub is_tls: bool,
}

tokio::task_local! {
    static ORIGIN: Origin;
}

impl Origin {
    /// Does something for a request.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        ORIGIN.scope(self, work).await
    }

    /// The same for what does not wait.
    pub fn of_now<T>(self, work: impl FnOnce() -> T) -> T {
        ORIGIN.sync_scope(self, work)
    }

    /// Of the request that is being worked on; none between requests.
    pub fn current() -> Option<Origin> {
        ORIGIN.try_with(Origin::clone).ok()
    }
}
