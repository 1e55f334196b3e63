//! The node that the driver asks. It may come later than the driver, and go and come back.

use stoker_client::{Client, Endpoint};
use stoker_store::Store;
use tokio::sync::{Mutex, OnceCell};
use tonic::Status;

use crate::answer::{Answer, fault};

/// Letters of a cluster's id that ids of volumes begin with.
const CLUSTER_LEN: usize = 8;

/// A connection that is made when it is needed.
pub struct Door {
    endpoint: Endpoint,
    token: Option<String>,
    client: Mutex<Option<Client>>,
    cluster: OnceCell<String>,
}

impl Door {
    /// Names the node, and asks nothing yet.
    pub fn new(endpoint: Endpoint, token: Option<String>) -> Door {
        Door { endpoint, token, client: Mutex::new(None), cluster: OnceCell::new() }
    }

    /// The door, if the node answers. Afterwards the client makes its connection again by itself.
    pub async fn open(&self) -> Answer<Client> {
        let mut client = self.client.lock().await;
        if client.is_none() {
            let made = Client::connect(&self.endpoint, self.token.as_deref()).await;
            *client = Some(made.map_err(fault)?);
        }
        client.clone().ok_or_else(|| Status::unavailable("the node does not answer"))
    }

    /// What ids of this cluster begin with.
    pub async fn cluster(&self) -> Answer<&str> {
        let ask = || async {
            let status = self.open().await?.status().await.map_err(fault)?;
            Ok::<String, Status>(
                status.cluster.chars().filter(char::is_ascii_alphanumeric).take(CLUSTER_LEN).collect(),
            )
        };
        self.cluster.get_or_try_init(ask).await.map(String::as_str)
    }
}
