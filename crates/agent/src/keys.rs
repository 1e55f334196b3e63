//! The first access key and the token of a node: made once, kept in its directory.

use std::path::Path;

use stoker_store::{Access, AccessKey, Store};

use super::place::{self, Place, read_small};
use super::refused;
use crate::clock;
use crate::failure::Failure;

/// File with the access key, in the form that `AWS_SHARED_CREDENTIALS_FILE` expects.
pub const CREDENTIALS: &str = "credentials";
/// File with the token.
const TOKEN: &str = "token";
/// File with the token of those who look and change nothing.
pub const VIEW_TOKEN: &str = "view-token";

/// Letters that nobody has to quote, five bits each.
const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// A token shorter than this can be guessed.
const TOKEN_LEN_MIN: usize = 16;

/// An access key and its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Its id.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
}

/// Random letters.
fn random_text(len: usize) -> Result<String, Failure> {
    let mut bytes = vec![0; len];
    getrandom::fill(&mut bytes).map_err(|e| Failure::new(format!("the kernel gave no random bytes: {e}")))?;
    Ok(bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect())
}

impl Credentials {
    /// A pair that nobody has.
    pub fn random() -> Result<Credentials, Failure> {
        Ok(Credentials { access_key: format!("STKR{}", random_text(16)?), secret_key: random_text(40)? })
    }

    fn to_text(&self) -> String {
        let Credentials { access_key, secret_key } = self;
        format!("[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n")
    }

    fn of_text(text: &str) -> Option<Credentials> {
        let value = |name: &str| {
            let (_, value) = text
                .lines()
                .filter_map(|line| line.split_once('='))
                .find(|(other, _)| other.trim() == name)?;
            Some(value.trim().to_string()).filter(|value| !value.is_empty())
        };
        let (access_key, secret_key) = (value("aws_access_key_id")?, value("aws_secret_access_key")?);
        Some(Credentials { access_key, secret_key })
    }
}

/// The key in the node's directory, known to its catalog. One that is missing there is made; one that a person removed
/// from the catalog stays removed, and another one is made if `always` asks for one that works.
pub async fn credentials(
    place: &Place,
    store: &dyn Store,
    always: bool,
) -> Result<Option<Credentials>, Failure> {
    let kept = place.read(CREDENTIALS)?.as_deref().and_then(Credentials::of_text);
    if let Some(kept) = &kept
        && let Some(known) = store.access_key(&kept.access_key).await.map_err(refused)?
    {
        let current = Credentials { access_key: known.access_key, secret_key: known.secret_key };
        if current != *kept {
            place.write(CREDENTIALS, &current.to_text())?;
        }
        return Ok(Some(current));
    }
    let is_fresh = store.access_keys().await.map_err(refused)?.is_empty();
    if !always && !is_fresh {
        return Ok(None);
    }
    // A catalog without any key was made anew; the key of the old one serves on.
    let credentials = match kept {
        Some(kept) if is_fresh => kept,
        _ => Credentials::random()?,
    };
    // The file first: a key that only the catalog knows could not be used by anybody.
    place.write(CREDENTIALS, &credentials.to_text())?;
    let (uid, gid) = place.owner()?;
    let key = AccessKey {
        access_key: credentials.access_key.clone(),
        secret_key: credentials.secret_key.clone(),
        access: Access { uid, gid, ..Access::default() },
        created_ms: clock::unix_ms(),
    };
    store.access_key_put(key).await.map_err(refused)?;
    Ok(Some(credentials))
}

/// Writes a new key into the file of a node's directory, if the old one was there.
pub fn replace_credentials(dir: &Path, old: &str, new: &AccessKey) -> Result<(), Failure> {
    let path = dir.join(CREDENTIALS);
    let kept = read_small(&path)?.as_deref().and_then(Credentials::of_text);
    if kept.is_none_or(|kept| kept.access_key != old) {
        return Ok(());
    }
    let new = Credentials { access_key: new.access_key.clone(), secret_key: new.secret_key.clone() };
    place::write_small(dir, CREDENTIALS, &new.to_text())
}

/// The token in the node's directory, made if it is missing; or the one in a file that a person chose.
pub fn token(place: &Place, file: Option<&Path>) -> Result<String, Failure> {
    word(place, TOKEN, file)
}

/// The same for those who look and change nothing.
pub fn view_token(place: &Place, file: Option<&Path>) -> Result<String, Failure> {
    word(place, VIEW_TOKEN, file)
}

fn word(place: &Place, name: &str, file: Option<&Path>) -> Result<String, Failure> {
    let path = file.map_or_else(|| place.dir().join(name), Path::to_path_buf);
    let token = match read_small(&path)? {
        Some(text) => text.trim().to_string(),
        None if file.is_some() => {
            return Err(Failure::new(format!("the token file {} is not there", path.display()))
                .hint("write a long random word into it, readable only by you"));
        }
        None => {
            let token = random_text(40)?.to_ascii_lowercase();
            place.write(name, &token)?;
            token
        }
    };
    if token.len() < TOKEN_LEN_MIN || token.contains(|letter: char| !letter.is_ascii_graphic()) {
        let cause =
            format!("{} holds no token: one word of at least {TOKEN_LEN_MIN} characters", path.display());
        return Err(Failure::new(cause).hint("write a long random word into it, or remove it for a new one"));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_as_they_are_written() {
        let made = Credentials::random().unwrap();
        assert_eq!((made.access_key.len(), made.secret_key.len()), (20, 40));
        assert!(Credentials::of_text(&made.to_text()) == Some(made));
        for text in ["", "aws_access_key_id = A", "aws_access_key_id = A\naws_secret_access_key =\n"] {
            assert!(Credentials::of_text(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_token_is_made_once_and_must_be_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::take(dir.path()).unwrap();
        let made = token(&place, None).unwrap();
        assert_eq!(token(&place, None).unwrap(), made);
        let view = view_token(&place, None).unwrap();
        assert_ne!(view, made);
        assert_eq!(view_token(&place, None).unwrap(), view);
        let own = dir.path().join("own");
        assert!(token(&place, Some(&own)).is_err(), "a file that a person chose is not made");
        for (text, is_good) in [
            ("", false),
            ("short", false),
            ("two words that are long", false),
            ("long-enough-to-be-one\n", true),
        ] {
            std::fs::write(&own, text).unwrap();
            assert_eq!(token(&place, Some(&own)).is_ok(), is_good, "{text}");
        }
    }
}
