//! Fresh catalogs for tests, and what many tests do with one.

use std::any::Any;
use std::sync::Arc;

use stoker_catalog::engine::{Embedded, EmbeddedOptions, Memory};
use stoker_catalog::kv::{Catalog, Range, Row};
use stoker_format::{ClusterId, DriveId, NodeId, VersionId, VolumeId};
use stoker_schema::names::{
    Found, Names, Plan, Published, Refusal, Removal, Removed, Set, SetPublish, SetRequest, Shard, ShardAdded,
};
use stoker_schema::rows::{Drain, FileRow, HolderRow, Layout, RekeyRow};

pub const VOLUME: VolumeId = VolumeId(3);
pub const NODE: NodeId = NodeId([7; 16]);
pub const DRIVE: DriveId = DriveId([8; 16]);

/// The time of tests that do not care, and a deadline that is far from it.
pub const NOW: u64 = 1_000_000;
pub const LATER: u64 = 2_000_000;

/// A fresh catalog and what must live as long.
#[derive(Clone)]
pub struct Fixture {
    pub catalog: Arc<dyn Catalog>,
    pub names: Names,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl Fixture {
    fn new(catalog: Arc<dyn Catalog>, keep: impl Any + Send + Sync) -> Fixture {
        Fixture { names: Names::new(catalog.clone()), catalog, _keep: Arc::new(keep) }
    }

    pub fn memory() -> Fixture {
        Fixture::new(Arc::new(Memory::new()), ())
    }

    pub fn embedded() -> Fixture {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = EmbeddedOptions { cache_bytes: 8 << 20, ..EmbeddedOptions::default() };
        let catalog = Embedded::open(&folder.path().join("catalog"), ClusterId([0xc1; 16]), &options);
        Fixture::new(Arc::new(catalog.expect("opens")), folder)
    }

    /// The same rows through another catalog.
    pub fn through(&self, catalog: Arc<dyn Catalog>) -> Fixture {
        Fixture { names: Names::new(catalog.clone()), catalog, _keep: self._keep.clone() }
    }

    /// Every row of a table.
    pub async fn table(&self, prefix: &[u8]) -> Vec<Row> {
        let mut range = Range::prefix(prefix, 500);
        let mut rows: Vec<Row> = Vec::new();
        loop {
            let page = self.catalog.range(range.clone()).await.unwrap();
            rows.extend(page.rows);
            match rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return rows,
            }
        }
    }

    pub async fn begin(&self, target: &str, expected: u32) -> Set {
        let request = request(target, expected);
        self.names.set_begin(VOLUME, &request, &[], NOW).await.unwrap()
    }

    pub async fn add(&self, set: u64, number: u32, name: &str, id: u64) -> Result<ShardAdded, Refusal> {
        self.add_at(set, number, name, id, NOW).await
    }

    pub async fn add_at(
        &self,
        set: u64,
        number: u32,
        name: &str,
        id: u64,
        now_ms: u64,
    ) -> Result<ShardAdded, Refusal> {
        let shard = Shard { number, name: name.as_bytes(), writer: "rank", node: NODE.0, session: [1; 16] };
        self.names.set_add(VOLUME, set, &shard, &Plan::simple(file(id)), &[], now_ms).await
    }

    pub async fn publish(&self, set: u64) -> Result<SetPublish, Refusal> {
        self.names.set_publish(VOLUME, set, &[], NOW).await
    }

    /// Puts a file by itself.
    pub async fn put(&self, key: &str, row: FileRow) -> Result<Published, Refusal> {
        let plan = Plan::simple(row);
        let put = self.names.publish(VOLUME, key.as_bytes(), &[], |_| {
            let plan = plan.clone();
            Box::pin(async move { Ok(plan) })
        });
        put.await
    }

    pub async fn remove(&self, key: &str) -> Result<Option<Removed>, Refusal> {
        self.names.remove(VOLUME, key.as_bytes(), &[], |_| Ok(Removal::default())).await
    }

    /// The version that a key shows.
    pub async fn shown(&self, key: &str) -> Option<VersionId> {
        let found = self.names.lookup(VOLUME, key.as_bytes()).await.unwrap();
        found.map(|found| found.file.version())
    }

    /// Every key that a listing shows.
    pub async fn keys(&self) -> Vec<String> {
        let mut walk = self.names.walk(VOLUME, b"", None, None).await.unwrap();
        let mut keys = Vec::new();
        while let Some(found) = walk.next().await.unwrap() {
            let Found::File { key, .. } = found else { panic!("no delimiter, no groups") };
            keys.push(String::from_utf8(key).unwrap());
        }
        keys
    }
}

pub fn request(target: &str, expected: u32) -> SetRequest<'_> {
    SetRequest {
        target: target.as_bytes(),
        owner: "job",
        expected,
        begun_ms: NOW,
        deadline_ms: LATER,
        drains: true,
    }
}

pub fn version(id: u64) -> VersionId {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&id.to_be_bytes());
    VersionId(bytes)
}

pub fn rekey(since_ms: u64) -> RekeyRow {
    RekeyRow { since_ms, name_record: None }
}

/// An undrained file on one drive.
pub fn file(id: u64) -> FileRow {
    FileRow {
        inode: 0,
        version: version(id).0,
        size: (id % 5 + 1) << 19,
        etag: id.to_string(),
        modified_ms: NOW,
        crc64: Some(id),
        layout: Layout::Simple { chunk_len: 1 << 20 },
        holders: vec![HolderRow::new(NODE, DRIVE, 1)],
        drain: Drain::Dirty,
        lake: None,
        source: None,
        dirty_since_ms: NOW,
        publishes: 0,
        name_record: None,
        properties: Vec::new(),
        home: [0; 16],
        links: None,
        past: None,
    }
}

/// Runs a test on a catalog in memory and on one in a file.
macro_rules! on_each {
    ($($case:ident),+ $(,)?) => {
        mod memory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case($crate::fixture::Fixture::memory()).await;
                }
            )+
        }

        mod embedded {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case($crate::fixture::Fixture::embedded()).await;
                }
            )+
        }
    };
}

pub(crate) use on_each;
