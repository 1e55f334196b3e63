//! What jobs want of bandwidth: a policy for each from when its data is brought or there, in the order in which they start.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use stoker_catalog::kv::Commit;
use stoker_schema::lead::Term;
use stoker_store::{JobState, Result};
use tokio::time::Instant;

use super::Driver;
use crate::admission::{KnownPolicy, Promises};
use crate::jobs::rows::encode;

/// How often it is looked whether what others had is free by now.
const PROMISE_EVERY: Duration = Duration::from_secs(2);
/// The same where every job has its policy: somebody may have removed one.
const CHECK_EVERY: Duration = Duration::from_secs(30);
/// Policies that are made at once.
const PROMISES_MAX: usize = 32;

/// What is known of what jobs want.
#[derive(Default)]
pub(super) struct Bandwidth {
    looked_at: Option<Instant>,
    /// Jobs whose data is there, and which wait for bandwidth alone.
    waiting: HashSet<Vec<u8>>,
    /// Why a job has none.
    refused: HashMap<Vec<u8>, String>,
    /// Jobs that an operator made a policy about.
    others: HashSet<Vec<u8>>,
}

impl Bandwidth {
    pub fn forget(&mut self, is_gone: impl Fn(&Vec<u8>) -> bool) {
        self.waiting.retain(|key| !is_gone(key));
        self.refused.retain(|key, _| !is_gone(key));
        self.others.retain(|key| !is_gone(key));
    }
}

impl Driver {
    /// Why a job whose data is there waits all the same.
    pub(super) fn lacks_bandwidth(&mut self, key: &[u8]) -> Option<String> {
        let job = &self.jobs[key].job;
        if !job.wants_bandwidth() || job.info.qos_enforced || self.bandwidth.others.contains(key) {
            return None;
        }
        if self.bandwidth.waiting.insert(key.to_vec()) {
            self.bandwidth.looked_at = None;
        }
        Some(match self.bandwidth.refused.get(key) {
            Some(why) => format!("its data is there, and it waits for bandwidth: {why}"),
            None => "its data is there, and its bandwidth is being promised".to_owned(),
        })
    }

    /// Makes policies for jobs, and ends those of jobs that are gone.
    pub(super) async fn promise_bandwidth(&mut self, term: &Term) -> Result<()> {
        let is_first = self.bandwidth.looked_at.is_none();
        let mut has_all = true;
        let mut wants: Vec<(bool, u64, u64, Vec<u8>)> = Vec::new();
        for (key, known) in &self.jobs {
            let (job, info) = (&known.job, &known.job.info);
            let is_begun = info.state != JobState::Queued || !job.wants_data();
            if job.wants_bandwidth() && job.holds_data() && (is_begun || self.bandwidth.waiting.contains(key))
            {
                let since_ms = info.steps.first().map_or(0, |step| step.at_ms);
                let start_ms = info.expected_start_ms.unwrap_or(u64::MAX);
                has_all &= info.qos_enforced;
                wants.push((info.state != JobState::Running, start_ms, since_ms, key.clone()));
            }
        }
        let pause = if has_all { CHECK_EVERY } else { PROMISE_EVERY };
        let is_due = self.bandwidth.looked_at.is_none_or(|at| at.elapsed() >= pause);
        if !is_due || (wants.is_empty() && !is_first) {
            return Ok(());
        }
        wants.sort_unstable();
        let mut promises = self.core.promises().await?;
        self.bandwidth.looked_at = Some(Instant::now());
        self.end_left_over(&mut promises, term).await?;
        let (mut made, mut ahead) = (0, None::<String>);
        for (_, _, _, key) in wants {
            if made >= PROMISES_MAX {
                self.bandwidth.looked_at = None;
                break;
            }
            made += usize::from(self.promise_to(&key, &mut promises, &mut ahead, term).await?);
        }
        if made > 0 {
            self.core.qos_reload().await?;
        }
        Ok(())
    }

    /// Makes the policy of a job; false if it has one, or cannot have one now. Behind one that waits for what others have, nobody is promised
    /// a floor: a large one would wait for ever otherwise.
    async fn promise_to(
        &mut self,
        key: &[u8],
        promises: &mut Promises,
        ahead: &mut Option<String>,
        term: &Term,
    ) -> Result<bool> {
        let known = self.jobs.get_mut(key).expect("listed above");
        match promises.of(&known.job)? {
            KnownPolicy::Own if known.job.info.qos_enforced => return Ok(false),
            KnownPolicy::Others(id) => {
                if self.bandwidth.others.insert(key.to_vec()) {
                    let note =
                        format!("the policy {id}, which an operator made about it, counts for its bandwidth");
                    if !known.job.info.notes.contains(&note) {
                        known.job.info.notes.push(note);
                        self.unwritten.insert(key.to_vec());
                    }
                }
                return Ok(false);
            }
            KnownPolicy::Own | KnownPolicy::None => drop(self.bandwidth.others.remove(key)),
        }
        let has_floor = known.job.info.spec.qos.floor_bytes_per_s > 0;
        let why = match (promises.lacks(&known.job)?, &ahead) {
            (Some(lacks), _) => {
                if lacks.is_taken && ahead.is_none() {
                    *ahead = Some(known.job.info.id.clone());
                }
                Some(lacks.why)
            }
            (None, Some(first)) if has_floor => {
                Some(format!("job `{first}` waits for it, too, and comes first"))
            }
            (None, _) => None,
        };
        if let Some(why) = why {
            self.bandwidth.refused.insert(key.to_vec(), why);
            return Ok(false);
        }
        let mut job = known.job.clone();
        job.info.qos_enforced = true;
        let change = Commit::new().check(term.check()).seq(key.to_vec(), known.seq);
        let change = change.put(key.to_vec(), encode(&job)?);
        match self.core.promise(promises, &job, change).await? {
            Some(seq) => {
                (known.job, known.seq) = (job, seq);
                self.bandwidth.refused.remove(key);
                self.bandwidth.waiting.remove(key);
                Ok(true)
            }
            None => {
                // Somebody changed the job or a policy meanwhile.
                (self.is_changed, self.bandwidth.looked_at) = (true, None);
                Ok(false)
            }
        }
    }

    /// Ends policies of jobs that ended where nobody knew of policies.
    async fn end_left_over(&mut self, promises: &mut Promises, term: &Term) -> Result<()> {
        let holding: HashSet<(&str, &str)> = self
            .jobs
            .values()
            .filter(|known| known.job.holds_data())
            .map(|known| (known.job.info.tenant.as_str(), known.job.info.id.as_str()))
            .collect();
        let gone: Vec<String> =
            promises.left_over(|tenant, id| holding.contains(&(tenant, id))).map(str::to_owned).collect();
        if !gone.is_empty() {
            let change = Commit::new().check(term.check());
            self.core.end_promises(promises, &gone, change).await?;
            self.core.qos_reload().await?;
        }
        Ok(())
    }
}
