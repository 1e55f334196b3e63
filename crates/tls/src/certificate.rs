//! The certificate of a port, taken up again when its files change, and made again before it ends.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::{now_s, validity};

/// How often files and dates are looked at, at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// A certificate that was made for a port, with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Issued {
    /// DER, first that of the port, then those that lead to its root.
    pub chain: Vec<Vec<u8>>,
    /// PKCS #8, DER.
    pub key: Vec<u8>,
}

/// Who makes certificates for a port.
pub trait Issue: Send + Sync {
    /// A new one, good from now on; an error says why there is none.
    fn issue(&self) -> Result<Issued, String>;
}

/// Where the certificate of a port comes from.
#[derive(Clone)]
pub enum CertificateSource {
    /// PEM files: the certificate with those that lead to its root, and its key.
    Files {
        /// The certificates.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// Made here, and made again when two thirds of its time are over.
    Issuer(Arc<dyn Issue>),
}

impl PartialEq for CertificateSource {
    fn eq(&self, other: &CertificateSource) -> bool {
        match (self, other) {
            (
                CertificateSource::Files { cert, key },
                CertificateSource::Files { cert: other_cert, key: other_key },
            ) => (cert, key) == (other_cert, other_key),
            (CertificateSource::Issuer(one), CertificateSource::Issuer(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for CertificateSource {}

impl fmt::Debug for CertificateSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateSource::Files { cert, .. } => write!(f, "Files({})", cert.display()),
            CertificateSource::Issuer(_) => f.write_str("Issuer"),
        }
    }
}

type Stamps = [Option<(SystemTime, u64)>; 2];

struct Current {
    config: Arc<ServerConfig>,
    stamps: Stamps,
    /// First and last second.
    validity_s: (u64, u64),
    looked: Instant,
}

/// Keeps the present certificate of a port.
pub struct Certificate {
    source: CertificateSource,
    /// The name of the protocol inside.
    protocol: &'static [u8],
    current: Mutex<Current>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({:?})", self.source)
    }
}

impl Certificate {
    /// Reads or makes it.
    pub fn load(source: CertificateSource, protocol: &'static [u8]) -> io::Result<Certificate> {
        let stamps = stamps(&source);
        let (config, validity_s) = take(&source, protocol)?;
        let current = Current { config, stamps, validity_s, looked: Instant::now() };
        Ok(Certificate { source, protocol, current: Mutex::new(current) })
    }

    /// For the next connection. Files that changed are read again, and a certificate that is old is made again; if that
    /// does not work, the old one stays.
    pub fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked.elapsed() >= LOOK_INTERVAL {
            current.looked = Instant::now();
            if self.is_out_of_date(&current)
                && let Err(error) = self.take_up(&mut current)
            {
                tracing::error!("the new certificate is no good, the old one stays: {error}");
            }
        }
        TlsAcceptor::from(Arc::clone(&current.config))
    }

    /// Reads or makes it again now.
    pub fn reload(&self) -> io::Result<()> {
        self.take_up(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// First and last second of the present one, since 1970.
    pub fn validity_s(&self) -> (u64, u64) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).validity_s
    }

    fn is_out_of_date(&self, current: &Current) -> bool {
        match &self.source {
            CertificateSource::Files { .. } => stamps(&self.source) != current.stamps,
            CertificateSource::Issuer(_) => is_to_be_renewed(current.validity_s, now_s()),
        }
    }

    fn take_up(&self, current: &mut Current) -> io::Result<()> {
        // Before the read, so that a change in between is noticed the next time.
        current.stamps = stamps(&self.source);
        (current.config, current.validity_s) = take(&self.source, self.protocol)?;
        Ok(())
    }
}

fn is_to_be_renewed((from_s, until_s): (u64, u64), now_s: u64) -> bool {
    now_s >= from_s + until_s.saturating_sub(from_s) / 3 * 2
}

fn stamps(source: &CertificateSource) -> Stamps {
    let stamp = |path: &Path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    };
    match source {
        CertificateSource::Files { cert, key } => [stamp(cert), stamp(key)],
        CertificateSource::Issuer(_) => [None, None],
    }
}

fn invalid(words: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, words)
}

fn take(source: &CertificateSource, protocol: &'static [u8]) -> io::Result<(Arc<ServerConfig>, (u64, u64))> {
    let (certs, key, name) = match source {
        CertificateSource::Files { cert, key } => {
            let (certs, key) = read(cert, key)?;
            (certs, key, format!("{}: ", cert.display()))
        }
        CertificateSource::Issuer(issuer) => {
            let issued = issuer.issue().map_err(|why| invalid(format!("no certificate was made: {why}")))?;
            let certs = issued.chain.into_iter().map(CertificateDer::from).collect();
            (certs, PrivateKeyDer::from(PrivatePkcs8KeyDer::from(issued.key)), String::new())
        }
    };
    let validity_s =
        certs.first().ok_or_else(|| invalid(format!("{name}holds no certificate"))).and_then(|cert| {
            validity::validity_of_der(cert).map_err(|fault| invalid(format!("{name}{fault}")))
        })?;
    check_validity(validity_s, now_s()).map_err(|words| invalid(format!("{name}{words}")))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(format!("{name}{error}")))?
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .map_err(|error| invalid(format!("{name}does not go with the key: {error}")))?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok((Arc::new(config), validity_s))
}

/// A certificate that no client would take is refused where it is read, not by every client.
fn check_validity((from_s, until_s): (u64, u64), now_s: u64) -> Result<(), String> {
    if now_s > until_s {
        let days = (now_s - until_s) / 86_400;
        return Err(format!(
            "the certificate expired {days} days ago; clients would refuse it: replace the file by a new one"
        ));
    }
    // Clocks of clients differ by minutes, not by a day.
    if now_s + 86_400 < from_s {
        let days = (from_s - now_s) / 86_400;
        return Err(format!(
            "the certificate holds only {days} days from now; check the clock of this machine"
        ));
    }
    Ok(())
}

fn read(cert: &Path, key: &Path) -> io::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let fault = |path: &Path, words: String| invalid(format!("{}: {words}", path.display()));
    let certs: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|error| fault(cert, format!("not a PEM file with certificates: {error}")))?;
    if certs.is_empty() {
        return Err(fault(cert, "holds no certificate".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| fault(key, format!("not a PEM file with a private key: {error}")))?;
    Ok((certs, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_before_it_ends() {
        let check = |now_s, expect| assert_eq!(is_to_be_renewed((100, 400), now_s), expect, "{now_s}");
        check(100, false);
        check(299, false);
        check(300, true);
        check(500, true);
    }

    #[test]
    fn what_no_client_would_take_is_refused_with_a_reason() {
        const DAY: u64 = 86_400;
        let check = |validity_s, expect: Option<&str>| {
            let told = check_validity(validity_s, 100 * DAY).err();
            assert_eq!(told.is_some(), expect.is_some(), "{told:?}");
            assert!(expect.is_none_or(|words| told.unwrap().contains(words)));
        };
        check((90 * DAY, 110 * DAY), None);
        check((100 * DAY + 60, 110 * DAY), None);
        check((10 * DAY, 97 * DAY), Some("expired 3 days ago"));
        check((110 * DAY, 120 * DAY), Some("check the clock"));
    }
}
