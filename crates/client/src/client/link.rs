//! One connection: requests out, answers in, both at any time.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use stoker_format::{ClusterId, crc32c};
use stoker_store::{ErrorKind, HatchIn, Result, StoreError};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::line::{Ended, Line, Lines};
use super::outlet::Outlet;
use super::segments::{LeaseFiles, Segments};
use super::{ClientOptions, Inner, unexpected};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::frame::{self, DataSum, FLAG_MORE, Header, Kind, OutFrame, RESPONSE_LEN_MAX, UNSUMMED_VERSION};
use crate::hello::{self, Proof, Welcome};
use crate::message::{self, JOBS_SINCE, Request, Response};
use crate::outbox::Outbox;
use crate::socket::{ReadHalf, Stream};

/// Bytes of writers that may be under way at once, over all writers of a connection.
pub(super) const WRITE_BYTES_MAX: usize = 64 << 20;

/// Slots of shared memory that a connection asks for.
const HATCH_SLOTS: u32 = 16;
/// How long it waits for them.
const HATCH_TIMEOUT: Duration = Duration::from_secs(20);
/// When it asks again after others had them all.
const HATCH_PAUSE: Duration = Duration::from_secs(30);

/// The first protocol with leases.
const LEASE_VERSION: u16 = 2;

/// How long the reader has to find the node's reason after a write failed.
const READER_LAST_WORD: Duration = Duration::from_secs(1);

/// An answer with its payload.
#[derive(Debug)]
pub(super) struct Reply {
    pub response: Response,
    pub payload: Bytes,
    /// What came beside an answer with descriptors; none if it was lost on the way.
    pub descriptors: Option<Vec<OwnedFd>>,
}

impl Reply {
    pub fn new(response: Response, payload: Bytes) -> Reply {
        Reply { response, payload, descriptors: None }
    }

    pub fn into_result(self) -> Result<Reply> {
        match self.response {
            Response::Error(error) => Err(error),
            _ => Ok(self),
        }
    }
}

/// The connection went away under a call.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    /// Why.
    pub error: StoreError,
    /// False if the request certainly never left.
    pub sent: bool,
}

impl Lost {
    /// True if asking again does no harm and may help.
    pub fn may_repeat(&self, request: &Request) -> bool {
        !self.sent || !request.changes()
    }

    /// For a change of which nobody knows whether it was carried through.
    pub fn outcome_unknown(self) -> StoreError {
        let message =
            format!("{}; the outcome is unknown: check with stat before trying again", self.error.message);
        StoreError { kind: ErrorKind::Unavailable, message, ..self.error }
    }
}

#[derive(Default)]
struct Tables {
    calls: HashMap<u64, oneshot::Sender<Reply>>,
    outlets: HashMap<u64, Arc<Outlet>>,
    /// Files of leases; those who read them hold no more than a claim, so that all are closed with the connection.
    leases: HashMap<u64, Arc<LeaseFiles>>,
    segments: Segments,
    /// Set once: the connection is over.
    lost: Option<StoreError>,
}

struct Shared {
    outbox: Arc<Outbox>,
    tables: Mutex<Tables>,
    /// The node said that it will stop; what is under way goes on.
    leaving: AtomicBool,
}

/// A connection. It closes when the last handle is dropped.
pub(super) struct Link {
    shared: Arc<Shared>,
    welcome: Welcome,
    requests: Semaphore,
    write_bytes: Arc<Semaphore>,
    id_next: AtomicU64,
    call_timeout_ms: u32,
    /// Leases may be asked for.
    leases: AtomicBool,
    /// Connections of threads that may be blocked.
    lines: Lines,
    /// Memory that the node has, too.
    hatch: Arc<OnceLock<Arc<HatchIn>>>,
    /// When it may be asked for (again); never if it is none.
    hatch_ask_at: Mutex<Option<Instant>>,
    runtime: Handle,
    is_unix: bool,
    tasks: [AbortHandle; 2],
}

impl Link {
    /// Connects, says hello and starts reading.
    pub async fn connect(
        endpoint: &Endpoint,
        token: Option<&str>,
        options: &ClientOptions,
    ) -> Result<Arc<Link>> {
        let (stream, welcome) = dial(endpoint, token, options).await?;
        let is_unix = matches!(stream, Stream::Unix(_));
        let leases = options.leases && welcome.version >= LEASE_VERSION && is_unix;
        let (reader, writer) = if leases { stream.split_with_descriptors() } else { stream.split() };
        let shared = Arc::new(Shared {
            outbox: Arc::default(),
            tables: Mutex::default(),
            leaving: AtomicBool::new(false),
        });
        let stall = options.stall_timeout;
        let (reading, writing) = (shared.clone(), shared.clone());
        let read_task = tokio::spawn(async move {
            let fault = reading.read(reader, stall).await;
            reading.lose(fault.into_error());
        });
        let write_task = tokio::spawn(async move {
            if let Err(fault) = writing.outbox.write_to(writer, stall).await {
                // The reader may still find the reason that the node gave; the first to lose the link says why.
                if !matches!(fault, Fault::Stalled) {
                    tokio::time::sleep(READER_LAST_WORD).await;
                }
                writing.lose(fault.into_error());
            }
        });
        Ok(Arc::new(Link {
            shared,
            welcome,
            requests: Semaphore::new(welcome.requests_max.clamp(1, 1 << 16) as usize),
            write_bytes: Arc::new(Semaphore::new(WRITE_BYTES_MAX)),
            id_next: AtomicU64::new(1),
            call_timeout_ms: u32::try_from(options.call_timeout.as_millis()).unwrap_or(0),
            leases: AtomicBool::new(leases),
            lines: Lines::new(is_unix),
            hatch: Arc::default(),
            hatch_ask_at: Mutex::new(leases.then(Instant::now)),
            runtime: Handle::current(),
            is_unix,
            tasks: [read_task.abort_handle(), write_task.abort_handle()],
        }))
    }

    /// False if a new call needs a new connection.
    pub fn is_usable(&self) -> bool {
        !self.shared.leaving.load(Ordering::Relaxed) && self.shared.tables.lock().unwrap().lost.is_none()
    }

    pub fn cluster(&self) -> ClusterId {
        self.welcome.cluster
    }

    /// An id for a request, file or writer.
    pub fn new_id(&self) -> u64 {
        self.id_next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn outbox(&self) -> &Arc<Outbox> {
        &self.shared.outbox
    }

    /// What guards the frames of writers. Inside a machine the sum over the whole file, which the node compares before it
    /// publishes, is enough.
    pub fn data_sum(&self) -> DataSum {
        if self.is_unix && self.welcome.version >= UNSUMMED_VERSION {
            DataSum::OfFile
        } else {
            DataSum::OfFrame
        }
    }

    /// Memory through which bytes reach the node without the kernel, once there is some.
    pub fn hatch(&self) -> &Arc<OnceLock<Arc<HatchIn>>> {
        &self.hatch
    }

    /// Asks for such memory, unless that was done. Nobody waits for it: until it comes, bytes go by the socket.
    pub fn want_hatch(self: &Arc<Link>) {
        if self.hatch.get().is_some() {
            return;
        }
        let mut ask_at = self.hatch_ask_at.lock().unwrap();
        let now = Instant::now();
        if ask_at.is_none_or(|ask_at| now < ask_at) {
            return;
        }
        *ask_at = Some(now + HATCH_PAUSE);
        drop(ask_at);
        let link = self.clone();
        self.runtime.spawn(async move {
            // One that is late may have been made all the same, and nobody would know of it: there is no second one then.
            let asked = timeout(HATCH_TIMEOUT, link.ask_for_hatch()).await;
            match asked.unwrap_or(Err(StoreError::new(ErrorKind::Invalid, "no answer"))) {
                Ok(hatch) => drop(link.hatch.set(Arc::new(hatch))),
                Err(error) => {
                    tracing::debug!("bytes go by the socket: {error}");
                    if error.kind != ErrorKind::Full {
                        *link.hatch_ask_at.lock().unwrap() = None;
                    }
                }
            }
        });
    }

    async fn ask_for_hatch(&self) -> Result<HatchIn> {
        let request = Request::Hatch { slots: HATCH_SLOTS };
        let reply = self.call(self.new_id(), &request).await.map_err(|lost| lost.error)?.into_result()?;
        let descriptor = match reply {
            Reply { response: Response::Hatch, descriptors: Some(descriptors), .. } => {
                descriptors.into_iter().next()
            }
            _ => None,
        };
        let descriptor = descriptor.ok_or_else(unexpected)?;
        HatchIn::open(descriptor, HATCH_SLOTS as usize)
            .map_err(|error| StoreError::new(ErrorKind::Invalid, error.to_string()))
    }

    /// Permits for bytes of writers.
    pub fn write_bytes(&self) -> &Arc<Semaphore> {
        &self.write_bytes
    }

    /// Sends a request and waits for the answer. Dropped before that, the node is told that nobody waits.
    pub async fn call(&self, id: u64, request: &Request) -> std::result::Result<Reply, Lost> {
        let control = match encode(request, self.welcome.version) {
            Ok(control) => control,
            Err(error) => return Ok(Reply::new(Response::Error(error), Bytes::new())),
        };
        let _permit = self.requests.acquire().await.expect("never closed");
        let deadline_ms = self.deadline_ms(request);
        let (sender, receiver) = oneshot::channel();
        {
            let mut tables = self.shared.tables.lock().unwrap();
            if let Some(error) = &tables.lost {
                return Err(Lost { error: error.clone(), sent: false });
            }
            tables.calls.insert(id, sender);
            self.outbox().push(OutFrame::new(Kind::Request, id, deadline_ms, &control, Bytes::new()));
        }
        let mut waiting = Waiting { link: self, id, answered: false };
        let answer = receiver.await;
        waiting.answered = true;
        answer.map_err(|_| {
            let lost = self.shared.tables.lock().unwrap().lost.clone();
            let error =
                lost.unwrap_or_else(|| StoreError::new(ErrorKind::Unavailable, "the connection is lost"));
            Lost { error, sent: true }
        })
    }

    fn deadline_ms(&self, request: &Request) -> u32 {
        if request.is_long() { 0 } else { self.call_timeout_ms }
    }

    /// A line that nobody uses, made if there are few; none if the thread has to ask like all others.
    pub async fn line(&self, inner: &Inner) -> Option<Line> {
        if let Some(idle) = self.lines.take()? {
            return Some(idle);
        }
        // Not counted any more if this is given up.
        let place = self.lines.place()?;
        match Line::connect(inner, &self.welcome).await {
            Ok(line) => {
                place.keep();
                Some(line)
            }
            Err(error) => {
                tracing::debug!("no line of its own for a thread: {error}");
                self.lines.refuse();
                None
            }
        }
    }

    /// Asks on a line; blocks the thread. The line is used again unless something is wrong with it.
    pub fn call_on(
        &self,
        mut line: Line,
        request: &Request,
        inner: &Inner,
    ) -> Result<std::result::Result<Reply, Lost>> {
        let answer = match encode(request, self.welcome.version) {
            Ok(control) => line.call(&control, self.deadline_ms(request)),
            Err(error) => Ok(Reply::new(Response::Error(error), Bytes::new())),
        };
        self.lines.give_back(line);
        match answer {
            Ok(reply) => Ok(Ok(reply)),
            Err(Ended::Late) => Err(inner.too_late()),
            Err(Ended::Lost(lost)) => {
                // What took this one took the others, too.
                self.lines.refuse();
                Ok(Err(lost))
            }
        }
    }

    /// Lets the reader find a writer; before the request that makes it.
    pub fn add_outlet(&self, outlet: &Arc<Outlet>) {
        let mut tables = self.shared.tables.lock().unwrap();
        match &tables.lost {
            Some(error) => outlet.fail(error.clone()),
            None => drop(tables.outlets.insert(outlet.id(), outlet.clone())),
        }
    }

    /// Forgets a writer.
    pub fn remove_outlet(&self, id: u64) {
        self.shared.tables.lock().unwrap().outlets.remove(&id);
    }

    /// True if it is worth to ask for leases.
    pub fn gives_leases(&self) -> bool {
        self.leases.load(Ordering::Relaxed)
    }

    /// Asks for no more leases: what came with one was not what should have come.
    pub fn give_up_leases(&self, why: &str) {
        tracing::debug!("reading through the node: {why}");
        self.leases.store(false, Ordering::Relaxed);
    }

    /// Keeps the files of a lease until it ends or the connection does.
    pub fn keep_lease(&self, id: u64, files: Vec<File>) -> Weak<LeaseFiles> {
        let mut tables = self.shared.tables.lock().unwrap();
        let files = Arc::new(tables.segments.once(files));
        let kept = Arc::downgrade(&files);
        if tables.lost.is_none() {
            tables.leases.insert(id, files);
        }
        kept
    }

    /// Ends a lease; reads that are under way finish.
    pub fn end_lease(&self, id: u64) {
        let files = self.shared.tables.lock().unwrap().leases.remove(&id);
        drop(files);
        self.release(id);
    }

    /// Tells the node that a file, a writer or a call is not needed any more.
    pub fn release(&self, id: u64) {
        self.outbox().push(OutFrame::bare(Kind::Release, id));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// The request as bytes, if the other side understands it and it is not too long.
fn encode(request: &Request, version: u16) -> Result<Vec<u8>> {
    request.check_version(version)?;
    let control = message::encode(request);
    if control.len() > frame::CONTROL_LEN_MAX {
        let limit = frame::CONTROL_LEN_MAX;
        let message = format!("the request has {} bytes, the limit is {limit}", control.len());
        return Err(StoreError::new(ErrorKind::Invalid, message));
    }
    Ok(control)
}

/// Connects and says hello.
pub(super) async fn dial(
    endpoint: &Endpoint,
    token: Option<&str>,
    options: &ClientOptions,
) -> Result<(Stream, Welcome)> {
    let proof = match endpoint {
        Endpoint::Tcp(_) | Endpoint::Tls(_) => Proof::Demanded,
        Endpoint::Unix(_) => Proof::IfWanted,
    };
    let connected = timeout(options.connect_timeout, async {
        let mut stream = Stream::connect(endpoint, options.trust.as_ref()).await?;
        let welcome = hello::greet(&mut stream, token, proof).await?;
        if let Some(label) = options.job.clone().filter(|_| welcome.version >= JOBS_SINCE) {
            let frame = OutFrame::control(Kind::Request, 0, &Request::ForJob { label });
            stream.write_all(&frame.head).await?;
        }
        Ok::<_, Fault>((stream, welcome))
    });
    match connected.await {
        Ok(Ok(connected)) => Ok(connected),
        Ok(Err(Fault::Io(error)))
            if matches!(endpoint, Endpoint::Tls(_)) && stoker_tls::explain(&error).is_some() =>
        {
            let why = stoker_tls::explain(&error).unwrap_or_default();
            Err(StoreError::new(ErrorKind::Invalid, format!("cannot connect to {endpoint}: {why}")))
        }
        Ok(Err(Fault::Io(error))) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
            let message = format!("cannot connect to {endpoint}: {error}");
            Err(StoreError::new(ErrorKind::Unavailable, message))
        }
        Ok(Err(fault)) => {
            let error = fault.into_error();
            let message = format!("cannot connect to {endpoint}: {}", error.message);
            Err(StoreError { message, ..error })
        }
        Err(_) => {
            let limit = options.connect_timeout;
            let message = format!("cannot connect to {endpoint}: no answer within {limit:?}");
            Err(StoreError::new(ErrorKind::Unavailable, message))
        }
    }
}

/// A call whose answer is waited for.
struct Waiting<'a> {
    link: &'a Link,
    id: u64,
    answered: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.link.shared.tables.lock().unwrap().calls.remove(&self.id);
            self.link.release(self.id);
        }
    }
}

impl Shared {
    /// Reads frames until the connection ends; returns why.
    async fn read(&self, mut reader: ReadHalf, stall: Duration) -> Fault {
        let mut partial = Vec::new();
        loop {
            // Nothing may come for hours; but a frame that has begun goes on.
            match reader.fill_buf().await {
                Ok([]) => return Fault::Io(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => return error.into(),
            }
            if reader.get_ref().has_strays(reader.buffer().len()) {
                return Fault::broken("the node sent descriptors that nobody asked for");
            }
            match self.read_frame(&mut reader, stall, &mut partial).await {
                Ok(()) => {}
                Err(fault) => return fault,
            }
        }
    }

    async fn read_frame(
        &self,
        reader: &mut ReadHalf,
        stall: Duration,
        partial: &mut Vec<u8>,
    ) -> std::result::Result<(), Fault> {
        let (header, control) =
            timeout(stall, frame::read_head(reader)).await.map_err(|_| Fault::Stalled)??;
        match header.kind {
            Kind::Response => {
                if partial.len() + control.len() > RESPONSE_LEN_MAX {
                    return Err(Fault::broken("an answer that does not end"));
                }
                partial.extend_from_slice(&control);
                let payload = read_payload(reader, &header, stall).await?;
                if header.flags & FLAG_MORE == 0 {
                    let response = message::decode(partial)?;
                    *partial = Vec::new();
                    self.answer(header.id, Reply::new(response, payload));
                }
                return Ok(());
            }
            Kind::Lease => {
                // Claimed before anything can fail, and closed unless somebody waits for them.
                let descriptors = reader.get_mut().claim();
                let response = message::decode(&control)?;
                let payload = read_payload(reader, &header, stall).await?;
                self.answer(header.id, Reply { response, payload, descriptors });
                return Ok(());
            }
            Kind::Goaway => {
                let error: StoreError = message::decode(&control)?;
                if error.kind != ErrorKind::Closed {
                    return Err(Fault::Told(error));
                }
                self.leaving.store(true, Ordering::Relaxed);
            }
            Kind::Grant => {
                let total: u64 = message::decode(&control)?;
                if let Some(outlet) = self.outlet(header.id) {
                    outlet.grant(total, &self.outbox);
                }
            }
            Kind::Failed => {
                let error: StoreError = message::decode(&control)?;
                if let Some(outlet) = self.outlet(header.id) {
                    outlet.fail(error);
                }
            }
            Kind::Request | Kind::Release | Kind::Data | Kind::DataAt | Kind::Want => {
                return Err(Fault::broken("the node sent a frame that only clients send"));
            }
        }
        timeout(stall, frame::skip_payload(reader, &header)).await.map_err(|_| Fault::Stalled)?
    }

    fn answer(&self, id: u64, reply: Reply) {
        let waiting = self.tables.lock().unwrap().calls.remove(&id);
        if let Some(waiting) = waiting {
            // Given up in this moment: the Release is on its way.
            let _ = waiting.send(reply);
        }
    }

    fn outlet(&self, id: u64) -> Option<Arc<Outlet>> {
        self.tables.lock().unwrap().outlets.get(&id).cloned()
    }

    /// Ends every call, every lease and every writer.
    fn lose(&self, error: StoreError) {
        let (calls, outlets, leases) = {
            let mut tables = self.tables.lock().unwrap();
            if tables.lost.is_none() {
                tables.lost = Some(error.clone());
            }
            let leases = std::mem::take(&mut tables.leases);
            (std::mem::take(&mut tables.calls), std::mem::take(&mut tables.outlets), leases)
        };
        self.outbox.discard();
        drop((calls, leases));
        for outlet in outlets.into_values() {
            outlet.fail(error.clone());
        }
    }
}

/// Reads a payload straight into memory of its own. The peer must keep sending.
async fn read_payload(
    reader: &mut ReadHalf,
    header: &Header,
    stall: Duration,
) -> std::result::Result<Bytes, Fault> {
    let len = header.payload_len as usize;
    let mut payload = BytesMut::with_capacity(len);
    while payload.len() < len {
        let rest = len - payload.len();
        let mut limited = reader.take(rest as u64);
        let read = timeout(stall, limited.read_buf(&mut payload)).await.map_err(|_| Fault::Stalled)??;
        if read == 0 {
            return Err(Fault::Io(std::io::ErrorKind::UnexpectedEof.into()));
        }
    }
    header.check_payload(crc32c(&payload))?;
    Ok(payload.freeze())
}
