//! What a volume can be used as, and the mount options that it can have.

use crate::answer::Answer;
use crate::proto::VolumeCapability;
use tonic::Status;

/// Access modes of the specification.
const SINGLE_NODE_READER_ONLY: i32 = 2;
const MULTI_NODE_READER_ONLY: i32 = 3;
const SINGLE_NODE_SINGLE_WRITER: i32 = 6;
const MODES: std::ops::RangeInclusive<i32> = 1..=7;

/// Options of mounts at most, and letters of each.
const FLAGS_MAX: usize = 32;
const FLAG_LEN_MAX: usize = 128;

/// Options by which programs are told that bytes are durable before they are. Nothing of Stoker takes them.
const VOIDS_DURABILITY: &[&str] = &[
    "nobarrier",
    "barrier=0",
    "barrier=none",
    "data=writeback",
    "nosync",
    "nofsync",
    "eatmydata",
    "norecovery",
    "wsync=0",
];

/// Options that `stoker mount --options` takes.
const KNOWN: &[&str] = &[
    "ro",
    "rw",
    "exec",
    "noexec",
    "suid",
    "nosuid",
    "nodev",
    "sync",
    "async",
    "dirsync",
    "defaults",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
];

/// Options that are flags of `stoker mount`.
const FLAGS: &[&str] = &["cache", "buffer", "threads"];

/// How a volume is used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Use {
    /// Nobody changes it.
    pub read_only: bool,
    /// One target only.
    pub single_writer: bool,
    /// Options of `stoker mount`, as arguments.
    pub arguments: Vec<String>,
}

impl Use {
    /// Reads one capability; what cannot be kept to is refused.
    pub fn of(capability: Option<&VolumeCapability>) -> Answer<Use> {
        let wrong = |what: &str| Status::invalid_argument(what.to_owned());
        let capability = capability.ok_or_else(|| wrong("the volume capability is missing"))?;
        let mode = capability.access_mode.as_ref().ok_or_else(|| wrong("the access mode is missing"))?.mode;
        if !MODES.contains(&mode) {
            return Err(wrong("the access mode is not known"));
        }
        let mount = match (&capability.block, &capability.mount) {
            (None, Some(mount)) => mount,
            (Some(_), None) => {
                return Err(wrong("volumes of Stoker are file systems; volumeMode: Block is not served"));
            }
            _ => return Err(wrong("the access type is missing")),
        };
        if !["", "stoker", "fuse"].contains(&mount.fs_type.as_str()) {
            return Err(wrong("the file system is that of Stoker: leave fsType out"));
        }
        if mount.mount_flags.len() > FLAGS_MAX
            || mount.mount_flags.iter().any(|flag| flag.len() > FLAG_LEN_MAX)
        {
            return Err(wrong("at most 32 mount options of at most 128 letters"));
        }
        let mut options = Vec::new();
        let mut arguments = Vec::new();
        for flag in mount.mount_flags.iter().flat_map(|flags| flags.split(',')).map(str::trim) {
            match option(flag)? {
                Some((name, value)) => arguments.push(format!("--{name}={value}")),
                None if flag.is_empty() => {}
                None => options.push(flag.to_owned()),
            }
        }
        let read_only = [SINGLE_NODE_READER_ONLY, MULTI_NODE_READER_ONLY].contains(&mode)
            || options
                .iter()
                .rfind(|option| ["ro", "rw"].contains(&option.as_str()))
                .is_some_and(|last| last == "ro");
        options.retain(|option| !["ro", "rw"].contains(&option.as_str()));
        if !options.is_empty() {
            arguments.push(format!("--options={}", options.join(",")));
        }
        Ok(Use { read_only, single_writer: mode == SINGLE_NODE_SINGLE_WRITER, arguments })
    }
}

/// Reads a list, which must not be empty.
pub fn check_all(capabilities: &[VolumeCapability]) -> Answer<()> {
    if capabilities.is_empty() {
        return Err(Status::invalid_argument("the volume capabilities are missing"));
    }
    capabilities.iter().try_for_each(|one| Use::of(Some(one)).map(drop))
}

/// A flag of `stoker mount` with its value, nothing for an option; refuses what it does not know.
fn option(flag: &str) -> Answer<Option<(&str, &str)>> {
    if flag.is_empty() || KNOWN.contains(&flag) {
        return Ok(None);
    }
    if let Some((name, value)) = flag.split_once('=').filter(|(name, _)| FLAGS.contains(name)) {
        let is_plain = !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
        if is_plain {
            return Ok(Some((name, value)));
        }
    }
    let why = if VOIDS_DURABILITY.contains(&flag) {
        format!(
            "the mount option {flag} would let a sync return before the bytes are durable; Stoker never does that"
        )
    } else {
        format!(
            "the mount option {flag:?} is not known; known are {}, cache=, buffer=, threads=",
            KNOWN.join(", ")
        )
    };
    Err(Status::invalid_argument(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{AccessMode, BlockVolume, MountVolume};

    fn capability(mode: i32, flags: &[&str]) -> VolumeCapability {
        let mount_flags = flags.iter().map(ToString::to_string).collect();
        let mount = MountVolume { mount_flags, ..MountVolume::default() };
        VolumeCapability { mount: Some(mount), access_mode: Some(AccessMode { mode }), block: None }
    }

    #[test]
    fn uses_are_read() {
        let used = Use::of(Some(&capability(5, &["noatime", "nosuid,cache=5", "ro"]))).ok().unwrap();
        assert!(used.read_only && !used.single_writer);
        assert_eq!(used.arguments, ["--cache=5", "--options=noatime,nosuid"]);
        assert!(Use::of(Some(&capability(3, &["rw"]))).ok().unwrap().read_only);
        assert!(Use::of(Some(&capability(6, &[]))).ok().unwrap().single_writer);
    }

    #[test]
    fn what_voids_durability_is_refused_with_the_reason() {
        for flag in VOIDS_DURABILITY {
            let status = Use::of(Some(&capability(1, &[flag]))).err().unwrap();
            assert!(status.message().contains("durable"), "{flag}: {status}");
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let block = VolumeCapability { block: Some(BlockVolume {}), mount: None, ..capability(1, &[]) };
        let none = VolumeCapability { mount: None, ..capability(1, &[]) };
        let modeless = VolumeCapability { access_mode: None, ..capability(1, &[]) };
        let long = "x".repeat(200);
        let typed = MountVolume { fs_type: "xfs".into(), ..MountVolume::default() };
        let typed = VolumeCapability { mount: Some(typed), ..capability(1, &[]) };
        let all = [
            block,
            none,
            modeless,
            typed,
            capability(0, &[]),
            capability(8, &[]),
            capability(1, &["uid=1"]),
            capability(1, &["cache=1 -o x"]),
            capability(1, &["--dir=x"]),
            capability(1, &[&long]),
        ];
        for one in all {
            assert_eq!(Use::of(Some(&one)).err().unwrap().code(), tonic::Code::InvalidArgument, "{one:?}");
        }
        assert!(Use::of(None).is_err() && check_all(&[]).is_err());
    }
}
