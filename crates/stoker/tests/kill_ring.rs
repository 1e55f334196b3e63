//! What was acknowledged survives `kill -9`, on a real file system.
//!
//! `stoker ring torture` writes, reads and deletes at full speed and says on a pipe what was acknowledged. It is killed
//! after a random number of lines; then the ring is opened here and must hold every acknowledged record, byte for byte,
//! and no record whose delete was acknowledged. The same ring is used for all kills, so it wraps many times.
//!
//! `STOKER_KILLS=1000` asks for more kills than the usual number.

#[path = "../../ring-tools/src/torture/record.rs"]
mod record;

use stoker_terminal::rng;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use record::Specimen;
use rng::Rng;
use stoker_format::ChunkId;
use stoker_ring::{Drive, InitOptions, OpenOptions, Ring, Settings, Status};

/// What must be in the ring, may be, and must not.
#[derive(Default)]
struct Model {
    live: BTreeMap<ChunkId, usize>,
    /// A delete was asked for and not acknowledged.
    leaving: BTreeSet<ChunkId>,
    gone: BTreeSet<ChunkId>,
    acknowledged: usize,
}

impl Model {
    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let chunk = |text: &str| text.parse::<ChunkId>().unwrap_or_else(|e| panic!("{line}: {e}"));
        match words[..] {
            ["opening" | "ready"] => {}
            ["put", id, len, _seed] => {
                assert!(self.live.insert(chunk(id), len.parse().unwrap()).is_none(), "{line}: twice");
                self.acknowledged += 1;
            }
            ["bye", id] => {
                assert!(self.live.remove(&chunk(id)).is_some(), "{line}: was not there");
                self.leaving.insert(chunk(id));
            }
            ["del", id] => {
                assert!(self.leaving.remove(&chunk(id)), "{line}: not asked for");
                self.gone.insert(chunk(id));
                self.acknowledged += 1;
            }
            _ => panic!("unexpected line: {line}"),
        }
    }

    /// Compares with a ring that was opened after the kill of the run with this seed.
    async fn check(&mut self, ring: &Ring, run: u64) {
        let len_max = ring.record_len_max();
        for (chunk, len) in &self.live {
            let info = ring.stat(chunk).unwrap_or_else(|| panic!("acknowledged record {chunk} is lost"));
            assert_eq!(info.len as usize, *len, "{chunk}");
        }
        for chunk in &self.gone {
            assert!(ring.stat(chunk).is_none(), "deleted record {chunk} is back");
        }
        let leaving = std::mem::take(&mut self.leaving);
        for info in ring.pages().flatten() {
            let specimen = Specimen::of(info.chunk, len_max);
            let bytes = ring.read(info.chunk, 0, info.len as usize).await;
            let bytes = bytes.unwrap_or_else(|e| panic!("record {} cannot be read: {e}", info.chunk));
            assert!(specimen.is(&bytes), "record {} has other bytes than were written", info.chunk);
            if self.live.contains_key(&info.chunk) {
                continue;
            }
            // Written or deleted without an acknowledgement; from now on it is there.
            let is_of_this_run = Specimen::new(run, info.chunk.index, len_max).chunk == info.chunk;
            assert!(is_of_this_run || leaving.contains(&info.chunk), "record {} came back", info.chunk);
            self.live.insert(info.chunk, specimen.len);
        }
        let gone = leaving.into_iter().filter(|chunk| !self.live.contains_key(chunk));
        self.gone.extend(gone);
    }
}

/// Starts the torture, reads lines, kills it, reads what was left in the pipe.
fn torture_and_kill(dir: &Path, seed: u64, lines: u64, model: &mut Model) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_stoker"))
        .args(["ring", "torture", "--seed", &seed.to_string(), "--dir"])
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = BufReader::new(child.stdout.take().unwrap());
    let (mut line, mut seen) = (String::new(), 0);
    while pipe.read_line(&mut line).unwrap() > 0 {
        // A kill in the middle of a write leaves half a line: then nobody was told.
        if let Some(whole) = line.strip_suffix('\n') {
            model.line(whole);
        }
        line.clear();
        seen += 1;
        if seen == lines {
            child.kill().unwrap();
        }
    }
    let status = child.wait().unwrap();
    assert_eq!(status.code(), None, "the torture ended by itself after {seen} of {lines} lines: {status}");
}

struct Plan {
    size: u64,
    segment_size: u64,
    kills: u64,
    lines_max: u64,
}

/// Kills again and again on one ring; returns its last state.
fn kill_again_and_again(parent: &Path, plan: &Plan) -> Status {
    let dir = tempfile::tempdir_in(parent).unwrap();
    let path = dir.path().join("ring");
    let options = InitOptions { size: plan.size, segment_size: plan.segment_size, ..InitOptions::default() };
    Drive::init(&path, &options, 0).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let kills = std::env::var("STOKER_KILLS").ok().map_or(plan.kills, |text| text.parse().unwrap());
    let (mut model, mut rng, mut last) = (Model::default(), Rng::new(plan.size), None);
    for kill in 0..kills {
        let seed = rng.next_u64();
        // Every eighth kill comes early: while the ring is opened, or right after.
        let lines = if kill % 8 == 7 { 1 + rng.below(4) } else { 1 + rng.below(plan.lines_max) };
        torture_and_kill(&path, seed, lines, &mut model);
        let settings = Settings { pool_bytes: 64 << 20, ..Settings::default() };
        let ring = Ring::open(&path, OpenOptions { settings, ..OpenOptions::default() })
            .unwrap_or_else(|e| panic!("after kill {kill} the ring does not open: {e}"));
        last = Some(runtime.block_on(async {
            model.check(&ring, seed).await;
            let status = ring.status().await.unwrap();
            assert_eq!(status.recovery.damaged, 0, "after kill {kill}: {status:?}");
            assert_eq!(status.poisoned, None);
            ring.close().await.unwrap();
            status
        }));
    }
    let (acknowledged, live, gone) = (model.acknowledged, model.live.len(), model.gone.len());
    eprintln!("{kills} kills, {acknowledged} acknowledgements, {live} records live at the end, {gone} gone");
    assert!(model.acknowledged > 0, "nothing was acknowledged, so nothing was tested");
    last.expect("at least one kill")
}

/// The file system of the build: usually a real one, with O_DIRECT.
fn disk() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

#[test]
fn acknowledged_survives_kill() {
    let plan = Plan { size: 64 << 20, segment_size: 4 << 20, kills: 50, lines_max: 2500 };
    kill_again_and_again(disk(), &plan);
}

#[test]
fn acknowledged_survives_kill_with_large_records() {
    let plan = Plan { size: 512 << 20, segment_size: 32 << 20, kills: 6, lines_max: 1500 };
    kill_again_and_again(disk(), &plan);
}

#[test]
fn acknowledged_survives_kill_without_o_direct() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        return;
    }
    let plan = Plan { size: 64 << 20, segment_size: 4 << 20, kills: 5, lines_max: 2500 };
    let status = kill_again_and_again(shm, &plan);
    // Newer kernels let tmpfs take O_DIRECT; the ring then says so, and both must work.
    let takes_direct = takes_o_direct(shm);
    assert_eq!(status.direct, takes_direct, "{status:?}");
}

fn takes_o_direct(dir: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    let file = tempfile::NamedTempFile::new_in(dir).unwrap();
    std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(file.path()).is_ok()
}
