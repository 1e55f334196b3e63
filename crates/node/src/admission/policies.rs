//! Policies: rows of the catalog, one for each set of work that something was promised or allowed to. (D231)
//!
//! A floor is held against what the drives of all nodes that answer were seen to do, less what was promised before. Every change goes through one
//! row ([`keys::QOS_ROUND`]), so that two which come at the same time cannot promise the same twice.

use stoker_catalog::kv::{Check, Commit, Outcome};
use stoker_qos::{Rate, can_promise, left};
use stoker_schema::rows::{QosRow, RowValue, keys};
use stoker_store::{
    ErrorKind, JobLabel, QOS_POLICIES_MAX, QOS_REQUEST_LEN_MAX, QosInfo, QosRate, QosReport, QosRequest,
    QosSpec, QosSubject, Result, StoreError, Subject,
};

use super::of_jobs::OF_JOBS;
use super::share::PROMISED_PERCENT_MAX;
use crate::core::Core;
use crate::error;

/// Tries of a transaction that others were quicker with.
const TRIES_MAX: usize = 16;

/// A policy as it is known here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    pub id: String,
    pub row: QosRow,
}

fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Invalid, message)
}

pub(super) fn pair(rate: QosRate) -> (Option<u64>, Option<u64>) {
    (rate.bytes_per_s, rate.ops_per_s)
}

fn of_pair((bytes_per_s, ops_per_s): (Option<u64>, Option<u64>)) -> QosRate {
    QosRate { bytes_per_s, ops_per_s }
}

/// A rate as schedulers have it.
pub(crate) fn rate_of((bytes_per_s, ops_per_s): (Option<u64>, Option<u64>)) -> Rate {
    Rate { bytes_per_s, ops_per_s }
}

pub(crate) fn told(rate: Rate) -> QosRate {
    QosRate { bytes_per_s: rate.bytes_per_s, ops_per_s: rate.ops_per_s }
}

fn subject_of(row: &QosRow) -> QosSubject {
    QosSubject {
        tenant: row.tenant.clone(),
        job: row.job.as_deref().and_then(|job| JobLabel::parse(job).ok()),
        volume: row.volume.clone(),
    }
}

/// The id of a policy: that of the work that it is about, so that there is one of it.
pub(super) fn id_of(subject: &QosSubject) -> String {
    format!("{:016x}", super::work::id_of(&format!("qos {subject}")))
}

impl Policy {
    pub fn subject(&self) -> QosSubject {
        subject_of(&self.row)
    }

    pub fn spec(&self) -> QosSpec {
        let QosRow { floor, ceiling, weight, is_interactive, burst_ms, .. } = self.row;
        QosSpec { floor: of_pair(floor), ceiling: of_pair(ceiling), weight, is_interactive, burst_ms }
    }

    fn info(&self) -> QosInfo {
        QosInfo {
            id: self.id.clone(),
            subject: self.subject(),
            spec: self.spec(),
            export: self.row.export.clone(),
            created_ms: self.row.created_ms,
            given: QosRate::default(),
            used: QosRate::default(),
            waiting: 0,
        }
    }
}

/// Refuses what no scheduler would take, with the same words wherever it is asked.
pub(super) fn check(request: &QosRequest) -> Result<()> {
    request.subject.check()?;
    let QosSpec { floor, ceiling, weight, burst_ms, .. } = request.spec;
    let spec = stoker_qos::Spec {
        floor: rate_of(pair(floor)),
        ceiling: rate_of(pair(ceiling)),
        weight,
        burst_ns: u64::from(burst_ms) * 1_000_000,
        ..Default::default()
    };
    spec.check().map_err(invalid)?;
    if let Some(prefix) = &request.export {
        if request.subject.volume.is_none() {
            return Err(invalid("an export is of a volume: name it"));
        }
        if prefix.len() > stoker_store::KEY_LEN_MAX {
            return Err(invalid("the prefix of an export is longer than any key"));
        }
        // Drives know whose work it is and on which volume, not which of its files.
        if !prefix.is_empty() && request.subject.job.is_none() && request.subject.tenant.is_none() {
            return Err(invalid("an export of a part of a volume is for a job or a tenant: name one"));
        }
    }
    match &request.request {
        Some(key) if key.is_empty() || key.len() > QOS_REQUEST_LEN_MAX => {
            Err(invalid(format!("a request is known by 1 to {QOS_REQUEST_LEN_MAX} bytes")))
        }
        Some(key) if key.starts_with(OF_JOBS) => {
            Err(invalid(format!("requests that begin with `{OF_JOBS}` are those of jobs")))
        }
        _ => Ok(()),
    }
}

/// Why a floor is refused, and what could be given.
pub(super) fn cannot(floor: QosRate, free: Rate, silent: u32) -> StoreError {
    let rate = |rate: &QosRate| {
        let bytes = rate.bytes_per_s.map(|bytes| format!("{bytes} bytes/s"));
        let ops = rate.ops_per_s.map(|ops| format!("{ops} operations/s"));
        let all: Vec<String> = [bytes, ops].into_iter().flatten().collect();
        all.join(" and ")
    };
    let silent = match silent {
        0 => String::new(),
        1 => "; one node does not say what it can do".to_owned(),
        silent => format!("; {silent} nodes do not say what they can do"),
    };
    let could = match told(free) {
        free if free.is_none() => {
            "what the drives can do is not known yet, because nobody saw them busy: read or write for some seconds, and ask again"
                .to_owned()
        }
        free => format!("{} could be given", rate(&free)),
    };
    StoreError::new(
        ErrorKind::Full,
        format!("the floor of {} cannot be promised: {could}{silent}", rate(&floor)),
    )
}

impl Core {
    /// Promises and allows something to somebody's work; if there is a policy about it already it is changed.
    pub async fn qos_set(&self, request: QosRequest) -> Result<QosInfo> {
        check(&request)?;
        if let Some(volume) = &request.subject.volume {
            self.volumes.get(volume).await?;
        }
        let id = id_of(&request.subject);
        for _ in 0..TRIES_MAX {
            let (round, policies) = self.qos_rows().await?;
            let same = policies.iter().find(|policy| policy.id == id);
            // What came twice is answered as it was the first time.
            if let (Some(key), Some(by)) =
                (&request.request, policies.iter().find(|one| one.row.request == request.request))
            {
                if by.id == id && by.spec() == request.spec && by.row.export == request.export {
                    return Ok(by.info());
                }
                let message = format!("the request `{key}` asked for something else before");
                return Err(StoreError::new(ErrorKind::Conflict, message));
            }
            if let Some(same) = same.filter(|_| request.is_new) {
                let message = format!("there is a policy about {} already: {}", request.subject, same.id);
                return Err(StoreError::new(ErrorKind::Conflict, message));
            }
            if same.is_none() && policies.len() >= QOS_POLICIES_MAX {
                let message = format!("a cluster has at most {QOS_POLICIES_MAX} policies; remove some first");
                return Err(StoreError::new(ErrorKind::Full, message));
            }
            let spec = request.spec;
            if !spec.floor.is_none() {
                let (seen, silent) = self.seen_by_all().await;
                let others =
                    policies.iter().filter(|policy| policy.id != id).map(|one| rate_of(one.row.floor));
                can_promise(
                    rate_of(pair(spec.floor)),
                    super::share::capacity_of(&seen),
                    others,
                    PROMISED_PERCENT_MAX,
                )
                .map_err(|free| cannot(spec.floor, free, silent))?;
            }
            let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
            let row = QosRow {
                tenant: request.subject.tenant.clone(),
                job: request.subject.job.as_ref().map(|job| job.as_str().to_owned()),
                volume: request.subject.volume.clone(),
                floor: pair(spec.floor),
                ceiling: pair(spec.ceiling),
                weight: spec.weight,
                is_interactive: spec.is_interactive,
                burst_ms: spec.burst_ms,
                export: request.export.clone().or_else(|| same?.row.export.clone()),
                request: request.request.clone().or_else(|| same?.row.request.clone()),
                created_ms: same.map_or(now_ms, |same| same.row.created_ms),
            };
            let change = Commit::new().put(keys::qos(&id), row.encode());
            if self.qos_commit(change, round, now_ms).await? {
                self.qos_reload().await?;
                return Ok(Policy { id, row }.info());
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "policies are contended; try again"))
    }

    /// Ends a policy.
    pub async fn qos_unset(&self, id: &str) -> Result<()> {
        for _ in 0..TRIES_MAX {
            let (round, policies) = self.qos_rows().await?;
            if !policies.iter().any(|policy| policy.id == id) {
                let message = format!("there is no policy `{id}`; `stoker qos ls` shows them");
                return Err(StoreError::about(ErrorKind::NotFound, Subject::Key, message));
            }
            let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
            if self.qos_commit(Commit::new().delete(keys::qos(id)), round, now_ms).await? {
                return self.qos_reload().await;
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "policies are contended; try again"))
    }

    /// All policies, and how they fare.
    pub async fn qos_report(&self) -> Result<QosReport> {
        let (_, policies) = self.qos_rows().await?;
        let (seen, silent) = self.seen_by_all().await;
        let capacity = super::share::capacity_of(&seen);
        let free =
            left(capacity, policies.iter().map(|policy| rate_of(policy.row.floor)), PROMISED_PERCENT_MAX);
        let infos = policies.iter().map(|policy| {
            let flows = seen.iter().flat_map(|(_, seen)| &seen.flows).filter(|flow| flow.id == policy.id);
            flows.fold(policy.info(), |mut info, flow| {
                info.given = super::share::sum(info.given, flow.given);
                info.used = super::share::sum(info.used, flow.used);
                info.waiting += flow.waiting;
                info
            })
        });
        Ok(QosReport { policies: infos.collect(), capacity: told(capacity), free: told(free), silent })
    }

    /// Every policy, and the commit at which they were so; none if nobody ever made one.
    pub(super) async fn qos_rows(&self) -> Result<(Option<u64>, Vec<Policy>)> {
        let round = self.catalog.get(&[keys::QOS_ROUND]).await.map_err(error::catalog)?.pop().flatten();
        let mut policies = Vec::new();
        self.each(keys::QOS.to_vec(), |row| {
            if let Some(id) = keys::qos_id(&row.key) {
                policies.push(Policy { id, row: QosRow::of(row).map_err(error::catalog)? });
            }
            Ok(())
        })
        .await?;
        Ok((round.map(|row| row.seq), policies))
    }

    /// True if the change was made, false if somebody was quicker.
    async fn qos_commit(&self, change: Commit, round: Option<u64>, now_ms: u64) -> Result<bool> {
        Ok(self.qos_commit_at(change, round, now_ms).await?.is_some())
    }

    /// The commit that made the change; none if somebody was quicker.
    pub(super) async fn qos_commit_at(
        &self,
        change: Commit,
        round: Option<u64>,
        now_ms: u64,
    ) -> Result<Option<u64>> {
        let key = keys::QOS_ROUND.to_vec();
        let check = match round {
            Some(seq) => Check::Seq(key.clone(), seq),
            None => Check::Absent(key.clone()),
        };
        let change = change.check(check).put(key, now_ms.to_be_bytes().to_vec());
        match self.catalog.commit(change).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                Ok(Some(seq))
            }
            Outcome::Failed { .. } => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked_before_anybody_is_asked() {
        let job =
            |name: &str| QosSubject { job: Some(JobLabel::parse(name).unwrap()), ..QosSubject::default() };
        let request = |subject: QosSubject, spec: QosSpec| QosRequest {
            subject,
            spec,
            export: None,
            request: None,
            is_new: false,
        };
        let bytes = |rate: u64| QosRate { bytes_per_s: Some(rate), ops_per_s: None };
        assert!(check(&request(job("a"), QosSpec { floor: bytes(5), ..QosSpec::default() })).is_ok());
        for bad in [
            request(QosSubject::default(), QosSpec::default()),
            request(job("a"), QosSpec { floor: bytes(0), ..QosSpec::default() }),
            request(job("a"), QosSpec { floor: bytes(5), ceiling: bytes(4), ..QosSpec::default() }),
            request(job("a"), QosSpec { weight: 0, ..QosSpec::default() }),
            request(job("a"), QosSpec { burst_ms: u32::MAX, ..QosSpec::default() }),
            QosRequest { export: Some("p/".into()), ..request(job("a"), QosSpec::default()) },
            QosRequest { request: Some(String::new()), ..request(job("a"), QosSpec::default()) },
            QosRequest { request: Some("job@5".into()), ..request(job("a"), QosSpec::default()) },
            QosRequest {
                export: Some("p/".into()),
                ..request(
                    QosSubject { volume: Some("v".into()), ..QosSubject::default() },
                    QosSpec::default(),
                )
            },
        ] {
            assert_eq!(check(&bad).unwrap_err().kind, ErrorKind::Invalid, "{bad:?}");
        }
        assert_eq!(id_of(&job("a")), id_of(&job("a")));
        assert_ne!(id_of(&job("a")), id_of(&job("b")));
    }

    #[test]
    fn a_refusal_says_what_could_be_given() {
        let floor = QosRate { bytes_per_s: Some(9), ops_per_s: None };
        let fault = cannot(floor, Rate { bytes_per_s: Some(5), ops_per_s: Some(2) }, 1);
        assert_eq!(fault.kind, ErrorKind::Full);
        assert_eq!(
            fault.message,
            "the floor of 9 bytes/s cannot be promised: 5 bytes/s and 2 operations/s could be given; one node does not say what it \
             can do"
        );
        assert!(cannot(floor, Rate::default(), 0).message.contains("not known yet"));
    }
}
