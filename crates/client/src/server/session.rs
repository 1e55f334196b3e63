//! One connection of a client.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use stoker_access::Guarded;
use stoker_store::{ErrorKind, File, HatchOut, JobLabel, Result, Seek, StoreError, Writer};
use tokio::io::AsyncBufReadExt;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout};

use super::inlet::{Finishing, Inlet, Wish};
use super::leases::Held;
use super::{Shared, dispatch, pump, receiving};
use crate::fault::Fault;
use crate::frame::{self, Header, Kind, OutFrame, PAYLOAD_LEN_MAX, RESPONSE_LEN_MAX};
use crate::message::{self, Request, Response};
use crate::outbox::Outbox;
use crate::socket::{ReadHalf, Stream};

/// How long a client that is disconnected for a reason has to read it.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What the client has under way. An entry that goes away tells its task to give up.
#[derive(Default)]
pub(super) struct Tables {
    pub calls: HashMap<u64, Begun>,
    pub files: HashMap<u64, Arc<dyn File>>,
    pub leases: HashMap<u64, Held>,
    inlets: HashMap<u64, (Arc<Inlet>, oneshot::Sender<()>)>,
}

/// A call whose answer is waited for.
pub(super) struct Begun {
    keep: oneshot::Sender<()>,
    pub slot: Slot,
}

/// The state of a connection.
pub(super) struct Session {
    pub shared: Arc<Shared>,
    /// The store as the client may use it.
    view: Arc<Guarded>,
    outbox: Outbox,
    pub tables: Mutex<Tables>,
    /// The protocol that both sides speak.
    version: u16,
    read_bytes: Arc<Semaphore>,
    /// Descriptors that the client may be given; none if they cannot travel.
    pub descriptors: Option<Arc<Semaphore>>,
    /// Memory that the client shares with this node, and its part of what all clients may have.
    pub hatch: OnceLock<(HatchOut, OwnedSemaphorePermit)>,
    /// For which job it works, if it said so.
    job: OnceLock<JobLabel>,
    /// Requests whose answer is not written yet.
    slots: AtomicUsize,
    calmer: Notify,
}

/// A request under way; lives until its answer is with the kernel.
pub(super) struct Slot(Arc<Session>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.slots.fetch_sub(1, Ordering::Relaxed);
        self.0.calmer.notify_one();
    }
}

/// Serves a connection until it ends.
pub(super) async fn serve(shared: Arc<Shared>, stream: Stream, version: u16, view: Arc<Guarded>) {
    let is_unix = matches!(stream, Stream::Unix(_));
    let descriptors = is_unix.then(|| Arc::new(Semaphore::new(shared.options.descriptors_max)));
    let (mut reader, writer) = stream.split();
    let stall = shared.options.stall_timeout;
    let session = Arc::new(Session {
        view,
        outbox: Outbox::default(),
        tables: Mutex::default(),
        version,
        descriptors,
        hatch: OnceLock::new(),
        job: OnceLock::new(),
        read_bytes: Arc::new(Semaphore::new(shared.options.read_share())),
        slots: AtomicUsize::new(0),
        calmer: Notify::new(),
        shared,
    });
    // Also when this task is aborted: frames that were not written hold the session, and its tables hold tasks.
    let ending = Ending(session);
    let session = &ending.0;
    let write = session.outbox.write_to(writer, stall);
    tokio::pin!(write);
    let end = tokio::select! {
        end = read(session, &mut reader) => end,
        written = &mut write => {
            tracing::debug!("connection ended: {written:?}");
            return;
        }
    };
    session.abandon();
    if let Err(fault) = &end {
        tracing::debug!("connection ended: {fault}");
    }
    match end {
        Ok(()) => session.outbox.close(),
        Err(fault @ (Fault::Broken(_) | Fault::Stalled)) => {
            let message = format!("the node ended the connection: {fault}");
            let error = StoreError::new(ErrorKind::Invalid, message);
            session.outbox.push(OutFrame::control(Kind::Goaway, 0, &error));
            session.outbox.close();
            let _ = timeout(LAST_WORDS, &mut write).await;
            // Bytes left unread would turn the close into a reset, and the client would not see the reason.
            let _ = timeout(LAST_WORDS, tokio::io::copy(&mut reader, &mut tokio::io::sink())).await;
            return;
        }
        Err(_) => return,
    }
    let _ = timeout(LAST_WORDS, write).await;
}

/// Leaves nothing behind.
struct Ending(Arc<Session>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abandon();
        self.0.outbox.discard();
    }
}

/// Reads frames until the client goes away or the server stops and nothing is under way any more.
async fn read(session: &Arc<Session>, reader: &mut ReadHalf) -> std::result::Result<(), Fault> {
    let mut stop = session.shared.stopping.subscribe();
    let mut stopping = false;
    loop {
        if stopping && session.is_calm() {
            return Ok(());
        }
        session.outbox.room().await;
        // Only the wait for a first byte may be given up: a frame is read whole.
        tokio::select! {
            filled = reader.fill_buf() => {
                if filled?.is_empty() {
                    return Err(Fault::Io(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            _ = stop.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                session.outbox.push(OutFrame::control(Kind::Goaway, 0, &closed()));
                continue;
            }
            () = session.calmer.notified(), if stopping => continue,
        }
        read_frame(session, reader, stopping).await?;
    }
}

fn closed() -> StoreError {
    StoreError::new(ErrorKind::Closed, "the node is stopping; try again when it is back")
}

async fn read_frame(
    session: &Arc<Session>,
    reader: &mut ReadHalf,
    stopping: bool,
) -> std::result::Result<(), Fault> {
    let stall = session.stall_timeout();
    let (header, control) = timeout(stall, frame::read_head(reader)).await.map_err(|_| Fault::Stalled)??;
    match header.kind {
        Kind::Request => session.request(&header, &control, stopping)?,
        Kind::Release => session.forget(header.id),
        Kind::Want => {
            let total = message::decode(&control)?;
            if let Some(inlet) = session.inlet(header.id) {
                inlet.want(total);
            }
        }
        Kind::Data => {
            if let Some(inlet) = session.inlet(header.id) {
                return receiving::from_socket(&inlet, reader, &header, session.version, stall).await;
            }
        }
        Kind::DataAt => {
            let Some(hatch) = session.hatch.get() else {
                return Err(Fault::broken("bytes in a hatch that nobody asked for"));
            };
            let place = message::decode(&control)?;
            let taken = receiving::from_hatch(session.inlet(header.id).as_deref(), &hatch.0, place)?;
            session.shared.hatch_bytes.fetch_add(taken, Ordering::Relaxed);
        }
        Kind::Response | Kind::Goaway | Kind::Grant | Kind::Failed | Kind::Lease => {
            return Err(Fault::broken("a frame that only nodes send"));
        }
    }
    timeout(stall, frame::skip_payload(reader, &header)).await.map_err(|_| Fault::Stalled)?
}

impl Session {
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub fn buffers(&self) -> Arc<Semaphore> {
        self.shared.buffers.clone()
    }

    pub fn stall_timeout(&self) -> Duration {
        self.shared.options.stall_timeout
    }

    /// Queues an answer; the slot is free again when it is written.
    pub fn answer(&self, id: u64, response: &Response, payload: Bytes, guard: impl Send + 'static) {
        let plainer = response.plainer(self.version);
        let mut control = message::encode(plainer.as_ref().unwrap_or(response));
        if control.len() > RESPONSE_LEN_MAX {
            let message = format!("the answer has {} bytes, the limit is {RESPONSE_LEN_MAX}", control.len());
            control = message::encode(&Response::Error(StoreError::new(ErrorKind::Invalid, message)));
        }
        let mut frames = OutFrame::response(id, &control, payload);
        if let Some(last) = frames.pop() {
            frames.push(last.guarded(guard));
        }
        self.outbox.push_all(frames);
    }

    /// The client wants nothing more of a call, a file, a lease or a writer.
    pub fn forget(&self, id: u64) {
        let mut tables = self.tables.lock().unwrap();
        let gone = (tables.calls.remove(&id), tables.files.remove(&id), tables.inlets.remove(&id));
        tables.leases.retain(|lease, held| *lease != id && held.file != id);
        drop(tables);
        drop(gone);
        self.calmer.notify_one();
    }

    /// The client is gone: whatever can be given up is.
    fn abandon(&self) {
        let tables = std::mem::take(&mut *self.tables.lock().unwrap());
        drop(tables);
    }

    fn inlet(&self, id: u64) -> Option<Arc<Inlet>> {
        self.tables.lock().unwrap().inlets.get(&id).map(|(inlet, _)| inlet.clone())
    }

    /// Nothing is under way; open files alone do not count.
    fn is_calm(&self) -> bool {
        self.slots.load(Ordering::Relaxed) == 0 && self.tables.lock().unwrap().inlets.is_empty()
    }

    /// Begins a request in a task of its own.
    fn request(
        self: &Arc<Session>,
        header: &Header,
        control: &[u8],
        stopping: bool,
    ) -> std::result::Result<(), Fault> {
        let id = header.id;
        let request: Request = message::decode(control)?;
        if let Request::ForJob { label } = request {
            return self.job.set(label).map_err(|_| Fault::broken("a connection works for one job"));
        }
        let limit = self.shared.options.requests_max;
        if self.slots.fetch_add(1, Ordering::Relaxed) >= limit {
            self.slots.fetch_sub(1, Ordering::Relaxed);
            return Err(Fault::broken(format!("more than {limit} requests at once")));
        }
        let slot = Slot(self.clone());
        let (keep, dropped) = oneshot::channel();
        let refusal = {
            let mut tables = self.tables.lock().unwrap();
            let taken = tables.calls.contains_key(&id)
                || tables.files.contains_key(&id)
                || tables.leases.contains_key(&id)
                || tables.inlets.contains_key(&id);
            if taken {
                return Err(Fault::broken("an id that is in use already"));
            }
            let request = match Wish::of(request) {
                Err(request) => *request,
                // Taken out of the table: what is to be published is not given up any more.
                Ok((writer, wish)) => {
                    return match tables.inlets.remove(&writer) {
                        Some((inlet, _keep)) => {
                            inlet.finish(Finishing { request: id, slot, wish, _keep });
                            Ok(())
                        }
                        None => {
                            drop(tables);
                            self.answer(id, &Response::Error(no_such("writer")), Bytes::new(), slot);
                            Ok(())
                        }
                    };
                }
            };
            let opens = matches!(request, Request::Open { .. }) || request.opens_writer();
            let handles = tables.files.len() + tables.inlets.len() + tables.calls.len();
            if stopping && !matches!(request, Request::Read { .. }) {
                closed()
            } else if opens && handles >= self.shared.options.handles_max {
                let message = format!(
                    "{handles} files are open on this connection, the limit is {}; close some",
                    self.shared.options.handles_max
                );
                StoreError::new(ErrorKind::Full, message)
            } else if let Err(error) = request.check_version(self.version).and_then(|()| request.check_keys())
            {
                error
            } else {
                tables.calls.insert(id, Begun { keep, slot });
                drop(tables);
                let call = Call { session: self.clone(), id, deadline_ms: header.deadline_ms };
                self.shared.spawn(call.run(request, dropped));
                return Ok(());
            }
        };
        self.answer(id, &Response::Error(refusal), Bytes::new(), slot);
        Ok(())
    }
}

pub(super) fn no_such(what: &str) -> StoreError {
    StoreError::new(ErrorKind::Closed, format!("the {what} is not open on this connection any more"))
}

/// A request in its task.
pub(super) struct Call {
    pub session: Arc<Session>,
    pub id: u64,
    deadline_ms: u32,
}

impl Call {
    async fn run(self, request: Request, dropped: oneshot::Receiver<()>) {
        let shared = self.session.shared.clone();
        let times = shared.times.of(&request);
        let begun = Instant::now();
        let job = self.session.job.get().cloned();
        stoker_store::in_job(job, self.carry_out(request, dropped)).await;
        if let Some(times) = times {
            times.note(begun.elapsed());
        }
    }

    async fn carry_out(self, request: Request, mut dropped: oneshot::Receiver<()>) {
        let calls = self.session.shared.calls.clone();
        // What only waits must not keep others from working.
        let permit = if matches!(request, Request::Wait { .. }) {
            None
        } else {
            tokio::select! {
                permit = calls.acquire_owned() => permit.ok(),
                _ = &mut dropped => return,
            }
        };
        match request {
            Request::Open { .. } => self.open(request, dropped).await,
            request if request.opens_writer() => self.create(request, dropped, permit).await,
            Request::Read { file, offset, len } => self.read(file, offset, len, dropped).await,
            Request::Lease { file, offset, len } => self.lease(file, offset, len, dropped).await,
            Request::Seek { file, offset, what } => self.seek(file, offset, what, dropped).await,
            Request::Hatch { slots } => self.hatch(slots),
            request if request.changes() => {
                let response = dispatch::answer(self.store(), request).await;
                let response = response.linked(self.session.version);
                self.reply(response);
            }
            request => {
                let answered = self.in_time(async { Ok(dispatch::answer(self.store(), request).await) });
                let response = tokio::select! {
                    response = answered => response.unwrap_or_else(Response::Error),
                    _ = &mut dropped => return,
                };
                let response = response.linked(self.session.version);
                self.reply(response);
            }
        }
    }

    fn store(&self) -> &dyn stoker_store::Store {
        &*self.session.view
    }

    /// Gives up at the client's deadline; it has stopped waiting.
    pub async fn in_time<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        if self.deadline_ms == 0 {
            return call.await;
        }
        let limit = Duration::from_millis(u64::from(self.deadline_ms));
        timeout(limit, call).await.unwrap_or_else(|_| {
            Err(StoreError::new(ErrorKind::Unavailable, format!("no answer within {limit:?}")))
        })
    }

    pub fn reply(self, response: Response) {
        self.reply_with(&response, Bytes::new(), ());
    }

    /// Answers, unless nobody waits any more.
    fn reply_with(self, response: &Response, payload: Bytes, guard: impl Send + 'static) {
        let begun = self.session.tables.lock().unwrap().calls.remove(&self.id);
        if let Some(Begun { slot, .. }) = begun {
            self.session.answer(self.id, response, payload, (slot, guard));
        }
    }

    async fn open(self, request: Request, mut dropped: oneshot::Receiver<()>) {
        let Request::Open { volume, key } = &request else { return };
        let opened = tokio::select! {
            opened = self.in_time(self.store().open(volume, key)) => opened,
            _ = &mut dropped => return,
        };
        let response = match opened {
            Ok(file) => {
                let info = Box::new(file.info().clone());
                let mut tables = self.session.tables.lock().unwrap();
                // Released in this moment: nobody would close it.
                if tables.calls.contains_key(&self.id) {
                    tables.files.insert(self.id, Arc::from(file));
                }
                Response::File(info).sparse(self.session.version)
            }
            Err(error) => Response::Error(error),
        };
        self.reply(response);
    }

    async fn seek(self, file: u64, offset: u64, what: Seek, mut dropped: oneshot::Receiver<()>) {
        let found = self.session.tables.lock().unwrap().files.get(&file).cloned();
        let Some(open) = found else { return self.reply(Response::Error(no_such("file"))) };
        let sought = tokio::select! {
            sought = self.in_time(open.seek(offset, what)) => sought,
            _ = &mut dropped => return,
        };
        self.reply(sought.map_or_else(Response::Error, Response::Sought));
    }

    async fn create(
        self,
        request: Request,
        mut dropped: oneshot::Receiver<()>,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let created = tokio::select! {
            created = self.in_time(dispatch::create(self.store(), &request)) => created,
            _ = &mut dropped => return,
        };
        let writer: Box<dyn Writer> = match created {
            Ok(writer) => writer,
            Err(error) => return self.reply(Response::Error(error)),
        };
        // A writer may live for hours; it counts by its buffers from here on.
        drop(permit);
        let inlet = Arc::new(Inlet::new(request.is_late()));
        let (session, id) = (self.session, self.id);
        let slot = {
            let mut tables = session.tables.lock().unwrap();
            let Some(Begun { keep, slot }) = tables.calls.remove(&id) else { return };
            tables.inlets.insert(id, (inlet.clone(), keep));
            slot
        };
        session.answer(id, &Response::Done, Bytes::new(), slot);
        pump::run(session, id, inlet, writer, dropped).await;
    }

    async fn read(self, file: u64, offset: u64, len: u32, mut dropped: oneshot::Receiver<()>) {
        let found = self.session.tables.lock().unwrap().files.get(&file).cloned();
        let Some(file) = found else { return self.reply(Response::Error(no_such("file"))) };
        let len = (len as usize).min(PAYLOAD_LEN_MAX).min(self.session.shared.options.read_share());
        let (session, shared) = (self.session.clone(), self.session.shared.clone());
        let cost = len as u32;
        let read = self.in_time(async {
            let own = session.read_bytes.clone().acquire_many_owned(cost).await.expect("never closed");
            let all = shared.read_bytes.clone().acquire_many_owned(cost).await.expect("never closed");
            Ok((file.read(offset, len).await?, (own, all)))
        });
        let read = tokio::select! {
            read = read => read,
            _ = &mut dropped => return,
        };
        match read {
            Ok((bytes, permits)) if bytes.len() <= len => {
                self.reply_with(&Response::Read, bytes, permits);
            }
            Ok(_) => unreachable!("a file gave more bytes than it was asked for"),
            Err(error) => self.reply(Response::Error(error)),
        }
    }
}
