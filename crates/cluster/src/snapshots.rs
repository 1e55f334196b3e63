//! States of the catalog that somebody copies page by page.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use stoker_catalog::{Catalog, Snapshot};
use stoker_store::{CatalogPage, CatalogRow, ErrorKind, Result, StoreError};

use crate::{clock, error};

/// States held at the same time: each keeps old pages of the catalog alive.
const STATES_MAX: usize = 4;

/// One that nobody asked for so long is let go.
const IDLE_MS: u64 = 120_000;

/// A state, and when it was asked last, milliseconds since 1970.
type Held = (Arc<dyn Snapshot>, u64);

/// States by their numbers.
#[derive(Default)]
pub struct Snapshots(Mutex<HashMap<u64, Held>>);

impl Snapshots {
    fn get(&self, state: u64) -> Option<Arc<dyn Snapshot>> {
        let mut held = self.0.lock().unwrap();
        let (snapshot, asked_ms) = held.get_mut(&state)?;
        *asked_ms = clock::now_ms();
        Some(snapshot.clone())
    }

    fn put(&self, snapshot: Arc<dyn Snapshot>) -> Result<u64> {
        let mut held = self.0.lock().unwrap();
        let now_ms = clock::now_ms();
        held.retain(|_, (_, asked_ms)| *asked_ms + IDLE_MS > now_ms);
        if held.len() >= STATES_MAX {
            let message = "too many backups are taken at the same time; wait for one to end";
            return Err(StoreError::new(ErrorKind::Full, message));
        }
        let state = u64::from_le_bytes(clock::random());
        held.insert(state, (snapshot, now_ms));
        Ok(state)
    }

    fn end(&self, state: u64) {
        self.0.lock().unwrap().remove(&state);
    }

    /// Lets go of all that nobody asks for any more.
    pub fn tidy(&self) {
        let now_ms = clock::now_ms();
        self.0.lock().unwrap().retain(|_, (_, asked_ms)| *asked_ms + IDLE_MS > now_ms);
    }

    /// Lets go of all of them.
    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    /// A page of a state of a catalog; of a new state if none is named.
    pub async fn page(
        &self,
        catalog: &dyn Catalog,
        cluster: &str,
        state: Option<u64>,
        after: Option<&[u8]>,
    ) -> Result<CatalogPage> {
        let (state, snapshot) = match state {
            Some(state) => {
                let gone = || {
                    let message = "this state of the catalog is gone, the backup took too long between two pages; begin again";
                    StoreError::new(ErrorKind::NotFound, message)
                };
                (state, self.get(state).ok_or_else(gone)?)
            }
            None => {
                let snapshot: Arc<dyn Snapshot> =
                    Arc::from(catalog.snapshot().await.map_err(error::catalog)?);
                (self.put(snapshot.clone())?, snapshot)
            }
        };
        let page = snapshot.page(after).await.map_err(error::catalog)?;
        if !page.more {
            self.end(state);
        }
        let row = |row: stoker_catalog::Row| CatalogRow { key: row.key, value: row.value, seq: row.seq };
        Ok(CatalogPage {
            state,
            cluster: cluster.to_owned(),
            seq: snapshot.seq(),
            rows: page.rows.into_iter().map(row).collect(),
            more: page.more,
        })
    }
}
