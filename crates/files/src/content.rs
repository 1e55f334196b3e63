//! The bytes of a file: what is published, what waits, what was sent ahead.

use std::sync::Arc;

use stoker_format::VersionId;
use stoker_store::{Buf, File, FileInfo, Key, Receipt, StoreError, Writer};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::overlay::Overlay;

/// The published version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Base {
    pub version: VersionId,
    pub etag: String,
}

/// What a publish would leave, by which its version is known again if the answer was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub mtime_ns: Option<i64>,
    pub size: u64,
}

/// Publishes without an answer that are remembered. Each of a file is tried until it is answered, so there are few.
const UNANSWERED_MAX: usize = 8;

/// Bytes that a node has already and that are not published. They are still here as well, so that losing the node costs
/// time and nothing else.
pub(crate) struct Stream {
    /// Where it will be published. Of no use once the file has another name.
    pub key: Key,
    pub writer: Box<dyn Writer>,
    pub buf: Option<Buf>,
    /// What is in front of this offset was handed over.
    pub sent: u64,
    /// The time that the version will have.
    pub mtime_ns: Option<i64>,
    /// It goes on with the version that is published before it.
    pub is_late: bool,
}

/// The front of what waits, while it is being published in passing. It is still here as well, and until this has ended the
/// file does nothing but grow behind it.
pub(crate) struct Flight {
    /// What is in front of this offset is published if it ends well.
    pub end: u64,
    pub mtime_ns: Option<i64>,
    pub begun: Instant,
    pub task: JoinHandle<Result<Receipt, StoreError>>,
}

/// The version that a file was read as before, open.
pub(crate) struct Former {
    base: Base,
    file: Arc<dyn File>,
}

/// The bytes of a file.
#[derive(Default)]
pub(crate) struct Content {
    pub base: Option<Base>,
    /// The published version, open for reading.
    pub file: Option<Arc<dyn File>>,
    pub overlay: Overlay,
    pub stream: Option<Stream>,
    pub flight: Option<Flight>,
    /// What was read before this version came, until that is open: it may be gone first.
    pub former: Option<Former>,
    /// Nobody knows whether the last flight published its version.
    pub is_unsure: bool,
    /// Publishes of which nobody knows whether they happened.
    pub unanswered: Vec<Sent>,
    /// What waits is older than it should be: the node was away. Whoever published meanwhile comes first.
    pub is_late: bool,
    /// When the oldest change was made.
    pub dirty_since_ns: Option<i64>,
}

impl Content {
    /// Of a published file.
    pub fn of(info: &FileInfo) -> Content {
        let base = Some(Base { version: info.version, etag: info.etag.clone() });
        Content { base, overlay: Overlay::new(info.size), ..Content::default() }
    }

    /// Goes on with another version, of a file without changes. Those who have it open go back if that cannot be opened.
    pub fn replace(&mut self, info: &FileInfo, is_open: bool) {
        let before = std::mem::replace(self, Content::of(info));
        let former = before.base.zip(before.file).map(|(base, file)| Former { base, file });
        self.former = former.or(before.former).filter(|_| is_open);
    }

    /// Goes back to the version before, and says what it is; none if there is none, or changes wait.
    pub fn go_back(&mut self) -> Option<FileInfo> {
        if !self.overlay.is_clean() || self.flight.is_some() {
            return None;
        }
        let Former { base, file } = self.former.take()?;
        let info = file.info().clone();
        *self = Content { base: Some(base), file: Some(file), ..Content::of(&info) };
        Some(info)
    }

    /// Remembers a publish whose answer was lost.
    pub fn note_unanswered(&mut self, sent: Sent) {
        if !self.unanswered.contains(&sent) {
            self.unanswered.truncate(UNANSWERED_MAX - 1);
            self.unanswered.insert(0, sent);
        }
    }

    /// Whether a version is one of those publishes, with the time that it had or the one that the file was given since.
    pub fn is_own(&self, info: &FileInfo, mtime_ns: i64) -> bool {
        let Some(found_ns) = info.attributes.mtime_ns else { return false };
        let is_it = |sent: &Sent| sent.mtime_ns == Some(found_ns) || mtime_ns == found_ns;
        self.unanswered.iter().any(|sent| sent.size == info.size && is_it(sent))
    }

    /// Takes another published version for the one below the changes.
    pub fn rebase(&mut self, info: &FileInfo, mtime_ns: i64) {
        if self.is_own(info, mtime_ns) {
            // What was appended is in it already.
            self.overlay.stay();
        }
        let base = Base { version: info.version, etag: info.etag.clone() };
        if self.base.as_ref() != Some(&base) {
            self.file = None;
        }
        self.base = Some(base);
        (self.is_unsure, self.is_late) = (false, false);
        self.unanswered.clear();
        self.stream = None;
        self.overlay.rebase(info.size);
    }
}
