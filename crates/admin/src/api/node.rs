//! Calls about the node that is asked.

use std::sync::Arc;

use serde_json::json;

use super::given::Given;
use super::{Answered, Fault, openapi};
use crate::answer::{Asked, within};

pub async fn openapi(_: Arc<Asked>, _: Given) -> Answered {
    Ok(openapi::document().into())
}

pub async fn about(asked: Arc<Asked>, _: Given) -> Answered {
    let status = within(asked.timeout, asked.watched.status()).await.map_err(Fault::unavailable)?;
    let name = status.nodes.iter().find(|peer| peer.node == status.node).map(|peer| peer.name.clone());
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "node": status.node,
        "name": name.unwrap_or_default(),
        "cluster": status.cluster,
        "first_line": asked.first_line,
        "series_every_ms": asked.series_every.as_millis() as u64,
    })
    .into())
}

pub async fn status(asked: Arc<Asked>, _: Given) -> Answered {
    let status = within(asked.timeout, asked.watched.status()).await.map_err(Fault::unavailable)?;
    let mut value = super::shape::plain(&status);
    let outages = super::outages(&asked).await;
    value["outages"] = super::shape::plain(&outages.lost);
    value["stale"] = super::shape::plain(&outages.stale);
    Ok(value.into())
}

pub async fn outages(asked: Arc<Asked>, _: Given) -> Answered {
    Ok(super::shape::plain(&super::outages(&asked).await).into())
}

pub async fn series(asked: Arc<Asked>, given: Given) -> Answered {
    let mut value = asked.series.after(given.number("after_ms").unwrap_or(0));
    value["every_ms"] = json!(asked.series_every.as_millis() as u64);
    Ok(value.into())
}
