//! Rows for tests.

use stoker_schema::rows::{Drain, FileRow, Layout};

pub(crate) fn file_row() -> FileRow {
    FileRow {
        inode: 7,
        version: [1; 12],
        size: 10,
        etag: "etag-1".into(),
        modified_ms: 1,
        crc64: Some(5),
        layout: Layout::Simple { chunk_len: 4 << 20 },
        holders: Vec::new(),
        drain: Drain::Dirty,
        lake: None,
        source: None,
        dirty_since_ms: 1,
        publishes: 1,
        name_record: None,
        properties: Vec::new(),
        home: [0; 16],
        links: None,
        past: None,
    }
}
