//! The way to a lake, which can be told to refuse: every request is answered with 503 for as long as that is wanted.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A head that is longer is no request of ours.
const HEAD_BYTES_MAX: usize = 64 << 10;

const REFUSAL: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code>\
                       <Message>Please reduce your request rate.</Message></Error>";

/// Connections go through to the lake, or are refused. It lives as long as the process.
#[derive(Clone)]
pub struct Gate {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    lake: Mutex<String>,
    refuses: AtomicBool,
    refused: AtomicU64,
    next: AtomicU64,
    open: Mutex<HashMap<u64, TcpStream>>,
}

impl Gate {
    /// A gate on a free port of an address.
    pub fn open(host: &str) -> Gate {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let gate = Gate { address: listener.local_addr().unwrap(), shared: Arc::default() };
        let shared = gate.shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        gate
    }

    /// Where the lake is now.
    pub fn lead_to(&self, lake: &str) {
        *self.shared.lake.lock().unwrap() = lake.to_owned();
    }

    /// From now on every request gets 503; those under way break off.
    pub fn refuse(&self) {
        self.shared.refuses.store(true, Ordering::SeqCst);
        for stream in self.shared.open.lock().unwrap().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Ends that; says how many were refused.
    pub fn let_in(&self) -> u64 {
        self.shared.refuses.store(false, Ordering::SeqCst);
        self.shared.refused.swap(0, Ordering::SeqCst)
    }
}

impl Shared {
    fn serve(&self, client: TcpStream) {
        if self.refuses.load(Ordering::SeqCst) {
            return self.answer(client);
        }
        let lake = self.lake.lock().unwrap().clone();
        let Ok(lake) = TcpStream::connect(lake) else { return };
        let (Ok(from), Ok(kept), Ok(back)) = (client.try_clone(), client.try_clone(), lake.try_clone())
        else {
            return;
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().unwrap().insert(id, kept);
        std::thread::scope(|scope| {
            scope.spawn(move || pump(from, lake));
            scope.spawn(move || pump(back, client));
        });
        self.open.lock().unwrap().remove(&id);
    }

    fn answer(&self, mut client: TcpStream) {
        let _ = client.set_read_timeout(Some(Duration::from_secs(5)));
        let Some(head) = head_of(&mut client) else { return };
        // The body is taken, or the answer might be lost in a reset.
        let length = |line: &str| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<u64>().ok())?
        };
        let waits = head.to_ascii_lowercase().contains("expect: 100-continue");
        let length = head.lines().find_map(length).filter(|_| !waits).unwrap_or(0);
        let _ = std::io::copy(&mut (&mut client).take(length), &mut std::io::sink());
        let answer = format!(
            "HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{REFUSAL}",
            REFUSAL.len()
        );
        let _ = client.write_all(answer.as_bytes());
        self.refused.fetch_add(1, Ordering::SeqCst);
    }
}

/// Everything up to the empty line; none if it does not come.
fn head_of(client: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > HEAD_BYTES_MAX || client.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
