//! Whose work it is: from names to the ids that schedulers compare, and over the wire.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use stoker_qos::{CLASSES, Class, JobId, Tag, TenantId, VolumeId};
use stoker_store::{asker, job, volume_tenant};

use crate::core::Core;
use crate::volumes::Volume;

/// Names that are remembered for their ids.
const NAMES_MAX: usize = 4_096;

/// The id of a tenant or of a job: the same on every node, and nobody finds another name with it.
pub(crate) fn id_of(name: &str) -> u64 {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
    let mut id = [0; 8];
    id.copy_from_slice(&digest.as_ref()[..8]);
    u64::from_be_bytes(id).max(1)
}

/// The work that what runs now is a part of. What nobody said anything of is waited for by somebody.
pub(crate) fn tag() -> Tag {
    stoker_qos_driver::work().unwrap_or(Tag::of(Class::Client))
}

/// Which names have which ids, as far as they asked for something.
#[derive(Default)]
pub(crate) struct Names(Mutex<HashMap<u64, Arc<str>>>);

impl Names {
    fn note(&self, name: &str) -> u64 {
        let id = id_of(name);
        let mut names = self.0.lock().unwrap();
        if names.len() < NAMES_MAX {
            names.entry(id).or_insert_with(|| name.into());
        }
        id
    }
}

impl Core {
    /// What is done with a volume by whoever asks now: of the class of what runs, or of clients.
    pub fn work_on(&self, volume: &Volume) -> Tag {
        let now = tag();
        let asker = asker();
        let tenant = asker.as_ref().map_or(volume_tenant(&volume.name).0, |user| &user.tenant);
        let job = job().map_or(now.job, |job| JobId(self.admission.names.note(job.as_str())));
        Tag {
            tenant: TenantId(self.admission.names.note(tenant)),
            job,
            volume: VolumeId(volume.id.0),
            class: now.class,
        }
    }
}

/// Whose work a question to a peer is. It stands behind the question, where releases before it look at nothing. (R14)
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WireWork {
    tenant: u64,
    job: u64,
    volume: u32,
    class: u8,
}

impl WireWork {
    pub fn of(tag: Tag) -> WireWork {
        WireWork { tenant: tag.tenant.0, job: tag.job.0, volume: tag.volume.0, class: tag.class as u8 }
    }

    /// A class that is not known is one of a later release, and somebody may wait for it.
    pub fn tag(self) -> Tag {
        let class = CLASSES.get(self.class as usize).copied().unwrap_or(Class::Client);
        Tag { tenant: TenantId(self.tenant), job: JobId(self.job), volume: VolumeId(self.volume), class }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_comes_back_from_the_wire() {
        for class in CLASSES {
            let tag = Tag::of(class).tenant(id_of("acme")).job(id_of("train")).volume(7);
            assert_eq!(WireWork::of(tag).tag(), tag);
        }
        assert_eq!(WireWork { tenant: 0, job: 0, volume: 0, class: 99 }.tag().class, Class::Client);
        assert_ne!(id_of("a"), id_of("b"));
    }
}
