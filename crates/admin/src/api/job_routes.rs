//! Routes about jobs, and what is promised to their work.

use super::routes::{Kind, LIMIT, NONE, Route, Verb, call, get, optional, post};
use super::{jobs, qos};

/// Every call about them.
pub static ROUTES: &[Route] = &[
    // Jobs.
    get(
        "/api/v1/jobs",
        call!(jobs::all),
        "Jobs, by tenant and id.",
        &[
            optional("tenant", Kind::Text, "Only of this tenant."),
            optional("state", Kind::Text, "Only in this state, such as `ready`."),
            optional("all", Kind::Flag, "With jobs that are over."),
            optional("after", Kind::Text, "Behind this one: `TENANT/ID`."),
            LIMIT,
        ],
        "Jobs",
    ),
    post(
        "/api/v1/jobs",
        call!(jobs::submit),
        "Submit a job: its data is staged while it waits. Sent again with the same `Idempotency-Key`, the answer is the job that is there.",
        "JobSubmit",
        "Job",
    ),
    get("/api/v1/jobs/{job}", call!(jobs::one), "A job: state, data, and how it came there.", NONE, "Job"),
    get(
        "/api/v1/jobs/{job}/readiness",
        call!(jobs::readiness),
        "The share of a job's data that nodes read without the lake, by what their drives hold now.",
        &[optional("nodes", Kind::Text, "Nodes that it may run on, by name, with commas between; else all.")],
        "JobReadiness",
    ),
    post("/api/v1/jobs/{job}/start", call!(jobs::start), "A job starts, on these nodes.", "JobStart", "Job"),
    post(
        "/api/v1/jobs/{job}/end",
        call!(jobs::end),
        "A job is over: its data is let go and its output drained.",
        "JobEnd",
        "Job",
    ),
    post("/api/v1/jobs/{job}/cancel", call!(jobs::cancel), "Cancel a job.", "JobReason", "Job"),
    post(
        "/api/v1/jobs/{job}/expect",
        call!(jobs::expect),
        "A job is expected to start then; renews its reservation.",
        "JobExpect",
        "Job",
    ),
    post(
        "/api/v1/jobs/{job}/window",
        call!(jobs::window),
        "A job is about to write a checkpoint, and is told how long to wait so that it is in nobody's way; with `done`, it wrote it.",
        "JobWindowAsk",
        "JobWindow",
    ),
    // Admission.
    get("/api/v1/qos", call!(qos::policies), "Policies, with what is given and used.", NONE, "QosPolicies"),
    get(
        "/api/v1/exports",
        call!(qos::exports),
        "Exports: what was handed out with a policy.",
        NONE,
        "Exports",
    ),
    post(
        "/api/v1/exports",
        call!(qos::create),
        "Hand a volume or a part of it to a job or a tenant, with a policy.",
        "ExportNew",
        "QosPolicy",
    ),
    Route {
        verb: Verb::Patch,
        ..post(
            "/api/v1/exports/{export}/qos",
            call!(qos::change),
            "Change what an export is promised and allowed.",
            "QosChange",
            "QosPolicy",
        )
    },
    post("/api/v1/exports/{export}/remove", call!(qos::remove), "End an export.", "Nothing", "Done"),
];
