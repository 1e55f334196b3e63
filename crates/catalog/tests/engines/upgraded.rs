//! A PostgreSQL database of the release before.

use stoker_catalog::{Catalog, Commit, Outcome};
use tokio::task::JoinSet;

use crate::fixture::{CLUSTER, done, full, value};
use crate::postgres::{open, soon};
use crate::server;

/// A database of the release before: programs of both use it side by side, then it is switched, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_schema_1_is_used_and_then_switched() {
    const OLD: &str = "
        SELECT stoker_commit_1('{3}', ARRAY[$1::bytea], ARRAY[$2::bytea], '{0}', '{}', '{}', '{}', ARRAY[$1::bytea],
            ARRAY[$3::bytea], '{}', '{}', true)";
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    // Tests share a server; sessions of other tests must not look like those of older programs.
    let url = format!("{url} application_name=switched");
    let old = async || {
        let (client, io) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(io);
        client.batch_execute("SET default_transaction_isolation = 'serializable'").await.unwrap();
        client
    };
    let keeper = old().await;
    keeper.batch_execute(include_str!("schema-1.sql")).await.unwrap();
    let insert = "INSERT INTO stoker_meta (cluster, schema) VALUES ($1, 1)";
    keeper.execute(insert, &[&CLUSTER.0.as_slice()]).await.unwrap();
    let seed = "INSERT INTO stoker_row VALUES ('count', $1, nextval('stoker_seq'))";
    keeper.execute(seed, &[&0u64.to_le_bytes().as_slice()]).await.unwrap();

    let rounds = if full() { 300 } else { 40 };
    let parse = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let mut tasks: JoinSet<u64> = JoinSet::new();
    for _ in 0..3 {
        let catalog = open(&url).await.unwrap();
        tasks.spawn(async move {
            let mut won = 0;
            while won < rounds {
                let found = value(&catalog, b"count").await.unwrap();
                let next = (parse(&found) + 1).to_le_bytes();
                let commit = Commit::new().value("count", found).put("count", next);
                won += u64::from(matches!(catalog.commit(commit).await.unwrap(), Outcome::Done { .. }));
            }
            // Lives until all are done, so that the new ones switch while others of them are at work.
            won
        });
        let client = old().await;
        tasks.spawn(async move {
            let mut won = 0;
            while won < rounds {
                let row = client.query_one("SELECT value FROM stoker_row WHERE key = 'count'", &[]).await;
                let Ok(row) = row else { continue };
                let found: Vec<u8> = row.get(0);
                let next = (parse(&found) + 1).to_le_bytes();
                let done = client.query_one(OLD, &[&b"count".as_slice(), &found, &next.as_slice()]).await;
                match done {
                    Ok(row) => won += u64::from(row.get::<_, i64>(0) > 0),
                    Err(error) => assert_eq!(error.code().unwrap().code(), "40001", "{error}"),
                }
            }
            won
        });
    }
    let mut won = 0;
    while let Some(task) = tasks.join_next().await {
        won += task.unwrap();
    }
    let catalog = open(&url).await.unwrap();
    assert_eq!(parse(&value(&catalog, b"count").await.unwrap()), won);
    let schema = async || -> i32 {
        let client = old().await;
        client.query_one("SELECT schema FROM stoker_meta", &[]).await.unwrap().get(0)
    };
    assert_eq!(schema().await, 1, "a session of the older program is there");
    let found = 7u64.to_le_bytes();
    let begun = keeper.query_one(OLD, &[&b"no".as_slice(), &found.as_slice(), &found.as_slice()]).await;
    assert_eq!(begun.unwrap().get::<_, i64>(0), -1);
    drop(keeper);
    let late = {
        let others = format!("{} application_name=late", url.replace(" application_name=switched", ""));
        let (client, io) = tokio_postgres::connect(&others, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(io);
        client.batch_execute("SET default_transaction_isolation = 'serializable'").await.unwrap();
        client
    };
    soon("the switch", async {
        while late.query_one("SELECT schema FROM stoker_meta", &[]).await.unwrap().get::<_, i32>(0) == 1 {
            done(&catalog, Commit::new().add("n", 1)).await;
        }
    })
    .await;
    done(&catalog, Commit::new().add("n", 1)).await;
    // An older program that comes late is told, and changes nothing.
    let error = late.query_one(OLD, &[&b"no".as_slice(), &found.as_slice(), &found.as_slice()]).await;
    let error = error.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42883");
    assert_eq!(parse(&value(&catalog, b"count").await.unwrap()), won);
}

/// A database whose function is older than sums: the first program of this version that opens it brings the newer one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_that_knows_no_sums_is_replaced() {
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    drop(open(&url).await.unwrap());
    let (client, io) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(io);
    // It knew all but the last kind of check, which it took for one that holds.
    let source = "SELECT pg_get_functiondef('stoker_commit_2'::regproc)";
    let source: String = client.query_one(source, &[]).await.unwrap().get(0);
    assert!(source.contains("5 = ANY (check_kinds)"));
    client.batch_execute(&source.replace("5 = ANY (check_kinds)", "false")).await.unwrap();
    client.batch_execute("DROP FUNCTION stoker_count_2").await.unwrap();
    let catalog = open(&url).await.unwrap();
    done(&catalog, Commit::new().sum_at_most("#a", "#b", 0).add("#a", 5)).await;
    let refused = catalog.commit(Commit::new().sum_at_most("#a", "#b", 4).put("x", "")).await.unwrap();
    assert_eq!(refused, Outcome::Failed { check: 0 });
}
