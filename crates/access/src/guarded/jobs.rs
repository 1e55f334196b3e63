//! Jobs: what a job may read and write is decided when it is submitted, place by place, for whoever it is of. Others' jobs are as if they
//! were not there: those of other tenants for everybody, and those of other users for whoever sees a part of a tenant.

use stoker_jobs::{Place, Values, check_spec, expand};
use stoker_store::{
    Context, ErrorKind, JobAccess, JobInfo, JobName, JobOrder, JobReport, JobSubmit, Principal, Result,
    StoreError, TENANT_DEFAULT, TENANT_MARK, UserName,
};

use super::{Decided, Who, full_of};
use crate::action::Action;
use crate::decide::{Member, Reason, Resource, Rights};
use crate::members::KeyRights;

fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Invalid, message)
}

/// The same as for a job that nobody has.
fn no_job(name: &JobName) -> StoreError {
    StoreError::new(ErrorKind::NotFound, format!("there is no job `{}`; `stoker job ls` lists them", name.id))
}

impl Decided {
    pub(super) async fn job_decided(&self, order: JobOrder) -> Result<JobReport> {
        let rights = self.rights().await?;
        let action = if order.only_reads() { Action::JobLook } else { Action::JobChange };
        self.judge(&rights, action, Resource::Cluster)?;
        match order {
            JobOrder::Submit(submit) => self.submit_job(&rights, *submit).await,
            order => match &*rights {
                Rights::Member(member) => self.job_of_member(member, order).await,
                Rights::Operator | Rights::Viewer | Rights::Nobody => self.shared.store.job(order).await,
            },
        }
    }

    /// The user whose jobs these are; empty for whoever runs the cluster.
    fn job_user(&self) -> String {
        match &self.context.principal {
            Principal::User(name) => name.user.clone(),
            Principal::Key(key) => key.clone(),
            Principal::Uid(uid) => format!("uid-{uid}"),
            _ => String::new(),
        }
    }

    async fn submit_job(&self, rights: &Rights, submit: JobSubmit) -> Result<JobReport> {
        if let Some(owner) = submit.owner.clone() {
            let is_own = matches!(&self.context.principal, Principal::User(name) if *name == owner);
            if !is_own && *rights != Rights::Operator {
                return Err(Reason::Operators.fault());
            }
            if !is_own {
                // Decided as if the owner asked, by what the owner may do.
                let context = Context { principal: Principal::User(owner.clone()), ..self.context.clone() };
                let who = Who::user(owner.clone(), KeyRights::default());
                let theirs = Decided::new(self.shared.clone(), context, who);
                let rights = theirs.rights().await?;
                if *rights == Rights::Nobody {
                    let message = format!(
                        "there is no user `{owner}` who may do something; `stoker user list` lists them"
                    );
                    return Err(StoreError::new(ErrorKind::NotFound, message));
                }
                theirs.judge(&rights, Action::JobChange, Resource::Cluster)?;
                return theirs.submit_own(&rights, submit).await;
            }
        }
        self.submit_own(rights, submit).await
    }

    async fn submit_own(&self, rights: &Rights, mut submit: JobSubmit) -> Result<JobReport> {
        stoker_store::check_job_id(&submit.id)?;
        let owner = match rights {
            Rights::Member(member) => Some(UserName { tenant: member.tenant.clone(), user: self.job_user() }),
            _ => None,
        };
        let values = Values {
            user: owner
                .as_ref()
                .map_or_else(|| submit.user.clone().unwrap_or_default(), |owner| owner.user.clone()),
            tenant: owner.as_ref().map_or(TENANT_DEFAULT, |owner| &owner.tenant).to_owned(),
            project: submit.project.clone(),
            allocation_id: submit.id.clone(),
        };
        let (mut spec, notes) = expand(&submit.spec, &values).map_err(invalid)?;
        check_spec(&spec).map_err(invalid)?;
        submit.notes.extend(notes);
        let mut mounts = Vec::with_capacity(spec.mounts.len());
        for mut mount in std::mem::take(&mut spec.mounts) {
            match self.job_place(rights, &mount.source, mount.access == JobAccess::ReadWrite).await {
                Ok(source) => {
                    mount.source = source;
                    mounts.push(mount);
                }
                Err(fault) if mount.is_default && fault.kind == ErrorKind::Denied => {
                    submit.notes.push(format!("{} is not mounted: {}", mount.target, fault.message));
                }
                Err(fault) => return Err(fault),
            }
        }
        spec.mounts = mounts;
        if let Some(output) = spec.output.take() {
            match self.job_place(rights, &output, true).await {
                Ok(output) => spec.output = Some(output),
                Err(fault) if spec.output_is_default && fault.kind == ErrorKind::Denied => {
                    submit.notes.push(format!("there is no output directory: {}", fault.message));
                }
                Err(fault) => return Err(fault),
            }
        }
        (submit.spec, submit.owner) = (spec, owner);
        let asked = self.on_behalf(self.shared.store.job(JobOrder::Submit(Box::new(submit)))).await;
        match rights {
            Rights::Member(member) => told(asked, member),
            _ => asked,
        }
    }

    /// A place with the full name of its volume, if a job of whoever asks may use it.
    async fn job_place(&self, rights: &Rights, source: &str, writes: bool) -> Result<String> {
        let place = Place::parse(source).map_err(invalid)?;
        let full = full_of(rights, &place.volume);
        self.know(rights, &full).await?;
        self.judge(rights, Action::Stage, Resource::Key(&full, place.path.as_bytes()))?;
        if writes {
            let directory = place.directory();
            self.judge(rights, Action::Create, Resource::Key(&full, directory.as_bytes()))?;
        }
        Ok(place.in_volume(&full))
    }

    async fn job_of_member(&self, member: &Member, mut order: JobOrder) -> Result<JobReport> {
        let own = (member.is_limited()).then(|| self.job_user());
        if let JobOrder::List { tenant, after, .. } = &mut order {
            if tenant.as_ref().is_some_and(|tenant| *tenant != member.tenant) {
                return Ok(JobReport::Jobs { jobs: Vec::new(), more: false });
            }
            *tenant = Some(member.tenant.clone());
            if let Some(after) = after {
                after.tenant = Some(member.tenant.clone());
            }
            let mut report = told(self.shared.store.job(order).await, member)?;
            if let (JobReport::Jobs { jobs, .. }, Some(own)) = (&mut report, own) {
                jobs.retain(|job| job.user == own);
            }
            return Ok(report);
        }
        let name = order.job_mut().ok_or_else(|| invalid("an order about no job"))?;
        if name.tenant.as_ref().is_some_and(|tenant| *tenant != member.tenant) {
            return Err(no_job(name));
        }
        name.tenant = Some(member.tenant.clone());
        let name = name.clone();
        if let Some(own) = own {
            let job = self.shared.store.job(JobOrder::Show(name.clone())).await?.job()?;
            if job.user != own {
                return Err(no_job(&name));
            }
        }
        told(self.on_behalf(self.shared.store.job(order)).await, member)
    }
}

/// The report with the names that volumes have in the tenant.
fn told(asked: Result<JobReport>, member: &Member) -> Result<JobReport> {
    if member.tenant == TENANT_DEFAULT {
        return asked;
    }
    let mark = format!("{}{TENANT_MARK}", member.tenant);
    let own = |text: &mut String| *text = text.replace(&mark, "");
    match asked {
        Ok(mut report) => {
            match &mut report {
                JobReport::Job(job) => rename(job, &own),
                JobReport::Jobs { jobs, .. } => jobs.iter_mut().for_each(|job| rename(job, &own)),
                JobReport::Readiness(_) | JobReport::Window(_) => {}
            }
            Ok(report)
        }
        Err(mut fault) => {
            own(&mut fault.message);
            Err(fault)
        }
    }
}

fn rename(job: &mut JobInfo, own: &impl Fn(&mut String)) {
    own(&mut job.reason);
    job.steps.iter_mut().for_each(|step| own(&mut step.reason));
    job.spec.mounts.iter_mut().for_each(|mount| own(&mut mount.source));
    job.spec.output.iter_mut().chain(&mut job.checkpoints).for_each(own);
    for source in &mut job.sources {
        own(&mut source.source);
        source.trouble.iter_mut().for_each(own);
    }
    job.notes.iter_mut().for_each(own);
}
