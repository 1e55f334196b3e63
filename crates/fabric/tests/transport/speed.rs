//! How fast bodies of 4 MiB go one way over loopback, beside a bare TCP stream of the same bytes in the same run.
//!
//! `cargo test --release -p stoker-fabric --test transport speed -- --ignored --nocapture`

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stoker_buffer::{Buf, Pool};
use stoker_fabric::transport::{
    Authority, Body, BoxFuture, Call, Config, Credentials, Fault, Message, Peer, Security, Service,
    TcpTransport, Transport,
};
use stoker_format::{ClusterId, NodeId, crc32c};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, MissedTickBehavior};

const BODY: usize = 4 << 20;
const ROUNDS: usize = 5;
/// The kind of a request without a body.
const SMALL: u16 = 1;

struct Sink;

impl Service for Sink {
    fn serve(&self, _: Peer, request: Message) -> BoxFuture<'static, Result<Message, Fault>> {
        Box::pin(async move {
            assert!(request.kind == SMALL || request.body.len() == BODY);
            Ok(Message::new(0, Bytes::new()))
        })
    }
}

/// Speed and cost of sending some bodies.
#[derive(Clone, Copy)]
struct Figure {
    mb_per_s: f64,
    cpu_s_per_gib: f64,
}

async fn measure(bodies: usize, send: impl AsyncFnOnce(usize)) -> Figure {
    let (begun, cpu) = (Instant::now(), cpu_s());
    send(bodies).await;
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu_s() - cpu);
    let bytes = (bodies * BODY) as f64;
    Figure { mb_per_s: bytes / wall / 1e6, cpu_s_per_gib: cpu / (bytes / (1 << 30) as f64) }
}

/// Processor time of this process so far, of both sides together.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // The clock of these fields ticks a hundred times a second on Linux.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// One stream; each body is acknowledged by a byte, `depth` may be under way.
async fn raw(bodies: usize, depth: usize, body: &Bytes) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let receiver = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        // As many buffers as bodies under way: whoever hands bodies on cannot receive all of them in the same place.
        let pool = Pool::new(128 << 20).unwrap();
        let mut memory: Vec<Buf> = (0..depth).map(|_| pool.take(BODY).unwrap()).collect();
        for at in 0..bodies {
            stream.read_exact(memory[at % depth].as_mut_slice()).await.unwrap();
            stream.write_all(&[1]).await.unwrap();
        }
    });
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut read, mut write) = stream.into_split();
    let room = Arc::new(tokio::sync::Semaphore::new(depth));
    let acknowledged = room.clone();
    let acks = tokio::spawn(async move {
        for _ in 0..bodies {
            read.read_exact(&mut [0]).await.unwrap();
            acknowledged.add_permits(1);
        }
    });
    for _ in 0..bodies {
        room.acquire().await.unwrap().forget();
        write.write_all(body).await.unwrap();
    }
    acks.await.unwrap();
    receiver.await.unwrap();
}

async fn calls(transport: &Arc<TcpTransport>, to: NodeId, bodies: usize, depth: usize, body: &Bytes) {
    let crc = crc32c(body);
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..depth {
        let (transport, body) = (transport.clone(), body.clone());
        workers.spawn(async move {
            for _ in (worker..bodies).step_by(depth) {
                let body = Body::Shared(vec![body.clone()]);
                let request = Message::new(0, Bytes::new()).with_summed_body(body, crc);
                transport.call(to, request, Call::within(Duration::from_secs(60))).await.unwrap();
            }
        });
    }
    workers.join_all().await;
}

fn pair(security: impl Fn(NodeId) -> Security) -> (Arc<TcpTransport>, Arc<TcpTransport>, NodeId) {
    let start = |node: u8| {
        let (node, pool) = (NodeId([node; 16]), Pool::new(128 << 20).unwrap());
        let mut config = Config::new(ClusterId([1; 16]), node, 1, security(node), pool);
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        TcpTransport::start(config, Arc::new(Sink)).unwrap()
    };
    let (near, far) = (start(1), start(2));
    near.set_peer(NodeId([2; 16]), far.addresses().to_vec());
    (near, far, NodeId([2; 16]))
}

/// Small calls beside bulk bytes that go on and on: half of them and 99 of 100 come back within so long. What they expect
/// decides whether they have connections of their own.
async fn small_calls(
    transport: &Arc<TcpTransport>,
    to: NodeId,
    body: &Bytes,
    expecting: usize,
) -> [Duration; 2] {
    let bulk = tokio::spawn({
        let (transport, body) = (transport.clone(), body.clone());
        async move { calls(&transport, to, usize::MAX, 16, &body).await }
    });
    // By the clock, not one after the other: else calls that wait would be few among many.
    let mut tick = tokio::time::interval(Duration::from_millis(2));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut times = Vec::new();
    for _ in 0..1_000 {
        tick.tick().await;
        let begun = Instant::now();
        let call = Call::within(Duration::from_secs(60)).expecting(expecting);
        transport.call(to, Message::new(SMALL, Bytes::new()), call).await.unwrap();
        times.push(begun.elapsed());
    }
    assert!(!bulk.is_finished());
    bulk.abort();
    times.sort_unstable();
    [times[times.len() / 2], times[times.len() * 99 / 100]]
}

fn median(mut figures: Vec<Figure>) -> Figure {
    figures.sort_by(|a, b| a.mb_per_s.total_cmp(&b.mb_per_s));
    figures[figures.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a benchmark"]
#[expect(clippy::print_stdout, reason = "its figures")]
async fn bodies_of_4_mib_one_way() {
    let body = Bytes::from((0..BODY).map(|n| ((n * 31) >> 3) as u8).collect::<Vec<_>>());
    let now_s = rustls::pki_types::UnixTime::now().as_secs();
    let authority = Authority::create(ClusterId([1; 16]), now_s).unwrap();
    let (plain, _far, to) = pair(|_| Security::Plaintext { secret: vec![7; 16] });
    let (tls, _far, _) = pair(|node| Security::Tls(Credentials::issue(&authority, node, now_s).unwrap()));
    println!("{:>8} {:>3} {:>10} {:>14} {:>8}", "", "QD", "MB/s", "CPU s per GiB", "of raw");
    for (depth, bodies) in [(1, 400), (16, 800)] {
        let mut figures = [const { Vec::new() }; 3];
        for round in 0..=ROUNDS {
            let round_figures = [
                measure(bodies, async |bodies| raw(bodies, depth, &body).await).await,
                measure(bodies, async |bodies| calls(&plain, to, bodies, depth, &body).await).await,
                measure(bodies, async |bodies| calls(&tls, to, bodies, depth, &body).await).await,
            ];
            // The first round warms up.
            if round > 0 {
                figures.iter_mut().zip(round_figures).for_each(|(all, figure)| all.push(figure));
            }
        }
        let [raw, plain, tls] = figures.map(median);
        for (name, figure) in [("raw", raw), ("plain", plain), ("tls", tls)] {
            let share = figure.mb_per_s / raw.mb_per_s;
            println!(
                "{name:>8} {depth:>3} {:>10.0} {:>14.3} {share:>8.2}",
                figure.mb_per_s, figure.cpu_s_per_gib
            );
        }
    }
    for (name, expecting) in [("own", 0), ("shared", BODY)] {
        let [half, most] = small_calls(&plain, to, &body, expecting).await;
        println!("small calls beside bulk, {name} connections: P50 {half:?}, P99 {most:?}");
    }
}
