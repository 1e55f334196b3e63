//! Access keys, looked up in the store and remembered for a few seconds, with the signing keys that follow from them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quick_cache::sync::Cache;
use stoker_access::{Guard, Guarded};
use stoker_sigv4::SigningKey;
use stoker_store::{Access, UserName};
use tokio::time::Instant;

use crate::DOOR;
use crate::refusal::{Code, Refusal, Result};

/// Access keys that are remembered at the same time.
const CREDENTIALS_MAX: usize = 1024;
/// How long a changed or removed key may still work.
const CREDENTIAL_AGE_MAX: Duration = Duration::from_secs(3);
/// Days and regions for which one access key's signing key is remembered; presigned requests may be a week old.
const SIGNING_KEYS_MAX: usize = 8;
/// Longest access key that is looked up.
const ACCESS_KEY_LEN_MAX: usize = 128;

/// An access key that exists.
pub(crate) struct Credential {
    /// Public part.
    pub(crate) access_key: String,
    /// What it may do.
    pub(crate) access: Access,
    /// What it opens.
    pub(crate) view: Arc<Guarded>,
    owner: Option<UserName>,
    /// What checks its signatures.
    pub(super) signer: Signer,
}

/// A secret, and the signing keys that follow from it.
pub(crate) struct Signer {
    /// Public part of the access key.
    pub(super) access_key: String,
    secret_key: String,
    signing_keys: Mutex<Vec<KnownKey>>,
}

struct KnownKey {
    day: String,
    region: String,
    key: SigningKey,
}

impl Credential {
    fn new(found: stoker_access::Credential) -> Credential {
        let stoker_access::Credential { key, owner, view } = found;
        let signer = Signer::new(key.access_key.clone(), key.secret_key);
        Credential { access_key: key.access_key, access: key.access, view, owner, signer }
    }
}

impl Signer {
    /// An access key and its secret.
    pub(super) fn new(access_key: String, secret_key: String) -> Signer {
        Signer { access_key, secret_key, signing_keys: Mutex::new(Vec::new()) }
    }

    /// What the key and nobody else knows.
    pub(super) fn secret_key(&self) -> &str {
        &self.secret_key
    }

    /// The key that signs for a day and a region.
    pub(super) fn signing_key(&self, day: &str, region: &str) -> SigningKey {
        let mut keys = self.signing_keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = keys.iter().find(|known| known.day == day && known.region == region) {
            return known.key.clone();
        }
        let key = SigningKey::new(&self.secret_key, day, region);
        if keys.len() == SIGNING_KEYS_MAX {
            keys.remove(0);
        }
        keys.push(KnownKey { day: day.to_owned(), region: region.to_owned(), key: key.clone() });
        key
    }
}

#[derive(Clone)]
struct Remembered {
    since: Instant,
    credential: Option<Arc<Credential>>,
}

/// Finds access keys.
pub(crate) struct Keyring {
    guard: Guard,
    remembered: Cache<String, Remembered>,
}

impl Keyring {
    /// Looks keys up behind this guard.
    pub(crate) fn new(guard: Guard) -> Keyring {
        Keyring { guard, remembered: Cache::new(CREDENTIALS_MAX) }
    }

    /// The access key of this name.
    pub(crate) async fn find(&self, access_key: &str) -> Result<Arc<Credential>> {
        let unknown = || {
            Refusal::new(
                Code::InvalidAccessKeyId,
                "The access key ID you provided does not exist in our records.",
            )
        };
        if access_key.len() > ACCESS_KEY_LEN_MAX {
            return Err(unknown());
        }
        let now = Instant::now();
        if let Some(known) = self.remembered.get(access_key)
            && now.duration_since(known.since) < CREDENTIAL_AGE_MAX
        {
            return known.credential.ok_or_else(unknown);
        }
        let found = self.guard.credential(access_key, DOOR).await?;
        let credential = found.map(|found| {
            // Signing keys of an unchanged secret stay good.
            let old = self.remembered.get(access_key).and_then(|known| known.credential);
            let is_same = |old: &Arc<Credential>| {
                old.signer.secret_key == found.key.secret_key
                    && old.access == found.key.access
                    && old.owner == found.owner
            };
            old.filter(is_same).unwrap_or_else(|| Arc::new(Credential::new(found)))
        });
        let remembered = Remembered { since: now, credential: credential.clone() };
        self.remembered.insert(access_key.to_owned(), remembered);
        credential.ok_or_else(unknown)
    }
}
