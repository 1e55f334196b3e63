//! The OpenAPI document, made from the table of routes.

use serde_json::{Map, Value, json};

use super::given::VALUE_LEN_MAX;
use super::routes::{Kind, PATH_PARAMETERS, Parameter, Route, all};
use super::schema;
use crate::access::{CSRF_HEADER, Role};

/// What every call may answer beside its own.
const REFUSALS: [(u16, &str); 8] = [
    (400, "The request makes no sense."),
    (401, "Nobody knows this token or session, or the session expired."),
    (403, "This role may not do it."),
    (404, "There is no such thing."),
    (405, "Another method is meant."),
    (409, "Somebody else was first, or a condition does not hold."),
    (429, "Too many requests; `Retry-After` says when."),
    (503, "The node cannot do it now."),
];

/// The same for calls with a body.
const REFUSALS_OF_BODIES: [(u16, &str); 2] = [(413, "The body is too long."), (415, "The body is no JSON.")];

/// The document.
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in all() {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.verb.as_str().to_ascii_lowercase()] = operation(route);
    }
    let csrf = format!(
        "The session of the console. Changing calls repeat the word `csrf` of `GET /api/v1/session` in `{CSRF_HEADER}`."
    );
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Stoker admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Everything that the console and the command line show and do. Errors are objects with \
                            `error`, `kind` and `hint`. Times end in `_ms` (since 1970) or `_s`, sizes in `_bytes`.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schema::components(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`token` of the node's directory for operators, `view-token` for those who look.",
                },
                "session": { "type": "apiKey", "in": "cookie", "name": "stoker-session-PORT", "description": csrf },
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let named = |name: &str| PATH_PARAMETERS.iter().find(|parameter| parameter.name == name);
    let in_path = route.path.split('/').filter_map(|part| named(part.strip_prefix('{')?.strip_suffix('}')?));
    let parameters: Vec<Value> = in_path
        .map(|one| parameter(one, "path"))
        .chain(route.query.iter().map(|one| parameter(one, "query")))
        .collect();
    let mut responses = json!({ "200": content("Done.", route.answer) });
    for (status, words) in REFUSALS.iter().chain(REFUSALS_OF_BODIES.iter().filter(|_| route.changes())) {
        responses[status.to_string()] = content(words, "Error");
    }
    let mut operation = json!({
        "operationId": id(route),
        "summary": route.summary,
        "tags": [route.path.split('/').nth(3).unwrap_or("node")],
        "x-role": route.role.map_or("none", Role::as_str),
        "security": match route.role {
            Some(_) => json!([{ "token": [] }, { "session": [] }]),
            None => json!([]),
        },
        "responses": responses,
    });
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = route.body {
        operation["requestBody"] = json!({
            "required": schema::is_needed(body),
            "content": { "application/json": { "schema": schema::reference(body) } },
        });
    }
    operation
}

/// `POST /api/v1/nodes/{node}/evacuate` is `post_nodes_node_evacuate`.
fn id(route: &Route) -> String {
    let words =
        route.path.trim_start_matches("/api/v1/").replace(['/', '-', '.'], "_").replace(['{', '}'], "");
    format!("{}_{words}", route.verb.as_str().to_ascii_lowercase())
}

fn content(words: &str, shape: &str) -> Value {
    json!({ "description": words, "content": { "application/json": { "schema": schema::reference(shape) } } })
}

fn parameter(parameter: &Parameter, place: &str) -> Value {
    let schema = match parameter.kind {
        Kind::Text => json!({ "type": "string", "minLength": 1, "maxLength": VALUE_LEN_MAX }),
        Kind::Bytes => json!({ "type": "string", "maxLength": VALUE_LEN_MAX }),
        Kind::Number { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Flag => json!({ "type": "boolean" }),
    };
    json!({
        "name": parameter.name,
        "in": place,
        "required": parameter.is_needed,
        "description": parameter.words,
        "schema": schema,
    })
}
