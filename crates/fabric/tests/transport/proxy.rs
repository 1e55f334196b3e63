//! A wire that can be cut and that can damage what passes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// One bit of every so many bytes is flipped; 0 for none.
    flip_every: AtomicU64,
    flipped: AtomicUsize,
    passed: AtomicU64,
    /// Cut after so many bytes; 0 for never.
    kill_after: AtomicU64,
    cut: watch::Sender<bool>,
}

impl Proxy {
    /// Leads to an address.
    pub async fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        let (shared, mut cut) = (state.clone(), state.cut.subscribe());
        tokio::spawn(async move {
            loop {
                let near = tokio::select! {
                    Ok((near, _)) = listener.accept() => near,
                    _ = cut.wait_for(|cut| *cut) => return,
                };
                let Ok(far) = TcpStream::connect(target).await else { continue };
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                tokio::spawn(pump(near_read, far_write, shared.clone()));
                tokio::spawn(pump(far_read, near_write, shared.clone()));
            }
        });
        Proxy { address, state }
    }

    /// Ends all connections, and takes no new ones.
    pub fn kill(&self) {
        self.state.cut.send_replace(true);
    }

    /// The same, once so many bytes have passed in all.
    pub fn kill_after(&self, bytes: u64) {
        self.state.kill_after.store(bytes, Ordering::SeqCst);
    }

    /// Flips a bit in every so many bytes from now on.
    pub fn damage(&self, every: u64) {
        self.state.flip_every.store(every, Ordering::SeqCst);
    }

    pub fn flipped(&self) -> usize {
        self.state.flipped.load(Ordering::SeqCst)
    }

    pub fn passed(&self) -> u64 {
        self.state.passed.load(Ordering::SeqCst)
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: Arc<State>) {
    let mut cut = state.cut.subscribe();
    let mut buf = vec![0; 32 << 10];
    let mut until_flip = 0;
    loop {
        let read = tokio::select! {
            read = from.read(&mut buf) => read,
            _ = cut.wait_for(|cut| *cut) => return,
        };
        let Ok(count @ 1..) = read else { return };
        let passed = state.passed.fetch_add(count as u64, Ordering::SeqCst) + count as u64;
        let kill_after = state.kill_after.load(Ordering::SeqCst);
        if kill_after > 0 && passed >= kill_after {
            state.cut.send_replace(true);
            return;
        }
        let every = state.flip_every.load(Ordering::SeqCst);
        if every > 0 {
            until_flip += count as u64;
            if until_flip >= every {
                buf[count / 2] ^= 1 << (until_flip % 8);
                until_flip = 0;
                state.flipped.fetch_add(1, Ordering::SeqCst);
            }
        }
        if to.write_all(&buf[..count]).await.is_err() {
            return;
        }
    }
}
