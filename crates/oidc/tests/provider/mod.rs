//! A provider of the tests: real keys, real signatures, a real port, and told what to say.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

pub enum Signer {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

pub fn text(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    pub fn rsa(size: KeySize) -> Signer {
        Signer::Rsa(RsaKeyPair::generate(size).unwrap())
    }

    pub fn p256() -> Signer {
        Signer::P256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    pub fn ed25519() -> Signer {
        Signer::Ed25519(Ed25519KeyPair::generate().unwrap())
    }

    pub fn algorithm(&self) -> &'static str {
        match self {
            Signer::Rsa(_) => "RS256",
            Signer::P256(_) => "ES256",
            Signer::Ed25519(_) => "EdDSA",
        }
    }

    pub fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Signer::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), bytes, &mut signature).unwrap();
                signature
            }
            Signer::P256(pair) => pair.sign(&SystemRandom::new(), bytes).unwrap().as_ref().to_vec(),
            Signer::Ed25519(pair) => pair.sign(bytes).as_ref().to_vec(),
        }
    }

    /// The public half as the set of keys has it.
    pub fn jwk(&self, kid: &str) -> Value {
        match self {
            Signer::Rsa(pair) => {
                let (n, e) = numbers(pair.public_key().as_ref());
                json!({"kty": "RSA", "use": "sig", "alg": "RS256", "kid": kid, "n": text(n), "e": text(e)})
            }
            Signer::P256(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": kid, "x": text(&point[1..33]), "y": text(&point[33..])})
            }
            Signer::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": text(pair.public_key().as_ref())})
            }
        }
    }

    /// A token with this key's algorithm.
    pub fn token(&self, kid: &str, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm(), "kid": kid, "typ": "JWT"}), claims)
    }

    pub fn token_with(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", text(header.to_string()), text(claims.to_string()));
        format!("{signed}.{}", text(self.sign(signed.as_bytes())))
    }
}

/// The two numbers of an RSA key in DER.
fn numbers(der: &[u8]) -> (Vec<u8>, Vec<u8>) {
    fn piece(der: &[u8]) -> (&[u8], &[u8]) {
        let (len, from) = match der[1] {
            short @ 0..=0x7f => (usize::from(short), 2),
            0x80 | 0x81 => (usize::from(der[2]), 3),
            _ => (usize::from(der[2]) << 8 | usize::from(der[3]), 4),
        };
        (&der[from..from + len], &der[from + len..])
    }
    let (inside, _) = piece(der);
    let (n, rest) = piece(inside);
    let (e, _) = piece(rest);
    let bare = |number: &[u8]| number.iter().copied().skip_while(|byte| *byte == 0).collect();
    (bare(n), bare(e))
}

#[derive(Default)]
pub struct Said {
    /// The set of keys.
    pub keys: Vec<Value>,
    /// What a code becomes.
    pub id_token: String,
    /// It answers 500 to everything.
    pub is_down: bool,
    /// Paths that were asked for, with the bodies.
    pub asked: Vec<(String, String)>,
}

/// A provider at a port of this machine.
pub struct Provider {
    pub issuer: String,
    pub said: Arc<Mutex<Said>>,
}

impl Provider {
    pub fn start() -> Provider {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let issuer = format!("http://127.0.0.1:{}/realm", listener.local_addr().unwrap().port());
        let said = Arc::new(Mutex::new(Said::default()));
        let provider = Provider { issuer: issuer.clone(), said: Arc::clone(&said) };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut first, mut len) = (String::new(), 0);
                if reader.read_line(&mut first).is_err() {
                    continue;
                }
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        len = value.trim().parse().unwrap();
                    }
                    line.clear();
                }
                let mut body = vec![0; len];
                reader.read_exact(&mut body).unwrap();
                let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
                let mut said = said.lock().unwrap();
                said.asked.push((path.clone(), String::from_utf8_lossy(&body).into_owned()));
                let answer = match path.as_str() {
                    "/realm/.well-known/openid-configuration" => json!({
                        "issuer": issuer, "jwks_uri": format!("{issuer}/keys"),
                        "authorization_endpoint": format!("{issuer}/login"), "token_endpoint": format!("{issuer}/token"),
                    }),
                    "/realm/keys" => json!({"keys": said.keys}),
                    "/realm/token" => json!({"id_token": said.id_token}),
                    _ => Value::Null,
                };
                let status = if said.is_down || answer.is_null() { "500 No" } else { "200 OK" };
                let answer = answer.to_string();
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    answer.len()
                );
                let _ = stream.write_all((head + &answer).as_bytes());
            }
        });
        provider
    }

    /// How often its keys were asked for.
    pub fn fetches(&self) -> usize {
        self.said.lock().unwrap().asked.iter().filter(|(path, _)| path == "/realm/keys").count()
    }

    pub fn lists(&self, keys: Vec<Value>) {
        self.said.lock().unwrap().keys = keys;
    }

    /// Claims about somebody, for `stoker`.
    pub fn claims(&self, subject: &str, groups: &[&str], now_s: i64) -> Value {
        json!({
            "iss": self.issuer, "aud": "stoker", "sub": subject, "groups": groups,
            "iat": now_s, "exp": now_s + 600, "preferred_username": subject,
        })
    }
}
