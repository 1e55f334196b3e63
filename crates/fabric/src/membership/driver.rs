//! Sockets, a clock and a thread for the core, so that a busy runtime never delays a ping.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use stoker_format::{ClusterId, NodeId};
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::core::{Core, Effects};
use super::event::{Event, Peer};
use super::identity::Identity;
use super::seal::{Counts, DATAGRAM_BYTES_MAX, Dropped, Seal};
use super::settings::Settings;

/// Events that wait for the caller. Past this, only the newest event of each node waits.
const EVENTS_MAX: usize = 1024;
const COMMANDS_MAX: usize = 16;
const SEEDS_MAX: usize = 64;
const SOCKETS_MAX: usize = 8;
/// Datagrams that are taken before timers get their turn.
const BURST: usize = 256;
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// What a node needs to be a member.
#[derive(Debug)]
pub struct Options {
    /// Which cluster.
    pub cluster: ClusterId,
    /// What only its nodes know.
    pub secret: Vec<u8>,
    /// Who this is. Its addresses are those at which others reach the sockets.
    pub me: Identity,
    /// Where to listen: one socket each.
    pub listen: Vec<SocketAddr>,
    /// Where others may be found.
    pub seeds: Vec<SocketAddr>,
    /// Nodes that the catalog knows.
    pub known: Vec<Identity>,
    /// Times of the protocol.
    pub settings: Settings,
}

/// A node's membership, as long as this lives. Dropping it without [`Self::leave`] looks like a failure to others.
#[derive(Debug)]
pub struct Membership {
    commands: mpsc::Sender<Command>,
    counts: Arc<Counts>,
    listening: Vec<SocketAddr>,
}

/// Tells a membership of nodes that the catalog knows, for as long as it lives.
#[derive(Clone, Debug)]
pub struct Introducer(mpsc::WeakSender<Command>);

#[derive(Debug)]
enum Command {
    Peers(oneshot::Sender<Vec<Peer>>),
    Introduce(Vec<Identity>),
    Leave(oneshot::Sender<()>),
}

impl Membership {
    /// Opens the sockets and starts the thread.
    pub fn start(options: Options) -> io::Result<(Membership, mpsc::Receiver<Event>)> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text);
        if options.listen.is_empty() || options.listen.len() > SOCKETS_MAX {
            return Err(invalid("membership listens at 1 to 8 addresses"));
        }
        if options.seeds.len() > SEEDS_MAX {
            return Err(invalid("there are at most 64 seeds"));
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random)?;
        let sockets = options.listen.iter().map(|at| open(*at)).collect::<io::Result<Vec<_>>>()?;
        let listening = sockets.iter().map(|socket| socket.local_addr()).collect::<io::Result<Vec<_>>>()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (commands, command_inlet) = mpsc::channel(COMMANDS_MAX);
        let (event_outlet, events) = mpsc::channel(EVENTS_MAX);
        let counts = Arc::new(Counts::default());
        let shared = counts.clone();
        let run = move || {
            runtime.block_on(async {
                match Driver::new(options, sockets, u64::from_le_bytes(random), event_outlet, shared) {
                    Ok(driver) => driver.run(command_inlet).await,
                    Err(error) => tracing::error!(%error, "membership cannot use its sockets"),
                }
            });
        };
        thread::Builder::new().name("membership".into()).spawn(run)?;
        Ok((Membership { commands, counts, listening }, events))
    }

    /// Where the sockets are.
    pub fn listening(&self) -> &[SocketAddr] {
        &self.listening
    }

    /// How many datagrams came, went and were dropped.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The other nodes that are up.
    pub async fn peers(&self) -> Vec<Peer> {
        let (answer, peers) = oneshot::channel();
        // The thread ends only after a leave or as a duplicate; then nobody is there.
        let _ended = self.commands.send(Command::Peers(answer)).await;
        peers.await.unwrap_or_default()
    }

    /// What tells it of further nodes while it runs.
    pub fn introducer(&self) -> Introducer {
        Introducer(self.commands.downgrade())
    }

    /// Tells all other nodes that this one leaves; returns when that is sent.
    pub async fn leave(self) {
        let (answer, sent) = oneshot::channel();
        let _ended = self.commands.send(Command::Leave(answer)).await;
        let _ended = sent.await;
    }
}

impl Introducer {
    /// Nodes that should be there. They are pinged from now on, unless they were heard of already; false once nobody listens any more.
    pub async fn introduce(&self, known: Vec<Identity>) -> bool {
        match self.0.upgrade() {
            Some(commands) => commands.send(Command::Introduce(known)).await.is_ok(),
            None => false,
        }
    }
}

/// A socket for one address family, with room for a burst of answers.
fn open(at: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // The kernel may grant less.
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_nonblocking(true)?;
    socket.bind(&at.into())?;
    Ok(socket.into())
}

struct Driver {
    core: Core,
    seal: Seal,
    sockets: Vec<UdpSocket>,
    started: Instant,
    events: mpsc::Sender<Event>,
    /// Events for which the channel had no room: the newest of each node.
    waiting: BTreeMap<NodeId, Event>,
    counts: Arc<Counts>,
    effects: Effects,
}

impl Driver {
    fn new(
        options: Options,
        sockets: Vec<std::net::UdpSocket>,
        random: u64,
        events: mpsc::Sender<Event>,
        counts: Arc<Counts>,
    ) -> io::Result<Driver> {
        let sockets = sockets.into_iter().map(UdpSocket::from_std).collect::<io::Result<Vec<_>>>()?;
        let seal = Seal::new(options.cluster, &options.secret);
        let mut core = Core::new(options.me, options.settings, options.seeds, random, Duration::ZERO);
        let mut effects = Effects::default();
        core.introduce(options.known, Duration::ZERO, &mut effects);
        let started = Instant::now();
        Ok(Driver { core, seal, sockets, started, events, waiting: BTreeMap::new(), counts, effects })
    }

    /// Runs until a leave, or until the handle is gone.
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX + 1];
        loop {
            let due = self.core.next_due().map(|due| self.started + due);
            let events = self.events.clone();
            // What has arrived is taken before time passes judgement on those who sent it.
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(Command::Peers(answer)) => {
                        let _gone = answer.send(self.core.peers().collect());
                    }
                    Some(Command::Introduce(known)) => {
                        self.core.introduce(known, self.started.elapsed(), &mut self.effects);
                    }
                    Some(Command::Leave(answer)) => {
                        self.core.leave(&mut self.effects);
                        self.settle().await;
                        let _gone = answer.send(());
                        return;
                    }
                    None => return,
                },
                datagram = receive(&self.sockets, &mut buffer) => {
                    if let Some((length, from)) = datagram {
                        self.take(&buffer[..length], from);
                    }
                    self.take_arrived(&mut buffer);
                }
                room = events.reserve(), if !self.waiting.is_empty() => {
                    if let (Ok(room), Some((_, event))) = (room, self.waiting.pop_first()) {
                        room.send(event);
                    }
                }
                () = until(due) => {}
            }
            self.core.tick(self.started.elapsed(), &mut self.effects);
            self.settle().await;
        }
    }

    /// Takes what else is there, up to a limit.
    fn take_arrived(&mut self, buffer: &mut [u8]) {
        for _ in 0..BURST {
            let arrived = self.sockets.iter().find_map(|socket| socket.try_recv_from(buffer).ok());
            let Some((length, from)) = arrived else { return };
            self.take(&buffer[..length], from);
        }
    }

    fn take(&mut self, datagram: &[u8], from: SocketAddr) {
        self.counts.received.fetch_add(1, Ordering::Relaxed);
        let now = self.started.elapsed();
        let taken =
            self.seal.open(datagram).and_then(|body| self.core.handle(from, body, now, &mut self.effects));
        if let Err(reason) = taken
            && self.counts.count_dropped(reason)
        {
            log_dropped(reason, from);
        }
    }

    async fn settle(&mut self) {
        for (to, body) in std::mem::take(&mut self.effects.datagrams) {
            let Some(socket) = self.sockets.iter().find(|socket| same_family(socket, to)) else { continue };
            // An address that cannot be reached is found out by its silence.
            if socket.send_to(&self.seal.seal(&body), to).await.is_ok() {
                self.counts.sent.fetch_add(1, Ordering::Relaxed);
            }
        }
        for event in self.effects.events.drain(..) {
            if !self.waiting.is_empty() {
                self.waiting.insert(event.node(), event);
            } else if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) {
                self.waiting.insert(event.node(), event);
            }
        }
    }
}

fn log_dropped(reason: Dropped, from: SocketAddr) {
    tracing::warn!(?reason, %from, "dropped a datagram; further ones of this kind are only counted");
}

fn same_family(socket: &UdpSocket, to: SocketAddr) -> bool {
    socket.local_addr().is_ok_and(|at| at.is_ipv4() == to.is_ipv4())
}

/// The next datagram of any socket; nothing if a socket reports an error, which concerns an earlier send.
async fn receive(sockets: &[UdpSocket], buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    std::future::poll_fn(|context| {
        for socket in sockets {
            let mut space = ReadBuf::new(buffer);
            if let Poll::Ready(result) = socket.poll_recv_from(context, &mut space) {
                let length = space.filled().len();
                return Poll::Ready(result.ok().map(|from| (length, from)));
            }
        }
        Poll::Pending
    })
    .await
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
