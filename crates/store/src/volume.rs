//! Volumes and their policies.

use serde::{Deserialize, Serialize};
use stoker_format::VolumeId;

use crate::error::{ErrorKind, Result, StoreError, Subject};
use crate::who::{TENANT_MARK, check_who_name};

/// Longest name of a volume in its tenant, as of an S3 bucket.
pub const VOLUME_NAME_LEN_MAX: usize = 63;

/// How a volume commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// `one` while the node is alone, `two` as soon as the cluster has a second one.
    #[default]
    Auto,
    /// One drive.
    One,
    /// Two drives in two nodes.
    Two,
    /// Three drives in three nodes.
    Three,
}

impl Class {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Auto => "auto",
            Class::One => "one",
            Class::Two => "two",
            Class::Three => "three",
        }
    }

    /// What it means in a cluster of so many nodes.
    #[must_use]
    pub fn in_cluster(self, nodes: usize) -> Class {
        match self {
            Class::Auto if nodes < 2 => Class::One,
            Class::Auto => Class::Two,
            chosen => chosen,
        }
    }

    /// Nodes that hold a chunk before it is acknowledged.
    pub fn copies(self) -> usize {
        match self {
            Class::Auto | Class::One => 1,
            Class::Two => 2,
            Class::Three => 3,
        }
    }
}

/// How far apart copies must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// In different nodes.
    #[default]
    Node,
    /// Behind different switches.
    Tor,
    /// On different power feeds.
    Power,
}

/// What a write does that finds too few nodes for its class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenAlone {
    /// It fails, and may be tried again.
    #[default]
    Refuse,
    /// It goes on when the lake has it.
    Lake,
}

/// When files leave for the lake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainPolicy {
    /// Every file, soon.
    #[default]
    Always,
    /// No file; they count against the share of the ring that never drains.
    Never,
    /// Every Nth publish of a key; others stay until replaced. For checkpoints that follow one another.
    Every(u32),
    /// When `stoker drain` asks for it.
    OnDemand,
}

/// Who else writes to the lake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LakeMode {
    /// Nobody: after one listing the catalog is the truth.
    #[default]
    Owned,
    /// Others do: listings and lookups are merged with the lake's.
    Shared,
    /// Others do, and we must not.
    ReadOnly,
}

/// What a volume wants; every field can be changed later.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumePolicy {
    /// How it commits.
    pub class: Class,
    /// How far apart its copies must be.
    pub spread: Spread,
    /// What a write does that finds too few nodes.
    pub when_alone: WhenAlone,
    /// When files leave.
    pub drain: DrainPolicy,
    /// A file drains after it was left alone for this long.
    pub drain_quiet_s: u32,
    /// A file drains at the latest when its oldest undrained change is this old.
    pub drain_lag_max_s: u32,
    /// Most bytes of all files together; 0 for no limit.
    pub quota_bytes: u64,
    /// Who else writes to the lake.
    pub lake_mode: LakeMode,
    /// Programs on this machine may read the drives themselves; the volume then has segments of its own.
    pub leases: bool,
}

impl Default for VolumePolicy {
    fn default() -> VolumePolicy {
        VolumePolicy {
            class: Class::Auto,
            spread: Spread::Node,
            when_alone: WhenAlone::Refuse,
            drain: DrainPolicy::Always,
            drain_quiet_s: 10,
            drain_lag_max_s: 300,
            quota_bytes: 0,
            lake_mode: LakeMode::Owned,
            leases: true,
        }
    }
}

/// A volume to be made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VolumeOptions {
    /// Where it drains: a lake URL; by default a folder of its own in the node's lake. `none` for no lake.
    pub lake: Option<String>,
    /// What it wants; by default the node's defaults, and lake mode `read_only` if the lake is not empty.
    pub policy: Option<VolumePolicy>,
}

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Name; also the S3 bucket.
    pub name: String,
    /// Number.
    #[serde(with = "crate::id_text")]
    pub id: VolumeId,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
    /// Where it drains, if anywhere.
    pub lake: Option<String>,
    /// What it wants.
    pub policy: VolumePolicy,
    /// Files that the catalog knows.
    pub files: u64,
    /// Bytes of those files.
    pub bytes: u64,
}

/// Refuses full names that no volume can have: that of a bucket, behind that of a tenant if it is not the default one.
pub fn check_volume_name(name: &str) -> Result<()> {
    match name.split_once(TENANT_MARK) {
        Some((tenant, volume)) => check_who_name("tenant", tenant).and_then(|()| check_bucket_name(volume)),
        None => check_bucket_name(name),
    }
}

/// Refuses names that could not be an S3 bucket.
pub fn check_bucket_name(name: &str) -> Result<()> {
    let bytes = name.as_bytes();
    let edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inner = |byte: &u8| edge(byte) || matches!(byte, b'-' | b'.');
    let sound = (3..=VOLUME_NAME_LEN_MAX).contains(&bytes.len())
        && bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(inner)
        && !name.contains("..")
        && name.parse::<std::net::Ipv4Addr>().is_err();
    if sound {
        return Ok(());
    }
    let message = format!(
        "`{name}` cannot name a volume: 3 to {VOLUME_NAME_LEN_MAX} lower-case letters, digits, dots and hyphens, \
         starting and ending with a letter or digit"
    );
    Err(StoreError::about(ErrorKind::Invalid, Subject::Volume, message))
}

#[cfg(test)]
mod tests {
    use super::check_volume_name;

    #[test]
    fn names_are_bucket_names() {
        for name in [
            "abc",
            "a-b",
            "a.b",
            "0ab",
            "acme_data",
            "a2345678901234567890123456789012345678901234567890123456789012",
        ] {
            assert!(check_volume_name(name).is_ok(), "{name}");
        }
        for name in [
            "ab",
            "",
            "-ab",
            "ab-",
            "aB1",
            "a..b",
            "a/b",
            "192.168.0.1",
            "ä12",
            "a_b",
            "_abc",
            "acme_",
            "acme_a_b",
            "acme_data_x",
        ] {
            assert!(check_volume_name(name).is_err(), "{name}");
        }
    }
}
