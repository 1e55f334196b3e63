//! Data keys in the catalog: made with their volume, rotated, wrapped anew, destroyed.
//!
//! A rotation adds an epoch: what is written from then on is sealed by it, and nothing that is there is touched. The row of the volume is
//! written again with every change, so that every node reads its keys again at once. Destroying deletes the row of the wrapped keys and leaves
//! one that says so; a publish checks that the keys are there, so nothing is acknowledged that nobody can read.

use std::sync::Once;

use stoker_catalog::Row;
use stoker_catalog::kv::{Check, Commit, Outcome};
use stoker_format::{KeyId, VolumeId};
use stoker_keys::{DataKey, Secret, VolumeKeys, hide_from_core_dumps};
use stoker_schema::rows::{DataKeysRow, DestroyedKeysRow, ENCRYPTED_SINCE, RowValue, keys};
use stoker_store::{
    DataKeyInfo, DataKeysInfo, ErrorKind, Result, StoreError, Subject, VolumeInfo, VolumeOptions,
};

use super::{SEALED_LEN_MAX, Vault};
use crate::core::Core;
use crate::volumes::{Form, Volume};
use crate::{clock, error};

/// Epochs that a volume may have.
const EPOCHS_MAX: usize = 1_000;

/// A first key, for a volume that is being made.
pub(crate) fn first(vault: &Vault, volume: VolumeId) -> Result<DataKeysRow> {
    Ok(DataKeysRow { epochs: vec![vault.wrap(volume, &draw(1)?, clock::now_ms())?] })
}

fn draw(epoch: u32) -> Result<DataKey> {
    let random = |fault| StoreError::new(ErrorKind::Unavailable, format!("no random bytes: {fault}"));
    Ok(DataKey::new(KeyId(epoch), Secret::draw().map_err(random)?))
}

/// Takes what rows say of the keys of a volume.
pub(crate) fn take(vault: &Vault, volume: VolumeId, row: Option<&Row>, gone: Option<&Row>) -> Result<()> {
    if let Some(gone) = gone {
        let gone = DestroyedKeysRow::of(gone).map_err(error::catalog)?;
        vault.keyring().set(volume, VolumeKeys::Destroyed(gone.at_ms));
    } else if let Some(row) = row {
        let row = DataKeysRow::of(row).map_err(error::catalog)?;
        static HIDDEN: Once = Once::new();
        HIDDEN.call_once(|| {
            if let Err(fault) = hide_from_core_dumps() {
                tracing::warn!("core dumps of this process may hold keys: {fault}");
            }
        });
        let keys = vault.unlock(volume, &row);
        if let VolumeKeys::Locked(why) = &keys {
            tracing::error!(volume = volume.0, "an encrypted volume cannot be opened: {why}");
        }
        vault.keyring().set(volume, keys);
    }
    Ok(())
}

impl Core {
    /// Reads the keys of a volume again.
    pub(super) async fn load_keys(&self, volume: VolumeId) -> Result<()> {
        let rows = [keys::data_keys(volume), keys::destroyed_keys(volume)];
        let found = self.catalog.get(&[&rows[0], &rows[1]]).await.map_err(error::catalog)?;
        take(&self.vault, volume, found[0].as_ref(), found[1].as_ref())
    }

    /// Whether encrypted volumes can be made now.
    pub(crate) fn check_may_encrypt(&self) -> Result<()> {
        let level = self.level.get();
        if level < ENCRYPTED_SINCE {
            let message = format!(
                "encrypted volumes need level {ENCRYPTED_SINCE} of the cluster, which is at {level}: upgrade every node, see `stoker \
                 cluster level`"
            );
            return Err(StoreError::about(ErrorKind::Invalid, Subject::Volume, message));
        }
        if self.chunk_bytes as usize > SEALED_LEN_MAX {
            let message = format!("encrypted volumes need chunks of at most {SEALED_LEN_MAX} bytes");
            return Err(StoreError::about(ErrorKind::Invalid, Subject::Volume, message));
        }
        Ok(())
    }

    /// Makes a volume that is encrypted from its beginning on.
    pub(crate) async fn create_encrypted(
        self: &std::sync::Arc<Core>,
        name: &str,
        options: VolumeOptions,
    ) -> Result<VolumeInfo> {
        self.check_open()?;
        self.check_may_encrypt()?;
        let volume = self.volumes.create_as(name, options, Form::Encrypted).await?;
        self.keep_rows().await?;
        self.settle_leases(&volume).await;
        self.drainer.wake();
        self.volumes.info(&volume).await
    }

    async fn data_keys_row(&self, volume: &Volume) -> Result<(Row, DataKeysRow)> {
        let key = keys::data_keys(volume.id);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let none = || {
            self.vault.check(volume.id).err().unwrap_or_else(|| {
                let message = format!("volume `{}` is not encrypted", volume.name);
                StoreError::about(ErrorKind::Invalid, Subject::Volume, message)
            })
        };
        let row = row.ok_or_else(none)?;
        let value = DataKeysRow::of(&row).map_err(error::catalog)?;
        Ok((row, value))
    }

    /// A commit that changes keys of a volume, if they and the volume still are what they were; the row of the volume is written again, so
    /// that every node looks.
    async fn change_keys(&self, volume: &Volume, row: &Row, change: Commit) -> Result<bool> {
        let name = keys::volume(&volume.name);
        let there = self.catalog.get(&[&name]).await.map_err(error::catalog)?.pop().flatten();
        let Some(there) = there else {
            let message = format!("there is no volume `{}`", volume.name);
            return Err(StoreError::about(ErrorKind::NotFound, Subject::Volume, message));
        };
        let mut change = change.put(name.clone(), there.value.clone());
        change.checks.push(Check::Seq(name, there.seq));
        change.checks.push(Check::Seq(row.key.to_vec(), row.seq));
        change.checks.extend(self.guards(volume));
        match self.catalog.commit(change).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                self.load_keys(volume.id).await?;
                self.keep_rows().await?;
                Ok(true)
            }
            Outcome::Failed { .. } => Ok(false),
        }
    }

    /// Makes a new epoch, which seals what is written from now on.
    pub(crate) async fn rotate_data_key(&self, name: &str) -> Result<DataKeysInfo> {
        let volume = self.volumes.get(name).await?;
        loop {
            let (row, mut value) = self.data_keys_row(&volume).await?;
            if value.epochs.len() >= EPOCHS_MAX {
                let message = format!("volume `{name}` has {EPOCHS_MAX} data keys, and gets no more");
                return Err(StoreError::about(ErrorKind::Full, Subject::Volume, message));
            }
            let last = value.epochs.last().map_or(0, |key| key.epoch);
            value.epochs.push(self.vault.wrap(volume.id, &draw(last + 1)?, clock::now_ms())?);
            let change = Commit::new().put(row.key.to_vec(), value.encode());
            if self.change_keys(&volume, &row, change).await? {
                return self.data_keys_of(&volume).await?.ok_or_else(|| gone(name));
            }
        }
    }

    /// Wraps the keys of all volumes by the key-encryption key that is the newest one here. Keys that cannot be opened here are left.
    pub(crate) async fn rewrap_data_keys(&self) -> Result<()> {
        for volume in self.volumes.all().await? {
            if self.vault.is_encrypted(volume.id) && self.vault.check(volume.id).is_ok() {
                self.rewrap(&volume).await?;
            }
        }
        Ok(())
    }

    async fn rewrap(&self, volume: &Volume) -> Result<()> {
        loop {
            let (row, mut value) = self.data_keys_row(volume).await?;
            if !value.epochs.iter().any(|key| self.vault.is_former(key)) {
                return Ok(());
            }
            for key in &mut value.epochs {
                let open = self.vault.key(volume.id, KeyId(key.epoch))?;
                *key = self.vault.wrap(volume.id, &open, key.created_ms)?;
            }
            let change = Commit::new().put(row.key.to_vec(), value.encode());
            if self.change_keys(volume, &row, change).await? {
                tracing::info!(
                    volume = volume.name,
                    "its data keys are wrapped by another key-encryption key"
                );
                return Ok(());
            }
        }
    }

    /// Destroys all data keys of a volume: what they sealed cannot be read again.
    pub(crate) async fn destroy_data_keys(&self, name: &str) -> Result<DataKeysInfo> {
        let volume = self.volumes.get(name).await?;
        loop {
            let (row, value) = self.data_keys_row(&volume).await?;
            let gone_row = DestroyedKeysRow { at_ms: clock::now_ms(), epochs: value.epochs.len() as u32 };
            let change = Commit::new()
                .delete(row.key.to_vec())
                .put(keys::destroyed_keys(volume.id), gone_row.encode());
            if self.change_keys(&volume, &row, change).await? {
                tracing::warn!(volume = name, "its data keys were destroyed");
                return self.data_keys_of(&volume).await?.ok_or_else(|| gone(name));
            }
        }
    }

    /// What is known of the keys of every encrypted volume.
    pub(crate) async fn data_keys(&self) -> Result<Vec<DataKeysInfo>> {
        let mut all = Vec::new();
        for volume in self.volumes.all().await? {
            all.extend(self.data_keys_of(&volume).await?);
        }
        Ok(all)
    }

    async fn data_keys_of(&self, volume: &Volume) -> Result<Option<DataKeysInfo>> {
        let rows = [keys::data_keys(volume.id), keys::destroyed_keys(volume.id)];
        let found = self.catalog.get(&[&rows[0], &rows[1]]).await.map_err(error::catalog)?;
        let mut info = DataKeysInfo {
            volume: volume.name.clone(),
            cipher: "aes-256-gcm".to_owned(),
            epochs: Vec::new(),
            destroyed_ms: None,
            locked: None,
        };
        match (&found[0], &found[1]) {
            (None, None) => return Ok(None),
            (_, Some(row)) => {
                info.destroyed_ms = Some(DestroyedKeysRow::of(row).map_err(error::catalog)?.at_ms);
            }
            (Some(row), None) => {
                let row = DataKeysRow::of(row).map_err(error::catalog)?;
                let epoch = |key: &stoker_schema::rows::DataKeyRow| DataKeyInfo {
                    epoch: key.epoch,
                    created_ms: key.created_ms,
                    kek: key.kek.clone(),
                };
                info.epochs = row.epochs.iter().map(epoch).collect();
                if let Some(keys) = self.vault.keyring().of(volume.id)
                    && let VolumeKeys::Locked(why) = &*keys
                {
                    info.locked = Some(why.clone());
                }
            }
        }
        Ok(Some(info))
    }
}

fn gone(name: &str) -> StoreError {
    let message = format!("volume `{name}` was removed meanwhile");
    StoreError::about(ErrorKind::NotFound, Subject::Volume, message)
}
