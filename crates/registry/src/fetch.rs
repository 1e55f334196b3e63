//! What is not on the shelf is brought there: once, however many ask for it, and only if it is what its digest says.
//!
//! A fetch is a task of its own: whoever asked first may hang up, and those who asked later get it all the same.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use stoker_store::File;
use tokio::sync::{Semaphore, watch};

use crate::digest::{Digest, Hasher};
use crate::fault::Fault;
use crate::name::Reference;
use crate::shelf::{Kind, Shelf, Tag};
use crate::stats::{Stats, add};
use crate::upstream::{Asker, collect};

/// Longest manifest, as the specification has it.
const MANIFEST_BYTES_MAX: usize = 4 << 20;
/// Longest list of tags of an upstream.
const TAGS_BYTES_MAX: usize = 4 << 20;
/// Fetches at the same time.
const FETCHES_MAX: usize = 16;
/// Fetches that run or wait for their turn.
const FLIGHTS_MAX: usize = 256;
/// How long an upstream may send nothing in the middle of a blob.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const DIGEST_HEADER: &str = "docker-content-digest";
const OCTETS: &str = "application/octet-stream";

type Landed = Option<Result<Digest, Fault>>;

/// Brings images.
pub(crate) struct Fetcher {
    pub shelf: Shelf,
    askers: Vec<Asker>,
    /// How long a tag is what it was.
    tag_age: Duration,
    pub stats: Arc<Stats>,
    flights: Mutex<HashMap<String, watch::Receiver<Landed>>>,
    permits: Semaphore,
}

/// Takes a flight off the list, also if its task panics.
struct Landing {
    fetcher: Arc<Fetcher>,
    key: String,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.fetcher.flights.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Fetcher {
    pub fn new(shelf: Shelf, askers: Vec<Asker>, tag_age: Duration, stats: Arc<Stats>) -> Fetcher {
        let (flights, permits) = (Mutex::default(), Semaphore::new(FETCHES_MAX));
        Fetcher { shelf, askers, tag_age, stats, flights, permits }
    }

    /// The place of the upstream that a client means: that of this name, or the first one.
    pub fn upstream(&self, namespace: Option<&str>) -> Result<usize, Fault> {
        let Some(wanted) = namespace else { return Ok(0) };
        let wanted = if wanted == "registry-1.docker.io" { "docker.io" } else { wanted };
        self.askers.iter().position(|asker| asker.upstream.host() == wanted).ok_or_else(|| {
            Fault::new(
                StatusCode::NOT_FOUND,
                "NAME_UNKNOWN",
                "images of that registry are not pulled through here",
            )
        })
    }

    /// A blob or manifest by its digest.
    pub async fn by_digest(
        self: &Arc<Fetcher>,
        at: usize,
        name: &str,
        kind: Kind,
        digest: &Digest,
    ) -> Result<Box<dyn File>, Fault> {
        if let Some(file) = self.shelf.open(kind, digest).await? {
            add(&self.stats.hits, 1);
            return Ok(file);
        }
        add(&self.stats.misses, 1);
        let (fetcher, name, wanted) = (self.clone(), name.to_owned(), digest.clone());
        let key = format!("{} {digest}", kind.part());
        self.once(key, async move { fetcher.fetch(at, &name, kind, wanted).await }).await?;
        self.shelf.open(kind, digest).await?.ok_or_else(|| Fault::unknown(kind.unknown()))
    }

    /// A manifest by tag or digest, and its digest.
    pub async fn manifest(
        self: &Arc<Fetcher>,
        at: usize,
        name: &str,
        reference: &Reference,
    ) -> Result<(Box<dyn File>, Digest), Fault> {
        let tag = match reference {
            Reference::Digest(digest) => {
                return Ok((self.by_digest(at, name, Kind::Manifest, digest).await?, digest.clone()));
            }
            Reference::Tag(tag) => tag,
        };
        let host = self.askers[at].upstream.host().to_owned();
        let known = self.shelf.tag(&host, name, tag).await?;
        if let Some((file, digest)) = self.fresh(known).await? {
            add(&self.stats.hits, 1);
            return Ok((file, digest));
        }
        add(&self.stats.misses, 1);
        let (fetcher, of_task, of_tag) = (self.clone(), name.to_owned(), tag.clone());
        let key = format!("tag {host} {name} {tag}");
        let digest = self.once(key, async move { fetcher.resolve(at, &of_task, &of_tag).await }).await?;
        let file = self.shelf.open(Kind::Manifest, &digest).await?;
        Ok((file.ok_or_else(|| Fault::unknown("MANIFEST_UNKNOWN"))?, digest))
    }

    /// The manifest of a tag that was seen a moment ago; one that will be seen is not believed.
    async fn fresh(&self, known: Option<Tag>) -> Result<Option<(Box<dyn File>, Digest)>, Fault> {
        let (now, age_max) = (self.shelf.now_ms(), self.tag_age.as_millis() as u64);
        let is_fresh = |tag: &Tag| now.checked_sub(tag.seen_ms).is_some_and(|age| age < age_max);
        let digest = known.filter(is_fresh).and_then(|tag| Digest::parse(&tag.digest));
        let Some(digest) = digest else { return Ok(None) };
        Ok(self.shelf.open(Kind::Manifest, &digest).await?.map(|file| (file, digest)))
    }

    /// Tags of a repository as the upstream has them, or those that are known here if it does not answer.
    pub async fn tags(&self, at: usize, name: &str, query: &str) -> Result<Bytes, Fault> {
        let asker = &self.askers[at];
        let asked = async {
            let answer = asker.ask(Method::GET, name, &format!("tags/list{query}"), "NAME_UNKNOWN").await?;
            collect(answer.into_body(), TAGS_BYTES_MAX).await
        };
        match asked.await {
            Err(fault) if fault.status == StatusCode::BAD_GATEWAY => {
                let tags = self.shelf.tags(asker.upstream.host(), name).await?;
                if tags.is_empty() {
                    return Err(fault);
                }
                Ok(serde_json::json!({"name": name, "tags": tags}).to_string().into())
            }
            asked => asked,
        }
    }

    /// Does this, or waits for whoever does.
    async fn once(
        self: &Arc<Fetcher>,
        key: String,
        work: impl Future<Output = Result<Digest, Fault>> + Send + 'static,
    ) -> Result<Digest, Fault> {
        let mut landed = {
            let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
            match flights.get(&key) {
                Some(landed) => landed.clone(),
                None if flights.len() >= FLIGHTS_MAX => {
                    return Err(Fault::new(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "TOOMANYREQUESTS",
                        "too much is fetched at the moment; retry",
                    ));
                }
                None => {
                    let (tell, landed) = watch::channel(None);
                    flights.insert(key.clone(), landed.clone());
                    let landing = Landing { fetcher: self.clone(), key };
                    tokio::spawn(async move {
                        let done = work.await;
                        drop(landing);
                        // Those who asked may have hung up.
                        let _ = tell.send(Some(done));
                    });
                    landed
                }
            }
        };
        let done = landed.wait_for(Option::is_some).await.ok().and_then(|done| done.clone());
        done.unwrap_or_else(|| {
            Err(Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN", "the fetch was ended"))
        })
    }

    async fn permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Fault> {
        self.permits.acquire().await.map_err(|_| Fault::upstream("the registry stops"))
    }

    /// Brings what has a digest.
    async fn fetch(&self, at: usize, name: &str, kind: Kind, digest: Digest) -> Result<Digest, Fault> {
        // Somebody brought it between our look and now.
        if self.shelf.open(kind, &digest).await?.is_some() {
            return Ok(digest);
        }
        let _permit = self.permit().await?;
        let part = format!("{}/{digest}", kind.part());
        let answer = self.askers[at].ask(Method::GET, name, &part, kind.unknown()).await?;
        let (head, body) = answer.into_parts();
        match kind {
            Kind::Manifest => {
                let bytes = self.read_manifest(body).await?;
                self.keep_manifest(&head.headers, bytes, Some(&digest)).await
            }
            Kind::Blob => self.keep_blob(&head.headers, body, digest).await,
        }
    }

    /// Finds out what a tag is; what it was counts on if the upstream does not answer.
    async fn resolve(&self, at: usize, name: &str, tag: &str) -> Result<Digest, Fault> {
        let asker = &self.askers[at];
        let host = asker.upstream.host();
        let known = self.shelf.tag(host, name, tag).await?;
        if let Some((_, digest)) = self.fresh(known.clone()).await? {
            return Ok(digest);
        }
        let known = known.and_then(|known| Digest::parse(&known.digest));
        let held = match &known {
            Some(digest) => self.shelf.open(Kind::Manifest, digest).await?.and(known.clone()),
            None => None,
        };
        let _permit = self.permit().await?;
        let found = match &held {
            Some(digest) if self.is_still(at, name, tag, digest).await => Ok(digest.clone()),
            _ => self.bring_tag(at, name, tag).await,
        };
        match (found, held) {
            (Ok(digest), _) => {
                self.shelf.set_tag(host, name, tag, &digest).await?;
                Ok(digest)
            }
            (Err(fault), Some(digest))
                if fault.status.is_server_error() || fault.status == StatusCode::TOO_MANY_REQUESTS =>
            {
                tracing::warn!("{name}:{tag} is given as it was: {}", fault.message);
                Ok(digest)
            }
            (Err(fault), _) => Err(fault),
        }
    }

    /// Whether a tag is what it was; a question that costs less than the manifest, also with those who count.
    async fn is_still(&self, at: usize, name: &str, tag: &str, digest: &Digest) -> bool {
        let part = format!("manifests/{tag}");
        let answer = self.askers[at].ask(Method::HEAD, name, &part, "MANIFEST_UNKNOWN").await;
        answer.ok().and_then(|answer| said_digest(answer.headers())).as_ref() == Some(digest)
    }

    async fn bring_tag(&self, at: usize, name: &str, tag: &str) -> Result<Digest, Fault> {
        let part = format!("manifests/{tag}");
        let answer = self.askers[at].ask(Method::GET, name, &part, "MANIFEST_UNKNOWN").await?;
        let (head, body) = answer.into_parts();
        let bytes = self.read_manifest(body).await?;
        self.keep_manifest(&head.headers, bytes, said_digest(&head.headers).as_ref()).await
    }

    async fn read_manifest(&self, body: Incoming) -> Result<Bytes, Fault> {
        let bytes = collect(body, MANIFEST_BYTES_MAX).await?;
        add(&self.stats.upstream_bytes, bytes.len() as u64);
        Ok(bytes)
    }

    /// Keeps a manifest if it is what was said.
    async fn keep_manifest(
        &self,
        head: &HeaderMap,
        bytes: Bytes,
        wanted: Option<&Digest>,
    ) -> Result<Digest, Fault> {
        let mut hasher = Hasher::new();
        hasher.add(&bytes);
        let digest = hasher.end();
        if wanted.is_some_and(|wanted| *wanted != digest) {
            return Err(self.wrong(bytes.len() as u64, wanted));
        }
        let media_type = media_type_of(head, &bytes);
        let _room = self.shelf.make_room(bytes.len() as u64).await?;
        let size = Some(bytes.len() as u64);
        if let Some(mut filler) = self.shelf.begin(Kind::Manifest, &digest, &media_type, size).await? {
            filler.put(&bytes).await?;
            self.shelf.finish(Kind::Manifest, &digest, filler).await?;
        }
        Ok(digest)
    }

    /// Keeps a blob if it is what was said. Until then nobody sees it, and if it is not, nothing stays of it.
    async fn keep_blob(&self, head: &HeaderMap, mut body: Incoming, digest: Digest) -> Result<Digest, Fault> {
        let said = head.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let bytes_max = self.shelf.bytes_max();
        let too_long = || {
            let message = format!("{digest} has more than the {bytes_max} bytes that may be kept");
            Fault::new(StatusCode::INSUFFICIENT_STORAGE, "UNKNOWN", message)
        };
        if said.is_some_and(|said| said > bytes_max) {
            return Err(too_long());
        }
        let _room = self.shelf.make_room(said.unwrap_or(0)).await?;
        let Some(mut filler) = self.shelf.begin(Kind::Blob, &digest, OCTETS, said).await? else {
            return Ok(digest);
        };
        let mut hasher = Hasher::new();
        loop {
            let next = tokio::time::timeout(SILENCE_MAX, body.frame()).await;
            let next = next.map_err(|_| Fault::upstream(format!("{digest} stopped coming")))?;
            let Some(frame) = next else { break };
            let frame = frame.map_err(|error| Fault::upstream(format!("{digest} broke off: {error}")))?;
            let Ok(bytes) = frame.into_data() else { continue };
            add(&self.stats.upstream_bytes, bytes.len() as u64);
            let limit = said.unwrap_or(bytes_max);
            if filler.len() + bytes.len() as u64 > limit {
                return Err(too_long());
            }
            hasher.add(&bytes);
            filler.put(&bytes).await?;
        }
        if hasher.end() != digest {
            return Err(self.wrong(filler.len(), Some(&digest)));
        }
        let is_unannounced = said.is_none();
        self.shelf.finish(Kind::Blob, &digest, filler).await?;
        if is_unannounced {
            self.shelf.make_room(0).await?;
        }
        Ok(digest)
    }

    fn wrong(&self, bytes: u64, wanted: Option<&Digest>) -> Fault {
        add(&self.stats.refused, bytes);
        let wanted = wanted.map(ToString::to_string).unwrap_or_default();
        tracing::error!("an upstream sent something else than {wanted}; nothing of it is kept");
        Fault::upstream(format!("the upstream sent something else than {wanted}"))
    }
}

fn said_digest(head: &HeaderMap) -> Option<Digest> {
    Digest::parse(head.get(DIGEST_HEADER)?.to_str().ok()?)
}

/// The kind of a manifest: what the upstream says, or what is in it.
fn media_type_of(head: &HeaderMap, bytes: &[u8]) -> String {
    let said = head.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let said = said.map(|said| said.split(';').next().unwrap_or(said).trim().to_owned());
    let own = || {
        let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
        Some(value["mediaType"].as_str()?.to_owned())
    };
    let is_sound = |kind: &String| {
        (1..=128).contains(&kind.len())
            && kind.contains('/')
            && kind.bytes().all(|byte| byte.is_ascii_graphic())
    };
    said.filter(|kind| is_sound(kind) && kind.starts_with("application/vnd."))
        .or_else(|| own().filter(is_sound))
        .unwrap_or_else(|| "application/vnd.oci.image.manifest.v1+json".to_owned())
}
