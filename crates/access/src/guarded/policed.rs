//! What policies of volumes say to calls.
//!
//! A policy is looked up before a call is decided, and remembered as long as users are. A call is decided by what is remembered then: one that
//! goes on without waiting has found a moment ago that there is none.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use stoker_store::{ErrorKind, Principal, Result, Store, volume_tenant};
use tokio::time::Instant;

use super::{Decided, Who};
use crate::action::{Action, Kind};
use crate::decide::{Member, Reason, Resource, Rights, Verdict, decide};
use crate::guard::KNOWN_AGE_MAX;
use crate::origin::Origin;
use crate::policy::{Asked, Effect, On, Policy};

/// The setting of a volume that is its policy.
pub const POLICY_SETTING: &str = "policy";

/// Volumes of which it is remembered.
const POLICIES_MAX: usize = 4096;

/// Policies as they were a moment ago.
#[derive(Default)]
pub(crate) struct Policies(RwLock<HashMap<String, Known>>);

#[derive(Clone)]
struct Known {
    since: Instant,
    policy: Option<Arc<Policy>>,
}

impl Policies {
    fn get(&self, volume: &str) -> Option<Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(volume).cloned()
    }

    /// Whether a volume certainly has none.
    pub fn has_none(&self, volume: &str) -> bool {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(volume).is_some_and(|known| known.policy.is_none() && known.since.elapsed() < KNOWN_AGE_MAX)
    }

    /// Finds out. While the catalog does not answer, what was known stays.
    async fn learn(&self, store: &dyn Store, volume: &str) -> Result<()> {
        let known = self.get(volume);
        if known.as_ref().is_some_and(|known| known.since.elapsed() < KNOWN_AGE_MAX) {
            return Ok(());
        }
        let since = Instant::now();
        let document = match store.volume_setting(volume, POLICY_SETTING).await {
            Ok(document) => document,
            Err(fault) if matches!(fault.kind, ErrorKind::NotFound | ErrorKind::Invalid) => None,
            Err(_) if known.is_some() => return Ok(()),
            Err(fault) => return Err(fault),
        };
        let (tenant, bucket) = volume_tenant(volume);
        let policy = document.map(|document| {
            Policy::parse(&document, bucket, tenant).unwrap_or_else(|fault| {
                // A release that knew more of policies set it.
                tracing::error!(
                    "the policy of volume {volume} cannot be followed, so it is closed to tenants: {fault:?}"
                );
                Policy::closed()
            })
        });
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= POLICIES_MAX {
            // Those of calls that are being decided right now are learned again.
            all.retain(|_, known| known.since.elapsed() < KNOWN_AGE_MAX);
        }
        all.insert(volume.to_owned(), Known { since, policy: policy.map(Arc::new) });
        Ok(())
    }

    /// Somebody changed it.
    pub fn forget(&self, volume: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(volume);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "policies may end, and a caller that chose the time would choose the end"
)]
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Decided {
    /// Whether no policy has a say, as far as that is known at once.
    pub(super) fn is_free(&self, rights: &Rights, volume: &str) -> bool {
        !matches!(rights, Rights::Member(_)) || self.shared.policies.has_none(volume)
    }

    /// Finds out what the policy of a volume is, before a call about it is decided.
    pub(super) async fn know(&self, rights: &Rights, volume: &str) -> Result<()> {
        match rights {
            Rights::Member(_) => self.shared.policies.learn(&*self.shared.store, volume).await,
            Rights::Operator | Rights::Viewer | Rights::Nobody => Ok(()),
        }
    }

    /// What is allowed when the policy has had its say. `names` are what S3 calls the action.
    pub(super) fn verdict(
        &self,
        rights: &Rights,
        action: Action,
        names: &[&str],
        resource: Resource<'_>,
    ) -> Verdict {
        let verdict = decide(rights, action, resource);
        let (Rights::Member(member), Some(volume)) = (rights, resource.volume()) else { return verdict };
        let Some(policy) = self.shared.policies.get(volume).and_then(|known| known.policy) else {
            return verdict;
        };
        match self.effect(&policy, member, action, names, resource) {
            Effect::Deny => Verdict::Deny(Reason::Policy),
            Effect::Allow if !verdict.is_allowed() => {
                self.given(member).map_or(verdict, |given| decide(&given, action, resource))
            }
            Effect::Allow | Effect::Silent => verdict,
        }
    }

    fn effect(
        &self,
        policy: &Policy,
        member: &Member,
        action: Action,
        names: &[&str],
        resource: Resource<'_>,
    ) -> Effect {
        let mut below = Vec::new();
        let on: &[On<'_>] = match (resource, action) {
            (Resource::Cluster, _) => return Effect::Silent,
            (Resource::Glimpse(_) | Resource::Volume(_), _) => &[On::Volume(None)],
            (Resource::Key(_, prefix), Action::List | Action::Uploads | Action::Versions) => {
                &[On::Volume(Some(prefix))]
            }
            (Resource::Key(_, prefix), Action::Drain | Action::SetLatest) => &[On::Below(prefix)],
            (Resource::Key(_, key), Action::Rename) => {
                // It may be a directory, which takes along what is in it.
                below.extend_from_slice(key);
                if !key.ends_with(b"/") {
                    below.push(b'/');
                }
                &[On::Key(key), On::Below(&below)]
            }
            (Resource::Key(_, key), _) => &[On::Key(key)],
        };
        let (address, is_tls) = self.comes_by();
        let user = match &self.context.principal {
            Principal::User(name) => Some(name.user.as_str()),
            _ => None,
        };
        let now_ms = now_ms();
        let asked = |action, on| Asked { tenant: &member.tenant, user, action, on, address, is_tls, now_ms };
        if names.is_empty() {
            let is_known = action.kind() == Kind::Glimpse && policy.knows(&asked("", On::Volume(None)));
            return if is_known { Effect::Allow } else { Effect::Silent };
        }
        // Keys are decided after this one by one: here it is whether there may be some.
        let is_glimpse =
            matches!(resource, Resource::Glimpse(_)) && policy.knows(&asked("", On::Volume(None)));
        let mut all = Effect::Allow;
        for name in names {
            for on in on {
                match policy.says(&asked(name, *on)) {
                    Effect::Deny => return Effect::Deny,
                    Effect::Silent if is_glimpse => {}
                    Effect::Silent => all = Effect::Silent,
                    Effect::Allow => {}
                }
            }
        }
        all
    }

    /// A user without the limits of their own, for what a policy gives; those of their key stay.
    fn given(&self, member: &Member) -> Option<Rights> {
        let Who::User { key, .. } = &self.who else { return None };
        let scopes = key.scopes().collect();
        Some(Rights::Member(Member { read_only: key.read_only, scopes, ..Member::of(&member.tenant) }))
    }

    /// Where the call comes from, and whether somebody on the way may have read it.
    fn comes_by(&self) -> (Option<IpAddr>, bool) {
        let address = |text: &str| {
            text.parse::<SocketAddr>().map(|address| address.ip()).or_else(|_| text.parse::<IpAddr>()).ok()
        };
        match (Origin::current(), self.address.get()) {
            (Some(origin), _) => (address(&origin.address), origin.is_tls),
            (None, Some(own)) => (address(&own.address), own.is_tls),
            (None, None) => (None, false),
        }
    }
}
