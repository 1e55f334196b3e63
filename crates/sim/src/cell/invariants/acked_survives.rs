//! What was acknowledged can be read, byte for byte, through every node, after whatever happened.

use super::Broken;
use crate::cell::client::Clients;
use crate::cell::model::words;

/// Reads every key through every node of a cluster at rest.
pub async fn check(clients: &Clients) -> Result<(), Broken> {
    let names = clients.model().keys();
    for name in names {
        let mut first = None;
        for host in clients.cluster.net.hosts() {
            let at = host.process.machine.at;
            let Some(seen) = clients.get(&host, &name).await? else {
                let how = format!("`{name}` cannot be read through m{at}, although nothing is wrong");
                return Err(Broken::new("acked_survives", how));
            };
            match &first {
                None => first = Some(seen),
                Some(known) if *known != seen => {
                    let how = format!("`{name}`: m{at} shows {}, another {}", words(&seen), words(known));
                    return Err(Broken::new("read_your_writes", how));
                }
                Some(_) => {}
            }
        }
        if let Some(seen) = first {
            clients.model().settle(&name, seen);
        }
    }
    Ok(())
}
