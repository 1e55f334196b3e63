//! Settings of a bucket that are kept: its tags, which web pages may use it, and what is so anyway (who owns its objects, that the public has no
//! access). Documents are kept as they came, once they are known to make sense.

use http::StatusCode;
use s3s::dto::{CORSConfiguration, OwnershipControls, PublicAccessBlockConfiguration, Tagging};
use s3s::xml::{Deserialize, Deserializer};
use stoker_access::POLICY_SETTING;
use stoker_store::{ErrorKind, Store};

use crate::answer::{self, Answer};
use crate::cors::{METHODS, Rule};
use crate::hot::attributes::check_bucket_tags;
use crate::operation::Operation;
use crate::refusal::{Code, Refusal, Result};
use crate::settings::filled;

/// Most rules, as in S3.
const RULES_MAX: usize = 100;

/// Whose the objects of a bucket are: it is so anyway.
pub(super) const BUCKET_OWNER_ENFORCED: &str = "BucketOwnerEnforced";
pub(super) const NOT_OTHERWISE_OWNED: &str =
    "Objects belong to the owner of the bucket: there is only BucketOwnerEnforced.";

/// What is done to a setting.
enum Deed {
    Get,
    /// Whether it is public, which nothing here is.
    GetStatus,
    Put,
    Delete,
}

fn deed(operation: Operation) -> Option<(&'static str, Deed)> {
    use Operation as O;
    Some(match operation {
        O::GetBucketCors => ("cors", Deed::Get),
        O::PutBucketCors => ("cors", Deed::Put),
        O::DeleteBucketCors => ("cors", Deed::Delete),
        O::GetBucketTagging => ("tagging", Deed::Get),
        O::PutBucketTagging => ("tagging", Deed::Put),
        O::DeleteBucketTagging => ("tagging", Deed::Delete),
        O::GetBucketOwnershipControls => ("ownership", Deed::Get),
        O::PutBucketOwnershipControls => ("ownership", Deed::Put),
        O::DeleteBucketOwnershipControls => ("ownership", Deed::Delete),
        O::GetBucketPolicy => (POLICY_SETTING, Deed::Get),
        O::GetBucketPolicyStatus => (POLICY_SETTING, Deed::GetStatus),
        O::PutBucketPolicy => (POLICY_SETTING, Deed::Put),
        O::DeleteBucketPolicy => (POLICY_SETTING, Deed::Delete),
        O::GetPublicAccessBlock => ("public-access", Deed::Get),
        O::PutPublicAccessBlock => ("public-access", Deed::Put),
        O::DeletePublicAccessBlock => ("public-access", Deed::Delete),
        _ => return None,
    })
}

/// Answers, if it is about a setting that is kept and, of one that is only looked at, set.
pub(super) async fn answer(
    store: &dyn Store,
    operation: Operation,
    volume: &str,
    document: &[u8],
) -> Result<Option<Answer>> {
    let Some((name, deed)) = deed(operation) else { return Ok(None) };
    let done = match deed {
        Deed::Get => {
            let shown = if name == POLICY_SETTING { answer::json } else { answer::xml };
            return Ok(store.volume_setting(volume, name).await?.map(|it| shown(StatusCode::OK, it)));
        }
        Deed::GetStatus => {
            let found = store.volume_setting(volume, name).await?;
            return found.map(|_| filled("PolicyStatus", "<IsPublic>FALSE</IsPublic>")).transpose();
        }
        Deed::Put => {
            check(operation, document)?;
            let set = store.set_volume_setting(volume, name, Some(document.to_vec())).await;
            set.map_err(|fault| match fault.kind {
                ErrorKind::Invalid if name == POLICY_SETTING => {
                    Refusal::new(Code::MalformedPolicy, fault.message)
                }
                _ => fault.into(),
            })?;
            // S3 says so of these.
            let says_nothing = [Operation::PutBucketTagging, Operation::PutBucketPolicy].contains(&operation);
            if says_nothing { StatusCode::NO_CONTENT } else { StatusCode::OK }
        }
        Deed::Delete => {
            store.set_volume_setting(volume, name, None).await?;
            StatusCode::NO_CONTENT
        }
    };
    Ok(Some(answer::bare(done)))
}

/// The rules by which web pages may use a bucket.
pub(crate) async fn cors_rules(store: &dyn Store, volume: &str) -> Vec<Rule> {
    let found = store.volume_setting(volume, "cors").await.ok().flatten();
    found.and_then(|document| rules(&document).ok()).unwrap_or_default()
}

fn check(operation: Operation, document: &[u8]) -> Result<()> {
    match operation {
        Operation::PutBucketCors => rules(document).map(drop),
        // Whoever decides by it reads it.
        Operation::PutBucketPolicy => Ok(()),
        Operation::PutBucketTagging => {
            let tags: Tagging = parse(document)?;
            let tag = |tag: s3s::dto::Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
            check_bucket_tags(&tags.tag_set.into_iter().map(tag).collect::<Vec<_>>())
        }
        Operation::PutBucketOwnershipControls => {
            let controls: OwnershipControls = parse(document)?;
            let fits = |rule: &s3s::dto::OwnershipControlsRule| {
                rule.object_ownership.as_str() == BUCKET_OWNER_ENFORCED
            };
            match controls.rules.as_slice() {
                [rule] if fits(rule) => Ok(()),
                [_] => Err(Refusal::new(Code::NotImplemented, NOT_OTHERWISE_OWNED)),
                _ => Err(malformed()),
            }
        }
        _ => parse::<PublicAccessBlockConfiguration>(document).map(drop),
    }
}

fn rules(document: &[u8]) -> Result<Vec<Rule>> {
    let configuration: CORSConfiguration = parse(document)?;
    let rules = configuration.cors_rules;
    if rules.is_empty() || rules.len() > RULES_MAX {
        return Err(malformed());
    }
    let rule = |rule: s3s::dto::CORSRule| {
        let invalid = |message: String| Refusal::new(Code::InvalidRequest, message);
        if rule.allowed_methods.is_empty() || rule.allowed_origins.is_empty() {
            return Err(malformed());
        }
        if let Some(odd) =
            rule.allowed_methods.iter().find(|method| !METHODS.iter().any(|known| *known == method.as_str()))
        {
            let message =
                format!("Found unsupported HTTP method in CORS config. Unsupported method is {odd}");
            return Err(invalid(message));
        }
        let headers = rule.allowed_headers.unwrap_or_default();
        for (what, name) in rule
            .allowed_origins
            .iter()
            .map(|name| ("AllowedOrigin", name))
            .chain(headers.iter().map(|name| ("AllowedHeader", name)))
        {
            if name.matches('*').count() > 1 {
                return Err(invalid(format!("{what} \"{name}\" can not have more than one wildcard.")));
            }
        }
        Ok(Rule {
            origins: rule.allowed_origins,
            methods: rule.allowed_methods,
            headers,
            exposed: rule.expose_headers.unwrap_or_default(),
            age_s: rule.max_age_seconds,
        })
    };
    rules.into_iter().map(rule).collect()
}

pub(crate) fn parse<'d, T: Deserialize<'d>>(document: &'d [u8]) -> Result<T> {
    let mut reader = Deserializer::new(document);
    let read = T::deserialize(&mut reader).and_then(|read| reader.expect_eof().map(|()| read));
    read.map_err(|_| malformed())
}

pub(crate) fn malformed() -> Refusal {
    Refusal::new(
        Code::MalformedXML,
        "The XML you provided was not well-formed or did not validate against our published schema",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_looked_at_before_they_are_kept() {
        let cors =
            |inner: &str| format!("<CORSConfiguration><CORSRule>{inner}</CORSRule></CORSConfiguration>");
        let plain = "<AllowedMethod>GET</AllowedMethod><AllowedOrigin>https://*.a.test</AllowedOrigin>";
        let owner = |who: &str| {
            format!(
                "<OwnershipControls><Rule><ObjectOwnership>{who}</ObjectOwnership></Rule></OwnershipControls>"
            )
        };
        let tags = |inner: &str| format!("<Tagging><TagSet>{inner}</TagSet></Tagging>");
        let one = "<Tag><Key>a</Key><Value>b</Value></Tag>";
        use Operation as O;
        for (operation, document, expected) in [
            (O::PutBucketCors, cors(plain), Ok(())),
            (O::PutBucketCors, cors(&plain.replace("GET", "PATCH")), Err(Code::InvalidRequest)),
            (O::PutBucketCors, cors(&plain.replace("https", "*")), Err(Code::InvalidRequest)),
            (O::PutBucketCors, cors("<AllowedMethod>GET</AllowedMethod>"), Err(Code::MalformedXML)),
            (O::PutBucketCors, "<CORSConfiguration/>".to_owned(), Err(Code::MalformedXML)),
            (O::PutBucketCors, "nonsense".to_owned(), Err(Code::MalformedXML)),
            (O::PutBucketCors, cors(plain) + "<x/>", Err(Code::MalformedXML)),
            (O::PutBucketTagging, tags(one), Ok(())),
            (O::PutBucketTagging, tags(&one.repeat(2)), Err(Code::InvalidTag)),
            (O::PutBucketOwnershipControls, owner("BucketOwnerEnforced"), Ok(())),
            (O::PutBucketOwnershipControls, owner("ObjectWriter"), Err(Code::NotImplemented)),
            (
                O::PutPublicAccessBlock,
                "<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>"
                    .to_owned(),
                Ok(()),
            ),
            (O::PutPublicAccessBlock, String::new(), Err(Code::MalformedXML)),
        ] {
            let found = check(operation, document.as_bytes()).map_err(|refusal| refusal.code);
            assert_eq!(found, expected, "{document}");
        }
    }
}
