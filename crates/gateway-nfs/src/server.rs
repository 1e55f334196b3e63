//! The gateway as a whole: listeners, connections, stop.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use stoker_access::Guard;
use stoker_store::Counter;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admission::Admission;
use crate::connection::{self, Service};
use crate::counters::Counters;
use crate::options::NfsOptions;
use crate::replies::Replies;
use crate::volumes::Volumes;

const BACKLOG: i32 = 1024;
/// Pause after an accept that failed, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often files that nobody uses are looked for.
const SWEEP: Duration = Duration::from_secs(15);

/// A running NFS gateway. Dropped, it takes no more requests.
pub struct NfsGateway {
    addresses: Vec<SocketAddr>,
    service: Arc<Service>,
    stop: watch::Sender<bool>,
    tasks: tokio::sync::Mutex<JoinSet<()>>,
}

impl NfsGateway {
    /// Listens, and answers in the runtime that it is called in.
    pub fn start(guard: &Guard, options: NfsOptions) -> io::Result<NfsGateway> {
        if options.listen.is_empty() || options.connections_max == 0 || options.requests_max == 0 {
            let words = "the NFS gateway needs an address, and room for a connection and a request";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        }
        let listeners = options.listen.iter().map(|at| listen(*at)).collect::<io::Result<Vec<_>>>()?;
        let addresses = listeners.iter().map(StdListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        let admission = Admission::new(options.connections_max, options.bytes_in_max, options.bytes_out_max);
        let service = Arc::new(Service {
            counters: Counters::default(),
            replies: Replies::new(),
            requests_max: options.requests_max,
            volumes: Volumes::new(guard, options),
        });
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for listener in listeners {
            let listener = TcpListener::from_std(listener)?;
            tasks.spawn(accept(listener, admission.clone(), service.clone(), stopped.clone()));
        }
        tasks.spawn(sweep(service.clone(), stopped));
        Ok(NfsGateway { addresses, service, stop, tasks: tokio::sync::Mutex::new(tasks) })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What it counted.
    pub fn counters(&self) -> Vec<Counter> {
        let waiting = self.service.volumes.now().iter().map(|volume| volume.files.load().1 as u64).sum();
        self.service.counters.list(waiting)
    }

    /// Takes no more requests, lets those under way finish for at most `grace`, and publishes what waits.
    pub async fn stop(&self, grace: Duration) {
        self.stop.send_replace(true);
        let finish = async {
            let mut tasks = self.tasks.lock().await;
            while tasks.join_next().await.is_some() {}
            for volume in self.service.volumes.all().await {
                if let Err(errno) = volume.files.sync().await {
                    // Clients that did not commit send it again: the verifier of the next process is another.
                    tracing::warn!("what NFS clients did not commit was not published: {errno:?}");
                }
            }
        };
        if tokio::time::timeout(grace, finish).await.is_err() {
            tracing::warn!("NFS requests were cut off after {} s", grace.as_secs());
        }
    }
}

impl Drop for NfsGateway {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

fn listen(address: SocketAddr) -> io::Result<StdListener> {
    let fault = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot listen on {address} for NFS: {error}"))
    };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into()).map_err(fault)?;
    socket.listen(BACKLOG).map_err(fault)?;
    Ok(socket.into())
}

async fn accept(
    listener: TcpListener,
    admission: Arc<Admission>,
    service: Arc<Service>,
    mut stop: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("accepting NFS clients: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let address = peer.ip().to_canonical();
        // Who may use nothing takes no place from others.
        let is_known = service.volumes.is_known(address);
        let Some(client) = is_known.then(|| admission.admit(peer)).flatten() else {
            Counters::add(&service.counters.turned_away, 1);
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (service, stop) = (service.clone(), stop.clone());
        tasks.spawn(async move {
            Counters::add(&service.counters.connections, 1);
            connection::serve(stream, Arc::new(client), service.clone(), stop).await;
            service.counters.connections.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        });
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

/// Closes files and forgets answers that nobody asks for.
async fn sweep(service: Arc<Service>, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(SWEEP) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        service.replies.sweep();
        for volume in service.volumes.all().await {
            volume.sweep().await;
        }
    }
}
