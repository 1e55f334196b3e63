//! Steps on the lake: small objects and one in parts, written, read, compared and deleted below a prefix of the gate's own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stoker_lake::{Attributes, Lake, LakeError, PutOptions};

use super::Extent;
use super::leftovers::Leftovers;
use super::site::Site;
use super::step::Outcome;
use crate::clock;
use crate::daemon::LakePlan;
use crate::rng::Rng;
use stoker_probe::measure::median;

/// Longest time that all of it may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest time that taking things away may take.
const REMOVE_MAX: Duration = Duration::from_secs(20);

const SMALL: usize = 4096;
/// Bytes of a part, if the lake does not want more.
const PART: u64 = 8 << 20;
/// A lake that wants larger ones is measured without.
const PART_MAX: u64 = 64 << 20;

const STEPS: [&str; 5] = ["lake_put_p50", "lake_get_p50", "lake_delete_p50", "lake_upload", "lake_download"];

/// Measures the lake.
pub fn run(site: &Site, extent: &Extent, leftovers: &Leftovers) -> Vec<Outcome> {
    let subject = site.lake.url.clone();
    let every = |why: String| STEPS.iter().map(|step| Outcome::failed(step, &subject, &why)).collect();
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(why) => return every(why),
    };
    let prefix = format!(".stoker-gate/{}/", site.node);
    let (plan, undone) = (site.lake.clone(), prefix.clone());
    let _objects = leftovers.add(move || remove(&plan, &undone));
    let work = async {
        let lake = open(&site.lake).await?;
        let mut trial = Trial { lake, prefix, rng: Rng::new(clock::unix_ms()) };
        // Of a gate that was killed.
        trial.clear().await?;
        let mut outcomes = trial.small(&subject, extent.objects).await?;
        outcomes.extend(trial.large(&subject, extent.rounds).await?);
        trial.clear().await?;
        Ok::<_, String>(outcomes)
    };
    let done = runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await });
    match done {
        Ok(Ok(outcomes)) => outcomes,
        Ok(Err(why)) => every(why),
        Err(_) => every(format!("no end after {} s", PATIENCE.as_secs())),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| format!("runtime: {e}"))
}

fn said(fault: LakeError) -> String {
    fault.message
}

async fn open(plan: &LakePlan) -> Result<Arc<dyn Lake>, String> {
    let mut options = plan.options.clone();
    options.create_root |= plan.is_own;
    stoker_lake::open(&plan.url, &options).await.map_err(said)
}

/// Takes away what is there, should it not be gone already.
fn remove(plan: &LakePlan, prefix: &str) {
    let Ok(runtime) = runtime() else { return };
    let work = async {
        let lake = open(plan).await?;
        Trial { lake, prefix: prefix.to_owned(), rng: Rng::new(0) }.clear().await
    };
    let _ = runtime.block_on(async { tokio::time::timeout(REMOVE_MAX, work).await });
}

struct Trial {
    lake: Arc<dyn Lake>,
    prefix: String,
    rng: Rng,
}

impl Trial {
    fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        bytes.into()
    }

    /// Deletes everything below the prefix, which nobody else uses.
    async fn clear(&self) -> Result<(), String> {
        loop {
            let page = self.lake.list(self.prefix.as_bytes(), None, None, 1_000).await.map_err(said)?;
            for object in &page.objects {
                self.lake.delete(&object.key, None).await.map_err(said)?;
            }
            if page.next.is_none() {
                return Ok(());
            }
        }
    }

    async fn small(&mut self, subject: &str, count: usize) -> Result<Vec<Outcome>, String> {
        let (mut puts, mut gets, mut deletes) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..count {
            let key = format!("{}small-{number}", self.prefix).into_bytes();
            let bytes = self.bytes(SMALL);
            let begun = clock::now();
            let etag = self.lake.put(&key, vec![bytes.clone()], PutOptions::default()).await.map_err(said)?;
            puts.push(begun.elapsed().as_secs_f64() * 1e6);
            let begun = clock::now();
            let read = self.lake.get(&key, 0..SMALL as u64, Some(&etag)).await.map_err(said)?;
            gets.push(begun.elapsed().as_secs_f64() * 1e6);
            if read != bytes {
                return Err("the lake gives other bytes than it was given".into());
            }
            let begun = clock::now();
            self.lake.delete(&key, Some(&etag)).await.map_err(said)?;
            deletes.push(begun.elapsed().as_secs_f64() * 1e6);
            if self.lake.head(&key).await.map_err(said)?.is_some() {
                return Err("an object is still there after it was deleted".into());
            }
        }
        let times = [("lake_put_p50", puts), ("lake_get_p50", gets), ("lake_delete_p50", deletes)];
        Ok(times.map(|(step, times)| Outcome::measured(step, subject, median(times.into_iter()))).into())
    }

    async fn large(&mut self, subject: &str, rounds: usize) -> Result<Vec<Outcome>, String> {
        let part = PART.max(self.lake.capabilities().part_bytes_min);
        if part > PART_MAX {
            let why = "the lake wants larger parts than the gate writes";
            return Ok(["lake_upload", "lake_download"]
                .map(|step| Outcome::skipped(step, subject, why))
                .into());
        }
        let (mut sent, mut got) = (0.0, 0.0);
        for _ in 0..rounds {
            let (up, down) = self.large_once(part).await?;
            (sent, got) = (f64::max(sent, up), f64::max(got, down));
        }
        Ok(vec![
            Outcome::measured("lake_upload", subject, sent),
            Outcome::measured("lake_download", subject, got),
        ])
    }

    /// Writes an object in two parts and reads it; MB/s of both.
    async fn large_once(&mut self, part: u64) -> Result<(f64, f64), String> {
        let key = format!("{}large", self.prefix).into_bytes();
        let parts = [self.bytes(part as usize), self.bytes(part as usize)];
        let megabytes = 2.0 * part as f64 / 1e6;
        let begun = clock::now();
        let upload = self.lake.upload_begin(&key, Attributes::default()).await.map_err(said)?;
        let etag = match self.upload(&key, &upload, &parts).await {
            Ok(etag) => etag,
            Err(fault) => {
                let _ = self.lake.upload_abort(&key, &upload).await;
                return Err(said(fault));
            }
        };
        let sent = megabytes / begun.elapsed().as_secs_f64();
        let begun = clock::now();
        let ranges = [0..part, part..2 * part];
        let reads = ranges.into_iter().map(|range| self.lake.get(&key, range, Some(&etag)));
        let read = futures_util::future::try_join_all(reads).await.map_err(said)?;
        let got = megabytes / begun.elapsed().as_secs_f64();
        if read != parts {
            return Err("the lake gives other bytes than it was given in parts".into());
        }
        self.lake.delete(&key, Some(&etag)).await.map_err(said)?;
        Ok((sent, got))
    }

    async fn upload(&self, key: &[u8], upload: &str, parts: &[Bytes; 2]) -> Result<String, LakeError> {
        let sent = parts
            .iter()
            .zip(1..)
            .map(|(bytes, number)| self.lake.upload_part(key, upload, number, vec![bytes.clone()]));
        let tags = futures_util::future::try_join_all(sent).await?;
        self.lake.upload_complete(key, upload, tags, PutOptions::default()).await
    }
}
