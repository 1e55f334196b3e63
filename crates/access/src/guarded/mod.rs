//! The store as somebody may use it. Every method says what it is about, and is decided before it goes on.
//!
//! A call of somebody whose rights do not change, about a volume that is called as they call it, goes on without a copy and without waiting. Of
//! others the rights are looked up and the name is made whole first. Files and writers that are open stay open: a decision is about the opening.

mod calls;
mod jobs;
mod policed;
mod record;
mod recorded;
mod versions;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use stoker_store::{BoxFuture, Context, Result, StoreError, TENANT_DEFAULT, UserName, volume_tenant};

use crate::action::Action;
use crate::decide::{Resource, Rights, Verdict, full_name};
use crate::guard::Shared;
use crate::members::{KeyRights, Members};
use crate::origin::Origin;
use crate::policy::{names_of, version_names_of};
use crate::told::Told;

pub use policed::POLICY_SETTING;
pub(crate) use policed::Policies;
pub use recorded::{AUDIT_FULL, AUDIT_SETTING, Guarded};

/// Who a view is for.
pub(crate) enum Who {
    /// Somebody whose rights do not change.
    Fixed(Arc<Rights>),
    /// A user, whose rights may.
    User { name: UserName, key: KeyRights, last: Mutex<Option<(Arc<Members>, Arc<Rights>)>> },
}

impl Who {
    pub fn user(name: UserName, key: KeyRights) -> Who {
        Who::User { name, key, last: Mutex::default() }
    }
}

/// A store that does what its caller may do. [`Guarded`] is this one with what was done written down.
pub(crate) struct Decided {
    shared: Arc<Shared>,
    context: Context,
    who: Who,
    /// Where it comes from, if the view is of one connection.
    address: OnceLock<Origin>,
    /// The user whom files count for.
    user: Option<Arc<UserName>>,
}

fn is_limited(rights: &Rights) -> bool {
    matches!(rights, Rights::Member(member) if member.is_limited())
}

/// Whether a volume is called as its caller calls it.
fn own_is_full(rights: &Rights, volume: &str) -> bool {
    match rights {
        Rights::Member(member) if member.tenant == TENANT_DEFAULT => full_name(member, volume).is_none(),
        Rights::Member(_) => false,
        Rights::Operator | Rights::Viewer | Rights::Nobody => true,
    }
}

fn full_of<'v>(rights: &Rights, volume: &'v str) -> Cow<'v, str> {
    match rights {
        Rights::Member(member) => full_name(member, volume).map_or(volume.into(), Into::into),
        Rights::Operator | Rights::Viewer | Rights::Nobody => volume.into(),
    }
}

/// The name by which a caller calls a volume of theirs.
fn own_of<'v>(rights: &Rights, full: &'v str) -> &'v str {
    match rights {
        Rights::Member(member) if member.tenant != TENANT_DEFAULT => volume_tenant(full).1,
        _ => full,
    }
}

fn told<T: Told>(answer: Result<T>, full: &str, own: &str) -> Result<T> {
    if full == own {
        return answer;
    }
    match answer {
        Ok(mut answer) => {
            answer.rename(full, own);
            Ok(answer)
        }
        Err(mut fault) => {
            fault.rename(full, own);
            Err(fault)
        }
    }
}

fn refused<'a, T: Send + 'a>(fault: StoreError) -> BoxFuture<'a, Result<T>> {
    Box::pin(std::future::ready(Err(fault)))
}

impl Decided {
    pub(crate) fn new(shared: Arc<Shared>, context: Context, who: Who) -> Decided {
        let user = match &who {
            Who::Fixed(_) => None,
            Who::User { name, .. } => Some(Arc::new(name.clone())),
        };
        Decided { shared, context, who, address: OnceLock::new(), user }
    }

    /// Who asks.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Decides about a volume as the caller calls it, for an endpoint that wants to know before it goes on. The store decides again.
    pub async fn permit(
        &self,
        action: Action,
        volume: &str,
        resource: impl Fn(&str) -> Resource<'_>,
    ) -> Result<()> {
        let rights = self.rights().await?;
        let full = full_of(&rights, volume);
        self.know(&rights, &full).await?;
        self.judge(&rights, action, resource(&full))
    }

    /// The same about a key, or all keys that start so.
    pub async fn permit_key(&self, action: Action, volume: &str, key: &[u8]) -> Result<()> {
        let rights = self.rights().await?;
        let full = full_of(&rights, volume);
        self.know(&rights, &full).await?;
        self.judge(&rights, action, Resource::Key(&full, key))
    }

    /// Does something for whoever asks: what they write counts for them.
    async fn on_behalf<F: Future>(&self, call: F) -> F::Output {
        stoker_store::asked_by(self.user.clone(), call).await
    }

    async fn rights(&self) -> Result<Arc<Rights>> {
        let (name, key, last) = match &self.who {
            Who::Fixed(rights) => return Ok(Arc::clone(rights)),
            Who::User { name, key, last } => (name, key, last),
        };
        let members = self.shared.members().await?;
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, rights)) = last.as_ref()
            && Arc::ptr_eq(of, &members)
        {
            return Ok(Arc::clone(rights));
        }
        let rights = Arc::new(members.rights(name, key));
        *last = Some((members, Arc::clone(&rights)));
        Ok(rights)
    }

    fn judge(&self, rights: &Rights, action: Action, resource: Resource<'_>) -> Result<()> {
        match resource.of_version() {
            Some(plain) => self.judge_as(version_names_of(action), rights, action, plain),
            None => self.judge_as(names_of(action), rights, action, resource),
        }
    }

    /// The same for an action that S3 calls so.
    fn judge_as(
        &self,
        names: &[&str],
        rights: &Rights,
        action: Action,
        resource: Resource<'_>,
    ) -> Result<()> {
        match self.verdict(rights, action, names, resource) {
            Verdict::Allow => Ok(()),
            Verdict::Deny(reason) => {
                let Context { principal, door, class, .. } = &self.context;
                tracing::debug!(%principal, door, ?class, action = action.name(), ?reason, "refused");
                self.write_denied(action, resource);
                Err(reason.fault())
            }
        }
    }
}
