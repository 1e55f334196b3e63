//! Where a node listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An address of a node's door.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Endpoint {
    /// A Unix socket; who may open it is decided by its file mode.
    Unix(PathBuf),
    /// `host:port`; always needs a token.
    Tcp(String),
    /// The same in TLS: `tls://host:port`.
    Tls(String),
}

/// Text that is no endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseEndpointError(String);

impl fmt::Display for ParseEndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no endpoint: expected HOST:PORT, tls://HOST:PORT, [IPV6]:PORT or the path of a Unix socket",
            self.0
        )
    }
}

impl std::error::Error for ParseEndpointError {}

impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    /// Reads `unix:PATH`, a path with a `/`, `tcp://HOST:PORT`, `tls://HOST:PORT` or `HOST:PORT`.
    fn from_str(text: &str) -> Result<Endpoint, ParseEndpointError> {
        let fault = || ParseEndpointError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() { Err(fault()) } else { Ok(Endpoint::Unix(path.into())) };
        }
        let (address, is_tls) = match (text.strip_prefix("tcp://"), text.strip_prefix("tls://")) {
            (Some(address), _) => (address.trim_end_matches('/'), false),
            (_, Some(address)) => (address.trim_end_matches('/'), true),
            _ if text.contains('/') => return Ok(Endpoint::Unix(text.into())),
            _ => (text, false),
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(fault)?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let sound = !host.is_empty()
            && !host.contains(char::is_whitespace)
            && (bracketed || !host.contains(':'))
            && port.parse::<u16>().is_ok();
        match (sound, is_tls) {
            (false, _) => Err(fault()),
            (true, false) => Ok(Endpoint::Tcp(address.to_owned())),
            (true, true) => Ok(Endpoint::Tls(address.to_owned())),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Tcp(address) => f.write_str(address),
            Endpoint::Tls(address) => write!(f, "tls://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Endpoint;

    #[test]
    fn endpoints_are_read_and_written() {
        let unix = |path: &str| Ok(Endpoint::Unix(path.into()));
        let tcp = |address: &str| Ok(Endpoint::Tcp(address.into()));
        for (text, expect) in [
            ("unix:d/stoker.sock", unix("d/stoker.sock")),
            ("unix:///run/s", unix("/run/s")),
            ("./stoker.sock", unix("./stoker.sock")),
            ("node-1:9000", tcp("node-1:9000")),
            ("tcp://node-1:9000/", tcp("node-1:9000")),
            ("[::1]:9000", tcp("[::1]:9000")),
            ("tls://node-1:9000/", Ok(Endpoint::Tls("node-1:9000".into()))),
        ] {
            let endpoint = text.parse::<Endpoint>();
            assert_eq!(endpoint, expect, "{text}");
            let again = endpoint.unwrap();
            assert_eq!(again.to_string().parse(), Ok(again));
        }
        for text in
            ["", "unix:", "node-1", "node-1:", ":9000", "node-1:99999", "::1:9000", "a b:1", "tls://node-1"]
        {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
