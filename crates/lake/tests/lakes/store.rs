//! The layer over `object_store` that serves Google and Azure, over its store in memory.

use std::pin::Pin;
use std::sync::Arc;

use crate::suite;
use crate::suite::keys::KeyKind;
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ListResult, ObjectStore};
use stoker_lake::{Lake, LakeErrorKind, PutOptions, StoreLake};

/// The listing in pages that the store in memory lacks.
struct Pages(Arc<InMemory>);

type Answer<'t> = Pin<Box<dyn Future<Output = object_store::Result<PaginatedListResult>> + Send + 't>>;

impl PaginatedListStore for Pages {
    fn list_paginated<'a, 'b, 't>(
        &'a self,
        prefix: Option<&'b str>,
        options: PaginatedListOptions,
    ) -> Answer<'t>
    where
        'a: 't,
        'b: 't,
    {
        Box::pin(async move {
            let prefix = prefix.unwrap_or("");
            let mut objects: Vec<_> = self.0.list(None).try_collect().await?;
            objects.sort_by(|a, b| a.location.as_ref().cmp(b.location.as_ref()));
            let mut result = ListResult {
                common_prefixes: Vec::new(),
                objects: Vec::new(),
                extensions: Default::default(),
            };
            let mut page_token = None;
            for meta in objects {
                let key = meta.location.as_ref().to_owned();
                let start = options.page_token.as_ref().or(options.offset.as_ref());
                let Some(rest) = key.strip_prefix(prefix) else { continue };
                if start.is_some_and(|start| key <= *start) {
                    continue;
                }
                let group = options.delimiter.as_ref().and_then(|_| rest.find('/'));
                let group = group.map(|at| Path::parse(&key[..prefix.len() + at]).unwrap());
                if group.is_some() && group.as_ref() == result.common_prefixes.last() {
                    page_token = page_token.map(|_: String| key);
                    continue;
                }
                if result.objects.len() + result.common_prefixes.len() == options.max_keys.unwrap_or(1000) {
                    return Ok(PaginatedListResult { result, page_token });
                }
                page_token = Some(key);
                match group {
                    Some(group) => result.common_prefixes.push(group),
                    None => result.objects.push(meta),
                }
            }
            Ok(PaginatedListResult { result, page_token: None })
        })
    }
}

fn lake(root: &str) -> StoreLake {
    let store = Arc::new(InMemory::new());
    StoreLake::new(store.clone(), store.clone(), Arc::new(Pages(store)), root, format!("store://{root}"))
}

#[test]
fn like_every_lake() {
    let runtime = suite::runtime();
    suite::run(40, KeyKind::Tame, |actions| suite::check_actions(&runtime, &lake("some/root"), actions));
    suite::run(40, KeyKind::Tame, |actions| suite::check_actions(&runtime, &lake(""), actions));
}

#[test]
fn keys_that_would_be_changed_are_refused() {
    suite::runtime().block_on(async {
        let lake = lake("root");
        for key in ["/a", "a/", "a//b", "a/./b", "..", "a\nb", "\0"] {
            let answer = lake.put(key.as_bytes(), vec![Bytes::new()], PutOptions::default()).await;
            assert_eq!(answer.unwrap_err().kind, LakeErrorKind::Invalid, "{key:?}");
        }
        let answer = lake.head(b"\xff").await;
        assert_eq!(answer.unwrap_err().kind, LakeErrorKind::Invalid);
        for key in ["a%2Fb", "a b+c", "50%", "\u{1f525}", "a\\b", "...", "~a*"] {
            lake.put(key.as_bytes(), vec![Bytes::from(key)], PutOptions::default()).await.unwrap();
            let info = lake.head(key.as_bytes()).await.unwrap().unwrap();
            assert_eq!(lake.get(key.as_bytes(), 0..info.size, Some(&info.etag)).await.unwrap(), key);
        }
    });
}

#[test]
fn wrong_bytes_are_refused_here_because_the_store_would_not() {
    suite::runtime().block_on(async {
        let options = PutOptions { crc64: Some(1), ..PutOptions::default() };
        let answer = lake("").put(b"k", vec![Bytes::from_static(b"x")], options).await;
        assert_eq!(answer.unwrap_err().kind, LakeErrorKind::Corrupt);
    });
}
