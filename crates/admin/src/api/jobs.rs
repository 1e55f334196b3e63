//! Calls about jobs, for schedulers: submit, look, start, end.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use stoker_jobs::read_spec;
use stoker_store::{
    JobEnd, JobInfo, JobName, JobOrder, JobReport, JobState, JobSubmit, JobWindowAsk, UserName, check_job_id,
};

use super::given::Given;
use super::{Answered, Fault, confused, store};
use crate::answer::Asked;

/// The header by which a submission that is sent twice is one.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Submit {
    id: Option<String>,
    #[serde(default)]
    spec: Value,
    name: Option<String>,
    project: Option<String>,
    owner: Option<String>,
    user: Option<String>,
    expected_start_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    #[serde(default)]
    nodes: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    #[serde(default)]
    failed: bool,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    start_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    in_ms: u64,
    wait_ms_max: Option<u64>,
    #[serde(default)]
    done: bool,
}

fn job_name(given: &Given) -> Result<JobName, Fault> {
    Ok(JobName::parse(given.text("job"))?)
}

async fn ask(asked: &Asked, order: JobOrder) -> Answered {
    Ok(shape(&store(asked)?.job(order).await?.job()?).into())
}

fn shape(job: &JobInfo) -> Value {
    let mut value = super::shape::plain(job);
    let (bytes, resident) = job.bytes();
    value["readiness"] = json!(job.readiness());
    value["bytes"] = bytes.into();
    value["resident_bytes"] = resident.into();
    value
}

/// A spec as text, YAML or JSON, or as an object.
fn spec_text(spec: &Value) -> Result<String, Fault> {
    match spec {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Object(_) => Ok(spec.to_string()),
        _ => Err(Fault::invalid("`spec` is a text, YAML or JSON, or an object")),
    }
}

pub async fn submit(asked: Arc<Asked>, given: Given) -> Answered {
    let body: Submit = given.body()?;
    let again = given.idempotency_key();
    let id = match (body.id, again) {
        (Some(id), _) => id,
        (None, Some(again)) if check_job_id(again).is_ok() => again.to_owned(),
        (None, _) => {
            let why = "a job needs `id`, or the header `Idempotency-Key` with what can be one";
            return Err(Fault::invalid(why));
        }
    };
    let read =
        read_spec(&spec_text(&body.spec)?).map_err(|fault| Fault::invalid(format!("`spec`: {fault}")))?;
    let submit = JobSubmit {
        id,
        name: body.name.or(read.name).unwrap_or_default(),
        project: body.project.or(read.project),
        owner: body.owner.as_deref().map(UserName::parse).transpose()?,
        user: body.user,
        expected_start_ms: body.expected_start_ms,
        notes: Vec::new(),
        again: again.map(str::to_owned),
        spec: read.spec,
    };
    ask(&asked, JobOrder::Submit(Box::new(submit))).await
}

pub async fn all(asked: Arc<Asked>, given: Given) -> Answered {
    let state = match given.some_text("state") {
        None => None,
        Some(word) => match JobState::ALL.into_iter().find(|state| state.word() == word) {
            Some(state) => Some(state),
            None => return Err(Fault::invalid(format!("`{word}` is no state of a job"))),
        },
    };
    let order = JobOrder::List {
        tenant: given.some_text("tenant").map(str::to_owned),
        state,
        with_over: given.flag("all"),
        after: given.some_text("after").map(JobName::parse).transpose()?,
        limit: given.number("limit").unwrap_or(100) as usize,
    };
    match store(&asked)?.job(order).await? {
        JobReport::Jobs { jobs, more } => {
            Ok(json!({ "jobs": jobs.iter().map(shape).collect::<Vec<_>>(), "more": more }).into())
        }
        _ => Err(confused()),
    }
}

pub async fn one(asked: Arc<Asked>, given: Given) -> Answered {
    ask(&asked, JobOrder::Show(job_name(&given)?)).await
}

pub async fn readiness(asked: Arc<Asked>, given: Given) -> Answered {
    let nodes = given.text("nodes").split(',').filter(|node| !node.is_empty()).map(str::to_owned).collect();
    match store(&asked)?.job(JobOrder::Readiness { job: job_name(&given)?, nodes }).await? {
        JobReport::Readiness(found) => Ok(super::shape::plain(&found).into()),
        _ => Err(confused()),
    }
}

pub async fn start(asked: Arc<Asked>, given: Given) -> Answered {
    let Start { nodes } = given.body()?;
    ask(&asked, JobOrder::Start { job: job_name(&given)?, nodes }).await
}

pub async fn end(asked: Arc<Asked>, given: Given) -> Answered {
    let End { failed, reason } = given.body()?;
    let end = if failed { JobEnd::Failed } else { JobEnd::Done };
    ask(&asked, JobOrder::End { job: job_name(&given)?, end, reason }).await
}

pub async fn cancel(asked: Arc<Asked>, given: Given) -> Answered {
    let Reason { reason } = given.body()?;
    ask(&asked, JobOrder::Cancel { job: job_name(&given)?, reason }).await
}

pub async fn expect(asked: Arc<Asked>, given: Given) -> Answered {
    let Expect { start_ms } = given.body()?;
    ask(&asked, JobOrder::Expect { job: job_name(&given)?, start_ms }).await
}

pub async fn window(asked: Arc<Asked>, given: Given) -> Answered {
    let Window { bytes, in_ms, wait_ms_max, done } = given.body()?;
    let job = job_name(&given)?;
    let order = match done {
        true => JobOrder::WindowEnd { job, bytes },
        false => JobOrder::Window { job, ask: JobWindowAsk { bytes, in_ms, wait_ms_max } },
    };
    match store(&asked)?.job(order).await? {
        JobReport::Window(window) => Ok(super::shape::plain(&window).into()),
        _ => Err(confused()),
    }
}
