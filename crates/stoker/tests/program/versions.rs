//! What files were before, on the command line.

use crate::rig::*;
use serde_json::Value;

fn lines(rig: &Rig, args: &str) -> Vec<Value> {
    rig.succeed(&format!("versions ls {args} --json")).json_lines()
}

#[test]
fn a_file_that_was_replaced_or_deleted_comes_back() {
    let rig = Rig::new();
    let refused = rig.run("volume set data --versioning off");
    assert!(refused.code == 2 && refused.err.contains("expected on or suspended"), "{}", refused.err);
    // A node that is alone raises the level by itself, within its first moments.
    wait_for(|| rig.run("volume set data --versioning on").code == 0);
    assert!(rig.succeed("volume show data").text().contains("enabled"));
    for text in ["first", "second"] {
        rig.write("in", text.as_bytes());
        rig.succeed("put in data/dir/a");
    }
    rig.write("in", b"other");
    rig.succeed("put in data/dir/ab");
    rig.succeed("rm data/dir/a");
    rig.refuse("get data/dir/a out", "there is no key", "");
    let all = lines(&rig, "data/dir/");
    let shown: Vec<_> = all
        .iter()
        .map(|line| (line["key"].as_str().unwrap(), line["marker"] == true, line["latest"] == true))
        .collect();
    assert_eq!(
        shown,
        [("dir/a", true, true), ("dir/a", false, false), ("dir/a", false, false), ("dir/ab", false, true)]
    );
    assert!(rig.succeed("versions ls data").text().contains("deleted"));

    // Without an id it is the latest one, and any other by its id.
    rig.succeed("versions restore data/dir/a");
    rig.succeed("get data/dir/a out");
    assert_eq!(rig.read("out"), b"second");
    let first = all[2]["version"].as_str().unwrap();
    rig.succeed(&format!("versions restore data/dir/a {first}"));
    rig.succeed("get data/dir/a out");
    assert_eq!(rig.read("out"), b"first");

    rig.succeed(&format!("versions rm data/dir/a {first}"));
    assert!(lines(&rig, "data/dir/a").iter().all(|line| line["version"] != first));
    rig.succeed("get data/dir/a out");
    assert_eq!(rig.read("out"), b"first", "what was restored is a version of its own");
    for (args, cause) in [
        (format!("versions rm data/dir/a {first}"), "no such version"),
        ("versions restore data/dir/ab".to_owned(), "has no former version"),
        ("versions restore data/dir/a nonsense".to_owned(), "nonsense"),
        ("versions ls data/none".to_owned(), "no key that starts so"),
        ("versions rm data null".to_owned(), "whole volume"),
    ] {
        let ran = rig.run(&args);
        assert!(ran.code == 1 && (ran.err.contains(cause)), "{args}: {} {}", ran.text(), ran.err);
    }
}
