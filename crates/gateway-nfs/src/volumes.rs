//! Volumes that are in use, each with its file system and with what keeps it in bounds: clients never say that they
//! forget an inode or close a file, so what was used longest ago is forgotten and closed here.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stoker_access::Guard;
use stoker_files::{Attr, Errno, Files, Handle as OpenFile, Newer, Options, ROOT};
use stoker_format::VolumeId;
use stoker_store::{ErrorKind, Store, StoreError};

use crate::export::{self, Export};
use crate::handle::{Handle, HandleKey};
use crate::lru::Lru;
use crate::options::NfsOptions;

/// Inodes of a volume that are remembered.
const INODES_MAX: usize = 1 << 16;

/// Files of a volume that are kept open.
const OPEN_MAX: usize = 1024;

/// Places in directories that are remembered.
const COOKIES_MAX: usize = 1 << 16;

/// Says that what was written and not committed is lost. Changes with the process, and when that happens.
#[derive(Debug)]
pub struct Verifier {
    first: u64,
    /// Raised by the file systems before they drop something.
    losses: Arc<AtomicU64>,
}

impl Verifier {
    pub fn new() -> Verifier {
        let mut bytes = [0; 8];
        // Without random numbers the address of something is better than nothing.
        if getrandom::fill(&mut bytes).is_err() {
            bytes = (&raw const bytes).addr().to_be_bytes();
        }
        Verifier { first: u64::from_be_bytes(bytes), losses: Arc::default() }
    }

    pub fn get(&self) -> u64 {
        self.first.wrapping_add(self.losses.load(Ordering::Acquire))
    }
}

/// A volume in use.
pub struct Volume {
    pub id: VolumeId,
    pub export: Export,
    pub files: Files,
    pub now_ns: fn() -> i64,
    pub handle_key: HandleKey,
    /// Inodes that the file system told us of, and how often.
    told: Mutex<Lru<u64, u64>>,
    /// Open files, and up to where they were looked through.
    opens: Mutex<(Lru<u64, Arc<OpenFile>>, u64)>,
    /// Names of entries by directory and number.
    cookies: Mutex<Lru<(u64, u64), Vec<u8>>>,
    changing: Mutex<HashMap<u64, Changing>>,
}

#[derive(Default)]
struct Changing {
    active: u32,
    begun: u64,
}

/// A change under way.
pub struct Change<'v> {
    volume: &'v Volume,
    ino: u64,
    before: Option<Attr>,
    begun: u64,
    is_alone: bool,
}

impl Volume {
    /// Finds what a handle is of.
    pub async fn resolve(self: &Arc<Volume>, handle: &Handle) -> Result<u64, Errno> {
        let ino = handle.ino;
        if ino == ROOT && handle.place.is_none() {
            return Ok(ino);
        }
        let found = match &handle.place {
            None => self.files.recall_directory(ino).await?,
            Some(place) => self.files.recall(ino, place.parent, &place.front, place.is_whole).await?,
        };
        self.note(found.ino);
        Ok(found.ino)
    }

    /// Takes note of an inode that the file system told us of, once more.
    pub fn note(&self, ino: u64) {
        let gone = {
            let mut told = self.told.lock().unwrap();
            match told.get(&ino) {
                Some(count) => {
                    *count += 1;
                    None
                }
                None => told.put(ino, 1),
            }
        };
        if let Some((ino, count)) = gone {
            self.files.forget(ino, count);
        }
    }

    /// An open file. Reads and writes of all clients share it, and what waits in it.
    pub async fn open(self: &Arc<Volume>, ino: u64) -> Result<Arc<OpenFile>, Errno> {
        if let Some(open) = self.opens.lock().unwrap().0.get(&ino) {
            return Ok(open.clone());
        }
        let open = self.files.open_file(ino, true).await?;
        self.keep_open(open.clone());
        Ok(open)
    }

    /// Keeps a file open for those who come next.
    pub fn keep_open(self: &Arc<Volume>, open: Arc<OpenFile>) {
        let gone = self.opens.lock().unwrap().0.put(open.ino(), open);
        if let Some((_, gone)) = gone {
            let volume = self.clone();
            tokio::spawn(async move { volume.close(&gone).await });
        }
    }

    async fn close(&self, open: &OpenFile) {
        if let Err(errno) = self.files.fsync(open).await {
            // What is left is dropped, and counted: the verifier changes.
            tracing::error!("inode {}: what was not committed is lost: {errno:?}", open.ino());
        }
        self.files.release(open.id).await;
    }

    /// Closes what nobody used since the last time.
    pub async fn sweep(&self) {
        let idle = {
            let mut opens = self.opens.lock().unwrap();
            let since = opens.1;
            opens.1 = opens.0.moment();
            opens.0.take_before(since)
        };
        for (_, open) in idle {
            self.close(&open).await;
        }
    }

    /// Something lost its name: nothing here keeps it.
    pub async fn let_go(&self, ino: u64) {
        let open = self.opens.lock().unwrap().0.remove(&ino);
        if let Some(open) = open {
            self.files.release(open.id).await;
        }
        let count = self.told.lock().unwrap().remove(&ino);
        if let Some(count) = count {
            self.files.forget(ino, count);
        }
    }

    /// The name that a place in a directory is behind, if it is remembered.
    pub fn cookie(&self, directory: u64, ino: u64) -> Option<Vec<u8>> {
        self.cookies.lock().unwrap().get(&(directory, ino)).cloned()
    }

    pub fn note_cookie(&self, directory: u64, ino: u64, name: &[u8]) {
        let _ = self.cookies.lock().unwrap().put((directory, ino), name.to_vec());
    }

    /// Begins a change of something; what it was before is told at the end if nobody else changed it meanwhile.
    pub fn change(&self, ino: u64) -> Change<'_> {
        let mut changing = self.changing.lock().unwrap();
        let one = changing.entry(ino).or_default();
        one.active += 1;
        one.begun += 1;
        let (begun, is_alone) = (one.begun, one.active == 1);
        Change { volume: self, ino, before: self.files.peek(ino).ok(), begun, is_alone }
    }
}

impl Change<'_> {
    /// What it was before, if a client that knows that can tell that nothing else happened.
    pub fn before(&self) -> Option<Attr> {
        let changing = self.volume.changing.lock().unwrap();
        let is_alone = self.is_alone && changing.get(&self.ino).is_some_and(|one| one.begun == self.begun);
        self.before.filter(|_| is_alone)
    }

    pub fn after(&self) -> Option<Attr> {
        self.volume.files.peek(self.ino).ok()
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut changing = self.volume.changing.lock().unwrap();
        if let Some(one) = changing.get_mut(&self.ino) {
            one.active -= 1;
            if one.active == 0 {
                changing.remove(&self.ino);
            }
        }
    }
}

/// All of them.
pub struct Volumes {
    store: Arc<dyn Store>,
    options: NfsOptions,
    pub verifier: Verifier,
    open: tokio::sync::RwLock<HashMap<VolumeId, Arc<Volume>>>,
}

impl Volumes {
    /// Volumes of the default tenant, and those of others that an export names: whoever wrote it opened them.
    pub fn new(guard: &Guard, options: NfsOptions) -> Volumes {
        let named = options.exports.iter().filter_map(|export| export.volume.clone());
        let store = guard.service("nfs", named.collect());
        Volumes { store, options, verifier: Verifier::new(), open: tokio::sync::RwLock::default() }
    }

    /// The key of handles.
    pub fn handle_key(&self) -> &HandleKey {
        &self.options.handle_key
    }

    /// Whether an address may use any volume.
    pub fn is_known(&self, address: IpAddr) -> bool {
        export::is_known(&self.options.exports, address)
    }

    /// The volume of a handle; none if it is gone or is not shown to anybody.
    pub async fn by_id(&self, id: VolumeId) -> Result<Option<Arc<Volume>>, StoreError> {
        if let Some(volume) = self.open.read().await.get(&id) {
            return Ok(Some(volume.clone()));
        }
        let volumes = self.store.volumes().await?;
        match volumes.into_iter().find(|volume| volume.id == id) {
            Some(volume) => self.open(id, &volume.name).await,
            None => Ok(None),
        }
    }

    /// The volume of a name.
    pub async fn by_name(&self, name: &str) -> Result<Option<Arc<Volume>>, StoreError> {
        match self.store.volume(name).await {
            Ok(info) => self.open(info.id, name).await,
            Err(fault) if matches!(fault.kind, ErrorKind::NotFound | ErrorKind::Invalid) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Names of volumes that are shown, with to whom.
    pub async fn shown(&self) -> Result<Vec<(String, Export)>, StoreError> {
        let volumes = self.store.volumes().await?;
        let names = volumes.into_iter().map(|volume| volume.name);
        Ok(names
            .filter_map(|name| Some((name.clone(), export::find(&self.options.exports, &name)?)))
            .collect())
    }

    pub async fn all(&self) -> Vec<Arc<Volume>> {
        self.open.read().await.values().cloned().collect()
    }

    /// Those that are in use, unless one is being opened in this moment.
    pub fn now(&self) -> Vec<Arc<Volume>> {
        self.open.try_read().map_or_else(|_| Vec::new(), |open| open.values().cloned().collect())
    }

    async fn open(&self, id: VolumeId, name: &str) -> Result<Option<Arc<Volume>>, StoreError> {
        let Some(export) = export::find(&self.options.exports, name) else { return Ok(None) };
        let mut open = self.open.write().await;
        if let Some(volume) = open.get(&id) {
            return Ok(Some(volume.clone()));
        }
        let mut options = Options::new(self.options.place.clone(), self.options.now_ns);
        options.owner = export.owner();
        // Who waited this long may have gone to another node.
        options.patience = crate::nfs::AGE_MAX;
        // Clients send again what was dropped, wherever they are then.
        options.newer = Newer::Drop;
        options.losses = self.verifier.losses.clone();
        options.bytes_max = self.options.buffer_bytes_max;
        options.file_bytes_max = options.file_bytes_max.min(options.bytes_max);
        options.ahead_bytes_max = self.options.bytes_out_max;
        let volume = Arc::new(Volume {
            id,
            export,
            files: Files::open(self.store.clone(), name, options).await?,
            now_ns: self.options.now_ns,
            handle_key: self.options.handle_key.clone(),
            told: Mutex::new(Lru::new(INODES_MAX)),
            opens: Mutex::new((Lru::new(OPEN_MAX), 0)),
            cookies: Mutex::new(Lru::new(COOKIES_MAX)),
            changing: Mutex::default(),
        });
        open.insert(id, volume.clone());
        Ok(Some(volume))
    }
}
