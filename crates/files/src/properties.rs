//! Mode, owner, times and extended attributes. (D52)

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use stoker_store::{AttributesChange, Condition, EditRequest, ErrorKind, StoreError};

use crate::acl::{self, Acl};
use crate::error::{Errno, Result};
use crate::extras;
use crate::files::{Core, Files, patiently};
use crate::inode::{Attr, Inode, Kind, ROOT};

/// Longest value of an extended attribute.
const XATTR_LEN_MAX: usize = 16 << 10;

/// Longest name of one.
const XATTR_NAME_LEN_MAX: usize = 255;

/// What their names begin with. The rest of them are the kernel's, or nobody's.
const XATTR_SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Those of the kernel that are kept.
const ACLS: [&[u8]; 2] = [acl::ACCESS, acl::DEFAULT];

/// Refuses names that no extended attribute has here.
fn check_xattr_name(name: &[u8]) -> Result<()> {
    match XATTR_SPACES.iter().find_map(|space| name.strip_prefix(*space)) {
        Some(b"") => Err(Errno::EINVAL),
        Some(_) => Ok(()),
        None if ACLS.contains(&name) => Ok(()),
        None => Err(Errno::EOPNOTSUPP),
    }
}

/// A change of properties; what is `None` stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last change of the bytes, nanoseconds since 1970.
    pub mtime_ns: Option<i64>,
    /// Last access.
    pub atime_ns: Option<i64>,
}

/// Whether an extended attribute may or must be there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// Either.
    Any,
    /// It must not.
    Create,
    /// It must.
    Replace,
}

impl Files {
    /// Changes properties.
    pub async fn set(&self, ino: u64, change: Change) -> Result<Attr> {
        let inode = self.0.table.get(ino)?;
        inode.check_kept()?;
        let sets_times = change.mtime_ns.is_some() || change.atime_ns.is_some();
        let (is_dirty, changes) = {
            let mut meta = inode.meta.lock().unwrap();
            if sets_times {
                meta.set_times(change.mtime_ns, change.atime_ns);
            }
            let attr = &mut meta.attr;
            attr.mode = change.mode.map_or(attr.mode, |mode| mode & 0o7777);
            attr.uid = change.uid.unwrap_or(attr.uid);
            attr.gid = change.gid.unwrap_or(attr.gid);
            attr.ctime_ns = self.0.now_ns();
            let mode = attr.mode;
            if let Some(list) = Acl::of(&meta.attributes).filter(|_| change.mode.is_some()) {
                acl::set(&mut meta.attributes, acl::ACCESS, Some(&list.with_permissions(mode)));
            }
            meta.is_changed = true;
            meta.changes += 1;
            (inode.is_dirty(), meta.changes)
        };
        if is_dirty {
            // It travels with the bytes, or right behind them.
            return Ok(inode.attr());
        }
        let (attr, xattrs) = {
            let meta = inode.meta.lock().unwrap();
            let accessed = sets_times.then(|| extras::accessed_change(&meta.attributes));
            let list = Acl::of(&meta.attributes).filter(|_| change.mode.is_some());
            let list = list.map(|list| (acl::ACCESS.to_vec(), Some(list.encode())));
            (meta.attr, accessed.into_iter().chain(list).collect())
        };
        let wish = AttributesChange {
            mode: change.mode.map(|_| attr.mode | attr.kind.bits()),
            owner: (change.uid.is_some() || change.gid.is_some()).then_some((attr.uid, attr.gid)),
            mtime_ns: change.mtime_ns,
            xattrs,
            ..AttributesChange::default()
        };
        let _still = self.0.moves.read().await;
        let done = self.0.publish_change(&inode, wish).await;
        let mut meta = inode.meta.lock().unwrap();
        meta.is_changed &= meta.changes != changes;
        if done.is_err() {
            // They are those of the catalog again when it is asked next.
            meta.version = None;
        }
        done.map(|()| meta.attr)
    }

    /// An extended attribute.
    pub fn xattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr_name(name)?;
        let inode = self.0.table.get(ino)?;
        let meta = inode.meta.lock().unwrap();
        let found = meta.attributes.xattrs.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).ok_or(Errno::ENODATA)
    }

    /// The names of all extended attributes.
    pub fn xattrs(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        let inode = self.0.table.get(ino)?;
        let meta = inode.meta.lock().unwrap();
        let names = meta.attributes.xattrs.iter().map(|(name, _)| name);
        Ok(names.filter(|name| extras::is_shown(name)).cloned().collect())
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(&self, ino: u64, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        check_xattr_name(name)?;
        if ACLS.contains(&name) {
            return self.set_acl(ino, name, value).await;
        }
        if name.len() > XATTR_NAME_LEN_MAX {
            return Err(Errno::ERANGE);
        }
        let known = match self.xattr(ino, name) {
            Err(Errno::ENODATA) => false,
            found => found.map(|_| true)?,
        };
        match (mode, known) {
            (XattrMode::Create, true) => return Err(Errno::EEXIST),
            (XattrMode::Replace, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        if value.len() > XATTR_LEN_MAX {
            return Err(Errno::ENOSPC);
        }
        self.change_xattr(ino, name, Some(value), None).await
    }

    /// Sets a list of who may use something, or the one that what is made in a directory gets. The mode says the same.
    async fn set_acl(&self, ino: u64, name: &[u8], value: &[u8]) -> Result<()> {
        let list = Acl::decode(value)?;
        let inode = self.0.table.get(ino)?;
        let (kind, mode) = (inode.kind, inode.attr().mode);
        match kind {
            Kind::Symlink => return Err(Errno::EOPNOTSUPP),
            Kind::Directory => {}
            _ if name == acl::DEFAULT => return list.map_or(Ok(()), |_| Err(Errno::EACCES)),
            _ => {}
        }
        let changes_mode = name == acl::ACCESS;
        let mode = list.as_ref().filter(|_| changes_mode).map(|list| mode & !0o777 | list.permissions());
        let kept = list.filter(|list| !changes_mode || !list.is_plain()).map(|list| list.encode());
        self.change_xattr(ino, name, kept.as_deref(), mode).await
    }

    /// Who may use something, where that is more than its mode says.
    pub fn acl(&self, ino: u64) -> Option<Acl> {
        let inode = self.0.table.get(ino).ok()?;
        let meta = inode.meta.lock().unwrap();
        Acl::of(&meta.attributes)
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, ino: u64, name: &[u8]) -> Result<()> {
        self.xattr(ino, name)?;
        self.change_xattr(ino, name, None, None).await
    }

    async fn change_xattr(
        &self,
        ino: u64,
        name: &[u8],
        value: Option<&[u8]>,
        mode: Option<u32>,
    ) -> Result<()> {
        let inode = self.0.table.get(ino)?;
        inode.check_kept()?;
        let _still = self.0.moves.read().await;
        // Nothing is being published that carries the old ones, and nothing that was sent ahead with them is used.
        let mut content = self.0.still(&inode).await;
        content.stream = None;
        if inode.is_published() && !inode.is_unlinked() {
            let xattrs = vec![(name.to_vec(), value.map(<[u8]>::to_vec))];
            let mode = mode.map(|mode| mode | inode.kind.bits());
            let change = AttributesChange { mode, xattrs, ..AttributesChange::default() };
            self.0.publish_change(&inode, change).await.map_err(|errno| match errno {
                // The lake can hold no more properties of one file.
                Errno::ENAMETOOLONG | Errno::EINVAL => Errno::ENOSPC,
                errno => errno,
            })?;
        }
        let mut meta = inode.meta.lock().unwrap();
        meta.attributes.xattrs.retain(|(known, _)| known != name);
        meta.attributes.xattrs.extend(value.map(|value| (name.to_vec(), value.to_vec())));
        meta.attr.mode = mode.unwrap_or(meta.attr.mode);
        meta.attr.ctime_ns = self.0.now_ns();
        Ok(())
    }
}

impl Core {
    /// Changes properties of what has a name. The caller holds the right to use names.
    async fn publish_change(&self, inode: &Arc<Inode>, change: AttributesChange) -> Result<()> {
        if inode.is_unlinked() {
            return Ok(());
        }
        if inode.ino == ROOT {
            // The root of a volume has no key that could hold them.
            return Ok(());
        }
        let key = self.table.key(inode)?;
        patiently!(self, async {
            match self.store.set_attributes(&self.volume, &key, change.clone()).await {
                Err(fault) if fault.kind == ErrorKind::NotFound && inode.kind == Kind::Directory => {
                    self.make_marker(inode).await
                }
                set => set.map(|info| inode.meta.lock().unwrap().attributes = info.attributes),
            }
        })?;
        self.note_change(inode);
        Ok(())
    }

    /// A directory that only its contents implied gets properties of its own.
    pub async fn make_marker(&self, inode: &Inode) -> std::result::Result<(), StoreError> {
        let stale = |errno: Errno| StoreError::new(ErrorKind::Invalid, format!("{errno:?}"));
        let key = self.table.key(inode).map_err(stale)?;
        let attributes = inode.meta.lock().unwrap().properties();
        let request = EditRequest { attributes, condition: Condition::absent(), ..EditRequest::default() };
        self.store.edit_now(&self.volume, &key, request, Bytes::new()).await?;
        inode.is_published.store(true, Ordering::Relaxed);
        Ok(())
    }
}
