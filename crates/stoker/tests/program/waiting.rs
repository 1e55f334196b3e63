//! Waiting ends: when it is done, or when the time is up, with how far it is and why it does not go on.

use std::fs;
use std::path::Path;

use crate::rig::{Rig, bytes_of};

#[test]
fn a_wait_says_how_far_it_is_and_why_it_does_not_go_on() {
    let rig = Rig::new();
    let lake = rig.node.ready["lake"].as_str().unwrap().strip_prefix("file://").unwrap().to_owned();
    let away = format!("{lake}.away");
    // Nothing can be written where a file is in place of the directory.
    fs::rename(&lake, &away).unwrap();
    fs::write(&lake, "not a directory").unwrap();
    rig.write("some", &bytes_of(1, 100_000));
    rig.succeed("put some data/some");
    let late = rig.run("drain data --wait --timeout 4s");
    assert_eq!(late.code, 1, "{}", late.err);
    assert!(late.out.is_empty(), "{}", late.text());
    let lines: Vec<&str> = late.err.lines().collect();
    let [said, cause, hint] = lines.as_slice() else { panic!("a line, the cause, the hint: {}", late.err) };
    assert!(said.starts_with("0 of 1 file drained; some is "), "{said}");
    assert!(cause.starts_with("stoker: not done after 4s: 0 of 1 file drained; some is "), "{cause}");
    assert!(hint.contains("`stoker explain data/some` says more; the drain goes on"), "{hint}");
    // For programs there is nothing but the end.
    let late = rig.run("drain data --wait --timeout 1s --json");
    assert!(late.code == 1 && late.err.starts_with("stoker: not done"), "{}", late.err);
    let late = rig.run("wait data/some --timeout 1s");
    assert!(
        late.code == 1 && late.err.contains("stoker: data/some is not drained: not done after 1s"),
        "{}",
        late.err
    );
    assert_eq!(rig.run("drain data --timeout 1s").code, 2, "a limit of a wait that was not asked for");

    fs::remove_file(&lake).unwrap();
    fs::rename(&away, &lake).unwrap();
    // The drain may have been faster than the one who waits for it.
    let drained = rig.succeed("drain data --wait --timeout 60s").text();
    assert!(["1 file drained\n", "0 files drained\n"].contains(&drained.as_str()), "{drained}");
    assert!(Path::new(&lake).join("data/some").exists());
    assert_eq!(rig.succeed("stage data/some --timeout 60s").text(), "0 B came from the lake\n");
    assert!(rig.succeed("stage data --timeout 60s").err.starts_with("staged 1 file"));
}
