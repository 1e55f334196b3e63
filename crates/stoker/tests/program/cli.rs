//! The real binary as a person meets it: what it prints, what it refuses, its exit codes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use stoker_format::{BLOCK, ChunkId, VersionId, VolumeId, crc64};
use stoker_ring::{Buf, OpenOptions, Put, Ring};

struct Ran {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl Ran {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|e| panic!("{e}: {} {}", self.text(), self.err))
    }
}

/// Runs the binary; `{}` in an argument stands for the path.
fn stoker(path: &Path, args: &str) -> Ran {
    let args = args.split(' ').map(|arg| arg.replace("{}", path.to_str().unwrap()));
    let done = Command::new(env!("CARGO_BIN_EXE_stoker")).args(args).output().unwrap();
    Ran {
        code: done.status.code().unwrap_or(-1),
        out: done.stdout,
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

fn succeed(path: &Path, args: &str) -> Ran {
    let ran = stoker(path, args);
    assert_eq!(ran.code, 0, "stoker {args}: {}{}", ran.text(), ran.err);
    ran
}

/// The command fails with exit code 1, prints nothing as data, names the cause and gives the hint.
#[track_caller]
fn refuse(path: &Path, args: &str, cause: &str, hint: &str) {
    let ran = stoker(path, args);
    assert_eq!(ran.code, 1, "stoker {args}: {}{}", ran.text(), ran.err);
    assert!(ran.out.is_empty(), "stoker {args} printed data: {}", ran.text());
    let mut lines = ran.err.lines();
    let (first, second) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    assert!(first.starts_with("stoker: ") && first.contains(cause), "stoker {args}: {}", ran.err);
    assert!(second.starts_with("  hint: ") && second.contains(hint), "stoker {args}: {}", ran.err);
}

/// A folder on the file system of the build.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn chunk(number: u32) -> ChunkId {
    ChunkId::new(VersionId([7; 12]), number)
}

fn bytes_of(number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32 ^ (at as u32 >> 8)).wrapping_mul(number + 3) as u8).collect()
}

/// Lengths of the records that [`write_records`] leaves, by number.
const LENS: [usize; 3] = [512, 5000, 300_000];

/// Writes three records and one that is deleted again; closes the ring.
fn write_records(path: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ring = Ring::open(path, OpenOptions::default()).unwrap();
    runtime.block_on(async {
        for (number, len) in LENS.into_iter().chain([1000]).enumerate() {
            let payload = Buf::copy_of(&bytes_of(number as u32, len));
            ring.append_one(Put::chunk(chunk(number as u32), VolumeId(9), payload)).await.unwrap();
        }
        ring.delete(vec![chunk(LENS.len() as u32)]).await.unwrap();
        ring.close().await.unwrap();
    });
}

/// A ring of 64 MiB with records in it.
fn ring_with_records() -> (tempfile::TempDir, PathBuf) {
    let dir = folder();
    let path = dir.path().join("ring");
    succeed(&path, "ring init --dir {} --size 64MiB --label drive-0");
    write_records(&path);
    (dir, path)
}

#[test]
fn init_stat_verify_dump() {
    let (dir, path) = ring_with_records();

    let stat = succeed(&path, "ring stat --dir {} --json").json();
    assert_eq!(stat["label"], "drive-0");
    assert_eq!(stat["segment_count"], 16);
    assert_eq!(stat["records"]["live"], 3);
    assert_eq!(stat["records"]["bytes"], LENS.iter().sum::<usize>());
    assert_eq!(stat["healthy"], true);
    let text = succeed(&path, "ring stat --dir {}").text();
    for part in ["drive-0", "64 MiB in 16 segments of 4 MiB", "3 live", "health    ok"] {
        assert!(text.contains(part), "{part} in {text}");
    }

    let verify = succeed(&path, "ring verify --dir {} --json").json();
    assert_eq!((&verify["records"], &verify["bad"]), (&3.into(), &Value::Array(Vec::new())));
    assert!(succeed(&path, "ring verify --dir {}").text().contains("3 records"));

    let segments = succeed(&path, "ring dump --dir {} --json").json();
    let segments = segments["segments"].as_array().unwrap();
    let closed = segments.iter().find(|s| s["state"] == "closed").expect("close() leaves closed segments");
    let list = succeed(&path, &format!("ring dump --dir {{}} --json --segment {}", closed["segment"])).json();
    let states: Vec<&str> =
        list["records"].as_array().unwrap().iter().map(|r| r["state"].as_str().unwrap()).collect();
    let count = |state| states.iter().filter(|s| **s == state).count();
    assert_eq!((count("live"), count("dead"), count("death")), (3, 1, 1), "{list}");
    assert!(succeed(&path, "ring dump --dir {}").text().starts_with("segment "));

    for (number, len) in LENS.into_iter().enumerate() {
        let (id, bytes) = (chunk(number as u32), bytes_of(number as u32, len));
        let record = succeed(&path, &format!("ring dump --dir {{}} --json --chunk {id}")).json();
        assert_eq!(
            (&record["len"], &record["volume"], &record["verified"]),
            (&len.into(), &9.into(), &true.into())
        );
        assert_eq!(succeed(&path, &format!("ring dump --dir {{}} --chunk {id} --raw -")).out, bytes);
        let file = dir.path().join("raw");
        succeed(&path, &format!("ring dump --dir {{}} --chunk {id} --raw {}", file.display()));
        assert_eq!(fs::read(file).unwrap(), bytes);
        let text = succeed(&path, &format!("ring dump --dir {{}} --chunk {id}")).text();
        assert!(text.contains("verified") && text.contains("000000f0  "), "{text}");
    }
    let unknown = "ring dump --dir {} --chunk 070707070707070707070707.3";
    refuse(&path, unknown, "no live record", "--segment N");
    refuse(&path, "ring dump --dir {} --segment 99", "no segment 99", "ring dump");
}

#[test]
fn looking_changes_nothing() {
    let (_dir, path) = ring_with_records();
    let contents = || {
        let mut names: Vec<PathBuf> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        names.into_iter().map(|name| (fs::read(&name).unwrap(), name)).collect::<Vec<_>>()
    };
    let before = contents();
    for verb in ["stat", "verify", "dump"] {
        succeed(&path, &format!("ring {verb} --dir {{}}"));
    }
    assert!(contents() == before, "a reading command wrote to the drive");
}

#[test]
fn verify_names_the_bad_block() {
    let (_dir, path) = ring_with_records();
    let id = chunk(2);
    let record = succeed(&path, &format!("ring dump --dir {{}} --json --chunk {id}")).json();
    let place = |field: &str| record[field].as_u64().unwrap();
    let file = path.join(format!("segment-{:08}", place("segment")));
    let file = File::options().read(true).write(true).open(file).unwrap();
    let at = place("payload_offset") + 5 * BLOCK as u64 + 100;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();

    let ran = stoker(&path, "ring verify --dir {}");
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.text().contains(&format!("bad  {id}")) && ran.text().contains("CRC: 5\n"), "{}", ran.text());
    let bad = stoker(&path, "ring verify --dir {} --json").json();
    assert_eq!(
        (&bad["bad"][0]["chunk"], &bad["bad"][0]["blocks"]),
        (&id.to_string().into(), &vec![5].into())
    );
    let dump = stoker(&path, &format!("ring dump --dir {{}} --chunk {id}"));
    assert_eq!(dump.code, 1);
    assert!(dump.text().contains("DAMAGED"), "{}", dump.text());
}

#[test]
fn a_file_holds_a_ring_too() {
    let dir = folder();
    let path = dir.path().join("drive.ring");
    let made = succeed(&path, "ring init --dir {} --size 65MiB --segment-size 4MiB --file --json").json();
    assert_eq!(made["segment_count"], 16);
    write_records(&path);
    let stat = succeed(&path, "ring stat --dir {} --json").json();
    assert_eq!((&stat["kind"], &stat["records"]["live"]), (&"file".into(), &3.into()));
    succeed(&path, "ring verify --dir {}");
    refuse(&path, "ring init --dir {} --size 65MiB", "is not empty", "--force");
}

#[test]
fn what_is_not_there_or_not_ours_is_refused() {
    let dir = folder();
    let path = dir.path().join("ring");
    for verb in ["stat", "verify", "dump"] {
        refuse(&path, &format!("ring {verb} --dir {{}}"), "does not exist", "stoker ring init");
        refuse(dir.path(), &format!("ring {verb} --dir {{}}"), "holds no ring", "stoker ring init");
    }
    refuse(&path, "ring init --dir {}", "needs a size", "--size");
    refuse(&path, "ring init --dir {} --size 1MiB --segment-size 256KiB", "too few", "--segment-size");
    refuse(&path, "ring init --dir {} --size 99TiB", "are free", "smaller --size");
    // Nobody may make folders there, not even root, who would get past a mode.
    refuse(Path::new("/sys"), "ring init --dir {}/ring --size 64MiB", "/sys/ring", "permission");
    for args in ["bench ring --dir {}", "bench device --dir {}"] {
        refuse(&dir.path().join("nowhere"), args, "No such file", "path");
    }
    refuse(dir.path(), "bench ring --dir {} --workloads append_4m,append_9m", "append_9m", "append_64k");

    succeed(&path, "ring init --dir {} --size 64MiB");
    refuse(&path, "ring init --dir {} --size 64MiB", "holds a ring already", "--force");
    succeed(&path, "ring init --dir {} --size 64MiB --force");
}

#[test]
fn another_clusters_ring_is_left_alone() {
    let dir = folder();
    let path = dir.path().join("ring");
    let theirs = "2".repeat(32);
    succeed(&path, &format!("ring init --dir {{}} --size 64MiB --cluster {theirs}"));
    let before = fs::read(path.join("superblock")).unwrap();
    let ran = stoker(dir.path(), "up --check --memory 256MiB --dir {}");
    assert_eq!(ran.code, 1, "{}{}", ran.text(), ran.err);
    assert!(ran.out.is_empty() && ran.err.contains(&format!("belongs to cluster {theirs}")), "{}", ran.err);
    assert_eq!(fs::read(path.join("superblock")).unwrap(), before);
}

#[test]
fn a_ring_in_use_is_not_touched() {
    let (_dir, path) = ring_with_records();
    let ring = Ring::open(&path, OpenOptions::default()).unwrap();
    for verb in ["stat", "verify", "dump", "torture --seed 1"] {
        let args = format!("ring {verb} --dir {{}}");
        let ran = stoker(&path, &args);
        assert_eq!(ran.code, 1, "{args}");
        assert!(
            ran.err.contains("in use by another process") && ran.err.contains("hint: stop"),
            "{}",
            ran.err
        );
    }
    refuse(&path, "ring init --dir {} --size 64MiB --force", "in use", "stop");
    drop(ring);
}

#[test]
fn a_segment_that_was_cut_short_is_an_error() {
    let (_dir, path) = ring_with_records();
    File::options().write(true).open(path.join("segment-00000000")).unwrap().set_len(1 << 20).unwrap();
    for verb in ["stat", "verify", "dump"] {
        refuse(&path, &format!("ring {verb} --dir {{}}"), "was cut short", "put the missing bytes back");
    }
}

#[test]
fn a_newer_format_is_refused() {
    let (_dir, path) = ring_with_records();
    let place = path.join("superblock");
    let mut bytes = fs::read(&place).unwrap();
    for block in bytes.chunks_exact_mut(BLOCK) {
        // Format version and oldest reader, as docs/data-file.md draws them; then the CRC holds again.
        block[8..12].copy_from_slice(&[9, 0, 9, 0]);
        let crc = crc64(&block[..BLOCK - 8]);
        block[BLOCK - 8..].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&place, &bytes).unwrap();
    for verb in ["stat", "verify", "dump"] {
        refuse(&path, &format!("ring {verb} --dir {{}}"), "newer release: found 9", "release");
    }
    bytes[100] ^= 1;
    bytes[BLOCK + 100] ^= 1;
    fs::write(&place, &bytes).unwrap();
    refuse(&path, "ring stat --dir {}", "checksum", "damaged");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let dir = folder();
    for args in [
        "",
        "ring",
        "ring stat",
        "ring init --dir {} --size 12XB",
        "ring dump --dir {} --raw -",
        "bench ring --dir {} --rounds 0",
        "bench device --dir {} --seconds-per-round x",
        "up --size much --dir {}",
    ] {
        let ran = stoker(dir.path(), args);
        assert_eq!(ran.code, 2, "stoker {args}: {}", ran.err);
    }
    assert!(succeed(dir.path(), "--help").text().contains("Exit codes: 0 done"));
}

#[test]
fn a_closed_pipe_is_success() {
    let (_dir, path) = ring_with_records();
    let mut child = Command::new(env!("CARGO_BIN_EXE_stoker"))
        .args(["ring", "dump", "--chunk", &chunk(2).to_string(), "--raw", "-", "--dir"])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The record is longer than a pipe holds, so the writer is still writing.
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

fn send(signal: &str, pid: u32) {
    assert!(Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status().unwrap().success());
}

#[test]
fn benchmarks_answer_in_json_and_leave_nothing() {
    let dir = folder();
    let device =
        succeed(dir.path(), "bench device --dir {} --size 64MiB --seconds-per-round 0.01 --rounds 1 --json")
            .json();
    assert_eq!(device["workloads"].as_array().unwrap().len(), 20);
    let args = "bench ring --dir {} --size 512MiB --seconds 0.01 --rounds 1 --json --workloads append_64k,read_4k,recovery";
    let ring = succeed(dir.path(), args).json();
    let names: Vec<&str> =
        ring["workloads"].as_array().unwrap().iter().map(|w| w["name"].as_str().unwrap()).collect();
    assert_eq!((names, &ring["bench"]), (vec!["append_64k", "read_4k", "recovery"], &"ring".into()));
    for field in [
        "raw_mb_s",
        "stoker_mb_s",
        "ratio",
        "ratio_min",
        "ratio_max",
        "raw_p50_us",
        "stoker_p50_us",
        "raw_p99_us",
        "stoker_p99_us",
        "cpu_s_per_gib",
        "raw_cpu_s_per_gib",
    ] {
        assert!(ring["workloads"].as_array().unwrap().iter().all(|w| w[field].is_f64()), "{field} in {ring}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_interrupted_benchmark_leaves_nothing() {
    let dir = folder();
    let mut child = Command::new(env!("CARGO_BIN_EXE_stoker"))
        .args(["bench", "device", "--size", "64MiB", "--seconds-per-round", "600", "--dir"])
        .arg(dir.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while fs::read_dir(dir.path()).unwrap().count() == 0 {
        assert_eq!(child.try_wait().unwrap(), None, "it ended too early");
        std::thread::yield_now();
    }
    send("INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
