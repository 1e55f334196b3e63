//! Who there is, for quick answers.

use std::collections::{HashMap, HashSet};

use stoker_store::{People, TENANT_DEFAULT, TokenCheck, UserInfo, UserName, full_volume_name};

use crate::decide::{Member, Rights, Scope};

/// What an access key leaves of its user's rights.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct KeyRights {
    pub read_only: bool,
    /// Lists of places, with full names of volumes. One of each list has to cover what is asked for; an empty list covers everything.
    pub places: Vec<Vec<String>>,
    /// When their user was made, if that counts: another one who got the name later is somebody else.
    pub user_created_ms: Option<u64>,
}

impl KeyRights {
    /// Its places, to be decided by.
    pub fn scopes(&self) -> impl Iterator<Item = Vec<Scope>> + '_ {
        self.places.iter().map(|list| list.iter().map(|place| Scope::parse(place)).collect())
    }
}

/// Everybody, as the cluster knew them a moment ago.
#[derive(Default)]
pub(crate) struct Members {
    tenants: HashSet<String>,
    users: HashMap<UserName, UserInfo>,
    tokens: HashMap<u32, UserName>,
}

impl Members {
    pub fn of(people: People) -> Members {
        let tokens =
            people.users.iter().filter_map(|user| Some((user.token.as_ref()?.id, user.name.clone())));
        Members {
            tokens: tokens.collect(),
            tenants: people.tenants.into_iter().map(|tenant| tenant.name).collect(),
            users: people.users.into_iter().map(|user| (user.name.clone(), user)).collect(),
        }
    }

    /// What a user may do, by a key if they came by one. Whoever is not known may do nothing.
    pub fn rights(&self, name: &UserName, key: &KeyRights) -> Rights {
        let is_tenant = name.tenant == TENANT_DEFAULT || self.tenants.contains(&name.tenant);
        let Some(user) = self.users.get(name).filter(|user| is_tenant && !user.rights.disabled) else {
            return Rights::Nobody;
        };
        let rights = &user.rights;
        let tenant = &name.tenant;
        let home = full_volume_name(tenant, tenant);
        let projects = rights.projects.iter().map(|project| Scope::parse(&format!("{home}/{project}/")));
        let prefixes = rights.prefixes.iter().map(|prefix| Scope::parse(&full_volume_name(tenant, prefix)));
        let own = projects.chain(prefixes).collect();
        if key.user_created_ms.is_some_and(|created_ms| created_ms != user.created_ms) {
            return Rights::Nobody;
        }
        Rights::Member(Member {
            read_only: rights.read_only || key.read_only,
            scopes: std::iter::once(own).chain(key.scopes()).collect(),
            ..Member::of(tenant)
        })
    }

    /// When a user was made; none if there is no such user, or if they are kept out.
    pub fn created_ms(&self, name: &UserName) -> Option<u64> {
        match self.rights(name, &KeyRights::default()) {
            Rights::Nobody => None,
            _ => self.users.get(name).map(|user| user.created_ms),
        }
    }

    /// The user of a token, and what checks it.
    pub fn of_token(&self, id: u32) -> Option<(UserName, TokenCheck)> {
        let user = self.users.get(self.tokens.get(&id)?)?;
        Some((user.name.clone(), user.token.clone()?))
    }
}
