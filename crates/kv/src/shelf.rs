//! The directory of a cache, through the door: listing, looking at bundles, deleting them.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use stoker_store::{
    BoxFuture, Condition, ErrorKind, File, Key, ListEntry, ListRequest, Result, Store, StoreError,
};

use crate::bundle::{self, BUNDLE_LEN_MAX, Fault, SUFFIX, TRAILER_LEN};
use crate::index::{Content, Listed};

/// What is read of a bundle at first: the index of a thousand blocks is in it.
const TAIL_LEN: u64 = 64 << 10;
/// Bundles that are looked at together.
const LOOKS: usize = 16;
/// Files in the directory; beyond, something else is wrong.
const FILES_MAX: usize = 1 << 20;
/// Keys in one call.
const DELETES: usize = 500;

/// A bundle that was looked at.
pub(crate) struct Seen {
    pub listed: Listed,
    pub content: Content,
    /// Open, if it was to stay so.
    pub file: Option<Arc<dyn File>>,
}

/// A bundle that is looked at; none if it is gone.
type Look<'a> = BoxFuture<'a, Result<Option<Seen>>>;

/// Where the bundles are.
pub(crate) struct Shelf {
    pub store: Arc<dyn Store>,
    pub volume: String,
    /// Ends with `/`.
    pub prefix: String,
}

impl Shelf {
    /// The key of a bundle.
    pub fn key(&self, name: &str) -> Result<Key> {
        Key::new(format!("{}{name}{SUFFIX}", self.prefix))
    }

    /// All bundles, or what has a name like one.
    pub async fn list(&self) -> Result<Vec<Listed>> {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let request = ListRequest {
                prefix: self.prefix.clone().into_bytes(),
                delimiter: Some(b"/".to_vec()),
                after: after.take(),
                limit: 1000,
            };
            let page = self.store.list(&self.volume, request).await?;
            after = page.entries.last().map(|entry| entry.name().to_vec());
            for entry in page.entries {
                let ListEntry::File(info) = entry else { continue };
                if info.key.as_bytes().ends_with(SUFFIX.as_bytes()) {
                    let (version, size, modified_ms) = (info.version, info.size, info.modified_ms);
                    found.push(Listed { key: info.key, version, size, modified_ms });
                }
            }
            if found.len() > FILES_MAX {
                let message =
                    format!("more than {FILES_MAX} bundles in {}: use another directory", self.prefix);
                return Err(StoreError::new(ErrorKind::Invalid, message));
            }
            if !page.more || after.is_none() {
                return Ok(found);
            }
        }
    }

    /// Looks at many bundles at once, and keeps some of the last ones open. Those that are gone meanwhile are left out.
    pub async fn look(&self, bundles: Vec<Listed>, keep: usize) -> Result<Vec<Seen>> {
        let mut looks: Vec<Look<'_>> = Vec::with_capacity(bundles.len());
        let kept_from = bundles.len().saturating_sub(keep);
        for (at, listed) in bundles.into_iter().enumerate() {
            looks.push(Box::pin(self.look_at(listed, at >= kept_from)));
        }
        let mut looks = stream::iter(looks).buffer_unordered(LOOKS);
        let mut known = Vec::new();
        while let Some(look) = looks.next().await {
            known.extend(look?);
        }
        Ok(known)
    }

    async fn look_at(&self, listed: Listed, keeps: bool) -> Result<Option<Seen>> {
        let bad = |listed, content| Ok(Some(Seen { listed, content, file: None }));
        if listed.size > BUNDLE_LEN_MAX || listed.size < TRAILER_LEN as u64 {
            tracing::warn!("{}: {} bytes are no bundle", listed.key, listed.size);
            return bad(listed, Content::Bad);
        }
        let file = match self.open(&listed).await {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(None),
            Err(fault) => return unread(listed, fault),
        };
        if keeps {
            file.wants_all();
        }
        match read_index(file.as_ref()).await {
            Ok(Ok(content)) => Ok(Some(Seen { listed, content, file: keeps.then_some(file) })),
            Ok(Err(fault)) => {
                tracing::warn!("{}: {fault}", listed.key);
                bad(listed, if matches!(fault, Fault::TooNew(_)) { Content::TooNew } else { Content::Bad })
            }
            Err(fault) if fault.kind == ErrorKind::Corrupt => {
                tracing::warn!("{}: {fault}", listed.key);
                bad(listed, Content::Bad)
            }
            Err(fault) if matches!(fault.kind, ErrorKind::NotFound | ErrorKind::Conflict) => Ok(None),
            Err(fault) => unread(listed, fault),
        }
    }

    /// Whether this version of a bundle is still there, whoever deletes bundles.
    pub async fn is_there(&self, listed: &Listed) -> Result<bool> {
        match self.store.stat(&self.volume, &listed.key).await {
            Ok(info) => Ok(info.version == listed.version),
            Err(fault) if fault.kind == ErrorKind::NotFound => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Opens a bundle; none if it is gone or another version by now.
    pub async fn open(&self, listed: &Listed) -> Result<Option<Arc<dyn File>>> {
        match self.store.open(&self.volume, &listed.key).await {
            Ok(file) if file.info().version == listed.version && file.info().size == listed.size => {
                Ok(Some(Arc::from(file)))
            }
            Ok(_) => Ok(None),
            Err(fault) if fault.kind == ErrorKind::NotFound => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Deletes bundles; those that are gone already count as deleted.
    pub async fn delete(&self, keys: &[Key]) -> Result<()> {
        for part in keys.chunks(DELETES) {
            let part = part.iter().map(|key| (key.clone(), Condition::default())).collect();
            for done in self.store.delete(&self.volume, part).await? {
                done?;
            }
        }
        Ok(())
    }
}

/// One bundle that nobody can read now, because the nodes that have it are away, does not stop the others.
fn unread(listed: Listed, fault: StoreError) -> Result<Option<Seen>> {
    if fault.kind != ErrorKind::Unavailable {
        return Err(fault);
    }
    tracing::warn!("{}: {fault}", listed.key);
    Ok(Some(Seen { listed, content: Content::Unread, file: None }))
}

async fn read_index(file: &dyn File) -> Result<std::result::Result<Content, Fault>> {
    let size = file.info().size;
    let mut start = size.saturating_sub(TAIL_LEN);
    let mut tail = read(file, start, size).await?;
    let trailer = match bundle::decode_trailer(&tail, size) {
        Ok(trailer) => trailer,
        Err(fault) => return Ok(Err(fault)),
    };
    if trailer.index_at < start {
        start = trailer.index_at;
        tail = read(file, start, size).await?;
    }
    let at = (trailer.index_at - start) as usize;
    let index = tail.get(at..at + trailer.index_len()).unwrap_or_default();
    let written_ms = trailer.written_ms;
    Ok(trailer.decode_index(index).map(|records| Content::Blocks { records, written_ms }))
}

async fn read(file: &dyn File, start: u64, end: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity((end - start) as usize);
    while start + (bytes.len() as u64) < end {
        let at = start + bytes.len() as u64;
        let more = file.read(at, (end - at) as usize).await?;
        if more.is_empty() {
            return Err(StoreError::new(
                ErrorKind::Corrupt,
                "it ends before the length that it was opened with",
            ));
        }
        bytes.extend_from_slice(&more);
    }
    Ok(bytes)
}
