//! Listings: the catalog's, merged with the lake's where others write there too.

use std::collections::VecDeque;
use std::sync::Arc;

use stoker_catalog::kv::Range;
use stoker_lake::{Lake, ObjectInfo};
use stoker_schema::names::{Found, Walk};
use stoker_schema::rows::{Drain, keys};
use stoker_store::{LakeMode, ListEntry, ListPage, ListRequest, Result};

use crate::core::{Core, add};
use crate::error;
use crate::lookup::lake_row;
use crate::volumes::Volume;

/// Most entries of a page.
const LIMIT_MAX: usize = 1_000;

impl Core {
    /// A page of a listing.
    pub async fn list_page(self: &Arc<Core>, volume: &Arc<Volume>, request: ListRequest) -> Result<ListPage> {
        add(&self.stats.lists, 1);
        let limit = request.limit.min(LIMIT_MAX);
        let delimiter = request.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
        let after = request.after.as_deref();
        let mut ours = Ours {
            walk: self
                .names
                .walk(volume.id, &request.prefix, delimiter, after)
                .await
                .map_err(error::catalog)?,
            head: None,
        };
        let mut theirs = match volume.asks_lake() {
            true => Theirs::new(self, volume, &request).await?,
            false => None,
        };
        let mut page = ListPage::default();
        loop {
            ours.fill().await?;
            if let Some(theirs) = &mut theirs {
                theirs.fill().await?;
            }
            let next = self.smaller(volume, &mut ours, theirs.as_mut())?;
            page.more = next.is_some() && page.entries.len() >= limit;
            match next.filter(|_| !page.more) {
                Some(entry) => page.entries.push(entry),
                None => break,
            }
        }
        let files = page.entries.iter_mut().filter_map(|entry| match entry {
            ListEntry::File(info) => Some(&mut **info),
            ListEntry::Prefix(_) => None,
        });
        self.count_links(volume, files).await?;
        Ok(page)
    }

    /// The next entry of both; where both have it, ours counts unless the lake's is newer than what we drained.
    fn smaller(
        &self,
        volume: &Arc<Volume>,
        ours: &mut Ours<'_>,
        theirs: Option<&mut Theirs<'_>>,
    ) -> Result<Option<ListEntry>> {
        let Some(theirs) = theirs else { return ours.take() };
        let (a, b) = (ours.head.as_ref().map(Found::name), theirs.queue.front().map(Line::name));
        match (a, b) {
            (None, None) => Ok(None),
            (Some(_), None) => ours.take(),
            (Some(a), Some(b)) if a < b => ours.take(),
            (Some(a), Some(b)) if a == b => {
                let line = theirs.queue.pop_front();
                let newer = match (&ours.head, line) {
                    (Some(Found::File { file, .. }), Some(Line::Object(object)))
                        if file.drain == Drain::Clean && volume.policy.lake_mode != LakeMode::Owned =>
                    {
                        let known = file.lake.as_ref().is_some_and(|lake| lake.etag == object.etag);
                        (!known).then_some(object)
                    }
                    _ => None,
                };
                let entry = ours.take()?;
                match newer {
                    Some(object) => self.lake_entry(volume, &object).map(Some),
                    None => Ok(entry),
                }
            }
            _ => match theirs.queue.pop_front() {
                Some(Line::Prefix(prefix)) => Ok(Some(ListEntry::Prefix(prefix))),
                Some(Line::Object(object)) => self.lake_entry(volume, &object).map(Some),
                None => Ok(None),
            },
        }
    }

    fn lake_entry(&self, volume: &Volume, object: &ObjectInfo) -> Result<ListEntry> {
        let row = lake_row(volume.id, self.chunk_bytes, object)?;
        Ok(ListEntry::File(Box::new(Core::info(&object.key, &row)?)))
    }
}

struct Ours<'n> {
    walk: Walk<'n>,
    head: Option<Found>,
}

impl Ours<'_> {
    async fn fill(&mut self) -> Result<()> {
        if self.head.is_none() {
            self.head = self.walk.next().await.map_err(error::catalog)?;
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Option<ListEntry>> {
        Ok(match self.head.take() {
            None => None,
            Some(Found::Prefix(prefix)) => Some(ListEntry::Prefix(prefix)),
            Some(Found::File { key, file, .. }) => Some(ListEntry::File(Box::new(Core::info(&key, &file)?))),
        })
    }
}

enum Line {
    Object(ObjectInfo),
    Prefix(Vec<u8>),
}

impl Line {
    fn name(&self) -> &[u8] {
        match self {
            Line::Object(object) => &object.key,
            Line::Prefix(prefix) => prefix,
        }
    }
}

/// A lake's listing, without what was deleted here.
struct Theirs<'c> {
    core: &'c Core,
    volume: Arc<Volume>,
    lake: Arc<dyn Lake>,
    prefix: Vec<u8>,
    delimiter: Option<u8>,
    after: Option<Vec<u8>>,
    done: bool,
    queue: VecDeque<Line>,
}

impl<'c> Theirs<'c> {
    async fn new(core: &'c Core, volume: &Arc<Volume>, request: &ListRequest) -> Result<Option<Theirs<'c>>> {
        let Some(lake) = volume.lake(core.volumes.lakes()).await? else { return Ok(None) };
        Ok(Some(Theirs {
            core,
            volume: volume.clone(),
            lake,
            prefix: request.prefix.clone(),
            // Lakes group by one byte; other delimiters are grouped nowhere else and shown as keys of the catalog only.
            delimiter: request.delimiter.as_deref().and_then(|delimiter| delimiter.first().copied()),
            after: request.after.clone(),
            done: false,
            queue: VecDeque::new(),
        }))
    }

    async fn fill(&mut self) -> Result<()> {
        while self.queue.is_empty() && !self.done {
            let page = self.lake.list(&self.prefix, self.after.as_deref(), self.delimiter, LIMIT_MAX).await;
            let page = page.map_err(error::lake)?;
            let hidden = self.hidden(&page.objects).await?;
            let objects =
                page.objects.into_iter().filter(|object| !hidden.contains(&object.key)).map(Line::Object);
            let mut lines: Vec<Line> = objects.chain(page.prefixes.into_iter().map(Line::Prefix)).collect();
            lines.sort_by(|a, b| a.name().cmp(b.name()));
            self.queue = lines.into();
            self.done = page.next.is_none();
            self.after = page.next;
        }
        Ok(())
    }

    /// Keys among these objects that have a tombstone.
    async fn hidden(&self, objects: &[ObjectInfo]) -> Result<std::collections::HashSet<Vec<u8>>> {
        let (Some(first), Some(last)) = (objects.first(), objects.last()) else {
            return Ok(Default::default());
        };
        let start = keys::tombstone(self.volume.id, &first.key);
        let end = [keys::tombstone(self.volume.id, &last.key), vec![0]].concat();
        let mut range = Range::between(&start, &end, LIMIT_MAX);
        let mut hidden = std::collections::HashSet::new();
        loop {
            let page = self.core.catalog.range(range.clone()).await.map_err(error::catalog)?;
            hidden.extend(page.rows.iter().map(|row| keys::lake_key_part(&row.key).to_vec()));
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(hidden),
            }
        }
    }
}
