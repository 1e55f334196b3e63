#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_format::{BLOCK, FOOTER_ENTRY_LEN, Footer, crc64_seeded, encode_footer};

mod reseal;

// The first block of the input is the trailer, the rest are entries.
fuzz_target!(|data: &[u8]| {
    let (trailer, entries) = data.split_at(data.len().min(BLOCK));
    for bytes in [trailer, &reseal::block(trailer, b"STOKERFT")] {
        let Ok(footer) = Footer::decode(bytes) else { continue };
        check(&footer, entries);
        let count = (footer.entry_count as usize).min(entries.len() / FOOTER_ENTRY_LEN);
        let index = &entries[..count * FOOTER_ENTRY_LEN];
        let entries_crc = crc64_seeded(footer.nonce, &[index]);
        check(&Footer { entry_count: count as u32, entries_crc, ..footer }, entries);
    }
});

fn check(footer: &Footer, bytes: &[u8]) {
    let Ok(entries) = footer.decode_entries(bytes) else { return };
    assert_eq!(entries.len(), footer.entry_count as usize);
    let again = encode_footer(footer, &entries);
    let decoded = Footer::decode(&again[again.len() - BLOCK..]).expect("our own footer");
    assert_eq!(decoded.decode_entries(&again), Ok(entries));
}
