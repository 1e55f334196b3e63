//! What clients do.

pub mod sets;

use std::time::Duration;

use super::client::{Change, Clients};
use super::invariants::Broken;
use super::network::Host;
use crate::rng::Rng;

/// Keys that all clients share: few, so that they meet.
const KEYS: [&str; 7] = ["a", "b", "c", "d/e", "d/f", "g", "h"];

/// Clients at the same time.
const CLIENTS: usize = 3;

/// A bit of everything.
pub async fn mixed(clients: &Clients, rng: &mut Rng) -> Result<(), Broken> {
    let (requests, pause_ms) = (rng.between(10, 40), rng.between(50, 1_200));
    let mut one = || one_client(clients, Rng::new(rng.number()), requests, pause_ms);
    let all: [_; CLIENTS] = std::array::from_fn(|_| Box::pin(one()));
    let [a, b, c] = all;
    let (a, b, c) = tokio::join!(biased; a, b, c);
    a.and(b).and(c)
}

async fn one_client(clients: &Clients, mut rng: Rng, requests: usize, pause_ms: usize) -> Result<(), Broken> {
    for _ in 0..requests {
        tokio::time::sleep(Duration::from_millis(rng.below(pause_ms) as u64)).await;
        let (name, other) = (KEYS[rng.below(KEYS.len())], KEYS[rng.below(KEYS.len())]);
        let kind = rng.below(100);
        let Some(host) = clients.some_host() else { continue };
        match kind {
            0..35 => drop(clients.get(&host, name).await?),
            35..60 => clients.change(&host, name, Change::Put).await?,
            60..66 => burst(clients, &host).await?,
            66..70 => sets::write(clients, &host).await,
            70..76 => clients.change(&host, name, Change::Append).await?,
            76..84 => clients.change(&host, name, Change::Delete).await?,
            84..88 => clients.change(&host, name, Change::Upload).await?,
            88..94 => clients.move_or_copy(&host, name, other, true).await,
            _ => clients.move_or_copy(&host, name, other, false).await,
        }
    }
    Ok(())
}

/// Many files at once through one node, whose drive then has several writes under way.
async fn burst(clients: &Clients, host: &Host) -> Result<(), Broken> {
    let puts = KEYS.iter().map(|name| clients.change(host, name, Change::Put));
    futures_util::future::join_all(puts).await.into_iter().collect()
}
