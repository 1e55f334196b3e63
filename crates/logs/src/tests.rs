//! Writers and readers of logs on a real node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stoker_node::{DriveOptions, Node, NodeOptions};
use stoker_store::{Attributes, Filler, Finish, Key, ListRequest, Store, VolumeOptions, WriteRequest};

use crate::chunk::{ChunkWriter, WRITER_META};
use crate::frame::Frame;
use crate::*;

/// Time that a test moves.
struct Hands(AtomicU64);

impl Clock for Hands {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Rig {
    _folder: tempfile::TempDir,
    node: Arc<Node>,
    clock: Hands,
    place: LogPlace,
}

impl Rig {
    async fn new() -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let mut options = NodeOptions::new(folder.path().join("node"));
        options.drives = vec![DriveOptions { path: folder.path().join("ring"), size_bytes: Some(256 << 20) }];
        options.lake = Some(format!("file://{}", folder.path().join("lake").display()));
        options.lake_options.create_root = true;
        options.memory_bytes = 256 << 20;
        let node = Node::open(options).await.unwrap();
        node.volume_create("data", VolumeOptions::default()).await.unwrap();
        let place = LogPlace::new("data", "vision/run-7");
        Rig { _folder: folder, node, clock: Hands(AtomicU64::new(1_000)), place }
    }

    fn at(&self, ms: u64) -> &Hands {
        self.clock.0.store(ms, Ordering::Relaxed);
        &self.clock
    }

    fn options(&self, stream: Stream, node: &str, writer: &str) -> PipeOptions {
        PipeOptions {
            place: self.place.clone(),
            stream,
            node: node.to_owned(),
            writer: writer.to_owned(),
            job: Some("run-7".to_owned()),
            flush_after: Duration::from_millis(1),
            end_max: Duration::ZERO,
        }
    }

    fn writer(&self, node: &str, writer: &str) -> ChunkWriter {
        let (store, place) = (self.node.clone(), self.place.clone());
        ChunkWriter::new(store, place, Stream::Stdout, node.to_owned(), writer.to_owned())
    }

    /// Writes what is said, to its end.
    async fn say(&self, options: &PipeOptions, said: &[(u64, &str)]) -> PipeReport {
        let queue = queue();
        for (at_ms, text) in said {
            assert!(queue.push(text.as_bytes(), self.at(*at_ms)));
        }
        queue.close();
        pipe(self.node.clone(), &queue, &self.clock, options, &mut |_| {}).await
    }

    async fn reader(&self, select: Select) -> Reader {
        Reader::open(self.node.clone(), self.place.clone(), select).await.unwrap()
    }

    async fn keys(&self) -> Vec<String> {
        let request = ListRequest { limit: 1000, ..ListRequest::default() };
        let page = self.node.list("data", request).await.unwrap();
        page.entries.iter().map(|entry| String::from_utf8_lossy(entry.name()).into_owned()).collect()
    }

    async fn put(&self, key: &str, bytes: &[u8], attributes: Attributes) {
        let key = Key::new(key).unwrap();
        let request = WriteRequest { attributes, ..WriteRequest::default() };
        let mut filler = Filler::new(self.node.create("data", &key, request).await.unwrap());
        filler.put(bytes).await.unwrap();
        filler.finish(Finish::default()).await.unwrap();
    }

    async fn get(&self, key: &str) -> Vec<u8> {
        let file = self.node.open("data", &Key::new(key).unwrap()).await.unwrap();
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < file.info().size {
            bytes.extend_from_slice(&file.read(bytes.len() as u64, 1 << 20).await.unwrap());
        }
        bytes
    }
}

fn queue() -> Queue {
    Queue::new(QueueOptions { bytes_max: 8 << 20, stall_max: Duration::ZERO, is_strict: false })
}

async fn rest(reader: &mut Reader) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some((stream, node, line)) = reader.next().await.unwrap() {
        let text = String::from_utf8_lossy(&line.bytes).into_owned();
        lines.push(format!("{} {node} {} {text}", line.at_ms, stream.word()));
    }
    lines
}

fn frame(seq: u64, at_ms: u64, text: &str) -> Vec<u8> {
    let raw = text.as_bytes().to_vec();
    Frame { seq, marks: vec![(0, at_ms)], raw, ..Frame::default() }.encode().unwrap()
}

#[tokio::test]
async fn streams_of_all_nodes_are_one_by_time() {
    let rig = Rig::new().await;
    let out = rig.options(Stream::Stdout, "gpu-01", "a");
    let report = rig.say(&out, &[(1, "one\n"), (30, "three\nhalf "), (60, "a line\n")]).await;
    assert_eq!(report, PipeReport { written: 22, dropped: 0, fault: None });
    rig.say(&rig.options(Stream::Stderr, "gpu-01", "b"), &[(20, "two\n"), (50, "five")]).await;
    rig.say(&rig.options(Stream::Stdout, "gpu-02", "c"), &[(40, "four\n")]).await;
    let mut reader = rig.reader(Select::default()).await;
    assert_eq!(
        rest(&mut reader).await,
        [
            "1 gpu-01 stdout one\n",
            "20 gpu-01 stderr two\n",
            "30 gpu-01 stdout three\n",
            "30 gpu-01 stdout half a line\n",
            "40 gpu-02 stdout four\n",
            "50 gpu-01 stderr five",
        ]
    );
    assert!(reader.is_ended());
    assert_eq!(reader.nodes(), 2);
    let mut reader =
        rig.reader(Select { stream: Some(Stream::Stdout), since_ms: 40, ..Select::default() }).await;
    assert_eq!(rest(&mut reader).await, ["40 gpu-02 stdout four\n"], "a line is as old as its first byte");
    let mut reader = rig.reader(Select { node: Some("gpu-02".to_owned()), ..Select::default() }).await;
    assert_eq!(rest(&mut reader).await, ["40 gpu-02 stdout four\n"]);

    assert_eq!(
        rig.keys().await,
        [
            "vision/run-7/logs/metadata.json",
            "vision/run-7/logs/stderr/gpu-01/chunk_000.log.zst",
            "vision/run-7/logs/stdout/gpu-01/chunk_000.log.zst",
            "vision/run-7/logs/stdout/gpu-02/chunk_000.log.zst",
        ]
    );
    let bytes = rig.get("vision/run-7/logs/stdout/gpu-01/chunk_000.log.zst").await;
    assert_eq!(zstd::stream::decode_all(&bytes[..]).unwrap(), b"one\nthree\nhalf a line\n");
    let metadata = rig.get("vision/run-7/logs/metadata.json").await;
    let metadata: serde_json::Value = serde_json::from_slice(&metadata).unwrap();
    assert_eq!((&metadata["format"], &metadata["job"]), (&1.into(), &"run-7".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_is_seen_while_more_comes() {
    let rig = Rig::new().await;
    let (queue, options) = (Arc::new(queue()), rig.options(Stream::Stdout, "gpu-01", "a"));
    let (store, of_pipe, clock) = (rig.node.clone(), queue.clone(), Hands(AtomicU64::new(0)));
    let work = tokio::spawn(async move { pipe(store, &of_pipe, &clock, &options, &mut |_| {}).await });
    let mut reader = rig.reader(Select::default()).await;
    assert!(reader.is_empty());
    for number in 0..40u64 {
        queue.push(format!("line {number}\n").as_bytes(), rig.at(number));
        let expect = [format!("{number} gpu-01 stdout line {number}\n")];
        let mut found = Vec::new();
        while found.is_empty() {
            reader.refresh().await.unwrap();
            found = rest(&mut reader).await;
        }
        assert_eq!(found, expect);
    }
    assert!(!reader.is_ended());
    queue.close();
    assert_eq!(work.await.unwrap().dropped, 0);
    reader.refresh().await.unwrap();
    assert!(rest(&mut reader).await.is_empty());
    assert!(reader.is_ended());
}

#[tokio::test]
async fn writers_in_one_directory_have_chunks_of_their_own() {
    let rig = Rig::new().await;
    let (mut one, mut two) = (rig.writer("n", "one"), rig.writer("n", "two"));
    for number in 0..300u64 {
        one.add(&frame(number, number * 2, &format!("one {number}\n"))).await.unwrap();
        two.add(&frame(number, number * 2 + 1, &format!("two {number}\n"))).await.unwrap();
    }
    assert_eq!(rig.keys().await.len(), 4, "a chunk has a bounded number of frames");
    let lines = rest(&mut rig.reader(Select::default()).await).await;
    let expect: Vec<String> = (0..300)
        .flat_map(|number| {
            let (one, two) = (number * 2, number * 2 + 1);
            [format!("{one} n stdout one {number}\n"), format!("{two} n stdout two {number}\n")]
        })
        .collect();
    assert_eq!(lines, expect);

    let mut reader = rig.reader(Select::default()).await;
    reader.skip_to_last(3).await.unwrap();
    let lines = rest(&mut reader).await;
    assert!(lines.len() < expect.len() && expect.ends_with(&lines), "{} lines", lines.len());
}

#[tokio::test]
async fn an_append_whose_answer_was_lost_is_there_once() {
    let rig = Rig::new().await;
    let mut writer = rig.writer("n", "w");
    for number in 0..10 {
        let bytes = frame(number, number, &format!("{number}\n"));
        // It was made, and nobody heard so.
        let before = writer.forget_answer(None);
        writer.add(&bytes).await.unwrap();
        writer.forget_answer(Some(before));
        writer.add(&bytes).await.unwrap();
        // It was not made, and nobody heard so either.
        writer.doubt();
    }
    let expect: Vec<String> = (0..10).map(|number| format!("{number} n stdout {number}\n")).collect();
    assert_eq!(rest(&mut rig.reader(Select::default()).await).await, expect);
    assert_eq!(rig.keys().await.len(), 1);
}

#[tokio::test]
async fn a_frame_that_is_there_twice_is_shown_once() {
    let rig = Rig::new().await;
    let frames = [frame(0, 0, "0\n"), frame(1, 1, "1\n"), frame(2, 2, "2\n")];
    let attributes =
        || Attributes { meta: vec![(WRITER_META.to_owned(), "w".to_owned())], ..Attributes::default() };
    let chunks = [("000", frames[..2].concat()), ("001", frames[1..].concat())];
    for (number, bytes) in chunks {
        rig.put(&format!("vision/run-7/logs/stdout/n/chunk_{number}.log.zst"), &bytes, attributes()).await;
    }
    let expect = ["0 n stdout 0\n", "1 n stdout 1\n", "2 n stdout 2\n"];
    let mut reader = rig.reader(Select::default()).await;
    assert_eq!(rest(&mut reader).await, expect);
    let mut reader = rig.reader(Select::default()).await;
    reader.skip_to_last(3).await.unwrap();
    assert_eq!(rest(&mut reader).await, expect);
}

#[tokio::test]
async fn a_chunk_that_somebody_deletes_or_changes_costs_what_was_in_it() {
    let rig = Rig::new().await;
    let mut writer = rig.writer("n", "w");
    writer.add(&frame(0, 0, "lost\n")).await.unwrap();
    let key = Key::new("vision/run-7/logs/stdout/n/chunk_000.log.zst").unwrap();
    rig.node.delete("data", vec![(key.clone(), Default::default())]).await.unwrap()[0].as_ref().unwrap();
    writer.add(&frame(1, 1, "kept\n")).await.unwrap();
    rig.put("vision/run-7/logs/stdout/n/chunk_001.log.zst", b"foreign", Attributes::default()).await;
    writer.add(&frame(2, 2, "and on\n")).await.unwrap();
    let lines = rest(&mut rig.reader(Select::default()).await).await;
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("chunk 001 of stdout on n cannot be read"), "{lines:?}");
    assert_eq!(lines[1], "2 n stdout and on\n");
}

#[tokio::test]
async fn a_chunk_that_is_cut_shows_what_is_whole() {
    let rig = Rig::new().await;
    let whole = [frame(0, 1, "first\n"), frame(1, 2, "second\nthird"), frame(2, 3, "fourth\n")].concat();
    let cut = &whole[..whole.len() - 5];
    rig.put("vision/run-7/logs/stdout/n/chunk_000.log.zst", cut, Attributes::default()).await;
    let mut reader = rig.reader(Select::default()).await;
    assert_eq!(rest(&mut reader).await, ["1 n stdout first\n", "2 n stdout second\n"]);
    reader.end();
    let lines = rest(&mut reader).await;
    assert_eq!(lines[0], "2 n stdout third");
    assert!(lines[1].contains("are no whole frame"), "{lines:?}");
    // The rest of it comes after all.
    rig.put("vision/run-7/logs/stdout/m/chunk_000.log.zst", cut, Attributes::default()).await;
    let mut reader = rig.reader(Select { node: Some("m".to_owned()), ..Select::default() }).await;
    assert_eq!(rest(&mut reader).await.len(), 2);
    rig.put("vision/run-7/logs/stdout/m/chunk_000.log.zst", &whole, Attributes::default()).await;
    assert!(reader.refresh().await.unwrap());
    assert_eq!(rest(&mut reader).await, ["2 m stdout thirdfourth\n"]);
}

#[tokio::test]
async fn a_volume_that_is_not_there_ends_the_pipe_and_not_the_program() {
    let rig = Rig::new().await;
    let mut options = rig.options(Stream::Stdout, "n", "w");
    options.place = LogPlace::new("nowhere", "");
    let report = rig.say(&options, &[(1, "some words\n")]).await;
    assert_eq!((report.written, report.dropped), (0, 11));
    assert!(report.fault.unwrap().message.contains("nowhere"));
    options.node = "../../etc".to_owned();
    let report = rig.say(&options, &[(1, "some words\n")]).await;
    assert!(report.fault.unwrap().message.contains("cannot be the name of a node"));
}
