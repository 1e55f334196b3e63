//! Reads away what is left of a refused body, so that the client gets to see why instead of a broken connection.

use std::time::Duration;

use super::arrivals::{Arrival, Arrivals};

/// Most bytes that are read away.
const BYTES_MAX: usize = 16 << 20;
/// Longest time that is spent on it.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Discards the rest; true if nothing can follow, so that the connection may be used again.
pub(crate) async fn discard(arrivals: &mut Arrivals, waits_for_continue: bool) -> bool {
    if waits_for_continue && !arrivals.is_touched() {
        return arrivals.is_ended();
    }
    let drain = async {
        let mut bytes = 0;
        while !arrivals.is_ended() && bytes < BYTES_MAX {
            match arrivals.next(None).await {
                Ok(Arrival::Data(data)) => bytes += data.len(),
                Ok(Arrival::Quiet) => {}
                Ok(Arrival::End) | Err(_) => break,
            }
        }
    };
    let _ = tokio::time::timeout(TIME_MAX, drain).await;
    arrivals.is_ended()
}
