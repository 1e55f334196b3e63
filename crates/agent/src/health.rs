//! What a node is good for, as its endpoints say it.

use std::sync::Arc;

use stoker_admin::{Health, HealthSource};
use stoker_catalog::Health as CatalogHealth;
use stoker_node::Node;

/// What a node is good for, for `/healthz` and `/readyz`. Keeps no node alive.
pub(crate) fn health(node: &Arc<Node>) -> HealthSource {
    let node = Arc::downgrade(node);
    Box::new(move || {
        let Some(node) = node.upgrade() else { return Health::Good };
        match node.catalog_health() {
            CatalogHealth::Failed(why) => return Health::Failed(format!("the catalog: {why}")),
            CatalogHealth::ReadOnly(why) => {
                return Health::Degraded(format!("the catalog takes no changes: {why}"));
            }
            CatalogHealth::Stalled => {
                let why = "the catalog acknowledges nothing: too few nodes that follow it answer";
                return Health::Degraded(why.to_owned());
            }
            CatalogHealth::Good => {}
        }
        let unreachable = node.members().unreachable();
        let own = node.id().to_string();
        if let Some(one) = unreachable.iter().find(|one| one.node == own) {
            return Health::Degraded(one.to_string());
        }
        let standby = match node.standby_health() {
            None | Some(CatalogHealth::Good | CatalogHealth::Stalled) => None,
            Some(CatalogHealth::ReadOnly(why) | CatalogHealth::Failed(why)) => {
                Some(format!("the copy of the catalog on this node does not follow: {why}"))
            }
        };
        let warnings: Vec<String> = unreachable.iter().map(ToString::to_string).chain(standby).collect();
        if warnings.is_empty() { Health::Good } else { Health::Warned(warnings.join("; ")) }
    })
}
