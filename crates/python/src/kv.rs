//! KV-cache blocks.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};
use stoker_kv::{Admit, Cache, Clock, Digest, Fingerprint, Hit, Namer, Options, Stored};
use stoker_store::StoreError;

use crate::buffer::Memory;
use crate::client::{Client, json};
use crate::error;
use crate::process::{Blocked, Lines, Own};

/// So much is worth threads of its own.
const THREADS_FROM: usize = 1 << 20;

/// The time of the machine, or one that a test sets.
#[derive(Default)]
struct Wall {
    /// Milliseconds since 1970; 0 for those of the machine.
    set_ms: AtomicU64,
}

impl Clock for Wall {
    #[expect(clippy::disallowed_methods, reason = "this is the edge")]
    fn now_ms(&self) -> u64 {
        match self.set_ms.load(Ordering::Relaxed) {
            0 => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            }
            set => set,
        }
    }
}

/// A cache, opened again in processes that were forked.
struct Core {
    options: Options,
    clock: Arc<Wall>,
    // Dropped before the connection that it uses.
    own: Own<Cache>,
    lines: Lines,
}

async fn open(store: stoker_client::Client, options: Options, clock: Arc<Wall>) -> Result<Cache, StoreError> {
    let nonce = RandomState::new().hash_one(std::process::id());
    Cache::open(Arc::new(store), options, clock, nonce).await
}

impl Core {
    fn path(&self) -> String {
        format!("stoker://{}/{}", self.options.volume, self.options.directory)
    }

    fn raised(&self, fault: StoreError) -> PyErr {
        error::of(fault, &self.path())
    }

    fn cache(&self, py: Python<'_>) -> PyResult<&Cache> {
        self.own.here(|| {
            let line = self.lines.here(py)?;
            let call = open(line.client().clone(), self.options.clone(), self.clock.clone());
            line.wait(py, call)?.map_err(|fault| self.raised(fault))
        })
    }

    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> PyResult<T> {
        self.lines.here(py)?.wait(py, call)?.map_err(|fault| self.raised(fault))
    }
}

impl Core {
    /// Waits for threads that may be blocked.
    fn wait_blocking<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Blocked) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        self.lines.here(py)?.wait_blocking(py, work)?.map_err(|fault| self.raised(fault))
    }
}

/// Blocks under one fingerprint. Safe to use from several threads, and after a fork.
#[pyclass(frozen)]
pub struct Kv {
    core: Arc<Core>,
    fingerprint: Fingerprint,
}

impl Kv {
    fn digests(&self, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Digest>> {
        let mut namer = Namer::new(&self.fingerprint);
        let mut digests = Vec::with_capacity(keys.len().unwrap_or(0));
        for key in keys.try_iter()? {
            digests.push(digest(&mut namer, &key?)?);
        }
        Ok(digests)
    }

    fn look(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Option<Hit>>> {
        Ok(self.core.cache(py)?.look_many(self.digests(keys)?))
    }
}

fn digest(namer: &mut Namer, key: &Bound<'_, PyAny>) -> PyResult<Digest> {
    if let Ok(bytes) = key.cast::<PyBytes>() {
        return Ok(namer.name(bytes.as_bytes()));
    }
    if let Ok(text) = key.cast::<PyString>() {
        return Ok(namer.name(text.to_str()?.as_bytes()));
    }
    Err(PyTypeError::new_err(format!("a key is bytes or str, not {}", key.get_type().name()?)))
}

fn fingerprint(fields: &[(String, String)]) -> Fingerprint {
    Fingerprint::of(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

#[pymethods]
impl Kv {
    #[new]
    #[pyo3(signature = (client, volume, directory, fields, capacity, memory, bundle_bytes, ttl_ms, admit_always, refresh_ms, linger_ms))]
    #[expect(clippy::too_many_arguments, reason = "named in Python")]
    fn new(
        py: Python<'_>,
        client: &Client,
        volume: String,
        directory: String,
        fields: Vec<(String, String)>,
        capacity: u64,
        memory: u64,
        bundle_bytes: u64,
        ttl_ms: Option<u64>,
        admit_always: bool,
        refresh_ms: u64,
        linger_ms: u64,
    ) -> PyResult<Kv> {
        let options = Options {
            capacity_bytes: capacity,
            memory_bytes: memory,
            bundle_bytes,
            ttl_ms,
            admit: if admit_always { Admit::Always } else { Admit::SecondUse },
            refresh_ms,
            linger_ms,
            ..Options::new(volume, directory)
        };
        let (lines, clock) = (client.lines.clone(), Arc::<Wall>::default());
        let about = format!("stoker://{}/{}", options.volume, options.directory);
        let line = lines.here(py)?;
        let opened = line.wait(py, open(line.client().clone(), options.clone(), clock.clone()))?;
        let own = Own::new(opened.map_err(|fault| error::of(fault, &about))?);
        Ok(Kv { core: Arc::new(Core { options, clock, own, lines }), fingerprint: fingerprint(&fields) })
    }

    /// The same cache under another fingerprint.
    fn space(&self, fields: Vec<(String, String)>) -> Kv {
        Kv { core: self.core.clone(), fingerprint: fingerprint(&fields) }
    }

    /// The fingerprint, as 64 hex digits.
    #[getter]
    fn fingerprint(&self) -> String {
        self.fingerprint.to_string()
    }

    fn exists_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(self.core.cache(py)?.exists_many(self.digests(keys)?))
    }

    fn contains_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        Ok(self.core.cache(py)?.contains_many(self.digests(keys)?))
    }

    fn len_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Option<usize>>> {
        Ok(self.core.cache(py)?.len_many(self.digests(keys)?))
    }

    fn get<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let cache = self.core.cache(py)?;
        let digest = digest(&mut Namer::new(&self.fingerprint), key)?;
        let Some(hit) = cache.look_many([digest]).pop().flatten() else { return Ok(None) };
        let mut is_good = false;
        let bytes = PyBytes::new_with(py, hit.len(), |into| {
            is_good = self.core.wait(py, cache.fill(&hit, vec![into]))?;
            Ok(())
        })?;
        Ok(is_good.then_some(bytes))
    }

    /// Blocks as bytes; those into memory of the caller are copied once less.
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let hits = self.look(py, keys)?;
        let mut memory: Vec<Vec<u8>> =
            hits.iter().map(|hit| vec![0; hit.as_ref().map_or(0, Hit::len)]).collect();
        let good = self.fill(py, &hits, memory.iter_mut().map(|memory| vec![memory.as_mut_slice()]))?;
        let bytes = good.iter().zip(&memory);
        Ok(bytes.map(|(is_good, bytes)| is_good.then(|| PyBytes::new(py, bytes))).collect())
    }

    /// Fills memory of the caller; for each the length of its block, or none.
    fn get_many_into(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        into: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Option<usize>>> {
        let mut memory = into.iter().map(|one| parts(one, Memory::to_fill)).collect::<PyResult<Vec<_>>>()?;
        let digests = self.digests(keys)?;
        if memory.len() != digests.len() {
            let message = format!("{} keys with {} buffers", digests.len(), memory.len());
            return Err(PyValueError::new_err(message));
        }
        let cache = self.core.cache(py)?;
        for (at, (len, memory)) in cache.len_many(digests.iter().copied()).iter().zip(&memory).enumerate() {
            if len.is_some_and(|len| len > len_of(memory)) {
                let message = format!(
                    "{}: block {at} has {} bytes, its buffer {}; lengths() tells how long blocks are",
                    self.core.path(),
                    len.unwrap_or_default(),
                    len_of(memory)
                );
                return Err(PyValueError::new_err(message));
            }
        }
        let mut hits = cache.look_many(digests);
        // A block that became longer since it was measured is not there for this caller.
        for (hit, memory) in hits.iter_mut().zip(&memory) {
            if hit.as_ref().is_some_and(|hit| hit.len() > len_of(memory)) {
                *hit = None;
            }
        }
        let slices = memory.iter_mut().map(|parts| parts.iter_mut().map(Memory::as_mut_slice).collect());
        let good = self.fill(py, &hits, slices)?;
        let lens = good.iter().zip(&hits);
        Ok(lens.map(|(is_good, hit)| hit.as_ref().filter(|_| *is_good).map(Hit::len)).collect())
    }

    /// Puts copies of blocks; for each, where it is: 0 committed, 1 on its way, 2 in memory, 3 only its name.
    fn put_many(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        blocks: Vec<Bound<'_, PyAny>>,
        ttl_ms: Option<u64>,
        commit: bool,
    ) -> PyResult<Vec<u8>> {
        let digests = self.digests(keys)?;
        if blocks.len() != digests.len() {
            let message = format!("{} keys with {} blocks", digests.len(), blocks.len());
            return Err(PyValueError::new_err(message));
        }
        let memory = blocks.iter().map(|one| parts(one, Memory::of)).collect::<PyResult<Vec<_>>>()?;
        let slices = memory.iter().map(|parts| parts.iter().map(Memory::as_slice).collect());
        let pairs: Vec<(Digest, Vec<&[u8]>)> = digests.into_iter().zip(slices).collect();
        let cache = self.core.cache(py)?;
        let stored = self.core.wait(py, cache.put_many(&pairs, ttl_ms, commit))?;
        let number = |stored| match stored {
            Stored::Committed => 0,
            Stored::Queued => 1,
            Stored::Memory => 2,
            Stored::Seen => 3,
        };
        Ok(stored.into_iter().map(number).collect())
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.core.cache(py)?;
        self.core.wait(py, cache.flush())
    }

    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.core.cache(py)?;
        self.core.wait(py, cache.refresh())
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.core.cache(py)?;
        self.core.wait(py, cache.clear())
    }

    /// Counters, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        json(&self.core.cache(py)?.stats())
    }

    /// For tests: the time that it is, in milliseconds since 1970; 0 for that of the machine.
    fn set_time(&self, ms: u64) {
        self.core.clock.set_ms.store(ms, Ordering::Relaxed);
    }
}

impl Kv {
    /// Fills memory with those that were found; for each whether it is there.
    fn fill<'m>(
        &self,
        py: Python<'_>,
        hits: &[Option<Hit>],
        memory: impl Iterator<Item = Vec<&'m mut [u8]>>,
    ) -> PyResult<Vec<bool>> {
        let wanted: Vec<(&Hit, Vec<&mut [u8]>)> = hits
            .iter()
            .zip(memory)
            .filter_map(|(hit, into)| hit.as_ref().map(|hit| (hit, front(into, hit.len()))))
            .collect();
        let mut good = vec![false; hits.len()];
        if !wanted.is_empty() {
            let cache = self.core.cache(py)?;
            let bytes_to_read: usize =
                wanted.iter().map(|(hit, _)| if hit.is_read() { hit.len() } else { 0 }).sum();
            let filled = match bytes_to_read >= THREADS_FROM {
                true => self.core.wait_blocking(py, |blocked| {
                    cache.fill_many_by_threads(wanted, |call| blocked.run(call))
                }),
                false => self.core.wait(py, cache.fill_many(wanted)),
            };
            let mut filled = filled?.into_iter();
            for (is_good, _) in good.iter_mut().zip(hits).filter(|(_, hit)| hit.is_some()) {
                *is_good = filled.next().unwrap_or_default();
            }
        }
        Ok(good)
    }
}

/// The memory of an object, or of each object of a tuple.
fn parts(one: &Bound<'_, PyAny>, get: fn(&Bound<'_, PyAny>) -> PyResult<Memory>) -> PyResult<Vec<Memory>> {
    match one.cast::<PyTuple>() {
        Ok(several) => several.iter().map(|part| get(&part)).collect(),
        Err(_) => Ok(vec![get(one)?]),
    }
}

fn len_of(parts: &[Memory]) -> usize {
    parts.iter().map(Memory::len).sum()
}

/// So many bytes from the front.
fn front(parts: Vec<&mut [u8]>, mut len: usize) -> Vec<&mut [u8]> {
    let mut cut = Vec::with_capacity(parts.len());
    for part in parts {
        let own = part.len().min(len);
        len -= own;
        cut.push(&mut part[..own]);
    }
    cut
}
