//! Claims on lake keys: how a drain is fenced (R10).
//!
//! A lake has no locks, answers late or not at all, and carries out requests whose sender is long gone. So the right to write a key is a row of the
//! catalog, [`LakeKeyRow`], and every step of a drain is a transaction on that row as it was last seen:
//!
//! ```text
//! claim            put / upload             confirm                  clean
//! fence + 1   ->   bytes to the lake   ->   etag seen by HEAD   ->   file row says Clean, if the claim is unchanged
//! ```
//!
//! - Whoever claims raises the fence and writes its session. A node that was given up finds its claim changed at its next step, and
//!   stops; what it had sent by then is among the `attempts` of the row, so it is recognised as ours and not taken for a conflict.
//! - A request without an answer leaves the key *unsettled* until the lake must have carried it out or dropped it. A conditional put may follow at
//!   once, since a late put loses against it; a delete may not, and nothing may follow a late delete.
//! - What the lake holds is compared with what the row expects before anything is replaced. Bytes that nobody here sent are a
//!   conflict for a person ([`super::conflicts`]), never overwritten.
//!
//! A claim also says that a copy in the second lake of the volume may be behind, and fails if the volume has other lakes than this node knows.
//!
//! Cost: one commit to claim, one to confirm, both beside the row that says the file is clean.

use stoker_catalog::kv::{Commit, Outcome, Range};
use stoker_format::{VersionId, VolumeId};
use stoker_lake::Lake;
use stoker_schema::rows::{GraveRow, LakeKeyRow, RowValue, keys, tier_keys};
use stoker_store::{ErrorKind, Result, StoreError};

use super::attributes;
use crate::core::Core;
use crate::{clock, error};

/// Unconfirmed versions that are remembered for a key.
const ATTEMPTS_MAX: usize = 32;

/// Pause before a key that another node writes is looked at again.
const ELSEWHERE_MS: u64 = 500;

/// What was sent to a deleted key is remembered for so many times as long as the lake takes to settle: a node that was
/// stopped in the middle of a put, and given up, may carry it out when it wakes up.
const GRAVE_SETTLES: u64 = 20;

/// A claimed lake key: nobody else writes it while the row is unchanged.
pub(crate) struct Claim {
    pub volume: VolumeId,
    pub key: Vec<u8>,
    pub row: LakeKeyRow,
    pub seq: u64,
}

/// Why a key cannot be claimed now.
pub(crate) enum Claimed {
    Yes(Claim),
    /// An earlier request may still take effect until then.
    Unsettled(u64),
    /// Somebody else was faster.
    Lost,
}

impl Core {
    /// What is known of a lake key.
    pub async fn lake_key_row(&self, volume: VolumeId, key: &[u8]) -> Result<Option<(LakeKeyRow, u64)>> {
        let row =
            self.catalog.get(&[&keys::lake_key(volume, key)]).await.map_err(error::catalog)?.pop().flatten();
        let Some(row) = row else { return Ok(None) };
        Ok(Some((LakeKeyRow::of(&row).map_err(error::catalog)?, row.seq)))
    }

    /// Claims a lake key for a version (all zero: for a delete). An upload that an earlier claim left is aborted, unless
    /// it is one of the same version by an earlier boot of this node, which goes on.
    pub async fn claim(
        &self,
        lake: &dyn Lake,
        volume: VolumeId,
        key: &[u8],
        version: VersionId,
        (etag, bytes): (Option<String>, u64),
    ) -> Result<Claimed> {
        let mut is_outdated = false;
        let first = (etag.clone(), bytes);
        let claimed = self.claim_once(lake, volume, key, version, first, &mut is_outdated).await?;
        match is_outdated {
            true => self.claim_once(lake, volume, key, version, (etag, bytes), &mut false).await,
            false => Ok(claimed),
        }
    }

    /// The same; says whether what was known of the volume was outdated.
    async fn claim_once(
        &self,
        lake: &dyn Lake,
        volume: VolumeId,
        key: &[u8],
        version: VersionId,
        (etag, bytes): (Option<String>, u64),
        is_outdated: &mut bool,
    ) -> Result<Claimed> {
        let Some(bound) = self.volumes.by_id(volume).await? else { return Ok(Claimed::Lost) };
        if bound.replica.as_ref().is_some_and(|replica| replica.is_promoting()) {
            return Ok(Claimed::Unsettled(clock::now_ms() + ELSEWHERE_MS));
        }
        if !bound.has_lake(lake) {
            // It drains elsewhere by now.
            return Ok(Claimed::Lost);
        }
        let note = self.copy_note(&bound, key, bytes).await?;
        let known = self.lake_key_row(volume, key).await?;
        let mut row = match &known {
            Some((row, _)) => row.clone(),
            None => LakeKeyRow { etag, ..LakeKeyRow::default() },
        };
        if let Some(until_ms) = self.claimed_elsewhere(&row, volume, key).await {
            return Ok(Claimed::Unsettled(until_ms));
        }
        // Whoever had the key before saw no end of what it sent, or did not live to say so.
        let is_left = row.session != [0; 16] && row.session != self.session_id && !row.attempts.is_empty();
        let is_doubted = lake.is_doubted(key) || is_left;
        if is_doubted {
            row.unsettled_until_ms = self.settled_ms().await?;
            row.unsettled_delete |= row.attempts.contains(&VersionId::ZERO.0);
        }
        // A put that is late cannot win against a later conditional one, but it can undo a delete. A delete that is late
        // can hit what was put since, because equal bytes may have equal etags.
        let exposed = version.is_zero() || row.unsettled_delete || !lake.capabilities().conditional_put;
        if exposed && row.unsettled_until_ms > 0 {
            let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
            if row.unsettled_until_ms > now_ms {
                let left_ms = row.unsettled_until_ms - now_ms;
                if is_doubted {
                    self.begin_wait(lake, volume, key, row, known.as_ref()).await?;
                }
                return Ok(Claimed::Unsettled(clock::now_ms() + left_ms));
            }
        }
        let resumes = row.upload.is_some() && row.version == version.0;
        if let Some(upload) = row.upload.as_ref().filter(|_| !resumes) {
            lake.upload_abort(key, upload).await.map_err(error::lake)?;
        }
        if !resumes {
            (row.upload, row.part_bytes) = (None, 0);
        }
        row.fence += 1;
        row.session = self.session_id;
        row.version = version.0;
        if exposed {
            (row.unsettled_until_ms, row.unsettled_delete) = (0, false);
        }
        if !row.attempts.contains(&version.0) {
            row.attempts.push(version.0);
            let excess = row.attempts.len().saturating_sub(ATTEMPTS_MAX);
            row.attempts.drain(..excess);
        }
        let commit = Commit::new().put(keys::attempt(volume, key), Vec::new());
        let commit = changed(commit, keys::lake_key(volume, key), &row, known.as_ref());
        let mut commit = commit.value(self.session.0.clone(), self.session.1.clone());
        commit.checks.push(bound.unchanged());
        if bound.replica.is_some() {
            // What is written now takes the place of what the lake lacked.
            commit = commit.delete(tier_keys::lacking(volume, key));
        }
        if let Some((note, value)) = note {
            commit = commit.put(note, value);
        }
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                lake.end_doubt(key);
                Ok(Claimed::Yes(Claim { volume, key: key.to_vec(), row, seq }))
            }
            Outcome::Failed { .. } => {
                *is_outdated = self.volumes.renew(&bound).await?;
                Ok(Claimed::Lost)
            }
        }
    }

    /// Takes a key from whoever had it, and gives it to nobody until the lake has settled: the wait begins once, whoever
    /// looks at the key meanwhile.
    async fn begin_wait(
        &self,
        lake: &dyn Lake,
        volume: VolumeId,
        key: &[u8],
        mut row: LakeKeyRow,
        known: Option<&(LakeKeyRow, u64)>,
    ) -> Result<()> {
        (row.fence, row.session) = (row.fence + 1, [0; 16]);
        let commit = changed(Commit::new(), keys::lake_key(volume, key), &row, known);
        let commit = commit.value(self.session.0.clone(), self.session.1.clone());
        if let Outcome::Done { .. } = self.catalog.commit(commit).await.map_err(error::catalog)? {
            lake.end_doubt(key);
        }
        Ok(())
    }

    /// When the lake will have carried out all that it has now, by the catalog's clock: those of nodes differ.
    pub(crate) async fn settled_ms(&self) -> Result<u64> {
        Ok(self.catalog.now_ms().await.map_err(error::catalog)? + self.lake_settle_ms)
    }

    /// Until when to wait for another node that has a request to this key under way, or may have: one that does not answer
    /// is waited for until it is declared down, which ends its session.
    async fn claimed_elsewhere(&self, row: &LakeKeyRow, volume: VolumeId, key: &[u8]) -> Option<u64> {
        if row.session == [0; 16] || row.session == self.session_id {
            return None;
        }
        let other = self.cell.view().node_of(row.session)?;
        let is_busy = self.cell.is_busy(other, volume, key).await.unwrap_or(true);
        is_busy.then(|| clock::now_ms() + ELSEWHERE_MS)
    }

    /// Changes a claim that is still ours.
    pub async fn update_claim(&self, claim: &mut Claim, change: impl FnOnce(&mut LakeKeyRow)) -> Result<()> {
        let mut row = claim.row.clone();
        change(&mut row);
        let key = keys::lake_key(claim.volume, &claim.key);
        let commit = Commit::new().seq(key.clone(), claim.seq).put(key, row.encode());
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                (claim.row, claim.seq) = (row, seq);
                Ok(())
            }
            Outcome::Failed { .. } => Err(lost()),
        }
    }

    /// A request failed in a way that leaves its effect open: nobody writes the key for a while.
    pub async fn leave_unsettled(&self, lake: &dyn Lake, claim: &mut Claim) -> Result<()> {
        let until_ms = self.settled_ms().await?;
        let delete = claim.row.version == VersionId::ZERO.0;
        let change =
            |row: &mut LakeKeyRow| (row.unsettled_until_ms, row.unsettled_delete) = (until_ms, delete);
        self.update_claim(claim, change).await?;
        // That is what the doubt says.
        lake.end_doubt(&claim.key);
        Ok(())
    }

    /// The lake holds something else than expected. If that is the effect of an earlier request of ours whose answer was
    /// lost, or what the file was made to replace (`expected`), the claim is put right, and this is true.
    pub async fn put_right(
        &self,
        lake: &dyn Lake,
        claim: &mut Claim,
        expected: Option<&str>,
    ) -> Result<bool> {
        let there = self.head(lake, &claim.key).await.map_err(error::lake)?;
        let found = match &there {
            Some(object) => object.attributes.as_ref().and_then(attributes::version),
            None => None,
        };
        let ours = match (&there, found) {
            // Nothing is there that could be somebody's: a delete of ours got through, or theirs did.
            (None, _) => true,
            (Some(_), Some(found)) => {
                claim.row.attempts.iter().any(|version| VersionId(*version).to_string() == found)
            }
            (Some(_), None) => false,
        };
        let etag = there.map(|object| object.etag);
        let ours = ours || (etag.is_some() && etag.as_deref() == expected);
        if !ours || claim.row.etag == etag {
            return Ok(false);
        }
        self.update_claim(claim, |row| row.etag = etag).await?;
        Ok(true)
    }

    /// What a claim becomes when the lake confirmed an object. While an earlier request may still take effect, what was sent
    /// is remembered: it is ours if it is found there. Whoever commits this ends the doubt.
    pub async fn confirmed(
        &self,
        lake: &dyn Lake,
        claim: &Claim,
        etag: Option<String>,
    ) -> Result<LakeKeyRow> {
        let mut row = LakeKeyRow {
            fence: claim.row.fence,
            etag,
            attempts: claim.row.attempts.clone(),
            unsettled_until_ms: claim.row.unsettled_until_ms,
            unsettled_delete: claim.row.unsettled_delete,
            ..LakeKeyRow::default()
        };
        if lake.is_doubted(&claim.key) {
            row.unsettled_until_ms = self.settled_ms().await?;
        }
        let is_over = match row.unsettled_until_ms {
            0 => true,
            until_ms => until_ms + self.lake_settle_ms * (1 + GRAVE_SETTLES) < self.settled_ms().await?,
        };
        if is_over {
            (row.unsettled_until_ms, row.unsettled_delete, row.attempts) = (0, false, Vec::new());
        }
        Ok(row)
    }

    /// What is left of a key whose object was deleted, if something that was sent there may still come: the key is looked at
    /// once more, and until then what is found there is known as ours. None: the key is forgotten. Whoever commits this ends the
    /// doubt.
    pub async fn grave(
        &self,
        lake: &dyn Lake,
        claim: &Claim,
        was_grave: bool,
    ) -> Result<Option<(LakeKeyRow, GraveRow)>> {
        let is_doubted = lake.is_doubted(&claim.key);
        let was_put = claim.row.attempts.iter().any(|version| *version != VersionId::ZERO.0);
        if !is_doubted && (was_grave || !was_put) {
            return Ok(None);
        }
        let settled_ms = self.settled_ms().await?;
        let row = LakeKeyRow {
            fence: claim.row.fence,
            attempts: claim.row.attempts.clone(),
            unsettled_until_ms: if is_doubted { settled_ms } else { 0 },
            unsettled_delete: is_doubted,
            ..LakeKeyRow::default()
        };
        Ok(Some((row, GraveRow { look_ms: settled_ms + self.lake_settle_ms * GRAVE_SETTLES })))
    }

    /// A file that still needs the object under a lake key, an undrained copy or a renamed file, beside `own` (R11): its
    /// version and inode.
    pub async fn dependent(
        &self,
        volume: VolumeId,
        key: &[u8],
        own: Option<(VersionId, u64)>,
    ) -> Result<Option<(VersionId, u64)>> {
        let range = Range::prefix(&keys::dependents(volume, key), 2);
        let page = self.catalog.range(range).await.map_err(error::catalog)?;
        Ok(page
            .rows
            .iter()
            .filter_map(|row| keys::dependent_parts(&row.key))
            .find(|other| Some(*other) != own))
    }

    /// Whether a renamed directory of a volume still has files under its old lake keys.
    pub async fn rekey_pending(&self, volume: VolumeId) -> Result<bool> {
        let prefix = [b"R", &volume.0.to_be_bytes()[..], b"d"].concat();
        Ok(!self.catalog.range(Range::prefix(&prefix, 1)).await.map_err(error::catalog)?.rows.is_empty())
    }
}

/// Writes a lake key's row, unless it changed since it was read.
fn changed(commit: Commit, key: Vec<u8>, row: &LakeKeyRow, known: Option<&(LakeKeyRow, u64)>) -> Commit {
    let commit = commit.put(key.clone(), row.encode());
    match known {
        Some((_, seq)) => commit.seq(key, *seq),
        None => commit.absent(key),
    }
}

/// Somebody else claimed the key.
pub(crate) fn lost() -> StoreError {
    StoreError::new(ErrorKind::Conflict, "another node took over this lake key")
}
