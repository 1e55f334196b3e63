//! A catalog in a PostgreSQL database that all nodes share.
//!
//! A commit is one call of a function inside a serializable transaction, one round trip. [`schema`] makes
//! the tables and functions, [`pool`] lends connections, [`listener`] serves the watches, [`fault`] says
//! what an error means.
//!
//! Numbers are drawn inside the transaction. Of two commits that overlap in time the one with the lower
//! number may become visible later, so the order of numbers is not always the order of effects. A commit
//! that begins after another was acknowledged always has the higher number, and so has one that saw a row
//! of another. The server keeps commits serializable whatever their numbers.

mod arguments;
mod connection;
mod fault;
mod listener;
mod pool;
mod restore;
mod schema;
mod snapshot;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stoker_format::ClusterId;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::Statement;
use tokio_postgres::config::Host;
use tokio_postgres::types::ToSql;

use self::arguments::Arguments;
use self::connection::{Connection, Isolation};
use self::fault::Fault;
use self::listener::Listener;
use self::pool::Pool;
use super::apply;
use super::watches::Watches;
use crate::error::{CatalogError, ErrorKind, Result};
use crate::kv::{
    self, BoxFuture, Catalog, Commit, KEY_BYTES_MAX, Outcome, PAGE_BYTES, Page, Range, Row, Snapshot, Watch,
};

/// The pause after a conflict: up to this, doubled each time, and never above the maximum.
const CONFLICT_PAUSE_MIN: Duration = Duration::from_millis(1);
const CONFLICT_PAUSE_MAX: Duration = Duration::from_millis(64);
/// How often something that changes nothing is tried when connections break.
const READ_TRIES: usize = 3;

/// Settings of a catalog in PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    /// Most connections at once, besides one that listens.
    pub connections: usize,
    /// How long the server may take for one answer; whoever waits half as long again takes the connection
    /// for lost. Also how long to wait for a connection, and how long to try again a commit that others stand
    /// in the way of.
    pub timeout: Duration,
}

impl Default for PostgresOptions {
    fn default() -> PostgresOptions {
        PostgresOptions { connections: 16, timeout: Duration::from_secs(20) }
    }
}

/// A catalog in a PostgreSQL database that all nodes share.
pub struct Postgres {
    config: tokio_postgres::Config,
    pool: Pool,
    /// Longer than the server itself goes on.
    answer_timeout: Duration,
    /// How long a commit is tried again that others stand in the way of.
    conflict_timeout: Duration,
    watches: Arc<Watches>,
    listener: Arc<Listener>,
    listening: JoinHandle<()>,
    description: String,
    /// The highest number that is known to be durable.
    seq_known: AtomicU64,
    conflicts: AtomicU64,
}

impl Postgres {
    /// Connects to the database at `url` and makes the catalog's tables unless they are there.
    ///
    /// The address is `postgresql://user:password@host/database`, or words like `host=/run/postgresql
    /// user=stoker dbname=stoker`. Fails with `Foreign` for the tables of another cluster or a newer
    /// version.
    pub async fn open(url: &str, cluster: ClusterId) -> Result<Postgres> {
        Postgres::open_with(url, cluster, &PostgresOptions::default()).await
    }

    /// The same with other settings.
    pub async fn open_with(url: &str, cluster: ClusterId, options: &PostgresOptions) -> Result<Postgres> {
        if options.connections == 0 {
            return Err(CatalogError::invalid("a catalog needs at least one connection"));
        }
        let config = connection::config(url, options.timeout)?;
        schema::ensure(&config, cluster).await?;
        let watches = Arc::new(Watches::new());
        let listener = Arc::new(Listener::new(random(), Arc::clone(&watches)));
        Ok(Postgres {
            description: describe(&config),
            listening: tokio::spawn(Arc::clone(&listener).run(config.clone())),
            pool: Pool::new(config.clone(), options.connections, options.timeout),
            config,
            answer_timeout: options.timeout * 3 / 2,
            conflict_timeout: options.timeout,
            watches,
            listener,
            seq_known: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
        })
    }

    /// Ends every watch and every connection that is not in use; calls fail from now on.
    pub fn close(&self) {
        self.listening.abort();
        self.watches.close();
        self.pool.close();
    }

    /// How often a commit had to be tried again because others were in its way.
    pub fn conflicts(&self) -> u64 {
        self.conflicts.load(Ordering::Relaxed)
    }

    /// What about the server could lose commits that it acknowledged, in words; `None` if nothing is seen.
    pub async fn standby_warning(&self) -> Result<Option<String>> {
        const QUESTION: &str = "
            SELECT (SELECT count(*) FROM pg_stat_replication),
                (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
                (SELECT count(*) FROM pg_stat_replication WHERE sync_state IS NULL),
                (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
                current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on'";
        let lease = self.pool.lease(Isolation::Statement).await?;
        let answered =
            tokio::time::timeout(self.answer_timeout, lease.connection().client.query_one(QUESTION, &[]));
        let Ok(answered) = answered.await else {
            lease.discard();
            return Err(CatalogError::unavailable("PostgreSQL does not answer"));
        };
        let row = answered.map_err(|error| Fault::of_read(&error))?;
        let (standbys, synchronous, hidden): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let commit: &str = row.get(3);
        let mut words = Vec::new();
        if !row.get::<_, bool>(4) {
            words.push(
                "fsync is off, so a crash of the server's machine loses commits; set fsync = on".into(),
            );
        }
        if !row.get::<_, bool>(5) {
            words.push("full_page_writes is off, so a crash may damage the database; set it to on".into());
        }
        if matches!(commit, "off" | "local") {
            words.push(format!(
                "synchronous_commit is {commit}, so commits may be lost with the server; set it to on"
            ));
        }
        if standbys > 0 && synchronous == 0 && hidden == 0 {
            words.push(format!(
                "none of the {standbys} standbys is synchronous, so a failover loses the last commits; set \
                 synchronous_standby_names"
            ));
        } else if hidden > 0 && synchronous == 0 {
            words.push(format!(
                "whether the {standbys} standbys are synchronous cannot be seen by this user; grant it \
                 pg_read_all_stats"
            ));
        }
        Ok((!words.is_empty()).then(|| words.join("; ")))
    }

    /// Asks something that changes nothing, and asks again if the connection breaks.
    async fn ask(
        &self,
        statement: fn(&Connection) -> &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut lease = self.pool.lease(Isolation::Statement).await?;
            let isolate = lease.isolate(Isolation::Statement);
            let on = lease.connection();
            let asked =
                async { tokio::join!(isolated(on, isolate), on.client.query(statement(on), parameters)).1 };
            let words = match tokio::time::timeout(self.answer_timeout, asked).await {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) => match Fault::of(&error) {
                    Fault::Refused(error) => return Err(error),
                    Fault::Conflict(words) | Fault::Lost(words) => words,
                },
                Err(_) => "no answer".into(),
            };
            lease.discard();
            if tries == READ_TRIES {
                return Err(CatalogError::unavailable(format!("PostgreSQL: {words}")));
            }
        }
    }

    /// Asks for one number.
    async fn number(&self, statement: fn(&Connection) -> &Statement) -> Result<u64> {
        let rows = self.ask(statement, &[]).await?;
        let number = rows.first().and_then(|row| u64::try_from(row.get::<_, i64>(0)).ok());
        number.ok_or_else(damaged)
    }

    async fn rows(&self, keys: &[&[u8]]) -> Result<Vec<Option<Row>>> {
        kv::keys_validate(keys)?;
        let found = self.ask(|on| &on.get, &[&keys]).await?;
        let found: HashMap<&[u8], &tokio_postgres::Row> = found.iter().map(|row| (row.get(0), row)).collect();
        keys.iter().map(|key| found.get(key).map(|found| row(found)).transpose()).collect()
    }

    async fn page(&self, range: &Range) -> Result<Page> {
        range.validate()?;
        // Above every key, since no key is that long.
        let top = [u8::MAX; KEY_BYTES_MAX + 1];
        let end = range.end.as_deref().unwrap_or(&top);
        let rows_max = i64::try_from(range.limit).unwrap_or(i64::MAX).saturating_add(1);
        let bytes_max = i64::try_from(PAGE_BYTES).expect("a small number");
        let statement: fn(&Connection) -> &Statement =
            if range.reverse { |on| &on.page_down } else { |on| &on.page_up };
        let rows = self.ask(statement, &[&range.start, &end, &rows_max, &bytes_max]).await?;
        apply::page(rows.iter().map(row), range.limit)
    }

    async fn run(&self, commit: Commit) -> Result<Outcome> {
        commit.validate()?;
        let arguments = Arguments::new(&commit)?;
        let deadline = Instant::now() + self.conflict_timeout;
        let mut pause = CONFLICT_PAUSE_MIN;
        loop {
            let conflict = match self.attempt(&arguments).await? {
                Attempt::Answered(number) => return Ok(self.outcome(number, &commit)),
                Attempt::Conflict(words) => words,
            };
            self.conflicts.fetch_add(1, Ordering::Relaxed);
            if Instant::now() >= deadline {
                return Err(CatalogError::unavailable(format!(
                    "others wrote the same rows for {} s: {conflict}",
                    self.conflict_timeout.as_secs()
                )));
            }
            tokio::time::sleep(pause.mul_f64(random_fraction())).await;
            pause = (pause * 2).min(CONFLICT_PAUSE_MAX);
        }
    }

    /// Runs a commit once.
    async fn attempt(&self, arguments: &Arguments<'_>) -> Result<Attempt> {
        let mut lease = self.pool.lease(Isolation::Serializable).await?;
        let isolate = lease.isolate(Isolation::Serializable);
        let connection = lease.connection();
        let parameters = arguments.parameters();
        let called = async {
            let call = connection.client.query_one(&connection.commit, &parameters);
            tokio::join!(isolated(connection, isolate), call).1
        };
        let words = match tokio::time::timeout(self.answer_timeout, called).await {
            Ok(Ok(row)) => return Ok(Attempt::Answered(row.get(0))),
            Ok(Err(error)) => match Fault::of(&error) {
                Fault::Conflict(words) => return Ok(Attempt::Conflict(words)),
                Fault::Refused(error) => return Err(error),
                Fault::Lost(words) => words,
            },
            Err(_) => "no answer".into(),
        };
        lease.lose();
        Err(CatalogError::new(
            if arguments.writes() { ErrorKind::Unknown } else { ErrorKind::Unavailable },
            format!("the connection to PostgreSQL was lost during a commit; read to find out: {words}"),
        ))
    }

    fn outcome(&self, number: i64, commit: &Commit) -> Outcome {
        match u64::try_from(number) {
            Ok(0) => Outcome::Done { seq: self.seq_known.load(Ordering::SeqCst) },
            Ok(seq) => {
                self.seq_known.fetch_max(seq, Ordering::SeqCst);
                self.listener.written(&commit.writes);
                Outcome::Done { seq }
            }
            Err(_) => Outcome::Failed {
                check: usize::try_from(number.unsigned_abs()).expect("one of the checks that were sent") - 1,
            },
        }
    }
}

enum Attempt {
    Answered(i64),
    Conflict(String),
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.close();
    }
}

impl Catalog for Postgres {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        Box::pin(self.rows(keys))
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move { self.page(&range).await })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        Box::pin(self.run(commit))
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.watches.watch(prefix)
    }

    /// The last number that was drawn, made durable before it is told, so that it cannot be lost again.
    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let seq = self.number(|on| &on.seq).await?;
            self.seq_known.fetch_max(seq, Ordering::SeqCst);
            Ok(seq)
        })
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(self.number(|on| &on.now))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>>> {
        Box::pin(async move {
            // Before the state is fixed, so that what is told is surely in it.
            let seq = self.seq().await?;
            let state = snapshot::State::open(&self.config, self.conflict_timeout, seq).await?;
            Ok(Box::new(state) as Box<dyn Snapshot>)
        })
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}

/// Sends what makes a connection run in another isolation; if that fails, so does what follows it.
async fn isolated(connection: &Connection, command: Option<&str>) {
    if let Some(command) = command {
        let _ = connection.client.batch_execute(command).await;
    }
}

fn row(row: &tokio_postgres::Row) -> Result<Row> {
    let seq = u64::try_from(row.get::<_, i64>(2)).map_err(|_| damaged())?;
    Ok(Row { key: row.get(0), value: row.get(1), seq })
}

fn damaged() -> CatalogError {
    CatalogError::corrupt("the database holds a number that Stoker never writes; restore a backup")
}

/// Where the database is, without the password.
fn describe(config: &tokio_postgres::Config) -> String {
    let host = config.get_hosts().first().map_or_else(String::new, |host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    let database = config.get_dbname().or(config.get_user()).unwrap_or("postgres");
    format!("PostgreSQL, database {database} at {host}")
}

/// A number that differs from call to call and from process to process; good enough to spread things.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

fn random_fraction() -> f64 {
    (random() >> 11) as f64 / (1u64 << 53) as f64
}

/// Parameters of a statement.
type Parameters<'a> = Vec<&'a (dyn ToSql + Sync)>;
