//! What operators do with lakes that have names.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stoker_catalog::kv::{Check, Commit, Outcome, Row};
use stoker_lake::{
    Attributes, Condition, Lake, LakeError, LakeErrorKind, LakeOptions, PartTag, Place, PutOptions,
    RetryOptions,
};
use stoker_schema::rows::{TIERS_SINCE, tier_keys};
use stoker_store::{
    ErrorKind, LAKE_LABELS_MAX, LAKE_TEXT_LEN_MAX, LAKES_MAX, LakeChange, LakeInfo, LakeTrial, Result,
    StoreError, Subject, check_lake_name,
};
use tokio::time::Instant;

use super::named::{Form, Named, parse};
use crate::core::Core;
use crate::{clock, error};

/// Tries of a transaction that others were quicker with.
const TRIES_MAX: usize = 32;

/// A trial waits so long for each answer.
const TRIAL_MS_MAX: u64 = 15_000;

/// Bytes of a trial's small object, and of the first part of its large one.
const SMALL: usize = 64 << 10;
const PART: usize = 5 << 20;

fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::about(ErrorKind::Invalid, Subject::Lake, message)
}

fn unknown(name: &str) -> StoreError {
    let message = format!("there is no lake `{name}`; `stoker lake ls` lists them");
    StoreError::about(ErrorKind::NotFound, Subject::Lake, message)
}

fn contended() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "lakes are contended; try again")
}

/// Sets a text; an empty one takes it away.
fn text(field: &mut Option<String>, change: Option<String>) {
    if let Some(text) = change {
        *field = Some(text).filter(|text| !text.is_empty());
    }
}

/// Changes everything but the secret.
fn apply(info: &mut LakeInfo, change: &LakeChange) -> Result<()> {
    let change = change.clone();
    if let Some(url) = change.url {
        info.url = url;
    }
    text(&mut info.endpoint, change.endpoint);
    text(&mut info.region, change.region);
    text(&mut info.access_key_id, change.access_key_id);
    text(&mut info.storage_class, change.storage_class);
    info.path_style = change.path_style.or(info.path_style);
    let cost = &mut info.cost;
    cost.gb_month = change.gb_month.unwrap_or(cost.gb_month);
    cost.writes_1000 = change.writes_1000.unwrap_or(cost.writes_1000);
    cost.reads_1000 = change.reads_1000.unwrap_or(cost.reads_1000);
    cost.gb_read = change.gb_read.unwrap_or(cost.gb_read);
    info.requests_per_s = change.requests_per_s.unwrap_or(info.requests_per_s);
    info.bytes_per_s = change.bytes_per_s.unwrap_or(info.bytes_per_s);
    for (name, value) in change.labels {
        match value.is_empty() {
            true => drop(info.labels.remove(&name)),
            false => drop(info.labels.insert(name, value)),
        }
    }
    check(info)
}

fn check(info: &LakeInfo) -> Result<()> {
    let mut texts = vec![&info.url];
    texts.extend(
        [&info.endpoint, &info.region, &info.access_key_id, &info.storage_class].into_iter().flatten(),
    );
    texts.extend(info.labels.iter().flat_map(|(name, value)| [name, value]));
    if texts.iter().any(|text| text.len() > LAKE_TEXT_LEN_MAX || text.chars().any(char::is_control)) {
        return Err(invalid(format!(
            "settings of a lake are texts of at most {LAKE_TEXT_LEN_MAX} bytes without control characters"
        )));
    }
    if info.labels.len() > LAKE_LABELS_MAX || info.labels.contains_key("") {
        return Err(invalid(format!("a lake has at most {LAKE_LABELS_MAX} labels, each with a name")));
    }
    if info.url.is_empty() {
        return Err(invalid("a lake has a url: s3://bucket/prefix, gs://, az://, file:///directory"));
    }
    Ok(())
}

/// Opens it as it would be used, with little patience.
async fn open_once(named: &Named, base: &LakeOptions) -> stoker_lake::Result<Arc<dyn Lake>> {
    let mut options = LakeOptions { create_root: true, ..named.options(base) };
    options.retry = RetryOptions { tries_max: 1, request_ms_max: TRIAL_MS_MAX, ..options.retry };
    stoker_lake::open(&named.info.url, &options).await
}

impl Core {
    fn check_level(&self) -> Result<()> {
        if self.level.get() >= TIERS_SINCE {
            return Ok(());
        }
        let message = format!(
            "the cluster is at level {}, and lakes with names need level {TIERS_SINCE}: run this release on all of its nodes, and let the \
             level rise; `stoker cluster level` says what keeps it",
            self.level.get()
        );
        Err(StoreError::new(ErrorKind::Invalid, message))
    }

    async fn lake_forms(&self) -> Result<Vec<(Row, Form)>> {
        let mut forms = Vec::new();
        self.each(tier_keys::LAKES.to_vec(), |row| {
            match Form::of(row) {
                Ok(form) => forms.push((row.clone(), form)),
                // One that cannot be read stops no other.
                Err(fault) => tracing::warn!("{}", fault.message),
            }
            Ok(())
        })
        .await?;
        Ok(forms)
    }

    async fn lake_form(&self, name: &str) -> Result<(Row, Form)> {
        let row = self.catalog.get(&[&tier_keys::lake(name)]).await.map_err(error::catalog)?.pop().flatten();
        let row = row.ok_or_else(|| unknown(name))?;
        let form = Form::of(&row)?;
        Ok((row, form))
    }

    /// Every lake with a name, and who uses it.
    pub(super) async fn lakes(&self) -> Result<Vec<LakeInfo>> {
        let mut lakes: Vec<LakeInfo> =
            self.lake_forms().await?.into_iter().map(|(_, form)| form.info).collect();
        for volume in self.volumes.all_and_leaving().await? {
            let second = volume.replica.as_ref().map(|replica| replica.other().to_owned());
            for (place, is_second) in [(volume.lake_url.clone(), false), (second, true)] {
                let name = place.as_deref().and_then(parse).map(|(name, _)| name.to_owned());
                let Some(lake) = lakes.iter_mut().find(|lake| Some(&lake.name) == name.as_ref()) else {
                    continue;
                };
                let users = if is_second { &mut lake.replica_of } else { &mut lake.volumes };
                users.push(volume.name.clone());
            }
        }
        Ok(lakes)
    }

    async fn lake_info(&self, name: &str) -> Result<LakeInfo> {
        self.lakes().await?.into_iter().find(|lake| lake.name == name).ok_or_else(|| unknown(name))
    }

    /// Makes a lake.
    pub(super) async fn lake_add(&self, name: &str, change: LakeChange) -> Result<LakeInfo> {
        check_lake_name(name)?;
        self.check_level()?;
        let now_ms = clock::now_ms();
        let mut info =
            LakeInfo { name: name.to_owned(), created_ms: now_ms, changed_ms: now_ms, ..LakeInfo::default() };
        apply(&mut info, &change)?;
        let mut form = Form::new(info);
        self.give_secret(&mut form, change.secret_access_key)?;
        self.check_way(&form).await?;
        if self.lake_forms().await?.len() >= LAKES_MAX {
            return Err(StoreError::new(ErrorKind::Full, format!("a cluster has at most {LAKES_MAX} lakes")));
        }
        let key = tier_keys::lake(name);
        let commit = Commit::new().check(Check::Absent(key.clone())).put(key, form.encode());
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => self.saw(seq),
            Outcome::Failed { .. } => {
                let message =
                    format!("there is a lake `{name}` already; `stoker lake set {name}` changes it");
                return Err(StoreError::about(ErrorKind::Conflict, Subject::Lake, message));
            }
        }
        self.lakes_changed().await?;
        self.lake_info(name).await
    }

    fn give_secret(&self, form: &mut Form, secret: Option<String>) -> Result<()> {
        if let Some(secret) = secret {
            if secret.len() > LAKE_TEXT_LEN_MAX || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(invalid("a secret key is printable ASCII without spaces"));
            }
            form.set_secret(&self.wrapping, Some(secret.as_str()).filter(|secret| !secret.is_empty()));
        }
        if form.info.access_key_id.is_none() {
            form.set_secret(&self.wrapping, None);
        } else if !form.has_secret() {
            return Err(invalid("an access key and its secret belong together; give the secret as well"));
        }
        Ok(())
    }

    /// Refuses a lake that could never be opened. Nobody is asked.
    async fn check_way(&self, form: &Form) -> Result<()> {
        stoker_lake::check_url(&form.info.url).map_err(error::lake)?;
        let row = Row { key: Vec::new(), value: form.encode(), seq: 0 };
        let options = Named::read(&row, &self.wrapping)?.options(&self.volumes.lakes().options);
        let place = Place::of(&form.info.url, &options).map_err(error::lake)?;
        if !place.is_directory() {
            // Opening one sends nothing.
            stoker_lake::open(&form.info.url, &options).await.map_err(error::lake)?;
        }
        Ok(())
    }

    /// Changes a lake; nodes ask it by the new row within moments.
    pub(super) async fn lake_set(&self, name: &str, change: LakeChange) -> Result<LakeInfo> {
        self.check_level()?;
        for _ in 0..TRIES_MAX {
            let (row, mut form) = self.lake_form(name).await?;
            let users = self.lake_info(name).await?;
            let moves = change.url.as_ref().is_some_and(|url| *url != form.info.url);
            if moves && !(users.volumes.is_empty() && users.replica_of.is_empty()) {
                return Err(invalid(format!(
                    "lake `{name}` is used, so its url stays: what was drained is there. Give volumes a replica in another lake and \
                     promote that"
                )));
            }
            apply(&mut form.info, &change)?;
            form.info.changed_ms = clock::now_ms();
            self.give_secret(&mut form, change.secret_access_key.clone())?;
            self.check_way(&form).await?;
            let commit = Commit::new().seq(row.key.clone(), row.seq).put(row.key, form.encode());
            if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                self.saw(seq);
                self.lakes_changed().await?;
                return self.lake_info(name).await;
            }
        }
        Err(contended())
    }

    async fn lakes_changed(&self) -> Result<()> {
        self.volumes.lakes().named.refresh(&self.volumes.lakes().options).await?;
        self.keep_rows().await?;
        self.drainer.wake();
        Ok(())
    }

    /// Forgets a lake that nobody uses.
    pub(super) async fn lake_remove(&self, name: &str) -> Result<()> {
        let (row, _) = self.lake_form(name).await?;
        let users = self.lake_info(name).await?;
        if let Some(volume) = users.volumes.iter().chain(&users.replica_of).next() {
            let message = format!("lake `{name}` is used by volume `{volume}`");
            return Err(StoreError::about(ErrorKind::Conflict, Subject::Lake, message));
        }
        let commit = Commit::new().seq(row.key.clone(), row.seq).delete(row.key);
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => self.saw(seq),
            Outcome::Failed { .. } => return Err(contended()),
        }
        self.lakes_changed().await
    }

    /// Wraps secrets anew that were wrapped by a former key, or by none.
    pub(crate) async fn rewrap_lakes(&self) -> Result<()> {
        for (row, mut form) in self.lake_forms().await? {
            match form.secret(&self.wrapping) {
                Ok((Some(secret), true)) => form.set_secret(&self.wrapping, Some(&secret)),
                Ok(_) => continue,
                // A lake that cannot be read keeps no node from starting.
                Err(fault) => {
                    tracing::warn!("{}", fault.message);
                    continue;
                }
            }
            let change = Commit::new().seq(row.key.clone(), row.seq).put(row.key, form.encode());
            // Somebody else may have been faster.
            if let Outcome::Done { seq } = self.catalog.commit(change).await.map_err(error::catalog)? {
                self.saw(seq);
            }
        }
        Ok(())
    }

    /// Does with a lake what Stoker does, on keys of its own, and removes them.
    pub(super) async fn lake_check(&self, name: &str) -> Result<Vec<LakeTrial>> {
        let (row, _) = self.lake_form(name).await?;
        let named = Named::read(&row, &self.wrapping)?;
        let mut trials = Trials::default();
        let since = Instant::now();
        let opener = self.volumes.lakes().opener.clone();
        let opened = match opener {
            Some(opener) => Ok((opener.0)(&named.info.url)),
            None => open_once(&named, &self.volumes.lakes().options).await,
        };
        let lake = match trials.note("open", since, opened) {
            Some(lake) => lake,
            None => return Ok(trials.0),
        };
        let number = u64::from_le_bytes(clock::random());
        let root = format!(".stoker-check/{number:016x}");
        try_all(lake.as_ref(), &root, &mut trials).await;
        Ok(trials.0)
    }
}

#[derive(Default)]
struct Trials(Vec<LakeTrial>);

impl Trials {
    fn note<T>(&mut self, what: &str, since: Instant, got: stoker_lake::Result<T>) -> Option<T> {
        let (value, fault) = match got {
            Ok(value) => (Some(value), None),
            Err(fault) => (None, Some(fault.message)),
        };
        let took_us = since.elapsed().as_micros().try_into().unwrap_or(u64::MAX);
        self.0.push(LakeTrial { what: what.to_owned(), fault, took_us });
        value
    }

    /// The same of what must be refused.
    fn note_refusal<T>(&mut self, what: &str, since: Instant, got: stoker_lake::Result<T>) {
        let got = match got {
            Err(fault) if fault.kind == LakeErrorKind::Changed => Ok(()),
            Err(fault) => Err(fault),
            Ok(_) => Err(LakeError::new(
                LakeErrorKind::Invalid,
                "it was not refused: this lake ignores conditions; give it `?conditional=false` in its url",
            )),
        };
        self.note(what, since, got);
    }
}

async fn try_all(lake: &dyn Lake, root: &str, trials: &mut Trials) {
    let (small, large) = (format!("{root}/small").into_bytes(), format!("{root}/large").into_bytes());
    let body = Bytes::from((0..SMALL).map(|at| (at % 251) as u8).collect::<Vec<u8>>());
    let options = |condition| PutOptions { condition, ..PutOptions::default() };
    let since = Instant::now();
    let put = lake.put(&small, vec![body.clone()], options(Condition::Absent)).await;
    if let Some(etag) = trials.note("put", since, put) {
        let since = Instant::now();
        let again = lake.put(&small, vec![body.clone()], options(Condition::Absent)).await;
        trials.note_refusal("conditional put", since, again);
        let since = Instant::now();
        let range = 1_000..2_000u64;
        let got = lake.get(&small, range.clone(), Some(&etag)).await.and_then(|got| {
            match got == body.slice(range.start as usize..range.end as usize) {
                true => Ok(()),
                false => Err(LakeError::new(LakeErrorKind::Corrupt, "it gave other bytes than were put")),
            }
        });
        trials.note("range get", since, got);
        let since = Instant::now();
        let stale = lake.get(&small, 0..1, Some("0123456789abcdef0123456789abcdef")).await;
        trials.note_refusal("conditional get", since, stale);
        let since = Instant::now();
        let prefix = format!("{root}/").into_bytes();
        let listed = lake.list(&prefix, None, None, 10).await.and_then(|page| {
            match page.objects.iter().any(|object| object.key == small && object.size == SMALL as u64) {
                true => Ok(()),
                false => Err(LakeError::new(LakeErrorKind::Invalid, "what was put is not listed")),
            }
        });
        trials.note("list", since, listed);
    }
    let since = Instant::now();
    let uploaded = multipart(lake, &large).await;
    trials.note("multipart", since, uploaded);
    let since = Instant::now();
    let mut deleted = Ok(());
    for key in [&small, &large] {
        deleted = deleted.and(match lake.delete(key, None).await {
            Ok(()) => match lake.head(key).await {
                Ok(None) => Ok(()),
                Ok(Some(_)) => Err(LakeError::new(LakeErrorKind::Invalid, "what was deleted is still there")),
                Err(fault) => Err(fault),
            },
            Err(fault) => Err(fault),
        });
    }
    trials.note("delete", since, deleted);
}

async fn multipart(lake: &dyn Lake, key: &[u8]) -> stoker_lake::Result<()> {
    let upload = lake.upload_begin(key, Attributes::default()).await?;
    let sent = async {
        let first = PART.max(usize::try_from(lake.capabilities().part_bytes_min).unwrap_or(PART));
        let bodies = [Bytes::from(vec![7; first]), Bytes::from_static(b"end")];
        let mut tags: Vec<PartTag> = Vec::new();
        for (number, body) in (1..).zip(bodies) {
            tags.push(lake.upload_part(key, &upload, number, vec![body]).await?);
        }
        lake.upload_complete(key, &upload, tags, PutOptions::default()).await?;
        let there = lake.head(key).await?.map(|object| object.size);
        match there == Some(first as u64 + 3) {
            true => Ok(()),
            false => Err(LakeError::new(LakeErrorKind::Corrupt, "it does not have the length that was sent")),
        }
    };
    let patience = tokio::time::timeout(Duration::from_millis(TRIAL_MS_MAX * 4), sent);
    let slow = || LakeError::new(LakeErrorKind::Unavailable, "it took too long");
    let sent = patience.await.unwrap_or_else(|_| Err(slow()));
    if sent.is_err() {
        let _ = lake.upload_abort(key, &upload).await;
    }
    sent
}
