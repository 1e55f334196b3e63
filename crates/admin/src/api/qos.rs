//! Calls about admission: policies, and exports, which are policies with what they hand out.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use stoker_store::{JobLabel, Order, QosInfo, QosRate, QosReport, QosRequest, QosSpec, QosSubject, Report};

use super::given::Given;
use super::{Answered, Fault, confused, done, operate};
use crate::answer::Asked;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// What is promised and allowed; what is not given stays as it is, or as it is for everybody.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Qos {
    #[serde(default)]
    floor_bytes_per_s: Option<u64>,
    #[serde(default)]
    floor_ops_per_s: Option<u64>,
    #[serde(default)]
    ceiling_bytes_per_s: Option<u64>,
    #[serde(default)]
    ceiling_ops_per_s: Option<u64>,
    #[serde(default)]
    weight: Option<u32>,
    #[serde(default)]
    latency: Option<String>,
    #[serde(default)]
    burst_ms: Option<u32>,
}

impl Qos {
    fn over(self, spec: QosSpec) -> Result<QosSpec, Fault> {
        let is_interactive = match self.latency.as_deref() {
            None => spec.is_interactive,
            Some("interactive") => true,
            Some("bulk") => false,
            Some(other) => {
                return Err(Fault::invalid(format!("a latency is interactive or bulk, not `{other}`")));
            }
        };
        Ok(QosSpec {
            floor: QosRate {
                bytes_per_s: self.floor_bytes_per_s.or(spec.floor.bytes_per_s),
                ops_per_s: self.floor_ops_per_s.or(spec.floor.ops_per_s),
            },
            ceiling: QosRate {
                bytes_per_s: self.ceiling_bytes_per_s.or(spec.ceiling.bytes_per_s),
                ops_per_s: self.ceiling_ops_per_s.or(spec.ceiling.ops_per_s),
            },
            weight: self.weight.unwrap_or(spec.weight),
            is_interactive,
            burst_ms: self.burst_ms.unwrap_or(spec.burst_ms),
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportNew {
    volume: String,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    job: Option<String>,
    #[serde(default)]
    qos: Qos,
    #[serde(default)]
    idempotency_key: Option<String>,
}

fn rate(rate: QosRate) -> Value {
    json!({ "bytes_per_s": rate.bytes_per_s, "ops_per_s": rate.ops_per_s })
}

fn shape(info: &QosInfo) -> Value {
    let spec = &info.spec;
    json!({
        "id": info.id,
        "tenant": info.subject.tenant,
        "job": info.subject.job.as_ref().map(JobLabel::as_str),
        "volume": info.subject.volume,
        "prefix": info.export,
        "created_ms": info.created_ms,
        "floor": rate(spec.floor),
        "ceiling": rate(spec.ceiling),
        "weight": spec.weight,
        "latency": if spec.is_interactive { "interactive" } else { "bulk" },
        "burst_ms": spec.burst_ms,
        "given": rate(info.given),
        "used": rate(info.used),
        "waiting": info.waiting,
    })
}

async fn report(asked: &Asked) -> Result<QosReport, Fault> {
    match operate(asked, Order::Qos).await? {
        Report::Qos(report) => Ok(*report),
        _ => Err(confused()),
    }
}

async fn set(asked: &Asked, request: QosRequest) -> Answered {
    match operate(asked, Order::QosSet(Box::new(request))).await? {
        Report::QosPolicy(info) => Ok(shape(&info).into()),
        _ => Err(confused()),
    }
}

fn unknown(id: &str) -> Fault {
    Fault::not_found(format!("there is no export `{id}`"), "GET /api/v1/exports lists them")
}

pub async fn policies(asked: Arc<Asked>, _: Given) -> Answered {
    let report = report(&asked).await?;
    let policies: Vec<Value> = report.policies.iter().map(shape).collect();
    let body = json!({
        "policies": policies,
        "capacity": rate(report.capacity),
        "free": rate(report.free),
        "silent": report.silent,
    });
    Ok(body.into())
}

pub async fn exports(asked: Arc<Asked>, _: Given) -> Answered {
    let report = report(&asked).await?;
    let exports = report.policies.iter().filter(|policy| policy.export.is_some());
    Ok(json!({ "exports": exports.map(shape).collect::<Vec<_>>() }).into())
}

pub async fn create(asked: Arc<Asked>, given: Given) -> Answered {
    let ExportNew { volume, prefix, tenant, job, qos, idempotency_key } = given.body()?;
    let job = job.map(|job| JobLabel::parse(&job)).transpose()?;
    let subject = QosSubject { tenant, job, volume: Some(volume) };
    let spec = qos.over(QosSpec::default())?;
    let request = QosRequest { subject, spec, export: Some(prefix), request: idempotency_key, is_new: true };
    set(&asked, request).await
}

pub async fn change(asked: Arc<Asked>, given: Given) -> Answered {
    let qos: Qos = given.body()?;
    let id = given.text("export");
    let report = report(&asked).await?;
    let known = report.policies.into_iter().find(|policy| policy.id == id && policy.export.is_some());
    let known = known.ok_or_else(|| unknown(id))?;
    let spec = qos.over(known.spec)?;
    let request =
        QosRequest { subject: known.subject, spec, export: known.export, request: None, is_new: false };
    set(&asked, request).await
}

pub async fn remove(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    let id = given.text("export").to_owned();
    match operate(&asked, Order::QosUnset { id }).await? {
        Report::Done => done(),
        _ => Err(confused()),
    }
}
