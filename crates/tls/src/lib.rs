//! TLS where people connect: the certificates of the S3, admin and client ports, from files or made by the cluster's own
//! authority, taken up again while connections stand ([`Certificate`]); and whom a client trusts ([`Trust`]).
//!
//! A new certificate that is no good never replaces one that works: the old one stays, and the log says why. Between nodes
//! other rules hold, which live with their transport. It must not know a protocol above TLS, listen, or dial.

#![forbid(unsafe_code)]

mod accept;
mod certificate;
mod pem;
mod trust;
pub mod validity;

pub use accept::{Accepted, accept};
pub use certificate::{Certificate, CertificateSource, Issue, Issued};
pub use pem::pem_of;
pub use trust::{Trust, explain};

/// Seconds since 1970, by the clock that certificates are checked by.
fn now_s() -> u64 {
    rustls::pki_types::UnixTime::now().as_secs()
}
