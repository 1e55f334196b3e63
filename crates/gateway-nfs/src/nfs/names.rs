//! Looking names up, making, moving and removing them.

use bytes::Bytes;
use stoker_files::{Attr, Change as Properties, Errno, Kind, Make, RenameFlag};

use super::attr::{self, Wish};
use super::files::apply;
use super::{Asked, At, Outcome, Status, read_entry, read_handle};
use crate::access::EXECUTE;
use crate::handle::Handle;
use crate::xdr::{self, Garbage, Reader};

const TARGET_LEN_MAX: usize = 64 << 10;

const GUARDED: u32 = 1;
const EXCLUSIVE: u32 = 2;

/// How a file is to be made.
enum How {
    /// It may be there.
    Unchecked(Wish),
    /// It must not be there.
    Guarded(Wish),
    /// It must not be there, unless this client made it with this number and did not hear of it.
    Exclusive(u64),
}

impl Asked<'_> {
    pub(super) async fn lookup(&mut self, mut input: Reader) -> xdr::Result<()> {
        let (handle, name) = read_entry(&mut input)?;
        let at = match self.at(&handle).await {
            Ok(at) => at,
            Err(status) => {
                self.status(status);
                self.out.bool(false);
                return Ok(());
            }
        };
        let found = look(&at, &name).await;
        let directory = at.volume.files.peek(at.ino).ok();
        match found {
            Ok(found) => {
                self.status(Status::Ok);
                self.out.opaque(&handle_of(&at, &found, &name).encode(&at.volume.handle_key));
                attr::write_after(&mut self.out, &at.volume, Some(&found));
            }
            Err(status) => self.status(status),
        }
        attr::write_after(&mut self.out, &at.volume, directory.as_ref());
        Ok(())
    }

    pub(super) async fn create(&mut self, mut input: Reader) -> xdr::Result<()> {
        let (handle, name) = read_entry(&mut input)?;
        let how = match input.u32()? {
            0 => How::Unchecked(Wish::read(&mut input)?),
            GUARDED => How::Guarded(Wish::read(&mut input)?),
            EXCLUSIVE => How::Exclusive(input.u64()?),
            _ => return Err(Garbage),
        };
        self.make(&handle, &name, async |at: &At, directory: &Attr| create(at, directory, &name, how).await)
            .await;
        Ok(())
    }

    pub(super) async fn mkdir(&mut self, mut input: Reader) -> xdr::Result<()> {
        let (handle, name) = read_entry(&mut input)?;
        let wish = Wish::read(&mut input)?;
        self.make(&handle, &name, async |at: &At, directory: &Attr| {
            let make = make(at, directory, Kind::Directory, wish.mode.unwrap_or(0o755));
            let made = at.volume.files.make(at.ino, &name, Kind::Directory, make, b"").await?;
            at.volume.note(made.ino);
            Ok(made)
        })
        .await;
        Ok(())
    }

    pub(super) async fn symlink(&mut self, mut input: Reader) -> xdr::Result<()> {
        let (handle, name) = read_entry(&mut input)?;
        Wish::read(&mut input)?;
        let target = input.opaque(TARGET_LEN_MAX)?;
        self.make(&handle, &name, async |at: &At, directory: &Attr| {
            let make = make(at, directory, Kind::Symlink, 0o777);
            let made = at.volume.files.make(at.ino, &name, Kind::Symlink, make, &target).await?;
            at.volume.note(made.ino);
            Ok(made)
        })
        .await;
        Ok(())
    }

    /// Makes a pipe, a socket, or, if root asks, a device.
    pub(super) async fn mknod(&mut self, mut input: Reader) -> xdr::Result<()> {
        let (handle, name) = read_entry(&mut input)?;
        let kind = match input.u32()? {
            3 => Kind::BlockDevice,
            4 => Kind::CharDevice,
            6 => Kind::Socket,
            7 => Kind::Fifo,
            _ => {
                self.status(Status::BadType);
                attr::write_no_change(&mut self.out);
                return Ok(());
            }
        };
        let wish = Wish::read(&mut input)?;
        let rdev = if kind.is_device() { attr::device_of(input.u32()?, input.u32()?) } else { 0 };
        self.make(&handle, &name, async |at: &At, directory: &Attr| {
            if kind.is_device() && !at.who.is_root() {
                return Err(Status::Permission);
            }
            let make = Make { rdev, ..make(at, directory, kind, wish.mode.unwrap_or(0o644)) };
            let made = at.volume.files.make(at.ino, &name, kind, make, b"").await?;
            at.volume.note(made.ino);
            Ok(made)
        })
        .await;
        Ok(())
    }

    /// Makes something in a directory, and answers with its handle.
    async fn make(
        &mut self,
        handle: &Bytes,
        name: &Bytes,
        make: impl AsyncFnOnce(&At, &Attr) -> Outcome<Attr>,
    ) {
        let at = match self.at_change(handle).await {
            Ok(at) => at,
            Err(status) => {
                self.status(status);
                attr::write_no_change(&mut self.out);
                return;
            }
        };
        let change = at.volume.change(at.ino);
        let made = async {
            let directory = check_directory(&at)?;
            check_plain(name)?;
            make(&at, &directory).await
        };
        match made.await {
            Ok(made) => {
                self.status(Status::Ok);
                self.out.bool(true);
                self.out.opaque(&handle_of(&at, &made, name).encode(&at.volume.handle_key));
                attr::write_after(&mut self.out, &at.volume, Some(&made));
            }
            Err(status) => self.status(status),
        }
        attr::write_change(&mut self.out, &at.volume, &change);
    }

    pub(super) async fn remove(&mut self, mut input: Reader) -> xdr::Result<()> {
        let (handle, name) = read_entry(&mut input)?;
        self.take_away(&handle, &name, async |at: &At| Ok(at.volume.files.unlink(at.ino, &name).await?))
            .await;
        Ok(())
    }

    pub(super) async fn rmdir(&mut self, mut input: Reader) -> xdr::Result<()> {
        let (handle, name) = read_entry(&mut input)?;
        self.take_away(&handle, &name, async |at: &At| Ok(at.volume.files.rmdir(at.ino, &name).await?)).await;
        Ok(())
    }

    async fn take_away(
        &mut self,
        handle: &Bytes,
        name: &Bytes,
        remove: impl AsyncFnOnce(&At) -> Outcome<()>,
    ) {
        let at = match self.at_change(handle).await {
            Ok(at) => at,
            Err(status) => {
                self.status(status);
                attr::write_no_change(&mut self.out);
                return;
            }
        };
        let change = at.volume.change(at.ino);
        let done = async {
            let directory = check_directory(&at)?;
            check_plain(name)?;
            // Which one it is must be known before: it has no name after this.
            let found = at.volume.files.lookup(at.ino, name).await?;
            at.volume.note(found.ino);
            if !at.who.may_remove(&directory, &found) {
                return Err(Status::Permission);
            }
            remove(&at).await?;
            // A file that has other names goes on.
            if at.volume.files.peek(found.ino).is_ok_and(|left| left.nlink == 0) {
                at.volume.let_go(found.ino).await;
            }
            Ok(())
        };
        let done = done.await;
        self.status(done.err().unwrap_or(Status::Ok));
        attr::write_change(&mut self.out, &at.volume, &change);
    }

    pub(super) async fn rename(&mut self, mut input: Reader) -> xdr::Result<()> {
        let (from_handle, from_name) = read_entry(&mut input)?;
        let (to_handle, to_name) = read_entry(&mut input)?;
        let ends =
            async { Outcome::Ok((self.at_change(&from_handle).await?, self.at_change(&to_handle).await?)) };
        let (from, to) = match ends.await {
            Ok(ends) => ends,
            Err(status) => {
                self.status(status);
                attr::write_no_change(&mut self.out);
                attr::write_no_change(&mut self.out);
                return Ok(());
            }
        };
        let from_change = from.volume.change(from.ino);
        // Within one directory there is one change.
        let to_change =
            (from.ino != to.ino || from.volume.id != to.volume.id).then(|| to.volume.change(to.ino));
        let done = rename(&from, &from_name, &to, &to_name).await;
        self.status(done.err().unwrap_or(Status::Ok));
        attr::write_change(&mut self.out, &from.volume, &from_change);
        attr::write_change(&mut self.out, &to.volume, to_change.as_ref().unwrap_or(&from_change));
        Ok(())
    }

    /// Gives a file one more name.
    pub(super) async fn link(&mut self, mut input: Reader) -> xdr::Result<()> {
        let file_handle = read_handle(&mut input)?;
        let (handle, name) = read_entry(&mut input)?;
        let ends = async { Outcome::Ok((self.at(&file_handle).await?, self.at_change(&handle).await?)) };
        let (file, at) = match ends.await {
            Ok(ends) => ends,
            Err(status) => {
                self.status(status);
                self.out.bool(false);
                attr::write_no_change(&mut self.out);
                return Ok(());
            }
        };
        let change = at.volume.change(at.ino);
        let done = async {
            if file.volume.id != at.volume.id {
                return Err(Status::OtherVolume);
            }
            check_directory(&at)?;
            check_plain(&name)?;
            let linked = at.volume.files.link(file.ino, at.ino, &name).await?;
            at.volume.note(linked.ino);
            Ok(())
        };
        let done = done.await;
        self.status(done.err().unwrap_or(Status::Ok));
        attr::write_after(&mut self.out, &file.volume, file.volume.files.peek(file.ino).ok().as_ref());
        attr::write_change(&mut self.out, &at.volume, &change);
        Ok(())
    }
}

/// The handle of something that was found in a directory.
pub(super) fn handle_of(at: &At, found: &Attr, name: &[u8]) -> Handle {
    match found.kind {
        Kind::Directory => Handle::directory(at.volume.id, found.ino),
        _ => Handle::file(at.volume.id, found.ino, at.ino, name),
    }
}

async fn look(at: &At, name: &[u8]) -> Outcome<Attr> {
    let (volume, files) = (&at.volume, &at.volume.files);
    let directory = files.peek(at.ino)?;
    if directory.kind != Kind::Directory {
        return Err(Status::NotDirectory);
    }
    if !at.may(&directory, EXECUTE) {
        return Err(Status::Access);
    }
    match name {
        b"." => Ok(files.getattr(at.ino).await?),
        b".." => Ok(files.getattr(files.parent(at.ino)?).await?),
        _ => {
            let found = files.lookup(at.ino, name).await?;
            volume.note(found.ino);
            Ok(found)
        }
    }
}

/// A directory whose names may be changed by who asks.
fn check_directory(at: &At) -> Outcome<Attr> {
    let directory = at.volume.files.peek(at.ino)?;
    if directory.kind != Kind::Directory {
        return Err(Status::NotDirectory);
    }
    if !at.who.may_change(&directory, at.acl(&directory).as_ref()) {
        return Err(Status::Access);
    }
    Ok(directory)
}

/// Refuses the names that every directory has.
fn check_plain(name: &[u8]) -> Outcome<()> {
    if name == b"." || name == b".." { Err(Status::Invalid) } else { Ok(()) }
}

fn make(at: &At, directory: &Attr, kind: Kind, mode: u32) -> Make {
    let (gid, inherited) = at.who.group_in(directory, kind);
    Make { mode: mode & 0o7777 | inherited, umask: 0, uid: at.who.uid, gid, rdev: 0 }
}

/// Makes a file, durably.
async fn create(at: &At, directory: &Attr, name: &[u8], how: How) -> Outcome<Attr> {
    let files = &at.volume.files;
    let mode = match &how {
        How::Unchecked(wish) | How::Guarded(wish) => wish.mode.unwrap_or(0o644),
        // The client sets it next.
        How::Exclusive(_) => 0o600,
    };
    let made = files.create(at.ino, name, make(at, directory, Kind::File, mode), true).await;
    let (mut attr, is_new) = match made {
        Ok((attr, open)) => {
            at.volume.keep_open(open);
            (attr, true)
        }
        Err(Errno::EEXIST) if !matches!(how, How::Guarded(_)) => {
            let found = files.lookup(at.ino, name).await?;
            (found, false)
        }
        Err(errno) => return Err(errno.into()),
    };
    at.volume.note(attr.ino);
    let own = At { volume: at.volume.clone(), ino: attr.ino, who: at.who.clone(), begun: at.begun };
    match how {
        How::Exclusive(number) => {
            // The number is kept where the client sets something else next.
            let mtime_ns = Some((number >> 1) as i64);
            if !is_new && (attr.kind != Kind::File || attr.size != 0 || Some(attr.mtime_ns) != mtime_ns) {
                return Err(Status::Exists);
            }
            if is_new {
                attr = files
                    .set(attr.ino, Properties { mtime_ns, atime_ns: mtime_ns, ..Properties::default() })
                    .await?;
            }
        }
        How::Unchecked(wish) | How::Guarded(wish) => {
            let wish = match is_new {
                // The owner was chosen already, unless root wants another.
                true => Wish { mode: None, ..wish },
                false if attr.kind != Kind::File => {
                    return Err(Status::Exists);
                }
                false => Wish { size: wish.size, ..Wish::default() },
            };
            let is_root = at.who.is_root();
            let wish = Wish { uid: wish.uid.filter(|_| is_root), gid: wish.gid.filter(|_| is_root), ..wish };
            if wish != Wish::default() {
                apply(&own, &attr, wish).await?;
                attr = files.peek(attr.ino)?;
            }
        }
    }
    Ok(attr)
}

async fn rename(from: &At, from_name: &[u8], to: &At, to_name: &[u8]) -> Outcome<()> {
    if from.volume.id != to.volume.id {
        return Err(Status::OtherVolume);
    }
    let (from_directory, to_directory) = (check_directory(from)?, check_directory(to)?);
    check_plain(from_name)?;
    check_plain(to_name)?;
    let files = &from.volume.files;
    let found = files.lookup(from.ino, from_name).await?;
    from.volume.note(found.ino);
    if !from.who.may_remove(&from_directory, &found) {
        return Err(Status::Permission);
    }
    let replaced = match files.lookup(to.ino, to_name).await {
        Ok(replaced) => {
            to.volume.note(replaced.ino);
            if !to.who.may_remove(&to_directory, &replaced) {
                return Err(Status::Permission);
            }
            (replaced.ino != found.ino).then_some(replaced.ino)
        }
        Err(Errno::ENOENT) => None,
        Err(errno) => return Err(errno.into()),
    };
    let moved = files.rename(from.ino, from_name, to.ino, to_name, RenameFlag::Replace).await;
    match moved {
        // What NFS says where others say that the kinds differ.
        Err(Errno::EISDIR | Errno::ENOTDIR) => return Err(Status::Exists),
        moved => moved?,
    }
    if let Some(replaced) = replaced.filter(|ino| files.peek(*ino).is_ok_and(|left| left.nlink == 0)) {
        to.volume.let_go(replaced).await;
    }
    Ok(())
}
