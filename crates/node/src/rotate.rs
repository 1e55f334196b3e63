//! Access keys that are replaced while everything runs, and those that stop to work by themselves.

use serde::{Deserialize, Serialize};
use stoker_catalog::kv::{Commit, Outcome};
use stoker_catalog::{Check, Row};
use stoker_schema::rows::{AccessKeyRow, RowValue, keys};
use stoker_store::{Access, AccessKey, ErrorKind, Result, StoreError, Subject};

use crate::core::Core;
use crate::{clock, error};
use stoker_records::wrapping::WrappingKeys;

/// Longest time that an old key works on.
const GRACE_MS_MAX: u64 = 90 * 24 * 3_600_000;

/// Longest time that a key is made for.
const LIFETIME_MS_MAX: u64 = 3_660 * 24 * 3_600_000;

/// Longest public part of a key.
pub(crate) const ACCESS_KEY_LEN_MAX: usize = 128;

/// Letters that nobody has to quote, five bits each.
const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// An access key that may be on its way out.
pub(crate) struct StoredKey {
    pub key: AccessKey,
    /// When it stops to work, milliseconds since 1970.
    pub expires_ms: Option<u64>,
    /// How long it was made for. One that replaces it lives as long.
    pub lifetime_ms: Option<u64>,
}

/// An access key as its row has it.
#[derive(Serialize, Deserialize)]
struct Form {
    /// The secret is empty where it is wrapped.
    #[serde(flatten)]
    key: AccessKey,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lifetime_ms: Option<u64>,
    /// The secret, wrapped by the cluster's key. Rows of older releases, and those of a node that is in no
    /// cluster, have it in plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wrapped: Option<String>,
}

impl Form {
    fn of(row: &Row) -> Result<Form> {
        let body = AccessKeyRow::of(row).map_err(error::catalog)?.body;
        serde_json::from_slice(&body).map_err(|fault| {
            StoreError::new(ErrorKind::Corrupt, format!("an access key cannot be read: {fault}"))
        })
    }

    /// The key, and whether it has to be wrapped anew.
    fn open(self, wrapping: &WrappingKeys) -> Result<(StoredKey, bool)> {
        let Form { mut key, expires_ms, lifetime_ms, wrapped } = self;
        let Some(wrapped) = wrapped else {
            return Ok((StoredKey { key, expires_ms, lifetime_ms }, !wrapping.is_empty()));
        };
        let opened = wrapping.unwrap(&key.access_key, &wrapped);
        let secret = opened.as_ref().and_then(|opened| String::from_utf8(opened.secret.clone()).ok());
        let (Some(opened), Some(secret)) = (opened, secret) else {
            let message = format!(
                "the secret of access key `{}` was wrapped by another cluster key; make the key anew",
                key.access_key
            );
            return Err(StoreError::about(ErrorKind::Denied, Subject::AccessKey, message));
        };
        key.secret_key = secret;
        Ok((StoredKey { key, expires_ms, lifetime_ms }, opened.is_former))
    }
}

impl StoredKey {
    /// Reads one. Fails with `Denied` if its secret was wrapped by a key that this node does not have.
    pub fn of(row: &Row, wrapping: &WrappingKeys) -> Result<StoredKey> {
        Ok(Form::of(row)?.open(wrapping)?.0)
    }

    /// What a key may do, without a look at its secret.
    pub fn access(row: &Row) -> Result<Access> {
        Ok(Form::of(row)?.key.access)
    }

    pub fn encode(&self, wrapping: &WrappingKeys) -> Vec<u8> {
        let StoredKey { key, expires_ms, lifetime_ms } = self;
        let mut form =
            Form { key: key.clone(), expires_ms: *expires_ms, lifetime_ms: *lifetime_ms, wrapped: None };
        if let Some(wrapped) = wrapping.wrap(&self.key.access_key, self.key.secret_key.as_bytes()) {
            form.wrapped = Some(wrapped);
            form.key.secret_key = String::new();
        }
        AccessKeyRow { body: serde_json::to_vec(&form).expect("plain data encodes") }.encode()
    }

    /// The key, if it works at this time.
    pub fn working(self, now_ms: u64) -> Option<AccessKey> {
        self.expires_ms.is_none_or(|expires_ms| now_ms < expires_ms).then_some(self.key)
    }
}

/// Refuses a key that no client could show.
pub(crate) fn check_key(key: &AccessKey) -> Result<()> {
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if plain(&key.access_key) && plain(&key.secret_key) && key.access_key.len() <= ACCESS_KEY_LEN_MAX {
        return Ok(());
    }
    let message =
        "access and secret keys are printable ASCII without spaces, the access key of at most 128 bytes";
    Err(StoreError::about(ErrorKind::Invalid, Subject::AccessKey, message))
}

fn random_text<const N: usize>() -> String {
    clock::random::<N>().iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect()
}

impl Core {
    /// Makes a key that works for so long. One that is there already stays as it is.
    pub async fn key_create(&self, key: AccessKey, lifetime_ms: Option<u64>) -> Result<AccessKey> {
        check_key(&key)?;
        if lifetime_ms.is_some_and(|lifetime_ms| !(1_000..=LIFETIME_MS_MAX).contains(&lifetime_ms)) {
            let message = "an access key is made for one second to ten years";
            return Err(StoreError::about(ErrorKind::Invalid, Subject::AccessKey, message));
        }
        let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        let key = AccessKey { created_ms: now_ms, ..key };
        let row_key = keys::access_key(&key.access_key);
        let expires_ms = lifetime_ms.map(|lifetime_ms| now_ms + lifetime_ms);
        let stored = StoredKey { key: key.clone(), expires_ms, lifetime_ms };
        let change =
            Commit::new().check(Check::Absent(row_key.clone())).put(row_key, stored.encode(&self.wrapping));
        match self.catalog.commit(change).await.map_err(error::catalog)? {
            Outcome::Done { seq } => self.saw(seq),
            Outcome::Failed { .. } => {
                let message = format!("access key `{}` is there already", key.access_key);
                return Err(StoreError::about(ErrorKind::Conflict, Subject::AccessKey, message));
            }
        }
        self.forget_expired(now_ms.min(self.expiry.now_ms())).await?;
        self.keep_rows().await?;
        Ok(key)
    }

    /// When keys stop to work; of those that do not, nothing.
    pub async fn key_times(&self) -> Result<Vec<(String, u64)>> {
        let mut times = Vec::new();
        self.each(b"A".to_vec(), |row| {
            let form = Form::of(row)?;
            times.extend(form.expires_ms.map(|expires_ms| (form.key.access_key, expires_ms)));
            Ok(())
        })
        .await?;
        Ok(times)
    }

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
            let old = row.as_ref().map(|row| StoredKey::of(row, &self.wrapping)).transpose()?;
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
            let lifetime_ms = old.lifetime_ms;
            let ends_ms = lifetime_ms.map(|lifetime_ms| now_ms.saturating_add(lifetime_ms));
            let stored = StoredKey { key: new.clone(), expires_ms: ends_ms, lifetime_ms };
            let new_key = keys::access_key(&new.access_key);
            let change = Commit::new().seq(row_key.clone(), row.seq).check(Check::Absent(new_key.clone()));
            let change = change.put(new_key, stored.encode(&self.wrapping));
            let change = match grace_ms {
                0 => change.delete(row_key.clone()),
                _ => change.put(row_key.clone(), old.encode(&self.wrapping)),
            };
            if let Outcome::Done { seq } = self.catalog.commit(change).await.map_err(error::catalog)? {
                self.saw(seq);
                self.forget_expired(now_ms.min(self.expiry.now_ms())).await?;
                self.keep_rows().await?;
                return Ok(new);
            }
        }
    }

    /// Wraps secrets that are in plain text or wrapped by a former key.
    pub async fn rewrap_secrets(&self) -> Result<()> {
        let mut left = Vec::new();
        self.each(b"A".to_vec(), |row| {
            match Form::of(row).and_then(|form| form.open(&self.wrapping)) {
                Ok((stored, true)) => left.push((row.key.clone(), row.seq, stored)),
                Ok((_, false)) => {}
                // A key that cannot be read keeps no node from starting.
                Err(fault) => tracing::warn!("{}", fault.message),
            }
            Ok(())
        })
        .await?;
        for (key, seq, stored) in left {
            let change = Commit::new().seq(key.clone(), seq).put(key, stored.encode(&self.wrapping));
            // Somebody else may have been faster.
            if let Outcome::Done { seq } = self.catalog.commit(change).await.map_err(error::catalog)? {
                self.saw(seq);
            }
        }
        Ok(())
    }

    /// Removes keys whose time is over.
    async fn forget_expired(&self, now_ms: u64) -> Result<()> {
        let mut over = Vec::new();
        self.each(b"A".to_vec(), |row| {
            if Form::of(row)?.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms) {
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
