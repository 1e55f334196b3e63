//! One state of the database, read over a connection of its own.

use std::time::Duration;

use super::connection::Connection;
use super::fault::Fault;
use super::hosts::Hosts;
use super::row;
use crate::engine::apply;
use crate::error::Result;
use crate::kv::{self, BoxFuture, KEY_BYTES_MAX, PAGE_BYTES, Page, Snapshot};

/// A transaction that sees one state until it is dropped. It locks nothing; the server keeps old rows for as long.
pub(super) struct State {
    on: Connection,
    seq: u64,
}

impl State {
    pub(super) async fn open(hosts: &Hosts, timeout: Duration, seq: u64) -> Result<State> {
        let on = Connection::open(hosts, timeout).await.map_err(Fault::into_error)?;
        // The first statement fixes the state.
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1 FROM stoker_meta";
        on.client.batch_execute(begin).await.map_err(|error| Fault::of_read(&error))?;
        Ok(State { on, seq })
    }
}

impl Snapshot for State {
    fn seq(&self) -> u64 {
        self.seq
    }

    fn page<'a>(&'a self, after: Option<&'a [u8]>) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async move {
            let range = kv::snapshot_range(after);
            let top = [u8::MAX; KEY_BYTES_MAX + 1];
            let rows_max = i64::try_from(range.limit).unwrap_or(i64::MAX).saturating_add(1);
            let bytes_max = i64::try_from(PAGE_BYTES).expect("a small number");
            let end = top.as_slice();
            let rows =
                self.on.client.query(&self.on.page_up, &[&range.start, &end, &rows_max, &bytes_max]).await;
            let rows = rows.map_err(|error| Fault::of_read(&error))?;
            apply::page(rows.iter().map(row), range.limit)
        })
    }
}
