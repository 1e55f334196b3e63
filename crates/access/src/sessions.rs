//! Temporary access keys of a guard: who gets one, and what one opens. (D225)

use std::sync::Arc;

use stoker_store::{
    Access, AccessKey, ErrorKind, Result, StoreError, UserName, full_volume_name, split_owner,
};

use crate::guard::{Credential, Guard, SessionInfo};
use crate::members::KeyRights;
use crate::session::{Session, SessionFault, SessionKeys, Terms, Whose, secret_hash};

/// What a temporary key is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionRequest {
    /// What its holder is called, for the audit log.
    pub label: String,
    /// The name for AWS's programs.
    pub arn: String,
    /// It may not change anything.
    pub is_read_only: bool,
    /// Lists of places of the tenant, as `volume` or `volume/prefix` with the tenant's own names. One of each list has to cover what is asked
    /// for; an empty list covers everything.
    pub places: Vec<Vec<String>>,
    /// How long it lives.
    pub duration_s: u32,
    /// The time, milliseconds since 1970.
    pub now_ms: u64,
}

impl SessionRequest {
    fn terms(self, whose: Whose, tenant: &str) -> Terms {
        let full = |list: Vec<String>| list.iter().map(|place| full_volume_name(tenant, place)).collect();
        Terms {
            whose,
            label: self.label,
            arn: self.arn,
            is_read_only: self.is_read_only,
            places: self.places.into_iter().map(full).collect(),
            issued_ms: self.now_ms,
            expires_ms: self.now_ms.saturating_add(u64::from(self.duration_s) * 1_000),
        }
    }
}

impl Guard {
    /// Seals session tokens by a key that is made of this secret, which all nodes of a cluster have. Without it, this process alone reads what
    /// it sealed.
    pub fn seal_sessions_with(&self, secret: &[u8; 32]) {
        let _ = self.0.sessions.set(SessionKeys::of(secret));
    }

    fn session_keys(&self) -> Result<&SessionKeys> {
        match self.0.sessions.get() {
            Some(keys) => Ok(keys),
            None => {
                let keys = SessionKeys::random()?;
                Ok(self.0.sessions.get_or_init(|| keys))
            }
        }
    }

    /// A temporary key with the rights of a user; none if there is no such user, or if they are kept out.
    pub async fn session_of_user(&self, name: &UserName, request: SessionRequest) -> Result<Option<Session>> {
        let Some(created_ms) = self.0.members().await?.created_ms(name) else { return Ok(None) };
        let whose = Whose::User { name: name.clone(), created_ms };
        self.session_keys()?.issue(&request.terms(whose, &name.tenant)).map(Some)
    }

    /// A temporary key with the rights of an access key, for as long as that one is there with this secret.
    pub fn session_of_key(
        &self,
        access_key: &str,
        secret_key: &str,
        request: SessionRequest,
    ) -> Result<Session> {
        let whose = Whose::Key { access_key: access_key.to_owned(), secret: secret_hash(secret_key) };
        if !request.places.is_empty() {
            let message = "a temporary key of an access key has the places of that key";
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        self.session_keys()?.issue(&request.terms(whose, stoker_store::TENANT_DEFAULT))
    }

    /// What a temporary key opens, as things are now. Whether the caller has its secret, the caller has to find out.
    pub async fn session(
        &self,
        access_key: &str,
        token: &str,
        now_ms: u64,
        door: &'static str,
    ) -> Result<std::result::Result<Credential, SessionFault>> {
        let Some((terms, secret_key)) = self.session_keys()?.open(access_key, token) else {
            return Ok(Err(SessionFault::Invalid));
        };
        if terms.is_over(now_ms) {
            return Ok(Err(SessionFault::Expired));
        }
        let label: Arc<str> = Arc::from(format!("{} {access_key}", terms.label));
        let info = SessionInfo { expires_ms: terms.expires_ms, arn: terms.arn };
        let key = |access| AccessKey {
            access_key: access_key.to_owned(),
            secret_key,
            access,
            created_ms: terms.issued_ms,
        };
        let credential = match terms.whose {
            Whose::User { name, created_ms } => {
                let Some(found) = self.0.members().await?.created_ms(&name) else {
                    return Ok(Err(SessionFault::Invalid));
                };
                if found != created_ms {
                    return Ok(Err(SessionFault::Invalid));
                }
                let (read_only, places) = (terms.is_read_only, terms.places);
                let rights = KeyRights { read_only, places, user_created_ms: Some(created_ms) };
                let view = self.user_by(name.clone(), rights, door, Some(label));
                let access = Access { read_only, ..Access::default() };
                Credential { key: key(access), owner: Some(name), view, session: Some(info) }
            }
            Whose::Key { access_key: of, secret } => {
                let found = self.0.store.access_key(&of).await?;
                let Some(mut of) = found.filter(|of| secret_hash(&of.secret_key) == secret) else {
                    return Ok(Err(SessionFault::Invalid));
                };
                let (owner, prefixes) = split_owner(&of.access.prefixes);
                of.access.prefixes = prefixes;
                of.access.read_only |= terms.is_read_only;
                let view = self.view_of_key(&of, owner.as_ref(), door, Some(label));
                Credential { key: key(of.access), owner, view, session: Some(info) }
            }
        };
        Ok(Ok(credential))
    }

    /// Writes down that somebody was given something by another way than a call of the store.
    pub async fn given(
        &self,
        name: &UserName,
        door: &'static str,
        action: &str,
        detail: String,
    ) -> Result<()> {
        self.user(name.clone(), door).given(action, detail).await
    }
}
