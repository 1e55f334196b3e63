//! The tables: made once, by one of many nodes that start at the same time, and never those of another cluster.
//!
//! Commits of schema 1 run serializable, those of schema 2 take locks. The two do not protect each other, so a database is
//! used in one way at a time. A new one has schema 2. One of schema 1 is made ready by the first program of this version,
//! which then runs its own commits serializable, too, beside programs of older versions; once none of these is connected,
//! the database is switched. Whoever does not know yet is refused and asks.

use stoker_format::ClusterId;
use tokio_postgres::Client;

use super::fault::Fault;
use super::hosts::Hosts;
use crate::error::{CatalogError, Result};

/// The newest form of tables and functions that this program uses; raised when an older one could not use it.
pub(super) const SCHEMA: i32 = 2;
/// The form whose commits run serializable.
pub(super) const SCHEMA_SERIALIZABLE: i32 = 1;
/// The first server that has what we ask of it.
const SERVER_VERSION_MIN: i32 = 130_000;
/// Held while the tables are being made; any number that nothing else in the database uses.
const LOCK: i64 = 0x73_74_6f_6b_65_72;
/// Lanes that nobody used for so long belong to programs that ended.
const TIDY: &str = "DELETE FROM stoker_lane WHERE at < now() - interval '7 days'";

/// Tells that a session knows schema 2: a lock that every such session shares for as long as it lasts.
pub(super) const MARK: &str = "SELECT pg_advisory_lock_shared((1937010539::bigint << 32) | 2);";

const TABLES: &str = include_str!("schema.sql");
const UPGRADE: &str = include_str!("upgrade.sql");
const COMMIT: &str = include_str!("commit.sql");

/// Makes the tables unless they are there, and checks that they are ours. Gives the schema that is used.
pub(super) async fn ensure(hosts: &Hosts, cluster: ClusterId) -> Result<i32> {
    let (mut client, io) = hosts.connect().await.map_err(Fault::into_error)?;
    let driver = tokio::spawn(async move {
        // Whoever waits for an answer hears of it, too.
        let _ = io.await;
    });
    let result = match ensure_on(&mut client, cluster).await {
        Ok(SCHEMA_SERIALIZABLE) => switch(&client, hosts).await,
        result => result,
    };
    driver.abort();
    result
}

/// Switches to schema 2 if nobody is left who does not know it. Gives the schema that is used.
pub(super) async fn switch(client: &Client, hosts: &Hosts) -> Result<i32> {
    let switched = client.query_one("SELECT stoker_switch_2($1)", &[&hosts.application()]).await;
    switched.map(|row| row.get(0)).map_err(|error| Fault::of_read(&error))
}

async fn ensure_on(client: &mut Client, cluster: ClusterId) -> Result<i32> {
    let failed = |error: tokio_postgres::Error| Fault::of_read(&error);
    client.batch_execute(MARK).await.map_err(failed)?;
    let version = client.query_one("SELECT current_setting('server_version_num')::integer", &[]).await;
    let version: i32 = version.map_err(failed)?.get(0);
    if version < SERVER_VERSION_MIN {
        return Err(CatalogError::foreign(format!(
            "the server is PostgreSQL {}; Stoker needs 13 or newer",
            version / 10_000
        )));
    }
    let transaction = client.transaction().await.map_err(failed)?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await.map_err(failed)?;
    let exists = "SELECT to_regclass('stoker_meta') IS NOT NULL, to_regclass('stoker_lane') IS NOT NULL, \
         to_regproc('stoker_count_2') IS NOT NULL";
    let exists = transaction.query_one(exists, &[]).await.map_err(failed)?;
    let (is_ready, knows_sums): (bool, bool) = (exists.get(1), exists.get(2));
    if !exists.get::<_, bool>(0) {
        transaction.batch_execute(TABLES).await.map_err(failed)?;
        transaction.batch_execute(COMMIT).await.map_err(failed)?;
        let insert = "INSERT INTO stoker_meta (cluster, schema) VALUES ($1, $2)";
        transaction.execute(insert, &[&cluster.0.as_slice(), &SCHEMA]).await.map_err(failed)?;
    }
    let meta = transaction.query_opt("SELECT cluster, schema FROM stoker_meta", &[]).await.map_err(failed)?;
    let meta =
        meta.ok_or_else(|| CatalogError::corrupt("the database does not say which cluster it is of"))?;
    let (found, schema): (&[u8], i32) = (meta.get(0), meta.get(1));
    if schema > SCHEMA {
        return Err(CatalogError::foreign(format!(
            "the database has schema {schema} and this program knows up to {SCHEMA}; update the program"
        )));
    }
    if found != cluster.0 {
        let found = found.try_into().map_or_else(|_| "unknown".into(), |id| ClusterId(id).to_string());
        return Err(CatalogError::foreign(format!(
            "the database belongs to cluster {found}, not to {cluster}; check its address. A new node of a cluster joins it \
             before its first start: `stoker join HOST:PORT`, in an empty directory"
        )));
    }
    if schema == SCHEMA_SERIALIZABLE && !is_ready {
        transaction.batch_execute(UPGRADE).await.map_err(failed)?;
        transaction.batch_execute(COMMIT).await.map_err(failed)?;
    } else if is_ready && !knows_sums {
        transaction.batch_execute(COMMIT).await.map_err(failed)?;
    }
    transaction.batch_execute(TIDY).await.map_err(failed)?;
    // An answer that is lost here does no harm: the next one who opens finds the tables or makes them.
    transaction.commit().await.map_err(failed)?;
    Ok(schema)
}
