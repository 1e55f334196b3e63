//! A job as it is kept: its states, and what moves it from one to the next.
//!
//! ```text
//! queued -> staging -> ready -> running -> draining -> done
//!    \________\__________\________\__________________-> failed, cancelled
//! ```
//!
//! A job that is ready and whose data left the drives is staging again. One that is started before it is ready runs all the same: a hint
//! makes things faster, and never unreachable (R18).

use serde::{Deserialize, Serialize};
use stoker_store::{JobEnd, JobInfo, JobQos, JobState, JobStep, Tier};

/// Longest reason.
pub const REASON_LEN_MAX: usize = 512;
/// Most steps that are remembered; of more, those in the middle are forgotten.
pub const STEPS_MAX: usize = 32;

/// How long an output may take to get into the lake before the job counts as over without it.
const DRAIN_MS_MAX: u64 = 24 * 3_600_000;

/// What happens to a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Its data is being counted or brought.
    Staging,
    /// All that it wants on drives is there.
    Resident,
    /// Some of that is not there any more.
    Evicted,
    /// Somebody starts it.
    Start,
    /// Somebody ends it.
    End(JobEnd),
    /// Its output is in the lake.
    Drained,
    /// Somebody cancels it.
    Cancel,
    /// Nobody said anything of it for too long.
    Expired,
}

/// A job as its row has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// What people see of it.
    pub info: JobInfo,
    /// How it ended, once it did.
    pub end: Option<JobEnd>,
    /// The word by which it was submitted.
    pub again: Option<String>,
    /// When somebody said something of it last.
    pub said_ms: u64,
}

impl Job {
    /// One that was just submitted.
    pub fn new(mut info: JobInfo, again: Option<String>, now_ms: u64) -> Job {
        info.state = JobState::Queued;
        info.steps.clear();
        let mut job = Job { info, end: None, again, said_ms: now_ms };
        job.enter(JobState::Queued, "submitted", now_ms);
        job
    }

    /// Whether its data is held for it.
    pub fn holds_data(&self) -> bool {
        matches!(self.info.state, JobState::Queued | JobState::Staging | JobState::Ready | JobState::Running)
    }

    /// Whether it wants bandwidth as long as its data is held for it.
    pub fn wants_bandwidth(&self) -> bool {
        self.info.spec.qos != JobQos::default()
    }

    /// Whether it wants something on drives.
    pub fn wants_data(&self) -> bool {
        self.info.sources.iter().any(|source| source.tier_hint == Tier::Hot)
    }

    /// What happened moves it on; false if it stays where it is. What cannot happen to it says why.
    pub fn apply(&mut self, event: Event, reason: &str, now_ms: u64) -> Result<bool, String> {
        let is_said = matches!(event, Event::Start | Event::End(_) | Event::Cancel);
        let next = self.next(event)?;
        if is_said {
            self.said_ms = self.said_ms.max(now_ms);
        }
        if let Event::End(end) = event
            && !self.info.state.is_over()
        {
            self.end = Some(end);
        }
        if next == self.info.state {
            return Ok(false);
        }
        self.enter(next, reason, now_ms);
        Ok(true)
    }

    fn next(&self, event: Event) -> Result<JobState, String> {
        use JobState as S;
        let state = self.info.state;
        let over = || format!("job `{}` is over: it is {}", self.info.id, state.word());
        Ok(match (state, event) {
            (S::Queued | S::Staging, Event::Staging) => S::Staging,
            (S::Queued | S::Staging | S::Ready, Event::Resident) => S::Ready,
            (S::Ready, Event::Evicted) => S::Staging,
            (S::Queued | S::Staging | S::Ready | S::Running, Event::Start) => S::Running,
            (S::Draining, Event::End(_)) => S::Draining,
            (S::Queued | S::Staging | S::Ready | S::Running, Event::End(end)) => {
                let has_run = state == S::Running;
                match end {
                    _ if has_run && self.info.spec.output.is_some() => S::Draining,
                    JobEnd::Done => S::Done,
                    JobEnd::Failed => S::Failed,
                }
            }
            (S::Draining, Event::Drained | Event::Expired | Event::Cancel) => self.ended(),
            // Said twice, it is what it was.
            (S::Cancelled, Event::Cancel) => S::Cancelled,
            (S::Done, Event::End(JobEnd::Done)) => S::Done,
            (S::Failed, Event::End(JobEnd::Failed)) => S::Failed,
            (state, _) if state.is_over() => return Err(over()),
            (_, Event::Cancel) => S::Cancelled,
            (_, Event::Expired) => S::Failed,
            // News of data that came late.
            (state, Event::Staging | Event::Resident | Event::Evicted | Event::Drained) => state,
            (S::Draining, Event::Start) => {
                return Err(format!("job `{}` has run already; it is draining", self.info.id));
            }
            (state, _) => state,
        })
    }

    fn ended(&self) -> JobState {
        match self.end {
            Some(JobEnd::Failed) => JobState::Failed,
            _ => JobState::Done,
        }
    }

    fn enter(&mut self, state: JobState, reason: &str, at_ms: u64) {
        let reason = cut(reason);
        self.info.state = state;
        self.info.reason.clone_from(&reason);
        self.info.expires_ms = match state {
            JobState::Queued | JobState::Staging | JobState::Ready => {
                self.said_ms.saturating_add(self.info.spec.reservation_ms)
            }
            JobState::Running => at_ms.saturating_add(self.info.spec.time_limit_ms),
            JobState::Draining => at_ms.saturating_add(DRAIN_MS_MAX),
            JobState::Done | JobState::Failed | JobState::Cancelled => 0,
        };
        if state != JobState::Staging {
            self.info.ready_ms = None;
        }
        if self.info.steps.len() >= STEPS_MAX {
            self.info.steps.remove(STEPS_MAX / 2);
        }
        self.info.steps.push(JobStep { state, at_ms, reason });
    }

    /// Says of a job that stays where it is why it does; false if that is known.
    pub fn explain(&mut self, reason: &str) -> bool {
        let reason = cut(reason);
        let is_news = self.info.reason != reason;
        self.info.reason = reason;
        is_news
    }

    /// Somebody who schedules it said that they know of it.
    pub fn heard(&mut self, now_ms: u64) {
        self.said_ms = self.said_ms.max(now_ms);
        if matches!(self.info.state, JobState::Queued | JobState::Staging | JobState::Ready) {
            self.info.expires_ms = self.said_ms.saturating_add(self.info.spec.reservation_ms);
        }
    }

    /// Ends it if nobody said anything of it for too long; true if it did.
    pub fn expire(&mut self, now_ms: u64) -> bool {
        if self.info.state.is_over() || now_ms < self.info.expires_ms {
            return false;
        }
        let reason = match self.info.state {
            JobState::Running => "its time limit is over and nobody ended it",
            JobState::Draining => "its output was not all in the lake within a day; it goes on by itself",
            _ => "its reservation is over: nobody started it",
        };
        self.apply(Event::Expired, reason, now_ms).unwrap_or(false)
    }
}

fn cut(reason: &str) -> String {
    let mut reason: String = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if let Some((end, _)) = reason.char_indices().find(|(at, c)| at + c.len_utf8() > REASON_LEN_MAX) {
        reason.truncate(end);
    }
    reason
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use stoker_store::JobSpec;

    pub(crate) fn info(id: &str, output: Option<&str>) -> JobInfo {
        JobInfo {
            tenant: "default".into(),
            id: id.into(),
            name: String::new(),
            user: String::new(),
            project: None,
            state: JobState::Queued,
            reason: String::new(),
            steps: Vec::new(),
            spec: JobSpec {
                output: output.map(Into::into),
                reservation_ms: 1_000,
                time_limit_ms: 5_000,
                ..JobSpec::default()
            },
            sources: Vec::new(),
            expected_start_ms: None,
            ready_ms: None,
            expires_ms: 0,
            cell: None,
            nodes: Vec::new(),
            checkpoints: None,
            qos_enforced: false,
            notes: Vec::new(),
        }
    }

    /// Every state and every event: what becomes of a job, `.` if it stays, `!` if it is refused.
    #[test]
    fn the_table() {
        use JobState as S;
        let events = [
            Event::Staging,
            Event::Resident,
            Event::Evicted,
            Event::Start,
            Event::End(JobEnd::Done),
            Event::End(JobEnd::Failed),
            Event::Drained,
            Event::Cancel,
            Event::Expired,
        ];
        // S staging, Y ready, R running, G draining, D done, F failed, C cancelled
        for (state, with_output, expect) in [
            (S::Queued, true, "SY.RDF.CF"),
            (S::Staging, true, ".Y.RDF.CF"),
            (S::Ready, true, "..SRDF.CF"),
            (S::Running, true, "....GG.CF"),
            (S::Running, false, "....DF.CF"),
            (S::Draining, true, "...!..DDD"),
            (S::Done, true, "!!!!.!!!!"),
            (S::Failed, true, "!!!!!.!!!"),
            (S::Cancelled, true, "!!!!!!!.!"),
        ] {
            for (event, expect) in events.iter().zip(expect.chars()) {
                let mut job = Job::new(info("j", with_output.then_some("s3://o/p")), None, 0);
                job.info.state = state;
                let found = match job.apply(*event, "x", 1) {
                    Err(_) => '!',
                    Ok(false) => '.',
                    Ok(true) => match job.info.state {
                        S::Queued => 'Q',
                        S::Staging => 'S',
                        S::Ready => 'Y',
                        S::Running => 'R',
                        S::Draining => 'G',
                        S::Done => 'D',
                        S::Failed => 'F',
                        S::Cancelled => 'C',
                    },
                };
                assert_eq!(found, expect, "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn a_scheduler_that_never_calls_back_loses_its_reservation() {
        let mut job = Job::new(info("j", None), None, 100);
        assert!(job.apply(Event::Resident, "all of it", 200).unwrap());
        assert_eq!(job.info.expires_ms, 1_100, "what the cluster does is not a word of the scheduler");
        job.heard(500);
        assert!(!job.expire(1_499));
        assert!(job.expire(1_500));
        assert_eq!(job.info.state, JobState::Failed);
        assert!(job.info.reason.contains("nobody started it"));

        let mut job = Job::new(info("j", None), None, 100);
        job.apply(Event::Start, "prolog", 200).unwrap();
        assert!(!job.expire(5_199) && job.expire(5_200));
        assert!(job.info.reason.contains("nobody ended it"));
    }

    #[test]
    fn a_failed_job_drains_and_stays_failed() {
        let mut job = Job::new(info("j", Some("s3://o/p")), None, 0);
        job.apply(Event::Start, "", 1).unwrap();
        job.apply(Event::End(JobEnd::Failed), "exit code 1", 2).unwrap();
        assert_eq!(job.info.state, JobState::Draining);
        assert!(!job.holds_data());
        job.apply(Event::Drained, "", 3).unwrap();
        assert_eq!(job.info.state, JobState::Failed);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut job = Job::new(info("j", None), None, 0);
        for at_ms in 0..1_000 {
            job.apply(Event::Resident, &"ü\n".repeat(10_000), at_ms).unwrap();
            job.apply(Event::Evicted, "gone", at_ms).unwrap();
        }
        assert!(job.info.steps.len() <= STEPS_MAX);
        assert_eq!(job.info.steps[0].reason, "submitted");
        assert!(
            job.info
                .steps
                .iter()
                .all(|step| step.reason.len() <= REASON_LEN_MAX && !step.reason.contains('\n'))
        );
    }
}
