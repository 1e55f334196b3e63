//! Seals: references that keep what a manifest names.
//!
//! A seal refers to versions, not to names: its reference rows count like those of entries, so a version that a file lets
//! go of stays while a seal has it. Where its bytes are in the lake, a relier row keeps the object there (R11). References
//! are written and taken away in commits of bounded size; the seal's row says whether they are complete.

use std::collections::HashMap;

use stoker_format::{VersionId, VolumeId};

use super::change::Held;
use super::{Found, Located, Names, Refusal, Spot, TRIES_MAX};
use crate::error::{CatalogError, Result};
use crate::kv::{Check, Commit, Range, Row, Write};
use crate::rows::{
    Drain, EntryRow, FileRow, LakeRef, MemberRow, RefRow, RowValue, SealRow, SealState, SourceRef, keys,
};

/// Most files of one step.
const STEP_MAX: usize = 1_000;

/// Versions let go of in one commit.
const RELEASED_MAX: usize = 256;

/// A commit that is this large lets go of no further version: long layouts become long garbage rows.
const BYTES_ENOUGH: usize = 8 << 20;

/// A seal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seal {
    /// Its number.
    pub id: u64,
    /// Commit that wrote its row last.
    pub seq: u64,
    /// What it is.
    pub row: SealRow,
}

/// A file that a seal holds now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sealed {
    /// Its key.
    pub key: Vec<u8>,
    /// The file as it is sealed.
    pub file: FileRow,
}

/// A piece of a seal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealStep {
    /// Files in the order of their keys; the manifest names these.
    pub files: Vec<Sealed>,
    /// Where the next step goes on; none at the end.
    pub after: Option<Vec<u8>>,
}

/// What makes a seal ready.
#[derive(Clone, Copy, Debug)]
pub struct SealFinish<'r> {
    /// Key of the published file that is the manifest. The seal holds its version too.
    pub manifest: &'r [u8],
    /// Files that it names.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
}

impl Seal {
    fn of(row: &Row) -> Result<Seal> {
        let id = keys::seal_part(&row.key).ok_or_else(|| CatalogError::corrupt("a seal has no number"))?;
        Ok(Seal { id, seq: row.seq, row: SealRow::of(row)? })
    }
}

impl Names {
    /// Begins a seal of all keys with a prefix. It holds nothing yet.
    pub async fn seal_begin(
        &self,
        volume: VolumeId,
        prefix: &[u8],
        guards: &[Check],
        now_ms: u64,
    ) -> std::result::Result<Seal, Refusal> {
        let row = SealRow {
            state: SealState::Building,
            prefix: prefix.to_vec(),
            created_ms: now_ms,
            seq: self.catalog.seq().await?,
            files: 0,
            bytes: 0,
            manifest: None,
        };
        let id = self.inodes.next().await?;
        let key = keys::seal(volume, id);
        let change = Commit::new().absent(key.clone()).put(key, row.encode());
        match self.attempt(guards, change).await? {
            Some(seq) => Ok(Seal { id, seq, row }),
            None => Err(CatalogError::corrupt("a number was handed out twice").into()),
        }
    }

    /// Takes references to the next files behind a key, at most `limit` of them, and says which. Again with the same key
    /// does no harm, so a step whose answer was lost is repeated.
    pub async fn seal_step(
        &self,
        volume: VolumeId,
        id: u64,
        after: Option<&[u8]>,
        limit: usize,
    ) -> std::result::Result<SealStep, Refusal> {
        for _ in 0..TRIES_MAX {
            let seal = self.seal_building(volume, id).await?;
            let mut walk = self.walk(volume, &seal.row.prefix, None, after).await?;
            let mut places = Vec::new();
            while places.len() < limit.clamp(1, STEP_MAX)
                && let Some(Found::File { key, spot, .. }) = walk.next().await?
            {
                places.push((key, spot));
            }
            let Some((last, _)) = places.last() else {
                return Ok(SealStep { files: Vec::new(), after: None });
            };
            let after = Some(last.clone());
            let mut change = Commit::new().seq(keys::seal(volume, id), seal.seq);
            let found = self.located(places).await?;
            self.hold(&mut change, id, found.iter().map(|(_, located)| located)).await?;
            let files: Vec<Sealed> =
                found.into_iter().map(|(key, located)| Sealed { key, file: located.file }).collect();
            // All of them deleted since: look further.
            if files.is_empty() || self.attempt(&[], change).await?.is_some() {
                return Ok(SealStep { files, after });
            }
        }
        Err(Refusal::Contended)
    }

    /// Makes a seal ready: all that its manifest names was sealed, and the manifest is published.
    pub async fn seal_finish(
        &self,
        volume: VolumeId,
        id: u64,
        finish: &SealFinish<'_>,
        guards: &[Check],
    ) -> std::result::Result<Seal, Refusal> {
        for _ in 0..TRIES_MAX {
            let manifest = self.lookup(volume, finish.manifest).await?.ok_or(Refusal::NotFound)?;
            let seal = self.seal(volume, id).await?.ok_or(Refusal::NotFound)?;
            if seal.row.state == SealState::Ready && seal.row.manifest == Some(manifest.file.version) {
                return Ok(seal);
            }
            seal.check_building()?;
            let row = SealRow {
                state: SealState::Ready,
                files: finish.files,
                bytes: finish.bytes,
                manifest: Some(manifest.file.version),
                ..seal.row
            };
            let key = keys::seal(volume, id);
            let mut change = Commit::new().seq(key.clone(), seal.seq).put(key, row.encode());
            self.hold(&mut change, id, std::iter::once(&manifest)).await?;
            if let Some(seq) = self.attempt(guards, change).await? {
                return Ok(Seal { id, seq, row });
            }
        }
        Err(Refusal::Contended)
    }

    /// A seal.
    pub async fn seal(&self, volume: VolumeId, id: u64) -> Result<Option<Seal>> {
        let row = self.catalog.get(&[&keys::seal(volume, id)]).await?.pop().flatten();
        row.as_ref().map(Seal::of).transpose()
    }

    /// Seals of a volume in the order in which they were begun, behind one of them; and whether there are more.
    pub async fn seals(
        &self,
        volume: VolumeId,
        after: Option<u64>,
        limit: usize,
    ) -> Result<(Vec<Seal>, bool)> {
        let mut range = Range::prefix(&keys::seals(volume), limit);
        if let Some(after) = after {
            range = range.after(&keys::seal(volume, after));
        }
        let page = self.catalog.range(range).await?;
        Ok((page.rows.iter().map(Seal::of).collect::<Result<_>>()?, page.more))
    }

    /// Removes a seal, whatever its state: one commit decides, then its references go, a bounded number in each commit.
    /// What a crash leaves is found by [`seals_sweep`](Names::seals_sweep). The name of its manifest stays.
    pub async fn seal_remove(
        &self,
        volume: VolumeId,
        id: u64,
        guards: &[Check],
    ) -> std::result::Result<(), Refusal> {
        for _ in 0..TRIES_MAX {
            let seal = self.seal(volume, id).await?.ok_or(Refusal::NotFound)?;
            if seal.row.state == SealState::Removing {
                return self.seal_clear(volume, id).await;
            }
            let row = SealRow { state: SealState::Removing, ..seal.row };
            let key = keys::seal(volume, id);
            let change = Commit::new().seq(key.clone(), seal.seq).put(key, row.encode());
            if self.attempt(guards, change).await?.is_some() {
                return self.seal_clear(volume, id).await;
            }
        }
        Err(Refusal::Contended)
    }

    /// Finishes removals that were interrupted; returns how many.
    pub async fn seals_sweep(&self) -> std::result::Result<u64, Refusal> {
        let mut swept = 0;
        let mut range = Range::prefix(keys::SEALS, STEP_MAX);
        loop {
            let page = self.catalog.range(range.clone()).await?;
            for row in &page.rows {
                let seal = Seal::of(row)?;
                if let (SealState::Removing, Some(volume)) = (seal.row.state, keys::volume_part(&row.key)) {
                    self.seal_clear(volume, seal.id).await?;
                    swept += 1;
                }
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(swept),
            }
        }
    }

    /// Adds to a change that a seal relies on a lake object for a version from now on, and no longer on drives. For the
    /// change that lets the chunks of a version go from the drives; `reference` is the seal's reference row.
    pub async fn seal_relies(&self, change: &mut Commit, reference: &Row, lake: &LakeRef) -> Result<()> {
        let parts = keys::reference_parts(&reference.key).zip(keys::reference_version(&reference.key));
        let (Some(((volume, _, _), version)), Some(seal)) = (parts, keys::reference_seal(&reference.key))
        else {
            return Err(CatalogError::invalid("this is not the reference of a seal"));
        };
        let key = keys::member(seal, version);
        let row = self.catalog.get(&[&key]).await?.pop().flatten();
        let row = row.ok_or_else(|| CatalogError::corrupt("a seal refers to what it does not hold"))?;
        let mut member = MemberRow::of(&row)?;
        change.checks.push(Check::Seq(key.clone(), row.seq));
        change.writes.extend(relier(seal, version, &member).map(Write::Delete));
        member.relies = Some(SourceRef { volume: volume.0, key: lake.key.clone(), etag: lake.etag.clone() });
        change.writes.extend(relier(seal, version, &member).map(|key| Write::Put(key, Vec::new())));
        change.writes.push(Write::Put(key, member.encode()));
        Ok(())
    }

    async fn seal_building(&self, volume: VolumeId, id: u64) -> std::result::Result<Seal, Refusal> {
        let seal = self.seal(volume, id).await?.ok_or(Refusal::NotFound)?;
        seal.check_building()?;
        Ok(seal)
    }

    /// The files at these places as they are in one moment, without those that are gone.
    async fn located(&self, places: Vec<(Vec<u8>, Spot)>) -> Result<Vec<(Vec<u8>, Located)>> {
        let row_keys: Vec<Vec<u8>> = places.iter().map(|(_, spot)| spot.row_key()).collect();
        let row_keys: Vec<&[u8]> = row_keys.iter().map(Vec::as_slice).collect();
        let rows = self.catalog.get(&row_keys).await?;
        let mut found = Vec::with_capacity(places.len());
        for ((key, spot), row) in places.into_iter().zip(rows) {
            let Some(row) = row else { continue };
            if let EntryRow::File(file) = EntryRow::of(&row)? {
                found.push((key, Located { spot, seq: row.seq, file: *file }));
            }
        }
        Ok(found)
    }

    /// Refers to the versions of files. The files must still be as they were read: had one been drained since, its bytes
    /// could be gone from the drives, and had it been deleted, they could be gone at all.
    async fn hold(
        &self,
        change: &mut Commit,
        seal: u64,
        files: impl Iterator<Item = &Located>,
    ) -> Result<()> {
        let mut fresh: HashMap<VersionId, &Located> = HashMap::new();
        for located in files {
            change.checks.push(Check::Seq(located.spot.row_key(), located.seq));
            fresh.entry(located.file.version()).or_insert(located);
        }
        // A version that is held already, by another name or by the same step before, is held as it is: its row knows
        // which lake object is kept for it.
        let row_keys: Vec<Vec<u8>> = fresh.keys().map(|version| keys::member(seal, *version)).collect();
        let row_keys: Vec<&[u8]> = row_keys.iter().map(Vec::as_slice).collect();
        for row in self.catalog.get(&row_keys).await?.into_iter().flatten() {
            if let Some(version) = keys::member_version(&row.key) {
                fresh.remove(&version);
            }
        }
        for (version, located) in fresh {
            let member = member_of(located);
            let reference = keys::seal_reference(version, located.spot.volume, seal);
            change.writes.push(Write::Put(reference, RefRow {}.encode()));
            change.writes.extend(relier(seal, version, &member).map(|key| Write::Put(key, Vec::new())));
            change.writes.push(Write::Put(keys::member(seal, version), member.encode()));
        }
        Ok(())
    }

    /// Takes the references of a seal away that is being removed, then its row.
    async fn seal_clear(&self, volume: VolumeId, id: u64) -> std::result::Result<(), Refusal> {
        let mut failures = 0;
        while failures < TRIES_MAX {
            let Some(seal) = self.seal(volume, id).await? else { return Ok(()) };
            let page = self.catalog.range(Range::prefix(&keys::members(id), RELEASED_MAX)).await?;
            let seal_key = keys::seal(volume, id);
            let mut change = Commit::new().seq(seal_key.clone(), seal.seq);
            for row in &page.rows {
                if change.bytes() >= BYTES_ENOUGH {
                    break;
                }
                self.release(&mut change, volume, id, row).await?;
            }
            let done = page.rows.is_empty();
            if done {
                change = change.delete(seal_key);
            }
            match self.attempt(&[], change).await? {
                Some(_) if done => return Ok(()),
                Some(_) => failures = 0,
                None => failures += 1,
            }
        }
        Err(Refusal::Contended)
    }

    /// Lets go of one version.
    async fn release(&self, change: &mut Commit, volume: VolumeId, seal: u64, row: &Row) -> Result<()> {
        let version = keys::member_version(&row.key);
        let version = version.ok_or_else(|| CatalogError::corrupt("a seal holds what is not a version"))?;
        let member = MemberRow::of(row)?;
        let own = keys::seal_reference(version, volume, seal);
        change.checks.push(Check::Seq(row.key.clone(), row.seq));
        change.writes.push(Write::Delete(row.key.clone()));
        change.writes.push(Write::Delete(own.clone()));
        change.writes.extend(relier(seal, version, &member).map(Write::Delete));
        let held = Held { version, size: member.size, layout: &member.layout, holders: &member.holders };
        self.let_go(change, volume, &[own], held).await?;
        Ok(())
    }
}

impl Seal {
    fn check_building(&self) -> std::result::Result<(), Refusal> {
        match self.row.state {
            SealState::Building => Ok(()),
            SealState::Ready => Err(Refusal::Conflict("the seal is ready already")),
            SealState::Removing => Err(Refusal::Conflict("the seal is being removed")),
        }
    }
}

fn member_of(located: &Located) -> MemberRow {
    let file = &located.file;
    let relies = match (file.drain, &file.lake) {
        (Drain::Clean, Some(lake)) => {
            Some(SourceRef { volume: located.spot.volume.0, key: lake.key.clone(), etag: lake.etag.clone() })
        }
        _ => file.source.clone(),
    };
    MemberRow { size: file.size, layout: file.layout.clone(), holders: file.holders.clone(), relies }
}

/// Key of the row that keeps a lake object for a seal, if the seal relies on one. A seal has a number of its own among
/// those of files, so the row cannot be that of a file.
fn relier(seal: u64, version: VersionId, member: &MemberRow) -> Option<Vec<u8>> {
    let source = member.relies.as_ref()?;
    Some(keys::relier(VolumeId(source.volume), &source.key, version, seal))
}
