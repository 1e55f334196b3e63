//! Names out of records: what each key was, as far as records tell. No I/O.

use std::collections::{BTreeMap, HashMap};

use stoker_format::{ChunkRun, NameField, NameOp, NameRecord, VersionId};
use stoker_schema::names::Located;
use stoker_schema::rows::FileRow;
use stoker_store::{Attributes, Checksum, ChecksumKind};

use stoker_records::name_record::{self, Rest};
use stoker_records::properties::Properties;

/// A version under a name, as a record or an old row has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Named {
    /// Of the record; another one than the version if this is a second name of the same content.
    pub id: VersionId,
    pub version: VersionId,
    /// A commit that it came after.
    pub seq: u64,
    pub size: u64,
    pub etag: String,
    pub modified_ms: u64,
    pub crc64: Option<u64>,
    pub properties: Vec<u8>,
    /// None if it does not say.
    pub runs: Option<Vec<ChunkRun>>,
    pub upload_parts: Vec<(u64, u32)>,
    /// The set that it is a shard of, and its number there.
    pub set: Option<(u64, Option<u32>)>,
    /// A drive that has the record; none if only an older catalog tells of it.
    pub drive: Option<usize>,
}

impl Named {
    /// Of a record; none if it lacks what a file needs.
    pub fn of_record(id: VersionId, drive: usize, record: &NameRecord) -> Option<(Vec<u8>, Named)> {
        let (mut key, mut size, mut etag, mut rest, mut set, mut runs) = (None, None, None, None, None, None);
        let mut crc64 = None;
        for field in &record.fields {
            match field {
                NameField::Key(found) => key = Some(found.clone()),
                NameField::Size(found) => size = Some(*found),
                NameField::ETag(found) => etag = String::from_utf8(found.clone()).ok(),
                NameField::Rest(found) => rest = Rest::decode(found),
                NameField::Set(found) => set = Some(name_record::set_parts(found)),
                NameField::Runs(found) => runs.get_or_insert_with(Vec::new).extend_from_slice(found),
                NameField::Checksum { algorithm: 3, value } => {
                    crc64 = crc64.or_else(|| Some(u64::from_be_bytes(value.as_slice().try_into().ok()?)));
                }
                _ => {}
            }
        }
        let rest = rest.unwrap_or_else(|| older_rest(record));
        let named = Named {
            id,
            version: record.version,
            seq: record.catalog_seq,
            size: size?,
            etag: etag?,
            modified_ms: rest.modified_ms,
            crc64,
            properties: rest.properties,
            runs,
            upload_parts: rest.upload_parts,
            set,
            drive: Some(drive),
        };
        Some((key?, named))
    }

    /// Of a row of an older catalog.
    pub fn of_row(located: &Located, runs: Vec<ChunkRun>, upload_parts: Vec<(u64, u32)>) -> Named {
        let file: &FileRow = &located.file;
        Named {
            id: file.name_record.map_or(file.version(), VersionId),
            version: file.version(),
            seq: located.seq,
            size: file.size,
            etag: file.etag.clone(),
            modified_ms: file.modified_ms,
            crc64: file.crc64,
            properties: file.properties.clone(),
            runs: Some(runs),
            upload_parts,
            set: None,
            drive: None,
        }
    }
}

/// What a record of an older release says in its fields.
fn older_rest(record: &NameRecord) -> Rest {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut attributes = Attributes::default();
    let (mut owner, mut modified_ms, mut checksums) = ((None, None), 0, Vec::new());
    for field in &record.fields {
        match field {
            NameField::MtimeNs(ns) => modified_ms = u64::try_from(*ns / 1_000_000).unwrap_or(0),
            NameField::Mode(mode) => attributes.mode = Some(*mode),
            NameField::Uid(uid) => owner.0 = Some(*uid),
            NameField::Gid(gid) => owner.1 = Some(*gid),
            NameField::ContentType(found) => attributes.content_type = Some(text(found)),
            NameField::Meta { name, value } => attributes.meta.push((text(name), text(value))),
            NameField::Tag { name, value } => attributes.tags.push((text(name), text(value))),
            NameField::Xattr { name, value } => attributes.xattrs.push((name.clone(), value.clone())),
            NameField::Checksum { algorithm, value } => {
                let kinds =
                    [ChecksumKind::Crc32, ChecksumKind::Crc32c, ChecksumKind::Sha1, ChecksumKind::Sha256];
                let kind = kinds.into_iter().find(|kind| *kind as u8 == *algorithm);
                checksums.extend(kind.map(|kind| Checksum { kind, value: value.clone(), parts: 0 }));
            }
            _ => {}
        }
    }
    attributes.owner = owner.0.zip(owner.1);
    let properties = Properties { attributes, checksums, ..Properties::default() };
    Rest {
        modified_ms,
        properties: properties.without_reserved().encode().unwrap_or_default(),
        upload_parts: Vec::new(),
    }
}

/// A change of names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Put(Vec<u8>, Box<Named>),
    Delete(Vec<u8>),
    Rename { from: Vec<u8>, to: Vec<u8> },
    Exchange { from: Vec<u8>, to: Vec<u8> },
    PublishSet { target: Vec<u8>, set: u64 },
}

/// A change with its place in the order of all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Event {
    pub seq: u64,
    /// Of its record.
    pub id: VersionId,
    pub change: Change,
}

impl Event {
    /// Of a record; none if it says nothing that this release knows.
    pub fn of(id: VersionId, drive: usize, record: &NameRecord) -> Option<Event> {
        let find = |pick: fn(&NameField) -> Option<&Vec<u8>>| record.fields.iter().find_map(pick).cloned();
        let key = || find(|field| if let NameField::Key(key) = field { Some(key) } else { None });
        let old = || find(|field| if let NameField::OldKey(key) = field { Some(key) } else { None });
        let set = || {
            record.fields.iter().find_map(|field| match field {
                NameField::Set(set) => Some(name_record::set_parts(set).0),
                _ => None,
            })
        };
        let change = match record.op {
            NameOp::Put => {
                let (key, named) = Named::of_record(id, drive, record)?;
                Change::Put(key, Box::new(named))
            }
            NameOp::Delete => Change::Delete(key()?),
            NameOp::Rename => Change::Rename { from: old()?, to: key()? },
            NameOp::Exchange => Change::Exchange { from: old()?, to: key()? },
            NameOp::PublishSet => Change::PublishSet { target: key()?, set: set()? },
            _ => return None,
        };
        Some(Event { seq: record.catalog_seq, id, change })
    }
}

impl Event {
    fn drive(&self) -> Option<usize> {
        match &self.change {
            Change::Put(_, named) => named.drive,
            _ => None,
        }
    }

    fn is_on(&mut self, drive: Option<usize>) {
        if let Change::Put(_, named) = &mut self.change {
            named.drive = drive;
        }
    }
}

/// A set that was published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PublishedSet {
    pub set: u64,
    pub target: Vec<u8>,
    pub seq: u64,
}

/// When a record was written: behind which commit, and its id, which has the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moment {
    pub seq: u64,
    pub id: VersionId,
}

/// A directory that has another name than before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Moved {
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    /// Its record.
    pub moment: Moment,
    pub kind: MovedKind,
}

/// What became of the directory that had the new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MovedKind {
    /// There was none.
    Rename,
    /// It has the old name now.
    Exchange,
    /// The same, and the record of that one said all already.
    Other,
}

impl Moved {
    /// What a key is after it.
    pub fn key(&self, key: Vec<u8>) -> Vec<u8> {
        let moved = |from: &[u8], to: &[u8]| Some([to, key.strip_prefix(from)?].concat());
        let (from, to) = (self.from.as_slice(), self.to.as_slice());
        let found = match self.kind {
            MovedKind::Rename => moved(from, to),
            MovedKind::Exchange => moved(from, to).or_else(|| moved(to, from)),
            MovedKind::Other => None,
        };
        found.unwrap_or(key)
    }
}

/// What the names of a volume were.
#[derive(Default, Debug)]
pub(super) struct Replayed {
    /// Every version that a key had and that nothing undid, the newest last. An older one counts only if the bytes of
    /// the newer ones are nowhere: then that write was never acknowledged.
    pub names: BTreeMap<Vec<u8>, Vec<Named>>,
    /// Keys that were deleted last, with the record that says so.
    pub deleted: BTreeMap<Vec<u8>, Moment>,
    /// Records of what was deleted.
    pub buried: Vec<VersionId>,
    /// Renames of directories, in order, with their records.
    pub renames: Vec<Moved>,
    pub sets: Vec<PublishedSet>,
    /// Shards of sets that no record calls published.
    pub shards: BTreeMap<Vec<u8>, Named>,
}

/// Applies changes in their order.
pub(super) fn replay(events: Vec<Event>) -> Replayed {
    // Copies of one record differ where a rename or new properties reached one drive and not the other.
    let mut newest: HashMap<VersionId, Event> = HashMap::new();
    for mut event in events {
        let Some(known) = newest.get_mut(&event.id) else {
            newest.insert(event.id, event);
            continue;
        };
        // An older catalog's row is later than the record, and does not know the drive.
        let drive = known.drive().or(event.drive());
        if known.seq < event.seq {
            std::mem::swap(known, &mut event);
        }
        known.is_on(drive);
    }
    let mut events: Vec<Event> = newest.into_values().collect();
    events.sort_by_key(|event| (event.seq, event.id));
    let mut out = Replayed::default();
    let mut shards: HashMap<u64, Vec<(Vec<u8>, Named)>> = HashMap::new();
    events.retain(|event| match &event.change {
        Change::Put(key, named) => match named.set {
            Some((set, _)) => {
                shards.entry(set).or_default().push((key.clone(), (**named).clone()));
                false
            }
            None => true,
        },
        _ => true,
    });
    for event in events {
        let moment = Moment { seq: event.seq, id: event.id };
        match event.change {
            Change::Put(key, named) => out.put(key, *named),
            Change::Delete(key) => {
                let dead = out.names.remove(&key).unwrap_or_default();
                out.buried.extend(dead.iter().map(|named| named.id));
                out.deleted.insert(key, moment);
            }
            Change::Rename { from, to } => {
                out.rename(&from, &to);
                out.renames.push(Moved { from, to, moment, kind: MovedKind::Rename });
            }
            Change::Exchange { from, to } => {
                // Each of the two directories has a record of it.
                let is_done =
                    |moved: &Moved| moved.kind == MovedKind::Exchange && moved.moment.seq == moment.seq;
                let kind = match out.renames.iter().any(is_done) {
                    true => MovedKind::Other,
                    false => MovedKind::Exchange,
                };
                let moved = Moved { from, to, moment, kind };
                out.exchange(&moved);
                out.renames.push(moved);
            }
            Change::PublishSet { target, set } => {
                for (key, named) in shards.remove(&set).unwrap_or_default() {
                    out.put(key, named);
                }
                out.sets.push(PublishedSet { set, target, seq: event.seq });
            }
        }
    }
    out.shards = shards.into_values().flatten().collect();
    out
}

impl Replayed {
    fn put(&mut self, key: Vec<u8>, named: Named) {
        self.deleted.remove(&key);
        self.names.entry(key).or_default().push(named);
    }

    fn exchange(&mut self, moved: &Moved) {
        // Deletes are of names, not of what had them: they stay, unless something has the name now.
        let names = std::mem::take(&mut self.names);
        self.names = names.into_iter().map(|(key, versions)| (moved.key(key), versions)).collect();
        self.deleted.retain(|key, _| !self.names.contains_key(key));
        for set in &mut self.sets {
            set.target = moved.key(std::mem::take(&mut set.target));
        }
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) {
        let moved: Vec<Vec<u8>> = self
            .names
            .range(from.to_vec()..)
            .take_while(|(key, _)| key.starts_with(from))
            .map(|(key, _)| key.clone())
            .collect();
        for key in moved {
            let versions = self.names.remove(&key).unwrap_or_default();
            let key = [to, &key[from.len()..]].concat();
            self.deleted.remove(&key);
            self.names.insert(key, versions);
        }
        for set in &mut self.sets {
            if set.target.starts_with(from) {
                set.target = [to, &set.target[from.len()..]].concat();
            }
        }
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
