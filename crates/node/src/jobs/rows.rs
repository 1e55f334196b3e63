//! Rows of jobs.

use stoker_catalog::Row;
use stoker_catalog::kv::{Commit, Outcome};
use stoker_jobs::Job;
use stoker_schema::lead::Term;
use stoker_schema::rows::{JobRow, RowValue, keys};
use stoker_store::{ErrorKind, JobName, Result, StoreError, TENANT_DEFAULT};

use crate::core::Core;
use crate::error;

/// Longest document; a row has a little more room.
const DOCUMENT_BYTES_MAX: usize = 60 << 10;

/// A job, and the commit that wrote it last.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub job: Job,
    pub seq: u64,
}

impl Known {
    pub fn of(row: &Row) -> Result<Known> {
        let document = JobRow::of(row).map_err(error::catalog)?.document;
        let job = serde_json::from_slice(&document).map_err(|fault| {
            let message = format!("a job cannot be read; a newer release may have written it: {fault}");
            StoreError::new(ErrorKind::Corrupt, message)
        })?;
        Ok(Known { job, seq: row.seq })
    }

    pub fn is_active(&self) -> bool {
        !self.job.info.state.is_over()
    }
}

pub(super) fn tenant_of(name: &JobName) -> &str {
    name.tenant.as_deref().unwrap_or(TENANT_DEFAULT)
}

pub(super) fn encode(job: &Job) -> Result<Vec<u8>> {
    let document = serde_json::to_vec(job).expect("plain data encodes");
    if document.len() > DOCUMENT_BYTES_MAX {
        let message =
            format!("the job is too large: {} bytes, and at most {DOCUMENT_BYTES_MAX}", document.len());
        return Err(StoreError::new(ErrorKind::Invalid, message));
    }
    Ok(JobRow { document }.encode())
}

impl Core {
    /// A job; one that is over as long as it is remembered.
    pub(super) async fn job_known(&self, name: &JobName) -> Result<Option<Known>> {
        stoker_store::check_job_id(&name.id)?;
        let tenant = tenant_of(name);
        let keys = [keys::job_active(tenant, &name.id), keys::job_over(tenant, &name.id)];
        let rows = self.catalog.get(&[&keys[0], &keys[1]]).await.map_err(error::catalog)?;
        rows.iter().flatten().next().map(Known::of).transpose()
    }

    /// Writes a job that was changed, if nobody else changed it since it was read; gives the commit then.
    /// With a term, only if that node still leads. The policy of a job that needs its data no more ends with it.
    pub(super) async fn job_write(&self, known: &mut Known, term: Option<&Term>) -> Result<Option<u64>> {
        let info = &known.job.info;
        let (active, over) =
            (keys::job_active(&info.tenant, &info.id), keys::job_over(&info.tenant, &info.id));
        let mut commit = Commit::new().seq(active.clone(), known.seq);
        if let Some(term) = term {
            commit = commit.check(term.check());
        }
        let ends_promise = info.qos_enforced && !known.job.holds_data();
        let mut job = known.job.clone();
        if ends_promise {
            commit = self.without_promise(&job, commit).await?;
            job.info.qos_enforced = false;
        }
        let value = encode(&job)?;
        let commit = match known.is_active() {
            true => commit.put(active, value),
            false => commit.delete(active).put(over, value),
        };
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                known.job = job;
                if ends_promise && let Err(fault) = self.qos_reload().await {
                    tracing::debug!("policies are looked up later: {fault}");
                }
                Ok(Some(seq))
            }
            Outcome::Failed { .. } => Ok(None),
        }
    }
}
