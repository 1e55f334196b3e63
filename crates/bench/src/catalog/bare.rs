//! The databases below the catalogs without any code of ours: one row per call, durable when it is answered.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use tokio_postgres::{Client, NoTls, Statement};

use super::load::Call;
use crate::failure::Failure;

const TABLE: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("bare");
/// About what a publish writes into the row of a file.
const VALUE: [u8; 200] = [7; 200];
/// A step through the rows that visits all of them and no two neighbours one after the other.
const STRIDE: u64 = 104_729;

/// redb.
pub struct BareRedb {
    database: Arc<Database>,
    rows: u64,
    next: Arc<AtomicU64>,
}

impl BareRedb {
    /// Makes a file with rows.
    pub fn make(path: &Path, rows: u64) -> Result<BareRedb, Failure> {
        let make = || -> Result<Database, redb::Error> {
            let database = Database::create(path)?;
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(TABLE)?;
                (0..rows).try_for_each(|row| table.insert(row, &VALUE[..]).map(drop))?;
            }
            transaction.commit()?;
            Ok(database)
        };
        Ok(BareRedb {
            database: Arc::new(make().map_err(redb_failed)?),
            rows,
            next: AtomicU64::new(rows).into(),
        })
    }

    /// Each call is a transaction with one row.
    pub fn writer(&self) -> Call {
        let (database, next) = (Arc::clone(&self.database), Arc::clone(&self.next));
        Arc::new(move |_| {
            let (database, row) = (Arc::clone(&database), next.fetch_add(1, Ordering::Relaxed));
            Box::pin(async move { put(&database, row).map_err(redb_failed) })
        })
    }

    /// Each call reads one row.
    pub fn reader(&self) -> Call {
        let (database, turn, rows) = (Arc::clone(&self.database), AtomicU64::new(0), self.rows);
        Arc::new(move |_| {
            let row = turn.fetch_add(1, Ordering::Relaxed).wrapping_mul(STRIDE) % rows;
            let database = Arc::clone(&database);
            Box::pin(async move { get(&database, row).map_err(redb_failed).and_then(there) })
        })
    }
}

fn put(database: &Database, row: u64) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.open_table(TABLE)?.insert(row, &VALUE[..])?;
    transaction.commit()?;
    Ok(())
}

fn get(database: &Database, row: u64) -> Result<bool, redb::Error> {
    Ok(database.begin_read()?.open_table(TABLE)?.get(row)?.is_some_and(|value| value.value() == VALUE))
}

fn redb_failed(error: redb::Error) -> Failure {
    Failure::new(format!("redb: {error}"))
}

/// PostgreSQL.
pub struct BarePostgres {
    connections: Arc<Vec<Connection>>,
    rows: u64,
    next: Arc<AtomicU64>,
}

struct Connection {
    client: Client,
    insert: Statement,
    select: Statement,
}

impl BarePostgres {
    /// Makes a table with rows, and connections for as many clients.
    pub async fn make(address: &str, connections: usize, rows: u64) -> Result<BarePostgres, Failure> {
        let make = async {
            let first = connect(address).await?;
            first.batch_execute("CREATE TABLE bare (key bigint PRIMARY KEY, value bytea NOT NULL)").await?;
            let fill = "INSERT INTO bare SELECT n, $2 FROM generate_series(0, $1::bigint - 1) AS n";
            first.execute(fill, &[&(rows as i64), &&VALUE[..]]).await?;
            first.batch_execute("ANALYZE bare").await?;
            let mut made = Vec::new();
            for _ in 0..connections {
                let client = connect(address).await?;
                let insert = client.prepare("INSERT INTO bare (key, value) VALUES ($1, $2)").await?;
                let select = client.prepare("SELECT value FROM bare WHERE key = $1").await?;
                made.push(Connection { client, insert, select });
            }
            Ok(made)
        };
        let connections = make.await.map_err(postgres_failed)?.into();
        Ok(BarePostgres { connections, rows, next: AtomicU64::new(rows).into() })
    }

    /// Each call inserts one row, a client over its own connection.
    pub fn writer(&self) -> Call {
        let (connections, next) = (Arc::clone(&self.connections), Arc::clone(&self.next));
        Arc::new(move |client| {
            let (connections, row) = (Arc::clone(&connections), next.fetch_add(1, Ordering::Relaxed) as i64);
            Box::pin(async move {
                let on = &connections[client as usize];
                on.client.execute(&on.insert, &[&row, &&VALUE[..]]).await.map(drop).map_err(postgres_failed)
            })
        })
    }

    /// Each call reads one row, a client over its own connection.
    pub fn reader(&self) -> Call {
        let (connections, turn, rows) = (Arc::clone(&self.connections), AtomicU64::new(0), self.rows);
        Arc::new(move |client| {
            let row = (turn.fetch_add(1, Ordering::Relaxed).wrapping_mul(STRIDE) % rows) as i64;
            let connections = Arc::clone(&connections);
            Box::pin(async move {
                let on = &connections[client as usize];
                let found = on.client.query_one(&on.select, &[&row]).await.map_err(postgres_failed)?;
                there(found.get::<_, &[u8]>(0) == VALUE)
            })
        })
    }
}

async fn connect(address: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, io) = tokio_postgres::connect(address, NoTls).await?;
    // Whoever waits for an answer hears of its end, too.
    tokio::spawn(async move {
        let _ = io.await;
    });
    Ok(client)
}

fn postgres_failed(error: tokio_postgres::Error) -> Failure {
    Failure::new(format!("PostgreSQL: {error}"))
}

fn there(is_there: bool) -> Result<(), Failure> {
    if is_there { Ok(()) } else { Err(Failure::new("the bare database has lost a row")) }
}
