//! How often a client may ask: one bucket of permits for each address, in a bounded table.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// Addresses that are remembered. Beyond, the one that was seen longest ago is forgotten, and begins with a full bucket.
const ADDRESSES_MAX: usize = 4_096;

/// A limit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// Permits that come back each second.
    pub per_s: f64,
    /// Permits that can be saved up.
    pub burst: f64,
}

#[derive(Clone, Copy)]
struct Bucket {
    permits: f64,
    at: Instant,
}

/// The buckets.
pub struct Rates {
    rate: Rate,
    buckets: Mutex<HashMap<IpAddr, Bucket>>,
}

impl Rates {
    pub fn new(rate: Rate) -> Rates {
        Rates { rate, buckets: Mutex::new(HashMap::new()) }
    }

    /// Takes a permit; says after how many seconds there is one if there is none now.
    pub fn take(&self, address: IpAddr, now: Instant) -> Result<(), u64> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= ADDRESSES_MAX && !buckets.contains_key(&address) {
            let oldest = buckets.iter().min_by_key(|(_, bucket)| bucket.at).map(|(address, _)| *address);
            oldest.map(|address| buckets.remove(&address));
        }
        let bucket = buckets.entry(address).or_insert(Bucket { permits: self.rate.burst, at: now });
        let earned = now.saturating_duration_since(bucket.at).as_secs_f64() * self.rate.per_s;
        bucket.permits = (bucket.permits + earned).min(self.rate.burst);
        bucket.at = now;
        if bucket.permits >= 1.0 {
            bucket.permits -= 1.0;
            return Ok(());
        }
        Err(((1.0 - bucket.permits) / self.rate.per_s).ceil().max(1.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_empties_and_fills_again() {
        let rates = Rates::new(Rate { per_s: 0.5, burst: 2.0 });
        let (one, other) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::BROADCAST));
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!((rates.take(one, at(0)), rates.take(one, at(0))), (Ok(()), Ok(())));
        assert_eq!(rates.take(one, at(0)), Err(2));
        assert_eq!(rates.take(other, at(0)), Ok(()), "each address has its own");
        assert_eq!(rates.take(one, at(1)), Err(1));
        assert_eq!(rates.take(one, at(2)), Ok(()));
        // What is saved up has a limit.
        assert_eq!((rates.take(one, at(900)), rates.take(one, at(900))), (Ok(()), Ok(())));
        assert!(rates.take(one, at(900)).is_err());
    }

    #[test]
    fn the_table_is_bounded() {
        let rates = Rates::new(Rate { per_s: 1.0, burst: 1.0 });
        let now = Instant::now();
        for address in 0..2 * ADDRESSES_MAX as u32 {
            rates
                .take(IpAddr::V4(Ipv4Addr::from(address)), now + Duration::from_micros(address.into()))
                .unwrap();
        }
        assert_eq!(rates.buckets.lock().unwrap().len(), ADDRESSES_MAX);
    }
}
