//! A catalog rebuilt from what is left: name records and chunks on the drives, objects in the lakes, volumes and keys that
//! nodes keep, and an older catalog or backup if there is one.
//!
//! [`drives`] reads rings, [`knowledge`] the rest; [`replay`] says what names were, [`settle`] which of them come back and
//! where their bytes are; [`rebuild`] writes that down. The decisions do no I/O.

mod drives;
mod knowledge;
mod lakes;
mod rebuild;
mod replay;
mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use stoker_catalog::engine::{self, Embedded, EmbeddedOptions};
use stoker_catalog::{Epoch, Row};
use stoker_format::{KeyId, VolumeId};
use stoker_keys::{Keyring, Secret, VolumeKeys, WrappingKey};
use stoker_lake::LakeOptions;
use stoker_schema::rows::{DataKeysRow, ImportRow, RowValue, keys};
use stoker_store::{ErrorKind, Result, StoreError};

use self::drives::Inventory;
use self::knowledge::Knowledge;
use self::rebuild::Rebuild;
use self::replay::Event;
use super::{
    CATALOG, Target, Tell, compare, identity, look, origin, pages, put_in_place, remove, seen, swap,
};
use stoker_lake::LakeOpener;
use stoker_records::error;
use stoker_records::signature::Signer;

/// Keys of lost files that a report names.
const LOST_NAMED: usize = 1_000;

/// A stopped node.
#[derive(Clone, Debug)]
pub struct StoppedNode {
    /// Its directory.
    pub dir: PathBuf,
    /// Its drives.
    pub drives: Vec<PathBuf>,
    /// The secrets of the cluster that it keeps, by which name records and lake objects are told from forged ones.
    pub secrets: Vec<[u8; 32]>,
}

/// What is to be rebuilt, and from what.
#[derive(Clone, Debug)]
pub struct SalvageOptions {
    /// The node that keeps the catalog from now on.
    pub home: StoppedNode,
    /// The others.
    pub others: Vec<StoppedNode>,
    /// Where the catalog is put.
    pub target: Target,
    /// An older state to begin with; none: the catalog that is there, if it can be read.
    pub backup: Option<PathBuf>,
    /// How lakes are reached.
    pub lake_options: LakeOptions,
    /// What opens lakes, if not the lake's own scheme.
    pub lake_opener: Option<LakeOpener>,
}

/// What a salvage found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SalvageReport {
    /// Name records that were read.
    pub records: u64,
    /// Volumes that are back.
    pub volumes: u64,
    /// Files that are back.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that are not in the lake.
    pub dirty_files: u64,
    /// Their bytes.
    pub dirty_bytes: u64,
    /// Checkpoint sets that are back.
    pub sets: u64,
    /// Deletes that go on in the lake.
    pub deletes: u64,
    /// Keys of which records tell and whose bytes are nowhere.
    pub lost_files: u64,
    /// Some of them, as `volume/key`.
    pub lost: Vec<String>,
    /// Keys of which the older catalog tells and nothing else: they were deleted since, or are lost.
    pub untold_files: u64,
    /// Some of them.
    pub untold: Vec<String>,
    /// Commits go on above this.
    pub base_seq: u64,
    /// What was there before has this name now.
    pub aside: Option<PathBuf>,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// Rebuilds the catalog and puts it into its place. Until that last step nothing that is there is changed.
pub async fn salvage(options: &SalvageOptions, tell: Tell<'_>) -> Result<SalvageReport> {
    let identity = identity(&options.home.dir)?;
    let mut inventory = Inventory::default();
    let mut epoch = Epoch::default();
    let (mut seqs, mut secrets) = (Vec::new(), Vec::new());
    for place in std::iter::once(&options.home).chain(&options.others) {
        let other = super::identity(&place.dir)?;
        if other.cluster != identity.cluster {
            let message = format!("{} belongs to another cluster", place.dir.display());
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        seqs.push(seen(&place.dir));
        secrets.extend(&place.secrets);
        match look(&place.dir, identity.cluster, &Target::Embedded).await {
            Ok(Some(present)) => {
                seqs.push(present.seq);
                epoch = epoch.max(present.epoch);
            }
            Ok(None) => {}
            Err(fault) => return Err(fault),
        }
        inventory.read(&place.drives, identity.cluster, tell).await?;
    }
    if let Target::Postgres(_) = options.target {
        let present = look(&options.home.dir, identity.cluster, &options.target).await?;
        if let Some(present) = present.filter(|present| !present.is_empty()) {
            let message = format!(
                "the database has {} files in {} volumes; take a backup, make the database anew (DROP DATABASE, CREATE DATABASE), and name the backup with --backup",
                present.files, present.volumes
            );
            return Err(StoreError::new(ErrorKind::Conflict, message));
        }
    }
    let mut known = Knowledge::gather(options, identity).await?;
    let keyring = keyring(options, &known.rows)?;
    let closed = inventory.open_sealed(|volume, epoch| keyring.of(volume)?.epoch(epoch));
    if closed > 0 {
        known.notes.push(format!(
            "{closed} name records of encrypted volumes cannot be opened: their wrapped keys, or the key-encryption key, are with none of these \
             nodes"
        ));
    }
    seqs.push(known.seq);
    seqs.extend(inventory.records.iter().map(|recorded| recorded.record.catalog_seq));
    invent_volumes(&inventory, &mut known)?;
    let origin = origin(identity, &seqs, epoch);
    let draft = options.home.dir.join("catalog.redb.salvaged");
    remove(&draft)?;
    let mut rows = Some(base_rows(&inventory, &known, origin.seq));
    engine::build(&draft, identity.cluster, origin, || Ok(rows.take())).map_err(error::catalog)?;
    let catalog =
        Embedded::open(&draft, identity.cluster, &EmbeddedOptions::default()).map_err(error::catalog)?;
    let catalog = std::sync::Arc::new(catalog);
    let records = inventory.records.len() as u64;
    let mut rebuild = Rebuild::begin(catalog.clone(), known.next_inode().await?).await?;
    secrets.sort_unstable();
    secrets.dedup();
    let signer = Signer::new(&secrets);
    let mut unsigned = 0;
    for volume in &known.volumes {
        let records = inventory.records.iter().filter(|found| found.record.volume == volume.id());
        let mut events: Vec<Event> =
            records.filter_map(|found| Event::of(found.id, found.drive, &found.record)).collect();
        events.extend(known.old_names(volume.id()).await?);
        let replayed = replay::replay(events);
        let lake = lakes::open(volume, options, &known.rows, &secrets).await?;
        let lake = lake.as_deref();
        let objects = lakes::objects(volume, lake, &signer, &mut unsigned, tell).await?;
        let settled = settle::settle(volume.whose(), &replayed, &inventory, &objects)?;
        let sets = lakes::sets(volume, lake, &replayed, &objects).await?;
        rebuild.volume(volume, settled, sets, tell).await?;
        rebuild.renames(volume, &replayed.renames).await?;
    }
    let mut report = rebuild.end().await?;
    report.records = records;
    report.base_seq = origin.seq;
    report.volumes = known.volumes.len() as u64;
    report.notes = known.end().await?;
    if unsigned > 0 {
        report.notes.push(format!(
            "{unsigned} lake objects carry metadata in Stoker's name that this cluster did not sign (older releases signed none): \
             they are back as plain content, without mode, owner and tags"
        ));
    }
    if inventory.unreadable > 0 {
        report.notes.push(format!("{} name records could not be read", inventory.unreadable));
    }
    catalog.close().await;
    report.aside = match &options.target {
        Target::Embedded => swap(&options.home.dir.join(CATALOG), &draft, identity.cluster)?,
        Target::Postgres(_) => {
            let snapshot = engine::read_file(&draft, identity.cluster).map_err(error::catalog)?;
            put_in_place(&options.home.dir, identity, &options.target, origin, pages(snapshot)).await?;
            remove(&draft)?;
            None
        }
    };
    Ok(report)
}

/// The data keys of encrypted volumes that can be opened by what the nodes keep: the secrets of their cluster.
fn keyring(options: &SalvageOptions, rows: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Keyring> {
    let mut keks = Vec::new();
    for place in std::iter::once(&options.home).chain(&options.others) {
        let secrets = place.secrets.iter().filter_map(|secret| Secret::of(secret));
        keks.extend(secrets.map(|secret| WrappingKey::of_cluster(&secret)));
    }
    let keyring = Keyring::default();
    for (key, value) in rows {
        let Some(id) = key.strip_prefix(keys::DATA_KEYS).and_then(|id| id.try_into().ok()) else { continue };
        let volume = VolumeId(u32::from_be_bytes(id));
        let row = DataKeysRow::decode(value).map_err(error::catalog)?;
        let open = row.epochs.iter().filter_map(|key| {
            let kek = keks.iter().find(|kek| kek.id() == key.kek)?;
            Some((key.epoch, Arc::new(kek.unwrap(volume, KeyId(key.epoch), &key.wrapped).ok()?)))
        });
        keyring.set(volume, VolumeKeys::Open(open.collect()));
    }
    Ok(keyring)
}

/// Volumes that only records tell of.
fn invent_volumes(inventory: &Inventory, known: &mut Knowledge) -> Result<()> {
    let told: BTreeSet<u32> = inventory.records.iter().map(|found| found.record.volume.0).collect();
    for id in told {
        if !known.volumes.iter().any(|volume| volume.row.id == id) {
            known.invent(VolumeId(id))?;
        }
    }
    Ok(())
}

/// Rows that the new catalog begins with, in order.
fn base_rows(inventory: &Inventory, known: &Knowledge, seq: u64) -> Vec<Row> {
    let mut rows = known.rows.clone();
    for drive in &inventory.drives {
        rows.insert(keys::drive(drive.id), drive.row.encode());
    }
    for volume in known.volumes.iter().filter(|volume| volume.whose().owned) {
        // Everything in it was looked at.
        let import = ImportRow { after: None, done: true };
        rows.insert(keys::import(volume.id()), import.encode());
    }
    let next = known.volumes.iter().map(|volume| u64::from(volume.row.id) + 1).max().unwrap_or(1);
    rows.insert(keys::NEXT_VOLUME.to_vec(), next.to_le_bytes().to_vec());
    rows.into_iter().map(|(key, value)| Row { key, value, seq }).collect()
}
