//! What the store answers, as somebody in a tenant is to hear it: with the names that volumes have there.

use bytes::Bytes;
use stoker_format::VersionId;
use stoker_store::{
    AccessKey, Checksum, Counter, DirectoryInfo, Entry, Explanation, File, FileInfo, ListPage, LockHeld,
    LockOwner, NodeStatus, PartsPage, Receipt, Report, SetInfo, SetStatus, SetsPage, StoreError, UploadInfo,
    UploadsPage, VersionsPage, VolumeInfo, Writer,
};

/// An answer in which full names of volumes may be.
pub trait Told {
    /// Puts the own name in the place of the full one.
    fn rename(&mut self, _full: &str, _own: &str) {}
}

macro_rules! nameless {
    ($($kind:ty,)*) => { $(impl Told for $kind {})* };
}

nameless! {
    (), bool, u64, Vec<u8>, Bytes, FileInfo, ListPage, Entry, DirectoryInfo, UploadInfo, UploadsPage, PartsPage,
    Box<dyn File>, Box<dyn Writer>, AccessKey, Counter, NodeStatus, Report, (VersionId, Vec<Checksum>),
    Option<Vec<u8>>, Option<LockHeld>, Vec<LockOwner>, VersionsPage,
}

impl<T> Told for Vec<Result<T, StoreError>> {
    fn rename(&mut self, full: &str, own: &str) {
        for fault in self.iter_mut().filter_map(|one| one.as_mut().err()) {
            fault.rename(full, own);
        }
    }
}

impl Told for VolumeInfo {
    fn rename(&mut self, full: &str, own: &str) {
        own.clone_into(&mut self.name);
        // Where it drains, and whose it is there, is the operator's business.
        if full != own {
            self.lake = None;
        }
    }
}

impl Told for Receipt {
    fn rename(&mut self, full: &str, own: &str) {
        own.clone_into(&mut self.volume);
        if full != own {
            self.lake = None;
        }
    }
}

impl Told for SetInfo {
    fn rename(&mut self, _full: &str, own: &str) {
        own.clone_into(&mut self.volume);
    }
}

impl Told for Option<SetInfo> {
    fn rename(&mut self, full: &str, own: &str) {
        if let Some(info) = self {
            info.rename(full, own);
        }
    }
}

impl Told for SetStatus {
    fn rename(&mut self, full: &str, own: &str) {
        self.info.rename(full, own);
    }
}

impl Told for SetsPage {
    fn rename(&mut self, full: &str, own: &str) {
        self.sets.iter_mut().for_each(|info| info.rename(full, own));
    }
}

impl Told for Explanation {
    fn rename(&mut self, full: &str, own: &str) {
        self.receipt.rename(full, own);
        self.words.iter_mut().for_each(|words| *words = words.replace(full, own));
        // Drives, and who else has what on them, are not the tenant's.
        self.holders.clear();
    }
}

impl Told for StoreError {
    fn rename(&mut self, full: &str, own: &str) {
        self.message = self.message.replace(full, own);
    }
}
