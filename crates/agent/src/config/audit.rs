//! What is written down of who does what.

use std::num::NonZeroU32;

use serde::Deserialize;

use super::Size;

/// Which calls have lines.
#[derive(Deserialize, PartialEq, Eq, Debug, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub enum AuditLevel {
    /// None.
    Off,
    /// Those that change something, and those that are denied. Of volumes that want it, all.
    #[default]
    Changes,
    /// All.
    Full,
}

/// Whether answers wait for the drive.
#[derive(Deserialize, PartialEq, Eq, Debug, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub enum AuditFlush {
    #[default]
    Auto,
    Answer,
    Soon,
}

/// What is done if the log cannot be written.
#[derive(Deserialize, PartialEq, Eq, Debug, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub enum AuditUnwritable {
    #[default]
    Continue,
    Refuse,
}

/// The audit log.
#[derive(Deserialize, PartialEq, Debug, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    pub level: AuditLevel,
    pub flush: AuditFlush,
    pub unwritable: AuditUnwritable,
    pub segment: Size,
    pub segment_age_s: NonZeroU32,
    pub disk_max: Size,
    pub keep_days: u32,
}

impl Default for Audit {
    fn default() -> Audit {
        Audit {
            level: AuditLevel::Changes,
            flush: AuditFlush::Auto,
            unwritable: AuditUnwritable::Continue,
            segment: Size(64 << 20),
            segment_age_s: const { NonZeroU32::new(86_400).unwrap() },
            disk_max: Size(4 << 30),
            keep_days: 0,
        }
    }
}
