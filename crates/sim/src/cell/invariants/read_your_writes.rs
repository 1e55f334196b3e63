//! After the acknowledgement every node shows the new version; bytes that nobody wrote are shown by none.

use super::Broken;
use crate::cell::model::{Content, Model, ReadMark, words};

/// Holds what a node showed against what clients know.
pub fn check(
    model: &mut Model,
    name: &str,
    mark: &ReadMark,
    seen: &Content,
    at: usize,
) -> Result<(), Broken> {
    if model.may_be(name, mark, seen) {
        return Ok(());
    }
    let may: Vec<String> = model.possible(name).iter().map(words).collect();
    let how = format!("m{at} shows {} under `{name}`, which is {}", words(seen), may.join(" or "));
    Err(Broken::new("read_your_writes", how))
}
