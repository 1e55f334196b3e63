//! `stoker ring dump`: segments, the records of one, or one record down to its bytes.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use stoker_format::{BLOCK, ChunkId, FooterEntry, Record, RecordFlags, RecordHeader, RecordKind};
use stoker_ring::engine::State;
use stoker_ring::index::Entry;
use stoker_ring::read::header_place;
use stoker_ring::recovery::{Report, scan};

use super::snapshot::{Snapshot, state_name};
use super::verify::fault_of;
use crate::failure::Failure;
use crate::out;

/// Bytes of a payload that are shown.
const SHOWN: usize = 256;

/// Arguments of `ring dump`.
#[derive(clap::Args)]
pub struct Args {
    /// Where the ring is.
    #[arg(long, value_name = "PATH")]
    dir: PathBuf,
    /// Show this record: header fields and the first bytes.
    #[arg(long, value_name = "ID")]
    chunk: Option<ChunkId>,
    /// List the records of this segment, dead ones too.
    #[arg(long, value_name = "N", conflicts_with = "chunk")]
    segment: Option<u32>,
    /// Write all bytes of the record to a file, or to stdout (-), instead of showing them.
    #[arg(long, value_name = "FILE", requires = "chunk")]
    raw: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, conflicts_with = "raw")]
    json: bool,
}

/// Shows what was asked for.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let snapshot = Snapshot::take(&args.dir)?;
    match (&args.chunk, args.segment) {
        (Some(chunk), _) => dump_chunk(&snapshot, chunk, args),
        (None, Some(segment)) => dump_segment(&snapshot, segment, args.json),
        (None, None) => dump_segments(&snapshot, args.json),
    }
}

fn dump_segments(snapshot: &Snapshot, json: bool) -> Result<ExitCode, Failure> {
    let segments = &snapshot.recovered.segments;
    if json {
        let rows: Vec<Value> = segments
            .iter()
            .map(|s| {
                json!({
                    "segment": s.id, "state": state_name(s), "generation": s.generation.0, "records": s.entry_count,
                    "records_end": s.cursor, "first_seq": s.first_seq.0, "last_seq": s.last_seq.0,
                    "volume": s.stream.volume.0, "relocation": s.stream.relocation, "leased": s.leased,
                })
            })
            .collect();
        out::json(&json!({ "segments": rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let heads = ["segment", "generation", "records", "end", "first seq", "last seq", "volume", "state"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(segments.iter().map(|s| {
        let numbers = [s.generation.0, s.entry_count.into(), s.cursor.into(), s.first_seq.0, s.last_seq.0];
        let mut row = vec![s.id.to_string()];
        row.extend(numbers.map(|n| n.to_string()));
        row.push(s.stream.volume.to_string());
        let leased = if s.leased { ", leased" } else { "" };
        let stream = if s.stream.relocation { ", relocation" } else { "" };
        row.push(format!("{}{stream}{leased}", state_name(s)));
        row
    }));
    out::table(&rows)?;
    Ok(ExitCode::SUCCESS)
}

fn dump_segment(snapshot: &Snapshot, segment: u32, json: bool) -> Result<ExitCode, Failure> {
    let Some(state) = snapshot.recovered.segments.get(segment as usize) else {
        let last = snapshot.recovered.segments.len() - 1;
        let cause = format!("there is no segment {segment}: they are numbered from 0 to {last}");
        return Err(Failure::new(cause).hint("`stoker ring dump` lists them"));
    };
    let lines = match state.state {
        State::Unprepared | State::Damaged | State::Free => Vec::new(),
        _ => {
            let place = snapshot.place(segment, 0);
            let found = scan(&snapshot.drive, segment, &place, &mut Report::default());
            found.map_err(|e| Failure::io(format!("segment {segment}"), &e))?.lines
        }
    };
    if json {
        let records: Vec<Value> = lines.iter().map(|line| json_of_line(snapshot, segment, line)).collect();
        out::json(&json!({ "segment": segment, "state": state_name(state), "records": records }))?;
        return Ok(ExitCode::SUCCESS);
    }
    out::say(format!("segment {segment} is {} and holds {} records", state_name(state), lines.len()));
    if lines.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let heads = ["chunk", "kind", "seq", "header", "payload", "len", "volume", "crc32c", "state"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    rows.extend(lines.iter().map(|line| {
        vec![
            line.chunk.to_string(),
            kind_name(line.kind).into(),
            line.seq.to_string(),
            line.header_offset.to_string(),
            line.payload_offset.to_string(),
            line.len.to_string(),
            line.volume.to_string(),
            format!("{:08x}", line.payload_crc),
            fate_of(snapshot, segment, line).into(),
        ]
    }));
    out::table(&rows)?;
    Ok(ExitCode::SUCCESS)
}

fn json_of_line(snapshot: &Snapshot, segment: u32, line: &FooterEntry) -> Value {
    json!({
        "chunk": line.chunk.to_string(),
        "kind": kind_name(line.kind),
        "seq": line.seq.0,
        "header_offset": line.header_offset,
        "payload_offset": line.payload_offset,
        "len": line.len,
        "volume": line.volume.0,
        "crc32c": line.payload_crc,
        "state": fate_of(snapshot, segment, line),
    })
}

/// Whether a record in a segment still counts.
fn fate_of(snapshot: &Snapshot, segment: u32, line: &FooterEntry) -> &'static str {
    if line.kind == RecordKind::Dead {
        return "death";
    }
    match snapshot.record(&line.chunk) {
        Some(entry) if entry.same_place(&Entry::from_footer(segment, line)) => "live",
        Some(_) => "superseded",
        None => "dead",
    }
}

fn kind_name(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Chunk => "chunk",
        RecordKind::Name => "name",
        RecordKind::Dead => "dead",
    }
}

fn dump_chunk(snapshot: &Snapshot, chunk: &ChunkId, args: &Args) -> Result<ExitCode, Failure> {
    let entry = snapshot.record(chunk).ok_or_else(|| {
        Failure::new(format!("there is no live record {chunk} in {}", args.dir.display()))
            .hint("`stoker ring dump --segment N` lists what a segment holds, dead records too")
    })?;
    let mut window = snapshot.window();
    let fault = fault_of(snapshot, &mut window, chunk, &entry);
    if let Some(fault) = &fault {
        out::say(format!("stoker: record {chunk} is damaged: {}", fault.why));
    }
    if let Some(target) = &args.raw {
        write_raw(snapshot, &entry, target)?;
    } else {
        let (offset, len) = header_place(&entry);
        let bytes = window.get(entry.segment, offset, len).unwrap_or_default();
        let place = snapshot.place(entry.segment, entry.header_offset);
        let header = bytes.get(entry.header_offset as usize % BLOCK..).unwrap_or_default();
        let record = RecordHeader::decode(header, &place).ok();
        let shown = SHOWN.min(entry.len as usize);
        let start = window.get(entry.segment, entry.payload_offset, shown).unwrap_or_default();
        if args.json {
            out::json(&json_of_record(chunk, &entry, record.as_ref(), fault.is_none(), start))?;
        } else {
            show_record(chunk, &entry, record.as_ref(), fault.is_none())?;
            out::line("")?;
            hexdump(start).iter().try_for_each(out::line)?;
        }
    }
    Ok(if fault.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show_record(chunk: &ChunkId, entry: &Entry, record: Option<&Record>, sound: bool) -> Result<(), Failure> {
    let mut rows = vec![
        ("chunk", chunk.to_string()),
        ("kind", kind_name(entry.kind()).into()),
        ("volume", entry.volume.to_string()),
        ("len", format!("{} bytes, {} blocks", entry.len, (entry.len as usize).div_ceil(BLOCK))),
        ("seq", entry.seq.to_string()),
        ("segment", entry.segment.to_string()),
        ("header offset", entry.header_offset.to_string()),
        ("payload offset", entry.payload_offset.to_string()),
        ("crc32c", format!("{:08x}", entry.crc)),
    ];
    if let Some(Record { header, table, .. }) = record {
        rows.push(("generation", header.generation.to_string()));
        rows.push(("ring", header.ring.to_string()));
        rows.push(("flags", flag_names(header.flags)));
        rows.push(("key", if header.key.0 == 0 { "none".into() } else { header.key.to_string() }));
        rows.push(("block crcs", format!("{} entries", table.len())));
    }
    rows.push(("bytes", if sound { "verified".into() } else { "DAMAGED".into() }));
    out::fields(&rows)
}

fn json_of_record(
    chunk: &ChunkId,
    entry: &Entry,
    record: Option<&Record>,
    sound: bool,
    start: &[u8],
) -> Value {
    json!({
        "chunk": chunk.to_string(),
        "kind": kind_name(entry.kind()),
        "volume": entry.volume.0,
        "len": entry.len,
        "seq": entry.seq.0,
        "segment": entry.segment,
        "header_offset": entry.header_offset,
        "payload_offset": entry.payload_offset,
        "crc32c": entry.crc,
        "generation": record.map(|record| record.header.generation.0),
        "flags": record.map(|record| record.header.flags.0),
        "table": record.map(|record| record.table.clone()),
        "verified": sound,
        "start": start.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
    })
}

fn flag_names(flags: RecordFlags) -> String {
    let names: Vec<&str> = [
        (RecordFlags::CLEAN_HINT, "clean hint"),
        (RecordFlags::NEVER_DRAIN, "never drains"),
        (RecordFlags::PINNED, "pinned"),
        (RecordFlags::RELOCATED, "relocated"),
        (RecordFlags::DAMAGED, "damaged"),
        (RecordFlags::ENCRYPTED, "encrypted"),
    ]
    .iter()
    .filter(|(flag, _)| flags.contains(*flag))
    .map(|(_, name)| *name)
    .collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Writes the whole payload, damaged or not; the caller has said which.
fn write_raw(snapshot: &Snapshot, entry: &Entry, target: &Path) -> Result<(), Failure> {
    let mut window = snapshot.window();
    let mut file = match target.as_os_str().as_encoded_bytes() {
        b"-" => None,
        _ => Some(File::create(target).map_err(|e| Failure::io(target.display(), &e))?),
    };
    let (mut at, end) = (entry.payload_offset, entry.payload_offset + entry.len);
    while at < end {
        let len = (1 << 20).min(end - at);
        let bytes = window.get(entry.segment, at, len as usize).ok_or_else(|| {
            Failure::new(format!("segment {} cannot be read at {at}", entry.segment))
                .hint("see the kernel log")
        })?;
        match &mut file {
            Some(file) => file.write_all(bytes).map_err(|e| Failure::io(target.display(), &e))?,
            None => out::bytes(bytes)?,
        }
        at += len;
    }
    Ok(())
}

/// Lines of sixteen bytes: offset, hex, text.
fn hexdump(bytes: &[u8]) -> Vec<String> {
    let line = |(at, line): (usize, &[u8])| {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let text: String =
            line.iter().map(|&b| if b.is_ascii_graphic() || b == b' ' { b as char } else { '.' }).collect();
        format!("{:08x}  {:47}  |{text}|", at * 16, hex.join(" "))
    };
    bytes.chunks(16).enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::hexdump;

    #[test]
    fn bytes_are_shown_in_hex_and_text() {
        let lines = hexdump(b"Stoker \x00\xff keeps GPUs fed");
        assert_eq!(lines[0], "00000000  53 74 6f 6b 65 72 20 00 ff 20 6b 65 65 70 73 20  |Stoker .. keeps |");
        assert!(
            lines[1].starts_with("00000010  47 50 55 73 20 66 65 64  ") && lines[1].ends_with("|GPUs fed|")
        );
    }
}
