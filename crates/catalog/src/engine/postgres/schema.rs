//! The tables: made once, by one of many nodes that start at the same time, and never those of another cluster.

use stoker_format::ClusterId;
use tokio_postgres::{Client, Config};

use super::connection;
use super::fault::Fault;
use crate::error::{CatalogError, Result};

/// The form of tables and functions that this program uses; raised when an older one could not use it.
const SCHEMA: i32 = 1;
/// The first server that has what we ask of it.
const SERVER_VERSION_MIN: i32 = 130_000;
/// Held while the tables are being made; any number that nothing else in the database uses.
const LOCK: i64 = 0x73_74_6f_6b_65_72;

const TABLES: &str = include_str!("schema.sql");

/// Makes the tables unless they are there, and checks that they are ours.
pub(super) async fn ensure(config: &Config, cluster: ClusterId) -> Result<()> {
    let (mut client, io) = connection::connect(config).await?;
    let driver = tokio::spawn(async move {
        // Whoever waits for an answer hears of it, too.
        let _ = io.await;
    });
    let result = ensure_on(&mut client, cluster).await;
    driver.abort();
    result
}

async fn ensure_on(client: &mut Client, cluster: ClusterId) -> Result<()> {
    let failed = |error: tokio_postgres::Error| Fault::of_read(&error);
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
    let exists = transaction.query_one("SELECT to_regclass('stoker_meta') IS NOT NULL", &[]).await;
    if !exists.map_err(failed)?.get::<_, bool>(0) {
        transaction.batch_execute(TABLES).await.map_err(failed)?;
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
    // An answer that is lost here does no harm: the next one who opens finds the tables or makes them.
    transaction.commit().await.map_err(failed)
}
