//! Who there is, for quick answers.

use std::collections::{HashMap, HashSet};

use stoker_store::{People, TENANT_DEFAULT, TokenCheck, UserInfo, UserName, full_volume_name};

use crate::decide::{Member, Rights, Scope};

/// What an access key leaves of its user's rights.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct KeyRights {
    pub read_only: bool,
    /// With full names of volumes.
    pub prefixes: Vec<String>,
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
        let of_key = key.prefixes.iter().map(|prefix| Scope::parse(prefix)).collect();
        Rights::Member(Member {
            read_only: rights.read_only || key.read_only,
            scopes: vec![own, of_key],
            ..Member::of(tenant)
        })
    }

    /// The user of a token, and what checks it.
    pub fn of_token(&self, id: u32) -> Option<(UserName, TokenCheck)> {
        let user = self.users.get(self.tokens.get(&id)?)?;
        Some((user.name.clone(), user.token.clone()?))
    }
}
