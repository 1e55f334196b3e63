//! The two halves of a connected socket, with descriptors beside the bytes where the socket is a Unix one.
//!
//! Descriptors leave with the first byte of a call and arrive with it. A half that does not ask for them lets the kernel
//! close what arrives; one that does keeps them until the frame that names them claims them, and ends the connection
//! over those that no frame names.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use socket2::SockRef;
use stoker_store::LEASE_DESCRIPTORS_MAX;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};

use tokio_rustls::TlsStream;

use crate::socket::READ_AHEAD;

/// Room for the descriptors of one frame.
const CONTROL_SPACE: usize = rustix::cmsg_space!(ScmRights(LEASE_DESCRIPTORS_MAX));
/// Frames with descriptors of which more than the first byte is still to come; more than one is unusual.
const ARRIVALS_MAX: usize = 4;

/// The half that is read.
pub(crate) enum Incoming {
    Tcp(tcp::OwnedReadHalf),
    Tls(tokio::io::ReadHalf<TlsStream<TcpStream>>),
    /// Descriptors that arrive are closed by the kernel.
    Unix(unix::OwnedReadHalf),
    /// Descriptors that arrive are kept for their frame.
    UnixWithDescriptors(unix::OwnedReadHalf, Arrivals),
}

/// Descriptors that no frame has claimed yet.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Bytes that came in so far.
    received: u64,
    waiting: VecDeque<Arrival>,
}

struct Arrival {
    /// The byte that it belongs to lies before this one.
    before: u64,
    /// None if this process may not hold that many.
    descriptors: Option<Vec<OwnedFd>>,
}

impl Incoming {
    /// The descriptors of the frame whose header was read last; none if they were lost on their way.
    pub fn claim(&mut self) -> Option<Vec<OwnedFd>> {
        match self {
            Incoming::UnixWithDescriptors(_, arrivals) => arrivals.waiting.pop_front()?.descriptors,
            _ => None,
        }
    }

    /// True if descriptors came with a byte that is read and no frame claimed them; `ahead` bytes are not read yet.
    pub fn has_strays(&self, ahead: usize) -> bool {
        match self {
            Incoming::UnixWithDescriptors(_, arrivals) => {
                let read = arrivals.received - ahead as u64;
                arrivals.waiting.front().is_some_and(|arrival| arrival.before <= read)
            }
            _ => false,
        }
    }
}

impl AsyncRead for Incoming {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Incoming::Tcp(half) => Pin::new(half).poll_read(cx, buf),
            Incoming::Tls(half) => Pin::new(half).poll_read(cx, buf),
            Incoming::Unix(half) => Pin::new(half).poll_read(cx, buf),
            Incoming::UnixWithDescriptors(half, arrivals) => {
                // Only payloads are read in larger pieces than the read-ahead, and nothing travels beside them.
                if buf.remaining() > READ_AHEAD {
                    let before = buf.filled().len();
                    ready!(Pin::new(half).poll_read(cx, buf))?;
                    arrivals.received += (buf.filled().len() - before) as u64;
                    return Poll::Ready(Ok(()));
                }
                arrivals.poll_receive((*half).as_ref(), cx, buf)
            }
        }
    }
}

impl Arrivals {
    fn poll_receive(
        &mut self,
        stream: &UnixStream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(stream.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            match stream.try_io(Interest::READABLE, || receive(stream, room)) {
                Ok((count, arrived)) => {
                    self.received += count as u64;
                    buf.advance(count);
                    if let Some(descriptors) = arrived {
                        self.waiting.push_back(Arrival { before: self.received, descriptors });
                    }
                    if self.waiting.len() > ARRIVALS_MAX {
                        let message = "the node sent descriptors that nobody asked for";
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, message)));
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// What came beside bytes: nothing, or descriptors, or descriptors that did not fit.
type Beside = Option<Option<Vec<OwnedFd>>>;

fn receive(stream: &UnixStream, room: &mut [u8]) -> io::Result<(usize, Beside)> {
    let mut space = [MaybeUninit::uninit(); CONTROL_SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(stream, &mut [IoSliceMut::new(room)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for beside in control.drain() {
        if let RecvAncillaryMessage::ScmRights(arrived) = beside {
            descriptors.extend(arrived);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Ok((message.bytes, Some(None)));
    }
    Ok((message.bytes, (!descriptors.is_empty()).then_some(Some(descriptors))))
}

/// What frames are written to.
pub(crate) trait Sink: AsyncWrite + Unpin {
    /// Writes some bytes, at least one; the descriptors go with the first of them.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
        descriptors: &[OwnedFd],
    ) -> Poll<io::Result<usize>>;

    /// Something that writes to the same place without waiting, if there is.
    fn direct(&self) -> Option<Direct> {
        None
    }
}

/// The half that is written.
pub(crate) enum Outgoing {
    Tcp(Arc<tcp::OwnedWriteHalf>),
    /// Nobody writes past the task that does: what the kernel does not take stays in the layer of TLS.
    Tls(tokio::io::WriteHalf<TlsStream<TcpStream>>),
    Unix(Arc<unix::OwnedWriteHalf>),
}

/// The same half, for those who do not wait.
pub(crate) enum Direct {
    Tcp(Arc<tcp::OwnedWriteHalf>),
    Unix(Arc<unix::OwnedWriteHalf>),
}

impl Direct {
    /// Writes some bytes, at least one, or says that it would have to wait.
    pub fn try_send(&self, bytes: &[IoSlice<'_>], descriptors: &[OwnedFd]) -> io::Result<usize> {
        match self {
            Direct::Tcp(half) => {
                assert!(descriptors.is_empty(), "descriptors for a socket that takes none");
                half.try_write_vectored(bytes)
            }
            Direct::Unix(half) if descriptors.is_empty() => half.try_write_vectored(bytes),
            Direct::Unix(half) => {
                let stream: &UnixStream = (**half).as_ref();
                stream.try_io(Interest::WRITABLE, || send(stream, bytes, descriptors))
            }
        }
    }

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Direct::Tcp(half) => {
                let stream: &TcpStream = (**half).as_ref();
                stream.poll_write_ready(cx)
            }
            Direct::Unix(half) => {
                let stream: &UnixStream = (**half).as_ref();
                stream.poll_write_ready(cx)
            }
        }
    }
}

impl Sink for Outgoing {
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
        descriptors: &[OwnedFd],
    ) -> Poll<io::Result<usize>> {
        let direct = match self {
            Outgoing::Tls(half) => {
                assert!(descriptors.is_empty(), "descriptors for a socket that takes none");
                return Pin::new(half).poll_write_vectored(cx, bytes);
            }
            Outgoing::Tcp(half) => Direct::Tcp(half.clone()),
            Outgoing::Unix(half) => Direct::Unix(half.clone()),
        };
        loop {
            ready!(direct.poll_ready(cx))?;
            match direct.try_send(bytes, descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn direct(&self) -> Option<Direct> {
        match self {
            Outgoing::Tcp(half) => Some(Direct::Tcp(half.clone())),
            Outgoing::Unix(half) => Some(Direct::Unix(half.clone())),
            Outgoing::Tls(_) => None,
        }
    }
}

fn send(stream: &UnixStream, bytes: &[IoSlice<'_>], descriptors: &[OwnedFd]) -> io::Result<usize> {
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); CONTROL_SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "more descriptors than a frame has");
    Ok(sendmsg(stream, bytes, &mut control, SendFlags::NOSIGNAL)?)
}

impl AsyncWrite for Outgoing {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(cx, &[IoSlice::new(buf)], &[])
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Outgoing::Tls(half) => Pin::new(half).poll_flush(cx),
            Outgoing::Tcp(_) | Outgoing::Unix(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.get_mut() {
            Outgoing::Tls(half) => return Pin::new(half).poll_shutdown(cx),
            Outgoing::Tcp(half) => {
                let stream: &TcpStream = (**half).as_ref();
                SockRef::from(stream).shutdown(Shutdown::Write)
            }
            Outgoing::Unix(half) => {
                let stream: &UnixStream = (**half).as_ref();
                SockRef::from(stream).shutdown(Shutdown::Write)
            }
        })
    }
}

/// A pipe of the tests.
#[cfg(test)]
impl Sink for tokio::io::DuplexStream {
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
        _descriptors: &[OwnedFd],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write_vectored(cx, bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::io::{AsyncBufReadExt, AsyncReadExt};

    use super::*;
    use crate::frame::{self, Kind, OutFrame};
    use crate::outbox::Outbox;
    use crate::socket::{ReadHalf, Stream};

    fn pair() -> (ReadHalf, Outgoing) {
        let (near, far) = UnixStream::pair().unwrap();
        let (_, out) = Stream::Unix(far).split();
        (Stream::Unix(near).split_with_descriptors().0, out)
    }

    fn inode(descriptor: &OwnedFd) -> u64 {
        File::from(descriptor.try_clone().unwrap()).metadata().unwrap().ino()
    }

    #[tokio::test]
    async fn each_frame_claims_its_own_descriptors() {
        let (mut reader, out) = pair();
        let folder = tempfile::tempdir().unwrap();
        let file = |number: u64| File::create(folder.path().join(number.to_string())).unwrap();
        let outbox = Outbox::default();
        let mut expect = Vec::new();
        for id in 0..40u64 {
            // Long payloads leave the read-ahead, short ones do not.
            let payload = Bytes::from(vec![id as u8; (id % 5 * 9000) as usize]);
            if id % 3 == 0 {
                outbox.push(OutFrame::new(Kind::Data, id, 0, b"", payload));
                expect.push(None);
                continue;
            }
            let descriptors: Vec<OwnedFd> = (0..id % 4 + 1).map(|at| file(id * 100 + at).into()).collect();
            expect.push(Some(descriptors.iter().map(inode).collect::<Vec<_>>()));
            outbox.push(OutFrame::lease(id, b"", payload, descriptors));
        }
        outbox.close();
        let read = async {
            for (id, expect) in expect.iter().enumerate() {
                reader.fill_buf().await.unwrap();
                assert!(!reader.get_ref().has_strays(reader.buffer().len()), "{id}");
                let (header, _) = frame::read_head(&mut reader).await.unwrap();
                assert_eq!(header.id, id as u64);
                if header.kind == Kind::Lease {
                    let got: Vec<u64> = reader.get_mut().claim().unwrap().iter().map(inode).collect();
                    assert_eq!(Some(&got), expect.as_ref(), "{id}");
                }
                frame::skip_payload(&mut reader, &header).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(outbox.write_to(out, Duration::from_secs(10)), read);
        written.unwrap();
    }

    #[tokio::test]
    async fn descriptors_that_no_frame_names_are_noticed() {
        let (mut reader, mut out) = pair();
        let sent = [File::open("/dev/null").unwrap().into()];
        let send = std::future::poll_fn(|cx| out.poll_send(cx, &[IoSlice::new(b"ab")], &sent));
        assert_eq!(send.await.unwrap(), 2);
        reader.read_u8().await.unwrap();
        // They may belong to the byte that is not read yet.
        assert!(!reader.get_ref().has_strays(reader.buffer().len()));
        reader.read_u8().await.unwrap();
        assert!(reader.get_ref().has_strays(reader.buffer().len()));
        assert_eq!(reader.get_mut().claim().unwrap().len(), 1);
        assert!(reader.get_mut().claim().is_none());
    }
}
