//! The shapes of bodies and answers, in a short notation from which JSON Schema is made.
//!
//! A shape is a list of `name:type`. Types are `text`, `word` (text that is not empty), `int`, `u32`, `num`, `bool`, `any`,
//! `pairs` (an object of texts), `a|b|c` (one of these words), `[T]` and names of other shapes; `T?` may be null, and `name?`
//! may lack.

use serde_json::{Map, Value, json};

/// Every shape. Bodies take nothing else than what is named; answers may grow.
pub const SHAPES: &[(&str, &str)] = &[
    ("Error", "error:text kind:word hint:text"),
    ("Done", "done:bool"),
    ("Session", "role:view|operator by:token|session csrf:text?"),
    ("About", "version:text node:text name:text cluster:text first_line:text? series_every_ms:int"),
    (
        "Status",
        "node:text cluster:text version:text started_ms:int catalog:text nodes:[Peer] rings:[Ring] sources:[Source] \
         dirty_files:int dirty_bytes:int dirty_age_ms:int conflicts:int drains:int lake_trouble:text? cache_bytes:int \
         ready:bool words:[text] outages:[Outage] stale:[StaleView]",
    ),
    ("Outages", "lost:[Outage] stale:[StaleView]"),
    (
        "Outage",
        "what:catalog|node|lake name:text node:text? since_ms:int? summary:text cure:text action:text?",
    ),
    ("StaleView", "view:text as_of_ms:int?"),
    (
        "Peer",
        "node:text name:text state:text suspect:bool addresses:[text] cell:text tor:text power:text latency_us:int",
    ),
    (
        "Ring",
        "path:text drive:text bytes:int keep_bytes:int clean_bytes:int records:int poisoned:text? io:text",
    ),
    (
        "Source",
        "kind:drive|peer|turn|lake name:text reads:int failures:int small_mean_us:int? small_p95_us:int? \
         large_mean_us:int? large_p95_us:int?",
    ),
    ("History", "every_ms:int at_ms:[int] series:any nodes:[HistoryNode]"),
    ("HistoryNode", "node:text name:text answers:bool at_ms:int? latest:any"),
    ("Alerts", "alerts:[Alert] not_known:[text] capacity:Capacity"),
    ("Alert", "severity:page|warn alert:text node:text? summary:text action:text"),
    (
        "Capacity",
        "space_bytes:int keep_bytes:int clean_bytes:int fill_bytes_per_s:num? full_in_s:int? measured_s:int words:text",
    ),
    ("Series", "every_ms:int at_ms:[int] series:any"),
    (
        "Slo",
        "state:leads|nobody|silent|not_understood words:text leader:text? at_ms:int? age_ms:int? acts:bool parts:[SloPart] \
         parts_more:int budgets:[SloBudget] notices:[SloNotice] weights:[SloWeight]",
    ),
    (
        "SloPart",
        "part:text kind:text node:text? name:text? piece:text? state:text since_ms:int reason:text evidence:[SloFinding] \
         has_order:bool can_be_repaired:bool",
    ),
    ("SloFinding", "what:text part:text found:text limit:text since_ms:int periods:int"),
    (
        "SloBudget",
        "objective:text good:int bad:int left_percent:num burn_5m:num? burn_1h:num? burn_6h:num? burning:text?",
    ),
    ("SloNotice", "target:text title:text tries:int why:text? refused:bool"),
    ("SloWeight", "node:text drive:text? percent:int takes_chunks:bool"),
    ("Events", "configured:bool events:[Event]"),
    ("Event", "seq:int at_ms:int level:info|warn|error subject:text name:text words:text"),
    ("Jobs", "jobs:[Job] more:bool"),
    (
        "Job",
        "tenant:text id:text name:text user:text project:text? state:queued|staging|ready|running|draining|done|failed|cancelled \
         reason:text steps:[JobStep] spec:any sources:[JobSource] expected_start_ms:int? ready_ms:int? expires_ms:int cell:text? \
         nodes:[text] checkpoints:text? notes:[text] readiness:num? bytes:int resident_bytes:int qos_enforced:bool",
    ),
    ("JobWindow", "wait_ms:int length_ms:int is_crowded:bool next_ms:int?"),
    ("JobStep", "state:text at_ms:int reason:text"),
    (
        "JobSource",
        "source:text target:text tier_hint:hot|warm|cold access:read-only|read-write is_counted:bool files:int bytes:int \
         resident_bytes:int lake_bytes:int trouble:text?",
    ),
    ("JobReadiness", "bytes:int is_counted:bool share:num nodes:[NodeReadiness]"),
    ("NodeReadiness", "node:text cell:text own_bytes:int cell_bytes:int"),
    ("VolumeAudit", "level:changes|full"),
    ("Audit", "configured:bool entries:[AuditEntry] next:int?"),
    (
        "AuditEntry",
        "seq:int at_ms:int time:text principal:text tenant:text door:text action:text path:text bytes:int result:text \
         request_id:text address:text session:text detail:text",
    ),
    ("RiskReport", "nodes:[Risk] cells:[Risk] lost_files:int lost_bytes:int at_least:bool"),
    (
        "Risk",
        "node:text name:text cell:text state:text undrained_files:int undrained_bytes:int oldest_age_ms:int \
         one_copy_files:int one_copy_bytes:int lost_files:int lost_bytes:int doubtful_files:int doubtful_bytes:int \
         lost_parts:int",
    ),
    ("LostFiles", "files:[LostFile]"),
    (
        "LostFile",
        "volume:text key:text key_hex?:text version:text bytes:int since_ms:int whole:bool nodes:[text] may_return:bool",
    ),
    (
        "Rebuild",
        "files_left:int bytes_left:int one_copy_files:int one_copy_bytes:int lost_files:int lost_bytes:int \
         files_done:int bytes_done:int bytes_per_s:int bytes_per_s_max:int workers:int end_in_ms:int? losses:[text] \
         trouble:text?",
    ),
    ("Protections", "volumes:[Protection]"),
    ("Protection", "volume:text copies:int files_below:int"),
    ("Nodes", "nodes:[Node]"),
    (
        "Node",
        "node:text name:text cell:text tor:text power:text state:text since_ms:int silent_since_ms:int? drives:int \
         drives_gone:int undrained_files:int undrained_bytes:int latency_us:int answers:text",
    ),
    ("NodePage", "node:Node drives:[Drive] risk:Risk?"),
    ("StopVerdict", "node:text name:text reasons:[text] can_stop:bool"),
    (
        "Evacuation",
        "node:text name:text state:text files_left:int bytes_left:int files_only_there:int bytes_only_there:int \
         parts_only_there:int trouble:text? done:bool",
    ),
    (
        "Removal",
        "node:text name:text step:waiting|evacuating|protecting|loss|removed files_left:int bytes_left:int lost:[LostFile] \
         lost_files:int lost_bytes:int trouble:text?",
    ),
    ("Removals", "removals:[Removal]"),
    ("UnreachableNodes", "nodes:[Unreachable]"),
    ("Unreachable", "node:text name:text addresses:[text] by:text why:text since_ms:int"),
    ("Level", "level:int newest:int is_held:bool since_ms:int nodes:[LevelNode]"),
    ("LevelNode", "node:text name:text reads:int release:text? holds_up:text?"),
    ("Drives", "drives:[Drive]"),
    (
        "Drive",
        "drive:text node:text name:text path:text state:text why:text? incarnation:int bytes:int keep_bytes:int \
         clean_bytes:int undrained_files:int undrained_bytes:int",
    ),
    (
        "Catalog",
        "engine:text holder:text? epoch:text seq:int stalled:bool alone:bool standbys:[Standby] trouble:text?",
    ),
    ("Standby", "node:text in_sync:bool seq:int? trouble:text?"),
    ("Promotion", "epoch:text seq:int before:text loss:text?"),
    ("Volumes", "volumes:[Volume]"),
    ("Volume", "name:text id:text created_ms:int lake:text? policy:Policy files:int bytes:int"),
    (
        "Policy",
        "class:auto|one|two|three spread:node|tor|power when_alone:refuse|lake drain:Drain drain_quiet_s:int \
         drain_lag_max_s:int quota_bytes:int lake_mode:owned|shared|read_only leases:bool",
    ),
    ("Tiers", "files:int bytes:int dirty:Sum clean:Sum never:Sum conflict:Sum at_least:bool"),
    ("Sum", "files:int bytes:int"),
    ("Files", "entries:[any] more:bool"),
    (
        "File",
        "key:text key_hex?:text size:int etag:text modified_ms:int version:text inode:int drain:DrainState \
         checksums:pairs parts:int content_type:text? headers:pairs meta:pairs tags:pairs mode:int? owner:[int]?",
    ),
    (
        "Receipt",
        "volume:text key:text version:text size:int etag:text checksums:pairs class:auto|one|two|three copies:int \
         holders:[Holder] seq:int drain:DrainState lake:text? lake_etag:text?",
    ),
    ("Holder", "node:text drive:text incarnation:int"),
    ("Receipts", "receipts:[Receipt] more:bool"),
    (
        "Explanation",
        "file:File receipt:Receipt chunks:int chunks_local:int chunks_cached:int holders:[Held] words:[text]",
    ),
    ("Held", "drive:text chunks:int bytes:int"),
    ("Drained", "files:int"),
    ("Staged", "bytes:int"),
    ("Deleted", "files:[DeletedFile]"),
    ("DeletedFile", "key:text was_there:bool? error:text?"),
    ("Conflicts", "conflicts:[Conflict]"),
    (
        "Conflict",
        "volume:text file:File lake_etag_expected:text? lake_etag_found:text? since_ms:int refused:text?",
    ),
    ("Sets", "sets:[Set] more:bool"),
    (
        "Set",
        "volume:text set:int state:open|published|aborted|expired path:text path_hex?:text owner:text shards:int \
         begun_ms:int deadline_ms:int closed_ms:int seq:int",
    ),
    ("LatestSet", "set:Set?"),
    ("SetStatus", "info:Set present:int bytes:int laggards:[int] drain:DrainState"),
    ("AccessKeys", "keys:[AccessKey]"),
    ("AccessKey", "access_key:text read_only:bool prefixes:[text] uid:int gid:int created_ms:int"),
    (
        "KeyMade",
        "access_key:text secret_key:text read_only:bool prefixes:[text] uid:int gid:int created_ms:int",
    ),
    ("JoinToken", "join_token:text"),
    ("JoinTokens", "tokens:[JoinTokenInfo]"),
    ("JoinTokenInfo", "id:text state:text created_ms:int expires_ms:int uses_max:int nodes:[text]"),
    (
        "JoinTokenMade",
        "join_token:text id:text state:text created_ms:int expires_ms:int uses_max:int nodes:[text]",
    ),
    ("Rate", "bytes_per_s:int? ops_per_s:int?"),
    (
        "QosPolicy",
        "id:text tenant:text? job:text? volume:text? prefix:text? created_ms:int floor:Rate ceiling:Rate weight:int \
         latency:interactive|bulk burst_ms:int given:Rate used:Rate waiting:int",
    ),
    ("QosPolicies", "policies:[QosPolicy] capacity:Rate free:Rate silent:int"),
    ("Exports", "exports:[QosPolicy]"),
    ("Lakes", "lakes:[Lake]"),
    (
        "Lake",
        "name:text url:text endpoint:text? region:text? path_style:bool? access_key_id:text? storage_class:text? cost:LakeCost \
         requests_per_s:int bytes_per_s:int labels:pairs created_ms:int changed_ms:int volumes:[text] replica_of:[text]",
    ),
    ("LakeCost", "gb_month:int writes_1000:int reads_1000:int gb_read:int"),
    ("LakeTrials", "well:bool trials:[LakeTrial]"),
    ("LakeTrial", "what:text fault:text? took_us:int"),
    ("Replicas", "replicas:[Replica]"),
    (
        "Replica",
        "volume:text lake:text other:text state:copying|promoting|promoted since_ms:int walked:bool lag_files:int lag_bytes:int \
         lag_ms:int at_least:bool copies:int foreign:[text] lacking_files:int lacking_bytes:int rescued_files:int trouble:text?",
    ),
    ("Lacking", "files:[LackingFile] more:bool"),
    ("LackingFile", "key:text version:text bytes:int modified_ms:int"),
    ("RuleSets", "policies:[RuleSet]"),
    (
        "RuleSet",
        "name:text created_ms:int volumes:[text] rules:[text] passes:int next_ms:int looked:int moved_files:int moved_bytes:int \
         failed_files:int requests:int micros:int",
    ),
    ("PolicyPlan", "rules:[PlannedRule] looked:int at_least:bool seconds:int is_priced:bool"),
    ("PlannedRule", "rule:text action:text files:int file_bytes:int requests:int bytes:int micros:int"),
    ("PolicyMoves", "moves:[PolicyMove] more:bool"),
    (
        "PolicyMove",
        "at_ms:int number:int volume:text key:text rule:text action:text reason:text bytes:int requests:int micros:int result:text",
    ),
    ("PlanModels", "models:[PlanModel] constants:[any] changes:[any]"),
    ("PlanModel", "name:text kind:text model:stoker|lab words:text fields:[any]"),
    (
        "Plan",
        "form:int kind:text model:text inputs:any input_texts:[any] title:text tone:ok|warn|bad|plain reasons:[text] \
         figures:[PlanFigure] changes:[any] curves:[any] constants:[any] assumptions:[text] moved?:any",
    ),
    ("PlanFigure", "name:text label:text value:num? unit:text text:text tone:ok|warn|bad|plain"),
    ("PlanCalibration", "form:int at_ms:int machine:text values:any"),
    ("PlanLedger", "entries:[any] skipped:[text] errors:[any] over_time:[any]"),
    ("PlanKept", "id:text"),
];

/// The shapes of bodies.
pub const BODIES: &[(&str, &str)] = &[
    ("Nothing", ""),
    ("Login", "token:word"),
    ("Force", "force?:bool"),
    ("VolumeAuditChange", "level:changes|full"),
    ("Remove", "force?:bool accept_loss?:bool"),
    ("DriveAdd", "path:word size_bytes?:int?"),
    ("DriveCordon", "drive:word cordoned:bool"),
    ("LevelHold", "held:bool"),
    ("Repaired", "part:word"),
    ("Promote", "accept_loss?:bool"),
    ("Detach", "node:word"),
    ("VolumeNew", "name:word lake?:text? policy?:PolicyChange"),
    (
        "PolicyChange",
        "class?:auto|one|two|three spread?:node|tor|power when_alone?:refuse|lake drain?:Drain drain_quiet_s?:u32 \
         drain_lag_max_s?:u32 quota_bytes?:int lake_mode?:owned|shared|read_only leases?:bool",
    ),
    ("Prefix", "prefix?:text"),
    ("Key", "key:word"),
    ("Keys", "keys:[word]"),
    ("Rename", "from:word to:word replace?:bool"),
    ("Resolve", "key:word resolution:ours|theirs|keep_both"),
    ("KeyNew", "read_only?:bool prefixes?:[word] uid?:u32 gid?:u32"),
    ("KeyRotate", "grace_s?:u32?"),
    ("JoinTokenNew", "ttl_s?:u32? uses?:u32?"),
    (
        "QosChange",
        "floor_bytes_per_s?:int? floor_ops_per_s?:int? ceiling_bytes_per_s?:int? ceiling_ops_per_s?:int? weight?:u32? \
         latency?:interactive|bulk burst_ms?:u32?",
    ),
    ("ExportNew", "volume:word prefix?:text tenant?:text? job?:text? qos?:QosChange idempotency_key?:text?"),
    (
        "LakeNew",
        "name:word url:word endpoint?:text? region?:text? path_style?:bool? access_key_id?:text? secret_access_key?:text? \
         storage_class?:text? gb_month?:int? writes_1000?:int? reads_1000?:int? gb_read?:int? requests_per_s?:int? \
         bytes_per_s?:int? labels?:pairs",
    ),
    (
        "LakeChange",
        "url?:text? endpoint?:text? region?:text? path_style?:bool? access_key_id?:text? secret_access_key?:text? \
         storage_class?:text? gb_month?:int? writes_1000?:int? reads_1000?:int? gb_read?:int? requests_per_s?:int? \
         bytes_per_s?:int? labels?:pairs",
    ),
    ("ReplicaSet", "lake?:text?"),
    ("LakePromote", "to:word"),
    ("PolicyText", "rules:word"),
    ("PolicyNew", "name:word rules:word"),
    ("PlanRequest", "inputs:Anything model?:lab|stoker calibration?:any change?:text?"),
    ("PlanKeep", "kind:word job:word inputs:Anything model?:lab|stoker calibration?:any"),
    (
        "JobSubmit",
        "id?:word spec?:any name?:text project?:text owner?:word user?:word expected_start_ms?:int",
    ),
    ("JobStart", "nodes?:[word]"),
    ("JobEnd", "failed?:bool reason?:text"),
    ("JobReason", "reason?:text"),
    ("JobExpect", "start_ms:int"),
    ("JobWindowAsk", "bytes?:int in_ms?:int wait_ms_max?:int done?:bool"),
];

/// All shapes as JSON Schema, by name.
pub fn components() -> Map<String, Value> {
    let answers = SHAPES.iter().map(|(name, shape)| ((*name).to_owned(), object(shape, Others::Allowed)));
    let bodies = BODIES.iter().map(|(name, shape)| ((*name).to_owned(), object(shape, Others::Refused)));
    let special = [
        ("Anything", json!({ "type": "object" })),
        (
            "Drain",
            json!({ "oneOf": [
                { "enum": ["always", "never", "on_demand"] },
                { "type": "object", "properties": { "every": { "type": "integer", "minimum": 1, "maximum": u32::MAX } },
                  "required": ["every"], "additionalProperties": false },
            ] }),
        ),
        ("DrainState", json!({ "enum": ["dirty", "clean", "never", "conflict"] })),
    ];
    let special = special.into_iter().map(|(name, schema)| (name.to_owned(), schema));
    answers.chain(bodies).chain(special).collect()
}

/// Whether a body has fields that must be there; without, there may be no body at all.
pub fn is_needed(body: &str) -> bool {
    let shape = BODIES.iter().find(|(name, _)| *name == body).map_or("", |(_, shape)| shape);
    shape.split_whitespace().any(|field| !field.contains("?:"))
}

/// A reference to a shape.
pub fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// Whether an object may have fields that are not named.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    Allowed,
    Refused,
}

fn object(shape: &str, others: Others) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for field in shape.split_whitespace() {
        let (name, kind) = field.split_once(':').unwrap_or((field, "any"));
        let plain = name.strip_suffix('?');
        if plain.is_none() {
            required.push(name);
        }
        properties.insert(plain.unwrap_or(name).to_owned(), schema(kind));
    }
    let mut value = json!({ "type": "object", "properties": properties, "required": required });
    if others == Others::Refused {
        value["additionalProperties"] = false.into();
    }
    value
}

fn schema(kind: &str) -> Value {
    if let Some(inner) = kind.strip_suffix('?') {
        return json!({ "anyOf": [schema(inner), { "type": "null" }] });
    }
    if let Some(inner) = kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')) {
        return json!({ "type": "array", "items": schema(inner) });
    }
    match kind {
        "text" => json!({ "type": "string" }),
        "word" => json!({ "type": "string", "minLength": 1 }),
        "int" => json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX }),
        "u32" => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
        "num" => json!({ "type": "number" }),
        "bool" => json!({ "type": "boolean" }),
        "any" => json!({}),
        "pairs" => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        words if words.contains('|') => json!({ "enum": words.split('|').collect::<Vec<_>>() }),
        name => reference(name),
    }
}
