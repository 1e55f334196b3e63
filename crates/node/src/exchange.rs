//! Two names swap what they are.

use std::sync::Arc;

use stoker_catalog::kv::{Check, Write};
use stoker_format::VersionId;
use stoker_schema::names::{Located, Refusal, Side};
use stoker_schema::rows::{Drain, LakeKeyRow, RekeyRow, RowValue, TombstoneRow, keys};
use stoker_store::{Attributes, ErrorKind, Result, StoreError};

use crate::cell::Keepers;
use crate::core::Core;
use crate::drain::may_be_in_lake;
use crate::lookup::no_such_key;
use crate::publish::tombstone_gone;
use crate::volumes::Volume;
use crate::{clock, error, name_record};

/// Tries of an exchange while the drainer claims one of the lake keys for the first time.
const TRIES_MAX: usize = 20;

/// One of the two names.
struct Name<'k> {
    /// Its key; that of a directory ends with `/`.
    key: &'k [u8],
    /// The key that what is there gets.
    to: Vec<u8>,
    /// The record of the move, for a directory.
    record: VersionId,
    buried: Option<TombstoneRow>,
    /// The catalog knows what the lake has under this key.
    is_claimed: bool,
}

impl Name<'_> {
    fn is_directory(&self) -> bool {
        self.key.ends_with(b"/")
    }
}

impl Core {
    /// Swaps two names of a volume. What is under the first must have this number, if one is given.
    pub async fn exchange(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        first: &[u8],
        second: &[u8],
        inode: Option<u64>,
    ) -> Result<()> {
        if volume.asks_lake() && (first.ends_with(b"/") || second.ends_with(b"/")) {
            let message = "a directory can be renamed only in a volume whose lake mode is `owned` and whose first listing \
                           of the lake is done: others could put files into it meanwhile";
            return Err(StoreError::new(ErrorKind::Conflict, message));
        }
        for (key, other) in [(first, second), (second, first)] {
            if !key.ends_with(b"/") {
                self.adopt(volume, key).await?;
                self.check_path(volume, &renamed(key, other), &Attributes::default()).await?;
            }
        }
        for _ in 0..TRIES_MAX {
            let names = [self.named(volume, first, second).await?, self.named(volume, second, first).await?];
            if self.exchange_once(volume, &names, inode).await? {
                return Ok(());
            }
        }
        Err(error::refusal(Refusal::Contended))
    }

    async fn named<'k>(&self, volume: &Volume, key: &'k [u8], other: &[u8]) -> Result<Name<'k>> {
        let (mut buried, mut is_claimed) = (None, true);
        if volume.lake_url.is_some() && !key.ends_with(b"/") {
            buried = self.tombstone(volume, key).await?;
            is_claimed = !may_be_in_lake(key) || self.lake_key_row(volume.id, key).await?.is_some();
        }
        Ok(Name { key, to: renamed(key, other), record: clock::mint(), buried, is_claimed })
    }

    /// One try; false if the drainer claimed a key meanwhile.
    async fn exchange_once(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        names: &[Name<'_>; 2],
        inode: Option<u64>,
    ) -> Result<bool> {
        let mut guards = self.guards(volume);
        let firm = guards.len();
        let unclaimed = names.iter().filter(|name| !name.is_claimed);
        guards.extend(unclaimed.map(|name| Check::Absent(keys::lake_key(volume.id, name.key))));
        let exchanged = self.names.exchange(volume.id, names[0].key, names[1].key, &guards, |first, second| {
            if inode.is_some_and(|inode| inode != first.number()) {
                let message = "what has the name is another file or directory than the one that was to be exchanged";
                return Err(error::refuse(StoreError::new(ErrorKind::Conflict, message)));
            }
            let mut writes = self.exchange_writes(volume, &names[0], first);
            writes.extend(self.exchange_writes(volume, &names[1], second));
            Ok(writes)
        });
        let exchanged = match exchanged.await {
            Err(Refusal::Guard(at)) if at >= firm => return Ok(false),
            Err(Refusal::NotFound) => return Err(self.which_is_missing(volume, names).await),
            done => done.map_err(error::refusal)?,
        };
        let Some(seq) = exchanged.seq else { return Ok(true) };
        self.saw(seq);
        for (name, file) in names.iter().zip([&exchanged.first, &exchanged.second]) {
            self.looks.forget(volume, name.key);
            self.looks.forget(volume, &name.to);
            if let Some(file) = file.as_ref().filter(|file| file.drain == Drain::Dirty) {
                // It may be on its way under the old name right now.
                self.drainer.note(volume, file);
            }
        }
        self.drainer.wake();
        let both = names.iter().all(Name::is_directory);
        for (name, file) in names.iter().zip([&exchanged.first, &exchanged.second]) {
            match file {
                Some(file) => self.leave_put(volume, &name.to, file, seq).await?,
                None => {
                    let record = match both {
                        true => name_record::exchange(volume.id, name.key, &name.to, name.record, seq),
                        false => name_record::rename(volume.id, name.key, &name.to, name.record, seq),
                    };
                    self.leave_after(volume, name.record, &record, Keepers::Anybody).await?;
                }
            }
        }
        Ok(true)
    }

    /// What follows in the lake when something gets the name of the other.
    fn exchange_writes(&self, volume: &Volume, name: &Name<'_>, side: &Side) -> Vec<Write> {
        let now_ms = clock::now_ms();
        match side {
            Side::Directory(_, inode) => {
                let row = RekeyRow { since_ms: now_ms, name_record: Some(name.record.0) };
                vec![Write::Put(keys::rekey_directory(volume.id, *inode), row.encode())]
            }
            Side::File(located) if volume.lake_url.is_some() => self.exchange_file(volume, name, located),
            Side::File(_) => Vec::new(),
        }
    }

    fn exchange_file(&self, volume: &Volume, name: &Name<'_>, located: &Located) -> Vec<Write> {
        let file = &located.file;
        let version = file.version();
        let mut writes = vec![Write::Put(
            keys::rekey_file(volume.id, version),
            RekeyRow { since_ms: clock::now_ms(), name_record: None }.encode(),
        )];
        if may_be_in_lake(name.key) {
            // Objects of files that had this name before may lie there. The sweep looks, should nobody replace them.
            writes.push(Write::Put(keys::attempt(volume.id, name.key), Vec::new()));
        }
        if let Some(lake) = file.lake.as_ref().filter(|_| file.drain == Drain::Clean) {
            // Its bytes stay under the old lake key until they were copied; unless that is the key that it gets back.
            let dependent = keys::dependent(volume.id, &lake.key, version, file.inode);
            writes.push(match lake.key == name.to {
                true => Write::Delete(dependent),
                false => Write::Put(dependent, Vec::new()),
            });
        }
        if let Some(lake) = file.lake.as_ref().filter(|lake| lake.key == name.key && !name.is_claimed) {
            // Only the row of the file knew what is there: whatever gets the name has to replace it.
            let row = LakeKeyRow { etag: Some(lake.etag.clone()), ..LakeKeyRow::default() };
            writes.push(Write::Put(keys::lake_key(volume.id, name.key), row.encode()));
        }
        if let Some(buried) = &name.buried {
            writes.extend(tombstone_gone(volume, name.key, Some(buried)));
        }
        writes
    }

    async fn which_is_missing(&self, volume: &Volume, names: &[Name<'_>; 2]) -> StoreError {
        for name in names {
            let found = match name.is_directory() {
                true => self.names.resolve(volume.id, name.key).await.map(|spot| spot.is_some()),
                false => self.names.lookup(volume.id, name.key).await.map(|file| file.is_some()),
            };
            match found {
                Ok(true) => {}
                Ok(false) => return no_such_key(name.key),
                Err(fault) => return error::catalog(fault),
            }
        }
        no_such_key(names[0].key)
    }
}

/// The key that what is at `key` gets when it has the name of `other`.
fn renamed(key: &[u8], other: &[u8]) -> Vec<u8> {
    let mut to = other.strip_suffix(b"/").unwrap_or(other).to_vec();
    if key.ends_with(b"/") {
        to.push(b'/');
    }
    to
}
