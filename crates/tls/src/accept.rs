//! The handshake of one connection.

use std::io;

use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::certificate::Certificate;

/// The first byte of every TLS connection: a record of a handshake.
const HANDSHAKE: u8 = 0x16;

/// What a connection turned out to be.
pub enum Accepted {
    /// TLS.
    Tls(Box<TlsStream<TcpStream>>),
    /// Something else, of which nothing is read yet: whoever knows the protocol says that this port takes TLS alone.
    Plain(TcpStream),
}

/// Shakes hands. Whoever calls this bounds its time.
pub async fn accept(stream: TcpStream, certificate: &Certificate) -> io::Result<Accepted> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if first[0] != HANDSHAKE {
        return Ok(Accepted::Plain(stream));
    }
    let stream = certificate.acceptor().accept(stream).await?;
    Ok(Accepted::Tls(Box::new(stream)))
}
