#![no_main]

use libfuzzer_sys::fuzz_target;
use stoker_format::{decode_deaths, encode_deaths};

fuzz_target!(|data: &[u8]| {
    if let Ok(deaths) = decode_deaths(data) {
        assert_eq!(encode_deaths(&deaths), data);
    }
});
