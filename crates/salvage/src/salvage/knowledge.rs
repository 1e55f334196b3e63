//! What is known besides drives and lakes: volumes and access keys, and the names of an older catalog.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use stoker_catalog::engine::{self, Embedded, EmbeddedOptions, Origin};
use stoker_catalog::{Catalog, Row};
use stoker_format::{ClusterId, VolumeId};
use stoker_schema::names::{Found, Names};
use stoker_schema::rows::{FileRow, Layout, RowValue, VersionRow, VolumeRow, keys};
use stoker_store::{DrainPolicy, ErrorKind, LakeMode, Result, StoreError, VolumePolicy};

use super::replay::{Change, Event, Named};
use super::settle::Whose;
use super::{SalvageOptions, compare::each};
use crate::{CATALOG, open_backup, pages, remove};
use stoker_host::clock;
use stoker_host::identity::Identity;
use stoker_records::{error, mirror};

/// A volume that comes back.
pub(super) struct VolumeFound {
    pub name: String,
    pub row: VolumeRow,
    pub policy: VolumePolicy,
}

impl VolumeFound {
    pub fn id(&self) -> VolumeId {
        VolumeId(self.row.id)
    }

    pub fn whose(&self) -> Whose {
        Whose {
            volume: self.id(),
            drains: self.row.lake.is_some() && self.policy.drain != DrainPolicy::Never,
            owned: self.policy.lake_mode == LakeMode::Owned,
            now_ms: clock::now_ms(),
        }
    }
}

/// What is known.
pub(super) struct Knowledge {
    /// Rows of volumes, access keys and imports, by their keys.
    pub rows: BTreeMap<Vec<u8>, Vec<u8>>,
    pub volumes: Vec<VolumeFound>,
    /// An older catalog, in a file of its own.
    old: Option<(Names, Arc<Embedded>, PathBuf)>,
    pub seq: u64,
    pub notes: Vec<String>,
}

impl Knowledge {
    /// Gathers it. The newest of what nodes kept and of the older catalog says which volumes there are.
    pub async fn gather(options: &SalvageOptions, identity: Identity) -> Result<Knowledge> {
        let mut notes = Vec::new();
        let old = open_old(options, identity, &mut notes)?;
        let mut known = Knowledge { rows: BTreeMap::new(), volumes: Vec::new(), old: None, seq: 0, notes };
        let mut best: Option<(u64, Vec<Row>)> = None;
        if let Some((names, catalog, path)) = old {
            known.seq = catalog.seq().await.map_err(error::catalog)?;
            let mut rows = Vec::new();
            for table in mirror::TABLES {
                each(names.catalog(), table, |row| {
                    rows.push(row.clone());
                    Ok(())
                })
                .await?;
            }
            best = Some((known.seq, rows));
            known.old = Some((names, catalog, path));
        }
        for place in std::iter::once(&options.home).chain(&options.others) {
            match mirror::read(&place.dir, identity.cluster) {
                Ok(Some((seq, rows))) if best.as_ref().is_none_or(|(known, _)| *known <= seq) => {
                    best = Some((seq, rows));
                }
                Ok(_) => {}
                Err(fault) => known.notes.push(fault.message),
            }
        }
        let (seq, rows) = best.unwrap_or_default();
        known.seq = known.seq.max(seq);
        // Earlier releases kept the secret of the join token with the others.
        let stays = |row: &Row| mirror::TABLES.iter().any(|table| row.key.starts_with(table));
        known.rows = rows.into_iter().filter(stays).map(|row| (row.key, row.value)).collect();
        for (key, value) in &known.rows {
            if let Some(name) = key.strip_prefix(b"V") {
                let row = VolumeRow::decode(value).map_err(error::catalog)?;
                let name = String::from_utf8_lossy(name).into_owned();
                known.volumes.push(volume(name, row)?);
            }
        }
        Ok(known)
    }

    /// Makes a volume for records of one that nothing else tells of. It has no lake, so nothing of it goes anywhere.
    pub fn invent(&mut self, id: VolumeId) -> Result<()> {
        let name = format!("salvaged-{}", id.0);
        let policy = VolumePolicy { drain: DrainPolicy::Never, ..VolumePolicy::default() };
        let policy = serde_json::to_vec(&policy).expect("plain data encodes");
        let row = VolumeRow { id: id.0, created_ms: clock::now_ms(), lake: None, policy, leaving: false };
        self.notes.push(format!(
            "nothing tells the name of volume {}: it is called {name}, and has no lake until one is given",
            id.0
        ));
        self.rows.insert(keys::volume(&name), row.encode());
        self.rows.insert(keys::volume_id(id), name.clone().into_bytes());
        self.volumes.push(volume(name, row)?);
        Ok(())
    }

    /// Names of a volume in the older catalog.
    pub async fn old_names(&self, volume: VolumeId) -> Result<Vec<Event>> {
        let Some((names, ..)) = &self.old else { return Ok(Vec::new()) };
        let mut walk = names.walk(volume, b"", None, None).await.map_err(error::catalog)?;
        let mut events = Vec::new();
        while let Some(found) = walk.next().await.map_err(error::catalog)? {
            let Found::File { key, spot, .. } = found else { continue };
            let Some(located) = names.file_at(spot).await.map_err(error::catalog)? else { continue };
            let (runs, parts) = cut(names, &located.file).await?;
            let named = Named::of_row(&located, runs, parts);
            let change = Change::Put(key, Box::new(named.clone()));
            events.push(Event { seq: located.seq, id: named.id, change });
        }
        Ok(events)
    }

    /// The highest inode that was handed out, as far as is known.
    pub async fn next_inode(&self) -> Result<u64> {
        let Some((names, ..)) = &self.old else { return Ok(0) };
        let row = names.catalog().get(&[keys::NEXT_INODE]).await.map_err(error::catalog)?.pop().flatten();
        Ok(row.and_then(|row| row.value.try_into().ok()).map_or(0, u64::from_le_bytes))
    }

    /// Lets go of the copy of the older catalog.
    pub async fn end(self) -> Result<Vec<String>> {
        if let Some((names, catalog, path)) = self.old {
            drop(names);
            catalog.close().await;
            remove(&path)?;
        }
        Ok(self.notes)
    }
}

fn volume(name: String, row: VolumeRow) -> Result<VolumeFound> {
    let policy = serde_json::from_slice(&row.policy).map_err(|fault| {
        StoreError::new(ErrorKind::Corrupt, format!("the policy of volume `{name}` cannot be read: {fault}"))
    })?;
    Ok(VolumeFound { name, row, policy })
}

async fn cut(names: &Names, file: &FileRow) -> Result<(Vec<stoker_format::ChunkRun>, Vec<(u64, u32)>)> {
    match file.layout {
        Layout::Simple { .. } => Ok((names.runs(file).await.map_err(error::catalog)?, Vec::new())),
        Layout::Rows | Layout::Sparse { .. } => {
            let rows = names.version_rows(file.version()).await.map_err(error::catalog)?;
            let parts = rows.first().map(|row| row.upload_parts.clone()).unwrap_or_default();
            Ok((VersionRow::join(rows.iter()), parts))
        }
    }
}

/// A file of a catalog.
struct Candidate {
    seq: u64,
    path: PathBuf,
    /// Its log can be read, if it has one.
    is_whole: bool,
}

/// The file with the latest commits in the directories of the nodes, be it a catalog or one that followed.
fn newest(
    options: &SalvageOptions,
    cluster: ClusterId,
    notes: &mut Vec<String>,
) -> Result<Option<Candidate>> {
    let mut found = Vec::new();
    for place in std::iter::once(&options.home).chain(&options.others) {
        let path = place.dir.join(CATALOG);
        match engine::inspect(&path, cluster) {
            Ok(Some(file)) => found.push(Candidate { seq: file.position.seq, path, is_whole: true }),
            Ok(None) => {}
            Err(fault) if fault.kind == stoker_catalog::ErrorKind::Corrupt => {
                // If it is the log, the file is an older state, and better than none.
                match engine::read_table(&path, cluster) {
                    Ok(table) => {
                        notes.push(format!(
                            "a catalog is taken as of commit {}, without its log: {}",
                            table.seq(),
                            fault.message
                        ));
                        found.push(Candidate { seq: table.seq(), path, is_whole: false });
                    }
                    Err(_) => notes.push(format!("a catalog is of no use: {}", fault.message)),
                }
            }
            Err(fault) => return Err(error::catalog(fault)),
        }
    }
    Ok(found.into_iter().max_by_key(|found| found.seq))
}

/// A copy of the older catalog: the backup, or else the newest file of the nodes.
fn open_old(
    options: &SalvageOptions,
    identity: Identity,
    notes: &mut Vec<String>,
) -> Result<Option<(Names, Arc<Embedded>, PathBuf)>> {
    let copy = options.home.dir.join("catalog.redb.known");
    remove(&copy)?;
    let cluster = identity.cluster;
    let there = newest(options, cluster, notes)?;
    let built = match &options.backup {
        Some(backup) => {
            let mut reader = open_backup(backup, cluster)?;
            let origin = Origin { seq: reader.header().seq, epoch: None };
            engine::build(&copy, cluster, origin, || reader.next_rows())
        }
        None => match there {
            None => return Ok(None),
            Some(there) => {
                let read = if there.is_whole { engine::read_file } else { engine::read_table };
                read(&there.path, cluster).and_then(|snapshot| {
                    let origin = Origin { seq: snapshot.seq(), epoch: None };
                    engine::build(&copy, cluster, origin, pages(snapshot))
                })
            }
        },
    };
    match built {
        Ok(()) => {}
        Err(fault) if options.backup.is_none() && fault.kind == stoker_catalog::ErrorKind::Corrupt => {
            notes.push(format!("the old catalog is of no use: {}", fault.message));
            return Ok(None);
        }
        Err(fault) => return Err(error::catalog(fault)),
    }
    let catalog = Embedded::open(&copy, cluster, &EmbeddedOptions::default()).map_err(error::catalog)?;
    let catalog = Arc::new(catalog);
    Ok(Some((Names::new(catalog.clone()), catalog, copy)))
}
