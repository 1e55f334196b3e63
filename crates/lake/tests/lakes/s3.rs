//! The S3 lake against a real server: SeaweedFS.
//!
//! Runs with `STOKER_FULL=1` and a `weed` program, in PATH or named by `STOKER_WEED`. Any other server can be tried
//! with `STOKER_S3_URL=s3://bucket/prefix?endpoint=...` and the usual variables for credentials; objects below the
//! prefix are written and deleted.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use crate::suite;
use crate::suite::keys::KeyKind;
use crate::suite::weed::Weed;
use bytes::Bytes;
use stoker_lake::{
    Attributes, Condition, LakeErrorCode, LakeErrorKind, LakeOptions, PutOptions, RetryOptions,
};

/// One server for all checks: it takes seconds to start.
#[test]
fn a_real_server() {
    let Some(weed) = Weed::start() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    like_every_lake(&weed);
    runtime.block_on(async {
        words_for_what_is_wrong(&weed).await;
        large_objects(&weed).await;
        checksums(&weed).await;
        metadata(&weed).await;
        many_keys(&weed).await;
    });
}

#[test]
fn a_server_of_your_own() {
    let Ok(url) = std::env::var("STOKER_S3_URL") else {
        stoker_testing::skipped("only with STOKER_S3_URL");
        return;
    };
    let (base, query) = url.split_once('?').unwrap_or((&url, ""));
    let runtime = suite::runtime();
    let mut case = 0;
    suite::run(3, KeyKind::Legal, |actions| {
        case += 1;
        let url = format!("{base}/case{case}?{query}");
        let lake = runtime.block_on(stoker_lake::open(&url, &LakeOptions::default())).unwrap();
        suite::check_actions(&runtime, &*lake, actions)
    });
}

/// A server that says to every request that one thing is not there.
fn without(code: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = String::new();
            let mut lines = BufReader::new(&stream);
            while lines.read_line(&mut head).unwrap() > 2 {}
            let body =
                format!("<Error><Code>{code}</Code><Message>the bucket is mentioned here</Message></Error>");
            let head = format!(
                "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    format!("http://{address}")
}

/// A key that was called like that could never be drained once its upload was gone.
#[test]
fn what_is_gone_is_gone_whatever_its_key_is_called() {
    let open = async |code| {
        let options = LakeOptions {
            endpoint: Some(without(code)),
            region: Some("us-east-1".into()),
            path_style: Some(true),
            access_key_id: Some("a".into()),
            secret_access_key: Some("b".into()),
            retry: RetryOptions { tries_max: 1, ..RetryOptions::default() },
            ..LakeOptions::default()
        };
        stoker_lake::open("s3://lake", &options).await.unwrap()
    };
    let key = b"leaky bucket/NoSuchKey";
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let lake = open("NoSuchUpload").await;
        assert_eq!(lake.upload_abort(key, "u").await, Ok(()));
        let lake = open("NoSuchKey").await;
        assert_eq!(lake.delete(key, None).await, Ok(()));
        let lake = open("NoSuchBucket").await;
        for answer in [lake.upload_abort(key, "u").await, lake.delete(key, None).await] {
            assert_eq!(answer.unwrap_err().code, LakeErrorCode::NoSuchBucket);
        }
    });
}

fn like_every_lake(weed: &Weed) {
    let runtime = suite::runtime();
    let mut case = 0;
    suite::run(3, KeyKind::Tame, |actions| {
        case += 1;
        let url = weed.url(&format!("case {case}"));
        let lake = runtime.block_on(stoker_lake::open(&url, &weed.options())).unwrap();
        suite::check_actions(&runtime, &*lake, actions)
    });
}

async fn words_for_what_is_wrong(weed: &Weed) {
    let quick = RetryOptions { tries_max: 1, ..RetryOptions::default() };
    let good = LakeOptions { retry: quick, ..weed.options() };
    let check = async |url: &str, options: LakeOptions, kind: LakeErrorKind, hint: &str| {
        let lake = stoker_lake::open(url, &options).await.unwrap();
        for answer in [
            lake.list(b"", None, None, 1).await.map(|_| ()),
            lake.put(b"k", vec![Bytes::from_static(b"x")], PutOptions::default()).await.map(|_| ()),
        ] {
            let error = answer.unwrap_err();
            assert_eq!(error.kind, kind, "{error}");
            assert!(error.message.contains(hint), "{error}");
            assert!(!error.message.contains("secret-"), "{error}");
        }
    };
    let wrong_secret = LakeOptions { secret_access_key: Some("secret-wrong".into()), ..good.clone() };
    check(&weed.url(""), wrong_secret.clone(), LakeErrorKind::Denied, "AWS_SECRET_ACCESS_KEY").await;
    let wrong_key = LakeOptions { access_key_id: Some("nobody".into()), ..good.clone() };
    check(&weed.url(""), wrong_key, LakeErrorKind::Denied, "does not know the access key `nobody`").await;
    let anonymous = LakeOptions { anonymous: true, ..good.clone() };
    check(&weed.url(""), anonymous, LakeErrorKind::Denied, "").await;
    check("s3://no-such-bucket/x", good.clone(), LakeErrorKind::NotFound, "no bucket `no-such-bucket`").await;
    let nobody_there = LakeOptions { endpoint: Some("http://127.0.0.1:1".into()), ..good.clone() };
    check(&weed.url(""), nobody_there, LakeErrorKind::Unavailable, "cannot reach http://127.0.0.1:1").await;
    // A HEAD has no body; the words are those of a listing.
    let lake = stoker_lake::open(&weed.url(""), &wrong_secret).await.unwrap();
    let error = lake.head(b"k").await.unwrap_err();
    assert!(error.message.contains("AWS_SECRET_ACCESS_KEY"), "{error}");
}

async fn large_objects(weed: &Weed) {
    let lake = stoker_lake::open(&weed.url("large"), &weed.options()).await.unwrap();
    let body: Vec<u8> =
        (0..12_000_000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let body = Bytes::from(body);
    let crc64 = Some(stoker_format::crc64(&body));
    let options = PutOptions { crc64, ..PutOptions::default() };
    let pieces = vec![body.slice(..5_000_000), body.slice(5_000_000..)];
    let etag = lake.put(b"put", pieces, options.clone()).await.unwrap();
    assert_eq!(lake.get(b"put", 0..12_000_000, Some(&etag)).await.unwrap(), body);
    assert_eq!(
        lake.get(b"put", 4_999_999..5_000_001, Some(&etag)).await.unwrap(),
        body.slice(4_999_999..5_000_001)
    );
    // An upload that is interrupted and goes on.
    let upload = lake.upload_begin(b"parts", Attributes::default()).await.unwrap();
    lake.upload_part(b"parts", &upload, 1, vec![body.slice(..6_000_000)]).await.unwrap();
    let again = stoker_lake::open(&weed.url("large"), &weed.options()).await.unwrap();
    let mut parts = again.upload_parts(b"parts", &upload).await.unwrap();
    assert_eq!((parts.len(), parts[0].size), (1, 6_000_000));
    parts.push(again.upload_part(b"parts", &upload, 2, vec![body.slice(6_000_000..)]).await.unwrap());
    let etag = again.upload_complete(b"parts", &upload, parts, options).await.unwrap();
    assert_eq!(again.get(b"parts", 0..12_000_000, Some(&etag)).await.unwrap(), body);
    let copy = again.copy(b"parts", &etag, b"copy", PutOptions::default()).await.unwrap();
    assert_eq!(again.get(b"copy", 0..12_000_000, Some(&copy)).await.unwrap(), body);
    let stale =
        again.copy(b"parts", "00000000000000000000000000000000", b"copy", PutOptions::default()).await;
    assert_eq!(stale.unwrap_err().kind, LakeErrorKind::Changed);
}

async fn checksums(weed: &Weed) {
    let lake = stoker_lake::open(&weed.url("sums"), &weed.options()).await.unwrap();
    let right = PutOptions { crc64: Some(stoker_format::crc64(b"body")), ..PutOptions::default() };
    lake.put(b"k", vec![Bytes::from_static(b"body")], right).await.unwrap();
    let crc64 = lake.head(b"k").await.unwrap().unwrap().crc64;
    assert_eq!(crc64, Some(stoker_format::crc64(b"body")));
    let quick =
        LakeOptions { retry: RetryOptions { tries_max: 1, ..RetryOptions::default() }, ..weed.options() };
    let lake = stoker_lake::open(&weed.url("sums"), &quick).await.unwrap();
    let wrong = PutOptions { crc64: Some(1), ..PutOptions::default() };
    let answer = lake.put(b"wrong", vec![Bytes::from_static(b"body")], wrong).await;
    assert_eq!(answer.unwrap_err().kind, LakeErrorKind::Corrupt);
    assert_eq!(lake.head(b"wrong").await, Ok(None));
}

async fn metadata(weed: &Weed) {
    let lake = stoker_lake::open(&weed.url("meta"), &weed.options()).await.unwrap();
    let attributes = Attributes {
        content_type: Some("text/plain; charset=utf-8".into()),
        headers: vec![("cache-control".into(), "no-store".into()), ("content-language".into(), "de".into())],
        meta: vec![("a".into(), "gr\u{fc}n \u{1f525}".into()), ("mode".into(), "0644".into())],
    };
    let options = PutOptions { attributes: attributes.clone(), condition: Condition::Absent, crc64: None };
    lake.put(b"k", vec![Bytes::new()], options).await.unwrap();
    assert_eq!(lake.head(b"k").await.unwrap().unwrap().attributes, Some(attributes));
}

async fn many_keys(weed: &Weed) {
    let lake = stoker_lake::open(&weed.url("many"), &weed.options()).await.unwrap();
    for index in 0..1200 {
        let key = format!("dir{}/{index:05}", index % 3);
        lake.put(key.as_bytes(), vec![Bytes::from(key.clone())], PutOptions::default()).await.unwrap();
    }
    let mut count = 0;
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = lake.list(b"", after.as_deref(), None, 5000).await.unwrap();
        count += page.objects.len();
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(count, 1200);
    let page = lake.list(b"dir", None, Some(b'/'), 2).await.unwrap();
    assert_eq!(page.prefixes, [b"dir0/".to_vec(), b"dir1/".to_vec()]);
    let page = lake.list(b"dir", page.next.as_deref(), Some(b'/'), 2).await.unwrap();
    assert_eq!((page.prefixes, page.next), (vec![b"dir2/".to_vec()], None));
    let stats = lake.stats().unwrap();
    assert!(stats.bytes_written > 10_000, "{stats:?}");
}
