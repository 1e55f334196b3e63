//! Trees of files: copied by reference, or removed.

use stoker_client::Client;
use stoker_store::{
    Condition, CopyRequest, ErrorKind, Filler, Finish, Key, ListRequest, Store, Subject, WriteRequest,
};
use tokio::task::JoinSet;
use tonic::Status;

use crate::answer::{Answer, fault, is_missing};
use crate::record::Place;

/// Files of one page.
const PAGE: usize = 1000;
/// Copies under way at a time.
const COPIES: usize = 16;
/// Files that a snapshot or a clone may have: each is a row that is written while the caller waits.
pub const FILES_MAX: u64 = 1_000_000;

/// Copies every file, by reference; returns their bytes. Asked again, it copies again: the same name gets the same bytes.
pub async fn copy(store: &Client, from: &Place, to: &Place) -> Answer<u64> {
    let (mut bytes, mut files) = (0, 0);
    let mut under_way = JoinSet::new();
    let mut after = None;
    loop {
        let request = ListRequest { prefix: from.prefix(), after, limit: PAGE, delimiter: None };
        let page = store.list(&from.volume, request).await.map_err(fault)?;
        after = page.entries.last().map(|entry| entry.name().to_vec());
        for entry in &page.entries {
            let Some(key) = entry.key() else { continue };
            let name = [to.prefix().as_slice(), &key.as_bytes()[from.prefix().len()..]].concat();
            // The marker of the directory itself is there already.
            let Ok(name) = Key::new(name) else { continue };
            files += 1;
            if files > FILES_MAX {
                return Err(Status::resource_exhausted(format!(
                    "more than {FILES_MAX} files cannot be copied in one call"
                )));
            }
            if under_way.len() >= COPIES {
                bytes += joined(under_way.join_next().await)?;
            }
            under_way.spawn(one(store.clone(), from.volume.clone(), key.clone(), to.volume.clone(), name));
        }
        if !page.more || after.is_none() {
            break;
        }
    }
    while let Some(done) = under_way.join_next().await {
        bytes += joined(Some(done))?;
    }
    Ok(bytes)
}

fn joined(done: Option<Result<Answer<u64>, tokio::task::JoinError>>) -> Answer<u64> {
    done.unwrap_or(Ok(Ok(0))).unwrap_or_else(|error| Err(Status::internal(error.to_string())))
}

async fn one(store: Client, from_volume: String, from: Key, to_volume: String, to: Key) -> Answer<u64> {
    let request = CopyRequest {
        from_volume,
        from,
        from_condition: Condition::default(),
        to_volume: to_volume.clone(),
        to: to.clone(),
        condition: Condition::default(),
        attributes: None,
    };
    match store.copy(request).await {
        Ok(_) => Ok(store.stat(&to_volume, &to).await.map_or(0, |info| info.size)),
        // It was deleted meanwhile.
        Err(error) if is_missing(&error) && error.subject == Subject::Key => Ok(0),
        Err(error) => Err(fault(error)),
    }
}

/// True if there is no file below a place.
pub async fn is_empty(store: &Client, place: &Place) -> Answer<bool> {
    let request = ListRequest { prefix: place.prefix(), limit: 1, ..ListRequest::default() };
    store.list(&place.volume, request).await.map(|page| page.entries.is_empty()).map_err(fault)
}

/// Makes a directory.
pub async fn make_directory(store: &Client, place: &Place) -> Answer<()> {
    let key = Key::new(place.prefix()).map_err(fault)?;
    let request = WriteRequest { size: Some(0), ..WriteRequest::default() };
    let writer = store.create(&place.volume, &key, request).await.map_err(fault)?;
    Filler::new(writer).finish(Finish::default()).await.map_err(fault).map(drop)
}

/// Removes every file, and the volume if it is all of one. What is gone already is fine.
pub async fn remove(store: &Client, place: &Place) -> Answer<()> {
    loop {
        let request = ListRequest { prefix: place.prefix(), limit: PAGE, ..ListRequest::default() };
        let page = match store.list(&place.volume, request).await {
            Ok(page) => page,
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(fault(error)),
        };
        let keys: Vec<_> = page
            .entries
            .iter()
            .filter_map(|entry| Some((entry.key()?.clone(), Condition::default())))
            .collect();
        if !keys.is_empty() {
            let done = store.delete(&place.volume, keys).await.map_err(fault)?;
            if let Some(error) = done.into_iter().find_map(Result::err) {
                return Err(fault(error));
            }
            continue;
        }
        if place.directory.is_some() {
            return Ok(());
        }
        return match store.volume_delete(&place.volume).await {
            Ok(()) => Ok(()),
            Err(error) if is_missing(&error) => Ok(()),
            // Somebody writes to it still.
            Err(error) if error.kind == ErrorKind::Conflict => {
                Err(Status::failed_precondition(error.message))
            }
            Err(error) => Err(fault(error)),
        };
    }
}
