//! Calls about access keys and join tokens.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use stoker_store::{Access, AccessKey, JOIN_TOKEN_TTL_MS_DEFAULT, JoinTokenInfo, Order, Report};

use super::given::Given;
use super::{Answered, Fault, confused, done, operate, store};
use crate::answer::Asked;
use crate::clock;

/// How long a replaced key works on if nothing is said.
const GRACE_S: u32 = 24 * 3_600;

/// Letters that nobody has to quote, five bits each.
const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyNew {
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    prefixes: Vec<String>,
    #[serde(default)]
    uid: u32,
    #[serde(default)]
    gid: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRotate {
    #[serde(default)]
    grace_s: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinTokenNew {
    #[serde(default)]
    ttl_s: Option<u32>,
    #[serde(default)]
    uses: Option<u32>,
}

fn shape(key: &AccessKey) -> Value {
    json!({
        "access_key": key.access_key,
        "read_only": key.access.read_only,
        "prefixes": key.access.prefixes,
        "uid": key.access.uid,
        "gid": key.access.gid,
        "created_ms": key.created_ms,
    })
}

fn made(key: &AccessKey) -> Value {
    let mut value = shape(key);
    value["secret_key"] = key.secret_key.clone().into();
    value
}

fn random_text(len: usize) -> Result<String, Fault> {
    let mut bytes = vec![0; len];
    let failed = |error| Fault::unavailable(format!("the kernel gave no random bytes: {error}"));
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect())
}

/// The secret parts are not told: whoever needs one made it, or asks on the machine of the node.
pub async fn all(asked: Arc<Asked>, _: Given) -> Answered {
    let keys = store(&asked)?.access_keys().await?;
    Ok(json!({ "keys": keys.iter().map(shape).collect::<Vec<_>>() }).into())
}

pub async fn create(asked: Arc<Asked>, given: Given) -> Answered {
    let KeyNew { read_only, prefixes, uid, gid } = given.body()?;
    if prefixes.len() > 100 || prefixes.iter().any(|prefix| prefix.len() > 1_200 || prefix.is_empty()) {
        return Err(Fault::invalid("`prefixes` has at most 100 entries: volume or volume/prefix"));
    }
    let key = AccessKey {
        access_key: format!("STKR{}", random_text(16)?),
        secret_key: random_text(40)?,
        access: Access { read_only, prefixes, uid, gid },
        created_ms: clock::unix_ms(),
    };
    store(&asked)?.access_key_put(key.clone()).await?;
    Ok(made(&key).into())
}

pub async fn rotate(asked: Arc<Asked>, given: Given) -> Answered {
    let KeyRotate { grace_s } = given.body()?;
    let grace_ms = u64::from(grace_s.unwrap_or(GRACE_S)) * 1_000;
    let access_key = given.text("access_key").to_owned();
    match operate(&asked, Order::KeyRotate { access_key, grace_ms }).await? {
        Report::Key(key) => Ok(made(&key).into()),
        _ => Err(confused()),
    }
}

pub async fn remove(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    let (store, access_key) = (store(&asked)?, given.text("access_key"));
    if store.access_key(access_key).await?.is_none() {
        let hint = "GET /api/v1/keys lists them";
        return Err(Fault::not_found(format!("there is no access key `{access_key}`"), hint));
    }
    store.access_key_delete(access_key).await?;
    done()
}

pub async fn rotate_join_token(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    match operate(&asked, Order::JoinTokenRotate).await? {
        Report::JoinToken(token) => Ok(json!({ "join_token": token }).into()),
        _ => Err(confused()),
    }
}

fn token_shape(token: &JoinTokenInfo) -> Value {
    json!({
        "id": token.id,
        "state": token.state.as_str(),
        "created_ms": token.created_ms,
        "expires_ms": token.expires_ms,
        "uses_max": token.uses_max,
        "nodes": token.nodes,
    })
}

pub async fn join_tokens(asked: Arc<Asked>, _: Given) -> Answered {
    match operate(&asked, Order::JoinTokens).await? {
        Report::JoinTokens(tokens) => {
            Ok(json!({ "tokens": tokens.iter().map(token_shape).collect::<Vec<_>>() }).into())
        }
        _ => Err(confused()),
    }
}

pub async fn create_join_token(asked: Arc<Asked>, given: Given) -> Answered {
    let JoinTokenNew { ttl_s, uses } = given.body()?;
    let ttl_ms = ttl_s.map_or(JOIN_TOKEN_TTL_MS_DEFAULT, |ttl_s| u64::from(ttl_s) * 1_000);
    match operate(&asked, Order::JoinTokenCreate { ttl_ms, uses: uses.unwrap_or(1) }).await? {
        Report::JoinTokenMade { token, info } => {
            let mut made = token_shape(&info);
            made["join_token"] = token.into();
            Ok(made.into())
        }
        _ => Err(confused()),
    }
}

pub async fn revoke_join_token(asked: Arc<Asked>, given: Given) -> Answered {
    let Nothing {} = given.body()?;
    match operate(&asked, Order::JoinTokenRevoke { id: Some(given.text("id").to_owned()) }).await? {
        Report::JoinTokens(_) => done(),
        _ => Err(confused()),
    }
}
