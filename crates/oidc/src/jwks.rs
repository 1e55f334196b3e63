//! Keys of a provider, as its JSON document lists them.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use crate::Rejected;
use crate::jwt::{Algorithm, Token};

/// Most keys of one provider.
const KEYS_MAX: usize = 100;
/// Length of a number of P-256, and of a key of Ed25519.
const NUMBER_LEN: usize = 32;
/// Bytes of an RSA key: 2048 to 8192 bits.
const RSA_LEN: std::ops::RangeInclusive<usize> = 256..=1024;

#[derive(Clone, PartialEq, Eq, Debug)]
enum PublicKey {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// As a point that is not compressed.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl PublicKey {
    fn algorithm(&self) -> Algorithm {
        match self {
            PublicKey::Rsa { .. } => Algorithm::Rs256,
            PublicKey::P256(_) => Algorithm::Es256,
            PublicKey::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    fn is_right(&self, signed: &[u8], signature: &[u8]) -> bool {
        match self {
            PublicKey::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature)
            }
            PublicKey::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed, signature)
            }
            PublicKey::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(signed, signature),
        }
        .is_ok()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Key {
    kid: Option<String>,
    public: PublicKey,
}

/// What a set says of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// One of the keys signed it.
    Right,
    /// The key that it names did not.
    Wrong,
    /// It names a key that is not in the set; a newer set may have it.
    Unknown,
}

/// The keys of a provider that can be used here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeySet {
    keys: Vec<Key>,
}

impl KeySet {
    /// Reads a document. Keys of other kinds, for encryption, or with numbers that are none are left out; a set in which nothing is left is an
    /// error.
    pub fn parse(document: &[u8]) -> Result<KeySet, String> {
        let document: Value = serde_json::from_slice(document)
            .map_err(|error| format!("the set of keys is no JSON: {error}"))?;
        let Some(listed) = document.get("keys").and_then(Value::as_array) else {
            return Err("the set of keys has no list `keys`".to_owned());
        };
        if listed.len() > KEYS_MAX {
            return Err(format!("the set has {} keys, and at most {KEYS_MAX} are read", listed.len()));
        }
        let keys: Vec<Key> = listed.iter().filter_map(Value::as_object).filter_map(key).collect();
        match keys.is_empty() {
            true => Err("the set has no key for RS256, ES256 or EdDSA".to_owned()),
            false => Ok(KeySet { keys }),
        }
    }

    /// Names of the keys and what they are for, for somebody who checks a configuration.
    pub fn list(&self) -> Vec<(String, &'static str)> {
        let name = |key: &Key| key.kid.clone().unwrap_or_else(|| "(no name)".to_owned());
        let kind = |key: &Key| match key.public.algorithm() {
            Algorithm::Rs256 => "RS256",
            Algorithm::Es256 => "ES256",
            Algorithm::EdDsa => "EdDSA",
        };
        self.keys.iter().map(|key| (name(key), kind(key))).collect()
    }

    pub(crate) fn check(&self, token: &Token<'_>) -> Found {
        let mut is_known = false;
        for key in &self.keys {
            let is_meant = match &token.kid {
                Some(kid) => key.kid.as_ref() == Some(kid),
                None => key.public.algorithm() == token.algorithm,
            };
            if !is_meant {
                continue;
            }
            is_known = true;
            if key.public.algorithm() == token.algorithm
                && key.public.is_right(token.signed, &token.signature)
            {
                return Found::Right;
            }
        }
        if is_known { Found::Wrong } else { Found::Unknown }
    }
}

fn key(jwk: &Map<String, Value>) -> Option<Key> {
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?.trim_end_matches('=')).ok();
    if text("use").is_some_and(|purpose| purpose != "sig") {
        return None;
    }
    if let Some(purposes) = jwk.get("key_ops").and_then(Value::as_array)
        && !purposes.iter().any(|purpose| purpose == "verify")
    {
        return None;
    }
    let public = match (text("kty")?, text("crv")) {
        ("RSA", _) => {
            let bare = |bytes: Vec<u8>| {
                let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                bytes[zeros..].to_vec()
            };
            let n = bare(bytes("n")?);
            // Shorter ones are broken, longer ones are work for nothing.
            RSA_LEN.contains(&n.len()).then_some(())?;
            PublicKey::Rsa { n, e: bare(bytes("e")?) }
        }
        ("EC", Some("P-256")) => {
            let (x, y) = (bytes("x")?, bytes("y")?);
            let is_sound = x.len() == NUMBER_LEN && y.len() == NUMBER_LEN;
            is_sound.then(|| PublicKey::P256([&[4][..], &x, &y].concat()))?
        }
        ("OKP", Some("Ed25519")) => PublicKey::Ed25519(bytes("x").filter(|key| key.len() == NUMBER_LEN)?),
        _ => return None,
    };
    // A key that is for another algorithm of its kind, such as PS256, is not for this one.
    if let Some(name) = text("alg")
        && Algorithm::of_name(name) != Some(public.algorithm())
    {
        return None;
    }
    Some(Key { kid: text("kid").map(str::to_owned), public })
}

impl From<Found> for Option<Rejected> {
    fn from(found: Found) -> Option<Rejected> {
        match found {
            Found::Right => None,
            Found::Wrong => Some(Rejected::Invalid("the signature of the token does not fit".to_owned())),
            Found::Unknown => Some(Rejected::Invalid(
                "the token is signed by a key that its issuer does not list".to_owned(),
            )),
        }
    }
}
