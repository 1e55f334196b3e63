//! Buffers between sockets and drives: writers that wait stop nobody else.

#[path = "node/harness/mod.rs"]
mod harness;

use std::time::Duration;

use futures_util::FutureExt;
use harness::*;
use stoker_store::{Store, WriteRequest};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_that_wait_do_not_stop_reads() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let bytes = pattern(1, 5 << 20);
    put(&node, "read", &bytes).await;
    // Writers take all the memory that they get, and do not go on.
    let mut held = Vec::new();
    for size in [4 << 20, 1 << 20, 64 << 10, 4 << 10] {
        loop {
            let name = key(&format!("slow-{}", held.len()));
            let request = WriteRequest { size: Some(size), ..WriteRequest::default() };
            let mut writer = node.create("data", &name, request).await.unwrap();
            let Some(buf) = writer.buffer().now_or_never() else { break };
            held.push((writer, buf.unwrap()));
            assert!(held.len() < 10_000, "memory has no limit");
        }
    }
    let read = tokio::time::timeout(Duration::from_secs(60), get(&node, "read")).await;
    assert!(read.expect("reads have memory of their own").unwrap() == bytes);
    drop(held);

    // Few bytes that wait for the end of a stream do not keep the memory of many.
    let mut waiting = Vec::new();
    for at in 0..100 {
        let mut writer =
            node.create("data", &key(&format!("short-{at}")), WriteRequest::default()).await.unwrap();
        let buf = tokio::time::timeout(Duration::from_secs(60), writer.buffer()).await;
        let mut buf = buf.expect("there is memory").unwrap();
        buf.fill(b"few bytes");
        writer.write(buf).await.unwrap();
        waiting.push(writer);
    }
    drop(waiting);
    node.stop().await;
}
