//! Packing: find the files, plan the shards, make those that are not there, write the seal last.
//!
//! A dataset is complete when its seal is there. Until then a run that was killed can be repeated: shards that are complete
//! and hold the same files are kept. Nothing that is there under the names of a dataset is replaced unless that is asked for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::json;
use stoker_store::{Condition, ErrorKind, FileInfo, Key, ListEntry, ListRequest, Store};
use tokio::task::JoinSet;

use crate::fault::{Fault, Result, path_of};
use crate::inputs::{Inputs, Source};
use crate::meter::{self, Meter};
use crate::seal::{SealWriter, Sealed, ShardRow, identity_text};
use crate::sealing;
use crate::shard::{Present, Shard};
use crate::{plan, tar};

/// How long shards are if nobody says otherwise.
pub const SHARD_BYTES_DEFAULT: u64 = 256 << 20;
/// Shorter shards are refused: they would be many small files again.
pub const SHARD_BYTES_MIN: u64 = 64 << 10;
/// Shards at once if nobody says otherwise.
pub const JOBS_DEFAULT: usize = 8;
const JOBS_MAX: usize = 256;
/// Questions about shards at once.
const LOOKS: usize = 32;
/// Files that are deleted with one call.
const DELETES: usize = 1000;

/// What is to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackOptions {
    /// Volume of the shards and the seal.
    pub volume: String,
    /// What their keys start with: `PREFIX-000000.tar` and so on, and `PREFIX.seal`.
    pub prefix: String,
    /// About how long shards are; a longer sample has one of its own.
    pub shard_bytes: u64,
    /// Shards at once.
    pub jobs: usize,
    /// A dataset of other files under this prefix may be replaced.
    pub replace: bool,
}

/// What was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PackReport {
    /// Volume.
    pub volume: String,
    /// Key of the seal.
    pub seal: String,
    /// What tells the dataset from all others.
    pub identity: String,
    /// Files that were packed.
    pub files: u64,
    /// Samples they form.
    pub samples: u64,
    /// Shards.
    pub shards: u64,
    /// Shards that an earlier run had completed.
    pub resumed: u64,
    /// Bytes of all shards.
    pub bytes: u64,
    /// Files whose names have nothing in front of a dot: WebDataset skips them.
    pub skipped_by_webdataset: u64,
}

/// Packs.
pub async fn pack(
    store: Arc<dyn Store>,
    source: Source,
    options: PackOptions,
    meter: Arc<Meter>,
) -> Result<PackReport> {
    check(&source, &options)?;
    let volume = store.volume(&options.volume).await;
    volume.map_err(|error| Fault::Store { path: format!("stoker://{}", options.volume), error })?;
    let inputs = Arc::new(Inputs::find(&*store, source, &meter).await?);
    let mut work = Work::plan(store, inputs, options, meter).await?;
    work.look().await?;
    work.make_room().await?;
    let resumed = work.rows.iter().flatten().count() as u64;
    work.make_shards().await?;
    let sealed = work.sealed()?;
    let identity = work.finish(&sealed).await?;
    let names = (0..work.inputs.len()).map(|index| work.inputs.get(index).name);
    Ok(PackReport {
        volume: work.options.volume.clone(),
        seal: work.seal.to_string(),
        identity: identity_text(identity),
        files: work.inputs.len() as u64,
        samples: sealed.samples(),
        shards: sealed.shards(),
        resumed,
        bytes: work.shards.iter().map(|shard| shard.planned.size).sum(),
        skipped_by_webdataset: names.filter(|name| !tar::has_extension(name)).count() as u64,
    })
}

fn check(source: &Source, options: &PackOptions) -> Result<()> {
    let path = path_of(&options.volume, options.prefix.as_bytes());
    let refuse = |message: String| Err(Fault::new(path.clone(), ErrorKind::Invalid, message));
    if options.prefix.is_empty() || options.prefix.ends_with('/') {
        return refuse("a dataset needs a name: VOLUME/PREFIX, such as data/train".to_owned());
    }
    if options.shard_bytes < SHARD_BYTES_MIN {
        return refuse(format!("shards of {} bytes: at least {SHARD_BYTES_MIN}", options.shard_bytes));
    }
    if options.jobs == 0 || options.jobs > JOBS_MAX {
        return refuse(format!("{} shards at once: 1 to {JOBS_MAX}", options.jobs));
    }
    if let Source::Volume { volume, directory } = source
        && *volume == options.volume
        && options.prefix.starts_with(&Source::prefix(directory))
    {
        return refuse(format!("it is inside {}: the dataset would pack itself", source.path()));
    }
    Ok(())
}

struct Work {
    store: Arc<dyn Store>,
    inputs: Arc<Inputs>,
    options: PackOptions,
    meter: Arc<Meter>,
    shards: Vec<Arc<Shard>>,
    seal: Key,
    /// Versions that a seal tells of which is there already.
    sealed_before: Option<HashMap<String, String>>,
    /// Shards that are there but wait to be read back.
    unverified: HashMap<usize, Box<FileInfo>>,
    /// Shards that are complete.
    rows: Vec<Option<ShardRow>>,
    /// Something else under the name of a shard.
    other: Option<Key>,
    /// Shards of an earlier dataset with higher numbers.
    stale: Vec<Key>,
}

impl Work {
    async fn plan(
        store: Arc<dyn Store>,
        inputs: Arc<Inputs>,
        options: PackOptions,
        meter: Arc<Meter>,
    ) -> Result<Work> {
        let key = |end: String| {
            let bytes = format!("{}{end}", options.prefix);
            Key::new(bytes.as_bytes())
                .map_err(|error| Fault::Store { path: path_of(&options.volume, bytes.as_bytes()), error })
        };
        let planned = plan::shards(&inputs, options.shard_bytes)?;
        let mut shards = Vec::with_capacity(planned.len());
        for (number, planned) in planned.into_iter().enumerate() {
            shards.push(Arc::new(Shard {
                volume: options.volume.clone(),
                key: key(format!("-{number:06}.tar"))?,
                note: key(format!(".pack/{number:06}.json"))?,
                digest: plan::digest(&inputs, &planned),
                planned,
            }));
        }
        meter.bytes_total.store(shards.iter().map(|shard| shard.planned.size).sum(), Ordering::Relaxed);
        meter.shards_total.store(shards.len() as u64, Ordering::Relaxed);
        let (seal, rows) = (key(".seal".to_owned())?, vec![None; shards.len()]);
        let sealed_before = sealing::versions(&*store, &options.volume, &seal).await?;
        let (unverified, other, stale) = (HashMap::new(), None, Vec::new());
        Ok(Work {
            store,
            inputs,
            options,
            meter,
            shards,
            seal,
            sealed_before,
            unverified,
            rows,
            other,
            stale,
        })
    }

    /// What is there already.
    async fn look(&mut self) -> Result<()> {
        let before = self.sealed_before.as_ref();
        let store = &*self.store;
        let mut looks = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            let is_sealed = |info: &FileInfo| {
                before.and_then(|rows| rows.get(&info.key.to_string())) == Some(&info.version.to_string())
            };
            looks.push(shard.look(store, is_sealed));
        }
        let found: Vec<Present> = stream::iter(looks).buffered(LOOKS).try_collect().await?;
        for (number, found) in found.into_iter().enumerate() {
            match found {
                Present::Nothing => {}
                Present::Done(row) => {
                    meter::add(&self.meter.bytes_written, row.size);
                    meter::add(&self.meter.bytes_verified, row.size);
                    meter::add(&self.meter.shards_done, 1);
                    self.rows[number] = Some(row);
                }
                Present::Unverified(info) => {
                    self.unverified.insert(number, info);
                }
                Present::Other => self.other = self.other.take().or(Some(self.shards[number].key.clone())),
            }
        }
        self.stale = self.find_stale().await?;
        Ok(())
    }

    /// Shards of a dataset of this name that the plan does not have: WebDataset would read them too.
    async fn find_stale(&self) -> Result<Vec<Key>> {
        let start = format!("{}-", self.options.prefix).into_bytes();
        let mut after = self.shards.last().map(|shard| shard.key.as_bytes().to_vec());
        let mut stale = Vec::new();
        loop {
            let request = ListRequest { prefix: start.clone(), after, limit: 1000, ..ListRequest::default() };
            let page = self.store.list(&self.options.volume, request).await;
            let page =
                page.map_err(|error| Fault::Store { path: path_of(&self.options.volume, &start), error })?;
            let is_shard = |key: &Key| {
                let number =
                    key.as_bytes().strip_prefix(&start[..]).and_then(|end| end.strip_suffix(b".tar"));
                number.is_some_and(|number| number.len() == 6 && number.iter().all(u8::is_ascii_digit))
            };
            stale.extend(page.entries.iter().filter_map(ListEntry::key).filter(|key| is_shard(key)).cloned());
            match page.entries.last().filter(|_| page.more) {
                Some(last) => after = Some(last.name().to_vec()),
                None => return Ok(stale),
            }
        }
    }

    /// Refuses to replace, or takes away what is in the way: the seal first, so that nobody opens one whose shards go.
    async fn make_room(&self) -> Result<()> {
        let is_complete = self.rows.iter().all(Option::is_some);
        let seal = (self.sealed_before.is_some() && !is_complete).then_some(&self.seal);
        let in_the_way = self.other.as_ref().or(self.stale.first()).or(seal);
        let Some(key) = in_the_way else { return Ok(()) };
        if !self.options.replace {
            let message =
                "it is there and holds other files than these: choose another prefix, or ask to replace it";
            return Err(Fault::new(
                path_of(&self.options.volume, key.as_bytes()),
                ErrorKind::Conflict,
                message,
            ));
        }
        let seal = self.sealed_before.is_some().then(|| self.seal.clone());
        self.delete(seal.into_iter().collect()).await?;
        self.delete(self.stale.clone()).await
    }

    async fn delete(&self, keys: Vec<Key>) -> Result<()> {
        for keys in keys.chunks(DELETES) {
            let wishes = keys.iter().map(|key| (key.clone(), Condition::default())).collect();
            let done = self.store.delete(&self.options.volume, wishes).await;
            let done = done.map_err(Fault::of(&self.options.volume, &keys[0]))?;
            for (done, key) in done.into_iter().zip(keys) {
                done.map_err(Fault::of(&self.options.volume, key))?;
            }
        }
        Ok(())
    }

    /// Makes the shards that lack, some at once. The first that fails ends the others.
    async fn make_shards(&mut self) -> Result<()> {
        let mut missing: Vec<usize> = (0..self.shards.len()).filter(|n| self.rows[*n].is_none()).collect();
        missing.reverse();
        let mut tasks: JoinSet<(usize, Result<ShardRow>)> = JoinSet::new();
        loop {
            while tasks.len() < self.options.jobs
                && let Some(number) = missing.pop()
            {
                let (store, inputs) = (self.store.clone(), self.inputs.clone());
                let (shard, meter) = (self.shards[number].clone(), self.meter.clone());
                let (adopted, replace) = (self.unverified.remove(&number), self.options.replace);
                tasks.spawn(async move {
                    let made = make(&store, &inputs, &shard, adopted, replace, &meter).await;
                    (number, made)
                });
            }
            match tasks.join_next().await {
                None => return Ok(()),
                Some(Ok((number, row))) => {
                    self.rows[number] = Some(row?);
                    meter::add(&self.meter.shards_done, 1);
                }
                Some(Err(error)) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => {
                        let path = path_of(&self.options.volume, self.seal.as_bytes());
                        return Err(Fault::new(path, ErrorKind::Closed, "the packing was ended"));
                    }
                },
            }
        }
    }

    fn sealed(&self) -> Result<Sealed> {
        let fault = |error| Fault::Store { path: path_of(&self.options.volume, self.seal.as_bytes()), error };
        let made = json!({"by": "stoker pack", "release": env!("CARGO_PKG_VERSION")});
        let mut writer = SealWriter::new(self.options.volume.clone(), made);
        for (shard, row) in self.shards.iter().zip(&self.rows) {
            writer.shard(row.clone().expect("all shards were made")).map_err(fault)?;
            for sample in plan::samples(&self.inputs, &shard.planned) {
                let sample = sample?;
                writer.sample(sample.start, sample.len, sample.stem).map_err(fault)?;
            }
        }
        writer.finish().map_err(fault)
    }

    /// Writes the seal, then takes the notes away.
    async fn finish(&self, sealed: &Sealed) -> Result<u64> {
        let (volume, replace) = (&self.options.volume, self.options.replace);
        let identity = sealing::write(&*self.store, volume, &self.seal, sealed, replace).await?;
        let notes: Vec<Key> = self.shards.iter().map(|shard| shard.note.clone()).collect();
        // The dataset is complete; notes that stay do no harm and go with the next run.
        let _ = self.delete(notes).await;
        Ok(identity)
    }
}

async fn make(
    store: &Arc<dyn Store>,
    inputs: &Arc<Inputs>,
    shard: &Shard,
    adopted: Option<Box<FileInfo>>,
    replace: bool,
    meter: &Meter,
) -> Result<ShardRow> {
    if let Some(info) = adopted {
        if let Some(row) = shard.adopt(&**store, &info, meter).await? {
            meter::add(&meter.bytes_written, row.size);
            return Ok(row);
        }
        // It is ours, but there is nothing to compare it with.
        return shard.make(store, inputs, true, meter).await;
    }
    shard.make(store, inputs, replace, meter).await
}

#[cfg(test)]
mod tests;
