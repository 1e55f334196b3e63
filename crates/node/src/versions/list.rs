//! Versions of keys in order: what names have, and what they had.

use std::collections::VecDeque;
use std::sync::Arc;

use stoker_format::VolumeId;
use stoker_schema::names::{Found, Located, Names, Walk, Which};
use stoker_schema::rows::{FileRow, keys};
use stoker_store::{
    Keeps, ListEntry, ListRequest, NULL_VERSION, Result, VersionEntry, VersionInfo, VersionsPage,
    VersionsRequest,
};

use super::which;
use crate::core::Core;
use crate::error;
use crate::volumes::Volume;

/// Entries of a page.
const LIMIT_MAX: usize = 1_000;

/// Former versions that are read at once.
const ROWS_AT_ONCE: usize = 1_001;

/// The end of everything whose key starts so.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    stoker_catalog::kv::prefix_end(prefix)
}

/// Former versions, read as they are asked for.
struct Pasts<'n> {
    names: &'n Names,
    volume: VolumeId,
    prefix: &'n [u8],
    rows: VecDeque<Located>,
    /// Where to go on; none at the end.
    next: Option<Vec<u8>>,
}

impl Pasts<'_> {
    async fn first(&mut self) -> Result<Option<&Located>> {
        while self.rows.is_empty() {
            let Some(start) = self.next.take() else { return Ok(None) };
            let page = self.names.pasts(self.volume, self.prefix, &start, ROWS_AT_ONCE).await;
            let (rows, more) = page.map_err(error::catalog)?;
            self.next = rows.last().filter(|_| more).map(|last| [&last.spot.name[..], b"\0"].concat());
            self.rows = rows.into();
        }
        Ok(self.rows.front())
    }

    /// Goes on at a name that is not before this one.
    fn skip_to(&mut self, start: Option<Vec<u8>>) {
        self.rows.clear();
        self.next = start;
    }
}

fn key_of(past: &Located) -> &[u8] {
    keys::past_name_parts(&past.spot.name).map_or(&[], |(key, _)| key)
}

fn group_of<'k>(key: &'k [u8], request: &VersionsRequest) -> Option<&'k [u8]> {
    let delimiter = request.delimiter.as_ref().filter(|delimiter| !delimiter.is_empty())?;
    let rest = key.get(request.prefix.len()..)?;
    let at = rest.windows(delimiter.len()).position(|window| window == &delimiter[..])?;
    Some(&key[..request.prefix.len() + at + delimiter.len()])
}

fn line(key: &[u8], file: &FileRow, is_latest: bool) -> Result<VersionEntry> {
    let info = Core::info(key, file)?;
    let version = info.past.clone().unwrap_or_else(|| VersionInfo {
        id: NULL_VERSION.to_owned(),
        is_marker: false,
        retention: None,
        is_held: false,
    });
    Ok(VersionEntry::Version { info: Box::new(info), version, is_latest })
}

/// What comes first of both.
enum Next {
    Present,
    Past,
    Group(Vec<u8>),
}

impl Core {
    /// A page of versions.
    pub async fn versions_page(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        request: VersionsRequest,
    ) -> Result<VersionsPage> {
        if volume.versions.keeps() == Keeps::Nothing {
            return self.files_as_versions(volume, request).await;
        }
        let limit = request.limit.min(LIMIT_MAX);
        let mut pasts = self.pasts_from(volume, &request).await?;
        let (prefix, delimiter) = (&request.prefix[..], request.delimiter.as_deref());
        let mut walk = self
            .names
            .walk(volume.id, prefix, delimiter, request.after.as_deref())
            .await
            .map_err(error::catalog)?;
        let mut present = walk.next().await.map_err(error::catalog)?;
        // Whose latest version is before this page.
        let mut begun = request.after.clone().filter(|_| request.after_version.is_some());
        let mut page = VersionsPage::default();
        loop {
            let next = match (&present, pasts.first().await?) {
                (None, None) => return Ok(page),
                (Some(found), past) => first_of(found, past.map(key_of), &request),
                (None, Some(past)) => match group_of(key_of(past), &request) {
                    Some(group) => Next::Group(group.to_vec()),
                    None => Next::Past,
                },
            };
            if page.entries.len() >= limit {
                page.more = true;
                return Ok(page);
            }
            match next {
                Next::Group(group) => {
                    present = leave_group(&mut walk, present, &group).await?;
                    pasts.skip_to(behind(&group));
                    page.entries.push(VersionEntry::Prefix(group));
                }
                Next::Present => {
                    if let Some(Found::File { key, file, .. }) = &present {
                        page.entries.push(line(key, file, true)?);
                        begun = Some(key.clone());
                    }
                    present = walk.next().await.map_err(error::catalog)?;
                }
                Next::Past => {
                    let Some(past) = pasts.rows.pop_front() else { continue };
                    let key = key_of(&past);
                    page.entries.push(line(key, &past.file, begun.as_deref() != Some(key))?);
                    begun = Some(key.to_vec());
                }
            }
        }
    }

    /// Former versions from where a page begins.
    async fn pasts_from<'n>(&'n self, volume: &Volume, request: &'n VersionsRequest) -> Result<Pasts<'n>> {
        let next = match (&request.after, &request.after_version) {
            (None, _) => Some(request.prefix.clone()),
            (Some(after), _) if group_of(after, request).is_some_and(|group| group == &after[..]) => {
                behind(after)
            }
            (Some(after), None) => Some([after, &b"\x01"[..]].concat()),
            (Some(after), Some(id)) => {
                let id = match which(id) {
                    Some(Which::Null) => {
                        let null =
                            self.names.past(volume.id, after, Which::Null).await.map_err(error::catalog)?;
                        null.and_then(|null| keys::past_name_parts(&null.spot.name).map(|(_, id)| id))
                    }
                    Some(Which::Id(id)) => Some(id),
                    None => None,
                };
                Some(match id {
                    Some(id) => [&keys::past_name(after, id)[..], b"\0"].concat(),
                    // The one that the name has, which is before all others.
                    None => keys::past_names(after),
                })
            }
        };
        Ok(Pasts {
            names: &self.names,
            volume: volume.id,
            prefix: &request.prefix,
            rows: VecDeque::new(),
            next,
        })
    }

    /// Of a volume that keeps none, every file is its one version.
    async fn files_as_versions(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        request: VersionsRequest,
    ) -> Result<VersionsPage> {
        let VersionsRequest { prefix, delimiter, after, limit, .. } = request;
        let page = self.list_page(volume, ListRequest { prefix, delimiter, after, limit }).await?;
        let entry = |entry| match entry {
            ListEntry::Prefix(prefix) => VersionEntry::Prefix(prefix),
            ListEntry::File(info) => {
                let id = NULL_VERSION.to_owned();
                let version = VersionInfo { id, is_marker: false, retention: None, is_held: false };
                VersionEntry::Version { info, version, is_latest: true }
            }
        };
        Ok(VersionsPage { entries: page.entries.into_iter().map(entry).collect(), more: page.more })
    }
}

/// What comes first: a name, or what names had.
fn first_of(found: &Found, past: Option<&[u8]>, request: &VersionsRequest) -> Next {
    let group = past.and_then(|key| group_of(key, request));
    let shown = group.or(past);
    match (found, shown) {
        (Found::Prefix(prefix), Some(shown)) if *shown < prefix[..] => match group {
            Some(group) => Next::Group(group.to_vec()),
            None => Next::Past,
        },
        (Found::Prefix(prefix), _) => Next::Group(prefix.clone()),
        (Found::File { key, .. }, Some(shown)) if *shown < key[..] => match group {
            Some(group) => Next::Group(group.to_vec()),
            None => Next::Past,
        },
        (Found::File { .. }, _) => Next::Present,
    }
}

/// Goes on behind a group.
async fn leave_group(walk: &mut Walk<'_>, present: Option<Found>, group: &[u8]) -> Result<Option<Found>> {
    match present {
        Some(Found::Prefix(prefix)) if prefix == group => walk.next().await.map_err(error::catalog),
        other => Ok(other),
    }
}
