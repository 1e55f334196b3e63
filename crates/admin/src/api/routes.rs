//! The table of routes. Dispatch and the OpenAPI document are both made from it, so they cannot differ.

use std::sync::Arc;

use http::Method;
use stoker_store::BoxFuture;

use super::given::Given;
use super::{Answered, alerts, fleet, history, keys, log, node, plan, sets, slo, volumes};
use crate::access::Role;
use crate::answer::Asked;

/// What a value in a path or a query is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Text,
    /// Any bytes, percent-encoded: keys of files.
    Bytes,
    Number {
        min: u64,
        max: u64,
    },
    Flag,
}

/// A value in a path or a query.
pub struct Parameter {
    pub name: &'static str,
    pub kind: Kind,
    pub is_needed: bool,
    pub words: &'static str,
}

const fn needed(name: &'static str, kind: Kind, words: &'static str) -> Parameter {
    Parameter { name, kind, is_needed: true, words }
}

pub(super) const fn optional(name: &'static str, kind: Kind, words: &'static str) -> Parameter {
    Parameter { name, kind, is_needed: false, words }
}

/// What carries a call out.
pub type Handler = fn(Arc<Asked>, Given) -> BoxFuture<'static, Answered>;

/// How a call is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Get,
    Post,
    Patch,
}

impl Verb {
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Patch => "PATCH",
        }
    }

    /// Whether a request is made this way; looking at the head of what would be read is reading.
    pub fn is(self, method: &Method) -> bool {
        method == self.as_str() || (self == Verb::Get && method == Method::HEAD)
    }
}

/// One call of the API.
pub struct Route {
    pub verb: Verb,
    /// With names in braces.
    pub path: &'static str,
    /// None: whoever asks; for the login alone.
    pub role: Option<Role>,
    pub call: Handler,
    pub summary: &'static str,
    pub query: &'static [Parameter],
    /// Schema of the body.
    pub body: Option<&'static str>,
    /// Schema of the answer.
    pub answer: &'static str,
    /// It has a body and changes nothing: a question that is too long for a query.
    pub asks: bool,
}

impl Route {
    /// True if it may change something.
    pub fn changes(&self) -> bool {
        self.verb != Verb::Get
    }

    /// The values of the names in braces if a path is this one, still percent-encoded.
    pub fn matches<'p>(&self, path: &'p str) -> Option<Vec<(&'static str, &'p str)>> {
        let (mut wanted, mut given) = (self.path.split('/'), path.split('/'));
        let mut names = Vec::new();
        loop {
            match (wanted.next(), given.next()) {
                (None, None) => return Some(names),
                (Some(one), Some(other)) => match one.strip_prefix('{').and_then(|one| one.strip_suffix('}'))
                {
                    Some(name) if !other.is_empty() => names.push((name, other)),
                    None if one == other => {}
                    _ => return None,
                },
                _ => return None,
            }
        }
    }
}

/// What names in paths are.
pub const PATH_PARAMETERS: &[Parameter] = &[
    needed("node", Kind::Text, "Id or name of a node."),
    needed("drive", Kind::Text, "Id or path of a drive."),
    needed("volume", Kind::Text, "Name of a volume."),
    needed("set", Kind::Number { min: 0, max: u64::MAX }, "Id of a checkpoint set in its volume."),
    needed("access_key", Kind::Text, "Public part of an access key."),
    needed("id", Kind::Text, "Id of a join token."),
    needed("export", Kind::Text, "Id of an export."),
    needed("lake", Kind::Text, "Name of a lake."),
    needed("policy", Kind::Text, "Name of a set of rules."),
    needed("kind", Kind::Text, "io, design, gravity, kv or slo."),
    needed("job", Kind::Text, "Id of a job, or tenant and id with a percent-encoded slash between."),
];

pub(super) const LIMIT: Parameter =
    optional("limit", Kind::Number { min: 1, max: 1_000 }, "At most so many; 100 if nothing is said.");
const KEY: Parameter = needed("key", Kind::Bytes, "Key of the file, percent-encoded bytes.");
const PREFIX: Parameter = optional("prefix", Kind::Bytes, "Only keys that start with this.");

pub(super) const NONE: &[Parameter] = &[];

macro_rules! call {
    ($($path:tt)+) => {
        |asked, given| Box::pin($($path)+(asked, given))
    };
}
pub(super) use call;

/// A reading call.
pub(super) const fn get(
    path: &'static str,
    call: Handler,
    summary: &'static str,
    query: &'static [Parameter],
    answer: &'static str,
) -> Route {
    Route {
        verb: Verb::Get,
        path,
        role: Some(Role::View),
        call,
        summary,
        query,
        body: None,
        answer,
        asks: false,
    }
}

/// A changing call.
pub(super) const fn post(
    path: &'static str,
    call: Handler,
    summary: &'static str,
    body: &'static str,
    answer: &'static str,
) -> Route {
    Route {
        verb: Verb::Post,
        path,
        role: Some(Role::Operator),
        call,
        summary,
        query: NONE,
        body: Some(body),
        answer,
        asks: false,
    }
}

/// Every call.
pub fn all() -> impl Iterator<Item = &'static Route> + Clone {
    ROUTES.iter().chain(super::job_routes::ROUTES).chain(super::tier_routes::ROUTES)
}

static ROUTES: &[Route] = &[
    // Who asks.
    Route {
        role: None,
        ..post("/api/v1/session", call!(log::login), "Log in: a session of the console.", "Login", "Session")
    },
    get("/api/v1/session", call!(log::session), "Who asks, and what that may do.", NONE, "Session"),
    Route {
        role: Some(Role::View),
        ..post("/api/v1/session/end", call!(log::logout), "Log out.", "Nothing", "Done")
    },
    get("/api/v1/openapi.json", call!(node::openapi), "This document.", NONE, "Anything"),
    // The node that is asked.
    get("/api/v1/about", call!(node::about), "The node that answers, and how to begin.", NONE, "About"),
    get("/api/v1/status", call!(node::status), "The state of the node.", NONE, "Status"),
    get(
        "/api/v1/outages",
        call!(node::outages),
        "What does not answer, since when, and what helps. Asks nobody.",
        NONE,
        "Outages",
    ),
    get(
        "/api/v1/series",
        call!(node::series),
        "Rates and latencies of the node, lately.",
        &[optional("after_ms", Kind::Number { min: 0, max: u64::MAX }, "Only points behind this time.")],
        "Series",
    ),
    get(
        "/api/v1/events",
        call!(log::events),
        "What happened, oldest first.",
        &[
            optional("after", Kind::Number { min: 0, max: u64::MAX }, "Only events behind this number."),
            LIMIT,
        ],
        "Events",
    ),
    get(
        "/api/v1/audit",
        call!(log::audit),
        "Lines of the audit log of this node, newest first.",
        &[
            optional("path", Kind::Text, "Only paths that start with this: a volume, or a volume and a key."),
            optional(
                "user",
                Kind::Text,
                "Only of this one, such as `acme/alice`, `operator` or an access key.",
            ),
            optional("tenant", Kind::Text, "Only of users of this tenant."),
            optional("action", Kind::Text, "Only this action."),
            optional("result", Kind::Text, "Only results that start with this: `ok`, `denied` or `failed`."),
            optional("door", Kind::Text, "Only through this endpoint: `s3`, `client`, `admin` or `nfs`."),
            optional("from", Kind::Text, "Not before this time, RFC 3339 or milliseconds since 1970."),
            optional("to", Kind::Text, "Before this time."),
            optional("before", Kind::Number { min: 0, max: u64::MAX }, "The next page: `next` of this one."),
            LIMIT,
        ],
        "Audit",
    ),
    // The cluster.
    get(
        "/api/v1/history",
        call!(history::history),
        "Figures over time, of all nodes that answer or of one.",
        &[
            optional(
                "window_s",
                Kind::Number { min: 60, max: 31 * 86_400 },
                "How far back, in seconds; a quarter of an hour if nothing is said.",
            ),
            optional("node", Kind::Text, "Only of this node, by its id or its name."),
        ],
        "History",
    ),
    get(
        "/api/v1/alerts",
        call!(alerts::all),
        "What wants a person, how full all is, and when it will be full.",
        NONE,
        "Alerts",
    ),
    get(
        "/api/v1/risk",
        call!(fleet::risk),
        "What would be lost with each node and each cell.",
        NONE,
        "RiskReport",
    ),
    get("/api/v1/lost", call!(fleet::lost), "Files of which no copy can be read now.", NONE, "LostFiles"),
    get(
        "/api/v1/rebuild",
        call!(fleet::rebuild),
        "How far the protection of what lost a copy is.",
        NONE,
        "Rebuild",
    ),
    get("/api/v1/protection", call!(fleet::protection), "What volumes commit to now.", NONE, "Protections"),
    get(
        "/api/v1/slo",
        call!(slo::slo),
        "What is left of budgets, which parts are in trouble, and what nobody was told yet.",
        NONE,
        "Slo",
    ),
    post(
        "/api/v1/slo/repaired",
        call!(slo::repaired),
        "Say that a part was repaired: the gate measures it, and it works again if it passes.",
        "Repaired",
        "Done",
    ),
    post(
        "/api/v1/slo/retry",
        call!(slo::retry),
        "Send every notice again that nobody took yet, also what was refused.",
        "Nothing",
        "Done",
    ),
    get("/api/v1/nodes", call!(fleet::nodes), "Every node.", NONE, "Nodes"),
    get("/api/v1/nodes/{node}", call!(fleet::one), "A node, its drives and its risk.", NONE, "NodePage"),
    get(
        "/api/v1/nodes/{node}/can-stop",
        call!(fleet::can_stop),
        "Whether a node can stop without anybody noticing.",
        NONE,
        "StopVerdict",
    ),
    get(
        "/api/v1/nodes/{node}/evacuation",
        call!(fleet::evacuation),
        "How far an evacuation is.",
        NONE,
        "Evacuation",
    ),
    post(
        "/api/v1/nodes/{node}/quarantine",
        call!(fleet::quarantine),
        "Put nothing new on a node, but read from it.",
        "Force",
        "Done",
    ),
    post(
        "/api/v1/nodes/{node}/evacuate",
        call!(fleet::evacuate),
        "Bring everything that is not in the lake from a node to others.",
        "Force",
        "Evacuation",
    ),
    post(
        "/api/v1/nodes/{node}/rejoin",
        call!(fleet::rejoin),
        "End a quarantine or an evacuation.",
        "Nothing",
        "Done",
    ),
    post(
        "/api/v1/nodes/{node}/remove",
        call!(fleet::remove),
        "Remove a node for good. The nodes carry it on until it is gone; `removals` tells how far it is.",
        "Remove",
        "Removal",
    ),
    get(
        "/api/v1/removals",
        call!(fleet::removals),
        "How far removals of nodes are.",
        &[optional(
            "node",
            Kind::Text,
            "Of this node, also after it was removed; else all that are under way.",
        )],
        "Removals",
    ),
    get(
        "/api/v1/unreachable",
        call!(fleet::unreachable),
        "Nodes that others cannot reach: they hold nothing and do not count.",
        NONE,
        "UnreachableNodes",
    ),
    get(
        "/api/v1/level",
        call!(fleet::level),
        "In which forms all nodes write rows, messages and files, and which of them keep that from changing.",
        NONE,
        "Level",
    ),
    post(
        "/api/v1/level",
        call!(fleet::level_hold),
        "Keep the level from rising by itself, or let it.",
        "LevelHold",
        "Level",
    ),
    get(
        "/api/v1/drives",
        call!(fleet::drives),
        "Every drive.",
        &[optional("node", Kind::Text, "Only of this node, by its id or its name.")],
        "Drives",
    ),
    get(
        "/api/v1/nodes/{node}/drives/{drive}/losses",
        call!(fleet::drive_losses),
        "What would be lost with a drive now.",
        NONE,
        "LostFiles",
    ),
    post(
        "/api/v1/nodes/{node}/drives",
        call!(fleet::drive_add),
        "Put a drive into service.",
        "DriveAdd",
        "Drives",
    ),
    post(
        "/api/v1/nodes/{node}/drives/{drive}/remove",
        call!(fleet::drive_remove),
        "Take a drive out of service once nothing is only there.",
        "Force",
        "Drives",
    ),
    post(
        "/api/v1/nodes/{node}/drives/cordon",
        call!(fleet::drive_cordon),
        "Put nothing new on a drive and bring what the lake lacks to others, or end that.",
        "DriveCordon",
        "Drives",
    ),
    get(
        "/api/v1/catalog",
        call!(fleet::catalog),
        "Where the catalog is, and who follows it.",
        NONE,
        "Catalog",
    ),
    post(
        "/api/v1/catalog/promote",
        call!(fleet::promote),
        "Make this node the one that keeps the catalog.",
        "Promote",
        "Promotion",
    ),
    post(
        "/api/v1/catalog/detach",
        call!(fleet::detach),
        "Let a standby of the catalog go for good.",
        "Detach",
        "Done",
    ),
    // Volumes and files.
    get("/api/v1/volumes", call!(volumes::all), "Every volume.", NONE, "Volumes"),
    post("/api/v1/volumes", call!(volumes::create), "Make a volume.", "VolumeNew", "Volume"),
    get("/api/v1/volumes/{volume}", call!(volumes::one), "A volume.", NONE, "Volume"),
    get(
        "/api/v1/volumes/{volume}/tiers",
        call!(volumes::tiers),
        "Where the bytes of a volume are: only on drives, or in the lake, too.",
        NONE,
        "Tiers",
    ),
    post(
        "/api/v1/volumes/{volume}/policy",
        call!(volumes::set_policy),
        "Change what a volume wants; what is not named stays.",
        "PolicyChange",
        "Volume",
    ),
    get(
        "/api/v1/volumes/{volume}/audit",
        call!(volumes::audit),
        "What the audit log has of a volume: what changes something, or every read, too.",
        NONE,
        "VolumeAudit",
    ),
    post(
        "/api/v1/volumes/{volume}/audit",
        call!(volumes::set_audit),
        "Change what the audit log has of a volume.",
        "VolumeAuditChange",
        "Done",
    ),
    post(
        "/api/v1/volumes/{volume}/remove",
        call!(volumes::remove),
        "Remove an empty volume; objects in its lake stay.",
        "Nothing",
        "Done",
    ),
    get(
        "/api/v1/volumes/{volume}/files",
        call!(volumes::files),
        "Files of a volume, by directory unless all are wanted.",
        &[
            PREFIX,
            optional("after", Kind::Bytes, "Go on behind this name."),
            optional("all", Kind::Flag, "Files of all directories below the prefix."),
            LIMIT,
        ],
        "Files",
    ),
    get("/api/v1/volumes/{volume}/stat", call!(volumes::stat), "A file.", &[KEY], "File"),
    get(
        "/api/v1/volumes/{volume}/explain",
        call!(volumes::explain),
        "Where a file is, and what happens to it next.",
        &[KEY],
        "Explanation",
    ),
    get(
        "/api/v1/volumes/{volume}/receipt",
        call!(volumes::receipt),
        "The receipt of a file.",
        &[KEY],
        "Receipt",
    ),
    post("/api/v1/volumes/{volume}/drain", call!(volumes::drain), "Drain files now.", "Prefix", "Drained"),
    post(
        "/api/v1/volumes/{volume}/stage",
        call!(volumes::stage),
        "Bring the bytes of a file into the rings.",
        "Key",
        "Staged",
    ),
    post("/api/v1/volumes/{volume}/delete", call!(volumes::delete), "Delete files.", "Keys", "Deleted"),
    post(
        "/api/v1/volumes/{volume}/rename",
        call!(volumes::rename),
        "Rename a file or a directory.",
        "Rename",
        "Done",
    ),
    get(
        "/api/v1/conflicts",
        call!(volumes::conflicts),
        "Versions that wait for a person.",
        &[optional("volume", Kind::Text, "Only of this volume.")],
        "Conflicts",
    ),
    post("/api/v1/volumes/{volume}/resolve", call!(volumes::resolve), "End a conflict.", "Resolve", "Done"),
    // Checkpoint sets.
    get(
        "/api/v1/volumes/{volume}/sets",
        call!(sets::all),
        "Checkpoint sets, newest first.",
        &[LIMIT],
        "Sets",
    ),
    get(
        "/api/v1/volumes/{volume}/sets-latest",
        call!(sets::latest),
        "The set that was published last.",
        &[PREFIX],
        "LatestSet",
    ),
    get(
        "/api/v1/volumes/{volume}/sets/{set}",
        call!(sets::one),
        "A set, and what it lacks.",
        NONE,
        "SetStatus",
    ),
    get(
        "/api/v1/volumes/{volume}/sets/{set}/receipts",
        call!(sets::receipts),
        "Receipts of the shards of a published set.",
        &[optional("after", Kind::Bytes, "Go on behind this key."), LIMIT],
        "Receipts",
    ),
    post(
        "/api/v1/volumes/{volume}/sets/{set}/publish",
        call!(sets::publish),
        "Make all shards visible at once.",
        "Nothing",
        "Set",
    ),
    post("/api/v1/volumes/{volume}/sets/{set}/abort", call!(sets::abort), "Give a set up.", "Nothing", "Set"),
    // Keys.
    Route {
        role: Some(Role::Operator),
        ..get("/api/v1/keys", call!(keys::all), "Access keys, without their secrets.", NONE, "AccessKeys")
    },
    post(
        "/api/v1/keys",
        call!(keys::create),
        "Make an access key; its secret is told once.",
        "KeyNew",
        "KeyMade",
    ),
    post(
        "/api/v1/keys/{access_key}/rotate",
        call!(keys::rotate),
        "Replace an access key by a new one of the same rights.",
        "KeyRotate",
        "KeyMade",
    ),
    post("/api/v1/keys/{access_key}/remove", call!(keys::remove), "Remove an access key.", "Nothing", "Done"),
    post(
        "/api/v1/join-token/rotate",
        call!(keys::rotate_join_token),
        "Revoke every join token, and make one for one node.",
        "Nothing",
        "JoinToken",
    ),
    Route {
        role: Some(Role::Operator),
        ..get(
            "/api/v1/join-tokens",
            call!(keys::join_tokens),
            "Join tokens, by their ids.",
            NONE,
            "JoinTokens",
        )
    },
    post(
        "/api/v1/join-tokens",
        call!(keys::create_join_token),
        "Make a join token; it is told once.",
        "JoinTokenNew",
        "JoinTokenMade",
    ),
    post(
        "/api/v1/join-tokens/{id}/revoke",
        call!(keys::revoke_join_token),
        "Let no more nodes join by a token.",
        "Nothing",
        "Done",
    ),
    // The planner.
    get(
        "/api/v1/plan",
        call!(plan::models),
        "What can be planned: inputs, units, ranges.",
        NONE,
        "PlanModels",
    ),
    Route {
        role: Some(Role::View),
        asks: true,
        ..post(
            "/api/v1/plan/{kind}",
            call!(plan::plan),
            "Make a plan. Changes nothing, and is not written down.",
            "PlanRequest",
            "Plan",
        )
    },
    get(
        "/api/v1/plan-calibration",
        call!(plan::calibration),
        "What the nodes measured in the place of the planner's constants.",
        NONE,
        "PlanCalibration",
    ),
    get(
        "/api/v1/plan-ledger",
        call!(plan::kept),
        "What was predicted, what came of it, and how far the two were apart.",
        NONE,
        "PlanLedger",
    ),
    post("/api/v1/plan-ledger", call!(plan::keep), "Keep a prediction for a job.", "PlanKeep", "PlanKept"),
];
