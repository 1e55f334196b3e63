//! Connections that callers share, and sessions whose last word nobody heard.
//!
//! When a connection is lost during a commit, the server may still be working on it. Whoever sent the commit waits until
//! that session has ended and then looks what became of it. If nobody can tell within the time that there is, the session
//! goes on a list, and nobody gets a connection before every session on the list has ended: so whoever reads after an
//! unknown outcome sees it settled.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::connection::{Connection, Isolation, Session};
use super::fault::{self, Fault};
use super::hosts::Hosts;
use crate::error::CatalogError;

/// Between two looks whether it has.
const SETTLE_PAUSE: Duration = Duration::from_millis(5);

/// Ends sessions and tells how many of them still live. One that waits for a standby has made its commit: if it were
/// ended, others would see what the standby may not have.
const SETTLE: &str = "
    SELECT count(*), count(CASE WHEN a.wait_event IS DISTINCT FROM 'SyncRep' THEN pg_terminate_backend(a.pid) END)
    FROM pg_stat_activity a JOIN unnest($1::integer[], $2::bigint[]) AS lost(pid, started_us)
    ON a.pid = lost.pid AND (extract(epoch FROM a.backend_start) * 1000000)::bigint = lost.started_us";

pub(super) struct Pool {
    hosts: Hosts,
    /// How long the server may take for one answer, and everything else may take, too.
    timeout: Duration,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
    lost: Mutex<Vec<Session>>,
}

impl Pool {
    pub(super) fn new(hosts: Hosts, connections: usize, timeout: Duration) -> Pool {
        Pool {
            hosts,
            timeout,
            permits: Semaphore::new(connections),
            idle: Mutex::new(Vec::new()),
            lost: Mutex::new(Vec::new()),
        }
    }

    /// A connection for this caller alone, preferably one of this isolation.
    pub(super) async fn lease(&self, isolation: Isolation) -> Result<Lease<'_>, Fault> {
        let permit = match tokio::time::timeout(self.timeout, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(Fault::Refused(CatalogError::closed())),
            Err(_) => {
                return Err(Fault::Away(format!(
                    "no connection to PostgreSQL came free within {} s; allow more connections",
                    self.timeout.as_secs()
                )));
            }
        };
        let connection = match self.take(isolation) {
            Some(connection) => connection,
            None => Connection::open(&self.hosts, self.timeout).await?,
        };
        let lease = Lease { pool: self, connection: Some(connection), _permit: permit };
        let sessions = lock(&self.lost).clone();
        if !sessions.is_empty() {
            self.settle(lease.connection(), &sessions).await?;
            lock(&self.lost).retain(|session| !sessions.contains(session));
        }
        Ok(lease)
    }

    /// Lets nobody have a connection until this session has ended.
    pub(super) fn abandon(&self, session: Session) {
        lock(&self.lost).push(session);
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

    /// Ends sessions and waits until they have ended.
    pub(super) async fn settle(&self, connection: &Connection, sessions: &[Session]) -> Result<(), Fault> {
        let pids: Vec<i32> = sessions.iter().map(|session| session.pid).collect();
        let starts: Vec<i64> = sessions.iter().map(|session| session.started_us).collect();
        let ended = async {
            loop {
                let row = connection.client.query_one(SETTLE, &[&pids, &starts]).await;
                let row =
                    row.map_err(|error| Fault::Away(format!("PostgreSQL: {}", fault::words(&error))))?;
                if row.get::<_, i64>(0) == 0 {
                    return Ok::<(), Fault>(());
                }
                tokio::time::sleep(SETTLE_PAUSE).await;
            }
        };
        let ended = tokio::time::timeout(self.timeout, ended).await;
        ended.map_err(|_| {
            Fault::Away("a session of PostgreSQL whose commit was lost does not end; end it by hand".into())
        })?
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

    /// Closes the connection; the server may still be at work in its session.
    pub(super) fn lose(mut self) -> Session {
        self.connection.take().expect("as above").session
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
