//! The checksum of a file from those of its parts.

use aws_lc_rs::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use crc_fast::CrcAlgorithm;
use stoker_store::{Checksum, ChecksumKind, PartInfo};

/// Combines the checksums of one kind; none if a part has none. `is_full`: of the bytes, not of the parts' checksums.
pub(super) fn whole_checksum(kind: ChecksumKind, is_full: bool, parts: &[&PartInfo]) -> Option<Checksum> {
    let values: Option<Vec<(&[u8], u64)>> = parts
        .iter()
        .map(|part| {
            let sum = part.checksums.iter().find(|sum| sum.kind == kind && sum.parts == 0)?;
            Some((sum.value.as_slice(), part.size))
        })
        .collect();
    let values = values?;
    let (algorithm, len) = match kind {
        ChecksumKind::Crc32 => (CrcAlgorithm::Crc32IsoHdlc, 4),
        ChecksumKind::Crc32c => (CrcAlgorithm::Crc32Iscsi, 4),
        ChecksumKind::Crc64Nvme => (CrcAlgorithm::Crc64Nvme, 8),
        ChecksumKind::Sha1 | ChecksumKind::Sha256 if is_full => return None,
        ChecksumKind::Sha1 | ChecksumKind::Sha256 => {
            let joined: Vec<u8> = values.iter().flat_map(|(value, _)| value.iter().copied()).collect();
            let algorithm = if kind == ChecksumKind::Sha1 { &SHA1_FOR_LEGACY_USE_ONLY } else { &SHA256 };
            let value = digest::digest(algorithm, &joined).as_ref().to_vec();
            return Some(Checksum { kind, value, parts: u32::try_from(values.len()).ok()? });
        }
    };
    if is_full {
        let number = |value: &[u8]| value.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let crc = values.iter().map(|(value, size)| (number(value), *size)).reduce(
            |(left, left_size), (right, right_size)| {
                (crc_fast::checksum_combine(algorithm, left, right, right_size), left_size + right_size)
            },
        );
        let (crc, _) = crc?;
        return Some(Checksum { kind, value: crc.to_be_bytes()[8 - len..].to_vec(), parts: 0 });
    }
    let joined: Vec<u8> = values.iter().flat_map(|(value, _)| value.iter().copied()).collect();
    let crc = crc_fast::checksum(algorithm, &joined);
    let parts = u32::try_from(values.len()).ok()?;
    Some(Checksum { kind, value: crc.to_be_bytes()[8 - len..].to_vec(), parts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot::checksum::{parse, text_of};

    fn parts(kind: ChecksumKind, pieces: &[&[u8]]) -> Vec<PartInfo> {
        let sum = |bytes: &[u8]| match kind {
            ChecksumKind::Crc32 => {
                crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, bytes).to_be_bytes()[4..].to_vec()
            }
            ChecksumKind::Crc64Nvme => {
                crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes).to_be_bytes().to_vec()
            }
            _ => digest::digest(&SHA256, bytes).as_ref().to_vec(),
        };
        pieces
            .iter()
            .enumerate()
            .map(|(index, bytes)| PartInfo {
                number: index as u32 + 1,
                size: bytes.len() as u64,
                etag: String::new(),
                modified_ms: 0,
                checksums: vec![Checksum { kind, value: sum(bytes), parts: 0 }],
            })
            .collect()
    }

    #[test]
    fn full_checksums_are_those_of_the_bytes() {
        for (kind, expected) in [(ChecksumKind::Crc32, "DUoRhQ=="), (ChecksumKind::Crc64Nvme, "jSnVw/bqjr4=")]
        {
            let parts = parts(kind, &[b"hel", b"lo w", b"orld"]);
            let whole = whole_checksum(kind, true, &parts.iter().collect::<Vec<_>>()).unwrap();
            assert_eq!(whole, parse(kind, expected).unwrap());
        }
    }

    /// Expected values computed with Python's zlib and hashlib.
    #[test]
    fn composed_checksums_are_those_of_the_checksums() {
        for (kind, expected) in [
            (ChecksumKind::Crc32, "otMqCw==-2"),
            (ChecksumKind::Sha256, "wpQQjqgKlhF49FQdoVTheIiiSjfvtKR+G5kBEF28Vf0=-2"),
        ] {
            let parts = parts(kind, &[b"hello", b" world"]);
            let whole = whole_checksum(kind, false, &parts.iter().collect::<Vec<_>>()).unwrap();
            assert_eq!(text_of(&whole), expected);
        }
    }

    #[test]
    fn a_part_without_a_checksum_leaves_none() {
        let mut parts = parts(ChecksumKind::Crc32, &[b"a", b"b"]);
        parts[1].checksums.clear();
        assert_eq!(whole_checksum(ChecksumKind::Crc32, true, &parts.iter().collect::<Vec<_>>()), None);
        assert_eq!(whole_checksum(ChecksumKind::Sha256, true, &parts.iter().collect::<Vec<_>>()), None);
    }
}
