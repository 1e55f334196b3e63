//! `stoker mount`: volumes as file systems, in a process of its own.
//!
//! The command returns when they can be used: it starts itself once more, and that process serves them. With `-f` it serves them
//! itself. A signal takes the mounts away; what is in use is served until it is closed, without its name.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stoker_files::{Files, Options};
use stoker_format::crc64;
use stoker_gateway_fuse::{Mount, MountOptions};
use stoker_store::{ErrorKind, JobLabel, LockClient, Store};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::connect::Target;
use crate::failure::Failure;
use crate::{clock, log, out, shell, size, sys};

/// What the kernel offers file systems by.
const DEVICE: &str = "/dev/fuse";

/// Dead mounts on one directory that are taken away.
const DEAD_MAX: usize = 64;

/// What the process says when a volume can be used.
const READY: &str = "mounted";

/// Tells the process that serves in the background that it does.
const DETACHED: &str = "STOKER_MOUNT_DETACHED";

/// Volumes that one process serves.
const VOLUMES_MAX: usize = 64;

/// Arguments of `mount`.
#[derive(clap::Args)]
pub struct Args {
    /// The volume.
    volume: String,
    /// The directory that shows it.
    directory: PathBuf,
    /// More volumes, each with its directory, for the same process.
    #[arg(value_names = ["VOLUME", "DIRECTORY"], num_args = 0..)]
    more: Vec<String>,
    /// Serve in the foreground until it is unmounted, instead of returning once it can be used.
    #[arg(short, long)]
    foreground: bool,
    /// Return once it can be used, which it does without this, too.
    #[arg(long, conflicts_with = "foreground", hide = true)]
    background: bool,
    /// A file for what is logged in the background.
    #[arg(long, value_name = "PATH", conflicts_with = "foreground")]
    log_file: Option<PathBuf>,
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
    /// Where locks (flock, fcntl) hold: among all mounts of the cluster, or among the programs of this mount alone, which costs
    /// nothing.
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = LockScope::Cluster)]
    locks: LockScope,
    /// The job that works through this mount: what is promised to it and allowed to it counts for what is read and written here.
    #[arg(long, value_name = "JOB", env = "STOKER_JOB", value_parser = JobLabel::parse)]
    job: Option<JobLabel>,
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
    let wanted = wanted(args)?;
    mount_options(args, &wanted[0].volume)?;
    let is_detached = std::env::var_os(DETACHED).is_some();
    if !args.foreground && !is_detached {
        return in_background(args, wanted.len());
    }
    log::start(args.log, log::Format::Text, None);
    sys::bound_spare_memory();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("runtime", &error))?;
    let mounts = runtime.block_on(mount_all(args, &wanted, runtime.handle()))?;
    if is_detached {
        // Nobody's directory is in use because of this process.
        std::env::set_current_dir("/").map_err(|error| Failure::io("/", &error))?;
    }
    // At once: who heard one line may not wait for the others.
    let ready = |one: &Wanted| format!("{READY} {} on {}", one.volume, one.directory.display());
    out::line(wanted.iter().map(ready).collect::<Vec<_>>().join("\n"))?;
    runtime.block_on(serve(mounts))
}

/// Serves mounts until all of them are gone.
async fn serve(mounts: Vec<(PathBuf, Mount)>) -> Result<ExitCode, Failure> {
    let caught = |kind| signal(kind).map_err(|error| Failure::io("signals", &error));
    let (mut interrupt, mut terminate) = (caught(SignalKind::interrupt())?, caught(SignalKind::terminate())?);
    let mut there: Vec<PathBuf> = mounts.iter().map(|(directory, _)| directory.clone()).collect();
    let mut served = JoinSet::new();
    for (directory, mount) in mounts {
        served.spawn_blocking(move || (directory, mount.join()));
    }
    let mut failed = None;
    loop {
        let ended = tokio::select! {
            ended = served.join_next() => ended,
            _ = interrupt.recv() => { leave(&mut there); continue }
            _ = terminate.recv() => { leave(&mut there); continue }
        };
        match ended {
            None => return failed.map_or(Ok(ExitCode::SUCCESS), Err),
            Some(Ok((directory, ended))) => {
                there.retain(|known| *known != directory);
                let fault = |error| Failure::io(format!("serving {}", directory.display()), &error);
                failed = ended.map_err(fault).err().or(failed);
            }
            Some(Err(error)) => failed = Some(Failure::new(format!("serving a mount: {error}"))),
        }
    }
}

/// Unmounts because of a signal. What is in use loses its name and is served until it is closed: nothing that was written is lost.
fn leave(there: &mut Vec<PathBuf>) {
    there.retain(|directory| {
        let mut left = unmount(directory, sys::Unmount::WhenUnused);
        if left.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            out::say(format!(
                "stoker: {} is in use: it is served until what is open is closed",
                directory.display()
            ));
            left = unmount(directory, sys::Unmount::Now);
        }
        if left.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
            // Somebody else did it just now.
            return false;
        }
        if let Err(error) = &left {
            out::say(format!("stoker: cannot unmount {} yet: {error}", directory.display()));
        }
        left.is_err()
    });
}

/// Where locks hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum LockScope {
    /// Among all mounts of the cluster.
    Cluster,
    /// Among the programs of this mount.
    Local,
}

/// A volume and the directory that is to show it.
struct Wanted {
    volume: String,
    directory: PathBuf,
}

/// What is to be mounted where, each directory usable and named once.
fn wanted(args: &Args) -> Result<Vec<Wanted>, Failure> {
    if !args.more.len().is_multiple_of(2) {
        return Err(Failure::new("the last volume has no directory")
            .hint("stoker mount VOLUME DIRECTORY [VOLUME DIRECTORY]..."));
    }
    if args.more.len() / 2 >= VOLUMES_MAX {
        return Err(Failure::new(format!("one process serves at most {VOLUMES_MAX} volumes")));
    }
    let mut wanted = vec![Wanted { volume: args.volume.clone(), directory: usable(&args.directory)? }];
    for pair in args.more.chunks_exact(2) {
        let directory = usable(Path::new(&pair[1]))?;
        if wanted.iter().any(|known| known.directory == directory) {
            return Err(Failure::new(format!("{} is named twice", directory.display())));
        }
        wanted.push(Wanted { volume: pair[0].clone(), directory });
    }
    Ok(wanted)
}

/// The node that serves it, for the job of the mount.
fn target(args: &Args) -> Target {
    let target = args.target.clone();
    match &args.job {
        Some(job) => target.for_job(job.clone()),
        None => target,
    }
}

/// Mounts all or none.
async fn mount_all(
    args: &Args,
    wanted: &[Wanted],
    runtime: &tokio::runtime::Handle,
) -> Result<Vec<(PathBuf, Mount)>, Failure> {
    let client: Arc<dyn Store> = Arc::new(target(args).connect().await?);
    let mut mounts: Vec<(PathBuf, Mount)> = Vec::with_capacity(wanted.len());
    for one in wanted {
        match mount(args, one, client.clone(), wanted.len(), runtime.clone()).await {
            Ok(mount) => mounts.push((one.directory.clone(), mount)),
            Err(failure) => {
                for (directory, mount) in mounts {
                    if let Err(error) = mount.unmount() {
                        out::say(format!("stoker: cannot unmount {}: {error}", directory.display()));
                    }
                }
                return Err(failure);
            }
        }
    }
    Ok(mounts)
}

async fn mount(
    args: &Args,
    Wanted { volume, directory }: &Wanted,
    client: Arc<dyn Store>,
    volumes: usize,
    runtime: tokio::runtime::Handle,
) -> Result<Mount, Failure> {
    let mut options = Options::new(place(directory), clock::unix_ns);
    let buffer = usize::try_from(args.buffer).unwrap_or(usize::MAX) / volumes;
    options.bytes_max = buffer.max(1 << 20);
    options.file_bytes_max = options.file_bytes_max.min(options.bytes_max);
    options.owner = sys::user();
    options.locks = lock_client(args.locks, &*client, volume).await?;
    let files = Files::open(client, volume, options).await?;
    let options = mount_options(args, volume)?;
    Mount::new(files, runtime, directory, &options).map_err(|error| {
        let failure = Failure::new(format!("mounting on {}: {error}", directory.display()));
        // Who may not open the device cannot mount, whatever else is right.
        match std::fs::File::options().read(true).write(true).open(DEVICE) {
            Err(error) => failure.hint(no_device(&error)),
            Ok(_) => failure.hint("mount as root, or install fusermount3 (package fuse3)"),
        }
    })
}

/// As whom a mount locks files among all of them. A node of an older release has no such locks.
async fn lock_client(
    scope: LockScope,
    store: &dyn Store,
    volume: &str,
) -> Result<Option<LockClient>, Failure> {
    if scope == LockScope::Local {
        return Ok(None);
    }
    let mut id = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut id))
        .map_err(|error| Failure::io("/dev/urandom", &error))?;
    match store.locks_keep(volume, LockClient(id), Vec::new()).await {
        Ok(_) => Ok(Some(LockClient(id))),
        Err(fault) if fault.kind == ErrorKind::Invalid => {
            out::say(format!("stoker: locks hold within this mount only: {fault}"));
            Ok(None)
        }
        Err(fault) => Err(fault.into()),
    }
}

fn mount_options(args: &Args, volume: &str) -> Result<MountOptions, Failure> {
    let mut options = MountOptions::new(format!("stoker:{volume}"));
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
        // Devices cannot be opened in any case, and reading is not noted.
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
        unmount(directory, sys::Unmount::Now).map_err(|error| {
            Failure::io(format!("{}: a dead mount is there and cannot be taken away", what()), &error)
                .hint("`stoker umount --lazy DIRECTORY`, as the user who mounted it or as root")
        })?;
    }
    let found = std::fs::metadata(directory).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(format!("{} is not there", what()))
            .hint(format!("make it: mkdir -p {}", shell::quoted(&directory.display().to_string()))),
        _ => Failure::io(what(), &error),
    })?;
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
fn unmount(directory: &Path, when: sys::Unmount) -> std::io::Result<()> {
    match sys::unmount(directory, when) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let lazy = (when == sys::Unmount::Now).then_some("-z");
            let done = Command::new("fusermount3").arg("-u").args(lazy).arg(directory).output();
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

/// Starts this program again, to serve, and waits until it has mounted all.
fn in_background(args: &Args, volumes: usize) -> Result<ExitCode, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::io("this program", &error))?;
    let stderr = match &args.log_file {
        None => Stdio::piped(),
        Some(path) => std::fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| Failure::io(path.display(), &error))?
            .into(),
    };
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .process_group(0)
        .spawn()
        .map_err(|error| Failure::io("this program", &error))?;
    let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
    let ready = lines.into_iter().flatten().map_while(Result::ok).filter(|line| line.starts_with(READY));
    let ready: Vec<String> = ready.take(volumes).collect();
    if ready.len() == volumes {
        for line in ready {
            out::line(line)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut said);
    }
    let _ = child.wait();
    match &args.log_file {
        Some(path) => Err(Failure::new("it was not mounted").hint(format!("{} says why", path.display()))),
        None => {
            out::say(said.trim_end());
            Ok(ExitCode::FAILURE)
        }
    }
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
