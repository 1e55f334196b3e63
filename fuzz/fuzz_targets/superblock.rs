#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_format::{Superblock, negotiate};

mod reseal;

fuzz_target!(|data: &[u8]| {
    let sealed = reseal::block(data, b"STOKERSB");
    for bytes in [data, &sealed] {
        if let Ok(superblock) = Superblock::decode(bytes) {
            let _ = negotiate(&superblock);
            assert_eq!(Superblock::decode(&superblock.encode()).as_ref(), Ok(&superblock));
        }
    }
    let newest = Superblock::newest(data, &sealed);
    assert_eq!(newest.is_ok(), Superblock::decode(data).is_ok() || Superblock::decode(&sealed).is_ok());
});
