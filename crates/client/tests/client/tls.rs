//! The door in TLS: whose certificate is taken, and what those are told who come without TLS or without trust.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use stoker_access::Guard;
use stoker_client::{Client, ClientOptions, Endpoint, Server, ServerOptions};
use stoker_store::*;
use stoker_tls::{CertificateSource, Issue, Issued, pem_of};

use crate::memory::{CHUNK, Memory};

const TOKEN: &str = "a token";

/// An authority of a test; each has its own key.
struct Authority {
    der: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
    names: Vec<String>,
}

impl Authority {
    fn new(names: &[&str]) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let der = params.self_signed(&key).unwrap().der().to_vec();
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Authority { der, issuer: Issuer::new(params, key), names }
    }

    fn write(&self, path: &Path) {
        std::fs::write(path, pem_of(&self.der)).unwrap();
    }
}

impl Issue for Authority {
    fn issue(&self) -> std::result::Result<Issued, String> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(self.names.clone()).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Ok(Issued { chain: vec![certificate.der().to_vec()], key: key.serialize_der() })
    }
}

struct Rig {
    memory: Memory,
    folder: tempfile::TempDir,
    server: Server,
}

impl Rig {
    /// A server whose certificate is for these names; none: without TLS.
    fn new(names: Option<&[&str]>) -> Rig {
        let (folder, memory) = (tempfile::tempdir().unwrap(), Memory::new());
        let certificate = names.map(|names| {
            let authority = Authority::new(names);
            authority.write(&folder.path().join("ca.pem"));
            Arc::new(Server::certificate(CertificateSource::Issuer(Arc::new(authority))).unwrap())
        });
        Authority::new(&[]).write(&folder.path().join("other.pem"));
        let options = ServerOptions { certificate, ..ServerOptions::default() };
        let listen = vec![Endpoint::Tcp("127.0.0.1:0".into())];
        let server =
            Server::start(Guard::new(Arc::new(memory.clone())), listen, Some(TOKEN.into()), options).unwrap();
        Rig { memory, folder, server }
    }

    fn address(&self) -> String {
        self.server.addresses()[0].to_string().trim_start_matches("tls://").to_owned()
    }

    async fn connect(&self, endpoint: &str, ca: &str) -> Result<Client> {
        let options = ClientOptions::default().trusting(&self.folder.path().join(ca)).unwrap();
        Client::connect_with(&endpoint.parse().unwrap(), Some(TOKEN), options).await
    }

    async fn refused(&self, endpoint: &str, ca: &str, words: &str) {
        let error = self.connect(endpoint, ca).await.err().unwrap();
        assert!(error.message.contains(words), "{error}");
        assert_eq!(error.kind, ErrorKind::Invalid, "trying again does not help: {error}");
    }
}

async fn put(store: &dyn Store, name: &str, mut bytes: &[u8]) -> Receipt {
    let mut writer = store.create("data", &Key::new(name).unwrap(), WriteRequest::default()).await.unwrap();
    while !bytes.is_empty() {
        let mut buf = writer.buffer().await.unwrap();
        let part = bytes.len().min(buf.capacity());
        buf.set_len(part);
        buf.as_mut_slice().copy_from_slice(&bytes[..part]);
        writer.write(buf).await.unwrap();
        bytes = &bytes[part..];
    }
    writer.finish(Finish::default()).await.unwrap()
}

async fn get(store: &dyn Store, name: &str) -> Vec<u8> {
    let file = store.open("data", &Key::new(name).unwrap()).await.unwrap();
    let mut got = Vec::new();
    while (got.len() as u64) < file.info().size {
        got.extend_from_slice(&file.read(got.len() as u64, 8 << 20).await.unwrap());
    }
    got
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_all_sizes_pass_in_tls() {
    let rig = Rig::new(Some(&["127.0.0.1"]));
    assert!(matches!(rig.server.addresses()[0], Endpoint::Tls(_)));
    let client = rig.connect(&format!("tls://{}", rig.address()), "ca.pem").await.unwrap();
    for len in [0, 1, 4096, CHUNK + 1, 3 * CHUNK + 17, 9 << 20] {
        let bytes: Vec<u8> = (0..len).map(|at| ((at * 31) >> 3) as u8).collect();
        put(&client, "file", &bytes).await;
        assert!(get(&client, "file").await == bytes, "{len}");
        assert!(get(&rig.memory, "file").await == bytes, "{len}");
    }
    // Many at once share the connection.
    let all = (0..40).map(|at| {
        let client = client.clone();
        async move {
            let bytes = vec![at as u8; 100_000 + at];
            put(&client, &format!("many/{at}"), &bytes).await;
            assert!(get(&client, &format!("many/{at}")).await == bytes);
        }
    });
    futures_util::future::join_all(all).await;
}

#[tokio::test]
async fn who_comes_without_tls_or_trust_is_told_what_to_do() {
    let rig = Rig::new(Some(&["127.0.0.1"]));
    let address = rig.address();
    rig.refused(&address, "ca.pem", "takes TLS alone at this port; connect to tls://").await;
    rig.refused(&format!("tls://{address}"), "other.pem", "authority that is not trusted here").await;
    let named = Rig::new(Some(&["node-1.example"]));
    named.refused(&format!("tls://{}", named.address()), "ca.pem", "for other names").await;
    let plain = Rig::new(None);
    let error = plain.connect(&format!("tls://{}", plain.address()), "other.pem").await.err().unwrap();
    assert!(error.message.contains("it takes no TLS at this port"), "{error}");
    assert!(plain.connect(&plain.address(), "other.pem").await.is_ok());
    for (text, words) in [("", "holds no certificate"), ("-----BEGIN CERTIFICATE-----\nAA", "PEM")] {
        let file = rig.folder.path().join("broken.pem");
        std::fs::write(&file, text).unwrap();
        let error = ClientOptions::default().trusting(&file).unwrap_err().to_string();
        assert!(error.contains("broken.pem") && error.contains(words), "{error}");
    }
}
