//! Quotas hold exactly, whoever publishes at the same time: never above, and never more than one part short.

use std::collections::HashMap;
use std::sync::Arc;

use stoker_catalog::kv::{Commit, Outcome};
use stoker_format::VolumeId;
use stoker_schema::names::{
    Account, Exceeded, Names, Plan, Published, Quota, Refusal, Usage, account_usage, account_usages, usage,
};
use stoker_schema::rows::{FileRow, PlainRow, QuotaRow, RowValue, keys};

use crate::fixture::{Fixture, VOLUME, file, on_each, rekey, request};

const WRITERS: u64 = 64;
const PART: u64 = 1 << 20;
/// Room for a hundred parts and a bit.
const LIMIT: u64 = 100 * PART + PART / 3;
const OTHER: VolumeId = VolumeId(4);

/// The user stands in the properties, as they are.
fn charged(file: &FileRow) -> Option<String> {
    (!file.properties.is_empty()).then(|| String::from_utf8(file.properties.clone()).unwrap())
}

fn part(id: u64, user: &str) -> FileRow {
    FileRow { size: PART, properties: user.as_bytes().to_vec(), ..file(id) }
}

async fn commit(fixture: &Fixture, commit: Commit) {
    assert!(matches!(fixture.catalog.commit(commit).await.unwrap(), Outcome::Done { .. }));
}

/// A tenant with its volume, a second one, and a project.
async fn tenants(mut fixture: Fixture) -> Fixture {
    fixture.names = Names::new(fixture.catalog.clone()).charging(charged);
    let plain = PlainRow { created_ms: 1 }.encode();
    let rows = Commit::new()
        .put(keys::volume_id(VOLUME), "acme_acme")
        .put(keys::volume_id(OTHER), "acme_data")
        .put(keys::project("acme", "vision"), plain);
    commit(&fixture, rows).await;
    fixture
}

async fn limit(fixture: &Fixture, account: &Account, row: QuotaRow) {
    commit(fixture, Commit::new().put(account.quota_key(), row.encode())).await;
}

fn bytes(limit: u64) -> QuotaRow {
    QuotaRow { bytes: limit, ..QuotaRow::default() }
}

async fn put(
    names: &Names,
    volume: VolumeId,
    key: &str,
    row: FileRow,
    volume_bytes: u64,
) -> Result<Published, Refusal> {
    let plan = Plan { quota: Some(Quota { volume_bytes }), ..Plan::simple(row) };
    let published = names.publish(volume, key.as_bytes(), &[], |_| {
        let plan = plan.clone();
        Box::pin(async move { Ok(plan) })
    });
    published.await
}

fn exceeded(refusal: Result<Published, Refusal>) -> Exceeded {
    match refusal {
        Err(Refusal::Quota(exceeded)) => exceeded,
        other => panic!("not for a quota: {other:?}"),
    }
}

/// Everybody writes parts, into two volumes, until they are refused.
async fn storm(fixture: &Fixture, volume_bytes: u64, volumes: [VolumeId; 2]) -> Option<Account> {
    let refused = Arc::new(std::sync::Mutex::new(Vec::new()));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (names, refused) = (fixture.names.clone(), refused.clone());
            tokio::spawn(async move {
                for at in 0.. {
                    let key = format!("vision/{writer}/{at}");
                    let row = part(writer * 1_000 + at, "acme/alice");
                    match put(&names, volumes[(writer % 2) as usize], &key, row, volume_bytes).await {
                        Ok(_) => {}
                        Err(Refusal::Quota(exceeded)) => {
                            return refused.lock().unwrap().push(exceeded.account);
                        }
                        Err(other) => panic!("{other:?}"),
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let refused = refused.lock().unwrap();
    assert_eq!(refused.len() as u64, WRITERS);
    assert!(refused.iter().all(|account| *account == refused[0]), "{refused:?}");
    refused[0].clone()
}

fn is_exact(used: Usage) {
    assert!(used.bytes <= LIMIT && used.bytes + PART > LIMIT, "{used:?} of {LIMIT}");
    assert_eq!(used.files, LIMIT / PART);
}

async fn a_volume(fixture: Fixture) {
    let fixture = tenants(fixture).await;
    assert_eq!(storm(&fixture, LIMIT, [VOLUME, VOLUME]).await, None);
    is_exact(usage(&*fixture.catalog, VOLUME).await.unwrap());
}

async fn a_tenant(fixture: Fixture) {
    let fixture = tenants(fixture).await;
    let account = Account::Tenant("acme".into());
    limit(&fixture, &account, bytes(LIMIT)).await;
    assert_eq!(storm(&fixture, 0, [VOLUME, OTHER]).await, Some(account.clone()));
    is_exact(account_usage(&*fixture.catalog, &account).await.unwrap());
}

async fn a_project_and_a_number_of_files(fixture: Fixture) {
    let fixture = tenants(fixture).await;
    let account = Account::Project("acme/vision".into());
    limit(&fixture, &account, QuotaRow { files: LIMIT / PART, ..QuotaRow::default() }).await;
    assert_eq!(storm(&fixture, 0, [VOLUME, VOLUME]).await, Some(account.clone()));
    is_exact(account_usage(&*fixture.catalog, &account).await.unwrap());
    // Only its own folder counts for it.
    put(&fixture.names, VOLUME, "elsewhere", part(1 << 40, ""), 0).await.unwrap();
    put(&fixture.names, OTHER, "vision/x", part(2 << 40, ""), 0).await.unwrap();
}

async fn a_user(fixture: Fixture) {
    let fixture = tenants(fixture).await;
    let account = Account::User("acme/alice".into());
    limit(&fixture, &account, bytes(LIMIT)).await;
    assert_eq!(storm(&fixture, 0, [VOLUME, OTHER]).await, Some(account.clone()));
    is_exact(account_usage(&*fixture.catalog, &account).await.unwrap());
    // Whoever writes it last has it: that makes room.
    put(&fixture.names, VOLUME, "vision/0/0", part(1 << 40, "acme/bob"), 0).await.unwrap();
    put(&fixture.names, VOLUME, "mine", part(2 << 40, "acme/alice"), 0).await.unwrap();
    let exceeded = exceeded(put(&fixture.names, VOLUME, "more", part(3 << 40, "acme/alice"), 0).await);
    assert_eq!(exceeded, Exceeded { account: Some(account), is_bytes: true, limit: LIMIT });
}

async fn counters_follow_files_wherever_they_go(fixture: Fixture) {
    let fixture = tenants(fixture).await;
    let names = &fixture.names;
    let check = async |expect: &[(&str, u64)]| {
        let found = account_usages(&*fixture.catalog).await.unwrap();
        let found: HashMap<String, Usage> =
            found.into_iter().map(|(id, usage)| (String::from_utf8(id).unwrap(), usage)).collect();
        for (id, files) in expect {
            let expect = Usage { files: *files, bytes: files * PART };
            assert_eq!(found.get(*id).copied().unwrap_or_default(), expect, "{id} of {found:?}");
        }
    };
    for (at, key) in ["vision/a", "vision/b/c", "other/d", "e"].iter().enumerate() {
        put(names, VOLUME, key, part(at as u64, "acme/alice"), 0).await.unwrap();
    }
    check(&[("t/acme", 4), ("p/acme/vision", 2), ("p/acme/other", 0), ("u/acme/alice", 4)]).await;

    // In, out, over another one.
    let plan = |_: &_, _: Option<&_>| Ok(Vec::new());
    names.rename_file(VOLUME, b"e", b"vision/e", &[], plan).await.unwrap();
    check(&[("t/acme", 4), ("p/acme/vision", 3)]).await;
    names.rename_file(VOLUME, b"vision/a", b"other/d", &[], plan).await.unwrap();
    check(&[("t/acme", 3), ("p/acme/vision", 2), ("u/acme/alice", 3)]).await;
    names.exchange(VOLUME, b"vision/e", b"other/d", &[], |_, _| Ok(Vec::new())).await.unwrap();
    check(&[("t/acme", 3), ("p/acme/vision", 2)]).await;

    // A project that is full takes no more from elsewhere.
    let vision = Account::Project("acme/vision".into());
    limit(&fixture, &vision, QuotaRow { files: 2, ..QuotaRow::default() }).await;
    let full = names.rename_file(VOLUME, b"other/d", b"vision/d", &[], plan).await;
    assert!(matches!(full, Err(Refusal::Quota(_))), "{full:?}");

    // A directory would take along nobody knows how much.
    for (from, to) in [("vision/b/", "other/b/"), ("other/", "vision/other/"), ("vision/", "renamed/")] {
        let moved = names.rename_directory(VOLUME, from.as_bytes(), to.as_bytes(), &[], rekey(0)).await;
        assert!(matches!(moved, Err(Refusal::Apart)), "{from} {to}: {moved:?}");
    }
    names.rename_directory(VOLUME, b"vision/b/", b"vision/c/", &[], rekey(0)).await.unwrap();
    names.rename_directory(VOLUME, b"other/", b"another/", &[], rekey(0)).await.unwrap();

    // Shards of a set count from the moment that they are safe.
    let set = names.set_begin(VOLUME, &request("vision/set/", 2), &[], 1).await.unwrap();
    fixture.add_at(set.id, 0, "0", 77, 1).await.unwrap();
    let found = account_usage(&*fixture.catalog, &vision).await.unwrap();
    assert_eq!(found.files, 3);
    names.set_abort(VOLUME, set.id, &[], 2).await.unwrap();
    check(&[("t/acme", 3), ("p/acme/vision", 2)]).await;

    for key in ["vision/e", "vision/c/c", "another/d"] {
        fixture.remove(key).await.unwrap().unwrap();
    }
    check(&[("t/acme", 0), ("p/acme/vision", 0), ("u/acme/alice", 0)]).await;
}

on_each!(a_volume, a_tenant, a_project_and_a_number_of_files, a_user, counters_follow_files_wherever_they_go,);
