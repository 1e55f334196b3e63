//! How many connections each address has, so that one that opens many and says nothing cannot shut out the others: whoever asks
//! `/healthz` may kill a node that does not answer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Connections by address; as many entries as there are connections at most.
pub struct Shares {
    each_max: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection of an address, until it is dropped.
pub struct Share {
    shares: Arc<Shares>,
    address: IpAddr,
}

impl Shares {
    /// Of so many connections, one address may have three quarters: a proxy has all its users behind one.
    pub fn of(connections_max: usize) -> Arc<Shares> {
        let each_max = (connections_max - connections_max / 4).max(1);
        Arc::new(Shares { each_max, open: Mutex::default() })
    }

    /// One more connection of an address; none if it has its share.
    pub fn take(self: &Arc<Shares>, address: IpAddr) -> Option<Share> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= self.each_max {
            return None;
        }
        *count += 1;
        Some(Share { shares: Arc::clone(self), address })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut open = self.shares.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn no_address_takes_all_and_what_ends_is_forgotten() {
        let shares = Shares::of(8);
        let [one, other] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let held: Vec<Share> = std::iter::from_fn(|| shares.take(one)).take(100).collect();
        assert_eq!(held.len(), 6);
        assert!(shares.take(other).is_some(), "there is room for others");
        drop(held);
        assert!(shares.take(one).is_some());
        assert!(shares.open.lock().unwrap().is_empty());
        assert!(Shares::of(1).take(one).is_some(), "one connection is the least");
    }
}
