//! The cluster's own certificate authority. Nothing else signs certificates of nodes.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use aws_lc_rs::digest;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SignatureAlgorithm,
};
use serde::{Deserialize, Serialize};
use stoker_format::{ClusterId, NodeId};

use super::credentials::CredentialsError;
use super::message::BoxFuture;

/// How long a node's certificate is good for.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long the certificate of a port is good for.
const SERVICE_LIFE: Duration = Duration::from_secs(60 * 24 * 3600);
const AUTHORITY_LIFE: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
/// Certificates begin this much earlier, for nodes whose clocks are behind.
const CLOCK_SKEW_S: u64 = 3600;
/// An uncompressed point of P-256.
const PUBLIC_KEY_LEN: usize = 65;

/// Signs certificates of nodes.
pub struct Authority {
    cluster: ClusterId,
    certificate: Vec<u8>,
    issuer: rcgen::Issuer<'static, KeyPair>,
}

/// An authority as it is kept in a file; whoever has it can make nodes.
#[derive(Serialize, Deserialize)]
struct Kept {
    cluster: [u8; 16],
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// A certificate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Issued {
    /// DER.
    pub certificate: Vec<u8>,
    /// Seconds since 1970 at which it was issued.
    pub from_s: u64,
    /// Seconds since 1970 after which it is worth nothing.
    pub until_s: u64,
}

/// A certificate of a port that people connect to, with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceCertificate {
    /// DER.
    pub certificate: Vec<u8>,
    /// PKCS #8, DER.
    pub key: Vec<u8>,
}

/// The public half of a node's key; what a certificate is issued for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PublicKey(Vec<u8>);

/// Where a node gets its next certificate: its own authority, or a node that has one.
pub trait Issuer: Send + Sync {
    /// A certificate for that node and key; an error says why not.
    fn issue(&self, node: NodeId, key: PublicKey) -> BoxFuture<'_, Result<Issued, String>>;
}

impl Authority {
    /// A new authority for a cluster.
    pub fn create(cluster: ClusterId, now_s: u64) -> Result<Authority, CredentialsError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = params_of(cluster);
        set_validity(&mut params, now_s, AUTHORITY_LIFE);
        let certificate = params.self_signed(&key)?.der().to_vec();
        Ok(Authority { cluster, certificate, issuer: rcgen::Issuer::new(params, key) })
    }

    /// What has to be kept, and kept secret.
    pub fn to_bytes(&self) -> Vec<u8> {
        let kept = Kept {
            cluster: self.cluster.0,
            certificate: self.certificate.clone(),
            key: self.issuer.key().serialize_der(),
        };
        postcard::to_stdvec(&kept).expect("plain bytes encode")
    }

    /// An authority that was kept.
    pub fn from_bytes(bytes: &[u8]) -> Result<Authority, CredentialsError> {
        let kept: Kept =
            postcard::from_bytes(bytes).map_err(|_| CredentialsError::unreadable("an authority"))?;
        let key = KeyPair::try_from(kept.key)?;
        let cluster = ClusterId(kept.cluster);
        let issuer = rcgen::Issuer::new(params_of(cluster), key);
        Ok(Authority { cluster, certificate: kept.certificate, issuer })
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Its own certificate, DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// SHA-256 of its certificate, as tokens carry it.
    pub fn fingerprint(&self) -> [u8; 32] {
        fingerprint(&self.certificate)
    }

    /// A certificate for a node, good for the usual time from now on.
    pub fn issue(&self, node: NodeId, key: &PublicKey, now_s: u64) -> Result<Issued, CredentialsError> {
        self.issue_for(node, key, now_s, CERTIFICATE_LIFE)
    }

    /// A certificate for a node, good for so long.
    pub fn issue_for(
        &self,
        node: NodeId,
        key: &PublicKey,
        from_s: u64,
        life: Duration,
    ) -> Result<Issued, CredentialsError> {
        if key.0.len() != PUBLIC_KEY_LEN || key.0[0] != 4 {
            return Err(CredentialsError::unreadable("a public key"));
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&format!("stoker node {node}"));
        set_validity(&mut params, from_s, life);
        let uri = node_uri(self.cluster, node).as_str().try_into()?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(key, &self.issuer)?.der().to_vec();
        Ok(Issued { certificate, from_s, until_s: from_s + life.as_secs() })
    }

    /// A certificate for the ports of a node that people connect to: good for these host names and addresses, and no proof
    /// of being a node.
    pub fn issue_service(
        &self,
        node: NodeId,
        names: &[String],
        now_s: u64,
    ) -> Result<ServiceCertificate, CredentialsError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&format!("stoker service of {node}"));
        set_validity(&mut params, now_s, SERVICE_LIFE);
        for name in names {
            let name = match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into()?),
            };
            params.subject_alt_names.push(name);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?.der().to_vec();
        Ok(ServiceCertificate { certificate, key: key.serialize_der() })
    }
}

impl Issuer for Authority {
    fn issue(&self, node: NodeId, key: PublicKey) -> BoxFuture<'_, Result<Issued, String>> {
        let issued = Authority::issue(self, node, &key, now_s()).map_err(|error| error.to_string());
        Box::pin(std::future::ready(issued))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.cluster)
    }
}

impl PublicKey {
    /// The public half of a key.
    pub(super) fn of(key: &KeyPair) -> PublicKey {
        PublicKey(key.public_key_raw().to_vec())
    }
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// What a certificate of a node says that it is.
pub(super) fn node_uri(cluster: ClusterId, node: NodeId) -> String {
    format!("stoker://{cluster}/node/{node}")
}

/// SHA-256 of a certificate.
pub(super) fn fingerprint(certificate: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&digest::SHA256, certificate).as_ref());
    bytes
}

/// Seconds since 1970, by the clock that TLS goes by.
pub(super) fn now_s() -> u64 {
    rustls::pki_types::UnixTime::now().as_secs()
}

fn params_of(cluster: ClusterId) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name(&format!("stoker cluster {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

fn set_validity(params: &mut CertificateParams, from_s: u64, life: Duration) {
    let at = |s: u64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(s);
    params.not_before = at(from_s.saturating_sub(CLOCK_SKEW_S));
    params.not_after = at(from_s + life.as_secs());
}
