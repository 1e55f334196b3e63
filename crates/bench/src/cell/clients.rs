//! Clients of a node: one task for each slot of the queue, as many operations one after the other as the limit allows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stoker_store::StoreError;
use tokio::runtime::Runtime;

use crate::clock;
use crate::failure::Failure;
use crate::measure::{Meter, Round};

/// When a round ends.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// After this long,
    pub seconds: f64,
    /// or after this many bytes.
    pub bytes: u64,
}

/// One slot of the queue.
pub trait Client: Send + 'static {
    /// Gets ready for the next operation: counts for throughput and CPU, not for latency. False: there is no more to do.
    fn prepare(&mut self) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// One operation.
    fn act(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Lets clients work until the limit and for as long as the last operation takes; `len` is what one of them moves.
pub fn round<C: Client>(
    runtime: &Runtime,
    clients: Vec<C>,
    len: usize,
    until: Until,
) -> Result<(Vec<C>, Round), Failure> {
    let meter = Arc::new(Mutex::new(Meter::start()));
    let issued = Arc::new(AtomicU64::new(0));
    let clients = runtime.block_on(async {
        let tasks: Vec<_> = clients
            .into_iter()
            .map(|client| tokio::spawn(work(client, meter.clone(), issued.clone(), len, until)))
            .collect();
        let mut clients = Vec::new();
        for task in tasks {
            clients.push(task.await.expect("a client that does not panic")?);
        }
        Ok::<_, StoreError>(clients)
    })?;
    let meter = Arc::into_inner(meter).expect("every client has ended");
    Ok((clients, meter.into_inner().expect("no client panicked").finish()))
}

async fn work<C: Client>(
    mut client: C,
    meter: Arc<Mutex<Meter>>,
    issued: Arc<AtomicU64>,
    len: usize,
    until: Until,
) -> Result<C, StoreError> {
    let started = meter.lock().expect("no client panicked").started();
    // Once in any case: a machine that stood still for so long would otherwise have measured nothing.
    let mut is_first = true;
    while (std::mem::take(&mut is_first) || started.elapsed().as_secs_f64() < until.seconds)
        && issued.fetch_add(len as u64, Ordering::Relaxed) < until.bytes
        && client.prepare().await?
    {
        let begun = clock::now();
        client.act().await?;
        let took = begun.elapsed();
        meter.lock().expect("no client panicked").note(len, took);
    }
    Ok(client)
}
