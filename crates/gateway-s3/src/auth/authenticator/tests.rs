//! The examples of AWS's documentation, and what must not pass.

use http::Request;

use super::*;
use crate::clock;

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const TIME: &str = "20130524T000000Z";

struct Example {
    method: &'static str,
    uri: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    signed: &'static str,
    signature: &'static str,
}

impl Example {
    fn head(&self) -> Head {
        let mut request = Request::builder().method(self.method).uri(self.uri);
        for (name, value) in &self.headers {
            request = request.header(*name, *value);
        }
        if !self.signed.is_empty() {
            let authorization = format!(
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
                 SignedHeaders={},Signature={}",
                self.signed, self.signature
            );
            request = request.header("authorization", authorization);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn check_at(&self, now_s: i64) -> Result<Payload> {
        check_head(&self.head(), now_s)
    }

    fn check(&self) -> Result<Payload> {
        self.check_at(clock::parse_basic(TIME).unwrap())
    }
}

fn check_head(head: &Head, now_s: i64) -> Result<Payload> {
    let query = Query::parse(head.uri.query())?;
    let signer = Signer::new("AKIAIOSFODNN7EXAMPLE".to_owned(), SECRET.to_owned());
    Claimed::of(head, &query, now_s)?.verify(head, &query, &signer)
}

fn get_object() -> Example {
    Example {
        method: "GET",
        uri: "/test.txt",
        headers: vec![
            ("host", "examplebucket.s3.amazonaws.com"),
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", EMPTY),
            ("x-amz-date", TIME),
        ],
        signed: "host;range;x-amz-content-sha256;x-amz-date",
        signature: "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    }
}

fn put_object() -> Example {
    Example {
        method: "PUT",
        uri: "/test$file.text",
        headers: vec![
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            ("host", "examplebucket.s3.amazonaws.com"),
            ("x-amz-content-sha256", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
            ("x-amz-date", TIME),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ],
        signed: "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
        signature: "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    }
}

fn get_lifecycle() -> Example {
    Example {
        method: "GET",
        uri: "/?lifecycle",
        headers: vec![
            ("host", "examplebucket.s3.amazonaws.com"),
            ("x-amz-content-sha256", EMPTY),
            ("x-amz-date", TIME),
        ],
        signed: "host;x-amz-content-sha256;x-amz-date",
        signature: "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    }
}

fn list_objects() -> Example {
    Example {
        uri: "/?max-keys=2&prefix=J",
        signature: "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ..get_lifecycle()
    }
}

fn put_in_chunks() -> Example {
    Example {
        method: "PUT",
        uri: "/examplebucket/chunkObject.txt",
        headers: vec![
            ("content-encoding", "aws-chunked"),
            ("content-length", "66824"),
            ("host", "s3.amazonaws.com"),
            ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
            ("x-amz-date", TIME),
            ("x-amz-decoded-content-length", "66560"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ],
        signed: "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;\
                 x-amz-storage-class",
        signature: "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
    }
}

fn put_with_trailer() -> Example {
    Example {
        method: "PUT",
        uri: "/examplebucket/chunkObject.txt",
        headers: vec![
            ("content-encoding", "aws-chunked"),
            ("host", "s3.amazonaws.com"),
            ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"),
            ("x-amz-date", TIME),
            ("x-amz-decoded-content-length", "66560"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ("x-amz-trailer", "x-amz-checksum-crc32c"),
        ],
        signed: "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;\
                 x-amz-storage-class;x-amz-trailer",
        signature: "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
    }
}

fn presigned() -> Example {
    Example {
        method: "GET",
        uri: "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
              &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
              &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
              &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
        headers: vec![("host", "examplebucket.s3.amazonaws.com")],
        signed: "",
        signature: "",
    }
}

#[test]
fn examples_of_the_documentation_pass() {
    assert!(matches!(get_object().check(), Ok(Payload::Sha256(_))));
    assert!(matches!(put_object().check(), Ok(Payload::Sha256(hash)) if hash[0] == 0x44));
    assert!(get_lifecycle().check().is_ok());
    assert!(list_objects().check().is_ok());
    assert!(matches!(put_in_chunks().check(), Ok(Payload::Chunked { signer: Some(_), trailer: false })));
    assert!(matches!(put_with_trailer().check(), Ok(Payload::Chunked { signer: Some(_), trailer: true })));
    assert!(matches!(presigned().check(), Ok(Payload::Plain)));
}

#[test]
fn any_changed_byte_is_noticed() {
    for make in [get_object, put_object, list_objects, put_in_chunks] {
        let fresh = make().head();
        let now_s = clock::parse_basic(TIME).unwrap();
        for name in make().headers.iter().map(|(name, _)| *name).filter(|name| *name != "x-amz-date") {
            let mut head = fresh.clone();
            let value = head.headers[name].to_str().unwrap().replace(['0', 'b', 'e'], "1");
            if value == head.headers[name] {
                continue;
            }
            head.headers.insert(name, value.parse().unwrap());
            assert!(check_head(&head, now_s).is_err(), "{name}");
        }
        let mut head = fresh.clone();
        head.uri = format!("{}x", fresh.uri).parse().unwrap();
        assert_eq!(check_head(&head, now_s).err().unwrap().code, Code::SignatureDoesNotMatch);
        let mut head = fresh.clone();
        head.method = http::Method::DELETE;
        assert_eq!(check_head(&head, now_s).err().unwrap().code, Code::SignatureDoesNotMatch);
    }
}

#[test]
fn spaces_in_headers_do_not_matter() {
    let mut example = get_object();
    example.headers[1] = ("range", "  bytes=0-9  ");
    assert!(example.check().is_ok());
}

#[test]
fn clocks_may_differ_by_a_quarter_of_an_hour() {
    let at = clock::parse_basic(TIME).unwrap();
    for (offset_s, fine) in [(0, true), (900, true), (-900, true), (901, false), (-901, false)] {
        let answer = get_object().check_at(at + offset_s);
        assert_eq!(answer.is_ok(), fine, "{offset_s}");
        if let Err(refusal) = answer {
            assert_eq!(refusal.code, Code::RequestTimeTooSkewed);
        }
    }
    let code = |offset_s: i64| presigned().check_at(at + offset_s).err().map(|refusal| refusal.code);
    assert_eq!(code(86_400), None);
    assert_eq!(code(86_401), Some(Code::AccessDenied));
    assert_eq!(code(-900), None);
    assert_eq!(code(-901), Some(Code::RequestTimeTooSkewed));
}

#[test]
fn unsigned_headers_are_refused() {
    let mut example = get_object();
    example.headers.push(("x-amz-meta-a", "b"));
    assert_eq!(example.check().err().unwrap().code, Code::AccessDenied);
    let mut example = get_object();
    example.signed = "range;x-amz-content-sha256;x-amz-date";
    assert_eq!(example.check().err().unwrap().code, Code::AccessDenied);
    let mut example = presigned();
    example.headers.push(("x-amz-acl", "private"));
    assert_eq!(example.check().err().unwrap().code, Code::AccessDenied);
}

#[test]
fn a_signature_is_for_one_region() {
    let mut head = get_object().head();
    let other = head.headers["authorization"].to_str().unwrap().replace("us-east-1", "eu-1");
    head.headers.insert("authorization", other.parse().unwrap());
    let refusal = check_head(&head, clock::parse_basic(TIME).unwrap()).err().unwrap();
    assert_eq!(refusal.code, Code::SignatureDoesNotMatch);
}

#[test]
fn the_payload_hash_is_required() {
    let mut example = get_object();
    example.headers.remove(2);
    assert_eq!(example.check().err().unwrap().code, Code::InvalidRequest);
}
