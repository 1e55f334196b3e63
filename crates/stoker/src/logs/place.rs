//! Where logs are: below the output of a job, or where somebody says.

use stoker_client::Client;
use stoker_jobs::Place;
use stoker_logs::LogPlace;
use stoker_store::{ErrorKind, JobInfo, JobName, JobOrder, Result, Store, StoreError};

use crate::address::Address;

/// A job, or a directory.
#[derive(Clone)]
pub enum Whose {
    /// Below the output of this job.
    Job(JobName),
    /// Below this directory.
    Directory(Address),
}

impl Whose {
    /// What was said: a directory counts before a job.
    pub fn of(job: Option<&JobName>, directory: Option<&Address>) -> Option<Whose> {
        let job = job.map(|job| Whose::Job(job.clone()));
        directory.map(|directory| Whose::Directory(directory.clone())).or(job)
    }

    /// The job, if it is one.
    pub fn job(&self) -> Option<&JobName> {
        match self {
            Whose::Job(job) => Some(job),
            Whose::Directory(_) => None,
        }
    }

    /// Where its logs are.
    pub async fn find(&self, client: &Client) -> Result<LogPlace> {
        let job = match self {
            Whose::Directory(address) => return Ok(LogPlace::new(&address.volume, &address.path)),
            Whose::Job(job) => ask(client, job).await?,
        };
        let Some(output) = &job.spec.output else {
            let message = format!(
                "job {} has no output, where its logs would be; give it one (`data.output`), or name a directory",
                job.id
            );
            return Err(StoreError::new(ErrorKind::Invalid, message));
        };
        let place = Place::parse(output).map_err(|why| StoreError::new(ErrorKind::Invalid, why))?;
        Ok(LogPlace::new(place.volume, &place.path))
    }
}

/// The job as it is now.
pub async fn ask(client: &Client, job: &JobName) -> Result<JobInfo> {
    client.job(JobOrder::Show(job.clone())).await?.job()
}

/// Reads the name of a job.
pub fn parse_job(text: &str) -> std::result::Result<JobName, String> {
    JobName::parse(text).map_err(|fault| fault.message)
}
