//! One connection: how it is made, what it has prepared, which session of the server it is.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, Config, Error, NoTls, Socket, Statement};

use crate::error::{CatalogError, Result};

/// Unanswered bytes on the network end a connection after this long.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(20);

/// What every session is told first. Without index scans a check would stand in the way of every other
/// commit, since the server remembers what a transaction read by what it scanned.
const SETUP: &str = "
    SET enable_seqscan = off;
    SET enable_bitmapscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
    SET plan_cache_mode = force_generic_plan;
    SET jit = off;
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
";

const SESSION: &str = "
    SELECT pid, (extract(epoch FROM backend_start) * 1000000)::bigint
    FROM pg_stat_activity WHERE pid = pg_backend_pid()";
const GET: &str = "SELECT key, value, seq FROM stoker_row WHERE key = ANY ($1)";
const COMMIT: &str = "SELECT stoker_commit_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
const SEQ: &str = "
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END, pg_logical_emit_message(true, 'stoker', '')::text
    FROM stoker_seq";
const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// The rows of a page, and the one behind it that tells that there is more: it is the first that finds the
/// page full, so the row before it did not.
fn page(order: &str) -> String {
    format!(
        "SELECT key, value, seq FROM (
            SELECT key, value, seq,
                coalesce(sum(octet_length(key) + octet_length(value)) OVER (
                    ORDER BY key {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING), 0) AS before
            FROM (
                SELECT key, value, seq FROM stoker_row WHERE key >= $1 AND key < $2
                ORDER BY key {order} LIMIT $3
            ) limited
        ) summed WHERE before < $4 ORDER BY key {order}"
    )
}

/// A session of the server: the process, and when it started, since numbers of processes come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Session {
    pub pid: i32,
    pub started_us: i64,
}

/// How transactions of a connection are isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolation {
    /// Reads: each statement sees one state.
    Statement,
    /// Commits.
    Serializable,
}

impl Isolation {
    pub(super) fn command(self) -> &'static str {
        match self {
            Isolation::Statement => "SET default_transaction_isolation = 'read committed'",
            Isolation::Serializable => "SET default_transaction_isolation = 'serializable'",
        }
    }
}

/// A connection that is ready for every call.
pub(super) struct Connection {
    pub client: Client,
    pub session: Session,
    pub isolation: Isolation,
    pub get: Statement,
    pub page_up: Statement,
    pub page_down: Statement,
    pub commit: Statement,
    pub seq: Statement,
    pub now: Statement,
    driver: JoinHandle<()>,
}

impl Connection {
    /// Connects and prepares; the server gives up a statement that takes longer than `statement_timeout`.
    pub(super) async fn open(config: &Config, statement_timeout: Duration) -> Result<Connection> {
        let (client, io) = connect(config).await?;
        let driver = tokio::spawn(async move {
            // Whoever waits for an answer hears of it, too.
            let _ = io.await;
        });
        let setup = format!("SET statement_timeout = {}; {SETUP}", statement_timeout.as_millis());
        let ready =
            tokio::time::timeout(statement_timeout, Connection::prepare(client, driver, &setup)).await;
        ready.map_err(|_| too_slow(statement_timeout))?
    }

    async fn prepare(client: Client, driver: JoinHandle<()>, setup: &str) -> Result<Connection> {
        let (up, down) = (page("ASC"), page("DESC"));
        // Sent together, so that a connection costs few round trips.
        let prepared = tokio::try_join!(
            client.batch_execute(setup),
            client.batch_execute(Isolation::Statement.command()),
            client.query_one(SESSION, &[]),
            client.prepare(GET),
            client.prepare(&up),
            client.prepare(&down),
            client.prepare(COMMIT),
            client.prepare(SEQ),
            client.prepare(NOW),
        );
        let ((), (), session, get, page_up, page_down, commit, seq, now) =
            prepared.map_err(|error| super::fault::Fault::of_read(&error))?;
        Ok(Connection {
            session: Session { pid: session.get(0), started_us: session.get(1) },
            isolation: Isolation::Statement,
            client,
            get,
            page_up,
            page_down,
            commit,
            seq,
            now,
            driver,
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Closes the socket now, also if an answer is still missing.
        self.driver.abort();
    }
}

/// Connects; the one place where a connection could be wrapped in TLS.
pub(super) async fn connect(
    config: &Config,
) -> Result<(Client, tokio_postgres::Connection<Socket, tokio_postgres::tls::NoTlsStream>)> {
    let timeout = config.get_connect_timeout().copied().unwrap_or(NETWORK_TIMEOUT);
    match tokio::time::timeout(timeout, config.connect(NoTls)).await {
        Ok(Ok(connected)) => Ok(connected),
        Ok(Err(error)) => Err(not_connected(&error)),
        Err(_) => Err(too_slow(timeout)),
    }
}

fn not_connected(error: &Error) -> CatalogError {
    CatalogError::unavailable(format!("cannot connect to PostgreSQL: {}", super::fault::words(error)))
}

fn too_slow(timeout: Duration) -> CatalogError {
    CatalogError::unavailable(format!(
        "PostgreSQL did not let us in within {} s; check the server and the network",
        timeout.as_secs()
    ))
}

/// The address with what Stoker always wants of a connection.
pub(super) fn config(url: &str, connect_timeout: Duration) -> Result<Config> {
    let mut config: Config = url.parse().map_err(|error| {
        CatalogError::invalid(format!("not an address of a PostgreSQL database: {error}"))
    })?;
    if config.get_application_name().is_none() {
        config.application_name("stoker");
    }
    // A standby would show an old state.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    config.connect_timeout(connect_timeout).tcp_user_timeout(NETWORK_TIMEOUT);
    config.keepalives_idle(NETWORK_TIMEOUT).keepalives_interval(NETWORK_TIMEOUT / 4).keepalives_retries(3);
    Ok(config)
}
