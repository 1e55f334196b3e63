//! The renewer has a node's certificate replaced when two thirds of its life are over.

use std::sync::Arc;
use std::time::Duration;

use super::authority::{Issuer, now_s};
use super::credentials::{Credentials, Identity};

/// Pause after a renewal that failed; there are days left to try.
const RETRY_PAUSE: Duration = Duration::from_secs(60);
/// Longest sleep, so that a machine that was suspended or had its clock set notices.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// Renews for ever; `keep` gets each new identity, to be written to its file.
pub async fn renew_forever(credentials: Arc<Credentials>, issuer: Arc<dyn Issuer>, keep: impl Fn(Identity)) {
    loop {
        let (from_s, until_s) = credentials.validity_s();
        let wait = wait_s(from_s, until_s, now_s());
        if wait > 0 {
            tokio::time::sleep(Duration::from_secs(wait).min(SLEEP_MAX)).await;
            continue;
        }
        match credentials.renew(&*issuer).await {
            Ok(()) => keep(credentials.identity()),
            Err(error) => {
                let left_s = until_s.saturating_sub(now_s());
                tracing::error!(%error, left_s, "this node's certificate was not renewed; it will be refused when time is up");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Seconds until a certificate is due.
fn wait_s(from_s: u64, until_s: u64, now_s: u64) -> u64 {
    let life_s = until_s.saturating_sub(from_s);
    (from_s + life_s / 3 * 2).saturating_sub(now_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_after_two_thirds() {
        assert_eq!(wait_s(1000, 1300, 1000), 200);
        assert_eq!(wait_s(1000, 1300, 1199), 1);
        assert_eq!(wait_s(1000, 1300, 1200), 0);
        assert_eq!(wait_s(1000, 1300, 9999), 0);
        assert_eq!(wait_s(1300, 1000, 1300), 0);
    }
}
