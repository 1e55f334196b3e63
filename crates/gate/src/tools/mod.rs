//! Programs of others that measure what Stoker stands on, where they are installed: run for a bounded time, their words read
//! as what they are, foreign bytes.

mod command;
mod parse;

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::command::{Tool, run, run_pair};
use super::Extent;
use super::leftovers::Leftovers;
use super::site::Site;
use super::step::Outcome;
use crate::sys;
use stoker_probe::process::find_program;

/// Longest time for one run of a tool, but for the one that writes whole checkpoints.
const TOOL_MAX: Duration = Duration::from_secs(60);
const CHECKPOINT_MAX: Duration = Duration::from_secs(15 * 60);
/// What a checkpoint of llama3-8b takes, and some more.
const CHECKPOINT_BYTES: u64 = 120 << 30;

/// Runs what is there.
pub fn run_all(site: &Site, extent: &Extent, leftovers: &Leftovers) -> Vec<Outcome> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounted = parse::stoker_mounts(&mounts).into_iter().next();
    let mut outcomes = ib_write_bw(extent);
    outcomes.push(all_reduce(extent));
    outcomes.extend(fio(extent));
    outcomes.extend(ior(site, mounted.as_deref(), extent, leftovers));
    outcomes.push(mlpstorage(site, mounted.as_deref(), extent, leftovers));
    outcomes
}

fn program(name: &str) -> Result<PathBuf, String> {
    find_program(&format!("STOKER_{}", name.to_uppercase()), name, &[])
        .ok_or(format!("{name} is not installed"))
}

/// A figure, or why there is none.
fn outcome(step: &str, subject: &str, figure: Result<f64, String>) -> Outcome {
    match figure {
        Ok(figure) => Outcome::measured(step, subject, figure),
        Err(why) => Outcome::failed(step, subject, why),
    }
}

/// Each RDMA device to itself: that the card, its driver and its memory work, not the cable.
fn ib_write_bw(extent: &Extent) -> Vec<Outcome> {
    const STEP: &str = "ib_write_bw";
    let path = match program(STEP) {
        Ok(path) => path,
        Err(why) => return vec![Outcome::skipped(STEP, "rdma", why)],
    };
    let devices = names_in(Path::new("/sys/class/infiniband"));
    if devices.is_empty() {
        return vec![Outcome::skipped(STEP, "rdma", "there is no RDMA device")];
    }
    let one = |device: &String| {
        let seconds = extent.tool_seconds.to_string();
        let args = ["-d", device, "-F", "--report_gbits", "-D", &seconds];
        let server = Tool::new(&path, TOOL_MAX).args(args);
        let client = Tool::new(&path, TOOL_MAX).args(args).args(["127.0.0.1"]);
        let figure = run_pair(server, client).and_then(|words| {
            parse::ib_write_bw(&words).ok_or_else(|| "its words hold no figure".to_owned())
        });
        outcome(STEP, device, figure)
    };
    devices.iter().map(one).collect()
}

fn all_reduce(extent: &Extent) -> Outcome {
    const STEP: &str = "nccl_all_reduce";
    let path = match program("all_reduce_perf") {
        Ok(path) => path,
        Err(why) => return Outcome::skipped(STEP, "gpus", why),
    };
    let gpus = names_in(Path::new("/dev")).iter().filter(|name| parse::is_gpu(name)).count();
    if gpus < 2 {
        return Outcome::skipped(STEP, "gpus", format!("it takes two GPUs, there are {gpus}"));
    }
    let (count, iterations) = (gpus.to_string(), (5 * extent.tool_seconds).to_string());
    let args = ["-b", "64M", "-e", "512M", "-f", "2", "-g", &count, "-n", &iterations];
    let figure = run(Tool::new(&path, TOOL_MAX).args(args)).and_then(|words| parse::all_reduce(&words));
    outcome(STEP, "gpus", figure)
}

/// Drives that come over a network, read and never written.
fn fio(extent: &Extent) -> Vec<Outcome> {
    const STEPS: [&str; 2] = ["fio_nvmeof_read", "fio_nvmeof_read_4k_p99"];
    let skipped = |why: String| STEPS.map(|step| Outcome::skipped(step, "nvme-of", &why)).into();
    let path = match program("fio") {
        Ok(path) => path,
        Err(why) => return skipped(why),
    };
    let drives = remote_drives(Path::new("/sys/class/nvme"));
    if drives.is_empty() {
        return skipped("no drive of this machine comes by NVMe-oF".into());
    }
    let mut outcomes = Vec::new();
    for drive in drives {
        let file = format!("--filename=/dev/{drive}");
        let is_device =
            fs::metadata(format!("/dev/{drive}")).is_ok_and(|meta| meta.file_type().is_block_device());
        if !is_device {
            outcomes.extend(STEPS.map(|step| Outcome::skipped(step, &drive, "it has no device file")));
            continue;
        }
        let fio = |size: &str, depth: &str| {
            let runtime = format!("--runtime={}", extent.tool_seconds);
            let (bs, depth) = (format!("--bs={size}"), format!("--iodepth={depth}"));
            let fixed = [
                "--name=gate",
                "--readonly",
                "--rw=randread",
                "--direct=1",
                "--ioengine=io_uring",
                "--time_based",
                "--output-format=json",
            ];
            let tool = Tool::new(&path, TOOL_MAX).args(fixed).args([&file, &runtime, &bs, &depth]);
            run(tool).and_then(|words| parse::fio(&words))
        };
        outcomes.push(outcome(STEPS[0], &drive, fio("128k", "32").map(|read| read.mb_s)));
        outcomes.push(outcome(STEPS[1], &drive, fio("4k", "1").map(|read| read.p99_us)));
    }
    outcomes
}

fn ior(site: &Site, mounted: Option<&Path>, extent: &Extent, leftovers: &Leftovers) -> Vec<Outcome> {
    const STEPS: [&str; 2] = ["ior_write", "ior_read"];
    let skipped = |why: String| STEPS.map(|step| Outcome::skipped(step, "mount", &why)).into();
    let (path, mount) = match (program("ior"), mounted) {
        (Err(why), _) => return skipped(why),
        (_, None) => return skipped("no volume is mounted on this machine".into()),
        (Ok(path), Some(mount)) => (path, mount),
    };
    let file = mount.join(format!(".{}-ior", site.name()));
    let (undone, shown) = (file.clone(), mount.display().to_string());
    let _file = leftovers.add(move || drop(fs::remove_file(undone)));
    let (block, file) = (format!("{}m", extent.ior_mib), file.display().to_string());
    let args = ["-a", "POSIX", "-w", "-r", "-e", "-t", "1m", "-b", &block, "-o", &file];
    let words = run(Tool::new(&path, TOOL_MAX).args(args));
    let read = |head: &str| words.clone().and_then(|words| parse::ior(&words, head));
    vec![outcome(STEPS[0], &shown, read("Max Write:")), outcome(STEPS[1], &shown, read("Max Read:"))]
}

/// A checkpoint as MLPerf Storage writes it. It is large, so a short run does without.
fn mlpstorage(site: &Site, mounted: Option<&Path>, extent: &Extent, leftovers: &Leftovers) -> Outcome {
    const STEP: &str = "mlperf_checkpoint_write";
    let skipped = |why: String| Outcome::skipped(STEP, "mount", why);
    let (path, mount) = match (program("mlpstorage"), program("mpirun"), mounted) {
        (Err(why), _, _) | (_, Err(why), _) => return skipped(why),
        (_, _, None) => return skipped("no volume is mounted on this machine".into()),
        (Ok(path), Ok(_), Some(mount)) => (path, mount),
    };
    if extent.is_quick {
        return skipped("a short run writes no checkpoint of 105 GB".into());
    }
    let (free, _) = stoker_ring::disk_space(mount).unwrap_or((0, 0));
    let memory =
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| parse::memory_gib(&text)).unwrap_or(0);
    if free < CHECKPOINT_BYTES || memory < CHECKPOINT_BYTES >> 30 {
        return skipped(format!(
            "a checkpoint of llama3-8b takes {} GiB of room and of memory",
            CHECKPOINT_BYTES >> 30
        ));
    }
    let folder = mount.join(format!(".{}-mlperf", site.name()));
    let results = site.dir.join(".gate-mlperf");
    for made in [folder.clone(), results.clone()] {
        let _ = fs::remove_dir_all(made);
    }
    let undone = [folder.clone(), results.clone()];
    let _folders = leftovers.add(move || undone.iter().for_each(|made| drop(fs::remove_dir_all(made))));
    let (memory, folder, to) =
        (memory.to_string(), folder.display().to_string(), results.display().to_string());
    let args = ["checkpointing", "run", "--open", "--hosts", "127.0.0.1", "--model", "llama3-8b"];
    let sizes = ["--num-processes", "8", "--num-checkpoints-write", "1", "--num-checkpoints-read", "0"];
    let places = [
        "--client-host-memory-in-gb",
        &memory,
        "--checkpoint-folder",
        &folder,
        "--results-dir",
        &to,
        "--oversubscribe",
    ];
    let mut tool = Tool::new(&path, CHECKPOINT_MAX).args(args).args(sizes).args(places);
    if sys::user().0 == 0 {
        tool = tool.args(["--allow-run-as-root"]);
    }
    let figure = run(tool).and_then(|_| {
        let summary = command::find_file(&results, "summary.json").ok_or("it left no summary.json")?;
        parse::mlpstorage(&fs::read_to_string(summary).map_err(|e| e.to_string())?)
    });
    outcome(STEP, &mount.display().to_string(), figure)
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Namespaces of controllers that are not on the bus of this machine.
fn remote_drives(class: &Path) -> Vec<String> {
    let mut drives = Vec::new();
    for controller in names_in(class) {
        let transport = fs::read_to_string(class.join(&controller).join("transport")).unwrap_or_default();
        if matches!(transport.trim(), "" | "pcie" | "loop") {
            continue;
        }
        let is_namespace =
            |name: &String| name.strip_prefix(&controller).is_some_and(|rest| rest.starts_with('n'));
        drives.extend(names_in(&class.join(&controller)).into_iter().filter(is_namespace));
    }
    drives
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_drives_of_other_machines_are_remote() {
        let folder = tempfile::tempdir().unwrap();
        for (controller, transport, namespace) in [
            ("nvme0", "pcie\n", "nvme0n1"),
            ("nvme1", "tcp\n", "nvme1n1"),
            ("nvme2", "rdma\n", "nvme2n3"),
            ("nvme3", "", "nvme3n1"),
        ] {
            let dir = folder.path().join(controller);
            fs::create_dir_all(dir.join(namespace)).unwrap();
            fs::create_dir_all(dir.join("power")).unwrap();
            fs::write(dir.join("transport"), transport).unwrap();
        }
        assert_eq!(remote_drives(folder.path()), ["nvme1n1", "nvme2n3"]);
        assert!(remote_drives(&folder.path().join("none")).is_empty());
    }

    #[test]
    fn what_is_not_installed_says_so() {
        assert_eq!(program("no-such-tool").unwrap_err(), "no-such-tool is not installed");
    }
}
