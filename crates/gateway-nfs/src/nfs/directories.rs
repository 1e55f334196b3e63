//! Reading directories.
//!
//! The cookie of an entry is its number: it means the same on every node and after a restart. Entries come in the order
//! of their names, so the name behind a cookie is needed to go on; it is remembered, and looked for where it is not. So
//! entries that come and go meanwhile do not shift others, and the verifier never changes.

use bytes::Bytes;
use stoker_files::{Attr, Kind};

use super::attr;
use super::names::handle_of;
use super::{Asked, At, Outcome, Status, TRANSFER_MAX, read_handle};
use crate::access::{EXECUTE, READ};
use crate::xdr::{self, Reader, Writer};

const VERIFIER: u64 = u64::from_be_bytes(*b"stoker01");

/// `.` and `..` come first; cookies of others begin behind theirs.
const DOTS: u64 = 2;

/// Entries that are fetched at once at most.
const PAGE_MAX: usize = 1000;
const PAGE_MIN: usize = 16;

/// The end of the list, and whether it is that of the directory.
const TAIL: usize = 8;

/// What an entry takes at least, with and without attributes and handle.
const ENTRY_LEN: usize = 32;
const ENTRY_PLUS_LEN: usize = 200;

/// What is asked for.
struct Wish {
    cookie: u64,
    verifier: u64,
    /// Most bytes of the answer.
    bytes: usize,
    /// With attributes and handles.
    is_plus: bool,
    /// Who asks may go into the directory, not only list it.
    shows_inside: bool,
}

impl Asked<'_> {
    pub(super) async fn readdir(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        let (cookie, verifier, bytes) = (input.u64()?, input.u64()?, input.u32()?.min(TRANSFER_MAX));
        self.list(
            &handle,
            &Wish { cookie, verifier, bytes: bytes as usize, is_plus: false, shows_inside: false },
        )
        .await;
        Ok(())
    }

    pub(super) async fn readdirplus(&mut self, mut input: Reader) -> xdr::Result<()> {
        let handle = read_handle(&mut input)?;
        let (cookie, verifier, _names) = (input.u64()?, input.u64()?, input.u32()?);
        let bytes = input.u32()?.min(TRANSFER_MAX);
        self.list(
            &handle,
            &Wish { cookie, verifier, bytes: bytes as usize, is_plus: true, shows_inside: false },
        )
        .await;
        Ok(())
    }

    async fn list(&mut self, handle: &Bytes, wish: &Wish) {
        match self.entries(handle, wish).await {
            Ok(list) => {
                self.status(Status::Ok);
                self.out.fixed(&list);
            }
            Err(status) => {
                self.status(status);
                self.out.bool(false);
            }
        }
    }

    async fn entries(&mut self, handle: &Bytes, wish: &Wish) -> Outcome<Bytes> {
        let at = self.at(handle).await?;
        let (volume, files) = (&at.volume, &at.volume.files);
        let directory = files.getattr(at.ino).await?;
        if directory.kind != Kind::Directory {
            return Err(Status::NotDirectory);
        }
        if !at.may(&directory, READ) {
            return Err(Status::Access);
        }
        if wish.cookie != 0 && wish.verifier != VERIFIER {
            return Err(Status::BadCookie);
        }
        let wish = &Wish { shows_inside: at.may(&directory, EXECUTE), ..*wish };
        self.make_room(wish.bytes as u32).await?;
        let mut out = Writer::default();
        attr::write_after(&mut out, volume, Some(&directory));
        out.u64(VERIFIER);
        let front = out.len();
        if wish.cookie < DOTS {
            let parent = files.parent(at.ino)?;
            let parent = if parent == at.ino { directory } else { files.peek(parent)? };
            for (cookie, name, attr) in [(1, &b"."[..], directory), (2, b"..", parent)] {
                if cookie > wish.cookie && !add(&mut out, &at, wish, cookie, name, &attr) {
                    return end(out, front, false);
                }
            }
        }
        let after = name_behind(&at, wish.cookie).await?;
        let entry_len = if wish.is_plus { ENTRY_PLUS_LEN } else { ENTRY_LEN };
        let limit = (wish.bytes / entry_len).clamp(PAGE_MIN, PAGE_MAX);
        let (entries, more) = files.page(at.ino, after.as_deref(), limit).await?;
        entries.iter().for_each(|entry| volume.note(entry.attr.ino));
        for entry in &entries {
            let cookie = cookie_of(entry.attr.ino);
            if !add(&mut out, &at, wish, cookie, &entry.name, &entry.attr) {
                return end(out, front, false);
            }
            volume.note_cookie(at.ino, cookie, &entry.end());
        }
        end(out, front, !more)
    }
}

fn cookie_of(ino: u64) -> u64 {
    ino.wrapping_add(DOTS)
}

/// Adds an entry; false if it does not fit.
fn add(out: &mut Writer, at: &At, wish: &Wish, cookie: u64, name: &[u8], attr: &Attr) -> bool {
    let before = out.len();
    out.bool(true);
    out.u64(attr.ino);
    out.opaque(name);
    out.u64(cookie);
    if wish.is_plus {
        let handle = match attr.kind {
            Kind::Directory => crate::handle::Handle::directory(at.volume.id, attr.ino),
            _ => handle_of(at, attr, name),
        };
        attr::write_after(out, &at.volume, wish.shows_inside.then_some(attr));
        out.bool(wish.shows_inside);
        if wish.shows_inside {
            out.opaque(&handle.encode(&at.volume.handle_key));
        }
    }
    let fits = out.len() + TAIL <= wish.bytes;
    if !fits {
        out.truncate(before);
    }
    fits
}

fn end(mut out: Writer, front: usize, is_end: bool) -> Outcome<Bytes> {
    if out.len() == front && !is_end {
        return Err(Status::TooSmall);
    }
    out.bool(false);
    out.bool(is_end);
    Ok(out.freeze())
}

/// What the entries behind a cookie are behind; none at the front.
async fn name_behind(at: &At, cookie: u64) -> Outcome<Option<Vec<u8>>> {
    if cookie <= DOTS {
        return Ok(None);
    }
    if let Some(name) = at.volume.cookie(at.ino, cookie) {
        return Ok(Some(name));
    }
    // It was given by another node, or long ago.
    let mut after: Option<Vec<u8>> = None;
    loop {
        let (entries, more) = at.volume.files.page(at.ino, after.as_deref(), PAGE_MAX).await?;
        entries.iter().for_each(|entry| at.volume.note(entry.attr.ino));
        if let Some(found) = entries.iter().find(|entry| cookie_of(entry.attr.ino) == cookie) {
            return Ok(Some(found.end()));
        }
        match entries.into_iter().last().filter(|_| more) {
            Some(last) => after = Some(last.end()),
            None => return Err(Status::BadCookie),
        }
    }
}
