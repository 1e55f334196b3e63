//! The database that holds the names, where it is not the embedded one.

use crate::finding::{Fault, Notes, Verdict};
use crate::machine::Gap;
use crate::plan::{Database, Plan};

/// Makes the checks.
pub fn check(plan: &Plan, notes: &mut Notes) {
    let Some(database) = &plan.database else { return };
    let database = match database {
        Ok(database) => database,
        Err(why) => {
            let fault = Fault::error(
                "the database does not answer",
                "without its catalog a node serves what it has open and publishes nothing",
            );
            let fault =
                fault.fix("psql \"$URL\" -c 'select 1' with the url of [catalog]").saw("connect", why);
            return notes.judge("database.answers", "", Ok(Some(fault)));
        }
    };
    let name = &database.name;
    notes.judge("database.answers", name, Ok(None));
    notes.judge("database.durable", name, Ok(durable(database)));
    notes.judge("database.standby", name, standby(database));
}

fn durable(database: &Database) -> Option<Fault> {
    let settings = [("fsync", &database.fsync), ("full_page_writes", &database.full_page_writes)];
    let (setting, _) = settings.into_iter().find(|(_, value)| value.as_deref() == Some("off"))?;
    Some(
        Fault::error(
            format!("{setting} is off in PostgreSQL"),
            "a crash of its machine damages or loses the catalog: names of files that were acknowledged are gone",
        )
        .fix(format!("ALTER SYSTEM SET {setting} = on; SELECT pg_reload_conf();"))
        .saw(setting, "off"),
    )
}

/// An acknowledged publish must not be lost with the machine of the database. Databases without this setting have their
/// own way to be on several machines.
fn standby(database: &Database) -> Verdict {
    let Some(names) = &database.standby_names else { return Ok(None) };
    let behind = "if its machine is lost, the standby that takes over lacks the last publishes: the catalog has gone back, and nodes \
                  refuse it until it is salvaged";
    let make = "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf(); (with a standby that streams)";
    if names.trim().is_empty() {
        let fault = match database.standbys.as_ref().map_or(0, Vec::len) {
            0 => Fault::warning(
                "PostgreSQL has no synchronous standby",
                "if its machine is lost, so are the names of what was published since its last backup, until they are salvaged from \
                 drives and lake",
            ),
            count => Fault::warning(
                format!("PostgreSQL has {count} standbys, and commits wait for none of them"),
                behind,
            ),
        };
        return Ok(Some(fault.fix(make).saw("synchronous_standby_names", "''")));
    }
    if let Some(commit) = database.synchronous_commit.as_deref().filter(|value| *value == "local") {
        let fault = Fault::warning("commits wait for no standby: synchronous_commit is local", behind);
        return Ok(Some(
            fault
                .fix("ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf();")
                .saw("synchronous_commit", commit),
        ));
    }
    let Some(standbys) = &database.standbys else {
        return Err(Gap::Untold(
            "this user may not see pg_stat_replication: GRANT pg_monitor TO the user".to_owned(),
        ));
    };
    let waited = |state: &str| matches!(state, "sync" | "quorum");
    let is_there = standbys.iter().any(|standby| waited(&standby.sync_state) && standby.state == "streaming");
    Ok((!is_there).then(|| {
        let seen = standbys
            .iter()
            .map(|one| format!("{} {} {}", one.name, one.state, one.sync_state))
            .collect::<Vec<_>>();
        Fault::error(
            format!("commits wait for a standby ({names}), and none of them streams"),
            "no publish is acknowledged until one is back",
        )
        .fix("SELECT application_name, state, sync_state FROM pg_stat_replication; start the standby")
        .saw("pg_stat_replication", seen.join(", "))
    }))
}
