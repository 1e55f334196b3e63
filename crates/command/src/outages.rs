//! What does not answer, beside what a view shows: the same words in every command.

use serde_json::Value;
use stoker_store::{Order, Outages, Report, Store};

use crate::{clock, out, show, span};

/// Asks the node; nothing if it is of a release that does not know.
pub async fn ask(node: &impl Store) -> Outages {
    match node.operate(Order::Outages).await {
        Ok(Report::Outages(outages)) => outages,
        _ => Outages::default(),
    }
}

/// A view as JSON, with `outages` and `stale`.
pub fn beside(mut view: Value, outages: &Outages) -> Value {
    view["outages"] = show::plain(&outages.lost);
    view["stale"] = show::plain(&outages.stale);
    view
}

/// Whether a view shows what is true now.
pub fn is_present(outages: &Outages, view: &str) -> bool {
    outages.stale.iter().all(|stale| stale.view != view)
        && outages.lost.iter().all(|lost| lost.what != "catalog")
}

/// How old a view is, if the catalog did not answer for it.
pub fn age(outages: &Outages, view: &str) -> Option<String> {
    let stale = outages.stale.iter().find(|stale| stale.view == view)?;
    Some(match stale.as_of_ms {
        Some(ms) => {
            let age = span::human(clock::unix_ms().saturating_sub(ms));
            format!("{age} ago, when the catalog last answered")
        }
        None => "now, as far as the node knows without the catalog".to_owned(),
    })
}

/// Says what is lost and what helps, and how old the view is.
pub fn tell(outages: &Outages, view: &str) {
    for outage in &outages.lost {
        out::say(format!("{}\n  {}", outage.summary, outage.cure));
    }
    if let Some(age) = age(outages, view) {
        out::say(format!("as of {age}"));
    }
}
