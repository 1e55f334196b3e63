//! Tells other nodes what was written, and wakes the watches of this one when they tell.
//!
//! News go out after a commit, not inside it: a transaction that notifies holds a lock of the whole
//! database while it becomes durable, so commits would no longer share flushes. A node that dies in between
//! tells nobody. Therefore every node also looks once in a while whether anything at all was committed, and
//! then wakes everything: a watch may be late by that pause, but it never misses.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_postgres::{AsyncMessage, Client};

use super::fault::{self, Fault};
use super::form::Form;
use super::hosts::Hosts;
use super::schema;
use crate::engine::watches::Watches;
use crate::error::{CatalogError, Result};
use crate::kv::Write;

/// The channel of the database.
const CHANNEL: &str = "stoker";
/// Between two looks whether anything was committed.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Between two tries to switch a database that older programs have used.
const SWITCH_PAUSE: Duration = Duration::from_secs(5);
/// An answer that takes longer means a lost connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Between two tries to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(500);
/// The server allows just under 8000 bytes.
const NEWS_BYTES_MAX: usize = 7900;
/// Longer keys are told by their beginning.
const PREFIX_BYTES_MAX: usize = 96;
/// Stands for everything in the news.
const EVERYTHING: &str = "*";

/// What was written and not told yet.
#[derive(Debug, Default)]
struct News {
    prefixes: BTreeSet<Vec<u8>>,
    /// Length as text.
    bytes: usize,
    everything: bool,
}

/// What the task and the callers share.
#[derive(Debug)]
pub(super) struct Listener {
    /// Which node tells, so that it does not listen to itself.
    origin: String,
    news: Mutex<News>,
    fresh: Notify,
    watches: Arc<Watches>,
    form: Arc<Form>,
}

impl Listener {
    pub(super) fn new(origin: u64, watches: Arc<Watches>, form: Arc<Form>) -> Listener {
        let (news, fresh) = (Mutex::default(), Notify::new());
        Listener { origin: format!("{origin:016x}"), news, fresh, watches, form }
    }

    /// Wakes the watches here, and leaves it to the task to tell the others.
    pub(super) fn written(&self, writes: &[Write]) {
        self.watches.wake(writes);
        let mut news = self.lock();
        for write in writes {
            match write {
                Write::Put(key, _) | Write::Delete(key) | Write::Add(key, _) => news.add(key),
                Write::DeleteRange(start, end) if start < end => news.add(shared_beginning(start, end)),
                Write::DeleteRange(..) => {}
            }
        }
        drop(news);
        self.fresh.notify_one();
    }

    /// Listens and tells for as long as this lives; connects again whenever it must.
    pub(super) async fn run(self: Arc<Listener>, hosts: Hosts) {
        loop {
            if let Err(error) = self.session(&hosts).await {
                tracing::debug!(%error, "the watching connection to PostgreSQL ended");
            }
            // Whatever happened meanwhile was not heard.
            self.watches.wake_all();
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }

    async fn session(&self, hosts: &Hosts) -> Result<()> {
        let (client, mut io) = hosts.connect().await.map_err(Fault::into_error)?;
        let (told, mut heard) = mpsc::unbounded_channel();
        let driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| io.poll_message(context)).await {
                if let AsyncMessage::Notification(news) = message
                    && told.send(news.payload().to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let result = self.listen(&client, &mut heard, hosts).await;
        driver.abort();
        result
    }

    async fn listen(
        &self,
        client: &Client,
        heard: &mut mpsc::UnboundedReceiver<String>,
        hosts: &Hosts,
    ) -> Result<()> {
        // News may be lost in a crash of the server; then everybody connects again and looks.
        let mark = schema::MARK;
        let setup =
            format!("LISTEN {CHANNEL}; SET synchronous_commit = off; SET statement_timeout = '10s'; {mark}");
        answer(client.batch_execute(&setup)).await?;
        let mut state = self.state(client).await?;
        self.watches.wake_all();
        let mut look = tokio::time::interval(LOOK_PAUSE);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut switch = tokio::time::interval(SWITCH_PAUSE);
        switch.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                news = heard.recv() => match news {
                    Some(news) => self.hear(&news),
                    None => return Err(CatalogError::unavailable("the connection was closed")),
                },
                () = self.fresh.notified() => self.tell(client).await?,
                _ = switch.tick(), if self.form.is_serializable() => {
                    self.form.set(schema::switch(client, hosts).await?)?;
                }
                _ = look.tick() => {
                    let found = self.state(client).await?;
                    if found != state {
                        self.watches.wake_all();
                        state = found;
                    }
                }
            }
        }
    }

    /// A text that changes with every commit that can be seen.
    async fn state(&self, client: &Client) -> Result<String> {
        Ok(answer(client.query_one("SELECT pg_current_snapshot()::text", &[])).await?.get(0))
    }

    async fn tell(&self, client: &Client) -> Result<()> {
        let news = std::mem::take(&mut *self.lock());
        let Some(text) = news.text() else { return Ok(()) };
        let text = format!("{} {text}", self.origin);
        let told = answer(client.execute("SELECT pg_notify($1, $2)", &[&CHANNEL, &text])).await;
        if told.is_err() {
            self.lock().everything = true;
            self.fresh.notify_one();
        }
        told.map(drop)
    }

    fn hear(&self, news: &str) {
        let Some((origin, prefixes)) = news.split_once(' ') else { return self.watches.wake_all() };
        if origin == self.origin {
            return;
        }
        for prefix in prefixes.split(',') {
            match unhex(prefix) {
                Some(prefix) => self.watches.wake_prefix(&prefix),
                None => self.watches.wake_all(),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, News> {
        // A set that is whole at any moment.
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl News {
    fn add(&mut self, key: &[u8]) {
        let prefix = &key[..key.len().min(PREFIX_BYTES_MAX)];
        if self.everything || self.prefixes.contains(prefix) {
            return;
        }
        self.bytes += 2 * prefix.len() + 1;
        self.prefixes.insert(prefix.to_vec());
        if self.bytes > NEWS_BYTES_MAX - 32 {
            *self = News { everything: true, ..News::default() };
        }
    }

    fn text(&self) -> Option<String> {
        if self.everything {
            return Some(EVERYTHING.into());
        }
        let texts: Vec<String> = self.prefixes.iter().map(|prefix| hex(prefix)).collect();
        (!texts.is_empty()).then(|| texts.join(","))
    }
}

async fn answer<T>(call: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>) -> Result<T> {
    match tokio::time::timeout(ANSWER_TIMEOUT, call).await {
        Ok(result) => result.map_err(|error| fault::Fault::of_read(&error)),
        Err(_) => Err(CatalogError::unavailable("PostgreSQL does not answer")),
    }
}

fn shared_beginning<'k>(start: &'k [u8], end: &[u8]) -> &'k [u8] {
    let shared = start.iter().zip(end).take_while(|(a, b)| a == b).count();
    &start[..shared]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(writes: &[Write]) -> Option<String> {
        let listener = Listener::new(1, Arc::new(Watches::new()), Arc::new(Form::new(2).unwrap()));
        listener.written(writes);
        listener.lock().text()
    }

    #[test]
    fn news_name_what_was_written() {
        let put = |key: &str| Write::Put(key.into(), vec![]);
        assert_eq!(told(&[]), None);
        assert_eq!(told(&[put("b"), put("a"), put("b")]).as_deref(), Some("61,62"));
        let range = Write::DeleteRange(b"dir/".to_vec(), b"dir0".to_vec());
        assert_eq!(told(&[range]).as_deref(), Some("646972"));
        // A range that crosses everything shares an empty beginning, which is everything.
        assert_eq!(told(&[Write::DeleteRange(vec![], b"z".to_vec())]).as_deref(), Some(""));
        let many: Vec<Write> = (0..2000u32).map(|n| Write::Delete(n.to_be_bytes().to_vec())).collect();
        assert_eq!(told(&many).as_deref(), Some(EVERYTHING));
        assert!(told(&many[..500]).unwrap().len() < NEWS_BYTES_MAX);
    }

    #[test]
    fn what_is_told_wakes_those_it_concerns() {
        let heard = |news: &str| {
            let watches = Arc::new(Watches::new());
            let listener = Listener::new(1, Arc::clone(&watches), Arc::new(Form::new(2).unwrap()));
            let made = ["", "a", "ab", "c"].map(|prefix| watches.watch(prefix.into()));
            listener.hear(news);
            made.map(|watch| watch.is_changed())
        };
        assert_eq!(heard("0000000000000002 61"), [true, true, true, false]);
        assert_eq!(heard("0000000000000002 6162,63"), [true, true, true, true]);
        assert_eq!(heard("0000000000000001 61"), [false; 4], "its own news");
        for odd in
            ["0000000000000002 ", "0000000000000002 *", "0000000000000002 6", "0000000000000002 zz", "", "é"]
        {
            assert_eq!(heard(odd), [true; 4], "{odd:?}");
        }
    }
}
