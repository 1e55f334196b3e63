//! Tenants, projects and users: rows, and the transactions that change them. What they may do is decided elsewhere, in front of the door.
//!
//! Every change is a transaction on what it was decided by, so that of two changes which do not fit together one fails and is tried again on
//! what the other left. No row is written below level 4: a release that knows no tenants would show their volumes to everybody. (D146)

use stoker_catalog::kv::{Commit, Outcome, Range};
use stoker_catalog::{Check, Row};
use stoker_format::VolumeId;
use stoker_schema::level::Level;
use stoker_schema::rows::{PlainRow, ROOT, RowValue, TokenPart, UserRow, VolumeRow, keys};
use stoker_store::{
    AccountName, ErrorKind, PROJECTS_MAX, People, PeopleChange, ProjectInfo, QuotaLimits, Report, Result,
    StoreError, TENANT_DEFAULT, TENANTS_MAX, TenantInfo, TokenCheck, USER_PLACES_MAX, USERS_MAX, UserInfo,
    UserName, UserRights, VolumeOptions, check_bucket_name, check_who_name, full_volume_name, split_owner,
};

use crate::accounts::{account_of, check_limits, put_limits};
use crate::core::Core;
use crate::error;
use crate::rotate::StoredKey;

/// The level since which there are tenants.
const TENANTS_SINCE: Level = Level(4);
/// Tries before a change that others keep getting in the way of is given up.
const TRIES_MAX: usize = 10;

fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Invalid, message)
}

fn conflict(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Conflict, message)
}

fn missing(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::NotFound, message)
}

fn no_tenant(tenant: &str) -> StoreError {
    missing(format!("there is no tenant `{tenant}`; `stoker tenant list` lists them"))
}

fn no_user(name: &UserName) -> StoreError {
    missing(format!("there is no user `{name}`; `stoker user list` lists them"))
}

/// What becomes of a change that was looked into.
enum Planned {
    /// It is this transaction.
    Commit(Commit),
    /// It is so already.
    Nothing,
}

impl Core {
    /// Every tenant, project and user.
    pub(crate) async fn people(&self) -> Result<People> {
        let mut people = People::default();
        self.each(keys::TENANTS.to_vec(), |row| {
            if let Some(name) = keys::who_behind(keys::TENANTS, &row.key) {
                let plain = PlainRow::of(row).map_err(error::catalog)?;
                people.tenants.push(TenantInfo { name: name.to_owned(), created_ms: plain.created_ms });
            }
            Ok(())
        })
        .await?;
        self.each(keys::PROJECTS.to_vec(), |row| {
            if let Some((tenant, name)) =
                keys::who_behind(keys::PROJECTS, &row.key).and_then(|at| at.split_once('/'))
            {
                let created_ms = PlainRow::of(row).map_err(error::catalog)?.created_ms;
                people.projects.push(ProjectInfo {
                    tenant: tenant.to_owned(),
                    name: name.to_owned(),
                    created_ms,
                });
            }
            Ok(())
        })
        .await?;
        self.each(keys::USERS.to_vec(), |row| {
            if let Some((tenant, user)) =
                keys::who_behind(keys::USERS, &row.key).and_then(|at| at.split_once('/'))
            {
                let name = UserName { tenant: tenant.to_owned(), user: user.to_owned() };
                people.users.push(info(name, UserRow::of(row).map_err(error::catalog)?));
            }
            Ok(())
        })
        .await?;
        Ok(people)
    }

    /// Carries a change out.
    pub(crate) async fn change_people(&self, change: PeopleChange) -> Result<Report> {
        check(&change)?;
        if self.level.get() < TENANTS_SINCE {
            let message = format!(
                "tenants and users need level {TENANTS_SINCE}, and the cluster is at level {}: `stoker cluster level` tells what keeps it \
                 from rising",
                self.level.get()
            );
            return Err(invalid(message));
        }
        for _ in 0..TRIES_MAX {
            let commit = match self.people_plan(&change).await? {
                Planned::Nothing => return self.settled(&change).await,
                Planned::Commit(commit) => commit,
            };
            if let Outcome::Done { seq, .. } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                self.saw(seq);
                return self.settled(&change).await;
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "tenants and users are contended; retry"))
    }

    /// What follows a change that is durable.
    async fn settled(&self, change: &PeopleChange) -> Result<Report> {
        match change {
            // Asked again, it is made if it was not.
            PeopleChange::TenantCreate { tenant } => {
                let volume = full_volume_name(tenant, tenant);
                match self.volumes.create(&volume, VolumeOptions::default()).await {
                    Ok(_) => self.keep_rows().await?,
                    Err(fault) if fault.kind == ErrorKind::Conflict => {}
                    Err(fault) => return Err(fault),
                }
            }
            PeopleChange::UserDelete { .. } => self.keep_rows().await?,
            _ => {}
        }
        Ok(Report::Done)
    }

    async fn people_plan(&self, change: &PeopleChange) -> Result<Planned> {
        let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        match change {
            PeopleChange::TenantCreate { tenant } => {
                let key = keys::tenant(tenant);
                if self.people_row(&key).await?.is_some() {
                    return Ok(Planned::Nothing);
                }
                self.count(keys::TENANTS, TENANTS_MAX, "tenants").await?;
                let row = PlainRow { created_ms: now_ms }.encode();
                Ok(Planned::Commit(Commit::new().check(Check::Absent(key.clone())).put(key, row)))
            }
            PeopleChange::TenantDelete { tenant } => self.plan_tenant_delete(tenant).await,
            PeopleChange::ProjectCreate { tenant, project } => {
                let commit = Commit::new().check(self.tenant_there(tenant).await?);
                let key = keys::project(tenant, project);
                if self.people_row(&key).await?.is_some() {
                    return Ok(Planned::Nothing);
                }
                self.count(keys::PROJECTS, PROJECTS_MAX, "projects").await?;
                let row = PlainRow { created_ms: now_ms }.encode();
                let commit = self.folder_free(commit, tenant, project).await?;
                Ok(Planned::Commit(commit.check(Check::Absent(key.clone())).put(key, row)))
            }
            PeopleChange::ProjectDelete { tenant, project } => {
                let key = keys::project(tenant, project);
                if self.people_row(&key).await?.is_none() {
                    return Err(missing(format!("there is no project `{tenant}/{project}`")));
                }
                let account = AccountName::Project { tenant: tenant.clone(), project: project.clone() };
                let mut commit = forget_account(Commit::new().present(key.clone()).delete(key), &account);
                for (row, user) in self.users_of(tenant).await? {
                    if user.projects.contains(project) {
                        let name = keys::who_behind(keys::USERS, &row.key).unwrap_or_default().to_owned();
                        let message =
                            format!("user `{name}` is in project `{tenant}/{project}`; take them out first");
                        return Err(conflict(message));
                    }
                    commit = commit.seq(row.key, row.seq);
                }
                Ok(Planned::Commit(commit))
            }
            PeopleChange::UserCreate { name, rights } => {
                let mut commit = self.places_there(name, rights).await?;
                let key = keys::user(&name.tenant, &name.user);
                if self.people_row(&key).await?.is_some() {
                    return Err(conflict(format!("user `{name}` exists already")));
                }
                self.count(keys::USERS, USERS_MAX, "users").await?;
                let row = row_of(now_ms, rights, None).encode();
                commit = commit.check(Check::Absent(key.clone())).put(key, row);
                Ok(Planned::Commit(commit))
            }
            PeopleChange::UserSet { name, rights } => {
                let commit = self.places_there(name, rights).await?;
                let (row, user) = self.user_row(name).await?;
                let changed = row_of(user.created_ms, rights, user.token).encode();
                Ok(Planned::Commit(commit.seq(row.key.clone(), row.seq).put(row.key, changed)))
            }
            PeopleChange::UserToken { name, token } => {
                if let Some(token) = token {
                    let people = self.people().await?;
                    let is_taken =
                        |user: &UserInfo| user.token.as_ref().is_some_and(|one| one.id == token.id);
                    if people.users.iter().any(is_taken) {
                        return Err(conflict("another token has this id; make a new one"));
                    }
                }
                let (row, mut user) = self.user_row(name).await?;
                user.token = token.as_ref().map(|token| TokenPart {
                    id: token.id,
                    stored: token.stored,
                    server: token.server,
                });
                Ok(Planned::Commit(Commit::new().seq(row.key.clone(), row.seq).put(row.key, user.encode())))
            }
            PeopleChange::UserDelete { name } => {
                let (row, _) = self.user_row(name).await?;
                let mut commit = Commit::new().seq(row.key.clone(), row.seq).delete(row.key);
                // What they wrote is there, and counts for them if they come back.
                commit = put_limits(commit, &AccountName::User(name.clone()), QuotaLimits::default());
                // A key that outlived its user would work again for the next one of that name.
                let mut owned = Vec::new();
                self.each(b"A".to_vec(), |row| {
                    if split_owner(&StoredKey::access(row)?.prefixes).0.as_ref() == Some(name) {
                        owned.push((row.key.clone(), row.seq));
                    }
                    Ok(())
                })
                .await?;
                for (key, seq) in owned {
                    commit = commit.seq(key.clone(), seq).delete(key);
                }
                Ok(Planned::Commit(commit))
            }
            PeopleChange::Quota { account, limits } => {
                let there = Core::account_there(account);
                let (Check::Present(key) | Check::Absent(key)) = &there else {
                    unreachable!("it is one of the two")
                };
                if self.people_row(key).await?.is_none() {
                    let kind = account.kind();
                    return Err(missing(format!(
                        "there is no {kind} `{account}`; `stoker {kind} list` lists them"
                    )));
                }
                Ok(Planned::Commit(put_limits(Commit::new().check(there), account, *limits)))
            }
        }
    }

    /// Checks that nothing is in the folder of a new project: what is in it before would not be counted.
    async fn folder_free(&self, commit: Commit, tenant: &str, project: &str) -> Result<Commit> {
        let home = full_volume_name(tenant, tenant);
        let Some(row) = self.people_row(&keys::volume(&home)).await? else {
            // Nothing is in a volume that is not there; one that comes meanwhile makes this fail.
            return Ok(commit.absent(keys::volume(&home)));
        };
        let volume = VolumeId(VolumeRow::of(&row).map_err(error::catalog)?.id);
        let folder = [project.as_bytes(), b"/"].concat();
        let entry = keys::entry(volume, ROOT, &folder);
        let sets = keys::open_set(volume, &folder);
        let is_free = self.people_row(&entry).await?.is_none()
            && self.catalog.range(Range::prefix(&sets, 1)).await.map_err(error::catalog)?.rows.is_empty();
        if !is_free {
            return Err(conflict(format!(
                "the folder `{project}/` of volume {home} is there already, and what is in it would not be counted for the project; rename \
                 it, make the project, then move its files into it"
            )));
        }
        let end = stoker_catalog::kv::prefix_end(&sets).expect("a table is not 0xff");
        Ok(commit.seq(row.key, row.seq).absent(entry).at_most(sets, end, 0))
    }

    async fn plan_tenant_delete(&self, tenant: &str) -> Result<Planned> {
        let key = keys::tenant(tenant);
        if self.people_row(&key).await?.is_none() {
            return Err(no_tenant(tenant));
        }
        let parts = [
            ("volumes", keys::volumes_of(tenant)),
            ("users", keys::users(tenant)),
            ("projects", keys::projects(tenant)),
        ];
        let account = AccountName::Tenant(tenant.to_owned());
        let mut commit = forget_account(Commit::new().present(key.clone()).delete(key), &account);
        for (what, prefix) in parts {
            let found = self.catalog.range(Range::prefix(&prefix, 1)).await.map_err(error::catalog)?;
            if !found.rows.is_empty() {
                return Err(conflict(format!("tenant `{tenant}` still has {what}; delete them first")));
            }
            let end = stoker_catalog::kv::prefix_end(&prefix).expect("a prefix is not 0xff");
            commit = commit.at_most(prefix, end, 0);
        }
        Ok(Planned::Commit(commit))
    }

    async fn people_row(&self, key: &[u8]) -> Result<Option<Row>> {
        Ok(self.catalog.get(&[key]).await.map_err(error::catalog)?.pop().flatten())
    }

    async fn user_row(&self, name: &UserName) -> Result<(Row, UserRow)> {
        let key = keys::user(&name.tenant, &name.user);
        let row = self.people_row(&key).await?.ok_or_else(|| no_user(name))?;
        let user = UserRow::of(&row).map_err(error::catalog)?;
        Ok((row, user))
    }

    async fn users_of(&self, tenant: &str) -> Result<Vec<(Row, UserRow)>> {
        let mut users = Vec::new();
        self.each(keys::users(tenant), |row| {
            users.push((row.clone(), UserRow::of(row).map_err(error::catalog)?));
            Ok(())
        })
        .await?;
        Ok(users)
    }

    /// A check that a tenant stays there. The default one always is, and has no row.
    async fn tenant_there(&self, tenant: &str) -> Result<Check> {
        let key = keys::tenant(tenant);
        if tenant == TENANT_DEFAULT {
            return Ok(Check::Absent(key));
        }
        match self.people_row(&key).await? {
            Some(row) => Ok(Check::Value(key, row.value.to_vec())),
            None => Err(no_tenant(tenant)),
        }
    }

    /// Checks that tenant and projects of a user stay there.
    async fn places_there(&self, name: &UserName, rights: &UserRights) -> Result<Commit> {
        let mut commit = Commit::new().check(self.tenant_there(&name.tenant).await?);
        for project in &rights.projects {
            let key = keys::project(&name.tenant, project);
            if self.people_row(&key).await?.is_none() {
                let message = format!(
                    "there is no project `{}/{project}`; `stoker project list` lists them",
                    name.tenant
                );
                return Err(missing(message));
            }
            commit = commit.present(key);
        }
        Ok(commit)
    }

    /// Refuses one more than there may be. Two at the same time may be one too many, which harms nobody.
    async fn count(&self, prefix: &[u8], most: usize, what: &str) -> Result<()> {
        let mut known = 0;
        self.each(prefix.to_vec(), |_| {
            known += 1;
            Ok(())
        })
        .await?;
        match known < most {
            true => Ok(()),
            false => Err(StoreError::new(
                ErrorKind::Full,
                format!("the cluster has {known} {what}, which is the most"),
            )),
        }
    }
}

/// Adds to a transaction that an account is gone, with its quota and what it counted.
fn forget_account(mut commit: Commit, account: &AccountName) -> Commit {
    commit = put_limits(commit, account, QuotaLimits::default());
    commit.writes.extend(account_of(account).usage_deletes());
    commit
}

fn check(change: &PeopleChange) -> Result<()> {
    match change {
        PeopleChange::TenantCreate { tenant } | PeopleChange::TenantDelete { tenant } => {
            check_who_name("tenant", tenant)?;
            if tenant == TENANT_DEFAULT {
                return Err(invalid(format!("tenant `{TENANT_DEFAULT}` is there always")));
            }
        }
        PeopleChange::ProjectCreate { tenant, project } | PeopleChange::ProjectDelete { tenant, project } => {
            check_who_name("tenant", tenant)?;
            check_who_name("project", project)?;
            // Its folder would be in a volume that a bucket of somebody else may be.
            if tenant == TENANT_DEFAULT {
                return Err(invalid(format!(
                    "tenant `{TENANT_DEFAULT}` has no projects; make a tenant for them"
                )));
            }
        }
        PeopleChange::UserCreate { name, rights } | PeopleChange::UserSet { name, rights } => {
            check_name(name)?;
            if rights.projects.len() + rights.prefixes.len() > USER_PLACES_MAX {
                return Err(invalid(format!("a user has at most {USER_PLACES_MAX} projects and prefixes")));
            }
            for project in &rights.projects {
                check_who_name("project", project)?;
            }
            for prefix in &rights.prefixes {
                let (volume, rest) = prefix.split_once('/').unwrap_or((prefix, ""));
                check_bucket_name(volume)?;
                if rest.len() > 1_024 {
                    return Err(invalid("a prefix has at most 1,024 bytes"));
                }
            }
        }
        PeopleChange::UserToken { name, token } => {
            check_name(name)?;
            if token.as_ref().is_some_and(|token| token.id == 0) {
                return Err(invalid("the id of a token is not 0"));
            }
        }
        PeopleChange::UserDelete { name } => check_name(name)?,
        PeopleChange::Quota { account, limits } => check_limits(account, *limits)?,
    }
    Ok(())
}

fn check_name(name: &UserName) -> Result<()> {
    check_who_name("tenant", &name.tenant)?;
    check_who_name("user", &name.user)
}

fn row_of(created_ms: u64, rights: &UserRights, token: Option<TokenPart>) -> UserRow {
    let UserRights { read_only, disabled, projects, prefixes } = rights.clone();
    UserRow { created_ms, read_only, disabled, projects, prefixes, token }
}

fn info(name: UserName, row: UserRow) -> UserInfo {
    let UserRow { created_ms, read_only, disabled, projects, prefixes, token } = row;
    UserInfo {
        name,
        rights: UserRights { read_only, disabled, projects, prefixes },
        created_ms,
        has_token: token.is_some(),
        token: token.map(|TokenPart { id, stored, server }| TokenCheck { id, stored, server }),
    }
}
