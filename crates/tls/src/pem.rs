//! Certificates as text.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// A certificate (DER) as PEM: what `AWS_CA_BUNDLE`, `curl --cacert` and the like read.
pub fn pem_of(der: &[u8]) -> String {
    let body = BASE64_STANDARD.encode(der);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in body.as_bytes().chunks(64) {
        text.extend(line.iter().copied().map(char::from));
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}
