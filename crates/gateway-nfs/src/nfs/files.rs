//! Attributes and bytes of one file.

use bytes::Bytes;
use stoker_files::{Attr, Change as Properties, Errno, Handle as OpenFile, Kind};

use super::attr::{self, Time, Wish};
use super::{Asked, At, Outcome, Status, TRANSFER_MAX, read_handle};
use crate::access::{EXECUTE, READ, WRITE};
use crate::counters::Counters;
use crate::xdr::{self, Reader};

const ACCESS_READ: u32 = 0x01;
const ACCESS_LOOKUP: u32 = 0x02;
const ACCESS_MODIFY: u32 = 0x04;
const ACCESS_EXTEND: u32 = 0x08;
const ACCESS_DELETE: u32 = 0x10;
const ACCESS_EXECUTE: u32 = 0x20;

const UNSTABLE: u32 = 0;
const FILE_SYNC: u32 = 2;

impl Asked<'_> {
    pub(super) async fn getattr(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        let found = async {
            let at = self.at(&handle).await?;
            let attr = at.volume.files.getattr(at.ino).await?;
            Outcome::Ok((at, attr))
        };
        match found.await {
            Ok((at, found)) => {
                self.status(Status::Ok);
                attr::write_attr(&mut self.out, &at.volume, &found);
            }
            Err(status) => self.status(status),
        }
        Ok(())
    }

    pub(super) async fn setattr(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        let wish = Wish::read(&mut input)?;
        let guard = input.bool()?.then(|| attr::read_ns(&mut input)).transpose()?;
        let at = match self.at_change(&handle).await {
            Ok(at) => at,
            Err(status) => {
                self.status(status);
                attr::write_no_change(&mut self.out);
                return Ok(());
            }
        };
        let change = at.volume.change(at.ino);
        let done = async {
            let found = at.volume.files.getattr(at.ino).await?;
            // A directory always looks as if it changed a moment ago; what a client knows of it says nothing.
            let is_other = guard.is_some_and(|guard| guard != attr::changed_ns(&at.volume, &found));
            if is_other && found.kind != Kind::Directory {
                return Err(Status::NotSync);
            }
            apply(&at, &found, wish).await
        };
        let done = done.await;
        self.status(done.err().unwrap_or(Status::Ok));
        attr::write_change(&mut self.out, &at.volume, &change);
        Ok(())
    }

    pub(super) async fn access(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        let wish = input.u32()?;
        let found = async {
            let at = self.at(&handle).await?;
            let attr = at.volume.files.getattr(at.ino).await?;
            Outcome::Ok((at, attr))
        };
        match found.await {
            Ok((at, found)) => {
                self.status(Status::Ok);
                attr::write_after(&mut self.out, &at.volume, Some(&found));
                self.out.u32(wish & granted(&at, &found));
            }
            Err(status) => {
                self.status(status);
                self.out.bool(false);
            }
        }
        Ok(())
    }

    pub(super) async fn readlink(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        let read = async {
            let at = self.at(&handle).await?;
            let target = at.volume.files.readlink(at.ino).await?;
            Outcome::Ok((at, target))
        };
        match read.await {
            Ok((at, target)) => {
                self.status(Status::Ok);
                attr::write_after(&mut self.out, &at.volume, at.volume.files.peek(at.ino).ok().as_ref());
                self.out.opaque(&target);
            }
            Err(status) => {
                self.status(status);
                self.out.bool(false);
            }
        }
        Ok(())
    }

    pub(super) async fn read(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        let (offset, count) = (input.u64()?, input.u32()?.min(TRANSFER_MAX));
        match self.read_bytes(&handle, offset, count).await {
            Ok((at, found, bytes)) => {
                Counters::add(&self.service.counters.read_bytes, bytes.len() as u64);
                self.status(Status::Ok);
                attr::write_after(&mut self.out, &at.volume, Some(&found));
                self.out.u32(bytes.len() as u32);
                self.out.bool(offset.saturating_add(bytes.len() as u64) >= found.size);
                self.out.u32(bytes.len() as u32);
                self.data = bytes;
            }
            Err(status) => {
                self.status(status);
                self.out.bool(false);
            }
        }
        Ok(())
    }

    async fn read_bytes(&mut self, handle: &Bytes, offset: u64, count: u32) -> Outcome<(At, Attr, Bytes)> {
        let at = self.at(handle).await?;
        check_file(&at, at.volume.files.peek(at.ino)?, READ)?;
        self.make_room(count).await?;
        let open = at.volume.open(at.ino).await?;
        let bytes = at.volume.files.read(&open, offset, count as usize).await?;
        // After the read: it may have found another version.
        let found = at.volume.files.peek(at.ino)?;
        Ok((at, found, bytes))
    }

    pub(super) async fn write(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        let (offset, count, stable) = (input.u64()?, input.u32()?, input.u32()?);
        let mut bytes = input.opaque(TRANSFER_MAX as usize)?;
        if stable > FILE_SYNC {
            return Err(xdr::Garbage);
        }
        bytes.truncate(count as usize);
        let at = match self.at_change(&handle).await {
            Ok(at) => at,
            Err(status) => {
                self.status(status);
                attr::write_no_change(&mut self.out);
                return Ok(());
            }
        };
        let change = at.volume.change(at.ino);
        // Before the bytes are taken: if they are lost after this, a commit tells another one.
        let verifier = self.service.volumes.verifier.get();
        let written = write_bytes(&at, offset, &bytes, stable).await;
        match written {
            Ok(count) => {
                Counters::add(&self.service.counters.written_bytes, count as u64);
                self.status(Status::Ok);
                attr::write_change(&mut self.out, &at.volume, &change);
                self.out.u32(count as u32);
                self.out.u32(if stable == UNSTABLE { UNSTABLE } else { FILE_SYNC });
                self.out.u64(verifier);
            }
            Err(status) => {
                self.status(status);
                attr::write_change(&mut self.out, &at.volume, &change);
            }
        }
        Ok(())
    }

    pub(super) async fn commit(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        // All of the file is published, whatever range is asked for.
        input.u64()?;
        input.u32()?;
        let at = match self.at_change(&handle).await {
            Ok(at) => at,
            Err(status) => {
                self.status(status);
                attr::write_no_change(&mut self.out);
                return Ok(());
            }
        };
        let change = at.volume.change(at.ino);
        let done = async {
            check_file(&at, at.volume.files.peek(at.ino)?, WRITE)?;
            let open = at.volume.open(at.ino).await?;
            match at.volume.files.fsync(&open).await {
                // What waited was dropped: the verifier, which is read after this, says so.
                Ok(()) | Err(Errno::EAGAIN) => Outcome::Ok(()),
                Err(errno) => Err(errno.into()),
            }
        };
        let done = done.await;
        self.status(done.err().unwrap_or(Status::Ok));
        attr::write_change(&mut self.out, &at.volume, &change);
        if done.is_ok() {
            let verifier = self.service.volumes.verifier.get();
            self.out.u64(verifier);
        }
        Ok(())
    }
}

async fn write_bytes(at: &At, offset: u64, bytes: &[u8], stable: u32) -> Outcome<usize> {
    check_file(at, at.volume.files.peek(at.ino)?, WRITE)?;
    let open = at.volume.open(at.ino).await?;
    loop {
        match write_once(at, &open, offset, bytes, stable).await {
            // Dropped together with older bytes that waited here: it is made again.
            Err(Errno::EAGAIN) if at.is_fresh() => {}
            done => return Ok(done?),
        }
    }
}

async fn write_once(
    at: &At,
    open: &OpenFile,
    offset: u64,
    bytes: &[u8],
    stable: u32,
) -> Result<usize, Errno> {
    let count = at.volume.files.write(open, offset, bytes, false).await?;
    if stable != UNSTABLE {
        at.volume.files.fsync(open).await?;
    }
    Ok(count)
}

/// Refuses what has no bytes, and who may not touch them.
fn check_file(at: &At, attr: Attr, wish: u32) -> Outcome<()> {
    match attr.kind {
        Kind::File => {}
        Kind::Directory => return Err(Status::IsDirectory),
        _ => return Err(Status::Invalid),
    }
    let may = match wish {
        READ => at.who.may_read(&attr, at.acl(&attr).as_ref()),
        _ => at.who.may_write(&attr, at.acl(&attr).as_ref()),
    };
    if may { Ok(()) } else { Err(Status::Access) }
}

/// What a caller may do, as `ACCESS` says it.
fn granted(at: &At, attr: &Attr) -> u32 {
    let may = |wish, bits: u32| if at.may(attr, wish) { bits } else { 0 };
    let granted = match attr.kind {
        Kind::Directory => {
            may(READ, ACCESS_READ)
                | may(EXECUTE, ACCESS_LOOKUP)
                | may(WRITE | EXECUTE, ACCESS_MODIFY | ACCESS_EXTEND | ACCESS_DELETE)
        }
        _ => {
            may(READ, ACCESS_READ) | may(WRITE, ACCESS_MODIFY | ACCESS_EXTEND) | may(EXECUTE, ACCESS_EXECUTE)
        }
    };
    match at.volume.export.read_only {
        true => granted & !(ACCESS_MODIFY | ACCESS_EXTEND | ACCESS_DELETE),
        false => granted,
    }
}

/// Carries a wish out, durably, if who asks may.
pub(super) async fn apply(at: &At, found: &Attr, wish: Wish) -> Outcome<()> {
    let who = &at.who;
    let chown = wish.uid.is_some_and(|uid| uid != found.uid);
    let chgrp = wish.gid.is_some_and(|gid| gid != found.gid);
    let times = [wish.mtime, wish.atime];
    let sets_time = times.iter().any(|time| matches!(time, Some(Time::At(_))));
    if (wish.mode.is_some() || chgrp || sets_time) && !who.owns(found) {
        return Err(Status::Permission);
    }
    if !who.is_root() && (chown || wish.gid.is_some_and(|gid| chgrp && !who.is_in(gid))) {
        return Err(Status::Permission);
    }
    if (wish.size.is_some() || times.contains(&Some(Time::Now)))
        && !who.may_write(found, at.acl(found).as_ref())
    {
        return Err(Status::Access);
    }
    let open = match found.kind {
        Kind::File => Some(at.volume.open(at.ino).await?),
        _ => None,
    };
    let now_ns = (at.volume.now_ns)();
    let [mtime_ns, atime_ns] = times.map(|time| match time? {
        Time::Now => Some(now_ns),
        Time::At(ns) => Some(ns),
    });
    let mode = wish.mode.map(|mode| mode & 0o7777);
    // Whoever is given a file must not get the rights of the one who had it.
    let mode = match chown || chgrp {
        true if !who.is_root() => Some(mode.unwrap_or(found.mode) & !0o6000),
        _ => mode,
    };
    let properties = Properties { mode, uid: wish.uid, gid: wish.gid, mtime_ns, atime_ns };
    loop {
        match set_once(at, open.as_deref(), wish.size, properties).await {
            Err(Errno::EAGAIN) if at.is_fresh() => {}
            done => return Ok(done?),
        }
    }
}

async fn set_once(
    at: &At,
    open: Option<&OpenFile>,
    size: Option<u64>,
    properties: Properties,
) -> Result<(), Errno> {
    let files = &at.volume.files;
    if let Some(size) = size {
        files.truncate(at.ino, size).await?;
    }
    if properties != Properties::default() {
        files.set(at.ino, properties).await?;
    }
    match open {
        Some(open) => files.fsync(open).await,
        None => Ok(()),
    }
}
