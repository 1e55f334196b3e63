//! Why a run was slow: from what it measured to one cause, what it explains, and what to do.
//!
//! First what is used up: a resource that is at its limit explains the waiting, whatever the workers did meanwhile. If none is, the time of
//! the workers is divided among what they were seen doing: waiting for opens and reads, decoding, and the rest, which is the work for
//! samples and batches. What no number explains is said to be unexplained.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::FORM;
use crate::constants::Constants;
use crate::spec::{Misfit, nearest};
use crate::value::human;

/// Below this share of waiting nothing is wrong.
const WAIT_FINE: f64 = 0.1;
/// A resource that is used by so much is at its limit.
const FULL: f64 = 0.75;
/// A drive whose reads take so many times as long as when it was sound is throttled.
const SLOWER: f64 = 3.0;
/// Share of bytes from the lake that matters.
const COLD: f64 = 0.3;
/// Share of the workers' time that makes something the cause.
const BUSY: f64 = 0.35;
/// A mean read below this is a small one.
const SMALL: f64 = 64.0 * 1024.0;
/// A batch of no more samples is a small one.
const FEW: f64 = 8.0;
/// Below this use a drive that is waited for is not at its limit.
const HALF: f64 = 0.5;

/// What a run measured. What is not known is zero.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recorded {
    /// The form of the document.
    pub form: u32,
    /// The job.
    pub job: String,
    /// Wall time of the run on one rank, seconds.
    pub elapsed_s: f64,
    /// Of it the training loop waited for batches.
    pub waited_s: f64,
    /// Loader workers of the rank; 0 if the loop loads itself.
    pub workers: f64,
    /// Cores that the rank may use.
    pub cores: f64,
    /// Batches, samples and bytes that came.
    pub batches: f64,
    #[allow(missing_docs)]
    pub samples: f64,
    #[allow(missing_docs)]
    pub bytes: f64,
    /// Reads that the loader made, their bytes, and the time that they took one by one; many are under way at once.
    pub reads: f64,
    #[allow(missing_docs)]
    pub read_bytes: f64,
    #[allow(missing_docs)]
    pub read_s: f64,
    /// Time that workers waited for bytes, of all workers together.
    pub bytes_waited_s: f64,
    /// Time in the decode hook, of all workers together.
    pub decode_s: f64,
    /// Files that were opened, and the time of that, of all workers together; the time is estimated if it is zero.
    pub opens: f64,
    #[allow(missing_docs)]
    pub open_s: f64,
    /// Operations that metadata servers were asked for by all, per second, and how many they can do.
    pub metadata_per_s: f64,
    #[allow(missing_docs)]
    pub metadata_capacity: f64,
    /// Reads of the node's drives, the time that they took one by one, and their bytes.
    pub drive_reads: f64,
    #[allow(missing_docs)]
    pub drive_read_s: f64,
    #[allow(missing_docs)]
    pub drive_bytes: f64,
    /// Drives of the node, and what one did when it was sound: what was calibrated, if it is zero.
    pub drives: f64,
    #[allow(missing_docs)]
    pub drive_rate: f64,
    #[allow(missing_docs)]
    pub drive_iops: f64,
    #[allow(missing_docs)]
    pub drive_latency_s: f64,
    /// Bytes that came from the lake, and from other nodes.
    pub lake_bytes: f64,
    #[allow(missing_docs)]
    pub network_bytes: f64,
    /// Bytes per second that the node's ports can carry.
    pub network_rate: f64,
}

/// Causes, as programs name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// No cause: the loop hardly waited.
    NothingWrong,
    /// A file for each sample.
    TinyFiles,
    /// One worker, or none.
    OneWorker,
    /// Small reads at random.
    RandomReads,
    /// The lake brings what should be on drives.
    ColdLake,
    /// A drive is slower than it was.
    ThrottledDrive,
    /// Drives bring all they can.
    DriveBound,
    /// Servers of metadata are at their limit.
    MetadataStorm,
    /// Each batch costs more than its samples.
    SmallBatch,
    /// Decoding.
    DecodeBound,
    /// Ports are at their limit.
    NetworkBound,
    /// No number explains it.
    Unexplained,
}

/// What is said about a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Verdict {
    /// The cause.
    pub cause: Cause,
    /// In one line.
    pub title: String,
    /// Share of the time that the loop waited.
    pub waited: f64,
    /// Share of the waiting that the cause explains.
    pub explained: f64,
    /// Utilization now, and what it would be without the cause.
    pub utilization: f64,
    /// See `utilization`.
    pub predicted: f64,
    /// What to do.
    pub advice: String,
    /// Numbers behind it.
    pub evidence: Vec<String>,
}

impl Recorded {
    /// Reads a document. Unknown names, negative and infinite numbers are refused by name.
    pub fn parse(text: &str) -> Result<Recorded, Vec<Misfit>> {
        let hint = "`stoker.data` prints one: see docs/planner.md";
        let value: Value = serde_json::from_str(text)
            .map_err(|error| vec![Misfit::new("run", format!("it is no JSON: {error}"), hint)])?;
        let Value::Object(fields) = &value else {
            return Err(vec![Misfit::new("run", "it is no object", hint)]);
        };
        let Ok(Value::Object(known)) = serde_json::to_value(Recorded::default()) else {
            return Err(Vec::new());
        };
        let mut misfits = Vec::new();
        for (name, value) in fields {
            let Some(kind) = known.get(name) else {
                let near = nearest(name, known.keys().map(String::as_str));
                let hint = near.map_or_else(|| hint.to_owned(), |near| format!("did you mean `{near}`?"));
                let shown: String = name.chars().take(40).flat_map(char::escape_default).collect();
                misfits.push(Misfit::new(&shown, "a run has no such number", &hint));
                continue;
            };
            if kind.is_number() && !value.as_f64().is_some_and(|value| (0.0..1e30).contains(&value)) {
                misfits.push(Misfit::new(
                    name,
                    format!("{value} is no number of a run"),
                    "it is zero or more",
                ));
            }
        }
        if fields.get("form").is_some_and(|form| form.as_u64() != Some(u64::from(FORM))) {
            misfits.push(Misfit::new("form", format!("this release reads form {FORM}"), "record it again"));
        }
        if !misfits.is_empty() {
            return Err(misfits);
        }
        let read: Recorded = serde_json::from_value(value)
            .map_err(|error| vec![Misfit::new("run", error.to_string(), hint)])?;
        if read.elapsed_s <= 0.0 || read.samples <= 0.0 {
            let message = "a run has time and samples: `elapsed_s` and `samples` are above zero";
            return Err(vec![Misfit::new("elapsed_s", message, hint)]);
        }
        if read.waited_s > read.elapsed_s * 1.001 {
            let message =
                format!("{} of waiting in {}", human(read.waited_s, "s"), human(read.elapsed_s, "s"));
            return Err(vec![Misfit::new(
                "waited_s",
                message,
                "it is the wait of the training loop, not the sum over workers",
            )]);
        }
        Ok(read)
    }
}

struct Found {
    cause: Cause,
    /// Share of the time that it takes of the workers or of a resource.
    share: f64,
    what: &'static str,
    advice: &'static str,
    evidence: String,
}

fn part(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// Finds the cause.
pub fn verdict(run: &Recorded, constants: &Constants) -> Verdict {
    let waited = part(run.waited_s, run.elapsed_s).min(1.0);
    let utilization = 1.0 - waited;
    let mut evidence = vec![format!(
        "{} samples of {} in {}; the loop waited {} of it",
        human(run.samples, ""),
        human(part(run.bytes, run.samples), "B"),
        human(run.elapsed_s, "s"),
        human(run.waited_s, "s")
    )];
    if waited < WAIT_FINE {
        let title =
            format!("{} of the time waited for data: nothing is wrong with loading", human(waited, "share"));
        let advice = "look at the model or the GPUs, not at storage".to_owned();
        return Verdict {
            cause: Cause::NothingWrong,
            title,
            waited,
            explained: 0.0,
            utilization,
            predicted: utilization,
            advice,
            evidence,
        };
    }
    let mut all = resources(run, constants);
    let is_full = !all.is_empty();
    if !is_full {
        all = work(run, constants);
        all.retain(|found| found.share >= BUSY);
    }
    all.sort_by(|a, b| b.share.total_cmp(&a.share));
    evidence.extend(all.iter().map(|found| found.evidence.clone()));
    // Decoding alone is no limit while cores are free for more workers.
    let is_alone = run.workers <= 1.0 && run.cores > run.workers.max(1.0);
    let found = match all.first() {
        Some(found) if !(is_alone && found.cause == Cause::DecodeBound) => found,
        _ => return few_workers(run, waited, evidence),
    };
    let explained = if is_full { found.share.clamp(0.5, 0.95) } else { found.share.min(0.95) };
    let predicted = 1.0 - waited * (1.0 - explained);
    let title = format!(
        "{} of the time waited for data; {} of that was {}: {}: predicted {} utilization",
        human(waited, "share"),
        human(explained, "share"),
        found.what,
        found.advice,
        human(predicted, "share")
    );
    Verdict {
        cause: found.cause,
        title,
        waited,
        explained,
        utilization,
        predicted,
        advice: found.advice.to_owned(),
        evidence,
    }
}

/// What is at its limit.
fn resources(run: &Recorded, constants: &Constants) -> Vec<Found> {
    let mut all = Vec::new();
    let network = part(run.network_bytes / run.elapsed_s, run.network_rate);
    if network >= FULL {
        let evidence = format!("the node's ports carry {} of what they can", human(network, "share"));
        all.push(Found {
            cause: Cause::NetworkBound,
            share: network,
            what: "the network",
            advice: "read from the node's own drives, or add ports",
            evidence,
        });
    }
    let capacity = known(run.metadata_capacity, constants, "metadata_rate");
    let metadata = part(run.metadata_per_s, capacity);
    if metadata >= FULL {
        let evidence = format!("metadata is asked for {} of what it can do", human(metadata, "share"));
        all.push(Found {
            cause: Cause::MetadataStorm,
            share: metadata,
            what: "metadata",
            advice: "pack and seal the dataset, so that reads need none",
            evidence,
        });
    }
    let cold = part(run.lake_bytes, run.bytes.max(run.read_bytes));
    if cold >= COLD {
        let evidence = format!("{} of the bytes came from the lake", human(cold.min(1.0), "share"));
        all.push(Found {
            cause: Cause::ColdLake,
            share: cold.min(1.0),
            what: "the lake",
            advice: "stage the dataset before the job (`stoker stage -r`)",
            evidence,
        });
    }
    // What is slow farther away, or waits for opens, says nothing of drives.
    if all.is_empty() && !is_opened(run) {
        all.extend(drives(run, constants));
    }
    all
}

/// What the run says, or what was measured before; zero if nobody knows.
fn known(said: f64, constants: &Constants, name: &str) -> f64 {
    match said {
        said if said > 0.0 => said,
        _ if constants.is_measured(name) => constants.get(name),
        _ => 0.0,
    }
}

/// Whether drives bring all they can, or less than they could.
fn drives(run: &Recorded, constants: &Constants) -> Option<Found> {
    // A loader that reads the drives itself makes the reads that the node does not see.
    let by_node = run.drive_reads > 0.0;
    let of = |node: f64, loader: f64| if by_node { node } else { loader };
    let (reads, read_s) = (of(run.drive_reads, run.reads), of(run.drive_read_s, run.read_s));
    let bytes = of(run.drive_bytes, run.read_bytes);
    let rate = known(run.drive_rate, constants, "drive_read");
    let iops = known(run.drive_iops, constants, "drive_iops");
    let latency = known(run.drive_latency_s, constants, "drive_latency");
    let one = part(bytes, rate) + part(reads, iops);
    let used = part(one, run.drives.max(1.0) * run.elapsed_s);
    let (mean, sound) = (part(read_s, reads), latency + part(part(bytes, reads), rate));
    let small = part(bytes, reads) <= SMALL;
    if rate > 0.0 && used >= FULL {
        let evidence = format!("drives bring {} of what they can", human(used, "share"));
        let (cause, what, advice) = match small {
            true => (
                Cause::RandomReads,
                "small reads at random",
                "shuffle in blocks, so that neighbours are read together",
            ),
            false => {
                (Cause::DriveBound, "drives at their limit", "add drives, or spread the data over more nodes")
            }
        };
        return Some(Found { cause, share: used, what, advice, evidence });
    }
    // Reads that are waited for one after the other in a burst are slow on a sound drive, too: what counts is that the workers wait
    // for bytes most of the time, and get few.
    let waits = run.bytes_waited_s <= 0.0 || part(run.bytes_waited_s, time_of(run)) >= HALF;
    let is_slow = sound > 0.0 && mean >= SLOWER * sound && used < HALF && waits;
    is_slow.then(|| Found {
        cause: Cause::ThrottledDrive,
        share: 1.0 - sound / mean,
        what: "a drive that is slower than it was",
        advice: "look at the drive (`stoker slo`, `stoker doctor`), cordon it if it stays so",
        evidence: format!(
            "a read of a drive takes {}, and took {} when it was sound",
            human(mean, "s"),
            human(sound, "s")
        ),
    })
}

/// Whether samples are files of their own.
fn is_opened(run: &Recorded) -> bool {
    part(run.opens, run.samples) >= 0.5
}

/// The time that the loader had: of its workers, or of the loop that loads itself.
fn time_of(run: &Recorded) -> f64 {
    if run.workers >= 1.0 { run.workers * run.elapsed_s } else { run.waited_s.max(run.elapsed_s * 1e-3) }
}

/// What the workers did with their time.
fn work(run: &Recorded, constants: &Constants) -> Vec<Found> {
    // Who did not measure waits for bytes gets what the counts tell.
    let is_timed = run.bytes_waited_s > 0.0 && run.read_s + run.open_s > 0.0;
    let time = if is_timed { time_of(run) } else { run.workers.max(1.0) * run.elapsed_s };
    let waiting = part(run.bytes_waited_s, time);
    let decode = part(run.decode_s, time);
    let is_opened = is_opened(run);
    let mut all = vec![Found {
        cause: Cause::DecodeBound,
        share: decode,
        what: "decoding",
        advice: "more workers if cores are free, smaller images, or decoding on the GPU",
        evidence: format!("decoding took {} of the workers' time", human(decode, "share")),
    }];
    // Opens and reads are under way side by side, so their sums say how the waiting is shared out, not how long it was.
    let opens = part(run.open_s, run.open_s + run.read_s);
    let guessed = run.opens * constants.get("open_time");
    let opening = match is_opened {
        // The first read of a file that was just opened asks the node once more.
        true if is_timed => waiting,
        true => part(if run.open_s > 0.0 { run.open_s } else { guessed }, time),
        false => 0.0,
    };
    all.push(Found {
        cause: Cause::TinyFiles,
        share: opening,
        what: "opens",
        advice: "pack the dataset (`stoker pack`)",
        evidence: match is_timed {
            true => format!(
                "{:.1} opens for each sample; the workers waited for bytes {} of their time, and {} of that is opens, the rest first reads",
                part(run.opens, run.samples),
                human(waiting, "share"),
                human(opens, "share")
            ),
            false => format!(
                "{:.1} opens for each sample took {} of the workers' time",
                part(run.opens, run.samples),
                human(opening, "share")
            ),
        },
    });
    let mean = part(run.read_bytes, run.reads);
    let is_small = run.reads > 0.0 && mean <= SMALL && !is_opened;
    let each = constants.get("read_overhead") + constants.get("drive_latency");
    let reading = match is_small {
        true if is_timed => waiting,
        true => part(run.reads * each, time),
        false => 0.0,
    };
    all.push(Found {
        cause: Cause::RandomReads,
        share: reading,
        what: "small reads at random",
        advice: "shuffle in blocks, so that neighbours are read together",
        evidence: format!("{} reads of {} on average", human(run.reads, ""), human(mean, "B")),
    });
    let is_few = part(run.samples, run.batches) <= FEW;
    let per_batch = match is_timed {
        // What is neither waiting nor decoding is work for samples and batches.
        true if is_few => (1.0 - waiting - decode).max(0.0),
        true => 0.0,
        false => part(run.batches * constants.get("batch_overhead"), time.min(run.elapsed_s)),
    };
    all.push(Found {
        cause: Cause::SmallBatch,
        share: per_batch,
        what: "work for each batch",
        advice: "larger batches",
        evidence: format!(
            "{} batches of {:.1} samples",
            human(run.batches, ""),
            part(run.samples, run.batches)
        ),
    });
    all
}

/// Nothing is at its limit and nothing stands out: one worker does one thing after the other.
fn few_workers(run: &Recorded, waited: f64, mut evidence: Vec<String>) -> Verdict {
    let utilization = 1.0 - waited;
    if run.workers <= 1.0 {
        // With four, a batch comes after a quarter of the time; a loop that loads itself also begins to overlap.
        let wanted = 4.0;
        let load = if run.workers < 1.0 { waited } else { 1.0 } / wanted;
        let left = (load - utilization).max(0.0);
        let predicted = utilization / (utilization + left);
        evidence.push(format!(
            "{:.0} workers; neither drives, network, lake nor metadata are at their limit",
            run.workers
        ));
        let advice = format!("{wanted:.0} workers");
        let explained = part(waited - (1.0 - predicted), waited);
        let title = format!(
            "{} of the time waited for data; one worker does one thing after the other: {advice}: predicted {} utilization",
            human(waited, "share"),
            human(predicted, "share")
        );
        return Verdict {
            cause: Cause::OneWorker,
            title,
            waited,
            explained,
            utilization,
            predicted,
            advice,
            evidence,
        };
    }
    evidence.push("neither drives, network, lake, metadata, decoding nor opens explain it".into());
    Verdict {
        cause: Cause::Unexplained,
        title: format!("{} of the time waited for data, and no number explains it", human(waited, "share")),
        waited,
        explained: 0.0,
        utilization,
        predicted: utilization,
        advice: "give more numbers: those of the node (`--node`), opens, decode time".into(),
        evidence,
    }
}
