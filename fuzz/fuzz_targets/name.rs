#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_format::NameRecord;

// The marks of known fields are not kept, so bytes may differ; length and meaning may not.
fuzz_target!(|data: &[u8]| {
    if let Ok(name) = NameRecord::decode(data) {
        let again = name.encode();
        assert_eq!(again.len(), data.len());
        assert_eq!(NameRecord::decode(&again), Ok(name));
    }
});
