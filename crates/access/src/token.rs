//! Tokens of users for the client port.
//!
//! A token is `stk-ID-SECRET`. The cluster keeps what checks it and cannot be shown in its place: the client proves that it has the key whose
//! hash is kept, for one connection, and the node proves that it knows the other half. Nothing of the token passes the wire. (D147)

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::{constant_time, digest, hmac};
use stoker_store::{ErrorKind, StoreError, TokenCheck};

const START: &str = "stk-";
const ID_LEN: usize = 8;
/// Letters that nobody has to quote, five bits each.
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const SECRET_LEN: usize = 40;

/// A token, in the hands of who has it.
#[derive(Clone, PartialEq, Eq)]
pub struct UserToken {
    id: u32,
    secret: String,
}

impl UserToken {
    /// A new one.
    pub fn random() -> Result<UserToken, StoreError> {
        let mut bytes = [0; 4 + SECRET_LEN];
        let failed = |_| StoreError::new(ErrorKind::Unavailable, "the system gives no random bytes");
        SystemRandom::new().fill(&mut bytes).map_err(failed)?;
        let id = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).max(1);
        let secret = bytes[4..].iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect();
        Ok(UserToken { id, secret })
    }

    /// Reads one; none if it is not of this form, as the token of the operator.
    pub fn parse(text: &str) -> Option<UserToken> {
        let (id, secret) = text.strip_prefix(START)?.split_at_checked(ID_LEN)?;
        let secret = secret.strip_prefix('-').filter(|secret| secret.len() == SECRET_LEN)?;
        let is_hex = id.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase());
        let id = u32::from_str_radix(id, 16).ok().filter(|id| is_hex && *id != 0)?;
        Some(UserToken { id, secret: secret.to_owned() })
    }

    /// As it is given to its user.
    pub fn text(&self) -> String {
        format!("{START}{:08x}-{}", self.id, self.secret)
    }

    /// Tells it from others.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What the cluster keeps.
    pub fn check(&self) -> TokenCheck {
        let mut stored = [0; 32];
        stored.copy_from_slice(digest::digest(&digest::SHA256, &self.client_key()).as_ref());
        TokenCheck { id: self.id, stored, server: self.key(b"stoker node") }
    }

    /// Proves to the node, for what both said so far.
    pub fn prove(&self, said: &[u8]) -> [u8; 32] {
        mixed(self.client_key(), sign(&self.check().stored, said))
    }

    /// Whether the node proved itself.
    pub fn is_proved(&self, said: &[u8], proof: &[u8; 32]) -> bool {
        constant_time::verify_slices_are_equal(&sign(&self.key(b"stoker node"), said), proof).is_ok()
    }

    fn client_key(&self) -> [u8; 32] {
        self.key(b"stoker user")
    }

    fn key(&self, what: &[u8]) -> [u8; 32] {
        sign(self.secret.as_bytes(), what)
    }
}

/// Whether a client proved that it has the token.
pub fn is_right(check: &TokenCheck, said: &[u8], proof: &[u8; 32]) -> bool {
    let client_key = mixed(*proof, sign(&check.stored, said));
    let stored = digest::digest(&digest::SHA256, &client_key);
    constant_time::verify_slices_are_equal(stored.as_ref(), &check.stored).is_ok()
}

/// Proves the node to the client.
pub fn prove_node(check: &TokenCheck, said: &[u8]) -> [u8; 32] {
    sign(&check.server, said)
}

fn sign(key: &[u8], bytes: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), bytes);
    let mut signed = [0; 32];
    signed.copy_from_slice(tag.as_ref());
    signed
}

fn mixed(mut one: [u8; 32], other: [u8; 32]) -> [u8; 32] {
    one.iter_mut().zip(other).for_each(|(one, other)| *one ^= other);
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_token_proves_it_and_what_is_kept_does_not() {
        let token = UserToken::random().unwrap();
        let check = token.check();
        assert!(UserToken::parse(&token.text()) == Some(token.clone()));
        let proof = token.prove(b"one connection");
        assert!(is_right(&check, b"one connection", &proof));
        assert!(!is_right(&check, b"another one", &proof));
        assert!(!is_right(&UserToken::random().unwrap().check(), b"one connection", &proof));
        // What the cluster keeps is no key to it.
        assert!(!is_right(&check, b"one connection", &sign(&check.stored, b"one connection")));
        assert!(token.is_proved(b"one connection", &prove_node(&check, b"one connection")));
        assert!(!token.is_proved(b"one connection", &proof));
    }

    #[test]
    fn other_tokens_are_not_of_users() {
        let secret = "a".repeat(SECRET_LEN);
        for text in [
            "",
            "stk-",
            "secret",
            &format!("stk-00000000-{secret}"),
            &format!("stk-0000000G-{secret}"),
            "stk-00000001-short",
        ] {
            assert!(UserToken::parse(text).is_none(), "{text}");
        }
        assert!(UserToken::parse(&format!("stk-0000000f-{secret}")).is_some_and(|token| token.id() == 15));
    }
}
