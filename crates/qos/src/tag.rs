//! Whose work it is.

/// A tenant; 0 for work of none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TenantId(pub u64);

/// A job; 0 for work of none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct JobId(pub u64);

/// A volume; 0 for work that belongs to none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct VolumeId(pub u32);

/// What kind of work it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Class {
    /// Reads and writes that somebody waits for.
    Client,
    /// Writes of checkpoints, in their windows.
    Checkpoint,
    /// Published files on their way to the lake.
    Drain,
    /// Bytes of the lake on their way into rings.
    Stage,
    /// Copies that are made up for.
    Repair,
    /// Reads of what nobody reads.
    Scrub,
}

/// All classes, as they are counted.
pub const CLASSES: [Class; 6] =
    [Class::Client, Class::Checkpoint, Class::Drain, Class::Stage, Class::Repair, Class::Scrub];

impl Class {
    /// As in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Class::Client => "client",
            Class::Checkpoint => "checkpoint",
            Class::Drain => "drain",
            Class::Stage => "stage",
            Class::Repair => "repair",
            Class::Scrub => "scrub",
        }
    }
}

/// Whose work it is, and of what kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag {
    /// Whose.
    pub tenant: TenantId,
    /// For which job.
    pub job: JobId,
    /// On which volume.
    pub volume: VolumeId,
    /// Of what kind.
    pub class: Class,
}

impl Tag {
    /// Work of this kind that belongs to nobody in particular.
    pub fn of(class: Class) -> Tag {
        Tag { tenant: TenantId(0), job: JobId(0), volume: VolumeId(0), class }
    }

    /// The same for a job.
    pub fn job(self, job: u64) -> Tag {
        Tag { job: JobId(job), ..self }
    }

    /// The same of a tenant.
    pub fn tenant(self, tenant: u64) -> Tag {
        Tag { tenant: TenantId(tenant), ..self }
    }

    /// The same on a volume.
    pub fn volume(self, volume: u32) -> Tag {
        Tag { volume: VolumeId(volume), ..self }
    }
}
