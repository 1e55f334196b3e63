//! What a PostgreSQL says of itself: whether it loses what it acknowledged with its machine.

use std::time::Duration;

use stoker_doctor::{Database, Known, Standby};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, Error, NoTls};

use crate::clock;

/// A database that takes longer does not answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

const SETTINGS: &str = "SELECT name::text, setting::text FROM pg_settings WHERE name IN \
                        ('synchronous_standby_names', 'synchronous_commit', 'fsync', 'full_page_writes')";
const STANDBYS: &str =
    "SELECT application_name::text, state::text, sync_state::text FROM pg_stat_replication LIMIT 64";
const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// Asks; also how many milliseconds its clock is ahead of ours. The error names no password.
pub fn ask(url: &str) -> Known<(Database, i64)> {
    let config: Config =
        url.parse().map_err(|_| "the url of [catalog] is not one of a PostgreSQL database".to_owned())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let asked = tokio::time::timeout(ANSWER_MAX, answers(&config)).await;
        asked.map_err(|_| format!("no answer within {} s", ANSWER_MAX.as_secs()))?
    })
}

async fn answers(config: &Config) -> Known<(Database, i64)> {
    let (client, io) = config.connect(NoTls).await.map_err(|error| words(&error))?;
    let driver = tokio::spawn(io);
    let mut database = Database { name: name(config), ..Database::default() };
    for row in client.query(SETTINGS, &[]).await.map_err(|error| words(&error))? {
        let (setting, value): (String, Option<String>) = (row.get(0), row.get(1));
        match setting.as_str() {
            "synchronous_standby_names" => database.standby_names = value,
            "synchronous_commit" => database.synchronous_commit = value,
            "fsync" => database.fsync = value,
            _ => database.full_page_writes = value,
        }
    }
    database.standbys = standbys(&client).await;
    let before_ms = clock::unix_ms();
    let now_ms: i64 = client.query_one(NOW, &[]).await.map_err(|error| words(&error))?.get(0);
    let ours_ms = u64::midpoint(before_ms, clock::unix_ms()) as i64;
    driver.abort();
    Ok((database, now_ms - ours_ms))
}

/// None if this user may not see them: the server then leaves the fields empty, or refuses.
async fn standbys(client: &Client) -> Option<Vec<Standby>> {
    let rows = client.query(STANDBYS, &[]).await.ok()?;
    let standby = |row: &tokio_postgres::Row| {
        let (name, state, sync_state): (Option<String>, Option<String>, Option<String>) =
            (row.get(0), row.get(1), row.get(2));
        Some(Standby { name: name.unwrap_or_default(), state: state?, sync_state: sync_state? })
    };
    rows.iter().map(standby).collect()
}

/// Where it is, without user and password.
fn name(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "localhost".to_owned(),
    };
    format!("postgresql://{host}/{}", config.get_dbname().unwrap_or_default())
}

/// The server's own words, which are hidden one level below.
fn words(error: &Error) -> String {
    match error.as_db_error() {
        Some(server) => server.message().to_owned(),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}
