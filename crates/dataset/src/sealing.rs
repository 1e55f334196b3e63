//! Sealing: a seal for tar shards that are there already, found by their headers; and how a seal is written and read.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{StreamExt, stream};
use serde::Serialize;
use serde_json::json;
use stoker_store::{
    Attributes, Condition, ErrorKind, File, FileInfo, Filler, Key, ListEntry, ListRequest, Store, StoreError,
    WriteRequest,
};

use crate::fault::{Fault, Result, path_of};
use crate::meter::{self, Meter};
use crate::seal::{Seal, SealWriter, Sealed, ShardRow, identity_text};
use crate::shard;
use crate::{readback, tar};

/// Longest seal that is read here.
const SEAL_LEN_MAX: u64 = 64 << 30;
/// How much is read for one header, at least and at most: where headers are near to each other, many come with one read.
const WINDOW_MIN: u64 = 4 << 10;
const WINDOW_MAX: u64 = 1 << 20;

/// What is to be sealed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealOptions {
    /// Volume of the shards.
    pub volume: String,
    /// Keys of tars, or what the keys of several tars start with; shards are in this order, then in that of their keys.
    pub prefixes: Vec<String>,
    /// Volume of the seal.
    pub to_volume: String,
    /// Key of the seal.
    pub to: String,
    /// Shards at once.
    pub jobs: usize,
    /// Another seal under this key may be replaced.
    pub replace: bool,
}

/// What was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SealReport {
    /// Volume of the seal.
    pub volume: String,
    /// Key of the seal.
    pub seal: String,
    /// What tells the dataset from all others.
    pub identity: String,
    /// Samples.
    pub samples: u64,
    /// Shards.
    pub shards: u64,
    /// Bytes of all samples, with headers and padding.
    pub bytes: u64,
    /// Length of the seal itself.
    pub seal_bytes: u64,
}

/// Seals shards.
pub async fn seal_shards(
    store: Arc<dyn Store>,
    options: SealOptions,
    meter: Arc<Meter>,
) -> Result<SealReport> {
    let to = Key::new(options.to.as_bytes());
    let to =
        to.map_err(|error| Fault::Store { path: path_of(&options.to_volume, options.to.as_bytes()), error })?;
    if options.jobs == 0 || options.jobs > 256 {
        let message = format!("{} shards at once: 1 to 256", options.jobs);
        return Err(Fault::new(path_of(&options.to_volume, to.as_bytes()), ErrorKind::Invalid, message));
    }
    let found = find(&*store, &options).await?;
    meter.shards_total.store(found.len() as u64, Ordering::Relaxed);
    meter.bytes_total.store(found.iter().map(|info| info.size).sum(), Ordering::Relaxed);
    let made = json!({"by": "stoker seal", "release": env!("CARGO_PKG_VERSION")});
    let mut writer = SealWriter::new(options.volume.clone(), made);
    let mut scans = Vec::with_capacity(found.len());
    for info in &found {
        scans.push(scan(&*store, &options.volume, info));
    }
    let mut scans = stream::iter(scans).buffered(options.jobs);
    while let Some(scanned) = scans.next().await {
        let (row, samples) = scanned?;
        let path = path_of(&options.volume, row.key.as_bytes());
        let fault = |error| Fault::Store { path: path.clone(), error };
        meter::add(&meter.bytes_verified, row.size);
        writer.shard(row).map_err(fault)?;
        samples.each(|start, len, stem| writer.sample(start, len, stem)).map_err(fault)?;
        meter::add(&meter.files, samples.rows.len() as u64);
        meter::add(&meter.shards_done, 1);
    }
    let fault = |error| Fault::Store { path: path_of(&options.to_volume, to.as_bytes()), error };
    let sealed = writer.finish().map_err(fault)?;
    let identity = write(&*store, &options.to_volume, &to, &sealed, options.replace).await?;
    Ok(SealReport {
        volume: options.to_volume,
        seal: options.to,
        identity: identity_text(identity),
        samples: sealed.samples(),
        shards: sealed.shards(),
        bytes: sealed.bytes(),
        seal_bytes: sealed.len(),
    })
}

/// The shards that are meant.
async fn find(store: &dyn Store, options: &SealOptions) -> Result<Vec<FileInfo>> {
    let volume = &options.volume;
    let mut found: Vec<FileInfo> = Vec::new();
    for prefix in &options.prefixes {
        let before = found.len();
        let mut after = None;
        loop {
            let wish = prefix.as_bytes().to_vec();
            let request = ListRequest { prefix: wish, after, limit: 1000, ..ListRequest::default() };
            let page = store.list(volume, request).await;
            let page =
                page.map_err(|error| Fault::Store { path: path_of(volume, prefix.as_bytes()), error })?;
            let files = page.entries.iter().filter_map(|entry| match entry {
                ListEntry::File(info) if info.key.as_bytes().ends_with(b".tar") => Some((**info).clone()),
                _ => None,
            });
            found.extend(files);
            match page.entries.last().filter(|_| page.more) {
                Some(last) => after = Some(last.name().to_vec()),
                None => break,
            }
        }
        if found.len() == before {
            let message = "no .tar is there whose key starts like this";
            return Err(Fault::new(path_of(volume, prefix.as_bytes()), ErrorKind::NotFound, message));
        }
    }
    let mut seen = std::collections::HashSet::new();
    for info in &found {
        let path = path_of(volume, info.key.as_bytes());
        if info.key.as_str().is_none() {
            return Err(Fault::new(path, ErrorKind::Invalid, "its key is not UTF-8: rename it"));
        }
        if !seen.insert(info.key.as_bytes()) {
            let message = "it is meant twice: a shard is in a seal once";
            return Err(Fault::new(path, ErrorKind::Invalid, message));
        }
    }
    Ok(found)
}

/// Samples of a shard in few bytes.
#[derive(Default)]
struct Samples {
    /// Where each begins and ends, and where its stem ends in `stems`.
    rows: Vec<(u64, u64, u64)>,
    stems: Vec<u8>,
}

impl Samples {
    /// Adds a member: to the sample before if it has the same stem, else as the first of a new one.
    fn add(&mut self, member: &tar::Member) {
        let stem = tar::stem(&member.name);
        let first = self.rows.len().checked_sub(2).map_or(0, |before| self.rows[before].2 as usize);
        match self.rows.last_mut() {
            Some(last) if &self.stems[first..] == stem => last.1 = member.end,
            _ => {
                self.stems.extend_from_slice(stem);
                self.rows.push((member.start, member.end, self.stems.len() as u64));
            }
        }
    }

    fn each(
        &self,
        mut give: impl FnMut(u64, u64, &[u8]) -> stoker_store::Result<()>,
    ) -> stoker_store::Result<()> {
        let mut first = 0;
        for &(start, end, last) in &self.rows {
            give(start, end - start, &self.stems[first..last as usize])?;
            first = last as usize;
        }
        Ok(())
    }
}

/// The samples of a shard, by its headers.
async fn scan(store: &dyn Store, volume: &str, found: &FileInfo) -> Result<(ShardRow, Samples)> {
    let key = &found.key;
    let file = store.open(volume, key).await.map_err(Fault::of(volume, key))?;
    let info = file.info();
    let row = ShardRow {
        key: key.to_string(),
        size: info.size,
        version: info.version.to_string(),
        etag: info.etag.clone(),
    };
    let mut window = Window { file: &*file, at: 0, bytes: Vec::new(), len: WINDOW_MIN };
    let mut scanner = tar::Scanner::whole(info.size);
    let mut samples = Samples::default();
    while let Some((at, len)) = scanner.wants().map_err(Fault::of(volume, key))? {
        let bytes = window.get(at, len).await.map_err(Fault::of(volume, key))?;
        let member = scanner.take(bytes).map_err(Fault::of(volume, key))?;
        if let Some(member) = member.filter(|member| member.is_file) {
            samples.add(&member);
        }
    }
    Ok((row, samples))
}

/// A moving view of a file.
struct Window<'a> {
    file: &'a dyn File,
    at: u64,
    bytes: Vec<u8>,
    /// How much is read next.
    len: u64,
}

impl Window<'_> {
    async fn get(&mut self, at: u64, len: usize) -> stoker_store::Result<&[u8]> {
        let end = self.at + self.bytes.len() as u64;
        if at < self.at || at + len as u64 > end {
            // Near behind what was read: the next are near too. Far away: what lies between is not read.
            let is_near = at >= self.at && at < end + self.len;
            self.len = if is_near { (2 * self.len).min(WINDOW_MAX) } else { (self.len / 2).max(WINDOW_MIN) };
            self.fill(at, self.len.max(len as u64)).await?;
        }
        let first = (at - self.at) as usize;
        let cut = || StoreError::new(ErrorKind::Corrupt, "it ends before its length");
        self.bytes.get(first..first + len).ok_or_else(cut)
    }

    async fn fill(&mut self, at: u64, len: u64) -> stoker_store::Result<()> {
        let len = len.min(self.file.info().size.saturating_sub(at)) as usize;
        self.at = at;
        self.bytes.clear();
        while self.bytes.len() < len {
            let bytes = self.file.read(at + self.bytes.len() as u64, len - self.bytes.len()).await?;
            if bytes.is_empty() {
                break;
            }
            self.bytes.extend_from_slice(&bytes);
        }
        Ok(())
    }
}

/// Writes a seal and reads it back; gives its identity. One that is there already and is the same is left as it is.
pub async fn write(
    store: &dyn Store,
    volume: &str,
    key: &Key,
    sealed: &Sealed,
    replace: bool,
) -> Result<u64> {
    let identity = sealed.identity();
    let fault = || Fault::of(volume, key);
    if let Some(before) = read(store, volume, key).await? {
        if before.len() as u64 == sealed.len() && before.ends_with(&identity.to_le_bytes()) {
            return Ok(identity);
        }
        if !replace {
            let message = "there is another file of this name: choose another, or ask to replace it";
            return Err(Fault::new(path_of(volume, key.as_bytes()), ErrorKind::Conflict, message));
        }
    }
    let attributes = Attributes {
        content_type: Some("application/vnd.stoker.seal".to_owned()),
        meta: vec![("stoker-seal".to_owned(), identity_text(identity))],
        ..Attributes::default()
    };
    let condition = if replace { Condition::default() } else { Condition::absent() };
    let request = WriteRequest { attributes, condition, size: Some(sealed.len()), append: false };
    let writer = store.create(volume, key, request).await.map_err(fault())?;
    let mut sink = Filler::new(writer);
    for piece in sealed.pieces() {
        sink.put(&piece).await.map_err(fault())?;
    }
    let (receipt, sum) = shard::publish(sink).await.map_err(fault())?;
    let counter = Default::default();
    readback::verify(store, volume, key, receipt.version, sum, &counter).await.map_err(fault())?;
    Ok(identity)
}

/// The bytes under a key; none if there is no such file.
async fn read(store: &dyn Store, volume: &str, key: &Key) -> Result<Option<Vec<u8>>> {
    let file = match store.open(volume, key).await {
        Err(error) if error.kind == ErrorKind::NotFound && error.subject == stoker_store::Subject::Key => {
            return Ok(None);
        }
        other => other.map_err(Fault::of(volume, key))?,
    };
    let len = file.info().size;
    if len > SEAL_LEN_MAX {
        let message = format!("it has {len} bytes: that is no seal");
        return Err(Fault::new(path_of(volume, key.as_bytes()), ErrorKind::Conflict, message));
    }
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < len {
        let want = (len - bytes.len() as u64).min(WINDOW_MAX) as usize;
        let read = file.read(bytes.len() as u64, want).await.map_err(Fault::of(volume, key))?;
        if read.is_empty() {
            let message = "it ends before its length";
            return Err(Fault::new(path_of(volume, key.as_bytes()), ErrorKind::Corrupt, message));
        }
        bytes.extend_from_slice(&read);
    }
    Ok(Some(bytes))
}

/// Versions of the shards that a seal tells of, by key; none if there is no such file, and nothing in it if it is no seal.
pub async fn versions(store: &dyn Store, volume: &str, key: &Key) -> Result<Option<HashMap<String, String>>> {
    let Some(bytes) = read(store, volume, key).await? else { return Ok(None) };
    let rows = Seal::open(&bytes).map(|seal| seal.shards().to_vec()).unwrap_or_default();
    Ok(Some(rows.into_iter().map(|row| (row.key, row.version)).collect()))
}
