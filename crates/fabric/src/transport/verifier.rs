//! Whether a certificate is one of this cluster's nodes: signed by the authority, in time, with a name of the cluster.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerIncompatible,
    SignatureScheme,
};
use stoker_format::{ClusterId, NodeId};
use webpki::{EndEntityCert, KeyUsage};

use super::authority::fingerprint;
use super::credentials::CredentialsError;

/// Checks the certificates of both sides of a connection.
#[derive(Debug)]
pub(super) struct Verifier {
    cluster: ClusterId,
    anchor: TrustAnchor<'static>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    /// Trusts one authority.
    pub fn new(
        cluster: ClusterId,
        authority: &CertificateDer<'_>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Verifier, CredentialsError> {
        let anchor = webpki::anchor_from_trusted_cert(authority)
            .map_err(|_| CredentialsError::unreadable("an authority's certificate"))?
            .to_owned();
        Ok(Verifier { cluster, anchor, provider })
    }

    fn verify(&self, certificate: &CertificateDer<'_>, now: UnixTime, usage: KeyUsage) -> Result<(), Error> {
        verify_chain(&self.anchor, &self.provider, certificate, now, usage)?;
        match node_of(certificate) {
            Some((cluster, _)) if cluster == self.cluster => Ok(()),
            _ => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(certificate, now, KeyUsage::server_auth())?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(certificate, now, KeyUsage::client_auth())?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls13_signature(self, message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(self)
    }
}

/// Trusts whom an authority vouches for that is known by its fingerprint alone: what a node that joins has.
#[derive(Debug)]
pub(super) struct PinnedVerifier {
    pub fingerprint: [u8; 32],
    pub provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authority = others
            .iter()
            .find(|other| fingerprint(other) == self.fingerprint)
            .ok_or(CertificateError::UnknownIssuer)?;
        let anchor =
            webpki::anchor_from_trusted_cert(authority).map_err(|_| CertificateError::BadEncoding)?;
        verify_chain(&anchor, &self.provider, certificate, now, KeyUsage::server_auth())?;
        node_of(certificate).ok_or(CertificateError::ApplicationVerificationFailure)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The node that a certificate is for. Whether to believe it is for the handshake to say.
pub(super) fn node_of(certificate: &CertificateDer<'_>) -> Option<(ClusterId, NodeId)> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    let mut names = parsed.valid_uri_names();
    let (Some(uri), None) = (names.next(), names.next()) else { return None };
    let (cluster, node) = uri.strip_prefix("stoker://")?.split_once("/node/")?;
    Some((cluster.parse().ok()?, node.parse().ok()?))
}

fn verify_chain(
    anchor: &TrustAnchor<'_>,
    provider: &CryptoProvider,
    certificate: &CertificateDer<'_>,
    now: UnixTime,
    usage: KeyUsage,
) -> Result<(), Error> {
    let algorithms = provider.signature_verification_algorithms.all;
    EndEntityCert::try_from(certificate)
        .and_then(|parsed| {
            parsed.verify_for_usage(algorithms, std::slice::from_ref(anchor), &[], now, usage, None, None)?;
            Ok(())
        })
        .map_err(|error| match error {
            webpki::Error::CertExpired { .. } => CertificateError::Expired.into(),
            webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet.into(),
            webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer.into(),
            webpki::Error::BadDer => CertificateError::BadEncoding.into(),
            webpki::Error::InvalidSignatureForPublicKey => CertificateError::BadSignature.into(),
            other => CertificateError::Other(OtherError(Arc::new(other))).into(),
        })
}
