//! The feed: samples come ahead of the loop, and a batch of them is made by one call.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyIterator, PyList, PyMemoryView};
use stoker_dataset::fetch::{Fetcher, Gatherer, Group, Limits, MEMORY_MIN, Place, Underway, Unread, Wanted};

use crate::client::Client;
use crate::error::{self, ConflictError};
use crate::file::path;
use crate::members::{self, TarError, Words};
use crate::order::Samples;
use crate::places::Places;
use crate::process::{Lines, Own, SIGNALS};

/// What is known of files, by number; more than this are asked for again.
const WANTED_MAX: usize = 1 << 16;

/// Reads samples of one source, in each process by itself.
#[pyclass(frozen)]
pub struct Feed {
    lines: Lines,
    places: Py<Places>,
    /// Says which file a number stands for.
    wanted: Py<PyAny>,
    /// Classes of errors that concern one sample.
    faults: Py<PyAny>,
    limits: Limits,
    is_tar: bool,
    views: bool,
    own: Own<Fetcher>,
}

fn fetcher(py: Python<'_>, lines: &Lines, limits: Limits) -> PyResult<Fetcher> {
    let line = lines.here(py)?;
    Ok(Fetcher::new(Arc::new(line.client().clone()), line.runtime(), lines.clone(), limits))
}

impl Feed {
    fn fetcher(&self, py: Python<'_>) -> PyResult<&Fetcher> {
        self.own.here(|| fetcher(py, &self.lines, self.limits))
    }

    fn raised(&self, fault: Option<Unread>, wanted: &Wanted) -> PyErr {
        let path = path(&wanted.volume, &wanted.key);
        match fault {
            Some(Unread::Failed(fault)) => error::of(fault, &path),
            Some(Unread::Replaced) => {
                let message = "the file was replaced since the dataset was made or opened: make or open the dataset again";
                ConflictError::new_err((libc::ESTALE, message, path))
            }
            None => PyRuntimeError::new_err(format!("{path}: a read was given up")),
        }
    }
}

#[pymethods]
impl Feed {
    /// `wanted(number)` is volume, key, size, version and etag of a file. With `tar` samples are dictionaries, else bytes.
    #[new]
    #[pyo3(signature = (client, places, wanted, faults, *, memory, threads, files, tar, views))]
    #[expect(clippy::too_many_arguments, reason = "named in Python")]
    fn new(
        py: Python<'_>,
        client: &Client,
        places: Py<Places>,
        wanted: Py<PyAny>,
        faults: Py<PyAny>,
        memory: usize,
        threads: usize,
        files: usize,
        tar: bool,
        views: bool,
    ) -> PyResult<Feed> {
        if threads < 1 {
            return Err(PyValueError::new_err(format!("at least one thread reads, not {threads}")));
        }
        let (lines, limits) =
            (client.lines.clone(), Limits { memory: memory.max(MEMORY_MIN), threads, files });
        let own = Own::new(fetcher(py, &lines, limits)?);
        Ok(Feed { lines, places, wanted, faults, limits, is_tar: tar, views, own })
    }

    /// The most memory that was used at once in this process.
    #[getter]
    fn memory_peak(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.fetcher(py)?.memory_peak())
    }

    /// Files that this process has open.
    #[getter]
    fn files_open(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.fetcher(py)?.files_open())
    }

    /// What this process spent on its files, summed over threads: opens, their seconds, reads, their seconds.
    #[getter]
    fn spent(&self, py: Python<'_>) -> PyResult<(u64, f64, u64, f64)> {
        let sums = self.fetcher(py)?.spent();
        Ok((sums.opens, sums.open_s, sums.reads, sums.read_s))
    }

    /// Begins an iteration. The plan gives pairs of samples and sizes of steps; sizes say how many samples come together.
    fn run(self_: Py<Self>, py: Python<'_>, plan: &Bound<'_, PyAny>) -> PyResult<Run> {
        let budget = self_.get().limits.memory;
        let _ = self_.get().fetcher(py)?;
        Ok(Run {
            pid: std::process::id(),
            feed: self_,
            plan: Some(plan.try_iter()?.unbind()),
            sizes: VecDeque::new(),
            stretch: VecDeque::new(),
            gatherer: Gatherer::new(budget),
            ready: None,
            waiting: VecDeque::new(),
            wanted: HashMap::new(),
            words: Words::default(),
            last: Vec::new(),
            reads: (0, 0),
        })
    }
}

/// One iteration.
#[pyclass]
pub struct Run {
    pid: u32,
    feed: Py<Feed>,
    plan: Option<Py<PyIterator>>,
    sizes: VecDeque<usize>,
    /// Samples that are planned, but in no group yet.
    stretch: VecDeque<u64>,
    gatherer: Gatherer,
    /// The group that is to be read next.
    ready: Option<Group>,
    waiting: VecDeque<Head>,
    wanted: HashMap<u64, Arc<Wanted>>,
    words: Words,
    /// Number and length of the samples that were given last.
    last: Vec<(u64, usize)>,
    /// Reads that were begun since it was last said, and their bytes.
    reads: (u64, u64),
}

/// A group that is read, and how much of it was given.
struct Head {
    underway: Arc<Underway>,
    given: usize,
    shown: Option<Shown>,
}

/// A copy of a group's bytes that belongs to Python, and where each read begins in it.
struct Shown {
    view: Py<PyMemoryView>,
    starts: Vec<usize>,
}

/// A sample and its length, or why there is none.
type Made<'py> = Result<(Bound<'py, PyAny>, usize), PyErr>;

/// Samples; index and error of those that are bad; bytes; seconds of waiting; reads that were begun and their bytes.
type Batch<'py> = (Bound<'py, PyList>, Vec<(usize, PyErr)>, usize, f64, u64, u64);

impl Run {
    /// The next group, if there is one.
    fn gather(&mut self, py: Python<'_>) -> PyResult<Option<Group>> {
        let places = self.feed.get().places.clone_ref(py);
        loop {
            while let Some(sample) = self.stretch.pop_front() {
                if let Some(group) = self.gatherer.push(sample, places.get().at(sample)?) {
                    return Ok(Some(group));
                }
            }
            let Some(plan) = &self.plan else { return Ok(self.gatherer.finish()) };
            match plan.bind(py).clone().next() {
                None => self.plan = None,
                Some(part) => {
                    let (samples, sizes): (Bound<'_, Samples>, Vec<usize>) = part?.extract()?;
                    self.stretch.extend(&samples.get().0);
                    self.sizes.extend(sizes);
                }
            }
        }
    }

    /// Begins reads, as far as there is memory.
    fn fill(&mut self, py: Python<'_>) -> PyResult<()> {
        loop {
            if self.ready.is_none() {
                self.ready = self.gather(py)?;
            }
            let Some(group) = &self.ready else { return Ok(()) };
            if !self.waiting.is_empty() && !self.feed.get().fetcher(py)?.fits(group.room) {
                return Ok(());
            }
            let files: Vec<u64> = group.reads.iter().map(|read| read.file).collect();
            let wanted = files.into_iter().map(|file| self.wanted(py, file)).collect::<PyResult<Vec<_>>>()?;
            let Some(group) = self.ready.take() else { return Ok(()) };
            self.reads.0 += group.reads.len() as u64;
            self.reads.1 += group.reads.iter().map(|read| read.len as u64).sum::<u64>();
            let underway = self.feed.get().fetcher(py)?.begin(group, wanted)?;
            self.waiting.push_back(Head { underway, given: 0, shown: None });
        }
    }

    fn wanted(&mut self, py: Python<'_>, file: u64) -> PyResult<Arc<Wanted>> {
        if let Some(wanted) = self.wanted.get(&file) {
            return Ok(wanted.clone());
        }
        let said = self.feed.get().wanted.bind(py).call1((file,))?;
        let (volume, name, size, version, etag): (String, Vec<u8>, u64, String, String) = said.extract()?;
        let key = crate::client::key(&volume, &name)?;
        let wanted = Arc::new(Wanted { volume, key, size, version, etag });
        if self.wanted.len() >= WANTED_MAX {
            self.wanted.clear();
        }
        self.wanted.insert(file, wanted.clone());
        Ok(wanted)
    }

    /// The next sample of the first group, whose reads have ended.
    fn make<'py>(&mut self, py: Python<'py>) -> PyResult<Made<'py>> {
        let head = self.waiting.front_mut().ok_or_else(|| PyRuntimeError::new_err("nothing is read"))?;
        let (index, underway) = (head.given, head.underway.clone());
        let (is_tar, views) = (self.feed.get().is_tar, self.feed.get().views);
        if views && head.shown.is_none() {
            head.shown = Some(Shown::of(py, &underway)?);
        }
        let base = head.shown.as_ref().map(|shown| shown.base(py, &underway, index));
        let words = &mut self.words;
        let made = underway.look(index, |bytes| match base {
            Some((view, start)) => {
                let part = |range: std::ops::Range<usize>| {
                    members::part(&view, start + range.start..start + range.end)
                };
                if is_tar {
                    Ok(members::sample(py, bytes, words, part)?.into_any())
                } else {
                    part(0..bytes.len())
                }
            }
            None => {
                let copy = |range: std::ops::Range<usize>| Ok(PyBytes::new(py, &bytes[range]).into_any());
                if is_tar {
                    Ok(members::sample(py, bytes, words, copy)?.into_any())
                } else {
                    copy(0..bytes.len())
                }
            }
        });
        let len = underway.group().places[index].len;
        match made {
            Some(Ok(made)) => Ok(Ok((made, len))),
            Some(Err(fault)) if fault.is_instance_of::<TarError>(py) => Ok(Err(fault)),
            Some(Err(fault)) => Err(fault),
            None => self.read_alone(py, &underway, index),
        }
    }

    /// Something of a read is bad: each of its samples by itself, so that only those are bad that are.
    fn read_alone<'py>(&mut self, py: Python<'py>, failed: &Underway, index: usize) -> PyResult<Made<'py>> {
        let (sample, place): (u64, Place) = (failed.group().samples[index], failed.group().places[index]);
        let (feed, wanted) = (self.feed.clone_ref(py), failed.wanted(index).clone());
        let fetcher = feed.get().fetcher(py)?;
        let underway = fetcher.begin(Group::new(vec![sample], vec![place]), vec![wanted.clone()])?;
        let waited = wait(py, &underway);
        let fault = match waited {
            Ok(_) => underway.fault(0).map(|fault| feed.get().raised(Some(fault), &wanted)),
            Err(fault) => {
                fetcher.end(&underway);
                return Err(fault);
            }
        };
        if let Some(fault) = fault {
            fetcher.end(&underway);
            // Of the exception itself: `OSError` picks its class when it is made.
            let is_of_sample = fault.value(py).is_instance(feed.get().faults.bind(py))?;
            return if is_of_sample { Ok(Err(fault)) } else { Err(fault) };
        }
        self.waiting.push_front(Head { underway: underway.clone(), given: 0, shown: None });
        let made = self.make(py);
        self.waiting.pop_front();
        fetcher.end(&underway);
        made
    }

    /// Ends the groups that are read or waited for; a child of the process that began them leaves them alone.
    fn end(&mut self, py: Python<'_>) -> PyResult<()> {
        let waiting = std::mem::take(&mut self.waiting);
        (self.plan, self.ready) = (None, None);
        self.stretch.clear();
        self.sizes.clear();
        if self.pid == std::process::id() {
            let fetcher = self.feed.get().fetcher(py)?;
            waiting.iter().for_each(|head| fetcher.end(&head.underway));
        }
        Ok(())
    }
}

impl Shown {
    fn of(py: Python<'_>, underway: &Underway) -> PyResult<Shown> {
        let (reads, mut starts, mut total) = (&underway.group().reads, Vec::new(), 0);
        for read in reads {
            starts.push(total);
            total += read.len;
        }
        let memory = PyByteArray::new_with(py, total, |into| {
            for (number, start) in starts.iter().enumerate() {
                underway.look_read(number, |bytes| into[*start..start + bytes.len()].copy_from_slice(bytes));
            }
            Ok(())
        })?;
        Ok(Shown { view: PyMemoryView::from(memory.as_any())?.unbind(), starts })
    }

    /// The view, and where a sample begins in it.
    fn base<'py>(&self, py: Python<'py>, underway: &Underway, index: usize) -> (Bound<'py, PyAny>, usize) {
        let group = underway.group();
        let start = self.starts[group.read_of[index] as usize] + group.start(index);
        (self.view.bind(py).clone().into_any(), start)
    }
}

/// Waits for the reads of a group, with the interpreter's lock released; says how many seconds. Ctrl-C ends it.
#[expect(clippy::disallowed_methods, reason = "the edge: users are told how long they waited")]
fn wait(py: Python<'_>, underway: &Underway) -> PyResult<f64> {
    if underway.is_done() {
        return Ok(0.0);
    }
    let begun = Instant::now();
    while !py.detach(|| underway.wait(SIGNALS)) {
        py.check_signals()?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

#[pymethods]
impl Run {
    /// The samples of the next step; none at the end.
    fn next<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Batch<'py>>> {
        if self.pid != std::process::id() {
            let message = "this iteration was begun before the process was forked: begin a new one";
            return Err(PyRuntimeError::new_err(message));
        }
        self.fill(py)?;
        let Some(size) = self.sizes.pop_front() else { return Ok(None) };
        let (mut made, mut faults, mut bytes, mut waited) =
            (Vec::with_capacity(size.min(4096)), Vec::new(), 0, 0.0);
        self.last.clear();
        while made.len() < size {
            let Some(head) = self.waiting.front() else {
                return Err(PyRuntimeError::new_err("a plan with fewer samples than its sizes say"));
            };
            let (underway, given) = (head.underway.clone(), head.given);
            waited += wait(py, &underway)?;
            match self.make(py)? {
                Ok((sample, len)) => {
                    self.last.push((underway.group().samples[given], len));
                    made.push(sample);
                    bytes += len;
                }
                Err(fault) => {
                    self.last.push((underway.group().samples[given], 0));
                    faults.push((made.len(), fault));
                    made.push(py.None().into_bound(py));
                }
            }
            let Some(head) = self.waiting.front_mut() else { continue };
            head.given += 1;
            if head.given == underway.group().samples.len() {
                self.waiting.pop_front();
                self.feed.get().fetcher(py)?.end(&underway);
                self.fill(py)?;
            }
        }
        let (reads, read_bytes) = std::mem::take(&mut self.reads);
        Ok(Some((PyList::new(py, made)?, faults, bytes, waited, reads, read_bytes)))
    }

    /// Number of a sample of the last step.
    fn number(&self, index: usize) -> PyResult<u64> {
        self.last.get(index).map(|one| one.0).ok_or_else(|| PyValueError::new_err("no sample of this step"))
    }

    /// Bytes of a sample of the last step.
    fn length(&self, index: usize) -> PyResult<usize> {
        self.last.get(index).map(|one| one.1).ok_or_else(|| PyValueError::new_err("no sample of this step"))
    }

    /// Ends it; what was read ahead is forgotten.
    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        self.end(py)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.waiting.is_empty() {
            // Nobody could be told of an error here.
            let _ = Python::attach(|py| self.end(py));
        }
    }
}
