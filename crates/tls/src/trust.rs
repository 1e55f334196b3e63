//! Whom a client trusts, and what it says when it does not.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Longest file of certificates that is read: a bundle of all authorities of the world is some 250 KiB.
const BUNDLE_BYTES_MAX: u64 = 8 << 20;

/// Whose certificates a client takes.
#[derive(Clone, Debug)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// The authorities in a PEM file, such as `ca.pem` in a node's directory; without one, those that the system trusts.
    pub fn open(bundle: Option<&Path>, protocol: &'static [u8]) -> io::Result<Trust> {
        let failed = |error: Error| io::Error::other(format!("TLS cannot be set up: {error}"));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?;
        let mut config = match bundle {
            Some(path) => builder.with_root_certificates(roots(path)?).with_no_client_auth(),
            None => builder.with_platform_verifier().map_err(failed)?.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Trust(Arc::new(config)))
    }

    /// Shakes hands with a server that is called so (`HOST` or `HOST:PORT`).
    pub async fn connect<S>(&self, stream: S, address: &str) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("`{host}` is no host name")))?;
        let connected = TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await;
        connected.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => io::Error::new(
                io::ErrorKind::ConnectionReset,
                "it ended the connection during the TLS handshake: it stops, or it takes no TLS at this port",
            ),
            _ => error,
        })
    }
}

fn roots(path: &Path) -> io::Result<RootCertStore> {
    let invalid =
        |words: String| io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {words}", path.display()));
    let len = std::fs::metadata(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?
        .len();
    if len > BUNDLE_BYTES_MAX {
        return Err(invalid("too long for a bundle of certificates".to_owned()));
    }
    let certs: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| invalid(format!("not a PEM file with certificates: {error}")))?;
    let mut roots = RootCertStore::empty();
    let (taken, _) = roots.add_parsable_certificates(certs);
    if taken == 0 {
        return Err(invalid("holds no certificate of an authority".to_owned()));
    }
    Ok(roots)
}

/// Why a handshake failed, and what to do: the words of the library are for those who know X.509. None if it is not about
/// TLS.
pub fn explain(error: &io::Error) -> Option<String> {
    let inner = error.get_ref()?.downcast_ref::<Error>()?;
    let days = |from: UnixTime, until: UnixTime| until.as_secs().saturating_sub(from.as_secs()) / 86_400;
    Some(match inner {
        Error::InvalidCertificate(fault) => match fault {
            CertificateError::ExpiredContext { time, not_after } => format!(
                "its certificate expired {} days ago; renew it on the node, and check the clock here",
                days(*not_after, *time)
            ),
            CertificateError::Expired => {
                "its certificate expired; renew it on the node, and check the clock here".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet; check the clocks here and on the node".to_owned()
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is of an authority that is not trusted here; give the cluster's (`ca.pem` in a node's \
                 directory) with --ca or STOKER_CA, and check that this is your cluster"
                    .to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for other names than the one that you dial; dial one of them, or add yours on the node \
                 with --tls-name or `names` in [tls]"
                    .to_owned()
            }
            other => format!("its certificate is not accepted: {other:?}"),
        },
        Error::InvalidMessage(_) => {
            "what listens there does not speak TLS; leave `tls://` away, or turn TLS on at the node".to_owned()
        }
        other => format!("TLS: {other}"),
    })
}
