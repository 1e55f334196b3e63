//! A catalog in a PostgreSQL database that all nodes share.
//!
//! A commit says beforehand what it reads and writes, so it needs no luck: it takes [`locks`] on all of it, in one order,
//! and then runs in the isolation that sees what others have committed. Commits that wait at the same time and have no
//! effect on each other go in one transaction, which is one call of a function and one round trip: [`queue`] says which,
//! [`columns`] makes the arguments, [`committer`] runs them and finds out what became of those whose answer was lost.
//! [`reader`] asks for the rows of many callers at once. [`schema`] makes the tables and functions, [`hosts`] finds the
//! server that takes changes, [`pool`] lends connections, [`listener`] serves the watches, [`fault`] says what an error
//! means.
//!
//! Numbers are drawn inside the transaction, once all locks are held. Of two commits that overlap in time the one with the
//! lower number may become visible later, so the order of numbers is not always the order of effects. A commit that begins
//! after another was acknowledged always has the higher number, and so has one that saw a row of another.

mod asking;
mod backoff;
mod columns;
mod committer;
mod connection;
mod fault;
mod form;
mod hosts;
mod listener;
mod locks;
mod pool;
mod queue;
mod reader;
mod restore;
mod schema;
mod snapshot;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_format::ClusterId;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::Statement;

use self::asking::Asking;
use self::backoff::random;
use self::committer::Committer;
use self::connection::{Connection, Isolation};
use self::fault::Fault;
use self::form::Form;
use self::hosts::Hosts;
use self::listener::Listener;
use self::pool::Pool;
use self::reader::Reader;
use super::apply;
use super::watches::Watches;
use crate::error::{CatalogError, Result};
use crate::kv::{
    self, BoxFuture, Catalog, Commit, KEY_BYTES_MAX, Outcome, PAGE_BYTES, Page, Range, Row, Snapshot, Watch,
};

/// Lanes for commits, and for reads of rows: enough that the server is busy while answers are on their way, few enough that
/// many callers go together.
const LANES: usize = 2;

/// Settings of a catalog in PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    /// Most connections at once, besides one that listens.
    pub connections: usize,
    /// How long the server may take for one answer; whoever waits half as long again takes the connection
    /// for lost. Also how long to wait for a connection, and how long to try again a commit that others stand
    /// in the way of.
    pub timeout: Duration,
    /// How long calls wait for a server while there is none that takes changes, as while a standby takes over.
    pub patience: Duration,
}

impl Default for PostgresOptions {
    fn default() -> PostgresOptions {
        PostgresOptions {
            connections: 16,
            timeout: Duration::from_secs(20),
            patience: Duration::from_secs(60),
        }
    }
}

/// A catalog in a PostgreSQL database that all nodes share.
pub struct Postgres {
    hosts: Hosts,
    pool: Arc<Pool>,
    asking: Arc<Asking>,
    committer: Arc<Committer>,
    reader: Arc<Reader>,
    timeout: Duration,
    patience: Duration,
    watches: Arc<Watches>,
    listening: JoinHandle<()>,
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
        let hosts = Hosts::parse(url, options.timeout)?;
        let form = Arc::new(Form::new(schema::ensure(&hosts, cluster).await?)?);
        let watches = Arc::new(Watches::new());
        let listener = Arc::new(Listener::new(random(), Arc::clone(&watches), Arc::clone(&form)));
        let pool = Arc::new(Pool::new(hosts.clone(), options.connections, options.timeout));
        let (patience, timeout) = (options.patience, options.timeout);
        let answer_timeout = timeout * 3 / 2;
        let asking = Arc::new(Asking { pool: Arc::clone(&pool), answer_timeout, patience });
        let reader = Arc::new(Reader::new(Arc::clone(&asking)));
        let listening = tokio::spawn(Arc::clone(&listener).run(hosts.clone()));
        let committer = Committer::new(Arc::clone(&pool), form, listener, answer_timeout, timeout);
        let committer = Arc::new(committer);
        for _ in 0..LANES {
            tokio::spawn(Arc::clone(&committer).lane(random()));
            tokio::spawn(Arc::clone(&reader).lane());
        }
        Ok(Postgres { hosts, pool, asking, committer, reader, timeout, patience, watches, listening })
    }

    /// Ends every watch and every connection that is not in use; calls fail from now on.
    pub fn close(&self) {
        self.listening.abort();
        self.watches.close();
        self.committer.queue.close();
        self.reader.close();
        self.pool.close();
    }

    /// How often a transaction had to be tried again because others were in its way.
    pub fn conflicts(&self) -> u64 {
        self.committer.conflicts.load(Ordering::Relaxed)
    }

    /// What about the server could lose commits that it acknowledged, in words; `None` if nothing is seen.
    pub async fn standby_warning(&self) -> Result<Option<String>> {
        const QUESTION: &str = "
            SELECT (SELECT count(*) FROM pg_stat_replication),
                (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
                (SELECT count(*) FROM pg_stat_replication WHERE sync_state IS NULL),
                (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
                current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on'";
        let lease = self.pool.lease(Isolation::Statement).await.map_err(Fault::into_error)?;
        let answered = tokio::time::timeout(
            self.asking.answer_timeout,
            lease.connection().client.query_one(QUESTION, &[]),
        );
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

    async fn page(&self, range: &Range) -> Result<Page> {
        range.validate()?;
        // Above every key, since no key is that long.
        let top = [u8::MAX; KEY_BYTES_MAX + 1];
        let end = range.end.as_deref().unwrap_or(&top);
        let rows_max = i64::try_from(range.limit).unwrap_or(i64::MAX).saturating_add(1);
        let bytes_max = i64::try_from(PAGE_BYTES).expect("a small number");
        let statement: fn(&Connection) -> &Statement =
            if range.reverse { |on| &on.page_down } else { |on| &on.page_up };
        let rows = self.asking.ask(statement, &[&range.start, &end, &rows_max, &bytes_max]).await?;
        apply::page(rows.iter().map(row), range.limit)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.close();
    }
}

impl Catalog for Postgres {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        Box::pin(async move {
            kv::keys_validate(keys)?;
            self.reader.read(keys).await
        })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move { self.page(&range).await })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        Box::pin(self.committer.commit(commit, Instant::now() + self.patience))
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.watches.watch(prefix)
    }

    /// The last number that was drawn, made durable before it is told, so that it cannot be lost again.
    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let seq = self.asking.number(|on| &on.seq).await?;
            self.committer.seq_known.fetch_max(seq, Ordering::SeqCst);
            Ok(seq)
        })
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(self.asking.number(|on| &on.now))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>>> {
        Box::pin(async move {
            // Before the state is fixed, so that what is told is surely in it.
            let seq = self.seq().await?;
            let state = snapshot::State::open(&self.hosts, self.timeout, seq).await?;
            Ok(Box::new(state) as Box<dyn Snapshot>)
        })
    }

    fn describe(&self) -> String {
        self.hosts.describe()
    }
}

fn row(row: &tokio_postgres::Row) -> Result<Row> {
    let seq = u64::try_from(row.get::<_, i64>(2)).map_err(|_| damaged())?;
    Ok(Row { key: row.get(0), value: row.get(1), seq })
}

fn damaged() -> CatalogError {
    CatalogError::corrupt("the database holds a number that Stoker never writes; restore a backup")
}
