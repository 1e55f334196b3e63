//! Connections that callers share, and sessions whose last word nobody heard.
//!
//! When a connection is lost during a commit, the server may still be working on it. The session goes on a
//! list, and nobody gets a connection before every session on the list has ended: so whoever reads after
//! an unknown outcome sees it settled.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::Config;

use super::connection::{Connection, Isolation, Session};
use super::fault::Fault;
use crate::error::{CatalogError, Result};

/// Between two looks whether it has.
const SETTLE_PAUSE: Duration = Duration::from_millis(5);

/// Ends sessions and tells how many of them still live.
const SETTLE: &str = "
    SELECT count(*), count(pg_terminate_backend(a.pid))
    FROM pg_stat_activity a JOIN unnest($1::integer[], $2::bigint[]) AS lost(pid, started_us)
    ON a.pid = lost.pid AND (extract(epoch FROM a.backend_start) * 1000000)::bigint = lost.started_us";

pub(super) struct Pool {
    config: Config,
    /// How long the server may take for one answer, and everything else may take, too.
    timeout: Duration,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
    lost: Mutex<Vec<Session>>,
}

impl Pool {
    pub(super) fn new(config: Config, connections: usize, timeout: Duration) -> Pool {
        Pool {
            config,
            timeout,
            permits: Semaphore::new(connections),
            idle: Mutex::new(Vec::new()),
            lost: Mutex::new(Vec::new()),
        }
    }

    /// A connection for this caller alone, preferably one of this isolation.
    pub(super) async fn lease(&self, isolation: Isolation) -> Result<Lease<'_>> {
        let permit = match tokio::time::timeout(self.timeout, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(CatalogError::closed()),
            Err(_) => {
                return Err(CatalogError::unavailable(format!(
                    "no connection to PostgreSQL came free within {} s; allow more connections",
                    self.timeout.as_secs()
                )));
            }
        };
        let connection = match self.take(isolation) {
            Some(connection) => connection,
            None => Connection::open(&self.config, self.timeout).await?,
        };
        let lease = Lease { pool: self, connection: Some(connection), _permit: permit };
        self.settle(lease.connection()).await?;
        Ok(lease)
    }

    /// Refuses new callers and closes what is not in use.
    pub(super) fn close(&self) {
        self.permits.close();
        lock(&self.idle).clear();
    }

    fn take(&self, isolation: Isolation) -> Option<Connection> {
        let mut idle = lock(&self.idle);
        idle.retain(|connection| !connection.client.is_closed());
        let index = idle.iter().rposition(|connection| connection.isolation == isolation);
        index.or(idle.len().checked_sub(1)).map(|index| idle.swap_remove(index))
    }

    /// Waits until every lost session has ended.
    async fn settle(&self, connection: &Connection) -> Result<()> {
        let sessions = lock(&self.lost).clone();
        if sessions.is_empty() {
            return Ok(());
        }
        let pids: Vec<i32> = sessions.iter().map(|session| session.pid).collect();
        let starts: Vec<i64> = sessions.iter().map(|session| session.started_us).collect();
        let ended = async {
            loop {
                let row = connection.client.query_one(SETTLE, &[&pids, &starts]).await;
                let living: i64 = row.map_err(|error| Fault::of_read(&error))?.get(0);
                if living == 0 {
                    return Ok::<(), CatalogError>(());
                }
                tokio::time::sleep(SETTLE_PAUSE).await;
            }
        };
        match tokio::time::timeout(self.timeout, ended).await {
            Ok(ended) => ended?,
            Err(_) => {
                return Err(CatalogError::unavailable(
                    "a session of PostgreSQL whose commit was lost does not end; try again, or end it by hand",
                ));
            }
        }
        lock(&self.lost).retain(|session| !sessions.contains(session));
        Ok(())
    }
}

/// A connection on loan; goes back when dropped.
pub(super) struct Lease<'p> {
    pool: &'p Pool,
    /// `None` once it is known to be of no use.
    connection: Option<Connection>,
    _permit: SemaphorePermit<'p>,
}

impl Lease<'_> {
    pub(super) fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("taken only by `discard` and `lose`, which end the lease")
    }

    /// Makes the next statements run in this isolation; what must be sent first, if anything.
    pub(super) fn isolate(&mut self, isolation: Isolation) -> Option<&'static str> {
        let connection = self.connection.as_mut().expect("as above");
        if connection.isolation == isolation {
            return None;
        }
        connection.isolation = isolation;
        Some(isolation.command())
    }

    /// Closes the connection.
    pub(super) fn discard(mut self) {
        self.connection = None;
    }

    /// Closes the connection, and lets nobody have one until its session has ended.
    pub(super) fn lose(mut self) {
        if let Some(connection) = self.connection.take() {
            lock(&self.pool.lost).push(connection.session);
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if !connection.client.is_closed() && !self.pool.permits.is_closed() {
            lock(&self.pool.idle).push(connection);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Lists that are whole at any moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
