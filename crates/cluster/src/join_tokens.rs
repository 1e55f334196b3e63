//! Tokens that let nodes join: made, listed, revoked, and counted when they are used.
//!
//! A token is a row of the catalog: the public half of its key, until when it works, how many nodes it lets join and which did.
//! Every change is a transaction on the commit that wrote the row last, so that of two nodes which come with the last use of a
//! token at the same time, through whichever members, one joins. A use is counted before the cluster's keys are handed out: a node
//! that dies in between costs a use and has joined nothing. Time is the catalog's, since that is the one clock of all. (D87)

use stoker_catalog::kv::Commit;
use stoker_catalog::{Check, Row};
use stoker_fabric::transport::{Token, TokenId, TokenKey};
use stoker_format::NodeId;
use stoker_schema::rows::{JoinTokenRow, JoinUse, RowValue, keys};
use stoker_store::{
    ErrorKind, JOIN_TOKEN_TTL_MS_MAX, JOIN_TOKEN_USES_MAX, JoinTokenInfo, JoinTokenState, Result, StoreError,
};

use crate::members::Members;
use crate::{clock, error};

/// Tokens that are known at once, working or not.
const TOKENS_MAX: usize = 1_000;

/// How long one that works no more is listed, and known to whoever comes with it.
const LISTED_MS: u64 = 7 * 24 * 3_600_000;

/// Tries of a transaction that others were quicker with.
const TRIES_MAX: usize = 32;

const ADVICE: &str = "make another with `stoker join-token create` on any node of the cluster";

fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Invalid, message)
}

fn contended() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "join tokens are contended; try again")
}

/// Whether a token works at this time.
fn state(row: &JoinTokenRow, now_ms: u64) -> JoinTokenState {
    match row {
        row if row.revoked_ms.is_some() => JoinTokenState::Revoked,
        row if row.uses.len() >= row.uses_max as usize => JoinTokenState::UsedUp,
        row if now_ms >= row.expires_ms => JoinTokenState::Expired,
        _ => JoinTokenState::Valid,
    }
}

/// The token with one use more, or why not.
fn used(row: &JoinTokenRow, node: NodeId, now_ms: u64) -> std::result::Result<JoinTokenRow, String> {
    match state(row, now_ms) {
        JoinTokenState::Valid => {}
        JoinTokenState::Expired => return Err(format!("the token has expired; {ADVICE}")),
        JoinTokenState::UsedUp => return Err(format!("the token is used up; {ADVICE}")),
        JoinTokenState::Revoked => return Err(format!("the token was revoked; {ADVICE}")),
    }
    let mut row = row.clone();
    row.uses.push(JoinUse { node: node.0, at_ms: now_ms });
    Ok(row)
}

/// True if nobody needs to know of it any more.
fn is_old(row: &JoinTokenRow, now_ms: u64) -> bool {
    let ended_ms = row.revoked_ms.unwrap_or(row.expires_ms).min(row.expires_ms);
    state(row, now_ms) != JoinTokenState::Valid && now_ms >= ended_ms.saturating_add(LISTED_MS)
}

fn info(row: &JoinTokenRow, now_ms: u64) -> JoinTokenInfo {
    JoinTokenInfo {
        id: TokenKey(row.key).id().to_string(),
        state: state(row, now_ms),
        created_ms: row.created_ms,
        expires_ms: row.expires_ms,
        uses_max: row.uses_max,
        nodes: row.uses.iter().map(|one| NodeId(one.node).to_string()).collect(),
    }
}

impl Members {
    /// Makes a token that lets so many nodes join within this time. Nobody can tell it a second time.
    pub async fn join_token_create(&self, ttl_ms: u64, uses: u32) -> Result<(String, JoinTokenInfo)> {
        let Some(fingerprint) = self.join_fingerprint.get() else {
            return Err(invalid("this node is in no cluster, so no other node can join it"));
        };
        if ttl_ms == 0 || ttl_ms > JOIN_TOKEN_TTL_MS_MAX {
            return Err(invalid("a join token works for 30 days at most, and not for no time"));
        }
        if uses == 0 || uses > JOIN_TOKEN_USES_MAX {
            return Err(invalid(format!("a join token lets 1 to {JOIN_TOKEN_USES_MAX} nodes join")));
        }
        let token = Token { fingerprint: *fingerprint, secret: clock::random() };
        let key = token.key();
        let now_ms = self.now_ms().await?;
        let row = JoinTokenRow {
            key: key.0,
            created_ms: now_ms,
            expires_ms: now_ms.saturating_add(ttl_ms),
            uses_max: uses,
            uses: Vec::new(),
            revoked_ms: None,
        };
        let row_key = keys::join_token(key.id().0);
        for _ in 0..TRIES_MAX {
            let mut change = Commit::new().check(Check::Absent(row_key.clone()));
            let mut known = 0;
            for (old, token) in self.join_token_rows().await? {
                if is_old(&token, now_ms) {
                    change = change.seq(old.key.clone(), old.seq).delete(old.key);
                } else {
                    known += 1;
                }
            }
            if known >= TOKENS_MAX {
                let message =
                    format!("the cluster knows {known} join tokens, which is the most; they go in time");
                return Err(StoreError::new(ErrorKind::Full, message));
            }
            let change = change.delete(keys::JOIN_SECRET).put(row_key.clone(), row.encode());
            if self.change(change).await? {
                return Ok((token.to_string(), info(&row, now_ms)));
            }
        }
        Err(contended())
    }

    /// Every token that works, and those that did not long ago; the newest last.
    pub async fn join_tokens(&self) -> Result<Vec<JoinTokenInfo>> {
        let now_ms = self.now_ms().await?;
        let rows = self.join_token_rows().await?;
        let mut tokens: Vec<JoinTokenInfo> = rows.iter().map(|(_, token)| info(token, now_ms)).collect();
        tokens.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        Ok(tokens)
    }

    /// Lets nobody join any more by a token, or by any; gives those that worked until now.
    pub async fn join_token_revoke(&self, id: Option<&str>) -> Result<Vec<JoinTokenInfo>> {
        let id = id.map(|id| id.parse::<TokenId>().map_err(|()| unknown(id))).transpose()?;
        let now_ms = self.now_ms().await?;
        let mut revoked = Vec::new();
        let mut is_known = id.is_none();
        for (_, token) in self.join_token_rows().await? {
            let own = TokenKey(token.key).id();
            if id.is_some_and(|id| id != own) {
                continue;
            }
            is_known = true;
            let last = self.change_token(own, |token| {
                (state(token, now_ms) == JoinTokenState::Valid)
                    .then(|| JoinTokenRow { revoked_ms: Some(now_ms), ..token.clone() })
            });
            revoked.extend(last.await?.map(|token| info(&token, now_ms)));
        }
        match id {
            Some(id) if !is_known => Err(unknown(&id.to_string())),
            _ => Ok(revoked),
        }
    }

    /// What proves a token; none if it is not known.
    pub async fn join_token_key(&self, id: TokenId) -> Result<Option<TokenKey>> {
        let token = self.join_token(id).await?;
        Ok(token.map(|(_, token)| TokenKey(token.key)))
    }

    /// Whether a node could join by a token; says why not.
    pub async fn join_token_check(
        &self,
        id: TokenId,
        node: NodeId,
    ) -> Result<std::result::Result<(), String>> {
        let now_ms = self.now_ms().await?;
        let token = self.join_token(id).await?;
        let unknown = || "the token is not known any more".to_owned();
        Ok(token.ok_or_else(unknown).and_then(|(_, token)| used(&token, node, now_ms).map(drop)))
    }

    /// Counts that a node joins by a token; says why not if it may not.
    pub async fn join_token_use(&self, id: TokenId, node: NodeId) -> Result<std::result::Result<(), String>> {
        let now_ms = self.now_ms().await?;
        let mut refused = Some("the token is not known any more".to_owned());
        let counted = self.change_token(id, |token| match used(token, node, now_ms) {
            Ok(token) => Some(token),
            Err(why) => {
                refused = Some(why);
                None
            }
        });
        Ok(match counted.await? {
            Some(_) => Ok(()),
            None => Err(refused.take().unwrap_or_default()),
        })
    }

    /// Replaces the row of a token by what is made of it, as long as something is; gives what it is now.
    async fn change_token(
        &self,
        id: TokenId,
        mut make: impl FnMut(&JoinTokenRow) -> Option<JoinTokenRow>,
    ) -> Result<Option<JoinTokenRow>> {
        for _ in 0..TRIES_MAX {
            let Some((row, token)) = self.join_token(id).await? else { return Ok(None) };
            let Some(next) = make(&token) else { return Ok(None) };
            if self.change(Commit::new().seq(row.key.clone(), row.seq).put(row.key, next.encode())).await? {
                return Ok(Some(next));
            }
        }
        Err(contended())
    }

    async fn join_token(&self, id: TokenId) -> Result<Option<(Row, JoinTokenRow)>> {
        let row = self.row(&keys::join_token(id.0)).await?;
        row.map(|row| Ok((row.clone(), JoinTokenRow::of(&row).map_err(error::catalog)?))).transpose()
    }

    async fn join_token_rows(&self) -> Result<Vec<(Row, JoinTokenRow)>> {
        let mut rows = Vec::new();
        let each = self.each(keys::JOIN_TOKENS, |row| {
            rows.push((row.clone(), JoinTokenRow::of(row).map_err(error::catalog)?));
            Ok(())
        });
        each.await?;
        Ok(rows)
    }
}

fn unknown(id: &str) -> StoreError {
    let message = format!("there is no join token `{id}`; `stoker join-token ls` shows them");
    StoreError::new(ErrorKind::NotFound, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(uses_max: u32, uses: usize, revoked_ms: Option<u64>) -> JoinTokenRow {
        let one = JoinUse { node: [1; 16], at_ms: 5 };
        JoinTokenRow {
            key: [7; 32],
            created_ms: 0,
            expires_ms: 100,
            uses_max,
            uses: vec![one; uses],
            revoked_ms,
        }
    }

    #[test]
    fn a_token_works_until_one_of_its_ends() {
        let check = |row: &JoinTokenRow, now_ms: u64, expect: JoinTokenState, word: &str| {
            assert_eq!(state(row, now_ms), expect);
            match used(row, NodeId([2; 16]), now_ms) {
                Ok(next) => assert!(expect == JoinTokenState::Valid && next.uses.len() == row.uses.len() + 1),
                Err(why) => assert!(expect != JoinTokenState::Valid && why.contains(word), "{why}"),
            }
        };
        check(&token(1, 0, None), 99, JoinTokenState::Valid, "");
        check(&token(2, 1, None), 0, JoinTokenState::Valid, "");
        check(&token(1, 0, None), 100, JoinTokenState::Expired, "expired");
        check(&token(1, 1, None), 5, JoinTokenState::UsedUp, "used up");
        check(&token(2, 0, Some(3)), 5, JoinTokenState::Revoked, "revoked");
        check(&token(1, 1, None), 1_000, JoinTokenState::UsedUp, "used up");
    }

    #[test]
    fn one_that_works_is_never_old() {
        assert!(!is_old(&token(1, 0, None), 99));
        assert!(!is_old(&token(1, 1, None), 50 + LISTED_MS));
        assert!(is_old(&token(1, 0, None), 100 + LISTED_MS));
        assert!(is_old(&token(1, 0, Some(3)), 3 + LISTED_MS));
    }
}
