//! Tokens: three pieces of base64url, of which the first says how the last signs the first two. (D226)
//!
//! Taken are RS256, ES256 and EdDSA with Ed25519, and nothing else: `none` and the HMACs of the same family, by which a public key would be
//! taken for a secret, are not in the list at all. The algorithm has to be that of the key, so that a token cannot choose.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use crate::{Rejected, invalid};

/// Longest token that is looked at: what AWS takes.
pub const TOKEN_LEN_MAX: usize = 20_000;
/// Longest name of a key.
const KID_LEN_MAX: usize = 512;

/// How a token is signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// RSA with SHA-256, padded by PKCS #1.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// By its name in headers of tokens and in keys.
    pub fn of_name(name: &str) -> Option<Algorithm> {
        match name {
            "RS256" => Some(Algorithm::Rs256),
            "ES256" => Some(Algorithm::Es256),
            "EdDSA" | "Ed25519" => Some(Algorithm::EdDsa),
            _ => None,
        }
    }
}

/// A token that was taken apart; nothing of it is believed yet.
#[derive(Debug)]
pub(crate) struct Token<'a> {
    pub algorithm: Algorithm,
    /// Which key signed, if it says so.
    pub kid: Option<String>,
    /// What the signature is about.
    pub signed: &'a [u8],
    pub signature: Vec<u8>,
    pub claims: Map<String, Value>,
}

impl<'a> Token<'a> {
    pub fn parse(text: &'a str) -> Result<Token<'a>, Rejected> {
        if text.len() > TOKEN_LEN_MAX {
            return invalid(format!("the token is longer than {TOKEN_LEN_MAX} bytes"));
        }
        let mut pieces = text.split('.');
        let (Some(header), Some(body), Some(signature), None) =
            (pieces.next(), pieces.next(), pieces.next(), pieces.next())
        else {
            return invalid("the token is not a signed JWT: it needs three pieces with dots between them");
        };
        let signed = &text.as_bytes()[..header.len() + 1 + body.len()];
        let (header, claims) = (object(header, "header")?, object(body, "claims")?);
        let signature = decoded(signature, "signature")?;
        // Extensions that have to be understood; none is.
        if header.contains_key("crit") {
            return invalid("the token wants extensions that are not known here (`crit`)");
        }
        let kind = header.get("typ").map(|kind| kind.as_str().unwrap_or_default().to_ascii_lowercase());
        if kind.as_ref().is_some_and(|kind| !matches!(kind.as_str(), "jwt" | "at+jwt" | "application/jwt")) {
            return invalid("the token is of another type (`typ`) than JWT");
        }
        let Some(algorithm) = header.get("alg").and_then(Value::as_str).and_then(Algorithm::of_name) else {
            return invalid("the token is not signed by RS256, ES256 or EdDSA");
        };
        let kid = match header.get("kid") {
            None => None,
            Some(Value::String(kid)) if kid.len() <= KID_LEN_MAX => Some(kid.clone()),
            Some(_) => return invalid("the name of the token's key (`kid`) is no text, or too long"),
        };
        Ok(Token { algorithm, kid, signed, signature, claims })
    }
}

fn decoded(piece: &str, what: &str) -> Result<Vec<u8>, Rejected> {
    URL_SAFE_NO_PAD
        .decode(piece)
        .map_err(|_| Rejected::Invalid(format!("the {what} of the token is not base64url without padding")))
}

fn object(piece: &str, what: &str) -> Result<Map<String, Value>, Rejected> {
    // The parser refuses what is nested deeper than 128.
    match serde_json::from_slice(&decoded(piece, what)?) {
        Ok(Value::Object(object)) => Ok(object),
        _ => invalid(format!("the {what} of the token is no JSON object")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(header: &str, claims: &str) -> String {
        format!("{}.{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims), "AAAA")
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let good = token(r#"{"alg":"RS256","kid":"1"}"#, r#"{"iss":"a"}"#);
        assert!(Token::parse(&good).is_ok());
        let deep = format!("{}{}", "[".repeat(2_000), "]".repeat(2_000));
        for (bad, about) in [
            (String::new(), "three pieces"),
            ("a.b".into(), "three pieces"),
            (format!("{good}.AAAA"), "three pieces"),
            (format!("{good}="), "signature of the token is not base64url"),
            (good.replacen('.', "\n.", 1), "header of the token is not base64url"),
            ("x".repeat(TOKEN_LEN_MAX + 1), "longer than"),
            (token("[]", "{}"), "header of the token is no JSON object"),
            (token(r#"{"alg":"RS256"}"#, "7"), "claims of the token is no JSON object"),
            (token(r#"{"alg":"RS256"}"#, &format!(r#"{{"a":{deep}}}"#)), "no JSON object"),
            (token(r#"{"alg":"RS256"}{}"#, "{}"), "no JSON object"),
            (token(r#"{"alg":"none"}"#, "{}"), "not signed by"),
            (token(r#"{"alg":"nOnE"}"#, "{}"), "not signed by"),
            (token(r#"{"alg":"HS256"}"#, "{}"), "not signed by"),
            (token(r#"{"alg":"rs256"}"#, "{}"), "not signed by"),
            (token(r#"{"alg":["RS256"]}"#, "{}"), "not signed by"),
            (token(r#"{"kid":"1"}"#, "{}"), "not signed by"),
            (token(r#"{"alg":"RS256","crit":["exp"]}"#, "{}"), "crit"),
            (token(r#"{"alg":"RS256","typ":"logout+jwt"}"#, "{}"), "typ"),
            (token(r#"{"alg":"RS256","typ":7}"#, "{}"), "typ"),
            (token(r#"{"alg":"RS256","kid":7}"#, "{}"), "kid"),
            (token(&format!(r#"{{"alg":"RS256","kid":"{}"}}"#, "k".repeat(513)), "{}"), "kid"),
        ] {
            match Token::parse(&bad) {
                Err(Rejected::Invalid(why)) => assert!(why.contains(about), "{bad}: {why}"),
                other => panic!("{bad}: {other:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_that_is_sent_makes_it_panic(text in "\\PC{0,200}", pieces in prop::collection::vec("[A-Za-z0-9_=-]{0,60}", 0..5)) {
            let _ = Token::parse(&text);
            let _ = Token::parse(&pieces.join("."));
            let _ = Token::parse(&token(&text, &text));
        }
    }
}
