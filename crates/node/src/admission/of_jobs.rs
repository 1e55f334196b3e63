//! Policies of jobs: what the spec of a job wants of bandwidth is a policy about its work, from when it is staged until it ends. (D245)
//!
//! It is about the tenant and the id of the job, and the id is the name that connections say ([`JobLabel`]). It is written in one transaction
//! with the row of the job, which is `qos_enforced` from then on, and deleted in the one that ends the job: no job leaves one behind, whoever
//! leads or dies meanwhile. A policy that an operator made about the same work stays, and counts.

use stoker_catalog::kv::Commit;
use stoker_format::NodeId;
use stoker_jobs::Job;
use stoker_qos::{Rate, can_promise};
use stoker_schema::rows::{QosRow, RowValue, keys};
use stoker_store::{
    JobLabel, QOS_POLICIES_MAX, QosRate, QosRequest, QosSeen, QosSpec, QosSubject, Result, StoreError,
};

use super::policies::{Policy, cannot, check, id_of, pair, rate_of, told};
use super::share::{PROMISED_PERCENT_MAX, capacity_of};
use crate::core::Core;
use crate::error;

/// How the requests begin by which jobs have policies; behind it is when the job was submitted. Nobody else's may begin so.
pub(super) const OF_JOBS: &str = "job@";

/// What is promised and allowed, and what drives can do.
pub(crate) struct Promises {
    round: Option<u64>,
    policies: Vec<Policy>,
    seen: Vec<(NodeId, QosSeen)>,
    silent: u32,
}

/// The policy about the work of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// It is that of the job's spec.
    Own,
    /// Somebody else made it.
    Others(String),
    /// There is none, or that of an earlier job of this id.
    None,
}

/// Why a job is promised nothing now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lacks {
    pub why: String,
    /// Other jobs have it: it will be free when they end.
    pub is_taken: bool,
}

fn request_of(job: &Job) -> String {
    format!("{OF_JOBS}{}", job.info.steps.first().map_or(0, |step| step.at_ms))
}

fn is_of_job(policy: &Policy) -> bool {
    policy.row.request.as_ref().is_some_and(|request| request.starts_with(OF_JOBS))
}

fn wanted(job: &Job) -> Result<(QosSubject, QosSpec)> {
    let rate = |bytes: u64| QosRate { bytes_per_s: Some(bytes).filter(|bytes| *bytes > 0), ops_per_s: None };
    let qos = &job.info.spec.qos;
    let spec = QosSpec {
        floor: rate(qos.floor_bytes_per_s),
        ceiling: rate(qos.ceiling_bytes_per_s),
        is_interactive: qos.interactive,
        ..QosSpec::default()
    };
    let job_label = JobLabel::parse(&job.info.id)?;
    let subject = QosSubject { tenant: Some(job.info.tenant.clone()), job: Some(job_label), volume: None };
    Ok((subject, spec))
}

fn row_of(job: &Job, created_ms: u64) -> Result<QosRow> {
    let (subject, spec) = wanted(job)?;
    Ok(QosRow {
        tenant: subject.tenant,
        job: Some(job.info.id.clone()),
        volume: None,
        floor: pair(spec.floor),
        ceiling: pair(spec.ceiling),
        weight: spec.weight,
        is_interactive: spec.is_interactive,
        burst_ms: spec.burst_ms,
        export: None,
        request: Some(request_of(job)),
        created_ms,
    })
}

impl Promises {
    /// The policy about a job's work.
    pub fn of(&self, job: &Job) -> Result<Known> {
        let id = id_of(&wanted(job)?.0);
        Ok(match self.policies.iter().find(|policy| policy.id == id) {
            Some(policy) if policy.row.request.as_ref() == Some(&request_of(job)) => Known::Own,
            Some(policy) if !is_of_job(policy) => Known::Others(id),
            _ => Known::None,
        })
    }

    /// Policies of jobs that none of these is.
    pub fn left_over<'a>(
        &'a self,
        is_there: impl Fn(&str, &str) -> bool + 'a,
    ) -> impl Iterator<Item = &'a str> {
        let of_none = move |policy: &&Policy| {
            let (tenant, job) = (policy.row.tenant.as_deref(), policy.row.job.as_deref());
            is_of_job(policy) && !is_there(tenant.unwrap_or_default(), job.unwrap_or_default())
        };
        self.policies.iter().filter(of_none).map(|policy| policy.id.as_str())
    }

    fn fault(&self, floor: QosRate, id: &str, with_jobs: bool) -> Option<StoreError> {
        let counts = |policy: &&Policy| policy.id != id && (with_jobs || !is_of_job(policy));
        let others = self.policies.iter().filter(counts).map(|policy| rate_of(policy.row.floor));
        let capacity = capacity_of(&self.seen);
        let asked = can_promise(rate_of(pair(floor)), capacity, others, PROMISED_PERCENT_MAX);
        asked.err().map(|free: Rate| cannot(floor, free, self.silent))
    }

    /// Why a job cannot be promised what it wants; none if it can.
    pub fn lacks(&self, job: &Job) -> Result<Option<Lacks>> {
        let (subject, spec) = wanted(job)?;
        let id = id_of(&subject);
        if self.policies.len() >= QOS_POLICIES_MAX && !self.policies.iter().any(|policy| policy.id == id) {
            let why = format!("a cluster has at most {QOS_POLICIES_MAX} policies");
            return Ok(Some(Lacks { why, is_taken: false }));
        }
        if spec.floor.is_none() {
            return Ok(None);
        }
        let fault = self.fault(spec.floor, &id, true);
        let is_taken = self.fault(spec.floor, &id, false).is_none();
        Ok(fault.map(|fault| Lacks { why: fault.message, is_taken }))
    }
}

impl Core {
    /// What is promised now.
    pub(crate) async fn promises(&self) -> Result<Promises> {
        let (round, policies) = self.qos_rows().await?;
        let (seen, silent) = self.seen_by_all().await;
        Ok(Promises { round, policies, seen, silent })
    }

    /// What the drives of all nodes do in a second, as far as is known.
    pub(crate) async fn drives_bytes_per_s(&self) -> Option<u64> {
        capacity_of(&self.seen_by_all().await.0).bytes_per_s
    }

    /// Refuses bandwidth that could not be promised if no other job had any; says what somebody should know of it.
    pub(crate) async fn check_bandwidth(&self, job: &Job) -> Result<Option<String>> {
        let (subject, spec) = wanted(job)?;
        let id = id_of(&subject);
        check(&QosRequest { subject, spec, export: None, request: None, is_new: false })?;
        if spec.floor.is_none() {
            return Ok(None);
        }
        let promises = self.promises().await?;
        if told(capacity_of(&promises.seen)).is_none() {
            let note =
                "what the drives can do is not known yet; its floor is promised once they were seen busy";
            return Ok(Some(note.to_owned()));
        }
        promises.fault(spec.floor, &id, false).map_or(Ok(None), Err)
    }

    /// Promises a job what it wants, in one transaction with what its row becomes. False if somebody was quicker.
    pub(crate) async fn promise(
        &self,
        promises: &mut Promises,
        job: &Job,
        change: Commit,
    ) -> Result<Option<u64>> {
        let id = id_of(&wanted(job)?.0);
        let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        let row = row_of(job, now_ms)?;
        let change = change.put(keys::qos(&id), row.encode());
        let done = self.qos_commit_at(change, promises.round, now_ms).await?;
        if let Some(seq) = done {
            promises.round = Some(seq);
            promises.policies.retain(|policy| policy.id != id);
            promises.policies.push(Policy { id, row });
        }
        Ok(done)
    }

    /// Ends policies of jobs that are gone. False if somebody was quicker.
    pub(crate) async fn end_promises(
        &self,
        promises: &mut Promises,
        ids: &[String],
        change: Commit,
    ) -> Result<bool> {
        let change = ids.iter().fold(change, |change, id| change.delete(keys::qos(id)));
        let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        let done = self.qos_commit_at(change, promises.round, now_ms).await?;
        if let Some(seq) = done {
            promises.round = Some(seq);
            promises.policies.retain(|policy| !ids.contains(&policy.id));
        }
        Ok(done.is_some())
    }

    /// A change that also ends the policy of a job, if it has one of its own.
    pub(crate) async fn without_promise(&self, job: &Job, change: Commit) -> Result<Commit> {
        let key = keys::qos(&id_of(&wanted(job)?.0));
        let rows = self.catalog.get(&[keys::QOS_ROUND, &key]).await.map_err(error::catalog)?;
        let [Some(round), Some(row)] = rows.as_slice() else { return Ok(change) };
        if QosRow::of(row).map_err(error::catalog)?.request != Some(request_of(job)) {
            return Ok(change);
        }
        let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        let change = change.seq(keys::QOS_ROUND.to_vec(), round.seq).delete(key);
        Ok(change.put(keys::QOS_ROUND.to_vec(), now_ms.to_be_bytes().to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use stoker_store::{JobInfo, JobQos, JobSpec, JobState, JobStep};

    use super::*;

    fn job(tenant: &str, id: &str, floor: u64, at_ms: u64) -> Job {
        let qos = JobQos { floor_bytes_per_s: floor, ceiling_bytes_per_s: 0, interactive: true };
        let info = serde_json::json!({
            "tenant": tenant, "id": id, "name": "", "user": "", "project": null, "state": "queued", "reason": "", "steps": [],
            "spec": JobSpec { qos, ..JobSpec::default() }, "sources": [], "expected_start_ms": null, "ready_ms": null,
            "expires_ms": 0, "cell": null, "nodes": [], "checkpoints": null, "notes": [],
        });
        let mut info: JobInfo = serde_json::from_value(info).unwrap();
        info.steps.push(JobStep { state: JobState::Queued, at_ms, reason: String::new() });
        Job { info, end: None, again: None, said_ms: at_ms }
    }

    fn promises(of: &[&Job]) -> Promises {
        let policy = |job: &&Job| Policy { id: id_of(&wanted(job).unwrap().0), row: row_of(job, 1).unwrap() };
        let capacity = QosRate { bytes_per_s: Some(1_000), ops_per_s: None };
        let seen = vec![(NodeId([1; 16]), QosSeen { capacity, flows: Vec::new() })];
        Promises { round: Some(1), policies: of.iter().map(policy).collect(), seen, silent: 0 }
    }

    #[test]
    fn a_policy_is_of_one_job_of_one_tenant() {
        let (one, same, later) = (job("a", "train", 1, 5), job("b", "train", 1, 5), job("a", "train", 1, 6));
        let mut known = promises(&[&one]);
        assert_eq!(known.of(&one).unwrap(), Known::Own);
        assert_eq!(known.of(&same).unwrap(), Known::None, "another tenant has a job of this id");
        assert_eq!(known.of(&later).unwrap(), Known::None, "the policy is that of the job before");
        assert_eq!(known.left_over(|tenant, id| (tenant, id) == ("a", "train")).count(), 0);
        assert_eq!(known.left_over(|_, _| false).count(), 1);
        known.policies[0].row.request = None;
        assert!(matches!(known.of(&one).unwrap(), Known::Others(_)), "an operator made it");
        assert_eq!(known.left_over(|_, _| false).count(), 0, "which no job ends");
    }

    #[test]
    fn what_other_jobs_have_will_be_free() {
        let (one, other, large) = (job("a", "x", 600, 1), job("a", "y", 400, 1), job("a", "z", 901, 1));
        let known = promises(&[&one]);
        assert_eq!(known.lacks(&one).unwrap(), None, "its own counts for itself");
        let lacks = known.lacks(&other).unwrap().unwrap();
        assert!(lacks.is_taken && lacks.why.contains("300 bytes/s could be given"), "{lacks:?}");
        assert!(!known.lacks(&large).unwrap().unwrap().is_taken, "nobody's end gives that");
        assert_eq!(known.lacks(&job("a", "w", 0, 1)).unwrap(), None);
    }
}
