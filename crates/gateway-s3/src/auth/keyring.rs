//! Access keys, looked up in the store and remembered for a few seconds, with the signing keys that follow from them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quick_cache::sync::Cache;
use stoker_access::{Guard, Guarded, SESSION_TOKEN_LEN_MAX, SessionFault, SessionInfo};
use stoker_sigv4::SigningKey;
use stoker_store::{Access, UserName};
use tokio::time::Instant;

use crate::DOOR;
use crate::refusal::{Code, Refusal, Result};

use super::claim::Service;

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
    /// Whose it is; none for a key of the default tenant that is nobody's.
    pub(crate) owner: Option<UserName>,
    /// What is special about a temporary key.
    pub(crate) session: Option<SessionInfo>,
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
    service: Service,
    key: SigningKey,
}

impl Credential {
    fn new(found: stoker_access::Credential) -> Credential {
        let stoker_access::Credential { key, owner, view, session } = found;
        let signer = Signer::new(key.access_key.clone(), key.secret_key);
        Credential { access_key: key.access_key, access: key.access, view, owner, session, signer }
    }

    /// What its holder and nobody else knows.
    pub(crate) fn secret_key(&self) -> &str {
        self.signer.secret_key()
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

    /// The key that signs for a day, a region and a service.
    pub(super) fn signing_key(&self, day: &str, region: &str, service: Service) -> SigningKey {
        let mut keys = self.signing_keys.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it =
            |known: &&KnownKey| known.day == day && known.region == region && known.service == service;
        if let Some(known) = keys.iter().find(is_it) {
            return known.key.clone();
        }
        let key = SigningKey::of_service(&self.secret_key, day, region, service.name());
        if keys.len() == SIGNING_KEYS_MAX {
            keys.remove(0);
        }
        let (day, region) = (day.to_owned(), region.to_owned());
        keys.push(KnownKey { day, region, service, key: key.clone() });
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
    /// Temporary keys, by their tokens. Those that open nothing are not remembered: anybody can make them up.
    sessions: Cache<String, Remembered>,
}

/// The answer to a session token that opens nothing.
pub(super) fn invalid_token() -> Refusal {
    Refusal::new(Code::InvalidToken, "The provided token is malformed or otherwise invalid.")
}

fn unknown() -> Refusal {
    Refusal::new(Code::InvalidAccessKeyId, "The access key ID you provided does not exist in our records.")
}

/// Signing keys of an unchanged secret stay good.
fn same_or_new(old: Option<Remembered>, found: stoker_access::Credential) -> Arc<Credential> {
    let is_same = |old: &Arc<Credential>| {
        old.signer.secret_key == found.key.secret_key
            && old.access == found.key.access
            && old.owner == found.owner
            && old.session == found.session
    };
    let old = old.and_then(|known| known.credential).filter(is_same);
    old.unwrap_or_else(|| Arc::new(Credential::new(found)))
}

impl Keyring {
    /// Looks keys up behind this guard.
    pub(crate) fn new(guard: Guard) -> Keyring {
        Keyring { guard, remembered: Cache::new(CREDENTIALS_MAX), sessions: Cache::new(CREDENTIALS_MAX) }
    }

    /// The access key of this name. A temporary one comes with a token.
    pub(crate) async fn find(
        &self,
        access_key: &str,
        token: Option<&str>,
        now_s: i64,
    ) -> Result<Arc<Credential>> {
        match token {
            None => self.find_lasting(access_key).await,
            Some(token) => self.find_session(access_key, token, now_s).await,
        }
    }

    async fn find_lasting(&self, access_key: &str) -> Result<Arc<Credential>> {
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
        let credential = found.map(|found| same_or_new(self.remembered.get(access_key), found));
        let remembered = Remembered { since: now, credential: credential.clone() };
        self.remembered.insert(access_key.to_owned(), remembered);
        credential.ok_or_else(unknown)
    }

    async fn find_session(&self, access_key: &str, token: &str, now_s: i64) -> Result<Arc<Credential>> {
        let expired = || Refusal::new(Code::ExpiredToken, "The provided token has expired.");
        if token.len() > SESSION_TOKEN_LEN_MAX {
            return Err(invalid_token());
        }
        let now_ms = u64::try_from(now_s).unwrap_or(0).saturating_mul(1_000);
        let now = Instant::now();
        if let Some(Remembered { since, credential: Some(credential) }) = self.sessions.get(token)
            && now.duration_since(since) < CREDENTIAL_AGE_MAX
        {
            if credential.access_key != access_key {
                return Err(invalid_token());
            }
            let is_over = credential.session.as_ref().is_none_or(|session| now_ms >= session.expires_ms);
            return if is_over { Err(expired()) } else { Ok(credential) };
        }
        match self.guard.session(access_key, token, now_ms, DOOR).await? {
            Err(SessionFault::Invalid) => Err(invalid_token()),
            Err(SessionFault::Expired) => Err(expired()),
            Ok(found) => {
                let credential = same_or_new(self.sessions.get(token), found);
                let remembered = Remembered { since: now, credential: Some(Arc::clone(&credential)) };
                self.sessions.insert(token.to_owned(), remembered);
                Ok(credential)
            }
        }
    }
}
