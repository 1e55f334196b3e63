//! `stoker ring verify`: reads every live record, block by block.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use stoker_format::{BLOCK, ChunkId, crc32c, table_crc};
use stoker_ring::index::Entry;
use stoker_ring::read::{header_place, plan, table_of};

use super::snapshot::{Snapshot, Window};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{out, size};

/// Arguments of `ring verify`.
#[derive(clap::Args)]
pub struct Args {
    /// Where the ring is.
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What is wrong with a record.
pub struct Fault {
    /// In words.
    pub why: String,
    /// Payload blocks that are not what was written; empty if that cannot be told.
    pub blocks: Vec<usize>,
}

/// Reads a record from end to end; `None` means that every block is what was written.
pub fn fault_of(
    snapshot: &Snapshot,
    window: &mut Window<'_>,
    chunk: &ChunkId,
    entry: &Entry,
) -> Option<Fault> {
    let (offset, len) = header_place(entry);
    let header = window.get(entry.segment, offset, len);
    let table = header.and_then(|bytes| table_of(chunk, entry, &snapshot.life(entry.segment), bytes));
    let Some(table) = table else {
        return Some(Fault { why: "its header cannot be read".into(), blocks: Vec::new() });
    };
    if table_crc(&table, entry.len as usize) != entry.crc {
        return Some(Fault { why: "footer and header disagree on its CRC".into(), blocks: Vec::new() });
    }
    let plan = match plan(chunk, entry, 0, entry.len as usize) {
        Ok(plan) => plan,
        Err(error) => return Some(Fault { why: error.message, blocks: Vec::new() }),
    };
    // One read for the whole record; block by block only if that fails, to name the blocks that are lost.
    let whole = window.get(plan.segment, plan.offset, plan.len).is_some();
    let blocks: Vec<usize> = plan
        .blocks
        .filter(|&block| {
            let at = entry.payload_offset as usize + block * BLOCK;
            let len = BLOCK.min(entry.len as usize - block * BLOCK);
            window.get(entry.segment, at as u32, len).is_none_or(|bytes| crc32c(bytes) != table[block])
        })
        .collect();
    if blocks.is_empty() {
        return None;
    }
    let why = if whole { "blocks fail their CRC" } else { "blocks cannot be read" };
    Some(Fault { why: why.into(), blocks })
}

/// Checks a ring.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let snapshot = Snapshot::take(&args.dir)?;
    let records = snapshot.records();
    let bytes: u64 = records.iter().map(|(_, entry)| u64::from(entry.len)).sum();
    let progress = Progress::over_bytes(bytes, args.json);
    progress.say("verify");
    let mut window = snapshot.window();
    let mut bad: Vec<(ChunkId, Entry, Fault)> = Vec::new();
    for (chunk, entry) in &records {
        if let Some(fault) = fault_of(&snapshot, &mut window, chunk, entry) {
            bad.push((*chunk, *entry, fault));
        }
        progress.add(u64::from(entry.len));
    }
    drop(progress);
    let report = snapshot.recovered.report;
    let lost = report.damaged;
    // Headers that are nobody's: each may have been the header of a record that was acknowledged.
    let strays = [
        (report.foreign, "record headers belong to another ring"),
        (report.misplaced, "record headers lie at the wrong place"),
        (report.corrupt, "record headers are damaged"),
    ];
    if args.json {
        let bad: Vec<Value> = bad.iter().map(json_of).collect();
        out::json(&json!({
            "records": records.len(), "bytes": bytes, "bad": bad, "segments_damaged": lost,
            "segments_missing": snapshot.recovered.missing, "headers_foreign": report.foreign,
            "headers_misplaced": report.misplaced, "headers_damaged": report.corrupt,
        }))?;
    } else {
        for (chunk, entry, fault) in &bad {
            let blocks =
                if fault.blocks.is_empty() { String::new() } else { format!(": {}", ranges(&fault.blocks)) };
            let place =
                format!("segment {}, offset {}, {} bytes", entry.segment, entry.payload_offset, entry.len);
            out::line(format!("bad  {chunk}  {place}: {}{blocks}", fault.why))?;
        }
        for path in snapshot.missing_files() {
            out::line(format!("bad  {} is missing", path.display()))?;
        }
        for (count, what) in strays.iter().filter(|(count, _)| *count > 0) {
            out::line(format!("bad  {count} {what}"))?;
        }
        if lost > 0 {
            out::line(format!("bad  {lost} segments cannot be read at all"))?;
        }
        let (count, size) = (out::count(records.len() as u64), size::human(bytes));
        out::line(format!("{count} records, {size} verified, {} bad", bad.len()))?;
    }
    let sound = bad.is_empty() && lost == 0 && strays.iter().all(|(count, _)| *count == 0);
    if !sound {
        out::say("  hint: copy bad records from another holder or from the lake; the drive may be failing");
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn json_of((chunk, entry, fault): &(ChunkId, Entry, Fault)) -> Value {
    json!({
        "chunk": chunk.to_string(),
        "segment": entry.segment,
        "payload_offset": entry.payload_offset,
        "len": entry.len,
        "why": fault.why,
        "blocks": fault.blocks,
    })
}

/// Block numbers as `3, 7-9`.
fn ranges(blocks: &[usize]) -> String {
    let runs = blocks.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn neighbours_become_a_range() {
        for (blocks, text) in [(&[3][..], "3"), (&[3, 7, 8, 9], "3, 7-9"), (&[0, 1, 5], "0-1, 5")] {
            assert_eq!(ranges(blocks), text);
        }
    }
}
