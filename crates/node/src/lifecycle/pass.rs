//! One volume, from its first key to its last one, and then its uploads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stoker_catalog::Row;
use stoker_catalog::kv::{Commit, Outcome};
use stoker_format::{VersionId, VolumeId};
use stoker_schema::lead::Term;
use stoker_schema::rows::{RowValue, SettingRow, keys};
use stoker_store::{
    Condition, ErrorKind, Key, NULL_VERSION, Result, StoreError, UploadId, VersionEntry, VersionsRequest,
};
use stoker_tiers::lifecycle::{Act, Decision, Lifecycle, Line, Object, Scan};
use tokio::time::Instant;

use super::leader::PASSES_A_DAY;
use crate::core::Core;
use crate::error;
use crate::versions::change::Expect;
use crate::volumes::Volume;

/// Versions and uploads of a page.
const PAGE: usize = 1_000;

/// Deletes between two looks at whether this node still leads.
const DELETES_AT_ONCE: usize = 50;

/// Deletes in a row without an answer, after which a volume rests.
const UNANSWERED_MAX: u32 = 8;

/// Deletes in a second, in all volumes.
const DELETES_PER_S: u32 = 500;

/// How often it is written down how far a pass is.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// How far a pass is, for whoever goes on with it; a setting of the volume, so that it goes with the volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Progress {
    /// When the next pass begins, milliseconds since 1970; one that is under way began already.
    pub next_ms: u64,
    /// Every version of keys up to this one was looked at.
    after: Option<Vec<u8>>,
    /// Objects are done.
    is_at_uploads: bool,
    expired: u64,
    removed: u64,
    aborted: u64,
    /// Locked, so they stay.
    held: u64,
    failed: u64,
}

impl Progress {
    pub fn key(volume: VolumeId) -> Vec<u8> {
        keys::setting(volume, "lifecycle-pass")
    }

    /// What cannot be read is begun anew.
    pub fn of(row: Option<&Row>) -> Progress {
        let document = row.and_then(|row| SettingRow::of(row).ok()).map(|row| row.document);
        document.and_then(|document| serde_json::from_slice(&document).ok()).unwrap_or_default()
    }

    pub fn encode(&self) -> Vec<u8> {
        SettingRow { document: serde_json::to_vec(self).expect("plain data encodes") }.encode()
    }
}

/// What a version is known by.
struct What {
    key: Key,
    id: String,
    version: VersionId,
    etag: String,
}

/// A pass that this node makes.
pub(super) struct Pass {
    rules: Arc<Lifecycle>,
    /// As it was read or written last.
    row: Option<(u64, Progress)>,
    progress: Progress,
    saved: Instant,
    scan: Scan<What>,
    /// Behind which version the next page begins, and whether it is the latest of its key.
    after: Option<(Vec<u8>, String, bool)>,
    /// The last key of which every version was looked at. It counts when the queue is empty.
    looked: Option<Vec<u8>>,
    /// Deletes in a row that were not answered.
    unanswered: u32,
    /// What is to be deleted before more is looked at.
    queue: VecDeque<Decision<What>>,
    /// Decided about the last version of a page, behind which the next one begins: it is deleted after that one was read.
    late: Option<Decision<What>>,
    uploads_after: Option<(Vec<u8>, Option<UploadId>)>,
    is_last: bool,
}

impl Pass {
    /// Whether it goes by the rules that a volume has now.
    pub fn is_of(&self, volume: &Volume) -> bool {
        volume.lifecycle.as_ref().is_some_and(|rules| **rules == *self.rules)
    }

    /// Whether so many deletes were not answered that it is better to wait. Counts anew from then on.
    pub fn takes_rest(&mut self) -> bool {
        let takes_rest = self.is_unanswered();
        if takes_rest {
            self.unanswered = 0;
        }
        takes_rest
    }

    fn is_unanswered(&self) -> bool {
        self.unanswered >= UNANSWERED_MAX
    }

    /// Counts a delete that was refused; gives back what ends all of them.
    fn failed(&mut self, fault: &StoreError) -> Result<()> {
        match fault.kind {
            // Somebody was quicker.
            ErrorKind::NotFound | ErrorKind::Conflict => {}
            ErrorKind::Denied => self.progress.held += 1,
            ErrorKind::Closed => return Err(fault.clone()),
            _ => self.progress.failed += 1,
        }
        self.unanswered = match fault.kind {
            ErrorKind::Unavailable => self.unanswered + 1,
            _ => 0,
        };
        Ok(())
    }
}

/// Where a page begins. A former version without an id may be gone by then, and nothing says where it was: the rest of its key waits for the next pass.
fn start(after: &(Vec<u8>, String, bool)) -> (Option<Vec<u8>>, Option<String>) {
    let (key, id, is_latest) = after;
    (Some(key.clone()), Some(id.clone()).filter(|id| id != NULL_VERSION || *is_latest))
}

impl Core {
    /// Goes on with the pass of a volume, or begins one. None if its rules are gone.
    pub(super) async fn lifecycle_begin(&self, volume: &Volume) -> Result<Option<Pass>> {
        let Some(rules) = volume.lifecycle.clone() else { return Ok(None) };
        let key = Progress::key(volume.id);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let progress = Progress::of(row.as_ref());
        Ok(Some(Pass {
            rules,
            row: row.map(|row| (row.seq, progress.clone())),
            after: None,
            looked: None,
            unanswered: 0,
            progress,
            saved: Instant::now(),
            scan: Scan::default(),
            queue: VecDeque::new(),
            late: None,
            uploads_after: None,
            is_last: false,
        }))
    }

    /// A little of a pass. False if it is over, or somebody else's.
    pub(super) async fn lifecycle_step(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        pass: &mut Pass,
        term: &Term,
    ) -> Result<bool> {
        if !pass.queue.is_empty() {
            return self.lifecycle_act(volume, pass).await.map(|()| true);
        }
        if let Some(looked) = pass.looked.take() {
            pass.progress.after = Some(looked);
        }
        if pass.saved.elapsed() >= SAVE_EVERY && !self.lifecycle_save(volume, pass, term).await? {
            return Ok(false);
        }
        if !pass.progress.is_at_uploads && pass.rules.has_objects() && !pass.is_last {
            self.lifecycle_look(volume, pass).await?;
            return Ok(true);
        }
        pass.progress.is_at_uploads = true;
        if pass.rules.has_uploads() && self.lifecycle_uploads(volume, pass).await? {
            return Ok(true);
        }
        let Progress { expired, removed, aborted, held, failed, .. } = pass.progress;
        if expired + removed + aborted + held + failed > 0 {
            let volume = &volume.name;
            tracing::info!(
                volume,
                expired,
                removed,
                aborted,
                held,
                failed,
                "lifecycle rules were carried out"
            );
        }
        let next_ms = self.expiry.now_ms().saturating_add(self.calendar.day_ms() / PASSES_A_DAY).max(1);
        pass.progress = Progress { next_ms, ..Progress::default() };
        self.lifecycle_save(volume, pass, term).await?;
        Ok(false)
    }

    /// Reads a page of versions and decides about it.
    async fn lifecycle_look(self: &Arc<Core>, volume: &Arc<Volume>, pass: &mut Pass) -> Result<()> {
        let (after, after_version) = match &pass.after {
            Some(after) => start(after),
            None => (pass.progress.after.clone(), None),
        };
        let prefix = pass.rules.common_prefix();
        let request = VersionsRequest { prefix, delimiter: None, after, after_version, limit: PAGE };
        let mut page = self.versions_page(volume, request).await?;
        // No page begins behind such a version if another one will do.
        if page.more
            && page.entries.len() > 1
            && let Some(VersionEntry::Version { version, is_latest: false, .. }) = page.entries.last()
            && version.id == NULL_VERSION
        {
            page.entries.pop();
        }
        let time = (self.calendar, self.expiry.now_ms());
        let mut out: Vec<Decision<What>> = pass.late.take().into_iter().collect();
        let before = out.len();
        for entry in page.entries {
            let VersionEntry::Version { info, version, is_latest } = entry else { continue };
            if pass.scan.key().is_some_and(|key| key != info.key.as_bytes()) {
                pass.looked = pass.scan.key().map(<[u8]>::to_vec);
            }
            let known = pass.after.as_ref();
            if known.is_some_and(|(key, id, _)| *key == info.key.as_bytes() && *id == version.id) {
                // It became a former one while the page was read: the next pass sees since when.
                continue;
            }
            pass.after = Some((info.key.as_bytes().to_vec(), version.id.clone(), is_latest));
            let object = Object {
                key: info.key.as_bytes(),
                size: info.size,
                modified_ms: info.modified_ms,
                tags: &info.attributes.tags,
            };
            let line = Line { object, is_marker: version.is_marker, is_latest };
            let (key, etag) = (info.key.clone(), info.etag.clone());
            let what = What { key, id: version.id, version: info.version, etag };
            pass.scan.line(&pass.rules, time, line, what, &mut out);
        }
        pass.is_last = !page.more;
        if pass.is_last {
            pass.scan.end(&pass.rules, time, &mut out);
        } else if let (Some(last), Some((key, id, _))) = (out.last(), &pass.after)
            && out.len() > before
            && last.what.key.as_bytes() == &key[..]
            && last.what.id == *id
        {
            pass.late = out.pop();
        }
        pass.queue.extend(out);
        Ok(())
    }

    /// Deletes some of what was decided about, at its pace.
    async fn lifecycle_act(self: &Arc<Core>, volume: &Arc<Volume>, pass: &mut Pass) -> Result<()> {
        let begun = Instant::now();
        let mut done = 0;
        let rules = Arc::clone(&pass.rules);
        while done < DELETES_AT_ONCE as u32
            && !pass.is_unanswered()
            && let Some(decision) = pass.queue.pop_front()
        {
            if self.closing.load(Ordering::Relaxed) {
                return Ok(());
            }
            done += 1;
            let Decision { act, rule, what } = decision;
            match self.lifecycle_delete(volume, &rules, (act, rule.as_str()), &what).await {
                Ok(()) => {
                    pass.unanswered = 0;
                    let counted = match act {
                        Act::Expire => &mut pass.progress.expired,
                        Act::Remove | Act::Unmark => &mut pass.progress.removed,
                    };
                    *counted += 1;
                    tracing::debug!(volume = volume.name, key = %what.key, id = what.id, rule, "expired");
                }
                Err(fault) => pass.failed(&fault)?,
            }
        }
        tokio::time::sleep_until(begun + Duration::from_secs(1) * done / DELETES_PER_S).await;
        Ok(())
    }

    /// Deletes what was decided about, and nothing that came since.
    async fn lifecycle_delete(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        rules: &Lifecycle,
        (act, rule): (Act, &str),
        what: &What,
    ) -> Result<()> {
        let expect = match act {
            Act::Expire => {
                let condition = Condition { if_match: Some(vec![what.etag.clone()]), ..Condition::default() };
                let due = Some((what.version, rules));
                let deleted = self.delete_seen(volume, what.key.as_bytes(), &condition, due);
                return deleted.await.map(|_| ());
            }
            Act::Remove => match rules.rule(rule) {
                Some(rule) => Expect::Former(what.version, Box::new(rule.clone())),
                None => return Ok(()),
            },
            Act::Unmark => Expect::Marker(what.version),
        };
        self.remove_version(volume, &what.key, what.id.clone(), &expect, false).await.map(|_| ())
    }

    /// Aborts what is due of a page of uploads. False if there are no more.
    async fn lifecycle_uploads(self: &Arc<Core>, volume: &Arc<Volume>, pass: &mut Pass) -> Result<bool> {
        let prefix = pass.rules.common_prefix();
        let page = self.uploads_page(volume, &prefix, pass.uploads_after.take(), PAGE).await?;
        let now_ms = self.expiry.now_ms();
        for upload in &page.uploads {
            let key = upload.key.as_bytes();
            pass.uploads_after = Some((key.to_vec(), Some(upload.upload.clone())));
            if pass.rules.aborts(key, upload.begun_ms, self.calendar, now_ms).is_none() {
                continue;
            }
            match self.abort(volume, &upload.key, &upload.upload).await {
                Ok(()) => {
                    pass.unanswered = 0;
                    pass.progress.aborted += 1;
                }
                Err(fault) => pass.failed(&fault)?,
            }
            if pass.is_unanswered() {
                return Ok(true);
            }
        }
        Ok(page.more && !page.uploads.is_empty())
    }

    /// Writes down how far a pass is. False if somebody else leads, or the rules are others by now.
    pub(super) async fn lifecycle_save(&self, volume: &Volume, pass: &mut Pass, term: &Term) -> Result<bool> {
        let key = Progress::key(volume.id);
        if pass.row.as_ref().is_some_and(|(_, known)| *known == pass.progress) {
            pass.saved = Instant::now();
            return Ok(true);
        }
        let mut commit = Commit::new().check(term.check());
        commit.checks.extend(self.guards(volume));
        commit = match &pass.row {
            Some((seq, _)) => commit.seq(key.clone(), *seq),
            None => commit.absent(key.clone()),
        };
        let commit = commit.put(key, pass.progress.encode());
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                pass.row = Some((seq, pass.progress.clone()));
                pass.saved = Instant::now();
                Ok(true)
            }
            Outcome::Failed { .. } => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_version_without_an_id_is_no_place_to_begin_at() {
        let start_id = |id: &str, is_latest| start(&(b"a".to_vec(), id.to_owned(), is_latest)).1;
        assert_eq!(start_id(NULL_VERSION, false), None);
        assert_eq!(start_id(NULL_VERSION, true).as_deref(), Some(NULL_VERSION));
        assert_eq!(start_id("01", false).as_deref(), Some("01"));
    }
}
