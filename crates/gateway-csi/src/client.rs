//! Asks a driver: for health checks, and for tests.

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

/// A connection to a driver.
#[derive(Clone)]
pub struct Caller(Plain);

/// HTTP/2 as tonic wants it.
#[derive(Clone)]
pub struct Plain(http2::SendRequest<Body>);

impl Service<http::Request<Body>> for Plain {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

impl Caller {
    /// Connects to the socket of a driver.
    pub async fn connect(socket: &Path) -> std::io::Result<Caller> {
        let stream = UnixStream::connect(socket).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        Ok(Caller(Plain(sender)))
    }

    /// One call, by its path: `/csi.v1.Identity/Probe`.
    pub async fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let origin = http::Uri::from_static("http://localhost");
        let mut grpc = tonic::client::Grpc::with_origin(self.0.clone(), origin);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec = ProstCodec::<Q, A>::default();
        let answer =
            grpc.unary(Request::new(request), http::uri::PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }
}
