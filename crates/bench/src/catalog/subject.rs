//! The catalog under test, used as a node uses it: names on rows, with the checks that every publish makes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stoker_catalog::engine::{Beginning, EmbeddedOptions, Postgres, PostgresOptions, ReplicatedCatalog};
use stoker_catalog::{BoxFuture, Catalog, CatalogError, Check, Commit, Outcome, Wire};
use stoker_format::{ClusterId, DriveId, NodeId, VersionId, VolumeId};
use stoker_schema::names::{Names, Plan, Refusal};
use stoker_schema::rows::{Drain, FileRow, HolderRow, Layout, keys};
use tokio::task::JoinSet;

use super::failed;
use super::load::Call;
use crate::clock;
use crate::failure::Failure;

const CLUSTER: ClusterId = ClusterId([0xbe; 16]);
const VOLUME: VolumeId = VolumeId(1);
const NODE: NodeId = NodeId([1; 16]);
const DRIVE: DriveId = DriveId([2; 16]);
/// Files in one directory of those that are opened.
const DIRECTORY_FILES: u64 = 1000;
/// Files are published by as many tasks before the clock runs.
const FILLERS: u64 = 64;
/// A step through the files that visits all of them and no two neighbours one after the other.
const STRIDE: u64 = 104_729;

/// Names on a catalog.
#[derive(Clone)]
pub struct Subject {
    names: Names,
    postgres: Option<Arc<Postgres>>,
    /// Versions made so far.
    versions: Arc<AtomicU64>,
}

/// The way to the other nodes of a group of one.
struct Nobody;

impl Wire for Nobody {
    fn call(&self, _: Vec<u8>) -> BoxFuture<'_, stoker_catalog::Result<Vec<u8>>> {
        Box::pin(std::future::ready(Err(CatalogError::unavailable("nobody else is in the group"))))
    }
}

impl Subject {
    /// A new catalog in a file, as a node has it that is alone: a group of one.
    pub fn embedded(path: &Path) -> Result<Subject, Failure> {
        let (options, nobody) = (EmbeddedOptions::default(), Arc::new(|_| Arc::new(Nobody) as Arc<dyn Wire>));
        let catalog = ReplicatedCatalog::open(path, CLUSTER, NODE, &options, Beginning::Group, nobody);
        let catalog = catalog.map_err(failed)?;
        Ok(Subject::on(Arc::new(catalog), None))
    }

    /// A new catalog in a database.
    pub async fn postgres(address: &str, connections: usize) -> Result<Subject, Failure> {
        let options = PostgresOptions { connections, ..PostgresOptions::default() };
        let catalog = Arc::new(Postgres::open_with(address, CLUSTER, &options).await.map_err(failed)?);
        Ok(Subject::on(catalog.clone(), Some(catalog)))
    }

    fn on(catalog: Arc<dyn Catalog>, postgres: Option<Arc<Postgres>>) -> Subject {
        Subject { names: Names::new(catalog), postgres, versions: Arc::default() }
    }

    /// How often commits stood in each other's way so far; only a shared database lets them.
    pub fn conflicts(&self) -> u64 {
        self.postgres.as_ref().map_or(0, |catalog| catalog.conflicts())
    }

    /// Makes the rows that every publish checks, and the files that are opened later.
    pub async fn fill(&self, files: u64) -> Result<(), Failure> {
        let rows = guarded_rows().into_iter().fold(Commit::new(), |rows, key| rows.put(key, GUARD));
        match self.names.catalog().commit(rows).await.map_err(failed)? {
            Outcome::Done { .. } => {}
            Outcome::Failed { .. } => return Err(Failure::new("the catalog refuses its first rows")),
        }
        let mut tasks = JoinSet::new();
        for filler in 0..FILLERS {
            let subject = self.clone();
            tasks.spawn(async move {
                for number in (filler..files).step_by(FILLERS as usize) {
                    subject.publish(&file_key(number)).await?;
                }
                Ok::<(), Failure>(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.map_err(|e| Failure::new(format!("filling ended: {e}")))??;
        }
        Ok(())
    }

    /// Each call publishes a new file, every client in a directory of its own.
    pub fn publisher(&self) -> Call {
        let subject = self.clone();
        Arc::new(move |client| {
            let subject = subject.clone();
            Box::pin(async move {
                let number = subject.versions.load(Ordering::Relaxed);
                subject.publish(&format!("published/client-{client:04}/{number:012}-{client:04}")).await
            })
        })
    }

    /// Each call looks one of the first `files` files up.
    pub fn opener(&self, files: u64) -> Call {
        let (subject, turn) = (self.clone(), Arc::new(AtomicU64::new(0)));
        Arc::new(move |_| {
            let number = turn.fetch_add(1, Ordering::Relaxed).wrapping_mul(STRIDE) % files;
            let subject = subject.clone();
            Box::pin(async move {
                let key = file_key(number);
                match subject.names.lookup(VOLUME, key.as_bytes()).await.map_err(failed)? {
                    Some(_) => Ok(()),
                    None => Err(Failure::new(format!("the catalog has lost {key}"))),
                }
            })
        })
    }

    async fn publish(&self, key: &str) -> Result<(), Failure> {
        let plan = Plan::simple(file(self.versions.fetch_add(1, Ordering::Relaxed)));
        let guards: Vec<Check> =
            guarded_rows().into_iter().map(|key| Check::Value(key, GUARD.to_vec())).collect();
        let published = self.names.publish(VOLUME, key.as_bytes(), &guards, |_| {
            let plan = plan.clone();
            Box::pin(async move { Ok(plan) })
        });
        published.await.map(drop).map_err(|refusal| match refusal {
            Refusal::Catalog(error) => failed(error),
            other => Failure::new(format!("{key} was not published: {other:?}")),
        })
    }
}

/// What the rows hold that publishes check; a node has more to say there.
const GUARD: &[u8] = b"as it was";

/// The rows that a node checks with every publish: its session, the volume, the drive that holds the bytes.
fn guarded_rows() -> [Vec<u8>; 3] {
    [keys::session(NODE), keys::volume_id(VOLUME), keys::drive(DRIVE)]
}

fn file_key(number: u64) -> String {
    format!("dataset/{:05}/{number:09}", number / DIRECTORY_FILES)
}

/// An undrained file on one drive.
fn file(number: u64) -> FileRow {
    let now = clock::unix_ms();
    let mut version = [0; 12];
    version[4..].copy_from_slice(&number.to_be_bytes());
    FileRow {
        inode: 0,
        version: VersionId(version).0,
        size: 1 << 20,
        etag: format!("{number:032x}"),
        modified_ms: now,
        crc64: Some(number),
        layout: Layout::Simple { chunk_len: 4 << 20 },
        holders: vec![HolderRow::new(NODE, DRIVE, 1)],
        drain: Drain::Dirty,
        lake: None,
        source: None,
        dirty_since_ms: now,
        publishes: 0,
        name_record: None,
        properties: Vec::new(),
        home: [0; 16],
        links: None,
        past: None,
    }
}
