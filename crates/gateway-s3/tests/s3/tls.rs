//! HTTPS, and certificates that change while the gateway runs.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use stoker_access::Guard;
use stoker_gateway_s3::{CertificateSource, Gateway, GatewayOptions};

use crate::client::{Client, Response, connect, exchange, read_response};
use crate::rig::{Rig, client, pattern, volume};

fn pem(name: &str) -> std::path::PathBuf {
    // Tests run in the folder of their package.
    Path::new("tests/pem").join(name)
}

/// Sends a signed request to a server that must show this certificate.
fn send(client: &Client, cert: &str, request: crate::client::Request) -> Result<Response, String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pem(cert)).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("s3.test").unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = connect(client.address);
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).map_err(|error| error.to_string())?;
    }
    let method = request.method;
    let mut stream = rustls::Stream::new(&mut connection, &mut socket);
    std::io::Write::write_all(&mut stream, &client.sign(request)).unwrap();
    Ok(read_response(&mut stream, method))
}

fn install(dir: &Path, name: &str) {
    for kind in ["cert", "key"] {
        std::fs::copy(pem(&format!("{name}-{kind}.pem")), dir.join(format!("{kind}.pem"))).unwrap();
    }
}

#[test]
fn https_works_and_takes_up_new_certificates() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path(), "first");
    let tls = CertificateSource::Files { cert: dir.path().join("cert.pem"), key: dir.path().join("key.pem") };
    let gateway = Rig::get().other_gateway(GatewayOptions { tls: Some(tls), ..GatewayOptions::default() });
    let client = Client { address: gateway.addresses()[0], ..client() };
    let path = format!("/{}/secret", volume());
    let body = pattern(6, 3 << 20);
    send(&client, "first-cert.pem", client.request("PUT", &path).body(&body)).unwrap().expect(200);
    let get = send(&client, "first-cert.pem", client.request("GET", &path)).unwrap();
    assert!(get.expect(200).body == body);
    assert!(send(&client, "second-cert.pem", client.request("GET", &path)).is_err());

    std::fs::write(dir.path().join("cert.pem"), "nonsense").unwrap();
    assert!(gateway.reload().is_err());
    send(&client, "first-cert.pem", client.request("GET", &path)).unwrap().expect(200);
    install(dir.path(), "second");
    gateway.reload().unwrap();
    send(&client, "second-cert.pem", client.request("GET", &path)).unwrap().expect(200);
    assert!(send(&client, "first-cert.pem", client.request("GET", &path)).is_err());

    let plain = exchange(client.address, b"GET / HTTP/1.1\r\nhost: h\r\n\r\n", "GET");
    assert_eq!(plain.status, 400);
    assert!(String::from_utf8_lossy(&plain.body).contains("Use https://"));
}

#[test]
fn a_gateway_does_not_start_with_bad_files() {
    let dir = tempfile::tempdir().unwrap();
    install(dir.path(), "first");
    let start = |cert: &str, key: &str| {
        let tls = CertificateSource::Files { cert: dir.path().join(cert), key: dir.path().join(key) };
        let options = GatewayOptions { tls: Some(tls), ..GatewayOptions::default() };
        Gateway::start(Guard::new(Rig::get().node.clone()), options).map(|_| ()).unwrap_err().to_string()
    };
    assert!(start("missing.pem", "key.pem").contains("missing.pem"));
    assert!(start("key.pem", "key.pem").contains("holds no certificate"));
    assert!(start("cert.pem", "cert.pem").contains("private key"));
    std::fs::copy(pem("second-key.pem"), dir.path().join("other.pem")).unwrap();
    assert!(start("cert.pem", "other.pem").contains("does not go with the key"));
}
