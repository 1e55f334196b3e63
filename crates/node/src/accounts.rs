//! Quotas of tenants, projects and users: what they are, what is used of them, and who is above a soft limit.
//!
//! That they hold is the business of the transactions that publish (`stoker_schema::names`). Here is what people see of it. (D180)

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use stoker_catalog::Check;
use stoker_catalog::kv::Commit;
use stoker_schema::names::{Account, Usage, account_usages};
use stoker_schema::rows::{QuotaRow, RowValue, keys};
use stoker_store::{
    AccountInfo, AccountName, Counter, ErrorKind, QuotaLimits, Result, StoreError, TENANT_DEFAULT, UserName,
};

use crate::core::Core;
use crate::preconditions::QUOTAS_SINCE;
use crate::{clock, error};

/// How old what is used may be when somebody asks for metrics.
const METRICS_AGE_MS_MAX: u64 = 30_000;
/// How old it may be when somebody wrote who has a soft limit.
const SOFT_AGE_MS_MAX: u64 = 1_000;
/// Tenants that have metrics of their own; the others are summed up.
const TENANTS_SHOWN: usize = 100;

/// What a node saw last.
#[derive(Default)]
pub(crate) struct Accounts(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// When somebody last began to look, by this machine's clock.
    since_ms: u64,
    all: Arc<Vec<AccountInfo>>,
    /// Accounts above a soft limit, of which the log tells.
    above: Vec<AccountName>,
}

pub(crate) fn account_of(name: &AccountName) -> Account {
    match name {
        AccountName::Tenant(tenant) => Account::Tenant(tenant.clone()),
        AccountName::Project { tenant, project } => Account::Project(format!("{tenant}/{project}")),
        AccountName::User(user) => Account::User(user.to_string()),
    }
}

/// Adds what changes a quota to a transaction.
pub(crate) fn put_limits(commit: Commit, account: &AccountName, limits: QuotaLimits) -> Commit {
    let key = account_of(account).quota_key();
    let QuotaLimits { bytes, files, soft_bytes, soft_files } = limits;
    match limits == QuotaLimits::default() {
        true => commit.delete(key),
        false => commit.put(key, QuotaRow { bytes, files, soft_bytes, soft_files }.encode()),
    }
}

/// Refuses limits that make no sense.
pub(crate) fn check_limits(account: &AccountName, limits: QuotaLimits) -> Result<()> {
    let invalid = |message: String| Err(StoreError::new(ErrorKind::Invalid, message));
    if matches!(account, AccountName::Tenant(tenant) if tenant == TENANT_DEFAULT) {
        return invalid(format!(
            "tenant `{TENANT_DEFAULT}` has no quota; give one to each of its volumes: `stoker volume set NAME --quota`"
        ));
    }
    for (what, soft, hard) in
        [("bytes", limits.soft_bytes, limits.bytes), ("files", limits.soft_files, limits.files)]
    {
        if hard > 0 && soft > hard {
            return invalid(format!("the soft limit of {soft} {what} is above the hard one of {hard}"));
        }
        if i64::try_from(hard).is_err() {
            return invalid(format!("a quota has at most {} {what}", i64::MAX));
        }
    }
    Ok(())
}

impl Core {
    /// What every tenant, project and user has and may have.
    pub(crate) async fn accounts(&self) -> Result<Vec<AccountInfo>> {
        let people = self.people().await?;
        let mut limits: HashMap<Vec<u8>, QuotaLimits> = HashMap::new();
        self.each(keys::QUOTAS.to_vec(), |row| {
            let QuotaRow { bytes, files, soft_bytes, soft_files } =
                QuotaRow::of(row).map_err(error::catalog)?;
            let of = row.key[keys::QUOTAS.len()..].to_vec();
            limits.insert(of, QuotaLimits { bytes, files, soft_bytes, soft_files });
            Ok(())
        })
        .await?;
        let usages = account_usages(&*self.catalog).await.map_err(error::catalog)?;
        let tenants = people.tenants.into_iter().map(|tenant| AccountName::Tenant(tenant.name));
        let projects = people
            .projects
            .into_iter()
            .map(|project| AccountName::Project { tenant: project.tenant, project: project.name });
        let users = people.users.into_iter().map(|user| AccountName::User(user.name));
        let info = |account: AccountName| {
            let id = account_of(&account).id();
            let Usage { files, bytes } = usages.get(&id).copied().unwrap_or_default();
            AccountInfo { account, limits: limits.get(&id).copied().unwrap_or_default(), files, bytes }
        };
        Ok(tenants.chain(projects).chain(users).map(info).collect())
    }

    /// Looks at what is used, after a publish of somebody who has a soft limit.
    pub(crate) fn look_at_soft_limits(self: &Arc<Core>) {
        self.look_at_accounts(SOFT_AGE_MS_MAX);
    }

    /// Looks again, in the background, if the last time is so long ago.
    fn look_at_accounts(self: &Arc<Core>, age_ms: u64) {
        let now_ms = clock::now_ms();
        {
            let mut seen = self.accounts.0.lock().unwrap_or_else(PoisonError::into_inner);
            if self.level.get() < QUOTAS_SINCE || now_ms.saturating_sub(seen.since_ms) < age_ms {
                return;
            }
            seen.since_ms = now_ms;
        }
        let core = Arc::clone(self);
        drop(self.tasks.spawn(async move {
            match core.accounts().await {
                Ok(all) => core.note_accounts(all),
                Err(fault) => tracing::debug!("what tenants use is not known: {fault}"),
            }
        }));
    }

    /// Remembers what is used, and logs who went above a soft limit, and who is below it again.
    fn note_accounts(&self, all: Vec<AccountInfo>) {
        let mut seen = self.accounts.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_above = |info: &&AccountInfo| info.limits.is_soft_exceeded(info.files, info.bytes);
        let above: Vec<AccountName> = all.iter().filter(is_above).map(|info| info.account.clone()).collect();
        for info in all.iter().filter(is_above).filter(|info| !seen.above.contains(&info.account)) {
            let AccountInfo { account, limits, files, bytes } = info;
            tracing::warn!(
                kind = account.kind(), %account, files, bytes, soft_bytes = limits.soft_bytes, soft_files = limits.soft_files,
                quota_bytes = limits.bytes, quota_files = limits.files, "above the soft limit of its quota"
            );
        }
        for account in seen.above.iter().filter(|account| !above.contains(account)) {
            tracing::info!(kind = account.kind(), %account, "below the soft limit of its quota again");
        }
        (seen.all, seen.above) = (Arc::new(all), above);
    }

    /// Metrics of tenants: of the largest ones each, of the others together. The catalog is not waited for.
    pub(crate) fn account_counters(self: &Arc<Core>) -> Vec<Counter> {
        self.look_at_accounts(METRICS_AGE_MS_MAX);
        let all = self.accounts.0.lock().unwrap_or_else(PoisonError::into_inner).all.clone();
        let mut tenants: Vec<(&str, &AccountInfo)> = all
            .iter()
            .filter_map(|info| match &info.account {
                AccountName::Tenant(name) => Some((name.as_str(), info)),
                AccountName::Project { .. } | AccountName::User(_) => None,
            })
            .collect();
        tenants.sort_by(|one, other| (other.1.bytes, one.0).cmp(&(one.1.bytes, other.0)));
        let shown = tenants.len().min(TENANTS_SHOWN);
        let rest = &tenants[shown..];
        let bytes = "Bytes of files in the volumes of a tenant; `_others` are all but the largest tenants.";
        let files = "Files in the volumes of a tenant; `_others` are all but the largest tenants.";
        let quota = "Bytes that a tenant may have; 0 for any number.";
        let mut counters = Vec::new();
        for (name, info) in &tenants[..shown] {
            let labels = [("tenant", *name)];
            counters.push(Counter::new("tenant_bytes", bytes, &labels, info.bytes as f64));
            counters.push(Counter::new("tenant_files", files, &labels, info.files as f64));
            counters.push(Counter::new("tenant_quota_bytes", quota, &labels, info.limits.bytes as f64));
        }
        if !rest.is_empty() {
            let labels = [("tenant", "_others")];
            let sum = |of: fn(&AccountInfo) -> u64| rest.iter().map(|(_, info)| of(info)).sum::<u64>() as f64;
            counters.push(Counter::new("tenant_bytes", bytes, &labels, sum(|info| info.bytes)));
            counters.push(Counter::new("tenant_files", files, &labels, sum(|info| info.files)));
        }
        let above = all.iter().filter(|info| info.limits.is_soft_exceeded(info.files, info.bytes)).count();
        if !all.is_empty() {
            let help = "Tenants, projects and users above a soft limit of their quota.";
            counters.push(Counter::new("quota_soft_exceeded", help, &[], above as f64));
        }
        counters
    }

    /// A check that whoever has a quota is there.
    pub(crate) fn account_there(account: &AccountName) -> Check {
        Check::Present(match account {
            AccountName::Tenant(tenant) => keys::tenant(tenant),
            AccountName::Project { tenant, project } => keys::project(tenant, project),
            AccountName::User(UserName { tenant, user }) => keys::user(tenant, user),
        })
    }
}
