//! A relay in front of a server's socket that can cut connections: all of them, or the one over which something is asked.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The name of the socket within the server's folder.
const SOCKET: &str = ".s.PGSQL.5432";

/// When to cut the connection over which these bytes are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trap {
    /// Before the server gets them.
    Asked(Vec<u8>),
    /// Once the server has answered; nobody gets the answer.
    Answered(Vec<u8>),
}

#[derive(Default)]
struct State {
    trap: Option<Trap>,
    is_closed: bool,
}

pub struct Proxy {
    folder: tempfile::TempDir,
    cuts: watch::Sender<u32>,
    state: Arc<Mutex<State>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(server: &Path) -> Proxy {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let (cuts, cut) = watch::channel(0);
        let target = server.join(SOCKET);
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if shared.lock().unwrap().is_closed {
                    continue;
                }
                let mut cut = cut.clone();
                cut.mark_unchanged();
                tokio::spawn(relay(client, target.clone(), cut, Arc::clone(&shared)));
            }
        });
        Proxy { folder, cuts, state, accepting }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Cuts every connection; new ones are fine.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Cuts every connection, and lets nobody in until it is opened again.
    pub fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
        self.cut();
    }

    pub fn open(&self) {
        self.state.lock().unwrap().is_closed = false;
    }

    /// Cuts the next connection for which this is true.
    pub fn set(&self, trap: Trap) {
        self.state.lock().unwrap().trap = Some(trap);
    }

    /// Whether the trap has cut a connection.
    pub fn is_sprung(&self) -> bool {
        self.state.lock().unwrap().trap.is_none()
    }
}

async fn relay(
    mut client: UnixStream,
    target: PathBuf,
    mut cut: watch::Receiver<u32>,
    state: Arc<Mutex<State>>,
) {
    let Ok(mut server) = UnixStream::connect(target).await else { return };
    tokio::select! {
        () = copy(&mut client, &mut server, &state) => return,
        _ = cut.changed() => drop(client),
    }
    // The server's side stays open for now: nobody tells the server that its client is gone.
    let _ = cut.changed().await;
}

/// Until one side ends or the trap is sprung.
async fn copy(client: &mut UnixStream, server: &mut UnixStream, state: &Mutex<State>) {
    let (mut asked, mut answered) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut is_trapped = false;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(read @ 1..) = read else { return };
                match trapped(state, &asked[..read]) {
                    Some(Trap::Asked(_)) => return,
                    Some(Trap::Answered(_)) => is_trapped = true,
                    None => {}
                }
                if server.write_all(&asked[..read]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(read @ 1..) = read else { return };
                if is_trapped || client.write_all(&answered[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The trap that these bytes spring.
fn trapped(state: &Mutex<State>, sent: &[u8]) -> Option<Trap> {
    let mut state = state.lock().unwrap();
    let (Trap::Asked(bytes) | Trap::Answered(bytes)) = state.trap.as_ref()?;
    let has = sent.windows(bytes.len()).any(|found| found == bytes);
    if has { state.trap.take() } else { None }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
