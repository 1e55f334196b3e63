//! Whose word lake metadata is. Anybody who can write to a bucket can write metadata, so what we say of an object there carries a
//! keyed sum over its lake key, its size and everything that we say; names of ours without a sound one are nobody's word and are
//! taken off before anybody looks at them. (D79)
//!
//! The sum does not cover which bucket or volume it is: a copy of the bucket, or a volume that is made again over the same lake,
//! has its modes and owners still. The keys follow from those that the nodes of a cluster share, so that every node can check what
//! another one wrote, and so can a salvage.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac::{self, HMAC_SHA256};
use stoker_lake::{Attributes, ObjectInfo};
use stoker_store::is_meta_reserved;

use crate::attributes::{MAC as NAME, hex};
use crate::lake_keys;

/// Keeps this use of the cluster's keys apart from others.
const PURPOSE: &[u8] = b"stoker lake metadata 1";

/// Bytes of a sum that are kept: metadata is short.
const LEN: usize = 16;

/// Signs what we say of lake objects, and checks it.
pub struct Signer {
    /// The newest first.
    keys: Vec<hmac::Key>,
}

impl Signer {
    /// With the secrets of a cluster, the newest first.
    pub fn new(secrets: &[[u8; 32]]) -> Signer {
        let derive = |secret: &[u8; 32]| {
            let key = hmac::sign(&hmac::Key::new(HMAC_SHA256, secret), PURPOSE);
            hmac::Key::new(HMAC_SHA256, key.as_ref())
        };
        Signer { keys: secrets.iter().map(derive).collect() }
    }

    /// Adds the sum to what an object of that key and size will say.
    pub fn sign(&self, key: &[u8], size: u64, attributes: &mut Attributes) {
        attributes.meta.retain(|(name, _)| name != NAME);
        let sum = self.keys.first().and_then(|secret| sum(secret, key, size, attributes));
        attributes.meta.push((NAME.to_owned(), hex(&sum.unwrap_or_default())));
        attributes.meta.sort();
    }

    /// Whether this cluster wrote what an object says of itself.
    pub fn is_ours(&self, object: &ObjectInfo) -> bool {
        let Some(attributes) = &object.attributes else { return false };
        let mut told = attributes.meta.iter().filter(|(name, _)| name == NAME).map(|(_, value)| value);
        let (Some(told), None) = (told.next(), told.next()) else { return false };
        self.keys.iter().filter_map(|secret| sum(secret, &object.key, object.size, attributes)).any(|sum| {
            let sum = hex(&sum);
            verify_slices_are_equal(sum.as_bytes(), told.as_bytes()).is_ok()
        })
    }

    /// Takes off what an object says in our name, unless this cluster wrote it; true if something went.
    pub fn strip(&self, object: &mut ObjectInfo) -> bool {
        if self.is_ours(object) {
            return false;
        }
        let Some(attributes) = &mut object.attributes else { return false };
        let before = attributes.meta.len();
        attributes.meta.retain(|(name, _)| !is_meta_reserved(name));
        attributes.meta.len() != before
    }
}

/// None if a name is there twice: nobody could say which of the values counts.
fn sum(secret: &hmac::Key, key: &[u8], size: u64, attributes: &Attributes) -> Option<[u8; LEN]> {
    let own = attributes.meta.iter().filter(|(name, _)| is_meta_reserved(name) && name != NAME);
    let mut own: Vec<&(String, String)> = own.collect();
    own.sort();
    if own.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return None;
    }
    // How long an object of spilled chunks will be is not known when it is begun.
    let size = if lake_keys::parse_spill(key).is_some() { 0 } else { size };
    let mut context = hmac::Context::with_key(secret);
    let mut add = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(bytes);
    };
    add(key);
    add(&size.to_be_bytes());
    for (name, value) in own {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    let mut sum = [0; LEN];
    sum.copy_from_slice(&context.sign().as_ref()[..LEN]);
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(meta: &[(&str, &str)]) -> ObjectInfo {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let attributes = Attributes { meta: meta.iter().map(pair).collect(), ..Attributes::default() };
        ObjectInfo {
            key: b"a/b".to_vec(),
            size: 7,
            etag: "e".into(),
            modified_ms: 1,
            attributes: Some(attributes),
            crc64: None,
        }
    }

    fn signed(signer: &Signer, meta: &[(&str, &str)]) -> ObjectInfo {
        let mut object = object(meta);
        signer.sign(b"a/b", 7, object.attributes.as_mut().unwrap());
        object
    }

    const META: [(&str, &str); 3] = [("colour", "red"), ("stoker-mode", "644"), ("stoker-version", "v")];

    #[test]
    fn what_we_wrote_is_known_after_a_change_of_keys_and_by_nobody_else() {
        let (old, other) = (Signer::new(&[[1; 32]]), Signer::new(&[[2; 32]]));
        let mut object = signed(&old, &META);
        assert!(old.is_ours(&object) && Signer::new(&[[2; 32], [1; 32]]).is_ours(&object));
        assert!(!other.is_ours(&object) && !Signer::new(&[]).is_ours(&object));
        assert!(other.strip(&mut object));
        assert_eq!(object.attributes.unwrap().meta, [("colour".to_owned(), "red".to_owned())]);
    }

    #[test]
    fn nothing_of_it_can_be_changed_moved_or_doubled() {
        let signer = Signer::new(&[[1; 32]]);
        let check = |what: &str, change: &dyn Fn(&mut ObjectInfo)| {
            let mut object = signed(&signer, &META);
            change(&mut object);
            assert!(!signer.is_ours(&object), "{what}");
            assert!(signer.strip(&mut object), "{what}");
        };
        let meta = |object: &mut ObjectInfo, name: &str, value: &str| {
            object.attributes.as_mut().unwrap().meta.insert(0, (name.to_owned(), value.to_owned()));
        };
        check("key", &|object| object.key = b"a/c".to_vec());
        check("size", &|object| object.size = 8);
        check("value", &|object| object.attributes.as_mut().unwrap().meta[2].1 = "4755".into());
        check("more", &|object| meta(object, "stoker-owner", "0:0"));
        check("double", &|object| meta(object, "stoker-mode", "4755"));
        check("same twice", &|object| meta(object, "stoker-mode", "644"));
        check("two sums", &|object| meta(object, NAME, "00"));
        // What users may say is theirs to change.
        let mut object = signed(&signer, &META);
        meta(&mut object, "colour", "blue");
        meta(&mut object, "stoker-seal", "s");
        assert!(signer.is_ours(&object));
    }

    #[test]
    fn who_has_no_key_signs_nothing() {
        let none = Signer::new(&[]);
        let mut object = signed(&none, &META);
        assert!(!none.is_ours(&object) && none.strip(&mut object));
    }
}
