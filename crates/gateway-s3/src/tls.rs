//! The certificate of the gateway, taken up again when its files change.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::options::TlsOptions;

/// How often the files are looked at, at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

type Stamps = [Option<SystemTime>; 2];

struct Current {
    config: Arc<ServerConfig>,
    stamps: Stamps,
    looked: Option<Instant>,
}

/// Keeps the present certificate.
pub(crate) struct Certificate {
    options: TlsOptions,
    current: Mutex<Current>,
}

impl Certificate {
    /// Reads the files.
    pub(crate) fn load(options: TlsOptions) -> io::Result<Certificate> {
        let stamps = stamps(&options);
        let current = Current { config: read(&options)?, stamps, looked: None };
        Ok(Certificate { options, current: Mutex::new(current) })
    }

    /// For the next connection. Files that changed are read again; if they are no good, the old ones stay.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let looked = *current.looked.get_or_insert(now);
        if now.duration_since(looked) >= LOOK_INTERVAL {
            current.looked = Some(now);
            if stamps(&self.options) != current.stamps
                && let Err(error) = self.take_up(&mut current)
            {
                tracing::error!(%error, cert = %self.options.cert.display(), "the new certificate is no good; the old one stays");
            }
        }
        TlsAcceptor::from(Arc::clone(&current.config))
    }

    /// Reads the files again now.
    pub(crate) fn reload(&self) -> io::Result<()> {
        self.take_up(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take_up(&self, current: &mut Current) -> io::Result<()> {
        // Before the read, so that a change in between is noticed the next time.
        current.stamps = stamps(&self.options);
        current.config = read(&self.options)?;
        Ok(())
    }
}

fn stamps(options: &TlsOptions) -> Stamps {
    let stamp = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    [stamp(&options.cert), stamp(&options.key)]
}

fn read(options: &TlsOptions) -> io::Result<Arc<ServerConfig>> {
    let fault = |path: &Path, words: String| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {words}", path.display()))
    };
    let cert = |words: String| fault(&options.cert, words);
    let certs: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&options.cert)
        .and_then(Iterator::collect)
        .map_err(|error| cert(format!("not a PEM file with certificates: {error}")))?;
    if certs.is_empty() {
        return Err(cert("holds no certificate".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&options.key)
        .map_err(|error| fault(&options.key, format!("not a PEM file with a private key: {error}")))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| cert(error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .map_err(|error| cert(format!("does not go with the key: {error}")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
