//! How a gateway is started. Numbers and paths, and who knows the parents of traces.

use std::net::SocketAddr;
use std::time::Duration;

use http::HeaderMap;
use stoker_tls::CertificateSource;
use tracing::Span;

/// Gives the span of a request the parent that its headers name. Called only while somebody listens to spans.
#[derive(Clone, Copy, Debug)]
pub struct TraceParent(pub fn(&Span, &HeaderMap));

impl PartialEq for TraceParent {
    fn eq(&self, other: &TraceParent) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for TraceParent {}

/// What MD5 costs of an object of this size is small beside the request: 25 us of a core.
const MD5_UP_TO: u64 = 16 << 10;

/// How a gateway is started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatewayOptions {
    /// Where to listen; port 0 for a free one.
    pub listen: Vec<SocketAddr>,
    /// Threads, each with its own connections.
    pub threads: usize,
    /// The region that clients are told. Signatures may be for any.
    pub region: String,
    /// Domains below which a host name is a volume: `volume.domain`.
    pub domains: Vec<String>,
    /// HTTPS instead of HTTP.
    pub tls: Option<CertificateSource>,
    /// Origins whose web pages may use the gateway; `*` for all, none by default.
    pub cors_origins: Vec<String>,
    /// Presigned requests of Signature Version 2 are taken, too.
    pub signature_v2: bool,
    /// The ETag of an object that came in one piece is its MD5 up to this size; MD5 is slower than drives. (D21)
    pub md5_up_to: u64,
    /// Most connections at the same time. Beyond that, those that have signed nothing yet make room, then those of an address
    /// that has more than others; if there are none, newcomers are turned away with 503.
    pub connections_max: usize,
    /// Longest time that the head of a request may take to arrive, and the fields of a form in front of its file.
    pub header_timeout: Duration,
    /// Longest time that a connection may be open without a request.
    pub idle_timeout: Duration,
    /// Longest time without a byte of a body, in either direction.
    pub body_timeout: Duration,
    /// How long a request waits for a catalog that answers nobody, before the client is told to try again. Clients that hear nothing for
    /// half a minute to a minute give up by themselves, and call that an error.
    pub catalog_patience: Duration,
    /// Most bytes of one file or part in one request.
    pub body_bytes_max: u64,
    /// Who knows the parents of traces.
    pub trace_parent: Option<TraceParent>,
}

impl Default for GatewayOptions {
    fn default() -> GatewayOptions {
        GatewayOptions {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            threads: 2,
            region: "stoker".to_owned(),
            domains: Vec::new(),
            tls: None,
            cors_origins: Vec::new(),
            signature_v2: true,
            md5_up_to: MD5_UP_TO,
            connections_max: 2048,
            header_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(60),
            catalog_patience: Duration::from_secs(10),
            body_bytes_max: 5 << 30,
            trace_parent: None,
        }
    }
}
