//! What a node proves itself with: its key and certificate, and the authority that it trusts.
//!
//! A renewed certificate is used by the connections that are made from then on; those that stand are not disturbed.

use std::fmt;
use std::sync::{Arc, RwLock};

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig, SignatureScheme};
use serde::{Deserialize, Serialize};
use stoker_format::{ClusterId, NodeId};

use super::authority::{Authority, Issued, Issuer, PublicKey};
use super::verifier::Verifier;

/// How a node names the protocol in the TLS handshake.
pub(super) const NODE_PROTOCOL: &[u8] = b"stoker-node";
/// How a node that wants to join names it.
pub(super) const JOIN_PROTOCOL: &[u8] = b"stoker-join";

/// A node's certificate, its key, and its authority, as they are kept in a file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    cluster: [u8; 16],
    node: [u8; 16],
    authority: Vec<u8>,
    issued: Issued,
    key: Vec<u8>,
}

impl Identity {
    /// The bytes to keep, and to keep secret.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("plain bytes encode")
    }

    /// An identity that was kept.
    pub fn from_bytes(bytes: &[u8]) -> Result<Identity, CredentialsError> {
        postcard::from_bytes(bytes).map_err(|_| CredentialsError::unreadable("an identity"))
    }
}

/// Keys and certificates in use.
pub struct Credentials {
    cluster: ClusterId,
    node: NodeId,
    authority: CertificateDer<'static>,
    current: RwLock<Current>,
    provider: Arc<CryptoProvider>,
}

struct Current {
    identity: Identity,
    certified: Arc<CertifiedKey>,
}

impl Credentials {
    /// Credentials of a node that has the authority itself.
    pub fn issue(
        authority: &Authority,
        node: NodeId,
        now_s: u64,
    ) -> Result<Arc<Credentials>, CredentialsError> {
        let key = new_key()?;
        let issued = authority.issue(node, &PublicKey::of(&key), now_s)?;
        let identity = identity(authority.cluster(), node, authority.certificate(), issued, &key);
        Credentials::from_identity(identity)
    }

    /// Credentials that were kept.
    pub fn from_identity(identity: Identity) -> Result<Arc<Credentials>, CredentialsError> {
        let provider = Arc::new(crypto());
        Ok(Arc::new(Credentials {
            cluster: ClusterId(identity.cluster),
            node: NodeId(identity.node),
            authority: CertificateDer::from(identity.authority.clone()),
            current: RwLock::new(current(identity, &provider)?),
            provider,
        }))
    }

    /// What is to be kept; changes with each renewal.
    pub fn identity(&self) -> Identity {
        self.current.read().unwrap().identity.clone()
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The certificate of its authority, DER.
    pub fn authority(&self) -> &[u8] {
        &self.authority
    }

    /// When the certificate was issued and when it ends, in seconds since 1970.
    pub fn validity_s(&self) -> (u64, u64) {
        let current = self.current.read().unwrap();
        (current.identity.issued.from_s, current.identity.issued.until_s)
    }

    /// Draws a new key, has it certified, and uses it from now on.
    pub async fn renew(&self, issuer: &dyn Issuer) -> Result<(), CredentialsError> {
        let key = new_key()?;
        let issued = issuer.issue(self.node, PublicKey::of(&key)).await.map_err(CredentialsError)?;
        let renewed = identity(self.cluster, self.node, &self.authority, issued, &key);
        *self.current.write().unwrap() = current(renewed, &self.provider)?;
        Ok(())
    }

    fn certified(&self) -> Arc<CertifiedKey> {
        self.current.read().unwrap().certified.clone()
    }

    fn verifier(&self) -> Result<Arc<Verifier>, CredentialsError> {
        Ok(Arc::new(Verifier::new(self.cluster, &self.authority, self.provider.clone())?))
    }

    /// How this node dials others.
    pub(super) fn dialer(self: &Arc<Self>) -> Result<Arc<ClientConfig>, CredentialsError> {
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier()?)
            .with_client_cert_resolver(Arc::new(Resolver(self.clone())));
        config.alpn_protocols = vec![NODE_PROTOCOL.to_vec()];
        // A resumed session would not look at certificates again, however long ago they expired.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// How this node is dialed by others.
    pub(super) fn acceptor(self: &Arc<Self>) -> Result<Arc<ServerConfig>, CredentialsError> {
        let builder = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(self.verifier()?);
        Ok(self.accepting(builder, NODE_PROTOCOL))
    }

    /// How this node is dialed by those that want to join, and have no certificate.
    pub(super) fn join_acceptor(self: &Arc<Self>) -> Result<Arc<ServerConfig>, CredentialsError> {
        let builder = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth();
        Ok(self.accepting(builder, JOIN_PROTOCOL))
    }

    fn accepting(
        self: &Arc<Self>,
        builder: rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert>,
        protocol: &[u8],
    ) -> Arc<ServerConfig> {
        let mut config = builder.with_cert_resolver(Arc::new(Resolver(self.clone())));
        config.alpn_protocols = vec![protocol.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Arc::new(config)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({} of {})", self.node, self.cluster)
    }
}

/// Shows the certificate that is current when a connection is made.
#[derive(Debug)]
struct Resolver(Arc<Credentials>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.certified())
    }
}

impl ResolvesClientCert for Resolver {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A key of a node; certificates are made for this kind only.
pub(super) fn new_key() -> Result<KeyPair, CredentialsError> {
    Ok(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
}

/// Puts together what a node keeps.
pub(super) fn identity(
    cluster: ClusterId,
    node: NodeId,
    authority: &[u8],
    issued: Issued,
    key: &KeyPair,
) -> Identity {
    let authority = authority.to_vec();
    Identity { cluster: cluster.0, node: node.0, authority, issued, key: key.serialize_der() }
}

fn current(identity: Identity, provider: &CryptoProvider) -> Result<Current, CredentialsError> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(identity.key.clone()));
    let key = provider.key_provider.load_private_key(key)?;
    // The authority's certificate comes along for those who know its fingerprint only.
    let chain =
        [&identity.issued.certificate, &identity.authority].map(|der| CertificateDer::from(der.clone()));
    let certified = CertifiedKey::new(chain.to_vec(), key);
    certified.keys_match()?;
    Ok(Current { identity, certified: Arc::new(certified) })
}

/// The cheapest good cipher first: bodies are large and every processor here has AES instructions.
pub(super) fn crypto() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
            provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ],
        ..provider::default_provider()
    }
}

/// Keys or certificates that cannot be made or used; says why.
#[derive(Debug)]
pub struct CredentialsError(pub(super) String);

impl CredentialsError {
    pub(super) fn unreadable(what: &str) -> CredentialsError {
        CredentialsError(format!("these bytes are not {what}"))
    }
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CredentialsError {}

impl From<rcgen::Error> for CredentialsError {
    fn from(error: rcgen::Error) -> CredentialsError {
        CredentialsError(format!("certificate: {error}"))
    }
}

impl From<rustls::Error> for CredentialsError {
    fn from(error: rustls::Error) -> CredentialsError {
        CredentialsError(format!("TLS: {error}"))
    }
}
