//! What counts for whom: volumes, tenants, projects and users, and their quotas. (D180)
//!
//! Whatever changes the files of a volume counts them in the same transaction, and what grows is checked there: of two publishes that together
//! would be too much, one is refused. Which accounts a change is about:
//!
//! | account | its files |
//! |---|---|
//! | volume | all in it ([`usage`](super::usage)) |
//! | tenant | all in volumes whose names say so; the default tenant has no such account |
//! | project | those in the folder of its name, in the volume that is called as its tenant |
//! | user | those that they wrote last; the row of the file says who that was |
//!
//! A project counts from its beginning, when its folder is not there yet; every change in a folder checks that it is, or still is not, a
//! project. So files move between projects one by one, and directories do not.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use stoker_format::{VolumeId, crc32c, past_parts};

use super::usage::total;
use super::{Names, Refusal, Usage};
use crate::rows::{FileRow, QuotaRow, RowValue, keys};
use stoker_catalog::kv::{Check, Commit, Outcome, Range, Write, prefix_end};
use stoker_catalog::{Catalog, CatalogError, Result};

/// Rows of one counter of an account. Fewer than of a volume, as every change that a quota limits reads all of them.
const PARTS: u8 = 16;
/// No project has a longer name.
const TOP_LEN_MAX: usize = 64;
/// Stands between tenant and name of a volume.
const TENANT_MARK: char = '_';
/// Rows of counters that are read at once.
const ROWS_AT_ONCE: usize = 4_096;
/// Names of volumes that are remembered.
const NAMES_MAX: usize = 16_384;

/// Whose files are counted together, besides volumes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Account {
    /// A tenant.
    Tenant(String),
    /// A project, as `tenant/project`.
    Project(String),
    /// A user, as `tenant/user`.
    User(String),
}

impl Account {
    /// Tells it from all others.
    pub fn id(&self) -> Vec<u8> {
        let (kind, name) = match self {
            Account::Tenant(name) => (b"t/", name),
            Account::Project(name) => (b"p/", name),
            Account::User(name) => (b"u/", name),
        };
        [&kind[..], name.as_bytes()].concat()
    }

    /// The row of its quota.
    pub fn quota_key(&self) -> Vec<u8> {
        keys::quota(&self.id())
    }

    /// What removes its counters.
    pub fn usage_deletes(&self) -> impl Iterator<Item = Write> {
        let id = self.id();
        [keys::account_files(&id), keys::account_bytes(&id)]
            .into_iter()
            .map(|counter| super::change::range_delete(&counter))
    }

    fn adds(&self, change: &mut Commit, part: u8, delta: Delta) {
        let id = self.id();
        for (counter, more) in
            [(keys::account_files(&id), delta.files), (keys::account_bytes(&id), delta.bytes)]
        {
            if more != 0 {
                change.writes.push(Write::Add(keys::counter_part(&counter, part), more));
            }
        }
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Account::Tenant(name) => write!(f, "tenant `{name}`"),
            Account::Project(name) => write!(f, "project `{name}`"),
            Account::User(name) => write!(f, "user `{name}`"),
        }
    }
}

/// What an account holds now.
pub async fn account_usage(catalog: &dyn Catalog, account: &Account) -> Result<Usage> {
    let id = account.id();
    let files = total(catalog, &keys::account_files(&id)).await?;
    let bytes = total(catalog, &keys::account_bytes(&id)).await?;
    Ok(Usage { files, bytes })
}

/// What all accounts hold now, by [`Account::id`].
pub async fn account_usages(catalog: &dyn Catalog) -> Result<HashMap<Vec<u8>, Usage>> {
    let mut sums: HashMap<Vec<u8>, Delta> = HashMap::new();
    let mut range = Range::prefix(keys::ACCOUNTS, ROWS_AT_ONCE);
    loop {
        let page = catalog.range(range.clone()).await?;
        for row in &page.rows {
            let Some((is_bytes, id)) = keys::account_behind(&row.key) else { continue };
            let value = row.value[..].try_into().map(i64::from_le_bytes);
            let value =
                value.map_err(|_| CatalogError::corrupt("a counter of an account is not a number"))?;
            let sum = sums.entry(id.to_vec()).or_default();
            let part = if is_bytes { &mut sum.bytes } else { &mut sum.files };
            *part = part.saturating_add(value);
        }
        match page.rows.last() {
            Some(last) if page.more => range = range.after(&last.key),
            _ => break,
        }
    }
    let usage = |sum: Delta| Usage { files: sum.files.max(0) as u64, bytes: sum.bytes.max(0) as u64 };
    Ok(sums.into_iter().map(|(id, sum)| (id, usage(sum))).collect())
}

/// A change that a quota does not allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exceeded {
    /// Whose quota; none for that of the volume.
    pub account: Option<Account>,
    /// Its limit of bytes does not allow it, and otherwise that of files.
    pub is_bytes: bool,
    /// The limit.
    pub limit: u64,
}

/// Says that quotas hold for a change, and how many bytes its volume may have; 0 for any number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quota {
    /// Of the volume.
    pub volume_bytes: u64,
}

/// Which user the bytes of a file count for, as `tenant/user`: properties say so, which are not looked into here.
pub type ChargedTo = fn(&FileRow) -> Option<String>;

/// What volumes are called. A number is never given to another volume.
#[derive(Clone, Default)]
pub(super) struct VolumeNames(Arc<RwLock<HashMap<u32, Arc<str>>>>);

/// More or less of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Delta {
    files: i64,
    bytes: i64,
}

impl Delta {
    fn plus(&mut self, files: i64, bytes: i64) {
        self.files += files;
        self.bytes += bytes;
    }
}

/// Where the files of a change are, for what the change itself does not say.
pub(super) struct Counted<'k> {
    volume: VolumeId,
    key: &'k [u8],
    moved: Vec<(Vec<u8>, Delta)>,
    quota: Option<Quota>,
}

impl<'k> Counted<'k> {
    /// Everything that the change adds and takes away is at, or below, this key.
    pub fn at(volume: VolumeId, key: &'k [u8]) -> Counted<'k> {
        // A former version counts where its key is.
        let key = past_parts(key).map_or(key, |(key, _)| key);
        Counted { volume, key, moved: Vec::new(), quota: None }
    }

    /// Quotas hold.
    pub fn limited(mut self, quota: Option<Quota>) -> Counted<'k> {
        self.quota = quota;
        self
    }

    /// So much of it is at another key.
    pub fn elsewhere(&mut self, key: Vec<u8>, files: i64, bytes: i64) {
        self.moved.push((key, Delta { files, bytes }));
    }
}

/// A limit that a change has to keep: whose, of what, and the check for it.
struct Limit {
    exceeded: Exceeded,
    check: Check,
}

/// All that a change has to keep.
struct Limits {
    limits: Vec<Limit>,
    has_soft_limit: bool,
}

/// A change that was made.
pub(super) struct Done {
    /// Commit.
    pub seq: u64,
    /// Somebody whose files it makes more has a soft limit.
    pub has_soft_limit: bool,
}

fn limit(
    account: Option<&Account>,
    is_bytes: bool,
    counter: Vec<u8>,
    limit: u64,
    more: i64,
) -> Option<Limit> {
    if limit == 0 || more <= 0 {
        return None;
    }
    let end = prefix_end(&counter).expect("counters are not 0xff");
    let max = i64::try_from(limit).unwrap_or(i64::MAX).saturating_sub(more);
    let exceeded = Exceeded { account: account.cloned(), is_bytes, limit };
    Some(Limit { exceeded, check: Check::SumAtMost { start: counter, end, max } })
}

/// The folder of the highest level that a key is in.
fn top(key: &[u8]) -> Option<&str> {
    let slash = key.iter().position(|byte| *byte == b'/')?;
    std::str::from_utf8(&key[..slash]).ok().filter(|name| (1..=TOP_LEN_MAX).contains(&name.len()))
}

impl Names {
    /// Counts that a file takes the place of another, or of none, or goes.
    pub(super) fn charge(
        &self,
        change: &mut Commit,
        volume: VolumeId,
        old: Option<&FileRow>,
        new: Option<&FileRow>,
    ) {
        let Some(at) = new.or(old) else { return };
        let version = at.version();
        let size = |file: Option<&FileRow>| file.map_or(0, |file| file.size as i64);
        let files = i64::from(new.is_some()) - i64::from(old.is_some());
        super::usage::usage_adds(change, volume, version, files, size(new) - size(old));
        let part = (crc32c(&version.0) % u32::from(PARTS)) as u8;
        let [was, is] = [old, new].map(|file| file.and_then(|file| (self.charged)(file)));
        let mut users: BTreeMap<String, Delta> = BTreeMap::new();
        if let Some(was) = was {
            users.entry(was).or_default().plus(-1, -size(old));
        }
        if let Some(is) = is {
            users.entry(is).or_default().plus(1, size(new));
        }
        users.into_iter().for_each(|(user, delta)| Account::User(user).adds(change, part, delta));
    }

    /// Tries a change of files whose first checks are guards, with all that it counts for and the quotas that it has to keep; says whether it was
    /// done.
    pub(super) async fn attempt_counted(
        &self,
        guards: &[Check],
        mut change: Commit,
        counted: Counted<'_>,
    ) -> std::result::Result<Option<Done>, Refusal> {
        let Limits { limits, has_soft_limit } = self.account(&mut change, counted).await?;
        let checks = guards.iter().chain(limits.iter().map(|limit| &limit.check));
        change.checks.splice(0..0, checks.cloned().collect::<Vec<_>>());
        match self.catalog.commit(change).await? {
            Outcome::Done { seq } => Ok(Some(Done { seq, has_soft_limit })),
            Outcome::Failed { check } if check < guards.len() => Err(Refusal::Guard(check)),
            Outcome::Failed { check } => match limits.into_iter().nth(check - guards.len()) {
                Some(limit) => Err(Refusal::Quota(limit.exceeded)),
                None => Ok(None),
            },
        }
    }

    /// Adds to a change what it does to tenants and projects. Gives the limits that it has to keep.
    async fn account(&self, change: &mut Commit, counted: Counted<'_>) -> Result<Limits> {
        let Counted { volume, key, moved, quota } = counted;
        let grown = grown(change, volume);
        let mut accounts: BTreeMap<Account, Delta> = BTreeMap::new();
        let name = match grown.volume == Delta::default() && moved.is_empty() {
            true => None,
            false => self.volume_name(volume).await?,
        };
        let of_tenant = name.as_deref().and_then(|name| name.split_once(TENANT_MARK));
        if let Some((tenant, own)) = of_tenant.filter(|(tenant, _)| !tenant.is_empty()) {
            accounts.insert(Account::Tenant(tenant.to_owned()), grown.volume);
            if tenant == own {
                let here = moved.iter().fold(grown.volume, |mut here, (_, there)| {
                    here.plus(-there.files, -there.bytes);
                    here
                });
                let places = moved.iter().map(|(key, delta)| (key.as_slice(), *delta));
                for (key, delta) in places.chain([(key, here)]) {
                    if let Some(top) = top(key) {
                        let account = Account::Project(format!("{tenant}/{top}"));
                        accounts.entry(account).or_default().plus(delta.files, delta.bytes);
                    }
                }
            }
        }
        accounts.retain(|_, delta| *delta != Delta::default());
        let (mut limits, mut has_soft_limit) = (Vec::new(), false);
        if let Some(quota) = quota {
            limits.extend(limit(None, true, keys::bytes(volume), quota.volume_bytes, grown.volume.bytes));
        }
        let users = grown.users.into_iter().map(|(user, delta)| (Account::User(user), delta));
        let all: Vec<(Account, Delta)> = accounts.into_iter().chain(users).collect();
        let is_limited = |delta: &Delta| quota.is_some() && (delta.files > 0 || delta.bytes > 0);
        let asked: Vec<Vec<u8>> = all
            .iter()
            .flat_map(|(account, delta)| {
                let project = match account {
                    Account::Project(name) => Some([keys::PROJECTS, name.as_bytes()].concat()),
                    Account::Tenant(_) | Account::User(_) => None,
                };
                project.into_iter().chain(is_limited(delta).then(|| account.quota_key()))
            })
            .collect();
        if asked.is_empty() && all.is_empty() {
            return Ok(Limits { limits, has_soft_limit });
        }
        let asked_refs: Vec<&[u8]> = asked.iter().map(Vec::as_slice).collect();
        let found = match asked.is_empty() {
            true => Vec::new(),
            false => self.catalog.get(&asked_refs).await?,
        };
        let mut found = asked.iter().zip(found);
        let part = (crc32c(key) % u32::from(PARTS)) as u8;
        for (account, delta) in all {
            if let Account::Project(_) = account {
                let (row_key, row) = found.next().expect("asked above");
                let is_project = row.is_some();
                // Whether it is one decides what is counted.
                change.checks.push(match is_project {
                    true => Check::Present(row_key.clone()),
                    false => Check::Absent(row_key.clone()),
                });
                if is_project {
                    account.adds(change, part, delta);
                }
            }
            if let Account::Tenant(_) = account {
                account.adds(change, part, delta);
            }
            if is_limited(&delta)
                && let Some(row) = found.next().expect("asked above").1
            {
                let row = QuotaRow::of(&row)?;
                has_soft_limit |= row.soft_bytes > 0 || row.soft_files > 0;
                let id = account.id();
                let account = Some(&account);
                limits.extend(limit(account, true, keys::account_bytes(&id), row.bytes, delta.bytes));
                limits.extend(limit(account, false, keys::account_files(&id), row.files, delta.files));
            }
        }
        Ok(Limits { limits, has_soft_limit })
    }

    /// The quota of a tenant, a project or a user that does not allow so many bytes more at a key, as far as can be told before they are
    /// published.
    pub async fn check_room(
        &self,
        volume: VolumeId,
        key: &[u8],
        user: Option<String>,
        bytes: u64,
    ) -> Result<Option<Exceeded>> {
        let mut accounts: Vec<Account> = user.map(Account::User).into_iter().collect();
        if let Some(name) = self.volume_name(volume).await?
            && let Some((tenant, own)) = name.split_once(TENANT_MARK)
        {
            accounts.push(Account::Tenant(tenant.to_owned()));
            let project = top(key).filter(|_| tenant == own);
            accounts.extend(project.map(|top| Account::Project(format!("{tenant}/{top}"))));
        }
        let asked: Vec<Vec<u8>> = accounts.iter().map(Account::quota_key).collect();
        let asked: Vec<&[u8]> = asked.iter().map(Vec::as_slice).collect();
        if asked.is_empty() {
            return Ok(None);
        }
        for (account, row) in accounts.iter().zip(self.catalog.get(&asked).await?) {
            let Some(row) = row.as_ref().map(QuotaRow::of).transpose()? else { continue };
            let used = account_usage(&*self.catalog, account).await?;
            for (is_bytes, limit, after) in [
                (true, row.bytes, used.bytes.saturating_add(bytes)),
                // What is there already may be replaced.
                (false, row.files, used.files),
            ] {
                if limit > 0 && after > limit {
                    return Ok(Some(Exceeded { account: Some(account.clone()), is_bytes, limit }));
                }
            }
        }
        Ok(None)
    }

    /// Checks that a directory which moves from one key to the other is counted in no project, and will not be. It is not known what is in it.
    pub(super) async fn check_apart(
        &self,
        change: &mut Commit,
        volume: VolumeId,
        one: &[u8],
        other: &[u8],
    ) -> std::result::Result<(), Refusal> {
        if top(one) == top(other) {
            return Ok(());
        }
        let Some(name) = self.volume_name(volume).await? else { return Ok(()) };
        let Some((tenant, own)) = name.split_once(TENANT_MARK) else { return Ok(()) };
        if tenant != own {
            return Ok(());
        }
        for top in [top(one), top(other)].into_iter().flatten() {
            let row_key = keys::project(tenant, top);
            if self.catalog.get(&[&row_key]).await?.pop().flatten().is_some() {
                return Err(Refusal::Apart);
            }
            change.checks.push(Check::Absent(row_key));
        }
        Ok(())
    }

    /// Whether projects can be folders of this volume.
    pub(super) async fn is_home(&self, volume: VolumeId) -> Result<bool> {
        let name = self.volume_name(volume).await?;
        Ok(name.is_some_and(|name| name.split_once(TENANT_MARK).is_some_and(|(tenant, own)| tenant == own)))
    }

    async fn volume_name(&self, volume: VolumeId) -> Result<Option<Arc<str>>> {
        let known =
            self.volume_names.0.read().unwrap_or_else(PoisonError::into_inner).get(&volume.0).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let Some(row) = self.catalog.get(&[&keys::volume_id(volume)]).await?.pop().flatten() else {
            return Ok(None);
        };
        let name = std::str::from_utf8(&row.value);
        let name: Arc<str> = name.map_err(|_| CatalogError::corrupt("a volume's name is not text"))?.into();
        let mut names = self.volume_names.0.write().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= NAMES_MAX {
            names.clear();
        }
        names.insert(volume.0, name.clone());
        Ok(Some(name))
    }
}

/// What a change adds to its volume and to users.
struct Grown {
    volume: Delta,
    users: BTreeMap<String, Delta>,
}

fn grown(change: &Commit, volume: VolumeId) -> Grown {
    let (files, bytes) = (keys::files(volume), keys::bytes(volume));
    let mut grown = Grown { volume: Delta::default(), users: BTreeMap::new() };
    for write in &change.writes {
        let Write::Add(key, more) = write else { continue };
        if key.starts_with(&files) {
            grown.volume.files += more;
        } else if key.starts_with(&bytes) {
            grown.volume.bytes += more;
        } else if let Some((is_bytes, id)) = keys::account_behind(key)
            && let Some(user) = id.strip_prefix(b"u/").and_then(|user| std::str::from_utf8(user).ok())
        {
            let delta = grown.users.entry(user.to_owned()).or_default();
            *if is_bytes { &mut delta.bytes } else { &mut delta.files } += more;
        }
    }
    grown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_folder_of_a_key() {
        for (key, expect) in [
            (&b"vision/a/b"[..], Some("vision")),
            (b"vision/", Some("vision")),
            (b"vision", None),
            (b"", None),
            (b"/a", None),
            (b"\xff/a", None),
        ] {
            assert_eq!(top(key), expect, "{key:?}");
        }
    }

    #[test]
    fn counters_of_accounts_are_told_apart() {
        let accounts = [
            Account::Tenant("acme".into()),
            Account::Tenant("acmes".into()),
            Account::Project("acme/vision".into()),
            Account::User("acme/vision".into()),
        ];
        for (at, account) in accounts.iter().enumerate() {
            let part = keys::counter_part(&keys::account_bytes(&account.id()), 255);
            assert_eq!(keys::account_behind(&part), Some((true, &account.id()[..])));
            for (other_at, other) in accounts.iter().enumerate() {
                let is_in = part.starts_with(&keys::account_bytes(&other.id()));
                assert_eq!(is_in, at == other_at, "{account} {other}");
            }
        }
        assert_eq!(keys::account_behind(&keys::counter_part(&keys::bytes(VolumeId(7)), 3)), None);
    }
}
