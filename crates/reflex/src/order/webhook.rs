//! A plain webhook: the work order as it is.

use serde::Serialize;

use super::{WorkOrder, json};

#[derive(Serialize)]
struct Body<'a> {
    /// Raised when a field changes its meaning; new fields do not raise it.
    version: u32,
    work_order: &'a WorkOrder,
    text: String,
}

pub(super) fn body(order: &WorkOrder) -> Vec<u8> {
    json(&Body { version: 1, work_order: order, text: order.text() })
}
