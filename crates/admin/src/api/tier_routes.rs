//! Routes about lakes with names, and second lakes of volumes.

use super::routes::{NONE, Route, call, get, post};
use super::tiers;
use crate::access::Role;

/// Every call about them.
pub static ROUTES: &[Route] = &[
    get("/api/v1/lakes", call!(tiers::lakes), "Lakes with names, without their secrets.", NONE, "Lakes"),
    post("/api/v1/lakes", call!(tiers::add), "Give a lake a name.", "LakeNew", "Lake"),
    post(
        "/api/v1/lakes/{lake}",
        call!(tiers::set),
        "Change a lake; what is not named stays.",
        "LakeChange",
        "Lake",
    ),
    post(
        "/api/v1/lakes/{lake}/check",
        call!(tiers::check),
        "Try everything that Stoker does with a lake.",
        "Nothing",
        "LakeTrials",
    ),
    post(
        "/api/v1/lakes/{lake}/remove",
        call!(tiers::remove),
        "Forget a lake that no volume uses; its objects stay.",
        "Nothing",
        "Done",
    ),
    get(
        "/api/v1/replicas",
        call!(tiers::replicas),
        "Second lakes of volumes, and how far they are behind.",
        NONE,
        "Replicas",
    ),
    post(
        "/api/v1/volumes/{volume}/replica",
        call!(tiers::replica),
        "Give a volume a second lake, or take it away.",
        "ReplicaSet",
        "Replicas",
    ),
    post(
        "/api/v1/volumes/{volume}/promote",
        call!(tiers::promote),
        "Make the second lake of a volume its lake.",
        "LakePromote",
        "Replicas",
    ),
    get(
        "/api/v1/volumes/{volume}/lacking",
        call!(tiers::lacking),
        "Files that only the former lake of a volume has.",
        NONE,
        "Lacking",
    ),
    get(
        "/api/v1/policies",
        call!(tiers::policies),
        "Rules that nodes act by, and what came of them.",
        NONE,
        "RuleSets",
    ),
    Route {
        role: Some(Role::View),
        asks: true,
        ..post(
            "/api/v1/policies/plan",
            call!(tiers::policy_plan),
            "What rules would do now. Changes nothing.",
            "PolicyText",
            "PolicyPlan",
        )
    },
    post(
        "/api/v1/policies",
        call!(tiers::policy_set),
        "Keep rules, and act by them.",
        "PolicyNew",
        "RuleSet",
    ),
    post(
        "/api/v1/policies/{policy}/remove",
        call!(tiers::policy_remove),
        "Act no more by rules.",
        "Nothing",
        "Done",
    ),
    get(
        "/api/v1/policies/{policy}/moves",
        call!(tiers::policy_moves),
        "What was moved by rules, oldest first.",
        NONE,
        "PolicyMoves",
    ),
];
