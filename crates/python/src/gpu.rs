//! Ranges of files into memory of a GPU, or of the host: the loader of `stoker-gpu` over open files of the door.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};

use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde::Serialize;
use stoker_gpu::cache::{Cache, Fill, Hit};
use stoker_gpu::{
    Api, BUCKETS, Cuda, Device, GpuError, LoadError, PlainFiles, Plan, Report, Segment, Settings, Source,
};
use stoker_store::{ErrorKind, File as Opened, StoreError, alone};

use crate::error;
use crate::file::{File, fill, too_short};
use crate::process::{Blocked, SIGNALS};

pyo3::create_exception!(
    _stoker,
    DeviceError,
    PyRuntimeError,
    "A GPU cannot be used, or failed; the text says which call and why."
);

/// File, offset there, length, address.
type Places = Vec<(usize, u64, u64, u64)>;

fn raised(fault: GpuError) -> PyErr {
    match fault {
        GpuError::OutOfMemory { .. } => PyMemoryError::new_err(fault.to_string()),
        GpuError::Invalid(why) => PyValueError::new_err(why),
        _ => DeviceError::new_err(fault.to_string()),
    }
}

/// Fills memory of one device.
#[pyclass(frozen)]
pub struct Loader {
    loader: stoker_gpu::Loader,
    name: String,
}

/// What Python makes a dictionary of.
#[derive(Serialize)]
struct Told {
    path: &'static str,
    bytes: u64,
    bytes_read: u64,
    bytes_cached: u64,
    reads: u64,
    copies: u64,
    threads: usize,
    elapsed_us: u64,
    reading_us: u64,
    wait_us: u64,
    read_us: [u64; BUCKETS],
    verified: bool,
    /// Of each file: what the host cache did for it.
    cache: Vec<String>,
}

impl Told {
    fn json(
        path: &'static str,
        report: Report,
        verified: bool,
        cached: u64,
        cache: Vec<String>,
    ) -> PyResult<String> {
        crate::client::json(&Told {
            path,
            bytes: report.bytes,
            bytes_read: report.bytes_read,
            bytes_cached: cached,
            reads: report.reads,
            copies: report.copies,
            threads: report.threads,
            elapsed_us: report.elapsed_us,
            reading_us: report.reading_us,
            wait_us: report.wait_us,
            read_us: report.read_us,
            verified,
            cache,
        })
    }
}

#[pymethods]
impl Loader {
    /// For the GPU with a number, or without one for the host.
    #[new]
    #[pyo3(signature = (number=None, threads=None, piece=None, buffers=None))]
    fn new(
        py: Python<'_>,
        number: Option<u32>,
        threads: Option<usize>,
        piece: Option<usize>,
        buffers: Option<usize>,
    ) -> PyResult<Loader> {
        let (device, name) = match number {
            None => (Device::Host, "host memory".to_owned()),
            Some(number) => {
                // The driver may take seconds to start.
                let cuda =
                    py.detach(|| Api::load().and_then(|api| Cuda::open(api, number))).map_err(raised)?;
                let name = cuda.name().to_owned();
                (Device::Cuda(cuda), name)
            }
        };
        let usual = Settings::default();
        let settings = Settings {
            threads: threads.unwrap_or(usual.threads),
            piece: piece.unwrap_or(usual.piece),
            buffers: buffers.unwrap_or(usual.buffers),
        };
        Ok(Loader { loader: stoker_gpu::Loader::new(device, settings), name })
    }

    /// How bytes travel: `pinned` or `host`.
    #[getter]
    fn path(&self) -> &'static str {
        self.loader.device().path()
    }

    /// What the driver calls the device.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Fills memory from open files; returns what was done as JSON. Whoever calls it holds the memory at the addresses, and lets
    /// nobody else use it meanwhile. `cache` is directory and capacity.
    #[pyo3(signature = (files, places, cache=None))]
    fn load(
        &self,
        py: Python<'_>,
        files: Vec<Py<File>>,
        places: Places,
        cache: Option<(PathBuf, u64)>,
    ) -> PyResult<String> {
        let plan = self.plan(&places, &files.iter().map(|file| file.get().len()).collect::<Vec<_>>())?;
        let Some(first) = files.first() else { return Err(PyValueError::new_err("there are no files")) };
        let mut opened: Vec<&dyn Opened> = Vec::with_capacity(files.len());
        for file in &files {
            opened.push(file.get().opened(py)?.as_ref());
        }
        let kept =
            cache.map(|(dir, capacity)| Cache::open(&dir, capacity).map_err(|error| error.to_string()));
        let line = first.get().line(py)?;
        let (loader, plan) = (&self.loader, &plan);
        let done = line.wait_blocking(py, |blocked| {
            let stored = Stored::new(opened, blocked, kept);
            // SAFETY: whoever calls `load` from Python vouches for the addresses, as its documentation says.
            let report = unsafe { loader.load(&stored, plan, &AtomicBool::new(false)) }?;
            let cached = stored.bytes_cached.load(Ordering::Relaxed);
            Ok::<_, LoadError<(usize, StoreError)>>((report, cached, stored.finish()))
        })?;
        match done {
            Ok((report, cached, cache)) => Told::json(self.path(), report, true, cached, cache),
            Err(LoadError::Gpu(fault)) => Err(raised(fault)),
            Err(LoadError::Source((number, fault))) => Err(error::of(fault, &files[number].get().path())),
            Err(LoadError::Cancelled) => Err(PyRuntimeError::new_err("given up")),
        }
    }

    /// The same from plain files, whose bytes nobody verifies: what a drive and a bus can do.
    #[pyo3(signature = (paths, places, direct=true))]
    fn load_plain(
        &self,
        py: Python<'_>,
        paths: Vec<PathBuf>,
        places: Places,
        direct: bool,
    ) -> PyResult<String> {
        let files = PlainFiles::open(&paths, direct)?;
        let sizes = paths.iter().map(|path| Ok(path.metadata()?.len())).collect::<PyResult<Vec<u64>>>()?;
        let plan = self.plan(&places, &sizes)?;
        let cancel = AtomicBool::new(false);
        let done = std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let told = Mutex::new(told);
            let (loader, files, plan, cancel) = (&self.loader, &files, &plan, &cancel);
            std::thread::Builder::new().spawn_scoped(scope, move || {
                // SAFETY: as in `load`.
                drop(tell.send(unsafe { loader.load(files, plan, cancel) }));
            })?;
            // The scope waits for the thread also after Ctrl-C: copies are under way into memory of the caller.
            let mut signal = None;
            loop {
                match py.detach(|| told.lock().unwrap().recv_timeout(SIGNALS)) {
                    Ok(done) => return signal.map_or(Ok(done), Err),
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(PyRuntimeError::new_err("a thread ended without a result"));
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(error) = py.check_signals() {
                            cancel.store(true, Ordering::Relaxed);
                            signal.get_or_insert(error);
                        }
                    }
                }
            }
        })?;
        match done {
            Ok(report) => Told::json(self.path(), report, false, 0, Vec::new()),
            Err(LoadError::Gpu(fault)) => Err(raised(fault)),
            Err(LoadError::Source(error)) => Err(error.into()),
            Err(LoadError::Cancelled) => Err(PyRuntimeError::new_err("given up")),
        }
    }
}

impl Loader {
    fn plan(&self, places: &Places, sizes: &[u64]) -> PyResult<Plan> {
        let segment = |&(file, offset, len, to): &(usize, u64, u64, u64)| {
            let size = sizes.get(file).copied().unwrap_or(0);
            match offset.checked_add(len) {
                Some(end) if end <= size => Ok(Segment { file, offset, len, to }),
                _ => Err(PyValueError::new_err(format!(
                    "{len} bytes at {offset} are not inside of file {file}"
                ))),
            }
        };
        let segments = places.iter().map(segment).collect::<PyResult<Vec<_>>>()?;
        Plan::new(segments, self.loader.settings().piece).map_err(raised)
    }
}

/// Open files as a source, the host cache in front of them.
struct Stored<'a> {
    files: Vec<Kept<'a>>,
    blocked: &'a Blocked,
    bytes_cached: AtomicU64,
}

struct Kept<'a> {
    file: &'a dyn Opened,
    hit: Option<Hit>,
    fill: Option<Fill>,
    why: String,
}

impl<'a> Stored<'a> {
    fn new(
        files: Vec<&'a dyn Opened>,
        blocked: &'a Blocked,
        cache: Option<Result<Cache, String>>,
    ) -> Stored<'a> {
        let kept = |file: &'a dyn Opened| {
            let info = file.info();
            // A version never changes; the rest is there so that two clusters cannot be taken for one another.
            let identity = format!("{} {} {}", info.version, info.size, info.etag);
            let (hit, fill, why) = match &cache {
                None => (None, None, "off".to_owned()),
                Some(Err(why)) => (None, None, format!("off: {why}")),
                Some(Ok(cache)) => match cache.find(&identity, info.size) {
                    Some(hit) => (Some(hit), None, "hit".to_owned()),
                    None => match cache.begin(&identity, info.size) {
                        Ok(fill) => (None, Some(fill), "kept".to_owned()),
                        Err(why) => (None, None, format!("not kept: {why}")),
                    },
                },
            };
            if hit.is_none() {
                file.wants_all();
            }
            Kept { file, hit, fill, why }
        };
        Stored { files: files.into_iter().map(kept).collect(), blocked, bytes_cached: AtomicU64::new(0) }
    }

    /// Completes what is to be kept; says of each file what became of it.
    fn finish(self) -> Vec<String> {
        let blocked = self.blocked;
        let finished = |kept: Kept<'_>| match (kept.fill, kept.hit) {
            (Some(whole), _) => {
                let rest = |offset, into: &mut [u8]| alone(|| blocked.run(fill(kept.file, offset, into)));
                whole.finish(rest).map_or_else(|why| format!("not kept: {why}"), |()| kept.why)
            }
            (None, Some(hit)) if hit.is_damaged() => "damaged".to_owned(),
            _ => kept.why,
        };
        self.files.into_iter().map(finished).collect()
    }
}

impl Source for Stored<'_> {
    type Fault = (usize, StoreError);

    fn read(
        &self,
        number: usize,
        offset: u64,
        len: usize,
        room: &mut [u8],
    ) -> Result<Range<usize>, (usize, StoreError)> {
        let kept = &self.files[number];
        if self.blocked.is_given_up() {
            return Err((number, StoreError::new(ErrorKind::Closed, "given up")));
        }
        if let Some(found) = kept.hit.as_ref().and_then(|hit| hit.read(offset, len, room)) {
            self.bytes_cached.fetch_add(found.len() as u64, Ordering::Relaxed);
            return Ok(found);
        }
        let read = alone(|| self.blocked.run(kept.file.read_within(offset, len, room)));
        let found = read.map_err(|fault| (number, fault))?;
        if found.is_empty() {
            return Err((number, too_short()));
        }
        if let Some(whole) = &kept.fill {
            whole.put(offset, &room[found.clone()]);
        }
        Ok(found)
    }
}
