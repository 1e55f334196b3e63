use super::*;

/// Made by OpenSSL for 90 days.
const SHORT: &str = "\
-----BEGIN CERTIFICATE-----
MIIBhzCCAS2gAwIBAgIUdNEgH93R+pDQN1COzlUTipm266IwCgYIKoZIzj0EAwIw
GTEXMBUGA1UEAwwOc3Rva2VyLmV4YW1wbGUwHhcNMjYxMTE2MjE0MzMzWhcNMjcw
MjE0MjE0MzMzWjAZMRcwFQYDVQQDDA5zdG9rZXIuZXhhbXBsZTBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABBKA8oDZxBHmQIstRBjv61d4S1GUN52xjQvkkwzFdTR9
Kigubd+bxA0CsS9Qt3Rqai9JgntoIrtU891jKRXuQu+jUzBRMB0GA1UdDgQWBBRY
A1uBUK0IAndj2Kyc9VgAR4c3oTAfBgNVHSMEGDAWgBRYA1uBUK0IAndj2Kyc9VgA
R4c3oTAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIAJwdKtsEEva
WRXjaqceiRwqBPNzYN3n2gvIf7r0dhfwAiEA6smJC8oGYZF13mYWTm0TVF1rnQa2
ZT5FyGVsdUmixKo=
-----END CERTIFICATE-----";

/// Made by OpenSSL for 12000 days: past 2050 years have four digits.
const LONG: &str = "\
-----BEGIN CERTIFICATE-----
MIIBiTCCAS+gAwIBAgIUErY54kIid7oQ7U4sx6B0o3wM7dEwCgYIKoZIzj0EAwIw
GTEXMBUGA1UEAwwOc3Rva2VyLmV4YW1wbGUwIBcNMjYxMTE2MjE0NDE3WhgPMjA1
OTA5MjQyMTQ0MTdaMBkxFzAVBgNVBAMMDnN0b2tlci5leGFtcGxlMFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAEms3hSlbBJ1XI8NOBDx1lWkZqlB3X29c81wtzZn+0
dfrAgmCOu9ADeidaoYQo5SGssjFitTBgSX0mUTGS+krVDqNTMFEwHQYDVR0OBBYE
FGhzJZNEGo/0YBLPAzs5JmJsLhkRMB8GA1UdIwQYMBaAFGhzJZNEGo/0YBLPAzs5
JmJsLhkRMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgS6pZv33G
9PVCNy/hZ7DLxhi91i878yUp7UQGhMIRztUCIQDfG601miYn8lJAJn92gjm65GTQ
zGmflOyhlVadKs3v1A==
-----END CERTIFICATE-----";

#[test]
fn certificates_of_openssl() {
    assert_eq!(validity_of_pem(SHORT), Ok((1794865413, 1802641413)));
    assert_eq!(validity_of_pem(LONG), Ok((1794865457, 2831665457)));
    assert_eq!(validity_of_pem(&format!("Subject: a chain\n{SHORT}{LONG}")), validity_of_pem(SHORT));
}

#[test]
fn damaged_ones_are_refused_or_read() {
    let body: String = SHORT.lines().filter(|line| !line.starts_with('-')).collect();
    let der = BASE64_STANDARD.decode(body).unwrap();
    for len in 0..der.len() {
        // The signature at the end is not looked at, but the outermost length is.
        assert!(validity_of_der(&der[..len]).is_err(), "{len}");
    }
    for at in 0..der.len() {
        for bit in 0..8 {
            let mut damaged = der.clone();
            damaged[at] ^= 1 << bit;
            let _ = validity_of_der(&damaged);
        }
    }
    for text in
        ["", "-----BEGIN CERTIFICATE-----", "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----"]
    {
        assert!(validity_of_pem(text).is_err(), "{text}");
    }
}

#[test]
fn dates() {
    for (date, expect) in
        [((1970, 1, 1), 0), ((2000, 2, 29), 11_016), ((2024, 3, 1), 19_783), ((2100, 3, 1), 47_541)]
    {
        assert_eq!(days(date.0, date.1, date.2), expect, "{date:?}");
    }
}
