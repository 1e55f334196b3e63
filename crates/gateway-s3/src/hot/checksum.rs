//! Checksums that clients send: S3's five, Content-MD5, and the SHA-256 that a signature covers. Only what was asked for
//! is computed; CRC-64/NVME comes from the writer, which has it anyway.

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use http::HeaderMap;
use md5::{Digest as _, Md5};
use stoker_store::{Checksum, ChecksumKind, Finish};

use crate::refusal::{Code, Refusal, Result};

/// Kind, header, name, length in bytes.
const KINDS: [(ChecksumKind, &str, &str, usize); 5] = [
    (ChecksumKind::Crc32, "x-amz-checksum-crc32", "CRC32", 4),
    (ChecksumKind::Crc32c, "x-amz-checksum-crc32c", "CRC32C", 4),
    (ChecksumKind::Crc64Nvme, "x-amz-checksum-crc64nvme", "CRC64NVME", 8),
    (ChecksumKind::Sha1, "x-amz-checksum-sha1", "SHA1", 20),
    (ChecksumKind::Sha256, "x-amz-checksum-sha256", "SHA256", 32),
];

fn row(kind: ChecksumKind) -> &'static (ChecksumKind, &'static str, &'static str, usize) {
    KINDS.iter().find(|row| row.0 == kind).unwrap_or(&KINDS[0])
}

/// The header that carries a checksum of this kind.
pub(crate) fn header_of(kind: ChecksumKind) -> &'static str {
    row(kind).1
}

/// The kind as S3 names it.
pub(crate) fn name_of(kind: ChecksumKind) -> &'static str {
    row(kind).2
}

/// The kind that S3 names so.
pub(crate) fn kind_named(name: &str) -> Result<ChecksumKind> {
    KINDS.iter().find(|row| row.2.eq_ignore_ascii_case(name)).map(|row| row.0).ok_or_else(|| {
        Refusal::new(
            Code::InvalidRequest,
            format!(
                "The checksum algorithm {name} is not supported: use CRC32, CRC32C, CRC64NVME, SHA1 or SHA256."
            ),
        )
    })
}

/// Refuses a header or trailer whose checksum nobody here can check.
fn check_name(name: &str) -> Result<()> {
    match name.strip_prefix("x-amz-checksum-") {
        None | Some("type" | "algorithm" | "mode") => Ok(()),
        Some(kind) => kind_named(kind).map(drop),
    }
}

/// A checksum as S3 writes it: base64, with the number of parts behind it if it is composed.
pub(crate) fn text_of(checksum: &Checksum) -> String {
    let mut text = STANDARD.encode(&checksum.value);
    if checksum.parts > 0 {
        text.push_str(&format!("-{}", checksum.parts));
    }
    text
}

/// `FULL_OBJECT` or `COMPOSITE`.
pub(crate) fn type_of(checksum: &Checksum) -> &'static str {
    if checksum.parts > 0 { "COMPOSITE" } else { "FULL_OBJECT" }
}

/// The one checksum that is shown: the kind that the client chose, else CRC-64/NVME.
pub(crate) fn shown(checksums: &[Checksum]) -> Option<&Checksum> {
    checksums.iter().find(|checksum| checksum.kind != ChecksumKind::Crc64Nvme).or(checksums.first())
}

/// Reads a checksum as S3 writes it.
pub(crate) fn parse(kind: ChecksumKind, text: &str) -> Result<Checksum> {
    let (value, parts) = match text.split_once('-') {
        Some((value, parts)) => (value, parts.parse().ok().filter(|parts| *parts > 0)),
        None => (text, Some(0)),
    };
    let value = STANDARD.decode(value).ok().filter(|value| value.len() == row(kind).3);
    match (value, parts) {
        (Some(value), Some(parts)) => Ok(Checksum { kind, value, parts }),
        _ => Err(Refusal::new(
            Code::InvalidRequest,
            format!("Value for {} header is invalid.", header_of(kind)),
        )),
    }
}

/// The checksum headers of a request: at most one.
pub(crate) fn of_headers(headers: &HeaderMap) -> Result<Option<Checksum>> {
    headers.keys().try_for_each(|name| check_name(name.as_str()))?;
    let mut found = None;
    for (kind, header, ..) in KINDS {
        if let Some(value) = headers.get(header) {
            let checksum = parse(kind, value.to_str().unwrap_or_default())?;
            if found.replace(checksum).is_some() {
                return Err(Refusal::new(
                    Code::InvalidRequest,
                    "Expecting a single x-amz-checksum- header. Multiple checksum types are not allowed.",
                ));
            }
        }
    }
    Ok(found)
}

/// Whether it is the checksum of no bytes.
pub(crate) fn is_of_nothing(header: &str, text: &str) -> bool {
    let row = KINDS.iter().find(|row| row.1 == header);
    row.is_some_and(|row| text_of(&Sum::new(row.0).finish()) == text)
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Expected {
    Nothing,
    Known(Checksum),
    InTrailer(ChecksumKind),
    /// It is to be kept with what is written, and nobody has computed it yet.
    Wanted(ChecksumKind),
}

/// What a body has to match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Demands {
    expected: Expected,
    md5: Option<[u8; 16]>,
    /// The ETag is to be the MD5, whether the client gave one or not.
    is_md5_wanted: bool,
    sha256: Option<[u8; 32]>,
}

impl Demands {
    /// Reads the headers. `sha256` is what the signature covers.
    pub(crate) fn of(headers: &HeaderMap, sha256: Option<[u8; 32]>) -> Result<Demands> {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let names = || text("x-amz-trailer").into_iter().flat_map(|names| names.split(',')).map(str::trim);
        names().try_for_each(|name| check_name(&name.to_ascii_lowercase()))?;
        let trailed = names().find_map(|name| KINDS.iter().find(|row| row.1.eq_ignore_ascii_case(name)));
        let expected = match (of_headers(headers)?, trailed) {
            (Some(checksum), _) if checksum.parts == 0 => Expected::Known(checksum),
            (Some(_), _) => {
                return Err(Refusal::new(Code::InvalidRequest, "A body has no checksum of parts."));
            }
            (None, Some(row)) => Expected::InTrailer(row.0),
            (None, None) => Expected::Nothing,
        };
        if expected == Expected::Nothing && headers.contains_key("x-amz-sdk-checksum-algorithm") {
            return Err(Refusal::new(
                Code::InvalidRequest,
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers \
                 were found.",
            ));
        }
        let md5 = match text("content-md5") {
            None => None,
            Some(text) => {
                let value = STANDARD.decode(text).ok().and_then(|value| <[u8; 16]>::try_from(value).ok());
                Some(value.ok_or_else(|| {
                    Refusal::new(Code::InvalidDigest, "The Content-MD5 you specified is not valid.")
                })?)
            }
        };
        Ok(Demands { expected, md5, is_md5_wanted: false, sha256 })
    }

    /// Whether nothing says which checksum it has.
    pub(crate) fn has_none(&self) -> bool {
        self.expected == Expected::Nothing
    }

    /// Has one computed, if there is none to be checked.
    pub(crate) fn want(&mut self, kind: ChecksumKind) {
        if self.has_none() {
            self.expected = Expected::Wanted(kind);
        }
    }

    /// Has the MD5 computed, which becomes the ETag.
    pub(crate) fn want_md5(&mut self) {
        self.is_md5_wanted = true;
    }

    /// Whether the checksum comes behind the body.
    pub(crate) fn wants_trailer(&self) -> bool {
        matches!(self.expected, Expected::InTrailer(_))
    }

    /// Whether the body has to be looked at at all.
    pub(crate) fn digests(self) -> Digests {
        let kind = match &self.expected {
            Expected::Nothing => None,
            Expected::Known(checksum) => Some(checksum.kind),
            Expected::InTrailer(kind) | Expected::Wanted(kind) => Some(*kind),
        };
        let hasher = kind.map_or(Hasher::Idle, Hasher::new);
        let md5 = (self.is_md5_wanted || self.md5.is_some()).then(Md5::new);
        let sha256 = self.sha256.map(|_| Context::new(&SHA256));
        Digests { demands: self, hasher, md5, sha256 }
    }
}

enum Hasher {
    /// Nothing to compute, or computed elsewhere.
    Idle,
    Crc(Box<crc_fast::Digest>, usize),
    Sha(Box<Context>),
}

impl Hasher {
    fn new(kind: ChecksumKind) -> Hasher {
        match kind {
            ChecksumKind::Crc32 => {
                Hasher::Crc(Box::new(crc_fast::Digest::new(CrcAlgorithm::Crc32IsoHdlc)), 4)
            }
            ChecksumKind::Crc32c => Hasher::Crc(Box::new(crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi)), 4),
            ChecksumKind::Crc64Nvme => Hasher::Idle,
            ChecksumKind::Sha1 => Hasher::Sha(Box::new(Context::new(&SHA1_FOR_LEGACY_USE_ONLY))),
            ChecksumKind::Sha256 => Hasher::Sha(Box::new(Context::new(&SHA256))),
        }
    }
}

impl Hasher {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Idle => {}
            Hasher::Crc(digest, _) => digest.update(bytes),
            Hasher::Sha(context) => context.update(bytes),
        }
    }

    /// None if it is computed elsewhere.
    fn finish(self) -> Option<Vec<u8>> {
        match self {
            Hasher::Idle => None,
            Hasher::Crc(digest, len) => Some(digest.finalize().to_be_bytes()[8 - len..].to_vec()),
            Hasher::Sha(context) => Some(context.finish().as_ref().to_vec()),
        }
    }
}

/// One checksum of bytes that are read again.
pub(crate) struct Sum(ChecksumKind, Hasher);

impl Sum {
    /// Of nothing yet.
    pub(crate) fn new(kind: ChecksumKind) -> Sum {
        let hasher = match kind {
            ChecksumKind::Crc64Nvme => {
                Hasher::Crc(Box::new(crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme)), 8)
            }
            kind => Hasher::new(kind),
        };
        Sum(kind, hasher)
    }

    /// Takes the next bytes into account.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.1.update(bytes);
    }

    /// The checksum of all of them.
    pub(crate) fn finish(self) -> Checksum {
        Checksum { kind: self.0, value: self.1.finish().unwrap_or_default(), parts: 0 }
    }
}

/// Digests of a body that is passing by.
pub(crate) struct Digests {
    demands: Demands,
    hasher: Hasher,
    md5: Option<Md5>,
    sha256: Option<Context>,
}

impl Digests {
    /// Takes the next bytes into account.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
    }

    /// Compares, and says what is to be kept with the file. `crc64` is the CRC-64/NVME of all bytes.
    pub(crate) fn finish(self, crc64: u64, trailers: &[(String, String)]) -> Result<Finish> {
        let Demands { expected, md5, sha256, .. } = self.demands;
        if let (Some(want), Some(context)) = (sha256, self.sha256)
            && context.finish().as_ref() != want
        {
            return Err(Refusal::new(
                Code::XAmzContentSHA256Mismatch,
                "The provided 'x-amz-content-sha256' header does not match what was computed.",
            ));
        }
        let found: Option<[u8; 16]> = self.md5.map(|md5| md5.finalize().into());
        if md5.is_some() && md5 != found {
            return Err(Refusal::new(
                Code::BadDigest,
                "The Content-MD5 you specified did not match what we received.",
            ));
        }
        let etag = found.map(|md5| stoker_sigv4::hex(&md5));
        let found = self.hasher.finish().unwrap_or_else(|| crc64.to_be_bytes().to_vec());
        let want = match expected {
            Expected::Nothing => return Ok(Finish { checksums: Vec::new(), etag }),
            Expected::Wanted(kind) => {
                let sum = Checksum { kind, value: found, parts: 0 };
                return Ok(Finish { checksums: vec![sum], etag });
            }
            Expected::Known(checksum) => checksum,
            Expected::InTrailer(kind) => {
                let trailer = trailers.iter().find(|(name, _)| name == header_of(kind));
                let (_, text) = trailer.ok_or_else(|| {
                    Refusal::new(
                        Code::InvalidRequest,
                        "The trailer that x-amz-trailer announced did not come.",
                    )
                })?;
                parse(kind, text)?
            }
        };
        if found != want.value {
            return Err(Refusal::new(
                Code::BadDigest,
                format!("The {} you specified did not match the calculated checksum.", name_of(want.kind)),
            ));
        }
        Ok(Finish { checksums: vec![want], etag })
    }
}

/// CRC-64/NVME of a body that is not written anywhere.
pub(crate) fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"hello world";
    /// Computed with other people's programs.
    const GOOD: [(&str, &str); 5] = [
        ("x-amz-checksum-crc32", "DUoRhQ=="),
        ("x-amz-checksum-crc32c", "yZRlqg=="),
        ("x-amz-checksum-crc64nvme", "jSnVw/bqjr4="),
        ("x-amz-checksum-sha1", "Kq5sNclPz7QV2+lfQIuc6R7oRu0="),
        ("x-amz-checksum-sha256", "uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek="),
    ];

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn run(demands: Demands, trailers: &[(String, String)]) -> Result<Finish> {
        let mut digests = demands.digests();
        digests.update(&BODY[..3]);
        digests.update(&BODY[3..]);
        digests.finish(crc64(BODY), trailers)
    }

    #[test]
    fn all_kinds_are_checked_in_header_and_trailer() {
        for (header, value) in GOOD {
            let demands = Demands::of(&headers(&[(header, value)]), None).unwrap();
            let finish = run(demands, &[]).unwrap();
            assert_eq!(text_of(&finish.checksums[0]), value, "{header}");

            let wrong = GOOD
                .iter()
                .find(|(name, _)| *name == header)
                .map(|(_, value)| value.replace(&value[..1], "Z"));
            let wrong = wrong.unwrap();
            let demands = Demands::of(&headers(&[(header, &wrong)]), None).unwrap();
            assert_eq!(run(demands, &[]).unwrap_err().code, Code::BadDigest, "{header}");

            let demands = Demands::of(&headers(&[("x-amz-trailer", header)]), None).unwrap();
            assert!(demands.wants_trailer());
            let trailer = |value: &str| vec![(header.to_owned(), value.to_owned())];
            assert!(run(demands.clone(), &trailer(value)).is_ok());
            assert_eq!(run(demands.clone(), &trailer(&wrong)).unwrap_err().code, Code::BadDigest);
            assert_eq!(run(demands, &[]).unwrap_err().code, Code::InvalidRequest);
        }
    }

    #[test]
    fn md5_and_sha256_are_checked() {
        let good = headers(&[("content-md5", "XrY7u+Ae7tCTyyK7j1rNww==")]);
        let finish = run(Demands::of(&good, None).unwrap(), &[]).unwrap();
        assert_eq!(finish.etag.as_deref(), Some("5eb63bbbe01eeed093cb22bb8f5acdc3"));
        let wrong = headers(&[("content-md5", "ArY7u+Ae7tCTyyK7j1rNww==")]);
        assert_eq!(run(Demands::of(&wrong, None).unwrap(), &[]).unwrap_err().code, Code::BadDigest);
        for bad in ["", "x", "XrY7"] {
            assert_eq!(
                Demands::of(&headers(&[("content-md5", bad)]), None).unwrap_err().code,
                Code::InvalidDigest
            );
        }
        let refusal = run(Demands::of(&HeaderMap::new(), Some([0; 32])).unwrap(), &[]).unwrap_err();
        assert_eq!(refusal.code, Code::XAmzContentSHA256Mismatch);
    }

    #[test]
    fn nonsense_is_refused_before_the_body() {
        for bad in [
            &[("x-amz-checksum-crc32", "AA==")][..],
            &[("x-amz-checksum-crc32", "not base64")],
            &[("x-amz-checksum-crc32", "DUoRhQ==-2")],
            &[GOOD[0], GOOD[1]],
            &[("x-amz-sdk-checksum-algorithm", "CRC32")],
            &[("x-amz-checksum-sha512", "AAAA")],
            &[("x-amz-checksum-xxhash64", "AAAA")],
            &[("x-amz-trailer", "x-amz-checksum-xxhash3")],
        ] {
            assert_eq!(Demands::of(&headers(bad), None).unwrap_err().code, Code::InvalidRequest, "{bad:?}");
        }
    }

    #[test]
    fn what_is_wanted_is_computed() {
        for (header, value) in GOOD {
            let row = KINDS.iter().find(|row| row.1 == header).unwrap();
            let mut demands = Demands::of(&HeaderMap::new(), None).unwrap();
            demands.want(row.0);
            assert_eq!(text_of(&run(demands, &[]).unwrap().checksums[0]), value);
            let mut sum = Sum::new(row.0);
            BODY.chunks(4).for_each(|piece| sum.update(piece));
            assert_eq!(text_of(&sum.finish()), value);
        }
        let mut known = Demands::of(&headers(&GOOD[..1]), None).unwrap();
        known.want(ChecksumKind::Sha1);
        assert_eq!(run(known, &[]).unwrap().checksums[0].kind, ChecksumKind::Crc32);
    }

    #[test]
    fn composed_checksums_keep_their_parts() {
        let checksum = parse(ChecksumKind::Crc32, "DUoRhQ==-12").unwrap();
        assert_eq!((checksum.parts, text_of(&checksum).as_str()), (12, "DUoRhQ==-12"));
        assert_eq!(type_of(&checksum), "COMPOSITE");
        for bad in ["DUoRhQ==-0", "DUoRhQ==-x", "DUoRhQ==-"] {
            assert!(parse(ChecksumKind::Crc32, bad).is_err());
        }
    }
}
