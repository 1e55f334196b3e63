//! Keys with a write that nobody saw the end of. Such a write may take effect after whatever was sent later, so whoever owns
//! the key asks before it relies on what it knows to be there. (D55)

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{LakeErrorKind, Result};
use crate::types::BoxFuture;

/// Keys kept in mind. Owners ask after each write, so there are hardly more than requests under way; beyond this some key
/// of an owner that never asks is forgotten.
const KEYS_MAX: usize = 100_000;

/// The keys.
#[derive(Default)]
pub(super) struct Doubts(Mutex<BTreeSet<Vec<u8>>>);

/// A write that was begun. Dropped before its end is known, it leaves a doubt.
struct Begun<'a> {
    doubts: &'a Doubts,
    key: &'a [u8],
    has_ended: bool,
}

impl Doubts {
    /// A write that leaves a doubt if it is given up, or ends without an answer.
    pub fn watch<'a, T: Send + 'a>(
        &'a self,
        key: &'a [u8],
        write: BoxFuture<'a, Result<T>>,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move {
            let mut begun = Begun { doubts: self, key, has_ended: false };
            let answer = write.await;
            begun.has_ended = !matches!(&answer, Err(error) if error.kind == LakeErrorKind::Unavailable);
            answer
        })
    }

    /// Whether there is a doubt about a key.
    pub fn has(&self, key: &[u8]) -> bool {
        self.keys().contains(key)
    }

    /// The doubt is somebody else's from now on.
    pub fn end(&self, key: &[u8]) {
        self.keys().remove(key);
    }

    fn keys(&self) -> MutexGuard<'_, BTreeSet<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut keys = self.doubts.keys();
        if keys.len() >= KEYS_MAX {
            keys.pop_first();
        }
        keys.insert(self.key.to_vec());
    }
}
