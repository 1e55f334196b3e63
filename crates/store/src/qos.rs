//! Policies of admission: what a tenant, a job or a volume is promised and allowed on drives, wires and lakes. (R16)

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, Result, StoreError};
use crate::who::{JobLabel, check_who_name};

/// Policies that a cluster has at most: each is a flow that every drive tells apart, and a line of numbers.
pub const QOS_POLICIES_MAX: usize = 256;

/// Longest key by which a request is known when it comes again.
pub const QOS_REQUEST_LEN_MAX: usize = 128;

/// Whose work a policy is about: all that is given has to fit, and something is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct QosSubject {
    /// A tenant.
    pub tenant: Option<String>,
    /// A job.
    pub job: Option<JobLabel>,
    /// A volume, by its full name.
    pub volume: Option<String>,
}

impl QosSubject {
    /// Refuses what nothing could fit.
    pub fn check(&self) -> Result<()> {
        let invalid = |message: &str| Err(StoreError::new(ErrorKind::Invalid, message));
        if self.tenant.is_none() && self.job.is_none() && self.volume.is_none() {
            return invalid("a policy is about a tenant, a job or a volume: name at least one of them");
        }
        if let Some(tenant) = &self.tenant {
            check_who_name("tenant", tenant)?;
        }
        Ok(())
    }
}

impl fmt::Display for QosSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenant = self.tenant.as_ref().map(|name| format!("tenant:{name}"));
        let job = self.job.as_ref().map(|name| format!("job:{name}"));
        let volume = self.volume.as_ref().map(|name| format!("volume:{name}"));
        let all: Vec<String> = [tenant, job, volume].into_iter().flatten().collect();
        f.write_str(&all.join(" "))
    }
}

/// Bytes and operations per second, each where it is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QosRate {
    /// Bytes per second.
    pub bytes_per_s: Option<u64>,
    /// Operations per second.
    pub ops_per_s: Option<u64>,
}

impl QosRate {
    /// Whether nothing is given.
    pub fn is_none(&self) -> bool {
        *self == QosRate::default()
    }
}

/// What is promised and allowed, over all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QosSpec {
    /// It gets at least this of the drives while it asks for it.
    pub floor: QosRate,
    /// Its clients read and write no more than this.
    pub ceiling: QosRate,
    /// Its share of what is left: 1 to 10000; others have 100.
    pub weight: u32,
    /// Somebody waits for each answer: it goes first, within its share.
    pub is_interactive: bool,
    /// For how long one that paused may go faster than its ceiling, milliseconds.
    pub burst_ms: u32,
}

impl Default for QosSpec {
    fn default() -> QosSpec {
        QosSpec {
            floor: QosRate::default(),
            ceiling: QosRate::default(),
            weight: 100,
            is_interactive: false,
            burst_ms: 50,
        }
    }
}

/// What somebody wants for somebody's work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QosRequest {
    /// Whose.
    pub subject: QosSubject,
    /// What.
    pub spec: QosSpec,
    /// What of the volume is handed out with it, if it is an export: a prefix, empty for all.
    pub export: Option<String>,
    /// By which it is known when it comes again; then the answer is that of the first time.
    pub request: Option<String>,
    /// Refused if there is a policy about the same work already.
    pub is_new: bool,
}

/// A policy, and how it fares.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QosInfo {
    /// Its id.
    pub id: String,
    /// Whose work it is about.
    pub subject: QosSubject,
    /// What is promised and allowed.
    pub spec: QosSpec,
    /// What of the volume is handed out with it, if it is an export.
    pub export: Option<String>,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
    /// Of its floor so much is promised by the drives of the nodes that answer.
    pub given: QosRate,
    /// What it used of drives lately, on the nodes that answer.
    pub used: QosRate,
    /// Operations of it that wait now.
    pub waiting: u64,
}

/// All policies, and what could still be promised.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QosReport {
    /// Every policy.
    pub policies: Vec<QosInfo>,
    /// What the drives of all nodes that answer were seen to do; nothing where nobody saw them do much.
    pub capacity: QosRate,
    /// What could be promised now.
    pub free: QosRate,
    /// Nodes that did not say what they can do.
    pub silent: u32,
}

/// What a node sees of admission, for the node that divides promises.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QosSeen {
    /// What its drives were seen to do.
    pub capacity: QosRate,
    /// By policy.
    pub flows: Vec<QosFlow>,
}

/// What a node sees of a policy.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QosFlow {
    /// Id of the policy.
    pub id: String,
    /// What was asked of its drives lately.
    pub asked: QosRate,
    /// What they did for it lately.
    pub used: QosRate,
    /// What clients asked of the node lately, against a ceiling.
    pub wanted: QosRate,
    /// What its drives promise.
    pub given: QosRate,
    /// Operations that wait.
    pub waiting: u64,
}

/// The part of a policy that is a node's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QosShare {
    /// Id of the policy.
    pub id: String,
    /// Of the floor.
    pub floor: QosRate,
    /// Of the ceiling.
    pub ceiling: QosRate,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_says_whose_work_it_is() {
        let subject = QosSubject {
            tenant: Some("acme".into()),
            job: Some(JobLabel::parse("train-7").unwrap()),
            volume: None,
        };
        assert_eq!(subject.to_string(), "tenant:acme job:train-7");
        assert!(subject.check().is_ok());
        assert_eq!(QosSubject::default().check().unwrap_err().kind, ErrorKind::Invalid);
        let bad = QosSubject { tenant: Some("A b".into()), ..QosSubject::default() };
        assert_eq!(bad.check().unwrap_err().kind, ErrorKind::Invalid);
    }
}
