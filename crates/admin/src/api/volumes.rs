//! Calls about volumes and files.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use stoker_access::{AUDIT_FULL, AUDIT_SETTING};
use stoker_store::{
    Condition, DrainPolicy, DrainState, Key, ListEntry, ListRequest, RenameMode, Resolution, VolumeInfo,
    VolumeOptions, VolumePolicy, check_volume_name,
};
use tokio::time::Instant;

use super::given::Given;
use super::shape::plain;
use super::{Answered, Fault, done, shape, store};
use crate::answer::Asked;

/// Pages of a listing that are looked at to tell where the bytes of a volume are.
const TIER_PAGES_MAX: usize = 10;
/// How old that may be: the pages come out of a lake that others write to, too.
const TIERS_AGE_MAX: Duration = Duration::from_secs(15);
/// Files of a page.
const PAGE: usize = 1_000;
/// Files that are deleted by one call.
const DELETES_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeNew {
    name: String,
    #[serde(default)]
    lake: Option<String>,
    #[serde(default)]
    policy: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prefix {
    #[serde(default)]
    prefix: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OneKey {
    key: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    keys: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rename {
    from: String,
    to: String,
    #[serde(default)]
    replace: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resolve {
    key: String,
    resolution: ResolutionName,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ResolutionName {
    Ours,
    Theirs,
    KeepBoth,
}

fn key(given: &Given) -> Result<Key, Fault> {
    Key::new(given.bytes("key").unwrap_or_default()).map_err(Fault::from)
}

/// The name of the volume; one that could be none is not asked for.
fn name(given: &Given) -> Result<&str, Fault> {
    let name = given.text("volume");
    match check_volume_name(name) {
        Ok(()) => Ok(name),
        Err(fault) => Err(Fault::not_found(format!("there is no volume `{name}`"), &fault.message)),
    }
}

pub async fn all(asked: Arc<Asked>, _: Given) -> Answered {
    Ok(json!({ "volumes": plain(&store(&asked)?.volumes().await?) }).into())
}

pub async fn one(asked: Arc<Asked>, given: Given) -> Answered {
    Ok(plain(&store(&asked)?.volume(name(&given)?).await?).into())
}

/// A policy with some fields changed. A field that is none is named.
fn changed(policy: &VolumePolicy, change: Map<String, Value>) -> Result<VolumePolicy, Fault> {
    let mut value = plain(policy);
    for (name, new) in change {
        let Some(field) = value.get_mut(&name) else {
            let known = plain(policy);
            let known: Vec<&str> =
                known.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            let known = known.join(", ");
            return Err(Fault::invalid(format!("a volume has no `{name}`; it has: {known}")));
        };
        *field = new;
    }
    let policy: VolumePolicy = serde_json::from_value(value)
        .map_err(|error| Fault::invalid(format!("the policy does not fit: {error}")))?;
    if policy.drain == DrainPolicy::Every(0) {
        return Err(Fault::invalid("`every` is at least 1"));
    }
    Ok(policy)
}

pub async fn create(asked: Arc<Asked>, given: Given) -> Answered {
    let VolumeNew { name, lake, policy } = given.body()?;
    check_volume_name(&name)?;
    // What cannot be is refused before anything is made.
    changed(&VolumePolicy::default(), policy.clone())?;
    let store = store(&asked)?;
    let made = store.volume_create(&name, VolumeOptions { lake, policy: None }).await?;
    if policy.is_empty() {
        return Ok(plain(&made).into());
    }
    let set = match changed(&made.policy, policy) {
        Ok(policy) => store.volume_set(&name, policy).await.map_err(Fault::from),
        Err(fault) => Err(fault),
    };
    match set {
        Ok(set) => Ok(plain(&set).into()),
        Err(fault) => {
            // Nothing is in it yet: the half-made volume goes away again.
            let _ = store.volume_delete(&name).await;
            Err(fault)
        }
    }
}

pub async fn set_policy(asked: Arc<Asked>, given: Given) -> Answered {
    let change: Map<String, Value> = given.body()?;
    if change.is_empty() {
        return Err(Fault::invalid("nothing to change: name at least one field"));
    }
    let (store, name) = (store(&asked)?, name(&given)?);
    let policy = changed(&store.volume(name).await?.policy, change)?;
    Ok(plain(&store.volume_set(name, policy).await?).into())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Audit {
    level: AuditLevel,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum AuditLevel {
    Changes,
    Full,
}

/// Whether every read of a volume has a line in the audit log.
pub async fn audit(asked: Arc<Asked>, given: Given) -> Answered {
    let set = store(&asked)?.volume_setting(name(&given)?, AUDIT_SETTING).await?;
    let is_full = set.is_some_and(|level| level == AUDIT_FULL);
    Ok(json!({ "level": if is_full { "full" } else { "changes" } }).into())
}

pub async fn set_audit(asked: Arc<Asked>, given: Given) -> Answered {
    let Audit { level } = given.body()?;
    let document = (level == AuditLevel::Full).then(|| AUDIT_FULL.to_vec());
    store(&asked)?.set_volume_setting(name(&given)?, AUDIT_SETTING, document).await?;
    done()
}

pub async fn remove(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    store(&asked)?.volume_delete(name(&given)?).await?;
    done()
}

pub async fn files(asked: Arc<Asked>, given: Given) -> Answered {
    let request = ListRequest {
        prefix: given.bytes("prefix").unwrap_or_default().to_vec(),
        delimiter: (!given.flag("all")).then(|| b"/".to_vec()),
        after: given.bytes("after").filter(|after| !after.is_empty()).map(<[u8]>::to_vec),
        limit: given.number("limit").unwrap_or(100) as usize,
    };
    let page = store(&asked)?.list(name(&given)?, request).await?;
    let entry = |entry: &ListEntry| match entry {
        ListEntry::File(info) => shape::file(info),
        ListEntry::Prefix(prefix) => shape::prefix(prefix),
    };
    Ok(json!({ "entries": page.entries.iter().map(entry).collect::<Vec<_>>(), "more": page.more }).into())
}

pub async fn stat(asked: Arc<Asked>, given: Given) -> Answered {
    Ok(shape::file(&store(&asked)?.stat(name(&given)?, &key(&given)?).await?).into())
}

pub async fn explain(asked: Arc<Asked>, given: Given) -> Answered {
    Ok(shape::explanation(&store(&asked)?.explain(name(&given)?, &key(&given)?).await?).into())
}

pub async fn receipt(asked: Arc<Asked>, given: Given) -> Answered {
    Ok(shape::receipt(&store(&asked)?.receipt(name(&given)?, &key(&given)?).await?).into())
}

/// Files and bytes in one state.
#[derive(Default)]
struct Sum {
    files: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }

    fn value(&self) -> Value {
        json!({ "files": self.files, "bytes": self.bytes })
    }
}

pub async fn tiers(asked: Arc<Asked>, given: Given) -> Answered {
    let (store, name) = (store(&asked)?, name(&given)?);
    let volume: VolumeInfo = store.volume(name).await?;
    // By its number: a volume that was made anew under a name is another one.
    let kept = format!("tiers {}", volume.id);
    if let Some(value) = asked.recent.get(&kept, TIERS_AGE_MAX, Instant::now()) {
        return Ok(value.into());
    }
    let (mut dirty, mut clean, mut never, mut conflict) =
        (Sum::default(), Sum::default(), Sum::default(), Sum::default());
    let (mut after, mut is_whole) = (None, false);
    for _ in 0..TIER_PAGES_MAX {
        let request = ListRequest { after, limit: PAGE, ..ListRequest::default() };
        let page = store.list(name, request).await?;
        for entry in &page.entries {
            let ListEntry::File(info) = entry else { continue };
            match info.drain {
                DrainState::Dirty => dirty.add(info.size),
                DrainState::Clean => clean.add(info.size),
                DrainState::Never => never.add(info.size),
                DrainState::Conflict => conflict.add(info.size),
            }
        }
        after = page.entries.last().map(|entry| entry.name().to_vec());
        if !page.more || after.is_none() {
            is_whole = true;
            break;
        }
    }
    let value = json!({
        "files": volume.files,
        "bytes": volume.bytes,
        "dirty": dirty.value(),
        "clean": clean.value(),
        "never": never.value(),
        "conflict": conflict.value(),
        "at_least": !is_whole,
    });
    asked.recent.put(kept, value.clone(), Instant::now());
    Ok(value.into())
}

pub async fn drain(asked: Arc<Asked>, given: Given) -> Answered {
    let Prefix { prefix } = given.body()?;
    let files = store(&asked)?.drain(name(&given)?, prefix.as_bytes()).await?;
    Ok(json!({ "files": files }).into())
}

pub async fn stage(asked: Arc<Asked>, given: Given) -> Answered {
    let OneKey { key } = given.body()?;
    let bytes = store(&asked)?.stage(name(&given)?, &Key::new(key)?).await?;
    Ok(json!({ "bytes": bytes }).into())
}

pub async fn delete(asked: Arc<Asked>, given: Given) -> Answered {
    let Keys { keys } = given.body()?;
    if keys.is_empty() || keys.len() > DELETES_MAX {
        return Err(Fault::invalid(format!("`keys` has 1 to {DELETES_MAX} keys")));
    }
    let wanted: Result<Vec<(Key, Condition)>, Fault> =
        keys.iter().map(|key| Ok((Key::new(key.as_str())?, Condition::default()))).collect();
    let answers = store(&asked)?.delete(name(&given)?, wanted?).await?;
    let one = |(key, answer): (&String, Result<bool, stoker_store::StoreError>)| match answer {
        Ok(was_there) => json!({ "key": key, "was_there": was_there, "error": null }),
        Err(error) => json!({ "key": key, "was_there": null, "error": error.message }),
    };
    Ok(json!({ "files": keys.iter().zip(answers).map(one).collect::<Vec<_>>() }).into())
}

pub async fn rename(asked: Arc<Asked>, given: Given) -> Answered {
    let Rename { from, to, replace } = given.body()?;
    let mode = if replace { RenameMode::Replace } else { RenameMode::NoReplace };
    store(&asked)?.rename(name(&given)?, &Key::new(from)?, &Key::new(to)?, mode).await?;
    done()
}

pub async fn conflicts(asked: Arc<Asked>, given: Given) -> Answered {
    let list = store(&asked)?.conflicts(given.some_text("volume")).await?;
    Ok(json!({ "conflicts": list.iter().map(shape::conflict).collect::<Vec<_>>() }).into())
}

pub async fn resolve(asked: Arc<Asked>, given: Given) -> Answered {
    let Resolve { key, resolution } = given.body()?;
    let resolution = match resolution {
        ResolutionName::Ours => Resolution::Ours,
        ResolutionName::Theirs => Resolution::Theirs,
        ResolutionName::KeepBoth => Resolution::KeepBoth,
    };
    store(&asked)?.conflict_resolve(name(&given)?, &Key::new(key)?, resolution).await?;
    done()
}
