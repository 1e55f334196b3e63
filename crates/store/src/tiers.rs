//! Lakes with names, second lakes of volumes, and rules that move files.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, Result, StoreError, Subject};

/// Lakes with names in a cluster.
pub const LAKES_MAX: usize = 1_000;
/// Labels of a lake.
pub const LAKE_LABELS_MAX: usize = 32;
/// Longest text of any setting of a lake.
pub const LAKE_TEXT_LEN_MAX: usize = 1_024;
/// How the place of a volume in a lake with a name begins: `lake://NAME/FOLDER`.
pub const LAKE_SCHEME: &str = "lake://";

/// What a lake costs, in millionths of a currency that nobody names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LakeCost {
    /// A GB for a month.
    pub gb_month: u64,
    /// 1000 requests that write or list.
    pub writes_1000: u64,
    /// 1000 requests that read.
    pub reads_1000: u64,
    /// A GB that is read.
    pub gb_read: u64,
}

/// A lake with a name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LakeInfo {
    /// Its name.
    pub name: String,
    /// Where it is; each volume has a folder of its own below.
    pub url: String,
    /// The endpoint, if it is not that of the cloud.
    pub endpoint: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// Whether the bucket is in the path and not in the host name.
    pub path_style: Option<bool>,
    /// The access key; none for those of the environment of each node.
    pub access_key_id: Option<String>,
    /// The storage class of what is written.
    pub storage_class: Option<String>,
    /// What it costs.
    pub cost: LakeCost,
    /// Most requests in a second that a node sends; 0 for no limit.
    pub requests_per_s: u64,
    /// Most bytes in a second that a node moves; 0 for no limit.
    pub bytes_per_s: u64,
    /// What users say of it.
    pub labels: BTreeMap<String, String>,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
    /// When it was changed last.
    pub changed_ms: u64,
    /// Volumes that drain to it.
    pub volumes: Vec<String>,
    /// Volumes whose second lake it is.
    pub replica_of: Vec<String>,
}

/// What a lake is to be; what is not named stays. An empty text takes a setting away.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LakeChange {
    /// Where it is.
    pub url: Option<String>,
    /// The endpoint.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// Whether the bucket is in the path.
    pub path_style: Option<bool>,
    /// The access key.
    pub access_key_id: Option<String>,
    /// Its secret.
    pub secret_access_key: Option<String>,
    /// The storage class of what is written.
    pub storage_class: Option<String>,
    /// What it costs, each in millionths.
    pub gb_month: Option<u64>,
    /// 1000 requests that write or list.
    pub writes_1000: Option<u64>,
    /// 1000 requests that read.
    pub reads_1000: Option<u64>,
    /// A GB that is read.
    pub gb_read: Option<u64>,
    /// Most requests in a second.
    pub requests_per_s: Option<u64>,
    /// Most bytes in a second.
    pub bytes_per_s: Option<u64>,
    /// Labels to set; an empty value takes one away.
    pub labels: BTreeMap<String, String>,
}

impl fmt::Debug for LakeChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LakeChange")
            .field("url", &self.url)
            .field("access_key_id", &self.access_key_id)
            .field("secret_access_key", &self.secret_access_key.as_ref().map(|_| "hidden"))
            .finish_non_exhaustive()
    }
}

/// One thing that was tried at a lake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LakeTrial {
    /// What was tried.
    pub what: String,
    /// Why it does not work; none if it does.
    pub fault: Option<String>,
    /// How long it took, microseconds.
    pub took_us: u64,
}

/// How a volume and its second lake stand.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// The volume.
    pub volume: String,
    /// The lake that the volume drains to.
    pub lake: String,
    /// The other one: its second lake, or after a promotion the former one.
    pub other: String,
    /// `copying`, `promoting` or `promoted`.
    pub state: String,
    /// Since when, milliseconds since 1970.
    pub since_ms: u64,
    /// The walk over everything that was there before is over: the lag is all that there is.
    pub walked: bool,
    /// Files whose copies are behind.
    pub lag_files: u64,
    /// Their bytes.
    pub lag_bytes: u64,
    /// How long the oldest of them is behind, milliseconds.
    pub lag_ms: u64,
    /// There was more than is looked at: the lag is at least that.
    pub at_least: bool,
    /// Copies that are there.
    pub copies: u64,
    /// Keys under which the second lake has something that this cluster did not write; they are not copied.
    pub foreign: Vec<String>,
    /// Files that only the former lake has.
    pub lacking_files: u64,
    /// Their bytes.
    pub lacking_bytes: u64,
    /// Files that are drained again from the rings, because the promoted lake lacked them.
    pub rescued_files: u64,
    /// What went wrong last.
    pub trouble: Option<String>,
}

/// A file that the promoted lake lacks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LackingFile {
    /// Its key in the lake.
    pub key: String,
    /// Its version.
    pub version: String,
    /// Length.
    pub bytes: u64,
    /// When it was written, milliseconds since 1970.
    pub modified_ms: u64,
}

/// What a rule would do.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PlannedRule {
    /// The rule.
    pub rule: String,
    /// What it does.
    pub action: String,
    /// Files that it would act on.
    pub files: u64,
    /// Their length.
    pub file_bytes: u64,
    /// Requests to lakes.
    pub requests: u64,
    /// Bytes from and to lakes.
    pub bytes: u64,
    /// What that costs, in millionths.
    pub micros: u64,
}

/// What rules would do.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PolicyPlan {
    /// Each rule.
    pub rules: Vec<PlannedRule>,
    /// Files that were looked at.
    pub looked: u64,
    /// There are more files than are looked at: every number is at least that.
    pub at_least: bool,
    /// How long it takes within the budget, seconds.
    pub seconds: u64,
    /// Whether all volumes drain to lakes with a name, of which costs are known.
    pub is_priced: bool,
}

/// A set of rules that is run, and what came of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PolicyInfo {
    /// Its name.
    pub name: String,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
    /// Volumes that its rules are about.
    pub volumes: Vec<String>,
    /// Its rules.
    pub rules: Vec<String>,
    /// Times that all files were looked at.
    pub passes: u64,
    /// The next pass begins then, milliseconds since 1970; 0 while one is under way.
    pub next_ms: u64,
    /// Files that were looked at.
    pub looked: u64,
    /// Files that were moved.
    pub moved_files: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Moves that failed.
    pub failed_files: u64,
    /// Requests to lakes.
    pub requests: u64,
    /// What they cost, in millionths.
    pub micros: u64,
}

/// A file that was moved, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PolicyMove {
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// Which one of that moment.
    pub number: u32,
    /// Volume.
    pub volume: String,
    /// Key.
    pub key: String,
    /// The rule that said so.
    pub rule: String,
    /// What was done.
    pub action: String,
    /// Why the rule acted.
    pub reason: String,
    /// Length of the file.
    pub bytes: u64,
    /// Requests to the lake.
    pub requests: u64,
    /// What they cost, in millionths.
    pub micros: u64,
    /// `done`, why it failed, or `begun` if the node died meanwhile.
    pub result: String,
}

/// What an operator asks about lakes and what moves between them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TierOrder {
    /// Every lake with a name.
    Lakes,
    /// Make one.
    LakeAdd {
        /// Its name.
        name: String,
        /// What it is.
        change: Box<LakeChange>,
    },
    /// Change one.
    LakeSet {
        /// Its name.
        name: String,
        /// What is changed.
        change: Box<LakeChange>,
    },
    /// Try it: everything that Stoker does with a lake, on a key of its own.
    LakeCheck {
        /// Its name.
        name: String,
    },
    /// Forget one that no volume uses. Its objects stay.
    LakeRemove {
        /// Its name.
        name: String,
    },
    /// Second lakes, and how far they are.
    Replicas {
        /// Of this volume; none for all.
        volume: Option<String>,
    },
    /// Give a volume a second lake, or take it away. What was copied stays there.
    ReplicaSet {
        /// The volume.
        volume: String,
        /// The name of the lake; none takes it away.
        lake: Option<String>,
    },
    /// Make the second lake of a volume its lake.
    Promote {
        /// The volume.
        volume: String,
        /// The name of the second lake.
        to: String,
    },
    /// Files that the promoted lake lacks.
    Lacking {
        /// The volume.
        volume: String,
        /// Only those behind this key.
        after: Option<String>,
    },
    /// What rules would do. Changes nothing.
    PolicyPlan {
        /// The rules.
        text: String,
    },
    /// Keep rules and act by them.
    PolicySet {
        /// Their name.
        name: String,
        /// The rules.
        text: String,
    },
    /// Every set of rules.
    Policies,
    /// Act no more by rules.
    PolicyRemove {
        /// Their name.
        name: String,
    },
    /// What was moved by rules.
    PolicyMoves {
        /// Their name.
        name: String,
        /// Only what came behind this moment and number.
        after: Option<(u64, u32)>,
    },
}

/// What became of a [`TierOrder`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TierReport {
    /// It is done.
    Done,
    /// Of [`TierOrder::Lakes`], and the lake that an order was about.
    Lakes(Vec<LakeInfo>),
    /// Of [`TierOrder::LakeCheck`].
    Trials(Vec<LakeTrial>),
    /// Of [`TierOrder::Replicas`], and the volume that an order was about.
    Replicas(Vec<ReplicaInfo>),
    /// Of [`TierOrder::Lacking`]; true if there are more.
    Lacking(Vec<LackingFile>, bool),
    /// Of [`TierOrder::PolicyPlan`].
    Plan(PolicyPlan),
    /// Of [`TierOrder::Policies`], and of [`TierOrder::PolicySet`] the one.
    Policies(Vec<PolicyInfo>),
    /// Of [`TierOrder::PolicyMoves`]; true if there are more.
    Moves(Vec<PolicyMove>, bool),
}

impl TierOrder {
    /// True if it changes nothing.
    pub fn only_reads(&self) -> bool {
        match self {
            TierOrder::Lakes
            | TierOrder::Replicas { .. }
            | TierOrder::Lacking { .. }
            | TierOrder::PolicyPlan { .. }
            | TierOrder::Policies
            | TierOrder::PolicyMoves { .. } => true,
            TierOrder::LakeAdd { .. }
            | TierOrder::LakeSet { .. }
            // It writes to the lake.
            | TierOrder::LakeCheck { .. }
            | TierOrder::LakeRemove { .. }
            | TierOrder::ReplicaSet { .. }
            | TierOrder::PolicySet { .. }
            | TierOrder::PolicyRemove { .. }
            | TierOrder::Promote { .. } => false,
        }
    }

    /// What it does to what, without secrets; for logs.
    pub fn summary(&self) -> String {
        match self {
            TierOrder::Lakes => "Lakes".to_owned(),
            TierOrder::LakeAdd { name, .. } => format!("LakeAdd {name}"),
            TierOrder::LakeSet { name, .. } => format!("LakeSet {name}"),
            TierOrder::LakeCheck { name } => format!("LakeCheck {name}"),
            TierOrder::LakeRemove { name } => format!("LakeRemove {name}"),
            TierOrder::Replicas { .. } => "Replicas".to_owned(),
            TierOrder::ReplicaSet { volume, lake } => {
                format!("ReplicaSet {volume} {}", lake.as_deref().unwrap_or("none"))
            }
            TierOrder::Promote { volume, to } => format!("Promote {volume} {to}"),
            TierOrder::Lacking { .. } => "Lacking".to_owned(),
            TierOrder::PolicyPlan { .. } => "PolicyPlan".to_owned(),
            TierOrder::PolicySet { name, .. } => format!("PolicySet {name}"),
            TierOrder::Policies => "Policies".to_owned(),
            TierOrder::PolicyRemove { name } => format!("PolicyRemove {name}"),
            TierOrder::PolicyMoves { .. } => "PolicyMoves".to_owned(),
        }
    }
}

/// Refuses what could not be the name of a lake.
pub fn check_lake_name(name: &str) -> Result<()> {
    let edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let sound = (1..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| edge(byte) || *byte == b'-')
        && bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && name != "none";
    if sound {
        return Ok(());
    }
    let message = format!(
        "`{}` cannot name a lake: up to 63 lower-case letters, digits and hyphens, and not `none`",
        name.chars().take(80).collect::<String>().escape_debug()
    );
    Err(StoreError::about(ErrorKind::Invalid, Subject::Lake, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_lakes() {
        for name in ["a", "cold-1", "0"] {
            assert!(check_lake_name(name).is_ok(), "{name}");
        }
        for name in ["", "-a", "a-", "A", "a.b", "a/b", "none", "ä", &"a".repeat(64)] {
            assert!(check_lake_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn nothing_prints_a_secret() {
        let change = LakeChange { secret_access_key: Some("hush".into()), ..LakeChange::default() };
        let order = TierOrder::LakeSet { name: "a".into(), change: Box::new(change) };
        assert!(!format!("{order:?} {}", order.summary()).contains("hush"));
    }
}
