//! What is to be packed: names, sizes and what tells one state of a file from another, in few bytes per file.

use std::path::PathBuf;
use std::sync::Arc;

use stoker_store::{ErrorKind, FileInfo, Key, ListEntry, ListRequest, Store};

use crate::fault::{Fault, Result, path_of};
use crate::meter::{self, Meter};
use crate::{tar, tree};

/// Entries per question.
const PAGE: usize = 1000;
/// Most files in one dataset: each is at most one sample.
const FILES_MAX: usize = u32::MAX as usize;

/// Where files to be packed are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Everything below a directory of this machine.
    Local(PathBuf),
    /// Everything below a directory of a volume; an empty one is the whole volume.
    Volume {
        /// Volume.
        volume: String,
        /// The directory, with or without its slash.
        directory: String,
    },
}

impl Source {
    /// The keys of a source in a volume start like this.
    pub(crate) fn prefix(directory: &str) -> String {
        if directory.is_empty() || directory.ends_with('/') {
            directory.to_owned()
        } else {
            format!("{directory}/")
        }
    }

    /// What people call it.
    pub(crate) fn path(&self) -> String {
        match self {
            Source::Local(path) => path.display().to_string(),
            Source::Volume { volume, directory } => path_of(volume, directory.as_bytes()),
        }
    }
}

/// One file as it was when it was found.
#[derive(Clone, Copy, Debug)]
struct Row {
    name_at: u64,
    size: u64,
    mtime_ns: i64,
    /// Zero for a file of this machine.
    version: [u8; 12],
    name_len: u16,
}

/// A file to be packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Input<'a> {
    /// Its name below the source.
    pub name: &'a [u8],
    /// Its length.
    pub size: u64,
    /// When it was changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Its version; zero for a file of this machine.
    pub version: [u8; 12],
}

impl Input<'_> {
    /// Bytes that it takes in a tar; none if that is beyond all bounds.
    pub fn tar_len(&self) -> Option<u64> {
        tar::padded(self.size)?.checked_add(tar::header_len(self.name))
    }

    pub fn header(&self) -> Vec<u8> {
        tar::header(self.name, self.size, u64::try_from(self.mtime_ns / 1_000_000_000).unwrap_or(0))
    }
}

/// All files to be packed. Names lie end to end, so that ten million files take hundreds of megabytes and not more.
pub struct Inputs {
    source: Source,
    names: Vec<u8>,
    rows: Vec<Row>,
}

impl Inputs {
    pub fn new(source: Source) -> Inputs {
        Inputs { source, names: Vec::new(), rows: Vec::new() }
    }

    /// Finds all files and puts them in order.
    pub async fn find(store: &dyn Store, source: Source, meter: &Arc<Meter>) -> Result<Inputs> {
        let mut inputs = match source {
            Source::Local(path) => tree::find(path, meter.clone()).await?,
            Source::Volume { volume, directory } => list(store, volume, directory, meter).await?,
        };
        if inputs.len() == 0 {
            let message = "there is no file to pack";
            return Err(Fault::new(inputs.source.path(), ErrorKind::Invalid, message));
        }
        inputs.sort();
        Ok(inputs)
    }

    /// Adds a file. Its name has to be one that a tar can carry anywhere.
    pub fn push(&mut self, name: &[u8], size: u64, mtime_ns: i64, version: [u8; 12]) -> Result<()> {
        let odd = |part: &[u8]| matches!(part, b"" | b"." | b"..");
        let fault = if std::str::from_utf8(name).is_err() {
            "its name is not UTF-8: rename it".to_owned()
        } else if name.len() > tar::NAME_LEN_MAX {
            format!("its name has more than {} bytes: rename it", tar::NAME_LEN_MAX)
        } else if name.split(|byte| *byte == b'/').any(odd) {
            "its name has an empty part, `.` or `..`: rename it".to_owned()
        } else if self.rows.len() == FILES_MAX {
            format!("there are more than {FILES_MAX} files: pack them in several datasets")
        } else {
            let (name_at, name_len) = (self.names.len() as u64, name.len() as u16);
            self.names.extend_from_slice(name);
            self.rows.push(Row { name_at, size, mtime_ns, version, name_len });
            return Ok(());
        };
        Err(Fault::new(self.path_of(name), ErrorKind::Invalid, fault))
    }

    /// By stem, then by name: so members of a sample are beside each other, and the order is the same on every machine.
    fn sort(&mut self) {
        let names = std::mem::take(&mut self.names);
        let name = |row: &Row| &names[row.name_at as usize..][..usize::from(row.name_len)];
        self.rows.sort_unstable_by(|a, b| {
            let (a, b) = (name(a), name(b));
            tar::stem(a).cmp(tar::stem(b)).then_with(|| a.cmp(b))
        });
        self.names = names;
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn get(&self, index: usize) -> Input<'_> {
        let Row { name_at, size, mtime_ns, version, name_len } = self.rows[index];
        let name = &self.names[name_at as usize..][..usize::from(name_len)];
        Input { name, size, mtime_ns, version }
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// What people call a file.
    pub fn path_of(&self, name: &[u8]) -> String {
        match &self.source {
            Source::Local(root) => root.join(String::from_utf8_lossy(name).as_ref()).display().to_string(),
            Source::Volume { volume, directory } => {
                path_of(volume, &[Source::prefix(directory).as_bytes(), name].concat())
            }
        }
    }

    /// The key of a file of a volume.
    pub fn key_of(&self, name: &[u8]) -> Result<Key> {
        let Source::Volume { volume, directory } = &self.source else {
            unreachable!("a file of this machine")
        };
        let bytes = [Source::prefix(directory).as_bytes(), name].concat();
        Key::new(&bytes[..]).map_err(|error| Fault::Store { path: path_of(volume, &bytes), error })
    }

    /// Somebody wrote to a file after it was found.
    pub fn changed(&self, name: &[u8]) -> Fault {
        let message = "it was changed while it was being packed: pack again when nobody writes to it";
        Fault::new(self.path_of(name), ErrorKind::Conflict, message)
    }
}

async fn list(store: &dyn Store, volume: String, directory: String, meter: &Meter) -> Result<Inputs> {
    let prefix = Source::prefix(&directory).into_bytes();
    let mut inputs = Inputs::new(Source::Volume { volume: volume.clone(), directory });
    let mut after = None;
    loop {
        let request = ListRequest { prefix: prefix.clone(), after, limit: PAGE, ..ListRequest::default() };
        let page = store.list(&volume, request).await;
        let page = page.map_err(|error| Fault::Store { path: path_of(&volume, &prefix), error })?;
        for entry in &page.entries {
            let ListEntry::File(info) = entry else { continue };
            let name = info.key.as_bytes().strip_prefix(&prefix[..]).unwrap_or_default();
            // Directories that somebody made by name hold nothing.
            if name.is_empty() || (name.ends_with(b"/") && info.size == 0) {
                continue;
            }
            inputs.push(name, info.size, mtime_ns(info), info.version.0)?;
            meter::add(&meter.files, 1);
        }
        match page.entries.last().filter(|_| page.more) {
            Some(last) => after = Some(last.name().to_vec()),
            None => return Ok(inputs),
        }
    }
}

fn mtime_ns(info: &FileInfo) -> i64 {
    let published = i64::try_from(info.modified_ms).unwrap_or(0).saturating_mul(1_000_000);
    info.attributes.mtime_ns.unwrap_or(published)
}
