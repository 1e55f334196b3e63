//! PutObject and UploadPart.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use stoker_store::{DrainState, Finish, Key, Receipt, Store, UploadId, WriteRequest, Writer};

use crate::answer::{self, Answer};
use crate::auth::{Credential, Payload};
use crate::query::Query;
use crate::refusal::{Code, Refusal, Result};
use crate::sets::{self, ShardMark};
use crate::versions::check_lockable;

use super::arrivals::{Arrival, Arrivals};
use super::attributes;
use super::checksum::{self, Demands, Digests};
use super::chunked::{ChunkedDecoder, Step};
use super::condition::write_condition;
use super::get::etag_value;
use super::intake::Intake;

/// A request to write a file or a part.
pub(crate) struct Write<'a> {
    /// Where the file is.
    pub(crate) volume: &'a str,
    /// Its name.
    pub(crate) key: &'a Key,
    /// Parameters.
    pub(crate) query: &'a Query,
    /// Headers.
    pub(crate) headers: &'a HeaderMap,
    /// Who.
    pub(crate) credential: &'a Credential,
    /// How to read the body.
    pub(crate) payload: Payload,
    /// The body.
    pub(crate) arrivals: &'a mut Arrivals,
    /// Most bytes of content.
    pub(crate) bytes_max: u64,
    /// Up to this many bytes the ETag of an object is its MD5.
    pub(crate) md5_up_to: u64,
}

/// Writes a file. When the answer is 200, it is durable and visible.
pub(crate) async fn put_object(store: &dyn Store, write: Write<'_>) -> Result<Answer> {
    let mut attributes = attributes::of_headers(write.headers, &write.credential.access)?;
    check_lockable(store, write.volume, attributes.lock.as_ref()).await?;
    if let Some(mark) = ShardMark::take(&mut attributes)? {
        return sets::put_shard(store, write, attributes, mark).await;
    }
    let (size, mut demands) = announced(&write)?;
    if size <= write.md5_up_to {
        demands.want_md5();
    }
    let condition = write_condition(write.headers)?;
    let request = WriteRequest { attributes, condition, size: Some(size), append: false };
    let writer = store.create(write.volume, write.key, request).await?;
    let receipt = receive(write, size, demands, writer).await?;
    written(&receipt)
}

/// Writes a part of an upload.
pub(crate) async fn upload_part(store: &dyn Store, write: Write<'_>) -> Result<Answer> {
    attributes::refuse_customer_key(write.headers)?;
    let (size, mut demands) = announced(&write)?;
    let upload = UploadId(write.query.get("uploadId").unwrap_or_default().to_owned());
    let number = part_number(write.query.get("partNumber").unwrap_or_default())?;
    if demands.has_none() {
        // The upload may have announced one: then the whole gets it, whether the client sums its parts or not.
        let announced =
            store.upload_parts(write.volume, write.key, &upload, number, 1).await?.upload.checksum;
        announced.into_iter().for_each(|kind| demands.want(kind));
    }
    let writer = store.upload_part(write.volume, write.key, &upload, number, Some(size)).await?;
    let receipt = receive(write, size, demands, writer).await?;
    let mut answer = written(&receipt)?;
    // A part is no version of a file.
    answer.headers_mut().remove("x-amz-checksum-type");
    answer.headers_mut().remove("x-stoker-receipt");
    Ok(answer)
}

/// Reads a part number.
pub(crate) fn part_number(text: &str) -> Result<u32> {
    text.parse().ok().filter(|number| (1..=10_000).contains(number)).ok_or_else(|| {
        Refusal::new(Code::InvalidArgument, "Part number must be an integer between 1 and 10000, inclusive.")
            .with("ArgumentName", "partNumber")
            .with("ArgumentValue", text)
    })
}

/// How much will come, and what it has to match.
pub(crate) fn announced(write: &Write<'_>) -> Result<(u64, Demands)> {
    let number = |name: &str| {
        let Some(value) = write.headers.get(name) else {
            return Ok(None);
        };
        let number = value.to_str().ok().and_then(|text| text.parse::<u64>().ok());
        number
            .map(Some)
            .ok_or_else(|| Refusal::new(Code::InvalidArgument, format!("{name} has to be a number.")))
    };
    let (name, sha256) = match &write.payload {
        Payload::Plain => ("content-length", None),
        Payload::Sha256(hash) => ("content-length", Some(*hash)),
        Payload::Chunked { .. } => ("x-amz-decoded-content-length", None),
    };
    let size = number(name)?.ok_or_else(|| {
        Refusal::new(Code::MissingContentLength, format!("You must provide the {name} HTTP header."))
    })?;
    if size > write.bytes_max {
        return Err(Refusal::new(
            Code::EntityTooLarge,
            "Your proposed upload exceeds the maximum allowed size.",
        )
        .with("ProposedSize", size.to_string())
        .with("MaxSizeAllowed", write.bytes_max.to_string()));
    }
    let demands = Demands::of(write.headers, sha256)?;
    if demands.wants_trailer() && !matches!(write.payload, Payload::Chunked { trailer: true, .. }) {
        return Err(Refusal::new(
            Code::InvalidRequest,
            "x-amz-trailer needs a streaming payload with a trailer.",
        ));
    }
    Ok((size, demands))
}

/// Carries the body into the writer, checks it, and finishes.
pub(crate) async fn receive(
    write: Write<'_>,
    size: u64,
    demands: Demands,
    writer: Box<dyn Writer>,
) -> Result<Receipt> {
    let intake = Intake::new(writer, write.arrivals.memory());
    let mut stream = Stream { intake, digests: demands.digests(), left: size };
    let trailers = match write.payload {
        Payload::Plain | Payload::Sha256(_) => stream.take_plain(write.arrivals).await?,
        Payload::Chunked { signer, trailer } => {
            stream.take_chunked(write.arrivals, ChunkedDecoder::new(size, signer, trailer)).await?
        }
    };
    stream.finish(&trailers).await
}

/// A small body, whole and checked.
pub(crate) async fn collect(mut write: Write<'_>, bytes_max: u64) -> Result<Vec<u8>> {
    write.bytes_max = write.bytes_max.min(bytes_max);
    let (size, demands) = announced(&write)?;
    let (mut bytes, mut digests) = (Vec::new(), demands.digests());
    let mut take = |data: &Bytes| {
        if bytes.len() as u64 + data.len() as u64 > size {
            return Err(incomplete());
        }
        digests.update(data);
        bytes.extend_from_slice(data);
        Ok(())
    };
    let mut decoder = match write.payload {
        Payload::Plain | Payload::Sha256(_) => None,
        Payload::Chunked { signer, trailer } => Some(ChunkedDecoder::new(size, signer, trailer)),
    };
    loop {
        match (write.arrivals.next(None).await?, &mut decoder) {
            (Arrival::Data(data), None) => take(&data)?,
            (Arrival::Data(mut input), Some(decoder)) => {
                while let Step::Data(data) = decoder.step(&mut input)? {
                    take(&data)?;
                }
            }
            (Arrival::Quiet, _) => {}
            (Arrival::End, _) => break,
        }
    }
    let trailers = decoder.map(ChunkedDecoder::finish).transpose()?.unwrap_or_default();
    if bytes.len() as u64 != size {
        return Err(incomplete());
    }
    digests.finish(checksum::crc64(&bytes), &trailers)?;
    Ok(bytes)
}

/// A body between socket and store.
struct Stream {
    intake: Intake,
    digests: Digests,
    left: u64,
}

type Trailers = Vec<(String, String)>;

impl Stream {
    async fn take_plain(&mut self, arrivals: &mut Arrivals) -> Result<Trailers> {
        loop {
            match arrivals.next(self.intake.patience()).await? {
                Arrival::Data(data) => self.take(data).await?,
                Arrival::Quiet => self.intake.grow_quiet().await?,
                Arrival::End if self.left == 0 => return Ok(Vec::new()),
                Arrival::End => return Err(incomplete()),
            }
        }
    }

    async fn take_chunked(
        &mut self,
        arrivals: &mut Arrivals,
        mut decoder: ChunkedDecoder,
    ) -> Result<Trailers> {
        loop {
            match arrivals.next(self.intake.patience()).await? {
                Arrival::Data(mut input) => {
                    while let Step::Data(data) = decoder.step(&mut input)? {
                        self.take(data).await?;
                    }
                }
                Arrival::Quiet => self.intake.grow_quiet().await?,
                Arrival::End => return decoder.finish(),
            }
        }
    }

    async fn take(&mut self, data: Bytes) -> Result<()> {
        self.left = self.left.checked_sub(data.len() as u64).ok_or_else(incomplete)?;
        self.digests.update(&data);
        self.intake.push(data).await
    }

    async fn finish(self, trailers: &Trailers) -> Result<Receipt> {
        let writer = self.intake.end().await?;
        let finish: Finish = self.digests.finish(writer.crc64(), trailers)?;
        Ok(writer.finish(finish).await?)
    }
}

fn incomplete() -> Refusal {
    Refusal::new(
        Code::IncompleteBody,
        "You did not provide the number of bytes specified by the Content-Length HTTP header.",
    )
}

/// The answer to a write.
pub(crate) fn written(receipt: &Receipt) -> Result<Answer> {
    let mut answer = answer::bare(StatusCode::OK);
    add_receipt(answer.headers_mut(), receipt)?;
    Ok(answer)
}

/// Etag, checksum and receipt.
pub(crate) fn add_receipt(headers: &mut HeaderMap, receipt: &Receipt) -> Result<()> {
    headers.insert(http::header::ETAG, etag_value(&receipt.etag)?);
    if let Some(shown) = checksum::shown(&receipt.checksums)
        && let Ok(value) = HeaderValue::from_str(&checksum::text_of(shown))
    {
        headers.insert(checksum::header_of(shown.kind), value);
        headers.insert("x-amz-checksum-type", HeaderValue::from_static(checksum::type_of(shown)));
    }
    if let Some(Ok(value)) = receipt.version_id.as_deref().map(HeaderValue::from_str) {
        headers.insert("x-amz-version-id", value);
    }
    if let Ok(value) = HeaderValue::from_str(&receipt_text(receipt)) {
        headers.insert("x-stoker-receipt", value);
    }
    Ok(())
}

/// The receipt as compact JSON.
fn receipt_text(receipt: &Receipt) -> String {
    let class = receipt.class.as_str();
    let drain = match receipt.drain {
        DrainState::Dirty => "dirty",
        DrainState::Clean => "clean",
        DrainState::Never => "never",
        DrainState::Conflict => "conflict",
    };
    format!(
        "{{\"version\":\"{}\",\"copies\":{},\"class\":\"{class}\",\"drain\":\"{drain}\",\"seq\":{}}}",
        receipt.version, receipt.copies, receipt.seq
    )
}
