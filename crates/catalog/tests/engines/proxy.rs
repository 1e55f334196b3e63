//! A relay in front of a server's socket that can cut every connection.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// The name of the socket within the server's folder.
const SOCKET: &str = ".s.PGSQL.5432";

pub struct Proxy {
    folder: tempfile::TempDir,
    relays: Arc<Mutex<Vec<JoinHandle<()>>>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(server: &Path) -> Proxy {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let relays = Arc::new(Mutex::new(Vec::new()));
        let (target, kept): (PathBuf, _) = (server.join(SOCKET), Arc::clone(&relays));
        let accepting = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let target = target.clone();
                let relay = tokio::spawn(async move {
                    let Ok(server) = UnixStream::connect(target).await else { return };
                    // The server's side stays open when the client's is cut: nobody tells it.
                    let server = Box::leak(Box::new(server));
                    let _ = tokio::io::copy_bidirectional(&mut client, server).await;
                });
                kept.lock().unwrap().push(relay);
            }
        });
        Proxy { folder, relays, accepting }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Cuts every connection; new ones are fine.
    pub fn cut(&self) {
        self.relays.lock().unwrap().drain(..).for_each(|relay| relay.abort());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}
