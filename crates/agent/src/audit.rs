//! The audit log of a node: where it is, what signs it, and how closed segments get into a volume of their own.
//!
//! Lines are written to the node's directory first, so that they need neither a catalog nor another node. A segment that is closed becomes a file
//! of the volume `stoker-audit`, with the class and the lake of that volume; what is there may go from the node's directory.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use aws_lc_rs::hmac;
use stoker_access::{AUDIT_VOLUME, Guard};
use stoker_admin::Source;
use stoker_audit::{Counts, Flush, Log, LogOptions, PublicKey, SigningKey};
use stoker_node::Member;
use stoker_store::{
    Condition, Counter, ErrorKind, Filler, Finish, Key, ListEntry, ListRequest, Result, Store, StoreError,
    VolumeOptions, WriteRequest,
};

use super::place::Place;
use crate::config::{Audit as AuditPlan, AuditFlush, AuditLevel, AuditUnwritable};
use crate::failure::Failure;
use stoker_terminal::clock;

/// Its folder in the node's directory.
pub const AUDIT_DIR: &str = "audit";

/// What the key that signs is for, so that no other use of the secret gives the same one.
const PURPOSE: &[u8] = b"stoker: heads of the audit log, 1";

/// How often segments that were closed are looked for.
const SHIP_EVERY: Duration = Duration::from_secs(5);
/// Rounds after which old segments in the volume are looked for: an hour.
const EXPIRE_ROUNDS: u64 = 720;
/// Bytes that are read of a segment at once.
const PIECE_BYTES: usize = 1 << 20;

/// The keys that sign, of the secrets of a cluster: the first is the present one.
fn signing_keys(dir: &Path) -> std::result::Result<Vec<SigningKey>, Failure> {
    let secrets = stoker_node::secrets_kept(dir).map_err(super::refused)?;
    let key = |secret: &[u8; 32]| {
        let seed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), PURPOSE);
        SigningKey::of_seed(seed.as_ref().try_into().ok()?)
    };
    Ok(secrets.iter().filter_map(key).collect())
}

/// What the log of a node is checked with, from its directory.
pub fn audit_keys(dir: &Path) -> std::result::Result<Vec<PublicKey>, Failure> {
    Ok(signing_keys(dir)?.iter().map(SigningKey::public).collect())
}

/// Opens the log of a node; none if nothing is to be written.
fn open(place: &Place, plan: &AuditPlan, node: &str) -> std::result::Result<Option<Arc<Log>>, Failure> {
    if plan.level == AuditLevel::Off {
        return Ok(None);
    }
    let dir = place.dir().join(AUDIT_DIR);
    let options = LogOptions {
        is_full: plan.level == AuditLevel::Full,
        flush: match plan.flush {
            AuditFlush::Auto => Flush::Auto,
            AuditFlush::Answer => Flush::Answer,
            AuditFlush::Soon => Flush::Soon,
        },
        refuses: plan.unwritable == AuditUnwritable::Refuse,
        segment_bytes_max: plan.segment.0.max(SEGMENT_BYTES_MIN),
        segment_age_max: Duration::from_secs(plan.segment_age_s.get().into()),
        disk_bytes_max: plan.disk_max.0.max(4 * SEGMENT_BYTES_MIN),
        ..LogOptions::new(&dir, node, signing_keys(place.dir())?)
    };
    let opened = Log::open(options).map_err(|error| {
        Failure::io(format!("the audit log in {}", dir.display()), &error)
            .hint("`level = \"off\"` in [audit] starts the node without it")
    })?;
    Ok(Some(Arc::new(opened)))
}

/// The store as endpoints are given it, with what they do written down.
pub(crate) fn guard(
    place: &Place,
    plan: &AuditPlan,
    member: &Member,
    store: &Arc<dyn Store>,
) -> std::result::Result<(Guard, Option<Arc<Log>>), Failure> {
    let log = open(place, plan, &member.node().id().to_string())?;
    let guard = match &log {
        None => Guard::new(Arc::clone(store)),
        Some(log) => {
            tokio::spawn(ship(Arc::downgrade(log), Arc::downgrade(store), plan.keep_days));
            Guard::audited(Arc::clone(store), Arc::clone(log))
        }
    };
    // The present secret alone: temporary keys end when it is replaced. (D225)
    if let Some(secret) = stoker_node::secrets_kept(place.dir()).map_err(super::refused)?.first() {
        guard.seal_sessions_with(secret);
    }
    Ok((guard, log))
}

/// A segment that is smaller is all overhead.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// Puts closed segments into the volume, for as long as the log and the store are there.
async fn ship(log: Weak<Log>, store: Weak<dyn Store>, keep_days: u32) {
    let mut is_told = false;
    for round in 1u64.. {
        tokio::time::sleep(SHIP_EVERY).await;
        let (Some(log), Some(store)) = (log.upgrade(), store.upgrade()) else { return };
        let done = async {
            ship_closed(&log, &*store).await?;
            match round.is_multiple_of(EXPIRE_ROUNDS) && keep_days > 0 {
                true => expire(&log, &*store, keep_days).await,
                false => Ok(()),
            }
        };
        match done.await {
            Ok(()) => is_told = false,
            // They stay in the directory, and are tried again.
            Err(fault) if !std::mem::replace(&mut is_told, true) => {
                tracing::warn!(
                    "segments of the audit log are not put into the volume {AUDIT_VOLUME}: {fault}"
                );
            }
            Err(_) => {}
        }
    }
}

async fn ship_closed(log: &Log, store: &dyn Store) -> Result<()> {
    let closed = log.unshipped().map_err(|error| unreadable(&error))?;
    if closed.is_empty() {
        return Ok(());
    }
    match store.volume_create(AUDIT_VOLUME, VolumeOptions::default()).await {
        Ok(_) => {}
        Err(fault) if fault.kind == ErrorKind::Conflict => {}
        Err(fault) => return Err(fault),
    }
    for (number, path) in closed {
        put(store, log.node(), &stoker_audit::segment::name(number), &path).await?;
        log.shipped(number).map_err(|error| unreadable(&error))?;
    }
    let heads = log.dir().join(stoker_audit::segment::HEADS);
    if heads.exists() {
        put(store, log.node(), stoker_audit::segment::HEADS, &heads).await?;
    }
    Ok(())
}

async fn put(store: &dyn Store, node: &str, name: &str, path: &Path) -> Result<()> {
    let key = Key::new(format!("{node}/{name}"))?;
    let size = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
    let request = WriteRequest { size: Some(size), ..WriteRequest::default() };
    let mut filler = Filler::new(store.create(AUDIT_VOLUME, &key, request).await?);
    let mut offset = 0;
    while offset < size {
        let (path, len) = (path.to_path_buf(), PIECE_BYTES.min((size - offset) as usize));
        let piece = tokio::task::spawn_blocking(move || read_piece(&path, offset, len)).await;
        let piece = piece.map_err(|error| unreadable(&error))?.map_err(|error| unreadable(&error))?;
        offset += piece.len() as u64;
        filler.put(&piece).await?;
    }
    filler.finish(Finish::default()).await?;
    Ok(())
}

fn read_piece(path: &Path, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let mut piece = vec![0; len];
    std::os::unix::fs::FileExt::read_exact_at(&std::fs::File::open(path)?, &mut piece, offset)?;
    Ok(piece)
}

fn unreadable(error: &dyn std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("the audit log: {error}"))
}

/// Deletes segments of this node that are old enough from the volume.
async fn expire(log: &Log, store: &dyn Store, keep_days: u32) -> Result<()> {
    let prefix = format!("{}/", log.node());
    let before_ms = clock::unix_ms().saturating_sub(u64::from(keep_days) * 86_400_000);
    let mut after = None;
    loop {
        let request =
            ListRequest { prefix: prefix.clone().into_bytes(), after, limit: 1000, ..ListRequest::default() };
        let page = match store.list(AUDIT_VOLUME, request).await {
            Err(fault) if fault.kind == ErrorKind::NotFound => return Ok(()),
            page => page?,
        };
        let number = |key: &Key| {
            let text = String::from_utf8_lossy(key.as_bytes()).into_owned();
            stoker_audit::segment::number(text.strip_prefix(&prefix)?)
        };
        let old = page.entries.iter().filter_map(|entry| match entry {
            ListEntry::File(file) if file.modified_ms < before_ms => Some(&file.key),
            _ => None,
        });
        let numbers: Vec<(u64, Key)> = old.filter_map(|key| Some((number(key)?, key.clone()))).collect();
        if let Some((last, _)) = numbers.last() {
            log.expires(*last).map_err(|fault| unreadable(&fault))?;
            let keys = numbers.into_iter().map(|(_, key)| (key, Condition::default())).collect();
            store.delete(AUDIT_VOLUME, keys).await?;
        }
        if !page.more {
            return Ok(());
        }
        after = page.entries.last().map(|entry| entry.name().to_vec());
    }
}

/// Numbers for `/metrics`.
pub(crate) fn numbers(log: &Arc<Log>) -> Source {
    let log = Arc::downgrade(log);
    Box::new(move || log.upgrade().map_or_else(Vec::new, |log| counters(&log.counts())))
}

fn counters(counts: &Counts) -> Vec<Counter> {
    let Counts { lines, denied, suppressed, lost, flushes, disk_bytes, disk_bytes_max, unshipped, is_failed } =
        *counts;
    [
        ("audit_lines_total", "Lines of the audit log.", lines),
        ("audit_denied_total", "Of them, calls that were denied.", denied),
        (
            "audit_suppressed_total",
            "Denied calls that were only counted, because there were too many.",
            suppressed,
        ),
        ("audit_lost_total", "Lines of the audit log that could not be written.", lost),
        ("audit_flushes_total", "Flushes of the audit log.", flushes),
        ("audit_disk_bytes", "Bytes of the audit log in the node's directory.", disk_bytes),
        ("audit_disk_bytes_max", "Bytes that it may have there.", disk_bytes_max),
        ("audit_segments_unshipped", "Closed segments that are not in the volume yet.", unshipped),
        ("audit_failed", "1 if the audit log cannot be written.", u64::from(is_failed)),
    ]
    .into_iter()
    .map(|(name, help, value)| Counter::new(name, help, &[], value as f64))
    .collect()
}
