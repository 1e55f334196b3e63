//! Checkpoint sets for plain S3 clients. Two names below a prefix are not files: `DIR/.stoker-set` is the set that gathers
//! for `DIR/` or was published as it, and `PREFIX/.stoker-latest` is the one that was published last. A file that is put
//! with the metadata `stoker-set` and `stoker-shard` is a shard. (D37)

use http::header::{self, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};
use stoker_store::{
    Attributes, DrainState, Key, Receipt, SetId, SetInfo, SetRequest, SetState, SetStatus, ShardRequest,
    Store,
};

use crate::answer::{self, Answer, AnswerBody};
use crate::hot::attributes;
use crate::hot::put::{self, Write};
use crate::operation::Operation;
use crate::refusal::{Code, Refusal, Result};

const SET_NAME: &[u8] = b".stoker-set";
const LATEST_NAME: &[u8] = b".stoker-latest";
const SET_META: &str = "stoker-set";
const SHARD_META: &str = "stoker-shard";

/// Longest document that begins or ends a set.
const DOCUMENT_BYTES_MAX: u64 = 64 << 10;

/// A key that is no file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reserved {
    /// The set of a directory.
    Set(Key),
    /// The set below a prefix that was published last.
    Latest(Vec<u8>),
}

impl Reserved {
    /// What a key stands for; none if it is a file's.
    pub(crate) fn of(key: &Key) -> Option<Reserved> {
        let bytes = key.as_bytes();
        let at = bytes.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        match &bytes[at..] {
            SET_NAME => Key::new(&bytes[..at]).ok().map(Reserved::Set),
            LATEST_NAME => Some(Reserved::Latest(bytes[..at].to_vec())),
            _ => None,
        }
    }
}

/// Refuses to make a file of a key that is none.
pub(crate) fn check_plain(key: &Key) -> Result<()> {
    match Reserved::of(key) {
        None => Ok(()),
        Some(_) => Err(Refusal::new(
            Code::InvalidRequest,
            "Keys that end in .stoker-set or .stoker-latest stand for checkpoint sets: PUT, GET and DELETE work on them.",
        )),
    }
}

/// Which shard of which set a file is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShardMark {
    set: SetMark,
    number: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum SetMark {
    Id(SetId),
    Path(Key),
}

impl ShardMark {
    /// Takes the marks out of the properties of a file; none if it is no shard.
    pub(crate) fn take(attributes: &mut Attributes) -> Result<Option<ShardMark>> {
        let mut take = |name: &str| {
            let at = attributes.meta.iter().position(|(other, _)| other == name)?;
            Some(attributes.meta.remove(at).1)
        };
        match (take(SET_META), take(SHARD_META)) {
            (None, None) => Ok(None),
            (Some(set), Some(shard)) => {
                Ok(Some(ShardMark { set: set_mark(&set)?, number: shard_number(&shard)? }))
            }
            _ => Err(invalid("A shard has both x-amz-meta-stoker-set and x-amz-meta-stoker-shard.")),
        }
    }

    /// Refuses marks where no shard can be made.
    pub(crate) fn refuse(attributes: &Attributes) -> Result<()> {
        match attributes.meta.iter().any(|(name, _)| name == SET_META || name == SHARD_META) {
            false => Ok(()),
            true => Err(Refusal::new(
                Code::NotImplemented,
                "A shard of a checkpoint set is made by PutObject or by a multipart upload, not in this way.",
            )),
        }
    }

    /// Number of the shard.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The set.
    pub(crate) async fn set(&self, store: &dyn Store, volume: &str) -> Result<SetId> {
        match &self.set {
            SetMark::Id(set) => Ok(*set),
            SetMark::Path(path) => Ok(found(store, volume, path).await?.set),
        }
    }
}

fn invalid(message: &'static str) -> Refusal {
    Refusal::new(Code::InvalidArgument, message)
}

fn set_mark(text: &str) -> Result<SetMark> {
    if text.ends_with('/') {
        return Ok(SetMark::Path(Key::new(text)?));
    }
    let odd =
        |_| invalid("x-amz-meta-stoker-set is the id of a set, or its directory with a slash at the end.");
    text.parse().map(SetMark::Id).map_err(odd)
}

fn shard_number(text: &str) -> Result<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.ok_or_else(|| invalid("x-amz-meta-stoker-shard is the number of a shard, counted from 0."))
}

async fn found(store: &dyn Store, volume: &str, path: &Key) -> Result<SetInfo> {
    let none = || {
        Refusal::new(Code::NoSuchKey, "No checkpoint set is open for this directory or was published as it.")
    };
    store.set_find(volume, path).await?.ok_or_else(none)
}

/// Writes a shard. When the answer is 200, it is durable and not visible.
pub(crate) async fn put_shard(
    store: &dyn Store,
    write: Write<'_>,
    attributes: Attributes,
    mark: ShardMark,
) -> Result<Answer> {
    if ["if-match", "if-none-match"].iter().any(|name| write.headers.contains_key(*name)) {
        return Err(Refusal::new(
            Code::NotImplemented,
            "A shard of a checkpoint set cannot have conditions.",
        ));
    }
    let (size, demands) = put::announced(&write)?;
    let set = mark.set(store, write.volume).await?;
    let writer = writer_of(&write.credential.access_key);
    let request = ShardRequest { number: mark.number, writer, attributes, size: Some(size) };
    let writer = store.set_shard(write.volume, write.key, set, request).await?;
    let receipt: Receipt = put::receive(write, size, demands, writer).await?;
    put::written(&receipt)
}

/// How the writer of a shard is called.
pub(crate) fn writer_of(access_key: &str) -> String {
    format!("s3 {access_key}")
}

/// Answers a request to a key that is no file.
pub(crate) async fn answer(
    store: &dyn Store,
    operation: Operation,
    reserved: Reserved,
    write: Write<'_>,
) -> Result<Answer> {
    let (volume, key) = (write.volume, write.key);
    match (operation, reserved) {
        (Operation::GetObject | Operation::HeadObject, Reserved::Set(path)) => {
            let set = found(store, volume, &path).await?.set;
            let status = store.set_status(volume, set).await?;
            document(&status.info, &status_json(&status), operation)
        }
        (Operation::GetObject | Operation::HeadObject, Reserved::Latest(prefix)) => {
            let latest = store.set_latest(volume, &prefix).await?;
            let none = || Refusal::new(Code::NoSuchKey, "No checkpoint set was published below this prefix.");
            let info = latest.ok_or_else(none)?;
            document(&info, &Value::Object(info_json(&info)), operation)
        }
        (Operation::PutObject, Reserved::Set(path)) => act(store, path, write).await,
        (Operation::DeleteObject, Reserved::Set(path)) => {
            // As with any key that is not there.
            if let Some(set) = store.set_find(volume, &path).await? {
                store.set_abort(volume, set.set).await?;
            }
            Ok(answer::bare(StatusCode::NO_CONTENT))
        }
        _ => Err(check_plain(key).err().unwrap_or_else(|| invalid("This key stands for a checkpoint set."))),
    }
}

/// Begins, publishes or aborts a set.
async fn act(store: &dyn Store, path: Key, write: Write<'_>) -> Result<Answer> {
    let (volume, owner) = (write.volume.to_owned(), writer_of(&write.credential.access_key));
    ShardMark::refuse(&attributes::of_headers(write.headers, &write.credential.access)?)?;
    let wish = Wish::read(&put::collect(write, DOCUMENT_BYTES_MAX).await?)?;
    let info = match wish {
        Wish::Begin { shards, deadline_s, owner: named } => {
            let owner = named.unwrap_or(owner);
            store.set_begin(&volume, SetRequest { target: path, owner, shards, deadline_s }).await?
        }
        Wish::Publish(set) => store.set_publish(&volume, chosen(store, &volume, &path, set).await?).await?,
        Wish::Abort(set) => store.set_abort(&volume, chosen(store, &volume, &path, set).await?).await?,
    };
    let mut answer = answer::bare(StatusCode::OK);
    identify(answer.headers_mut(), &info)?;
    Ok(answer)
}

/// The set of a directory, which must be the one that is named, if one is.
async fn chosen(store: &dyn Store, volume: &str, path: &Key, named: Option<SetId>) -> Result<SetId> {
    let Some(named) = named else { return Ok(found(store, volume, path).await?.set) };
    let info = store.set_status(volume, named).await?.info;
    if info.path != *path {
        return Err(Refusal::new(Code::InvalidRequest, "The set of this id has another directory."));
    }
    Ok(named)
}

/// What a document asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Begin { shards: u32, deadline_s: Option<u32>, owner: Option<String> },
    Publish(Option<SetId>),
    Abort(Option<SetId>),
}

impl Wish {
    fn read(bytes: &[u8]) -> Result<Wish> {
        let odd = |message: String| Refusal::new(Code::InvalidRequest, message);
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|fault| odd(format!("The body has to be a JSON object: {fault}.")))?;
        let Value::Object(mut fields) = value else {
            return Err(odd("The body has to be a JSON object.".to_owned()));
        };
        let number = |fields: &mut Map<String, Value>, name: &str| match fields.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let number = value.as_u64();
                number.map(Some).ok_or_else(|| odd(format!("`{name}` has to be a number.")))
            }
        };
        let small = |number: Option<u64>| number.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        let action = fields.remove("action");
        let wish = match action.as_ref().and_then(Value::as_str) {
            Some("begin") => {
                let shards = small(number(&mut fields, "shards")?);
                let shards =
                    shards.ok_or_else(|| odd("`shards` says how many shards the set has.".to_owned()))?;
                let deadline_s = small(number(&mut fields, "deadline_s")?);
                let owner = match fields.remove("owner") {
                    None | Some(Value::Null) => None,
                    Some(Value::String(owner)) => Some(owner),
                    Some(_) => return Err(odd("`owner` has to be text.".to_owned())),
                };
                Wish::Begin { shards, deadline_s, owner }
            }
            Some("publish") => Wish::Publish(number(&mut fields, "set")?.map(SetId)),
            Some("abort") => Wish::Abort(number(&mut fields, "set")?.map(SetId)),
            _ => return Err(odd("`action` has to be begin, publish or abort.".to_owned())),
        };
        match fields.keys().next() {
            Some(unknown) => Err(odd(format!("`{unknown}` is not known here."))),
            None => Ok(wish),
        }
    }
}

fn state(state: SetState) -> &'static str {
    match state {
        SetState::Open => "open",
        SetState::Published => "published",
        SetState::Aborted => "aborted",
        SetState::Expired => "expired",
    }
}

fn info_json(info: &SetInfo) -> Map<String, Value> {
    let value = json!({
        "set": info.set.0,
        "state": state(info.state),
        "path": info.path.to_string(),
        "owner": info.owner,
        "shards": info.shards,
        "begun_ms": info.begun_ms,
        "deadline_ms": info.deadline_ms,
        "closed_ms": info.closed_ms,
        "seq": info.seq,
    });
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn status_json(status: &SetStatus) -> Value {
    let mut fields = info_json(&status.info);
    let drain = match status.drain {
        DrainState::Dirty => "dirty",
        DrainState::Clean => "clean",
        DrainState::Never => "never",
        DrainState::Conflict => "conflict",
    };
    fields.insert("present".to_owned(), status.present.into());
    fields.insert("bytes".to_owned(), status.bytes.into());
    fields.insert("missing".to_owned(), status.laggards.clone().into());
    fields.insert("drain".to_owned(), drain.into());
    Value::Object(fields)
}

fn document(info: &SetInfo, value: &Value, operation: Operation) -> Result<Answer> {
    let text = format!("{value}\n");
    let mut answer = answer::bare(StatusCode::OK);
    let headers = answer.headers_mut();
    identify(headers, info)?;
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(text.len()));
    if operation == Operation::GetObject {
        *answer.body_mut() = AnswerBody::whole(text);
    }
    Ok(answer)
}

fn identify(headers: &mut HeaderMap, info: &SetInfo) -> Result<()> {
    headers
        .insert(header::ETAG, crate::hot::get::etag_value(&format!("{}-{}", info.set, state(info.state)))?);
    headers.insert("x-stoker-set", HeaderValue::from(info.set.0));
    let changed_ms = info.closed_ms.max(info.begun_ms);
    let changed = httpdate::fmt_http_date(crate::clock::from_unix_ms(changed_ms));
    if let Ok(value) = HeaderValue::from_str(&changed) {
        headers.insert(header::LAST_MODIFIED, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_keys_are_told_from_files() {
        let check = |key: &str, expect: Option<Reserved>| {
            assert_eq!(Reserved::of(&Key::new(key).unwrap()), expect, "{key}");
        };
        check("run/step-1/.stoker-set", Some(Reserved::Set(Key::new("run/step-1/").unwrap())));
        check("run/.stoker-latest", Some(Reserved::Latest(b"run/".to_vec())));
        check(".stoker-latest", Some(Reserved::Latest(Vec::new())));
        // A set cannot be a whole volume.
        check(".stoker-set", None);
        check("run/.stoker-set/x", None);
        check("run/x.stoker-set", None);
        check("run/", None);
    }

    #[test]
    fn marks_are_taken_out() {
        let check = |meta: &[(&str, &str)], expect: Result<Option<u32>, Code>, left: usize| {
            let meta = meta.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let mut attributes = Attributes { meta, ..Attributes::default() };
            let mark = ShardMark::take(&mut attributes).map_err(|refusal| refusal.code);
            assert_eq!(mark.map(|mark| mark.map(|mark| mark.number)), expect);
            assert_eq!(attributes.meta.len(), left);
        };
        check(&[("a", "b")], Ok(None), 1);
        check(&[("stoker-set", "17"), ("a", "b"), ("stoker-shard", "3")], Ok(Some(3)), 1);
        check(&[("stoker-set", "run/"), ("stoker-shard", "0")], Ok(Some(0)), 0);
        for (set, shard) in [("x", "0"), ("", "0"), ("1", "-1"), ("1", "+1"), ("1", ""), ("1", "4294967296")]
        {
            check(&[("stoker-set", set), ("stoker-shard", shard)], Err(Code::InvalidArgument), 0);
        }
        check(&[("stoker-set", "1")], Err(Code::InvalidArgument), 0);
        check(&[("stoker-shard", "1")], Err(Code::InvalidArgument), 0);
    }

    #[test]
    fn wishes_are_read() {
        let read = |text: &str| Wish::read(text.as_bytes()).map_err(|refusal| refusal.code);
        let begin = |shards, deadline_s, owner: Option<&str>| {
            Ok(Wish::Begin { shards, deadline_s, owner: owner.map(str::to_owned) })
        };
        assert_eq!(read(r#"{"action":"begin","shards":8}"#), begin(8, None, None));
        let full = r#"{"action":"begin","shards":8,"deadline_s":60,"owner":"job"}"#;
        assert_eq!(read(full), begin(8, Some(60), Some("job")));
        assert_eq!(read(r#"{"action":"publish"}"#), Ok(Wish::Publish(None)));
        assert_eq!(read(r#"{"action":"abort","set":7}"#), Ok(Wish::Abort(Some(SetId(7)))));
        for text in [
            "",
            "[]",
            "{}",
            r#"{"action":"begin"}"#,
            r#"{"action":"begin","shards":"8"}"#,
            r#"{"action":"begin","shards":-1}"#,
            r#"{"action":"begin","shards":1,"owner":7}"#,
            r#"{"action":"publish","shards":1}"#,
            r#"{"action":"explode"}"#,
        ] {
            assert_eq!(read(text), Err(Code::InvalidRequest), "{text}");
        }
    }
}
