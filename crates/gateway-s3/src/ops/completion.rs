//! CompleteMultipartUpload: which checksum the whole has, and that it is right, before the store publishes.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use s3s::S3Response;
use s3s::dto::{
    ChecksumType, CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedMultipartUpload,
    CompletedPart, ETag,
};
use stoker_access::Origin;
use stoker_store::{
    Checksum, ChecksumKind, Condition, ErrorKind, Finish, Key, PartChoice, PartInfo, Receipt, ShardUpload,
    Store, StoreError, Subject, UploadId, UploadInfo,
};

use crate::hot::checksum::{self, Sum};
use crate::hot::condition::{bare_etag, write_condition};
use crate::hot::put::add_receipt;
use crate::refusal::{Code, Refusal, Result};
use crate::sets::{self, ShardMark};
use crate::target::key_of;

use super::seam::{Caller, Operations};
use super::whole::whole_checksum;

/// Parts that are asked for at once.
const PAGE_MAX: usize = 1000;
/// Parts of an upload, as in S3.
const PARTS_MAX: usize = 10_000;
/// Bytes that are read at once where a checksum has to be made of them.
const READ_BYTES: usize = 4 << 20;
/// A completion that takes longer than this gets its 200 early, and the truth in the body.
const COMPLETE_QUIET_MAX: Duration = Duration::from_secs(5);

pub(super) async fn complete_multipart_upload(
    _: &Operations,
    caller: &Caller,
    input: CompleteMultipartUploadInput,
) -> Result<S3Response<CompleteMultipartUploadOutput>> {
    let choices = choices(input.multipart_upload)?;
    let completion = Completion {
        store: caller.shared_store(),
        volume: input.bucket,
        key: key_of(input.key)?,
        upload: UploadId(input.upload_id),
        choices,
        condition: write_condition(caller.headers())?,
        given: checksum::of_headers(caller.headers())?,
        is_full: match caller.header("x-amz-checksum-type") {
            None => None,
            Some("FULL_OBJECT") => Some(true),
            Some("COMPOSITE") => Some(false),
            Some(_) => {
                return Err(Refusal::new(
                    Code::InvalidRequest,
                    "Value for x-amz-checksum-type header is invalid.",
                ));
            }
        },
        size: input.mpu_object_size.map(|size| u64::try_from(size).unwrap_or(u64::MAX)),
        writer: sets::writer_of(caller.access_key()),
    };
    // Goes on if the client hangs up: the outcome is the store's, not the connection's.
    let origin = Origin::current().unwrap_or_default();
    let mut running = tokio::spawn(origin.scope(completion.run()));
    match tokio::time::timeout(COMPLETE_QUIET_MAX, &mut running).await {
        Ok(joined) => {
            let receipt = joined.unwrap_or_else(|_| Err(broken()))?;
            let mut headers = HeaderMap::new();
            add_receipt(&mut headers, &receipt)?;
            headers.remove(http::header::ETAG);
            if receipt.holders.is_empty() {
                // Of a completion long done: what became of the file since, nobody looked at.
                headers.remove("x-stoker-receipt");
            }
            Ok(S3Response::with_headers(output(&receipt), headers))
        }
        Err(_) => {
            let rest = async move { Ok(output(&running.await.unwrap_or_else(|_| Err(broken()))?)) };
            let output = CompleteMultipartUploadOutput {
                future: Some(Box::pin(rest)),
                ..CompleteMultipartUploadOutput::default()
            };
            Ok(S3Response::new(output))
        }
    }
}

fn broken() -> Refusal {
    Refusal::new(Code::InternalError, "The completion was broken off. Please try again.")
}

fn choices(upload: Option<CompletedMultipartUpload>) -> Result<Vec<PartChoice>> {
    let parts = upload.and_then(|upload| upload.parts).unwrap_or_default();
    if parts.is_empty() || parts.len() > PARTS_MAX {
        return Err(Refusal::new(
            Code::MalformedXML,
            "The XML you provided was not well-formed or did not validate against our published schema: 1 to 10000 parts.",
        ));
    }
    parts.into_iter().map(choice).collect()
}

fn choice(part: CompletedPart) -> Result<PartChoice> {
    let number = part.part_number.and_then(|number| u32::try_from(number).ok());
    let etag = part.e_tag.map(ETag::into_value);
    let (Some(number), Some(etag)) = (number, etag) else {
        return Err(Refusal::new(Code::MalformedXML, "A part needs a PartNumber and an ETag."));
    };
    let sums = [
        (ChecksumKind::Crc32, part.checksum_crc32),
        (ChecksumKind::Crc32c, part.checksum_crc32c),
        (ChecksumKind::Crc64Nvme, part.checksum_crc64nvme),
        (ChecksumKind::Sha1, part.checksum_sha1),
        (ChecksumKind::Sha256, part.checksum_sha256),
    ];
    let given = sums.into_iter().find_map(|(kind, text)| text.map(|text| checksum::parse(kind, &text)));
    Ok(PartChoice { number, etag: bare_etag(&etag).to_owned(), checksum: given.transpose()? })
}

/// A completion that no longer needs its request.
struct Completion {
    store: Arc<dyn Store>,
    volume: String,
    key: Key,
    upload: UploadId,
    choices: Vec<PartChoice>,
    condition: Condition,
    given: Option<Checksum>,
    /// Whether the request says that the checksum is one of all bytes.
    is_full: Option<bool>,
    size: Option<u64>,
    /// Who completes it, for people.
    writer: String,
}

impl Completion {
    async fn run(self) -> Result<Receipt> {
        let (mut info, parts) = match self.parts().await {
            Ok(found) => found,
            // Completed before, perhaps, by a request whose answer was lost: the store knows.
            Err(fault) if (fault.kind, fault.subject) == (ErrorKind::NotFound, Subject::Upload) => {
                let finish = Finish { checksums: self.given.into_iter().collect(), etag: None };
                let completed = self
                    .store
                    .upload_complete(
                        &self.volume,
                        &self.key,
                        &self.upload,
                        self.choices,
                        self.condition,
                        finish,
                    )
                    .await;
                return Ok(completed?);
            }
            Err(fault) => return Err(fault.into()),
        };
        let mark = ShardMark::take(&mut info.attributes)?;
        let chosen = chosen(&parts, &self.choices);
        if let (Some(size), Some(chosen)) = (self.size, &chosen)
            && chosen.iter().map(|part| part.size).sum::<u64>() != size
        {
            return Err(Refusal::new(
                Code::InvalidRequest,
                "The provided 'x-amz-mp-object-size' header does not match what was computed.",
            ));
        }
        let whole = match chosen {
            Some(chosen) => self.whole(&info, &chosen).await?,
            // The store says which part is not there.
            None => None,
        };
        let finish = Finish { checksums: whole.into_iter().collect(), etag: None };
        if let Some(mark) = mark {
            if !self.condition.is_empty() {
                return Err(Refusal::new(
                    Code::NotImplemented,
                    "A shard of a checkpoint set cannot have conditions.",
                ));
            }
            let set = mark.set(self.store.as_ref(), &self.volume).await?;
            let shard = ShardUpload {
                number: mark.number(),
                writer: self.writer,
                upload: self.upload,
                parts: self.choices,
                finish,
            };
            return Ok(self.store.set_shard_complete(&self.volume, &self.key, set, shard).await?);
        }
        let completed = self
            .store
            .upload_complete(&self.volume, &self.key, &self.upload, self.choices, self.condition, finish)
            .await;
        Ok(completed?)
    }

    /// The checksum that the whole gets: of the kind that the upload announced, or that the client gives now. One that is given is right, or
    /// the completion is refused.
    async fn whole(&self, info: &UploadInfo, chosen: &[&PartInfo]) -> Result<Option<Checksum>> {
        let Some((kind, is_full)) = self.form(info)? else { return Ok(None) };
        let whole = match (whole_checksum(kind, is_full, chosen), &self.given) {
            (Some(whole), _) => whole,
            // Nobody asked for it, and it would have to be read.
            (None, None) => return Ok(None),
            (None, Some(_)) => self.of_bytes(kind, is_full, chosen).await?,
        };
        match &self.given {
            Some(given) if given.value != whole.value || given.parts != 0 && given.parts != whole.parts => {
                let name = checksum::name_of(kind);
                Err(Refusal::new(
                    Code::BadDigest,
                    format!("The {name} you specified did not match the calculated checksum."),
                ))
            }
            _ => Ok(Some(whole)),
        }
    }

    /// Kind of the checksum, and whether it is one of all bytes.
    fn form(&self, info: &UploadInfo) -> Result<Option<(ChecksumKind, bool)>> {
        let Some(kind) = info.checksum else {
            let Some(given) = &self.given else { return Ok(None) };
            let is_full =
                given.kind == ChecksumKind::Crc64Nvme || given.parts == 0 && self.is_full != Some(false);
            return Ok(Some((given.kind, is_full)));
        };
        if let Some(given) = self.given.as_ref().filter(|given| given.kind != kind) {
            return Err(Refusal::new(
                Code::InvalidRequest,
                format!(
                    "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
                    checksum::name_of(kind).to_ascii_lowercase(),
                    checksum::name_of(given.kind).to_ascii_lowercase(),
                ),
            ));
        }
        let is_full = info.is_full || kind == ChecksumKind::Crc64Nvme;
        if self.is_full.is_some_and(|wanted| wanted != is_full) {
            let form = if is_full { "FULL_OBJECT" } else { "COMPOSITE" };
            return Err(Refusal::new(
                Code::InvalidRequest,
                format!(
                    "The upload was created using the {form} checksum mode. The complete request must use the same checksum \
                     mode."
                ),
            ));
        }
        Ok(Some((kind, is_full)))
    }

    /// The same from the bytes of the parts, where they came without such a checksum.
    async fn of_bytes(&self, kind: ChecksumKind, is_full: bool, chosen: &[&PartInfo]) -> Result<Checksum> {
        if is_full {
            let mut sum = Sum::new(kind);
            for part in chosen {
                self.read(part, &mut sum).await?;
            }
            return Ok(sum.finish());
        }
        let mut parts: Vec<PartInfo> = chosen.iter().map(|part| (*part).clone()).collect();
        for part in &mut parts {
            if !part.checksums.iter().any(|sum| sum.kind == kind && sum.parts == 0) {
                let mut sum = Sum::new(kind);
                self.read(part, &mut sum).await?;
                part.checksums.push(sum.finish());
            }
        }
        let parts: Vec<&PartInfo> = parts.iter().collect();
        whole_checksum(kind, is_full, &parts)
            .ok_or_else(|| Refusal::new(Code::InternalError, "The checksum could not be computed."))
    }

    async fn read(&self, part: &PartInfo, sum: &mut Sum) -> Result<()> {
        let file = self.store.upload_part_open(&self.volume, &self.key, &self.upload, part.number).await?;
        let mut offset = 0;
        loop {
            let bytes = file.read(offset, READ_BYTES).await?;
            if bytes.is_empty() {
                return Ok(());
            }
            sum.update(&bytes);
            offset += bytes.len() as u64;
        }
    }

    /// The upload and all its parts.
    async fn parts(&self) -> Result<(UploadInfo, Vec<PartInfo>), StoreError> {
        let mut parts: Vec<PartInfo> = Vec::new();
        loop {
            let after = parts.last().map_or(0, |last| last.number);
            let page =
                self.store.upload_parts(&self.volume, &self.key, &self.upload, after, PAGE_MAX).await?;
            let done = !page.more || page.parts.is_empty();
            parts.extend(page.parts);
            if done || parts.len() > PARTS_MAX {
                return Ok((page.upload, parts));
            }
        }
    }
}

/// The parts that were chosen; none if one is missing, which the store will say better. Whether it is the one that the client means the
/// store says, too.
fn chosen<'p>(parts: &'p [PartInfo], choices: &[PartChoice]) -> Option<Vec<&'p PartInfo>> {
    let find = |choice: &PartChoice| {
        let at = parts.binary_search_by_key(&choice.number, |part| part.number).ok()?;
        Some(&parts[at])
    };
    choices.iter().map(find).collect()
}

fn output(receipt: &Receipt) -> CompleteMultipartUploadOutput {
    let shown = checksum::shown(&receipt.checksums);
    let sum = |kind| shown.filter(|sum| sum.kind == kind).map(checksum::text_of);
    CompleteMultipartUploadOutput {
        location: Some(format!("/{}/{}", receipt.volume, receipt.key)),
        bucket: Some(receipt.volume.clone()),
        key: Some(receipt.key.clone()),
        version_id: receipt.version_id.clone(),
        e_tag: Some(ETag::Strong(receipt.etag.clone())),
        checksum_crc32: sum(ChecksumKind::Crc32),
        checksum_crc32c: sum(ChecksumKind::Crc32c),
        checksum_crc64nvme: sum(ChecksumKind::Crc64Nvme),
        checksum_sha1: sum(ChecksumKind::Sha1),
        checksum_sha256: sum(ChecksumKind::Sha256),
        checksum_type: shown.map(|sum| ChecksumType::from_static(checksum::type_of(sum))),
        ..CompleteMultipartUploadOutput::default()
    }
}
