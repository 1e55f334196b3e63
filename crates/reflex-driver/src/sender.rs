//! Sends notices of work orders to where they are to go, and says what became of each try.
//!
//! It decides nothing: when a notice is sent again, and in which order, is the outbox's. What it makes sure of is that a try
//! whose answer was lost makes no second ticket.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bytes::Bytes;
use http::{HeaderName, Method};
use serde::Deserialize;
use serde::de::IgnoredAny;
use stoker_reflex::config::{Format, Slo, Target};
use stoker_reflex::order::{self, Credentials, OrderStatus, Request, WorkOrder};
use stoker_reflex::{Answer, Notice, Time};

use super::program::one_line;
use crate::failure::Failure;
use crate::small_file::read_small;
use stoker_telemetry::{Http, HttpAnswer, check_url};

/// Longest answer that is read: a row of a table, a few lines of others.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Bits of a file's mode that let everybody read or write it.
const OTHERS: u32 = 0o006;

/// Knows the targets and sends to them.
pub struct Sender {
    targets: Vec<Target>,
    http: Http,
}

/// What files hold now.
#[derive(Default)]
struct Secrets {
    token: Option<String>,
    secret: Option<String>,
}

impl Secrets {
    fn credentials(&self) -> Credentials<'_> {
        Credentials { token: self.token.as_deref(), secret: self.secret.as_deref().map(str::as_bytes) }
    }

    /// Some servers repeat what they were sent.
    fn hidden_in(&self, words: String) -> String {
        let all = [&self.token, &self.secret].into_iter().flatten();
        all.fold(words, |words, secret| words.replace(secret.as_str(), "***"))
    }
}

impl Sender {
    /// Checks that everything that is needed is there. Files are read again for each notice, so that they can be replaced.
    pub fn new(slo: &Slo, http: Http) -> Result<Sender, Failure> {
        for target in &slo.target {
            let name = target.name.get_ref();
            check_url(target.url.get_ref()).map_err(|why| Failure::new(format!("target {name}: {why}")))?;
            for file in [&target.token_file, &target.secret_file].into_iter().flatten() {
                check_file(name, Path::new(file))?;
            }
        }
        Ok(Sender { targets: slo.target.clone(), http })
    }

    /// One try.
    pub async fn send(&self, notice: &Notice, now: Time) -> Answer {
        let Some(target) = self.targets.iter().find(|target| *target.name.get_ref() == notice.target) else {
            return Answer::Never { why: format!("there is no target {} any more", notice.target) };
        };
        let files = [target.token_file.clone(), target.secret_file.clone()];
        let read = tokio::task::spawn_blocking(move || {
            let [token, secret] =
                files.map(|file| file.map(|file| read_secret(Path::new(&file))).transpose());
            Ok::<Secrets, Failure>(Secrets { token: token?, secret: secret? })
        });
        let secrets = match read.await {
            Ok(Ok(secrets)) => secrets,
            // It may be on its way: whoever replaces a file can be between two steps.
            Ok(Err(failure)) => return Answer::Later { why: failure.cause().to_owned() },
            Err(error) => return Answer::Later { why: error.to_string() },
        };
        let attempt = Attempt { http: &self.http, target, secrets: &secrets, now };
        match target.format {
            Format::Servicenow => attempt.tell_table(notice).await,
            Format::Alertmanager | Format::Pagerduty | Format::Webhook => {
                attempt.tell(&notice.order, None).await.answer()
            }
        }
    }
}

fn check_file(target: &str, path: &Path) -> Result<(), Failure> {
    let about = format!("target {target}: {}", path.display());
    let meta = std::fs::metadata(path).map_err(|error| Failure::io(&about, &error))?;
    let mode = meta.permissions().mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(Failure::new(format!(
            "{about}: everybody on this machine can read or write it (mode {mode:04o})"
        ))
        .hint(format!("chmod 600 {}; of a secret of Kubernetes set `defaultMode: 0400`", path.display())));
    }
    read_secret(path).map(drop)
}

/// Blanks at its ends do not count.
fn read_secret(path: &Path) -> Result<String, Failure> {
    let text = read_small(path)?.ok_or_else(|| Failure::new(format!("{}: is not there", path.display())))?;
    match text.trim() {
        "" => {
            Err(Failure::new(format!("{}: is empty", path.display())).hint("write the token or secret there"))
        }
        text => Ok(text.to_owned()),
    }
}

/// What one request came to.
enum Reply {
    Got(HttpAnswer),
    /// Nobody knows whether it arrived.
    Lost(String),
}

impl Reply {
    fn answer(self) -> Answer {
        match self {
            Reply::Got(got) => of_status(&got, None),
            Reply::Lost(why) => Answer::Later { why },
        }
    }
}

/// A refusal with what the target says about it.
fn of_status(got: &HttpAnswer, remote: Option<String>) -> Answer {
    let more = |why: String| match one_line(&got.body) {
        said if said.is_empty() => why,
        said => format!("{why}: {said}"),
    };
    match Answer::of_status(got.status, remote) {
        Answer::Taken { remote } => Answer::Taken { remote },
        Answer::Later { why } => Answer::Later { why: more(why) },
        Answer::Never { why } => Answer::Never { why: more(why) },
    }
}

/// One try to tell one target.
struct Attempt<'a> {
    http: &'a Http,
    target: &'a Target,
    secrets: &'a Secrets,
    now: Time,
}

impl Attempt<'_> {
    async fn tell(&self, order: &WorkOrder, row: Option<&str>) -> Reply {
        let (format, url) = (self.target.format, self.target.url.get_ref());
        self.ask(order::request(format, url, order, self.secrets.credentials(), row, self.now)).await
    }

    async fn ask(&self, request: Request) -> Reply {
        let Ok(method) = Method::from_bytes(request.method.as_bytes()) else {
            return Reply::Lost(format!("no method {}", request.method));
        };
        let headers: Vec<(HeaderName, String)> =
            request.headers.into_iter().map(|(name, value)| (HeaderName::from_static(name), value)).collect();
        let body = Bytes::from(request.body);
        match self.http.ask(method, &request.url, &headers, body, ANSWER_BYTES_MAX).await {
            Ok(mut got) => {
                if !(200..300).contains(&got.status) {
                    got.body = self.secrets.hidden_in(one_line(&got.body)).into();
                }
                Reply::Got(got)
            }
            Err(why) => Reply::Lost(self.secrets.hidden_in(why)),
        }
    }

    /// Tells ServiceNow. Its table takes the same row twice, so that a row that may be there is looked for first.
    async fn tell_table(&self, notice: &Notice) -> Answer {
        let order = &notice.order;
        let mut row = notice.remote.clone();
        if let Some(known) = &row {
            let reply = self.tell(order, Some(known)).await;
            if !matches!(&reply, Reply::Got(got) if got.status == 404) {
                return changed(reply, known);
            }
            // Somebody removed it, or there is a table of another name: that can be found out.
            row = None;
        }
        let is_first = order.status == OrderStatus::Opened && notice.tries == 0 && notice.remote.is_none();
        if !is_first {
            row = match self.find(order).await {
                Ok(found) => found,
                Err(answer) => return answer,
            };
        }
        match (row, order.status) {
            // The answer to an earlier try was lost. What persons wrote into the row since is not written over.
            (Some(row), OrderStatus::Opened) => Answer::Taken { remote: Some(row) },
            (Some(row), _) => changed(self.tell(order, Some(&row)).await, &row),
            (None, OrderStatus::Closed) => Answer::Taken { remote: None },
            (None, OrderStatus::Opened) => created(self.tell(order, None).await),
            // A row that begins with a change would say nothing of what is broken.
            (None, OrderStatus::Updated) => {
                let whole = WorkOrder { status: OrderStatus::Opened, ..order.clone() };
                created(self.tell(&whole, None).await)
            }
        }
    }

    async fn find(&self, order: &WorkOrder) -> Result<Option<String>, Answer> {
        let url = self.target.url.get_ref();
        let got = match self.ask(order::servicenow_find(url, order, self.secrets.credentials())).await {
            Reply::Got(got) if (200..300).contains(&got.status) => got,
            other => return Err(other.answer()),
        };
        #[derive(Deserialize)]
        struct Rows {
            result: Vec<IgnoredAny>,
        }
        match order::servicenow_id(&got.body) {
            Some(row) => Ok(Some(row)),
            // A page for people, such as that of an instance that sleeps, does not say that there is no row.
            None => match serde_json::from_slice::<Rows>(&got.body) {
                Ok(rows) if rows.result.is_empty() => Ok(None),
                _ => Err(senseless(&got)),
            },
        }
    }
}

fn senseless(got: &HttpAnswer) -> Answer {
    let why = format!("status {}, and an answer that makes no sense: {}", got.status, one_line(&got.body));
    Answer::Later { why }
}

/// Of a new row: without its id it is not sure that there is one, and the next try looks for it.
fn created(reply: Reply) -> Answer {
    match reply {
        Reply::Got(got) if (200..300).contains(&got.status) => match order::servicenow_id(&got.body) {
            Some(row) => Answer::Taken { remote: Some(row) },
            None => senseless(&got),
        },
        other => other.answer(),
    }
}

fn changed(reply: Reply, row: &str) -> Answer {
    match reply {
        Reply::Got(got) if (200..300).contains(&got.status) => {
            let is_json = got.body.is_empty() || serde_json::from_slice::<IgnoredAny>(&got.body).is_ok();
            if is_json { Answer::Taken { remote: Some(row.to_owned()) } } else { senseless(&got) }
        }
        other => other.answer(),
    }
}

#[cfg(test)]
mod tests;
