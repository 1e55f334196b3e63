//! Questions that change nothing: asked again until there is an answer, or no time left.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use super::backoff::Backoff;
use super::committer::isolated;
use super::connection::{Connection, Isolation};
use super::fault::Fault;
use super::pool::Pool;
use super::{damaged, row};
use crate::error::Result;
use crate::kv::Row;

/// Pauses while no server answers.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Asks over connections of the pool.
pub(super) struct Asking {
    pub pool: Arc<Pool>,
    /// Longer than the server itself goes on.
    pub answer_timeout: Duration,
    /// How long to wait for a server that answers.
    pub patience: Duration,
}

impl Asking {
    /// Asks, and asks again if the connection breaks or there is no server.
    pub(super) async fn ask(
        &self,
        statement: fn(&Connection) -> &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>> {
        let deadline = Instant::now() + self.patience;
        let mut pause = Backoff::new(PAUSE.0, PAUSE.1);
        loop {
            let fault = match self.once(statement, parameters).await {
                Ok(rows) => return Ok(rows),
                Err(Fault::Refused(error)) => return Err(error),
                Err(fault) => fault,
            };
            if Instant::now() >= deadline {
                return Err(fault.into_error());
            }
            pause.pause().await;
        }
    }

    async fn once(
        &self,
        statement: fn(&Connection) -> &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> std::result::Result<Vec<tokio_postgres::Row>, Fault> {
        let mut lease = self.pool.lease(Isolation::Statement).await?;
        let isolate = lease.isolate(Isolation::Statement);
        let on = lease.connection();
        let asked =
            async { tokio::join!(isolated(on, isolate), on.client.query(statement(on), parameters)).1 };
        let fault = match tokio::time::timeout(self.answer_timeout, asked).await {
            Ok(Ok(rows)) => return Ok(rows),
            Ok(Err(error)) => Fault::of(&error),
            Err(_) => Fault::Lost("no answer".into()),
        };
        if !matches!(fault, Fault::Refused(_)) {
            lease.discard();
        }
        Err(fault)
    }

    /// Asks for one number.
    pub(super) async fn number(&self, statement: fn(&Connection) -> &Statement) -> Result<u64> {
        let rows = self.ask(statement, &[]).await?;
        let number = rows.first().and_then(|row| u64::try_from(row.get::<_, i64>(0)).ok());
        number.ok_or_else(damaged)
    }

    /// The rows that there are of these keys.
    pub(super) async fn rows(&self, keys: &[&[u8]]) -> Result<Vec<Row>> {
        self.ask(|on| &on.get, &[&keys]).await?.iter().map(row).collect()
    }
}
