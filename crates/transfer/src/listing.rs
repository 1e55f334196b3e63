//! The files below a prefix in Stoker.

use stoker_client::Client;
use stoker_store::{FileInfo, ListEntry, ListRequest, Store};
use tokio::sync::mpsc;

use super::{FileError, Item, Named, source};
use crate::failure::Failure;
use crate::show;

/// Entries per question.
const PAGE: usize = 1000;

impl Named for Box<FileInfo> {
    fn name(&self) -> String {
        show::name(self.key.as_bytes())
    }
}

/// Goes through a listing page by page.
pub struct Pages<'a> {
    client: &'a Client,
    volume: &'a str,
    request: Option<ListRequest>,
}

impl<'a> Pages<'a> {
    /// The entries below a prefix; with `flat` every file, else files and folders of one level.
    pub fn new(client: &'a Client, volume: &'a str, prefix: impl Into<Vec<u8>>, flat: bool) -> Pages<'a> {
        let delimiter = (!flat).then(|| b"/".to_vec());
        let request = ListRequest { prefix: prefix.into(), delimiter, after: None, limit: PAGE };
        Pages { client, volume, request: Some(request) }
    }

    /// The next entries; none at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<ListEntry>>, Failure> {
        let Some(mut request) = self.request.take() else { return Ok(None) };
        let page = self.client.list(self.volume, request.clone()).await?;
        if let Some(last) = page.entries.last().filter(|_| page.more) {
            request.after = Some(last.name().to_vec());
            self.request = Some(request);
        }
        Ok(Some(page.entries))
    }
}

/// The files below a prefix, in byte order. A listing that breaks off is an error of its own.
pub fn files(client: &Client, volume: &str, prefix: String) -> mpsc::Receiver<Item<Box<FileInfo>>> {
    let (client, volume) = (client.clone(), volume.to_owned());
    source(move |items| async move {
        let mut pages = Pages::new(&client, &volume, prefix.as_bytes(), true);
        loop {
            let entries = match pages.next().await {
                Ok(Some(entries)) => entries,
                Ok(None) => return,
                Err(failure) => {
                    let _ = items
                        .send(Err(FileError::new(format!("listing of {volume}/{prefix}"), &failure)))
                        .await;
                    return;
                }
            };
            for entry in entries {
                if let ListEntry::File(info) = entry
                    && items.send(Ok(info)).await.is_err()
                {
                    return;
                }
            }
        }
    })
}

/// Bytes of all files below a prefix.
pub async fn bytes(client: &Client, volume: &str, prefix: &str) -> Result<u64, Failure> {
    let mut pages = Pages::new(client, volume, prefix.as_bytes(), true);
    let mut total = 0;
    while let Some(entries) = pages.next().await? {
        let size = |entry: &ListEntry| if let ListEntry::File(info) = entry { info.size } else { 0 };
        total += entries.iter().map(size).sum::<u64>();
    }
    Ok(total)
}
