//! Rows of a backup into the database, in one transaction: all of them or none.

use std::time::Duration;

use stoker_format::ClusterId;

use super::fault::Fault;
use super::hosts::Hosts;
use super::{Postgres, schema};
use crate::error::{CatalogError, Result};
use crate::kv::Row;

/// How long the server may take to let us in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Locked against everybody else who reads or writes while rows are replaced.
const LOCK: &str = "BEGIN; LOCK TABLE stoker_row IN ACCESS EXCLUSIVE MODE";
const INSERT: &str =
    "INSERT INTO stoker_row (key, value, seq) SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[])";
/// A number is never drawn twice, so this stays also if the rest is taken back.
const RAISE: &str = "SELECT setval('stoker_seq', greatest($1, (SELECT last_value FROM stoker_seq)))";

impl Postgres {
    /// Replaces every row of the database at `url` by these, which keep their numbers; commits are numbered above `seq`
    /// from then on. The rows that are there come to nothing, so the caller has made sure that nobody wants them.
    pub async fn restore(
        url: &str,
        cluster: ClusterId,
        seq: u64,
        mut next: impl FnMut() -> Result<Option<Vec<Row>>>,
    ) -> Result<()> {
        let hosts = Hosts::parse(url, CONNECT_TIMEOUT)?;
        schema::ensure(&hosts, cluster).await?;
        let failed = |error: tokio_postgres::Error| Fault::of_read(&error);
        let number = |seq: u64| {
            i64::try_from(seq)
                .map_err(|_| CatalogError::corrupt("a row has a number that Stoker never writes"))
        };
        let (client, io) = hosts.connect().await.map_err(Fault::into_error)?;
        let driver = tokio::spawn(async move {
            // Whoever waits for an answer hears of it, too.
            let _ = io.await;
        });
        let work = async {
            client.batch_execute(LOCK).await.map_err(failed)?;
            client.batch_execute("DELETE FROM stoker_row").await.map_err(failed)?;
            let insert = client.prepare(INSERT).await.map_err(failed)?;
            while let Some(rows) = next()? {
                let keys: Vec<&[u8]> = rows.iter().map(|row| row.key.as_slice()).collect();
                let values: Vec<&[u8]> = rows.iter().map(|row| row.value.as_slice()).collect();
                let seqs = rows.iter().map(|row| number(row.seq)).collect::<Result<Vec<i64>>>()?;
                client.execute(&insert, &[&keys, &values, &seqs]).await.map_err(failed)?;
            }
            client.execute(RAISE, &[&number(seq)?]).await.map_err(failed)?;
            client.batch_execute("COMMIT").await.map_err(failed)
        };
        let done = work.await;
        driver.abort();
        done
    }
}
