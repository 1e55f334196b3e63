//! The way to another node, and the form of what goes there: a version byte, then the fields in order.
//!
//! Which bytes travel how is the transport's business; what they say is known to [`remote`](crate::remote) and
//! to the standbys of the embedded engine.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{CatalogError, Result};
use crate::kv::{BoxFuture, COMMIT_BYTES_MAX};

/// Longest request and answer: the largest commit, and what goes with it.
pub const WIRE_BYTES_MAX: usize = COMMIT_BYTES_MAX + (7 << 20);

/// Version of the messages that is written and read.
const VERSION: u8 = 1;

/// A way to another node. A request is carried out at most once for each call.
pub trait Wire: Send + Sync + 'static {
    /// Sends a request and waits for the answer.
    ///
    /// Fails with `Unavailable`; the request may then have been carried out, or may be later.
    fn call(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>>>;
}

/// The bytes of a message.
pub(crate) fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    encode_large(message, 0)
}

/// The same for a message that takes about as many bytes, so that they need not move.
pub(crate) fn encode_large<M: Serialize>(message: &M, bytes: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(bytes.max(16));
    head.push(VERSION);
    postcard::to_extend(message, head).expect("plain data encodes")
}

/// Reads a message; bytes that are none are `Invalid`.
pub(crate) fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M> {
    if bytes.len() > WIRE_BYTES_MAX {
        return Err(CatalogError::invalid(format!(
            "a message of {} bytes; the limit is {WIRE_BYTES_MAX}",
            bytes.len()
        )));
    }
    let body = match bytes.split_first() {
        Some((&VERSION, body)) => body,
        Some((version, _)) => {
            return Err(CatalogError::invalid(format!(
                "a message of version {version}, and this program speaks {VERSION}; update the older node"
            )));
        }
        None => return Err(CatalogError::invalid("an empty message")),
    };
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(CatalogError::invalid(format!("{} bytes behind a message", rest.len()))),
        Err(fault) => Err(CatalogError::invalid(format!("a message cannot be read: {fault}"))),
    }
}

/// Reads a list of at most `MAX` elements: an element takes more memory than bytes, so that the length of the
/// message alone does not limit it.
pub(crate) fn limited<'de, D, T, const MAX: usize>(bytes: D) -> std::result::Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Limited<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Limited<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Vec<T>, A::Error> {
            let mut elements = Vec::new();
            while let Some(element) = list.next_element()? {
                if elements.len() == MAX {
                    return Err(A::Error::custom("too many elements"));
                }
                elements.push(element);
            }
            Ok(elements)
        }
    }

    bytes.deserialize_seq(Limited::<T, MAX>(PhantomData))
}

/// Has a list of bytes copied whole and not one by one, in the same form.
pub(crate) mod whole {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Blob;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        Blob::deserialize(from).map(|Blob(bytes)| bytes)
    }
}

/// Bytes that are copied whole and not one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob(pub Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Blob, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> std::result::Result<Blob, E> {
                Ok(Blob(bytes.to_vec()))
            }
        }

        from.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Check, Write};

    #[test]
    fn bytes_that_are_copied_whole_have_the_form_of_a_list() {
        for len in [0, 1, 127, 128, 300, 70_000] {
            let (key, value) = (vec![200u8; len], vec![7u8; len]);
            let write = encode(&Write::Put(key.clone(), value.clone()));
            assert_eq!(write, encode(&(0u32, key.clone(), value.clone())));
            assert_eq!(decode::<Write>(&write).unwrap(), Write::Put(key.clone(), value));
            let check = encode(&Check::AtMost { start: key.clone(), end: vec![1], max: 9 });
            assert_eq!(check, encode(&(4u32, key, vec![1u8], 9usize)));
        }
    }
}
