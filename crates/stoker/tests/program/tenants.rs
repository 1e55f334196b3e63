//! Tenants, their quotas, and keys that expire, by the command line.

use serde_json::json;

use crate::rig::*;

#[test]
fn quotas_are_set_shown_and_kept() {
    let rig = Rig::new();
    // The level of a new node rises within its first moments.
    while rig.run("tenant create acme").code != 0 {}
    rig.succeed("project create acme/vision");
    rig.succeed("user create acme/alice");
    rig.write("in", &bytes_of(1, 1 << 20));

    rig.refuse("tenant set acme", "nothing to change", "name a limit, as --quota-bytes");
    rig.refuse("tenant set acme --quota-bytes 1MiB --soft-bytes 2MiB", "above the hard one", "");
    rig.refuse("tenant set default --quota-bytes 1MiB", "has no quota", "");
    rig.refuse("tenant set nobody --quota-bytes 1MiB", "there is no tenant", "");
    rig.refuse("project set acme/nothing --quota-files 1", "there is no project", "");
    rig.refuse("usage nobody", "there is no tenant", "");
    rig.succeed("tenant set acme --quota-bytes 2MiB --soft-bytes 1MiB");
    rig.succeed("project set acme/vision --quota-files 1");
    rig.succeed("user set acme/alice --quota-bytes 500GiB --soft-files 7");
    // What is not named stays as it is.
    rig.succeed("tenant set acme --quota-files 100");

    rig.succeed("put in acme_acme/vision/a");
    rig.refuse("put in acme_acme/vision/b", "project `acme/vision` has a quota of 1 files", "");
    rig.succeed("put in acme_acme/b");
    rig.refuse("put in acme_acme/c", "tenant `acme` has a quota of 2097152 bytes", "");

    let lines = rig.succeed("usage acme --json").json_lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(
        lines[0],
        json!({
            "kind": "tenant", "name": "acme", "tenant": "acme", "files": 2, "bytes": 2 << 20, "quota_bytes": 2 << 20,
            "quota_files": 100, "soft_bytes": 1 << 20, "soft_files": 0, "above_soft": true,
        })
    );
    assert_eq!((&lines[1]["kind"], &lines[1]["files"]), (&json!("project"), &json!(1)));
    assert_eq!((&lines[2]["quota_bytes"], &lines[2]["soft_files"]), (&json!(500u64 << 30), &json!(7)));
    let words = rig.succeed("tenant list").text();
    assert!(words.contains("2 MiB of 2 MiB, above the soft limit"), "{words}");
    for list in ["project list --json", "user list --json"] {
        assert!(rig.succeed(list).text().contains("quota_files"), "{list}");
    }
    rig.succeed("rm acme_acme/b");
    rig.succeed("put in acme_acme/c");
}

#[test]
fn a_key_works_for_as_long_as_it_was_made_for() {
    let rig = Rig::new();
    let key = rig.succeed("key create --expires 30d --json").json();
    assert!(key["expires"].is_string() && key["secret_key"].is_string(), "{key}");
    let name = key["access_key"].as_str().unwrap();
    rig.refuse("key create --expires 1000000d", "one second to ten years", "");
    let listed = rig.succeed("key ls --json").text();
    let mine = listed.lines().find(|line| line.contains(name)).unwrap();
    assert!(mine.contains("expires") && !mine.contains("secret"), "{mine}");
    // One that replaces it lives as long; for a while both work.
    let next = rig.succeed(&format!("key rotate {name} --grace 1h --json")).json();
    assert!(next["expires"].is_string() && next["old_until"].is_string(), "{next}");
    for name in [name, next["access_key"].as_str().unwrap()] {
        rig.succeed(&format!("key show {name}"));
    }
}
