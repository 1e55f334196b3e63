//! What a replica's table says of itself: which replica it is, who is in the group, which log continues it, and up to where that log is done.
//! Written in the transaction of whatever it tells of, so that a table is right by itself at any moment.

use std::hash::{BuildHasher, RandomState};

use redb::{ReadTransaction, WriteTransaction};
use serde::{Deserialize, Serialize};
use stoker_consensus::{Group, LogId, Point};

use super::message::Members;
use crate::engine::embedded::file::{META, damaged, failed};
use crate::error::Result;
use crate::wire;

const META_REPLICA: &str = "replica";
const META_POINT: &str = "point";

/// What a table says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meta {
    /// Its number in the group.
    pub id: u64,
    /// What the epochs of the group are counted from.
    pub base: u64,
    /// Who is in the group, as far as the table goes.
    pub group: Group,
    /// Others had all that was acknowledged here before this was a group: nothing is acknowledged before one of them has it again.
    pub waits_for_others: bool,
    /// The log that continues the table.
    pub log: Option<LogId>,
}

#[derive(Serialize, Deserialize)]
struct Fields {
    id: u64,
    base: u64,
    group: Members,
    waits_for_others: bool,
    log: Option<[u8; 16]>,
}

impl Meta {
    pub(super) fn save(&self, transaction: &WriteTransaction) -> Result<()> {
        let fields = Fields {
            id: self.id,
            base: self.base,
            group: Members::of(&self.group),
            waits_for_others: self.waits_for_others,
            log: self.log.map(|log| log.0),
        };
        let mut meta = transaction.open_table(META).map_err(failed)?;
        meta.insert(META_REPLICA, wire::encode(&fields).as_slice()).map(drop).map_err(failed)
    }

    /// What a table says; none if it was never a replica's.
    pub(super) fn load(snapshot: &ReadTransaction) -> Result<Option<Meta>> {
        let meta = snapshot.open_table(META).map_err(failed)?;
        let Some(stored) = meta.get(META_REPLICA).map_err(failed)? else { return Ok(None) };
        let Ok(fields) = wire::decode::<Fields>(stored.value()) else {
            return Err(damaged("the file does not know which replica it is"));
        };
        Ok(Some(Meta {
            id: fields.id,
            base: fields.base,
            group: fields.group.group(),
            waits_for_others: fields.waits_for_others,
            log: fields.log.map(LogId),
        }))
    }
}

/// A number that nobody else has or had: of a replica, or of a group.
pub(super) fn draw() -> u64 {
    RandomState::new().hash_one(0u8).max(1)
}

/// Says up to where the table goes.
pub(super) fn point_set(transaction: &WriteTransaction, point: Point) -> Result<()> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&point.index.to_le_bytes());
    bytes[8..].copy_from_slice(&point.term.to_le_bytes());
    let mut meta = transaction.open_table(META).map_err(failed)?;
    meta.insert(META_POINT, bytes.as_slice()).map(drop).map_err(failed)
}

/// Up to where a table goes.
pub(super) fn point(snapshot: &ReadTransaction) -> Result<Point> {
    let meta = snapshot.open_table(META).map_err(failed)?;
    let Some(stored) = meta.get(META_POINT).map_err(failed)? else { return Ok(Point::default()) };
    let number = |range: std::ops::Range<usize>| {
        stored.value().get(range).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)))
    };
    match (number(0..8), number(8..16)) {
        (Some(index), Some(term)) => Ok(Point { index, term }),
        _ => Err(damaged("the file does not know how far it goes")),
    }
}
