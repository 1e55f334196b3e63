//! Access keys that are replaced while everything runs.

use serde::{Deserialize, Serialize};
use stoker_catalog::kv::{Commit, Outcome};
use stoker_catalog::rows::{AccessKeyRow, RowValue, keys};
use stoker_catalog::{Check, Row};
use stoker_store::{AccessKey, ErrorKind, Result, StoreError, Subject};

use crate::core::Core;
use crate::{clock, error};

/// Longest time that an old key works on.
const GRACE_MS_MAX: u64 = 90 * 24 * 3_600_000;

/// Letters that nobody has to quote, five bits each.
const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// An access key as its row has it.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredKey {
    #[serde(flatten)]
    pub key: AccessKey,
    /// When it stops to work, milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

impl StoredKey {
    /// Reads one.
    pub fn of(row: &Row) -> Result<StoredKey> {
        let body = AccessKeyRow::of(row).map_err(error::catalog)?.body;
        serde_json::from_slice(&body).map_err(|fault| {
            StoreError::new(ErrorKind::Corrupt, format!("an access key cannot be read: {fault}"))
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        AccessKeyRow { body: serde_json::to_vec(self).expect("plain data encodes") }.encode()
    }

    /// The key, if it works at this time.
    pub fn working(self, now_ms: u64) -> Option<AccessKey> {
        self.expires_ms.is_none_or(|expires_ms| now_ms < expires_ms).then_some(self.key)
    }
}

fn random_text<const N: usize>() -> String {
    clock::random::<N>().iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect()
}

impl Core {
    /// Makes a new key with the rights of an old one, which works on for a while; both in one transaction.
    pub async fn key_rotate(&self, access_key: &str, grace_ms: u64) -> Result<AccessKey> {
        if grace_ms > GRACE_MS_MAX {
            let message = "an old key works on for 90 days at most";
            return Err(StoreError::about(ErrorKind::Invalid, Subject::AccessKey, message));
        }
        let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        let row_key = keys::access_key(access_key);
        loop {
            let row = self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten();
            let old = row.as_ref().map(StoredKey::of).transpose()?;
            let (Some(row), Some(old)) =
                (row, old.filter(|old| old.expires_ms.is_none_or(|end| now_ms < end)))
            else {
                let message = format!("there is no access key `{access_key}`");
                return Err(StoreError::about(ErrorKind::NotFound, Subject::AccessKey, message));
            };
            let new = AccessKey {
                access_key: format!("STKR{}", random_text::<16>()),
                secret_key: random_text::<40>(),
                access: old.key.access.clone(),
                created_ms: now_ms,
            };
            // One that is on its way out is not given more time.
            let expires_ms = old.expires_ms.map_or(now_ms + grace_ms, |end| end.min(now_ms + grace_ms));
            let old = StoredKey { expires_ms: Some(expires_ms), ..old };
            let stored = StoredKey { key: new.clone(), expires_ms: None };
            let new_key = keys::access_key(&new.access_key);
            let change = Commit::new().seq(row_key.clone(), row.seq).check(Check::Absent(new_key.clone()));
            let change = change.put(new_key, stored.encode());
            let change = match grace_ms {
                0 => change.delete(row_key.clone()),
                _ => change.put(row_key.clone(), old.encode()),
            };
            if let Outcome::Done { seq } = self.catalog.commit(change).await.map_err(error::catalog)? {
                self.saw(seq);
                self.forget_expired(now_ms.min(self.expiry.now_ms())).await?;
                self.keep_rows().await?;
                return Ok(new);
            }
        }
    }

    /// Removes keys whose time is over.
    async fn forget_expired(&self, now_ms: u64) -> Result<()> {
        let mut over = Vec::new();
        self.each(b"A".to_vec(), |row| {
            if StoredKey::of(row)?.working(now_ms).is_none() {
                over.push((row.key.clone(), row.seq));
            }
            Ok(())
        })
        .await?;
        for (key, seq) in over {
            let change = Commit::new().seq(key.clone(), seq).delete(key);
            // Somebody else may have been faster.
            let _ = self.catalog.commit(change).await.map_err(error::catalog)?;
        }
        Ok(())
    }
}
