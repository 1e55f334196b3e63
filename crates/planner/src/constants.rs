//! Constants of our models, each with what it is and where it comes from, and what measurements put in their place.

use crate::calibration::Calibration;
use crate::plan::ConstantShown;
use crate::value::human;

/// A number that a model needs and an input does not give.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Constant {
    /// Its name.
    pub name: &'static str,
    /// What is assumed if nobody measured.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Least value that a measurement may have.
    pub min: f64,
    /// Greatest.
    pub max: f64,
    /// What it is.
    pub words: &'static str,
}

const fn constant(
    name: &'static str,
    value: f64,
    unit: &'static str,
    range: (f64, f64),
    words: &'static str,
) -> Constant {
    Constant { name, value, unit, min: range.0, max: range.1, words }
}

/// All of them. What is assumed is a PCIe Gen4 drive and an ordinary loader, as the lab has them where it has them.
pub const CONSTANTS: &[Constant] = &[
    constant("drive_read", 7e9, "B/s", (1e5, 1e12), "large reads of one drive"),
    constant("drive_write", 5e9, "B/s", (1e5, 1e12), "large durable writes of one drive"),
    constant("drive_latency", 100e-6, "s", (1e-7, 10.0), "a read of 4 KiB of a drive, alone"),
    constant("drive_iops", 800_000.0, "/s", (10.0, 1e8), "small reads of one drive, many at once"),
    constant("read_overhead", 60e-6, "s", (1e-7, 1.0), "what the loader spends on one read beside its bytes"),
    constant(
        "sample_overhead",
        15e-6,
        "s",
        (1e-8, 1.0),
        "what the loader spends on one sample beside its read",
    ),
    constant(
        "batch_overhead",
        300e-6,
        "s",
        (1e-7, 1.0),
        "what the loader spends on one batch beside its samples",
    ),
    constant(
        "cache_overhead",
        60e-6,
        "s",
        (1e-7, 1.0),
        "what the loader spends on one read that the node's memory answers",
    ),
    constant(
        "worker_cores",
        1.0,
        "cores",
        (0.05, 1024.0),
        "cores that one worker keeps busy, with its reads and the node's part of them",
    ),
    constant(
        "cache_cores",
        1.0,
        "cores",
        (0.05, 1024.0),
        "cores that one worker and the node keep busy for it, out of the node's memory",
    ),
    constant("lake_stream_rate", 400e6, "B/s", (1e3, 1e12), "bytes that one worker brings from the lake"),
    constant("stream_rate", 2e9, "B/s", (1e5, 1e12), "bytes that one worker brings in large reads"),
    constant("cache_rate", 6e9, "B/s", (1e5, 1e12), "bytes that one worker brings out of memory"),
    constant("open_time", 250e-6, "s", (1e-7, 10.0), "an open, a stat and a close of a file by a worker"),
    constant("metadata_rate", 50_000.0, "/s", (1.0, 1e9), "metadata operations of one server or catalog"),
    constant("lake_latency", 40e-3, "s", (1e-5, 100.0), "time to the first byte of a lake"),
    constant("read_rate", 2e9, "B/s", (1e5, 1e12), "bytes of one large read of a drive, alone"),
    constant("cache_latency", 80e-6, "s", (1e-7, 10.0), "a small read out of the node's memory, alone"),
    constant(
        "cache_read_rate",
        3e9,
        "B/s",
        (1e5, 1e12),
        "bytes of one large read out of the node's memory, alone",
    ),
    constant("lake_read_rate", 200e6, "B/s", (1e3, 1e12), "bytes of one large read of the lake, alone"),
    constant("network_efficiency", 0.9, "share", (0.05, 1.0), "of a rail's rate that payload gets"),
    constant("read_efficiency", 0.9, "share", (0.01, 1.5), "of a drive's raw reads that come through Stoker"),
    constant(
        "write_efficiency",
        0.85,
        "share",
        (0.01, 1.5),
        "of a drive's raw writes that come through Stoker",
    ),
    constant(
        "read_latency_ratio",
        1.15,
        "times",
        (0.5, 100.0),
        "P99 of reads through Stoker, of the drive's own",
    ),
    constant(
        "write_latency_ratio",
        1.3,
        "times",
        (0.5, 100.0),
        "P99 of commits through Stoker, of the drive's own",
    ),
    constant("checkpoint_overhead", 50e-3, "s", (0.0, 100.0), "begin and publish of a checkpoint set"),
    constant(
        "shard_overhead",
        0.5e-3,
        "s",
        (0.0, 10.0),
        "what one shard adds to a checkpoint beside its bytes",
    ),
    constant("shard_rate", 1.5e9, "B/s", (1e5, 1e12), "bytes that the writer of one shard brings"),
];

/// The constants of a plan.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Constants {
    calibration: Calibration,
}

impl Constants {
    /// With what was measured in the place of what is assumed.
    pub fn with(calibration: Calibration) -> Constants {
        Constants { calibration }
    }

    /// A constant by its name, which must be one of [`CONSTANTS`].
    pub fn get(&self, name: &str) -> f64 {
        self.calibration.value(name).unwrap_or_else(|| of(name).value)
    }

    /// Whether it was measured.
    pub fn is_measured(&self, name: &str) -> bool {
        self.calibration.value(name).is_some()
    }

    /// What was measured.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Both values, for people.
    pub fn show(&self, name: &str) -> ConstantShown {
        let constant = of(name);
        let measured = self.calibration.values.get(name);
        ConstantShown {
            name: constant.name,
            words: constant.words,
            assumed: constant.value,
            measured: measured.map(|one| one.value),
            from: measured.map_or_else(|| "assumed".to_owned(), |one| one.from.clone()),
            unit: constant.unit,
            text: human(self.get(name), constant.unit),
        }
    }
}

/// A constant by its name.
pub fn of(name: &str) -> &'static Constant {
    CONSTANTS.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("there is no constant `{name}`"))
}
