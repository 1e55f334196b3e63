#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_format::{
    Generation, RECORD_HEADER_LEN, RECORD_LEN_MAX, RecordHeader, RecordPlace, RingId, crc64_seeded,
    header_len, header_span,
};

const NONCE: u64 = 0x5eed;
const SEGMENT_SIZE: u32 = 256 << 20;

fuzz_target!(|data: &[u8]| {
    let anywhere = RecordPlace {
        ring: RingId::ZERO,
        generation: Generation(1),
        nonce: NONCE,
        offset: 4096,
        segment_size: SEGMENT_SIZE,
    };
    check(data, &anywhere);
    if let Some((bytes, at)) = resealed(data) {
        check(&bytes, &at);
    }
});

fn check(bytes: &[u8], at: &RecordPlace) {
    let Ok(record) = RecordHeader::decode(bytes, at) else { return };
    let header = record.header;
    let mut again = vec![0; header_span(header.len as usize, header.aux_per_block)];
    header.encode(at.nonce, &record.table, &record.aux, &mut again);
    assert_eq!(RecordHeader::decode(&again, at), Ok(record));
}

/// The input with a true magic, version and CRC, and the place that it says it belongs to. Small inputs still
/// reach large tables: what the input does not hold is zero.
fn resealed(data: &[u8]) -> Option<(Vec<u8>, RecordPlace)> {
    let mut bytes = data.to_vec();
    bytes.get_mut(..8)?.copy_from_slice(b"STOKERRC");
    bytes.get_mut(8..10)?.copy_from_slice(&1_u16.to_le_bytes());
    let at = RecordPlace {
        ring: RingId(bytes.get(16..32)?.try_into().ok()?),
        generation: Generation(u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?)),
        nonce: NONCE,
        offset: u32::from_le_bytes(bytes.get(40..44)?.try_into().ok()?),
        segment_size: SEGMENT_SIZE,
    };
    let len = u32::from_le_bytes(bytes.get(48..52)?.try_into().ok()?) as usize;
    let need = header_len(len.min(RECORD_LEN_MAX), bytes[11]);
    bytes.resize(need, 0);
    let crc = crc64_seeded(NONCE, &[&bytes[..RECORD_HEADER_LEN - 8], &bytes[RECORD_HEADER_LEN..]]);
    bytes[RECORD_HEADER_LEN - 8..RECORD_HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
    Some((bytes, at))
}
