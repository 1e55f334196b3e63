//! Lines of the audit log about calls: what a call was about, and what became of it.
//!
//! A call that changes something has a line, always. One that reads or looks has one if the log is full, or if the volume wants it. A denied
//! call has one from where it is decided. Of a call that succeeded the answer waits until its line is written, and for the drive if the log
//! says so; a call that failed does not wait.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use stoker_audit::{Event, Log, OK, Ticket, Unwritable};
use stoker_format::VersionId;
use stoker_store::{
    BoxFuture, Buf, ErrorKind, File, FileInfo, Finish, Leased, Receipt, Result, Seek, StoreError,
    SummedBytes, Writer,
};

use super::{Decided, full_of};
use crate::action::Action;
use crate::decide::{Reason, Resource};
use crate::origin::Origin;

/// A line that is written when its call is over.
pub(crate) struct Note {
    log: Arc<Log>,
    event: Event,
    /// Only a full log has it, or one that is full for the volume.
    is_full: bool,
}

fn unwritable(fault: &Unwritable) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("{fault}, and nothing is done here without it"))
}

fn unrecorded(fault: &Unwritable) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("it was done, and {fault}"))
}

fn path_of(resource: Resource<'_>) -> String {
    match resource {
        Resource::Cluster => String::new(),
        Resource::Glimpse(volume) | Resource::Volume(volume) => volume.to_owned(),
        Resource::Key(volume, key) => path(volume, key),
    }
}

/// A key of a volume as a text. Bytes that are none are written as `\xHH`.
fn path(volume: &str, key: &[u8]) -> String {
    let mut path = format!("{volume}/");
    for chunk in key.utf8_chunks() {
        path.push_str(chunk.valid());
        for byte in chunk.invalid() {
            path.push_str(&format!("\\x{byte:02x}"));
        }
    }
    path
}

impl Decided {
    fn event(&self, action: &str, path: String) -> Event {
        let origin = Origin::current();
        let address = origin.as_ref().map(|origin| origin.address.to_string());
        let own = || self.address.get().map(|own| own.address.to_string());
        let address = address.or_else(own).unwrap_or_default();
        Event {
            principal: self.context.principal.to_string(),
            tenant: self.context.tenant().unwrap_or_default().to_owned(),
            door: self.context.door.to_owned(),
            action: action.to_owned(),
            path,
            request_id: origin.map(|origin| origin.request_id.to_string()).unwrap_or_default(),
            address,
            session: self.context.session.as_deref().unwrap_or_default().to_owned(),
            ..Event::default()
        }
    }

    /// A line about something that was given to somebody, and not by a call of the store. An error if it cannot be written and has to be.
    pub async fn write_given(&self, action: &str, detail: String) -> Result<()> {
        let Some(log) = &self.shared.log else { return Ok(()) };
        let event = Event { result: OK.to_owned(), detail, ..self.event(action, String::new()) };
        let written = match log.append_now(event) {
            Ok(ticket) => ticket.wait().await,
            Err(fault) => Err(fault),
        };
        match written {
            Err(fault) if log.refuses() => Err(unwritable(&fault)),
            _ => Ok(()),
        }
    }

    pub fn write_denied(&self, action: Action, resource: Resource<'_>) {
        if let Some(log) = &self.shared.log {
            log.denied(self.event(action.name(), path_of(resource)));
        }
    }

    /// The same of a call that nobody is known to have made.
    pub fn write_stranger(&self, action: &str, volume: &str, key: Option<&[u8]>, why: &str) {
        if let Some(log) = &self.shared.log {
            let path = key.map_or_else(|| volume.to_owned(), |key| path(volume, key));
            log.denied(Event { detail: why.to_owned(), ..self.event(action, path) });
        }
    }

    /// A line about a call that changes something; none without a log. An error if nothing may be done now.
    pub async fn note(&self, action: Action, volume: &str, key: Option<&[u8]>) -> Result<Option<Note>> {
        let Some(log) = &self.shared.log else { return Ok(None) };
        let (full, is_full) = match volume {
            "" => (String::new(), log.is_full()),
            volume => {
                let full = full_of(&*self.rights().await?, volume).into_owned();
                let is_full = self.shared.is_full(log, &full).await;
                (full, is_full)
            }
        };
        if let Some(fault) = log.refusal() {
            return Err(unwritable(&fault));
        }
        let path = key.map_or_else(|| full.clone(), |key| path(&full, key));
        Ok(Some(Note { log: Arc::clone(log), event: self.event(action.name(), path), is_full }))
    }

    /// A line about a call that changes nothing; none if they have none here.
    pub async fn note_full(&self, action: Action, volume: &str, key: Option<&[u8]>) -> Result<Option<Note>> {
        Ok(self.note(action, volume, key).await?.filter(|note| note.is_full))
    }
}

impl Note {
    pub fn detail(mut self, detail: String) -> Note {
        self.event.detail = detail;
        self
    }

    /// The same about another key of the volume.
    pub fn of_key(&self, volume: &str, key: &[u8]) -> Note {
        let event = Event { path: path(volume, key), ..self.event.clone() };
        Note { log: Arc::clone(&self.log), event, is_full: self.is_full }
    }

    /// The volume in its path.
    pub fn volume(&self) -> String {
        self.event.path.split_once('/').map_or(&*self.event.path, |(volume, _)| volume).to_owned()
    }

    /// Writes down what became of a call; waits until the line is on the drive, if the log says so.
    pub async fn ends<T>(self, answer: Result<T>, bytes: impl FnOnce(&T) -> u64) -> Result<T> {
        let refuses = self.log.refuses();
        let value = match answer {
            Err(fault) => return Err(self.fails(fault)),
            Ok(value) => value,
        };
        let written = match self.succeeds(bytes(&value)) {
            Ok(None) => Ok(()),
            Ok(Some(ticket)) => ticket.wait().await,
            Err(fault) => Err(fault),
        };
        match written {
            Err(fault) if refuses => Err(unrecorded(&fault)),
            _ => Ok(value),
        }
    }

    /// Writes down what became of one of many: what it is answered, and what is to be waited for.
    pub fn ends_one<T>(self, answer: Result<T>) -> (Result<T>, Option<Ticket>) {
        let refuses = self.log.refuses();
        match answer {
            Err(fault) => (Err(self.fails(fault)), None),
            Ok(value) => match self.succeeds(0) {
                Ok(ticket) => (Ok(value), ticket),
                Err(fault) if refuses => (Err(unrecorded(&fault)), None),
                Err(_) => (Ok(value), None),
            },
        }
    }

    /// Waits for lines of many.
    pub async fn wait(&self, tickets: Vec<Ticket>) -> Result<()> {
        for ticket in tickets {
            if let Err(fault) = ticket.wait().await
                && self.log.refuses()
            {
                return Err(unrecorded(&fault));
            }
        }
        Ok(())
    }

    /// The same of a call that only looked: it waits for nothing.
    pub fn looked<T>(self, answer: Result<T>) -> Result<T> {
        let refuses = self.log.refuses();
        match answer {
            Err(fault) => Err(self.fails(fault)),
            Ok(value) => {
                let event = Event { result: OK.to_owned(), ..self.event };
                match self.log.append(event) {
                    Err(fault) if refuses => Err(unwritable(&fault)),
                    _ => Ok(value),
                }
            }
        }
    }

    fn succeeds(self, bytes: u64) -> std::result::Result<Option<Ticket>, Unwritable> {
        let event = Event { result: OK.to_owned(), bytes, ..self.event };
        match self.log.awaits(self.is_full) {
            true => self.log.append_now(event).map(Some),
            false => self.log.append(event).map(|_| None),
        }
    }

    fn fails(self, fault: StoreError) -> StoreError {
        match fault.kind {
            // Written where it was decided.
            ErrorKind::Denied if Reason::is_of(&fault) => {}
            ErrorKind::Denied => self.log.denied(self.event),
            kind => {
                // Nobody is told that it was done, so that nothing is refused that could not be written down.
                let _ = self.log.append(Event { result: format!("failed: {kind:?}"), ..self.event });
            }
        }
        fault
    }
}

/// A file whose opening was written down. Its bytes are given out when the line is on the drive, which it gets to while they are read.
pub(crate) struct RecordedFile {
    inner: Box<dyn File>,
    ticket: Ticket,
    refuses: bool,
}

impl RecordedFile {
    /// Opens a file for a full log.
    pub async fn open(answer: Result<Box<dyn File>>, note: Option<Note>) -> Result<Box<dyn File>> {
        let Some(note) = note else { return answer };
        let inner = match answer {
            Err(fault) => return Err(note.fails(fault)),
            Ok(inner) => inner,
        };
        let refuses = note.log.refuses();
        match note.succeeds(inner.info().size) {
            Ok(None) => Ok(inner),
            Ok(Some(ticket)) => Ok(Box::new(RecordedFile { inner, ticket, refuses })),
            Err(fault) if refuses => Err(unwritable(&fault)),
            Err(_) => Ok(inner),
        }
    }

    async fn after_line<T>(&self, read: BoxFuture<'_, Result<T>>) -> Result<T> {
        if self.ticket.is_done() {
            return read.await;
        }
        let (value, written) = tokio::join!(read, self.ticket.wait());
        match written {
            Err(fault) if self.refuses => Err(unwritable(&fault)),
            _ => value,
        }
    }
}

impl File for RecordedFile {
    fn info(&self) -> &FileInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(self.after_line(self.inner.read(offset, len)))
    }

    fn read_within<'a>(
        &'a self,
        offset: u64,
        len: usize,
        room: &'a mut [u8],
    ) -> BoxFuture<'a, Result<Range<usize>>> {
        Box::pin(self.after_line(self.inner.read_within(offset, len, room)))
    }

    fn seek(&self, offset: u64, what: Seek) -> BoxFuture<'_, Result<Option<u64>>> {
        Box::pin(self.after_line(self.inner.seek(offset, what)))
    }

    fn wants_all(&self) {
        self.inner.wants_all();
    }

    fn lease(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<Leased>> {
        Box::pin(self.after_line(self.inner.lease(offset, len)))
    }
}

/// A writer that has a line when it is finished. One that is given up changed nothing, and has none.
pub(crate) struct RecordedWriter {
    inner: Box<dyn Writer>,
    note: Note,
    bytes: u64,
}

impl RecordedWriter {
    /// Takes a writer, if there is one.
    pub fn begin(answer: Result<Box<dyn Writer>>, note: Option<Note>) -> Result<Box<dyn Writer>> {
        match (answer, note) {
            (answer, None) => answer,
            (Ok(inner), Some(note)) => Ok(Box::new(RecordedWriter { inner, note, bytes: 0 })),
            (Err(fault), Some(note)) => Err(note.fails(fault)),
        }
    }
}

impl Writer for RecordedWriter {
    fn buffer(&mut self) -> BoxFuture<'_, Result<Buf>> {
        self.inner.buffer()
    }

    fn write(&mut self, buf: Buf) -> BoxFuture<'_, Result<()>> {
        self.bytes += buf.len() as u64;
        self.inner.write(buf)
    }

    fn takes_bytes(&self) -> bool {
        self.inner.takes_bytes()
    }

    fn memory(&self) -> Option<Buf> {
        self.inner.memory()
    }

    fn write_bytes(&mut self, bytes: SummedBytes) -> BoxFuture<'_, Result<()>> {
        self.bytes += bytes.bytes.len() as u64;
        self.inner.write_bytes(bytes)
    }

    fn crc64(&self) -> u64 {
        self.inner.crc64()
    }

    fn finish(self: Box<Self>, finish: Finish) -> BoxFuture<'static, Result<Receipt>> {
        let RecordedWriter { inner, note, bytes } = *self;
        Box::pin(async move { note.ends(inner.finish(finish).await, |_| bytes).await })
    }

    fn finish_on(self: Box<Self>, base: VersionId, finish: Finish) -> BoxFuture<'static, Result<Receipt>> {
        let RecordedWriter { inner, note, bytes } = *self;
        Box::pin(async move { note.ends(inner.finish_on(base, finish).await, |_| bytes).await })
    }
}
