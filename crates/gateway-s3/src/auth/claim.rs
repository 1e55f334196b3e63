//! What a request says about its signature, before anything of it is believed.

use http::HeaderMap;
use stoker_sigv4::ALGORITHM;

use crate::clock;
use crate::query::Query;
use crate::refusal::{Code, Refusal, Result};

/// Longest life of a presigned request.
const EXPIRES_S_MAX: i64 = 7 * 86_400;

/// Longest name of a region.
const REGION_LEN_MAX: usize = 64;

/// What a signature is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// Buckets and objects.
    S3,
    /// Temporary keys.
    Sts,
}

impl Service {
    /// As scopes have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Service::S3 => "s3",
            Service::Sts => "sts",
        }
    }
}

/// Key, day, region and service that a signature is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Scope<'a> {
    /// Public part of the access key.
    pub(crate) access_key: &'a str,
    /// `20130524`.
    pub(crate) day: &'a str,
    /// Region.
    pub(crate) region: &'a str,
}

impl<'a> Scope<'a> {
    /// Reads `key/20130524/us-east-1/s3/aws4_request`. The key itself may hold slashes.
    pub(crate) fn parse(credential: &'a str) -> Option<Scope<'a>> {
        Scope::of_service(credential, Service::S3)
    }

    fn of_service(credential: &'a str, wanted: Service) -> Option<Scope<'a>> {
        let mut pieces = credential.rsplitn(5, '/');
        let (end, service) = (pieces.next()?, pieces.next()?);
        let (region, day, access_key) = (pieces.next()?, pieces.next()?, pieces.next()?);
        let sound = end == "aws4_request"
            && service == wanted.name()
            && day.len() == 8
            && day.bytes().all(|byte| byte.is_ascii_digit())
            && (1..=REGION_LEN_MAX).contains(&region.len())
            && !access_key.is_empty();
        sound.then_some(Scope { access_key, day, region })
    }
}

/// How the request is signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Means {
    /// By the Authorization header.
    Header,
    /// By the query, valid for so many seconds.
    Query { expires_s: i64 },
}

/// A signature and what it is said to cover.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Claim<'a> {
    pub(super) means: Means,
    pub(super) scope: Scope<'a>,
    /// `20130524T000000Z`.
    pub(super) time: String,
    /// The same in seconds since 1970.
    pub(super) time_s: i64,
    /// Names in lower case, separated by semicolons.
    pub(super) signed_headers: &'a str,
    /// 64 hex digits.
    pub(super) signature: &'a str,
}

impl<'a> Claim<'a> {
    /// Finds the claim of a request; none is refused, because nobody is anonymous here.
    pub(super) fn find(headers: &'a HeaderMap, query: &'a Query, service: Service) -> Result<Claim<'a>> {
        let header = headers.get(http::header::AUTHORIZATION);
        let by_query =
            query.has("X-Amz-Signature") || query.has("X-Amz-Algorithm") || query.has("X-Amz-Credential");
        match (header, by_query) {
            (Some(_), true) => Err(Refusal::new(
                Code::InvalidArgument,
                "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter or the Authorization header \
                 should be specified.",
            )),
            (Some(value), false) => {
                let text = value.to_str().map_err(|_| malformed("The authorization header is not ASCII."))?;
                Claim::of_header(text, headers, service)
            }
            (None, true) => Claim::of_query(query, service),
            (None, false) if query.has("AWSAccessKeyId") => Err(wrong_algorithm()),
            (None, false) => {
                Err(Refusal::new(Code::AccessDenied, "Access Denied: anonymous requests are not allowed."))
            }
        }
    }

    fn of_header(text: &'a str, headers: &'a HeaderMap, service: Service) -> Result<Claim<'a>> {
        let Some(rest) = text.strip_prefix(ALGORITHM) else {
            return Err(wrong_algorithm());
        };
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for field in rest.split(',') {
            let Some((name, value)) = field.trim().split_once('=') else {
                return Err(malformed("The authorization header is malformed: a field has no value."));
            };
            let slot = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut signed_headers,
                "Signature" => &mut signature,
                _ => {
                    return Err(malformed("The authorization header is malformed: it has an unknown field."));
                }
            };
            if slot.replace(value.trim()).is_some() {
                return Err(malformed("The authorization header is malformed: it has a field twice."));
            }
        }
        let (Some(credential), Some(signed_headers), Some(signature)) =
            (credential, signed_headers, signature)
        else {
            return Err(malformed(
                "The authorization header is malformed: it needs Credential, SignedHeaders and Signature.",
            ));
        };
        let Some(scope) = Scope::of_service(credential, service) else {
            return Err(malformed(
                "The authorization header is malformed: the Credential has to be key/yyyymmdd/region/s3/aws4_request.",
            ));
        };
        let (time, time_s) = time_of(headers)?;
        check_signature(signature).map_err(malformed)?;
        if !time.starts_with(scope.day) {
            return Err(malformed(
                "The authorization header is malformed: the Credential's date is not the request's.",
            ));
        }
        Ok(Claim { means: Means::Header, scope, time, time_s, signed_headers, signature })
    }

    fn of_query(query: &'a Query, service: Service) -> Result<Claim<'a>> {
        let wrong = |message: &'static str| Refusal::new(Code::AuthorizationQueryParametersError, message);
        let want = |name: &'static str| {
            query.get(name).ok_or_else(|| {
                wrong(
                    "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, \
                     X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.",
                )
            })
        };
        if want("X-Amz-Algorithm")? != ALGORITHM {
            return Err(wrong("X-Amz-Algorithm only supports AWS4-HMAC-SHA256."));
        }
        let scope = Scope::of_service(want("X-Amz-Credential")?, service)
            .ok_or_else(|| wrong("X-Amz-Credential has to be key/yyyymmdd/region/s3/aws4_request."))?;
        let time = want("X-Amz-Date")?;
        let time_s =
            clock::parse_basic(time).ok_or_else(|| wrong("X-Amz-Date has to be like 20130524T000000Z."))?;
        let expires = want("X-Amz-Expires")?;
        let expires_s = expires
            .parse::<i64>()
            .ok()
            .filter(|expires_s| *expires_s >= 0)
            .ok_or_else(|| wrong("X-Amz-Expires has to be a number that is not negative."))?;
        if expires_s > EXPIRES_S_MAX {
            return Err(wrong("X-Amz-Expires must be less than a week (in seconds): at most 604800."));
        }
        let signature = want("X-Amz-Signature")?;
        check_signature(signature).map_err(wrong)?;
        if !time.starts_with(scope.day) {
            return Err(wrong("The date of X-Amz-Credential is not that of X-Amz-Date."));
        }
        let signed_headers = want("X-Amz-SignedHeaders")?;
        let means = Means::Query { expires_s };
        Ok(Claim { means, scope, time: time.to_owned(), time_s, signed_headers, signature })
    }
}

/// When the request says that it was made.
fn time_of(headers: &HeaderMap) -> Result<(String, i64)> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(time) = text("x-amz-date")
        && let Some(time_s) = clock::parse_basic(time)
    {
        return Ok((time.to_owned(), time_s));
    }
    // Some programs put a date of HTTP into the header that wants the other form.
    if let Some(date) = text("x-amz-date").or_else(|| text("date"))
        && let Some(time) = universal(date)
        && let Ok(since) = time.duration_since(std::time::UNIX_EPOCH)
    {
        let time_s = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        return Ok((stoker_sigv4::time_text(since.as_secs()), time_s));
    }
    Err(Refusal::new(Code::AccessDenied, "AWS authentication requires a valid Date or x-amz-date header."))
}

/// A date of HTTP; botocore writes it as mails do.
fn universal(date: &str) -> Option<std::time::SystemTime> {
    let as_mails = date.strip_suffix(" -0000").or_else(|| date.strip_suffix(" +0000"));
    let date = as_mails.map_or_else(|| date.to_owned(), |date| format!("{date} GMT"));
    httpdate::parse_http_date(&date).ok()
}

fn check_signature(signature: &str) -> Result<(), &'static str> {
    let sound = signature.len() == 64 && signature.bytes().all(|byte| byte.is_ascii_hexdigit());
    if sound { Ok(()) } else { Err("The signature has to be 64 hex digits.") }
}

fn malformed(message: &'static str) -> Refusal {
    Refusal::new(Code::AuthorizationHeaderMalformed, message)
}

fn wrong_algorithm() -> Refusal {
    Refusal::new(
        Code::InvalidRequest,
        "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn code(authorization: &str, query: &str) -> Code {
        let mut headers = headers(&[("x-amz-date", "20130524T000000Z")]);
        if !authorization.is_empty() {
            headers.insert("authorization", authorization.parse().unwrap());
        }
        Claim::find(&headers, &Query::parse(Some(query)).unwrap(), Service::S3).unwrap_err().code
    }

    #[test]
    fn keys_may_hold_slashes() {
        let scope = Scope::parse("a/b/20130524/us-east-1/s3/aws4_request").unwrap();
        assert_eq!(scope, Scope { access_key: "a/b", day: "20130524", region: "us-east-1" });
        for bad in [
            "",
            "k/20130524/r/s3",
            "k/20130524/r/sts/aws4_request",
            "k/2013/r/s3/aws4_request",
            "/20130524/r/s3/aws4_request",
        ] {
            assert_eq!(Scope::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_are_read_in_both_forms_wherever_they_stand() {
        let http = "Fri, 24 May 2013 00:00:00 GMT";
        for pairs in [
            &[("x-amz-date", "20130524T000000Z"), ("date", "nonsense")][..],
            &[("date", http)],
            &[("date", "Fri, 24 May 2013 00:00:00 -0000")],
            &[("x-amz-date", http)],
            &[("x-amz-date", http), ("date", "")],
        ] {
            let (text, time_s) = time_of(&headers(pairs)).unwrap();
            assert_eq!((text.as_str(), time_s), ("20130524T000000Z", 1_369_353_600), "{pairs:?}");
        }
        assert!(time_of(&headers(&[("x-amz-date", "soon")])).is_err());
    }

    #[test]
    fn both_spellings_of_the_header_are_read() {
        let signature = "f".repeat(64);
        for comma in [",", ", "] {
            let text = format!(
                "AWS4-HMAC-SHA256 Credential=k/20130524/r/s3/aws4_request{comma}SignedHeaders=host{comma}Signature={signature}"
            );
            let headers = headers(&[("x-amz-date", "20130524T000000Z"), ("authorization", &text)]);
            let query = Query::default();
            let claim = Claim::find(&headers, &query, Service::S3).unwrap();
            assert_eq!((claim.scope.access_key, claim.signed_headers), ("k", "host"));
        }
    }

    #[test]
    fn malformed_claims_get_their_codes() {
        let signature = "f".repeat(64);
        let good =
            format!("Credential=k/20130524/r/s3/aws4_request,SignedHeaders=host,Signature={signature}");
        assert_eq!(code("", ""), Code::AccessDenied);
        assert_eq!(code("AWS k:sig", ""), Code::InvalidRequest);
        assert_eq!(code("Bearer x", ""), Code::InvalidRequest);
        assert_eq!(code("", "AWSAccessKeyId=k&Signature=s&Expires=1"), Code::InvalidRequest);
        assert_eq!(code(&format!("AWS4-HMAC-SHA256 {good}"), "X-Amz-Signature=1"), Code::InvalidArgument);
        for bad in [
            "",
            "Credential",
            "Credential=k",
            &good.replace("host,", "host,SignedHeaders=host,"),
            &good.replace("20130524", "20130525"),
            &good.replace("ffff", "ggff"),
            &good.replace("s3", "ec2"),
            &format!("{good},What=1"),
        ] {
            assert_eq!(
                code(&format!("AWS4-HMAC-SHA256 {bad}"), ""),
                Code::AuthorizationHeaderMalformed,
                "{bad}"
            );
        }
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=k/20130524/r/s3/aws4_request&X-Amz-Date=20130524T000000Z\
             &X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature={signature}"
        );
        let parsed = Query::parse(Some(&query)).unwrap();
        assert_eq!(
            Claim::find(&HeaderMap::new(), &parsed, Service::S3).unwrap().means,
            Means::Query { expires_s: 60 }
        );
        for (from, to) in [
            ("Expires=60", "Expires=604801"),
            ("Expires=60", "Expires=-1"),
            ("Expires=60", "Expires=x"),
            ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"),
            ("k/20130524", "k/20130525"),
            ("X-Amz-SignedHeaders", "Y"),
            ("20130524T000000Z", "yesterday"),
            ("ffff", "f"),
        ] {
            assert_eq!(code("", &query.replace(from, to)), Code::AuthorizationQueryParametersError, "{to}");
        }
    }

    #[test]
    fn the_date_header_is_an_alternative() {
        let headers = headers(&[("date", "Fri, 24 May 2013 00:00:00 GMT")]);
        assert_eq!(time_of(&headers).unwrap(), ("20130524T000000Z".to_owned(), 1_369_353_600));
        assert_eq!(time_of(&HeaderMap::new()).unwrap_err().code, Code::AccessDenied);
    }
}
