//! The gate of single parts: whether a drive that was out can do again what it could when it was sound.
//!
//! The gate is built on what this crate must not know (configurations, raw I/O), so whoever starts the loop hands it in.

use std::path::{Path, PathBuf};

use stoker_ring::Histogram;
use stoker_store::Calibration;

/// What is shorter than this is no sign of a broken drive, whatever the gate measured: a busy processor is as long.
pub const SHORT_US: u64 = 1_000;

/// Reads and writes of a drive when it was sound.
pub type Sound = (Option<Calibration>, Option<Calibration>);

/// Measures parts of a node that runs. (D122)
pub trait PartGate: Send + Sync {
    /// Measures drives and compares them with what they could do: whether they may work again, and why.
    fn verify(&self, dir: &Path, paths: &[PathBuf]) -> (bool, String);

    /// What was measured of the drive at a path when it was sound.
    fn calibrations(&self, dir: &Path, path: &Path) -> Sound;

    /// Reads and writes a little on the drive at a path, and adds how long that took.
    fn try_drive(
        &self,
        path: &Path,
        sound: Sound,
        reads: &Histogram,
        writes: &Histogram,
    ) -> Result<(), String>;
}
