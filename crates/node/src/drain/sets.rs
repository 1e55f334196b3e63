//! Sets on their way: those whose deadline passed are given up, and those that were published get their marker in the lake
//! when the last of their shards is there.
//!
//! The marker is a file like any other, so that renames and deletes of the directory take it along. It is written when
//! every shard is clean, and nothing else writes it; in the lake it is therefore the last object of its set.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use stoker_catalog::kv::Check;
use stoker_format::{ChunkId, VolumeId};
use stoker_schema::names::{Set, Spot};
use stoker_schema::rows::{Drain, RowValue, SetWork, ShardRow, keys};
use stoker_store::{Attributes, Filler, Finish, Result, SET_MARKER, WhenAlone, WriteRequest};
use tokio::sync::Notify;

use super::{Chore, chore_id};
use crate::core::{Core, add};
use crate::publish::FilePurpose;
use crate::rings::NAME_INDEX;
use crate::sets::record_id;
use crate::volumes::Volume;
use crate::writer::ChunkWriter;
use crate::{clock, error};

/// Shards looked at together.
const SHARDS_AT_ONCE: usize = 1_000;

/// Pauses between looks at a set whose shards are not all in the lake.
const LOOK_MS_MIN: u64 = 500;
const LOOK_MS_MAX: u64 = 15_000;

/// A number that changes when a reader of markers has to know.
const MARKER_VERSION: u32 = 1;

/// Published sets that are not whole in the lake, as far as this node has looked.
#[derive(Default)]
pub(super) struct Progress {
    sets: Mutex<HashMap<(VolumeId, u64), Way>>,
    news: Notify,
}

/// How far a set is on its way.
#[derive(Clone, Copy, Default)]
struct Way {
    /// The first shard that may not be in the lake.
    next: u32,
    look_ms: u64,
    pause_ms: u64,
}

impl Progress {
    /// Something is there to do.
    pub fn wake(&self) {
        self.news.notify_one();
    }

    /// Waits for news, or until the pause is over.
    pub async fn wait(&self, pause: impl Future<Output = ()>) {
        tokio::select! { biased; () = self.news.notified() => {}, () = pause => {} }
    }

    /// These sets, and no others, are on their way. True if some were not before.
    fn note(&self, draining: &BTreeSet<(VolumeId, u64)>) -> bool {
        let mut sets = self.sets.lock().unwrap();
        sets.retain(|set, _| draining.contains(set));
        let known = sets.len();
        for set in draining {
            sets.entry(*set).or_default();
        }
        sets.len() > known
    }

    /// The first shard to look at; none if it is too early.
    fn begin(&self, set: (VolumeId, u64), now_ms: u64) -> Option<u32> {
        let sets = self.sets.lock().unwrap();
        let way = sets.get(&set).copied().unwrap_or_default();
        (way.look_ms <= now_ms).then_some(way.next)
    }

    /// All shards below this one are in the lake.
    fn passed(&self, set: (VolumeId, u64), next: u32) {
        if let Some(way) = self.sets.lock().unwrap().get_mut(&set) {
            way.next = next;
        }
    }

    /// This shard is not in the lake. The longer nothing happens, the longer until the next look.
    fn stuck(&self, set: (VolumeId, u64), shard: u32, now_ms: u64) {
        if let Some(way) = self.sets.lock().unwrap().get_mut(&set) {
            let pause_ms = if way.next == shard { way.pause_ms * 2 } else { 0 };
            way.pause_ms = pause_ms.clamp(LOOK_MS_MIN, LOOK_MS_MAX);
            (way.next, way.look_ms) = (shard, now_ms + way.pause_ms);
        }
    }
}

impl Core {
    /// Looks after sets that have something left to do.
    pub(super) async fn sets_round(self: &Arc<Core>) -> Result<bool> {
        if self.cell.is_mine(chore_id(Chore::Sets, VolumeId(0))) {
            let now_ms = self.deadlines_ms().await?;
            let swept = self.names.sets_sweep(now_ms).await.map_err(error::refusal)?;
            if swept.expired > 0 {
                add(&self.stats.sets_expired, swept.expired);
                tracing::warn!(sets = swept.expired, "checkpoint sets were given up at their deadline");
            }
            if swept.cleared > 0 {
                self.garbage.notify_one();
            }
        }
        let mut draining = BTreeSet::new();
        self.each(keys::SET_WORK.to_vec(), |row| {
            let work = SetWork::of(row).map_err(error::catalog)?;
            if let (SetWork::Drain, Some(volume), Some(set)) =
                (work, keys::volume_part(&row.key), keys::set_part(&row.key))
            {
                draining.insert((volume, set));
            }
            Ok(())
        })
        .await?;
        if self.drainer.sets.note(&draining) {
            // Shards of this node were passed over while their set was open.
            self.drainer.reload();
        }
        let mut trouble = None;
        for (volume, set) in draining {
            if self.cell.is_mine(record_id(volume, set))
                && let Err(fault) = self.set_drain(volume, set).await
            {
                trouble = trouble.or(Some(fault));
            }
        }
        trouble.map_or(Ok(false), Err)
    }

    /// Writes the marker of a published set whose shards are all in the lake, and ends the work once that is there, too.
    async fn set_drain(self: &Arc<Core>, volume: VolumeId, id: u64) -> Result<()> {
        let Some(volume) = self.volumes.by_id(volume).await? else { return Ok(()) };
        let Some(set) = self.names.set(volume.id, id).await.map_err(error::catalog)? else { return Ok(()) };
        let Some(path) = &set.path else { return Ok(()) };
        if !self.shards_are_clean(&volume, id).await? {
            return Ok(());
        }
        let key = [path, SET_MARKER.as_bytes()].concat();
        match self.names.lookup(volume.id, &key).await.map_err(error::catalog)? {
            None => self.write_marker(&volume, &set, path, key).await,
            Some(marker) if marker.file.drain == Drain::Dirty => {
                // Whatever the policy says: a set in the lake without its marker looks like half of one.
                self.drainer.demand_once(&marker.file);
                Ok(())
            }
            Some(marker) if marker.file.drain == Drain::Conflict => Ok(()),
            Some(_) => {
                match self.names.set_drained(volume.id, id).await {
                    Ok(()) | Err(stoker_schema::names::Refusal::NotFound) => {}
                    Err(refusal) => return Err(error::refusal(refusal)),
                }
                self.drainer.cleaned.notify_waiters();
                self.rings.mark_clean(vec![ChunkId::new(record_id(volume.id, id), NAME_INDEX)]).await
            }
        }
    }

    /// Whether no shard waits for the lake. Goes on where the last look ended: what was clean stays so, or is not what the
    /// set was published with.
    async fn shards_are_clean(&self, volume: &Volume, id: u64) -> Result<bool> {
        let (set, now_ms) = ((volume.id, id), clock::now_ms());
        let Some(mut next) = self.drainer.sets.begin(set, now_ms) else { return Ok(false) };
        // Most often the one that was not there is still not there.
        let mut at_once = 1;
        loop {
            let (shards, more) =
                self.names.set_shards(id, next.checked_sub(1), at_once).await.map_err(error::catalog)?;
            at_once = SHARDS_AT_ONCE;
            for (number, shard) in &shards {
                let located = self.names.file_at(spot_of(volume, shard)).await.map_err(error::catalog)?;
                let waits = located.is_some_and(|located| {
                    located.file.version() == shard.version() && located.file.drain != Drain::Clean
                });
                if waits {
                    self.drainer.sets.stuck(set, *number, now_ms);
                    return Ok(false);
                }
            }
            if let Some((number, _)) = shards.last() {
                next = number.saturating_add(1);
                self.drainer.sets.passed(set, next);
            }
            if !more || shards.is_empty() {
                return Ok(true);
            }
        }
    }

    async fn write_marker(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        set: &Set,
        path: &[u8],
        key: Vec<u8>,
    ) -> Result<()> {
        // Whoever deletes or renames the directory meanwhile does not find a marker alone in its old place.
        let directory = keys::directory(volume.id, set.id);
        let row = self.catalog.get(&[&directory]).await.map_err(error::catalog)?.pop().flatten();
        let Some(row) = row else { return Ok(()) };
        let attributes =
            Attributes { content_type: Some("application/json".to_owned()), ..Attributes::default() };
        let request = WriteRequest { attributes, ..WriteRequest::default() };
        let checks = vec![Check::Seq(directory, row.seq)];
        // Nodes may be lost for ever, and what is left too few for the class. The marker goes to the lake at once in any case, so
        // then it goes there first: the shards are there already, and without it they look like half of a set.
        let when_alone = WhenAlone::Lake;
        let purpose =
            FilePurpose { checks, when_alone, ..FilePurpose::new(volume.clone(), key.clone(), request) };
        let writer = ChunkWriter::new(self.clone(), volume.clone(), None, Box::new(purpose));
        let mut text = Filler::new(Box::new(writer));
        text.put(head(volume, set, path).as_bytes()).await?;
        let (mut after, mut comma) = (None, "");
        loop {
            let (shards, more) =
                self.names.set_shards(set.id, after, SHARDS_AT_ONCE).await.map_err(error::catalog)?;
            for (number, shard) in &shards {
                let Some(line) = self.marker_line(volume, path, *number, shard).await? else { continue };
                text.put(format!("{comma}\n    {line}").as_bytes()).await?;
                comma = ",";
            }
            after = shards.last().map(|(number, _)| *number);
            if !more || after.is_none() {
                break;
            }
        }
        text.put(b"\n  ]\n}\n").await?;
        let receipt = text.finish(Finish::default()).await?;
        if let Some(marker) = self.names.lookup(volume.id, &key).await.map_err(error::catalog)?
            && marker.file.version() == receipt.version
        {
            self.drainer.demand_once(&marker.file);
        }
        Ok(())
    }

    /// What the marker says of a shard; nothing of one that was deleted or replaced since.
    async fn marker_line(
        &self,
        volume: &Volume,
        path: &[u8],
        number: u32,
        shard: &ShardRow,
    ) -> Result<Option<String>> {
        let spot = spot_of(volume, shard);
        let Some(located) = self.names.file_at(spot).await.map_err(error::catalog)? else { return Ok(None) };
        if located.file.version() != shard.version() {
            return Ok(None);
        }
        let Some(key) = self.names.path_of(&located.spot).await.map_err(error::catalog)? else {
            return Ok(None);
        };
        let name = key.strip_prefix(path).unwrap_or(&key);
        let line = serde_json::json!({
            "shard": number,
            "key": String::from_utf8_lossy(name),
            "size": shard.size,
            "crc64nvme": shard.crc64.map(|crc| format!("{crc:016x}")),
            "etag": located.file.etag,
            "lake_etag": located.file.lake.map(|lake| lake.etag),
            "writer": shard.writer,
        });
        Ok(Some(line.to_string()))
    }
}

fn spot_of(volume: &Volume, shard: &ShardRow) -> Spot {
    Spot { volume: volume.id, parent: shard.parent, name: shard.name.clone() }
}

/// The marker up to its first shard.
fn head(volume: &Volume, set: &Set, path: &[u8]) -> String {
    let row = &set.row;
    let text = |value: &str| serde_json::Value::from(value).to_string();
    format!(
        "{{\n  \"version\": {MARKER_VERSION},\n  \"volume\": {},\n  \"directory\": {},\n  \"set\": {},\n  \"seq\": {},\n  \
         \"owner\": {},\n  \"begun_ms\": {},\n  \"published_ms\": {},\n  \"shards_expected\": {},\n  \"shards\": [",
        text(&volume.name),
        text(&String::from_utf8_lossy(path)),
        set.id,
        set.seq,
        text(&row.owner),
        row.created_ms,
        row.closed_ms,
        row.expected,
    )
}
