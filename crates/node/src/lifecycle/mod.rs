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
use stoker_schema::rows::FileRow;
use stoker_store::{ErrorKind, Expires, FileInfo, Result, StoreError, Subject};
use stoker_tiers::lifecycle::{Lifecycle, Object, Rule};

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

    /// Refuses to expire a file that is not due as it is by now: it may have other tags.
    pub(crate) fn check_expired(&self, rules: &Lifecycle, key: &[u8], file: &FileRow) -> Result<()> {
        let FileInfo { size, modified_ms, attributes, .. } = Core::info(key, file)?;
        let object = Object { key, size, modified_ms, tags: &attributes.tags };
        let now_ms = self.expiry.now_ms();
        match rules.expires(&object, self.calendar) {
            Some((at_ms, _)) if at_ms <= now_ms => Ok(()),
            _ => Err(not_due()),
        }
    }

    /// Refuses to remove a former version that is not due as it is by now. `since_ms`: when the one after it came, if there is one.
    pub(crate) fn check_former(
        &self,
        rule: &Rule,
        key: &[u8],
        file: &FileRow,
        since_ms: Option<u64>,
    ) -> Result<()> {
        let FileInfo { size, modified_ms, attributes, .. } = Core::info(key, file)?;
        let object = Object { key, size, modified_ms, tags: &attributes.tags };
        let is_marker = file.past.as_ref().is_some_and(|past| past.is_marker);
        let time = (self.calendar, self.expiry.now_ms());
        match since_ms.is_some_and(|since_ms| rule.removes(&object, is_marker, since_ms, time)) {
            true => Ok(()),
            false => Err(not_due()),
        }
    }
}

fn not_due() -> StoreError {
    StoreError::about(ErrorKind::Conflict, Subject::Condition, "no rule says by now that it goes")
}
