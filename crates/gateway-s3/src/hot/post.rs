//! PostObject: uploads from a browser's form. The policy in the form is what is signed, so who asks is known only after
//! its fields were read.

use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use s3s::dto::{Tag, Tagging};
use s3s::xml::{Deserialize as _, Deserializer};
use stoker_store::{Key, Receipt, Store, WriteRequest};

use crate::answer::{self, Answer};
use crate::auth::{Authenticator, Credential, Scope};
use crate::exchange::Exchange;
use crate::operation::Operation;
use crate::percent::{self, Keep};
use crate::query::Query;
use crate::refusal::{Code, Refusal, Result};
use crate::sets::{ShardMark, check_plain};
use crate::target::{Target, key_of};
use crate::versions::check_lockable;
use crate::{clock, rights, xml};

use super::arrivals::{Arrival, Arrivals};
use super::attributes;
use super::checksum::Demands;
use super::form::{FormDecoder, FormStep};
use super::intake::Intake;
use super::policy::Policy;
use super::put::add_receipt;

/// Fields that mean the header of the same name.
const HEADER_FIELDS: [&str; 6] = [
    "cache-control",
    "content-type",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
];

/// A form that is being sent to a volume.
pub(crate) struct Post<'a> {
    /// The volume.
    pub(crate) volume: &'a str,
    /// Headers of the request.
    pub(crate) headers: &'a HeaderMap,
    /// The body.
    pub(crate) arrivals: &'a mut Arrivals,
    /// Most bytes of the file.
    pub(crate) bytes_max: u64,
    /// Longest time that the fields in front of the file may take: until then nobody knows who asks.
    pub(crate) fields_timeout: Duration,
    /// The request, which is told when its signer is known.
    pub(crate) exchange: &'a Exchange,
}

/// Writes the file of a form.
pub(crate) async fn post_object(auth: &Authenticator, post: Post<'_>) -> Result<Answer> {
    let content_type = post.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let mut decoder = FormDecoder::new(content_type.unwrap_or_default())?;
    let fields = read_form(&mut decoder, post.arrivals, post.volume);
    let (form, policy) = tokio::time::timeout(post.fields_timeout, fields).await.map_err(|_| {
        Refusal::new(Code::RequestTimeout, "The fields in front of the file took too long to arrive.")
    })??;
    let credential = form.signer(auth).await?;
    post.exchange.proves();
    // A condition holds of the field as it was sent, or of what becomes of it.
    let now_s = clock::unix_s();
    let filled = form.filled();
    let checked = policy.check(&filled.fields, post.volume, now_s);
    checked.or_else(|refusal| policy.check(&form.fields, post.volume, now_s).map_err(|_| refusal))?;
    let form = filled;
    let key = form.key()?;
    let target = Target::Object(post.volume.to_owned(), key.clone());
    rights::check(&credential, Operation::PostObject, &target, &Query::parse(None)?).await?;

    let headers = form.headers()?;
    let attributes = attributes::of_headers(&headers, &credential.access)?;
    ShardMark::refuse(&attributes)?;
    check_plain(&key)?;
    let demands = Demands::of(&headers, None)?;
    check_lockable(&*credential.view, post.volume, attributes.lock.as_ref()).await?;
    let request = WriteRequest { attributes, ..WriteRequest::default() };
    let writer = credential.view.create(post.volume, &key, request).await?;

    let (fewest, most) = (policy.size.0, policy.size.1.min(post.bytes_max));
    let intake = Intake::new(writer, post.arrivals.memory());
    let (mut intake, mut digests, mut size) = (intake, demands.digests(), 0);
    loop {
        match decoder.step()? {
            FormStep::FileData(data) => {
                size += data.len() as u64;
                if size > most {
                    return Err(Refusal::new(
                        Code::EntityTooLarge,
                        "Your proposed upload exceeds the maximum allowed size.",
                    ));
                }
                digests.update(&data);
                intake.push(data).await?;
            }
            FormStep::End => break,
            _ => match post.arrivals.next(intake.patience()).await? {
                Arrival::Data(data) => decoder.feed(&data),
                Arrival::Quiet => intake.grow_quiet().await?,
                Arrival::End => {
                    return Err(Refusal::new(
                        Code::IncompleteBody,
                        "The form ended before its file was complete.",
                    ));
                }
            },
        }
    }
    if size < fewest {
        return Err(Refusal::new(
            Code::EntityTooSmall,
            "Your proposed upload is smaller than the policy allows.",
        ));
    }
    let writer = intake.end().await?;
    let finish = digests.finish(writer.crc64(), &[])?;
    let receipt = writer.finish(finish).await?;
    form.answer(post.volume, &key, &receipt)
}

async fn read_form(
    decoder: &mut FormDecoder,
    arrivals: &mut Arrivals,
    volume: &str,
) -> Result<(Form, Policy)> {
    let mut fields = Vec::new();
    loop {
        match decoder.step()? {
            FormStep::More => match arrivals.next(None).await? {
                Arrival::Data(data) => decoder.feed(&data),
                Arrival::Quiet => {}
                Arrival::End => {
                    return Err(Refusal::new(Code::MalformedPOSTRequest, "The form ended before its file."));
                }
            },
            FormStep::Field(name, _) if fields.iter().any(|(other, _)| *other == name) => {
                return Err(Refusal::new(Code::InvalidArgument, "A field of the form is given twice."));
            }
            FormStep::Field(name, value) => fields.push((name, value)),
            FormStep::FileStart { filename } => {
                let form = Form { fields, filename };
                let Some(policy) = form.get("policy") else {
                    return Err(Refusal::new(
                        Code::AccessDenied,
                        format!("Access Denied: anonymous uploads to {volume} are not allowed."),
                    ));
                };
                let policy = Policy::parse(policy)?;
                return Ok((form, policy));
            }
            FormStep::FileData(_) | FormStep::End => {
                return Err(Refusal::new(Code::MalformedPOSTRequest, "The form has no file."));
            }
        }
    }
}

/// The field with the session token of a temporary key.
const TOKEN_FIELD: &str = "x-amz-security-token";

/// The fields in front of the file.
struct Form {
    fields: Vec<(String, String)>,
    filename: String,
}

impl Form {
    fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    fn want(&self, name: &'static str) -> Result<&str> {
        self.get(name).ok_or_else(|| {
            Refusal::new(Code::InvalidArgument, format!("Bucket POST must contain a field named '{name}'."))
                .with("ArgumentName", name)
        })
    }

    async fn signer(&self, auth: &Authenticator) -> Result<std::sync::Arc<Credential>> {
        let token = self.get(TOKEN_FIELD);
        if let (Some(access_key), Some(signature)) = (self.get("awsaccesskeyid"), self.get("signature"))
            && self.get("x-amz-algorithm").is_none()
            && let Some(signer) =
                auth.check_legacy_policy(access_key, token, self.want("policy")?, signature).await
        {
            return signer;
        }
        if self.want("x-amz-algorithm")? != "AWS4-HMAC-SHA256" {
            return Err(Refusal::new(Code::InvalidRequest, "Please use AWS4-HMAC-SHA256."));
        }
        let scope = Scope::parse(self.want("x-amz-credential")?).ok_or_else(|| {
            Refusal::new(
                Code::InvalidArgument,
                "x-amz-credential has to be key/yyyymmdd/region/s3/aws4_request.",
            )
        })?;
        let date = self.want("x-amz-date")?;
        if clock::parse_basic(date).is_none() || !date.starts_with(scope.day) {
            return Err(Refusal::new(Code::InvalidArgument, "x-amz-date has to be of the credential's day."));
        }
        auth.check_policy(&scope, token, self.want("policy")?, self.want("x-amz-signature")?).await
    }

    /// The same with the name of the file where fields ask for it.
    fn filled(&self) -> Form {
        // Some browsers give the whole path on the user's machine.
        let name = self.filename.rsplit(['/', '\\']).next().unwrap_or_default();
        let fill = |(field, value): &(String, String)| (field.clone(), value.replace("${filename}", name));
        Form { fields: self.fields.iter().map(fill).collect(), filename: self.filename.clone() }
    }

    fn key(&self) -> Result<Key> {
        key_of(self.want("key")?.to_owned())
    }

    /// The fields that are headers in a PutObject.
    fn headers(&self) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        let mut insert = |name: &str, value: &str| -> Result<()> {
            let odd = || Refusal::new(Code::InvalidArgument, format!("The field {name} cannot be a header."));
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| odd())?;
            headers.insert(HeaderName::from_bytes(name.as_bytes()).map_err(|_| odd())?, value);
            Ok(())
        };
        for (name, value) in &self.fields {
            match name.as_str() {
                "acl" => insert("x-amz-acl", value)?,
                "tagging" => insert("x-amz-tagging", &tagging(value)?)?,
                "x-amz-signature" | "x-amz-credential" | "x-amz-date" | "x-amz-algorithm" | TOKEN_FIELD => {}
                name if name.starts_with("x-amz-") || HEADER_FIELDS.contains(&name) => insert(name, value)?,
                _ => {}
            }
        }
        Ok(headers)
    }

    /// Where the browser is to go, which the policy has to allow by name. What is no address of the web is ignored, as S3 does.
    fn redirect(&self, volume: &str, key: &Key, receipt: &Receipt) -> Option<HeaderValue> {
        let wanted = self.get("success_action_redirect").or(self.get("redirect"))?;
        let uri: http::Uri = wanted.parse().ok()?;
        let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
        let next = if uri.query().is_some() { '&' } else { '?' };
        let (base, mark) = wanted.split_once('#').map_or((wanted, None), |(base, mark)| (base, Some(mark)));
        let mut target = format!(
            "{base}{next}bucket={volume}&key={}&etag=%22{}%22",
            percent::encoded(key.as_bytes(), Keep::Nothing),
            percent::encoded(receipt.etag.as_bytes(), Keep::Nothing),
        );
        if let Some(mark) = mark {
            target = format!("{target}#{mark}");
        }
        HeaderValue::from_str(&target).ok().filter(|_| is_web)
    }

    fn answer(&self, volume: &str, key: &Key, receipt: &Receipt) -> Result<Answer> {
        if let Some(target) = self.redirect(volume, key, receipt) {
            let mut answer = answer::bare(StatusCode::SEE_OTHER);
            add_receipt(answer.headers_mut(), receipt)?;
            answer.headers_mut().insert(http::header::LOCATION, target);
            return Ok(answer);
        }
        let location = format!("/{volume}/{}", percent::encoded(key.as_bytes(), Keep::Slash));
        let mut answer = match self.get("success_action_status") {
            Some("200") => answer::bare(StatusCode::OK),
            Some("201") => {
                let mut out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<PostResponse>".to_owned();
                xml::push_element(&mut out, "Location", &location);
                xml::push_element(&mut out, "Bucket", volume);
                xml::push_element(&mut out, "Key", &key.to_string());
                xml::push_element(&mut out, "ETag", &format!("\"{}\"", receipt.etag));
                out.push_str("</PostResponse>");
                answer::xml(StatusCode::CREATED, out)
            }
            _ => answer::bare(StatusCode::NO_CONTENT),
        };
        add_receipt(answer.headers_mut(), receipt)?;
        if let Ok(value) = HeaderValue::from_str(&location) {
            answer.headers_mut().insert(http::header::LOCATION, value);
        }
        Ok(answer)
    }
}

/// The field `tagging`, an XML document, as the header says the same.
fn tagging(document: &str) -> Result<String> {
    let mut reader = Deserializer::new(document.as_bytes());
    let tagging = Tagging::deserialize(&mut reader).and_then(|tagging| reader.expect_eof().map(|()| tagging));
    let malformed = || {
        Refusal::new(
            Code::MalformedXML,
            "The XML you provided was not well-formed or did not validate against our published schema: `tagging`.",
        )
    };
    let tags = tagging.map_err(|_| malformed())?.tag_set;
    let pair = |tag: Tag| {
        let text =
            |text: Option<String>| percent::encoded(text.unwrap_or_default().as_bytes(), Keep::Nothing);
        format!("{}={}", text(tag.key), text(tag.value))
    };
    Ok(tags.into_iter().map(pair).collect::<Vec<_>>().join("&"))
}
