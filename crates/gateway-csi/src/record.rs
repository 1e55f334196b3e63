//! What the driver made: one small file for each volume and each snapshot, in a volume of the driver's own, so that any driver of the
//! cluster knows it. They are written before what they tell of is made, and removed after it is gone: half of a volume is finished, or
//! taken away, by whoever asks again.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_lc_rs::digest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stoker_store::{
    Condition, ErrorKind, Filler, Finish, Key, ListRequest, Store, VolumeOptions, WriteRequest,
    check_volume_name, volume_tenant,
};
use tonic::Status;

use crate::answer::{Answer, fault, is_missing};
use crate::door::Door;

/// The volume of the records.
pub const HOME: &str = "stoker-csi";
/// What names of volumes of snapshots begin with.
pub const SNAPSHOT: &str = "snap-";
/// What names of volumes of inline scratch begin with.
pub const SCRATCH: &str = "eph-";
/// Longest name and id of the specification.
pub const NAME_LEN_MAX: usize = 128;
/// A record is small; more is not ours.
const RECORD_LEN_MAX: u64 = 64 << 10;
/// Records that one call lists.
const PAGE_MAX: usize = 1000;

/// Where the bytes of a volume or a snapshot are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The volume of Stoker.
    pub volume: String,
    /// The directory in it, without a slash; none for all of it.
    pub directory: Option<String>,
}

impl Place {
    /// What keys below it begin with.
    pub fn prefix(&self) -> Vec<u8> {
        self.directory.as_ref().map_or_else(Vec::new, |directory| format!("{directory}/").into_bytes())
    }
}

/// What a volume was filled from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The id of a snapshot.
    Snapshot(String),
    /// The id of a volume.
    Volume(String),
}

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// As the orchestrator called it.
    pub name: String,
    /// Where it is.
    pub place: Place,
    /// Its limit; 0 for none.
    pub size: u64,
    /// As they were given.
    pub parameters: BTreeMap<String, String>,
    /// What it was filled from.
    pub source: Option<Source>,
    /// The bytes stay when it is deleted.
    pub retain: bool,
    /// It is whole.
    pub is_ready: bool,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// As the orchestrator called it.
    pub name: String,
    /// Where it is.
    pub place: Place,
    /// The id of the volume.
    pub source: String,
    /// Bytes of its files.
    pub size: u64,
    /// When its volume was made, milliseconds since 1970.
    pub created_ms: u64,
    /// It is whole.
    pub is_ready: bool,
}

/// A kind of records.
pub trait Kind: Serialize + DeserializeOwned {
    /// What their keys begin with.
    const FOLDER: &'static str;
}

impl Kind for VolumeRecord {
    const FOLDER: &'static str = "volumes/";
}

impl Kind for SnapshotRecord {
    const FOLDER: &'static str = "snapshots/";
}

/// The name of a volume of Stoker for a name of the orchestrator: the name itself if it can be one, else a digest of it.
pub fn handle(prefix: &str, name: &str) -> Answer<String> {
    if name.is_empty() {
        return Err(Status::invalid_argument("the name is missing"));
    }
    if name.len() > NAME_LEN_MAX {
        return Err(Status::invalid_argument(format!("a name has at most {NAME_LEN_MAX} bytes")));
    }
    let plain = format!("{prefix}{name}");
    let is_ours = [HOME, SNAPSHOT, SCRATCH, "csi-"].iter().any(|taken| name.starts_with(taken));
    if check_volume_name(&plain).is_ok() && !is_ours {
        return Ok(plain);
    }
    Ok(format!("{prefix}csi-{}", hash(name)))
}

/// True for what is no volume for pods: the records, snapshots, and scratch of another pod.
pub fn is_reserved(volume: &str) -> bool {
    let is_scratch = |name: &str| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (_, own) = volume_tenant(volume);
    volume == HOME || own.starts_with(SNAPSHOT) || volume.strip_prefix(SCRATCH).is_some_and(is_scratch)
}

/// 128 bits that tell texts apart.
pub fn hash(text: &str) -> String {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The records of a cluster.
pub struct Records {
    door: Arc<Door>,
}

impl Records {
    pub fn new(door: Arc<Door>) -> Records {
        Records { door }
    }

    /// The id of something: where it is and what it is called there.
    pub async fn id(&self, handle: &str) -> Answer<String> {
        Ok(format!("{}/{handle}", self.door.cluster().await?))
    }

    /// What an id calls something; nothing if that is another cluster's, or no id at all.
    pub async fn handle_of(&self, id: &str) -> Answer<Option<String>> {
        if id.is_empty() {
            return Err(Status::invalid_argument("the id is missing"));
        }
        if id.len() > NAME_LEN_MAX {
            return Ok(None);
        }
        let cluster = self.door.cluster().await?;
        let handle = match id.split_once('/') {
            // A volume that a person made, by its name alone.
            None => id,
            Some((first, handle)) if first == cluster => handle,
            Some(_) => return Ok(None),
        };
        Ok(check_volume_name(handle).is_ok().then(|| handle.to_owned()))
    }

    /// One record.
    pub async fn get<K: Kind>(&self, handle: &str) -> Answer<Option<K>> {
        let store = self.door.open().await?;
        let file = match store.open(HOME, &key::<K>(handle)?).await {
            Ok(file) => file,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(fault(error)),
        };
        let size = file.info().size;
        if size > RECORD_LEN_MAX {
            return Err(Status::data_loss(format!("the record of {handle} is too long")));
        }
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < size {
            let more = file.read(bytes.len() as u64, size as usize - bytes.len()).await.map_err(fault)?;
            if more.is_empty() {
                break;
            }
            bytes.extend_from_slice(&more);
        }
        let read = serde_json::from_slice(&bytes);
        read.map(Some)
            .map_err(|error| Status::data_loss(format!("the record of {handle} cannot be read: {error}")))
    }

    /// Writes one; `is_new` refuses one that is there.
    pub async fn put<K: Kind>(&self, handle: &str, record: &K, is_new: bool) -> Answer<()> {
        let store = self.door.open().await?;
        if is_new {
            match store.volume_create(HOME, VolumeOptions::default()).await {
                Err(error) if error.kind != ErrorKind::Conflict => return Err(fault(error)),
                _ => {}
            }
        }
        let text = serde_json::to_vec(record).map_err(|error| Status::internal(error.to_string()))?;
        let condition = if is_new { Condition::absent() } else { Condition::default() };
        let request = WriteRequest { condition, size: Some(text.len() as u64), ..WriteRequest::default() };
        let mut filler = Filler::new(store.create(HOME, &key::<K>(handle)?, request).await.map_err(fault)?);
        filler.put(&text).await.map_err(fault)?;
        filler.finish(Finish::default()).await.map_err(fault)?;
        Ok(())
    }

    /// Removes one.
    pub async fn remove<K: Kind>(&self, handle: &str) -> Answer<()> {
        let store = self.door.open().await?;
        let done = store.delete(HOME, vec![(key::<K>(handle)?, Condition::default())]).await;
        match done {
            Err(error) if !is_missing(&error) => Err(fault(error)),
            Err(_) => Ok(()),
            Ok(answers) => answers.into_iter().try_for_each(|answer| answer.map(drop).map_err(fault)),
        }
    }

    /// A page of them behind a token, and the token of the next.
    pub async fn page<K: Kind>(&self, max: i32, token: &str) -> Answer<(Vec<(String, K)>, String)> {
        let max = usize::try_from(max).map_err(|_| Status::invalid_argument("max_entries is below zero"))?;
        let limit = if max == 0 { PAGE_MAX } else { max.min(PAGE_MAX) };
        let after = match token {
            "" => None,
            token => {
                let handle = token.strip_prefix("v1:").filter(|handle| check_volume_name(handle).is_ok());
                let handle = handle
                    .ok_or_else(|| Status::aborted("the starting token is not one of ours: begin anew"))?;
                Some(key::<K>(handle)?.into_bytes())
            }
        };
        let store = self.door.open().await?;
        let request = ListRequest { prefix: K::FOLDER.into(), after, limit, delimiter: None };
        let page = match store.list(HOME, request).await {
            Ok(page) => page,
            Err(error) if is_missing(&error) => return Ok((Vec::new(), String::new())),
            Err(error) => return Err(fault(error)),
        };
        let mut found = Vec::new();
        let mut last = String::new();
        for entry in &page.entries {
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            let Some(handle) = name.strip_prefix(K::FOLDER).and_then(|name| name.strip_suffix(".json"))
            else {
                continue;
            };
            last = handle.to_owned();
            // One that goes meanwhile is gone.
            if let Some(record) = self.get::<K>(handle).await? {
                found.push((handle.to_owned(), record));
            }
        }
        let next = if page.more && !last.is_empty() { format!("v1:{last}") } else { String::new() };
        Ok((found, next))
    }

    /// Where a volume is: by its record, or a volume that a person made. Nothing if there is none.
    pub async fn place(&self, id: &str) -> Answer<Option<Place>> {
        let Some(handle) = self.handle_of(id).await? else { return Ok(None) };
        if let Some(record) = self.get::<VolumeRecord>(&handle).await? {
            return Ok(record.is_ready.then_some(record.place));
        }
        if is_reserved(&handle) {
            return Ok(None);
        }
        match self.door.open().await?.volume(&handle).await {
            Ok(found) => Ok(Some(Place { volume: found.name, directory: None })),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(fault(error)),
        }
    }
}

fn key<K: Kind>(handle: &str) -> Answer<Key> {
    Key::new(format!("{}{handle}.json", K::FOLDER)).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_volumes() {
        let plain = "pvc-0a1b2c3d-0000-1111-2222-333344445555";
        assert_eq!(handle("", plain).ok().unwrap(), plain);
        for odd in
            ["Sanity-Volume", "a", "ä", &"x".repeat(128), HOME, "snap-x", "eph-x", "csi-x", "a/b", ".."]
        {
            let made = handle("", odd).ok().unwrap();
            assert!(made.starts_with("csi-") && check_volume_name(&made).is_ok(), "{odd}: {made}");
            assert!(check_volume_name(&handle("snap-", odd).ok().unwrap()).is_ok());
        }
        assert!(handle("", "").is_err() && handle("", &"x".repeat(129)).is_err());
        assert_ne!(handle("", "A").ok(), handle("", "B").ok());
    }
}
