//! A relay in front of a server's socket that can cut every connection.

use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The name of the socket within the server's folder.
const SOCKET: &str = ".s.PGSQL.5432";

pub struct Proxy {
    folder: tempfile::TempDir,
    cuts: watch::Sender<u32>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(server: &Path) -> Proxy {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let (cuts, cut) = watch::channel(0);
        let target = server.join(SOCKET);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut cut = cut.clone();
                cut.mark_unchanged();
                tokio::spawn(relay(client, target.clone(), cut));
            }
        });
        Proxy { folder, cuts, accepting }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Cuts every connection; new ones are fine.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn relay(mut client: UnixStream, target: PathBuf, mut cut: watch::Receiver<u32>) {
    let Ok(mut server) = UnixStream::connect(target).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
        _ = cut.changed() => drop(client),
    }
    // The server's side stays open for now: nobody tells the server that its client is gone.
    let _ = cut.changed().await;
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
