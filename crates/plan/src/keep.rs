//! The design ledger: in notes of the catalog, a page after the other, or in a file.

use std::io::Write;
use std::path::Path;

use stoker_client::Client;
use stoker_planner::{Ledger, ledger};
use stoker_store::{ErrorKind, Order, Report, Store};

use super::document;
use crate::failure::Failure;

/// All lines of the catalog.
pub async fn text(client: &Client) -> Result<String, Failure> {
    let mut text = String::new();
    for number in 0..ledger::PAGES_MAX {
        let Some(name) = ledger::page(number) else { break };
        match client.operate(Order::Note { name }).await? {
            Report::Note(Some(page)) => text.push_str(&page),
            Report::Note(None) => break,
            _ => return Err(Failure::confused()),
        }
    }
    Ok(text)
}

/// Adds a line to the last page that has room.
pub async fn add(client: &Client, line: &str) -> Result<(), Failure> {
    for number in 0..ledger::PAGES_MAX {
        let Some(name) = ledger::page(number) else { break };
        match client.operate(Order::NoteAdd { name, line: line.to_owned() }).await {
            Ok(_) => return Ok(()),
            // The page is full.
            Err(error) if error.kind == ErrorKind::Conflict => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failure::new("the ledger is full")
        .hint("export it, and keep further predictions in a file with --ledger"))
}

/// Adds a line to a file.
pub fn append(path: &Path, line: &str) -> Result<(), Failure> {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
        .map_err(|error| Failure::io(path.display(), &error))
}

/// The ledger in a file.
pub fn read(path: &Path) -> Result<Ledger, Failure> {
    Ok(Ledger::parse(&document(path)?))
}
