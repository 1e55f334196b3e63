//! Sockets: dial from a chosen address, listen, tune, split. Plain and TLS look the same above this file.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsStream;

/// The half that is read.
pub(super) type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// The half that is written.
pub(super) type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;
/// A socket below TLS. rustls asks for a few kilobytes at a time; this reads many of its records with one call.
pub(super) type Below = BufReader<TcpStream>;

const BELOW_TLS: usize = 256 << 10;
/// Encrypted bytes that are collected before they are written.
const TLS_WRITE_BUFFER: usize = 256 << 10;
const BACKLOG: u32 = 1024;
const PART_READS_MAX: usize = 64;
const PART_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that the other machine does not acknowledge end a connection after this long.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);

/// Connects, from a local address if one is given.
pub(super) async fn dial(address: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = socket_for(address)?;
    if let Some(from) = from {
        socket.bind(SocketAddr::new(from, 0))?;
    }
    let stream = socket.connect(address).await?;
    tune(&stream)?;
    Ok(stream)
}

/// Listens.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let cannot =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
    let socket = socket_for(address).map_err(cannot)?;
    socket.set_reuseaddr(true).map_err(cannot)?;
    if address.is_ipv6() {
        SockRef::from(&socket).set_only_v6(true).map_err(cannot)?;
    }
    socket.bind(address).map_err(cannot)?;
    socket.listen(BACKLOG).map_err(cannot)
}

fn socket_for(address: SocketAddr) -> io::Result<TcpSocket> {
    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

/// Sets what every connection has.
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(30)))
}

/// A socket to speak TLS over.
pub(super) fn below_tls(stream: TcpStream) -> Below {
    BufReader::with_capacity(BELOW_TLS, stream)
}

/// Ends a connection so that the last bytes written arrive: unread bytes would make the kernel throw them away.
pub(super) async fn part(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let drain = async {
        stream.shutdown().await?;
        let mut scratch = [0; 4 << 10];
        for _ in 0..PART_READS_MAX {
            if stream.read(&mut scratch).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    // A courtesy; whether it succeeds makes no difference here.
    let _ = tokio::time::timeout(PART_TIMEOUT, drain).await;
}

/// The halves of a plain connection.
pub(super) fn split_plain(stream: TcpStream) -> (ReadHalf, WriteHalf) {
    let (read, write) = stream.into_split();
    (Box::new(read), Box::new(write))
}

/// The halves of a TLS connection.
pub(super) fn split_tls(mut stream: TlsStream<Below>) -> (ReadHalf, WriteHalf) {
    match &mut stream {
        TlsStream::Client(stream) => stream.get_mut().1.set_buffer_limit(Some(TLS_WRITE_BUFFER)),
        TlsStream::Server(stream) => stream.get_mut().1.set_buffer_limit(Some(TLS_WRITE_BUFFER)),
    }
    let (read, write) = tokio::io::split(stream);
    (Box::new(read), Box::new(write))
}
