//! What clients know: for every key what was acknowledged, and what may or may not have happened since.

use std::collections::BTreeMap;
use std::sync::Arc;

/// What a key leads to: bytes, or nothing.
pub type Content = Option<Arc<Vec<u8>>>;

/// A short name of a content, for people.
pub fn words(content: &Content) -> String {
    match content {
        None => "nothing".into(),
        Some(bytes) => format!("{} bytes {:08x}", bytes.len(), stoker_format::crc32c(bytes)),
    }
}

#[derive(Default)]
struct Known {
    /// Contents that were certain one after the other, at first none; the last one is so now.
    certain: Vec<Content>,
    /// Contents that somebody wants the key to have, or wanted without learning the outcome.
    maybe: Vec<Content>,
    is_busy: bool,
}

/// All keys.
#[derive(Default)]
pub struct Model(BTreeMap<String, Known>);

/// Where a read began.
pub struct ReadMark {
    certain: usize,
    doubts: Vec<Content>,
}

impl Model {
    fn known(&mut self, key: &str) -> &mut Known {
        self.0.entry(key.to_owned()).or_insert_with(|| Known { certain: vec![None], ..Known::default() })
    }

    /// Keys that were ever written.
    pub fn keys(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Takes a key for a change; false if another change of it is under way. Changes of one key do not overlap, so that
    /// the order of what was acknowledged is known.
    pub fn take(&mut self, key: &str) -> bool {
        !std::mem::replace(&mut self.known(key).is_busy, true)
    }

    /// Gives it back.
    pub fn give(&mut self, key: &str) {
        self.known(key).is_busy = false;
    }

    /// What a key may lead to now.
    pub fn possible(&mut self, key: &str) -> Vec<Content> {
        let known = self.known(key);
        let mut all = known.maybe.clone();
        all.extend(known.certain.last().cloned());
        all.dedup();
        all
    }

    /// Somebody begins to change a key.
    pub fn begin(&mut self, key: &str, contents: &[Content]) {
        let known = self.known(key);
        known.maybe.extend_from_slice(contents);
    }

    /// The change was acknowledged: the key had this content. What was in doubt before stays so, since it may still come.
    pub fn acknowledge(&mut self, key: &str, began: &[Content], content: Content) {
        let known = self.known(key);
        for one in began {
            let at = known.maybe.iter().rposition(|maybe| maybe == one);
            at.map(|at| known.maybe.remove(at));
        }
        known.certain.push(content);
    }

    /// The change certainly did not happen.
    pub fn refuse(&mut self, key: &str, began: &[Content]) {
        let known = self.known(key);
        for one in began {
            let at = known.maybe.iter().rposition(|maybe| maybe == one);
            at.map(|at| known.maybe.remove(at));
        }
    }

    /// A read begins.
    pub fn read_begins(&mut self, key: &str) -> ReadMark {
        let known = self.known(key);
        ReadMark { certain: known.certain.len() - 1, doubts: known.maybe.clone() }
    }

    /// Whether a read that ends now may have seen this.
    pub fn may_be(&mut self, key: &str, mark: &ReadMark, seen: &Content) -> bool {
        let known = self.known(key);
        known.certain[mark.certain..].contains(seen)
            || mark.doubts.contains(seen)
            || known.maybe.contains(seen)
    }

    /// Nothing is under way any more: what was seen is what is.
    pub fn settle(&mut self, key: &str, content: Content) {
        let known = self.known(key);
        known.maybe.clear();
        known.certain.push(content);
    }
}
