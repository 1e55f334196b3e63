//! Clients at work: a task each, the next call when the last one is answered.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::task::JoinSet;

use crate::clock;
use crate::failure::Failure;
use crate::measure::{Meter, Round};

/// What a client asks for, by the client's number.
pub type Call = Arc<dyn Fn(u64) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync>;

/// Who asks, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// At once.
    pub count: u64,
    /// No call is begun after this.
    pub seconds: f64,
}

/// Keeps all clients busy.
pub async fn round(clients: Clients, call: &Call) -> Result<Round, Failure> {
    let meter = Meter::start();
    let started = meter.started();
    let mut running = JoinSet::new();
    for client in 0..clients.count {
        let call = Arc::clone(call);
        running.spawn(async move {
            let mut times = Vec::new();
            let mut now = started;
            while (now - started).as_secs_f64() < clients.seconds {
                let begun = clock::now();
                call(client).await?;
                now = clock::now();
                times.push(now - begun);
                // A call that never waits would keep its thread from the other clients.
                tokio::task::yield_now().await;
            }
            Ok(times)
        });
    }
    let mut meter = meter;
    while let Some(times) = running.join_next().await {
        let times: Result<Vec<_>, Failure> =
            times.map_err(|e| Failure::new(format!("a client ended: {e}")))?;
        times?.into_iter().for_each(|took| meter.note(0, took));
    }
    Ok(meter.finish())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn run(clients: Clients, call: Call) -> Result<Round, Failure> {
        tokio::runtime::Runtime::new().unwrap().block_on(round(clients, &call))
    }

    #[test]
    fn every_call_of_every_client_is_counted() {
        let (calls, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (count, see) = (Arc::clone(&calls), Arc::clone(&seen));
        let call: Call = Arc::new(move |client| {
            count.fetch_add(1, Ordering::Relaxed);
            see.fetch_or(1 << client, Ordering::Relaxed);
            Box::pin(async { Ok(()) })
        });
        let round = run(Clients { count: 5, seconds: 0.05 }, call).unwrap();
        assert_eq!((round.ops, round.latency_ns.len()), (calls.load(Ordering::Relaxed), round.ops));
        assert_eq!(seen.load(Ordering::Relaxed), 0b11111);
    }

    #[test]
    fn a_call_that_fails_ends_the_round() {
        let call: Call = Arc::new(|client| {
            Box::pin(async move { if client == 3 { Err(Failure::new("no")) } else { Ok(()) } })
        });
        assert!(run(Clients { count: 5, seconds: 0.05 }, call).is_err());
    }
}
