//! Volumes of tenants: a user of the tenant mounts them, by a token that comes as a secret with each call and is nowhere else but in a
//! file that only root reads, for as long as the volume is staged.

use std::collections::HashMap;
use std::path::Path;

use stoker_client::{Client, ClientOptions, Endpoint};
use stoker_store::{ErrorKind, Store, TENANT_DEFAULT, volume_tenant};
use tonic::Status;

use crate::TenantDoor;
use crate::answer::{Answer, fault};
use crate::mounts::failed;
use crate::record::Place;

/// The attribute of a volume that names its tenant.
const TENANT: &str = "tenant";
/// The key of the secret.
const TOKEN: &str = "token";
/// Longest token that is taken.
const TOKEN_LEN_MAX: usize = 1024;

/// Attributes that a volume has beside its id.
pub fn context(place: &Place) -> HashMap<String, String> {
    match volume_tenant(&place.volume) {
        (TENANT_DEFAULT, _) => HashMap::new(),
        (tenant, _) => HashMap::from([(TENANT.to_owned(), tenant.to_owned())]),
    }
}

/// The token of a call: what is a tenant's is not mounted without one, and what comes with one is mounted with it.
pub fn token(context: &HashMap<String, String>, secrets: &HashMap<String, String>) -> Answer<Option<String>> {
    let token = secrets.get(TOKEN).map(|token| token.trim()).filter(|token| !token.is_empty());
    let Some(token) = token else {
        return match context.get(TENANT) {
            None => Ok(None),
            Some(tenant) => Err(Status::unauthenticated(format!(
                "the volume belongs to the tenant {tenant}: a Secret with the key {TOKEN} (stoker user token) is missing; \
                 csi.storage.k8s.io/node-stage-secret-name of the StorageClass names it"
            ))),
        };
    };
    if token.len() > TOKEN_LEN_MAX || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Status::unauthenticated("the secret is no token of a user"));
    }
    Ok(Some(token.to_owned()))
}

/// A volume as its tenant calls it, which is how a user of the tenant asks for it.
pub fn own_name(volume: &str) -> &str {
    volume_tenant(volume).1
}

impl TenantDoor {
    /// Refuses a token that does not open a volume, before anything is mounted.
    pub async fn check(&self, token: &str, volume: &str) -> Answer<()> {
        let options = match (&self.ca, &self.endpoint) {
            (Some(ca), Endpoint::Tls(_)) => {
                ClientOptions::default().trusting(ca).map_err(|error| failed("reading", ca, &error))?
            }
            _ => ClientOptions::default(),
        };
        let opened = async {
            let client = Client::connect_with(&self.endpoint, Some(token), options).await?;
            client.volume(own_name(volume)).await
        };
        match opened.await {
            Ok(found) if volume_tenant(&found.name).1 == own_name(volume) => Ok(()),
            Ok(found) => Err(Status::internal(format!("the node shows {} instead", found.name))),
            Err(error) if error.kind == ErrorKind::Denied => {
                Err(Status::unauthenticated(format!("the token of the secret: {}", error.message)))
            }
            Err(error) => Err(fault(error)),
        }
    }

    /// Arguments by which `stoker mount` asks there.
    pub fn arguments(&self, token: &Path) -> Vec<String> {
        let mut all = vec!["--endpoint".to_owned(), self.endpoint.to_string()];
        if let Some(ca) = &self.ca {
            all.extend(["--ca".to_owned(), ca.display().to_string()]);
        }
        all.extend(["--token-file".to_owned(), token.display().to_string()]);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(name: &str, value: &str) -> HashMap<String, String> {
        HashMap::from([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn a_tenants_volume_wants_a_token() {
        let place = |volume: &str| Place { volume: volume.into(), directory: None };
        assert!(context(&place("pvc-1")).is_empty());
        let of_acme = context(&place("acme_pvc-1"));
        assert_eq!(
            (of_acme.get(TENANT).map(String::as_str), own_name("acme_pvc-1")),
            (Some("acme"), "pvc-1")
        );
        let none = HashMap::new();
        assert_eq!(token(&none, &none).ok(), Some(None));
        assert_eq!(token(&of_acme, &map(TOKEN, "stk-1\n")).ok(), Some(Some("stk-1".to_owned())));
        for wrong in [
            none,
            map(TOKEN, " "),
            map("password", "stk-1"),
            map(TOKEN, "a b"),
            map(TOKEN, &"x".repeat(2000)),
        ] {
            assert_eq!(
                token(&of_acme, &wrong).err().unwrap().code(),
                tonic::Code::Unauthenticated,
                "{wrong:?}"
            );
        }
    }
}
