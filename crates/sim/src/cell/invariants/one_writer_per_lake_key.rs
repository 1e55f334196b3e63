//! Nothing in the lake is replaced or deleted that nobody has a claim on (R10): whoever lost its claim, or never had one, cannot
//! undo what came after.

use std::collections::BTreeMap;
use std::sync::Mutex;

use stoker_catalog::kv::Catalog;
use stoker_lake::TwinObject;
use stoker_schema::rows::{LakeKeyRow, RowValue, keys};

use super::Broken;
use crate::cell::catalog::SimCatalog;
use crate::cell::world::{Cluster, VOLUME_ID};

/// Somebody who sees every change of the lake.
pub struct Witness {
    catalog: SimCatalog,
    seen: Mutex<Option<Broken>>,
}

/// What a request did.
pub struct Change {
    /// The machine that sent it.
    pub at: usize,
    /// What it was.
    pub what: &'static str,
    /// The lake before it.
    pub before: BTreeMap<Vec<u8>, TwinObject>,
    /// The lake after it.
    pub after: BTreeMap<Vec<u8>, TwinObject>,
}

impl Witness {
    /// Somebody who knows the claims.
    pub fn new(catalog: SimCatalog) -> Witness {
        Witness { catalog, seen: Mutex::default() }
    }

    /// Holds a change against the claims of this moment. What comes to an empty key undoes nothing; whether it belongs there
    /// is seen at rest.
    pub async fn see(&self, change: &Change) {
        for (key, old) in &change.before {
            let is_same = change.after.get(key).is_some_and(|new| new.etag == old.etag);
            if !is_same && !self.is_claimed(key).await {
                let (at, what, key) = (change.at, change.what, key.escape_ascii());
                let how = format!("a {what} by m{at} changed `{key}`, which nobody had claimed");
                self.seen.lock().unwrap().get_or_insert(Broken::new("one_writer_per_lake_key", how));
            }
        }
    }

    /// Whether somebody may have a request to a key under way.
    async fn is_claimed(&self, key: &[u8]) -> bool {
        let found = self.catalog.memory().get(&[&keys::lake_key(VOLUME_ID, key)]).await;
        let row = found.ok().and_then(|mut rows| rows.pop().flatten());
        let claim = row.and_then(|row| LakeKeyRow::of(&row).ok());
        claim.is_some_and(|claim| claim.session != [0; 16] || !claim.attempts.is_empty())
    }
}

/// Whether anything was seen.
pub fn check(cluster: &Cluster) -> Result<(), Broken> {
    cluster.lake_way.witness.seen.lock().unwrap().clone().map_or(Ok(()), Err)
}
