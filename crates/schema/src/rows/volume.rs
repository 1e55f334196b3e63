//! Volumes and access keys.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeRow {
    /// Number.
    pub id: u32,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
    /// Lake URL, if it has a lake.
    pub lake: Option<String>,
    /// Policy, which the catalog does not look into.
    pub policy: Vec<u8>,
    /// Deleted, but not all deletes of its files have reached the lake. Nobody sees it; it goes when they have.
    pub leaving: bool,
}

impl RowValue for VolumeRow {
    const TABLE: &'static str = "volumes";
}

/// What users say of a volume and the engine does not look into.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SettingRow {
    /// As the door took it.
    pub document: Vec<u8>,
}

impl RowValue for SettingRow {
    const TABLE: &'static str = "settings of volumes";
}

/// An access key, which the catalog does not look into.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AccessKeyRow {
    /// Secret, policy and the rest.
    pub body: Vec<u8>,
}

impl RowValue for AccessKeyRow {
    const TABLE: &'static str = "access keys";
}
