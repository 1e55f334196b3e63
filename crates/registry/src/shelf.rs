//! What is in the volume: blobs and manifests by digest, and what tags were.
//!
//! ```text
//! blobs/sha256/ab/ab12...        a blob
//! manifests/sha256/cd/cd34...    a manifest; its kind is the content type of the file
//! tags/HOST/NAME/_tags/TAG       which manifest a tag was, and when
//! ```
//!
//! What is on the shelf was verified. What was not asked for longest goes first; when that was is the modification time of the file,
//! which is written at most once an hour, so all nodes know about the same.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use stoker_store::{
    Attributes, AttributesChange, Condition, ErrorKind, File, FileInfo, Filler, Finish, Key, ListEntry,
    ListRequest, Result, Store, StoreError, Subject, WriteRequest,
};

use crate::NowMs;
use crate::digest::Digest;
use crate::stats::{Stats, add};

/// How much older the time of last use in the volume may be.
const TOUCH_MS: u64 = 3_600_000;
/// How long what was listed is believed while nothing has to go.
const LISTED_MS: u64 = 60_000;
/// How long it is believed at all: other nodes put files there as well.
const LISTED_MS_MAX: u64 = 10 * LISTED_MS;
/// Most files that are listed.
const FILES_MAX: usize = 1_000_000;
/// Files that are deleted in one call.
const DELETES: usize = 100;
/// Longest note of a tag.
const TAG_BYTES_MAX: u64 = 4_096;
/// After an eviction there is room for a while: so much of the budget stays, in percent.
const KEEP_PERCENT: u64 = 95;

/// What a digest is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Kind {
    Blob,
    Manifest,
}

impl Kind {
    fn directory(self) -> &'static str {
        match self {
            Kind::Blob => "blobs/sha256/",
            Kind::Manifest => "manifests/sha256/",
        }
    }

    /// What the specification says if there is none.
    pub fn unknown(self) -> &'static str {
        match self {
            Kind::Blob => "BLOB_UNKNOWN",
            Kind::Manifest => "MANIFEST_UNKNOWN",
        }
    }

    /// The part of an upstream's path.
    pub fn part(self) -> &'static str {
        match self {
            Kind::Blob => "blobs",
            Kind::Manifest => "manifests",
        }
    }
}

/// What a tag was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Tag {
    pub digest: String,
    /// When the upstream said so, milliseconds since 1970.
    pub seen_ms: u64,
}

#[derive(Clone, Copy)]
struct Held {
    bytes: u64,
    used_ms: u64,
}

#[derive(Default)]
struct Listed {
    files: HashMap<(Kind, Digest), Held>,
    bytes: u64,
    at_ms: Option<u64>,
}

impl Listed {
    fn put(&mut self, what: (Kind, Digest), held: Held) {
        self.bytes += held.bytes;
        let before = self.files.insert(what, held).map_or(0, |held| held.bytes);
        self.bytes -= before;
    }

    fn take(&mut self, what: &(Kind, Digest)) -> u64 {
        let bytes = self.files.remove(what).map_or(0, |held| held.bytes);
        self.bytes -= bytes;
        bytes
    }
}

/// The files in the volume.
pub(crate) struct Shelf {
    store: Arc<dyn Store>,
    volume: String,
    bytes_max: u64,
    now_ms: NowMs,
    stats: Arc<Stats>,
    listed: Mutex<Listed>,
    /// Bytes that are on their way.
    reserved: AtomicU64,
    /// One eviction at a time.
    evicting: tokio::sync::Mutex<()>,
}

/// Room for what is on its way, until it is dropped.
pub(crate) struct Room<'a> {
    shelf: &'a Shelf,
    bytes: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.shelf.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Shelf {
    pub fn new(
        store: Arc<dyn Store>,
        volume: String,
        bytes_max: u64,
        now_ms: NowMs,
        stats: Arc<Stats>,
    ) -> Shelf {
        let (listed, evicting) = (Mutex::default(), tokio::sync::Mutex::default());
        Shelf { store, volume, bytes_max, now_ms, stats, listed, reserved: AtomicU64::new(0), evicting }
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now_ms(&self) -> u64 {
        (self.now_ms)()
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes that are held, as far as is known.
    pub fn held_bytes(&self) -> u64 {
        self.listed().bytes
    }

    /// What has this digest, if it is there; it was used now.
    pub async fn open(&self, kind: Kind, digest: &Digest) -> Result<Option<Box<dyn File>>> {
        let key = key_of(kind, digest)?;
        let file = match self.store.open(&self.volume, &key).await {
            Ok(file) => file,
            Err(fault) if is_absent(&fault) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        self.used(kind, digest, &key, file.info()).await;
        Ok(Some(file))
    }

    /// Remembers that it is used, and writes that down now and then.
    async fn used(&self, kind: Kind, digest: &Digest, key: &Key, info: &FileInfo) {
        let (now, written_ms) = (self.now_ms(), used_ms(info));
        self.listed().put((kind, digest.clone()), Held { bytes: info.size, used_ms: now });
        if now.saturating_sub(written_ms) < TOUCH_MS {
            return;
        }
        let mtime_ns = i64::try_from(now.saturating_mul(1_000_000)).ok();
        let change = AttributesChange { mtime_ns, ..AttributesChange::default() };
        if let Err(fault) = self.store.set_attributes(&self.volume, key, change).await {
            tracing::debug!("the last use of {key} is not written down: {fault}");
        }
    }

    /// Begins a file that does not exist; none if it does.
    pub async fn begin(
        &self,
        kind: Kind,
        digest: &Digest,
        media_type: &str,
        size: Option<u64>,
    ) -> Result<Option<Filler>> {
        let key = key_of(kind, digest)?;
        let mtime_ns = i64::try_from(self.now_ms().saturating_mul(1_000_000)).ok();
        let attributes =
            Attributes { content_type: Some(media_type.to_owned()), mtime_ns, ..Attributes::default() };
        let request = WriteRequest { attributes, condition: Condition::absent(), size, append: false };
        match self.store.create(&self.volume, &key, request).await {
            Ok(writer) => Ok(Some(Filler::new(writer))),
            Err(fault) if is_there(&fault) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Makes a file visible that was verified. That another node was quicker is fine: it is the same.
    pub async fn finish(&self, kind: Kind, digest: &Digest, filler: Filler) -> Result<()> {
        let bytes = filler.len();
        match filler.finish(Finish::default()).await {
            Err(fault) if !is_there(&fault) => return Err(fault),
            _ => {}
        }
        self.listed().put((kind, digest.clone()), Held { bytes, used_ms: self.now_ms() });
        Ok(())
    }

    /// What a tag was, if anybody knows.
    pub async fn tag(&self, host: &str, name: &str, tag: &str) -> Result<Option<Tag>> {
        let file = match self.store.open(&self.volume, &tag_key(host, name, tag)?).await {
            Ok(file) if file.info().size <= TAG_BYTES_MAX => file,
            Ok(_) => return Ok(None),
            Err(fault) if is_absent(&fault) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < file.info().size {
            let more = file.read(bytes.len() as u64, TAG_BYTES_MAX as usize).await?;
            if more.is_empty() {
                break;
            }
            bytes.extend_from_slice(&more);
        }
        // What cannot be read is asked for again.
        Ok(serde_json::from_slice(&bytes).ok())
    }

    /// Remembers what a tag is.
    pub async fn set_tag(&self, host: &str, name: &str, tag: &str, digest: &Digest) -> Result<()> {
        let note = Tag { digest: digest.to_string(), seen_ms: self.now_ms() };
        let bytes = serde_json::to_vec(&note)
            .map_err(|error| StoreError::new(ErrorKind::Invalid, error.to_string()))?;
        let request = WriteRequest { size: Some(bytes.len() as u64), ..WriteRequest::default() };
        let writer = self.store.create(&self.volume, &tag_key(host, name, tag)?, request).await?;
        let mut filler = Filler::new(writer);
        filler.put(&bytes).await?;
        filler.finish(Finish::default()).await.map(|_| ())
    }

    /// Tags of a repository that somebody asked for.
    pub async fn tags(&self, host: &str, name: &str) -> Result<Vec<String>> {
        let prefix = format!("tags/{host}/{name}/_tags/").into_bytes();
        let request = ListRequest { prefix: prefix.clone(), limit: 1000, ..ListRequest::default() };
        let page = self.store.list(&self.volume, request).await?;
        let tag = |entry: &ListEntry| String::from_utf8(entry.name().get(prefix.len()..)?.to_vec()).ok();
        Ok(page.entries.iter().filter_map(tag).collect())
    }

    /// Lets go of what was not used for longest, so that these bytes fit beside the rest and what is on its way.
    pub async fn make_room(&self, bytes: u64) -> Result<Room<'_>> {
        let _one = self.evicting.lock().await;
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        let room = Room { shelf: self, bytes };
        let coming = self.reserved.load(Ordering::Relaxed);
        let is_full = || self.listed().bytes.saturating_add(coming) > self.bytes_max;
        let believed = if is_full() { LISTED_MS } else { LISTED_MS_MAX };
        let (listed_ms, now) = (self.listed().at_ms, self.now_ms());
        if listed_ms.is_none_or(|at| now.saturating_sub(at) > believed) {
            self.list_all().await?;
        }
        if !is_full() {
            return Ok(room);
        }
        let keep = (self.bytes_max / 100 * KEEP_PERCENT).saturating_sub(coming);
        let mut oldest: Vec<((Kind, Digest), u64)> =
            self.listed().files.iter().map(|(what, held)| (what.clone(), held.used_ms)).collect();
        oldest.sort_unstable_by(|one, other| (one.1, &one.0).cmp(&(other.1, &other.0)));
        for some in oldest.chunks(DELETES) {
            if self.listed().bytes <= keep {
                break;
            }
            self.delete(some, keep).await?;
        }
        Ok(room)
    }

    async fn delete(&self, some: &[((Kind, Digest), u64)], keep: u64) -> Result<()> {
        let mut keys = BTreeMap::new();
        for (what, _) in some {
            let mut listed = self.listed();
            if listed.bytes <= keep {
                break;
            }
            keys.insert(key_of(what.0, &what.1)?, listed.take(what));
        }
        let wanted = keys.keys().map(|key| (key.clone(), Condition::default())).collect();
        let done = self.store.delete(&self.volume, wanted).await?;
        for (bytes, deleted) in keys.values().zip(done) {
            if deleted? {
                add(&self.stats.evicted_bytes, *bytes);
            }
        }
        Ok(())
    }

    /// What is there, by whomever it was put.
    async fn list_all(&self) -> Result<()> {
        let mut found = Listed { at_ms: Some(self.now_ms()), ..Listed::default() };
        for kind in [Kind::Blob, Kind::Manifest] {
            let prefix = kind.directory().as_bytes().to_vec();
            let mut after = None;
            loop {
                let request =
                    ListRequest { prefix: prefix.clone(), after, limit: 1000, ..ListRequest::default() };
                let page = self.store.list(&self.volume, request).await?;
                for entry in &page.entries {
                    let ListEntry::File(info) = entry else { continue };
                    let hex = info.key.as_str().and_then(|key| key.rsplit('/').next());
                    let Some(digest) = hex.and_then(Digest::of_hex) else { continue };
                    found.put((kind, digest), Held { bytes: info.size, used_ms: used_ms(info) });
                }
                match page.entries.last().filter(|_| page.more && found.files.len() < FILES_MAX) {
                    Some(entry) => after = Some(entry.name().to_vec()),
                    None => break,
                }
            }
        }
        let mut listed = self.listed();
        // What was used since is known here alone.
        for (what, held) in &mut found.files {
            let known_ms = listed.files.get(what).map_or(0, |held| held.used_ms);
            held.used_ms = held.used_ms.max(known_ms);
        }
        *listed = found;
        Ok(())
    }
}

/// When a file was used last, as far as the volume knows.
fn used_ms(info: &FileInfo) -> u64 {
    let written = info.attributes.mtime_ns.and_then(|ns| u64::try_from(ns / 1_000_000).ok());
    written.unwrap_or(info.modified_ms)
}

fn key_of(kind: Kind, digest: &Digest) -> Result<Key> {
    Key::new(format!("{}{}/{}", kind.directory(), &digest.hex()[..2], digest.hex()))
}

fn tag_key(host: &str, name: &str, tag: &str) -> Result<Key> {
    Key::new(format!("tags/{host}/{name}/_tags/{tag}"))
}

fn is_absent(fault: &StoreError) -> bool {
    fault.kind == ErrorKind::NotFound && fault.subject == Subject::Key
}

fn is_there(fault: &StoreError) -> bool {
    fault.kind == ErrorKind::Conflict && fault.subject == Subject::Condition
}

/// The kind of content that a file was stored with.
pub(crate) fn media_type(info: &FileInfo) -> &str {
    info.attributes.content_type.as_deref().unwrap_or("application/octet-stream")
}
