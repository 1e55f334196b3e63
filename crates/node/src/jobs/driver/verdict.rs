//! What a verdict of the plan, and what the rings say, mean for a job.

use stoker_jobs::{Event, Verdict, human_bytes};
use stoker_store::{JobState, Tier};

use super::Driver;
use crate::jobs::held::SourceId;

impl Driver {
    /// Whether a job is in another state than it was. Other news of it are written when their time has come.
    pub(super) fn tell_job(&mut self, key: &[u8], verdict: Verdict, now_ms: u64) -> bool {
        let known = &self.jobs[key];
        let ids: Vec<SourceId> = self.sources_of(known).collect();
        let hot = known.job.info.sources.iter().filter(|source| source.tier_hint == Tier::Hot).count();
        let mut is_whole = ids.len() == hot;
        let (mut bytes, mut resident, mut trouble) = (0, 0, None);
        let mut figures = Vec::with_capacity(ids.len());
        for id in &ids {
            let Some(source) = self.sources.get(id) else { continue };
            is_whole &= source.is_held() && source.resident >= source.bytes();
            bytes += source.bytes();
            resident += source.resident.min(source.bytes());
            trouble = trouble.or(source.trouble.clone());
            figures.push((
                source.walked.as_ref().map(|walked| (walked.files, walked.bytes)),
                source.resident.min(source.bytes()),
                source.lake_bytes,
                source.trouble.clone(),
            ));
        }
        let lacks = if is_whole { self.lacks_bandwidth(key) } else { None };
        let known = self.jobs.get_mut(key).expect("asked for above");
        let job = &mut known.job;
        let before = job.info.clone();
        let sources = job.info.sources.iter_mut().filter(|source| source.tier_hint == Tier::Hot);
        // Figures of fewer sources than there are now would go to the wrong ones.
        let figures = if ids.len() == hot { figures } else { Vec::new() };
        for (source, (counted, resident, lake_bytes, trouble)) in sources.zip(figures) {
            if let Some((files, bytes)) = counted {
                (source.is_counted, source.files, source.bytes) = (true, files, bytes);
                source.resident_bytes = resident;
            }
            (source.lake_bytes, source.trouble) = (source.lake_bytes.max(lake_bytes), trouble);
        }
        let cell = match job.info.cell.as_deref() {
            None | Some("") => "the cluster".to_owned(),
            Some(cell) => format!("cell {cell}"),
        };
        let on_drives = |bytes| format!("all of its {} is on drives of {cell}", human_bytes(bytes));
        let is_waiting = matches!(job.info.state, JobState::Queued | JobState::Staging);
        let _ = match verdict {
            Verdict::Ready if is_whole && is_waiting && lacks.is_some() => {
                Ok(job.explain(lacks.as_deref().unwrap_or_default()))
            }
            Verdict::Ready if is_whole && hot == 0 => {
                job.apply(Event::Resident, "it waits for no data", now_ms)
            }
            Verdict::Ready if is_whole => job.apply(Event::Resident, &on_drives(bytes), now_ms),
            Verdict::Ready | Verdict::Staging(_) => {
                job.info.ready_ms = match verdict {
                    Verdict::Staging(at) => at,
                    _ => None,
                };
                let reason = match &trouble {
                    Some(why) => format!("its data does not come: {why}"),
                    None => {
                        format!("{} of {} on drives of {cell}", human_bytes(resident), human_bytes(bytes))
                    }
                };
                match job.info.state {
                    JobState::Ready if resident < bytes => {
                        let why = format!("{} of its data left the drives", human_bytes(bytes - resident));
                        job.apply(Event::Evicted, &why, now_ms)
                    }
                    JobState::Queued => job.apply(Event::Staging, &reason, now_ms),
                    JobState::Staging => Ok(job.explain(&reason)),
                    _ => Ok(false),
                }
            }
            Verdict::Counting if job.info.state == JobState::Queued => {
                Ok(job.explain(&trouble.map_or("its data is being counted".to_owned(), |why| {
                    format!("its data cannot be counted: {why}")
                })))
            }
            Verdict::Waits { needs, left } if is_waiting => {
                let why = format!(
                    "it waits for room: it needs {}, and {} of what drives hold for jobs is free",
                    human_bytes(needs),
                    human_bytes(left)
                );
                Ok(job.explain(&why))
            }
            Verdict::TooLarge { needs, room } if is_waiting => {
                let why = format!(
                    "its data is too large to be staged: {}, and drives of {cell} hold {} for jobs",
                    human_bytes(needs),
                    human_bytes(room)
                );
                Ok(job.explain(&why))
            }
            _ => Ok(false),
        };
        let is_moved = before.state != job.info.state || before.cell != job.info.cell;
        if is_moved {
            return true;
        }
        let mut quiet = job.info.clone();
        // A time that moves all the time is no news.
        quiet.ready_ms = before.ready_ms;
        if quiet != before {
            self.unwritten.insert(key.to_vec());
        }
        false
    }
}
