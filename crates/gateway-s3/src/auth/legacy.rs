//! Presigned requests of Signature Version 2, which boto3 and others still make for us-east-1 when nobody told them otherwise: HMAC-SHA1 over method,
//! type, end of life, `x-amz-` headers and resource. In queries and in policies of forms only, and only where the options allow it.

use aws_lc_rs::hmac::{HMAC_SHA1_FOR_LEGACY_USE_ONLY, Key, verify};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::request::Parts as Head;

use crate::query::Query;
use crate::refusal::{Code, Refusal, Result};

/// Parameters that the signature covers, because they change what is meant.
const COVERED: [&str; 40] = [
    "accelerate",
    "acl",
    "analytics",
    "attributes",
    "cors",
    "delete",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "partNumber",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "restore",
    "retention",
    "select",
    "select-type",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versions",
    "website",
];

/// Of these too: they are no property of a file, and older clients sign them.
const COVERED_MORE: [&str; 2] = ["storageClass", "versioning"];

/// Whether a query has such a signature.
pub(super) fn is_signed_so(query: &Query) -> bool {
    query.has("AWSAccessKeyId") && query.has("Signature")
}

/// What a query says about its signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LegacyClaim<'a> {
    pub(super) access_key: &'a str,
    expires: &'a str,
    signature: &'a str,
}

impl<'a> LegacyClaim<'a> {
    /// Reads it, and that it is not over.
    pub(super) fn of(headers: &HeaderMap, query: &'a Query, now_s: i64) -> Result<LegacyClaim<'a>> {
        if headers.contains_key(http::header::AUTHORIZATION) || query.has("X-Amz-Signature") {
            return Err(Refusal::new(Code::InvalidArgument, "Only one auth mechanism allowed."));
        }
        let expires = query.get("Expires").ok_or_else(|| {
            Refusal::new(
                Code::AccessDenied,
                "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters.",
            )
        })?;
        let expires_s = expires
            .parse::<i64>()
            .map_err(|_| Refusal::new(Code::AccessDenied, "Invalid date (should be seconds since epoch)."))?;
        if now_s >= expires_s {
            return Err(Refusal::new(Code::AccessDenied, "Request has expired."));
        }
        let text = |name| query.get(name).unwrap_or_default();
        Ok(LegacyClaim { access_key: text("AWSAccessKeyId"), expires, signature: text("Signature") })
    }

    /// Whether the signature is right. `volume` is the one that the host names, if it does.
    pub(super) fn is_right(
        &self,
        head: &Head,
        query: &Query,
        volume: Option<&str>,
        secret_key: &str,
    ) -> bool {
        let Ok(theirs) = STANDARD.decode(self.signature) else { return false };
        let key = Key::new(HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret_key.as_bytes());
        let path = head.uri.path();
        let resource = volume.map_or(path.to_owned(), |volume| format!("/{volume}{path}"));
        // A bucket by its path is signed with a slash behind it, or without; a parameter without a value with an equals sign, or without.
        // Which of them it was, nothing in the request says.
        let is_bucket = volume.is_none() && path.len() > 1 && path.rfind('/') == Some(0);
        let slashed = is_bucket.then(|| format!("{resource}/"));
        [Some(resource), slashed].into_iter().flatten().any(|resource| {
            [Bare::Name, Bare::Equals].into_iter().any(|bare| {
                let text = self.string_to_sign(head, query, &resource, bare);
                verify(&key, text.as_bytes(), &theirs).is_ok()
            })
        })
    }

    fn string_to_sign(&self, head: &Head, query: &Query, resource: &str, bare: Bare) -> String {
        let value = |name: &str| text_of(&head.headers, query, name).unwrap_or_default();
        let mut text = format!(
            "{}\n{}\n{}\n{}\n",
            head.method,
            value("content-md5"),
            value("content-type"),
            self.expires
        );
        let own = head.headers.keys().map(|name| name.as_str().to_owned());
        let asked = query.names().map(str::to_ascii_lowercase);
        let mut names: Vec<String> = own.chain(asked).filter(|name| name.starts_with("x-amz-")).collect();
        names.sort_unstable();
        names.dedup();
        for name in &names {
            text.push_str(&format!("{name}:{}\n", value(name)));
        }
        text.push_str(resource);
        let is_covered = |name: &&str| COVERED.contains(name) || COVERED_MORE.contains(name);
        let mut names: Vec<&str> = query.names().filter(is_covered).collect();
        names.sort_unstable();
        for (index, name) in names.into_iter().enumerate() {
            text.push(if index == 0 { '?' } else { '&' });
            text.push_str(name);
            match (query.get(name).unwrap_or_default(), bare) {
                ("", Bare::Name) => {}
                (value, _) => text.push_str(&format!("={value}")),
            }
        }
        text
    }
}

/// Whether the signature of a form's policy is right.
pub(super) fn is_policy_right(policy: &str, signature: &str, secret_key: &str) -> bool {
    let Ok(theirs) = STANDARD.decode(signature) else { return false };
    let key = Key::new(HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret_key.as_bytes());
    verify(&key, policy.as_bytes(), &theirs).is_ok()
}

/// How a parameter without a value is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bare {
    Name,
    Equals,
}

/// A header, all of it, or the parameter that stands for it: clients move headers of a presigned request there.
fn text_of(headers: &HeaderMap, query: &Query, name: &str) -> Option<String> {
    let mut values = headers.get_all(name).iter().peekable();
    if values.peek().is_some() {
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).trim().to_owned();
        return Some(values.map(text).collect::<Vec<_>>().join(","));
    }
    let parameter = query.names().find(|parameter| parameter.eq_ignore_ascii_case(name))?;
    query.get(parameter).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

    fn check(method: &str, uri: &str, headers: &[(&str, &str)], volume: Option<&str>) -> bool {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let query = Query::parse(head.uri.query()).unwrap();
        let claim = LegacyClaim::of(&head.headers, &query, 0).unwrap();
        claim.is_right(&head, &query, volume, SECRET)
    }

    /// Made by boto3 1.43 for us-east-1, in both styles of addresses.
    #[test]
    fn requests_of_boto3_are_right_and_none_that_were_changed() {
        let sign = |signature: &str| format!("AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature={signature}");
        for (method, path, more, signature, headers) in [
            (
                "GET",
                "/a%20b/%C3%A4%2Bc",
                "response-content-type=text%2Fx%20y&response-content-disposition=attachment%3B%20filename%3D%22a%20b%22",
                "bsuENSOeOPlfwTBr3h59XsG%2BzvA%3D",
                &[][..],
            ),
            (
                "PUT",
                "/k",
                "content-type=text%2Fplain&x-amz-meta-a=b",
                "VuvCR047R%2Bw8yGWCzWlMJvv2SxM%3D",
                &[("content-type", "text/plain"), ("x-amz-meta-a", "b")],
            ),
            ("POST", "/k", "uploads", "9%2FI%2FogbNVIRITeniKMKddzNUda0%3D", &[]),
            ("PUT", "/k", "uploadId=u1&partNumber=3", "priSo1Z61Uw04rY3XaZ%2BGDZtCYo%3D", &[]),
            ("GET", "/", "list-type=2&encoding-type=url", "%2BOOMe4zqnYYQyc3UN7%2BPEodhQVE%3D", &[]),
        ] {
            let query = format!("{more}&{}&Expires=1369357200", sign(signature));
            let bucket = if path == "/" { "/vol".to_owned() } else { format!("/vol{path}") };
            let whole = format!("{bucket}?{query}");
            assert!(check(method, &whole, headers, None), "{method} {whole}");
            assert!(check(method, &whole, &[], None), "headers stand in the query, too");
            assert!(check(method, &format!("{path}?{query}"), headers, Some("vol")), "{method} {path}");
            for (from, to) in [
                ("Expires=1369357200", "Expires=1369357201"),
                ("/vol", "/vole"),
                ("Signature=", "Signature=A"),
                ("Expires", "tagging&Expires"),
                ("Expires", "acl=&Expires"),
                ("Expires", "x-amz-meta-b=c&Expires"),
            ] {
                assert!(!check(method, &whole.replacen(from, to, 1), headers, None), "{method} {whole} {to}");
            }
            assert!(!check("DELETE", &whole, headers, None));
            assert!(!check(method, &whole, &[("content-type", "text/html")], None));
            assert!(!check(method, &whole, &[("x-amz-acl", "private")], None));
        }
    }

    #[test]
    fn what_is_over_or_odd_is_refused() {
        let read = |text: &str, now_s| {
            let query = Query::parse(Some(text)).unwrap();
            LegacyClaim::of(&HeaderMap::new(), &query, now_s).map(drop).map_err(|refusal| refusal.code)
        };
        let query = "AWSAccessKeyId=a&Signature=b&Expires=100";
        assert_eq!(read(query, 99), Ok(()));
        assert_eq!(read(query, 100), Err(Code::AccessDenied));
        assert_eq!(read("AWSAccessKeyId=a&Signature=b", 0), Err(Code::AccessDenied));
        assert_eq!(read(&query.replace("100", "soon"), 0), Err(Code::AccessDenied));
        assert_eq!(read(&format!("{query}&X-Amz-Signature=x"), 0), Err(Code::InvalidArgument));
    }
}
