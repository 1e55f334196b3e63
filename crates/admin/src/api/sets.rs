//! Calls about checkpoint sets.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use stoker_store::{ErrorKind, ListEntry, ListRequest, SetId, SetInfo, SetState};

use super::given::Given;
use super::{Answered, Fault, shape, store};
use crate::answer::Asked;

/// Sets asked for at once.
const PAGE: usize = 1_000;
/// Pages that are looked at for the newest sets.
const PAGES_MAX: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

fn set(given: &Given) -> SetId {
    SetId(given.number("set").unwrap_or(0))
}

fn limit(given: &Given) -> usize {
    given.number("limit").unwrap_or(100) as usize
}

/// The door gives them in the order in which they were begun, and people want to see the last ones.
pub async fn all(asked: Arc<Asked>, given: Given) -> Answered {
    let (store, volume) = (store(&asked)?, given.text("volume"));
    let (mut newest, mut after, mut total): (Vec<SetInfo>, _, usize) = (Vec::new(), None, 0);
    for _ in 0..PAGES_MAX {
        let page = store.sets(volume, after, PAGE).await?;
        after = page.sets.last().map(|set| set.set);
        total += page.sets.len();
        newest.extend(page.sets);
        let old = newest.len().saturating_sub(limit(&given));
        newest.drain(..old);
        if !page.more || after.is_none() {
            break;
        }
    }
    let sets: Vec<Value> = newest.iter().rev().map(shape::set).collect();
    Ok(json!({ "more": total > sets.len(), "sets": sets }).into())
}

pub async fn latest(asked: Arc<Asked>, given: Given) -> Answered {
    let prefix = given.bytes("prefix").unwrap_or_default();
    let found = store(&asked)?.set_latest(given.text("volume"), prefix).await?;
    Ok(json!({ "set": found.as_ref().map(shape::set) }).into())
}

pub async fn one(asked: Arc<Asked>, given: Given) -> Answered {
    Ok(shape::set_status(&store(&asked)?.set_status(given.text("volume"), set(&given)).await?).into())
}

pub async fn receipts(asked: Arc<Asked>, given: Given) -> Answered {
    let (store, volume) = (store(&asked)?, given.text("volume"));
    let info = store.set_status(volume, set(&given)).await?.info;
    if info.state != SetState::Published {
        return Err(stoker_store::StoreError::new(
            ErrorKind::Conflict,
            "only a published set has receipts: its shards are not visible before",
        )
        .into());
    }
    let request = ListRequest {
        prefix: info.path.as_bytes().to_vec(),
        delimiter: None,
        after: given.bytes("after").filter(|after| !after.is_empty()).map(<[u8]>::to_vec),
        limit: limit(&given),
    };
    let page = store.list(volume, request).await?;
    let mut receipts: Vec<Value> = Vec::new();
    for key in page.entries.iter().filter_map(ListEntry::key) {
        match store.receipt(volume, key).await {
            Ok(receipt) => receipts.push(shape::receipt(&receipt)),
            // It was removed since the listing.
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) => return Err(Fault::from(error)),
        }
    }
    Ok(json!({ "receipts": receipts, "more": page.more }).into())
}

pub async fn publish(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    Ok(shape::set(&store(&asked)?.set_publish(given.text("volume"), set(&given)).await?).into())
}

pub async fn abort(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    Ok(shape::set(&store(&asked)?.set_abort(given.text("volume"), set(&given)).await?).into())
}
