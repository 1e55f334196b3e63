//! Clients: each request goes to a node that is open, its outcome goes into the model, and what a read returns is held
//! against the model at once.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stoker_node::{InWorld, Node};
use stoker_store::{
    Condition, CopyRequest, ErrorKind, Finish, Key, PartChoice, PartInfo, Receipt, RenameMode, Result, Store,
    StoreError, UploadId, WriteRequest,
};

use super::invariants::{Broken, no_quiet_degradation, no_silent_corruption, read_your_writes};
use super::model::{Content, Model, words};
use super::network::Host;
use super::workloads::sets::Set;
use super::world::{Cluster, VOLUME};
use crate::rng::Rng;

/// Longest wait of a client for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// All clients of a run.
pub struct Clients {
    /// The cluster that they use.
    pub cluster: Arc<Cluster>,
    model: Mutex<Model>,
    rng: Mutex<Rng>,
    counts: Mutex<(u64, u64)>,
    sets: Mutex<Vec<Set>>,
}

/// A change of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Other bytes.
    Put,
    /// More bytes behind those there.
    Append,
    /// Away.
    Delete,
    /// Put together from parts.
    Upload,
}

impl Clients {
    /// Clients of a cluster.
    pub fn new(cluster: Arc<Cluster>, seed: u64) -> Clients {
        let rng = Mutex::new(Rng::new(seed));
        Clients { cluster, model: Mutex::default(), rng, counts: Mutex::default(), sets: Mutex::default() }
    }

    /// What they know.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap()
    }

    /// The checkpoint sets that they began.
    pub fn sets(&self) -> MutexGuard<'_, Vec<Set>> {
        self.sets.lock().unwrap()
    }

    /// Requests, and how many of them were acknowledged.
    pub fn counts(&self) -> (u64, u64) {
        *self.counts.lock().unwrap()
    }

    fn count(&self, is_done: bool) {
        let counts = &mut *self.counts.lock().unwrap();
        counts.0 += 1;
        counts.1 += u64::from(is_done);
    }

    /// Bytes that nobody wrote before.
    pub fn fresh(&self) -> Vec<u8> {
        let mut rng = self.rng.lock().unwrap();
        let len = match rng.below(10) {
            0 => 0,
            1..=5 => rng.between(1, 4_000),
            _ => rng.between(4_000, 30_000),
        };
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        bytes
    }

    /// A node that is open, if there is one.
    pub fn some_host(&self) -> Option<Host> {
        let hosts = self.cluster.net.hosts();
        self.rng.lock().unwrap().pick(&hosts).cloned()
    }

    /// Runs a request on a node. One that dies meanwhile answers nothing.
    pub async fn on<T: Send + 'static>(
        &self,
        host: &Host,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let gone = || StoreError::new(ErrorKind::Unavailable, "simulated: the node is gone");
        let died = host.process.died.notified();
        tokio::pin!(died);
        died.as_mut().enable();
        if !host.process.is_alive() {
            return Err(gone());
        }
        let running = tokio::spawn(InWorld::new(&host.world(), request));
        tokio::select! {
            biased;
            done = running => done.unwrap_or_else(|_| Err(gone())),
            () = died => Err(gone()),
            () = tokio::time::sleep(PATIENCE) => Err(gone()),
        }
    }

    /// Reads a key through a node, and checks what it says.
    pub async fn get(&self, host: &Host, name: &str) -> std::result::Result<Option<Content>, Broken> {
        let mark = self.model().read_begins(name);
        let (node, key) = (host.node.clone(), key(name));
        let read = self.on(host, async move {
            let file = node.open(VOLUME, &key).await?;
            let mut bytes = Vec::new();
            loop {
                let piece = file.read(bytes.len() as u64, 1 << 20).await?;
                if piece.is_empty() {
                    return Ok(bytes);
                }
                bytes.extend_from_slice(&piece);
            }
        });
        let read = read.await;
        let at = host.process.machine.at;
        let seen = match read {
            Ok(bytes) => Some(Arc::new(bytes)),
            Err(fault) if fault.kind == ErrorKind::NotFound => None,
            Err(fault) => {
                self.note(at, "get", name, &format!("{fault}"));
                self.count(false);
                no_silent_corruption::check(&self.cluster, name, &fault)?;
                return Ok(None);
            }
        };
        self.note(at, "get", name, &words(&seen));
        self.count(true);
        read_your_writes::check(&mut self.model(), name, &mark, &seen, at)?;
        Ok(Some(seen))
    }

    fn note(&self, at: usize, what: &str, name: &str, outcome: &str) {
        self.cluster.trace.note(format_args!("client: {what} {name} on m{at}: {outcome}"));
    }

    /// Changes a key through a node.
    pub async fn change(&self, host: &Host, name: &str, change: Change) -> std::result::Result<(), Broken> {
        if !self.model().take(name) {
            return Ok(());
        }
        let bytes = self.fresh();
        let before = self.model().possible(name);
        let wanted: Vec<Content> = match change {
            Change::Put | Change::Upload => vec![Some(Arc::new(bytes.clone()))],
            Change::Delete => vec![None],
            Change::Append => before
                .iter()
                .map(|old| {
                    let mut all = old.as_ref().map_or_else(Vec::new, |old| old.to_vec());
                    all.extend_from_slice(&bytes);
                    Some(Arc::new(all))
                })
                .collect(),
        };
        self.model().begin(name, &wanted);
        let (node, own) = (host.node.clone(), key(name));
        let outcome: Result<Option<Receipt>> = match change {
            Change::Put | Change::Append => {
                let size = Some(bytes.len() as u64);
                let append = change == Change::Append;
                let request = WriteRequest { size, append, ..WriteRequest::default() };
                self.on(host, async move {
                    let writer = node.create(VOLUME, &own, request).await?;
                    write(writer, &bytes).await.map(Some)
                })
                .await
            }
            Change::Delete => {
                self.on(host, async move {
                    let deleted = node.delete(VOLUME, vec![(own, Condition::default())]).await?;
                    deleted.into_iter().try_for_each(|one| one.map(drop))?;
                    Ok(None)
                })
                .await
            }
            Change::Upload => {
                let begun = self.on(host, upload(node, own.clone(), bytes)).await;
                match (begun, self.some_host()) {
                    // Clients of a cluster talk to whichever node answers.
                    (Ok(upload), Some(other)) => {
                        self.on(&other, complete(other.node.clone(), own, upload)).await
                    }
                    (Ok(_), None) => Err(StoreError::new(ErrorKind::Unavailable, "no node")),
                    (Err(fault), _) => Err(fault),
                }
            }
        };
        let receipt = outcome.as_ref().ok().cloned().flatten();
        self.ended(host, &format!("{change:?}"), name, &wanted, outcome.map(drop));
        self.model().give(name);
        let promised = &self.cluster.shape.promised;
        receipt.map_or(Ok(()), |receipt| no_quiet_degradation::check(promised, name, &receipt))
    }

    fn ended(&self, host: &Host, what: &str, name: &str, wanted: &[Content], outcome: Result<()>) {
        let certain = wanted.first().filter(|_| wanted.len() == 1).map_or("?".into(), words);
        match &outcome {
            Ok(()) => self.note(host.process.machine.at, what, name, &certain),
            Err(fault) => self.note(host.process.machine.at, what, name, &format!("{fault} ({certain})")),
        }
        self.count(outcome.is_ok());
        let mut model = self.model();
        match outcome {
            Ok(()) if wanted.len() == 1 => model.acknowledge(name, wanted, wanted[0].clone()),
            // One of several, and nobody said which.
            Ok(()) => {}
            Err(fault) if is_refusal(&fault) => model.refuse(name, wanted),
            Err(_) => {}
        }
    }

    /// Copies or renames.
    pub async fn move_or_copy(&self, host: &Host, from: &str, to: &str, is_copy: bool) {
        if from == to || !self.model().take(from) {
            return;
        }
        if self.model().take(to) {
            let contents: Vec<Content> = self.model().possible(from);
            let there: Vec<Content> = contents.into_iter().filter(Option::is_some).collect();
            self.model().begin(to, &there);
            if !is_copy {
                self.model().begin(from, &[None]);
            }
            let (node, one, other) = (host.node.clone(), key(from), key(to));
            let outcome = self
                .on(host, async move {
                    if is_copy {
                        let request = CopyRequest {
                            from_volume: VOLUME.into(),
                            from: one,
                            from_condition: Condition::default(),
                            to_volume: VOLUME.into(),
                            to: other,
                            condition: Condition::default(),
                            attributes: None,
                        };
                        node.copy(request).await.map(drop)
                    } else {
                        node.rename(VOLUME, &one, &other, RenameMode::Replace).await
                    }
                })
                .await;
            let what = if is_copy { "copy" } else { "rename" };
            if !is_copy {
                self.ended(host, what, from, &[None], outcome.clone());
            }
            self.ended(host, what, to, &there, outcome);
            self.model().give(to);
        }
        self.model().give(from);
    }
}

/// Whether a request that failed so certainly changed nothing.
fn is_refusal(fault: &StoreError) -> bool {
    !matches!(fault.kind, ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Closed)
}

/// A key by its name.
pub fn key(name: &str) -> Key {
    Key::new(name).expect("a short name is a key")
}

async fn write(mut writer: Box<dyn stoker_store::Writer>, bytes: &[u8]) -> Result<Receipt> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut buf = writer.buffer().await?;
        let len = rest.len().min(buf.capacity());
        buf.set_len(len);
        buf.as_mut_slice().copy_from_slice(&rest[..len]);
        writer.write(buf).await?;
        rest = &rest[len..];
    }
    writer.finish(Finish::default()).await
}

async fn upload(node: Arc<Node>, key: Key, bytes: Vec<u8>) -> Result<UploadId> {
    let upload = node.upload_create(VOLUME, &key, Default::default(), None).await?.upload;
    // All parts but the last are larger than all that a drive here holds.
    let writer = node.upload_part(VOLUME, &key, &upload, 1, Some(bytes.len() as u64)).await?;
    write(writer, &bytes).await?;
    Ok(upload)
}

async fn complete(node: Arc<Node>, key: Key, upload: UploadId) -> Result<Option<Receipt>> {
    let parts = node.upload_parts(VOLUME, &key, &upload, 0, 100).await?.parts;
    let choose = |part: PartInfo| PartChoice { number: part.number, etag: part.etag, checksum: None };
    let chosen = parts.into_iter().map(choose).collect();
    let finish = Finish::default();
    node.upload_complete(VOLUME, &key, &upload, chosen, Condition::default(), finish).await?;
    // Its holders are those of its parts, which had their own receipts.
    Ok(None)
}
