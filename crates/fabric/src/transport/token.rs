//! What an operator carries to a new node: which cluster to trust, and the right to join it.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use stoker_format::crc32c;

const PREFIX: &str = "stoker1-";
/// Keeps the key that is made of a secret apart from everything else that could be made of it.
const KEY_LABEL: &[u8] = b"stoker join token";
const FINGERPRINT_LEN: usize = 32;
const SECRET_LEN: usize = 16;
const CRC_LEN: usize = 4;
const BYTES_LEN: usize = FINGERPRINT_LEN + SECRET_LEN + CRC_LEN;
/// Digits of five bits each; no letter that looks like a digit.
const DIGITS: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz023456789";
const TEXT_LEN: usize = (BYTES_LEN * 8).div_ceil(5);

/// The fingerprint of a cluster's authority, and a secret. Whoever has it can join.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// SHA-256 of the authority's certificate.
    pub fingerprint: [u8; FINGERPRINT_LEN],
    /// Never crosses the wire.
    pub secret: [u8; SECRET_LEN],
}

impl Token {
    /// A token with a new secret.
    pub fn create(fingerprint: [u8; FINGERPRINT_LEN]) -> Result<Token, getrandom::Error> {
        let mut secret = [0; SECRET_LEN];
        getrandom::fill(&mut secret)?;
        Ok(Token { fingerprint, secret })
    }

    /// What proves the token, for those who admit; nobody can make the token of it.
    pub fn key(&self) -> TokenKey {
        let mut key = [0; KEY_LEN];
        key.copy_from_slice(self.pair().public_key().as_ref());
        TokenKey(key)
    }

    /// Proves that this side has the token.
    pub(super) fn sign(&self, message: &[u8]) -> [u8; PROOF_LEN] {
        let mut proof = [0; PROOF_LEN];
        proof.copy_from_slice(self.pair().sign(message).as_ref());
        proof
    }

    fn pair(&self) -> Ed25519KeyPair {
        let seed = digest(&SHA256, &[KEY_LABEL, &self.secret].concat());
        Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).expect("a seed has 32 bytes")
    }
}

/// Length of a proof.
pub(super) const PROOF_LEN: usize = 64;
const KEY_LEN: usize = 32;

/// The public half of a token (Ed25519). It proves a token and cannot be turned into one, so it may be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenKey(pub [u8; KEY_LEN]);

impl TokenKey {
    /// The name of the token.
    pub fn id(&self) -> TokenId {
        let mut id = [0; 8];
        id.copy_from_slice(&digest(&SHA256, &self.0).as_ref()[..8]);
        TokenId(id)
    }

    pub(super) fn verifies(&self, message: &[u8], proof: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(message, proof).is_ok()
    }
}

/// Names a token without telling it: 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TokenId(pub [u8; 8]);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for TokenId {
    type Err = ();

    fn from_str(text: &str) -> Result<TokenId, ()> {
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(());
        }
        u64::from_str_radix(text, 16).map(|id| TokenId(id.to_be_bytes())).map_err(|_| ())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [&self.fingerprint[..], &self.secret[..]].concat();
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        write!(f, "{PREFIX}{}", digits(&bytes))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Token, TokenError> {
        let text = text.trim();
        let Some(text) = text.strip_prefix(PREFIX) else {
            let other_release = text.starts_with("stoker") && text.contains('-');
            return Err(if other_release { TokenError::Version } else { TokenError::Foreign });
        };
        if text.len() != TEXT_LEN {
            return Err(TokenError::Length { found: text.chars().count(), expected: TEXT_LEN });
        }
        let bytes = bytes(text)?;
        let (body, crc) = bytes.split_at(BYTES_LEN - CRC_LEN);
        if crc != crc32c(body).to_le_bytes() {
            return Err(TokenError::Mistyped);
        }
        let mut token = Token { fingerprint: [0; FINGERPRINT_LEN], secret: [0; SECRET_LEN] };
        token.fingerprint.copy_from_slice(&body[..FINGERPRINT_LEN]);
        token.secret.copy_from_slice(&body[FINGERPRINT_LEN..]);
        Ok(token)
    }
}

/// Why a text is no token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenError {
    /// It does not begin like one.
    Foreign,
    /// It is of another release.
    Version,
    /// It is too short or too long.
    Length {
        /// Letters behind the prefix.
        found: usize,
        /// As many as there should be.
        expected: usize,
    },
    /// It has a letter that no token has.
    Letter(char),
    /// Its checksum does not fit.
    Mistyped,
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenError::Foreign => write!(f, "this is no token: tokens begin with {PREFIX}"),
            TokenError::Version => write!(f, "this token is of another release; this one knows {PREFIX}"),
            TokenError::Length { found, expected } => {
                write!(
                    f,
                    "the token has {found} letters behind {PREFIX} instead of {expected}; copy all of it"
                )
            }
            TokenError::Letter(letter) => write!(f, "the token has a letter that no token has: {letter:?}"),
            TokenError::Mistyped => f.write_str("the token is mistyped: its checksum does not fit"),
        }
    }
}

impl std::error::Error for TokenError {}

fn digits(bytes: &[u8]) -> String {
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    let digit = |at: usize| (0..5).fold(0, |digit, n| digit << 1 | usize::from(bit(at * 5 + n)));
    (0..(bytes.len() * 8).div_ceil(5)).map(|at| char::from(DIGITS[digit(at)])).collect()
}

fn bytes(text: &str) -> Result<[u8; BYTES_LEN], TokenError> {
    let mut bytes = [0; BYTES_LEN];
    for (at, letter) in text.chars().enumerate() {
        let found = DIGITS.iter().position(|&digit| char::from(digit) == letter);
        let digit = found.ok_or(TokenError::Letter(letter))?;
        for n in (0..5).filter(|n| digit >> (4 - n) & 1 == 1) {
            // One text has one spelling: bits behind the last byte are zero.
            *bytes.get_mut((at * 5 + n) / 8).ok_or(TokenError::Mistyped)? |= 0x80 >> ((at * 5 + n) % 8);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_wrong_letter_is_noticed_and_said() {
        let text = Token { fingerprint: [0xa5; 32], secret: [0x3c; 16] }.to_string();
        let check = |text: &str, expect: TokenError| assert_eq!(text.parse::<Token>(), Err(expect));
        check("", TokenError::Foreign);
        check("hunter2", TokenError::Foreign);
        check(&text.replace("stoker1", "stoker2"), TokenError::Version);
        check(&text[..text.len() - 1], TokenError::Length { found: TEXT_LEN - 1, expected: TEXT_LEN });
        check(&format!("{}1", &text[..text.len() - 1]), TokenError::Letter('1'));
        for at in PREFIX.len()..text.len() {
            for digit in DIGITS {
                let mut wrong = text.clone().into_bytes();
                wrong[at] = *digit;
                let wrong = String::from_utf8(wrong).unwrap();
                assert_eq!(wrong.parse::<Token>().is_ok(), wrong == text, "{wrong}");
            }
        }
    }

    #[test]
    fn only_a_token_proves_itself() {
        let token = Token { fingerprint: [1; 32], secret: [2; 16] };
        let other = Token { secret: [3; 16], ..token.clone() };
        let proof = token.sign(b"request");
        assert!(token.key().verifies(b"request", &proof));
        assert!(!token.key().verifies(b"another", &proof));
        assert!(!token.key().verifies(b"request", &proof[1..]));
        assert!(!other.key().verifies(b"request", &proof));
        // What is stored does not sign: as the secret of a token it gives another key.
        let stored = token.key().0;
        let forged = Token { secret: stored[..16].try_into().unwrap(), ..token.clone() };
        assert!(!token.key().verifies(b"request", &forged.sign(b"request")));
        let id = token.key().id();
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "+123456789abcdef", "123456789abcdefg", "123456789abcdef"] {
            assert_eq!(text.parse::<TokenId>(), Err(()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn tokens_read_back(fingerprint: [u8; 32], secret: [u8; 16]) {
            let token = Token { fingerprint, secret };
            prop_assert_eq!(format!(" {token}\n").parse::<Token>().unwrap(), token);
        }

        #[test]
        fn foreign_text_is_refused(text in ".{0,100}") {
            let _ = text.parse::<Token>();
            let _ = format!("{PREFIX}{text}").parse::<Token>();
        }
    }
}
