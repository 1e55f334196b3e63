//! Temporary access keys: what is in their session token, and who may read it. (D225)
//!
//! The token is everything that the cluster knows of such a key: whose it is, what it leaves of their rights, and when it ends. It is sealed by a
//! key that is made of the cluster's secret, so every node reads it, nobody else writes one, and nothing has to be kept or cleared away. The
//! secret half of the key is made of the token and another such key, so it stands nowhere.
//!
//! What can change meanwhile is looked up with every use, as for other keys: the user, or the access key that it came from. A cluster whose
//! secret was replaced knows none of the old tokens.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::{digest, hmac};
use serde::{Deserialize, Serialize};
use stoker_store::{ErrorKind, Result, StoreError, UserName};

/// In front of every temporary access key, so that one is told from others without being looked up.
pub const SESSION_KEY_START: &str = "STKS";
/// In front of every token.
const TOKEN_START: &str = "stss1-";
/// Longest token that is looked at.
pub const SESSION_TOKEN_LEN_MAX: usize = 8 << 10;
/// Letters behind the start of an access key.
const ID_LEN: usize = 16;
/// Letters of a secret key, six bits each.
const SECRET_LEN: usize = 40;

const SEAL: &[u8] = b"stoker: session tokens, sealing, 1";
const DERIVE: &[u8] = b"stoker: session tokens, secret keys, 1";

const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const SECRET_LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Whose rights a temporary key has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Whose {
    /// Those of a user, who is the one that was made at that time: another one who got the name later is somebody else.
    #[serde(rename = "u")]
    User { name: UserName, created_ms: u64 },
    /// Those of an access key, whose secret has this hash: one that was made anew under the same name is another one.
    #[serde(rename = "k")]
    Key { access_key: String, secret: String },
}

/// What a token says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Terms {
    #[serde(rename = "w")]
    pub whose: Whose,
    /// What their caller is called, such as `trainer/run-7 (alice at https://login.example.com)`.
    #[serde(rename = "n")]
    pub label: String,
    /// The name for AWS's programs.
    #[serde(rename = "a")]
    pub arn: String,
    #[serde(rename = "r", default)]
    pub is_read_only: bool,
    /// Lists of places, with full names of volumes; one of each list has to cover what is asked for.
    #[serde(rename = "p", default)]
    pub places: Vec<Vec<String>>,
    #[serde(rename = "i")]
    pub issued_ms: u64,
    #[serde(rename = "e")]
    pub expires_ms: u64,
}

/// A temporary access key, as its holder gets it.
#[derive(Clone)]
pub struct Session {
    /// Public part.
    pub access_key: String,
    /// Secret part.
    pub secret_key: String,
    /// What goes with it in every request.
    pub token: String,
    /// When it ends, milliseconds since 1970.
    pub expires_ms: u64,
    /// The name for AWS's programs.
    pub arn: String,
}

/// Why a token opens nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionFault {
    /// Nobody here wrote it, or not for this access key, or whoever it was for is gone.
    Invalid,
    /// It is over.
    Expired,
}

/// What seals tokens.
pub(crate) struct SessionKeys {
    seal: LessSafeKey,
    derive: hmac::Key,
}

fn no_random() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "the system gives no random bytes")
}

impl SessionKeys {
    /// Made of the secret of a cluster.
    pub fn of(secret: &[u8; 32]) -> SessionKeys {
        let purpose = |purpose| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), purpose);
        let seal = UnboundKey::new(&AES_256_GCM, purpose(SEAL).as_ref()).expect("32 bytes are a key");
        let derive = hmac::Key::new(hmac::HMAC_SHA256, purpose(DERIVE).as_ref());
        SessionKeys { seal: LessSafeKey::new(seal), derive }
    }

    /// Of this process alone: what it seals, nobody reads who comes after it.
    pub fn random() -> Result<SessionKeys> {
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).map_err(|_| no_random())?;
        Ok(SessionKeys::of(&secret))
    }

    /// A key on these terms.
    pub fn issue(&self, terms: &Terms) -> Result<Session> {
        let mut random = [0; NONCE_LEN + ID_LEN];
        SystemRandom::new().fill(&mut random).map_err(|_| no_random())?;
        let (nonce, id) = random.split_first_chunk::<NONCE_LEN>().expect("it is longer");
        let id = id.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)]));
        let access_key: String = SESSION_KEY_START.chars().chain(id).collect();
        let mut sealed = serde_json::to_vec(terms).expect("plain data encodes");
        // Random nonces of 96 bits stay apart for 2^32 tokens of one secret, which is 13 a second for ten years.
        self.seal
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(*nonce),
                Aad::from(access_key.as_bytes()),
                &mut sealed,
            )
            .expect("a short token can be sealed");
        let token = format!("{TOKEN_START}{}", text(&[&nonce[..], &sealed].concat()));
        if token.len() > SESSION_TOKEN_LEN_MAX {
            return Err(StoreError::new(
                ErrorKind::Invalid,
                "names and places of this session are too long for a token",
            ));
        }
        let secret_key = self.secret_key(&access_key, &token);
        let Terms { expires_ms, ref arn, .. } = *terms;
        Ok(Session { access_key, secret_key, token, expires_ms, arn: arn.clone() })
    }

    /// What a token says of an access key, and its secret half. Its time is not looked at.
    pub fn open(&self, access_key: &str, token: &str) -> Option<(Terms, String)> {
        if token.len() > SESSION_TOKEN_LEN_MAX || !access_key.starts_with(SESSION_KEY_START) {
            return None;
        }
        let bytes = untext(token.strip_prefix(TOKEN_START)?)?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut opened = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let terms = self.seal.open_in_place(nonce, Aad::from(access_key.as_bytes()), &mut opened).ok()?;
        let terms = serde_json::from_slice(terms).ok()?;
        Some((terms, self.secret_key(access_key, token)))
    }

    fn secret_key(&self, access_key: &str, token: &str) -> String {
        let mut context = hmac::Context::with_key(&self.derive);
        context.update(access_key.as_bytes());
        context.update(b"\n");
        context.update(token.as_bytes());
        let tag = context.sign();
        // 32 bytes give 42 letters of six bits each.
        text(tag.as_ref()).chars().take(SECRET_LEN).collect()
    }
}

impl Terms {
    /// Whether it is over at this time.
    pub fn is_over(&self, now_ms: u64) -> bool {
        now_ms >= self.expires_ms
    }
}

/// What tells the secret of an access key from another one, and does not give it away.
pub(crate) fn secret_hash(secret_key: &str) -> String {
    text(&digest::digest(&digest::SHA256, secret_key.as_bytes()).as_ref()[..16])
}

/// Bytes as letters, six bits each.
fn text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 4 / 3 + 2);
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().enumerate().fold(0u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        for at in 0..=chunk.len() {
            out.push(char::from(SECRET_LETTERS[(bits >> (18 - 6 * at)) as usize & 63]));
        }
    }
    out
}

/// Bytes of letters; none if they are not as [`text`] writes them.
fn untext(letters: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(letters.len() * 3 / 4);
    for chunk in letters.as_bytes().chunks(4) {
        let mut bits = 0u32;
        for (at, letter) in chunk.iter().enumerate() {
            let value = match letter {
                b'A'..=b'Z' => letter - b'A',
                b'a'..=b'z' => letter - b'a' + 26,
                b'0'..=b'9' => letter - b'0' + 52,
                b'-' => 62,
                b'_' => 63,
                _ => return None,
            };
            bits |= u32::from(value) << (18 - 6 * at);
        }
        let bytes = bits.to_be_bytes();
        let len = chunk.len().checked_sub(1).filter(|len| *len > 0)?;
        out.extend_from_slice(&bytes[1..=len]);
        // Bits that mean nothing are zero, so that there is one text for each token.
        if bytes[1 + len..].iter().any(|byte| *byte != 0) {
            return None;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        let name = UserName::parse("acme/alice").unwrap();
        Terms {
            whose: Whose::User { name, created_ms: 7 },
            label: "trainer/run".into(),
            arn: "arn".into(),
            is_read_only: true,
            places: vec![vec!["acme_data/a".into()], Vec::new()],
            issued_ms: 1,
            expires_ms: 1_000,
        }
    }

    #[test]
    fn bytes_and_letters_are_the_same() {
        for len in 0..70u8 {
            let bytes: Vec<u8> = (0..len).map(|byte| byte.wrapping_mul(37)).collect();
            assert_eq!(untext(&text(&bytes)), Some(bytes));
        }
        for bad in ["A", "AAAAA", "AA=", "A ", "AB", "AAB", "ä"] {
            assert_eq!(untext(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_token_opens_for_its_own_key_and_its_own_cluster() {
        let keys = SessionKeys::of(&[1; 32]);
        let session = keys.issue(&terms()).unwrap();
        assert_eq!(session.secret_key.len(), SECRET_LEN);
        let (opened, secret_key) = keys.open(&session.access_key, &session.token).unwrap();
        assert_eq!((opened, &secret_key), (terms(), &session.secret_key));
        assert!(!session.token.contains(&session.secret_key));
        // Another node of the cluster, and another cluster.
        assert!(SessionKeys::of(&[1; 32]).open(&session.access_key, &session.token).is_some());
        assert!(SessionKeys::of(&[2; 32]).open(&session.access_key, &session.token).is_none());
        // Another key.
        let other = keys.issue(&terms()).unwrap();
        assert_ne!(other.access_key, session.access_key);
        assert!(keys.open(&other.access_key, &session.token).is_none());
        assert!(keys.open("AKIA", &session.token).is_none());
        // Any letter that was changed, and any that lacks.
        for at in 0..session.token.len() {
            let mut changed = session.token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(keys.open(&session.access_key, &changed).is_none(), "letter {at}");
            assert!(keys.open(&session.access_key, &session.token[..at]).is_none(), "cut at {at}");
        }
        assert!(keys.open(&session.access_key, &format!("{}A", session.token)).is_none());
        assert!(!terms().is_over(999) && terms().is_over(1_000));
    }

    #[test]
    fn a_token_that_no_request_could_carry_is_not_made() {
        let long = Terms { places: vec![vec!["p".repeat(7_000)]], ..terms() };
        let fault = SessionKeys::of(&[1; 32]).issue(&long).err().unwrap();
        assert_eq!(fault.kind, ErrorKind::Invalid);
    }
}
