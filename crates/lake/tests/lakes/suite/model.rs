//! The model and the actions that are tried on it and on a lake.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;
use stoker_lake::{Attributes, Condition, Lake, LakeErrorKind, ListPage, ObjectInfo, PutOptions};

/// One thing to do with a lake.
#[derive(Clone)]
pub enum Action {
    Put { key: Vec<u8>, body: Vec<u8>, attributes: Attributes, condition: Wish, summed: bool },
    Upload { key: Vec<u8>, parts: Vec<Vec<u8>>, attributes: Attributes, condition: Wish, end: UploadEnd },
    Get { key: Vec<u8>, start: u64, len: u64, wish: Wish },
    Copy { from: Vec<u8>, to: Vec<u8>, fresh: bool, attributes: Attributes },
    Delete { key: Vec<u8>, wish: Wish },
    List { prefix: Vec<u8>, after: Option<Vec<u8>>, delimiter: Option<u8>, limit: usize },
}

impl std::fmt::Debug for Action {
    /// One line, with keys as text: failures are read by people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Action::Put { key, body, condition, summed, .. } => {
                write!(f, "put {:?} of {} bytes if {condition:?} summed {summed}", text(key), body.len())
            }
            Action::Upload { key, parts, condition, end, .. } => {
                write!(f, "upload {:?} of {} parts if {condition:?}, {end:?}", text(key), parts.len())
            }
            Action::Get { key, start, len, wish } => {
                write!(f, "get {:?} {start}+{len} if {wish:?}", text(key))
            }
            Action::Copy { from, to, fresh, .. } => {
                write!(f, "copy {:?} to {:?} fresh {fresh}", text(from), text(to))
            }
            Action::Delete { key, wish } => write!(f, "delete {:?} if {wish:?}", text(key)),
            Action::List { prefix, after, delimiter, limit } => {
                write!(
                    f,
                    "list {:?} after {:?} by {delimiter:?} limit {limit}",
                    text(prefix),
                    after.as_deref().map(text)
                )
            }
        }
    }
}

/// A condition, before the etag is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Nothing,
    Absent,
    Current,
    Stale,
}

/// How an upload ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadEnd {
    Complete,
    Abort,
}

/// What is known to be different with a lake, by its url.
struct Quirks {
    /// SeaweedFS lists a part that was replaced, empty directories, and nothing behind the name of a directory.
    weed: bool,
    /// `object_store` has no list of parts, only the slash as delimiter, and needs parts without gaps.
    store: bool,
}

fn quirks<L: Lake + ?Sized>(lake: &L) -> Quirks {
    let name = lake.describe();
    Quirks { weed: name.contains("/weed/"), store: name.starts_with("store:") }
}

/// Lists of actions over a few keys.
pub fn actions(pool: Vec<Vec<u8>>, count: usize) -> impl Strategy<Value = Vec<Action>> {
    let key = prop::sample::select(pool.clone());
    let wish = || prop_oneof![3 => Just(Wish::Nothing), 1 => Just(Wish::Absent), 2 => Just(Wish::Current), 1 => Just(Wish::Stale)];
    let body = || prop::collection::vec(any::<u8>(), 0..40);
    let prefix = prop_oneof![
        2 => Just(Vec::new()),
        3 => (key.clone(), 0..9usize).prop_map(|(key, len)| char_prefix(&key, len)),
    ];
    let delimiter =
        prop_oneof![1 => Just(None), 3 => Just(Some(b'/')), 1 => Just(Some(b'-')), 1 => Just(Some(b'a'))];
    let after = prop_oneof![
        3 => Just(None),
        2 => key.clone().prop_map(Some),
        2 => (key.clone(), 1..9usize).prop_map(|(key, len)| Some(char_prefix(&key, len)).filter(|after| !after.is_empty())),
    ];
    let action = prop_oneof![
        6 => (key.clone(), body(), attributes(), wish(), any::<bool>()).prop_map(
            |(key, body, attributes, condition, summed)| Action::Put { key, body, attributes, condition, summed }),
        2 => (key.clone(), prop::collection::vec(body(), 1..4), attributes(), wish(), prop_oneof![4 => Just(UploadEnd::Complete), 1 => Just(UploadEnd::Abort)]).prop_map(
            |(key, parts, attributes, condition, end)| Action::Upload { key, parts, attributes, condition, end }),
        2 => (key.clone(), 0..40u64, 0..40u64, wish()).prop_map(|(key, start, len, wish)| Action::Get { key, start, len, wish }),
        2 => (key.clone(), key.clone(), prop::bool::weighted(0.8), attributes()).prop_map(
            |(from, to, fresh, attributes)| Action::Copy { from, to, fresh, attributes }),
        3 => (key.clone(), wish()).prop_map(|(key, wish)| Action::Delete { key, wish }),
        3 => (prefix, after, delimiter, 1..5usize).prop_map(
            |(prefix, after, delimiter, limit)| Action::List { prefix, after, delimiter, limit }),
    ];
    prop::collection::vec(action, 1..count)
}

/// The first bytes of a key, whole characters if it is text.
fn char_prefix(key: &[u8], len: usize) -> Vec<u8> {
    let mut len = len.min(key.len());
    if let Ok(text) = std::str::from_utf8(key) {
        while !text.is_char_boundary(len) {
            len -= 1;
        }
    }
    key[..len].to_vec()
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let value = "[ -~]{0,12}".prop_map(|value| value.trim().to_owned());
    let meta = prop::collection::btree_map("[a-z][a-z0-9-]{0,8}[a-z]", value, 0..3);
    let headers = prop::sample::subsequence(
        vec![("cache-control", "no-cache"), ("content-disposition", "inline"), ("content-language", "de")],
        0..3,
    );
    let content_type = prop::sample::select(vec![None, Some("text/plain"), Some("application/x-tar")]);
    (content_type, headers, meta).prop_map(|(content_type, headers, meta)| Attributes {
        content_type: content_type.map(str::to_owned),
        headers: headers.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        meta: meta.into_iter().filter(|(_, value)| !value.is_empty()).collect(),
    })
}

#[derive(Clone, Debug)]
struct Stored {
    body: Vec<u8>,
    attributes: Attributes,
    etag: String,
}

/// What a lake must hold.
#[derive(Default)]
pub struct Model {
    objects: BTreeMap<Vec<u8>, Stored>,
    etags: BTreeSet<String>,
}

type Verdict = Result<(), TestCaseError>;

impl Model {
    /// Does one thing with the lake and with the model.
    pub async fn step<L: Lake + ?Sized>(&mut self, lake: &L, action: &Action) -> Verdict {
        match action {
            Action::Put { key, body, attributes, condition, summed } => {
                let crc64 = summed.then(|| stoker_format::crc64(body));
                let options = PutOptions {
                    attributes: attributes.clone(),
                    condition: self.condition(key, *condition),
                    crc64,
                };
                let half = body.len() / 2;
                let pieces =
                    vec![Bytes::copy_from_slice(&body[..half]), Bytes::copy_from_slice(&body[half..])];
                let answer = lake.put(key, pieces, options.clone()).await;
                self.written(key, body, attributes, &options.condition, answer)
            }
            Action::Upload { key, parts, attributes, condition, end } => {
                self.upload(lake, key, parts, attributes, *condition, *end).await
            }
            Action::Get { key, start, len, wish } => self.get(lake, key, *start, *len, *wish).await,
            Action::Copy { from, to, fresh, attributes } => {
                let options = PutOptions { attributes: attributes.clone(), ..PutOptions::default() };
                let source = self.objects.get(from).cloned();
                let etag = match (&source, fresh) {
                    (Some(stored), true) => stored.etag.clone(),
                    _ => "00000000000000000000000000000000".to_owned(),
                };
                // S3 refuses to copy an object to itself under some conditions; nobody needs it.
                if from == to {
                    return Ok(());
                }
                let answer = lake.copy(from, &etag, to, options).await;
                match source {
                    None => expect_kind(answer, LakeErrorKind::NotFound),
                    Some(_) if !fresh => expect_kind(answer, LakeErrorKind::Changed),
                    Some(stored) => self.written(to, &stored.body, attributes, &Condition::None, answer),
                }
            }
            Action::Delete { key, wish } => {
                let etag = self.etag(key, *wish);
                let answer = lake.delete(key, etag.as_deref()).await;
                match self.objects.get(key) {
                    Some(stored) if etag.is_some_and(|etag| etag != stored.etag) => {
                        expect_kind(answer, LakeErrorKind::Changed)
                    }
                    _ => {
                        prop_assert_eq!(answer, Ok(()));
                        self.objects.remove(key);
                        Ok(())
                    }
                }
            }
            Action::List { prefix, after, delimiter, limit } => {
                let is_dir = |after: &Vec<u8>| {
                    let dir = [after.as_slice(), b"/"].concat();
                    self.objects.keys().any(|key| key.starts_with(&dir))
                };
                // Pages never end with the name of a directory.
                if quirks(lake).weed && after.as_ref().is_some_and(is_dir) {
                    return Ok(());
                }
                if quirks(lake).store && delimiter.is_some_and(|delimiter| delimiter != b'/') {
                    let page = lake.list(prefix, after.as_deref(), *delimiter, *limit).await;
                    return expect_kind(page, LakeErrorKind::Invalid);
                }
                self.compare_list(lake, prefix, after.as_deref(), *delimiter, *limit).await
            }
        }
    }

    /// Compares everything: heads, bodies and listings.
    pub async fn compare_all<L: Lake + ?Sized>(&self, lake: &L) -> Verdict {
        self.compare_list(lake, b"", None, None, 1000).await?;
        self.compare_list(lake, b"", None, Some(b'/'), 2).await?;
        for (key, stored) in &self.objects {
            let info = lake.head(key).await;
            let Ok(Some(info)) = info else { return fail(format!("head of {key:?}: {info:?}")) };
            prop_assert_eq!(&info.key, key);
            prop_assert_eq!(info.size, stored.body.len() as u64);
            prop_assert_eq!(&info.etag, &stored.etag);
            let mut attributes = info.attributes.expect("a head has attributes");
            // Some lakes answer a type of their own where none was given.
            if stored.attributes.content_type.is_none() {
                attributes.content_type = None;
            }
            prop_assert_eq!(&attributes, &stored.attributes, "attributes of {:?}", key);
            if let Some(crc64) = info.crc64 {
                prop_assert_eq!(crc64, stoker_format::crc64(&stored.body));
            }
            let body = lake.get(key, 0..info.size, Some(&info.etag)).await;
            prop_assert_eq!(body, Ok(Bytes::copy_from_slice(&stored.body)), "body of {:?}", key);
        }
        Ok(())
    }

    /// Deletes everything that the model knows, and looks.
    pub async fn delete_all<L: Lake + ?Sized>(&mut self, lake: &L) -> Verdict {
        for (key, stored) in std::mem::take(&mut self.objects) {
            prop_assert_eq!(lake.delete(&key, Some(&stored.etag)).await, Ok(()));
        }
        self.compare_all(lake).await
    }

    async fn upload<L: Lake + ?Sized>(
        &mut self,
        lake: &L,
        key: &[u8],
        parts: &[Vec<u8>],
        attributes: &Attributes,
        condition: Wish,
        end: UploadEnd,
    ) -> Verdict {
        let upload = match lake.upload_begin(key, attributes.clone()).await {
            Ok(upload) => upload,
            Err(error) => return fail(format!("upload_begin: {error}")),
        };
        let quirks = quirks(lake);
        let large = lake.capabilities().part_bytes_min as usize;
        let mut body = Vec::new();
        let mut tags = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let mut part = part.clone();
            if index + 1 < parts.len() && part.len() < large {
                part.resize(large, 7);
            }
            let number = if quirks.store { index as u32 + 1 } else { 2 * index as u32 + 1 };
            // A part that is sent again replaces the first.
            if index == 0 && !quirks.weed {
                let first = lake.upload_part(key, &upload, number, vec![Bytes::from_static(b"other")]).await;
                prop_assert!(first.is_ok(), "{first:?}");
            }
            let pieces = vec![Bytes::new(), Bytes::copy_from_slice(&part)];
            match lake.upload_part(key, &upload, number, pieces).await {
                Ok(tag) => tags.push(tag),
                Err(error) => return fail(format!("upload_part {number}: {error}")),
            }
            body.extend_from_slice(&part);
        }
        if !quirks.store {
            prop_assert_eq!(lake.upload_parts(key, &upload).await, Ok(tags.clone()));
        }
        let head = lake.head(key).await.map(|info| info.map(|info| info.etag));
        prop_assert_eq!(
            head,
            Ok(self.objects.get(key).map(|stored| stored.etag.clone())),
            "visible too early"
        );
        match end {
            UploadEnd::Abort => {
                prop_assert_eq!(lake.upload_abort(key, &upload).await, Ok(()));
                if quirks.store {
                    return Ok(());
                }
                prop_assert_eq!(lake.upload_abort(key, &upload).await, Ok(()));
                expect_kind(lake.upload_parts(key, &upload).await, LakeErrorKind::NotFound)?;
                expect_kind(
                    lake.upload_complete(key, &upload, tags, PutOptions::default()).await,
                    LakeErrorKind::NotFound,
                )
            }
            UploadEnd::Complete => {
                let condition = if lake.capabilities().conditional_complete {
                    self.condition(key, condition)
                } else {
                    Condition::None
                };
                let crc64 = Some(stoker_format::crc64(&body));
                let options = PutOptions { condition: condition.clone(), crc64, ..PutOptions::default() };
                let answer = lake.upload_complete(key, &upload, tags, options).await;
                let failed = answer.is_err();
                self.written(key, &body, attributes, &condition, answer)?;
                if failed {
                    prop_assert_eq!(lake.upload_abort(key, &upload).await, Ok(()));
                }
                Ok(())
            }
        }
    }

    async fn get<L: Lake + ?Sized>(&self, lake: &L, key: &[u8], start: u64, len: u64, wish: Wish) -> Verdict {
        let etag = self.etag(key, wish);
        let answer = lake.get(key, start..start + len, etag.as_deref()).await;
        let Some(stored) = self.objects.get(key) else { return expect_kind(answer, LakeErrorKind::NotFound) };
        if etag.is_some_and(|etag| etag != stored.etag) {
            return expect_kind(answer, LakeErrorKind::Changed);
        }
        match stored.body.get(start as usize..(start + len) as usize) {
            Some(bytes) => prop_assert_eq!(answer, Ok(Bytes::copy_from_slice(bytes))),
            None => expect_kind(answer, LakeErrorKind::Invalid)?,
        }
        Ok(())
    }

    /// Pages through a listing and compares it with the model's.
    async fn compare_list<L: Lake + ?Sized>(
        &self,
        lake: &L,
        prefix: &[u8],
        after: Option<&[u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> Verdict {
        let mut objects: Vec<ObjectInfo> = Vec::new();
        let mut prefixes = Vec::new();
        let mut after_page = after.map(<[u8]>::to_vec);
        loop {
            let page = lake.list(prefix, after_page.as_deref(), delimiter, limit).await;
            let Ok(ListPage { objects: some, prefixes: groups, next }) = page else {
                return fail(format!("list: {page:?}"));
            };
            prop_assert!(some.len() + groups.len() <= limit);
            prop_assert!(
                next.is_none() || !some.is_empty() || !groups.is_empty(),
                "an empty page that is not the last"
            );
            objects.extend(some);
            prefixes.extend(groups);
            match next {
                Some(next) => after_page = Some(next),
                None => break,
            }
        }
        let (expected, groups) = self.expected(prefix, after, delimiter);
        if quirks(lake).weed {
            // Empty directories go some time later; until then they are groups or objects.
            prefixes.retain(|group| groups.contains(group));
            objects.retain(|info| info.key.last() != Some(&b'/') || self.objects.contains_key(&info.key));
        }
        let keys: Vec<&[u8]> = objects.iter().map(|info| info.key.as_slice()).collect();
        if keys != expected || prefixes != groups {
            return fail(format!(
                "list {:?} after {:?} by {:?}: {:?} {:?} instead of {:?} {:?}",
                text(prefix),
                after.map(text),
                delimiter,
                texts(&keys),
                texts(&prefixes),
                texts(&expected),
                texts(&groups)
            ));
        }
        for info in &objects {
            let stored = &self.objects[&info.key];
            prop_assert_eq!(info.size, stored.body.len() as u64);
            prop_assert_eq!(&info.etag, &stored.etag);
            prop_assert!(info.attributes.is_none());
        }
        Ok(())
    }

    fn expected(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        delimiter: Option<u8>,
    ) -> (Vec<&[u8]>, Vec<Vec<u8>>) {
        let mut keys = Vec::new();
        let mut groups = BTreeSet::new();
        for key in self.objects.keys().filter(|key| key.starts_with(prefix)) {
            let at = delimiter.and_then(|byte| key[prefix.len()..].iter().position(|&other| other == byte));
            let item = at.map_or(key.as_slice(), |at| &key[..prefix.len() + at + 1]);
            if after.is_some_and(|after| item <= after) {
                continue;
            }
            match at {
                Some(_) => {
                    groups.insert(item.to_vec());
                }
                None => keys.push(key.as_slice()),
            }
        }
        (keys, groups.into_iter().collect())
    }

    fn written(
        &mut self,
        key: &[u8],
        body: &[u8],
        attributes: &Attributes,
        condition: &Condition,
        answer: stoker_lake::Result<String>,
    ) -> Verdict {
        let old = self.objects.get(key);
        let holds = match condition {
            Condition::None => true,
            Condition::Absent => old.is_none(),
            Condition::Matches(etag) => old.is_some_and(|old| old.etag == *etag),
        };
        if !holds {
            return expect_kind(answer, LakeErrorKind::Changed);
        }
        let etag = match answer {
            Ok(etag) => etag,
            Err(error) => return fail(format!("writing {key:?}: {error}")),
        };
        prop_assert!(!etag.is_empty() && !etag.contains('"'));
        self.etags.insert(etag.clone());
        self.objects
            .insert(key.to_vec(), Stored { body: body.to_vec(), attributes: attributes.clone(), etag });
        Ok(())
    }

    fn condition(&self, key: &[u8], wish: Wish) -> Condition {
        match (wish, self.etag(key, wish)) {
            (Wish::Absent, _) => Condition::Absent,
            (_, Some(etag)) => Condition::Matches(etag),
            _ => Condition::None,
        }
    }

    fn etag(&self, key: &[u8], wish: Wish) -> Option<String> {
        match wish {
            Wish::Nothing | Wish::Absent => None,
            Wish::Current => self.objects.get(key).map(|stored| stored.etag.clone()),
            Wish::Stale => Some("00000000000000000000000000000000".to_owned()),
        }
    }
}

fn expect_kind<T: std::fmt::Debug>(answer: stoker_lake::Result<T>, kind: LakeErrorKind) -> Verdict {
    match answer {
        Err(error) if error.kind == kind => Ok(()),
        other => fail(format!("expected {kind:?}, got {other:?}")),
    }
}

fn text(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}

fn texts<K: AsRef<[u8]>>(keys: &[K]) -> Vec<String> {
    keys.iter().map(|key| text(key.as_ref())).collect()
}

fn fail(message: String) -> Verdict {
    Err(TestCaseError::fail(message))
}
