//! What endpoints are given: views of a store, each for whoever asks.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use stoker_audit::Log;
use stoker_store::{
    AccessKey, Context, ErrorKind, Order, Principal, Report, Result, Store, StoreError, TENANT_DEFAULT,
    TokenCheck, UserName, split_owner,
};
use tokio::time::Instant;

use crate::decide::{Member, Rights};
use crate::guarded::{AUDIT_FULL, AUDIT_SETTING, Guarded, Policies, Who};
use crate::members::{KeyRights, Members};
use crate::session::SessionKeys;

/// How old what is known of users may be.
pub(crate) const KNOWN_AGE_MAX: Duration = Duration::from_secs(3);

/// A store that nobody reaches without a decision.
#[derive(Clone)]
pub struct Guard(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub store: Arc<dyn Store>,
    /// Where calls are written down.
    pub log: Option<Arc<Log>>,
    /// Volumes whose every read is written down, or not, as it was a moment ago.
    full: RwLock<HashMap<String, (Instant, bool)>>,
    pub policies: Policies,
    /// What seals session tokens.
    pub sessions: OnceLock<SessionKeys>,
    known: RwLock<Option<Known>>,
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Known {
    members: Arc<Members>,
    /// None: somebody changed it since.
    fresh_since: Option<Instant>,
}

/// An access key, and the view that it opens.
pub struct Credential {
    /// The key; its prefixes are those of the key alone.
    pub key: AccessKey,
    /// Whose it is; none for a key of the default tenant that is nobody's.
    pub owner: Option<UserName>,
    /// What it opens.
    pub view: Arc<Guarded>,
    /// What is special about a temporary key; none for others.
    pub session: Option<SessionInfo>,
}

/// A temporary key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionInfo {
    /// When it ends, milliseconds since 1970.
    pub expires_ms: u64,
    /// The name for AWS's programs.
    pub arn: String,
}

/// Who users of this machine are.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// Users of Stoker, by the numbers of users of this machine.
    pub users: HashMap<u32, UserName>,
}

impl Peers {
    /// The view of a user of this machine. Root and the user of this process run the cluster; others are who they are mapped to, or belong to the
    /// default tenant.
    pub fn view(&self, guard: &Guard, uid: u32, own: Option<u32>) -> Arc<Guarded> {
        match self.users.get(&uid) {
            _ if uid == 0 || Some(uid) == own => guard.operator(CLIENT),
            Some(name) => guard.user(name.clone(), CLIENT),
            None => guard.member(Principal::Uid(uid), CLIENT, Member::of(TENANT_DEFAULT)),
        }
    }
}

/// The client port, as a context names it.
const CLIENT: &str = "client";

impl Guard {
    /// In front of this store.
    pub fn new(store: Arc<dyn Store>) -> Guard {
        Guard::with(store, None)
    }

    /// In front of this store, with calls written down.
    pub fn audited(store: Arc<dyn Store>, log: Arc<Log>) -> Guard {
        Guard::with(store, Some(log))
    }

    fn with(store: Arc<dyn Store>, log: Option<Arc<Log>>) -> Guard {
        let (known, full, asking) = (RwLock::default(), RwLock::default(), tokio::sync::Mutex::default());
        Guard(Arc::new(Shared {
            store,
            log,
            full,
            policies: Policies::default(),
            sessions: OnceLock::new(),
            known,
            asking,
        }))
    }

    /// Where calls are written down.
    pub fn log(&self) -> Option<&Arc<Log>> {
        self.0.log.as_ref()
    }

    /// For whoever runs the cluster.
    pub fn operator(&self, door: &'static str) -> Arc<Guarded> {
        self.fixed(Context::new(Principal::Operator, door), Rights::Operator)
    }

    /// For whoever may look at it.
    pub fn viewer(&self, door: &'static str) -> Arc<Guarded> {
        self.fixed(Context::new(Principal::Viewer, door), Rights::Viewer)
    }

    /// For nobody who is known.
    pub fn anonymous(&self, door: &'static str) -> Arc<Guarded> {
        self.fixed(Context::new(Principal::Anonymous, door), Rights::Nobody)
    }

    /// For a user.
    pub fn user(&self, name: UserName, door: &'static str) -> Arc<Guarded> {
        self.user_by(name, KeyRights::default(), door, None)
    }

    /// For somebody whose rights do not change.
    pub fn member(&self, principal: Principal, door: &'static str, member: Member) -> Arc<Guarded> {
        self.fixed(Context::new(principal, door), Rights::Member(member))
    }

    /// For an endpoint that says itself who its callers are, in the default tenant and in these volumes of others.
    pub fn service(&self, door: &'static str, also: Vec<String>) -> Arc<Guarded> {
        self.member(Principal::Service(door), door, Member { also, ..Member::of(TENANT_DEFAULT) })
    }

    /// For what an endpoint has to know of volumes before it knows who asks: of the default tenant, and nothing is changed.
    pub fn lookup(&self, door: &'static str) -> Arc<Guarded> {
        let member = Member { read_only: true, ..Member::of(TENANT_DEFAULT) };
        self.member(Principal::Service(door), door, member)
    }

    /// An access key; none if there is none of this name. Whether the caller has its secret, the caller has to find out.
    pub async fn credential(&self, access_key: &str, door: &'static str) -> Result<Option<Credential>> {
        let Some(mut key) = self.0.store.access_key(access_key).await? else { return Ok(None) };
        let (owner, prefixes) = split_owner(&key.access.prefixes);
        key.access.prefixes = prefixes;
        let view = self.view_of_key(&key, owner.as_ref(), door, None);
        Ok(Some(Credential { key, owner, view, session: None }))
    }

    /// What an access key opens.
    pub(crate) fn view_of_key(
        &self,
        key: &AccessKey,
        owner: Option<&UserName>,
        door: &'static str,
        session: Option<Arc<str>>,
    ) -> Arc<Guarded> {
        let places = vec![key.access.prefixes.clone()];
        let rights = KeyRights { read_only: key.access.read_only, places, user_created_ms: None };
        match owner {
            Some(name) => self.user_by(name.clone(), rights, door, session),
            None => {
                let scopes = rights.scopes().collect();
                let member = Member { read_only: rights.read_only, scopes, ..Member::of(TENANT_DEFAULT) };
                let context =
                    Context { session, ..Context::new(Principal::Key(key.access_key.clone()), door) };
                self.fixed(context, Rights::Member(member))
            }
        }
    }

    /// The user of a token for the client port, and what checks it.
    pub async fn of_token(&self, id: u32) -> Result<Option<(UserName, TokenCheck)>> {
        Ok(self.0.members().await?.of_token(id))
    }

    /// Writes down that somebody was sent away before it was known who they are.
    pub fn refused_stranger(
        &self,
        door: &'static str,
        action: &str,
        volume: &str,
        key: Option<&[u8]>,
        why: &str,
    ) {
        if self.0.log.is_some() {
            self.anonymous(door).write_stranger(action, volume, key, why);
        }
    }

    fn fixed(&self, context: Context, rights: Rights) -> Arc<Guarded> {
        Arc::new(Guarded::new(Arc::clone(&self.0), context, Who::Fixed(Arc::new(rights))))
    }

    pub(crate) fn user_by(
        &self,
        name: UserName,
        key: KeyRights,
        door: &'static str,
        session: Option<Arc<str>>,
    ) -> Arc<Guarded> {
        let context = Context { session, ..Context::new(Principal::User(name.clone()), door) };
        Arc::new(Guarded::new(Arc::clone(&self.0), context, Who::user(name, key)))
    }
}

/// Volumes of which it is remembered whether their reads are written down.
const FULL_MAX: usize = 4096;

impl Shared {
    /// Whether every read of a volume is written down; none if that has to be looked up.
    pub fn known_full(&self, log: &Log, volume: &str) -> Option<bool> {
        if log.is_full() {
            return Some(true);
        }
        let full = self.full.read().unwrap_or_else(PoisonError::into_inner);
        full.get(volume).filter(|(since, _)| since.elapsed() < KNOWN_AGE_MAX).map(|(_, is_full)| *is_full)
    }

    /// The same. While the catalog does not answer, what was known stays.
    pub async fn is_full(&self, log: &Log, volume: &str) -> bool {
        if let Some(is_full) = self.known_full(log, volume) {
            return is_full;
        }
        let is_full = match self.store.volume_setting(volume, AUDIT_SETTING).await {
            Ok(document) => document.is_some_and(|document| document == AUDIT_FULL),
            Err(fault) if fault.kind == ErrorKind::NotFound => false,
            Err(_) => {
                let full = self.full.read().unwrap_or_else(PoisonError::into_inner);
                return full.get(volume).is_some_and(|(_, is_full)| *is_full);
            }
        };
        let mut full = self.full.write().unwrap_or_else(PoisonError::into_inner);
        if full.len() >= FULL_MAX {
            full.clear();
        }
        full.insert(volume.to_owned(), (Instant::now(), is_full));
        is_full
    }

    /// Somebody changed whether reads of a volume are written down.
    pub fn forget_full(&self, volume: &str) {
        self.full.write().unwrap_or_else(PoisonError::into_inner).remove(volume);
    }

    /// Everybody, known a few seconds ago at most, or for as long as the catalog does not answer.
    pub async fn members(&self) -> Result<Arc<Members>> {
        if let Some(members) = self.fresh() {
            return Ok(members);
        }
        let _asking = self.asking.lock().await;
        if let Some(members) = self.fresh() {
            return Ok(members);
        }
        let now = Instant::now();
        let members = match self.store.operate(Order::People).await {
            Ok(Report::People(people)) => Arc::new(Members::of(people)),
            Ok(_) => return Err(StoreError::new(ErrorKind::Unavailable, "the node answered something else")),
            Err(fault) => match self.read() {
                Some(old) => {
                    tracing::debug!("users are not looked up: {}", fault.message);
                    old.members
                }
                None => return Err(fault),
            },
        };
        let known = Known { members: Arc::clone(&members), fresh_since: Some(now) };
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(members)
    }

    /// Somebody changed users: what is known is not good any more.
    pub fn forget(&self) {
        if let Some(known) = self.known.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            known.fresh_since = None;
        }
    }

    fn read(&self) -> Option<Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fresh(&self) -> Option<Arc<Members>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let known = known.as_ref()?;
        known
            .fresh_since
            .is_some_and(|since| since.elapsed() < KNOWN_AGE_MAX)
            .then(|| Arc::clone(&known.members))
    }
}
