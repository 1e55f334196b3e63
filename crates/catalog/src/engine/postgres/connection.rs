//! One connection: how it is made, what it has prepared, which session of the server it is.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::{Client, Statement};

use super::fault::Fault;
use super::hosts::Hosts;
use super::schema::MARK;

/// What every session is told first. Without index scans a check would stand in the way of every other
/// commit, since the server remembers what a serializable transaction read by what it scanned.
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
const COMMIT: &str = "
    SELECT stoker_commit_2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)";
/// The result of a transaction whose answer was lost. Durable before it is told, on the standbys too: what is seen here
/// may not have been when the session ended.
const RESULT: &str = "
    SELECT batch, results, pg_logical_emit_message(true, 'stoker', '')::text FROM stoker_lane WHERE lane = $1";
const FORM: &str = "SELECT schema FROM stoker_meta";
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
    /// Reads, and commits that take locks: each statement sees one state.
    Statement,
    /// Commits beside those of programs that take no locks.
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
    pub result: Statement,
    pub form: Statement,
    pub seq: Statement,
    pub now: Statement,
    driver: JoinHandle<()>,
}

impl Connection {
    /// Connects and prepares; the server gives up a statement that takes longer than `statement_timeout`.
    pub(super) async fn open(hosts: &Hosts, statement_timeout: Duration) -> Result<Connection, Fault> {
        let (client, io) = hosts.connect().await?;
        let driver = tokio::spawn(async move {
            // Whoever waits for an answer hears of it, too.
            let _ = io.await;
        });
        let setup = format!("SET statement_timeout = {}; {SETUP} {MARK}", statement_timeout.as_millis());
        let ready =
            tokio::time::timeout(statement_timeout, Connection::prepare(client, driver, &setup)).await;
        ready.map_err(|_| Fault::Away("PostgreSQL does not answer".into()))?
    }

    async fn prepare(client: Client, driver: JoinHandle<()>, setup: &str) -> Result<Connection, Fault> {
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
            client.prepare(RESULT),
            client.prepare(FORM),
            client.prepare(SEQ),
            client.prepare(NOW),
        );
        let ((), (), session, get, page_up, page_down, commit, result, form, seq, now) =
            prepared.map_err(|error| match Fault::of(&error) {
                // Nothing was asked yet.
                Fault::Lost(words) => Fault::Away(format!("PostgreSQL: {words}")),
                fault => fault,
            })?;
        Ok(Connection {
            session: Session { pid: session.get(0), started_us: session.get(1) },
            isolation: Isolation::Statement,
            client,
            get,
            page_up,
            page_down,
            commit,
            result,
            form,
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
