//! Sockets: connect, listen, accept, split. Unix and TCP look the same above this file.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use stoker_tls::{Accepted, Certificate, Trust};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::endpoint::Endpoint;
use crate::halves::{Arrivals, Incoming, Outgoing};

/// What is spoken in TLS.
pub(crate) const PROTOCOL: &[u8] = b"stoker-client";
/// Longest path that fits the kernel's address of a Unix socket, with its terminating zero.
const UNIX_PATH_LEN_MAX: usize = 107;
/// Headers and small control parts are read through this much; payloads pass it by.
pub(crate) const READ_AHEAD: usize = 16 << 10;
/// Bytes that a client has with the kernel on a Unix socket.
const SEND_BUFFER: usize = 2 << 20;
const BACKLOG: i32 = 256;
/// A peer whose machine is gone is noticed after about a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// A connected socket.
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
}

/// The half that is read.
pub(crate) type ReadHalf = BufReader<Incoming>;

impl Stream {
    /// Connects. Without a trust of their own, endpoints in TLS are checked by what the system trusts.
    pub async fn connect(endpoint: &Endpoint, trust: Option<&Trust>) -> io::Result<Stream> {
        match endpoint {
            Endpoint::Unix(path) => {
                let short = ShortPath::of(path)?;
                let stream = UnixStream::connect(&short.path).await?;
                // As much as the system allows: with little, both sides are woken several times for each frame of a writer.
                let _ = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER);
                Ok(Stream::Unix(stream))
            }
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address.as_str()).await?;
                tune(&stream)?;
                Ok(Stream::Tcp(stream))
            }
            Endpoint::Tls(address) => {
                let of_system;
                let trust = match trust {
                    Some(trust) => trust,
                    None => {
                        of_system = Trust::open(None, PROTOCOL)?;
                        &of_system
                    }
                };
                let stream = TcpStream::connect(address.as_str()).await?;
                tune(&stream)?;
                Ok(Stream::Tls(Box::new(trust.connect(stream, address).await?.into())))
            }
        }
    }

    /// Shakes hands where a port takes TLS; a connection that does not is left as it is.
    pub async fn secured(self, certificate: &Certificate) -> io::Result<Stream> {
        let Stream::Tcp(stream) = self else { return Ok(self) };
        Ok(match stoker_tls::accept(stream, certificate).await? {
            Accepted::Tls(stream) => Stream::Tls(Box::new((*stream).into())),
            Accepted::Plain(stream) => Stream::Tcp(stream),
        })
    }

    /// The user of this machine at the other end, as the kernel says; none over TCP.
    pub fn peer_uid(&self) -> Option<u32> {
        match self {
            Stream::Unix(stream) => stream.peer_cred().ok().map(|peer| peer.uid()),
            Stream::Tcp(_) | Stream::Tls(_) => None,
        }
    }

    /// Where the other end is.
    pub fn peer_address(&self) -> String {
        let address = match self {
            Stream::Unix(_) => return "unix".to_owned(),
            Stream::Tcp(stream) => stream.peer_addr(),
            Stream::Tls(stream) => stream.get_ref().0.peer_addr(),
        };
        address.map(|address| address.to_string()).unwrap_or_default()
    }

    /// Two halves that work at the same time. Descriptors that arrive are closed.
    pub fn split(self) -> (ReadHalf, Outgoing) {
        let (read, write) = match self {
            Stream::Unix(stream) => {
                let (read, write) = stream.into_split();
                (Incoming::Unix(read), Outgoing::Unix(Arc::new(write)))
            }
            Stream::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (Incoming::Tcp(read), Outgoing::Tcp(Arc::new(write)))
            }
            Stream::Tls(stream) => {
                let (read, write) = tokio::io::split(*stream);
                (Incoming::Tls(read), Outgoing::Tls(write))
            }
        };
        (BufReader::with_capacity(READ_AHEAD, read), write)
    }

    /// The same; descriptors that arrive are kept for the frame that names them.
    pub fn split_with_descriptors(self) -> (ReadHalf, Outgoing) {
        let Stream::Unix(stream) = self else { return self.split() };
        let (read, write) = stream.into_split();
        let read = Incoming::UnixWithDescriptors(read, Arrivals::default());
        (BufReader::with_capacity(READ_AHEAD, read), Outgoing::Unix(Arc::new(write)))
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// A socket that takes connections. A Unix socket's file goes away with it.
pub(crate) enum Listener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens. A socket file that a dead process left is replaced; one that somebody answers is not.
    /// Of a Unix socket, everybody on this machine may connect if it `is_open`, else its owner.
    pub fn bind(endpoint: &Endpoint, is_open: bool) -> io::Result<Listener> {
        match endpoint {
            Endpoint::Unix(path) => bind_unix(path, if is_open { 0o666 } else { 0o600 }),
            Endpoint::Tcp(address) | Endpoint::Tls(address) => {
                let listener = std::net::TcpListener::bind(address.as_str()).map_err(|error| {
                    io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
                })?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(TcpListener::from_std(listener)?))
            }
        }
    }

    /// Where it listens, with the port that the system chose.
    pub fn endpoint(&self) -> io::Result<Endpoint> {
        Ok(match self {
            Listener::Unix(_, file) => Endpoint::Unix(file.path.clone()),
            Listener::Tcp(listener) => Endpoint::Tcp(listener.local_addr()?.to_string()),
        })
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Unix(listener, _) => Ok(Stream::Unix(listener.accept().await?.0)),
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // A connection that was reset meanwhile shows that at its first read.
                let _ = tune(&stream);
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

/// The file of a Unix socket; removed with the listener unless somebody put another one there.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn bind_unix(path: &Path, mode: u32) -> io::Result<Listener> {
    let cannot = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot listen on {}: {error}", path.display()))
    };
    let short = ShortPath::of(path).map_err(cannot)?;
    let address = SockAddr::unix(&short.path).map_err(cannot)?;
    let new = || Socket::new(Domain::UNIX, Type::STREAM, None);
    let socket = new().map_err(cannot)?;
    if let Err(error) = socket.bind(&address) {
        if error.kind() != io::ErrorKind::AddrInUse {
            return Err(cannot(error));
        }
        match new().and_then(|probe| probe.connect(&address)) {
            Ok(()) => {
                let message = format!("{}: another process listens there already", path.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(cannot)?;
                socket.bind(&address).map_err(cannot)?;
            }
            Err(_) => return Err(cannot(error)),
        }
    }
    // Nobody can connect before `listen`, so there is no moment with a wider mode.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(cannot)?;
    socket.listen(BACKLOG).map_err(cannot)?;
    socket.set_nonblocking(true).map_err(cannot)?;
    let listener =
        UnixListener::from_std(std::os::unix::net::UnixListener::from(std::os::fd::OwnedFd::from(socket)))
            .map_err(cannot)?;
    let inode = fs::symlink_metadata(path).map_err(cannot)?.ino();
    Ok(Listener::Unix(listener, SocketFile { path: path.to_owned(), inode }))
}

/// A path that fits the address of a Unix socket; a long one goes through a descriptor of its folder.
struct ShortPath {
    path: PathBuf,
    _folder: Option<File>,
}

impl ShortPath {
    fn of(path: &Path) -> io::Result<ShortPath> {
        if path.as_os_str().len() <= UNIX_PATH_LEN_MAX {
            return Ok(ShortPath { path: path.to_owned(), _folder: None });
        }
        let (folder, name) = match (path.parent(), path.file_name()) {
            (Some(folder), Some(name)) => (File::open(folder)?, name),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(ShortPath { path: short, _folder: Some(folder) })
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_files_are_private_replaced_when_dead_and_may_have_long_paths() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a".repeat(80)).join("b".repeat(80));
        fs::create_dir_all(&deep).unwrap();
        for path in [folder.path().join("short.sock"), deep.join("long.sock")] {
            let endpoint = Endpoint::Unix(path.clone());
            let listener = Listener::bind(&endpoint, false).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let second = Listener::bind(&endpoint, false).err().unwrap();
            assert_eq!(second.kind(), io::ErrorKind::AddrInUse, "{second}");
            let (near, far) = tokio::join!(Stream::connect(&endpoint, None), listener.accept());
            near.unwrap();
            far.unwrap();

            // What a killed process leaves: the file without a listener.
            let Listener::Unix(inner, _) = &listener else { unreachable!() };
            SockRef::from(inner).shutdown(std::net::Shutdown::Both).unwrap();
            let next = Listener::bind(&endpoint, false).unwrap();
            drop(listener);
            assert!(path.exists(), "the file of another listener is left alone");
            drop(next);
            assert!(!path.exists());
        }
    }
}
