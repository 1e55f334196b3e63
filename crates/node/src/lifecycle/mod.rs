//! Lifecycle rules of volumes: how they are kept, when a file expires by them, and who carries them out. (D241, D242)
//!
//! ```text
//!   rules (setting of the volume) --> Volume --> when a file expires, beside the file
//!                                       |
//!   one node leads --> pass: versions in pages --> Scan (stoker-tiers, pure) --> deletes, as of clients
//!                                       `--------> uploads in pages -----------> aborts
//! ```
//!
//! - [`setting`]: rules as pieces of a document, since a row has room for fewer than S3 allows; changes go through the row of the volume, so
//!   that every node reads them anew.
//! - [`pass`]: goes through one volume. What is deleted is the version that was decided about, or nothing; locks refuse as they refuse anybody.
//! - [`leader`]: one node at a time does that (D235), and only while a pass is due.
//!
//! Time is that of expiries, which does not jump: a clock that is days ahead deletes nothing. (D86)

mod leader;
mod pass;
mod setting;

use stoker_format::past_parts;
use stoker_store::{Expires, FileInfo};
use stoker_tiers::lifecycle::Object;

use crate::core::Core;
use crate::volumes::Volume;

pub(crate) use leader::run;
pub(crate) use setting::known;

impl Core {
    /// When a file expires by the rules of its volume; a former version says nothing of it, as in S3.
    pub fn expires(&self, volume: &Volume, path: &[u8], info: &FileInfo) -> Option<Expires> {
        let rules = volume.lifecycle.as_ref().filter(|_| past_parts(path).is_none())?;
        let FileInfo { size, modified_ms, .. } = *info;
        let object = Object { key: path, size, modified_ms, tags: &info.attributes.tags };
        let (at_ms, rule) = rules.expires(&object, self.calendar)?;
        Some(Expires { at_ms, rule: rule.id.clone() })
    }
}
