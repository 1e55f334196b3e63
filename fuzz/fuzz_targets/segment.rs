#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_format::SegmentHeader;

mod reseal;

fuzz_target!(|data: &[u8]| {
    for bytes in [data, &reseal::block(data, b"STOKERSG")] {
        if let Ok(segment) = SegmentHeader::decode(bytes) {
            assert_eq!(SegmentHeader::decode(&segment.encode()), Ok(segment));
        }
    }
});
