//! `stoker mount`: a volume as a file system, in a process of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stoker_files::{Files, Options};
use stoker_format::crc64;
use stoker_gateway_fuse::{Mount, MountOptions};
use tokio::signal::unix::{SignalKind, signal};

use crate::connect::Target;
use crate::failure::Failure;
use crate::{clock, log, out, size, sys};

/// What the kernel offers file systems by.
const DEVICE: &str = "/dev/fuse";

/// Dead mounts on one directory that are taken away.
const DEAD_MAX: usize = 64;

/// What the process says when the volume can be used.
const READY: &str = "mounted";

/// Arguments of `mount`.
#[derive(clap::Args)]
pub struct Args {
    /// The volume.
    volume: String,
    /// The directory that shows it.
    directory: PathBuf,
    /// Go on in the background once it is mounted.
    #[arg(long)]
    background: bool,
    /// Refuse changes.
    #[arg(long)]
    read_only: bool,
    /// Options as mount(8) has them, the last word counts: ro, rw, exec, noexec, suid, nosuid, nodev, sync, async, dirsync, and those for
    /// access times, which are not kept.
    #[arg(short = 'o', long = "options", value_name = "OPTION", value_delimiter = ',')]
    options: Vec<String>,
    /// Let only this user use it.
    #[arg(long)]
    only_me: bool,
    /// Seconds for which the kernel believes names and properties; 0 to ask each time.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    cache: f64,
    /// Bytes that were written and not published, of all files together. The process takes that, and besides it at most 256 MiB
    /// and 8 MiB for each of its threads.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size::parse)]
    buffer: u64,
    /// Requests that are worked on at once.
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    threads: usize,
    /// How much is logged.
    #[arg(long, alias = "log-level", value_name = "LEVEL", env = "STOKER_LOG", default_value = "warn")]
    log: log::Level,
    #[command(flatten)]
    target: Target,
}

/// Mounts, and serves the mount until it is unmounted.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if !(0.0..=3600.0).contains(&args.cache) {
        return Err(Failure::new("--cache is a number of seconds from 0 to 3600"));
    }
    if !(1..=1024).contains(&args.threads) {
        return Err(Failure::new("--threads is a number from 1 to 1024"));
    }
    if !Path::new(DEVICE).exists() {
        return Err(Failure::new("this machine has no /dev/fuse").hint(
            "load the kernel module (`modprobe fuse`); a container needs --device /dev/fuse --cap-add SYS_ADMIN",
        ));
    }
    mount_options(args)?;
    let directory = usable(&args.directory)?;
    if args.background {
        return in_background();
    }
    log::start(args.log, log::Format::Text, None);
    sys::bound_spare_memory();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("runtime", &error))?;
    let mount = runtime.block_on(mount(args, &directory, runtime.handle().clone()))?;
    out::line(format!("{READY} {} on {}", args.volume, directory.display()))?;
    runtime.block_on(async {
        let caught = |kind| signal(kind).map_err(|error| Failure::io("signals", &error));
        let (mut interrupt, mut terminate) =
            (caught(SignalKind::interrupt())?, caught(SignalKind::terminate())?);
        let mut served = tokio::task::spawn_blocking(move || mount.join());
        loop {
            let ended = tokio::select! {
                ended = &mut served => ended,
                _ = interrupt.recv() => { leave(&directory); continue }
                _ = terminate.recv() => { leave(&directory); continue }
            };
            let fault =
                |error: std::io::Error| Failure::io(format!("serving {}", directory.display()), &error);
            return match ended {
                Ok(ended) => ended.map(|()| ExitCode::SUCCESS).map_err(fault),
                Err(error) => Err(Failure::new(format!("serving {}: {error}", directory.display()))),
            };
        }
    })
}

/// Unmounts because of a signal. What is in use stays until it is not: nothing that was written is lost.
fn leave(directory: &Path) {
    if let Err(error) = sys::unmount(directory, sys::Unmount::WhenUnused) {
        out::say(format!("stoker: cannot unmount {} yet: {error}", directory.display()));
    }
}

async fn mount(args: &Args, directory: &Path, runtime: tokio::runtime::Handle) -> Result<Mount, Failure> {
    let client = args.target.connect().await?;
    let mut options = Options::new(place(directory), clock::unix_ns);
    options.bytes_max = usize::try_from(args.buffer).unwrap_or(usize::MAX).max(1 << 20);
    options.file_bytes_max = options.file_bytes_max.min(options.bytes_max);
    options.owner = sys::user();
    let files = Files::open(Arc::new(client), &args.volume, options).await?;
    let options = mount_options(args)?;
    Mount::new(files, runtime, directory, &options).map_err(|error| {
        let failure = Failure::new(format!("mounting on {}: {error}", directory.display()));
        // Who may not open the device cannot mount, whatever else is right.
        match std::fs::File::options().read(true).write(true).open(DEVICE) {
            Err(error) => failure.hint(no_device(&error)),
            Ok(_) => failure.hint("mount as root, or install fusermount3 (package fuse3)"),
        }
    })
}

fn mount_options(args: &Args) -> Result<MountOptions, Failure> {
    let mut options = MountOptions::new(format!("stoker:{}", args.volume));
    options.all_users = !args.only_me && sys::user().0 == 0;
    options.cache = Duration::from_secs_f64(args.cache);
    options.threads = args.threads;
    for option in args.options.iter().map(|option| option.trim()).filter(|option| !option.is_empty()) {
        set(&mut options, option)?;
    }
    options.read_only |= args.read_only;
    Ok(options)
}

/// One option of mount(8). What cannot be kept to is refused: who asks for less should not get more.
fn set(options: &mut MountOptions, option: &str) -> Result<(), Failure> {
    match option {
        "ro" => options.read_only = true,
        "rw" => options.read_only = false,
        "noexec" => options.no_exec = true,
        "exec" => options.no_exec = false,
        "nosuid" => options.no_suid = true,
        "suid" => options.no_suid = false,
        "sync" => options.sync = true,
        "async" => options.sync = false,
        "dirsync" => options.dir_sync = true,
        // There are no device files, and access times are not kept.
        "defaults" | "nodev" | "atime" | "noatime" | "diratime" | "nodiratime" | "relatime"
        | "norelatime" | "strictatime" | "nostrictatime" | "lazytime" | "nolazytime" => {}
        _ => {
            let hint = "known are ro, rw, exec, noexec, suid, nosuid, nodev, sync, async, dirsync, and those for access times";
            return Err(Failure::new(format!("the mount option {option:?} is not known")).hint(hint));
        }
    }
    Ok(())
}

/// The directory as an absolute path. What a process that was killed left mounted there is taken away.
fn usable(directory: &Path) -> Result<PathBuf, Failure> {
    let what = || format!("the directory {}", directory.display());
    // A container that is started again and again may have left one on top of another.
    for _ in 0..DEAD_MAX {
        let Err(error) = alive(directory) else { break };
        if !is_dead(&error) {
            break;
        }
        take_away(directory).map_err(|error| {
            Failure::io(format!("{}: a dead mount is there and cannot be taken away", what()), &error)
                .hint("`stoker umount --lazy DIRECTORY`, as the user who mounted it or as root")
        })?;
    }
    let found = std::fs::metadata(directory).map_err(|error| Failure::io(what(), &error))?;
    if !found.is_dir() {
        return Err(Failure::new(format!("{} is not a directory", directory.display())));
    }
    std::fs::canonicalize(directory).map_err(|error| Failure::io(what(), &error))
}

/// Whether something answers there. The kernel may remember what the directory is, and not what is in it.
fn alive(directory: &Path) -> std::io::Result<()> {
    std::fs::metadata(directory)?;
    match std::fs::read_dir(directory) {
        Err(error) if is_dead(&error) => Err(error),
        _ => Ok(()),
    }
}

/// What the kernel says of a mount whose process is gone: killed, or cut off by an abort.
fn is_dead(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// Unmounts what is on top; who may not do that himself asks fusermount3.
fn take_away(directory: &Path) -> std::io::Result<()> {
    match sys::unmount(directory, sys::Unmount::Now) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let done = Command::new("fusermount3").args(["-u", "-z"]).arg(directory).output();
            if done.is_ok_and(|done| done.status.success()) { Ok(()) } else { Err(error) }
        }
        done => done,
    }
}

/// What helps where the device cannot be opened.
fn no_device(error: &std::io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::EPERM) => {
            "a container needs --device /dev/fuse and --cap-add SYS_ADMIN; Kubernetes a device plugin or a privileged pod"
        }
        Some(libc::EACCES) => {
            "it is usually for everybody (mode 0666): `chmod 666 /dev/fuse`, mount as root, or install fusermount3 (package fuse3)"
        }
        _ => "load the kernel module: `modprobe fuse`",
    };
    format!("{DEVICE} cannot be opened ({error}): {advice}")
}

/// Tells this mount from those on other machines and directories.
fn place(directory: &Path) -> String {
    let machine =
        std::fs::read("/etc/machine-id").or_else(|_| std::fs::read("/etc/hostname")).unwrap_or_default();
    let path = directory.as_os_str().as_encoded_bytes();
    format!("{:016x}", crc64(&[machine.as_slice(), b"\0", path].concat()))
}

/// Starts this program again without `--background` and waits until it has mounted.
fn in_background() -> Result<ExitCode, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::io("this program", &error))?;
    let args: Vec<OsString> = std::env::args_os().skip(1).filter(|arg| arg != "--background").collect();
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| Failure::io("this program", &error))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    if line.starts_with(READY) {
        out::line(line.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut said);
    }
    let _ = child.wait();
    out::say(said.trim_end());
    Ok(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_that_cannot_be_opened_says_who_can_change_that() {
        let check = |number, part: &str| {
            let hint = no_device(&std::io::Error::from_raw_os_error(number));
            assert!(hint.contains(part), "{number}: {hint}");
        };
        check(libc::EPERM, "--device /dev/fuse");
        check(libc::EACCES, "chmod 666 /dev/fuse");
        check(libc::ENODEV, "modprobe fuse");
    }
}
