//! Volumes that are not there yet: what is checked before anything of one is made, how it is made and filled, and what is taken away
//! again if that cannot be done.

use stoker_client::Client;
use stoker_store::{
    ErrorKind, LakeMode, Order, Report, Store, StoreError, TENANT_DEFAULT, VolumeOptions, volume_tenant,
};
use tonic::{Code, Status};

use crate::answer::{Answer, fault, is_missing};
use crate::controller::{Controller, free};
use crate::copying;
use crate::parameters::Parameters;
use crate::record::{Place, Source, VolumeRecord};

impl Controller {
    /// Refuses what cannot be made, before anything of it is.
    pub(crate) async fn check_new(
        &self,
        handle: &str,
        parameters: &Parameters,
        size: u64,
        source: Option<&Source>,
    ) -> Answer<()> {
        let store = self.door.open().await?;
        if let Some(source) = source {
            self.check_source(&store, source, parameters, size).await?;
        }
        if let Some(volume) = &parameters.volume {
            let found = store.volume(volume).await.map_err(fault)?;
            if found.policy.lake_mode == LakeMode::ReadOnly {
                return Err(Status::failed_precondition(format!("{volume} is read-only")));
            }
            // Somebody's files would be published to pods, and deleted with the claim.
            let place = Place { volume: volume.clone(), directory: Some(handle.to_owned()) };
            if !copying::is_empty(&store, &place).await? {
                return Err(Status::already_exists(format!(
                    "{volume} has files in {handle}, and this driver did not make them"
                )));
            }
            return Ok(());
        }
        let name = parameters.full_name(handle);
        match store.volume(&name).await {
            Ok(_) => {
                return Err(Status::already_exists(format!(
                    "the volume {name} is there, and this driver did not make it"
                )));
            }
            Err(error) if !is_missing(&error) => return Err(fault(error)),
            Err(_) => {}
        }
        let free = free(&store, &parameters.policy).await?;
        if size > free {
            return Err(Status::out_of_range(format!(
                "{size} bytes are more than the {free} that such volumes can have"
            )));
        }
        Ok(())
    }

    /// What a volume is filled from is there, fits, and does not become plain.
    async fn check_source(
        &self,
        store: &Client,
        source: &Source,
        parameters: &Parameters,
        size: u64,
    ) -> Answer<()> {
        let (place, bytes) = match source {
            Source::Volume(id) => {
                let place = self.records.place(id).await?;
                let place = place
                    .ok_or_else(|| Status::not_found(format!("there is no volume {id} to be cloned")))?;
                let bytes = match place.directory {
                    // What is in a directory is not known without a listing: its quota is met while it is copied.
                    Some(_) => 0,
                    None => store.volume(&place.volume).await.map_err(fault)?.bytes,
                };
                (place, bytes)
            }
            Source::Snapshot(id) => {
                let found = self.snapshot(id).await?;
                let (_, snapshot) =
                    found.ok_or_else(|| Status::not_found(format!("there is no snapshot {id}")))?;
                (snapshot.place, snapshot.size)
            }
        };
        if size > 0 && bytes > size {
            return Err(Status::out_of_range(format!(
                "what it is filled from has {bytes} bytes, more than the {size} of the volume"
            )));
        }
        let tenant = match (&parameters.volume, &parameters.tenant) {
            (Some(volume), _) => volume_tenant(volume).0,
            (None, tenant) => tenant.as_deref().unwrap_or(TENANT_DEFAULT),
        };
        if volume_tenant(&place.volume).0 != tenant {
            return Err(Status::invalid_argument(
                "what it is filled from belongs to another tenant: parameter tenant",
            ));
        }
        let is_plain = match &parameters.volume {
            Some(volume) => !is_encrypted(store, volume).await?,
            None => !parameters.encrypt,
        };
        if is_plain && is_encrypted(store, &place.volume).await? {
            return Err(Status::invalid_argument(
                "what it is filled from is encrypted, so the volume has to be: parameter encrypt",
            ));
        }
        Ok(())
    }

    /// Makes what a record tells of. If that cannot be done by asking again, nothing of it stays.
    pub(crate) async fn finish(
        &self,
        handle: &str,
        mut record: VolumeRecord,
        parameters: &Parameters,
    ) -> Answer<VolumeRecord> {
        if record.is_ready {
            return Ok(record);
        }
        let store = self.door.open().await?;
        let mut is_ours = true;
        let made = self.fill(&store, &record, parameters, &mut is_ours).await;
        if let Err(why) = made {
            if is_final(why.code()) {
                if is_ours {
                    copying::remove(&store, &record.place).await?;
                }
                self.records.remove::<VolumeRecord>(handle).await?;
            }
            return Err(why);
        }
        record.is_ready = true;
        self.records.put(handle, &record, false).await?;
        Ok(record)
    }

    /// Makes and fills a volume. `is_ours` says whether what is there was made by this call.
    async fn fill(
        &self,
        store: &Client,
        record: &VolumeRecord,
        parameters: &Parameters,
        is_ours: &mut bool,
    ) -> Answer<()> {
        let place = &record.place;
        match place.directory {
            Some(_) => copying::make_directory(store, place).await?,
            None => {
                let options = parameters.options(record.size);
                match make_volume(store, &place.volume, options, parameters.encrypt).await {
                    Ok(()) => {}
                    // From the try before, as far as one can know.
                    Err(error) if error.kind == ErrorKind::Conflict => *is_ours = false,
                    Err(error) => {
                        *is_ours = false;
                        return Err(fault(error));
                    }
                }
            }
        }
        let from = match &record.source {
            None => return Ok(()),
            Some(Source::Volume(id)) => self.records.place(id).await?,
            Some(Source::Snapshot(id)) => self.snapshot(id).await?.map(|(_, snapshot)| snapshot.place),
        };
        let from = from.ok_or_else(|| Status::not_found("what the volume is filled from is gone"))?;
        copying::copy(store, &from, place).await.map(drop)
    }
}

/// True if asking again gives the same.
pub(crate) fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::ResourceExhausted
            | Code::OutOfRange
            | Code::FailedPrecondition
    )
}

/// Makes a volume, encrypted or not.
pub(crate) async fn make_volume(
    store: &Client,
    name: &str,
    options: VolumeOptions,
    encrypt: bool,
) -> Result<(), StoreError> {
    if encrypt {
        store.operate(Order::EncryptedVolume { name: name.to_owned(), options }).await.map(drop)
    } else {
        store.volume_create(name, options).await.map(drop)
    }
}

/// True if the bytes of a volume are encrypted on drives: no copy of them may be plain.
pub(crate) async fn is_encrypted(store: &Client, volume: &str) -> Answer<bool> {
    match store.operate(Order::DataKeys).await.map_err(fault)? {
        Report::DataKeys(all) => Ok(all.iter().any(|one| one.volume == volume)),
        _ => Err(Status::internal("the node did not answer what it was asked")),
    }
}
